"""Define vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshweave.api.gradients.functions import either
from meshweave.frontends.python.mapping.transform import mapped


def vmap(
    function: Callable[..., Any],
    in_axes: Any = 0,
    out_axes: Any = 0,
    *,
    axis_size: int | None = None,
) -> Callable[..., Any]:
    """Return the function that computes `function` for each place along a dim of its arguments, all at once.

    in_axes: which dim of each positional argument: a number, None for an argument that is the same for all places, or
    a pytree of these for each argument; named arguments have 0. out_axes: which dim of each result the places are.
    axis_size: how many places there are, where no argument says it. Maps nest, inside `mw.jit` and around it, and
    `mw.grad` goes around them and inside; outside of traced functions the map is compiled for the mesh of the arrays.

    Raises CompileError for axes that do not fit, and for an op that cannot be mapped, at its line.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> products = mw.vmap(lambda a, b: a @ b, in_axes=(0, None))
    >>> np.asarray(products(np.ones((5, 2, 3), np.float32), np.ones(3, np.float32))).shape
    (5, 2)
    """

    def derived(*args: Any, **kwargs: Any) -> Any:
        return mapped(function, args, kwargs, in_axes, out_axes, axis_size)

    return either("mw.vmap", function, derived)
