"""`P(..)`: a PartitionSpec without JAX."""

from collections.abc import Sequence
from typing import Any


class P(tuple[Any, ...]):
    """A PartitionSpec: per dim None, the name of an axis, or a tuple of names, major first.

    `P("x", None, ("y", "z"))` is `[x, _, y*z]` of a tensor of 3 dims; dims that are not named are
    whole. `unreduced` names axes over which a sum is still to do.

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
