"""Integers that the check computes are what NumPy computes of them, or left open."""

import numpy as np
import pytest

from meshweave.verification.terms.samples import OpenError, applied
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.terms import Terms

OPS = {
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "andi": np.bitwise_and, "ori": np.bitwise_or,
    "xori": np.bitwise_xor, "maxsi": np.maximum, "minsi": np.minimum, "remsi": np.fmod,
    "divsi": lambda a, b: np.trunc(np.divide(a, b, dtype=np.longdouble)),
    "shli": np.left_shift, "shrsi": np.right_shift,
}  # fmt: skip
UNSIGNED = {"divui": np.floor_divide, "remui": np.remainder, "maxui": np.maximum, "minui": np.minimum,
            "shrui": np.right_shift}  # fmt: skip


@pytest.mark.parametrize("bits", [8, 32, 64])
def test_ops_of_two_integers(bits: int) -> None:
    rng, kind = np.random.default_rng(bits), np.dtype(f"i{bits // 8}")
    ends = np.iinfo(kind)
    pairs = rng.integers(ends.min, ends.max, (20, 2), kind, endpoint=True).tolist()
    pairs += [[a, b] for a in (-1, 7, ends.max) for b in (-1, 1, 3, bits - 1)]
    for a, b in pairs:
        x, y = kind.type(a), kind.type(b)
        for name, function in (OPS | UNSIGNED).items():
            shifts = name.startswith("sh") and not 0 <= b < bits
            is_open = shifts or (name in UNSIGNED and min(a, b) < 0)
            if is_open or (("rem" in name or "div" in name) and b == 0):
                with pytest.raises(OpenError):
                    applied(f"arith.{name}", (), f"i{bits}", [a, b], [f"i{bits}"] * 2)
                continue
            with np.errstate(over="ignore"):
                right = int(function(x, y))
            assert applied(f"arith.{name}", (), f"i{bits}", [a, b], [f"i{bits}"] * 2) == right, (
                name,
                a,
                b,
            )


def test_an_index_that_wraps_around_is_left_open() -> None:
    assert applied("arith.shli", (), "index", [3, 61], ["index"] * 2) == 3 << 61
    for name, numbers in (("shli", [1, 63]), ("muli", [1 << 40, 1 << 40]), ("divui", [-1, 2])):
        with pytest.raises(OpenError):
            applied(f"arith.{name}", (), "index", numbers, ["index"] * 2)


def test_a_bit_has_the_sign_that_an_op_reads_in_it() -> None:
    for name, type_, right in (
        ("extsi", "i32", -1),
        ("sitofp", "f32", -1),
        ("index_cast", "index", -1),
        ("extui", "i32", 1),
        ("uitofp", "f32", 1),
        ("index_castui", "index", 1),
    ):
        assert applied(f"arith.{name}", (), type_, [1], ["i1"]) == right, name
        assert applied(f"arith.{name}", (), type_, [0], ["i1"]) == 0
        terms = Terms(100, apply)
        made = apply(terms, f"arith.{name}", (), type_, [terms.constant("i1", 1)])
        assert terms.constant_of(made) in (None, right), name
        assert applied(f"arith.{name}", (), type_, [1], ["i8"]) == 1
