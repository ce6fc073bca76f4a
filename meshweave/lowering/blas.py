"""Contractions to the library's GEMM: which loops are rows, columns and depth, which remain around
the call.

Each matrix is its pointer, the step between rows and the step between columns; one of the two must
be 1. Loops over rows (columns, depth) that walk both their matrices as one loop are merged first,
so that `4x64x128 @ 128x384` is one call with 256 rows. Loops that no GEMM covers stand around it; a
leftover depth loop accumulates.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshweave.lowering.bind import Access, Nest, merged, reordered
from meshweave.lowering.rows import Unit
from meshweave.lowering.text import Text

SYMBOLS = {"f32": "scipy_cblas_sgemm", "f64": "scipy_cblas_dgemm"}
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
SMALLEST = 512  # multiplications below which loops are as fast as a call


@dataclass(frozen=True)
class Gemm:
    """One GEMM in loops. m, n, k: loop numbers, -1 for a loop of 1; a, b, c as in C = A B."""

    nest: Nest
    m: int
    n: int
    k: int
    a: Access
    b: Access
    c: Access
    dtype: str

    def size(self, dim: int) -> int:
        """Trip count of a loop."""
        return 1 if dim < 0 else self.nest.sizes[dim]

    @property
    def work(self) -> int:
        """Multiplications of one call."""
        return self.size(self.m) * self.size(self.n) * self.size(self.k)


def gemm_of(nest: Nest) -> Gemm | None:
    """The GEMM that a contraction is, or None when loops serve it better or its strides do not
    allow one.
    """
    best = product_of(nest) if nest.library else None
    if best is None or best.work < SMALLEST or min(best.size(best.m), best.size(best.n)) == 1:
        return None
    return best


def product_of(nest: Nest) -> Gemm | None:
    """The product of two matrices that a contraction is, of the most work where there are several;
    None where it is none, or its strides do not allow one.
    """
    store = nest.stores[0]
    dtype = str(store.type)
    loads = [node for node in nest.code if node[0] == "load"]
    if not nest.contraction or dtype not in SYMBOLS or len(loads) != 2:
        return None
    if any(str(node[2]) != dtype for node in loads) or not _starts_at_zero(nest):
        return None
    if sum(1 for node in nest.code if node[0] == "op") != 2:
        return None  # an operand is widened first
    nest = merged(_by_class(nest))
    loads = [node for node in nest.code if node[0] == "load"]
    candidates = _candidates(nest, loads[0][1], loads[1][1], nest.stores[0].access, dtype)
    return max(candidates, key=lambda g: g.work, default=None)


def _starts_at_zero(nest: Nest) -> bool:
    store = nest.stores[0]
    if store.initial is None:
        return store.reads
    node = nest.code[store.initial]
    return node[0] == "constant" and node[1].value == 0.0


def _classes(nest: Nest) -> list[str]:
    """Of each loop: "m" in A and C, "n" in B and C, "k" in A and B, "batch" in all, "?" else."""
    a, b = (node[1].strides for node in nest.code if node[0] == "load")
    c = nest.stores[0].access.strides
    names = {
        (True, False, True): "m", (False, True, True): "n", (True, True, False): "k",
        (True, True, True): "batch",
    }  # fmt: skip
    return [names.get((bool(a[d]), bool(b[d]), bool(c[d])), "?") for d in range(len(nest.sizes))]


def _by_class(nest: Nest) -> Nest:
    """The nest with batch, m, n, k loops together, each in the order of decreasing steps."""
    a, b = (node[1].strides for node in nest.code if node[0] == "load")
    c = nest.stores[0].access.strides
    steps = {"batch": c, "m": c, "n": c, "k": a, "?": c}
    rank = {"?": 0, "batch": 1, "m": 2, "n": 3, "k": 4}
    names = _classes(nest)
    order = sorted(
        range(len(nest.sizes)), key=lambda d: (rank[names[d]], -steps[names[d]][d], -b[d])
    )
    return reordered(nest, order)


def _candidates(nest: Nest, a: Access, b: Access, c: Access, dtype: str) -> list[Gemm]:
    names = _classes(nest)
    if "?" in names:
        return []

    def loops(name: str) -> list[int]:
        return [d for d, found in enumerate(names) if found == name] or [-1]

    found = []
    for m in loops("m"):
        for n in loops("n"):
            for k in loops("k"):
                straight = Gemm(nest, m, n, k, a, b, c, dtype)
                found += [g for g in (straight, Gemm(nest, n, m, k, b, a, c, dtype)) if _fits(g)]
    return found


def _fits(gemm: Gemm) -> bool:
    """Whether the strides are those of matrices that the library takes, C with rows of step 1."""
    if gemm.n >= 0 and gemm.c.strides[gemm.n] != 1:
        return False
    return (
        _leading(gemm, gemm.c, gemm.m, gemm.n) is not None
        and _leading(gemm, gemm.a, gemm.m, gemm.k) is not None
        and _leading(gemm, gemm.b, gemm.k, gemm.n) is not None
    )


def _leading(gemm: Gemm, access: Access, row: int, column: int) -> tuple[int, int] | None:
    """(transposition, leading dimension) of a matrix; None when neither its rows nor its columns
    have step 1.
    """
    down = access.strides[row] if row >= 0 else 0
    across = access.strides[column] if column >= 0 else 1
    rows, columns = gemm.size(row), gemm.size(column)
    if across == 1 and (rows == 1 or down >= columns):
        return _PLAIN, max(down, columns)
    if down == 1 and (columns == 1 or across >= rows) and access is not gemm.c:
        return _TRANSPOSED, max(across, rows)
    return None


def gemm_text(name: str, unit: Unit, gemm: Gemm) -> str:
    """The function `name` that calls the library, in loops over what one call does not cover."""
    text = Text()
    covered = {gemm.m, gemm.n, gemm.k}
    outer = [d for d in range(len(gemm.nest.sizes)) if d not in covered]
    ivs = {d: text.open(gemm.nest.sizes[d]) for d in outer}
    depth = [ivs[d] for d in outer if d in gemm.nest.reductions]
    _call(text, gemm, ivs, depth)
    text.close(len(outer))
    return text.function(name, unit)


def _call(text: Text, gemm: Gemm, ivs: dict[int, str], depth: list[str]) -> None:
    pointers = [_pointer(text, access, ivs, gemm.dtype) for access in (gemm.a, gemm.b, gemm.c)]
    (ta, lda), (tb, ldb), (_, ldc) = (
        _leading(gemm, access, row, column) or (0, 0)
        for access, row, column in (
            (gemm.a, gemm.m, gemm.k), (gemm.b, gemm.k, gemm.n), (gemm.c, gemm.m, gemm.n),
        )
    )  # fmt: skip
    number = [text.constant(str(v), "i32") for v in (_ROW_MAJOR, ta, tb)]
    number += [text.constant(str(gemm.size(d)), "i32") for d in (gemm.m, gemm.n, gemm.k)]
    lds = [text.constant(str(v), "i32") for v in (lda, ldb, ldc)]
    one, beta = text.constant("1.0", gemm.dtype), _beta(text, gemm, depth)
    a, b, c = pointers
    arguments = [*number, one, a, lds[0], b, lds[1], beta, c, lds[2]]
    text.add(f"func.call @{SYMBOLS[gemm.dtype]}({', '.join(arguments)}) : {signature(gemm.dtype)}")


def _beta(text: Text, gemm: Gemm, depth: list[str]) -> str:
    """0 in the first call on a part of C that starts from nothing, else 1."""
    one = text.constant("1.0", gemm.dtype)
    if gemm.nest.stores[0].initial is None:
        return one
    beta = text.constant("0.0", gemm.dtype)
    for iv in depth:
        first = text.let(f"arith.cmpi eq, {iv}, {text.constant('0')} : i64")
        beta = text.let(f"arith.select {first}, {beta}, {one} : {gemm.dtype}")
    return beta


def _pointer(text: Text, access: Access, ivs: dict[int, str], dtype: str) -> str:
    pointer = f"%p{access.pointer}"
    offset = access.const
    if offset:
        pointer = text.let(
            f"llvm.getelementptr {pointer}[{offset}] : (!llvm.ptr) -> !llvm.ptr, {dtype}"
        )
    for dim, iv in ivs.items():
        if access.strides[dim]:
            step = text.let(f"arith.muli {iv}, {text.constant(str(access.strides[dim]))} : i64")
            pointer = text.let(
                f"llvm.getelementptr {pointer}[{step}] : (!llvm.ptr, i64) -> !llvm.ptr, {dtype}"
            )
    return pointer


def declaration(dtype: str) -> str:
    """The declaration of the library's GEMM."""
    return f"func.func private @{SYMBOLS[dtype]}{signature(dtype).removesuffix(' -> ()')}\n"


def signature(dtype: str) -> str:
    """The type of the library's GEMM."""
    numbers = ", ".join(["i32"] * 6)
    return f"({numbers}, {dtype}, !llvm.ptr, i32, !llvm.ptr, i32, {dtype}, !llvm.ptr, i32) -> ()"
