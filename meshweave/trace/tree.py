"""Pytrees: tuples, lists, dicts (subclasses as plain ones), None, namedtuples and dataclasses as a list of leaves and a
structure.

The structure is a plain, hashable value: `LEAF`, or (kind, what rebuilds it, the structures inside).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from meshweave.errors import UsageError

LEAF = "*"
Structure = Any
MAX_DEPTH = 100  # of nested containers: none holds itself


def flatten(
    value: Any, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[Any], Structure]:
    """The leaves in order, and the structure that `unflatten` puts them back into.

    is_leaf: containers for which it holds are leaves. Raises UsageError for nesting without end.
    """
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves, is_leaf, 0)


def _flatten(
    value: Any, leaves: list[Any], is_leaf: Callable[[Any], bool] | None, depth: int
) -> Structure:
    if depth > MAX_DEPTH:
        raise UsageError(f"containers nested deeper than {MAX_DEPTH}: does one hold itself?")
    found = None if is_leaf is not None and is_leaf(value) else children(value)
    if found is None:
        leaves.append(value)
        return LEAF
    kind, how, inside = found
    return (kind, how, tuple([_flatten(child, leaves, is_leaf, depth + 1) for child in inside]))


def children(value: Any) -> tuple[Any, Any, list[Any]] | None:
    """Kind, what rebuilds it, and the children of a container; None of a leaf."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind, None, list(value)
    if value is None:
        return None, None, []
    if isinstance(value, dict):
        # an OrderedDict keeps its order; other subclasses, which take who knows what to make, become dicts
        keys = tuple(value) if kind is OrderedDict else tuple(_ordered(value))
        return (kind if kind is OrderedDict else dict), keys, [value[key] for key in keys]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind, None, list(value)
    if is_dataclass(value) and not isinstance(value, type):
        names = tuple(f.name for f in fields(value) if f.init)
        if names and not getattr(kind, "__meshweave_leaf__", False):
            return kind, names, [getattr(value, name) for name in names]
    return None


def _ordered(value: dict[Any, Any]) -> list[Any]:
    """The keys sorted where they can be, so that equal dicts have equal structures."""
    try:
        return sorted(value)
    except TypeError:
        return list(value)


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    """The containers of `structure` around the next leaves."""
    if structure == LEAF:
        return next(leaves)
    kind, how, inside = structure
    parts = [unflatten(child, leaves) for child in inside]
    if kind is None:
        return None
    if kind is tuple or kind is list:
        return kind(parts)
    if how is None:
        return kind(*parts)  # a namedtuple
    make: Any = kind
    named = dict(zip(how, parts))
    return make(**named) if is_dataclass(kind) else make(named)


def count(structure: Structure) -> int:
    """How many leaves a structure has."""
    return 1 if structure == LEAF else sum(count(child) for child in structure[2])


def paths(structure: Structure, at: str = "") -> list[str]:
    """For each leaf how to get at it, as Python writes it: `[0]["w"]`."""
    if structure == LEAF:
        return [at]
    kind, how, inside = structure
    if how is None:
        keys = [f"[{i}]" for i in range(len(inside))]
    elif is_dataclass(kind):
        keys = [f".{name}" for name in how]
    else:
        keys = [f"[{key!r}]" for key in how]
    return [path for key, child in zip(keys, inside) for path in paths(child, at + key)]


def spread(
    prefix: Any, structure: Structure, is_leaf: Callable[[Any], bool], what: str
) -> list[Any]:
    """One leaf of `prefix` for each leaf of `structure`: a leaf of it stands for everything below.

    Raises UsageError, naming `what`, when the two do not fit.
    """
    if is_leaf(prefix):
        return [prefix] * count(structure)
    found = children(prefix)
    if structure == LEAF or found is None:
        here = "one value" if structure == LEAF else "a container"
        raise UsageError(f"{what}: {prefix!r} for {here}")
    kind, how, inside = found
    if kind is not structure[0] and {kind, structure[0]} > {tuple, list}:
        raise UsageError(f"{what}: a {kind.__name__} for a {structure[0].__name__}")
    if how != structure[1] or len(inside) != len(structure[2]):
        have = list(how) if how else len(inside)
        need = list(structure[1]) if structure[1] else len(structure[2])
        raise UsageError(f"{what}: {have} entries, {need} are right")
    pairs = enumerate(zip(inside, structure[2]))
    keys = how or range(len(inside))
    return [
        leaf
        for i, (child, below) in pairs
        for leaf in spread(child, below, is_leaf, f"{what}[{keys[i]!r}]")
    ]
