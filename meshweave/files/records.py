"""Read dataclasses back from JSON: each value is checked against the type of its field."""

from __future__ import annotations

from dataclasses import Field, fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar, get_args, get_origin, get_type_hints

from meshweave.errors import MeshweaveError

LARGEST = 1 << 62  # bytes and counts above this are nonsense, not data


class _Dataclass(Protocol):
    """Match any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


Record = TypeVar("Record", bound=_Dataclass)


def record(kind: type[Record], value: object, what: str) -> Record:
    """Build a dataclass from a JSON object: all fields present, no others.

    Its fields are text, counts (whole numbers of at least 0, or null where None is allowed), flags, other such
    dataclasses, and tuples of these. what: the name of the value. Raises MeshweaveError that names the field at fault
    and says what it should be.
    """
    types = _types(kind)
    if not isinstance(value, dict):
        raise MeshweaveError(f"{what} should be an object, is {value!r:.60}")
    if missing := [name for name in types if name not in value]:
        raise MeshweaveError(f"{what} has no {missing[0]}")
    if unknown := [name for name in value if name not in types]:
        raise MeshweaveError(f"{what} has an unknown field {unknown[0]!r:.60}")
    return kind(**{name: _read(types[name], value[name], f"{what}.{name}") for name in types})


@cache
def _types(kind: type[_Dataclass]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _read(type_: Any, value: object, what: str) -> object:
    """Return a value from JSON as one of a type."""
    if isinstance(type_, type) and is_dataclass(type_):
        return record(type_, value, what)
    if type_ == int | None:
        return value if value is None else _read(int, value, what)
    if get_origin(type_) is tuple:
        return _several(get_args(type_), value, what)
    right, name = {
        str: (isinstance(value, str), "text"),
        bool: (isinstance(value, bool), "true or false"),
        int: (type(value) is int and 0 <= value <= LARGEST, "a count"),
    }[type_]
    if not right:
        raise MeshweaveError(f"{what} should be {name}, is {value!r:.60}")
    return value


def _several(types: tuple[Any, ...], value: object, what: str) -> tuple[object, ...]:
    """Return a list from JSON as a tuple of these types; (T, ...) stands for any number of T."""
    if not isinstance(value, list):
        raise MeshweaveError(f"{what} should be a list, is {value!r:.60}")
    if types[-1] is ...:
        types = types[:1] * len(value)
    if len(value) != len(types):
        raise MeshweaveError(f"{what} should have {len(types)} elements, has {len(value)}")
    pairs = enumerate(zip(types, value))
    return tuple(_read(type_, element, f"{what}[{k}]") for k, (type_, element) in pairs)
