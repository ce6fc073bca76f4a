"""Map a function inside of traced ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.functions.manipulate import axis_of, moveaxis
from meshweave.frontends.python.mapping.batched import Batched, Level
from meshweave.frontends.python.mapping.rules import compute
from meshweave.frontends.python.tracer import Tracer, is_operand, tensor, tracing


def mapped(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    in_axes: Any,
    out_axes: Any,
    axis_size: int | None,
) -> Any:
    """Call a function for each place along the dims `in_axes` of its arguments; stack what it returns along `out_axes`.

    Raises CompileError where axes and arguments do not fit, or the function has no rule.
    """
    trace = tracing()
    leaves, form = tree.flatten((args, kwargs))
    whole = (in_axes if not isinstance(in_axes, list) else tuple(in_axes), 0)
    axes = _spread("in_axes", whole, form)
    values = [_moved(leaf, axis, path) for leaf, axis, path in zip(leaves, axes, tree.paths(form))]
    sizes = {v.shape[0] for v, axis in zip(values, axes) if axis is not None}
    sizes |= set() if axis_size is None else {axis_size}
    if len(sizes) != 1:
        what = f"sizes {sorted(sizes)} along in_axes" if sizes else "in_axes names no dim"
        fail(f"mw.vmap: {what}: one size is right")
    level = Level(trace, sizes.pop(), compute)
    with level.active():
        given = [v if a is None else Batched(level, v) for v, a in zip(values, axes)]
        own_args, own_kwargs = tree.unflatten(form, iter(given))
        found, structure = tree.flatten(function(*own_args, **own_kwargs))
        results = [
            _result(level, v, a) for v, a in zip(found, _spread("out_axes", out_axes, structure))
        ]
    placed = [v if not a else moveaxis(v, 0, a) for v, a in results]
    return tree.unflatten(structure, iter(placed))


def _spread(name: str, axes: Any, form: tree.Structure) -> list[int | None]:
    """Return an axis for each leaf, None for no dim."""
    return tree.broadcast_prefix(
        axes, form, lambda a: a is None or isinstance(a, int), f"mw.vmap: {name}"
    )


def _moved(leaf: Any, axis: int | None, path: str) -> Any:
    """Return an argument with the dim of the map in front."""
    if axis is None:
        return leaf
    if not is_operand(leaf):
        fail(f"mw.vmap: argument {path} is a {type(leaf).__name__}: in_axes of None is right")
    value = tensor(leaf)
    if not value.ndim:
        fail(f"mw.vmap: argument {path} has no dims: in_axes of None is right")
    return moveaxis(value, axis_of("mw.vmap: in_axes", axis, value.ndim), 0)


def _result(level: Level, value: Any, axis: int | None) -> tuple[Tracer, int | None]:
    own = tensor(value)
    if axis is None:
        if level.has(own):
            fail("mw.vmap: out_axes of None for a result that differs from place to place")
        return own, None
    return level.whole(own), axis_of("mw.vmap: out_axes", axis, own.ndim + 1)
