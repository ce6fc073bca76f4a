"""Let one program serve every size of its dims: what lies behind a size never enters a result.

Tensors are as large as the bounds. The sizes of a call are arguments, tensors of one i64 each, behind the others. A
loop that reduces along such a dim gets the neutral element behind the end, as on the padding of an uneven shard; ops
that would need more than that are refused. What elements behind the end hold is never told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from meshweave.dialects.dist import LEAST, LENGTH, LENGTHS, MERGED, LayoutAttr
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import (
    DYNAMIC,
    Index,
    OpBuilder,
    static_offsets,
    static_sizes,
    static_strides,
    tensor_type,
)
from meshweave.ir.ops import (
    body_of,
    clone_body,
    functions_of,
    producer,
    terminator,
)
from meshweave.ir.scans import Scan
from meshweave.ir.scatters import SCATTER, Scatter, scatter
from meshweave.layout.factors import JOINED, ORDERED, PARALLEL, REDUCTION, Rule, SlidingWindow
from meshweave.layout.layout import Layout
from meshweave.layout.lengths import Dim, Formula, SizesOfDim
from meshweave.transforms.base import fail, port_attrs, set_port_attrs, walk
from meshweave.transforms.lengths.apart import CONTROL, Rows, SizesApart, is_merged
from meshweave.transforms.lengths.family import CountedConstant, Family
from meshweave.transforms.lengths.turned import TurnedDim
from meshweave.transforms.partitioning.masking import mask
from meshweave.transforms.propagation.bodies import body_of as stepped
from meshweave.transforms.propagation.bodies import captured_by, is_tensor
from meshweave.transforms.propagation.padding import padding_safe
from meshweave.transforms.propagation.rules.table import RuleTable

_FREE = ("tensor.empty", "arith.constant", "dist.constrain")


@dataclass(frozen=True)
class Size:
    """Hold a size that a call chooses, an i64 and the same as an index; loops along such a dim end there."""

    number: ir.Value
    end: ir.Value

    def inside(self, b: OpBuilder, index: ir.Value) -> ir.Value:
        """Compare the loop's `index` with its end: an i1, true before it."""
        return b.compare(arith.CmpIPredicate.ult, index, self.end)


@dataclass
class Ends:
    """Know where dims end in a call: their sizes, as values that begin the function.

    named: the sizes that the call chooses. computed: sums of them.
    """

    named: Mapping[str, Size]
    computed: dict[Formula, Size] = field(default_factory=dict)

    def of(self, formula: Formula) -> Size:
        """Return the size of a dim, which is a size or a sum."""
        if formula.dim is not None:
            return self.named[formula.dim]
        if formula not in self.computed:
            last = [*self.named.values(), *self.computed.values()][-1].end.owner
            b = OpBuilder.after(last)
            number = self.total(b, formula)
            size = Size(number, b.one("arith.index_cast", ir.IndexType.get(), number))
            self.computed[formula] = size
        return self.computed[formula]

    def total(self, b: OpBuilder, formula: Formula) -> ir.Value:
        """Compute a formula, as an i64."""
        i64, total = ir.IntegerType.get_signless(64), None
        for names, factor in formula.terms:
            part = self.named[names[0]].number
            for name in names[1:]:
                part = b.binary("muli", part, self.named[name].number)
            part = part if factor == 1 else b.binary("muli", part, b.integer(factor, i64))
            total = part if total is None else b.binary("addi", total, part)
        assert total is not None, "a number that depends on no size"
        const = formula.const
        return b.binary("addi", total, b.integer(const, i64)) if const else total

    def index(self, b: OpBuilder, formula: Formula) -> Index:
        """Return a formula as an index: a number where it is one, else computed."""
        if not formula.terms:
            return formula.const
        return b.one("arith.index_cast", ir.IndexType.get(), self.total(b, formula))


def mask_lengths(module: ir.Module, family: Family) -> list[list[SizesOfDim]]:
    """Rewrite a program for the bounds of `family` so that it serves every size up to them.

    Return the sizes of each dim of each result. The program gives a dim for each of them. Raises CompileError at an op
    that cannot have a dim of such a size.
    """
    with module.operation.context, ir.Location.unknown():
        main = functions_of(module)["main"]
        ends = _arguments(main, family)
        for turned in family.turned:
            _turn(turned, family, ends)
        rules = RuleTable()
        kept, results, rows = _apart(main, rules, family, ends)
        old, windowed = list[ir.Operation](), RuleTable(windows=True)
        for op in walk(main):
            if op.name == SCATTER:
                old += [op] if _scatter(op, family, ends) else []
            elif not op.name.startswith((*CONTROL, *_FREE)) and kept.isdisjoint(op.results):
                reads = windowed if op.name == "linalg.generic" else rules
                _mask(op, reads, family, ends, rows)
        for op in old:  # whose bodies the walk has seen
            op.erase()
        for constant in family.constants:
            _computed(constant, ends)
        return results


def _apart(
    main: ir.Operation, rules: RuleTable, family: Family, ends: Ends
) -> tuple[set[ir.Value], list[list[SizesOfDim]], Rows]:
    """Keep the sizes in products apart.

    Return what reshapes make for that, the sizes of the dims of results, and the parts of merged dims.
    """
    ops = [op for op in walk(main) if not _within_body(op) and op.name not in _FREE[:2]]
    rows = Rows(family, ops, rules)
    rows.find()
    apart = SizesApart(family, rows, {name: size.end for name, size in ends.named.items()})
    apart.run()
    results = _results(main, family, apart)
    apart.clean()
    return {op.results[0] for op in apart.reshapes}, results, rows


def _results(main: ir.Operation, family: Family, apart: SizesApart) -> list[list[SizesOfDim]]:
    """Return results with their sizes apart; return the sizes of each dim that they had, and name them."""
    end, found = terminator(body_of(main)), list[list[SizesOfDim]]()
    marks, types = port_attrs(main, "res_attrs"), []
    for k, (value, mark) in enumerate(zip(list(end.operands), marks)):
        for d, formula in enumerate(family.shape(value)):
            if formula.terms and not formula.is_product and not formula.is_sum(family.dims):
                fail(
                    main,
                    f"dim {d} of a result is {formula}: a dim of a result is a number, a size, a product of sizes, or "
                    "a sum that is never below 0",
                )
        given, row = apart.split(value, OpBuilder.before(end))
        end.operands[k] = given
        types.append(given.type)
        parts = [[part.size for part in one] for one in row]
        found.append([tuple(sizes) for sizes in parts])
        names = ["" if isinstance(size, int) else str(size) for sizes in parts for size in sizes]
        if any(names):
            mark[LENGTHS] = _texts(names)
        if len(names) > len(row):
            mark[MERGED] = ir.DenseI64ArrayAttr.get([len(one) for one in row])
        if "dist.layout" in mark and len(names) > len(row):
            layout = LayoutAttr(mark["dist.layout"]).layout
            if not layout.is_block:
                fail(
                    main,
                    f"result {k} in layout {layout}: where the size of a dim is a sum or a product of sizes known at "
                    "run time, a result lies in plain blocks, as in [x, _]",
                )
            mark["dist.layout"] = _spread(layout, [*map(len, row)])
    set_port_attrs(main, "res_attrs", marks)
    kind = main.attributes["function_type"].value
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kind.inputs, types))
    return found


def _texts(names: Sequence[str]) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])


def _size_mark(dim: Dim) -> dict[str, ir.Attribute]:
    """Return what is said of the argument that is a size."""
    least = {LEAST: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim.min)}
    return {LENGTH: ir.StringAttr.get(dim.name), **(least if dim.min != 1 else {})}


def _spread(layout: Layout, counts: Sequence[int]) -> ir.Attribute:
    """Return the layout of a result whose dims are each in so many parts: the first part lies as the dim did."""
    axes: list[Sequence[str]] = []
    for own, count in zip(layout.block_axes(), counts):
        axes += [own, *[()] * (count - 1)]
    return LayoutAttr.make(Layout.blocks(axes, layout.partial))


def _arguments(main: ir.Operation, family: Family) -> Ends:
    """Add an argument for each size; return the sizes as values."""
    block, kind = body_of(main), main.attributes["function_type"].value
    scalar = tensor_type([], ir.IntegerType.get_signless(64))
    ports = port_attrs(main, "arg_attrs")
    for value, mark in zip(block.arguments, ports):
        if value in family.shapes:
            named = family.shape(value)
            mark[LENGTHS] = _texts([str(size) if size.terms else "" for size in named])
    added = [block.add_argument(scalar, main.location) for _ in family.dims]
    types = [*kind.inputs, *[scalar] * len(added)]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(types, kind.results))
    ports += [_size_mark(dim) for dim in family.dims]
    set_port_attrs(main, "arg_attrs", ports)
    b = OpBuilder(ir.InsertionPoint.at_block_begin(block), main.location)
    numbers = [b.element(value) for value in added]
    index = ir.IndexType.get()
    return Ends(
        {
            dim.name: Size(number, b.one("arith.index_cast", index, number))
            for dim, number in zip(family.dims, numbers)
        }
    )


def _mask(op: ir.Operation, rules: RuleTable, family: Family, ends: Ends, rows: Rows) -> None:
    """Keep what lies behind a size out of the reductions of an op; refuse what it cannot have."""
    captured = captured_by(op)
    values = [*op.operands, *[c.value for c in captured], *op.results]
    if not any(value in family.shapes for value in values):
        return
    if _within_body(op):
        return
    if op.name == "tensor.extract_slice":
        _slice(op, family, ends)
        return
    if op.name == "tensor.pad":
        _pad(op, family, ends, rows)
        return
    if op.name == "tensor.insert_slice":
        _insert(op, family, ends)
        return
    number, _, _ = rules.rule(op)
    rule = rules.rules[number]
    along = op.attributes["dim"].value if op.name == "tensor.concat" else None
    found = _factors(op, rule, values, len(op.operands), family, along)
    if along is not None:
        _refuse_gaps(op, [(value, along) for value in op.operands], family, rows)
        _concat(op, along, family, ends)
        return
    ordered = [k for k, factor in enumerate(rule.factors) if factor.kind == ORDERED]
    places = [
        (value, d)
        for value, dims in zip(values, rule.tensors)
        for d, row in enumerate(dims or ())
        if any(factor in ordered for factor in row)
    ]
    _refuse_gaps(op, places, family, rows)
    bounds = {}
    for factor, formula in found.items():
        kind = rule.factors[factor].kind
        if kind == PARALLEL or (kind == ORDERED and not Scan(op).reverse):
            continue  # what a scan has made of the elements before the end does not change behind it
        if kind not in (REDUCTION, JOINED) or not op.name.startswith("linalg."):
            _refuse(op, formula)
        bounds[factor] = ends.of(formula)
    if not rule.padding_safe:
        formulas = [f for v in values if is_tensor(v.type) for f in family.shape(v) if f.terms]
        _refuse_unsafe(op, found or dict(enumerate(formulas)))
    if bounds:
        mask(op, bounds)


def _turn(turned: TurnedDim, family: Family, ends: Ends) -> None:
    """Turn a dim that an op reads from its end on: let it read what has element n - 1 first."""
    op, given = turned.op, turned.op.operands[turned.number]
    shape = family.shape(given)
    size = shape[turned.dim]
    behind = size.plus(turned.first, -1).plus(Formula(1), -1)
    if behind.terms or is_merged(size) or not size.is_sum(family.dims):
        _refuse(op, size, "what is read backwards is as long as a size, or a sum of sizes")
    b = OpBuilder.before(op)
    last = b.binary("subi", ends.of(size).end, b.index(1))

    def element(inner: OpBuilder, _: list[ir.Value]) -> ir.Value:
        places = [inner.loop_index(d) for d in range(len(shape))]
        place = inner.binary("subi", last, places[turned.dim])
        place = inner.binary("maxsi", place, inner.index(0))
        most = inner.index(given.type.shape[turned.dim] - 1)
        places[turned.dim] = inner.binary("minsi", place, most)
        return inner.element(given, places)

    into = b.empty(given.type)
    made = b.elementwise([], into, element)
    family.shapes |= {into: shape, made: shape}
    op.operands[turned.number] = made
    turned.read(turned.loop() + behind.const)


def _slice(op: ir.Operation, family: Family, ends: Ends) -> None:
    """Let a slice take a part that is there for all sizes; refuse any other."""
    source = op.operands[0]
    offsets = family.offsets.get(op.results[0]) or tuple(Formula(n) for n in static_offsets(op))
    extents, strides = static_sizes(op), static_strides(op)
    taken = _extents(op, family)
    for d, formula in enumerate(family.shape(source)):
        if not formula.terms:
            continue
        whole = offsets[d] == Formula(0) and taken[d] == formula and strides[d] == 1
        first = offsets[d] == Formula(0) and extents[d] == 1
        if whole or first:
            continue
        if is_merged(formula):  # elements lie where the bounds put them
            _refuse(op, formula, "a slice takes all of it, or the first place")
        left = formula.plus(offsets[d], -1).plus(taken[d], -1)
        part = _PartOfDim(offsets[d], taken[d], left)
        known = strides[d] == 1 and static_offsets(op)[d] != DYNAMIC
        if not known or not part.is_there(family.dims):
            more = _right_from(family.dims, formula, part.is_there) if known else ""
            _refuse(op, formula, f"a slice takes a part that there is for all sizes{more}")
    if op.results[0] not in family.offsets:
        return
    b, number = OpBuilder.before(op), 0
    given = list(op.operands)[1:]
    moved: list[Index] = []
    for static, formula in zip(static_offsets(op), offsets):
        if static == DYNAMIC:
            moved.append(given[number])
            number += 1
        else:
            moved.append(ends.index(b, formula))
    made = b.extract_slice(source, op.results[0].type, moved, extents, strides)
    family.shapes[made] = family.shape(op.results[0])
    op.results[0].replace_all_uses_with(made)
    op.erase()


def _extents(op: ir.Operation, family: Family) -> tuple[Formula, ...]:
    """Return the sizes of what a slice or an insertion takes."""
    known = family.extents.get((op.results[0], "static_sizes"))
    return known or tuple(Formula(n) for n in static_sizes(op))


@dataclass(frozen=True)
class _PartOfDim:
    """Hold where a part of a dim begins, how long it is, and what is left of the dim behind it."""

    begin: Formula
    extent: Formula
    left: Formula

    def is_there(self, dims: Sequence[Dim]) -> bool:
        """Tell whether the dim has it for all sizes."""
        whole = not self.extent.terms or self.extent.is_sum(dims)
        return whole and self.begin.least(dims) >= 0 and self.left.least(dims) >= 0


def _right_from(
    dims: Sequence[Dim], formula: Formula, holds: Callable[[Sequence[Dim]], bool]
) -> str:
    """Say from which size on something is there, where it is for large sizes of the one dim of a formula."""
    for dim in dims:
        rest = [one for one in dims if one != dim]
        for least in dim.sizes if formula.dim == dim.name else ():
            if holds([*rest, replace(dim, min=least)]):
                return f": mw.Dim({dim.name!r}, max={dim.max}, min={least}) has it"
    return ""


def _pad(op: ir.Operation, family: Family, ends: Ends, rows: Rows) -> None:
    """Let what a pad puts behind a dim begin where the dim ends."""
    source = op.operands[0]
    formulas = family.shape(source)
    low, high = (list(op.attributes[name]) for name in ("static_low", "static_high"))
    bounds = {}
    for d, formula in enumerate(formulas):
        if not formula.terms or (low[d] == 0 and high[d] == 0):
            continue
        if DYNAMIC in (low[d], high[d]) or not formula.is_sum(family.dims):
            _refuse(op, formula, "a pad of a size, or a sum that is never below 0, by numbers")
        _refuse_gaps(op, [(source, d)], family, rows)
        bounds[d] = ends.of(formula)
    filling = terminator(body_of(op)).operands[0]
    made = producer(filling)
    if made is None or made.parent == op:  # a constant of the region, or an index of it
        if made is None or made.name != "arith.constant":
            fail(op, "tensor.pad: what it puts there depends on the place")
        filling = OpBuilder.before(op).constant(made.attributes["value"])
    if bounds:
        op.operands[0] = _chosen(op, source, None, bounds, filling)
        family.shapes[op.operands[0]] = formulas


def _insert(op: ir.Operation, family: Family, ends: Ends) -> None:
    """Let an insertion end where what it inserts does."""
    dest, offsets = op.operands[1], static_offsets(op)
    extents = _extents(op, family)
    bounds = {}
    for d, (formula, taken) in enumerate(zip(family.shape(dest), extents)):
        if not formula.terms and not taken.terms:
            continue
        begin = Formula(offsets[d])
        part = _PartOfDim(begin, taken, formula.plus(begin, -1).plus(taken, -1))
        known = static_strides(op)[d] == 1 and offsets[d] != DYNAMIC
        if not known or is_merged(formula) or not part.is_there(family.dims):
            right = formula if formula.terms else taken
            if offsets[d] == DYNAMIC:
                _refuse(op, right, "x.at[places].set(rows) puts rows at places that are computed")
            more = _right_from(family.dims, formula, part.is_there) if known else ""
            _refuse(op, right, f"an insertion is into a part that there is for all sizes{more}")
        if taken.terms and part.left != Formula(0):
            bounds[d] = ends.of(begin.plus(taken))
    if not bounds:
        return
    made = op.results[0]
    uses = list(made.uses)
    whole = _chosen(op, made, dest, bounds, None)
    for use in uses:
        use.owner.operands[use.operand_number] = whole
    family.shapes[whole] = family.shape(made)


def _scatter(op: ir.Operation, family: Family, ends: Ends) -> bool:
    """Let the rounds of a scatter end where a size does, by another one; tell whether there is that."""
    what, found = Scatter(op), dict[int, Formula]()
    for value, row in zip([*what.inputs, *what.starts], [*what.rows, *[what.to] * what.count]):
        for loop, formula in zip(row, family.shape(value)):
            if not formula.terms:
                continue
            if loop >= len(what.sizes) or not formula.is_sum(family.dims):
                _refuse(op, formula, "rows may be as many, not where they are put")
            if found.setdefault(loop, formula) != formula:
                fail(op, f"{op.name}: {found[loop]} and {formula} meet: they may be two sizes")
    bounds = {loop: ends.of(formula) for loop, formula in found.items() if loop not in what.to}
    if found and not padding_safe(stepped(op)):
        _refuse_unsafe(op, found)
    if not bounds:
        return False
    b = OpBuilder.before(op)
    flags = [_flags(b, size, what.sizes[loop]) for loop, size in bounds.items()]
    family.shapes.update({flag: (found[loop],) for loop, flag in zip(bounds, flags)})

    def update(
        inner: OpBuilder, loops: list[ir.Value], given: list[ir.Value], there: list[ir.Value]
    ) -> tuple[ir.Value, list[ir.Value], list[ir.Value]]:
        own = given[: len(what.inputs)]
        holds, *rest = clone_body(body_of(op), [*loops, *own, *there], inner.ip)
        for flag in given[len(own) :]:
            holds = inner.binary("andi", holds, flag)
        return holds, rest[: what.places], rest[what.places :]

    rows = [*what.rows, *[(loop,) for loop in bounds]]
    made = scatter(b, [*what.inputs, *flags], rows, what.starts, what.to, update)
    for old, new in zip(op.results, made):
        if old in family.shapes:
            family.shapes[new] = family.shapes.pop(old)
        old.replace_all_uses_with(new)
    return True


def _flags(b: OpBuilder, size: Size, extent: int) -> ir.Value:
    """Return a tensor that is true before the end of a dim."""
    kind = tensor_type([extent], ir.IntegerType.get_signless(1))
    return b.elementwise(
        [], b.empty(kind), lambda inner, _: size.inside(inner, inner.loop_index(0))
    )


def _chosen(
    op: ir.Operation,
    value: ir.Value,
    other: ir.Value | None,
    bounds: Mapping[int, Size],
    filling: ir.Value | None,
) -> ir.Value:
    """Return a tensor with the elements of another, or one number, behind the ends of some dims."""
    b = OpBuilder.before(op) if other is None else OpBuilder.after(op)

    def element(inner: OpBuilder, given: list[ir.Value]) -> ir.Value:
        inside = None
        for d, size in bounds.items():
            here = size.inside(inner, inner.loop_index(d))
            inside = here if inside is None else inner.binary("andi", inside, here)
        assert inside is not None
        return inner.select(inside, given[0], given[1] if filling is None else filling)

    given = [value] if other is None else [value, other]
    return b.elementwise(given, b.empty(value.type), element)


def _concat(op: ir.Operation, along: int, family: Family, ends: Ends) -> None:
    """Put each piece behind the end of the one before it, where that depends on sizes."""
    extents = [family.shape(piece)[along] for piece in op.operands]
    for formula in extents:
        if formula.terms and not formula.is_sum(family.dims):
            _refuse(op, formula, "a dim is a number, a size, or a sum that is never below 0")
    begins = list(accumulate(extents[:-1], Formula.plus, initial=Formula(0)))
    if not any(begin.terms for begin in begins):
        return
    b, result = OpBuilder.before(op), op.results[0]
    whole = b.empty(result.type)
    # In order: what lies behind an end is written over.
    for piece, begin in zip(op.operands, begins):
        places = [ends.index(b, begin) if d == along else 0 for d in range(result.type.rank)]
        whole = b.insert_slice(piece, whole, places)
        family.shapes[whole] = family.shape(result)
    result.replace_all_uses_with(whole)
    op.erase()


def _within_body(op: ir.Operation) -> bool:
    """Tell whether an op is one of the body of a linalg op: that op's rule says what it does."""
    parent = op.parent
    while parent is not None and parent.name != "func.func":
        if parent.name.startswith(("linalg.", "tensor.", "dist.scan", "dist.scatter", "mw.")):
            return True
        parent = parent.operation.parent
    return False


def _factors(
    op: ir.Operation,
    rule: Rule,
    values: Sequence[ir.Value],
    operands: int,
    family: Family,
    along: int | None = None,
) -> dict[int, Formula]:
    """Return the size of each factor that has one which a call chooses. along: a dim that is left out."""
    found: dict[int, Formula] = {}
    windows = {(t, d) for t, d, _ in rule.windows}
    for t, (value, dims) in enumerate(zip(values, rule.tensors)):
        if not is_tensor(value.type):
            continue
        for d, formula in enumerate(family.shape(value)):
            row = dims[d] if dims is not None else ()
            if not formula.terms or d == along or (t, d) in windows:
                continue
            if len(row) != 1:
                _refuse(op, formula, "a reshape keeps such a dim apart")
            if not formula.is_sum(family.dims) and (
                not is_merged(formula) or rule.factors[row[0]].kind != PARALLEL
            ):
                _refuse(op, formula, "a dim is a number, a size, or a sum that is never below 0")
            captured = operands <= t < len(rule.operands)
            if captured and rule.factors[row[0]].kind not in (PARALLEL, REDUCTION):
                continue  # read at computed places, which are places of elements
            known = found.setdefault(row[0], formula)
            if known != formula:
                fail(op, f"{op.name}: {known} and {formula} meet: they may be two sizes")
    for t, (value, dims) in enumerate(zip(values, rule.tensors)):
        for d, row in enumerate(dims or ()):
            formula = family.shape(value)[d] if is_tensor(value.type) else Formula(1)
            if len(row) == 1 and row[0] in found and not formula.terms and (t, d) not in windows:
                fail(
                    op,
                    f"{op.name}: dim {d} of {'an operand' if t < len(rule.operands) else 'its result'} has size "
                    f"{formula}, and meets {found[row[0]]}, which is known at run time: the same size is right",
                )
    for t, d, window in rule.windows:
        _check_window(
            op, family.shape(values[t])[d], window, found.get(rule.factor_of(t, d)), family
        )
    return found


def _check_window(
    op: ir.Operation, size: Formula, window: SlidingWindow, places: Formula | None, family: Family
) -> None:
    """Refuse a dim that is read through a window, at so many places, where one reaches over the end of the dim."""
    if not size.terms and places is None:
        return
    if places is not None and window.low >= 0:
        last = Formula(window.low + window.span(0)).plus(places, window.stride)
        if size.plus(last, -1).least(family.dims) >= 0 and not is_merged(size):
            return
    _refuse(
        op, size if size.terms or places is None else places, "windows lie within it for all sizes"
    )


def _refuse_gaps(
    op: ir.Operation, places: Sequence[tuple[ir.Value, int]], family: Family, rows: Rows
) -> None:
    """Refuse an op along a dim in which what reshapes have merged lies apart, as the bounds put it."""
    for value, dim in places:
        if is_tensor(value.type) and rows.has_gaps(value, dim):
            _refuse(
                op, family.shape(value)[dim], "it may be the major one of what a reshape merges"
            )


def _refuse_unsafe(op: ir.Operation, found: Mapping[int, Formula]) -> None:
    fail(
        op,
        f"{op.name}: it would divide by, or read at, what lies behind the end of "
        f"{_named(found)}: that is not masked yet",
    )


def _named(found: Mapping[int, Formula]) -> str:
    return ", ".join(dict.fromkeys(map(str, found.values())))


def _refuse(op: ir.Operation, formula: Formula, right: str = "") -> None:
    more = right or "elementwise ops, products, reductions and lookups may have it there"
    fail(op, f"{op.name}: along a dim of size {formula}, which is known at run time: {more}")


def _computed(constant: CountedConstant, ends: Ends) -> None:
    """Compute a number from the sizes where the program had the one for the bounds."""
    op, result = constant.op, constant.op.results[0]
    if any(use.owner.name.startswith("scf.") for use in result.uses):
        fail(op, f"a loop of {constant.formula} iterations, which are known at run time")
    b = OpBuilder.before(op)
    element = result.type.element_type if is_tensor(result.type) else result.type
    scalar = _scalar(b, constant, element, ends)
    if is_tensor(result.type):
        whole = len(result.type.shape) > 0
        scalar = b.fill(scalar, result.type) if whole else b.scalar_tensor(scalar)
    result.replace_all_uses_with(scalar)
    op.erase()


def _scalar(b: OpBuilder, constant: CountedConstant, element: ir.Type, ends: Ends) -> ir.Value:
    """Compute a number of a type, in the ops that `canonicalize` leaves as they are."""
    i64, total = ir.IntegerType.get_signless(64), ends.total(b, constant.formula)
    if isinstance(element, ir.IndexType):
        return b.one("arith.index_cast", element, total)
    if isinstance(element, ir.IntegerType):
        return total if element == i64 else b.one("arith.trunci", element, total)
    if not constant.inverse:
        return b.one("arith.sitofp", element, total)
    f64 = ir.F64Type.get()
    number = b.binary(
        "divf", b.constant(ir.FloatAttr.get(f64, 1.0)), b.one("arith.sitofp", f64, total)
    )
    return number if element == f64 else b.one("arith.truncf", element, number)
