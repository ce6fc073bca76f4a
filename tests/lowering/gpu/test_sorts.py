"""Sorts on a device: every element finds its place in pairs of runs, and ends where the cpu has it."""

import numpy as np
import pytest
from depth import sampled

import meshweave as mw

pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")
_RNG = np.random.default_rng(3)


def _numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Many of them equal; of floats some NaN, and zeros of both signs."""
    numbers = np.round(_RNG.standard_normal(shape) * 3).astype(dtype)
    if numbers.dtype.kind == "f":
        numbers.ravel()[::5] = np.nan
        numbers.ravel()[1::7] = -0.0
    return numbers


@sampled(1)
@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "descending"),
    [
        ((33, 257), 1, "float32", True),
        ((7,), 0, "float32", False),
        ((3, 64, 2), 1, "int8", True),
        ((9, 4), 0, "float64", False),
        ((2, 1), 1, "int32", False),
    ],
)
def test_a_sort_has_the_places_that_the_cpu_finds(shape, axis, dtype, descending) -> None:
    given = _numbers(shape, dtype)

    def function(x):
        order = {"axis": axis, "descending": descending}
        return mw.argsort(x, **order), mw.sort(x, **order)

    results = []
    for engine in ("local", "emulate"):
        compiled = mw.jit(function, mesh=mw.Mesh(x=1), engine=engine).lower(given).compile()
        with compiled.program:
            results.append([np.asarray(found) for found in compiled(given)])
    for on_cpu, on_device in zip(*results, strict=True):
        assert on_cpu.tobytes() == on_device.tobytes()
