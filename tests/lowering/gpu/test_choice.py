"""Which kernel an op gets on gpu: families off and on by option, region and context; tf32 only when asked; numerics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from depth import examples, sampled, some
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowering.gpu.examples import MESH, arguments, expected, text_of

import meshweave as mw
from meshweave.api import program as api
from meshweave.errors import CompileError
from meshweave.hints.fast_paths import FAMILIES, KERNELS, ROUNDING, as_choice
from meshweave.lowering.gpu.families import registry as families
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.gpu.launches import device_program
from meshweave.lowering.gpu.target import host_texts
from meshweave.lowering.host.program import read_program
from meshweave.lowering.report import report_of
from meshweave.transforms.kernels.select_kernels import joined, reasons_of

pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")

RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal(s).astype(np.float32) for s in ((40, 48), (48, 32)))
OURS = ("gemm_fma", *FAMILIES)


def several(x: Any, w: Any) -> Any:
    """A product, a softmax, sums down the columns, a transpose, an elementwise op."""
    p = mw.softmax(x @ w)
    return p, mw.sum(p, axis=0), mw.matrix_transpose(x) + 1.0, mw.exp(x)


def oracle(x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
    p = np.exp(x.astype(np.float64) @ w)
    p /= p.sum(1, keepdims=True)
    return [p, p.sum(0), x.T + 1.0, np.exp(x)]


def text(function: Any, hints: dict[str, str], *args: np.ndarray) -> str:
    """The program of a function, in a region with these hints, where there are any."""

    def inside(*given: Any) -> Any:
        with mw.hint(**hints):
            return function(*given)

    return mw.jit(inside if hints else function).lower(*args).as_text()


def ran(source: str, *args: np.ndarray, **options: Any) -> tuple[set[str], list[np.ndarray]]:
    """What computed it, and the results. Products by the library are "cublaslt" or "tf32 by cublaslt"."""
    with mw.compile(source, engine="emulate", **options) as program:
        manifest = program.bundle.manifest
        taken = {kernel.family for kernel in manifest.kernels} - {"spare"}
        taken |= {"tf32 by cublaslt" if g.compute == "tf32" else "cublaslt" for g in manifest.gemms}
        return taken, list(program(*args))


def rows(source: str, kernels: str | None = None) -> list[tuple[str, str]]:
    """Of each op the kernel that it got, and why not a faster one."""
    choice = as_choice(kernels)
    with api.lowered(source, "f", None, "emulate", kernels=choice) as (module, program):
        return [(k.kernel, k.why) for k in report_of(module, program).kernels]


def product(x: Any, w: Any) -> Any:
    return x @ w


def error(found: np.ndarray) -> float:
    """The largest error of X @ W, relative to the size of what is added."""
    exact, size = X.astype(np.float64) @ W, np.abs(X.astype(np.float64)) @ np.abs(W)
    return float((np.abs(found - exact) / size).max())


# The registry.


def test_every_family_is_a_kernel_with_its_class_of_numerics() -> None:
    names = [name for name, _ in families.FAMILIES if name not in ("flash", "gemm", "plain")]
    assert tuple(names) == FAMILIES
    seen = set()
    source = text(several, {}, X, W)
    for kernels in (None, "-cublaslt", "-cublaslt +gemm_tf32", "-cublaslt -gemm_fma -rows"):
        choice = as_choice(kernels)
        with api.lowered(source, "f", None, "emulate", kernels=choice) as (_, program):
            device = device_program(
                program, Target(disabled=frozenset(choice.disabled)), bodies=False
            )
            made = host_texts(read_program(device.module), device.texts).code.kernels
        for kernel, _ in made:
            name = {"plain": "codegen", "spare": "cublaslt"}.get(kernel.family, kernel.family)
            assert "gpu" in KERNELS[name].targets
            assert ROUNDING[kernel.numerics] <= KERNELS[name].rounding, kernel.entry
            seen.add(kernel.family)
    assert seen == {*OURS, "gemm_tf32", "plain", "spare"}


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sets(st.sampled_from(("cublaslt", *OURS)), min_size=1), st.sampled_from("arc"))
def test_what_is_off_computes_nothing(off: set[str], how: str) -> None:
    """Off for a region, by an argument, or by a context around the call."""
    words = " ".join(f"-{name}" for name in sorted(off))
    if how == "c":
        with mw.kernels(**dict.fromkeys(off, False)):
            found = mw.jit(several, engine="emulate")(X, W)
        results = [np.asarray(y) for y in found]
    else:
        source = text(several, {"kernels": words} if how == "r" else {}, X, W)
        option = None if how == "r" else words
        taken, results = ran(source, X, W, kernels=option)
        assert not taken & off
        assert {kernel for kernel, _ in rows(source, option)}.isdisjoint(off)
    for found, wanted in zip(results, oracle(X, W), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_a_region_is_about_its_ops_alone() -> None:
    def two(x: Any, w: Any) -> Any:
        with mw.hint(kernels="-cublaslt -gemm_mma -gemm_fma -rows -columns"):
            first = x @ w
        return first, (2.0 * x) @ w

    taken, (first, second) = ran(mw.jit(two).lower(X, W).as_text(), X, W)
    assert {"cublaslt", "plain"} <= taken and not taken & {"gemm_fma", "rows", "columns"}
    assert error(first) < 1e-6 and error(second / 2) < 1e-6


ON_TENSORS = """
func.func @main(%a: tensor<24x40xf32>) -> tensor<24x40xf32> {
  %e = tensor.empty() : tensor<24x40xf32>
  %r = "hint.region"() ({
    %s = linalg.softmax dimension(1) ins(%a : tensor<24x40xf32>) outs(%e : tensor<24x40xf32>) -> tensor<24x40xf32>
    %x = math.exp %s : tensor<24x40xf32>
    "hint.yield"(%x) : (tensor<24x40xf32>) -> ()
  }) {hints = {kernels = "-rows -elementwise"}} : () -> tensor<24x40xf32>
  %d = arith.addf %r, %r : tensor<24x40xf32>
  return %d : tensor<24x40xf32>
}"""


def test_a_region_is_about_ops_that_are_no_linalg_and_about_parts_of_ops() -> None:
    """exp of a tensor, and what a softmax is made of."""
    a = X[:24, :40].copy()
    taken, (found,) = ran(ON_TENSORS, a)
    assert taken == {"plain"}, "the sum is computed with the exp"
    p = np.exp(a.astype(np.float64))
    np.testing.assert_allclose(found, 2 * np.exp(p / p.sum(1, keepdims=True)), rtol=2e-5)
    assert "rows" in ran(ON_TENSORS.replace("-rows -elementwise", "-columns"), a)[0]


def test_a_product_that_no_family_of_products_takes_leaves_what_follows_to_others() -> None:
    def f(x: Any, w: Any) -> Any:
        with mw.hint(kernels="-cublaslt -gemm_fma"):
            p = x @ w
        return mw.maximum(p, 0.0)

    taken, (found,) = ran(mw.jit(f).lower(X, W).as_text(), X, W)
    assert "elementwise" in taken and "gemm_fma" not in taken
    np.testing.assert_allclose(found, np.maximum(X @ W, 0), rtol=1e-4, atol=1e-5)


def test_the_report_says_why_not_a_faster_one() -> None:
    source = text(several, {"kernels": "-cublaslt -rows"}, X, W)
    got = [(k, why) for k, why in rows(source) if "cublaslt: switched off by" in why]
    assert [k for k, _ in got] == ["gemm_fma"]
    assert "gemm_tf32: off unless asked for" in got[0][1]
    assert 'kernels = "-cublaslt -rows" at' in got[0][1]
    narrow = text(product, {}, X, W[:, :4].copy())
    ((kernel, why),) = [r for r in rows(narrow) if "tf32" in r[1]]
    assert kernel not in ("cublaslt", "gemm_fma") and "cublaslt: its sizes" in why


def test_the_report_is_about_the_chip() -> None:
    large = np.zeros((1024, 1024), np.float32)
    source = mw.jit(product).lower(large, large).as_text().replace("f32", "bf16")
    choice = as_choice("-cublaslt")
    with api.lowered(source, "f", None, "emulate", kernels=choice) as (module, program):
        (plain,), (hopper,) = (
            [row for row in report_of(module, program, chip).kernels if row.op != "linalg.fill"]
            for chip in ("", "sm_90a")
        )
    assert (plain.kernel, hopper.kernel) == ("gemm_mma", "gemm_wgmma")
    assert "gemm_wgmma: its sizes, its strides, the chip" in plain.why


# tf32.


@sampled(1)
@pytest.mark.parametrize("library", ["", " -cublaslt"])
@pytest.mark.parametrize("how", ["option", "region", "tolerance"])
def test_tf32_when_asked(how: str, library: str) -> None:
    words = f"+gemm_tf32{library}"
    hints = {"option": {}, "region": {"kernels": words}, "tolerance": {"numerics": "tol(1e-2, 0)"}}
    source = text(product, hints[how], X, W)
    taken, (found,) = ran(source, X, W, kernels=None if how == "region" else words)
    assert taken == {"gemm_tf32" if library else "tf32 by cublaslt"}
    assert 1e-5 < error(found) < 1e-3
    kernels = rows(source, None if how == "region" else words)
    assert "gemm_tf32" in {kernel for kernel, _ in kernels}


def test_no_tf32_unasked() -> None:
    for words in (None, "-cublaslt"):
        _, (found,) = ran(text(product, {}, X, W), X, W, kernels=words)
        assert error(found) < 1e-6


@pytest.mark.parametrize("words", ["+gemm_tf32", "+gemm_tf32 -cublaslt"])
def test_products_of_f64_are_never_rounded(words: str) -> None:
    x, w = X.astype(np.float64), W.astype(np.float64)
    taken, (found,) = ran(text(product, {"kernels": words}, x, w), x, w)
    assert taken == {"gemm_fma" if "-" in words else "cublaslt"}
    np.testing.assert_allclose(found, x @ w, rtol=1e-12, atol=1e-12)


def test_tf32_in_contexts() -> None:
    with mw.kernels(gemm_tf32=True):
        around = np.asarray(mw.jit(product, engine="emulate")(X, W))
    assert error(around) > 1e-5

    def traced(x: Any, w: Any) -> Any:
        with mw.kernels(gemm_tf32=True):
            first = x @ w
        return first, (2.0 * x) @ w

    first, second = (np.asarray(y) for y in mw.jit(traced, engine="emulate")(X, W))
    assert error(first) > 1e-5 and error(second / 2) < 1e-6


REFUSED = {
    "bit_exact": "needs sums in order",
    "deterministic": "lets no factor be rounded",
    "tol(1e-4, 0)": r"takes tol(0.001, 0)",
}


@sampled(1)
@pytest.mark.parametrize("numerics", REFUSED)
def test_numerics_refuse_tf32_with_the_reason(numerics: str) -> None:
    def inside(x: Any, w: Any) -> Any:
        with mw.hint(kernels="+gemm_tf32", numerics=numerics):
            return x @ w

    source = mw.jit(inside).lower(X, W).as_text()
    with api.lowered(source, "f", None, "emulate") as (module, program):
        report = report_of(module, program)
    outcomes = {row.hint: (row.outcome, row.reason) for row in report.ledger}
    outcome, reason = outcomes["kernels=+gemm_tf32"]
    assert outcome == "superseded" and REFUSED[numerics] in reason and "numerics = " in reason
    assert outcomes[f"numerics={numerics}"][0] == "honoured"
    _, (found,) = ran(source, X, W)
    assert error(found) < 1e-6
    _, (found,) = ran(text(product, {"numerics": numerics}, X, W), X, W, kernels="+gemm_tf32")
    assert error(found) < 1e-6


def test_a_required_disable_keeps_tf32_off() -> None:
    source = text(product, {"kernels": "+gemm_tf32"}, X, W)
    _, (found,) = ran(source, X, W, kernels="-gemm_tf32")
    assert error(found) < 1e-6
    source = text(product, {"kernels": "-gemm_tf32"}, X, W)
    _, (found,) = ran(source, X, W, kernels="+gemm_tf32")
    assert error(found) < 1e-6


# bit_exact: one kernel, one order.


def test_bit_exact_is_the_same_however_it_is_cut_and_as_on_the_cpu() -> None:
    def f(x: Any, w: Any) -> Any:
        with mw.hint(numerics="bit_exact"):
            p = x @ w
            return p, mw.sum(p, axis=1)

    wanted = [np.asarray(y) for y in mw.jit(f)(X, W)]
    for mesh in ("x=1", "x=2"):
        cut = mw.jit(f, mesh=mesh, in_layouts=("[x, _]", "[_, _]"), engine="emulate")
        for found, exact in zip(cut(X, W), wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(found), exact)
    got = rows(mw.jit(f).lower(X, W).as_text())
    assert {k for k, why in got if "needs sums in order" in why} == {"reference"}
    split = mw.jit(f, mesh="x=2", in_layouts=("[_, x]", "[x, _]"), engine="emulate")
    with pytest.raises(CompileError, match=r"bit_exact.*ranks along x would each add up a part"):
        split(X, W)


@pytest.mark.parametrize("name", some(["attention", "mlp", "block", "gpt2l"], 4))
def test_examples_by_reference_alone(name: str) -> None:
    args = arguments(name)
    source = text_of(name, "f32")
    with mw.compile(source, mesh=MESH, engine="emulate", kernels="reference") as program:
        manifest = program.bundle.manifest
        assert not manifest.gemms and {k.family for k in manifest.kernels} <= {"plain", "copies"}
        (found,) = program(*args)
    wanted = expected(name)
    assert np.abs(found - wanted).max() <= 2e-4 * np.abs(wanted).max()


def test_reasons_are_read_as_they_are_written():
    reasons = [("blas", "switched off; by a hint: -blas"), ("flash", "no scores")]
    assert reasons_of(joined(reasons)) == reasons
    assert reasons_of("the fastest there is: 5 bytes of scores are never made") == []
