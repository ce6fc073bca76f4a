"""Integer instructions against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator.kernels import bits_of, evaluate, numpy_of, patterns


def _trunc(x: int, y: int) -> int:
    return 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _shift_left(bits: int) -> Callable[[int, int], int]:
    return lambda x, n: x << n if n < bits else 0


def _shift_right(bits: int) -> Callable[[int, int], int]:
    return lambda x, n: x >> min(n, bits)


def _field(bits: int, signed: bool) -> Callable[[int, int, int], int]:
    def reference(x: int, start: int, length: int) -> int:
        """As the ISA's pseudo code: bit by bit, the sign above the field."""
        start, length = start & 255, length & 255
        top = min(start + length - 1, bits - 1)
        sign = (x >> top) & 1 if signed and length else 0
        out = 0
        for at in range(bits):
            inside = at < length and start + at < bits
            out |= ((x >> (start + at)) & 1 if inside else sign) << at
        return out

    return reference


def _insert(bits: int) -> Callable[[int, int, int, int], int]:
    def reference(x: int, y: int, start: int, length: int) -> int:
        start, length = start & 255, length & 255
        for at in range(length):
            if start + at < bits:
                bit = 1 << (start + at)
                y = (y & ~bit) | (((x >> at) & 1) << (start + at) if at < bits else 0)
        return y

    return reference


def _prmt(x: int, y: int, selector: int) -> int:
    octets = [(x | y << 32) >> (8 * n) & 255 for n in range(8)]
    out = 0
    for place in range(4):
        pick = selector >> (4 * place) & 15
        byte = octets[pick & 7]
        byte = (255 if byte & 128 else 0) if pick & 8 else byte
        out |= byte << (8 * place)
    return out


def _shf(left: bool, wrap: bool) -> Callable[[int, int, int], int]:
    def reference(low: int, high: int, n: int) -> int:
        n = n & 31 if wrap else min(n, 32)
        both = high << 32 | low
        return (both << n) >> 32 if left else both >> n

    return reference


def _lop3(table: int) -> Callable[[int, int, int], int]:
    def reference(x: int, y: int, z: int) -> int:
        out = 0
        for at in range(32):
            row = ((x >> at) & 1) << 2 | ((y >> at) & 1) << 1 | ((z >> at) & 1)
            out |= (table >> row & 1) << at
        return out

    return reference


def _dp4a(signed: bool) -> Callable[[int, int, int], int]:
    def octets(value: int) -> list[int]:
        parts = [value >> (8 * n) & 255 for n in range(4)]
        return [p - 256 if signed and p > 127 else p for p in parts]

    return lambda x, y, z: z + sum(a * b for a, b in zip(octets(x), octets(y)))


CASES: list[tuple[str, list[str], str, Callable[..., int]]] = [
    ("not.b32 d, x", ["u32"], "u32", lambda x: ~x),
    ("neg.s32 d, x", ["s32"], "s32", lambda x: -x),
    ("abs.s64 d, x", ["s64"], "s64", abs),
    ("shf.l.wrap.b32 d, x, y, z", ["u32"] * 3, "u32", _shf(True, True)),
    ("shf.r.wrap.b32 d, x, y, z", ["u32"] * 3, "u32", _shf(False, True)),
    ("shf.r.clamp.b32 d, x, y, z", ["u32"] * 3, "u32", _shf(False, False)),
    ("prmt.b32 d, x, y, z", ["u32"] * 3, "u32", _prmt),
    ("lop3.b32 d, x, y, z, 0xCA", ["u32"] * 3, "u32", _lop3(0xCA)),
    ("dp4a.s32.s32 d, x, y, z", ["u32", "u32", "s32"], "s32", _dp4a(True)),
    ("dp4a.u32.u32 d, x, y, z", ["u32"] * 3, "u32", _dp4a(False)),
    ("popc.b32 d, x", ["u32"], "u32", lambda x: bin(x).count("1")),
    ("popc.b64 d, x", ["u64"], "u32", lambda x: bin(x).count("1")),
    ("clz.b32 d, x", ["u32"], "u32", lambda x: 32 - x.bit_length()),
    ("clz.b64 d, x", ["u64"], "u32", lambda x: 64 - x.bit_length()),
    ("brev.b32 d, x", ["u32"], "u32", lambda x: int(f"{x:032b}"[::-1], 2)),
    ("sad.u32 d, x, y, z", ["u32"] * 3, "u32", lambda x, y, z: abs(x - y) + z),
    ("mul.wide.s16 d, x, y", ["s16", "s16"], "s32", lambda x, y: x * y),
    ("mul.wide.u32 d, x, y", ["u32", "u32"], "u64", lambda x, y: x * y),
    ("mul.wide.s32 d, x, y", ["s32", "s32"], "s64", lambda x, y: x * y),
    ("mad.wide.s32 d, x, y, z", ["s32", "s32", "s64"], "s64", lambda x, y, z: x * y + z),
    ("cvt.u16.u32 d, x", ["u32"], "u16", int),
    ("cvt.s64.s32 d, x", ["s32"], "s64", int),
    ("cvt.u64.u32 d, x", ["u32"], "u64", int),
    ("cvt.s32.s8 d, x", ["u16"], "s32", lambda x: ((x & 255) ^ 128) - 128),
    ("cvt.u32.u8 d, x", ["u16"], "u32", lambda x: x & 255),
    ("cvt.sat.s16.s32 d, x", ["s32"], "s16", lambda x: max(-32768, min(32767, x))),
    ("cvt.sat.u8.s32 d, x", ["s32"], "u16", lambda x: max(0, min(255, x))),
    ("selp.b32 d, x, y, z", ["u32", "u32", "pred"], "u32", lambda x, y, z: x if z else y),
    ("and.pred d, x, y", ["pred", "pred"], "pred", lambda x, y: x & y),
    ("not.pred d, x", ["pred"], "pred", lambda x: 1 - x),
    ("mov.b64 d, {x, y}", ["u32", "u32"], "u64", lambda x, y: x | y << 32),
    ("mov.b32 d, {x, y}", ["u16", "u16"], "u32", lambda x, y: x | y << 16),
]
CASES += [
    ("max.relu.s32 d, x, y", ["s32", "s32"], "s32", lambda x, y: max(x, y, 0)),
    ("min.relu.s32 d, x, y", ["s32", "s32"], "s32", lambda x, y: max(min(x, y), 0)),
]
for _bits in (16, 32, 64):
    _u, _s = f"u{_bits}", f"s{_bits}"
    CASES += [
        (f"add.{_s} d, x, y", [_s, _s], _s, lambda x, y: x + y),
        (f"sub.{_u} d, x, y", [_u, _u], _u, lambda x, y: x - y),
        (f"mul.lo.{_s} d, x, y", [_s, _s], _s, lambda x, y: x * y),
        (f"mul.hi.{_u} d, x, y", [_u, _u], _u, lambda x, y, n=_bits: x * y >> n),
        (f"mul.hi.{_s} d, x, y", [_s, _s], _s, lambda x, y, n=_bits: x * y >> n),
        (f"mad.lo.{_s} d, x, y, z", [_s] * 3, _s, lambda x, y, z: x * y + z),
        (f"min.{_s} d, x, y", [_s, _s], _s, min),
        (f"max.{_u} d, x, y", [_u, _u], _u, max),
        (f"xor.b{_bits} d, x, y", [_u, _u], _u, lambda x, y: x ^ y),
        (f"or.b{_bits} d, x, y", [_u, _u], _u, lambda x, y: x | y),
        (f"and.b{_bits} d, x, y", [_u, _u], _u, lambda x, y: x & y),
        (f"shl.b{_bits} d, x, y", [_u, "u32"], _u, _shift_left(_bits)),
        (f"shr.{_u} d, x, y", [_u, "u32"], _u, _shift_right(_bits)),
        (f"shr.{_s} d, x, y", [_s, "u32"], _s, _shift_right(_bits)),
        (f"setp.lt.{_s} d, x, y", [_s, _s], "pred", lambda x, y: x < y),
        (f"setp.lt.{_u} d, x, y", [_u, _u], "pred", lambda x, y: x < y),
        (f"setp.ge.and.{_u} d, x, y, z", [_u, _u, "pred"], "pred", lambda x, y, z: x >= y and z),
        (f"setp.eq.or.{_s} d, x, y, !z", [_s, _s, "pred"], "pred", lambda x, y, z: x == y or not z),
    ]
for _bits in (32, 64):
    _u, _s = f"u{_bits}", f"s{_bits}"
    CASES += [
        (f"bfe.{_u} d, x, y, z", [_u, "u32", "u32"], _u, _field(_bits, False)),
        (f"bfe.{_s} d, x, y, z", [_u, "u32", "u32"], _u, _field(_bits, True)),
        (f"bfi.b{_bits} d, x, y, z, w", [_u, _u, "u32", "u32"], _u, _insert(_bits)),
    ]
DIVISIONS = [
    (f"{name}.{kind} d, x, y", kind, reference)
    for kind in ("s16", "u32", "s32", "u64", "s64")
    for name, reference in (("div", _trunc), ("rem", lambda x, y: x - _trunc(x, y) * y))
]


def _wrapped(values: list[int], kind: str) -> np.ndarray:
    bits = 8 if kind == "pred" else bits_of(kind)
    raw = np.array([int(v) & ((1 << bits) - 1) for v in values], np.uint64)
    return raw.astype(f"u{bits // 8}").view(numpy_of(kind))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].split(" d,")[0])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_an_instruction_does_what_the_integers_do(case, seed):
    instruction, kinds, result, reference = case
    operands = [patterns(seed + n, kind) for n, kind in enumerate(kinds)]
    got = evaluate(instruction.replace("!z", "!%p3"), kinds, result, *operands)
    want = _wrapped([reference(*values) for values in zip(*(o.tolist() for o in operands))], result)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("case", DIVISIONS, ids=lambda case: case[0].split(" d,")[0])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_division_rounds_towards_zero(case, seed):
    instruction, kind, reference = case
    x, y = patterns(seed, kind), patterns(seed + 1, kind)
    got = evaluate(instruction, [kind, kind], kind, x, y)
    fine = y != 0
    want = _wrapped([reference(*values) for values in zip(x.tolist(), y.tolist())], kind)
    assert np.array_equal(got[fine], want[fine])


def test_a_shift_by_the_width_or_more_leaves_nothing():
    x = np.full(32, -5, np.int32)
    by = np.arange(32, dtype=np.uint32) * 9 + 32
    assert (evaluate("shl.b32 d, x, y", ["s32", "u32"], "s32", x, by) == 0).all()
    assert (evaluate("shr.s32 d, x, y", ["s32", "u32"], "s32", x, by) == -1).all()
    assert (evaluate("shr.u32 d, x, y", ["u32", "u32"], "u32", x.view(np.uint32), by) == 0).all()


@pytest.mark.parametrize("kind", ["u32", "u64"])
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_carries_join_halves_of_wider_numbers(kind, seed):
    bits = bits_of(kind)
    x, y, z = (patterns(seed + n, kind) for n in range(3))
    halves = [(int(a), int(b), int(c)) for a, b, c in zip(x, y, z)]
    mask = (1 << bits) - 1
    register = "%r9" if kind == "u32" else "%d11"
    add = f"add.cc.{kind} {register}, x, y; addc.{kind} d, z, z"
    want = [(((c << bits | a) + (c << bits | b)) >> bits) & mask for a, b, c in halves]
    assert evaluate(add, [kind] * 3, kind, x, y, z).tolist() == want
    subtract = f"sub.cc.{kind} {register}, x, y; subc.{kind} d, z, x"
    want = [(((c << bits | a) - (a << bits | b)) >> bits) & mask for a, b, c in halves]
    assert evaluate(subtract, [kind] * 3, kind, x, y, z).tolist() == want
    multiply = f"mad.lo.cc.{kind} {register}, x, y, z; madc.hi.{kind} d, x, y, z"
    want = [((a * b + (c << bits | c)) >> bits) & mask for a, b, c in halves]
    assert evaluate(multiply, [kind] * 3, kind, x, y, z).tolist() == want
