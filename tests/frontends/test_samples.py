"""Every sample that JAX exported loads, holds nothing foreign, and computes what JAX computed."""

from pathlib import Path

import numpy as np
import pytest
from depth import sampled
from frontends.execute import run

import meshweave as mw
from meshweave.dialects import context
from meshweave.frontends.load import load_module

DATA = Path(__file__).parents[1] / "data"
SAMPLES = sorted(path.name.removesuffix(".mlir") for path in DATA.glob("*.mlir"))
FOREIGN = ("stablehlo", "chlo", "sdy", "mhlo", "jax", "unrealized", "dynamic")
MANUAL = [name for name in SAMPLES if "manual_computation" in (DATA / f"{name}.mlir").read_text()]


def load(name):
    return load_module(DATA / f"{name}.mlir", context())


@sampled(1)
@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_foreign_is_left(name):
    text = str(load(name).operation.get_asm(assume_verified=True))
    assert not [word for word in FOREIGN if word in text]
    assert "func.func public @main" in text


NOT_HERE = [*MANUAL, "fft"]
"""What upstream's loops do not compute; `test_jax_samples.py` runs it."""


@sampled(4)
@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in NOT_HERE])
def test_results_are_those_of_jax(name):
    values = np.load(DATA / f"{name.removesuffix('.generic')}.npz")
    module = load(name)
    assert module.operation.verify()
    results = run(module, [values[f"in{i}"] for i in range(len(values)) if f"in{i}" in values])
    assert len(results) == sum(key.startswith("out") for key in values)
    for i, got in enumerate(results):
        want = values[f"out{i}"]
        assert got.shape == want.shape
        if name == "bf16" and want.dtype == np.uint16:
            want, got = (
                np.left_shift(a.astype(np.uint32), 16).view(np.float32) for a in (want, got)
            )
        if want.dtype.kind == "f" and want.size:
            eps = 1e-3 if want.dtype == np.float16 else 2e-6
            scale = np.abs(want[np.isfinite(want)]).max(initial=0)
            np.testing.assert_allclose(got, want, rtol=0, atol=eps * scale)
        else:
            assert np.array_equal(got.astype(want.dtype), want)


@sampled(4)
@pytest.mark.parametrize("engine", ["local", "emulate"])
@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_linear_algebra_is_that_of_jax_by_lapack_and_in_loops(engine, mesh):
    values = np.load(DATA / "linear_algebra.npz")
    with mw.compile(DATA / "linear_algebra.mlir", engine=engine, mesh=mesh) as program:
        results = program(values["in0"], values["in1"])
    for i, got in enumerate(results):
        np.testing.assert_allclose(got, values[f"out{i}"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [n for n in SAMPLES if n.endswith(".generic")])
def test_generic_form_gives_the_same_program(name):
    pretty, generic = load(name.removesuffix(".generic")), load(name)
    assert pretty.operation.get_asm(assume_verified=True) == generic.operation.get_asm(
        assume_verified=True
    )


def test_all_samples_are_tested():
    assert len(SAMPLES) > 50 and MANUAL
