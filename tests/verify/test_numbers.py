"""Integers made of numbers alone are what NumPy computes of them."""

import numpy as np
import pytest

from meshweave.verification.terms.indices import Expr
from meshweave.verification.terms.numbers import number_of
from meshweave.verification.terms.scalars import apply
from meshweave.verification.terms.terms import Node, Term, Terms

SIGNED = {
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "andi": np.bitwise_and, "ori": np.bitwise_or,
    "xori": np.bitwise_xor, "maxsi": np.maximum, "minsi": np.minimum,
}  # fmt: skip
UNSIGNED = {
    "divui": np.floor_divide,
    "remui": np.remainder,
    "maxui": np.maximum,
    "minui": np.minimum,
}


def made(terms: Terms, name: str, reads: list[Term], type_: str, detail: tuple = ()) -> Term:
    return Term(terms.put(Node(f"arith.{name}", detail, tuple(reads), type_), ()), (), ())


@pytest.mark.parametrize("bits", [8, 32, 64])
def test_ops_of_two_numbers(bits: int) -> None:
    terms, rng = Terms(10_000, apply), np.random.default_rng(bits)
    signed, unsigned = np.dtype(f"i{bits // 8}"), np.dtype(f"u{bits // 8}")
    ends = np.iinfo(signed)
    pairs = rng.integers(ends.min, ends.max, (20, 2), signed, endpoint=True).tolist()
    pairs += [[a, b] for a in (-1, 7, ends.min) for b in (-1, 2, 3)]
    for a, b in pairs:
        reads = [terms.constant(f"i{bits}", n) for n in (a, b)]
        with np.errstate(over="ignore"):
            wanted = {k: f(signed.type(a), signed.type(b)) for k, f in SIGNED.items()}
            if b:
                whole = [np.array(n, signed).view(unsigned) for n in (a, b)]
                wanted |= {k: f(*whole).view(signed) for k, f in UNSIGNED.items()}
                wanted["remsi"] = np.fmod(signed.type(a), signed.type(b))
            if 0 <= b < bits:
                wanted |= {
                    "shli": np.left_shift(signed.type(a), signed.type(b)),
                    "shrsi": np.right_shift(signed.type(a), signed.type(b)),
                }
        for name, right in wanted.items():
            assert number_of(terms, made(terms, name, reads, f"i{bits}")) == int(right), (
                name,
                a,
                b,
            )
        quotient = number_of(terms, made(terms, "divsi", reads, f"i{bits}"))
        if b and (a, b) != (ends.min, -1):
            assert quotient == (abs(a) // abs(b)) * (-1 if (a < 0) != (b < 0) else 1)
        for predicate, compare in ((0, np.equal), (2, np.less), (5, np.greater_equal)):
            detail = (("predicate", f"{predicate} : i64"),)
            said = number_of(terms, made(terms, "cmpi", reads, "i1", detail))
            assert said == int(compare(a, b))


def test_what_is_no_number() -> None:
    terms = Terms(10_000, apply)
    zero, one = (terms.constant("i32", n) for n in (0, 1))
    assert number_of(terms, made(terms, "divui", [one, zero], "i32")) is None
    assert number_of(terms, made(terms, "shli", [one, terms.constant("i32", 32)], "i32")) is None
    assert number_of(terms, terms.unknown("", "i32", [])) is None
    assert number_of(terms, terms.iota(Expr(7))) == 7
    wide = made(terms, "divui", [terms.iota(Expr(-1)), terms.iota(Expr(2))], "index")
    assert number_of(terms, wide) == (1 << 63) - 1
