"""Say where numbers lie that a transform reads and writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from meshweave.lowering.writer import Value


@dataclass(frozen=True, eq=False)
class ComplexRows:
    """Describe rows of complex numbers.

    re, im: where their parts begin; im is None where both are woven, or all are real. step: elements from a row to the
    next, in units of complex numbers where they are woven. swaps: the parts change places on the way. scale: what
    they are multiplied with when they are stored.
    """

    re: Value
    im: Value | None
    step: int
    woven: bool = False
    swaps: bool = False
    scale: float = 1.0

    def swapped(self) -> ComplexRows:
        """Return the view in which both parts change places."""
        return replace(self, swaps=not self.swaps)

    def scaled(self, factor: float) -> ComplexRows:
        """Return the view whose numbers are multiplied when they are stored."""
        return replace(self, scale=self.scale * factor)


class ViewElement(NamedTuple):
    """Name numbers of a view: a row, or a vector of rows where there is no column; else columns of the row."""

    row: Value
    column: Value | None
    lanes: int


class ComplexConstants(NamedTuple):
    """Hold where constant complex numbers lie: real parts, then as many imaginary ones."""

    pointer: Value
    size: int
