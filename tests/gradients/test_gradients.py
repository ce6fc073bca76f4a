"""Gradients inside and outside of traced functions: control flow, gradients of gradients, pytrees, refusals."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from depth import DEEP, sampled

import meshweave as mw

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
X, W = np.random.default_rng(1).normal(size=(4, 3)), np.random.default_rng(2).normal(size=(3, 5))
X, W = X.astype(np.float32), W.astype(np.float32)


def near(ours: Any, theirs: Any, rtol: float = 2e-5) -> None:
    """Compare pytrees; numbers beside large ones are compared with these."""
    ours, theirs = jax.tree.leaves(jax.tree.map(np.asarray, ours)), jax.tree.leaves(theirs)
    for one, other in zip(ours, theirs, strict=True):
        other = np.asarray(other)
        np.testing.assert_allclose(one, other, rtol, rtol * (1 + np.abs(other).max(initial=0)))


def loop(m: Any, scan: Any, x: Any, w: Any) -> Any:
    """Carry an array and a counter, read a row and what the function holds, and give ys."""

    def body(state: Any, row: Any) -> Any:
        c, n = state
        made = m.tanh(c * w[0, 0] + row @ w)
        return (made, n + 1), m.sum(made * made) * n

    zeros = m.zeros((5,), dtype=m.float32)
    (c, _), ys = scan(body, (zeros, m.asarray(0, dtype=m.int32)), x)
    return m.sum(c) + m.sum(ys**2)


def back_to_front(m: Any, scan: Any, x: Any, w: Any) -> Any:
    c, ys = scan(
        lambda c, r: (c * m.sin(r[:2]), r * 2), m.ones((2,), dtype=m.float32), x, reverse=True
    )
    return m.sum(c * w[0, :2]) + m.sum(ys[1] ** 3)


def nested(m: Any, scan: Any, x: Any, w: Any) -> Any:
    def outer(c: Any, row: Any) -> Any:
        last, _ = scan(lambda d, e: (m.sin(d * e) + m.sum(w) * 0.1, None), c, row)
        return last, last * c

    c, ys = scan(outer, m.asarray(0.5, dtype=m.float32), x)
    return c + m.sum(ys)


def branch(m: Any, cond: Any, x: Any, w: Any) -> Any:
    made = cond(m.sum(x) > 0, lambda v: m.exp(v @ w), lambda v: m.sin(v) @ w * 2, x)
    return m.sum(made * made)


def branch_in_loop(m: Any, scan: Any, cond: Any, x: Any, w: Any) -> Any:
    def body(c: Any, row: Any) -> Any:
        return cond(row[0] > 0, lambda: c * m.sum(row @ w), lambda: m.cos(c)), c

    c, ys = scan(body, m.asarray(0.7, dtype=m.float32), x)
    return c * m.sum(ys)


def swapped(m: Any, scan: Any, x: Any, w: Any) -> Any:
    """Give what the body was given: a carry under another name, a row, what it holds, an integer."""

    def body(state: Any, v: Any) -> Any:
        a, b, n = state
        return (b, a * v, n + 1), (v, a, w[0, :3])

    start = (m.ones((3,), dtype=m.float32), w[1, :3], m.asarray(0, dtype=m.int32))
    (a, b, _), (p, q, s) = scan(body, start, x)
    return m.sum(a * b) + m.sum(p * q * s)


CONTROL: dict[str, Callable[..., Any]] = {
    "loop": lambda m, scan, cond: lambda x, w: loop(m, scan, x, w),
    "back to front": lambda m, scan, cond: lambda x, w: back_to_front(m, scan, x, w),
    "nested": lambda m, scan, cond: lambda x, w: nested(m, scan, x, w),
    "swapped": lambda m, scan, cond: lambda x, w: swapped(m, scan, x, w),
    "branch": lambda m, scan, cond: lambda x, w: branch(m, cond, x, w),
    "other branch": lambda m, scan, cond: lambda x, w: branch(m, cond, -x, w),
    "branch in loop": lambda m, scan, cond: lambda x, w: branch_in_loop(m, scan, cond, x, w),
}


@sampled(3)
@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_and_second_derivatives(name: str) -> None:
    ours, theirs = CONTROL[name](mw, mw.scan, mw.cond), CONTROL[name](jnp, lax.scan, lax.cond)

    def run(grad: Any, function: Any, m: Any, x: Any, w: Any) -> Any:
        first = grad(function, (0, 1))
        second = grad(lambda x, w: sum(m.sum(g * g) for g in first(x, w)), (0, 1))
        return first(x, w), second(x, w)

    found = mw.jit(lambda x, w: run(mw.grad, ours, mw, x, w))(X, W)
    near(found, jax.jit(partial(run, jax.grad, theirs, jnp))(X, W), 1e-4)


def test_second_derivatives_of_functions() -> None:
    def f(m: Any, x: Any) -> Any:
        y = m.tanh(x) * m.sum(x**3, axis=0) / (2 + m.cos(x))
        return (
            m.sum(m.max(y, axis=1) * m.exp(x[:, 1]))
            + m.prod(x[0])
            + m.sum(m.sort(x, axis=1)[:, 0] ** 2)
        )

    def run(grad: Any, m: Any, x: Any) -> Any:
        hessian = grad(lambda x: m.sum(grad(lambda v: f(m, v))(x) * m.cos(x)))
        return hessian(x), grad(lambda x: m.sum(hessian(x)))(x) if DEEP else 0

    near(mw.jit(partial(run, mw.grad, mw))(X), jax.jit(partial(run, jax.grad, jnp))(X), 2e-4)


def test_finite_differences_where_jax_has_no_twin() -> None:
    """The places that `take` takes from behind and beyond the ends, and complete products of uneven blocks."""
    x = np.random.default_rng(3).normal(size=(5, 3))
    places = np.array([-1, 7, 2, -9, 2])

    def f(v: Any) -> Any:
        return mw.sum(
            mw.sin(mw.take(v, mw.asarray(places), axis=0)) ** 2 * np.arange(15.0).reshape(5, 3)
        )

    slope = np.asarray(mw.grad(f)(x))
    value = mw.jit(f)
    for at in ((0, 0), (2, 1), (4, 2), (3, 1)):
        moved = [x.copy(), x.copy()]
        moved[0][at] += 1e-5
        moved[1][at] -= 1e-5
        step = (float(value(moved[0])) - float(value(moved[1]))) / 2e-5
        assert abs(slope[at] - step) < 1e-6 * (1 + abs(step))


def test_pytrees_argnums_and_aux() -> None:
    def loss(p: Any, x: Any, scale: Any) -> Any:
        y = x @ p["w"] + p["b"][0]
        return (y**2).mean() * scale if isinstance(x, jax.Array) else mw.mean(y**2) * scale, {
            "y": y
        }

    p = {"w": W, "b": (np.ones(5, np.float32), np.zeros(2, np.float32))}
    for argnums in (0, 1, (0, 2), -1):
        (value, aux), slopes = mw.value_and_grad(loss, argnums, has_aux=True)(p, X, 3.0)
        wanted = argnums if argnums != -1 else 2
        gradient = jax.jit(jax.value_and_grad(loss, wanted, has_aux=True))
        theirs = gradient(p, jnp.asarray(X), 3.0)
        near(((value, aux), slopes), theirs)
        near(mw.grad(loss, argnums, has_aux=True)(p, X, 3.0)[0], theirs[1])
    assert set(slopes if isinstance(slopes, dict) else {"y"}) == {"y"}


def test_a_gradient_does_not_follow_what_the_function_holds() -> None:
    near(mw.jit(lambda x: mw.grad(lambda y: mw.sum(x * y))(x))(X), X)
    near(
        mw.jit(lambda x: mw.grad(lambda y, z: mw.sum(y * y * z), (0, 1))(x, x))(X),
        (2 * X * X, X * X),
    )
    near(mw.jit(lambda x: mw.grad(lambda y: mw.sum(mw.astype(y, "f32") * x))(x))(X), X)
    near(mw.grad(lambda y: mw.sum(mw.stop_gradient(y) * y))(X), X)


def test_numbers_take_the_type_of_what_they_meet() -> None:
    wide = np.array([1.0, 1e-12])
    for given in (2.0, np.float32(2)):
        slope = mw.grad(lambda s, v: mw.sum(s * v))(given, wide)
        assert float(slope) == pytest.approx(1 + 1e-12, abs=1e-7)
    assert mw.grad(lambda x: x * x)(3.0).dtype == np.float32


def test_pullbacks() -> None:
    def f(x: Any, w: Any) -> Any:
        return {"a": x @ w, "b": [x[0]]}

    g = {"a": np.ones((4, 5), np.float32), "b": [np.arange(3, dtype=np.float32)]}
    y, back = mw.vjp(f, X, W)
    theirs, pulled = jax.vjp(f, X, W)
    near(y, theirs)
    near(back(g), pulled(g))
    near(mw.jit(lambda x, w, g: mw.vjp(f, x, w)[1](g))(X, W, g), pulled(g))
    y, back, aux = mw.vjp(lambda x: (x * 2, x[0]), X, has_aux=True)
    near((y, aux, back(X)), (X * 2, X[0], (X * 2,)))


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(mw.MeshweaveError) as error:
        call()
    text = str(error.value)
    assert "test_gradients.py:" in text and "\n" not in text
    return text


def test_what_has_no_gradient_is_refused_in_a_line() -> None:
    whole = np.arange(3)
    assert "argument 0 has dtype" in refusal(lambda: mw.grad(lambda x: mw.sum(x))(whole))
    assert "argument 1['n'] has dtype" in refusal(
        lambda: mw.grad(lambda x, p: mw.sum(x), (0, 1))(X, {"n": whole > 0})
    )
    assert "argument 0 has dtype" in refusal(lambda: mw.grad(lambda x: x * 1.0)(1))
    assert "one floating scalar" in refusal(lambda: mw.grad(lambda x: x * 2)(X))
    assert "one floating scalar" in refusal(lambda: mw.grad(lambda x: mw.sum(x) > 0)(X))
    assert "has_aux" in refusal(lambda: mw.grad(lambda x: mw.sum(x), has_aux=True)(X))
    assert "argnums 3" in refusal(lambda: mw.grad(lambda x: mw.sum(x), 3)(X))
    assert "argnums (0, 0)" in refusal(lambda: mw.grad(lambda x: mw.sum(x), (0, 0))(X))
    assert "while_loop has no gradient" in refusal(
        lambda: mw.grad(lambda x: mw.while_loop(lambda v: v < 9, lambda v: v * 2, mw.sum(x)))(X)
    )
    assert "nextafter has no derivative" in refusal(
        lambda: mw.grad(lambda x: mw.sum(mw.nextafter(x, 2 * x)))(X)
    )
    assert "full_matrices" in refusal(lambda: mw.grad(lambda x: mw.sum(mw.linalg.svd(x)[0]))(X))
    assert "qr of matrices" in refusal(lambda: mw.grad(lambda x: mw.sum(mw.linalg.qr(x.T)[0]))(X))
    assert "a cotangent is" in refusal(lambda: mw.vjp(lambda x: x * 2, X)[1](X[0]))
    assert "2 cotangents" in refusal(lambda: mw.vjp(lambda x: x * 2, X)[1]((X, X)))


def test_what_no_gradient_follows_may_be_of_any_kind() -> None:
    def f(x: Any, n: Any) -> Any:
        count = mw.while_loop(lambda v: v < 5, lambda v: v + 2, n)
        return mw.sum(x * mw.astype(count, x.dtype)) + mw.sum(
            mw.nextafter(mw.stop_gradient(x), 0.0)
        )

    near(mw.grad(f)(X, np.int32(0)), np.full_like(X, 6))


def hinted(p: Any, x: Any, **said: Any) -> Any:
    with mw.hint(slice="t=2", order="dfs", **said):
        back = "[dp, tp]" if said else None  # no t there
        h = mw.constrain(mw.tanh(x @ p["a"]), "[dp*t, tp]", backward=back)
        y = h @ p["b"]
    return mw.mean(y * y)


def test_hints_and_layouts_carry_over_to_the_way_back() -> None:
    p = {"a": W[:, :4], "b": W[:2, :4].T.copy()}
    placed = ({"a": "[_, tp]", "b": "[tp, _]"}, "[dp, _]")
    theirs = jax.jit(jax.grad(lambda p: jnp.mean((jnp.tanh(X @ p["a"]) @ p["b"]) ** 2)))(p)

    def compiled(**said: Any) -> str:
        slope = mw.grad(lambda p, x: hinted(p, x, **said))
        f = mw.jit(slope, mesh="dp=2, tp=2", in_layouts=placed)
        found = f(p, X)
        near(found, theirs)
        assert [str(found[k].layout) for k in "ab"] == ["[_, tp]", "[tp, _]"]
        return f.explain()

    both, there, apart = compiled(), compiled(backward={}), compiled(backward={"order": "bfs"})
    assert both.count("region1") == 1 and "honoured" in both
    assert "region0" in there and "region1" not in there
    assert "order=bfs" in apart and "order=dfs" in apart
    with pytest.raises(mw.MeshweaveError, match="orders"):
        mw.jit(lambda p, x: hinted(p, x, backward={"orders": "bfs"}))(p, X)


def test_a_constraint_may_say_another_layout_for_the_way_back() -> None:
    def slope(**said: Any) -> Any:
        f = lambda x: mw.sum(mw.sin(mw.constrain(x * 2, "[x, _]", **said)))  # noqa: E731
        return mw.jit(mw.grad(f), mesh="x=2")

    same, other = slope(), slope(backward="[_, x]")
    near(same(X), 2 * np.cos(2 * X))
    near(other(X), 2 * np.cos(2 * X))
    assert str(same(X).layout) == "[x, _]" and str(other(X).layout) == "[_, x]"


def test_gradients_of_compiled_functions_and_of_arrays_on_ranks() -> None:
    f = mw.jit(lambda x, w: mw.sum(mw.tanh(x @ w)), mesh="x=2", in_layouts=("[x, _]", None))
    theirs = jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.tanh(x @ w)), (0, 1)))(X, W)
    near(mw.grad(f, (0, 1))(X, W), theirs)
    on_ranks = mw.Array.from_numpy(X, mesh="x=2", layout="[x, _]")
    found = mw.grad(lambda x, w: mw.sum(mw.tanh(x @ w)), (0, 1))(on_ranks, W)
    near(found, theirs)
    assert found[0].mesh == mw.Mesh(x=2)


def test_gradients_of_a_batch_move_as_many_bytes_as_there_are_parameters() -> None:
    slope = mw.jit(
        mw.grad(lambda w, x: mw.mean(mw.tanh(x @ w) ** 2)),
        mesh="dp=2",
        in_layouts=(None, "[dp, _]"),
    )
    slope(W, X)
    assert f"1 collective brings the busiest rank {W.nbytes} bytes" in slope.explain()
