"""Hold the rules of control flow: a scan goes back round by round, a cond takes the branch that it took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.control import BranchBody, LoopBody, cond, scan
from meshweave.frontends.python.functions.create import zeros_like
from meshweave.frontends.python.functions.elementwise import add
from meshweave.frontends.python.tape import Call, Values
from meshweave.frontends.python.tracer import Tracer

Cotangents = Sequence[Tracer | None]


def joined(cotangents: Sequence[tuple[str, Tracer | None]]) -> dict[str, Tracer]:
    """Return cotangents by key, those of one key added up."""
    found: dict[str, Tracer] = {}
    for key, value in cotangents:
        if value is not None:
            found[key] = add(found[key], value) if key in found else value
    return found


def _floats(values: Sequence[Tracer]) -> list[Tracer]:
    return [v for v in values if v.dtype.kind in "fc"]


def _of(found: Values, value: Tracer) -> Tracer:
    """Return the cotangent of a value, zeros where there is none."""
    return found[value.key] if value.key in found else zeros_like(value)


def scan_back(call: Call, cotangents: Cotangents, env: Values) -> Cotangents:
    """Go back over a scan: the last round first, with what the rounds kept.

    What the body read from outside adds up over the rounds.
    """
    body: LoopBody = call.args[0]
    tape, n = body.tape, body.carried
    ends, stacks = cotangents[:n], cotangents[n:]
    carried = _floats(body.arguments)
    start = [
        zeros_like(v) if g is None else g
        for v, g in zip(body.arguments, ends)
        if v.dtype.kind in "fc"
    ]
    inside = [v.key for v in body.results[n:]]
    inside += body.saved
    given = [(key, g) for key, g in zip(inside, stacks) if g is not None]
    free = [v for v in tape.free.values() if v.key in tape.tracked]
    rows = [r for r in body.rows if r.key in tape.tracked]
    saved = {k: env.get(v.key, v) for k, v in {**body.held, **body.saved}.items()}

    def back(state: Any, row: Any) -> Any:
        (slopes, sums), (steps, kept) = state, row
        after = [v for v, a in zip(body.results, body.arguments) if a.dtype.kind in "fc"]
        seeds = [(v.key, g) for v, g in zip(after, slopes)]
        seeds += [(key, g) for (key, _), g in zip(given, steps)]
        found = tape.walk(tape, joined(seeds), {**env, **dict(zip(saved, kept))})
        more = [add(s, found[v.key]) if v.key in found else s for s, v in zip(sums, free)]
        return ([_of(found, v) for v in carried], more), [_of(found, v) for v in rows]

    (slopes, sums), made = scan(
        back,
        (start, [zeros_like(v) for v in free]),
        ([g for _, g in given], list(saved.values())),
        length=body.rounds,
        reverse=not body.reverse,
    )
    found = dict(zip([v.key for v in carried], slopes))
    by_row = dict(zip([v.key for v in rows], made))
    by_free = dict(zip([v.key for v in free], sums))
    every = [found.get(v.key) for v in body.arguments] + [by_row.get(v.key) for v in body.rows]
    return [*every, *[by_free.get(v.key) for v in call.inputs[len(every) :]]]


def cond_back(call: Call, cotangents: Cotangents, env: Values) -> Cotangents:
    """Go back over the branch that was taken."""
    pred, *branches = call.args
    free = [v for v in call.inputs if v.dtype.kind in "fc"]

    def back(branch: BranchBody) -> list[Tracer]:
        inside = [v.key for v in branch.results]
        seeds = [*zip(inside, cotangents), *zip(branch.saved, cotangents[len(inside) :])]
        held = {k: env.get(v.key, v) for k, v in {**branch.held, **branch.saved}.items()}
        found = branch.tape.walk(branch.tape, joined(seeds), {**env, **held})
        return [_of(found, v) for v in free]

    yes, no = branches
    made = cond(env.get(pred.key, pred), lambda: back(yes), lambda: back(no))
    found = {v.key: g for v, g in zip(free, made)}
    return [found.get(v.key) for v in call.inputs]


def while_back(call: Call, cotangents: Cotangents, env: Values) -> Cotangents:
    """Refuse a while_loop."""
    fail(
        "mw.grad: a while_loop has no gradient: how many rounds to keep values of is known only when the program "
        "runs; mw.scan with a length has one"
    )


CONTROL = {"scan": scan_back, "cond": cond_back, "while_loop": while_back}
"""Primitive -> what makes the cotangents of all inputs: of the call, those of its outputs, and what stands for what."""
