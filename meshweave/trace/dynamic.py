"""Functions of the array API standard whose results have shapes that depend on the elements: refused, with what to do.

Programs have the shapes of their tensors fixed when they are traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from meshweave.trace.builder import fail
from meshweave.trace.elementwise import named
from meshweave.trace.tracer import tracing


def _refused(name: str, instead: str) -> Callable[..., Any]:
    def function(x: Any, /) -> NoReturn:
        tracing(x)
        fail(
            f"{name}: the shape of the result depends on the elements, and programs have fixed shapes: {instead}"
        )

    doc = f"Refused: its result has a shape that only the run knows. {instead[0].upper()}{instead[1:]}."
    return named(function, name, doc)


_SORTED = "mw.sort puts equal elements side by side, or do it on NumPy arrays outside"

nonzero = _refused("nonzero", "mw.where keeps the shape, mw.count_nonzero counts")
unique_all = _refused("unique_all", _SORTED)
unique_counts = _refused("unique_counts", _SORTED)
unique_inverse = _refused("unique_inverse", _SORTED)
unique_values = _refused("unique_values", _SORTED)
