"""Write functions that call LAPACK for each matrix of a batch.

LAPACK's matrices lie column by column, ours row by row: what it is given as A it takes for A transposed. Cholesky of
the lower triangle of A is that of the upper triangle of A transposed, in place. All other routines would give other
results, or vectors of other signs than LAPACK does elsewhere: their matrices are transposed into scratch memory, and
what they make back. BLAS takes triangular systems as they lie. The functions of LAPACKE that take their workspace
(`.._work`) are called: they get numbers by value, and return `info`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from meshweave.ir.routines import BLOCK, COMPLEX, ROUTINES, TILE, RoutineCall
from meshweave.lowering.writer import Value, Writer

_ROWS, _COLUMNS = 101, 102  # order of a matrix in memory
_PLAIN, _TRANSPOSED = 111, 112
_UPPER, _LOWER = 121, 122
_GIVEN, _UNIT = 131, 132  # diagonal
_LEFT, _RIGHT = 141, 142
_NOT_FINITE = -4
"""What is given in place of LAPACK's answer for a matrix that holds NaN or infinities."""
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
    "gesvd": "scipy_LAPACKE_{}gesvd_work",
    "syevd": "scipy_LAPACKE_{}syevd_work",
    "ormqr": "scipy_LAPACKE_{}ormqr_work",
    "geqp3": "scipy_LAPACKE_{}geqp3_work",
    "geev": "scipy_LAPACKE_{}geev_work",
    "gees": "scipy_LAPACKE_{}gees_work",
    "gehrd": "scipy_LAPACKE_{}gehrd_work",
    "sytrd": "scipy_LAPACKE_{}sytrd_work",
    "gtsv": "scipy_LAPACKE_{}gtsv_work",
}
"""Functions of the library, but for the letter of the type."""
_COMPLEX = _FUNCTIONS | {
    "transpose": "scipy_LAPACKE_{}ge_trans",
    "orgqr": "scipy_LAPACKE_{}ungqr_work",
    "syevd": "scipy_LAPACKE_{}heevd_work",
    "ormqr": "scipy_LAPACKE_{}unmqr_work",
    "sytrd": "scipy_LAPACKE_{}hetrd_work",
}
"""The same of complex numbers; what copies and swaps is that of their parts."""


def symbols() -> list[str]:
    """Return the names of all functions of the library that may be called."""
    return [
        name.format(letter)
        for (_, is_complex), letter in _LETTER.items()
        for name in (_COMPLEX if is_complex else _FUNCTIONS).values()
    ]


_TINY = {"f32": (2.0**-126, 2.0**-24), "f64": (2.0**-1022, 2.0**-53)}
"""The smallest normal number of a type, and half the step behind 1."""


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
    right = w.call.routine.startswith("trsm_right")
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


def _svd(w: RoutineWriter, a: Value, *rest: Value) -> None:
    values, u, vt, info, matrix, left, right, *work = rest
    full = "full" in w.call.routine
    job, columns, rows = ("A", "m", "n") if full else ("S", "k", "k")  # of U, and of V transposed
    w.transpose("m", "n", a, matrix)
    factors = (left, w.lead("m"), right, w.lead(rows))
    w.store(_decomposed(w, job, ("m", "n"), matrix, values, factors, work), info)
    w.transpose(columns, "m", left, u)
    w.transpose("n", rows, right, vt)


def _singular_values(w: RoutineWriter, a: Value, *rest: Value) -> None:
    # Those of A transposed are the same, and LAPACK is slow where there are few rows.
    values, info, matrix, *work = rest
    rows, columns = ("m", "n") if w.sizes["m"] >= w.sizes["n"] else ("n", "m")
    if rows == "m":
        w.transpose("m", "n", a, matrix)
    else:
        w.copy("mn", a, matrix)
    # There are no factors: LAPACK does not look at their place.
    none = (matrix, w.lead(rows), matrix, w.lead(columns))
    w.store(_decomposed(w, "N", (rows, columns), matrix, values, none, work), info)


def _decomposed(
    w: RoutineWriter, job: str, dims: tuple[str, str], matrix: Value, values: Value,
    factors: Sequence[Value | int], work: Sequence[Value],
) -> Value:  # fmt: skip
    """Call gesdd, or gesvd, which is told twice what to make, on a matrix with these dims."""
    name, (rows, columns) = w.call.routine[:5], dims
    jobs = [ord(job)] * (2 if name == "gesvd" else 1)
    given: list[Value | int] = [
        *jobs,
        w.sizes[rows],
        w.sizes[columns],
        matrix,
        w.lead(rows),
        values,
    ]
    return w.library(name, _COLUMNS, *given, *factors, *_svd_work(w, work))


def _svd_work(w: RoutineWriter, work: Sequence[Value]) -> Sequence[Value | int]:
    """Return the workspace of a decomposition and its length; of complex numbers a real one comes behind."""
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


def _ormqr(w: RoutineWriter, packed: Value, scales: Value, c: Value, *rest: Value) -> None:
    product, matrix, other, work = rest
    left = w.call.routine.startswith("ormqr_left")
    rows, columns = "mr" if left else "rm"
    w.transpose("m", "q", packed, matrix)
    w.transpose(rows, columns, c, other)
    turned = "C" if w.call.is_complex else "T"
    said = (ord("L" if left else "R"), ord(turned if w.flag("transposed") else "N"))
    sizes = (w.sizes[rows], w.sizes[columns], w.sizes["t"], matrix, w.lead("m"), scales)
    room = (work, BLOCK * w.sizes["r"] + TILE)
    w.library("ormqr", _COLUMNS, *said, *sizes, other, w.lead(rows), *room)
    w.transpose(columns, rows, other, product)


def _geqp3(w: RoutineWriter, a: Value, order: Value, *rest: Value) -> None:
    packed, places, scales, matrix, work, *reals = rest
    m, n = w.sizes["m"], w.sizes["n"]
    w.transpose("m", "n", a, matrix)
    column = w.open(n)
    w.store(w.load(w.offset(order, column, "i32"), "i32"), w.offset(places, column, "i32"))
    w.close()
    length = w.call.row.room(w.sizes)[1] // w.width
    given: tuple[Value | int, ...] = (matrix, w.lead("m"), places, scales, work, length, *reals)
    w.library("geqp3", _COLUMNS, m, n, *given)
    w.transpose("n", "m", matrix, packed)


def _pieces(given: Sequence[Value], counts: Sequence[int]) -> list[Sequence[Value]]:
    """Return so many values, then so many of the rest, and last all that are left."""
    found = list[Sequence[Value]]()
    for count in counts:
        found.append(given[:count])
        given = given[count:]
    return [*found, given]


def _geev(w: RoutineWriter, a: Value, *rest: Value) -> None:
    kind = w.call.routine.removesuffix(COMPLEX).partition("_")[2]
    wanted = [kind in ("", side) for side in ("left", "right")]
    counts = (1 if w.call.is_complex else 2, sum(wanted), 2, sum(wanted))
    values, vectors, (info, matrix), held, (work, *reals) = _pieces(rest, counts)
    places, jobs = iter(held), [ord("V" if one else "N") for one in wanted]
    sides = [part for one in wanted for part in (next(places) if one else matrix, w.lead("n"))]
    length = w.call.row.room(w.sizes)[1 + len(held)] // w.width
    w.transpose("n", "n", a, matrix)

    def found() -> list[Value]:
        given: tuple[Value | int, ...] = (
            matrix,
            w.lead("n"),
            *values,
            *sides,
            work,
            length,
            *reals,
        )
        return [w.library("geev", _COLUMNS, *jobs, w.sizes["n"], *given)]

    code = w.if_(_finite(w, a), found, lambda: [w.constant(_NOT_FINITE)], ["i32"])[0]
    w.store(code, info)
    for source, target in zip(held, vectors, strict=True):
        if w.call.is_complex:
            w.transpose("n", "n", source, target)
        else:
            _unpack(w, values[1], source, target)


def _finite(w: RoutineWriter, a: Value) -> Value:
    """Tell whether all numbers of a square matrix are finite: LAPACK may search for ever where one is not."""
    element, count = w.call.element, w.count(w.call.row.tensors[0])
    loop = w.open_loop(0, count, 1, [w.constant(0.0, element)])
    number = w.load(w.offset(a, loop.counter, element), element)
    w.close([loop.carried[0] + number * 0.0])
    return w.compare("oeq", loop.results[0], 0.0)


def _unpack(w: RoutineWriter, parts: Value, packed: Value, target: Value) -> None:
    """Write complex vectors out of LAPACK's columns: of a pair the first holds real parts, the next imaginary ones.

    parts: the imaginary parts of the eigenvalues, positive where a pair begins.
    """
    element, n = w.call.element, w.sizes["n"]
    column = w.open(n)
    part = w.load(w.offset(parts, column, element), element)
    first, second = w.compare("ogt", part, 0.0), w.compare("olt", part, 0.0)
    following = w.least(column + 1, n - 1)
    other = w.select(first, following, w.select(second, w.greatest(column - 1, 0), column))
    row = w.open(n)
    own, its = [
        w.load(w.offset(packed, w.plus(w.times(c, n), row), element), element)
        for c in (column, other)
    ]
    real = w.select(second, its, own)
    minus = w.let(f"arith.negf {own.name} : {element}", element)
    imaginary = w.select(first, its, w.select(second, minus, w.constant(0.0, element)))
    place = w.offset(target, w.times(w.plus(w.times(row, n), column), 2), element)
    w.store(real, place)
    w.store(imaginary, w.offset(place, 1, element))
    w.close()
    w.close()


def _gees(w: RoutineWriter, a: Value, form: Value, *rest: Value) -> None:
    wanted = 0 if "form" in w.call.routine else 1
    counts = (wanted, 1 if w.call.is_complex else 2, 2, wanted)
    vectors, values, (info, matrix), held, (work, *reals, ordered) = _pieces(rest, counts)
    none = w.let("llvm.mlir.zero : !llvm.ptr", "!llvm.ptr")
    length = w.call.row.room(w.sizes)[1 + wanted] // w.width
    w.transpose("n", "n", a, matrix)

    def found() -> list[Value]:
        said = (ord("V" if wanted else "N"), ord("N"), none, w.sizes["n"], matrix, w.lead("n"))
        place: tuple[Value | int, ...] = (*(held or (matrix,)), w.lead("n"))
        given: tuple[Value | int, ...] = (ordered, *values, *place, work, length, *reals, none)
        return [w.library("gees", _COLUMNS, *said, *given)]

    code = w.if_(_finite(w, a), found, lambda: [w.constant(_NOT_FINITE)], ["i32"])[0]
    w.store(code, info)
    w.transpose("n", "n", matrix, form)
    for source, target in zip(held, vectors, strict=True):
        w.transpose("n", "n", source, target)


def _places(w: RoutineWriter, number: Value) -> list[Value]:
    """Return where the parts of a number lie."""
    return [w.offset(number, part, w.call.element) for part in range(w.width)]


def _none_beside(w: RoutineWriter, *numbers: Value) -> None:
    """Write 0 for the one number that stands for what a matrix of one element has none of."""
    if w.sizes["n"] == 1:
        for pointer in numbers:
            w.store(w.constant(0.0, w.call.element), pointer)


def _gehrd(w: RoutineWriter, a: Value, packed: Value, scales: Value, *rest: Value) -> None:
    info, matrix, work = rest
    n = w.sizes["n"]
    w.transpose("n", "n", a, matrix)
    room = (work, BLOCK * n + TILE)
    code = w.library("gehrd", _COLUMNS, n, 1, n, matrix, w.lead("n"), scales, *room)
    w.store(code, info)
    _none_beside(w, *_places(w, scales))
    w.transpose("n", "n", matrix, packed)


def _sytrd(w: RoutineWriter, a: Value, packed: Value, *rest: Value) -> None:
    diagonal, beside, scales, info, matrix, work = rest
    n, triangle = w.sizes["n"], ord("L" if w.flag("lower") else "U")
    w.transpose("n", "n", a, matrix)
    given = (matrix, w.lead("n"), diagonal, beside, scales, work, BLOCK * n)
    w.store(w.library("sytrd", _COLUMNS, triangle, n, *given), info)
    _none_beside(w, beside, *_places(w, scales))
    w.transpose("n", "n", matrix, packed)


def _gtsv(w: RoutineWriter, *given: Value) -> None:
    *diagonals, b, x, info = given[:6]
    *held, matrix = given[6:]
    for source, target in zip(diagonals, held, strict=True):
        w.copy("n", source, target)
    w.transpose("n", "r", b, matrix)
    below = w.offset(held[0], w.width, w.call.element)  # the first one stands beside no row
    n, r = w.sizes["n"], w.sizes["r"]
    w.store(w.library("gtsv", _COLUMNS, n, r, below, *held[1:], matrix, w.lead("n")), info)
    w.transpose("r", "n", matrix, x)


def _gtsv_finite(w: RoutineWriter, *given: Value) -> None:
    """Eliminate row by row, the larger pivot first; pivots near 0 become a little larger before they divide."""
    below, diagonal, above, b, x, *upper = given
    element, n, columns = w.call.element, w.sizes["n"], w.sizes["r"]
    zero = w.constant(0.0, element)

    def at(pointer: Value, row: Value, more: int = 0) -> Value:
        return w.offset(w.offset(pointer, row, element), more, element)

    def size(value: Value) -> Value:
        return w.op("math.absf", "", [value], element)

    def row_of(row: Value) -> Value:
        return w.offset(x, w.times(row, columns), element)

    w.copy("nr", b, x)
    first = [w.load(pointer, element) for pointer in (diagonal, above)]
    loop = w.open_loop(0, n - 1, 1, [*first, zero])
    row, (own, beside, largest) = loop.counter, loop.carried
    its = [w.load(at(pointer, row, 1), element) for pointer in (below, diagonal, above)]
    swap = w.compare("ogt", size(its[0]), size(own))
    pivot = [w.select(swap, a, c) for a, c in zip(its, (own, beside, zero))]
    other = [w.select(swap, a, c) for a, c in zip((own, beside, zero), its)]
    ratio = w.select(w.compare("oeq", pivot[0], 0.0), zero, other[0] / pivot[0])
    for value, pointer in zip(pivot, upper, strict=True):
        w.store(value, at(pointer, row))
        largest = w.op("arith.maximumf", "", [largest, size(value)], element)
    column = w.open(columns)
    places = [at(row_of(row), column), at(row_of(w.plus(row, 1)), column)]
    mine, next_ = (w.load(place, element) for place in places)
    kept, changed = w.select(swap, next_, mine), w.select(swap, mine, next_)
    w.store(kept, places[0])
    w.store(changed - ratio * kept, places[1])
    w.close()
    w.close([other[1] - ratio * pivot[1], other[2] - ratio * pivot[2], largest])
    own, beside, largest = loop.results
    last = w.constant(n - 1, "i64")
    for value, pointer in zip((own, beside, zero), upper, strict=True):
        w.store(value, at(pointer, last))
    largest = w.op("arith.maximumf", "", [largest, size(own)], element)
    tiny, eps = _TINY[element]
    least = w.op(
        "arith.maximumf",
        "",
        [largest * w.constant(eps, element), w.constant(tiny, element)],
        element,
    )
    step = w.open(n)
    row = last - step
    pivot = [w.load(at(pointer, row), element) for pointer in upper]
    pushed = w.op("math.copysign", "", [least, pivot[0]], element)
    divisor = w.select(w.compare("olt", size(pivot[0]), least), pushed, pivot[0])
    column = w.open(columns)
    value = w.load(at(row_of(row), column), element)
    for number, factor in enumerate(pivot[1:], 1):
        behind = w.least(w.plus(row, number), n - 1)
        known = w.compare("slt", w.plus(row, number), n)
        solved = w.load(at(row_of(behind), column), element)
        value = value - w.select(known, factor * solved, zero)
    w.store(value / divisor, at(row_of(row), column))
    w.close()
    w.close()


_WRITERS: Mapping[str, Callable[..., None]] = {
    "potrf": _potrf,
    "getrf": _getrf,
    "laswp": _laswp,
    "trsm_left": _trsm,
    "trsm_right": _trsm,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "gesdd": _svd,
    "gesdd_full": _svd,
    "gesdd_values": _singular_values,
    "gesvd": _svd,
    "gesvd_full": _svd,
    "gesvd_values": _singular_values,
    "syevd": _syevd,
    "syevd_values": _syevd,
    "ormqr_left": _ormqr,
    "ormqr_right": _ormqr,
    "geqp3": _geqp3,
    "geev": _geev,
    "geev_left": _geev,
    "geev_right": _geev,
    "geev_values": _geev,
    "gees": _gees,
    "gees_form": _gees,
    "gehrd": _gehrd,
    "sytrd": _sytrd,
    "gtsv": _gtsv,
    "gtsv_finite": _gtsv_finite,
}
assert set(_WRITERS) == {name.removesuffix(COMPLEX) for name in ROUTINES}
