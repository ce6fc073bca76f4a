"""Assign to elements by their places in a row: `x.put` and `x.flat` of arrays, outside of programs and in them."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.functions.create import asarray
from meshweave.frontends.python.tracer import Tracer


def put(x: Any, indices: Any, values: Any) -> None:
    """Let the elements of x at `indices`, places in its row-major order, be `values`, in place, as np.put does.

    Values that are too few are repeated. Raises IndexError for places that are known and out of range.
    """
    if isinstance(values, list | tuple) and isinstance(x, Tracer):
        values = asarray(values, dtype=x.dtype)
    x[_places(indices, x.shape)] = _repeated(values, _shape(indices))


def _shape(value: Any) -> tuple[int, ...]:
    return value.shape if isinstance(value, Tracer) else np.shape(value)


def _places(indices: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the places along each dim."""
    if isinstance(indices, Tracer):
        from meshweave.frontends.python.extras.manipulate import unravel_index

        return unravel_index(indices, shape)
    places, size = np.asarray(indices), prod(shape)
    if not places.size:
        places = places.astype(np.int64)
    if places.dtype.kind not in "iu":
        fail(f"put: places of dtype {places.dtype}, integers are right")
    if places.size and not -size <= places.min() <= places.max() < size:
        raise IndexError(f"put: places {places.min()} to {places.max()} of {size} elements")
    return np.unravel_index(places % max(size, 1), shape)


def _repeated(values: Any, shape: tuple[int, ...]) -> Any:
    """Return values for places of a shape; one value serves all of them."""
    own = _shape(values)
    if own in ((), shape):
        return values
    if isinstance(values, Tracer):
        from meshweave.frontends.python.extras.manipulate import resize

        return resize(values, shape)
    return np.resize(np.asarray(values), shape)


class FlatView:
    """Hold an array whose elements are seen in a row: `x.flat[i]`, `x.flat[i] = v`, and iteration."""

    def __init__(self, x: Any) -> None:
        self._x = x

    def __len__(self) -> int:
        return prod(self._x.shape)

    def __getitem__(self, key: Any) -> Any:
        return self._x.reshape(-1)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, Tracer):
            put(self._x, key, value)
        else:
            put(
                self._x,
                np.arange(len(self))[np.asarray(key) if hasattr(key, "shape") else key],
                value,
            )

    def __iter__(self) -> Iterator[Any]:
        return iter(self._x.reshape(-1))
