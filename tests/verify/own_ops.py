"""Whole programs of what has ops of its own: scatters, scans, sorts, routines, transforms, windows, complex numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np

import meshweave as mw
from tests import test_fft, test_lapack, test_scans, test_scatters
from tests.executed import on

ORDER = """
func.func public @main(%a: tensor<7x10xf32> {LAYOUT}) -> (tensor<7x3xi32> {[x, _]}) {
  %0 = "mw.order"(%a) {dim = 1 : i64, descending, total} : (tensor<7x10xf32>) -> tensor<7x3xi32>
  return %0 : tensor<7x3xi32>
}"""
ROUTINES: dict[str, tuple[list[tuple[int, ...]], str]] = {
    "potrf": ([(4, 3, 3)], ", lower"),
    "trsm_left": ([(4, 3, 3), (4, 3, 2)], ", lower"),
    "trsm_right": ([(4, 3, 3), (4, 2, 3)], ", lower, unit"),
    "geqrf": ([(4, 5, 3)], ""),
    "syevd": ([(4, 3, 3)], ", lower"),
    "ormqr_left": ([(4, 5, 3), (4, 3), (4, 5, 2)], ", transposed"),
    "geqp3": ([(4, 5, 3), (4, 3)], ""),
    "geev": ([(4, 3, 3)], ""),
    "gees": ([(4, 3, 3)], ""),
    "gtsv": ([(4, 3), (4, 3), (4, 3), (4, 3, 2)], ""),
}
"""Shapes of the operands of a routine, and its flags."""


def traced(
    f: Callable[..., Any], *shapes: tuple[int, ...], dtype: str = "f4", **options: Any
) -> str:
    """The text of a function of NumPy's kind, in layouts."""
    return mw.jit(f, **options).lower(*[np.ones(s, dtype) for s in shapes]).as_text()


def texts_of_ops() -> dict[str, str]:
    """Whole programs by name."""
    found = {}
    parts = [(m, p) for m, all_of in test_scatters.MESHES.items() for p in all_of]
    for number, kind in enumerate(test_scatters.COMBINE):
        for k in (number, number + 3):
            mesh, layouts = parts[k % len(parts)]
            text = test_scatters.program(kind, 9, 7, 5, layouts)
            found[f"scatter {kind} {k}"] = on(mesh, text)
    for kind, reverse, layout in (
        ("sum", False, "[x, _]"), ("max", True, "[x, y]"), ("prod", True, "[y*x, _]"),
        ("min", False, "[_, x]"),
    ):  # fmt: skip
        text = test_scans.text((9, 4), 0, kind, layout, reverse)
        found[f"scan {kind}"] = on("x=2, y=2", text)
    for layout in ("[x, _]", "[_, x]"):
        found[f"order {layout}"] = on("x=2", ORDER.replace("LAYOUT", layout))
    for name, (shapes, flags) in ROUTINES.items():
        tensors = test_lapack.ROUTINES[name].tensors
        batch = len(shapes[0]) - len(tensors[0].strip("#"))
        layouts = [_cut_first(dims, batch) for dims in tensors]
        text = test_lapack.program(name, shapes, "f32", flags, layouts=layouts)
        found[f"lapack {name}"] = on("x=2", text)
    for kind, dim, layout, apart in (
        ("fft", 1, "[x, _]", True), ("ifft", 0, "[x, _]", False),
        ("rfft", 1, "[_, x]", False), ("irfft", 0, "[_, x]", True),
    ):  # fmt: skip
        found[f"fft {kind}"] = test_fft.program(kind, (4, 6), dim, 6, "f32", layout, "x=2", apart)[
            0
        ]
    rows = {"mesh": "x=2", "in_layouts": ("[x, _]",), "out_layouts": "[x, _]"}
    grid = {"mesh": "x=2, y=2", "in_layouts": ("[x, y]",), "out_layouts": "[x, y]"}
    pair = {"mesh": "x=2", "in_layouts": ("[_, x]", "[x, _]"), "out_layouts": "[x, _]"}
    found |= {
        "window of rows": traced(lambda a: a[1:] - a[:-1], (9, 3), **rows),
        "window of a grid": traced(lambda a: a[1:, :-1] + a[:-1, 1:], (9, 7), **grid),
        "window rolled": traced(lambda a: mw.roll(a, 1, axis=0) * a, (8, 3), **rows),
        "window joined": traced(lambda a: mw.concat([a[:1], a, a[-1:]], axis=0), (8, 3), **rows),
        "complex product": traced(lambda a, b: a @ b, (4, 6), (6, 4), dtype="c8", **pair),
        "complex quotient": traced(lambda a: a / (a * a + 1), (6, 4), dtype="c8", **rows),
    }
    return found


def _cut_first(dims: str, batch: int) -> str:
    """A layout of a batch that is cut over `x`."""
    return f"[{', '.join(['x', *['_'] * (batch - 1 + len(dims.strip('#')))])}]"
