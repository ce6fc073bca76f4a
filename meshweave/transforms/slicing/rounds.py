"""Compute again, in the round that reads it, what a loop keeps of each round for a later loop.

before:  s = for k { .. v = f(c, w[k]);  s[k] = v };  for k { .. g(s[n - k]) }
after:   t = for k { .. t[k] = c };  for k { .. g(f(t[n - k], w[n - k])) }

That is a scan over layers which is trained. What a round carries in is kept where what runs again needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshweave.ir.bindings import ir
from meshweave.ir.build import (
    OpBuilder,
    mixed_offsets,
    static_sizes,
    static_strides,
    tensor_type,
)
from meshweave.ir.ops import body_of, producer, replace_op, terminator
from meshweave.layout.mesh import Mesh
from meshweave.plan.placement.prices import MachinePrices
from meshweave.transforms.base import clone_with, use_count, walk
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.slicing.works import Price, price_of, repeats, tensor_bytes

_ROUND = ("arith.index_cast", "arith.maxsi", "arith.minsi")


@dataclass(frozen=True)
class RoundStack:
    """Describe a tensor that a loop fills with a value of each round.

    number: of the value that the loop carries. reads: the slices that are taken of it, each of one round.
    """

    loop: ir.Operation
    number: int
    insert: ir.Operation
    reads: tuple[ir.Operation, ...]

    @property
    def value(self) -> ir.Value:
        """Return what a round puts in."""
        return self.insert.operands[0]

    @property
    def source(self) -> ir.Value:
        """Return the value of the round, before a dim for the rounds is put in front."""
        op = producer(self.value)
        if op is None or op.name != "tensor.expand_shape":
            return self.value
        inner: ir.Value = op.operands[0]
        return inner if [1, *inner.type.shape] == list(self.value.type.shape) else self.value


def stacks_of(block: ir.Block) -> list[RoundStack]:
    """Return what may be computed again, of all loops of a block: first what takes the least time for its bytes."""
    # What is carried into a round is what others are made of again.
    found = [stack for stack in _all_stacks(block) if producer(stack.source) is not None]
    kept = _kept(block, ())
    rated = []
    for number, stack in enumerate(found):
        others = {v: s for v, s in kept.items() if v != stack.source}
        ops = _closure(stack, others)
        if ops is not None:
            nbytes = tensor_bytes(stack.loop.results[stack.number])
            rated.append((price(ops, None).seconds / max(1, nbytes), number))
    return [found[number] for _, number in sorted(rated)]


def price(ops: Sequence[ir.Operation], mesh: Mesh | None) -> Price:
    """Estimate what ops cost."""
    return sum((price_of(op, mesh, MachinePrices()) for op in ops), Price())


def compute_in_rounds(block: ir.Block, count: int, mesh: Mesh | None) -> Price:
    """Compute the first `count` stacks of a block again where they are read; return what all rounds of that cost."""
    chosen = stacks_of(block)[:count]
    total = Price()
    for loop in dict.fromkeys(stack.loop for stack in chosen):
        total += _change(block, [s for s in chosen if s.loop == loop], mesh)
    return total


def _all_stacks(block: ir.Block) -> list[RoundStack]:
    loops = [view.operation for view in block.operations if view.operation.name == "scf.for"]
    found = []
    for loop in loops:
        for number in range(len(loop.results)):
            stack = _stack(loop, number)
            if stack is not None:
                found.append(stack)
    return found


def _stack(loop: ir.Operation, number: int) -> RoundStack | None:
    """Return a carried value of a loop as a stack, None where it is none."""
    body = body_of(loop)
    index, carried = body.arguments[0], body.arguments[1 + number]
    insert = producer(terminator(body).operands[number])
    low, high, step = (_constant(v) for v in list(loop.operands)[:3])
    if insert is None or insert.name != "tensor.insert_slice" or (low, step) != (0, 1):
        return None
    if high is None or index.type != ir.IndexType.get():
        return None
    type_ = carried.type
    if insert.operands[1] != carried or type_.shape[0] != high:
        return None
    if use_count(carried) != 1 or use_count(insert.results[0]) != 1:
        return None
    if not _is_row(insert, 2, type_) or not _is_round(mixed_offsets(insert, 2)[0], index, high):
        return None
    reads = [use.owner.operation for use in loop.results[number].uses]
    taken = insert.operands[0].type
    if not reads or not all(
        r.name == "tensor.extract_slice"
        and _is_row(r, 1, type_)
        and r.results[0].type == taken
        and _in_loop(r, loop.block)
        for r in reads
    ):
        return None
    return RoundStack(loop, number, insert, tuple(reads))


def _in_loop(op: ir.Operation, block: ir.Block) -> bool:
    """Tell whether all ranks run `op` as often: it stands in a loop of the block itself."""
    around = op.parent.operation
    return bool(around.name == "scf.for" and around.block == block)


def _is_row(op: ir.Operation, tensors: int, type_: ir.Type) -> bool:
    """Tell whether a slice op is about all of one index of dim 0, which is a value."""
    first, *rest = mixed_offsets(op, tensors)
    return (
        not isinstance(first, int)
        and all(isinstance(o, int) and o == 0 for o in rest)
        and static_sizes(op) == [1, *type_.shape[1:]]
        and all(stride == 1 for stride in static_strides(op))
    )


def _constant(value: ir.Value) -> int | None:
    op = producer(value)
    if op is None or op.name != "arith.constant":
        return None
    attr = op.attributes["value"]
    return int(attr.value) if isinstance(attr, ir.IntegerAttr) else None


def _is_round(value: object, index: ir.Value, extent: int) -> bool:
    """Tell whether a value is the number of the round, maybe held within its bounds."""
    while value != index:
        op = producer(value) if isinstance(value, ir.Value) else None
        if op is None or op.name not in _ROUND:
            return False
        if op.name != "arith.index_cast":
            bound = _constant(op.operands[1])
            if bound != (0 if op.name == "arith.maxsi" else extent - 1):
                return False
        value = op.operands[0]
    return True


def _kept(block: ir.Block, without: Sequence[RoundStack]) -> dict[ir.Value, RoundStack]:
    """Return by value the stacks of a block that stay; of each round what it puts in and that without its first dim."""
    inserts = [stack.insert for stack in without]
    kept: dict[ir.Value, RoundStack] = {}
    for stack in _all_stacks(block):
        if stack.insert not in inserts:
            kept.setdefault(stack.source, stack)
    return kept


def _closure(stack: RoundStack, kept: Mapping[ir.Value, RoundStack]) -> list[ir.Operation] | None:
    """Return the ops of a round that make what a stack keeps, in order; None where they can't run again."""
    body = body_of(stack.loop)
    place = {view.operation: n for n, view in enumerate(body.operations)}
    wanted, left = set[ir.Operation](), [stack.value]
    while left:
        value = left.pop()
        op = producer(value)
        if value in kept or op is None or op in wanted or op not in place:
            if op is None and value in list(body.arguments) and not _may_be_kept(value, body):
                return None
            continue
        if not (
            repeats(op) or all(v.type == ir.IndexType.get() or _is_integer(v) for v in op.results)
        ):
            return None
        wanted.add(op)
        left += [v for inner in walk(op) for v in inner.operands]
    return sorted(wanted, key=lambda op: place[op])


def _is_integer(value: ir.Value) -> bool:
    return isinstance(value.type, ir.IntegerType)


def _may_be_kept(value: ir.Value, body: ir.Block) -> bool:
    """Tell whether an argument of a round is its number, or a tensor that does not grow from round to round."""
    if value == body.arguments[0]:
        return True
    static = is_tensor(value.type) and value.type.has_static_shape
    inserted = any(use.owner.operation.name == "tensor.insert_slice" for use in value.uses)
    return static and not inserted


def _change(block: ir.Block, again: Sequence[RoundStack], mesh: Mesh | None) -> Price:
    """Let stacks of one loop be computed again where they are read."""
    kept = _kept(block, again)
    loop = again[0].loop
    kept = {v: s for v, s in kept.items() if s.loop == loop}
    plans = [(stack.value, stack.reads, _closure(stack, kept) or []) for stack in again]
    body = body_of(loop)
    read = {v for *_, ops in plans for op in ops for inner in walk(op) for v in inner.operands}
    carried = [v for v in list(body.arguments)[1:] if v in read and v not in kept]
    rows = _Rebuilt(loop, again, kept, carried)
    rounds = body_of(rows.loop)
    total = Price()
    for wanted, reads, ops in plans:
        for old in reads:
            offset = mixed_offsets(old, 1)[0]
            assert isinstance(offset, ir.Value)
            b = OpBuilder.before(old)
            values = {rounds.arguments[0]: offset}
            for op in ops:
                for inner in walk(op):
                    for v in inner.operands:
                        if v not in values and (row := rows.row(b, v, offset)) is not None:
                            values[v] = row
                clone_with(op, values, b.ip)
            found = values[wanted] if wanted in values else rows.row(b, wanted, offset)
            assert found is not None, "what runs again is made by ops, or is kept"
            replace_op(old, [found])
            total = sum([price(ops, mesh)] * rows.extent, total)
    loop.erase()
    return total


class _Rebuilt:
    """Make a loop again without some stacks, and with stacks of some values that it carries; `loop` is the new one.

    rows: for each value of a round that is kept the tensor that holds it.
    """

    def __init__(
        self,
        loop: ir.Operation,
        without: Sequence[RoundStack],
        kept: Mapping[ir.Value, RoundStack],
        carried: Sequence[ir.Value],
    ) -> None:
        gone = {stack.number for stack in without}
        old = body_of(loop)
        low, high, step, *inits = loop.operands
        stay = [n for n in range(len(inits)) if n not in gone]
        b = OpBuilder.before(loop)
        self.extent = _constant(high) or 0
        types = [tensor_type([self.extent, *v.type.shape], v.type.element_type) for v in carried]
        made = b.for_loop(low, high, step, [inits[n] for n in stay] + [b.empty(t) for t in types])
        end = terminator(old)
        given = [end.operands[n] for n in stay]
        end.erase()
        for stack in without:
            stack.insert.erase()
        now = dict(
            zip(
                [old.arguments[0], *(old.arguments[1 + n] for n in stay)],
                [made.index, *made.carried],
            )
        )
        sources = [now[v] for v in carried]
        numbers = [(value, stay.index(stack.number)) for value, stack in kept.items()]
        for one, other in now.items():
            one.replace_all_uses_with(other)
        block = made.op.regions[0].blocks[0]
        for view in list(old.operations):
            block.append(view.operation)
        grown = made.carried[len(stay) :]
        puts = [
            made.body.insert_slice(value, into, [made.index, *[0] * len(value.type.shape)])
            for value, into in zip(sources, grown, strict=True)
        ]
        made.body.op("scf.yield", [], [now.get(v, v) for v in given] + puts)
        for n, result in zip(stay, made.op.results):
            loop.results[n].replace_all_uses_with(result)
        self.loop = made.op
        self.rows = {now.get(v, v): made.op.results[n] for v, n in numbers}
        self.rows |= dict(zip(sources, list(made.op.results)[len(stay) :], strict=True))

    def row(self, b: OpBuilder, value: ir.Value, offset: ir.Value) -> ir.Value | None:
        """Return what is kept of the round `offset` of a value; None where nothing is."""
        if value not in self.rows:
            return None
        rows = self.rows[value]
        offsets = [offset, *[0] * (len(rows.type.shape) - 1)]
        if len(value.type.shape) == len(rows.type.shape):
            return b.extract_slice(rows, value.type, offsets, list(value.type.shape))
        first = tensor_type([1, *value.type.shape], value.type.element_type)
        part = b.extract_slice(rows, first, offsets)
        rank = len(value.type.shape)
        groups = [[0, 1], *([d] for d in range(2, rank + 1))] if rank else []
        return b.collapse_shape(part, value.type, groups)
