"""Random programs in two or three time axes, whose ops share operands, with loops, branches and regions in them:
what NumPy says, to the bit, on every mesh and in every order."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import event, given, settings
from hypothesis import strategies as st
from traced import mw

from meshweave.errors import CompileError

MOST = 2**24  # all whole numbers up to here are exact in f32, in every order of adding them up
MESHES = ("one=1", "x=2, y=2", "x=4, y=2")
AXES = ("t=2", "t=2, u=2", "t=3, u=4", "u=2, t=4", "t:3, u=2", "t=2, u=2, v=2", "t=3, u=2, v=2")
LAYOUTS = ("[_, _]", "[x, _]", "[_, y]", "[x, y]", "[y, x]", "[x*y, _]", "[_, y*x]")
ORDERS: tuple[dict[str, Any], ...] = (
    {},
    {"order": "dfs"},
    {"order": "bfs"},
    {"width": 2},
    {"width": 3},
)
SHAPES = ((8, 6), (8, 8), (6, 8), (5, 7), (4, 4))
MAPS = ("{a} * 2", "m.maximum({a}, 0)", "m.minimum({a} + {s}, 2)", "{a} - {s}", "{a} * {s}")
OPS = (
    *MAPS, "{a}.T", "{a}.T", "{a} @ {p}", "{a} @ {a}.T", "{a}.T @ {a}", "{a} @ {s}.T", "{s}.T @ {a}", "{s}.T @ {a}",
    "m.sum({a}, axis=0)", "m.sum({a}, axis=1)", "m.sum({a})", "m.max({a}, axis=0)", "m.max({a}, axis=1)",
    "m.min({a})", "{a} - m.max({a}, axis=1, keepdims=True)", "{a} + m.sum({a}, axis=0)",
    "m.concat([{a}, {s}], axis=0)", "m.concat([{a}, {s}], axis=1)", "{a}[1:]", "{a}[:, ::2]",
    'm.constrain({a}, "{layout}")',
    "m.cond(m.sum({a}) > 0, lambda: {a} * 2, lambda: {s})",
    "m.cond(m.max({s}) > 1, lambda: {a}.T @ {s}, lambda: {s}.T @ {a})",
    "m.scan(lambda c, _: (m.minimum(c + {s}, 2), m.sum(c, axis=0)), {a}, length=3)[{i}]",
    "m.scan(lambda c, r: (c + m.sum(r * {s}), r + c), m.sum({a}), {a})[1]",
)  # fmt: skip


def _cond(holds: Any, yes: Any, no: Any) -> Any:
    return yes() if holds else no()


def _scan(f: Any, init: Any, xs: Any = None, length: int = 0) -> tuple[Any, Any]:
    carry, ys = init, []
    for x in xs if xs is not None else [None] * length:
        carry, y = f(carry, x)
        ys.append(y)
    return carry, np.stack(ys)


NUMPY = SimpleNamespace(
    sum=np.sum, max=np.max, min=np.min, maximum=np.maximum, minimum=np.minimum, concat=np.concatenate,
    constrain=lambda x, layout: x, hint=lambda **hints: nullcontext(), cond=_cond, scan=_scan,
)  # fmt: skip


class Case:
    """The text of a function of v0 and v1 on a mesh, and what its values are."""

    def __init__(self, inputs: list[Any], mesh: str) -> None:
        self.inputs, self.values, self.mesh = inputs, list(inputs), mesh
        self.layouts = LAYOUTS if "y" in mesh else LAYOUTS[:1]
        self.given: list[str] = []
        self.lines: list[str] = []
        self.results: list[int] = []

    @property
    def text(self) -> str:
        returned = ", ".join(f"v{i}" for i in self.results)
        names = ", ".join(f"v{i}" for i in range(len(self.inputs)))
        return "\n    ".join([f"def f({names}):", *self.lines, f"return ({returned},)"]) + "\n"

    def function(self, m: Any) -> Any:
        names = {"m": m}
        exec(self.text, names)
        return names["f"]

    def add(self, text: str, depth: int) -> None:
        """Append the value of `text`, where NumPy has one that is exact on the way too."""
        known = {f"v{i}": value for i, value in enumerate(self.values)}
        try:
            made = np.asarray(eval(text, {"m": NUMPY, **known}), np.float32)
        except (ValueError, IndexError):
            return
        if made.size <= 200 and np.abs(made).max(initial=0) ** 2 * 64 < MOST:
            self.lines.append(f"{'    ' * depth}v{len(self.values)} = {text}")
            self.values.append(made)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Functions of two inputs with up to eight ops under hints, most of which read what others read too."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shape = draw(st.sampled_from(SHAPES))
    shapes = (shape, draw(st.sampled_from([shape, shape[::-1]])))
    inputs = [rng.integers(-1, 3, s).astype(np.float32) for s in shapes]
    case = Case(inputs, draw(st.sampled_from(MESHES)))
    case.given = [draw(st.sampled_from(case.layouts)) for _ in inputs]
    strength = draw(st.sampled_from(["preferred", "preferred", "required"]))
    depth = 0
    for number in range(draw(st.integers(3, 9))):
        if depth < 2 and (depth == 0 or draw(st.integers(0, 5)) == 0):
            names = str.maketrans("", "") if depth == 0 else str.maketrans("tuv", "abc")
            said = {"slice": draw(st.sampled_from(AXES)).translate(names), "strength": strength}
            said |= draw(st.sampled_from(ORDERS))
            listed = ", ".join(f"{k}={v!r}" for k, v in said.items())
            case.lines.append(f"{'    ' * depth}with m.hint({listed}):")
            depth += 1
            case.lines.append(f"{'    ' * depth}pass")
        elif number > 4 and draw(st.integers(0, 5)) == 0:
            depth = max(depth - 1, 0)
        _op(draw, case, depth)
    last = len(case.values) - 1
    few = draw(st.sets(st.integers(2, last), max_size=3)) if last > 2 else set()
    case.results = sorted({last, *few})
    return case


def _op(draw: st.DrawFn, case: Case, depth: int) -> None:
    count = len(case.values)
    a = draw(st.sampled_from(range(count)))
    x = case.values[a]
    alike = [i for i, y in enumerate(case.values) if y.shape == x.shape]
    follow = [i for i, y in enumerate(case.values) if y.ndim == 2 and x.shape[-1:] == y.shape[:1]]
    names = {
        "a": f"v{a}", "s": f"v{draw(st.sampled_from(alike))}", "i": draw(st.integers(0, 1)),
        "p": f"v{draw(st.sampled_from(follow or range(count)))}",
        "layout": draw(st.sampled_from(case.layouts)),
    }  # fmt: skip
    case.add(draw(st.sampled_from(OPS if x.ndim == 2 else MAPS)).format(**names), depth)


@settings(max_examples=examples(60), deadline=None)
@given(cases())
def test_slices_of_shared_values_give_what_numpy_gives(case: Case) -> None:
    try:
        f = mw.jit(case.function(mw), mesh=case.mesh, in_layouts=tuple(case.given))
        results = f(*case.inputs)
    except CompileError as error:
        reason = "(required) is infeasible: " in str(error) or "are both required" in str(error)
        assert reason, f"{error}\n{case.text}"
        event("refused, with the reason")
        return
    for i, (y, right) in enumerate(zip(results, case.function(NUMPY)(*case.inputs), strict=True)):
        np.testing.assert_array_equal(np.asarray(y), right, f"result {i}\n{case.text}")
    f.close()


X = np.arange(48, dtype=np.float32).reshape(8, 6)


@sampled(4)
@pytest.mark.parametrize("strength", ["required", "preferred"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("axes", ["t=2, u=2", "t=3, u=4", "u=2, t=2, v=2"])
def test_a_sum_is_counted_once_whatever_other_slices_there_are(
    axes: str, mesh: str, strength: str
) -> None:
    def f(x: Any, order: str) -> Any:
        with mw.hint(slice=axes, strength=strength, order=order):
            k = mw.maximum(x, 0)
            return x @ k.T, k.T @ x, mw.sum(k, axis=0), mw.max(k, axis=1)

    for order in ("dfs", "bfs"):
        if strength == "required" and mesh == MESHES[2]:
            continue  # a rank holds too few rows
        found = mw.jit(f, mesh=mesh, static_argnames="order")(X, order=order)
        for y, right in zip(found, (X @ X.T, X.T @ X, X.sum(0), X.max(1)), strict=True):
            np.testing.assert_array_equal(np.asarray(y), right)


def test_more_slices_than_there_is_to_cut_are_refused() -> None:
    def f(x: Any, strength: str) -> Any:
        with mw.hint(slice="t=100", strength=strength):
            return x * 2

    compiled = mw.jit(f, static_argnames="strength")
    with pytest.raises(CompileError, match="t=100 is more slices than the 8 elements there are"):
        compiled(X, strength="required")
    np.testing.assert_array_equal(np.asarray(compiled(X, strength="preferred")), X * 2)
