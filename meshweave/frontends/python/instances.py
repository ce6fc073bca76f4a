"""Take an object whose method is compiled apart: its arrays are arguments, all else about it is static."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import wraps
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from meshweave.errors import UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import fail


@dataclass(frozen=True)
class Static:
    """Hold a value that is no array, in a structure: `key` tells it from others."""

    key: Hashable
    value: Any = field(compare=False)

    def __call__(self) -> Any:
        """Return the value."""
        return self.value


@dataclass(frozen=True)
class Attributes:
    """Make an object of a class anew around the values of its attributes, without calling its constructor."""

    kind: type
    names: tuple[str, ...]

    def __call__(self, *values: Any) -> Any:
        """Return the object."""
        made: Any = object.__new__(self.kind)
        for name, value in zip(self.names, values):
            object.__setattr__(made, name, value)  # also where the class forbids it
        return made


@dataclass(frozen=True)
class Receiver(tree.Opened):
    """Be the object whose method is called, as a container of its arrays."""

    value: Any

    def parts(self) -> tree.Container | None:
        """Return its attributes, or what it is as a pytree; None for an array."""
        value = self.value
        if hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type):
            return None
        found = tree.container(value)
        if found is not None:
            inside = tuple([Receiver(child) for child in found.children])
            return tree.Container(found.kind, found.keys, inside)
        if _holds_arrays(value, set()):
            attributes = _attributes(value)
            values = tuple([Receiver(v) for v in attributes.values()])
            return tree.Container(Attributes(type(value), tuple(attributes)), None, values)
        try:
            hash(value)
        except TypeError:
            raise UsageError(
                f"self: an attribute is a {type(value).__name__}, which is neither array nor hashable"
            ) from None
        key = (type(value), repr(value)) if isinstance(value, float) else (type(value), value)
        return tree.Container(Static(key, value), None, ())


_PLAIN = (
    *(str, bytes, int, float, complex, type, ModuleType, FunctionType, MethodType),
    BuiltinFunctionType,
)


def _holds_arrays(value: Any, seen: set[int]) -> bool:
    """Tell whether an object, or what it holds, has attributes that are arrays."""
    if id(value) in seen or isinstance(value, _PLAIN):
        return False
    seen.add(id(value))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return True
    found = tree.container(value)
    inside = found.children if found is not None else _attributes(value).values()
    return any(_holds_arrays(v, seen) for v in inside)


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots too."""
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**held, **getattr(value, "__dict__", {})}


def _slots(kind: type) -> tuple[str, ...]:
    found = kind.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)


def unchanged(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a method that raises CompileError where it sets attributes of its object, which a program cannot."""

    @wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _attributes(self)
        returned = function(self, *args, **kwargs)
        after = _attributes(self)
        changed = [
            n for n in {**before, **after} if before.get(n, _NONE) is not after.get(n, _NONE)
        ]
        if changed:
            fail(
                f"{name} sets self.{changed[0]}, which happens only when it is traced: return it, "
                "and set it where the method is called"
            )
        return returned

    return call


_NONE = object()
