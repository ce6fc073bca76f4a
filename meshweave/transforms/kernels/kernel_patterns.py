"""Classify linalg ops as far as kernels need it: their element type, products of matrices, softmax."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from meshweave.ir.bindings import ir, linalg
from meshweave.ir.routines import LAPACK
from meshweave.transforms.base import walk

FALLING = "mw.falling"
"""Attribute of a math.exp whose argument is at most 0, or NaN."""
_NOT_COMPUTING = ("linalg.yield", "linalg.index")


def linalg_ops(root: ir.Operation) -> Iterator[ir.Operation]:
    """Yield the linalg ops below `root` that compute a tensor, and calls of LAPACK, in program order."""
    for op in walk(root):
        computing = op.name.startswith("linalg.") and op.name not in _NOT_COMPUTING
        if (computing or op.name == LAPACK) and len(op.results):
            yield op


def element_of(op: ir.Operation) -> str:
    """Return the element type that decides the kernel: of an operand that is no float, else of its result."""
    element: ir.Type | None = None
    for value in (*op.operands, *op.results):
        if isinstance(type_ := value.type, ir.RankedTensorType):
            element = type_.element_type
            if not isinstance(element, ir.F32Type | ir.F64Type):
                break
    return str(element)


def is_product(op: ir.Operation) -> bool:
    """Tell whether an op is a matrix product, in any order of dims.

    It adds up products of two tensors, each of which is read more than once.
    """
    read = _reads(op)
    if read is None or any(loops is None for loops in read.operands):
        return False
    return all(read.real - set(loops or ()) for loops in read.operands)


def is_convolution(op: ir.Operation) -> bool:
    """Tell whether an op adds up products of two tensors, and walks a dim of one of them with several loops."""
    read = _reads(op)
    return read is not None and any(loops is None for loops in read.operands)


class _Reads(NamedTuple):
    """Hold the loops that run more than once, and those of each operand; None for one with a dim that several walk."""

    real: frozenset[int]
    operands: tuple[frozenset[int] | None, ...]


def _reads(op: ir.Operation) -> _Reads | None:
    """Return how an op that adds up products of two tensors reads them; None for any other op."""
    if len(op.operands) != 3 or len(op.results) != 1 or not len(op.regions):
        return None
    if not len(op.regions[0].blocks) or not _multiplies_and_adds(op.regions[0].blocks[0]):
        return None
    maps = linalg.get_indexing_maps(op.opview)
    if maps is None or not all(isinstance(v.type, ir.RankedTensorType) for v in op.operands):
        return None
    dims = [_dims(attr) for attr in maps]
    sizes = {
        expr.position: size
        for value, exprs in zip(op.operands, dims)
        for expr, size in zip(exprs, value.type.shape)
        if isinstance(expr, ir.AffineDimExpr)
    }
    real = frozenset(d for d, size in sizes.items() if size != 1)
    return _Reads(real, tuple(_loops(exprs, real) for exprs in dims))


def _dims(attr: ir.Attribute) -> list[ir.AffineExpr]:
    return list((attr.value if isinstance(attr, ir.AffineMapAttr) else attr).results)


def _loops(exprs: Sequence[ir.AffineExpr], real: frozenset[int]) -> frozenset[int] | None:
    """Return the loops in `real` that walk an operand. None where several walk a dim, or one does in longer steps."""
    found: set[int] = set()
    for expr in exprs:
        terms = [term for term in _terms(expr) if _walked(term, real)]
        if len(terms) > 1 or not all(isinstance(term, ir.AffineDimExpr) for term in terms):
            return None
        found |= {term.position for term in terms}
    return frozenset(found)


def _terms(expr: ir.AffineExpr) -> list[ir.AffineExpr]:
    if isinstance(expr, ir.AffineAddExpr):
        return [*_terms(expr.lhs), *_terms(expr.rhs)]
    return [expr]


def _walked(expr: ir.AffineExpr, real: frozenset[int]) -> bool:
    """Tell whether one of these loops is in an expression."""
    if isinstance(expr, ir.AffineDimExpr):
        return expr.position in real
    if isinstance(expr, ir.AffineBinaryExpr):
        return _walked(expr.lhs, real) or _walked(expr.rhs, real)
    return False


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
