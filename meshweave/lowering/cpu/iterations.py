"""Find loops of the program whose iterations the cores of a rank can do side by side.

An iteration must not see what another one leaves: buffers that are allocated in it are its own, and each core has a
place of its own for them, where all of them fit its cache; what else it writes lies apart from what all others touch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from meshweave.ir.bindings import ir
from meshweave.lowering.buffers.function_plan import FunctionPlan
from meshweave.lowering.buffers.steps import Root, Step
from meshweave.lowering.cpu import pieces
from meshweave.lowering.nests.bind import Access, LoopNest
from meshweave.lowering.nests.bodies import constant_of
from meshweave.lowering.nests.linear import Linear
from meshweave.lowering.nests.rows import Entry, KernelUnit, in_order, iterations_of, numbers_of
from meshweave.plan.machine import cache_bytes

FEWEST = 4  # iterations
_LINEAR = {"arith.addi": 1, "arith.subi": -1}


@dataclass(frozen=True)
class SharedLoop:
    """Describe a loop that may be shared: its first number, the step, how many iterations it has.

    own: the buffers of an iteration; they lie from `low` to `high` in the arena.
    """

    first: int
    step: int
    count: int
    own: frozenset[Root]
    low: int
    high: int


class _Reach(NamedTuple):
    """Say what an access touches in an iteration: elements from `low` to `high`, `factor` further with each number.

    fixed: what its place depends on besides.
    """

    low: int
    high: int
    factor: int
    fixed: frozenset[tuple[ir.Value, int]]


def shared_loop(step: Step, plan: FunctionPlan) -> SharedLoop | None:
    """Return an scf.for that cores may share; None for another, or where there is too little to do."""
    numbers = numbers_of(step.op)
    if len(step.op.operands) > 3 or numbers is None or len(numbers) < FEWEST:
        return None
    entries = list(in_order(step.bodies[0]))
    if not all(_is_plain(entry) for entry in entries):
        return None
    if iterations_of(step.bodies[0]) < pieces.GRAIN:
        return None
    own = _own(step, entries, plan)
    units = [entry for entry in entries if isinstance(entry, KernelUnit)]
    if not _apart(step.op, units, own, plan):
        return None
    places = [(root.offset, root.offset + root.nbytes) for root in own]
    low, high = min([a for a, _ in places], default=0), max([b for _, b in places], default=0)
    if high - low > cache_bytes():
        return None  # slices of that size are there to save memory, and their kernels are large
    return SharedLoop(numbers.start, numbers.step, len(numbers), own, low, high)


def _is_plain(entry: Entry) -> bool:
    """Tell whether an entry computes, and does no more."""
    if isinstance(entry, KernelUnit):
        return True
    if entry.what in ("scf.for", "scf.if", "scf.yield"):
        return True
    results = entry.op.results
    return entry.what.startswith(("arith.", "math.")) and not any(
        isinstance(value.type, ir.MemRefType) for value in results
    )


def _own(step: Step, entries: Sequence[Entry], plan: FunctionPlan) -> frozenset[Root]:
    """Return the buffers that an iteration allocates, and that nothing outside of it sees."""
    first = next(position for position, entry in plan.moments if entry is step)
    last = first + len(entries)
    return frozenset(
        root
        for root, block in plan.blocks.items()
        if first < block.first and block.last <= last and _is_within(root.value, step.op)
    )


def _is_within(value: ir.Value, op: ir.Operation) -> bool:
    """Tell whether a value is made in the regions of an op."""
    owner = value.owner
    around = owner.owner if isinstance(owner, ir.Block) else owner.operation.parent
    while around is not None:
        if around.operation == op:
            return True
        around = around.operation.parent
    return False


def _apart(
    op: ir.Operation, units: Sequence[KernelUnit], own: frozenset[Root], plan: FunctionPlan
) -> bool:
    """Tell whether iterations touch nothing that another one writes."""
    shared = {root for unit in units for root in unit.pointers.written_roots} - own
    if any(root.kind == "pointer" for unit in units for root in unit.pointers.roots):
        return False  # what it points to is decided when the program runs
    reached: dict[Root, list[_Reach | None]] = {root: [] for root in shared}
    for unit in units:
        for nest in unit.nests:
            for access, gathers in _accesses(nest):
                root, offset, _ = unit.pointers.places[access.pointer]
                if root in reached:
                    reach = None if gathers else _reach(op, access, nest.sizes, offset, plan)
                    reached[root].append(reach)
    return all(_lie_apart(found, op) for found in reached.values())


def _accesses(nest: LoopNest) -> Iterator[tuple[Access, bool]]:
    """Yield each access of a nest, and whether its places are computed."""
    yield from ((access, False) for access in nest.accesses)
    yield from ((gather.access, True) for gather in nest.gathers)


def _lie_apart(found: Sequence[_Reach | None], op: ir.Operation) -> bool:
    """Tell whether what accesses to one buffer touch in an iteration is touched in no other."""
    known = [reach for reach in found if reach is not None]
    if len(known) < len(found) or len({(reach.factor, reach.fixed) for reach in known}) != 1:
        return False
    numbers = numbers_of(op)
    assert numbers is not None
    span = max(reach.high for reach in known) - min(reach.low for reach in known) + 1
    return abs(known[0].factor) * numbers.step >= span


def _reach(
    op: ir.Operation, access: Access, sizes: Sequence[int], offset: Linear, plan: FunctionPlan
) -> _Reach | None:
    """Return what an access touches in an iteration of the loop `op`; None where that is not known."""
    low, high = offset.const, offset.const
    terms: dict[ir.Value, int] = {}
    for dim, factor in offset.terms:
        form = _expanded(plan.buffers.symbols.values[-1 - dim])
        low, high = low + factor * form[1], high + factor * form[1]
        for value, times in form[0].items():
            terms[value] = terms.get(value, 0) + factor * times
    counter = op.regions[0].blocks[0].arguments[0]
    own = terms.pop(counter, 0)
    steps = list(zip(access.strides, (range(size) for size in sizes)))
    fixed: set[tuple[ir.Value, int]] = set()
    for value, factor in terms.items():
        if not _is_within(value, op):
            fixed.add((value, factor))
            continue
        numbers = _counted(value)
        if numbers is None or not numbers:
            return None
        steps.append((factor, numbers))
    for stride, numbers in steps:
        ends = (stride * numbers[0], stride * numbers[-1])
        low, high = low + min(ends), high + max(ends)
    return _Reach(low, high, own, frozenset(fixed))


def _counted(value: ir.Value) -> range | None:
    """Return the numbers that the counter of a loop has; None for any other value."""
    owner = value.owner
    if not isinstance(owner, ir.Block) or value != owner.arguments[0]:
        return None
    return numbers_of(owner.owner.operation)


def _expanded(value: ir.Value) -> tuple[Mapping[ir.Value, int], int]:
    """Return a number as a sum of others times factors, and a constant."""
    known = constant_of(value)
    if known is not None:
        return {}, int(known.value)
    owner = value.owner
    name = "" if isinstance(owner, ir.Block) else owner.name
    if name in _LINEAR:
        (terms, const), (more, other) = (_expanded(operand) for operand in owner.operands)
        sign, total = _LINEAR[name], dict(terms)
        for each, factor in more.items():
            total[each] = total.get(each, 0) + sign * factor
        return total, const + sign * other
    if name == "arith.muli":
        (terms, const), (more, other) = (_expanded(operand) for operand in owner.operands)
        if not more:
            return {each: factor * other for each, factor in terms.items()}, const * other
        if not terms:
            return {each: factor * const for each, factor in more.items()}, const * other
    return {value: 1}, 0
