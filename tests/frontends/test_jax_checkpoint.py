"""jax.checkpoint computes again instead of keeping: memory falls, values stay, and the ledger says so."""

import re
from typing import Any

import numpy as np
import pytest
from depth import deep, some

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave.hints.ledger import HONOURED  # noqa: E402
from meshweave.report import Report  # noqa: E402

RNG = np.random.default_rng(3)
LAYERS, WIDTH, ROWS = 6, 16, 128
KEPT = LAYERS * ROWS * WIDTH * 4
"""Bytes of what a checkpointed stack keeps: the input of each layer."""


def layer(p: dict[str, Any], x: Any) -> Any:
    h = jnp.tanh(x @ p["a"])
    h = jnp.sin(h @ p["b"]) * h
    return x + h @ p["c"]


def step_of(one: Any) -> Any:
    """Return a step of gradient descent through layers `one`."""

    def loss(ps: Any, x: Any) -> Any:
        for p in ps:
            x = one(p, x)
        return jnp.mean(x**2)

    def step(ps: Any, x: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(ps, x)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, ps, slopes)

    return step


def given() -> tuple[Any, Any]:
    ps = [
        {k: (RNG.normal(size=(WIDTH, WIDTH)) / 4).astype(np.float32) for k in "abc"}
        for _ in range(LAYERS)
    ]
    return ps, RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)


def ran(step: Any, *arguments: Any, **options: Any) -> Report:
    """Compare a program with JAX's; return its report."""
    program = mw.jax.jit(step, **options)
    found, wanted = program(*arguments), jax.jit(step)(*arguments)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(
            np.asarray(one), np.asarray(other), rtol=2e-5, atol=2e-6 * np.abs(other).max()
        )
    report: Report = program.explain().report
    return report


@pytest.mark.parametrize("ranks", some([2, 1], 2))
def test_memory_falls_as_far_as_the_policy_says(ranks: int) -> None:
    policies = jax.checkpoint_policies
    options = {"mesh": "dp=2", "in_shardings": (None, "[dp, _]")} if ranks > 1 else {}
    arguments = given()
    plain = ran(step_of(layer), *arguments, **options)
    again = ran(step_of(jax.checkpoint(layer)), *arguments, **options)
    dots = jax.checkpoint(layer, policy=policies.dots_saveable)
    everything = jax.checkpoint(layer, policy=policies.everything_saveable)
    some = ran(step_of(dots), *arguments, **options)
    assert again.arena_bytes < 2 * KEPT // ranks < some.arena_bytes < 0.75 * plain.arena_bytes
    assert plain.arena_bytes > 3.5 * KEPT // ranks
    assert ran(step_of(everything), *arguments, **options).arena_bytes == plain.arena_bytes
    assert plain.ledger == () and len(again.ledger) == 1
    (row,) = again.ledger
    assert (row.hint, row.outcome) == ("again=checkpoint", HONOURED)
    # Of each layer two products and three maps; the last product is needed by nothing.
    assert row.reason.startswith(f"{5 * LAYERS} ops run again: at most ")
    now, before = (int(n.replace(",", "")) for n in re.findall(r"[0-9]+,[0-9,]*[0-9]", row.reason))
    assert now < 2.5 * KEPT < 3.5 * KEPT < before


@deep
def test_a_budget_lowers_what_checkpoints_leave() -> None:
    arguments = given()
    step = step_of(jax.checkpoint(layer))
    again = ran(step, *arguments)
    budget = again.arena_bytes * 9 // 10
    less = ran(step, *arguments, peak_bytes=budget)
    assert less.arena_bytes <= budget
    assert {row.outcome for row in less.ledger} == {HONOURED}


def test_layers_of_layers() -> None:
    """Nested checkpoints: what runs again for the outer one runs again for the inner one."""
    pair = jax.checkpoint(
        lambda p, x: jax.checkpoint(layer)(p["1"], jax.checkpoint(layer)(p["0"], x))
    )
    ps, x = given()
    pairs = [{"0": ps[k], "1": ps[k + 1]} for k in range(0, LAYERS, 2)]
    nested, plain = ran(step_of(pair), pairs, x), ran(step_of(layer), ps, x)
    assert nested.arena_bytes < plain.arena_bytes / 2


def test_dropout_draws_the_same_numbers_again() -> None:
    def dropped(p: Any, x: Any) -> Any:
        keep = jax.random.bernoulli(jax.random.key(3), 0.8, x.shape)
        return jnp.where(keep, layer(p, x) / 0.8, 0.0)

    again = ran(step_of(jax.checkpoint(dropped)), *given())
    assert again.arena_bytes < ran(step_of(dropped), *given()).arena_bytes


def test_loops_and_branches_in_turn_are_right() -> None:
    def rounds(x: Any) -> Any:
        x = jax.lax.fori_loop(0, 5, lambda _, c: jnp.sin(c) * 1.1, x)
        return jax.lax.cond(x[0, 0] > 0, jnp.sin, lambda y: jnp.cos(y) * y, x)

    again = jax.checkpoint(rounds)
    for x in (np.ones((8, 5), np.float32), -np.ones((8, 5), np.float32)):
        ran(jax.value_and_grad(lambda y: jnp.sum(again(again(y)))), x)


def test_barriers_around_values_of_any_kind() -> None:
    def program(x: Any) -> Any:
        y = jax.lax.optimization_barrier(
            (
                *(jnp.sin(x), jnp.arange(4, dtype=jnp.uint32), x > 0, x + 1j * x),
                *(jnp.float32(2), x.astype(jnp.bfloat16), jnp.zeros((0, 3))),
            )
        )
        bits, less, imaginary = y[1] + jnp.uint32(3), y[2] ^ True, (y[3] * y[3]).imag
        return y[0] * y[4] + jnp.sin(x), bits, less, imaginary, y[5] * 2, y[6] + 1

    x = RNG.normal(size=(4, 6)).astype(np.float32)
    for found, wanted in zip(mw.jax.jit(program)(x), jax.jit(program)(x), strict=True):
        np.testing.assert_allclose(
            np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=1e-5
        )


@pytest.mark.parametrize("kind", ["loop", "branch"])
def test_loops_and_branches_run_again_as_a_whole(kind: str) -> None:
    @jax.checkpoint
    def rounds(x: Any) -> Any:
        if kind == "loop":
            return jax.lax.fori_loop(0, 5, lambda _, c: jnp.sin(c) * 1.1, x)
        return jax.lax.cond(x[0, 0] > 0, jnp.sin, lambda y: jnp.cos(y) * y, x)

    def step(x: Any) -> Any:
        return jax.value_and_grad(lambda y: jnp.sum(rounds(rounds(y))))(x)

    ran(step, RNG.normal(size=(8, 5)).astype(np.float32))
