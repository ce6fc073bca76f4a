"""Write a recognised attention as one op, `mw.attention`, for targets that have a kernel for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import prod

from meshweave.ir.attention import ATTENTION, AttentionForm, Form
from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, OpBuilder, tensor_type
from meshweave.ir.expressions import Apply, Load, type_text
from meshweave.ir.ops import body_of
from meshweave.transforms.attention.expressions import (
    Coordinate,
    Expressions,
    Fixed,
    LoopIndex,
    Operand,
    Quotient,
    Remainder,
    Weighted,
    reductions_of,
)
from meshweave.transforms.attention.mask import bounds_of
from meshweave.transforms.attention.match import Attention, take_place
from meshweave.transforms.attention.softmax import NotAttention
from meshweave.transforms.attention.tiles import BodyWriter
from meshweave.transforms.base import users

SHORT = ("f16", "bf16")
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
        self.q, self.k, self.v = (_narrow(side) for side in (found.q, found.k, found.v))
        self.rounding = _rounding(found.final)
        self._check()
        loads = found.expressions.loads_below(found.score)
        self.more = {n: read for n, read in loads.items() if n != found.raw}
        self.operands = [self.q, self.k, self.v, *self.more.values()]
        self.loops = _LoopDigits(found, [e for o in self.operands for e in o.entries])
        maps = [self._map(operand) for operand in self.operands]
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

    def _map(self, operand: Operand) -> tuple[Form, ...]:
        forms = tuple([self.loops.form(entry) for entry in operand.entries])
        for form, extent in zip(forms, operand.value.type.shape):
            if 1 + sum(by * (self.loops.sizes[loop] - 1) for loop, by in form) != extent:
                raise NotAttention("the scores are read of parts of a tensor")
        return forms

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
        _move(self.rounding, result)
        take_place(found, b.empty(found.final.results[0].type))

    def _body(self, b: OpBuilder, region: ir.Region) -> None:
        found = self.found
        elements = [read.value.type.element_type for read in self.more.values()]
        inner, arguments = b.block(region, [found.dtype, *elements])
        given = dict(zip([found.raw, *self.more], arguments))
        writer = _ScoreWriter(found.expressions, self.loops)
        score = writer.write(inner, found.score, given)
        same = self.inside == found.score
        inner.op(
            "mw.yield", [], [score, score if same else writer.write(inner, self.inside, given)]
        )


def _narrow(operand: Operand) -> Operand:
    """Return the shorter floats that an operand is made of: widening loses nothing."""
    known = Expressions()
    node = known.nodes[known.node(operand.value, operand.entries)]
    if isinstance(node, Apply) and node.name == "arith.extf":
        made = known.nodes[node.operands[0]]
        if isinstance(made, Load) and type_text(made) in SHORT:
            return made.access
    return operand


def _rounding(final: ir.Operation) -> ir.Operation | None:
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


def _move(rounding: ir.Operation, source: ir.Value) -> None:
    """Let what rounds a tensor only move one that is rounded already."""
    b, type_ = OpBuilder.before(rounding), rounding.results[0].type
    maps = [attr.value for attr in rounding.attributes["indexing_maps"]]
    kinds = [IteratorType.PARALLEL] * len(type_.shape)
    value = source
    if maps[0] != maps[1]:
        value = b.generic([source], [b.empty(type_)], maps, kinds, lambda _, e: [e[0]]).result
    rounding.results[0].replace_all_uses_with(value)
    rounding.erase()


def _loop(entry: Coordinate) -> int:
    if not isinstance(entry, LoopIndex):
        raise NotAttention("the scores are of a result with a dim of one element")
    return entry.loop


class _LoopDigits:
    """Number the loops of the op: those of the batch, some of them cut in digits, query, column, key and inner."""

    def __init__(self, found: Attention, entries: Iterable[Coordinate]) -> None:
        cuts: dict[int, set[int]] = {loop: {1} for loop in found.batch}
        for entry in entries:
            self._collect(entry, cuts)
        self.sizes: list[int] = []
        self.digits: dict[int, list[tuple[int, int]]] = {}  # loop: its new loops and their weights
        for loop, weights in cuts.items():
            ends = [*sorted(weights), found.sizes[loop]] if found.sizes[loop] > 1 else [1, 1]
            pairs = list(pairwise(dict.fromkeys(ends))) or [(1, 1)]
            if any(end % weight for weight, end in pairs):
                raise NotAttention("the scores are read by reshapes that do not fit together")
            own = []
            for weight, end in reversed(pairs):
                own.append((len(self.sizes), weight))
                self.sizes.append(end // weight)
            self.digits[loop] = own
        for loop in (found.query, found.column, found.key, found.inner):
            self.digits[loop] = [(len(self.sizes), 1)]
            self.sizes.append(found.sizes[loop])

    def _collect(self, entry: Coordinate, cuts: dict[int, set[int]]) -> None:
        """Note where digits of a loop begin."""
        if isinstance(entry, Weighted):
            for part, _ in entry.parts:
                self._collect(part, cuts)
        elif isinstance(entry, Quotient | Remainder):
            loop, weight, end = _digit(entry)
            if loop not in cuts:
                raise NotAttention("the scores are read by a reshape that cuts through rows")
            cuts[loop] |= {weight, *([end] if end else [])}

    def form(self, entry: Coordinate) -> Form:
        """Return a coordinate as a sum of the op's loops."""
        if isinstance(entry, Fixed):
            if entry.number:
                raise NotAttention("the scores are read of parts of a tensor")
            return ()
        if isinstance(entry, LoopIndex):
            return tuple(self.digits[entry.loop])
        if isinstance(entry, Weighted):
            return tuple((d, by * f) for part, f in entry.parts for d, by in self.form(part))
        loop, weight, end = _digit(entry)
        own = [(d, w) for d, w in self.digits[loop] if w >= weight and not (end and w >= end)]
        return tuple((d, w // weight) for d, w in own)


def _digit(entry: Quotient | Remainder) -> tuple[int, int, int]:
    """Return loop, weight and end of a digit: (loop % end) // weight; an end of 0 is that of the loop."""
    end, weight, of = 0, 1, entry
    if isinstance(of, Remainder):
        end, inner = of.divisor, of.of
        if isinstance(inner, LoopIndex):
            return inner.loop, 1, end
        if not isinstance(inner, Quotient):
            raise NotAttention("the scores are read by a reshape of a reshape")
        of = inner
    weight, source = of.divisor, of.of
    if not isinstance(source, LoopIndex):
        raise NotAttention("the scores are read by a reshape of a reshape")
    return source.loop, weight, end * weight


class _ScoreWriter(BodyWriter):
    """Write scores into the body of the op."""

    def __init__(self, expressions: Expressions, loops: _LoopDigits) -> None:
        super().__init__(expressions, [], {})
        self._own = loops

    def _index(self, b: OpBuilder, entry: Coordinate) -> ir.Value:
        count, form = len(self._own.sizes), self._own.form(entry)
        total = b.index(0) if not form else None
        for loop, factor in form:
            map_ = ir.AffineMap.get(count, 0, [ir.AffineDimExpr.get(loop)])
            at = b.one("mw.index", ir.IndexType.get(), map=ir.AffineMapAttr.get(map_))
            part = b.times(at, factor)
            total = part if total is None else b.binary("addi", total, part)
        return total
