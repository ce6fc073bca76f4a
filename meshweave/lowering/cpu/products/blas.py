"""Map contractions to the library's GEMM: which loops are rows, columns and depth, and which remain around it.

Each matrix is its pointer, the step between rows and the step between columns; one of the two must
be 1. Loops over rows (columns, depth) that walk both their matrices as one loop are merged first,
so that `4x64x128 @ 128x384` is one call with 256 rows. Loops that no GEMM covers stand around it; a
leftover depth loop accumulates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.ir.expressions import Apply, is_number
from meshweave.lowering.cpu.text import FunctionWriter
from meshweave.lowering.nests.bind import Access, LoopNest, merged, reordered
from meshweave.lowering.nests.evaluate import Place
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

SYMBOLS = {"f32": "scipy_cblas_sgemm", "f64": "scipy_cblas_dgemm"}
_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112
VECTORS = {"f32": "scipy_cblas_sgemv", "f64": "scipy_cblas_dgemv"}
SMALLEST = 512  # multiplications below which loops are as fast as a call


@dataclass(frozen=True)
class Gemm:
    """Describe a GEMM in loops. m, n, k: loop numbers, -1 for a loop of 1; a, b, c as in C = A B."""

    nest: LoopNest
    m: int
    n: int
    k: int
    a: Access
    b: Access
    c: Access
    dtype: str

    def size(self, dim: int) -> int:
        """Return the trip count of a loop."""
        return 1 if dim < 0 else self.nest.sizes[dim]

    @property
    def outer(self) -> list[int]:
        """List the loops around the call."""
        return [d for d in range(len(self.nest.sizes)) if d not in (self.m, self.n, self.k)]

    @property
    def work(self) -> int:
        """Count the multiplications of one call."""
        return self.size(self.m) * self.size(self.n) * self.size(self.k)


def gemm_of(nest: LoopNest) -> Gemm | None:
    """Return the GEMM that a contraction is, or None when loops serve it better or its strides do not allow one."""
    best = product_of(nest) if nest.library else None
    if best is None or best.work < SMALLEST or min(best.size(best.m), best.size(best.n)) == 1:
        return None
    return best


def product_of(nest: LoopNest) -> Gemm | None:
    """Return the matrix product that a contraction is, the one with the most work where there are several.

    Return None where it is none, or its strides do not allow one.
    """
    store = nest.stores[0]
    dtype = str(store.type)
    if not nest.contraction or dtype not in SYMBOLS or len(nest.loads) != 2:
        return None
    if any(str(load.type) != dtype for load in nest.loads) or not starts_at_zero(nest):
        return None
    if sum(isinstance(node, Apply) for node in nest.code) != 2:
        return None  # an operand is widened first
    nest = merged(by_class(nest))
    if "?" in classes_of(nest):
        return None
    return max(candidates(nest), key=lambda g: g.work, default=None)


def starts_at_zero(nest: LoopNest) -> bool:
    """Tell whether a sum starts from zero, or from what the buffer holds."""
    store = nest.stores[0]
    if store.initial is None:
        return store.reads
    return is_number(nest.code[store.initial], 0.0)


def classes_of(nest: LoopNest) -> list[str]:
    """Name the class of each loop: "m" in A and C, "n" in B and C, "k" in A and B, "batch" in all, else "?"."""
    a, b, c = (access.strides for access in nest.accesses)
    names = {
        (True, False, True): "m", (False, True, True): "n", (True, True, False): "k",
        (True, True, True): "batch",
    }  # fmt: skip
    return [names.get((bool(a[d]), bool(b[d]), bool(c[d])), "?") for d in range(len(nest.sizes))]


def side(nest: LoopNest, loops: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the loops around a side of a matrix, and those of the side.

    Of those, at most the first ends where a call says. A loop inside that one runs on.
    """
    ends = [k for k, d in enumerate(loops) if nest.limit(d) is not None]
    at = ends[-1] if ends else 0
    return tuple(loops[:at]), tuple(loops[at:])


def extent(writer: FunctionWriter, nest: LoopNest, loops: Sequence[int]) -> Value | int:
    """Return how many iterations the loops of a side have in a call."""
    if not loops:
        return 1
    inner = math.prod(nest.sizes[d] for d in loops[1:])
    end = writer.end(nest, loops[0])
    return writer.times(end, inner) if isinstance(end, Value) else end * inner


def by_class(nest: LoopNest) -> LoopNest:
    """Return the nest with batch, m, n and k loops together, each in the order of decreasing steps."""
    return reordered(nest, class_order(nest))


def class_order(nest: LoopNest) -> list[int]:
    """Return the loops with those of a class together, each in the order of decreasing steps."""
    a, b, c = (access.strides for access in nest.accesses)
    steps = {"batch": c, "m": c, "n": c, "k": a, "?": c}
    rank = {"?": 0, "batch": 1, "m": 2, "n": 3, "k": 4}
    names = classes_of(nest)
    return sorted(
        range(len(nest.sizes)), key=lambda d: (rank[names[d]], -steps[names[d]][d], -b[d])
    )


def candidates(nest: LoopNest) -> list[Gemm]:
    """Return the products that the library may do inside the other loops of a nest of two loads and a store."""
    names, dtype = classes_of(nest), str(nest.stores[0].type)
    a, b, c = nest.accesses

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
    """Tell whether the strides are those of matrices that the library takes, C with rows of step 1."""
    if gemm.n >= 0 and gemm.c.strides[gemm.n] != 1:
        return False
    return (
        _leading(gemm, gemm.c, gemm.m, gemm.n) is not None
        and _leading(gemm, gemm.a, gemm.m, gemm.k) is not None
        and _leading(gemm, gemm.b, gemm.k, gemm.n) is not None
    )


def _leading(gemm: Gemm, access: Access, row: int, column: int) -> tuple[int, int] | None:
    """Return (transposition, leading dimension) of a matrix; None when neither its rows nor its columns have step 1."""
    down = access.strides[row] if row >= 0 else 0
    across = access.strides[column] if column >= 0 else 1
    rows, columns = gemm.size(row), gemm.size(column)
    if across == 1 and (rows == 1 or down >= columns):
        return _PLAIN, max(down, columns)
    if down == 1 and (columns == 1 or across >= rows) and access is not gemm.c:
        return _TRANSPOSED, max(across, rows)
    return None


def gemm_text(name: str, unit: KernelUnit, gemm: Gemm) -> str:
    """Write the function `name` that calls the library, in loops over what one call does not cover."""
    writer = FunctionWriter(unit)
    place: list[Value | None] = [None] * len(gemm.nest.sizes)
    for dim in gemm.outer:
        place[dim] = writer.open(writer.end(gemm.nest, dim))
    call(writer, gemm, place)
    for _ in gemm.outer:
        writer.close()
    return writer.text(name)


def call(
    writer: FunctionWriter, gemm: Gemm, place: Place, run: tuple[int, Value] | None = None
) -> None:
    """Call the library on the matrices at `place` of the loops around the call.

    run: a loop of the product, and how many of its iterations, an i32, from `place` on: they add to what is there.
    """
    matrices = (
        (gemm.a, gemm.m, gemm.k), (gemm.b, gemm.k, gemm.n), (gemm.c, gemm.m, gemm.n),
    )  # fmt: skip
    around = gemm.outer if run is None else [*gemm.outer, run[0]]
    a, b, c = (_start(writer, access, gemm.dtype, around, place) for access, _, _ in matrices)
    (ta, lda), (tb, ldb), (_, ldc) = (_leading(gemm, *matrix) or (0, 0) for matrix in matrices)
    lengths = dict([run] if run else [])
    given = [writer.constant(number) for number in (_ROW_MAJOR, ta, tb)]
    given += [
        lengths[dim] if dim in lengths else _extent(writer, gemm, dim)
        for dim in (gemm.m, gemm.n, gemm.k)
    ]
    one = writer.constant(1.0, gemm.dtype)
    beta = one if run else _beta(writer, gemm, place)
    given += [one, a, writer.constant(lda), b, writer.constant(ldb), beta, c, writer.constant(ldc)]
    names = ", ".join(value.name for value in given)
    writer.add(f"func.call @{SYMBOLS[gemm.dtype]}({names}) : {signature(gemm.dtype)}")


def call_row(writer: FunctionWriter, gemm: Gemm, place: Place) -> None:
    """Call the library on one row, at `place`: it adds to what is there."""
    around = [*gemm.outer, gemm.m]
    a, b, c = (
        _start(writer, access, gemm.dtype, around, place) for access in (gemm.a, gemm.b, gemm.c)
    )
    transposition, leading = _leading(gemm, gemm.b, gemm.k, gemm.n) or (0, 0)
    plain = transposition == _PLAIN
    sides = [_extent(writer, gemm, dim) for dim in (gemm.k, gemm.n)]
    given = [writer.constant(n) for n in (_ROW_MAJOR, _TRANSPOSED if plain else _PLAIN)]
    given += sides if plain else sides[::-1]
    one, step = writer.constant(1.0, gemm.dtype), gemm.a.strides[gemm.k] if gemm.k >= 0 else 1
    given += [one, b, writer.constant(leading), a, writer.constant(step), one, c]
    given.append(writer.constant(1))
    names = ", ".join(value.name for value in given)
    writer.add(f"func.call @{VECTORS[gemm.dtype]}({names}) : {vector_signature(gemm.dtype)}")


def _extent(writer: FunctionWriter, gemm: Gemm, dim: int) -> Value:
    """Return how many iterations of a loop there are, as an i32."""
    end = 1 if dim < 0 else writer.end(gemm.nest, dim)
    if isinstance(end, Value):
        return writer.convert("arith.trunci", end, "i32")
    return writer.constant(end)


def _start(
    writer: FunctionWriter, access: Access, dtype: str, around: Sequence[int], place: Place
) -> Value:
    """Return where a matrix begins."""
    strides = [s if d in around else 0 for d, s in enumerate(access.strides)]
    return writer.frame.address(access._replace(strides=tuple(strides)), dtype, place)


def _beta(writer: FunctionWriter, gemm: Gemm, place: Place) -> Value:
    """Return GEMM's beta: 0 where this call initialises C, else 1."""
    one = writer.constant(1.0, gemm.dtype)
    if gemm.nest.stores[0].initial is None:
        return one
    beta = writer.constant(0.0, gemm.dtype)
    for dim in gemm.outer:
        counter = place[dim]
        if dim in gemm.nest.reductions and counter is not None:
            beta = writer.select(writer.compare("eq", counter, 0), beta, one)
    return beta


def declaration(dtype: str) -> str:
    """Return the declaration of the library's GEMM."""
    return f"func.func private @{SYMBOLS[dtype]}{signature(dtype).removesuffix(' -> ()')}\n"


def row_declaration(dtype: str) -> str:
    """Return the declaration of the library's product with one row."""
    return f"func.func private @{VECTORS[dtype]}{vector_signature(dtype).removesuffix(' -> ()')}\n"


def vector_signature(dtype: str) -> str:
    """Return the type of the library's product of a matrix and a vector."""
    numbers = ", ".join(["i32"] * 4)
    return f"({numbers}, {dtype}, !llvm.ptr, i32, !llvm.ptr, i32, {dtype}, !llvm.ptr, i32) -> ()"


def signature(dtype: str) -> str:
    """Return the type of the library's GEMM."""
    numbers = ", ".join(["i32"] * 6)
    return f"({numbers}, {dtype}, !llvm.ptr, i32, !llvm.ptr, i32, {dtype}, !llvm.ptr, i32) -> ()"
