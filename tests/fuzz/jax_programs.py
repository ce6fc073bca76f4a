"""Random functions of JAX, as they are, mapped, and for their first and second derivatives, against JAX."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from hypothesis import strategies as st
from strategies import any_layouts

import meshweave as mw
from fuzz.operands import operands
from fuzz.search import Kind, Refused
from meshweave.layout import Mesh

MESHES = ("x=2", "x=3", "x=2, y=2")
SIZES = (1, 2, 3, 4, 5, 7)
WAYS = ("values", "grad", "grad", "mapped", "slope", "second")
NEAR = {"float64": {"values": 1e-9, "second": 1e-7}, "float32": {"values": 1e-4, "second": 2e-2}}
"""Of values and of second derivatives, by the largest of them; of all else a tenth of what those may have."""

MAPS = (
    "{a} * 2 - 1", "jnp.sin({a})", "jnp.tanh({a})", "jnp.exp(-jnp.abs({a}))", "{a} + {b}", "{a} * {b}",
    "jnp.maximum({a}, {b})", "jnp.where({a} > {b}, {a}, {b} * 2)", "lax.erf({a})", "lax.rsqrt(1 + {a} * {a})",
    "jax.nn.gelu({a})", "jax.nn.silu({a})", "jax.nn.softplus({a})", "lax.clamp(-0.5, {a}, 0.7)",
    "jnp.logaddexp({a}, {b})", "jnp.sign({a}) * {b}", "jnp.round({a} * 3) / 3", "lax.integer_pow({a}, 3)",
    "jnp.arctan2({a}, {b} + 3)", "lax.stop_gradient({a}) * {b}", "jax.nn.relu({a})", "jax.nn.elu({a})",
    "jnp.expm1({a})", "jnp.log1p(jnp.abs({a}))", "{a}.astype('bfloat16').astype({a}.dtype)",
)  # fmt: skip
FOLDS = (
    "jnp.sum({a}, axis={d})", "jnp.max({a}, axis={d}, keepdims=True)", "jnp.mean({a}, axis={d})",
    "jnp.min({a}, axis={d})", "jnp.cumsum({a}, axis={d})", "jnp.sort({a}, axis={d})", "jnp.prod({a}, axis={d})",
    "jax.nn.softmax({a}, axis={d})", "jax.nn.logsumexp({a}, axis={d})", "jnp.var({a}, axis={d})",
    "lax.cummax({a}, axis={d})", "lax.cumlogsumexp({a}, axis={d})", "lax.associative_scan(jnp.add, {a}, axis={d})",
    "jnp.median({a}, axis={d})", "lax.top_k({a}, 1)[0]", "jnp.argmax({a}, axis={d}).astype({a}.dtype)",
    "lax.cumsum({a}, axis={d}, reverse=True)", "jnp.argsort({a}, axis={d}).astype({a}.dtype) * 0.1",
    "lax.sort(({a}, {c}), dimension={d}, num_keys=1)[1]", "lax.reduce_precision({a}, 8, 10)",
)  # fmt: skip
MOVES = (
    "jnp.concatenate([{a}, {c}], axis={d})", "{a}[{i}:]", "{a}[..., ::-2]", "{a}[{i}]", "{a}.reshape(-1)",
    "jnp.reshape({a}, (2, -1))", "jnp.roll({a}, {i}, axis={d})", "jnp.flip({a}, axis={d})",
    "jnp.expand_dims({a}, {d})", "jnp.repeat({a}, 2, axis={d})", "jnp.tile({a}, 2)", "jnp.pad({a}, 1)",
    "jnp.transpose({a}, {p})", "jnp.stack([{a}, {c}], axis={d})", "jnp.take({a}, np.array({k}), axis={d})",
    "lax.pad({a}, {a}.dtype.type(0.5), [(1, -1, 1)] * {n})", "lax.pad({a}, {a}.dtype.type(0), [(-1, 2, 0)] * {n})",
    "lax.dynamic_slice_in_dim({a}, {i}, 1, axis={d})", "{a}.at[np.array({r})].add({c}[np.array({r})])",
    "{a}.at[{i}].set({c}[{i}] * 2)", "{a}.at[np.array({r})].max({c}[np.array({r})])", "jnp.diff({a}, axis={d})",
    "jnp.take_along_axis({a}, jnp.argsort({c}, axis={d}), axis={d})", "jnp.moveaxis({a}, {d}, 0)",
    "lax.broadcast_in_dim({a}, (2, *{a}.shape), tuple(range(1, {n} + 1)))", "jnp.tril(jnp.atleast_2d({a}))",
    "lax.reduce_window({a}, -np.inf, lax.max, (2,) * {n}, (1,) * {n}, 'SAME')",
    "lax.reduce_window({a}, 0.0, lax.add, (2,) * {n}, (2,) * {n}, 'SAME')",
    "jax.ops.segment_sum({a}, jnp.arange({a}.shape[0]) % 3, num_segments=3)",
    "jnp.searchsorted(jnp.sort({a}.ravel()), {c}.ravel()).astype({a}.dtype) * 0.1",
)  # fmt: skip
PRODUCTS = (
    "{a} @ {b}", "{a} @ jnp.swapaxes({c}, -1, -2)", "{a}.T @ {c}", "jnp.einsum('...i,...i->...', {a}, {c})",
    "jax.nn.softmax({a} @ jnp.swapaxes({c}, -1, -2), axis=-1) @ {c}", "jnp.tensordot({a}, {c}, axes=([{d}], [{d}]))",
    "jnp.outer({a}, {c})[:7, :5]", "jnp.convolve({a}.ravel()[:5], {c}.ravel()[:3])", "jnp.fft.fft({a}, axis={d}).real",
    "lax.conv_general_dilated({a}.reshape(1, 1, -1, 1), jnp.full((2, 1, 2, 1), 0.3, {a}.dtype), (1, 1), 'SAME')",
    "jnp.linalg.solve({a} @ {a}.T + jnp.eye({a}.shape[0], dtype={a}.dtype) * 2, {c})",
)  # fmt: skip
CONTROL = (
    "lax.cond(jnp.sum({a}) > 0, lambda: {a} * 2, lambda: {c} - {a})", "jax.jit(lambda z: z * jnp.max(z))({a})",
    "lax.scan(lambda s, r: (jnp.tanh(s + r), s * r), {a}[0], {a})[{j}]", "lax.map(lambda r: r * 2 + r.sum(), {a})",
    "lax.scan(lambda s, _: (jnp.sin(s + {c}), jnp.sum(s)), {a}, length=3)[{j}]",
    "lax.fori_loop(0, 3, lambda k, s: s * 0.5 + {c} * k, {a})", "jax.vmap(lambda r: jnp.cumsum(r) * r.sum())({a})",
    "jax.checkpoint(lambda z: jnp.sin(jnp.sin(z)))({a})", "jax.jvp(jnp.sin, ({a},), ({c},))[1]",
    "jax.vmap(lambda r: lax.cond(r.sum() > 0, lambda: r, lambda: -r))({a})",
    "jax.grad(lambda z: jnp.sum(jnp.tanh(z) * {c}))({a})",
)  # fmt: skip
TABLES = (MAPS, MAPS, FOLDS, MOVES, MOVES, PRODUCTS, CONTROL)


@cache
def names() -> dict[str, Any]:
    """What the text of a function reads."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    jax.config.update("jax_enable_x64", True)
    return {"jax": jax, "jnp": jax.numpy, "lax": jax.lax, "np": np}


@dataclass
class Case:
    """A function, `body` after its head, of inputs v0, v1, ..; what is asked of it, and where its arguments lie.

    values: what each value is at the inputs. wanted: what JAX says.
    """

    mesh: str
    way: str
    dtype: str
    body: list[str] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)
    inputs: int = 0
    given: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its source."""
        head = ", ".join(f"v{i}" for i in range(self.inputs))
        lines = [f"def f({head}):", *self.body, f"return v{len(self.values) - 1}"]
        return "\n    ".join(lines) + "\n"

    @property
    def arguments(self) -> list[np.ndarray]:
        """What it is given."""
        values = self.values[: self.inputs]
        return [np.stack([v, v * 0.5, -v]) for v in values] if self.way == "mapped" else values

    def asked(self) -> Callable[..., Any]:
        """Return the function whose results are compared."""
        known = dict(names())
        exec(self.text, known)
        f, jax, jnp = known["f"], known["jax"], known["jnp"]
        every = tuple(range(self.inputs))
        last = self.values[-1]
        weights = np.cos(np.arange(last.size)).reshape(last.shape).astype(self.dtype)

        def total(*values: Any) -> Any:
            return jnp.sum(f(*values) * weights)

        def turned(*values: Any) -> Any:
            slopes = jax.grad(total, argnums=every)(*values)
            return sum(jnp.sum(s * jnp.cos(jnp.arange(s.size)).reshape(s.shape)) for s in slopes)

        def slope(*values: Any) -> Any:
            return jax.jvp(total, values, tuple([jnp.cos(v) for v in values]))

        ways = {
            "values": f,
            "grad": jax.grad(total, argnums=every),
            "mapped": jax.vmap(f),
            "slope": slope,
            "second": jax.grad(turned, argnums=every),
        }
        return ways[self.way]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, list[np.ndarray]]:
    """Functions of one to three inputs, of up to eight ops, and what JAX says."""
    if find_spec("jax") is None:
        return Case("", "values", "float32"), []
    case = Case(
        draw(st.sampled_from(MESHES)), draw(st.sampled_from(WAYS)), draw(st.sampled_from(list(NEAR)))
    )  # fmt: skip
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))
        case.values.append(rng.standard_normal(shape).astype(case.dtype))
    case.inputs = len(case.values)
    for _ in range(draw(st.integers(1, 8))):
        _op(draw, case)
    mesh = Mesh.parse(case.mesh)
    case.given = [str(draw(any_layouts(mesh, v.shape, ()))) for v in case.arguments]
    jax = names()["jax"]
    try:
        right = [np.asarray(y) for y in jax.tree.leaves(jax.jit(case.asked())(*case.arguments))]
    except (TypeError, ValueError, NotImplementedError):  # has no such derivative
        right = []
    return case, right


def _op(draw: st.DrawFn, case: Case) -> None:
    """Append an op, if it suits the value that is drawn for it."""
    drawn = operands(draw, case.values)
    if drawn is None:
        return
    text = draw(st.sampled_from(draw(st.sampled_from(TABLES)))).format(**drawn[1])
    jnp = names()["jnp"]
    try:
        values = {f"v{i}": jnp.asarray(v) for i, v in enumerate(case.values)}
        made = np.asarray(eval(text, {**names(), **values}))
    except (ValueError, IndexError, TypeError):
        return
    small = made.dtype == case.dtype and 0 < made.size <= 200 and made.ndim <= 4
    if small and np.isfinite(made).all() and np.abs(made).max() < 50:
        case.body.append(f"v{len(case.values)} = {text}")
        case.values.append(made)


def check(drawn: tuple[Case, list[np.ndarray]]) -> None:
    """Compile and run; compare with JAX."""
    case, right = drawn
    if not case.body or not right or not all(np.isfinite(y).all() for y in right):
        raise Refused
    jitted = mw.jax.jit(case.asked(), mesh=case.mesh, in_shardings=tuple(case.given))
    found = [np.asarray(y) for y in names()["jax"].tree.leaves(jitted(*case.arguments))]
    jitted.close()
    bounds = NEAR[case.dtype]
    near = bounds.get(case.way, bounds["second"] / 10)
    for i, (y, want) in enumerate(zip(found, right, strict=True)):
        where = f"result {i} of {case.way}"
        assert (y.shape, y.dtype) == (want.shape, want.dtype), f"{where}: {y.dtype} {y.shape}"
        off = np.abs(y - want).max(initial=0) / max(1.0, np.abs(want).max(initial=0))
        assert off <= near, f"{where} is {off:.1e} off: {y.tolist()}, {want.tolist()} is right"


def text(drawn: tuple[Case, list[np.ndarray]]) -> str:
    """The case, as it is kept."""
    case, _ = drawn
    inputs = "\n".join(
        f"v{i} = np.array({v.tolist()}, '{case.dtype}')  # {layout}"
        for i, (v, layout) in enumerate(zip(case.arguments, case.given, strict=True))
    )
    return f"# {case.way} on mesh {case.mesh!r}\n{inputs}\n{case.text}"


KINDS = (Kind("jax", cases(), check, text, seconds=60, stays=True),)
"""JAX has threads: it hangs in a fork."""
