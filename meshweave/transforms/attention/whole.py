"""Write a recognised attention as one op, `mw.attention`, for targets that have a kernel for it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, OpBuilder, tensor_type
from meshweave.ir.expressions import Apply
from meshweave.ir.ops import body_of
from meshweave.ir.scores.attention import ATTENTION, AttentionForm
from meshweave.transforms.attention.digits import (
    SHORT,
    LoopDigits,
    ScoreWriter,
    map_of,
    narrow,
    scaled,
)
from meshweave.transforms.attention.expressions import Coordinate, LoopIndex, reductions_of
from meshweave.transforms.attention.mask import bounds_of
from meshweave.transforms.attention.match import Attention, take_place
from meshweave.transforms.attention.softmax import NotAttention
from meshweave.transforms.base import users

SCORES = (*SHORT, "f32")
"""What scores may be: they are computed in f32, and what is never stored is not rounded."""
WIDEST = 256
"""Of a head: more do not fit a thread's registers."""
MOST = 1 << 30
"""Queries or keys, heads of all batches times tiles of queries: what a grid and an i32 can count."""


def suitable(found: Attention) -> WholeAttention:
    """Return the op of an attention. Raises NotAttention, with the reason, where there is no kernel for it."""
    return WholeAttention(found)


class WholeAttention:
    """Hold an attention as `mw.attention` says it."""

    def __init__(self, found: Attention) -> None:
        self.found = found
        (self.q, more), (self.k, others) = scaled(found.q), scaled(found.k)
        self.factors, self.v = [*more, *others], narrow(found.v)
        self.rounding = rounding_of(found.final)
        self._check()
        loads = found.expressions.loads_below(found.score)
        self.more = {n: read for n, read in loads.items() if n != found.raw}
        self.operands = [self.q, self.k, self.v, *self.more.values()]
        last = found.query, found.column, found.key, found.inner
        entries = [e for o in self.operands for e in o.entries]
        self.loops = LoopDigits(found.sizes, [*found.batch, *last], found.batch, entries)
        maps = [map_of(self.loops, operand) for operand in self.operands]
        written = [self.loops.form(LoopIndex(_loop(e))) for e in found.writes]
        self.groups = [[loop for loop, _ in form] for form in written]
        bounds, self.inside = bounds_of(found)
        self.form = AttentionForm(
            tuple(self.loops.sizes),
            (*maps, tuple([((loop, 1),) for group in self.groups for loop in group])),
            tuple([(int(b.upper), b.slope, b.offset) for b in bounds]),
            found.zeros,
            found.weights,
        )

    def _check(self) -> None:
        found, sizes = self.found, self.found.sizes
        if found.ends:
            raise NotAttention("the scores end at a size that each call chooses")
        types = [str(o.value.type.element_type) for o in (self.q, self.k, self.v)]
        weights = str(found.weights)
        if self.rounding is not None and weights == str(found.dtype):
            weights = str(self.rounding.results[0].type.element_type)
        if len({*types, weights}) > 1 or weights not in SHORT:
            raise NotAttention(
                f"the scores are of {types[0]} and {types[1]}, their weights {found.weights} and the values "
                f"{types[2]}: all f16 or all bf16 is needed on gpus, or a result that is rounded to it"
            )
        wide = max(sizes[found.inner], sizes[found.column])
        if wide > WIDEST:
            raise NotAttention(f"the scores are of heads {wide} wide, at most {WIDEST} is needed")
        heads = prod(sizes[loop] for loop in found.batch)
        if max(sizes[found.key], sizes[found.query] * heads) > MOST:
            raise NotAttention(f"the scores are of more than {MOST} queries or keys")
        if 0 in sizes.values() or found.final.results[0].type.element_type != found.dtype:
            raise NotAttention("the scores are of nothing")
        for n in found.expressions.below(found.score):
            node = found.expressions.nodes[n]
            if isinstance(node, Apply) and node.name == "arith.bitcast":
                raise NotAttention("the scores are taken apart into bits")

    def rewrite(self, marks: Mapping[str, ir.Attribute]) -> None:
        """Put the op in the place of the attention, and erase what it was made of. marks: its attributes."""
        found, b = self.found, OpBuilder.before(self.found.final)
        type_ = found.final.results[0].type
        if self.rounding is not None:
            short = self.rounding.results[0].type.element_type
            type_ = tensor_type(type_.shape, short)
        shape = [self.form.sizes[loop] for group in self.groups for loop in group]
        values = [operand.value for operand in self.operands]
        made = tensor_type(shape, type_.element_type)
        op = b.op(ATTENTION, [made], values, 1, **self.form.attributes(), **marks)
        self._body(b, op.regions[0])
        result = op.results[0]
        if made != type_:
            numbers = iter(range(len(shape)))
            result = b.collapse_shape(
                result, type_, [[next(numbers) for _ in g] for g in self.groups]
            )
        if self.rounding is None:
            take_place(found, result)
            return
        self.rounding.results[0].replace_all_uses_with(moved(self.rounding, result))
        self.rounding.erase()
        take_place(found, b.empty(found.final.results[0].type))

    def _body(self, b: OpBuilder, region: ir.Region) -> None:
        found = self.found
        elements = [read.value.type.element_type for read in self.more.values()]
        inner, arguments = b.block(region, [found.dtype, *elements])
        raw = arguments[0]
        for factor in self.factors:  # a product of scaled queries and keys is one that is scaled
            raw = inner.binary("mulf", raw, inner.constant(factor))
        given = dict(zip([found.raw, *self.more], [raw, *arguments[1:]]))
        writer = ScoreWriter(found.expressions, self.loops)
        score = writer.write(inner, found.score, given)
        same = self.inside == found.score
        inner.op(
            "mw.yield", [], [score, score if same else writer.write(inner, self.inside, given)]
        )


def rounding_of(final: ir.Operation) -> ir.Operation | None:
    """Return the op that alone reads a result and only rounds it to a shorter float."""
    readers = [view.operation for view in users(final.results[0])]
    if len(readers) != 1 or readers[0].name != "linalg.generic" or reductions_of(readers[0]):
        return None
    (reader,) = readers
    ops = [view.operation.name for view in body_of(reader).operations]
    shapes = [list(value.type.shape) for value in reader.operands]
    one = len(reader.operands) == 2 and len(reader.results) == 1
    whole = one and sorted(shapes[0]) == sorted(shapes[1])
    short = str(reader.results[0].type.element_type) in SHORT
    return reader if whole and short and ops == ["arith.truncf", "linalg.yield"] else None


def moved(op: ir.Operation, source: ir.Value) -> ir.Value:
    """Return what an op that only rounds or moves a tensor makes of one that is rounded already."""
    b, shape = OpBuilder.before(op), op.results[0].type.shape
    maps = [attr.value for attr in op.attributes["indexing_maps"]]
    if maps[0] == maps[1]:
        return source
    into = b.empty(tensor_type(shape, source.type.element_type))
    kinds = [IteratorType.PARALLEL] * len(shape)
    return b.generic([source], [into], maps, kinds, lambda _, e: [e[0]]).result


def _loop(entry: Coordinate) -> int:
    if not isinstance(entry, LoopIndex):
        raise NotAttention("the scores are of a result with a dim of one element")
    return entry.loop
