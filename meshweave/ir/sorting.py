"""Build `mw.order` and take elements in its order; write it, and sorts in any order, as loops of linalg and scf."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import (
    IteratorType,
    OpBuilder,
    Values,
    dims_map,
    i64,
    static_offsets,
    static_sizes,
    static_strides,
    tensor_type,
)
from meshweave.ir.ops import body_of, producer, terminator
from meshweave.ir.scatters import scatter
from meshweave.ir.wanted import FEW

Precedes = Callable[[OpBuilder, Values], ir.Value]
"""Build an i1 that tells whether an element must come before another, from both of each tensor: x0, y0, x1, y1, ..."""

ORDER, SORT = "mw.order", "mw.sort"
SWITCH = "order"
"""Switch of the kernel that `coded` makes: its first output is where its codes are in order, the smallest first."""

_Cmp = arith.CmpIPredicate
_Float = arith.CmpFPredicate


@dataclass(frozen=True)
class Order:
    """Say in which order elements come: see `mw.order`."""

    descending: bool = False
    total: bool = False
    unsigned: bool = False

    @classmethod
    def of(cls, op: ir.Operation) -> Order:
        """Return the order of an `mw.order`."""
        return cls(*[name in op.attributes for name in ("descending", "total", "unsigned")])

    @property
    def attributes(self) -> dict[str, ir.Attribute]:
        """Return the attributes of an `mw.order` that say it."""
        names = {"descending": self.descending, "total": self.total, "unsigned": self.unsigned}
        return {name: ir.UnitAttr.get() for name, on in names.items() if on}

    def code(self, b: OpBuilder, element: ir.Value) -> ir.Value:
        """Build an integer of 32 or 64 bits without a sign that is the smaller the earlier an element comes."""
        type_ = element.type
        if isinstance(type_, ir.FloatType):
            found = self._float_code(b, element)
        elif type_.width == 1 or self.unsigned:
            found = element
        else:
            found = b.binary("xori", element, b.integer(-1 << (type_.width - 1), type_))
        wide = ir.IntegerType.get_signless(32 if found.type.width <= 32 else 64)
        if found.type != wide:
            found = b.one("arith.extui", wide, found)
        return b.binary("xori", found, b.integer(-1, wide)) if self.descending else found

    def last(self, b: OpBuilder, element: ir.Type) -> ir.Value:
        """Make a number of a type that no other comes behind."""
        if isinstance(element, ir.FloatType) and not self.total:
            number = -math.inf if self.descending else math.nan
            return b.constant(ir.FloatAttr.get(element, number))
        bits = b.integer(self.last_bits(element), ir.IntegerType.get_signless(element.width))
        return bits if bits.type == element else b.one("arith.bitcast", element, bits)

    def last_bits(self, element: ir.Type) -> int:
        """Return the bits of that number, as an integer with a sign: floats by their bits."""
        highest: int = (1 << (element.width - 1)) - 1
        if isinstance(element, ir.FloatType):
            return -1 if self.descending else highest
        if element.width == 1 or self.unsigned:
            return 0 if self.descending else -1
        return -highest - 1 if self.descending else highest

    def _float_code(self, b: OpBuilder, element: ir.Value) -> ir.Value:
        """Flip the sign of the bits of positive numbers, all bits of negative ones."""
        width = element.type.width
        kind = ir.IntegerType.get_signless(width)
        bits = b.one("arith.bitcast", kind, element)
        if not self.total:
            zero = b.constant(ir.FloatAttr.get(element.type, 0.0))
            nan = b.integer((1 << (width - 1)) - 1, kind)
            bits = b.select(b.compare(_Float.OEQ, element, zero), b.integer(0, kind), bits)
            bits = b.select(b.compare(_Float.UNO, element, element), nan, bits)
        negative = b.binary("shrsi", bits, b.integer(width - 1, kind))
        return b.binary("xori", bits, b.binary("ori", negative, b.integer(-1 << (width - 1), kind)))


def order(b: OpBuilder, keys: ir.Value, dim: int, count: int, how: Order) -> ir.Value:
    """Make an `mw.order` of the first `count` places along `dim`."""
    shape = list(keys.type.shape)
    shape[dim] = count
    type_ = tensor_type(shape, ir.IntegerType.get_signless(32))
    return b.one(ORDER, type_, keys, dim=i64(dim), **how.attributes)


def sort(b: OpBuilder, values: Values, dim: int, how: Order) -> list[ir.Value]:
    """Make an `mw.sort` of tensors of one shape, in the order of the first; its last result are the places."""
    i32 = ir.IntegerType.get_signless(32)
    types = [*[v.type for v in values], tensor_type(list(values[0].type.shape), i32)]
    return list(b.op(SORT, types, list(values), dim=i64(dim), **how.attributes).results)


def spread(op: ir.Operation) -> list[ir.Value]:
    """Make what an `mw.sort` does on one rank: find the places in order, and take the elements there.

    What is sorted by the places of another sort is put there. Where only the first elements are read no more are put in
    order.
    """
    b, (dim, how), values = (
        OpBuilder.before(op),
        (op.attributes["dim"].value, Order.of(op)),
        list(op.operands),
    )
    count = _first_read(op, dim)
    places = order(b, values[0], dim, count, how)
    used = [any(True for _ in result.uses) for result in op.results]
    if count < values[0].type.shape[dim]:
        return [*[taken(b, v, places, dim) if on else v for v, on in zip(values, used)], places]
    if not used[0] and not used[-1] and are_places(values[0], dim):
        moved = [put(b, v, values[0], dim) if on else v for v, on in zip(values, used)]
        return [*moved, values[0]]
    return [*[taken(b, v, places, dim) if on else v for v, on in zip(values, used)], places]


def _first_read(op: ir.Operation, dim: int) -> int:
    """Return how many elements along `dim` are read of what a sort makes: all, or those that slices begin with."""
    size: int = op.operands[0].type.shape[dim]
    most = 0
    for user in (use.owner.operation for result in op.results for use in result.uses):
        if user.name != "tensor.extract_slice" or static_offsets(user)[dim] != 0:
            return size
        if static_strides(user)[dim] != 1:
            return size
        most = max(most, static_sizes(user)[dim])
    return max(most, 1) if size else 0


def first(b: OpBuilder, values: Values, dim: int, count: int, how: Order) -> list[ir.Value]:
    """Make the first `count` elements of tensors in the order of the first of them, and their places, the last result.

    Few are found where they lie; of more all is sorted, so that ranks may have parts of it.
    """
    if count * FEW <= values[0].type.shape[dim]:
        places = order(b, values[0], dim, count, how)
        return [*[taken(b, value, places, dim) for value in values], places]
    made = []
    for value in sort(b, values, dim, how):
        shape = list(value.type.shape)
        shape[dim] = count
        type_ = tensor_type(shape, value.type.element_type)
        made.append(b.extract_slice(value, type_, [0] * len(shape)))
    return made


_CASTS = ("arith.extsi", "arith.trunci", "arith.index_cast")
_MOST_CASTS = 4


def are_places(value: ir.Value, dim: int) -> bool:
    """Tell whether a tensor holds all places along `dim`, each once: those of a sort, perhaps as other integers."""
    for _ in range(_MOST_CASTS):
        op = producer(value)
        if op is None:
            return False
        if op.name in (ORDER, SORT):
            along = op.attributes["dim"].value == dim and op.results[-1] == value
            return bool(along and op.operands[0].type.shape[dim] == value.type.shape[dim])
        if op.name in ("linalg.generic", "linalg.map"):
            if not _is_cast(op):
                return False
        elif op.name not in _CASTS:
            return False
        value = op.operands[0]
    return False


def _is_cast(op: ir.Operation) -> bool:
    """Tell whether a linalg op gives the elements of its one operand as other integers."""
    block = body_of(op)
    element = terminator(block).operands[0]
    while (made := producer(element)) is not None and made.name in _CASTS:
        element = made.operands[0]
    maps = op.attributes["indexing_maps"] if op.name == "linalg.generic" else []
    plain = all(m.value == ir.AffineMap.get_identity(m.value.n_dims) for m in maps)
    return plain and len(op.operands) == 2 and element == block.arguments[0]


def put(b: OpBuilder, tensor: ir.Value, places: ir.Value, dim: int) -> ir.Value:
    """Put each element of `tensor` at its one of all `places` along `dim`; padding has none, and is put nowhere."""
    ndim, size = len(tensor.type.shape), tensor.type.shape[dim]
    to = [ndim if d == dim else d for d in range(ndim)]

    def update(
        inner: OpBuilder, _at: Values, given: Values, _old: Values
    ) -> tuple[ir.Value, Values, Values]:
        place = inner.one("arith.index_cast", ir.IndexType.get(), given[0])
        return inner.compare(_Cmp.ult, place, inner.index(size)), [place], [given[1]]

    zeros = ir.DenseElementsAttr.get_splat(tensor.type, _zero(tensor.type.element_type))
    start = b.constant(zeros)
    return scatter(b, [places, tensor], [range(ndim)] * 2, [start], to, update)[0]


def _zero(type_: ir.Type) -> ir.Attribute:
    return (
        ir.FloatAttr.get(type_, 0.0)
        if isinstance(type_, ir.FloatType)
        else ir.IntegerAttr.get(type_, 0)
    )


def taken(b: OpBuilder, tensor: ir.Value, places: ir.Value, dim: int) -> ir.Value:
    """Take the elements of `tensor` at `places` along `dim`, each at its own place along the other dims.

    A few places are held within the dim, which they are in anyway, so that ranks may look them up in parts of it.
    """
    size = tensor.type.shape[dim]

    def element(inner: OpBuilder, arguments: list[ir.Value]) -> ir.Value:
        at = [inner.loop_index(d) for d in range(len(places.type.shape))]
        place = inner.one("arith.index_cast", ir.IndexType.get(), arguments[0])
        if places.type.shape[dim] < size:
            place = inner.binary("maxsi", place, inner.index(0))
            place = inner.binary("minsi", place, inner.index(size - 1))
        at[dim] = place
        return inner.element(tensor, at)

    into = b.empty(tensor_type(list(places.type.shape), tensor.type.element_type))
    return b.elementwise([places], into, element)


def coded(op: ir.Operation, **attributes: ir.Attribute) -> ir.Value:
    """Make the linalg.generic that stands for an `mw.order` until it is a kernel; return its places.

    Its loops are the dims of the result and, as a reduction, the elements along the dim. The second result holds their
    codes; it is as large as what sorting them takes.
    """
    keys, b, how = op.operands[0], OpBuilder.before(op), Order.of(op)
    dim, size, ndim = op.attributes["dim"].value, op.operands[0].type.shape, len(keys.type.shape)
    element, i32 = keys.type.element_type, ir.IntegerType.get_signless(32)
    kind = ir.IntegerType.get_signless(64 if getattr(element, "width", 64) > 32 else 32)
    scratch = b.empty(tensor_type([scratch_size(size[dim], kind.width)], kind))
    here = [ndim if d == dim else d for d in range(ndim)]
    # Only loop `dim` runs in the second result, whose size is not its own.
    apart = ir.AffineMap.get(ndim + 1, 0, [2 * ir.AffineDimExpr.get(dim)])
    maps = [dims_map(ndim + 1, here), dims_map(ndim + 1, range(ndim)), apart]
    kinds = [*[IteratorType.PARALLEL] * ndim, IteratorType.REDUCTION]

    def body(inner: OpBuilder, arguments: list[ir.Value]) -> Values:
        return [inner.integer(0, i32), how.code(inner, arguments[0])]

    into = b.empty(op.results[0].type)
    return b.generic([keys], [into, scratch], maps, kinds, body, **attributes).results[0]


def scratch_size(count: int, width: int) -> int:
    """Return the integers of `width` bits that sorting takes: two records for each element, and a table of counters."""
    return 4 * (count + 8) + BUCKETS * width // DIGIT * 32 // width


DIGIT = 8
"""Bits by which elements are sorted at a time."""
BUCKETS = 1 << DIGIT


def in_passes(op: ir.Operation) -> ir.Value:
    """Sort the places along with their codes for targets without a kernel for it: merge runs of 1, 2, 4, .. in pairs.

    In each pass every element of the result looks up by bisection which element of the two runs it is.
    """
    keys, b, how = op.operands[0], OpBuilder.before(op), Order.of(op)
    dim, shape = op.attributes["dim"].value, list(keys.type.shape)
    size, i32 = shape[dim], ir.IntegerType.get_signless(32)
    wide = ir.IntegerType.get_signless(
        64 if getattr(keys.type.element_type, "width", 64) > 32 else 32
    )
    into = b.empty(tensor_type(shape, i32))

    def place(inner: OpBuilder, arguments: list[ir.Value]) -> ir.Value:
        return inner.one("arith.index_cast", i32, inner.loop_index(dim))

    def code(inner: OpBuilder, arguments: list[ir.Value]) -> ir.Value:
        return how.code(inner, arguments[0])

    places = b.elementwise([], into, place)
    codes = b.elementwise([keys], b.empty(tensor_type(shape, wide)), code)
    for number in range((size - 1).bit_length() if size else 0):

        def source(
            inner: OpBuilder,
            arguments: list[ir.Value],
            number: int = number,
            codes: ir.Value = codes,
        ) -> ir.Value:
            return inner.one("arith.index_cast", i32, _merged(inner, codes, dim, number))

        taken_from = b.elementwise([], into, source)
        codes, places = (taken(b, each, taken_from, dim) for each in (codes, places))
    return b.extract_slice(places, op.results[0].type, [0] * len(shape), op.results[0].type.shape)


def _merged(b: OpBuilder, codes: ir.Value, dim: int, number: int) -> ir.Value:
    """Build the place of the element that comes to the place of the loops when runs of 2^number are merged in pairs.

    Among the first `here` elements of the merged run are `low` of the left one: as many as are not behind an element
    of the right one that would have to be among them, too. Of equal ones the left comes first.
    """
    shape = list(codes.type.shape)
    at = [b.loop_index(d) for d in range(len(shape))]
    zero, one, size, width = b.index(0), b.index(1), b.index(shape[dim]), b.index(1 << number)
    last = b.index(shape[dim] - 1)

    def element(place: ir.Value) -> ir.Value:
        held = b.binary("minsi", b.binary("maxsi", place, zero), last)
        return b.element(codes, [*at[:dim], held, *at[dim + 1 :]])

    here = b.binary("remui", at[dim], b.index(2 << number))
    left = b.binary("subi", at[dim], here)
    of_left = b.binary("minsi", b.binary("subi", size, left), width)
    right = b.binary("addi", left, of_left)
    of_right = b.binary("minsi", b.binary("subi", size, right), width)
    low = b.binary("maxsi", b.binary("subi", here, of_right), zero)
    high = b.binary("minsi", here, of_left)
    for _ in range(number + 1):
        goes_on = b.compare(_Cmp.slt, low, high)
        middle = b.binary("shrsi", b.binary("addi", low, high), one)
        other = b.binary("subi", b.binary("addi", right, here), b.binary("addi", middle, one))
        behind = b.compare(_Cmp.ult, element(other), element(b.binary("addi", left, middle)))
        low, high = (
            b.select(b.select(behind, _no(b), goes_on), b.binary("addi", middle, one), low),
            b.select(b.binary("andi", goes_on, behind), middle, high),
        )
    first, second = (
        b.binary("addi", left, low),
        b.binary("subi", b.binary("addi", right, here), low),
    )
    behind = b.compare(_Cmp.ult, element(second), element(first))
    more = b.compare(_Cmp.slt, second, b.binary("addi", right, of_right))
    takes_right = b.binary("ori", b.binary("andi", more, behind), b.compare(_Cmp.sge, low, of_left))
    return b.select(takes_right, second, first)


def _no(b: OpBuilder) -> ir.Value:
    return b.integer(0, ir.IntegerType.get_signless(1))


def sorted_rows(b: OpBuilder, inputs: Values, dim: int, precedes: Precedes) -> list[ir.Value]:
    """Sort the rows along `dim` of tensors of one shape together; return the sorted tensors."""
    shape = list(inputs[0].type.shape)
    dim %= max(1, len(shape))
    if not shape or shape[dim] < 2 or 0 in shape:
        return list(inputs)
    others = [n for i, n in enumerate(shape) if i != dim]
    sizes = [n if i == dim else 1 for i, n in enumerate(shape)]

    def sort_row(inner: OpBuilder, at: Values, values: Values) -> Values:
        offsets = [*at[:dim], 0, *at[dim:]]
        types = [tensor_type([shape[dim]], v.type.element_type) for v in inputs]
        rows = [inner.extract_slice(v, t, offsets, sizes) for v, t in zip(inputs, types)]
        rows = _merge_sort(inner, rows, shape[dim], precedes)
        pairs = zip(rows, values, strict=True)
        return [inner.insert_slice(row, value, offsets, sizes) for row, value in pairs]

    # The inputs serve as places for the results: two `tensor.empty` of one type would be
    # merged, and bufferization then puts both results into one buffer.
    return b.loops(others, inputs, sort_row)


def _merge_sort(b: OpBuilder, rows: Values, size: int, precedes: Precedes) -> list[ir.Value]:
    """Sort 1-dim tensors together: merge runs of 1, 2, 4, ... in pairs into a copy, and copy that back."""
    passes = (size - 1).bit_length()
    count = len(rows)

    def merge_pass(p: OpBuilder, number: ir.Value, values: Values) -> list[ir.Value]:
        source, target = values[:count], values[count:]
        width = p.binary("shli", p.index(1), number)
        end = p.index(size)

        def place(k: OpBuilder, position: ir.Value, state: Values) -> list[ir.Value]:
            return _merge_step(k, position, state, source, width, end, precedes)

        zero = p.index(0)
        state = p.loop(zero, end, [zero, zero, *target], place)
        merged = state[2:]

        def copy(k: OpBuilder, i: ir.Value, kept: Values) -> list[ir.Value]:
            return [
                k.put_element(k.element(m, [i]), s, [i]) for m, s in zip(merged, kept, strict=True)
            ]

        return [*p.loop(zero, end, source, copy), *merged]

    return b.loop(0, passes, [*rows, *rows], merge_pass)[:count]


def _merge_step(
    b: OpBuilder,
    position: ir.Value,
    state: Values,
    source: Values,
    width: ir.Value,
    size: ir.Value,
    precedes: Precedes,
) -> list[ir.Value]:
    """Write place `position` of the targets; return the next state.

    state: the next place of the left run, the next place of the right run, the targets.
    """
    left, right, *targets = state
    both = b.binary("addi", width, width)
    within = b.binary("remui", position, both)
    base = b.binary("subi", position, within)
    middle = b.binary("minsi", b.binary("addi", base, width), size)
    stop = b.binary("minsi", b.binary("addi", base, both), size)
    starts = b.compare(_Cmp.eq, within, b.index(0))
    left, right = b.select(starts, base, left), b.select(starts, middle, right)
    last = b.binary("subi", size, b.index(1))
    from_left = [b.element(s, [b.binary("minsi", left, last)]) for s in source]
    from_right = [b.element(s, [b.binary("minsi", right, last)]) for s in source]
    pairs = [v for pair in zip(from_right, from_left, strict=True) for v in pair]
    first = precedes(b, pairs)  # the right one only where it must come first: that is stable
    right_left = b.compare(_Cmp.slt, right, stop)
    takes_right = b.binary("andi", right_left, first)
    takes_right = b.binary("ori", b.compare(_Cmp.sge, left, middle), takes_right)
    one, zero = b.index(1), b.index(0)
    values = [b.select(takes_right, r, v) for r, v in zip(from_right, from_left, strict=True)]
    return [
        b.binary("addi", left, b.select(takes_right, zero, one)),
        b.binary("addi", right, b.select(takes_right, one, zero)),
        *(b.put_element(v, t, [position]) for v, t in zip(values, targets, strict=True)),
    ]
