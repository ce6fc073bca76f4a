"""Write functions that call LAPACK for each matrix of a batch.

LAPACK's matrices lie column by column, ours row by row: what it is given as A it takes for A transposed. Cholesky of
the lower triangle of A is that of the upper triangle of A transposed, in place. All other routines would give other
results, or vectors of other signs than LAPACK does elsewhere: their matrices are transposed into scratch memory, and
what they make back. BLAS takes triangular systems as they lie. The functions of LAPACKE that take their workspace
(`.._work`) are called: they get numbers by value, and return `info`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from meshweave.ir.routines import BLOCK, COMPLEX, ROUTINES, RoutineCall
from meshweave.lowering.writer import Value, Writer

_ROWS, _COLUMNS = 101, 102  # order of a matrix in memory
_PLAIN, _TRANSPOSED = 111, 112
_UPPER, _LOWER = 121, 122
_GIVEN, _UNIT = 131, 132  # diagonal
_LEFT, _RIGHT = 141, 142
_POINTER = "!llvm.ptr"
_LETTER = {("f32", False): "s", ("f64", False): "d", ("f32", True): "c", ("f64", True): "z"}
"""Element type, and whether numbers are complex -> the library's letter."""
_FUNCTIONS = {
    "copy": "scipy_cblas_{}copy",
    "transpose": "scipy_cblas_{}omatcopy",
    "swap": "scipy_cblas_{}swap",
    "trsm": "scipy_cblas_{}trsm",
    "potrf": "scipy_LAPACKE_{}potrf_work",
    "getrf": "scipy_LAPACKE_{}getrf_work",
    "geqrf": "scipy_LAPACKE_{}geqrf_work",
    "orgqr": "scipy_LAPACKE_{}orgqr_work",
    "gesdd": "scipy_LAPACKE_{}gesdd_work",
    "syevd": "scipy_LAPACKE_{}syevd_work",
}
"""Functions of the library, but for the letter of the type."""
_COMPLEX = _FUNCTIONS | {
    "transpose": "scipy_LAPACKE_{}ge_trans",
    "orgqr": "scipy_LAPACKE_{}ungqr_work",
    "syevd": "scipy_LAPACKE_{}heevd_work",
}
"""The same of complex numbers; what copies and swaps is that of their parts."""


def symbols() -> list[str]:
    """Return the names of all functions of the library that may be called."""
    return [
        name.format(letter)
        for (_, is_complex), letter in _LETTER.items()
        for name in (_COMPLEX if is_complex else _FUNCTIONS).values()
    ]


class RoutineWriter(Writer):
    """Write the function of a call: its parameters are the operands, the results, and scratch memory."""

    def __init__(self, call: RoutineCall) -> None:
        """Begin the function. declared: the declarations of what it calls."""
        super().__init__()
        self.call, self.sizes = call, call.sizes
        self.declared: set[str] = set()
        count = len(call.row.tensors) + (call.scratch_bytes > 0)
        self._given = [Value(self, f"%p{k}", _POINTER) for k in range(count)]

    def text(self, name: str) -> str:
        """Return the function `name`."""
        matrix = self.open(self.call.matrices)
        _WRITERS[self.call.routine.removesuffix(COMPLEX)](
            self, *self._tensors(matrix), *self._scratch()
        )
        self.close()
        parameters = ", ".join(f"{v.name}: {v.type}" for v in self._given)
        head = f"func.func @{name}({parameters}) {{"
        return "\n".join([head, *self.head, *self.lines, "return", "}", ""])

    def _tensors(self, matrix: Value) -> list[Value]:
        """Return where the operands and results of a matrix of the batch begin."""
        call, found = self.call, []
        kinds = call.row.types(call.element)
        for pointer, dims, kind in zip(self._given, call.row.tensors, kinds):
            found.append(self.offset(pointer, self.times(matrix, self.count(dims)), kind))
        return found

    def _scratch(self) -> list[Value]:
        """Return where the pieces of the scratch memory begin, the integers last."""
        call, found = self.call, list[Value]()
        if not call.scratch_bytes:
            return found
        at = self._given[-1]
        for room in call.row.room(call.sizes):
            found.append(at)
            at = self.offset(at, room, call.element)
        return [*found, at] if call.row.integers(call.sizes) else found

    # What routines are made of.

    def flag(self, name: str) -> bool:
        """Tell whether the call has a flag."""
        return name in self.call.flags

    def count(self, dims: str) -> int:
        """Return the number of elements of a tensor with these dims, of one matrix."""
        count = 1
        for letter in dims:
            count *= self.sizes[letter]
        return count

    def lead(self, letter: str) -> int:
        """Return the step between the rows of a matrix with so many columns, which is never 0."""
        return max(1, self.sizes[letter])

    def library(self, function: str, *given: Value | int | float) -> Value:
        """Call a function of LAPACKE; return its `info`. Numbers are i32, or floats of the call's type."""
        names, types = self._arguments(given)
        symbol = self._symbol(function, types, " -> i32")
        return self.let(f"func.call @{symbol}({names}) : ({types}) -> i32", "i32")

    def blas(self, function: str, *given: Value | int | float) -> None:
        """Call a function that returns nothing."""
        names, types = self._arguments(given)
        self.add(f"func.call @{self._symbol(function, types, '')}({names}) : ({types}) -> ()")

    def _arguments(self, given: Sequence[Value | int | float]) -> tuple[str, str]:
        element = self.call.element
        values = [self.as_value(v, element if isinstance(v, float) else "i32") for v in given]
        names, types = zip(*[(v.name, v.type) for v in values])
        return ", ".join(names), ", ".join(types)

    def _symbol(self, function: str, types: str, result: str) -> str:
        is_complex = self.call.is_complex and function not in ("copy", "swap")
        letter = _LETTER[self.call.element, is_complex]
        symbol = (_COMPLEX if is_complex else _FUNCTIONS)[function].format(letter)
        self.declared.add(f"func.func private @{symbol}({types}){result}\n")
        return symbol

    @property
    def width(self) -> int:
        """Return how many floats a number has: those that `count` and `offset` count."""
        return 2 if self.call.is_complex else 1

    def copy(self, dims: str, source: Value, target: Value) -> None:
        """Copy a matrix."""
        self.blas("copy", self.width * self.count(dims), source, 1, target, 1)

    def transpose(self, rows: str, columns: str, source: Value, target: Value) -> None:
        """Write the transpose of a matrix with these dims."""
        m, n = self.sizes[rows], self.sizes[columns]
        if m and n and self.call.is_complex:
            self.blas("transpose", _ROWS, m, n, source, n, target, m)
        elif m and n:
            self.blas("transpose", _ROWS, _TRANSPOSED, m, n, 1.0, source, n, target, m)


def _potrf(w: RoutineWriter, a: Value, factor: Value, info: Value) -> None:
    w.copy("nn", a, factor)
    triangle = ord("U" if w.flag("lower") else "L")
    w.store(w.library("potrf", _COLUMNS, triangle, w.sizes["n"], factor, w.lead("n")), info)


def _getrf(
    w: RoutineWriter, a: Value, factors: Value, pivots: Value, info: Value, work: Value
) -> None:
    w.transpose("m", "n", a, work)
    code = w.library("getrf", _COLUMNS, w.sizes["m"], w.sizes["n"], work, w.lead("m"), pivots)
    w.store(code, info)
    w.transpose("n", "m", work, factors)


def _laswp(w: RoutineWriter, b: Value, pivots: Value, swapped: Value) -> None:
    w.copy("nr", b, swapped)
    count, step = w.sizes["p"], w.open(w.sizes["p"])
    if w.flag("transposed"):
        step = w.constant(count - 1, "i64") - step
    pivot = w.load(w.offset(pivots, step, "i32"), "i32") - 1
    for op, bound in (("arith.maxsi", 0), ("arith.minsi", w.sizes["n"] - 1)):
        pivot = w.op(op, "", [pivot, w.constant(bound)], "i32")  # never outside of the matrix
    length = w.width * w.sizes["r"]
    rows = [
        w.offset(swapped, w.times(row, length), w.call.element) for row in (step, w.wide(pivot))
    ]
    w.blas("swap", length, rows[0], 1, rows[1], 1)
    w.close()


def _trsm(w: RoutineWriter, a: Value, b: Value, x: Value, *scratch: Value) -> None:
    right = w.call.routine == "trsm_right"
    dims = "rn" if right else "nr"
    w.copy(dims, b, x)
    rows, columns = (w.sizes[letter] for letter in dims)
    for one in scratch:  # complex numbers go by address
        w.store(w.constant(1.0, w.call.element), one)
        w.store(w.constant(0.0, w.call.element), w.offset(one, 1, w.call.element))
    w.blas(
        "trsm",
        _ROWS,
        _RIGHT if right else _LEFT,
        _LOWER if w.flag("lower") else _UPPER,
        _TRANSPOSED if w.flag("transposed") else _PLAIN,
        _UNIT if w.flag("unit") else _GIVEN,
        *(rows, columns, *(scratch or (1.0,)), a, w.lead("n"), x, w.lead(dims[1])),
    )


def _geqrf(
    w: RoutineWriter, a: Value, packed: Value, scales: Value, matrix: Value, work: Value
) -> None:
    m, n = w.sizes["m"], w.sizes["n"]
    w.transpose("m", "n", a, matrix)
    w.library("geqrf", _COLUMNS, m, n, matrix, w.lead("m"), scales, work, BLOCK * n)
    w.transpose("n", "m", matrix, packed)


def _orgqr(
    w: RoutineWriter, packed: Value, scales: Value, q: Value, matrix: Value, work: Value
) -> None:
    m, n, t = (w.sizes[letter] for letter in "mnt")
    w.transpose("m", "n", packed, matrix)
    w.library("orgqr", _COLUMNS, m, n, t, matrix, w.lead("m"), scales, work, BLOCK * n)
    w.transpose("n", "m", matrix, q)


def _gesdd(w: RoutineWriter, a: Value, *rest: Value) -> None:
    values, u, vt, info, matrix, left, right, *work = rest
    full = "full" in w.call.routine
    job, columns, rows = ("A", "m", "n") if full else ("S", "k", "k")  # of U, and of V transposed
    w.transpose("m", "n", a, matrix)
    given = (ord(job), w.sizes["m"], w.sizes["n"], matrix, w.lead("m"), values)
    factors = (left, w.lead("m"), right, w.lead(rows))
    w.store(w.library("gesdd", _COLUMNS, *given, *factors, *_svd_work(w, work)), info)
    w.transpose(columns, "m", left, u)
    w.transpose("n", rows, right, vt)


def _gesdd_values(w: RoutineWriter, a: Value, *rest: Value) -> None:
    # Those of A transposed are the same, and LAPACK is slow where there are few rows.
    values, info, matrix, *work = rest
    rows, columns = ("m", "n") if w.sizes["m"] >= w.sizes["n"] else ("n", "m")
    if rows == "m":
        w.transpose("m", "n", a, matrix)
    else:
        w.copy("mn", a, matrix)
    given = (ord("N"), w.sizes[rows], w.sizes[columns], matrix, w.lead(rows), values)
    # There are no factors: LAPACK does not look at their place.
    none = (matrix, w.lead(rows), matrix, w.lead(columns))
    w.store(w.library("gesdd", _COLUMNS, *given, *none, *_svd_work(w, work)), info)


def _svd_work(w: RoutineWriter, work: Sequence[Value]) -> Sequence[Value | int]:
    """Return the workspace of gesdd and its length; of complex numbers a real one comes behind, of the right length."""
    count = w.call.row.room(w.sizes)[-2 if w.call.is_complex else -1] // w.width
    return work[0], count, *work[1:]


def _syevd(w: RoutineWriter, a: Value, *rest: Value) -> None:
    row, n = w.call.row, w.sizes["n"]
    *made, matrix = rest[: len(row.results) + 1]
    *vectors, values, info = made
    work, counts = rest[len(made) + 1 :], row.room(w.sizes)[1:]
    job, triangle = ord("V" if vectors else "N"), ord("L" if w.flag("lower") else "U")
    w.transpose("n", "n", a, matrix)
    lengths = [counts[0] // w.width, *counts[1:], row.integers(w.sizes)]
    room = [part for pair in zip(work, lengths, strict=True) for part in pair]
    code = w.library("syevd", _COLUMNS, job, triangle, n, matrix, w.lead("n"), values, *room)
    w.store(code, info)
    for one in vectors:
        w.transpose("n", "n", matrix, one)


_WRITERS: Mapping[str, Callable[..., None]] = {
    "potrf": _potrf,
    "getrf": _getrf,
    "laswp": _laswp,
    "trsm_left": _trsm,
    "trsm_right": _trsm,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "gesdd": _gesdd,
    "gesdd_full": _gesdd,
    "gesdd_values": _gesdd_values,
    "syevd": _syevd,
    "syevd_values": _syevd,
}
assert set(_WRITERS) == {name.removesuffix(COMPLEX) for name in ROUTINES}
