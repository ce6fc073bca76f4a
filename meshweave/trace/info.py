"""What the namespace has of the array API standard, for code that asks (`__array_namespace_info__`)."""

from __future__ import annotations

from typing import Any

from meshweave.trace.dtypes import DEFAULT_FLOAT, DEFAULT_INT, DTYPES, DType, isdtype


class Info:
    """Capabilities, devices and dtypes of meshweave as an array library."""

    def capabilities(self) -> dict[str, Any]:
        """No results whose shapes depend on elements, at most 64 dims."""
        return {"boolean indexing": False, "data-dependent shapes": False, "max dimensions": 64}

    def default_device(self) -> None:
        """None: the mesh of the program."""
        return None

    def devices(self) -> list[None]:
        """None alone: the mesh of the program."""
        return [None]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """What functions make when no dtype is said."""
        return {"real floating": DEFAULT_FLOAT, "integral": DEFAULT_INT, "indexing": DEFAULT_INT}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """Dtypes by name, those of a kind (as `isdtype` takes it) when one is given."""
        every = {repr(d).partition(".")[2]: d for d in DTYPES.values()}
        return {name: d for name, d in every.items() if kind is None or isdtype(d, kind)}
