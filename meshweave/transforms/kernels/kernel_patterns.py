"""Classify linalg ops as far as kernels need it: their element type, products of matrices, softmax."""

from __future__ import annotations

from collections.abc import Iterator

from meshweave.ir.bindings import ir, linalg
from meshweave.transforms.base import walk

FALLING = "mw.falling"
"""Attribute of a math.exp whose argument is at most 0, or NaN."""
_NOT_COMPUTING = ("linalg.yield", "linalg.index")


def linalg_ops(root: ir.Operation) -> Iterator[ir.Operation]:
    """Yield the linalg ops below `root` that compute a tensor, in program order."""
    for op in walk(root):
        if op.name.startswith("linalg.") and op.name not in _NOT_COMPUTING and len(op.results):
            yield op


def element_of(op: ir.Operation) -> str:
    """Return the element type that decides the kernel: of an operand that is no float, else of its result."""
    types = [v.type for v in (*op.operands, *op.results)]
    elements = [str(t.element_type) for t in types if isinstance(t, ir.RankedTensorType)]
    return next((e for e in elements if e not in ("f32", "f64")), elements[-1])


def is_product(op: ir.Operation) -> bool:
    """Tell whether an op is a matrix product, in any order of dims.

    It adds up products of two tensors, each of which is read more than once.
    """
    if len(op.operands) != 3 or len(op.results) != 1 or not len(op.regions):
        return False
    if not len(op.regions[0].blocks) or not _multiplies_and_adds(op.regions[0].blocks[0]):
        return False
    maps = linalg.get_indexing_maps(op.opview)
    if maps is None:
        return False
    used = [_loops(attr) for attr in maps]
    if any(u is None for u in used):
        return False
    sizes: dict[int, int] = {}
    for value, loops in zip(op.operands, used):
        if not isinstance(value.type, ir.RankedTensorType):
            return False
        sizes |= {d: n for d, n in zip(loops or (), value.type.shape) if d is not None}
    real = {d for d, n in sizes.items() if n != 1}
    return all(real - set(loops or ()) for loops in used)


def _loops(attr: ir.Attribute) -> tuple[int | None, ...] | None:
    """Return for each dim of an operand its loop, None for a number. None where a dim runs with more than one."""
    found: list[int | None] = []
    map_ = attr.value if isinstance(attr, ir.AffineMapAttr) else attr
    for expr in map_.results:
        if isinstance(expr, ir.AffineDimExpr):
            found.append(expr.position)
        elif isinstance(expr, ir.AffineConstantExpr):
            found.append(None)
        else:
            return None
    return tuple(found)


_PRODUCTS = {"arith.mulf": "arith.addf", "arith.muli": "arith.addi", "arith.andi": "arith.ori"}
_WIDENING = ("arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")


def _multiplies_and_adds(block: ir.Block) -> bool:
    """Tell whether the body is out + a * b, a and b perhaps widened first."""
    ops = [o for view in block.operations if (o := view.operation).name not in _WIDENING]
    if len(ops) != 3 or _PRODUCTS.get(ops[0].name) != ops[1].name:
        return False
    out = list(block.arguments)[-1]
    return set(ops[1].operands) == {out, ops[0].results[0]} and out not in list(ops[0].operands)


def has_softmax(root: ir.Operation) -> bool:
    """Tell whether there is an exp of a tensor, or a softmax."""
    return any(op.name in ("math.exp", "linalg.exp", "linalg.softmax") for op in walk(root))
