"""Read the ops of a block as the works of a row, and run some of them again where the row says so.

An op that runs again is a copy with the attribute `hint.again`, a number of its own, so that no pass takes it for the
op that it is a copy of. It stands right before the first op that reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, cmp_to_key
from math import prod

from meshweave.dialects.again import AGAIN, RUNS_AGAIN
from meshweave.dialects.dist import axes_of
from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, iterator_types
from meshweave.ir.ops import producer
from meshweave.layout.mesh import Mesh
from meshweave.plan import cost
from meshweave.plan.placement.prices import MachinePrices
from meshweave.plan.recompute import RowRun, RowWork, WorkRow, joined, kept_share
from meshweave.transforms.base import walk
from meshweave.transforms.propagation.bodies import captured_by, is_tensor
from meshweave.transforms.propagation.values import is_free, item_bytes
from meshweave.transforms.slicing.ledger import set_number

_VIEWS = ("tensor.collapse_shape", "tensor.expand_shape", "tensor.cast", "tensor.extract_slice")
_PURE = ("linalg.", "tensor.", "arith.", "math.", "complex.")
_NEIGHBOURS = 3
"""How far around it an op is compared with others: these are alike as far as so many readers and makers are."""


@dataclass(frozen=True)
class Price:
    """Say what an op costs: floating operations, bytes that it reads and writes, and those that a rank receives."""

    flops: int = 0
    nbytes: int = 0
    received: int = 0
    seconds: float = 0.0

    def __add__(self, other: Price) -> Price:
        return Price(
            self.flops + other.flops,
            self.nbytes + other.nbytes,
            self.received + other.received,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True)
class BlockWorks:
    """Hold the ops of a block as works: `ops` are those of `row`, in order; elementwise ones not joined yet.

    roots: the number of the value that each value of the block is, or is a view of.
    """

    block: ir.Block
    ops: tuple[ir.Operation, ...]
    prices: tuple[Price, ...]
    roots: Mapping[ir.Value, int]
    row: WorkRow

    @cached_property
    def joined(self) -> WorkRow:
        """Return the row with elementwise works in those that read them."""
        return joined(self.row)

    def price(self, again: Sequence[int]) -> Price:
        """Return what it costs to run works of the joined row again."""
        members = [m for number in again for m in self.joined.members[number]]
        return sum((self.prices[m] for m in members), Price())


def works_of(block: ir.Block, mesh: Mesh | None, machine: MachinePrices) -> BlockWorks:
    """Read the ops of a block, but for its terminator."""
    *ops, end = (view.operation for view in block.operations)
    reader = _BlockReader(mesh, machine)
    for op in ops:
        reader.add(op)
    return reader.finished(block, end)


def chosen_works(works: BlockWorks) -> frozenset[int]:
    """Return the works of the joined row that placement has chosen to run again, with moves that bring what they read.

    Moves that layouts have brought in are ops of which placement says nothing.
    """
    row = works.joined
    said = [[_is_chosen(works.ops[m]) for m in members] for members in row.members]
    found = {number for number, mine in enumerate(said) if mine[-1]}
    stack = list(found)
    while stack:
        for value in row.works[stack.pop()].reads:
            maker = row.maker.get(value)
            if maker is None or maker in found or not row.works[maker].repeats:
                continue
            if all(one is None for one in said[maker]):
                found.add(maker)
                stack.append(maker)
    return frozenset(found)


def _is_chosen(op: ir.Operation) -> bool | None:
    attr = op.attributes.get(RUNS_AGAIN)
    return None if attr is None else bool(attr.value)


def chosen_blocks(module: ir.Module) -> list[ir.Block]:
    """Return the blocks in which placement has chosen ops to run again."""
    ops = [op for op in walk(module.operation) if RUNS_AGAIN in op.attributes]
    return list(dict.fromkeys([op.block for op in ops if op.attributes[RUNS_AGAIN].value]))


def forget_chosen(module: ir.Module) -> None:
    """Take off all ops what placement has chosen of them."""
    for op in walk(module.operation):
        if RUNS_AGAIN in op.attributes:
            del op.attributes[RUNS_AGAIN]


def keeps(block: ir.Block) -> bool:
    """Tell whether half of what is alive at the peak of a block is kept for long, and might be computed again."""
    return kept_share(works_of(block, None, MachinePrices()).joined) >= 1 / 2


class _BlockReader:
    """Number the values of a block while its ops are read in order."""

    def __init__(self, mesh: Mesh | None, machine: MachinePrices) -> None:
        self.mesh, self.machine = mesh, machine
        self.roots: dict[ir.Value, int] = {}
        self.nbytes: list[int] = []
        self.ops: list[ir.Operation] = []
        self.reads: list[tuple[int, ...]] = []
        self.makes: list[tuple[int, ...]] = []
        self.keys: list[Hashable] = []

    def _number(self, value: ir.Value, nbytes: int) -> int:
        if value not in self.roots:
            self.roots[value] = len(self.nbytes)
            self.nbytes.append(nbytes)
        return self.roots[value]

    def add(self, op: ir.Operation) -> None:
        """Read an op."""
        if is_free(op) or op.name == "arith.constant":
            return
        if op.name in _VIEWS and not _is_free_value(op.operands[0]):
            self.roots[op.results[0]] = self._number(op.operands[0], 0)
            return
        read = [v for v in read_by(op) if is_tensor(v.type) and not _is_free_value(v)]
        self.reads.append(tuple(dict.fromkeys(self._number(v, 0) for v in read)))
        self.makes.append(
            tuple(self._number(v, tensor_bytes(v)) for v in op.results if is_tensor(v.type))
        )
        self.keys.append(_key(op))
        self.ops.append(op)

    def finished(self, block: ir.Block, end: ir.Operation) -> BlockWorks:
        """Return the works. What the block yields is alive anyway, so it has no bytes."""
        kept = {self.roots[v] for v in end.operands if v in self.roots}
        for number in kept:
            self.nbytes[number] = 0
        prices = tuple(price_of(op, self.mesh, self.machine) for op in self.ops)
        kinds = _kinds(self.keys, self.reads, self.makes)
        works = []
        for number, op in enumerate(self.ops):
            given = kept.intersection(self.makes[number])
            reads, makes = self.reads[number], self.makes[number]
            again = not given and repeats(op)
            works.append(
                RowWork(
                    *(reads, makes, prices[number].seconds, kinds[number]),
                    repeats=again,
                    elementwise=again and is_elementwise(op),
                )
            )
        row = WorkRow(tuple(works), tuple(self.nbytes))
        return BlockWorks(block, tuple(self.ops), prices, self.roots, row)


def read_by(op: ir.Operation) -> list[ir.Value]:
    """Return the values that an op reads, itself or within its regions."""
    return [*op.operands, *(found.value for found in captured_by(op))]


def tensor_bytes(value: ir.Value) -> int:
    """Return the bytes of a tensor."""
    count: int = prod(value.type.shape)
    return count * item_bytes(value.type.element_type)


def _is_free_value(value: ir.Value) -> bool:
    """Tell whether a value is made again for nothing: an empty tensor, a constant, a view of one."""
    op = producer(value)
    if op is None:
        return False
    if op.name in _VIEWS:
        return _is_free_value(op.operands[0])
    return is_free(op) or op.name == "arith.constant"


def repeats(op: ir.Operation) -> bool:
    """Tell whether an op may run again: it, and all in it, only compute their results."""
    if op.name == "func.call" or not all(is_tensor(v.type) for v in op.results):
        return False
    return all(one.name.startswith((*_PURE, "scf.", "dist.")) for one in walk(op))


def is_elementwise(op: ir.Operation) -> bool:
    """Tell whether an op computes each element of its one result by itself."""
    if len(op.results) != 1:
        return False
    if op.name == "linalg.map" or op.name == "linalg.broadcast":
        return True
    if op.name.startswith(("arith.", "math.")):
        return True
    return op.name == "linalg.generic" and all(
        kind == IteratorType.PARALLEL for kind in iterator_types(op)
    )


def price_of(op: ir.Operation, mesh: Mesh | None, machine: MachinePrices) -> Price:
    """Estimate what an op costs, as placement does: as long as its loops take, or its memory, whichever is more."""
    values = [v for v in (*op.operands, *op.results) if is_tensor(v.type) and not _is_free_value(v)]
    nbytes = sum(map(tensor_bytes, values))
    if op.name.startswith("dist.") and mesh is not None and "axes" in op.attributes:
        return _collective(op, mesh, machine, nbytes)
    inner = [one for one in walk(op) if one.name.startswith("linalg.")]
    times = [_iterations(one) for one in inner]
    flops = sum(n * max(1, _arithmetic(one)) for n, one in zip(times, inner, strict=True))
    seconds = max(sum(times) * machine.products[-1], nbytes * machine.profile.copy_beta)
    return Price(flops, nbytes, 0, seconds)


def _collective(op: ir.Operation, mesh: Mesh, machine: MachinePrices, nbytes: int) -> Price:
    """Estimate a collective: what its ranks receive at most is what all of them have, but for a rank's own part."""
    axes, profile = axes_of(op), machine.profile
    ranks = mesh.axis_count(axes)
    largest = max(
        (tensor_bytes(v) for v in (*op.operands, *op.results) if is_tensor(v.type)), default=0
    )
    twice = 2 if op.name == "dist.all_reduce" else 1
    received = twice * largest * (ranks - 1) // max(1, ranks)
    link = cost.link_of(mesh, axes, profile) if axes else profile.link
    seconds = profile.launch + ranks * link.alpha + received * link.beta if ranks > 1 else 0.0
    return Price(0, nbytes, received, seconds + nbytes * profile.copy_beta)


def _iterations(op: ir.Operation) -> int:
    """Count the iterations of the loops of a linalg op."""
    if "indexing_maps" not in op.attributes:
        return max(map(_elements, (*op.operands, *op.results)), default=0)
    sizes: dict[int, int] = {}
    for value, attr in zip(op.operands, op.attributes["indexing_maps"]):
        if not is_tensor(value.type):
            continue
        for expression, size in zip(ir.AffineMapAttr(attr).value.results, value.type.shape):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    return prod(sizes.values())


def _elements(value: ir.Value) -> int:
    count: int = prod(value.type.shape) if is_tensor(value.type) else 0
    return count


def _arithmetic(op: ir.Operation) -> int:
    """Count the ops on numbers in the body of a linalg op."""
    names = [one.name for one in walk(op)]
    return sum(n.startswith(("arith.", "math.")) and n != "arith.constant" for n in names)


def _key(op: ir.Operation) -> Hashable:
    """Return what an op is, but for the values that it reads."""
    types = (tuple(str(v.type) for v in op.operands), tuple(str(v.type) for v in op.results))
    return op.name, types, tuple(_inside(op))


def _inside(op: ir.Operation) -> list[Hashable]:
    found: list[Hashable] = []
    for one in walk(op):
        own = {n: one.attributes[n] for n in one.attributes if not n.startswith("hint.")}
        found.append((one.name, tuple((name, str(attr)) for name, attr in own.items())))
    return found


def _kinds(
    keys: Sequence[Hashable], reads: Sequence[Sequence[int]], makes: Sequence[Sequence[int]]
) -> list[int]:
    """Give works numbers: those of one number are alike, and so are the makers and readers near them."""
    maker = {value: number for number, made in enumerate(makes) for value in made}
    readers: list[list[int]] = [[] for _ in keys]
    for number, read in enumerate(reads):
        for value in read:
            if value in maker:
                readers[maker[value]].append(number)
    now = _numbered(keys)
    for _ in range(_NEIGHBOURS):
        now = _numbered(
            [
                (
                    now[number],
                    tuple(now[maker[v]] if v in maker else -1 for v in reads[number]),
                    tuple(sorted(now[r] for r in readers[number])),
                )
                for number in range(len(keys))
            ]
        )
    return now


def _numbered(keys: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def run_again(works: BlockWorks, runs: Sequence[RowRun]) -> None:
    """Copy the ops that a schedule of the joined row runs again, each right before the first that needs it."""
    copier = _WorkCopier(works)
    pending: list[RowRun] = []
    for run in runs:
        if run.copy:
            pending.append(run)
        elif pending or any(copy for _, copy in run.reads):
            copier.place(run, pending)
            pending = []


class _WorkCopier:
    """Make copies of ops. copies: of each value that there is a copy of, that."""

    def __init__(self, works: BlockWorks) -> None:
        self.works = works
        self.copies: dict[ir.Value, ir.Value] = {}
        marked = (
            op.attributes[AGAIN].value for op in walk(works.block.owner) if AGAIN in op.attributes
        )
        self.count = 1 + max(marked, default=-1)

    def _members(self, number: int) -> list[ir.Operation]:
        return [self.works.ops[m] for m in self.works.joined.members[number]]

    def place(self, run: RowRun, pending: Sequence[RowRun]) -> None:
        """Put copies before the ops of a run, and let these read copies."""
        members = self._members(run.work)
        before = _together(members)
        for one in pending:
            wanted = _read_as_copies(one)
            for op in self._members(one.work):
                self._copy(op, wanted, before)
        for op in members:
            self._redirect(op, _read_as_copies(run))

    def _copy(self, op: ir.Operation, wanted: set[int], before: ir.Operation) -> None:
        """Copy an op of a work, which reads copies of the values `wanted`; what it makes is one of these then."""
        copy = op.clone(ir.InsertionPoint(before)).operation
        self._mark(copy)
        self._redirect(copy, wanted)
        for old, new in zip(op.results, copy.results, strict=True):
            self.copies[old] = new
            wanted.add(self.works.roots[old])

    def _redirect(self, op: ir.Operation, wanted: Collection[int]) -> None:
        """Let an op, and the ops in it, read copies of the values `wanted`."""
        roots = self.works.roots
        for inner in walk(op):
            for number, value in enumerate(inner.operands):
                if value in roots and roots[value] in wanted:
                    inner.operands[number] = self._copy_of(value, op)

    def _copy_of(self, value: ir.Value, before: ir.Operation) -> ir.Value:
        """Return the copy of a value; of a view of one, a view of the copy."""
        if value not in self.copies:
            view = producer(value)
            assert view is not None and view.name in _VIEWS, "what runs again has been copied"
            source = self._copy_of(view.operands[0], before)
            copy = view.clone(ir.InsertionPoint(before)).operation
            self._mark(copy)
            copy.operands[0] = source
            self.copies[value] = copy.results[0]
        return self.copies[value]

    def _mark(self, op: ir.Operation) -> None:
        set_number(op, AGAIN, self.count)
        self.count += 1


def _read_as_copies(run: RowRun) -> set[int]:
    return {value for value, copy in run.reads if copy}


def _together(members: Sequence[ir.Operation]) -> ir.Operation:
    """Move ops, and views of what they make, to right before the last op, which alone reads them; return the first."""
    *first, last = members
    moved = list(first)
    stack = [use.owner for op in first for v in op.results for use in v.uses]
    while stack:
        op = stack.pop()
        if op.name in _VIEWS and op not in moved:
            moved.append(op)
            stack += [use.owner for use in op.results[0].uses]
    moved.sort(key=cmp_to_key(_in_order))
    for op in moved:
        op.move_before(last)
    return moved[0] if moved else last


def _in_order(one: ir.Operation, other: ir.Operation) -> int:
    return -1 if one.is_before_in_block(other) else 1
