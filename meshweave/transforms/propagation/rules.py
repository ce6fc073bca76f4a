"""Find what each op does with its dims: one Rule per op, read off indexing maps where there are any.

`RuleTable.rule(op)` answers with the number of the op's rule; ops alike in name, maps and types share one, so most of a
deep model costs a dictionary lookup an op. An op that nobody knows needs all its operands whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from meshweave.ir.bindings import ir, linalg
from meshweave.ir.build import (
    DYNAMIC,
    IteratorType,
    iterator_types,
    reassociation,
    static_offsets,
    static_sizes,
    static_strides,
)
from meshweave.ir.fft import FFT, Transform
from meshweave.ir.ops import producer
from meshweave.ir.routines import LAPACK, RoutineCall
from meshweave.ir.scans import SCAN, Scan
from meshweave.ir.scatters import SCATTER, Scatter
from meshweave.ir.sorting import ORDER, SORT
from meshweave.ir.wanted import FEW
from meshweave.layout.factors import (
    FOUND,
    JOINED,
    ORDERED,
    PARALLEL,
    PLACED,
    REDUCTION,
    SORTED,
    WHOLE,
    Dims,
    Factor,
    Rule,
    SlidingWindow,
)
from meshweave.plan.collectives import ROWS
from meshweave.transforms.propagation.bodies import (
    BodyKey,
    Captured,
    body_key,
    body_of,
    captured_by,
    combiner,
    found_dims,
    found_kind,
    is_tensor,
    lookup,
    monomials,
    scan_combiner,
    scatter_combiner,
    selection,
)
from meshweave.transforms.propagation.padding import UNSAFE_ON_PADDING, padding_safe

KNOWN_WHOLE = (
    "arith.constant",
    "tensor.extract",
    "tensor.dim",
    "tensor.from_elements",
    "tensor.generate",
)
"""Ops that are known to need whole tensors, or to make them: no remark about these."""
MOST_PIECES = 8  # tensors side by side of which a rank takes each element from one
ITEM_BITS = {"index": 64, "complex<f32>": 64, "complex<f64>": 128}


class BodyTraits(NamedTuple):
    """Hold what the rule of an op takes from its body: see the functions of these names in `bodies`."""

    combiner: str | None
    padding_safe: bool
    monomials: tuple[frozenset[int], ...]
    selects: bool = False
    looks_up: bool = False

    @classmethod
    def of(cls, op: ir.Operation) -> BodyTraits:
        """Read the body of `op`."""
        body = body_of(op)
        selects, looks_up = selection(op, body) is not None, lookup(op, body) is not None
        kind = found_kind(op) if looks_up else combiner(op, body)
        return cls(kind, padding_safe(body), monomials(op, body), selects, looks_up)


@dataclass
class RuleTable:
    """Number rules, by what they were read from. windows: tensors may be read through windows, else they are whole."""

    windows: bool = False
    rules: list[Rule] = field(default_factory=list)
    unknown: list[ir.Operation] = field(default_factory=list)
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _bodies: dict[Hashable, BodyTraits] = field(default_factory=dict)

    def rule(self, op: ir.Operation) -> tuple[int, list[Captured]]:
        """Return the number of the rule of `op`, and what it reads in its body besides its operands."""
        name = op.name
        read = READERS.get(name) or (
            _linalg if name.startswith("linalg.") else READERS.get(_family(name), _whole)
        )
        body = body_key(op)
        captured = captured_by(op) if body is None else []
        values = [*op.operands, *[c.value for c in captured], *op.results]
        key = (
            name,
            tuple([v.type for v in values]),
            len(op.results),
            tuple([c.loops for c in captured]),
            *self._attribute_key(op, read, body),
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = self.add(read(op, captured))
            if read is _whole and name not in KNOWN_WHOLE:
                self.unknown.append(op)
        return number, captured

    def _attribute_key(
        self, op: ir.Operation, read: Callable[..., Rule], body: BodyKey | None
    ) -> tuple[Hashable, ...]:
        """Return what else the rule depends on: maps and body of linalg ops, the static attributes of the others."""
        if read is _linalg:
            maps = linalg.get_indexing_maps(op.opview)
            types = op.attributes["iterator_types"] if op.name == "linalg.generic" else None
            if maps is not None:
                return (tuple(maps), types, self._traits(op, types, body))
        if read is _aligned_op:
            return ()
        said = [op.attributes[name] for name in op.attributes if name != "dist.layouts"]
        if read in (_extract_slice, _insert_slice):
            said += held_offsets(op)
        return (*said, body)

    def _traits(self, op: ir.Operation, types: ir.Attribute, body: BodyKey | None) -> BodyTraits:
        """Read how the body reduces, whether padding harms it, what it is linear in: once for equal bodies."""
        result = op.results[0].type if len(op.results) else None
        key = (op.name, result, types, len(op.operands), body)
        if body is None or len(op.results) > 1 or key not in self._bodies:
            self._bodies[key] = BodyTraits.of(op)
        return self._bodies[key]

    def holding(self, number: int, held: tuple[tuple[int, tuple[str, ...]], ...]) -> int:
        """Return the number of rule `number` with `held`."""
        key = (number, held)
        if key not in self._numbers:
            self._numbers[key] = self.add(replace(self.rules[number], held=held))
        return self._numbers[key]

    def add(self, rule: Rule) -> int:
        """Add a rule that belongs to no op (a value that enters a region, say); return its number."""
        turns = any(factor.kind in (WHOLE, SORTED) for factor in rule.factors)
        rule = replace(rule, turns=True) if turns else rule
        self.rules.append(rule if self.windows else rule.without_windows())
        return len(self.rules) - 1

    def identity(self, type_: ir.Type) -> int:
        """Return the rule of a value that is passed on: into a region, out of it, to a caller."""
        key = ("identity", type_)
        if key not in self._numbers:
            self._numbers[key] = self.add(_aligned("pass", [type_], [type_]))
        return self._numbers[key]


def is_free(op: ir.Operation) -> bool:
    """Tell whether `op` makes a value that costs nothing to make again in any layout.

    That is an empty tensor, a fill, a splat.
    """
    name = op.name
    if name in ("tensor.empty", "tensor.splat", "linalg.fill"):
        return True
    if name == "arith.constant":
        value = op.attributes["value"]
        return isinstance(value, ir.DenseElementsAttr) and value.is_splat
    return False


def counts_places(op: ir.Operation) -> bool:
    """Tell whether `op` makes a tensor of nothing but the places of its elements, such as 0, 1, 2, .."""
    if op.name not in ("linalg.map", "linalg.generic") or len(op.results) != 1:
        return False
    reads = not all(is_made_free(value) for value in op.operands) or captured_by(op)
    kinds = iterator_types(op) if op.name == "linalg.generic" else []
    return not reads and IteratorType.REDUCTION not in kinds


def is_made_free(value: ir.Value) -> bool:
    """Tell whether an op of which `is_free` holds makes `value`."""
    op = producer(value)
    return op is not None and is_free(op)


def _family(name: str) -> str:
    return name.split(".", 1)[0] + ".*"


def item_bytes(element: ir.Type) -> int:
    """Return the bytes of one element in memory: at least one, for i1 too."""
    bits: int = ITEM_BITS.get(str(element), 0) or getattr(element, "width", 64)
    return max(bits // 8, 1)


def nbytes(type_: ir.Type) -> int:
    """Return the bytes of a whole tensor, at least one of an empty one; 0 of what is no tensor."""
    if not is_tensor(type_):
        return 0
    count = item_bytes(type_.element_type)
    for extent in type_.shape:
        count *= max(extent, 1)
    return count


def _rule(
    name: str,
    factors: list[Factor],
    operands: list[ir.Type],
    results: list[ir.Type],
    dims: list[Dims | None],
    **more: Any,
) -> Rule:
    """Make a Rule whose sizes and bytes come from the types. dims: for each operand, then each result."""
    types = operands + results
    return Rule(
        tuple(factors),
        tuple(dims[: len(operands)]),
        tuple(dims[len(operands) :]),
        tuple([tuple(t.shape) if d is not None else None for t, d in zip(types, dims)]),
        tuple([nbytes(t) for t in types]),
        name=name,
        **more,
    )


def _aligned(name: str, operands: list[ir.Type], results: list[ir.Type], safe: bool = True) -> Rule:
    """Make the rule of tensors of one shape: dim d of each is factor d."""
    shape: Sequence[int] = next((t.shape for t in results + operands if is_tensor(t)), [])
    factors = [Factor(extent) for extent in shape]
    dims: list[Dims | None] = [
        tuple((d,) for d in range(len(factors))) if is_tensor(t) else None
        for t in operands + results
    ]
    return _rule(name, factors, operands, results, dims, padding_safe=safe)


def _aligned_op(op: ir.Operation, captured: list[Captured]) -> Rule:
    types = [v.type for v in op.operands]
    results = [v.type for v in op.results]
    shapes = {tuple(t.shape) for t in types + results if is_tensor(t)}
    if len(shapes) > 1:
        return _whole(op, captured)
    safe = not op.name.startswith(UNSAFE_ON_PADDING)
    return replace(_aligned(op.name, types, results, safe), monomials=monomials(op))


def _whole(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Make a rule that needs every dim of every tensor whole."""
    operands = [v.type for v in [*op.operands, *[c.value for c in captured]]]
    results = [v.type for v in op.results]
    factors: list[Factor] = []
    dims = [_own_dims(t, factors, WHOLE) for t in operands + results]
    return _rule(op.name, factors, operands, results, dims, padding_safe=False)


def _own_dims(type_: ir.Type, factors: list[Factor], kind: str) -> Dims | None:
    """Add a new factor for each dim of the type."""
    if not is_tensor(type_):
        return None
    first = len(factors)
    factors.extend(Factor(extent, kind) for extent in type_.shape)
    return tuple((first + d,) for d in range(len(type_.shape)))


def _linalg(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a structured op: loops are factors.

    A dim read at a sum of loops is read through a window: at each place of the parallel one, as far as the others
    reach, which must be whole. So must a loop that runs along two dims of an operand (a diagonal), and all loops of a
    sum with two parallel ones.
    """
    attrs = linalg.get_indexing_maps(op.opview)
    if attrs is None:
        return _softmax(op, captured) if op.name == "linalg.softmax" else _whole(op, captured)
    maps = [a.value for a in attrs]
    operands = [v.type for v in op.operands]
    results = [v.type for v in op.results]
    n_inits = len(results)
    kinds = _loop_kinds(op, maps, n_inits)
    traits = BodyTraits.of(op)
    kind = traits.combiner
    sizes = [1] * len(kinds)
    for type_, map_ in zip(operands, maps):
        for extent, e in zip(getattr(type_, "shape", ()), map_.results):
            if isinstance(e, ir.AffineDimExpr):
                sizes[e.position] = extent
    mirrored: list[tuple[int, int]] = []
    for t, (type_, map_) in enumerate(zip(operands, maps)):
        seen: list[int] = []
        for d, (extent, e) in enumerate(zip(getattr(type_, "shape", ()), map_.results)):
            if isinstance(e, ir.AffineDimExpr):
                seen.append(e.position)
            elif (backwards := _backwards(e, extent, sizes, kinds)) is not None:
                seen.append(backwards)
                mirrored.append((t, d))
            else:
                moving = _moving_loop(e, kinds)
                seen += [] if moving is None else [moving]
                for position in set(_positions(e)) - {moving}:
                    kinds[position] = WHOLE
        for position in seen:
            if seen.count(position) > 1:  # a diagonal: one loop is two dims
                kinds[position] = WHOLE
    if kind is None:
        first = kinds.index(REDUCTION) if traits.selects else -1  # in the order of the elements
        kinds = [
            (JOINED if d == first else WHOLE) if k == REDUCTION else k for d, k in enumerate(kinds)
        ]
    factors = [Factor(size, k) for size, k in zip(sizes, kinds)]
    dims: list[Dims | None] = []
    windows: list[tuple[int, int, SlidingWindow]] = []
    for t, (type_, map_) in enumerate(zip(operands, maps)):
        dims.append(_mapped(type_, map_, factors, windows, t, mirrored))
    reader = lookup(op, body_of(op)) if traits.looks_up else None
    dims += [_read_at(c, factors, found_dims(c, reader)) for c in captured]
    dims += [dims[len(operands) - n_inits + i] for i in range(n_inits)]
    operands += [c.value.type for c in captured]
    inits = tuple(len(op.operands) - n_inits + i for i in range(n_inits))
    return _rule(
        op.name,
        factors,
        operands,
        results,
        dims,
        reduction=kind,
        inits=inits,
        padding_safe=traits.padding_safe,
        monomials=traits.monomials,
        windows=tuple(windows),
        mirrored=tuple(mirrored),
    )


def _backwards(
    expr: ir.AffineExpr, extent: int, sizes: Sequence[int], kinds: Sequence[str]
) -> int | None:
    """Return the parallel loop that runs along all of a dim from its end; None for any other expression."""
    found = dict(coefficients(expr) or {})
    last = found.pop(None, 0)
    (loop, factor), *rest = *found.items(), (None, 0)
    backwards = loop is not None and factor == -1 and len(rest) == 1 and kinds[loop] == PARALLEL
    return loop if backwards and extent == sizes[loop or 0] == last + 1 else None


def _moving_loop(expr: ir.AffineExpr, kinds: Sequence[str]) -> int | None:
    """Return the one parallel loop of a sum of multiples of loops; None for anything else, also where it runs back."""
    found = coefficients(expr) or {}
    parallel = [d for d in found if d is not None and kinds[d] == PARALLEL]
    return parallel[0] if len(parallel) == 1 and found[parallel[0]] > 0 else None


def coefficients(expr: ir.AffineExpr) -> dict[int | None, int] | None:
    """Return the factor of each loop in a sum, with the number that is added under None; None for no such sum."""
    if isinstance(expr, ir.AffineDimExpr):
        return {expr.position: 1}
    if isinstance(expr, ir.AffineConstantExpr):
        return {None: expr.value}
    if not isinstance(expr, (ir.AffineAddExpr, ir.AffineMulExpr)):
        return None
    one, other = coefficients(expr.lhs), coefficients(expr.rhs)
    if one is None or other is None:
        return None
    if isinstance(expr, ir.AffineAddExpr):
        return {d: one.get(d, 0) + other.get(d, 0) for d in {**one, **other}}
    by, what = (one, other) if set(one) == {None} else (other, one)
    return {d: c * by[None] for d, c in what.items()} if set(by) == {None} else None


def _window(expr: ir.AffineExpr, factors: Sequence[Factor]) -> tuple[int, SlidingWindow] | None:
    """Return the loop that moves a window along a dim, and that window; None where the dim must be whole."""
    loop = _moving_loop(expr, [f.kind for f in factors])
    if loop is None:
        return None
    factor_of = coefficients(expr) or {}
    low = high = factor_of.pop(None, 0)
    stride = factor_of.pop(loop)
    for d, c in factor_of.items():
        last = c * (factors[d].size - 1) if d is not None else 0
        low, high = min(low, low + last), max(high, high + last)
    empty = any(factors[d].size == 0 for d in (loop, *factor_of) if d is not None)
    return None if empty else (loop, SlidingWindow(stride, low, high - low + 1))


def _mapped(
    type_: ir.Type,
    map_: ir.AffineMap,
    factors: list[Factor],
    windows: list[tuple[int, int, SlidingWindow]],
    tensor: int,
    mirrored: Sequence[tuple[int, int]],
) -> Dims | None:
    """Return the factors of each dim of a tensor; adds the windows that it is read through to `windows`."""
    if not is_tensor(type_):
        return None
    dims = []
    for d, (extent, e) in enumerate(zip(type_.shape, map_.results)):
        plain = isinstance(e, ir.AffineDimExpr)
        window = None if plain or not extent else _window(e, factors)
        if plain:
            dims.append((e.position,))
        elif (tensor, d) in mirrored:
            dims.append((next(p for p in coefficients(e) or () if p is not None),))
        elif window is not None:
            dims.append((window[0],))
            windows.append((tensor, d, window[1]))
        else:  # a constant, say: this dim stands for itself
            factors.append(Factor(extent, WHOLE))
            dims.append((len(factors) - 1,))
    return tuple(dims)


def _read_at(captured: Captured, factors: list[Factor], found: Sequence[int]) -> Dims:
    """Map a dim read at a loop's index to that loop, where their extents agree and no dim before it is.

    found: the dims in which ranks may look for what they have.
    """
    dims: list[tuple[int, ...]] = []
    for d, (extent, loop) in enumerate(zip(captured.value.type.shape, captured.loops)):
        if loop is not None and factors[loop].size == extent and (loop,) not in dims:
            dims.append((loop,))
        else:
            factors.append(Factor(extent, FOUND if d in found else WHOLE))
            dims.append((len(factors) - 1,))
    return tuple(dims)


def _positions(expr: ir.AffineExpr) -> list[int]:
    if isinstance(expr, ir.AffineDimExpr):
        return [expr.position]
    if isinstance(expr, ir.AffineConstantExpr):
        return []
    return _positions(expr.lhs) + _positions(expr.rhs)


def _loop_kinds(op: ir.Operation, maps: list[ir.AffineMap], n_outputs: int) -> list[str]:
    outputs = maps[len(maps) - max(1, n_outputs) :]
    written = [{e.position for e in m.results if isinstance(e, ir.AffineDimExpr)} for m in outputs]
    in_all, in_any = set.intersection(*written), set.union(*written)
    declared = None
    if op.name == "linalg.generic":
        declared = [kind is IteratorType.PARALLEL for kind in iterator_types(op)]
    kinds = []
    for d in range(maps[0].n_dims):
        if d in in_all:
            kinds.append(PARALLEL if declared is None or declared[d] else WHOLE)
        else:
            kinds.append(WHOLE if d in in_any else REDUCTION)
    return kinds


def _softmax(op: ir.Operation, captured: list[Captured]) -> Rule:
    shape = op.results[0].type.shape
    along = op.attributes["dimension"].value
    factors = [Factor(extent, WHOLE if d == along else PARALLEL) for d, extent in enumerate(shape)]
    types = [v.type for v in op.operands]
    dims: list[Dims | None] = [tuple((d,) for d in range(len(shape)))] * (len(types) + 1)
    return _rule(op.name, factors, types, [op.results[0].type], dims, inits=(1,))


def _scan(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a scan: the dims go through, but ranks wait for those before them along the scanned one.

    What these have made must be known without their elements: it is whole unless the body says how it combines.
    """
    if captured:
        return _whole(op, captured)
    what, shape = Scan(op), list(op.results[0].type.shape)
    ordered = WHOLE if scan_combiner(op) is None else ORDERED
    factors = [
        Factor(extent, ordered if d == what.dim else PARALLEL) for d, extent in enumerate(shape)
    ]
    whole: Dims = tuple((d,) for d in range(len(shape)))
    rest: Dims = tuple((d,) for d in what.kept)
    dims: list[Dims | None] = [*[whole] * what.count, *[rest] * what.count, *[whole] * what.count]
    types, results = [v.type for v in op.operands], [r.type for r in op.results]
    return _rule(op.name, factors, types, results, dims, padding_safe=padding_safe(body_of(op)))


def _order(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of an order: rows go through, the dim is whole, and so are its places.

    Where few places are wanted each rank may find as many of its own, of which all find the first.
    """
    (given,), (made,) = [v.type for v in op.operands], [r.type for r in op.results]
    along = op.attributes["dim"].value
    few = FEW * made.shape[along] <= given.shape[along] and given.shape[along] < 1 << 31
    kind = JOINED if few else WHOLE
    factors = [Factor(n, kind if d == along else PARALLEL) for d, n in enumerate(given.shape)]
    factors.append(Factor(made.shape[along], WHOLE))
    mine: Dims = tuple((d,) for d in range(len(given.shape)))
    theirs: Dims = tuple((len(given.shape) if d == along else d,) for d in range(len(given.shape)))
    even = (along,) if few else ()
    return _rule(op.name, factors, [given], [made], [mine, theirs], even=even)


def _sort(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a sort: rows go through, of which ranks may have parts, before and after."""
    types, results = [v.type for v in op.operands], [r.type for r in op.results]
    along, shape = op.attributes["dim"].value, list(types[0].shape)
    plain = all(isinstance(t.element_type, (ir.FloatType, ir.IntegerType)) for t in types)
    kind = SORTED if plain and 0 < math.prod(shape) < 1 << 31 else WHOLE
    factors = [Factor(n, kind if d == along else PARALLEL) for d, n in enumerate(shape)]
    row: Dims = tuple((d,) for d in range(len(shape)))
    dims: list[Dims | None] = [row] * (len(types) + len(results))
    return _rule(op.name, factors, types, results, dims)


def _lapack(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a LAPACK routine: each matrix of the batch apart, its dims whole but for those that are free."""
    call = RoutineCall.of(op)
    ndim, free = len(call.batch), call.row.free
    factors = [Factor(n, PARALLEL) for n in (*call.batch, *call.extents(free))]
    dims: list[Dims | None] = []
    for letters in call.row.tensors:
        mine = [(d,) for d in range(ndim)]
        for letter in letters:
            if letter in free:
                mine.append((ndim + free.index(letter),))
            else:
                mine.append((len(factors),))
                factors.append(Factor(call.sizes[letter], WHOLE))
        dims.append(tuple(mine))
    given, made = [v.type for v in op.operands], [r.type for r in op.results]
    return _rule(op.name, factors, given, made, dims)


def _fft(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a transform: all dims go through but its own, which is whole on each side, and that of parts."""
    dim, kept = Transform.of(op).dim, list(Transform.of(op).shape)
    factors = [Factor(1 if d == dim else n, PARALLEL) for d, n in enumerate(kept)]
    factors[dim] = Factor(1, WHOLE)
    given, made = [v.type for v in op.operands], [r.type for r in op.results]
    dims: list[Dims | None] = []
    for type_ in (*given, *made):
        mine = [(d,) for d in range(len(kept))]
        factors.append(Factor(type_.shape[dim], WHOLE))
        mine[dim] = (len(factors) - 1,)
        if len(type_.shape) > len(kept):
            factors.append(Factor(type_.shape[-1], WHOLE))
            mine.append((len(factors) - 1,))
        dims.append(tuple(mine))
    return _rule(op.name, factors, given, made, dims)


def _scatter(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a scatter: loops of dims go through, others are reduced; ranks leave out places of others."""
    if captured:
        return _whole(op, captured)
    what, kind = Scatter(op), scatter_combiner(op)
    others = WHOLE if kind is None else REDUCTION
    factors = [Factor(n, PARALLEL if k in what.to else others) for k, n in enumerate(what.sizes)]
    shape = op.results[0].type.shape
    factors += [Factor(shape[d], PLACED) for d in what.dims.values()]
    types, results = [v.type for v in op.operands], [r.type for r in op.results]
    rows = [*what.rows, *[what.to] * (2 * what.count)]
    dims: list[Dims | None] = [tuple((k,) for k in row) for row in rows]
    inits = tuple(range(len(types) - what.count, len(types)))
    safe = padding_safe(body_of(op))
    return _rule(
        op.name, factors, types, results, dims, reduction=kind, inits=inits, padding_safe=safe
    )


def _reassociation(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of expand_shape and collapse_shape: a group of dims on one side is one dim on the other."""
    groups = reassociation(op)
    source, target = op.operands[0].type, op.results[0].type
    fine = target if op.name == "tensor.expand_shape" else source
    apart: Dims = tuple((d,) for d in range(len(fine.shape)))
    merged: Dims = tuple(_significant(group, fine.shape) for group in groups)
    # A dim that the other side does not have must not be cut: where it is padding, the other side would be too.
    shared = {d for group in merged for d in group}
    factors = [Factor(n, PARALLEL if d in shared else WHOLE) for d, n in enumerate(fine.shape)]
    mine, theirs = (merged, apart) if fine is target else (apart, merged)
    types = [v.type for v in op.operands]
    dims: list[Dims | None] = [mine, *([None] * (len(types) - 1)), theirs]
    # A dim that several factors share must be cut evenly; a lone factor keeps its padding on both sides.
    return _rule(op.name, factors, types, [target], dims, monomials=monomials(op))


def _significant(group: list[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the dims of a group that have more than one element: those of extent 1 do not move any digit."""
    kept = tuple(d for d in group if shape[d] != 1)
    return kept or tuple(group[:1])


def _extract_slice(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of extract_slice: what is read of each dim is a window, where the offset is known."""
    rule, large = _slice_like(op, captured), op.operands[0].type.shape
    extents, offsets, strides = static_sizes(op), static_offsets(op), static_strides(op)
    small = list(op.results[0].type.shape)
    kept = kept_dims(extents, small)
    if DYNAMIC in strides or 0 in [*small, *large]:
        return rule
    windows, read, factors = [], list(rule.tensors[0] or ()), list(rule.factors)
    looked_up = (
        _single(op) if not str(op.results[0].type.element_type).startswith("complex") else ()
    )
    for d, (offset, extent) in enumerate(zip(offsets, extents)):
        if offset == DYNAMIC and d in looked_up and large[d] > 1:
            factors[d] = Factor(large[d], FOUND)
        if offset == DYNAMIC or factors[d].kind != WHOLE:
            continue
        if d in kept:
            read[d] = (rule.results[0] or ())[kept.index(d)]
            factors[read[d][0]] = Factor(extent)
        factors[d] = Factor(1, WHOLE)  # of a dim that is left out; else nothing is made of it
        windows.append((0, d, SlidingWindow(strides[d], offset)))
    operands = (tuple(read), *rule.operands[1:])
    kind = found_kind(op) if any(f.kind == FOUND for f in factors) else None
    return replace(
        rule, factors=tuple(factors), operands=operands, windows=tuple(windows), reduction=kind
    )


def held_offsets(op: ir.Operation) -> list[bool]:
    """Tell for each offset of a slice that is computed whether it is held within a dim, as frontends hold it."""
    first = 2 if op.name == "tensor.insert_slice" else 1
    makers = [producer(offset) for offset in list(op.operands)[first:]]
    return [made is not None and made.name == "arith.minsi" for made in makers]


def _single(op: ir.Operation) -> list[int]:
    """Return the dims of which a slice takes one index, at a computed place within the dim."""
    offsets, held = static_offsets(op), held_offsets(op)
    moving = [d for d, offset in enumerate(offsets) if offset == DYNAMIC]
    sizes = static_sizes(op)
    return [d for d, inside in zip(moving, held) if inside and sizes[d] == 1]


def _insert_slice(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of insert_slice: each place of the result reads its own of the slice, where there is one.

    A slice of one index at a computed place is put in by the rank that has the place, where it is full otherwise.
    """
    rule, large = _slice_like(op, captured), list(op.operands[1].type.shape)
    parts = [d for d in range(len(large)) if rule.factors[d].kind == WHOLE]
    if len(parts) == 1 and parts == _single(op) and large[parts[0]] > 1:
        placed = [Factor(n.size, PLACED) if d in parts else n for d, n in enumerate(rule.factors)]
        return replace(rule, factors=tuple(placed))
    offsets, strides = static_offsets(op), static_strides(op)
    small = list(op.operands[0].type.shape)
    if len(small) != len(large) or 0 in [*small, *large]:
        return rule
    windows, read, factors = [], list(rule.operands[0] or ()), list(rule.factors)
    for d, offset in enumerate(offsets):
        if offset == DYNAMIC or strides[d] != 1 or factors[d].kind != WHOLE:
            continue
        factors[read[d][0]] = Factor(1, WHOLE)  # nothing is made of it any more
        read[d], factors[d] = (d,), Factor(large[d])
        windows.append((0, d, SlidingWindow(low=-offset)))
    operands = (tuple(read), *rule.operands[1:])
    return replace(rule, factors=tuple(factors), operands=operands, windows=tuple(windows))


def _slice_like(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of extract_slice and insert_slice.

    A dim that the slice takes in full, and keeps, is one factor of both tensors; any other must be whole on each
    side (also one of extent 1 that is dropped: some ranks would have nothing but its padding).
    """
    types, result = [v.type for v in op.operands], op.results[0].type
    inserts = op.name == "tensor.insert_slice"
    small, large = (types[0], types[1]) if inserts else (result, types[0])
    extents, offsets = static_sizes(op), static_offsets(op)
    strides = static_strides(op)
    kept = kept_dims(extents, list(small.shape))
    full = [
        extents[d] == n and offsets[d] == 0 and strides[d] == 1 and d in kept
        for d, n in enumerate(large.shape)
    ]
    factors = [Factor(n, PARALLEL if whole else WHOLE) for n, whole in zip(large.shape, full)]
    large_dims: Dims = tuple((d,) for d in range(len(large.shape)))
    small_dims: list[tuple[int, ...]] = []
    for d, n in zip(kept, small.shape):
        if full[d]:
            small_dims.append((d,))
        else:
            factors.append(Factor(n, WHOLE))
            small_dims.append((len(factors) - 1,))
    read = [tuple(small_dims), large_dims] if inserts else [large_dims]
    places = [None] * (len(types) - len(read))
    dims: list[Dims | None] = [*read, *places, large_dims if inserts else tuple(small_dims)]
    return _rule(op.name, factors, types, [result], dims, monomials=monomials(op))


def kept_dims(extents: list[int], small: list[int]) -> list[int]:
    """Return the dims of a slice that its rank-reduced type keeps.

    KernelUnit dims are dropped from the front, as verified.
    """
    kept: list[int] = []
    place = 0
    for d, extent in enumerate(extents):
        left, wanted = len(extents) - d, len(small) - place
        if (
            place < len(small)
            and extent == small[place]
            and (extent != 1 or left == wanted or _fits(extents[d + 1 :], small[place + 1 :]))
        ):
            kept.append(d)
            place += 1
    return kept


def _fits(extents: list[int], small: list[int]) -> bool:
    """Tell whether dropping ones from `extents` gives `small`."""
    return [e for e in extents if e != 1] == [e for e in small if e != 1] and len(extents) >= len(
        small
    )


def _concat(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of concat: each place of the result reads its own of every operand, of which one has it."""
    along = op.attributes["dim"].value
    result = op.results[0].type
    factors = [Factor(extent, PARALLEL) for extent in result.shape]
    types = [v.type for v in op.operands]
    row: Dims = tuple((d,) for d in range(len(result.shape)))
    dims: list[Dims | None] = [row] * (len(types) + 1)
    windows, begin = [], 0
    for k, type_ in enumerate(types):
        windows.append((k, along, SlidingWindow(low=-begin)))
        begin += type_.shape[along]
    given = tuple(windows)
    made = _rule(op.name, factors, types, [result], dims, monomials=monomials(op), windows=given)
    few = len(types) <= MOST_PIECES and not any(0 in t.shape for t in types)
    return made if few else made.without_windows()


def _pad(op: ir.Operation, captured: list[Captured]) -> Rule:
    block = op.regions[0].blocks[0]
    if captured or any(True for argument in block.arguments for _ in argument.uses):
        return _whole(op, captured)  # what is padded with depends on the place
    low, high = list(op.attributes["static_low"]), list(op.attributes["static_high"])
    source, result = op.operands[0].type, op.results[0].type
    factors, mine, theirs, windows = [], [], [], []
    for d, n in enumerate(source.shape):
        dynamic, size = DYNAMIC in (low[d], high[d]), result.shape[d]
        factors.append(Factor(n if dynamic else size, WHOLE if dynamic else PARALLEL))
        mine.append((len(factors) - 1,))
        if dynamic:
            factors.append(Factor(size, WHOLE))
        elif low[d] or high[d]:
            windows.append((0, d, SlidingWindow(low=-low[d])))
        theirs.append((len(factors) - 1,))
    types = [v.type for v in op.operands]
    dims: list[Dims | None] = [tuple(mine), *([None] * (len(types) - 1)), tuple(theirs)]
    made = _rule(op.name, factors, types, [result], dims, windows=tuple(windows))
    cuts = 0 in [*source.shape, *result.shape] or min(*low, *high, 0) < 0
    computed = any(len(inner.operation.operands) for inner in list(block.operations)[:-1])
    return made.without_windows() if cuts or computed else made


def _collective(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a collective of the local view, seen along an axis that it does not name: a time axis.

    Dims that it cuts or concatenates must be whole, the others go through.
    """
    source, result = op.operands[0].type, op.results[0].type
    named = [op.attributes.get(n) for n in ("dim", "split_dim", "concat_dim")]
    whole = {a.value for a in named if a is not None}
    factors, mine, theirs = [], [], []
    for d, n in enumerate(source.shape):
        factors.append(Factor(n, WHOLE if d in whole else PARALLEL))
        mine.append((len(factors) - 1,))
        if d in whole:
            factors.append(Factor(result.shape[d], WHOLE))
        theirs.append((len(factors) - 1,))
    return _rule(op.name, factors, [source], [result], [tuple(mine), tuple(theirs)])


READERS: dict[str, Callable[[ir.Operation, list[Captured]], Rule]] = {
    "tensor.expand_shape": _reassociation,
    "tensor.collapse_shape": _reassociation,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
    "tensor.concat": _concat,
    "tensor.pad": _pad,
    "tensor.cast": _aligned_op,
    "hint.place": _aligned_op,
    **{
        f"dist.{row.op}": _collective if row.has_dims else _aligned_op
        for row in ROWS
        if row.is_blockwise
    },
    "tensor.bitcast": _aligned_op,
    SCAN: _scan,
    ORDER: _order,
    SORT: _sort,
    LAPACK: _lapack,
    FFT: _fft,
    SCATTER: _scatter,
    "arith.constant": _whole,
    "arith.*": _aligned_op,
    "math.*": _aligned_op,
}
"""How the rule of an op is read, by its name or its dialect; linalg ops by their maps, all others need whole tensors.
"""
