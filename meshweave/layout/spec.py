"""Define `P(...)`, a PartitionSpec that needs no JAX."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from meshweave.errors import UsageError
from meshweave.layout.layout import Layout


class P(tuple[Any, ...]):
    """Describe a layout as a PartitionSpec: for each dim None, the name of an axis, or a tuple of names, major first.

    `P("x", None, ("y", "z"))` is `[x, _, y*z]` for a tensor of 3 dims; `dims` that are not named are whole.
    `unreduced` names axes over which a sum is still to do.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> a = mw.Array.from_numpy(np.zeros((4, 8)), mesh="x=2, y=2, z=2", layout=P("x", ("y", "z")))
    >>> str(a.layout)
    '[x, y*z]'
    """

    unreduced: frozenset[str]

    def __new__(cls, *dims: Any, unreduced: Sequence[str] = ()) -> "P":
        made = super().__new__(cls, dims)
        made.unreduced = frozenset(unreduced)
        return made

    def __repr__(self) -> str:
        words = [repr(entry) for entry in self]
        if self.unreduced:
            words.append(f"unreduced={sorted(self.unreduced)!r}")
        return f"P({', '.join(words)})"


LayoutLike: TypeAlias = str | Layout | tuple[Any, ...]
"""What users write for a layout: its text, a Layout, or a PartitionSpec (ours and JAX's are tuples)."""


def is_spec(value: object) -> bool:
    """Tell whether a value is a PartitionSpec: ours, or JAX's, whose class has two names."""
    kind = type(value)
    return isinstance(value, P) or f"{kind.__module__}.{kind.__name__}".endswith(
        ("jax.P", ".PartitionSpec")
    )


def as_layout(layout: object, ndim: int) -> Layout:
    """Return the layout that an argument means, for a tensor of `ndim` dims: text, a Layout, or a PartitionSpec.

    Raises UsageError for anything else, LayoutError for text that cannot be read.
    """
    if isinstance(layout, Layout):
        return layout
    if isinstance(layout, str):
        return Layout.parse(layout)
    if isinstance(layout, Iterable) and (isinstance(layout, tuple) or is_spec(layout)):
        from meshweave.layout.interchange import from_spec  # here, for few programs need it

        return from_spec(layout, ndim)
    raise UsageError(
        f'layout: text such as "[x, _]", a Layout or a PartitionSpec is needed, got {layout!r:.60}'
    )
