"""Read what types and attributes say as plain values, once for both programs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from meshweave.ir.bindings import ir

T = TypeVar("T")
ElementShape = tuple[tuple[int, ...], str]
"""A shape, () for a scalar, and the element type as text."""
_HOW = ("fastmath", "overflowFlags", "exact", "isExact", "nonNeg", "denormal")
"""Attributes that say how something is computed, or what may be assumed, but not what."""


class NotReadError(Exception):
    """Say why an op cannot be read."""


@dataclass
class AttributeTexts:
    """Hold what types and attributes say: each is asked once for both programs, which have most in common."""

    _values: dict[Hashable, Any] = field(default_factory=dict)
    shapes: dict[ir.Type, ElementShape] = field(default_factory=dict)
    _texts: dict[ir.Type | ir.Attribute, str] = field(default_factory=dict)
    _details: dict[Hashable, tuple[Hashable, ...]] = field(default_factory=dict)

    def once(self, key: Hashable, read: Callable[[], T]) -> T:
        """Return what `read` gives, asked for once for each key, which is of attributes and numbers."""
        found: T | None = self._values.get(key)
        if found is None:
            found = self._values[key] = read()
        return found

    def shape(self, type_: ir.Type) -> ElementShape:
        """Return the shape of a type, () for a scalar, and its element type as text."""
        found = self.shapes.get(type_)
        if found is None:
            found = (), str(type_)
            if isinstance(type_, ir.RankedTensorType):
                if not type_.has_static_shape:
                    raise NotReadError(f"{type_} has a size that is not known")
                found = tuple(type_.shape), str(type_.element_type)
            self.shapes[type_] = found
        return found

    def text(self, what: ir.Type | ir.Attribute) -> str:
        """Write a type or an attribute."""
        found = self._texts.get(what)
        if found is None:
            found = self._texts[what] = str(what)
        return found

    def detail(self, attributes: Sequence[tuple[str, ir.Attribute]]) -> tuple[Hashable, ...]:
        """Return attributes as text, without what says nothing of the value."""
        if not attributes:
            return ()
        key = tuple(attributes)
        found = self._details.get(key)
        if found is None:
            found = self._details[key] = tuple(
                [
                    (name, self.text(value))
                    for name, value in attributes
                    if not name.startswith(("mw.", "dist.", "hint")) and name not in _HOW
                ]
            )
        return found
