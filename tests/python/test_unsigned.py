"""Integers without sign compute as NumPy's do: at the edges of their ranges, sharded, and beside other dtypes."""

from typing import Any

import numpy as np
import pytest
from depth import sampled, some
from traced import mw

from meshweave.errors import MeshweaveError

DTYPES = ["uint8", "uint16", "uint32", "uint64"]
MESHES = [None, "x=3"]


def numbers(dtype: str, shape: tuple[int, ...] = (7, 5), seed: int = 0) -> np.ndarray[Any, Any]:
    """Random numbers, half of them at the edges of the range and of that of integers with sign."""
    rng, top = np.random.default_rng(seed), int(np.iinfo(dtype).max)
    edges = np.array([0, 1, 2, 3, top // 2, top // 2 + 1, top - 1, top], dtype)
    drawn = rng.integers(0, top, shape, dtype, endpoint=True)
    return np.where(rng.random(shape) < 0.5, rng.choice(edges, shape), drawn).astype(dtype)


def same(found: Any, want: Any, about: object = "") -> None:
    found = np.asarray(found)
    assert found.dtype == np.asarray(want).dtype, (about, found.dtype)
    np.testing.assert_array_equal(found, want, str(about))


BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "floor_divide": np.floor_divide,
    "remainder": np.remainder, "maximum": np.maximum, "minimum": np.minimum, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "equal": np.equal, "not_equal": np.not_equal,
    "less": np.less, "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal,
    "pow": np.power, "bitwise_left_shift": np.left_shift, "bitwise_right_shift": np.right_shift,
}  # fmt: skip
UNARY = {
    "negative": np.negative, "positive": np.positive, "abs": np.abs, "sign": np.sign, "square": np.square,
    "bitwise_invert": np.invert, "floor": lambda x: x, "isfinite": np.isfinite, "signbit": lambda x: x < 0,
    "logical_not": np.logical_not,
}  # fmt: skip


@sampled(3)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_functions(dtype: str, mesh: str | None) -> None:
    a, b = numbers(dtype), numbers(dtype, seed=1)
    b[0, 0] = 0
    shift = numbers(dtype, seed=2) % (2 * 8 * a.itemsize)

    def all_of(a: Any, b: Any, shift: Any) -> Any:
        two = {n: getattr(mw, n)(a, shift if "shift" in n else b) for n in BINARY}
        return two | {n: getattr(mw, n)(a) for n in UNARY}

    found = mw.jit(all_of, mesh=mesh, in_layouts=None if mesh is None else "[x, _]")(a, b, shift)
    with np.errstate(all="ignore"):
        for name, function in BINARY.items():
            same(found[name], function(a, shift if "shift" in name else b), name)
            if "shift" not in name:
                same(
                    getattr(mw, name)(mw.asarray(a), mw.asarray(b)), function(a, b), f"eager {name}"
                )
        for name, one in UNARY.items():
            same(found[name], one(a), name)
    same(
        mw.jit(lambda a: (a + 3) // 2 - 1)(a),
        (a + np.array(3, dtype)) // np.array(2, dtype) - np.array(1, dtype),
    )


@sampled(5)
@pytest.mark.parametrize("layout", [None, "[x, _]", "[_, x]"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_and_sorts(dtype: str, layout: str | None) -> None:
    a = numbers(dtype, (7, 8), seed=3)

    def all_of(a: Any) -> Any:
        return {
            **{f"{n} {k}": getattr(mw, n)(a, axis=k) for n in ("sum", "prod", "max", "min") for k in (None, 0, 1)},
            **{f"{n} {k}": getattr(mw, n)(a, axis=k) for n in ("argmax", "argmin", "argsort") for k in (0, 1)},
            "sort": mw.sort(a, axis=0), "down": mw.sort(a, axis=1, descending=True), "top": mw.top_k(a, 3)[0],
            "cumulative": mw.cumulative_sum(a, axis=1), "narrow": mw.sum(a, axis=0, dtype=a.dtype),
            "diff": mw.diff(a), "any": mw.any(a, axis=0), "nonzero": mw.count_nonzero(a),
        }  # fmt: skip

    mesh = None if layout is None else "x=3"
    found = mw.jit(all_of, mesh=mesh, in_layouts=layout)(a)
    for name in ("sum", "prod", "max", "min"):
        for axis in (None, 0, 1):
            same(found[f"{name} {axis}"], getattr(np, name)(a, axis=axis), name)
    for axis in (0, 1):
        same(found[f"argmax {axis}"], np.argmax(a, axis=axis))
        same(found[f"argmin {axis}"], np.argmin(a, axis=axis))
        same(found[f"argsort {axis}"], np.argsort(a, axis=axis, kind="stable"))
    down = np.sort(a, axis=1)[:, ::-1]
    for name, want in {
        "sort": np.sort(a, axis=0), "down": down, "top": down[:, :3], "cumulative": np.cumsum(a, axis=1),
        "narrow": np.sum(a, axis=0, dtype=dtype), "diff": np.diff(a), "any": a.any(axis=0),
        "nonzero": np.asarray(np.count_nonzero(a)),
    }.items():  # fmt: skip
        same(found[name], want, name)


def test_ranks_reduce_their_parts() -> None:
    a = numbers("uint16", (12, 4))
    jitted = mw.jit(
        lambda a: (mw.max(a, axis=0), mw.min(a), mw.sum(a)), mesh="x=3", in_layouts="[x, _]"
    )
    found = jitted(a)
    for one, want in zip(found, (a.max(0), a.min(), a.sum()), strict=True):
        same(one, want)
    moves = jitted.lower(a).compile().program.bundle.manifest.collectives
    assert {move.op for move in moves} == {"all_reduce"}


@pytest.mark.parametrize("dtype", some(DTYPES, 3))
def test_conversions(dtype: str) -> None:
    a = numbers(dtype)
    others = ["bool", "int8", "int16", "int32", "int64", *DTYPES, "float64", "float32"]
    found = mw.jit(lambda a: {d: mw.astype(a, d) for d in others})(a)
    for other in others:
        same(found[other], a.astype(other), other)
    half = a % np.array(200, dtype)
    same(mw.jit(lambda a: mw.astype(a, "float16"))(half), half.astype("float16"))
    for other in ("int8", "int32", "int64", "uint8", "uint64", "bool"):
        b = numbers("uint64").view("int64").astype(other)
        same(mw.jit(lambda b: mw.astype(b, dtype))(b), b.astype(dtype), other)
    for other in ("float32", "float64", "float16"):
        top = (
            min(float(np.iinfo(dtype).max), 60000.0)
            if other == "float16"
            else float(np.iinfo(dtype).max)
        )
        b = (np.random.default_rng(5).random(40) * top * 0.999).astype(other)
        same(mw.jit(lambda b: mw.astype(b, dtype))(b), b.astype(dtype), other)
    found = np.asarray(mw.jit(lambda a: a / 2 + mw.mean(a))(half))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, half / 2 + half.mean(), rtol=1e-6)


PAIRS = [
    ("uint8", "int8"), ("uint8", "uint32"), ("uint16", "int8"), ("uint32", "int32"), ("uint32", "int64"),
    ("uint64", "uint8"), ("uint64", "int8"), ("uint8", "float32"), ("uint64", "float64"), ("uint16", "bool"),
]  # fmt: skip


@sampled(1)
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_promotion(one: str, other: str) -> None:
    a = numbers(one)
    b = (
        numbers("uint64", seed=4).view("int64").astype(other)
        if "float" not in other
        else np.ones((7, 5), other)
    )
    want = np.result_type(one, other)
    for pair in ((one, other), (other, one)):
        assert mw.result_type(*pair) == want
    with np.errstate(all="ignore"):
        same(mw.jit(lambda a, b: a + b)(a, b), a + b)
        same(mw.jit(lambda a, b: mw.where(a > b, a, b))(a, b), np.where(a > b, a, b) if want != "float64" else
             np.where(a.astype(want) > b.astype(want), a, b))  # fmt: skip


@pytest.mark.parametrize("mesh", MESHES)
def test_programs_take_hold_and_give_them(mesh: str | None) -> None:
    a, held = numbers("uint16", (9, 6)), numbers("uint16", (900, 60))
    table, small = numbers("uint64", (255, 4)), numbers("uint8", (9,), seed=8) % np.uint8(255)

    def function(a: Any, at: Any) -> Any:
        total = mw.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + a), (0, a))[1]
        rows = mw.take(table, at, axis=0), mw.asarray(table)[at]
        return (
            total,
            mw.cond(mw.sum(a) > 5, lambda: a, lambda: a + a),
            held[:9, :6] ^ a,
            rows,
            a @ a.T,
        )

    found = mw.jit(function, mesh=mesh)(a, small)
    with np.errstate(all="ignore"):
        same(found[0], a * np.uint16(4))
        same(found[1], a)
        same(found[2], held[:9, :6] ^ a)
        same(found[3][0], table[small])
        same(found[3][1], table[small])
        same(found[4], a @ a.T)
    full = mw.jit(
        lambda: (
            mw.full((3,), 255, dtype="uint8"),
            mw.arange(250, 256, dtype="uint8"),
            mw.eye(2, dtype="uint32"),
        )
    )()
    same(full[0], np.full(3, 255, "uint8"))
    same(full[1], np.arange(250, 256, dtype="uint8"))
    same(full[2], np.eye(2, dtype="uint32"))
    again = mw.asarray(a, device=mesh)
    assert again.dtype_name == "ui16" and again.dtype == mw.uint16
    same(again + again, a + a)


def test_numbers_that_do_not_fit_are_refused() -> None:
    a = numbers("uint8")
    for wrong in (-1, 256):
        with pytest.raises(MeshweaveError, match=f"{wrong} is no uint8"):
            mw.jit(lambda a, wrong=wrong: a + wrong)(a)
        with pytest.raises(MeshweaveError, match=rf"{wrong} is no meshweave\.uint8"):
            mw.jit(lambda a, k: a + k)(a, wrong)
        with pytest.raises(MeshweaveError, match=f"{wrong} is no"):
            mw.asarray([1, wrong], dtype="uint8")
    jitted = mw.jit(lambda a, k: a + k)
    same(jitted(a, 255), a + np.uint8(255))
    with pytest.raises(MeshweaveError, match="-5 is no"):
        mw.jit(lambda a, k: a + k)(numbers("uint64"), -5)


def test_what_the_standard_says_of_them() -> None:
    info = mw.iinfo("uint32")
    assert (info.bits, info.min, info.max, info.dtype) == (32, 0, 2**32 - 1, mw.uint32)
    assert mw.isdtype(mw.uint8, "unsigned integer") and mw.isdtype(mw.uint8, ("integral", "bool"))
    assert not mw.isdtype(mw.uint8, "signed integer") and not mw.isdtype(
        mw.int8, "unsigned integer"
    )
    assert mw.can_cast(mw.uint8, mw.int16) and not mw.can_cast(mw.uint8, mw.int8)
    assert mw.uint16 == np.dtype("uint16") == mw.uint16 and repr(mw.uint64) == "meshweave.uint64"
    found = mw.__array_namespace_info__().dtypes(kind="unsigned integer")
    assert set(found) == set(DTYPES)
