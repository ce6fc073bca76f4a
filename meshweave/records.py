"""Plain values read back from JSON: each reader takes a value and what it is called, and gives it, or
a MeshweaveError that says what it should be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from meshweave.errors import MeshweaveError

LARGEST = 1 << 62  # bytes and counts above this are nonsense, not data

T = TypeVar("T")
Reader = Callable[[Any, str], Any]


def record(kind: Any, value: Any, what: str, readers: dict[str, Reader]) -> Any:
    """Build a dataclass from a JSON object: every field there, none other, each read by its
    reader (default: text).
    """
    names = [field.name for field in fields(kind)]
    if not isinstance(value, dict):
        raise MeshweaveError(f"{what} should be an object, is {value!r:.60}")
    if missing := [name for name in names if name not in value]:
        raise MeshweaveError(f"{what} has no {missing[0]}")
    if unknown := [name for name in value if name not in names]:
        raise MeshweaveError(f"{what} has an unknown field {unknown[0]!r:.60}")
    read: dict[str, Reader] = {name: readers.get(name, text) for name in names}
    return kind(**{name: read[name](value[name], f"{what}.{name}") for name in names})


def text(value: Any, what: str) -> str:
    """Text."""
    if not isinstance(value, str):
        raise MeshweaveError(f"{what} should be text, is {value!r:.60}")
    return value


def count(value: Any, what: str) -> int:
    """A whole number of at least 0."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
        raise MeshweaveError(f"{what} should be a count, is {value!r:.60}")
    return value


def flag(value: Any, what: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise MeshweaveError(f"{what} should be true or false, is {value!r:.60}")
    return value


def several(reader: Callable[[Any, str], T]) -> Callable[[Any, str], tuple[T, ...]]:
    """A reader of a list whose elements `reader` reads."""

    def read(value: Any, what: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise MeshweaveError(f"{what} should be a list, is {value!r:.60}")
        return tuple(reader(element, f"{what}[{index}]") for index, element in enumerate(value))

    return read


def exactly(number: int, reader: Callable[[Any, str], T]) -> Callable[[Any, str], tuple[T, ...]]:
    """A reader of a list of so many elements."""
    whole = several(reader)

    def read(value: Any, what: str) -> tuple[T, ...]:
        found = whole(value, what)
        if len(found) != number:
            raise MeshweaveError(f"{what} should have {number} elements, has {len(found)}")
        return found

    return read
