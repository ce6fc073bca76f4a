"""Whole programs and those of a rank with loops of many trips: cells, layers, sums along a sequence, training."""

from typing import Any

from verify.recent import Cases, lowered, ones

import meshweave as mw

TRIPS = 9
WIDE = "[_, _, tp]"


def cell(h: Any, xs: Any, w: Any, u: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        state = mw.tanh(x @ w + state @ u)
        return state, state

    return mw.scan(step, h, xs)


def gated(h: Any, c: Any, xs: Any, w: Any, u: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        old, kept = state
        gate = x @ w + old @ u
        kept = mw.sigmoid(gate) * kept + mw.tanh(gate)
        return (mw.tanh(kept) * gate, kept), kept

    return mw.scan(step, (h, c), xs)


def layers(x: Any, up: Any, down: Any) -> Any:
    def step(state: Any, w: Any) -> Any:
        return state + mw.tanh(state @ w[0]) @ w[1], mw.sum(state)

    return mw.scan(step, x, (up, down))


def running(xs: Any, by: Any) -> Any:
    return mw.scan(lambda s, x: (s * by + x, s * x), xs[0] * 0.0, xs)


def nested(xs: Any, w: Any) -> Any:
    def outer(state: Any, x: Any) -> Any:
        made, all_of = mw.scan(
            lambda s, y: (mw.sin(s @ w + y), s), state, mw.stack([x, x * 2.0] * 3)
        )
        return made, mw.sum(all_of, axis=0)

    return mw.scan(outer, xs[0], xs)


def descent(w: Any, xs: Any, ys: Any) -> Any:
    def step(state: Any, batch: Any) -> Any:
        def loss(one: Any) -> Any:
            return mw.mean((mw.tanh(batch[0] @ one) - batch[1]) ** 2)

        value, slope = mw.value_and_grad(loss)(state)
        return state - 0.1 * slope, value

    return mw.scan(step, w, (xs, ys))


def total(f: Any) -> Any:
    """A number of which there is a gradient."""
    return lambda *given: mw.sum(f(*given)[1] ** 2)


def cases() -> Cases:
    """Functions, their arguments, and how they are compiled."""
    xs, two, rows = ones(TRIPS, 4, 6), {"mesh": "dp=2, tp=2"}, {"mesh": "x=2"}
    of_cell = ones(4, 6), xs, ones(6, 6), ones(6, 6)
    in_cell = {**two, "in_layouts": ("[dp, tp]", "[_, dp, _]", "[_, tp]", "[_, tp]")}
    return {
        "cell": (cell, of_cell, in_cell),
        "cell, trained": (mw.grad(total(cell), (2, 3)), of_cell, in_cell),
        "gated": (
            gated, (ones(4, 6), *of_cell), {**rows, "in_layouts": ("[x, _]", "[x, _]", "[_, x, _]", None, None)},
        ),
        "gated, uneven": (
            gated, (ones(4, 6), *of_cell), {"mesh": "x=3", "in_layouts": ("[x, _]", "[x, _]", "[_, x, _]", None, None)},
        ),
        "layers": (
            layers, (ones(4, 6), ones(TRIPS, 6, 8), ones(TRIPS, 8, 6)),
            {**two, "in_layouts": ("[dp, _]", WIDE, "[_, tp, _]")},
        ),
        "layers, trained": (
            mw.grad(total(layers), (1, 2)), (ones(4, 6), ones(TRIPS, 6, 8), ones(TRIPS, 8, 6)),
            {**two, "in_layouts": ("[dp, _]", WIDE, "[_, tp, _]")},
        ),
        "running": (running, (xs, ones(6)), {**rows, "in_layouts": ("[_, x, _]", None)}),
        "running, cut": (running, (ones(8, 4, 6), ones(6)), {**rows, "in_layouts": ("[x, _, _]", None)}),
        "nested": (nested, (xs, ones(6, 6)), {**two, "in_layouts": ("[_, dp, tp]", "[_, tp]")}),
        "descent": (
            descent, (ones(6, 5), xs, ones(TRIPS, 4, 5)), {**rows, "in_layouts": (None, "[_, x, _]", "[_, x, _]")},
        ),
    }  # fmt: skip


def traced() -> dict[str, tuple[str, str]]:
    """Programs by name."""
    return {name: lowered(case) for name, case in cases().items()}
