"""Find units that are products for cuBLASLt: plain matrices, batches at equal distances."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from meshweave.device import CHIPS, GemmInfo
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.gemm.results import converts
from meshweave.lowering.gpu.families.products import LoopGroup, product_of, starts_from
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.nests.bind import Access, Store
from meshweave.lowering.nests.rows import KernelUnit

NAME = "cublaslt"  # as it stands in `Target.disabled`
SMALLEST = 8  # rows or columns below which a kernel of ours does it


@dataclass(frozen=True)
class LibraryProduct:
    """Describe a unit as a call of the library: its constants, and the numbers of the pointers to A, B and D."""

    info: GemmInfo
    a: int
    b: int
    d: int


def library_product(
    unit: KernelUnit, target: Target, facts: Facts | None = None
) -> LibraryProduct | None:
    """Return the product that a unit is; None where the library is switched off, or cannot do it.

    facts: of its memory; None: nothing is known. A second nest may round the result to the type of
    A and B, if nobody reads the result itself afterwards.
    """
    target = target.within(unit.nests)
    if NAME in target.disabled or not unit.nests[0].library:
        return None
    product = product_of(unit.nests[0])
    store = _stored(unit, facts.dead if facts else ())
    if product is None or store is None or str(store.type) not in (product.dtype, product.result):
        return None
    begins = starts_from(product)
    if begins == "value" or (begins == "held" and len(unit.nests) > 1):
        return None
    if product.dtype == "bf16" and not CHIPS[target.chip].tensor_cores:
        return None
    a, b, d = product.a.access, product.b.access, store.access
    if min(product.m.count, product.n.count) < SMALLEST:
        return None
    m = _one(product.m, (a, d))
    n = _one(product.n, (b, d))
    batch = _one(product.batch, (a, b, d))
    if m is None or n is None or batch is None or len(product.k) != 1 or n[1][1] != 1:
        return None
    ((rows, (down_a, down_d)), (columns, (across_b, _))) = m, n
    (depth,), (along_a,), (along_b,) = product.k, product.a.steps, product.b.steps
    count, (stride_a, stride_b, stride_d) = batch
    left = _matrix(rows, depth, down_a, along_a)
    right = _matrix(depth, columns, along_b, across_b)
    if left is None or right is None or down_d < columns:
        return None
    info = GemmInfo(
        dtype=product.dtype,
        m=rows,
        n=columns,
        k=depth,
        lda=left[1],
        ldb=right[1],
        ldd=down_d,
        transpose_a=left[0],
        transpose_b=right[0],
        batch=count,
        stride_a=stride_a,
        stride_b=stride_b,
        stride_d=stride_d,
        accumulate=begins == "held",
        compute="tf32" if target.rounds(product.dtype) else "f32",
        result="" if str(store.type) == product.dtype else str(store.type),
        alignment=min(facts.alignments[x.pointer] for x in (a, b, d)) if facts else 1,
    )
    return LibraryProduct(info, a.pointer, b.pointer, d.pointer)


def _stored(unit: KernelUnit, dead: Collection[int]) -> Store | None:
    """Return where the unit leaves its result; None where it leaves several, or does more than round."""
    first, *rest = unit.nests
    if not rest:
        return first.stores[0]
    over = first.stores[0].access.pointer
    if len(rest) > 1 or over not in dead or not converts(rest[0], first):
        return None
    return rest[0].stores[0] if len(rest[0].sizes) == unit.rows else None


def _one(loops: LoopGroup, accesses: Sequence[Access]) -> tuple[int, tuple[int, ...]] | None:
    """Treat loops as one: iterations, and the step of each access; None where they do not walk as one."""
    count, steps = 1, tuple(0 for _ in accesses)
    for dim, size in zip(reversed(loops.dims), reversed(loops.sizes)):
        here = tuple(access.strides[dim] for access in accesses)
        if count == 1:
            count, steps = size, here
        elif here == tuple(step * count for step in steps):
            count *= size
        else:
            return None
    return (count, steps) if all(step >= 0 for step in steps) else None


def _matrix(rows: int, columns: int, down: int, across: int) -> tuple[bool, int] | None:
    """Return (transposed, elements between lines) of a matrix; None when neither direction has step 1."""
    if across == 1 and down >= columns:
        return False, down
    if down == 1 and across >= rows:
        return True, across
    return None
