"""Say what values cost: their bytes, and which are made again for nothing."""

from __future__ import annotations

from meshweave.ir.bindings import ir
from meshweave.ir.build import (
    IteratorType,
    iterator_types,
)
from meshweave.ir.ops import producer
from meshweave.transforms.propagation.bodies import (
    captured_by,
    is_tensor,
)

ITEM_BITS = {"index": 64, "complex<f32>": 64, "complex<f64>": 128}


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


def is_made_free(value: ir.Value) -> bool:
    """Tell whether an op of which `is_free` holds makes `value`."""
    op = producer(value)
    return op is not None and is_free(op)


def counts_places(op: ir.Operation) -> bool:
    """Tell whether `op` makes a tensor of nothing but the places of its elements, such as 0, 1, 2, ..

    What it reads is free, and has the result's dims or none.
    """
    if op.name not in ("linalg.map", "linalg.generic") or len(op.results) != 1:
        return False
    if not all(is_made_free(value) for value in op.operands) or captured_by(op):
        return False
    if op.name == "linalg.map":
        return True
    maps = [ir.AffineMapAttr(a).value for a in op.attributes["indexing_maps"]]
    like = all(not len(each.results) or each == maps[-1] for each in maps)
    return like and IteratorType.REDUCTION not in iterator_types(op)
