"""Keep sizes apart that reshapes merge, so that each loop runs along one size and ends where that does.

before:  %1 = tensor.collapse_shape %0 [[0, 1], [2]] : tensor<BxNx8xf32> into tensor<B*Nx8xf32>
         %2 = linalg.matmul ins(%1, %w) ..;  %3 = tensor.expand_shape %2 [[0, 1], [2]] into tensor<BxNx16xf32>
after:   %3 = linalg.generic, with loops b, n, 16 and 8, on %0 and %w

A dim that is a product of sizes is a row of `SizePart`s, found from the reshapes that make it. Linalg ops get a loop
for each part; an index of such a loop is computed from the sizes of the call. Other ops read the merged tensor as
before: its elements are where the bounds put them, which only ops that run along the whole dim do not see.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from meshweave.ir.bindings import ir, linalg
from meshweave.ir.build import (
    IteratorType,
    OpBuilder,
    dims_map,
    iterator_types_attr,
    reassociation,
    segments,
    tensor_type,
)
from meshweave.ir.ops import (
    body_of,
    clone_body,
    is_used,
    ops_named,
    producer,
    replace_op,
    terminator,
)
from meshweave.ir.scatters import SCATTER, Scatter, scatter
from meshweave.layout.lengths import Formula
from meshweave.transforms.base import clone_with, fail, walk
from meshweave.transforms.lengths.family import Family
from meshweave.transforms.propagation.bodies import captured_by, is_tensor
from meshweave.transforms.propagation.rules.table import RuleTable
from meshweave.transforms.propagation.values import is_free

CONTROL = ("scf.", "hint.region", "hint.yield", "func.", "linalg.yield", "builtin.", "dist.mesh")
"""What has regions, or ends one: its tensors are those inside."""
_ENDS = ("scf.yield", "scf.condition", "hint.yield", "func.return")
_RESHAPES = ("tensor.collapse_shape", "tensor.expand_shape")


@dataclass(frozen=True)
class SizePart:
    """Describe a factor of a dim: a number, or one size that a call chooses, and its extent in the program."""

    formula: Formula
    extent: int

    @property
    def size(self) -> str | int | Formula:
        """Return a number, the name of a size, or a sum."""
        return self.formula.dim or (self.formula if self.formula.terms else self.extent)


Row = tuple[SizePart, ...]
"""The parts of a dim, major first: no two numbers side by side, and none that is 1."""
Place = tuple[ir.Value, int]
"""A dim of a tensor."""


def is_merged(formula: Formula) -> bool:
    """Tell whether a dim of this size is a product of several."""
    return formula.is_product and formula.dim is None


@dataclass
class Rows:
    """Find the parts of all dims of a program that are products of sizes."""

    family: Family
    ops: Sequence[ir.Operation]
    rules: RuleTable
    known: dict[Place, Row] = field(default_factory=dict)

    def of(self, value: ir.Value, dim: int) -> Row | None:
        """Return the parts of a dim; None where they are not known yet."""
        formula = self.family.shape(value)[dim]
        if is_merged(formula):
            return self.known.get((value, dim))
        extent = value.type.shape[dim]
        return () if extent == 1 and not formula.terms else (SizePart(formula, extent),)

    def has_gaps(self, value: ir.Value, dim: int) -> bool:
        """Tell whether elements of a dim lie apart in a call, where the bounds put them.

        They are side by side where the one size that a call chooses is the major part.
        """
        row = self.of(value, dim)
        if not is_merged(self.family.shape(value)[dim]) or _made_anywhere(value):
            return False
        return row is None or any(part.formula.terms for part in row[1:])

    def find(self) -> None:
        """Find them from reshapes and from what meets in ops; what nothing says has its parts in the order of names.

        So has what `concat` puts side by side: of n and n elements, n pairs and not two rows as long as the bound.
        """
        for op in self.ops:
            dim = op.attributes["dim"].value if op.name == "tensor.concat" else 0
            if op.name == "tensor.concat" and is_merged(self.family.shape(op.results[0])[dim]):
                formula = self.family.shape(op.results[0])[dim]
                self.known[op.results[0], dim] = self.in_order(formula)
        links = [(op, list(self._links(op))) for op in self.ops]
        reshapes = [op for op in self.ops if op.name in _RESHAPES]
        left = [p for _, groups in links for group in groups for p in group] + [
            (value, d)
            for op in self.ops
            for value in [*op.operands, *op.results]
            if is_tensor(value.type) and not _made_anywhere(value)
            for d, formula in enumerate(self.family.shape(value))
            if is_merged(formula)
        ]
        while True:
            while any([*map(self._reshape, reshapes), *(self._meet(op, g) for op, g in links)]):
                pass
            place = next((place for place in left if place not in self.known), None)
            if place is None:
                return
            self.known[place] = self.in_order(self.family.shape(place[0])[place[1]])

    def in_order(self, formula: Formula) -> Row:
        """Return the parts of a product in the order of names."""
        ((names, factor),) = formula.terms
        row = [SizePart(Formula.product(1, [n]), self.family.planned[n]) for n in names]
        return _joined([*row, SizePart(Formula(factor), factor)])

    def _links(self, op: ir.Operation) -> Iterator[list[Place]]:
        """Yield the dims that one factor of an op runs along."""
        if op.name in _RESHAPES:
            return
        if op.name.startswith(CONTROL):
            yield from self._carried(op)
            return
        values = [*op.operands, *[c.value for c in captured_by(op)], *op.results]
        rule = self.rules.rules[self.rules.rule(op)[0]]
        groups: dict[int, list[Place]] = {}
        for value, dims in zip(values, rule.tensors):
            if dims is None or _made_anywhere(value):
                continue
            for d, factors in enumerate(dims):
                if len(factors) == 1 and is_merged(self.family.shape(value)[d]):
                    groups.setdefault(factors[0], []).append((value, d))
        yield from groups.values()

    def _carried(self, op: ir.Operation) -> Iterator[list[Place]]:
        """Yield the dims of what an op with regions takes in, hands on and returns as one tensor."""
        given, blocks = list(op.operands), [region.blocks[0] for region in op.regions]
        ends = [list(terminator(block).operands) for block in blocks]
        columns: list[Sequence[ir.Value]] = [op.results, *ends]
        if op.name == "scf.for":
            columns += [given[3:], list(blocks[0].arguments)[1:]]
        elif op.name == "scf.while":
            columns = [op.results, ends[0][1:], blocks[1].arguments]
            yield from self._columns([given, ends[1], blocks[0].arguments])
        elif op.name not in ("scf.if", "hint.region"):
            columns = []
            for value in [*given, *op.results]:
                if op.name not in _ENDS and self._is_merged(value):
                    fail(op, f"{op.name}: takes a tensor that has a product of sizes as a dim")
        yield from self._columns(columns)

    def _is_merged(self, value: ir.Value) -> bool:
        return is_tensor(value.type) and any(map(is_merged, self.family.shape(value)))

    def _columns(self, columns: Sequence[Sequence[ir.Value]]) -> Iterator[list[Place]]:
        for same in zip(*columns):
            tensors = [v for v in same if self._is_merged(v) and not _made_anywhere(v)]
            for d in range(len(same[0].type.shape) if tensors else 0):
                if is_merged(self.family.shape(same[0])[d]):
                    yield [(value, d) for value in tensors]

    def _meet(self, op: ir.Operation, groups: Sequence[Sequence[Place]]) -> bool:
        """Give dims that meet the same parts; tell whether that says anything new."""
        changed = False
        for group in groups:
            rows = [self.known[place] for place in group if place in self.known]
            if not rows:
                continue
            other = next((row for row in rows if row != rows[0]), None)
            if other is not None:
                fail(
                    op,
                    f"{op.name}: {_text(rows[0])} and {_text(other)} meet: their elements are in other orders",
                )
            for place in group:
                changed |= place not in self.known
                self.known[place] = rows[0]
        return changed

    def _reshape(self, op: ir.Operation) -> bool:
        """Learn from a reshape; tell whether that says anything new."""
        source, result = op.operands[0], op.results[0]
        fine, coarse = (result, source) if op.name == "tensor.expand_shape" else (source, result)
        changed = False
        for dim, group in enumerate(reassociation(op)):
            whole, parts = self.of(coarse, dim), [self.of(fine, d) for d in group]
            if is_merged(self.family.shape(coarse)[dim]) and None not in parts:
                made = _joined([part for row in parts for part in row or ()])
                if whole is not None and whole != made:
                    fail(
                        op,
                        f"{op.name}: elements of {_text(whole)} are read as those of {_text(made)}: "
                        "sizes stay in their order",
                    )
                changed |= whole is None and not _made_anywhere(coarse)
                if not _made_anywhere(coarse):
                    self.known[coarse, dim] = made
            elif whole is not None and None in parts:
                formulas = [self.family.shape(fine)[d] for d in group]
                cut = _cut(whole, formulas)
                if cut is None:
                    continue
                for d, row in zip(group, cut):
                    if is_merged(self.family.shape(fine)[d]) and not _made_anywhere(fine):
                        changed |= (fine, d) not in self.known
                        self.known[fine, d] = row
        return changed


def _made_anywhere(value: ir.Value) -> bool:
    """Tell whether a tensor is the same whatever the order of its elements, and is made anew where it is read."""
    op = producer(value)
    return op is not None and is_free(op)


def _text(row: Sequence[SizePart]) -> str:
    return "*".join(str(part.formula) for part in row)


def _joined(parts: Sequence[SizePart]) -> Row:
    """Return parts as a row: numbers side by side are one."""
    row: list[SizePart] = []
    for part in parts:
        if part.formula.terms or not row or row[-1].formula.terms:
            row.append(part)
        else:
            row[-1] = SizePart(
                Formula(row[-1].formula.const * part.formula.const), row[-1].extent * part.extent
            )
    return tuple(part for part in row if part.formula != Formula(1))


def _cut(row: Row, formulas: Sequence[Formula]) -> list[Row] | None:
    """Cut a row into one for each of `formulas`, in order; None where it has no such pieces."""
    left, found = list(row), list[Row]()
    for formula in formulas:
        if formula.terms and not formula.is_product:
            return None
        names, number = formula.terms[0] if formula.terms else ((), formula.const)
        wanted, taken = list(names), list[SizePart]()
        while wanted or number != 1:
            if not left:
                return None
            part = left.pop(0)
            if part.formula.dim is not None and part.formula.dim in wanted:
                wanted.remove(part.formula.dim)
            elif not part.formula.terms and (common := math.gcd(number, part.extent)) > 1:
                number //= common
                rest = part.extent // common
                part = SizePart(Formula(common), common)
                left[:0] = [SizePart(Formula(rest), rest)] if rest > 1 else []
            else:
                return None
            taken.append(part)
        found.append(_joined(taken))
    return None if left else found


class SizesApart:
    """Rewrite a program so that sizes which reshapes merge stay dims of their own.

    rows: the parts of all dims. ends: the size that a call chooses, as an index, by name. reshapes: those that were
    made; they keep all elements.
    """

    def __init__(self, family: Family, rows: Rows, ends: Mapping[str, ir.Value]) -> None:
        self.family, self.rows, self.ends = family, rows, ends
        self.reshapes: list[ir.Operation] = []
        self._apart: dict[ir.Value, ir.Value] = {}
        self._old: list[ir.Operation] = []

    def run(self) -> None:
        """Rewrite all ops along merged dims, in order."""
        for op in self.rows.ops:
            if op.name in _RESHAPES:
                self._reshape(op)
            elif op.name == SCATTER:
                self._scatter(op)
            elif op.name.startswith("linalg.") and not is_free(op):
                self._structured(op)

    def clean(self) -> None:
        """Erase what nothing reads any more."""
        kept = []
        for op in [*reversed(self.reshapes), *reversed(self._old)]:
            if any(is_used(result) for result in op.results):
                kept.append(op)
                continue
            for result in op.results:
                self.family.shapes.pop(result, None)
            op.erase()
        self.reshapes = kept

    def split(self, value: ir.Value, b: OpBuilder) -> tuple[ir.Value, list[Row]]:
        """Return a tensor with its sizes apart, and the parts of each dim that it had."""
        row = self._row(value)
        return self._read(value, b, row), row

    def _is_merged(self, value: ir.Value) -> bool:
        return is_tensor(value.type) and any(map(is_merged, self.family.shape(value)))

    def _row(self, value: ir.Value) -> list[Row]:
        """Return the parts of each dim; a dim that is no product is its own."""
        found: list[Row] = []
        for d, (formula, extent) in enumerate(zip(self.family.shape(value), value.type.shape)):
            known = self.rows.of(value, d) if is_merged(formula) else None
            found.append(known or (SizePart(formula, extent),))
        return found

    def _noted(self, value: ir.Value, shape: Sequence[Formula]) -> ir.Value:
        self.family.shapes[value] = tuple(shape)
        return value

    def _read(self, value: ir.Value, b: OpBuilder, row: Sequence[Row]) -> ir.Value:
        """Return a tensor with its sizes apart, as `row` says; one that is the same everywhere is made anew."""
        if not self._is_merged(value):
            return value
        parts, op = [part for parts in row for part in parts], producer(value)
        type_ = tensor_type([part.extent for part in parts], value.type.element_type)
        if op is not None and is_free(op):
            formulas = [part.formula for part in parts]
            return self._noted(self._anew(op, b, type_, formulas), formulas)
        if value not in self._apart:
            behind = (
                OpBuilder(ir.InsertionPoint.at_block_begin(value.owner), b.loc)
                if op is None
                else OpBuilder.after(op)
            )
            made = behind.expand_shape(value, type_, _groups([len(parts) for parts in row]))
            self.reshapes.append(made.owner)
            self._apart[value] = self._noted(made, [part.formula for part in parts])
        return self._apart[value]

    def _anew(
        self, op: ir.Operation, b: OpBuilder, type_: ir.Type, formulas: Sequence[Formula]
    ) -> ir.Value:
        """Make what is the same everywhere with another shape."""
        if op.name == "tensor.empty":
            return b.empty(type_)
        if op.name != "arith.constant":
            made = b.fill(op.operands[0], type_)
            self._noted(made.owner.operands[1], formulas)
            return made
        splat = op.attributes["value"].get_splat_value()
        made = b.constant(ir.DenseElementsAttr.get_splat(type_, splat))
        for one in [one for one in self.family.constants if one.op == op]:
            self.family.constants.append(replace(one, op=made.owner))
        return made

    def _merge(self, b: OpBuilder, old: ir.Value, apart: ir.Value, row: Sequence[Row]) -> None:
        """Let what reads `old` read the same with its sizes apart, merged again for those that need it."""
        made = b.collapse_shape(apart, old.type, _groups([len(parts) for parts in row]))
        self.reshapes.append(made.owner)
        self._noted(made, self.family.shape(old))
        self._apart[made] = apart
        for d in range(len(row)):
            if (old, d) in self.rows.known:
                self.rows.known[made, d] = self.rows.known[old, d]
        old.replace_all_uses_with(made)

    def _reshape(self, op: ir.Operation) -> None:
        """Reshape the tensor with its sizes apart."""
        source, result = op.operands[0], op.results[0]
        if not (self._is_merged(source) or self._is_merged(result)):
            return
        b, row = OpBuilder.before(op), self._row(result)
        given = self._row(source)
        value = self._read(source, b, given)
        have, want = ([part for parts in rows for part in parts] for rows in (given, row))
        runs = _runs(have, want)
        if runs is None:
            fail(op, f"{op.name}: {_text(have)} has no parts of {_text(want)}")
        value = self._regrouped(b, value, runs, want)
        if self._is_merged(result):
            self._merge(b, result, value, row)
        else:
            result.replace_all_uses_with(value)
        self._old.append(op)

    def _regrouped(
        self,
        b: OpBuilder,
        value: ir.Value,
        runs: Sequence[tuple[int, int]],
        want: Sequence[SizePart],
    ) -> ir.Value:
        """Merge the dims of each run into one, and split that into the dims of the run on the other side."""
        element, shape = value.type.element_type, value.type.shape
        fine, coarse = ([run[k] for run in runs] for k in (0, 1))
        if any(count > 1 for count in fine):
            merged = [math.prod(shape[d] for d in group) for group in _groups(fine)]
            value = b.collapse_shape(value, tensor_type(merged, element), _groups(fine))
            self.reshapes.append(value.owner)
        if any(count > 1 for count in coarse):
            type_ = tensor_type([part.extent for part in want], element)
            value = b.expand_shape(value, type_, _groups(coarse))
            self.reshapes.append(value.owner)
        return self._noted(value, [part.formula for part in want])

    def _structured(self, op: ir.Operation) -> None:
        """Give an op of the structured dialect a loop for each part of a dim."""
        captured = [c.value for c in captured_by(op)]
        if not any(map(self._is_merged, [*op.operands, *captured])):
            return
        maps = linalg.get_indexing_maps(op.opview)
        if maps is None:
            return
        b, loops = OpBuilder.before(op), _LoopsApart([a.value for a in maps], self._loops(op, maps))
        read = [self._along(op, value, loops, k, b) for k, value in enumerate(op.operands)]
        outs = len(op.results)
        named = {
            name: op.attributes[name]
            for name in op.attributes
            if "." in name and not name.startswith("linalg.")
        }
        made = b.op(
            "linalg.generic",
            [value.type for value in read[-outs:]],
            read,
            1,
            indexing_maps=ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in loops.maps()]),
            iterator_types=iterator_types_attr(loops.kinds(outs)),
            operandSegmentSizes=segments(len(read) - outs, outs),
            **named,
        )
        self._body(op, made, loops)
        for old, new in zip(op.results, made.results):
            if self._is_merged(old):
                row = self._row(old)
                self._noted(new, [part.formula for parts in row for part in parts])
                self._merge(b, old, new, row)
            else:
                if old in self.family.shapes:
                    self._noted(new, self.family.shapes[old])
                old.replace_all_uses_with(new)
        self._old.append(op)

    def _scatter(self, op: ir.Operation) -> None:
        """Give a scatter a loop for each part of what its updates run along."""
        what, cut = Scatter(op), dict[int, Row]()
        read = [
            (loop, value, d)
            for value, row in zip(what.inputs, what.rows)
            for d, loop in enumerate(row)
        ]
        for loop, value, d in read:
            if is_merged(self.family.shape(value)[d]) and (known := self.rows.of(value, d)):
                cut.setdefault(loop, known)
        if not cut or any(loop in cut for loop in what.to):
            return
        for loop, value, d in read:
            formula = self.family.shape(value)[d]
            if loop in cut and not is_merged(formula) and not _made_anywhere(value):
                fail(op, f"{op.name}: {formula} meets {_text(cut[loop])}: the same size is right")
        b, first = OpBuilder.before(op), len(what.sizes)
        numbers = _groups([len(cut.get(loop, (None,))) for loop in range(first)])
        inputs, rows = list[ir.Value](), list[list[int]]()
        for value, row in zip(what.inputs, what.rows):
            shape = zip(row, self.family.shape(value), value.type.shape)
            parts = [cut.get(k) or (SizePart(formula, extent),) for k, formula, extent in shape]
            inputs.append(self._read(value, b, parts))
            rows.append([number for loop in row for number in numbers[loop]])
        behind = sum(map(len, numbers)) - first
        to = [numbers[k][0] if k < first else k + behind for k in what.to]

        def update(
            inner: OpBuilder, loops: list[ir.Value], given: list[ir.Value], there: list[ir.Value]
        ) -> tuple[ir.Value, list[ir.Value], list[ir.Value]]:
            at = [
                self._linear(inner, [loops[n] for n in own], cut[k]) if k in cut else loops[own[0]]
                for k, own in enumerate(numbers)
            ]
            holds, *rest = clone_body(body_of(op), [*at, *given, *there], inner.ip)
            return holds, rest[: what.places], rest[what.places :]

        for old, new in zip(op.results, scatter(b, inputs, rows, what.starts, to, update)):
            if old in self.family.shapes:
                self._noted(new, self.family.shapes[old])
            old.replace_all_uses_with(new)
        self._old.append(op)

    def _loops(self, op: ir.Operation, maps: Sequence[ir.AffineMapAttr]) -> dict[int, Row]:
        """Return the parts of the loops that run along merged dims."""
        found: dict[int, Row | None] = {}
        merged: dict[int, Formula] = {}
        outs = len(op.results)
        values = [*zip(op.operands, maps), *zip(op.results, list(maps)[len(maps) - outs :])]
        for value, attr in values:
            if not self._is_merged(value):
                continue
            for d, (expr, formula) in enumerate(zip(attr.value.results, self.family.shape(value))):
                if not is_merged(formula):
                    continue
                if not isinstance(expr, ir.AffineDimExpr):
                    fail(
                        op,
                        f"{op.name}: reads a dim of size {formula} at {expr}: all of it is right",
                    )
                known = None if _made_anywhere(value) else self.rows.of(value, d)
                found[expr.position] = found.get(expr.position) or known
                merged[expr.position] = formula
        for loop, formula in merged.items():
            found[loop] = found[loop] or self.rows.in_order(formula)
        return {loop: row for loop, row in found.items() if row is not None}

    def _along(
        self, op: ir.Operation, value: ir.Value, loops: _LoopsApart, number: int, b: OpBuilder
    ) -> ir.Value:
        """Return an operand with its sizes apart, as the loops of the op are."""
        if not is_tensor(value.type):
            return value
        row: list[Row] = []
        shape = zip(loops.old[number].results, self.family.shape(value), value.type.shape)
        for expr, formula, extent in shape:
            cut = loops.rows.get(expr.position) if isinstance(expr, ir.AffineDimExpr) else None
            if cut is not None and not is_merged(formula):
                fail(op, f"{op.name}: {formula} meets {_text(cut)}: the same size is right")
            row.append(cut or (SizePart(formula, extent),))
        return self._read(value, b, row)

    def _body(self, op: ir.Operation, made: ir.Operation, loops: _LoopsApart) -> None:
        """Copy the body of an op; indices of loops, and places that are read, are those of the parts."""
        old = body_of(op)
        block = made.regions[0].blocks.append(
            *[argument.type for argument in old.arguments],
            arg_locs=[op.location] * len(old.arguments),
        )
        values = dict(zip(old.arguments, block.arguments, strict=True))
        for view in old.operations:
            copy = clone_with(view.operation, values, ir.InsertionPoint(block))
            self._copied(view.operation, copy)
        indices: dict[ir.Value, list[ir.Value]] = {}
        for inner in ops_named(made, "linalg.index"):
            loop, b = inner.attributes["dim"].value, OpBuilder.before(inner)
            parts = [b.loop_index(number) for number in loops.numbers[loop]]
            cut = loops.rows.get(loop)
            index = parts[0] if cut is None else self._linear(b, parts, cut)
            indices[index] = parts
            replace_op(inner, [index])
        for inner in ops_named(made, "tensor.extract"):
            tensor = inner.operands[0]
            if not self._is_merged(tensor):
                continue
            b, row, at = OpBuilder.before(inner), self._row(tensor), list[ir.Value]()
            for own, index in zip(row, list(inner.operands)[1:]):
                known = indices.get(index, [])
                is_same = len(known) == len(own) and loops.rows_of(known) == own
                at += known if is_same else self._places(b, index, own)
            apart = self._read(tensor, OpBuilder.before(made), row)
            replace_op(inner, [b.element(apart, at)])

    def _copied(self, op: ir.Operation, copy: ir.Operation) -> None:
        """Let the constants that depend on sizes be those of a copy."""
        pairs = dict(zip(walk(op), walk(copy), strict=True))
        self.family.constants = [
            replace(one, op=pairs.get(one.op, one.op)) for one in self.family.constants
        ]

    def _extent(self, b: OpBuilder, part: SizePart) -> ir.Value:
        """Return how many places a part has in this call."""
        name = part.formula.dim
        return b.index(part.extent) if name is None else self.ends[name]

    def _linear(self, b: OpBuilder, parts: Sequence[ir.Value], row: Row) -> ir.Value:
        """Return the place in a merged dim of places in its parts."""
        total = parts[0]
        for index, part in zip(parts[1:], row[1:]):
            total = b.binary("addi", b.binary("muli", total, self._extent(b, part)), index)
        return total

    def _places(self, b: OpBuilder, index: ir.Value, row: Row) -> list[ir.Value]:
        """Return the places in the parts of a place in a merged dim."""
        found: list[ir.Value] = []
        for part in row[:0:-1]:
            extent = self._extent(b, part)
            found.insert(0, b.binary("remui", index, extent))
            index = b.binary("divui", index, extent)
        return [index, *found]


@dataclass
class _LoopsApart:
    """Number the loops of an op, some of which are one for each part of a row.

    old: the maps that it had. rows: of the loops that are cut.
    """

    old: Sequence[ir.AffineMap]
    rows: Mapping[int, Row]
    numbers: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        counts = [len(self.rows.get(loop, (None,))) for loop in range(self.old[0].n_dims)]
        self.numbers = _groups(counts)

    @property
    def count(self) -> int:
        """Return how many loops there are."""
        return sum(map(len, self.numbers))

    def maps(self) -> list[ir.AffineMap]:
        """Return the maps of operands, over all loops."""
        first = dims_map(self.count, [numbers[0] for numbers in self.numbers])
        found = []
        for old in self.old:
            exprs: list[ir.AffineExpr] = []
            for expr in old.results:
                if isinstance(expr, ir.AffineDimExpr):
                    exprs += map(ir.AffineDimExpr.get, self.numbers[expr.position])
                else:
                    exprs.append(expr.compose(first))
            found.append(ir.AffineMap.get(self.count, 0, exprs))
        return found

    def kinds(self, outs: int) -> list[IteratorType]:
        """Return the kinds of all loops: those that no result has are reductions."""
        written = {
            e.position
            for old in self.old[len(self.old) - outs :]
            for e in old.results
            if isinstance(e, ir.AffineDimExpr)
        }
        kinds = [
            IteratorType.PARALLEL if loop in written else IteratorType.REDUCTION
            for loop in range(len(self.numbers))
        ]
        return [kind for kind, numbers in zip(kinds, self.numbers) for _ in numbers]

    def rows_of(self, indices: Sequence[ir.Value]) -> Row | None:
        """Return the row of the loop whose indices these are; None for a loop that is not cut."""
        numbers = [index.owner.attributes["dim"].value for index in indices]
        return next((row for loop, row in self.rows.items() if self.numbers[loop] == numbers), None)


def _groups(counts: Sequence[int]) -> list[list[int]]:
    """Return groups of these lengths of the numbers from 0 on."""
    ends = list(accumulate(counts))
    return [list(range(end - count, end)) for count, end in zip(counts, ends)]


def _runs(have: Sequence[SizePart], want: Sequence[SizePart]) -> list[tuple[int, int]] | None:
    """Return how many parts of each side are the same product, run by run; None where there are no such runs."""
    runs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(have) and j < len(want):
        begins = i, j
        i, j = i + 1, j + 1
        while True:
            one, other = _product(have[begins[0] : i]), _product(want[begins[1] : j])
            if one == other:
                break
            if _divides(one, other) and i < len(have):
                i += 1
            elif _divides(other, one) and j < len(want):
                j += 1
            else:
                return None
        runs.append((i - begins[0], j - begins[1]))
    rest = len(have) - i, len(want) - j
    if any(p.formula != Formula(1) for p in [*have[i:], *want[j:]]) or not runs:
        return None
    runs[-1] = runs[-1][0] + rest[0], runs[-1][1] + rest[1]
    return runs


def _product(parts: Sequence[SizePart]) -> tuple[int, Counter[str]]:
    """Return the product of parts: a number, and how often each size is in it."""
    names = Counter(p.formula.dim for p in parts if p.formula.dim is not None)
    return math.prod(p.formula.const for p in parts if not p.formula.terms), names


def _divides(one: tuple[int, Counter[str]], other: tuple[int, Counter[str]]) -> bool:
    return other[0] % one[0] == 0 and one[1] <= other[1]
