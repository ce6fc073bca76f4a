"""Bind a rank's program to buffers on its device, and copy arrays to and from them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack

from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.records import DEVICE
from meshweave.runtime.gpu.driver import allocate
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.memory import Values

MOST_BINDINGS = 8  # of one call, for each of which there may be a graph


class _Binding:
    """Hold the table of a step on certain buffers, and the graph of it, once there is one."""

    def __init__(self, table: Values) -> None:
        self.table, self.graph = table, 0
        self.held = ExitStack()

    @property
    def context(self) -> int:
        """Return the address of the table."""
        return int(self.table.ctypes.data)


class RankCall:
    """Run a rank's program on buffers of its device: its own, which it makes when they are needed, or others.

    A step may be a graph from the second time on: one for each choice of buffers, as far as they come again.
    """

    def __init__(self, rank: GpuRank, board: StatusBoard, graph: bool) -> None:
        """Hold no buffer yet. graph: run the step as a graph from the second time on."""
        self.rank, self.board, self._graph = rank, board, graph
        self._held = ExitStack()
        self._inputs: dict[int, int] = {}
        self._outputs: dict[int, int] = {}
        self._bindings: OrderedDict[tuple[int, ...], _Binding] = OrderedDict()
        self._runs = 0

    def input(self, index: int) -> int:
        """Return the address of the call's own buffer for an input. Raises RankError without memory."""
        if index not in self._inputs:
            nbytes = self.rank.manifest.inputs[index].nbytes
            self._inputs[index] = allocate(self.rank.driver, self._held, nbytes, "inputs")
        return self._inputs[index]

    def output(self, index: int) -> int:
        """Return the address of the call's own buffer for an output: that of an input, where it takes one."""
        port = self.rank.manifest.outputs[index]
        if port.takes is not None:
            return self.input(port.takes)
        if index not in self._outputs:
            made = allocate(self.rank.driver, self._held, port.nbytes, "outputs")
            self._outputs[index] = made
        return self._outputs[index]

    @property
    def inputs(self) -> list[int]:
        """Return the call's own buffers for all inputs. Raises RankError without memory."""
        return [self.input(index) for index in range(len(self.rank.manifest.inputs))]

    @property
    def outputs(self) -> list[int]:
        """Return the call's own buffers for all outputs. Raises RankError without memory."""
        return [self.output(index) for index in range(len(self.rank.manifest.outputs))]

    def run(self, read: Sequence[Values], written: Sequence[Values]) -> None:
        """Copy arrays in, run the step once, copy its results out. Raises RankError, which names what failed."""
        rank, inputs, outputs = self.rank, self.inputs, self.outputs
        self.begin()
        for address, value in zip(inputs, read, strict=True):
            rank.copy_in(address, value)
        self.step(inputs, outputs)
        for value, address in zip(written, outputs, strict=True):
            rank.copy_out(value, address)
        self.wait()

    def begin(self) -> None:
        """Note that what is enqueued from here on belongs to the next step."""
        if self.rank.marks is not None:
            self.rank.marks.begin()

    def step(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Enqueue the step on the contents of buffers. Raises RankError, which names what failed."""
        rank, board, bound = self.rank, self.board, self._binding(inputs, outputs)
        board.begin(rank.rank)
        if self._graph and self._runs and rank.marks is None:  # events of a graph tell no time
            if not bound.graph:
                bound.graph = rank.capture(bound.held, bound.context)
            rank.launch(bound.graph)
        else:
            rank.enqueue(bound.context)
        board.mark(rank.rank, DEVICE)
        rank.queued()
        self._runs += 1

    def wait(self) -> None:
        """Wait for all that the program has enqueued. Raises RankError when something failed on the device."""
        self.rank.synchronize()
        self.board.end(self.rank.rank)

    def _binding(self, inputs: Sequence[int], outputs: Sequence[int]) -> _Binding:
        """Return the binding to these buffers; of too many, the one used longest ago is let go."""
        key = (*inputs, *outputs)
        if key not in self._bindings:
            if len(self._bindings) == MOST_BINDINGS:
                self._bindings.popitem(last=False)[1].held.close()
            self._bindings[key] = _Binding(self.rank.bound(inputs, outputs))
        self._bindings.move_to_end(key)
        return self._bindings[key]

    def close(self) -> None:
        """Free the device memory, and the graphs."""
        for bound in self._bindings.values():
            bound.held.close()
        self._bindings.clear()
        self._held.close()
