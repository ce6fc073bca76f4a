"""Go back over a tape: from cotangents of results to those of what it follows, by the rule of each call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshweave.errors import CompileError
from meshweave.frontends.python.builder import HintRegion, TraceBuilder, fail
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.create import zeros_like
from meshweave.frontends.python.functions.manipulate import reshaped
from meshweave.frontends.python.functions.reduce import sum as total
from meshweave.frontends.python.gradients.control import CONTROL, Cotangents
from meshweave.frontends.python.gradients.rules import REFUSED, RULES
from meshweave.frontends.python.tape import Call, Tape, Values, tracers
from meshweave.frontends.python.tracer import Tracer, tensor


def walk(tape: Tape, seeds: Values, env: Values) -> dict[str, Tracer]:
    """Return the cotangents of what a tape follows, by key.

    seeds: cotangents of results. env: by key what stands for a value, where that is no longer there. Each call goes
    back under the hints and with the line of its own.
    """
    found = dict(seeds)
    before, around = tape.trace.at, _Around(tape.trace)
    try:
        for call in reversed(tape.calls):
            cotangents = [found.pop(v.key, None) for v in call.outputs]
            if all(g is None for g in cotangents):
                continue
            around.take(call.regions)
            tape.trace.at = call.loc
            for value, g in zip(call.inputs, _back(tape, call, cotangents, env)):
                if g is not None and value.key in tape.tracked:
                    g = _fitted(g, value)
                    found[value.key] = e.add(found[value.key], g) if value.key in found else g
    finally:
        around.take(())
        tape.trace.at = before
    return found


class _Around:
    """Hold the hint regions that are open on the way back, each beside the one of the way there."""

    def __init__(self, trace: TraceBuilder) -> None:
        self._trace = trace
        self._open: list[tuple[HintRegion, HintRegion | None]] = []

    def take(self, wanted: Sequence[HintRegion]) -> None:
        """End regions and begin others, so that these are open."""
        same = 0
        while same < min(len(wanted), len(self._open)) and self._open[same][0] is wanted[same]:
            same += 1
        while len(self._open) > same:
            self._end()
        for region in wanted[same:]:
            self._begin(region)

    def _begin(self, region: HintRegion) -> None:
        hints, time_axes = region.back
        made = None
        if hints:
            made = HintRegion(self._trace, hints, region.loc, time_axes, place=region.place)
            self._trace.block.lines.append(made)
            self._trace.block = made.block
        self._open.append((region, made))

    def _end(self) -> None:
        _, made = self._open.pop()
        if made is not None:
            made.block.open = False
            assert made.block.parent is not None
            self._trace.block = made.block.parent


def _back(tape: Tape, call: Call, cotangents: Cotangents, env: Values) -> Cotangents:
    """Return the cotangent of each input of a call. Raises CompileError, at the call's line, where it has none."""
    try:
        if call.primitive in CONTROL:
            return CONTROL[call.primitive](call, cotangents, env)
        if call.primitive in REFUSED:
            fail(f"mw.grad: {call.primitive} has no derivative: {REFUSED[call.primitive]}")
        return _by_arguments(tape, call, cotangents, env)
    except CompileError as error:
        raise error.told(error.message, call.place) from None


def _by_arguments(tape: Tape, call: Call, cotangents: Cotangents, env: Values) -> Cotangents:
    """Apply the rule of each argument that is followed."""
    if tape.follows(tracers(call.kwargs)):
        fail(
            f"mw.grad: {call.primitive}: arrays that a gradient follows are given by place, not by name"
        )
    args, outputs = _replaced(call.args, env), _replaced(call.outputs, env)
    several = len(outputs) > 1
    g: Any = [zeros_like(v) if c is None else c for v, c in zip(outputs, cotangents)]
    g, y = (g, outputs) if several else (g[0], outputs[0])
    found: list[Tracer | None] = []
    for rule, own in zip(RULES[call.primitive], call.args):
        mine = tracers(own)
        if rule is None or not tape.follows(mine):
            found += [None] * len(mine)
        else:
            made = rule(g, y, *args, **call.kwargs)
            found += _of_tensors(made, own) if isinstance(own, list | tuple) else [made]
    return found + [None] * (len(call.inputs) - len(found))


def _of_tensors(made: Sequence[Tracer | None], given: Sequence[Any]) -> list[Tracer | None]:
    return [g for g, v in zip(made, given) if isinstance(v, Tracer)]


def _replaced(value: Any, env: Values) -> Any:
    """Return values, lists and tuples of them, with those in their places that stand for them."""
    if isinstance(value, Tracer):
        return env.get(value.key, value)
    if isinstance(value, list | tuple):
        return type(value)([_replaced(v, env) for v in value])
    return value


def _fitted(g: Tracer, like: Tracer) -> Tracer:
    """Sum a cotangent over the dims that were broadcast, and convert it."""
    if g.dtype.kind == "c" and like.dtype.kind != "c":
        g = e.real(g)
    extra = g.ndim - like.ndim
    dims = [d for d in range(g.ndim) if d < extra or (like.shape[d - extra] == 1 != g.shape[d])]
    if dims:
        g = reshaped(total(g, axis=dims), like.shape)
    return e.astype(tensor(g), like.dtype)
