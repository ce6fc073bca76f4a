"""Read the rules of structured ops off their indexing maps and bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from meshweave.ir.bindings import ir, linalg
from meshweave.ir.build import (
    IteratorType,
    iterator_types,
)
from meshweave.layout.factors import (
    FOUND,
    JOINED,
    PARALLEL,
    REDUCTION,
    WHOLE,
    Dims,
    Factor,
    Rule,
    SlidingWindow,
)
from meshweave.transforms.propagation.bodies import (
    Captured,
    body_of,
    combiner,
    found_dims,
    found_kind,
    is_tensor,
    lookup,
    monomials,
    selection,
)
from meshweave.transforms.propagation.padding import padding_safe
from meshweave.transforms.propagation.rules.basic import (
    make_rule,
    whole_rule,
)


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


def structured_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of a structured op: loops are factors.

    A dim read at a sum of loops is read through a window: at each place of the parallel one, as far as the others
    reach, which must be whole. So must a loop that runs along two dims of an operand (a diagonal), and all loops of a
    sum with two parallel ones.
    """
    attrs = linalg.get_indexing_maps(op.opview)
    if attrs is None:
        return _softmax(op, captured) if op.name == "linalg.softmax" else whole_rule(op, captured)
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
    return make_rule(
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
    return make_rule(op.name, factors, types, [op.results[0].type], dims, inits=(1,))
