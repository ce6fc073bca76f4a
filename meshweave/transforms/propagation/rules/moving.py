"""Read the rules of ops that move elements: reshapes, slices, pads, concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshweave.ir.bindings import ir
from meshweave.ir.build import (
    DYNAMIC,
    reassociation,
    static_offsets,
    static_sizes,
    static_strides,
)
from meshweave.ir.ops import producer
from meshweave.layout.factors import (
    FOUND,
    PARALLEL,
    PLACED,
    WHOLE,
    Dims,
    Factor,
    Rule,
    SlidingWindow,
)
from meshweave.transforms.propagation.bodies import (
    Captured,
    found_kind,
    monomials,
)
from meshweave.transforms.propagation.rules.basic import (
    make_rule,
    whole_rule,
)

MOST_PIECES = 8  # tensors side by side of which a rank takes each element from one


def reassociation_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
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
    return make_rule(op.name, factors, types, [target], dims, monomials=monomials(op))


def _significant(group: list[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the dims of a group that have more than one element: those of extent 1 do not move any digit."""
    kept = tuple(d for d in group if shape[d] != 1)
    return kept or tuple(group[:1])


def extract_slice_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
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


def insert_slice_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
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
    return make_rule(op.name, factors, types, [result], dims, monomials=monomials(op))


def kept_dims(extents: list[int], small: list[int]) -> list[int]:
    """Return the dims of a slice that its rank-reduced type keeps.

    Unit dims are dropped from the front, as verified.
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


def concat_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
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
    made = make_rule(
        op.name, factors, types, [result], dims, monomials=monomials(op), windows=given
    )
    few = len(types) <= MOST_PIECES and not any(0 in t.shape for t in types)
    return made if few else made.without_windows()


def pad_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Read the rule of pad: each place of the result reads its own of the source, where there is one."""
    block = op.regions[0].blocks[0]
    if captured or any(True for argument in block.arguments for _ in argument.uses):
        return whole_rule(op, captured)  # what is padded with depends on the place
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
    made = make_rule(op.name, factors, types, [result], dims, windows=tuple(windows))
    cuts = 0 in [*source.shape, *result.shape] or min(*low, *high, 0) < 0
    computed = any(len(inner.operation.operands) for inner in list(block.operations)[:-1])
    return made.without_windows() if cuts or computed else made
