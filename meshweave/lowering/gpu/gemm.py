"""Products of matrices: by tensor cores where element types allow, by multiply-adds else."""

from __future__ import annotations

from types import ModuleType

from meshweave.lowering.gpu import gemm_fma, gemm_mma
from meshweave.lowering.gpu.facts import Facts, facts_of
from meshweave.lowering.gpu.gemm_results import followers
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.products import Product, product_of
from meshweave.lowering.rows import Unit

SMALLEST = 8  # rows and columns below which a product is no more than a few sums
MOST_BLOCKS = (1 << 31) - 1


def build(unit: Unit, target: Target, facts: Facts | None = None) -> DeviceKernel | None:
    """The kernel of a unit that is a product, and perhaps something done with each element of it;
    None for any other. `target.disabled` may name "gemm_tf32", "gemm_mma" and "gemm_fma".
    """
    product = product_of(unit.nests[0])
    if product is None or followers(unit, product) is None:
        return None
    family = _family(product, target)
    return family.build(unit, product, target, facts or facts_of(unit)) if family else None


def computes(unit: Unit, target: Target) -> bool:
    """Whether the contraction of a unit is for one of our kernels."""
    product = product_of(unit.nests[0])
    return product is not None and _family(product, target.within(unit.nests)) is not None


def _family(product: Product, target: Target) -> ModuleType | None:
    """The file whose kernel computes a product; None: none does."""
    if min(product.m.count, product.n.count) < SMALLEST or _too_large(product):
        return None
    if product.dtype in ("f16", "bf16") and "gemm_mma" not in target.disabled:
        return gemm_mma
    if product.dtype == "f32" and target.tf32 and "gemm_tf32" not in target.disabled:
        return gemm_mma
    if product.dtype in ("f32", "f64") and "gemm_fma" not in target.disabled:
        return gemm_fma
    return None


def _too_large(product: Product) -> bool:
    """Whether an index would not fit in an i32, or the blocks in a grid."""
    indices = (product.m.count, product.n.count, product.depth)
    return (
        max(indices) > 1 << 30
        or product.batch.count * product.m.count * product.n.count >> 10 > MOST_BLOCKS
    )
