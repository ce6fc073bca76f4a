"""What each op does with its dims: one Rule per op, read off indexing maps where there are any.

`RuleTable.rule(op)` answers with the number of the op's rule; ops alike in name, maps and types share one, so most of a
deep model costs a dictionary lookup an op. An op that nobody knows needs all its operands whole.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from meshweave.bindings import ir, linalg
from meshweave.layout.factors import PARALLEL, REDUCTION, WHOLE, Dims, Factor, Rule
from meshweave.transforms.bodies import (
    UNSAFE_ON_PADDING,
    Captured,
    body_key,
    captured_by,
    combiner,
    is_tensor,
    monomials,
    padding_safe,
)

KNOWN_WHOLE = (
    "arith.constant",
    "tensor.extract",
    "tensor.dim",
    "tensor.from_elements",
    "tensor.generate",
)
"""Ops that are known to need whole tensors, or to make them: no remark about these."""
ITEM_BITS = {"index": 64, "complex<f32>": 64, "complex<f64>": 128}


@dataclass
class RuleTable:
    """Rules by number, and the numbers by what the rules were read from."""

    rules: list[Rule] = field(default_factory=list)
    unknown: list[Any] = field(default_factory=list)
    _numbers: dict[Any, int] = field(default_factory=dict)
    _bodies: dict[Any, tuple[Any, ...]] = field(default_factory=dict)

    def rule(self, op: Any) -> tuple[int, list[Captured]]:
        """The number of the rule of `op`, and what it reads in its body besides its operands."""
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
        self, op: Any, read: Callable[..., Rule], body: tuple[Any, ...] | None
    ) -> tuple[Any, ...]:
        """What else the rule depends on: maps and body of linalg ops, the static attributes of the others."""
        if read is _linalg:
            maps = linalg.get_indexing_maps(op.opview)
            types = op.attributes["iterator_types"] if op.name == "linalg.generic" else None
            if maps is not None:
                return (tuple(maps), types, self._traits(op, types, body))
        if read is _aligned_op:
            return ()
        return tuple([op.attributes[name] for name in op.attributes if name != "dist.layouts"])

    def _traits(self, op: Any, types: Any, body: tuple[Any, ...] | None) -> tuple[Any, ...]:
        """How the body reduces, whether padding harms it, what it is linear in: read once for bodies that are alike."""
        if body is None:
            return (combiner(op), padding_safe(op), monomials(op))
        result = op.results[0].type if len(op.results) else None
        key = (op.name, result, types, len(op.operands), body)
        if key not in self._bodies:
            self._bodies[key] = (combiner(op), padding_safe(op), monomials(op))
        return self._bodies[key]

    def holding(self, number: int, held: tuple[tuple[int, tuple[str, ...]], ...]) -> int:
        """The number of rule `number` with `held`."""
        key = (number, held)
        if key not in self._numbers:
            self._numbers[key] = self.add(replace(self.rules[number], held=held))
        return self._numbers[key]

    def add(self, rule: Rule) -> int:
        """A rule that belongs to no op (a value that enters a region, say); its number."""
        self.rules.append(rule)
        return len(self.rules) - 1

    def identity(self, type_: Any) -> int:
        """The rule of a value that is passed on: into a region, out of it, to a caller."""
        key = ("identity", type_)
        if key not in self._numbers:
            self._numbers[key] = self.add(_aligned("pass", [type_], [type_]))
        return self._numbers[key]


def is_free(op: Any) -> bool:
    """Does `op` make a value that costs nothing to make anew in any layout: an empty tensor, a fill, a splat?"""
    name = op.name
    if name in ("tensor.empty", "tensor.splat", "linalg.fill"):
        return True
    if name == "arith.constant":
        value = op.attributes["value"]
        return isinstance(value, ir.DenseElementsAttr) and value.is_splat
    return False


def _family(name: str) -> str:
    return name.split(".", 1)[0] + ".*"


def item_bytes(element: Any) -> int:
    """Bytes of one element in memory: at least one, i1 too."""
    bits = ITEM_BITS.get(str(element)) or getattr(element, "width", 64)
    return max(int(bits) // 8, 1)


def _nbytes(type_: Any) -> int:
    if not is_tensor(type_):
        return 0
    count = item_bytes(type_.element_type)
    for extent in type_.shape:
        count *= max(extent, 1)
    return count


def _rule(
    name: str,
    factors: list[Factor],
    operands: list[Any],
    results: list[Any],
    dims: list[Dims | None],
    **more: Any,
) -> Rule:
    """A Rule whose sizes and bytes come from the types; dims: for each operand, then each result."""
    types = operands + results
    return Rule(
        tuple(factors),
        tuple(dims[: len(operands)]),
        tuple(dims[len(operands) :]),
        tuple([tuple(t.shape) if d is not None else None for t, d in zip(types, dims)]),
        tuple([_nbytes(t) for t in types]),
        name=name,
        **more,
    )


def _aligned(name: str, operands: list[Any], results: list[Any], safe: bool = True) -> Rule:
    """All tensors have one shape, and dim d of each is factor d."""
    shape = next((t.shape for t in results + operands if is_tensor(t)), [])
    factors = [Factor(extent) for extent in shape]
    dims: list[Dims | None] = [
        tuple((d,) for d in range(len(factors))) if is_tensor(t) else None
        for t in operands + results
    ]
    return _rule(name, factors, operands, results, dims, padding_safe=safe)


def _aligned_op(op: Any, captured: list[Captured]) -> Rule:
    types = [v.type for v in op.operands]
    results = [v.type for v in op.results]
    shapes = {tuple(t.shape) for t in types + results if is_tensor(t)}
    if len(shapes) > 1:
        return _whole(op, captured)
    safe = not op.name.startswith(UNSAFE_ON_PADDING)
    return replace(_aligned(op.name, types, results, safe), monomials=monomials(op))


def _whole(op: Any, captured: list[Captured]) -> Rule:
    """Every dim of every tensor must be whole."""
    operands = [v.type for v in [*op.operands, *[c.value for c in captured]]]
    results = [v.type for v in op.results]
    factors: list[Factor] = []
    dims = [_own_dims(t, factors, WHOLE) for t in operands + results]
    return _rule(op.name, factors, operands, results, dims, padding_safe=False)


def _own_dims(type_: Any, factors: list[Factor], kind: str) -> Dims | None:
    """A new factor for each dim of the type."""
    if not is_tensor(type_):
        return None
    first = len(factors)
    factors.extend(Factor(extent, kind) for extent in type_.shape)
    return tuple((first + d,) for d in range(len(type_.shape)))


def _linalg(op: Any, captured: list[Captured]) -> Rule:
    """Structured ops: loops are factors; a dim read at a sum of loops (a window) must be whole, and so must these
    loops, and one that runs along two dims of an operand (a diagonal).
    """
    attrs = linalg.get_indexing_maps(op.opview)
    if attrs is None:
        return _softmax(op, captured) if op.name == "linalg.softmax" else _whole(op, captured)
    maps = [a.value for a in attrs]
    operands = [v.type for v in op.operands]
    results = [v.type for v in op.results]
    n_inits = len(results)
    kinds = _loop_kinds(op, maps, n_inits)
    kind = combiner(op)
    sizes = [1] * len(kinds)
    for type_, map_ in zip(operands, maps):
        seen: set[int] = set()
        for extent, e in zip(getattr(type_, "shape", ()), map_.results):
            if isinstance(e, ir.AffineDimExpr):
                if e.position in seen:  # a diagonal: one loop is two dims
                    kinds[e.position] = WHOLE
                seen.add(e.position)
                sizes[e.position] = extent
            else:
                for position in _positions(e):
                    kinds[position] = WHOLE
    if kind is None:
        kinds = [WHOLE if k == REDUCTION else k for k in kinds]
    factors = [Factor(size, k) for size, k in zip(sizes, kinds)]
    dims: list[Dims | None] = []
    for type_, map_ in zip(operands, maps):
        dims.append(_mapped(type_, map_, factors))
    dims += [_read_at(c, factors) for c in captured]
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
        padding_safe=padding_safe(op),
        monomials=monomials(op),
    )


def _mapped(type_: Any, map_: Any, factors: list[Factor]) -> Dims | None:
    if not is_tensor(type_):
        return None
    dims = []
    for extent, e in zip(type_.shape, map_.results):
        if isinstance(e, ir.AffineDimExpr):
            dims.append((e.position,))
        else:  # a constant or a window: this dim stands for itself
            factors.append(Factor(extent, WHOLE))
            dims.append((len(factors) - 1,))
    return tuple(dims)


def _read_at(captured: Captured, factors: list[Factor]) -> Dims:
    """A dim read at a loop's index is that loop, where their extents agree and no dim before it is."""
    dims: list[tuple[int, ...]] = []
    for extent, loop in zip(captured.value.type.shape, captured.loops):
        if loop is not None and factors[loop].size == extent and (loop,) not in dims:
            dims.append((loop,))
        else:
            factors.append(Factor(extent, WHOLE))
            dims.append((len(factors) - 1,))
    return tuple(dims)


def _positions(expr: Any) -> list[int]:
    if isinstance(expr, ir.AffineDimExpr):
        return [expr.position]
    if isinstance(expr, ir.AffineConstantExpr):
        return []
    return _positions(expr.lhs) + _positions(expr.rhs)


def _loop_kinds(op: Any, maps: list[Any], n_outputs: int) -> list[str]:
    outputs = maps[len(maps) - max(1, n_outputs) :]
    written = [{e.position for e in m.results if isinstance(e, ir.AffineDimExpr)} for m in outputs]
    in_all, in_any = set.intersection(*written), set.union(*written)
    declared = None
    if op.name == "linalg.generic":
        declared = ["parallel" in str(a) for a in op.attributes["iterator_types"]]
    kinds = []
    for d in range(maps[0].n_dims):
        if d in in_all:
            kinds.append(PARALLEL if declared is None or declared[d] else WHOLE)
        else:
            kinds.append(WHOLE if d in in_any else REDUCTION)
    return kinds


def _softmax(op: Any, captured: list[Captured]) -> Rule:
    shape = op.results[0].type.shape
    along = op.attributes["dimension"].value
    factors = [Factor(extent, WHOLE if d == along else PARALLEL) for d, extent in enumerate(shape)]
    types = [v.type for v in op.operands]
    dims: list[Dims | None] = [tuple((d,) for d in range(len(shape)))] * (len(types) + 1)
    return _rule(op.name, factors, types, [op.results[0].type], dims, inits=(1,))


def _reassociation(op: Any, captured: list[Captured]) -> Rule:
    """expand_shape, collapse_shape: a group of dims on one side is one dim on the other."""
    groups = [[i.value for i in group] for group in op.attributes["reassociation"]]
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


def _significant(group: list[int], shape: Any) -> tuple[int, ...]:
    """The dims of a group that have more than one element: those of extent 1 do not move any digit."""
    kept = tuple(d for d in group if shape[d] != 1)
    return kept or tuple(group[:1])


def _extract_slice(op: Any, captured: list[Captured]) -> Rule:
    return _slice_like(
        op, op.operands[0].type, op.results[0].type, [op.operands[0].type], op.results[0].type
    )


def _insert_slice(op: Any, captured: list[Captured]) -> Rule:
    return _slice_like(
        op,
        op.operands[1].type,
        op.operands[0].type,
        [op.operands[0].type, op.operands[1].type],
        op.results[0].type,
    )


def _slice_like(op: Any, large: Any, small: Any, tensors: list[Any], result: Any) -> Rule:
    """A dim that the slice takes in full, and keeps, is one factor of both tensors; any other must be whole on each
    side (also one of extent 1 that is dropped: some ranks would have nothing but its padding)."""
    extents = list(op.attributes["static_sizes"])
    offsets = list(op.attributes["static_offsets"])
    strides = list(op.attributes["static_strides"])
    kept = _kept_dims(extents, list(small.shape))
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
    types = [v.type for v in op.operands]
    dims: list[Dims | None] = [None] * len(types)
    if len(tensors) == 1:
        dims[0] = large_dims
        dims.append(tuple(small_dims))
    else:
        dims[0], dims[1] = tuple(small_dims), large_dims
        dims.append(large_dims)
    return _rule(op.name, factors, types, [result], dims, monomials=monomials(op))


def _kept_dims(extents: list[int], small: list[int]) -> list[int]:
    """The dims of a slice that its rank-reduced type keeps; unit dims are dropped from the front, as verified."""
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
    """Can `small` be had from `extents` by dropping ones?"""
    return [e for e in extents if e != 1] == [e for e in small if e != 1] and len(extents) >= len(
        small
    )


def _concat(op: Any, captured: list[Captured]) -> Rule:
    along = op.attributes["dim"].value
    result = op.results[0].type
    factors = [Factor(extent, PARALLEL) for extent in result.shape]
    types = [v.type for v in op.operands]
    dims: list[Dims | None] = []
    for type_ in [*types, result]:
        row = [(d,) for d in range(len(result.shape))]
        factors.append(Factor(type_.shape[along], WHOLE))
        row[along] = (len(factors) - 1,)
        dims.append(tuple(row))
    return _rule(op.name, factors, types, [result], dims, monomials=monomials(op))


def _pad(op: Any, captured: list[Captured]) -> Rule:
    block = op.regions[0].blocks[0]
    if captured or any(True for argument in block.arguments for _ in argument.uses):
        return _whole(op, captured)  # what is padded with depends on the place
    low, high = list(op.attributes["static_low"]), list(op.attributes["static_high"])
    source, result = op.operands[0].type, op.results[0].type
    factors, mine, theirs = [], [], []
    for d, n in enumerate(source.shape):
        whole = low[d] == 0 and high[d] == 0
        factors.append(Factor(n, PARALLEL if whole else WHOLE))
        mine.append((len(factors) - 1,))
        if not whole:
            factors.append(Factor(result.shape[d], WHOLE))
        theirs.append((len(factors) - 1,))
    types = [v.type for v in op.operands]
    dims: list[Dims | None] = [tuple(mine), *([None] * (len(types) - 1)), tuple(theirs)]
    return _rule(op.name, factors, types, [result], dims)


def _collective(op: Any, captured: list[Captured]) -> Rule:
    """A collective of the local view, seen along an axis that it does not name: a time axis. Dims that it cuts or joins
    must be whole, the others go through."""
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


READERS: dict[str, Callable[[Any, list[Captured]], Rule]] = {
    "tensor.expand_shape": _reassociation,
    "tensor.collapse_shape": _reassociation,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
    "tensor.concat": _concat,
    "tensor.pad": _pad,
    "tensor.cast": _aligned_op,
    "hint.place": _aligned_op,
    "dist.all_reduce": _aligned_op,
    "dist.permute": _aligned_op,
    "dist.all_gather": _collective,
    "dist.all_slice": _collective,
    "dist.all_to_all": _collective,
    "dist.reduce_scatter": _collective,
    "tensor.bitcast": _aligned_op,
    "arith.constant": _whole,
    "arith.*": _aligned_op,
    "math.*": _aligned_op,
}
"""How the rule of an op is read, by its name or its dialect; linalg ops by their maps, all others need whole tensors.
"""
