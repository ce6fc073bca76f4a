"""Let loops and branches be mapped: they carry all places, and branches of the places' own choice are both computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.functions.elementwise import where
from meshweave.frontends.python.functions.manipulate import moveaxis
from meshweave.frontends.python.functions.reduce import any as some
from meshweave.frontends.python.mapping.batched import Batched, Level
from meshweave.frontends.python.tracer import tensor, tracing

Control = Callable[..., Any]


def innermost() -> Level | None:
    """Return the map that is being traced, None outside of one."""
    levels = tracing().levels
    if not levels:
        return None
    found = levels[-1]
    assert isinstance(found, Level)
    return found


def _wholes(level: Level, value: Any) -> Any:
    """Return a pytree of the wholes of values."""
    leaves, form = tree.flatten(value)
    return tree.unflatten(form, iter(level.wholes(leaves)))


def _parts(level: Level, value: Any) -> Any:
    """Return a pytree of values of the map, from one of wholes."""
    leaves, form = tree.flatten(value)
    return tree.unflatten(form, iter([Batched(level, tensor(v)) for v in leaves]))


def _inside(level: Level, function: Control) -> Control:
    """Return a function of wholes that computes what another does of the map's values."""

    def call(*args: Any) -> Any:
        with level.active():
            return _wholes(level, function(*[_parts(level, a) for a in args]))

    return call


def scan(control: Control, level: Level, f: Control, init: Any, xs: Any, **said: Any) -> Any:
    """Map a scan; control: the scan itself."""
    level.refuse_gradient("a scan")
    start = _wholes(level, init)
    leaves, form = tree.flatten(xs)
    mapped = [level.has(x) for x in leaves]

    def body(carry: Any, row: Any) -> Any:
        with level.active():
            rows = [Batched(level, r) if m else r for m, r in zip(mapped, tree.flatten(row)[0])]
            returned = f(_parts(level, carry), tree.unflatten(form, iter(rows)))
            return _wholes(level, returned) if isinstance(returned, tuple) else returned

    with level.outside():
        given = [moveaxis(x.whole, 0, 1) if m else x for m, x in zip(mapped, leaves)]
        last, ys = control(body, start, tree.unflatten(form, iter(given)), **said)
        stacked, y_form = tree.flatten(ys)
        turned = [moveaxis(y, 1, 0) for y in stacked]
    return _parts(level, last), _parts(level, tree.unflatten(y_form, iter(turned)))


def cond(control: Control, level: Level, pred: Any, yes: Control, no: Control) -> Any:
    """Map a branch: by one choice for all places it stays one, else both sides are computed."""
    level.refuse_gradient("a cond")
    if not level.has(pred):
        with level.outside():
            found = control(pred, _inside(level, yes), _inside(level, no))
        return _parts(level, found)
    first, form = tree.flatten(yes())
    second, other = tree.flatten(no())
    a, b = ([tensor(v) for v in side] for side in (first, second))
    kinds = [[(v.shape, v.dtype) for v in side] for side in (a, b)]
    if form != other or kinds[0] != kinds[1]:
        fail(f"cond: the second branch returns {b}, the first {a}: both must be alike")
    return tree.unflatten(form, iter([where(pred, v, w) for v, w in zip(a, b)]))


def while_loop(control: Control, level: Level, test: Control, body: Control, init: Any) -> Any:
    """Map a loop, which runs until the last place has ended; those that have ended keep their values."""
    level.refuse_gradient("a while_loop")
    start = _wholes(level, init)

    def round_(value: Any) -> Any:
        goes_on = test(value)
        before, form = tree.flatten(value)
        after, other = tree.flatten(body(value))
        if form != other:
            fail(
                f"while_loop: the value must keep its structure: {len(after)} leaves, {len(before)} are right"
            )
        kept = [
            tensor(a) if tensor(a).type != tensor(b).type else where(goes_on, a, b)
            for a, b in zip(after, before)
        ]
        return tree.unflatten(form, iter(kept))

    tested = _inside(level, test)
    with level.outside():
        return _parts(level, control(lambda v: some(tested(v)), _inside(level, round_), start))
