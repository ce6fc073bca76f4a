"""MLIR text of our own dialects and upstream's: taken as it is."""

from typing import Any, ClassVar

from meshweave.locations import parse_module


class Mlir:
    """The frontend for everything that is MLIR text already."""

    name: ClassVar[str] = "mlir"

    @staticmethod
    def accepts(text: str) -> bool:
        """Whatever no frontend before this one took."""
        return True

    @staticmethod
    def load(text: str, ctx: Any, name: str) -> Any:
        """Parse and verify. Raises CompileError with the place of the first mistake."""
        return parse_module(text, ctx, name)
