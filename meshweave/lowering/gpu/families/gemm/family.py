"""Choose the kernel of a matrix product: tensor cores where element types allow, multiply-adds else."""

from __future__ import annotations

from types import ModuleType

from meshweave.device import CHIPS
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.gemm import few, wgmma
from meshweave.lowering.gpu.families.gemm import fma as gemm_fma
from meshweave.lowering.gpu.families.gemm import mma as gemm_mma
from meshweave.lowering.gpu.families.gemm.results import followers
from meshweave.lowering.gpu.families.launch import MOST_BLOCKS
from meshweave.lowering.gpu.families.products import Contraction, product_of
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.gpu.nodes import SMALL
from meshweave.lowering.nests.rows import KernelUnit

SMALLEST = few.FEW  # rows and columns below which tiles do not pay


def build(unit: KernelUnit, target: Target, facts: Facts) -> DeviceKernel | None:
    """Return the kernel of a unit that is a product, and perhaps something done with each element of it, else None.

    `target.disabled` may name "gemm_tf32", "gemm_wgmma", "gemm_mma", "gemm_fma" and "gemm_rows".
    """
    product = product_of(unit.nests[0])
    if product is None or followers(unit, product) is None:
        return None
    family = _family(product, target)
    if family is gemm_mma and wgmma.suits(product, target, facts):
        family = wgmma
    return family.build(unit, product, target, facts) if family else None


def halves(unit: KernelUnit, target: Target, facts: Facts) -> list[tuple[KernelUnit, Facts]] | None:
    """Return the two launches of a product whose depth is cut in pieces; None for a unit that is one launch."""
    product = product_of(unit.nests[0])
    if product is None or followers(unit, product) is None:
        return None
    return few.parts_of(unit, product, facts) if _family(product, target) is few else None


def computes(unit: KernelUnit, target: Target) -> bool:
    """Tell whether the contraction of a unit is for one of our kernels."""
    product = product_of(unit.nests[0])
    return product is not None and _family(product, target.within(unit.nests)) is not None


def _family(product: Contraction, target: Target) -> ModuleType | None:
    """Return the file whose kernel computes a product; None where none does."""
    if _too_large(product):
        return None
    if min(product.m.count, product.n.count) < SMALLEST:
        return few if few.FAMILY not in target.disabled and few.sides(product) else None
    small = product.dtype in SMALL
    has_cores = CHIPS[target.chip].tensor_cores
    if (small and has_cores and "gemm_mma" not in target.disabled) or target.rounds(product.dtype):
        return gemm_mma
    return None if small or "gemm_fma" in target.disabled else gemm_fma


def _too_large(product: Contraction) -> bool:
    """Tell whether an index would not fit in an i32, or the blocks in a grid."""
    indices = (product.m.count, product.n.count, product.depth)
    return (
        max(indices) > 1 << 30
        or product.batch.count * product.m.count * product.n.count >> 10 > MOST_BLOCKS
    )
