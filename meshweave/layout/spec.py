"""Define `P(...)`, a PartitionSpec that needs no JAX."""

from collections.abc import Sequence
from typing import Any, TypeAlias

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
