"""Take pytrees apart into leaves and a structure, and put them together again.

Containers are tuples, lists, dicts (subclasses become plain ones), None, namedtuples, dataclasses, and what is
registered with JAX or optree; everything else is a leaf. A structure is a plain, hashable value.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from meshweave.errors import UsageError

LEAF: Literal["*"] = "*"
MAX_DEPTH = 100  # of nested containers: none holds itself


class Container(NamedTuple):
    """Describe a container in a structure.

    kind: its type (None: the value None). keys: of a dict, or the fields of a dataclass; None for others.
    """

    kind: Any  # a type that is called with the children
    keys: tuple[Any, ...] | None
    children: tuple[Any, ...]  # structures


Structure: TypeAlias = Container | Literal["*"]


def flatten(
    value: object, is_leaf: Callable[[Any], bool] | None = None, known: Set[type] = frozenset()
) -> tuple[list[Any], Structure]:
    """Return the leaves in order, and the structure that `unflatten` puts them back into.

    is_leaf: containers for which it holds are leaves. known: types of leaves, which is faster to look up. Raises
    UsageError for nesting without end.
    """
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves, is_leaf, known, 0)


def _flatten(
    value: object,
    leaves: list[Any],
    is_leaf: Callable[[Any], bool] | None,
    known: Set[type],
    depth: int,
) -> Structure:
    if depth > MAX_DEPTH:
        raise UsageError(f"containers nested deeper than {MAX_DEPTH}: does one hold itself?")
    found = None if is_leaf is not None and is_leaf(value) else container(value)
    if found is None:
        leaves.append(value.value if isinstance(value, Opened) else value)
        return LEAF
    inside: list[Structure] = []
    for child in found.children:
        if type(child) in known:
            leaves.append(child)
            inside.append(LEAF)
        else:
            inside.append(_flatten(child, leaves, is_leaf, known, depth + 1))
    return Container(found.kind, found.keys, tuple(inside))


class Opened:
    """Be a container that says itself what its children are, around a value that is none of its own."""

    value: Any
    parts: Callable[[], Container | None]
    """Return the children; None where the value is a leaf."""


def container(value: object) -> Container | None:
    """Describe one container, with its values as children; return None for a leaf."""
    kind = type(value)
    if isinstance(value, Opened):
        return value.parts()
    if isinstance(value, tuple | list) and kind in (tuple, list):
        return Container(kind, None, tuple(value))
    if value is None:
        return Container(None, None, ())
    if isinstance(value, dict):
        # an OrderedDict keeps its order; other subclasses, whose constructors are unknown, become dicts
        keys = tuple(value) if kind is OrderedDict else tuple(_ordered(value))
        made = kind if kind is OrderedDict else dict
        return Container(made, keys, tuple([value[key] for key in keys]))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Container(kind, None, tuple(value))
    if is_dataclass(value) and not isinstance(value, type):
        names = tuple(f.name for f in fields(value) if f.init)
        if names and not getattr(kind, "__meshweave_leaf__", False):
            return Container(kind, names, tuple([getattr(value, name) for name in names]))
    return None if kind in _LEAVES or hasattr(value, "dtype") else _registered(value)


_LEAVES = (bool, int, float, complex, str, bytes, type)


class Registered(NamedTuple):
    """Put together what a library that it is registered with takes apart: `form` is that library's."""

    form: Any

    def __call__(self, *children: Any) -> Any:
        """Return the container around other children."""
        return self.form.unflatten(children)


def _registered(value: object) -> Container | None:
    """Describe a container that is registered with JAX or optree; neither is imported for this."""
    inside: Callable[[Any], bool] = lambda v: v is not value  # noqa: E731
    jax, optree = sys.modules.get("jax"), sys.modules.get("optree")
    found: tuple[Any, Any] | None = None
    if jax is not None and hasattr(jax, "tree_util"):
        found = jax.tree_util.tree_flatten(value, inside)
    if optree is not None and (found is None or _is_whole(found[0], value)):
        flatten = getattr(optree, "tree_flatten", None)  # while it is being imported it has none
        if flatten is not None:
            space = _namespace(optree, type(value))
            found = flatten(value, inside, none_is_leaf=True, namespace=space)
    if found is None or _is_whole(found[0], value):
        return None
    return Container(Registered(found[1]), None, tuple(found[0]))


def _namespace(optree: Any, kind: type) -> str:
    """Return the only namespace in which optree knows a type; "" where it knows it in all of them, or in several."""
    known = getattr(optree.registry, "_NODETYPE_REGISTRY", {})  # it has no list of namespaces
    found = [key[0] for key in list(known) if isinstance(key, tuple) and key[1] is kind]
    return found[0] if len(found) == 1 and kind not in known else ""


def _is_whole(children: Sequence[Any], value: object) -> bool:
    return len(children) == 1 and children[0] is value


def _ordered(value: dict[Any, Any]) -> list[Any]:
    """Return the keys, sorted where they can be, so that equal dicts have equal structures."""
    try:
        return sorted(value)
    except TypeError:
        return list(value)


def unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    """Build the containers of `structure` around the next leaves."""
    if not isinstance(structure, Container):
        return next(leaves)
    kind, keys = structure.kind, structure.keys
    parts = [
        unflatten(child, leaves) if isinstance(child, Container) else next(leaves)
        for child in structure.children
    ]
    if kind is None:
        return None
    if kind is tuple or kind is list:
        return kind(parts)
    if keys is None:
        return kind(*parts)  # a namedtuple
    named = dict(zip(keys, parts))
    return kind(named) if kind in (dict, OrderedDict) else kind(**named)


def is_flat(structure: Structure) -> bool:
    """Tell whether a structure is a tuple of leaves."""
    if not isinstance(structure, Container) or structure.kind is not tuple:
        return False
    return not any(isinstance(child, Container) for child in structure.children)


def count(structure: Structure) -> int:
    """Count the leaves of a structure."""
    return sum(map(count, structure.children)) if isinstance(structure, Container) else 1


def paths(structure: Structure, at: str = "") -> list[str]:
    """Return how Python writes the access to each leaf: `[0]["w"]`."""
    if not isinstance(structure, Container):
        return [at]
    if structure.keys is None:
        keys = [f"[{i}]" for i in range(len(structure.children))]
    elif is_dataclass(structure.kind):
        keys = [f".{name}" for name in structure.keys]
    else:
        keys = [f"[{key!r}]" for key in structure.keys]
    return [path for key, child in zip(keys, structure.children) for path in paths(child, at + key)]


def broadcast_prefix(
    prefix: object, structure: Structure, is_leaf: Callable[[Any], bool], what: str
) -> list[Any]:
    """Return a leaf of `prefix` for each leaf of `structure`; a leaf of it is repeated for everything below.

    Raises UsageError, naming `what`, if the two do not fit.
    """
    if is_leaf(prefix):
        return [prefix] * count(structure)
    found = container(prefix)
    if found is None or not isinstance(structure, Container):
        here = "a container" if isinstance(structure, Container) else "one value"
        raise UsageError(f"{what}: {prefix!r} for {here}")
    if found.keys != structure.keys or len(found.children) != len(structure.children):
        have, need = (
            _listed(found.keys, found.children),
            _listed(structure.keys, structure.children),
        )
        raise UsageError(f"{what}: {have} entries, {need} are right")
    keys = found.keys or range(len(found.children))
    return [
        leaf
        for key, child, below in zip(keys, found.children, structure.children)
        for leaf in broadcast_prefix(child, below, is_leaf, f"{what}[{key!r}]")
    ]


def _listed(keys: tuple[Any, ...] | None, children: Sequence[object]) -> list[Any] | int:
    return list(keys) if keys else len(children)
