"""Random functions of arrays whose sizes each call chooses, against NumPy at several sizes, one program for all.

All numbers are whole and small, so that results are exact in every order of adding them up. The first call has the
bounds, and elements that show wherever what lies behind the end of a later call gets into a result.
"""

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from python_programs import EXACT, NUMPY
from strategies import any_layouts

import meshweave as mw
from fuzz.search import Kind, Refused
from meshweave.errors import MeshweaveError
from meshweave.layout import Mesh

MESHES = ("", "", "x=2", "x=3", "x=2, y=2")
BOUNDS = (2, 5, 8, 13, 17, 40)
CALLS = 4
REFUSALS = "run time", "not masked yet", "in other orders", "sizes stay in their order"
NUMBERS = (1, 2, 3, 4, 6, 8)

SIMPLE = (
    "{a} * 2 - 1", "-{a}", "m.abs({a})", "{a} + {b}", "{a} - {b}", "{a} * {b}", "m.maximum({a}, {b})",
    "m.where({a} > {b}, {a}, {b} * 2)", "m.where(m.arange({a}.shape[{d}]) < {i}, 1, 0) + m.sum({a})",
    "m.astype(m.arange({a}.shape[{d}]), m.float32)", "{a} * {a}.shape[{d}]",
)  # fmt: skip
FOLDS = (
    "m.sum({a}, axis={d})", "m.sum({a}, axis={d}, keepdims=True)", "m.max({a}, axis={d})", "m.min({a}, axis={d})",
    "m.any({a} > 0, axis={d})", "m.argmax({a}, axis={d})", "m.argmin({a}, axis={d})",
    "m.cumulative_sum({a}, axis={d})", "m.sum({a})", "m.astype(m.all({a} > -9, axis={d}), m.float32)",
    "m.sort({a}, axis={d})", "m.max({a}, axis={d}, keepdims=True) - {a}",
)  # fmt: skip
MOVES = (
    "m.concat([{a}, {c}], axis={d})", "m.concat([{a} * 2, {a}], axis={d})", "m.concat([{a}[:1], {a}], axis=0)",
    "{a}[1:]", "{a}[:-1]", "{a}[0]", "{a}[-1]", "{a}[..., 1:]", "{a}[..., :-1]", "{a}[:{i}]",
    "{a}[..., ::-1]", "m.permute_dims({a}, {p})", "m.expand_dims({a}, axis={d})", "m.roll({a}, 1, axis={d})",
    "m.flip({a}, axis={d})", "m.tile({a}, 2)", "m.repeat({a}, 2, axis={d})", "m.diff({a}, axis={d})",
    "m.pad({a}, [({i}, 1)] * {a}.ndim)", "m.triu(m.expand_dims({a}, axis=0))", "m.stack([{a}, {a} + 1], axis={d})",
)  # fmt: skip
RESHAPES = (
    "m.reshape({a}, (-1,))", "m.reshape({a}, (-1, {last}))", "m.reshape({a}, ({first}, -1))",
    "m.reshape({a}, {merged})", "m.reshape({a}, {split})", "m.reshape({a}, (*{b}.shape[:1], -1))",
)  # fmt: skip
PRODUCTS = (
    "{a} @ {b}", "{a} @ m.permute_dims({c}, (1, 0))", "m.permute_dims({a}, (1, 0)) @ {c}",
    "{a} @ m.permute_dims({a}, (1, 0))", "{a}[:, None] * {c}[None]",
)  # fmt: skip
LOOKUPS = (
    "m.take({a}, m.abs({k}) % {size}, axis={d})", "m.take({a}, m.arange({a}.shape[{d}]), axis={d})",
    "m.rows({a}, m.abs({k}) % {size}, {c})", "m.rows(m.zeros((5, *{a}.shape[1:]), dtype={a}.dtype), {k5}, {a})",
)  # fmt: skip
TABLES = (SIMPLE, SIMPLE, FOLDS, MOVES, RESHAPES, PRODUCTS, LOOKUPS)


def _added(x: np.ndarray, places: np.ndarray, rows: np.ndarray) -> np.ndarray:
    made = x.copy()
    np.add.at(made, places, rows)
    return made


class _Traced:
    """The functions of meshweave, and those that NumPy writes otherwise."""

    def __getattr__(self, name: str) -> Any:
        return getattr(mw, name)

    def rows(self, x: Any, places: Any, rows: Any) -> Any:
        return x.at[places].add(rows)


ARRAYS = SimpleNamespace(
    **{name: getattr(np, name) for name in
       ("all", "arange", "argmin", "diff", "float32", "min", "pad", "stack", "tile", "triu", "zeros")},
    **vars(NUMPY), rows=_added,
)  # fmt: skip


@dataclass
class Case:
    """A function, `body` after its head, of inputs v0, v1, ..

    open: the name of the size of each dim of each input, "" for a number. calls: the sizes of each call, the bounds
    first. values: what each value is in each call. inputs: how many are arguments.
    """

    mesh: str
    calls: list[dict[str, int]]
    open: list[tuple[str, ...]] = field(default_factory=list)
    inputs: int = 0
    body: list[str] = field(default_factory=list)
    values: list[list[np.ndarray]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    wanted: list[str] = field(default_factory=list)

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

    def row(self, i: int) -> list[tuple[int, ...]]:
        """The shapes of a value in all calls."""
        return [value.shape for value in self.values[i]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Functions of one to three inputs in any layouts, of up to six ops, at CALLS sets of sizes."""
    names = ["n"] if draw(st.booleans()) else ["n", "m"]
    bounds = {name: draw(st.sampled_from(BOUNDS)) for name in names}
    calls = [bounds]
    for _ in range(CALLS - 1):
        calls.append({name: draw(st.integers(1, most)) for name, most in bounds.items()})
    case = Case(draw(st.sampled_from(MESHES)), calls)
    for k in range(draw(st.integers(1, 3))):
        _input(draw, case, names, k)
    case.inputs = len(case.values)
    for _ in range(draw(st.integers(2, 6))):
        _op(draw, case)
    last = len(case.values) - 1
    case.results = sorted({last, *draw(st.lists(st.integers(0, last), min_size=1, max_size=2))})
    case.given = [_layout(draw, case, i) for i in range(case.inputs)]
    case.wanted = [_layout(draw, case, i) for i in case.results]
    return case


def _layout(draw: st.DrawFn, case: Case, i: int) -> str:
    """A layout that has no extents of its own, which are those of one size."""
    mesh, shape = Mesh.parse(case.mesh), case.values[i][0].shape
    return str(draw(any_layouts(mesh, shape, ()).filter(lambda one: "{" not in str(one))))


def _input(draw: st.DrawFn, case: Case, names: list[str], k: int) -> None:
    sizes = draw(st.lists(st.sampled_from([*names, *names, *NUMBERS]), min_size=1, max_size=3))
    if k == 0 and not any(isinstance(s, str) for s in sizes):
        sizes[0] = "n"
    dtype = draw(st.sampled_from(["float32", "float32", "float32", "int32", "float64", "float16"]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    shapes = [[call[s] if isinstance(s, str) else s for s in sizes] for call in case.calls]
    case.open.append(tuple(s if isinstance(s, str) else "" for s in sizes))
    case.values.append([rng.integers(-2, 3, shape).astype(dtype) for shape in shapes])


def _op(draw: st.DrawFn, case: Case) -> None:
    """Append an op, if it suits the value that is drawn for it."""
    many = len(case.values)
    a = draw(st.integers(0, many - 1)) if draw(st.booleans()) else many - 1
    x = case.values[a][0]
    if not x.ndim or x.dtype == bool:
        return
    d = draw(st.integers(0, x.ndim - 1))
    at = f"v{a}.shape"
    alike = [i for i in range(many) if case.values[i][0].dtype == x.dtype]
    same = [i for i in alike if case.row(i) == case.row(a)]
    numbers = [
        i
        for i in range(many)
        if case.values[i][0].dtype.kind == "i" and case.values[i][0].ndim == 1
    ]
    divisor = draw(st.sampled_from([2, 3, 4, 8]))
    k = f"v{draw(st.sampled_from(numbers))}" if numbers else "none"
    names = {
        "a": f"v{a}", "b": f"v{draw(st.sampled_from(alike))}", "c": f"v{draw(st.sampled_from(same))}",
        "d": d, "i": draw(st.integers(0, 3)), "k": k, "k5": f"m.arange(v{a}.shape[0]) % 5",
        "size": f"{at}[{d}]", "p": tuple(draw(st.permutations(range(x.ndim)))),
        "last": f"{at}[-1]", "first": f"{at}[0]",
        "merged": f"(*{at}[:{d}], {at}[{d}] * {at}[{(d + 1) % x.ndim}], *{at}[{d + 2}:])",
        "split": f"(*{at}[:{d}], {divisor}, {at}[{d}] // {divisor}, *{at}[{d + 1}:])"
        if draw(st.booleans())
        else f"(*{at}[:{d}], {at}[{d}] // {divisor}, {divisor}, *{at}[{d + 1}:])",
    }  # fmt: skip
    text = draw(st.sampled_from(draw(st.sampled_from(TABLES)))).format(**names)
    made = []
    for call in range(len(case.calls)):
        known = {f"v{i}": values[call] for i, values in enumerate(case.values)}
        try:
            made.append(np.asarray(eval(text, {"m": ARRAYS, **known})))
        except (ValueError, IndexError, NameError, ZeroDivisionError, TypeError):
            return
    if all(_exact(y, x) for y, x in zip(made, case.values[a])):
        case.body.append(f"v{many} = {text}")
        case.values.append(made)


def _exact(made: np.ndarray, x: np.ndarray) -> bool:
    """Whether it is small, and all that may come up on the way is exact; x: what it is made of."""
    most = EXACT.get(str(made.dtype), math.inf)
    largest = [float(np.abs(v.astype("f8")).max(initial=0)) for v in (made, x)]
    return (
        made.size <= 20_000
        and made.ndim <= 4
        and largest[0] <= most
        and largest[1] ** 2 * 64 <= most
    )


def check(case: Case) -> None:
    """Compile for the bounds and call at each set of sizes; compare every result."""
    dims = {name: mw.Dim(name, max=most) for name, most in case.calls[0].items()}
    kinds = [
        mw.ShapeDtype(tuple([dims[o] if o else s for o, s in zip(names, value[0].shape)]), value[0].dtype.name)
        for names, value in zip(case.open, case.values)
    ]  # fmt: skip
    given = [
        [value[call] for value in case.values[: case.inputs]] for call in range(len(case.calls))
    ]
    layouts: dict[str, Any] = {"in_layouts": tuple(case.given), "out_layouts": tuple(case.wanted)}
    jitted = mw.jit(
        case.function(_Traced()), **({"mesh": case.mesh, **layouts} if case.mesh else {})
    )
    try:
        program = jitted.lower(*kinds).compile()
    except MeshweaveError as error:
        if any(said in str(error) for said in REFUSALS):
            raise Refused from None
        raise
    program(*[_poisoned(value) for value in given[0]])
    for call, arguments in enumerate(given):
        for i, (found, k) in enumerate(zip(program(*arguments), case.results, strict=True)):
            right = case.values[k][call]
            where = f"result {i} at {case.calls[call]}"
            assert found.shape == right.shape, (
                f"{where}: shape {found.shape}, {right.shape} is right"
            )
            np.testing.assert_array_equal(np.asarray(found), right, where)
    jitted.close()


def _poisoned(value: np.ndarray) -> np.ndarray:
    number = np.nan if value.dtype.kind == "f" else np.iinfo(value.dtype).max
    return np.full_like(value, number)


def text(case: Case) -> str:
    """The case, as it is kept."""
    inputs = "\n".join(
        f"v{i}: {case.open[i]}, {v[0].dtype}, {case.given[i]}, in the last call {v[-1].tolist()}"
        for i, v in enumerate(case.values[: case.inputs])
    )
    return f"# mesh {case.mesh!r}, calls {case.calls}, results {case.wanted}\n{inputs}\n{case.text}"


KINDS = (Kind("lengths", cases(), check, text, seconds=60),)
