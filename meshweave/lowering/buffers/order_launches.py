"""order-launches: run what ends the life of a large tensor as soon as it can run, where that lowers the peak.

before:  %g = product ..; %h = product ..; .. ; %w1 = launch(%w, %g), which is the last to read %g; return %w1
after:   %g = product ..; %w1 = launch(%w, %g); %h = product ..; ..

So an optimiser's update of a parameter comes right behind its gradient, which need not be kept until the end. Only
launches that map or reduce elements move, and only to places right before a product, a collective, a call or control
flow: loops that share rows stay together. What such an update needs moves with it, if more bytes end than begin. All
else keeps its order, and so do ops under hints that say in which order they run. A launch that writes the new state of
an argument, or updates a tensor, stays behind all that reads the old.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import ClassVar

from meshweave.dialects.dist import TAKES
from meshweave.ir.bindings import ir
from meshweave.ir.ops import producer, terminator
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.host.functions import kept_functions
from meshweave.lowering.nests.kernel_ops import read_kernels
from meshweave.lowering.nests.kernels import FusedKernel
from meshweave.transforms.base import Pass, port_attrs, walk
from meshweave.transforms.slicing.ledger import HintMarks, read_ledger

LARGE = 1 << 16  # bytes of tensors whose lifetimes matter
MOST_MOVED = 32  # ops that are looked at to end the life of one tensor
WORTH = 64  # the peak goes down by at least one part of so many, or all stays where it is
_FREE = ("tensor.empty", "arith.constant")
_VIEWS = ("tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice", "tensor.cast")
_ORDERED = ("slice", "order", "width", "stream", "bundle", "overlap")  # hints that say of order


@dataclass(frozen=True)
class OrderLaunches(Pass):
    """Order the launches of every function."""

    name: ClassVar[str] = "order-launches"

    def run(self, module: ir.Module) -> None:
        order_launches(module, read_kernels(module))


def order_launches(module: ir.Module, kernels: Mapping[str, FusedKernel]) -> None:
    """Order the launches of every function. kernels: those of the module, by name."""
    with module.operation.context:
        ledger = read_ledger(module)
        ordered = {
            region.number
            for region in ledger.regions
            if any(key in ledger.effective(region.number) for key in _ORDERED)
        }
        for function in kept_functions(module)[0]:
            for op in walk(function):
                for region in op.regions:
                    for block in region.blocks:
                        if op.name in ("func.func", "scf.for", "scf.while", "scf.if"):
                            _order(block, kernels, ordered)


def _order(block: ir.Block, kernels: Mapping[str, FusedKernel], ordered: Collection[int]) -> None:
    """Order the launches of a block, if that lowers its peak by enough."""
    known = _BlockOps.of(block, kernels, ordered)
    before = range(len(known.ops))
    after = _Ordering(known).run()
    if after == list(before) or known.peak(after) * WORTH > known.peak(before) * (WORTH - 1):
        return
    end = terminator(block)
    for index in after:
        known.ops[index].move_before(end)


@dataclass
class _BlockOps:
    """Describe the ops of a block, but for its terminator, by their numbers.

    needs: for each the ops that come before it: those that make what it reads, or read what it writes over.
    reads: the buffers that each reads. readers: of each buffer. makes: the buffer of each op's results, with bytes.
    heavy: ops that others may run before. moves: launches that may run earlier. later: of each op those that need it.
    """

    ops: list[ir.Operation]
    needs: list[set[int]] = field(default_factory=list)
    reads: list[list[int]] = field(default_factory=list)
    makes: list[list[int]] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    heavy: list[bool] = field(default_factory=list)
    moves: list[bool] = field(default_factory=list)
    free: list[bool] = field(default_factory=list)
    later: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(
        cls, block: ir.Block, kernels: Mapping[str, FusedKernel], ordered: Collection[int]
    ) -> _BlockOps:
        """Read a block. ordered: the regions of hints whose ops keep their order."""
        *ops, end = (view.operation for view in block.operations)
        known, marks = cls(ops), HintMarks()
        makers: dict[ir.Value, int] = {}  # the op that makes a value
        buffers: dict[ir.Value, int] = {}  # the buffer that a value lies in
        kept = _roots(end.operands)
        states = _states(block, end)
        waiting = 0  # collectives that are started and not done
        for index, op in enumerate(ops):
            values = _values_read(op, block)
            known._add(index, op, values, makers, buffers, kept)
            old = states.get(op, ())
            for value in (*old, *_written(op)):
                known._behind_readers(index, buffers.get(value, -1))
            launch = op.name == "mw.launch"
            kernel = kernels[op.attributes["kernel"].value] if launch else None
            known.free.append(op.name in _FREE or op.name in _VIEWS)
            works = not known.free[-1] and any(map(_is_tensor, (*op.operands, *op.results)))
            known.heavy.append(kernel.contraction if kernel is not None else works)
            waiting += (op.name == "mw.start") - (op.name == "mw.wait")
            stays = waiting > 0 or bool(ordered and marks.regions(op.location) & set(ordered))
            known.moves.append(launch and not known.heavy[-1] and not stays)
        known.later = [[] for _ in ops]
        for index in range(len(ops)):
            for need in known.needs[index] if known.moves[index] else ():
                known.later[need].append(index)
        return known

    def _add(
        self,
        index: int,
        op: ir.Operation,
        values: Sequence[ir.Value],
        makers: dict[ir.Value, int],
        buffers: dict[ir.Value, int],
        kept: Collection[ir.Value],
    ) -> None:
        """Note what an op reads and makes."""
        self.needs.append({makers[value] for value in values if value in makers})
        for value in values:
            if value not in buffers:  # an argument, or of a block around
                buffers[value] = self._buffer(0)
        read = list(dict.fromkeys(buffers[value] for value in values))
        is_view = op.name in _VIEWS
        self.reads.append([] if is_view else read)
        for buffer in self.reads[-1]:
            self.readers[buffer].append(index)
        made = []
        for result in op.results:
            makers[result] = index
            written = _written(op)
            if is_view or len(written) == len(op.results):
                buffers[result] = buffers[op.operands[0] if is_view else written[0]]
                continue
            taken = 0 if op.name in _FREE or result in kept else _nbytes(result)
            buffers[result] = self._buffer(taken)
            made.append(buffers[result])
        self.makes.append(made)

    def _buffer(self, nbytes: int) -> int:
        self.nbytes.append(nbytes)
        self.readers.append([])
        return len(self.nbytes) - 1

    def _behind_readers(self, index: int, buffer: int) -> None:
        """Let an op that writes over a buffer stay behind all that reads it so far."""
        if buffer >= 0:
            self.needs[index].update(r for r in self.readers[buffer] if r < index)

    def peak(self, order: Iterable[int]) -> int:
        """Return the most bytes that are alive at once in an order of the ops."""
        left = [len(readers) for readers in self.readers]
        live = most = 0
        for index in order:
            live += sum(self.nbytes[b] for b in self.makes[index])
            most = max(most, live)
            for buffer in self.reads[index]:
                left[buffer] -= 1
                live -= self.nbytes[buffer] if not left[buffer] else 0
        return most


class _Ordering:
    """Put the ops of a block in order: as they stand, but for launches that end the life of tensors."""

    def __init__(self, known: _BlockOps) -> None:
        self.known = known
        self.order: list[int] = []
        self.placed = [False] * len(known.ops)
        self.left = [len(readers) for readers in known.readers]
        self.changed: dict[
            int, None
        ] = {}  # buffers of which fewer readers are left, or more can run

    def run(self) -> list[int]:
        """Return the numbers of the ops in the new order."""
        for index in range(len(self.known.ops)):
            if not self.placed[index]:
                if self.known.heavy[index]:
                    self._release()
                if not self.placed[index]:
                    self._place(index)
        return self.order

    def _place(self, index: int) -> None:
        self.placed[index] = True
        self.order.append(index)
        for buffer in self.known.reads[index]:
            self.left[buffer] -= 1
        near = [b for later in self.known.later[index] for b in self.known.reads[later]]
        for buffer in (*self.known.makes[index], *self.known.reads[index], *near):
            if self.left[buffer] and self.known.nbytes[buffer] >= LARGE:
                self.changed[buffer] = None

    def _release(self) -> None:
        """Place what ends the life of buffers, now that their readers may run."""
        while self.changed:
            changed, self.changed = list(self.changed), {}
            for buffer in changed:
                for index in self._ending(buffer):
                    if not self.placed[index]:
                        self._place(index)

    def _ending(self, buffer: int) -> list[int]:
        """Return launches, in order, after which fewer bytes are alive: readers of a buffer, and what reads theirs.

        What they need besides, and costs nothing, is among them.
        """
        known = self.known
        found: list[int] = []
        here: set[int] = set()
        read: dict[int, int] = {}  # of each buffer, how many of `found` read it
        waiting: list[int] = []
        seen: set[int] = set()
        total, best, end = 0, -LARGE, 0

        def offer(buffers: Iterable[int]) -> None:
            for reader in (r for b in buffers for r in known.readers[b]):
                fresh = known.moves[reader] and not self.placed[reader] and reader not in seen
                if fresh and self._wanting(reader, here) is not None:
                    seen.add(reader)
                    heappush(waiting, reader)

        offer([buffer])
        while waiting and len(found) < MOST_MOVED:
            index = heappop(waiting)
            besides = self._wanting(index, here)
            assert besides is not None, "it can run"
            found += [*besides, index]
            here.update(found[-1 - len(besides) :])
            total += sum(known.nbytes[b] for b in known.makes[index])
            for b in known.reads[index]:
                read[b] = read.get(b, 0) + 1
                total -= known.nbytes[b] if read[b] == self.left[b] else 0
            if total <= best:
                best, end = total, len(found)
            offer((*known.makes[index], *known.reads[index]))
        return found[:end]

    def _wanting(self, index: int, here: Collection[int]) -> list[int] | None:
        """Return the free ops that an op needs and that have no place yet; None where it waits for others."""
        found: list[int] = []
        for need in sorted(self.known.needs[index]):
            if self.placed[need] or need in here:
                continue
            below = self._wanting(need, here) if self.known.free[need] else None
            if below is None:
                return None
            found += [i for i in (*below, need) if i not in found]
        return found


def _values_read(op: ir.Operation, block: ir.Block) -> list[ir.Value]:
    """Return the values of a block, or of blocks around it, that an op reads, itself or within its regions."""
    if not len(op.regions):
        return list(op.operands)
    inner = walk(op)
    made = {result for one in inner for result in one.results}
    made |= {
        a for one in inner for region in one.regions for b in region.blocks for a in b.arguments
    }
    values = (value for one in (op, *inner) for value in one.operands)
    return list(dict.fromkeys(value for value in values if value not in made))


def _written(op: ir.Operation) -> list[ir.Value]:
    """Return the tensors that an op may update: those that it is given for its results."""
    if op.name == "tensor.insert_slice":
        return [op.operands[1]]
    if op.name not in ("mw.launch", "mw.collective", "mw.start", "mw.wait"):
        return []
    count = op.attributes["outs"].value if "outs" in op.attributes else 1
    outs = list(op.operands)[len(op.operands) - count :]
    return [value for value in outs if (made := producer(value)) is None or made.name not in _FREE]


def _roots(values: Iterable[ir.Value]) -> set[ir.Value]:
    """Return values with all that they are views of."""
    found = set(values)
    for value in list(found):
        op = producer(value)
        while op is not None and op.name in _VIEWS:
            found.add(op.operands[0])
            op = producer(op.operands[0])
    return found


def _states(block: ir.Block, end: ir.Operation) -> dict[ir.Operation, tuple[ir.Value, ...]]:
    """Return for each op that makes a result in the buffer of an argument that argument."""
    function = block.owner.operation
    if function.name != "func.func" or "res_attrs" not in function.attributes:
        return {}
    found: dict[ir.Operation, tuple[ir.Value, ...]] = {}
    for value, entry in zip(end.operands, port_attrs(function, "res_attrs"), strict=True):
        if TAKES not in entry:
            continue
        argument = block.arguments[entry[TAKES].value]
        for root in _roots([value]):
            if (op := producer(root)) is not None:
                found[op] = (*found.get(op, ()), argument)
    return found


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _nbytes(value: ir.Value) -> int:
    """Return the bytes of a tensor; 0 of what is none."""
    type_ = value.type
    if not _is_tensor(value) or not type_.has_static_shape:
        return 0
    count: int = math.prod(type_.shape)
    return count * element_bytes(type_.element_type)
