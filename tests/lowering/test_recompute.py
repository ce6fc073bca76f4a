"""Steps of training within a budget: the same bits in fewer bytes, on any mesh; what cannot be is refused."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from depth import deep, some, thinned

import meshweave as mw
from meshweave.errors import CompileError
from meshweave.hints.ledger import RefusedHintError

LAYERS = 6
SPLIT = [("[_, tp]", "[tp]") if k % 2 == 0 else ("[tp, _]", "[_]") for k in range(LAYERS)]
LAYOUTS: dict[str, Any] = {
    "one=1": (None, None, None),
    "dp=2, tp=2": (SPLIT, "[dp, _]", "[dp, _]"),
}


def loss(ps: Any, x: Any, y: Any) -> Any:
    for w, b in ps:
        x = mw.tanh(x @ w + b)
    return mw.mean((x - y) ** 2)


def step(ps: Any, x: Any, y: Any) -> Any:
    value, slopes = mw.value_and_grad(loss)(ps, x, y)
    return value, [(w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(ps, slopes)]


def within(nbytes: int | str, strength: str | None = None) -> Callable[..., Any]:
    def hinted(ps: Any, x: Any, y: Any) -> Any:
        with mw.hint(peak_bytes=nbytes, strength=strength):
            return step(ps, x, y)

    return hinted


def arguments(rows: int = 255, width: int = 32) -> tuple[Any, Any, Any]:
    r = np.random.default_rng(3)
    ps = [
        (r.normal(size=(width, width)).astype("f4") / 6, np.zeros(width, "f4"))
        for _ in range(LAYERS)
    ]
    return ps, *(r.normal(size=(rows, width)).astype("f4") for _ in range(2))


def flat(results: Any) -> list[np.ndarray[Any, Any]]:
    value, moved = results
    return [np.asarray(a) for a in (value, *(a for pair in moved for a in pair))]


def said(report: Any) -> tuple[int, float]:
    """How many ops run again, and the milliseconds that this takes, of the one reason in the ledger."""
    (reason,) = {row.reason for row in report.ledger if row.hint.startswith("peak")}
    found = re.search(r"(\d+) ops run again .* ([\d.e-]+) ms predicted", reason)
    return (int(found[1]), float(found[2])) if found else (0, 0.0)


@pytest.mark.parametrize("mesh", some(["dp=2, tp=2", "one=1"], 2))
def test_a_step_within_a_budget_has_the_same_bits_in_fewer_bytes(mesh: str) -> None:
    args, layouts = arguments(256 if "dp" in mesh else 255), LAYOUTS[mesh]
    plain = mw.jit(step, mesh=mesh, in_layouts=layouts)
    wanted, whole = flat(plain(*args)), plain.explain().report.arena_bytes
    before = (0, 0.0)
    for share, donated in thinned(((1.0, ()), (0.9, ()), (0.75, ("ps",))), 2):
        limit = int(whole * share)
        f = mw.jit(within(limit), mesh=mesh, in_layouts=layouts, donate=donated)
        for one, other in zip(wanted, flat(f(*args)), strict=True):
            np.testing.assert_array_equal(one, other)
        report = f.explain().report
        assert {row.outcome for row in report.ledger} <= {"honoured", "dead"}
        assert report.certificate.proven and not report.certificate.unproven
        assert said(report) >= before and (share == 1.0) == (said(report)[0] == 0)
        assert report.regions[0].intermediate_bytes <= limit
        before = said(report)


def test_a_budget_that_no_choice_keeps_is_refused_with_the_least_or_gets_it() -> None:
    args = arguments()
    with pytest.raises(
        CompileError, match=r"infeasible: the least possible is .* ops run again"
    ) as e:
        mw.jit(within("10KiB"))(*args)
    assert isinstance(e.value, RefusedHintError) and e.value.refusal is not None
    least = e.value.refusal.outcome.allow
    assert str(e.value).endswith(f"; allow {least} bytes")
    f, wanted = mw.jit(within("10KiB", "preferred")), flat(mw.jit(step)(*args))
    for one, other in zip(wanted, flat(f(*args)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert f.explain().report.regions[0].intermediate_bytes == least
    mw.jit(within(least))(*args)


def test_a_program_of_jax_takes_a_budget() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def theirs(ps: Any, x: Any, y: Any) -> Any:
        for w, b in ps:
            x = jnp.tanh(x @ w + b)
        return ((x - y) ** 2).mean()

    def adjusted(ps: Any, x: Any, y: Any) -> Any:
        value, slopes = jax.value_and_grad(theirs)(ps, x, y)
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, ps, slopes)

    args = arguments()
    plain = mw.jax.jit(adjusted)
    wanted = flat(plain(*args))
    limit = int(0.75 * plain.explain().report.arena_bytes)
    forms = (
        lambda: mw.jax.jit(adjusted, peak_bytes=limit),
        lambda: mw.from_jax(adjusted, *args, peak_bytes=limit),
    )
    for form in thinned(forms, 2):
        one = form()
        for mine, other in zip(wanted, flat(one(*args)), strict=True):
            np.testing.assert_array_equal(mine, other)
        report = one.explain().report
        assert said(report)[0] and report.regions[0].intermediate_bytes <= limit
    with pytest.raises(CompileError, match="a number of B, KiB"):
        mw.jax.jit(adjusted, peak_bytes="much")(*args)


def test_a_region_of_few_results_is_cut_in_slices_where_that_is_enough() -> None:
    def far(x: Any, w: Any) -> Any:
        kept = y = mw.tanh(x @ w)
        for _ in range(3):
            y = mw.tanh(y @ w)
        return y * kept

    def within_half(x: Any, w: Any) -> Any:
        with mw.hint(peak_bytes=40_000):
            return far(x, w)

    _, x, _ = arguments(256)
    w = np.eye(32, dtype="f4")
    f = mw.jit(within_half)
    np.testing.assert_array_equal(f(x, w), mw.jit(far)(x, w))
    (region,) = f.explain().report.regions
    assert region.slices > 1 and region.intermediate_bytes <= 40_000


@pytest.mark.parametrize("mesh", ["one=1", pytest.param("dp=2", marks=deep)])
def test_layouts_and_what_runs_again_are_chosen_together(mesh: str) -> None:
    """Of four layers values are made again as placement has chosen; on one rank the bits are those without."""
    ps, x, y = arguments(64, 16)
    free = mw.jit(step, mesh=mesh, layouts="auto")
    wanted, report = flat(free(ps[:4], x, y)), free.explain().report
    limit = report.peak_bytes - report.arena_bytes // 6
    f = mw.jit(step, mesh=mesh, layouts="auto", peak_bytes=limit)
    got, report = flat(f(ps[:4], x, y)), f.explain().report
    assert report.placement is not None and report.placement.memory is not None
    assert report.peak_bytes <= limit and report.certificate.proven
    memory = report.placement.memory
    if mesh == "one=1" or memory.made_again:
        assert memory.again == pytest.approx(sum(value.seconds for value in memory.made_again))
        assert all(value.nbytes and value.seconds for value in memory.made_again)
        assert said(report)[0] and "made again, not kept" in str(f.explain())
    for one, other in zip(wanted, got, strict=True):
        if mesh == "one=1":
            np.testing.assert_array_equal(other, one)
        else:
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
