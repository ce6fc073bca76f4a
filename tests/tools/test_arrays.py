"""How results are compared with what they should be."""

import numpy as np

from meshweave.bundle import Port
from meshweave.tools.arrays import difference


def compared(mine, other, dtype="f32"):
    mine, other = np.asarray(mine), np.asarray(other)
    port = Port("result0", dtype, mine.shape, mine.shape, "[_]")
    return difference(0, "--check", port, mine, other)


def test_what_counts_as_equal():
    inf, nan = np.inf, np.nan
    assert not compared([1.0, nan, inf, -inf], [1.0, nan, inf, -inf]).wrong
    assert not compared([1000.1], [1000.0]).wrong and compared([1000.3], [1000.0]).wrong
    assert compared([1001.0], [1000.0], "f32").wrong
    assert not compared([1001.0], [1000.0], "bf16").wrong
    for mine, other in (([nan], [1.0]), ([1.0], [nan]), ([inf], [1.0]), ([inf], [-inf])):
        assert compared(mine, other).wrong and compared(mine, other).error == inf
    assert not compared(np.zeros((0, 3)), np.zeros((0, 3))).wrong
    assert not compared([0.0], [0.0]).wrong and compared([1e-3], [0.0]).wrong
    assert compared([1 + 1j], [1 - 1j], "complex<f64>").error == 2


def test_integers_must_be_equal():
    big = 2**62
    assert compared([big + 1], [big], "i64").error == 1 and compared([big + 1], [big], "i64").wrong
    assert compared([True], [False], "i1").wrong and not compared([True], [True], "i1").wrong
