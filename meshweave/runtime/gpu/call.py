"""Bind a rank's program to buffers on its device, and copy arrays to and from them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from meshweave.runtime.flight.board import StatusBoard
from meshweave.runtime.flight.records import DEVICE
from meshweave.runtime.gpu.rank import GpuRank
from meshweave.runtime.memory import Values


class RankCall:
    """Hold device buffers for the inputs and outputs of a rank, and the table that points to them.

    inputs, outputs: addresses on the device.
    """

    def __init__(self, rank: GpuRank, board: StatusBoard, graph: bool) -> None:
        """Allocate the buffers. graph: run the step as a graph from the second time on.

        Raises RankError without memory.
        """
        self._rank, self._board, self._graph = rank, board, graph
        self._held = ExitStack()
        manifest = rank.manifest
        try:
            sizes = [
                [port.nbytes for port in ports] for ports in (manifest.inputs, manifest.outputs)
            ]
            self.inputs = rank.buffers(self._held, sizes[0], "inputs")
            self.outputs = rank.buffers(self._held, sizes[1], "outputs")
        except BaseException:
            self._held.close()
            raise
        self._table = rank.bound(self.inputs, self.outputs)
        self._runs = 0
        self._captured = 0

    def run(self, read: Sequence[Values], written: Sequence[Values]) -> None:
        """Copy arrays in, run the step once, copy its results out. Raises RankError, which names what failed."""
        rank = self._rank
        for address, value in zip(self.inputs, read, strict=True):
            rank.copy_in(address, value)
        self.step()
        for value, address in zip(written, self.outputs, strict=True):
            rank.copy_out(value, address)
        rank.synchronize()

    def step(self) -> None:
        """Run the step on the contents of the buffers."""
        rank, board, context = self._rank, self._board, int(self._table.ctypes.data)
        board.begin(rank.rank)
        if self._graph and self._runs:
            if not self._captured:
                self._captured = rank.capture(self._held, context)
            rank.launch(self._captured)
        else:
            rank.enqueue(context)
        board.mark(rank.rank, DEVICE)
        rank.synchronize()
        board.end(rank.rank)
        self._runs += 1

    def close(self) -> None:
        """Free the device memory, and the graph."""
        self._held.close()
