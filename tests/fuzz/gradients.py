"""Random functions of floats, forward, their gradients and mapped over a stack, in any layouts and under hints, against
NumPy: values to rounding, gradients to what differences between near points say.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from python.test_random_slices import NUMPY as SLICES
from python_programs import HINTS
from strategies import any_layouts

import meshweave as mw
from fuzz.operands import operands
from fuzz.search import Kind, Refused
from meshweave.layout import Mesh

MESHES = ("", "x=2", "x=3", "x=2, y=2")
SIZES = (1, 2, 3, 4, 5, 7)
STEP = 1e-5
"""Between the points of a difference, of values near 1: what is left out is its square, what is rounded 1e-16 by it."""

NEAR = {"float64": (1e-11, 1e-6), "float32": (3e-5, 3e-3)}
"""Of values and of gradients, by the largest of them."""

WAYS = ("values", "grad", "grad", "grad", "mapped", "grad of mapped", "slope")
MAPS = (
    "{a} * 2 - 1", "-{a}", "m.abs({a})", "{a} + {b}", "{a} - {b}", "{a} * {b}", "m.maximum({a}, {b})",
    "m.minimum({a}, 0.5)", "m.where({a} > {b}, {a}, {b} * 2)", "m.tanh({a})", "m.exp(-m.abs({a}))", "m.sin({a})",
    "{a} / (1 + {b} * {b})", "m.sqrt(1 + {a} * {a})", "m.log(1 + m.abs({a}))", "m.maximum({a}, 0)",
    "m.clip({a}, -0.5, 0.75)", "m.square({a})", "m.where({a} > 0, m.sqrt(m.abs({a})), {b})", "m.hypot({a}, {b} + 2)",
    "m.cbrt({a} + 5)", "m.logaddexp({a}, {b})",
)  # fmt: skip
FOLDS = (
    "m.sum({a}, axis={d})", "m.sum({a}, axis={d}, keepdims=True)", "m.max({a}, axis={d})", "m.mean({a}, axis={d})",
    "m.min({a}, axis={d}, keepdims=True)", "m.cumulative_sum({a}, axis={d})", "m.sort({a}, axis={d})",
    "m.prod({a}, axis={d})", "m.var({a}, axis={d})", "m.softmax({a}, axis={d})", "m.logsumexp({a}, axis={d})",
    "m.std({a} + {b} * {b}, axis={d})", "m.sum({a})", "{a} - m.max({a}, axis={d}, keepdims=True)",
    "{a} / m.sum(m.abs({a}) + 0.1, axis={d}, keepdims=True)", "m.cumulative_prod({a}, axis={d})",
    "m.median({a}, axis={d})", "m.linalg.vector_norm({a} + 3, axis={d})",
)  # fmt: skip
MOVES = (
    "m.concat([{a}, {c}], axis={d})", "m.concat([{a} * 2, {a}], axis={d})", "{a}[{i}:]", "{a}[:{i}]",
    "{a}[..., ::-2]", "{a}[{i}]", "m.reshape({a}, (-1,))", "m.reshape({a}, (2, -1))", "m.roll({a}, {i}, axis={d})",
    "m.flip({a}, axis={d})", "m.expand_dims({a}, axis={d})", "m.repeat({a}, 2, axis={d})", "m.tile({a}, 2)",
    "m.pad({a}, [({i}, 1)] * {n})", "m.permute_dims({a}, {p})", "m.stack([{a}, {c}], axis={d})",
    "m.take({a}, m.asarray({k}), axis={d})", "m.tril({a} + m.zeros((2, 1)))", "m.diff({a}, axis={d})",
    'm.constrain({a}, "{layout}")', "m.take_along_axis({a}, m.argsort({a}, axis={d}), axis={d})",
    "m.moveaxis({a}, {d}, 0)",
)  # fmt: skip
PRODUCTS = (
    "{a} @ {b}", "{a} @ m.matrix_transpose({c})", "m.matrix_transpose({a}) @ {c}",
    "m.einsum('...i,...i->...', {a}, {c})", "m.softmax({a} @ m.matrix_transpose({c}), axis=-1) @ {c}",
    "m.tensordot({a}, {c}, axes=([{d}], [{d}]))",
)  # fmt: skip
CONTROL = (
    "m.cond(m.sum({a}) > 0, lambda: {a} * 2, lambda: {c} - {a})",
    "m.scan(lambda s, r: (m.tanh(s + r), s * r), {a}[0], {a})[{j}]",
    "m.scan(lambda s, _: (m.sin(s + {c}), m.sum(s)), {a}, length=3)[{j}]",
)  # fmt: skip
TABLES = (MAPS, MAPS, FOLDS, MOVES, MOVES, PRODUCTS, CONTROL)


def _softmax(x: Any, axis: int) -> Any:
    raised = np.exp(x - x.max(axis=axis, keepdims=True))
    return raised / raised.sum(axis=axis, keepdims=True)


class _Numpy:
    """The functions of NumPy under the names that they have here; hints and layouts say nothing to it."""

    cond, constrain, hint, scan = map(
        staticmethod, (SLICES.cond, SLICES.constrain, SLICES.hint, SLICES.scan)
    )
    concat, permute_dims = staticmethod(np.concatenate), staticmethod(np.transpose)
    cumulative_sum, cumulative_prod = staticmethod(np.cumsum), staticmethod(np.cumprod)
    linalg = SimpleNamespace(vector_norm=np.linalg.norm)
    softmax = staticmethod(_softmax)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def matrix_transpose(self, x: Any) -> Any:
        return np.swapaxes(x, -1, -2)

    def logsumexp(self, x: Any, axis: int) -> Any:
        return np.log(np.exp(x).sum(axis=axis))


NUMPY = _Numpy()


@dataclass
class Case:
    """A function, `body` after its head, of inputs v0, v1, ..; what is asked of it, and where its arguments lie.

    placed: "given" for layouts of arguments, "auto" for what is found. values: what each value is at the inputs.
    """

    mesh: str
    way: str
    dtype: str
    placed: str
    body: list[str] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    inputs: int = 0
    given: list[str] = field(default_factory=list)
    depth: int = 0

    @property
    def text(self) -> str:
        """Its source."""
        names = ", ".join(f"v{i}" for i in range(self.inputs))
        lines = [f"def f({names}):", *self.body, f"return v{len(self.values) - 1}"]
        return "\n    ".join(lines) + "\n"

    def function(self, m: Any) -> Callable[..., Any]:
        """It, with the functions of `m`."""
        names = {"m": m}
        exec(self.text, names)
        made: Callable[..., Any] = names["f"]
        return made

    @property
    def arguments(self) -> list[np.ndarray]:
        """What it is given."""
        return self.values[: self.inputs]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Functions of one to three inputs, of up to eight ops, some under hints."""
    case = Case(
        draw(st.sampled_from(MESHES)), draw(st.sampled_from(WAYS)), draw(st.sampled_from(list(NEAR))),
        draw(st.sampled_from(["given", "given", "given", "auto"])),
    )  # fmt: skip
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))
        case.values.append(rng.standard_normal(shape).astype(np.float32).astype(np.float64))
    case.inputs = len(case.values)
    for _ in range(draw(st.integers(2, 8))):
        if case.depth == 0 and draw(st.integers(0, 4)) == 0:
            case.body.append(f"with m.hint({_hints(draw)}):")
            case.body.append("    pass")
            case.depth = 1
        elif case.depth and draw(st.integers(0, 3)) == 0:
            case.depth = 0
        _op(draw, case)
    mesh = Mesh.parse(case.mesh)
    case.given = [str(draw(any_layouts(mesh, v.shape, ()))) for v in case.arguments]
    return case


def _hints(draw: st.DrawFn) -> str:
    keys = draw(st.lists(st.sampled_from(list(HINTS)), min_size=1, max_size=2, unique=True))
    said = {key: draw(st.sampled_from(HINTS[key])) for key in keys}
    return ", ".join(f"{k}={v!r}" for k, v in {**said, "strength": "preferred"}.items())


def _op(draw: st.DrawFn, case: Case) -> None:
    """Append an op, if it suits the value that is drawn for it."""
    drawn = operands(draw, case.values)
    if drawn is None:
        return
    x, names = drawn
    names["layout"] = draw(any_layouts(Mesh.parse(case.mesh), x.shape, ()))
    text = draw(st.sampled_from(draw(st.sampled_from(TABLES)))).format(**names)
    if "constrain" in text and "mapped" in case.way:
        return  # it says where all dims lie, and mw.vmap adds one
    try:
        with np.errstate(all="ignore"):
            made = np.asarray(
                eval(text, {"m": NUMPY, **{f"v{i}": v for i, v in enumerate(case.values)}})
            )
    except (ValueError, IndexError, TypeError):
        return
    if made.size and made.size <= 200 and made.ndim <= 4 and np.abs(made).max() < 50:
        case.body.append(f"{'    ' * case.depth}v{len(case.values)} = {text}")
        case.values.append(made)


def check(case: Case) -> None:
    """Compile and run; compare with NumPy."""
    if not case.body or "v" not in case.body[-1]:
        raise Refused
    f, right = case.function(mw), case.function(NUMPY)
    wanted, made = _asked(case, f, right)
    arguments = [v.astype(case.dtype) for v in case.arguments]
    layouts: Any = "auto" if case.placed == "auto" else None
    if "mapped" in case.way:
        arguments = [np.stack([v, v[::-1], v * 0.5]) for v in arguments]
    said: dict[str, Any] = {"mesh": case.mesh} if case.mesh else {}
    if case.mesh and layouts:
        said["layouts"] = layouts
    elif case.mesh and "mapped" not in case.way:
        said["in_layouts"] = tuple(case.given)
    jitted = mw.jit(made, **said)
    found = [np.asarray(y).astype(np.float64) for y in jitted(*arguments)]
    jitted.close()
    for i, (y, want) in enumerate(
        zip(found, wanted([v.astype(np.float64) for v in arguments]), strict=True)
    ):
        assert y.shape == want.shape, f"result {i}: shape {y.shape}, {want.shape} is right"
        near = NEAR[case.dtype][case.way != "values" and case.way != "mapped"]
        off = np.abs(y - want).max(initial=0) / max(1.0, np.abs(want).max(initial=0))
        assert off <= near, (
            f"result {i} of {case.way} is {off:.1e} off: {y.tolist()}, {want.tolist()} is right"
        )


Right = Callable[[list[np.ndarray]], list[np.ndarray]]


def _asked(case: Case, f: Any, right: Any) -> tuple[Right, Callable[..., Any]]:
    """What NumPy says of arguments, and the function that says it."""
    weights = np.cos(np.arange(max(1, case.values[-1].size))).reshape(case.values[-1].shape)
    every = tuple(range(case.inputs))

    def scalar(*values: Any) -> Any:
        return mw.sum(f(*values) * mw.astype(mw.asarray(weights), case.dtype))

    def number(*values: Any) -> float:
        with np.errstate(all="ignore"):
            return float((right(*values) * weights).sum())

    if case.way == "values":
        return (lambda values: [np.asarray(right(*values))]), (lambda *values: (f(*values),))
    if case.way == "mapped":
        return _each(right), (lambda *values: (mw.vmap(f)(*values),))
    if case.way == "grad of mapped":

        def total(*values: Any) -> Any:
            return mw.sum(mw.vmap(scalar)(*values))

        def numbers(*values: Any) -> float:
            return sum(number(*[v[i] for v in values]) for i in range(3))

        return (lambda values: _differences(numbers, values)), mw.grad(total, argnums=every)
    if case.way == "slope":

        def pulled(*values: Any) -> Any:
            _, back = mw.vjp(f, *values)
            return back(mw.astype(mw.asarray(weights), case.dtype))

        return (lambda values: _differences(number, values)), pulled
    return (lambda values: _differences(number, values)), mw.grad(scalar, argnums=every)


def _each(right: Any) -> Right:
    return lambda values: [np.stack([right(*[v[i] for v in values]) for i in range(3)])]


def _differences(number: Callable[..., float], values: list[np.ndarray]) -> list[np.ndarray]:
    """The gradient by each element, from points on both sides. Raises Refused next to a kink."""
    made = []
    for value in values:
        slopes = [_slope(number, values, value, place, STEP) for place in np.ndindex(value.shape)]
        wider = [
            _slope(number, values, value, place, 3 * STEP) for place in np.ndindex(value.shape)
        ]
        if not np.allclose(slopes, wider, rtol=1e-5, atol=1e-5):
            raise Refused
        made.append(np.array(slopes).reshape(value.shape))
    return made


def _slope(
    number: Callable[..., float],
    values: list[np.ndarray],
    value: np.ndarray,
    place: Any,
    step: float,
) -> float:
    was = value[place]
    value[place] = was + step
    above = number(*values)
    value[place] = was - step
    below = number(*values)
    value[place] = was
    return (above - below) / (2 * step)


def text(case: Case) -> str:
    """The case, as it is kept."""
    inputs = "\n".join(
        f"v{i} = np.array({v.tolist()})  # {case.given[i]}" for i, v in enumerate(case.arguments)
    )
    return (
        f"# {case.way} in {case.dtype} on mesh {case.mesh!r}, {case.placed}\n{inputs}\n{case.text}"
    )


KINDS = (Kind("gradients", cases(), check, text, seconds=60),)
