"""Random functions for `mw.jit` as Python text, which is run on traced values as `m` = meshweave and on arrays as
`m` = NUMPY. All numbers are whole and small, so that results are exact in every order of adding them up.
"""

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from strategies import any_layouts, layouts

from meshweave.layout import Mesh

NUMPY = SimpleNamespace(
    **{name: getattr(np, name) for name in
       ("abs", "any", "argmax", "expand_dims", "flip", "matmul", "max", "maximum", "repeat",
        "reshape", "roll", "sort", "sum", "take", "where")},
    concat=np.concatenate, permute_dims=np.transpose, cumulative_sum=np.cumsum,
    astype=lambda x, dtype: x.astype(dtype), constrain=lambda x, layout: x,
    hint=lambda **hints: nullcontext(),
)  # fmt: skip
MESHES = ("one=1", "x=2", "x=3", "x=2, y=2", "x=1, y=2")
SIZES = (1, 2, 3, 4, 5, 6, 8, 0)
EXACT = {"float16": 2**10, "float32": 2**24, "float64": 2**50, "int32": 2**30, "int64": 2**50}
CALLS = 3
"""Sets of inputs that each program is made for."""

MATHS = (
    "{a} * 2 - 1", "-{a}", "m.abs({a})", "{a} + {b}", "{a} - {b}", "{a} * {b}", "m.maximum({a}, {b})",
    "m.where({a} > {b}, {a}, {b} * 2)",
)  # fmt: skip
FOLDS = (
    "m.sum({a}, axis={d})", "m.sum({a}, axis={d}, keepdims=True)", "m.max({a}, axis={d})",
    "m.any({a} > 0, axis={d})", "m.argmax({a}, axis={d})", "m.cumulative_sum({a}, axis={d})",
    "m.sort({a}, axis={d})",
)  # fmt: skip
MOVES = (
    "m.concat([{a}, {b}], axis={d})", "m.concat([{a} * 2, {a}], axis={d})", "{a}[{i}:]", "{a}[:{i}]",
    "{a}[..., ::-2]", "{a}[{i}]", "m.reshape({a}, (-1,))", "m.reshape({a}, (2, -1))",
    "m.roll({a}, {i}, axis={d})", "m.flip({a}, axis={d})", "m.expand_dims({a}, axis={d})",
    "m.repeat({a}, 2, axis={d})", "m.take({a}, {n} % {size}, axis={d})",
    'm.constrain({a}, "{layout}")',
)  # fmt: skip
PRODUCTS = ("{a} @ {b}", "m.matmul({a}, m.permute_dims({b}, (1, 0)))", "m.permute_dims({a}, {p})")
HINTS: dict[str, tuple[Any, ...]] = {
    "slice": ("t=2", "t=3", "t=8", "t:2", "t=2, u=2"),
    "order": ("dfs", "bfs", "strict"),
    "width": (1, 2),
    "overlap": ("auto",),
    "peak_bytes": ("64B", "1KiB"),
    "fuse": ("never",),
    "numerics": ("bit_exact", "deterministic"),
    "kernels": ("-blas", "-flash"),
}


@dataclass
class Case:
    """A function, `body` after its head, of inputs v0, v1, ..; what its values are in each of CALLS calls."""

    mesh: Mesh
    inputs: int = 0
    body: list[str] = field(default_factory=list)
    values: list[list[Any]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)
    depth: int = 0

    @property
    def text(self) -> str:
        """Its source."""
        names = ", ".join(f"v{i}" for i in range(self.inputs))
        results = ", ".join(f"v{i}" for i in self.results)
        return "\n    ".join([f"def f({names}):", *self.body, f"return ({results},)"]) + "\n"

    def function(self, m: Any) -> Any:
        """It, with the functions of `m`."""
        names = {"m": m}
        exec(self.text, names)
        return names["f"]

    def like(self, a: int) -> list[int]:
        """The values of the dtype of `a` that broadcast to its shape."""
        x = self.values[a][0]
        return [
            i
            for i, (y, *_) in enumerate(self.values)
            if y.dtype == x.dtype and y.ndim <= x.ndim and _same(y.shape, x.shape)
        ]


def _same(small: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(n in (1, k) for n, k in zip(small[::-1], shape[::-1]))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Functions of one to three inputs in any layouts, of up to ten ops, some under hints, with one or two results."""
    case = Case(Mesh.parse(draw(st.sampled_from(MESHES))))
    main = draw(st.sampled_from(list(EXACT)))
    for _ in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3)))
        rng = np.random.default_rng(draw(st.integers(0, 9)))
        dtype = draw(st.sampled_from([main, main, "int64"]))
        case.values.append([rng.integers(-2, 3, shape).astype(dtype) for _ in range(CALLS)])
    case.inputs = len(case.values)
    for _ in range(draw(st.integers(2, 10))):
        if case.depth < 2 and draw(st.integers(0, 3)) == 0:
            case.body.append(f"{'    ' * case.depth}with m.hint({_hints(draw, case.depth)}):")
            case.depth += 1
            case.body.append(f"{'    ' * case.depth}pass")
        elif case.depth and draw(st.integers(0, 3)) == 0:
            case.depth -= 1
        _op(draw, case)
    last = len(case.values) - 1
    case.results = sorted({last, draw(st.integers(0, last))})
    case.given = [_layout(draw, case, i) for i in range(case.inputs)]
    case.wanted = [_layout(draw, case, i) for i in case.results]
    return case


def _hints(draw: st.DrawFn, depth: int) -> str:
    keys = draw(st.lists(st.sampled_from(list(HINTS)), min_size=1, max_size=3, unique=True))
    said = {key: draw(st.sampled_from(HINTS[key])) for key in keys}
    if depth:  # names of its own
        said = {
            k: v.replace("t", "v").replace("u", "w") if k == "slice" else v for k, v in said.items()
        }
    return ", ".join(f"{k}={v!r}" for k, v in {**said, "strength": "preferred"}.items())


def _layout(draw: st.DrawFn, case: Case, i: int) -> str:
    return str(draw(any_layouts(case.mesh, case.values[i][0].shape, ())))


def _op(draw: st.DrawFn, case: Case) -> None:
    """Append an op, if it suits the value that is drawn for it."""
    a = draw(st.integers(0, len(case.values) - 1)) if draw(st.booleans()) else len(case.values) - 1
    x = case.values[a][0]
    table = draw(st.sampled_from([MATHS, FOLDS, MOVES, MOVES, PRODUCTS, None]))
    if not x.ndim or (x.dtype == bool and table is not MOVES):
        table = None
    if table is None:  # a conversion
        text = f"m.astype(v{a}, '{draw(st.sampled_from(list(EXACT)))}')"
    else:
        d = draw(st.integers(0, x.ndim - 1))
        alike = [i for i, (y, *_) in enumerate(case.values) if y.dtype == x.dtype]
        other = draw(st.sampled_from(alike if table is PRODUCTS else case.like(a)))
        numbers = [
            i for i, (y, *_) in enumerate(case.values) if y.dtype == np.int64 and y.ndim == 1
        ]
        names = {
            "a": f"v{a}", "b": f"v{other}", "d": d, "i": draw(st.integers(0, max(len(x) - 1, 0))),
            "n": f"v{draw(st.sampled_from(numbers))}" if numbers else "none", "size": x.shape[d],
            "p": tuple(draw(st.permutations(range(x.ndim)))),
            "layout": draw(layouts(case.mesh, x.ndim, kinds=())),
        }  # fmt: skip
        text = draw(st.sampled_from(table)).format(**names)
    made = []
    for call in range(CALLS):
        known = {f"v{i}": values[call] for i, values in enumerate(case.values)}
        try:
            made.append(np.asarray(eval(text, {"m": NUMPY, **known})))
        except (ValueError, IndexError, NameError, ZeroDivisionError):
            return
    if all(_exact(y, x) for y in made):
        case.body.append(f"{'    ' * case.depth}v{len(case.values)} = {text}")
        case.values.append(made)


def _exact(made: Any, x: Any) -> bool:
    """Whether it is small, and all that may come up on the way is exact; x: what it is made of."""
    most = EXACT.get(str(made.dtype), math.inf)
    largest = [float(np.abs(v.astype("f8")).max(initial=0)) for v in (made, x)]
    return (
        made.size <= 400 and made.ndim <= 4 and largest[0] <= most and largest[1] ** 2 * 64 <= most
    )
