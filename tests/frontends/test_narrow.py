"""Floats of 8 bits and integers of 4: every one there is, and what becomes of them, beside ml_dtypes and JAX."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave.errors import CompileError, LayoutError, UsageError

FLOATS = {
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
ROUND = """
  %e{k} = tensor.empty() : tensor<{n}x{to}>
  %r{k} = linalg.generic {{
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}}
      ins(%a{k} : tensor<{n}x{of}>) outs(%e{k} : tensor<{n}x{to}>) {{
  ^bb0(%x: {of}, %y: {to}):
    %z = arith.{op} %x : {of} to {to}
    linalg.yield %z : {to}
  }} -> tensor<{n}x{to}>"""


def converted(kind: str, given: dict[str, Any]) -> list[Any]:
    """Return numbers of f32, f64 and f16 as `kind`, and all bytes of `kind` as f32, f64 and f16."""
    every = np.arange(256, dtype=np.uint8).view(FLOATS[kind])
    casts = [(of, kind, value, "truncf") for of, value in given.items()]
    casts += [(kind, to, every, "extf") for to in given]
    body = "".join(
        ROUND.format(k=k, n=len(value), of=of, to=to, op=op)
        for k, (of, to, value, op) in enumerate(casts)
    )
    arguments = ", ".join(f"%a{k}: tensor<{len(v)}x{of}>" for k, (of, _, v, _) in enumerate(casts))
    types = ", ".join(f"tensor<{len(v)}x{to}>" for _, to, v, _ in casts)
    names = ", ".join(f"%r{k}" for k in range(len(casts)))
    text = (
        f"func.func public @main({arguments}) -> ({types}) {{{body}\n  return {names} : {types}\n}}"
    )
    with mw.compile(text) as program:
        return [np.asarray(v) for v in program(*[value for _, _, value, _ in casts])]


def edges(kind: Any) -> Any:
    """Return all numbers of a kind, what lies in the middle of two, what is next to these, and what is far off."""
    own = np.arange(256, dtype=np.uint8).view(kind).astype(np.float64)
    own = np.sort(own[np.isfinite(own)])
    middle = (own[1:] + own[:-1]) / 2
    step = 2.0**-20
    far = [1e-30, 1e30, 2 * own[-1], own[-1] * (1 + 2.0**-4), np.inf, np.nan, 0.0, 2.0**-149]
    sides = [own, middle, middle * (1 + step), middle * (1 - step), far, np.negative(far)]
    return np.concatenate(sides)


@sampled(1)
@pytest.mark.parametrize("kind", FLOATS)
def test_each_float_of_8_bits_is_read_and_rounded_as_ml_dtypes_does(kind: str) -> None:
    wide = edges(FLOATS[kind])
    with np.errstate(over="ignore", invalid="ignore"):
        given = {
            "f32": wide.astype(np.float32),
            "f64": wide.astype(np.float32).astype(np.float64),  # ml_dtypes goes by way of f32
            "f16": np.arange(1 << 16, dtype=np.uint16).view(np.float16),
        }
        found = converted(kind, given)
        every = np.arange(256, dtype=np.uint8).view(FLOATS[kind])
        right = [value.astype(FLOATS[kind]) for value in given.values()]
        right += [every.astype(value.dtype) for value in given.values()]
    for made, wanted in zip(found, right, strict=True):
        assert made.dtype == wanted.dtype
        nan = np.isnan(made.astype(np.float32)) & np.isnan(wanted.astype(np.float32))
        same = made.view(f"u{made.itemsize}") == wanted.view(f"u{made.itemsize}")
        assert (same | nan).all()


def test_f64_is_rounded_once() -> None:
    """What f32 rounds to the middle of two numbers lies beside it."""
    beside = np.array([432 - 2.0**-44, 432 + 2.0**-44, 432, 416 + 16], np.float64)
    found = converted("f8E4M3FN", {"f64": beside})[0]
    assert found.astype(np.float32).tolist() == [416, 448, 448, 448]


def ints(value: Any) -> Any:
    return np.asarray(value).astype(np.int32)


@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4])
def test_integers_of_4_bits_wrap_around(kind: Any) -> None:
    every = np.arange(16, dtype=np.uint8).view(kind)
    a, b = (m.ravel() for m in np.meshgrid(every, every))
    x, y = ints(a), ints(b)
    by = np.where(y == 0, 1, y).astype(kind)

    @mw.jit(mesh="x=3", in_layouts=("[x]", "[x]", "[x]"))
    def f(a: Any, b: Any, by: Any) -> Any:
        sums = a + b, a - b, a * b, a // by, a % by, mw.maximum(a, b), -a, a & b, a ^ b
        return *sums, a < b, a == b, mw.sort(a), mw.max(a), mw.astype(a, "f32"), mw.astype(a, "i64")

    found = f(a, b, by)
    z = ints(by)
    sums = x + y, x - y, x * y, x // z, x % z, np.maximum(x, y), -x, x & y, x ^ y
    for made, wanted in zip(found[:9], sums, strict=True):
        assert np.asarray(made).tobytes() == wanted.astype(np.int8).astype(kind).tobytes()
    right = x < y, x == y, np.sort(x), x.max(), x, x
    for made, wanted in zip(found[9:], right, strict=True):
        np.testing.assert_array_equal(ints(made), wanted)


def test_arrays_have_these_dtypes() -> None:
    numbers = np.array([1.0, -2.0, 0.3, 500.0], np.float32)
    array = mw.asarray(numbers, dtype=mw.float8_e4m3fn)
    assert array.dtype == mw.float8_e4m3fn and array.nbytes == 4
    assert repr(array).startswith("Array([1, -2, 0.3125, nan], 4xf8E4M3FN [_]")
    doubled = array + array
    assert doubled.dtype == array.dtype and doubled.tolist()[:3] == [2, -4, 0.625]
    assert (array * mw.asarray(numbers)).dtype == np.float32
    assert mw.asarray([7, -8], dtype="int4").tolist() == [7, -8]
    with pytest.raises(UsageError, match="asarray: 8 is no "):
        mw.asarray([8, 1], dtype=mw.int4)
    assert mw.result_type(mw.int4, mw.uint4) == mw.int8
    assert mw.result_type(mw.float8_e5m2, mw.bfloat16) == mw.bfloat16
    assert mw.finfo(mw.float8_e4m3fn).max == 448 and mw.iinfo(mw.uint4).max == 15


def test_what_they_cannot_do_is_told() -> None:
    value = np.ones((4, 2), ml_dtypes.float8_e4m3fn)
    f = mw.jit(lambda a: a, mesh="x=2", in_layouts=("[_, _] +sum(x)",))
    with pytest.raises(CompileError, match="not added up over ranks: convert to f32 before"):
        f(value)
    with pytest.raises(LayoutError, match=r"\[_, _\] \+max\(x\) of f8E4M3FN: such numbers are not"):
        mw.Array.from_numpy(value, mesh="x=2", layout="[_, _] +max(x)")
    with pytest.raises(CompileError, match="a floating one of 16 bits or more is right"):
        mw.jit(lambda key: mw.random.uniform(key, (4,), dtype=mw.float8_e5m2))(mw.random.key(0))


def test_no_buffer_of_theirs_becomes_one_of_integers() -> None:
    text = """
    func.func public @main(%a: tensor<4xf8E4M3FN> {dist.donate = "preferred"}) -> tensor<4xi8> {
      %0 = arith.bitcast %a : tensor<4xf8E4M3FN> to tensor<4xi8>
      return %0 : tensor<4xi8>
    }"""
    with mw.compile(text) as program:
        assert not program.bundle.manifest.donated
        assert np.asarray(program(np.ones(4, ml_dtypes.float8_e4m3fn))).ravel()[0] == 56


def jax_cases() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    import jax
    import jax.numpy as jnp

    f8 = jnp.float8_e4m3fn
    rng = np.random.default_rng(0)
    w = rng.standard_normal((8, 6)).astype(ml_dtypes.float8_e4m3fn)
    x = rng.standard_normal((3, 8)).astype(np.float32)
    i = rng.integers(-8, 8, (8, 6)).astype(ml_dtypes.int4)

    def products(x: Any, w: Any) -> Any:
        eight = jax.lax.dot_general(w, w, (((0,), (0,)), ((), ())))
        wide = jax.lax.dot_general(
            w, w, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
        return x @ w.astype(jnp.float32), eight, wide, (x * 1e3).astype(f8)

    def moves(w: Any) -> Any:
        rows = jnp.array([1, 5])
        put = w.at[rows].set(w[:2] * f8(2))
        return w[rows], put, jnp.pad(w, ((1, 2), (0, 1))), w.view(jnp.uint8), jnp.sort(w, 0)

    def reductions(w: Any, i: Any) -> Any:
        kept, carried = jax.lax.scan(
            lambda c, r: (c + r.astype(jnp.float32), c.astype(f8)), jnp.zeros(6), w
        )
        return w.max(0), w.argmax(0), kept, carried, i.max(0), jnp.sort(i, 0), jnp.exp(w)

    return {
        "products": (products, (x, w)),
        "moves": (moves, (w,)),
        "reductions": (reductions, (w, i)),
    }


@pytest.mark.parametrize("name", ["products", "moves", "reductions"])
def test_programs_of_jax_agree_in_uneven_parts(name: str) -> None:
    jax = pytest.importorskip("jax")
    function, given = jax_cases()[name]
    parts = tuple(jax.sharding.PartitionSpec("x") for _ in given)
    with mw.from_jax(function, *given, mesh="x=3", in_shardings=parts) as program:
        found = program(*given)
    for made, wanted in zip(found, jax.jit(function)(*given), strict=True):
        assert made.dtype == wanted.dtype
        wide = [np.asarray(v).astype(np.float64) for v in (made, wanted)]
        np.testing.assert_allclose(*wide, rtol=1e-5, atol=1e-6)
