"""Tell which tensors of StableHLO count 0, 1, 2, ... along one of their dims, in turn or in the order of a sort."""

from typing import Any

import numpy as np

from meshweave.ir.bindings import ir
from meshweave.ir.ops import producer
from meshweave.ir.sorting import are_places


def counted_dim(value: ir.Value) -> int | None:
    """Return the dim along which the elements of an integer tensor are their own index; None where there is none."""
    op = producer(value)
    return None if op is None or op.name not in _COUNTED else _COUNTED[op.name](op)


def _iota(op: ir.Operation) -> int | None:
    return int(op.attributes["iota_dimension"].value)


def _constant(op: ir.Operation) -> int | None:
    """Read numbers that are written out."""
    if not isinstance(op.results[0].type.element_type, ir.IntegerType):
        return None  # the bindings cannot read all others
    value = op.attributes["value"]
    if not isinstance(value, ir.DenseIntElementsAttr) or value.is_splat:
        return None
    shape = list(op.results[0].type.shape)
    held = np.array([int(n) for n in value]).reshape(shape)
    found = [d for d, n in enumerate(shape) if n > 1 and np.array_equal(held, _along(shape, d))]
    return found[0] if found else None


def _along(shape: list[int], dim: int) -> np.ndarray[Any, Any]:
    """Return the index along a dim, for each element."""
    counted: np.ndarray[Any, Any] = np.indices(shape)[dim]
    return counted


def _broadcast(op: ir.Operation) -> int | None:
    """Read a tensor that is repeated along new dims."""
    dim = counted_dim(op.operands[0])
    if dim is None:
        return None
    to = int(list(op.attributes["broadcast_dimensions"])[dim])
    same = op.operands[0].type.shape[dim] == op.results[0].type.shape[to]
    return to if same else None


def _reshape(op: ir.Operation) -> int | None:
    """Read a tensor that dims of one element come to, or leave."""
    dim, shapes = (
        counted_dim(op.operands[0]),
        [v.type.shape for v in (op.operands[0], op.results[0])],
    )
    if dim is None or shapes[0][dim] == 1:
        return None
    before, after = ([d for d, n in enumerate(shape) if n != 1] for shape in shapes)
    if [shapes[0][d] for d in before] != [shapes[1][d] for d in after]:
        return None
    return after[before.index(dim)]


def _converted(op: ir.Operation) -> int | None:
    """Read numbers of another type, which must hold them."""
    kind, dim = op.results[0].type.element_type, counted_dim(op.operands[0])
    if dim is None or not isinstance(kind, ir.IntegerType):
        return None
    return dim if op.results[0].type.shape[dim] <= 1 << (kind.width - 1) else None


def _wrapped(op: ir.Operation) -> int | None:
    """Read what counts, written as an index that may count from the end."""
    rest = _unwrapped(op)
    return None if rest is None else counted_dim(rest)


def _unwrapped(select: ir.Operation) -> ir.Value | None:
    """Return the x of `x < 0 ? .. : x`, as indices are written that may count from the end: it is x where none does."""
    test, _, rest = select.operands
    made = producer(test)
    if made is None or made.name != "stablehlo.compare":
        return None
    direction, (one, other) = str(made.attributes["comparison_direction"]), made.operands
    zero = other if "LT" in direction and one == rest else one
    known = zero != one or ("GT" in direction and other == rest)
    return rest if known and _is_zero(zero) else None


def _is_zero(value: ir.Value) -> bool:
    """Tell whether a tensor is 0 everywhere."""
    op = producer(value)
    while op is not None and op.name in ("stablehlo.broadcast_in_dim", "stablehlo.convert"):
        op = producer(op.operands[0])
    if op is None or op.name != "stablehlo.constant":
        return False
    held = op.attributes["value"]
    splat = isinstance(held, ir.DenseIntElementsAttr) and held.is_splat
    return splat and int(held.get_splat_value().value) == 0


def sorted_places(indices: ir.Value, dim: int) -> ir.Value | None:
    """Return all places along `dim` in the order of a sort, of which `indices` holds each as a vector of its own."""
    shape, value = list(indices.type.shape), indices
    if not shape or shape[-1] != 1:
        return None
    while (made := producer(value)) is not None:
        if are_places(value, dim):
            return value if list(value.type.shape) == shape[:-1] else None
        if made.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
            if list(made.operands[0].type.shape) != shape[:-1]:
                return None
            kept = list(range(len(shape) - 1))
            said = made.attributes.get("broadcast_dimensions")
            if said is not None and list(said) != kept:
                return None
        elif made.name == "stablehlo.select":
            rest = _unwrapped(made)
            if rest is None:
                return None
            value = rest
            continue
        elif made.name != "stablehlo.convert" or not _holds(made, dim):
            return None
        value = made.operands[0]
    return None


def _holds(convert: ir.Operation, dim: int) -> bool:
    """Tell whether integers of another type hold all places along `dim`."""
    (given,), (made,) = [v.type for v in convert.operands], [v.type for v in convert.results]
    kinds = given.element_type, made.element_type
    return all(isinstance(k, ir.IntegerType) for k in kinds) and (
        given.shape[dim] <= 1 << (made.element_type.width - 1)
    )


_COUNTED = {
    "stablehlo.iota": _iota,
    "stablehlo.constant": _constant,
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.convert": _converted,
    "stablehlo.select": _wrapped,
}
"""How each op is read that may make such a tensor."""
