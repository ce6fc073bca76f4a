"""List the LAPACK routines of `mw.lapack`: what each is given and gives, dim by dim. It loads no MLIR."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshweave.ir.bindings import ir

LAPACK = "mw.lapack"
LIBRARY = "lapack"
"""The kernel that calls the library."""
INTEGERS = "#"
"""Mark of a tensor of i32."""
PARTS = "c"
"""Mark of a last dim of 2: the real and the imaginary part of complex numbers."""
COMPLEX = "_complex"
"""End of the names of routines on complex numbers."""
BLOCK = 64
"""Columns that LAPACK takes at a time, at most."""
TILE = 65 * 64
"""Numbers of the triangle of a block of reflectors, which LAPACK keeps behind what it works with."""
MOST = 1 << 31
"""LAPACK counts elements of a matrix in i32."""


Sizes = Mapping[str, int]
"""The extents of a routine's dims."""


@dataclass(frozen=True)
class Routine:
    """Describe a routine on one matrix; all its tensors have the dims of a batch before those named here.

    operands, results: the dims of each, a letter for each size; `k` is the smaller one of `m` and `n`, `h` one less
    than `n`, but 1 at least. A tensor whose dims begin with INTEGERS is of i32, one whose dims end with PARTS is of
    complex numbers. free: dims along which the results are made apart from each other. flags: names of unit attributes.
    limits: pairs of dims, of which the first is no larger than the second. room: how many floats its scratch memory is
    for, piece by piece; integers: how many i32 behind them.
    """

    operands: tuple[str, ...]
    results: tuple[str, ...]
    free: str = ""
    flags: tuple[str, ...] = ()
    limits: tuple[tuple[str, str], ...] = ()
    room: Callable[[Sizes], tuple[int, ...]] = lambda s: ()
    integers: Callable[[Sizes], int] = lambda s: 0

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the dims of each operand, then of each result."""
        return tuple(dims.removeprefix(INTEGERS) for dims in (*self.operands, *self.results))

    def types(self, element: str) -> list[str]:
        """Return the element type of each operand, then of each result."""
        every = (*self.operands, *self.results)
        return ["i32" if dims.startswith(INTEGERS) else element for dims in every]


def _svd_work(s: Sizes) -> int:
    """Return the floats of gesdd's workspace, with any factors and the fastest way to them."""
    small, large = s["k"], max(s["m"], s["n"])
    return 4 * small * small + 10 * small + large + BLOCK * (small + large)


def _qr_room(s: Sizes) -> tuple[int, ...]:
    """Return what QR needs: the matrix transposed, and its workspace."""
    return s["m"] * s["n"], BLOCK * s["n"]


def _complex_svd_room(s: Sizes, left: int, right: int) -> tuple[int, ...]:
    """Return what gesdd of complex numbers needs: matrices, complex workspace, a real one. left, right: of factors."""
    small, large = s["k"], max(s["m"], s["n"])
    complex_work = 2 * small * small + 3 * small + large + BLOCK * (small + large)
    real_work = max(5 * small * small + 7 * small, 2 * small * (large + small) + small)
    factors = (2 * s["m"] * left, 2 * right * s["n"]) if left else ()
    return 2 * s["m"] * s["n"], *factors, 2 * complex_work, real_work


def _reflected(side: str, width: int = 1) -> Routine:
    """Describe a product with Q of reflectors. side: the dims of the other matrix. width: floats of a number."""
    parts = PARTS * (width - 1)
    return Routine(
        (f"mq{parts}", f"t{parts}", f"{side}{parts}"),
        (f"{side}{parts}",),
        free="r",
        flags=("transposed",),
        limits=(("t", "m"), ("t", "q")),
        room=lambda s: (
            *(width * s["m"] * s["q"], width * s["m"] * s["r"]),
            width * (BLOCK * s["r"] + TILE),
        ),
    )


def _shifted_work(s: Sizes) -> int:
    """Return the numbers of the workspace of geev and gees."""
    return (4 + 2 * BLOCK) * s["n"] + TILE


def _eigen(sides: int) -> tuple[Routine, Routine]:
    """Describe geev of real and of complex numbers. sides: for how many kinds of vectors, left ones first."""
    vectors = ("nnc",) * sides

    def room(s: Sizes) -> tuple[int, ...]:
        return *[s["n"] ** 2] * (1 + sides), _shifted_work(s)

    def complex_room(s: Sizes) -> tuple[int, ...]:
        return *[2 * count for count in room(s)], 2 * s["n"]

    return (
        Routine(("nn",), ("n", "n", *vectors, _INFO), room=room),
        Routine(("nnc",), ("nc", *vectors, _INFO), room=complex_room),
    )


def _schur(sides: int) -> tuple[Routine, Routine]:
    """Describe gees of real and of complex numbers. sides: 1 with vectors, else 0."""

    def room(s: Sizes) -> tuple[int, ...]:
        return *[s["n"] ** 2] * (1 + sides), _shifted_work(s)

    def complex_room(s: Sizes) -> tuple[int, ...]:
        return *[2 * count for count in room(s)], s["n"]

    return (
        Routine(
            ("nn",),
            ("nn",) * (1 + sides) + ("n", "n", _INFO),
            room=room,
            integers=lambda s: 1,
        ),
        Routine(
            ("nnc",),
            ("nnc",) * (1 + sides) + ("nc", _INFO),
            room=complex_room,
            integers=lambda s: 1,
        ),
    )


def _bidiagonal(left: str, right: str) -> tuple[Routine, Routine]:
    """Describe gesvd of real and of complex numbers. left, right: the dims of its factors, "" for none."""
    factors = [dims for dims in (left, right) if dims]

    def room(s: Sizes) -> tuple[int, ...]:
        small, large = s["k"], max(s["m"], s["n"])
        held = [s[dims[0]] * s[dims[1]] for dims in factors]
        return s["m"] * s["n"], *held, small * small + 5 * small + large + BLOCK * (small + large)

    def complex_room(s: Sizes) -> tuple[int, ...]:
        return *[2 * count for count in room(s)], 5 * s["k"]

    return (
        Routine(("mn",), ("k", *factors, _INFO), room=room),
        Routine(("mnc",), ("k", *[dims + PARTS for dims in factors], _INFO), room=complex_room),
    )


def _named(name: str, rows: tuple[Routine, Routine]) -> dict[str, Routine]:
    """Return the rows of a routine on real and on complex numbers, by name."""
    return dict(zip((name, name + COMPLEX), rows))


_TRIANGLE = ("lower", "transposed", "unit")
_INFO = INTEGERS
ROUTINES: Mapping[str, Routine] = {
    "potrf": Routine(("nn",), ("nn", _INFO), flags=("lower",)),
    "getrf": Routine(("mn",), ("mn", f"{INTEGERS}k", _INFO), room=lambda s: (s["m"] * s["n"],)),
    "laswp": Routine(
        ("nr", f"{INTEGERS}p"), ("nr",), free="r", flags=("transposed",), limits=(("p", "n"),)
    ),
    "trsm_left": Routine(("nn", "nr"), ("nr",), free="r", flags=_TRIANGLE),
    "trsm_right": Routine(("nn", "rn"), ("rn",), free="r", flags=_TRIANGLE),
    "geqrf": Routine(("mn",), ("mn", "k"), room=_qr_room),
    "orgqr": Routine(("mn", "t"), ("mn",), limits=(("t", "n"), ("n", "m")), room=_qr_room),
    "gesdd": Routine(
        ("mn",),
        ("k", "mk", "kn", _INFO),
        room=lambda s: (s["m"] * s["n"], s["m"] * s["k"], s["k"] * s["n"], _svd_work(s)),
        integers=lambda s: 8 * s["k"],
    ),
    "gesdd_full": Routine(
        ("mn",),
        ("k", "mm", "nn", _INFO),
        room=lambda s: (s["m"] * s["n"], s["m"] ** 2, s["n"] ** 2, _svd_work(s)),
        integers=lambda s: 8 * s["k"],
    ),
    "gesdd_values": Routine(
        ("mn",),
        ("k", _INFO),
        room=lambda s: (s["m"] * s["n"], _svd_work(s)),
        integers=lambda s: 8 * s["k"],
    ),
    "syevd": Routine(
        ("nn",),
        ("nn", "n", _INFO),
        flags=("lower",),
        room=lambda s: (s["n"] ** 2, 1 + (6 + BLOCK) * s["n"] + 2 * s["n"] ** 2),
        integers=lambda s: 3 + 5 * s["n"],
    ),
    "syevd_values": Routine(
        ("nn",),
        ("n", _INFO),
        flags=("lower",),
        room=lambda s: (s["n"] ** 2, 1 + (2 + BLOCK) * s["n"]),
        integers=lambda s: 1,
    ),
    "potrf_complex": Routine(("nnc",), ("nnc", _INFO), flags=("lower",)),
    "getrf_complex": Routine(
        ("mnc",), ("mnc", f"{INTEGERS}k", _INFO), room=lambda s: (2 * s["m"] * s["n"],)
    ),
    "laswp_complex": Routine(
        ("nrc", f"{INTEGERS}p"), ("nrc",), free="r", flags=("transposed",), limits=(("p", "n"),)
    ),
    "trsm_left_complex": Routine(
        ("nnc", "nrc"), ("nrc",), free="r", flags=_TRIANGLE, room=lambda s: (2,)
    ),
    "geqrf_complex": Routine(
        ("mnc",), ("mnc", "kc"), room=lambda s: (2 * s["m"] * s["n"], 2 * BLOCK * s["n"])
    ),
    "orgqr_complex": Routine(
        ("mnc", "tc"),
        ("mnc",),
        limits=(("t", "n"), ("n", "m")),
        room=lambda s: (2 * s["m"] * s["n"], 2 * BLOCK * s["n"]),
    ),
    "gesdd_complex": Routine(
        ("mnc",),
        ("k", "mkc", "knc", _INFO),
        room=lambda s: _complex_svd_room(s, s["k"], s["k"]),
        integers=lambda s: 8 * s["k"],
    ),
    "gesdd_full_complex": Routine(
        ("mnc",),
        ("k", "mmc", "nnc", _INFO),
        room=lambda s: _complex_svd_room(s, s["m"], s["n"]),
        integers=lambda s: 8 * s["k"],
    ),
    "gesdd_values_complex": Routine(
        ("mnc",),
        ("k", _INFO),
        room=lambda s: _complex_svd_room(s, 0, 0),
        integers=lambda s: 8 * s["k"],
    ),
    "syevd_complex": Routine(
        ("nnc",),
        ("nnc", "n", _INFO),
        flags=("lower",),
        room=lambda s: (
            2 * s["n"] ** 2,
            2 * (s["n"] ** 2 + (2 + BLOCK) * s["n"]),
            1 + 5 * s["n"] + 2 * s["n"] ** 2,
        ),
        integers=lambda s: 3 + 5 * s["n"],
    ),
    "syevd_values_complex": Routine(
        ("nnc",),
        ("n", _INFO),
        flags=("lower",),
        room=lambda s: (2 * s["n"] ** 2, 2 * (1 + (2 + BLOCK) * s["n"]), 1 + s["n"]),
        integers=lambda s: 1,
    ),
    "trsm_right_complex": Routine(
        ("nnc", "rnc"), ("rnc",), free="r", flags=_TRIANGLE, room=lambda s: (2,)
    ),
    "ormqr_left": _reflected("mr"),
    "ormqr_right": _reflected("rm"),
    "ormqr_left_complex": _reflected("mr", 2),
    "ormqr_right_complex": _reflected("rm", 2),
    "geqp3": Routine(
        ("mn", f"{INTEGERS}n"),
        ("mn", f"{INTEGERS}n", "k"),
        room=lambda s: (s["m"] * s["n"], 2 * s["n"] + BLOCK * (s["n"] + 1)),
    ),
    "geqp3_complex": Routine(
        ("mnc", f"{INTEGERS}n"),
        ("mnc", f"{INTEGERS}n", "kc"),
        room=lambda s: (2 * s["m"] * s["n"], 2 * BLOCK * (s["n"] + 1), 2 * s["n"]),
    ),
    **_named("gesvd", _bidiagonal("mk", "kn")),
    **_named("gesvd_full", _bidiagonal("mm", "nn")),
    **_named("gesvd_values", _bidiagonal("", "")),
    **_named("geev", _eigen(2)),
    **_named("geev_left", _eigen(1)),
    **_named("geev_right", _eigen(1)),
    **_named("geev_values", _eigen(0)),
    **_named("gees", _schur(1)),
    **_named("gees_form", _schur(0)),
    "gehrd": Routine(
        ("nn",), ("nn", "h", _INFO), room=lambda s: (s["n"] ** 2, BLOCK * s["n"] + TILE)
    ),
    "gehrd_complex": Routine(
        ("nnc",),
        ("nnc", "hc", _INFO),
        room=lambda s: (2 * s["n"] ** 2, 2 * (BLOCK * s["n"] + TILE)),
    ),
    "sytrd": Routine(
        ("nn",),
        ("nn", "n", "h", "h", _INFO),
        flags=("lower",),
        room=lambda s: (s["n"] ** 2, BLOCK * s["n"]),
    ),
    "sytrd_complex": Routine(
        ("nnc",),
        ("nnc", "n", "h", "hc", _INFO),
        flags=("lower",),
        room=lambda s: (2 * s["n"] ** 2, 2 * BLOCK * s["n"]),
    ),
    "gtsv": Routine(
        ("n", "n", "n", "nr"), ("nr", _INFO), room=lambda s: (*[s["n"]] * 3, s["n"] * s["r"])
    ),
    "gtsv_finite": Routine(("n", "n", "n", "nr"), ("nr",), room=lambda s: (*[s["n"]] * 3,)),
    "gtsv_complex": Routine(
        ("nc", "nc", "nc", "nrc"),
        ("nrc", _INFO),
        room=lambda s: (*[2 * s["n"]] * 3, 2 * s["n"] * s["r"]),
    ),
}
"""All routines by name. What they compute is in the docstring of `mw.lapack`."""


@dataclass(frozen=True)
class RoutineCall:
    """Hold what an `mw.lapack` says. sizes: the extent of each letter of its routine; batch: how many matrices."""

    routine: str
    element: str
    batch: tuple[int, ...]
    sizes: Sizes
    flags: frozenset[str] = frozenset()

    @classmethod
    def of(cls, op: ir.Operation) -> RoutineCall:
        """Read an `mw.lapack`, on tensors or on buffers, that its verifier has passed."""
        name = op.attributes["routine"].value
        flags = [flag for flag in ROUTINES[name].flags if flag in op.attributes]
        types = [value.type for value in op.operands]
        return cls.made(name, str(types[0].element_type), [t.shape for t in types], flags)

    @classmethod
    def made(
        cls, name: str, element: str, shapes: Sequence[Sequence[int]], flags: Iterable[str] = ()
    ) -> RoutineCall:
        """Make the call of a routine on operands of these shapes; more shapes may follow."""
        dims, sizes = ROUTINES[name].tensors, {PARTS: 2}
        for shape, letters in zip(shapes, dims[: len(ROUTINES[name].operands)]):
            sizes |= zip(letters, list(shape)[len(shape) - len(letters) :])
        sizes["k"] = min(sizes.get("m", 0), sizes.get("n", 0))
        sizes["h"] = max(1, sizes.get("n", 0) - 1)
        batch = tuple(shapes[0])[: len(shapes[0]) - len(dims[0])]
        return cls(name, element, batch, sizes, frozenset(flags))

    @property
    def key(self) -> tuple[object, ...]:
        """Return what equal calls have in common."""
        sizes = tuple(sorted(self.sizes.items()))
        return self.routine, self.element, self.matrices, sizes, tuple(sorted(self.flags))

    @property
    def title(self) -> str:
        """Return what reports call it."""
        return f"{self.routine} of LAPACK"

    @property
    def is_complex(self) -> bool:
        """Tell whether it computes with complex numbers."""
        return self.routine.endswith(COMPLEX)

    @property
    def inputs(self) -> int:
        """Count the operands that it reads."""
        return len(self.row.operands)

    @property
    def row(self) -> Routine:
        """Return the row of its routine."""
        return ROUTINES[self.routine]

    @property
    def matrices(self) -> int:
        """Count the matrices of the batch."""
        return math.prod(self.batch)

    def extents(self, dims: str) -> list[int]:
        """Return the extents of these dims."""
        return [self.sizes[letter] for letter in dims]

    @property
    def scratch_bytes(self) -> int:
        """Return the bytes of memory that it needs besides its results."""
        width = int(self.element[1:]) // 8
        return sum(self.row.room(self.sizes)) * width + 4 * self.row.integers(self.sizes)

    @property
    def shapes(self) -> list[list[int]]:
        """Return the shapes of the operands and results."""
        return [[*self.batch, *self.extents(dims)] for dims in self.row.tensors]
