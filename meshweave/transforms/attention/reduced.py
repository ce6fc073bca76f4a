"""Write the backward of an attention as ops that have kernels on gpus: one for each number of rows, one a gradient.

Each makes the scores anew, tile by tile (`mw.reduced_scores`). Gradients of queries are added up along the keys, those
of keys and values along the queries, so none needs what another block of threads adds up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, tensor_type
from meshweave.ir.expressions import Load
from meshweave.ir.scores.reduced import NEUTRAL, REDUCED_SCORES, ReducedForm
from meshweave.transforms.attention.backward import Backward, Gradient, RowReduction
from meshweave.transforms.attention.digits import SHORT, LoopDigits, ScoreWriter, map_of, narrow
from meshweave.transforms.attention.expressions import (
    Coordinate,
    LoopIndex,
    Operand,
    maps_of,
    reductions_of,
)
from meshweave.transforms.attention.mask import MaskBound, neutral_bounds
from meshweave.transforms.attention.softmax import NotAttention
from meshweave.transforms.attention.whole import MOST, rounding_of
from meshweave.transforms.base import in_block, users

WIDEST = 128
"""Of a head: more do not fit a thread's registers."""


class ReducedBackward:
    """Hold a backward as `mw.reduced_scores` say it. Raises NotAttention, with the reason, where no kernel does."""

    def __init__(self, found: Backward) -> None:
        self.found = found
        self._check()
        self.rows = {n: _RowNumber(found, row, n) for n, row in found.rows.items()}
        self.gradients = [_GradientSum(found, gradient) for gradient in found.gradients]

    def _check(self) -> None:
        found, sizes = self.found, self.found.sizes
        heads = prod(sizes[loop] for loop in found.batch)
        if max(sizes[found.key], sizes[found.query]) * heads > MOST or 0 in sizes.values():
            raise NotAttention(f"the scores of a backward are of none or more than {MOST} queries")
        for row in found.rows.values():
            if NEUTRAL.get(row.name.removeprefix("arith.")) != getattr(row.start, "value", None):
                raise NotAttention(f"the scores of a backward are reduced by {row.name} along rows")

    def rewrite(self, marks: Mapping[str, ir.Attribute]) -> None:
        """Put the ops in the place of the backward, and erase what it was made of. marks: their attributes."""
        found, new = self.found, dict[ir.Value, ir.Value]()
        b = OpBuilder.before(min(found.ends, key=in_block))
        for row in self.rows.values():
            new[row.op.results[0]] = row.made(b, new, marks)
        for gradient in self.gradients:
            gradient.put(gradient.made(b, new, marks))
        for op in (*found.ends, *sorted(found.visited, key=in_block)[::-1]):
            if not any(True for _ in op.results[0].uses):
                op.erase()


class _Reduced:
    """Hold one op: what is made of node `matrix`, reduced along loop `turn`. writes: where its result has its dims."""

    kind = "addf"
    other: Operand | None = None

    def __init__(
        self, found: Backward, op: ir.Operation, matrix: int, pair: tuple[int, int],
        heads: Sequence[int], writes: Sequence[Coordinate],
    ) -> None:  # fmt: skip
        """pair: the loops of rows and turns; heads: those that are added up."""
        self.found, self.op, self.matrix = found, op, matrix
        self.row, self.turn = pair
        self.heads, self.writes = list(heads), list(writes)

    def build(self, column: int | None) -> None:
        """Find what the op reads, and number its loops. column: the loop of columns."""
        found, ex = self.found, self.found.expressions
        low = self.kind != "addf"
        bounds, self.inside = neutral_bounds(found, self.matrix, low)
        turned = [b for bound in bounds for b in self._turned(bound)]
        if len(turned) < len(bounds):
            self.inside = self.matrix
        loads = ex.loads_below(self.matrix)
        products = [n for n in loads if n in found.products]
        if not products:
            raise NotAttention("the scores are read by something without them in a backward")
        self.raws = products
        self.more = {n: read for n, read in loads.items() if n not in found.products}
        sides: list[Operand] = []
        for made in (found.products[n] for n in products):
            pair = (made.rows, made.columns)
            sides += [narrow(side) for side in (pair if self.row == found.query else pair[::-1])]
        sides += [] if self.other is None else [narrow(self.other)]
        self.short = self._type_of(sides)
        inner = [found.products[n].inner for n in products]
        sizes = dict(found.sizes)
        self._width(sizes, [*inner, *([] if column is None else [column])])
        parallel = [d for d in found.batch if d not in self.heads and LoopIndex(d) in self.writes]
        missing = [d for d in found.batch if d not in (*self.heads, *parallel) and sizes[d] != 1]
        if missing:
            raise NotAttention("the scores of a backward lack a head in what is made of them")
        writes = list(self.writes)
        for k, entry in enumerate(writes):
            if not isinstance(entry, LoopIndex):
                parallel.append(_new_loop(sizes))
                writes[k] = LoopIndex(parallel[-1])
        last = _new_loop(sizes) if column is None else column
        self.operands = [*sides, *self.more.values()]
        order = [*parallel, self.row, last, *self.heads, self.turn, *inner]
        entries = [e for o in self.operands for e in o.entries]
        self.loops = LoopDigits(sizes, order, found.batch, entries)
        self.groups = [[loop for loop, _ in self.loops.form(entry)] for entry in writes]
        maps = [map_of(self.loops, operand) for operand in self.operands]
        batch = sum(len(self.loops.digits[d]) for d in parallel)
        self.form = ReducedForm(
            tuple(self.loops.sizes), batch, len(products),
            (*maps, tuple([((loop, 1),) for group in self.groups for loop in group])),
            tuple([(int(b.upper), b.slope, b.offset) for b in turned]), self.kind,
            self.other is not None,
        )  # fmt: skip

    def _turned(self, bound: MaskBound) -> list[MaskBound]:
        """Return a bound of keys by queries as one of turns by rows; none where that is not one."""
        if self.row == self.found.query:
            return [bound]
        slope, offset = bound.slope, bound.offset
        if slope == 1:  # key <= query + o: query >= key - o
            return [MaskBound(not bound.upper, 1, -offset)]
        return [MaskBound(bound.upper, -1, offset)] if slope == -1 else []

    def _type_of(self, sides: Sequence[Operand]) -> str:
        types = {str(side.value.type.element_type) for side in sides}
        if len(types) > 1 or not types <= set(SHORT):
            raise NotAttention(
                f"the scores of a backward are of {' and '.join(sorted(types))}: all f16 or all bf16 is needed on gpus"
            )
        return types.pop()

    def _width(self, sizes: Mapping[int, int], loops: Sequence[int]) -> None:
        wide = max(sizes[loop] for loop in loops)
        if wide > WIDEST:
            raise NotAttention(
                f"the scores of a backward are of heads {wide} wide, at most {WIDEST} is needed"
            )

    def made(
        self, b: OpBuilder, new: Mapping[ir.Value, ir.Value], marks: Mapping[str, ir.Attribute]
    ) -> ir.Value:
        """Make the op; return its result. new: what has taken the place of tensors that it reads."""
        type_ = self._result()
        shape = [self.form.sizes[loop] for group in self.groups for loop in group]
        values = [new.get(o.value, o.value) for o in self.operands]
        made = tensor_type(shape, type_.element_type)
        op = b.op(REDUCED_SCORES, [made], values, 1, **self.form.attributes(), **marks)
        self._body(b, op.regions[0])
        if made == type_:
            return op.results[0]
        numbers = iter(range(len(shape)))
        return b.collapse_shape(
            op.results[0], type_, [[next(numbers) for _ in g] for g in self.groups]
        )

    def _result(self) -> ir.RankedTensorType:
        return tensor_type(self.op.results[0].type.shape, ir.F32Type.get())

    def _body(self, b: OpBuilder, region: ir.Region) -> None:
        """Write the body as the program computes. What rows are reduced to is f32: it is not rounded."""
        elements = [read.value.type.element_type for read in self.more.values()]
        inner, arguments = b.block(region, [*[self.found.dtype] * len(self.raws), *elements])
        given = dict(zip([*self.raws, *self.more], arguments))
        writer = ScoreWriter(self.found.expressions, self.loops)
        value = writer.write(inner, self.matrix, given)
        same = self.inside == self.matrix
        inside = value if same else writer.write(inner, self.inside, given)
        inner.op("mw.yield", [], [value, inside])


class _RowNumber(_Reduced):
    """Hold the op of a reduction along rows."""

    def __init__(self, found: Backward, row: RowReduction, node: int) -> None:
        load = found.expressions.nodes[node]
        assert isinstance(load, Load)
        pair = found.query, found.key
        super().__init__(found, row.op, row.of, pair, [], _written(found, row, load.access))
        self.kind = row.name.removeprefix("arith.")
        self.build(None)


def _written(found: Backward, row: RowReduction, read: Operand) -> list[Coordinate]:
    """Return where a reduction writes its result: where that is read, which must be as it is."""
    if any(
        not isinstance(e, LoopIndex) for e, n in zip(read.entries, read.value.type.shape) if n != 1
    ):
        raise NotAttention("the scores of a backward are reduced to what a reshape reads")
    return list(read.entries)


class _GradientSum(_Reduced):
    """Hold the op of a gradient. rounding: the op that rounds it, and those before that move it."""

    def __init__(self, found: Backward, gradient: Gradient) -> None:
        along = found.query in gradient.reduced
        pair = (found.key, found.query) if along else (found.query, found.key)
        heads = [d for d in gradient.reduced if d in found.batch]
        self.path = _path(gradient.op, str(found.dtype) in SHORT)
        writes = gradient.writes
        for op in self.path:
            writes = _moved_to(op, writes)
        super().__init__(found, gradient.op, gradient.matrix, pair, heads, writes)
        self.other = gradient.other
        self.build(gradient.column)
        made = str(self._result().element_type)
        if made != self.short:
            raise NotAttention(
                f"the scores of a backward give a gradient of {made}: one that is rounded to {self.short} is needed on "
                "gpus"
            )

    def _result(self) -> ir.RankedTensorType:
        type_: ir.RankedTensorType = (self.path or [self.op])[-1].results[0].type
        return type_

    def put(self, result: ir.Value) -> None:
        """Let the new result take the place of the gradient."""
        (self.path or [self.op])[-1].results[0].replace_all_uses_with(result)
        for op in reversed(self.path):
            op.erase()


def _path(op: ir.Operation, short: bool) -> list[ir.Operation]:
    """Return the ops that alone read a result, one the other's: some that move it, then one that rounds it.

    short: whether it is rounded already; else there are none where nothing rounds it.
    """
    found: list[ir.Operation] = []
    while (rounding := rounding_of(op)) is None:
        readers = [view.operation for view in users(op.results[0])]
        if len(readers) != 1 or not _moves(readers[0]):
            return found if short else []
        op = readers[0]
        found.append(op)
    return [*found, rounding]


def _moves(op: ir.Operation) -> bool:
    """Tell whether an op gives the elements of one tensor, each once, in another order."""
    if op.name != "linalg.generic" or reductions_of(op) or len(op.operands) != 2:
        return False
    block = op.regions[0].blocks[0]
    ops = [view.operation for view in block.operations]
    maps = maps_of(op)
    if len(ops) != 1 or ops[0].operands[0] != block.arguments[0] or maps is None:
        return False
    shapes = [sorted(value.type.shape) for value in op.operands]
    return shapes[0] == shapes[1] and set(maps[0]) == set(maps[1])


def _moved_to(op: ir.Operation, writes: Sequence[Coordinate]) -> tuple[Coordinate, ...]:
    """Return where an op that moves a tensor writes what lies at `writes`."""
    maps = maps_of(op)
    assert maps is not None, "it moves elements"
    there = dict(zip(maps[0], writes))
    return tuple([there[entry] for entry in maps[1]])


def _new_loop(sizes: dict[int, int]) -> int:
    """Return the number of a new loop of one trip."""
    number = max(sizes) + 1
    sizes[number] = 1
    return number
