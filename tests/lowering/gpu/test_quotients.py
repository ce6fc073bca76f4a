"""Quotients of bf16, which are found without a division, have the bits of one in f32 that is rounded."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from lowering.gpu import maps_and_rows as programs
from lowering.gpu.device_runs import DeviceRun
from lowering.gpu.maps_and_rows import doubles, generic, stored, tensor

# Exponents at which something changes: subnormal numbers, those that are scaled, infinities.
EXPONENTS = (0, 1, 2, 7, 62, 63, 64, 120, 127, 133, 190, 191, 192, 253, 254, 255)
SIGNIFICANDS = (0, 1, 2, 42, 43, 85, 127)


def test_quotients_of_bf16_are_those_of_f32_rounded():
    some = [e << 7 | m for e, m in itertools.product(EXPONENTS, SIGNIFICANDS)]
    pairs = np.array(list(itertools.product(some, some)), np.uint16)
    pairs[::2, 0] ^= 0x8000
    rng = np.random.default_rng(2)
    pairs = np.concatenate([pairs, rng.integers(0, 1 << 16, (4096, 2)).astype(np.uint16)])
    left, right = np.ascontiguousarray(pairs.T)
    made = DeviceRun(_divided(len(left)), assemble=False)
    assert "arith.divf" not in made.kernels[0].text
    (found,) = made.run(left, right)
    with np.errstate(all="ignore"):
        exact = (doubles(left, "bf16") / doubles(right, "bf16")).astype(np.float32)
    wanted = stored(exact, "bf16")
    number = ~np.isnan(exact)
    np.testing.assert_array_equal(found[number], wanted[number])
    assert np.isnan(doubles(found[~number], "bf16")).all()


def _divided(count: int) -> str:
    kind = tensor((count,), "bf16")
    body = [
        f"%e = tensor.empty() : {kind}",
        generic("%0", [("%a0", (0,), "bf16"), ("%a1", (0,), "bf16")], ("%e", (0,), "bf16"), (count,), [],
                ["%r = arith.divf %x0, %x1 : bf16"]),
    ]  # fmt: skip
    return programs.function([kind, kind], body, "%0", kind)
