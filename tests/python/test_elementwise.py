"""Elementwise functions against NumPy, for every dtype, with the values where they are special."""

import numpy as np
import pytest
from depth import sampled
from traced import BINARY, COMPARISONS, LOGICAL, UNARY, check, mw, run_all

from meshweave.errors import CompileError, UsageError

TOLERANCE = {"float32": 2e-6, "float64": 1e-13, "float16": 2e-3}
SPECIAL = [
    (0.0, 0.0), (-0.0, 1.0), (np.inf, np.inf), (-np.inf, np.inf), (np.nan, 1.0), (1.0, np.nan),
    (2.0, 0.0), (-1.0, 2.0), (0.5, -2.0), (2.5, 1.0), (-1.5, -2.0), (0.0, -1.0), (0.0, np.inf),
    (np.inf, -np.inf), (1.0, -np.inf), (-6.0, 3.0), (6.0, -3.0), (7.0, -2.0),
]  # fmt: skip


def floats(dtype):
    rng = np.random.default_rng(0)
    pairs = np.concatenate([rng.standard_normal((40, 2)) * 3, np.array(SPECIAL)])
    return pairs[:, 0].astype(dtype), pairs[:, 1].astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@np.errstate(all="ignore")
def test_floats(dtype):
    a, b = floats(dtype)
    cases = {n: lambda a, b, n=n: getattr(mw, n)(a) for n in UNARY}
    cases |= {n: lambda a, b, n=n: getattr(mw, n)(a, b) for n in BINARY}
    found = run_all(cases, a, b)
    wanted = {n: f(a) for n, f in UNARY.items()} | {n: f(a, b) for n, f in BINARY.items()}
    check(found, wanted, TOLERANCE[dtype])
    for name, right in wanted.items():
        assert found[name].dtype == right.dtype, name
    assert np.array_equal(found["nextafter"], wanted["nextafter"], equal_nan=True)


@sampled(4)
@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "int16"])
@np.errstate(all="ignore")
def test_integers(dtype):
    rng = np.random.default_rng(1)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    ends = np.array([low, high, 0, 1, -1, 2, -7, 7, low, low], dtype)
    a = np.concatenate([rng.integers(low, high, 30, dtype), np.repeat(ends, len(ends))])
    b = np.concatenate([rng.integers(-9, 9, 30, dtype), np.tile(ends, len(ends))])
    unary = {
        n: UNARY[n]
        for n in ("abs", "negative", "positive", "sign", "square", "logical_not", "ceil", "floor",
                  "round", "trunc", "isnan", "isfinite", "isinf")
    }  # fmt: skip
    names = ("add", "subtract", "multiply", "maximum", "minimum", *COMPARISONS, *LOGICAL)
    binary = {n: BINARY[n] for n in names}
    binary |= {
        "bitwise_and": np.bitwise_and,
        "bitwise_or": np.bitwise_or,
        "bitwise_xor": np.bitwise_xor,
    }
    cases = {n: lambda a, b, n=n: getattr(mw, n)(a) for n in unary}
    cases |= {n: lambda a, b, n=n: getattr(mw, n)(a, b) for n in binary}
    cases |= {
        "bitwise_invert": lambda a, b: ~a,
        "floor_divide": lambda a, b: a // b,
        "remainder": lambda a, b: a % b,
        "left": lambda a, b: a << b,
        "right": lambda a, b: a >> b,
        "pow": lambda a, b: a ** mw.abs(b),
        "cube": lambda a, b: a**3,
        "divide": lambda a, b: a / b,
    }
    found = run_all(cases, a, b)
    wanted = {n: f(a) for n, f in unary.items()} | {n: f(a, b) for n, f in binary.items()}
    wanted |= {
        "bitwise_invert": ~a,
        "floor_divide": a // b,
        "remainder": a % b,
        "left": a << b,
        "right": a >> b,
        "cube": a**3,
    }
    for name, right in wanted.items():
        assert np.array_equal(found[name], right), name
    bits = np.iinfo(dtype).bits
    powers = [
        _wrapped(pow(int(x), int(y)) if 0 <= y < 200 else None, bits)
        for x, y in zip(a, np.abs(b), strict=True)
    ]
    for y, right in zip(found["pow"], powers, strict=True):
        assert right is None or y == right
    check(found, {"divide": a.astype(np.float32) / b.astype(np.float32)}, 1e-6)


def _wrapped(value, bits):
    return value if value is None else (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def test_bools():
    a = np.array([True, True, False, False])
    b = np.array([True, False, True, False])
    cases = {
        "and": (lambda a, b: a & b, a & b),
        "or": (lambda a, b: a | b, a | b),
        "xor": (lambda a, b: a ^ b, a ^ b),
        "not": (lambda a, b: ~a, ~a),
        "less": (lambda a, b: a < b, a < b),
        "max": (lambda a, b: mw.maximum(a, b), a | b),
        "times": (lambda a, b: a * b, a & b),
        "to f16": (lambda a, b: mw.astype(a, mw.float16), a.astype(np.float16)),
        "to i32": (lambda a, b: a.astype("i32"), a.astype(np.int32)),
        "plus": (lambda a, b: a + 1, a.astype(np.int64) + 1),
    }
    found = run_all({n: f for n, (f, _) in cases.items()}, a, b)
    for name, (_, right) in cases.items():
        assert found[name].dtype == right.dtype and np.array_equal(found[name], right), name


def test_casts_between_all_types():
    values = np.array([0.0, 1.0, -1.75, 100.0, 2.5, -3.0])
    names = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "bool")
    for source in names:
        x = values.astype(source)
        cases = {n: lambda a, n=n: mw.astype(a, n) for n in names}
        cases["bfloat16"] = lambda a: mw.astype(mw.astype(a, mw.bfloat16), mw.float64)
        found = run_all(cases, x)
        for name in names:
            right = x.astype(name)
            assert found[name].dtype == right.dtype and np.array_equal(found[name], right), name
        assert np.array_equal(found["bfloat16"], x.astype(np.float64))


def test_bfloat16_rounds_once_to_nearest():
    x = np.linspace(-3, 3, 61, dtype=np.float32)
    cases = {
        "sum": lambda a: mw.sum(mw.astype(a, mw.bfloat16)),
        "exp": lambda a: mw.exp(mw.astype(a, mw.bfloat16)),
        "f16": lambda a: mw.astype(mw.astype(a, "bf16"), "f16") + mw.astype(a, "bf16"),
        "matmul": lambda a: mw.astype(a, "bf16") @ mw.astype(a, "bf16"),
    }
    found = run_all(cases, x)
    short = _bf16(x)
    assert np.array_equal(found["exp"], _bf16(np.exp(short).astype(np.float32)))
    assert found["f16"].dtype == np.float32
    assert found["sum"] == _bf16(short.sum(keepdims=True))[0]
    assert found["matmul"] == _bf16(np.atleast_1d(short @ short))[0]


def _bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def test_broadcasting_and_where_and_clip():
    rng = np.random.default_rng(2)
    a = rng.standard_normal((4, 1, 3)).astype(np.float32)
    b = rng.standard_normal((5, 1)).astype(np.float32)
    s = np.float32(2.5)
    cases = {
        "plus": (lambda a, b, s: a + b, a + b),
        "scalar": (lambda a, b, s: a * s - 1, a * s - 1),
        "reflected": (lambda a, b, s: 1 - a / 2, 1 - a / 2),
        "where": (lambda a, b, s: mw.where(a > b, a, 0.0), np.where(a > b, a, 0)),
        "where scalars": (lambda a, b, s: mw.where(a > 0, 1.0, -1.0), np.where(a > 0, 1.0, -1.0)),
        "clip": (lambda a, b, s: mw.clip(a, -0.5, 0.5), np.clip(a, -0.5, 0.5)),
        "clip below": (lambda a, b, s: mw.clip(a, min=b), np.maximum(a, b)),
        "power": (lambda a, b, s: a**2 + mw.abs(b) ** 0.5, a**2 + np.abs(b) ** 0.5),
        "numpy left": (
            lambda a, b, s: np.float32(3) * a + np.ones((3,), np.float32) - a,
            2 * a + 1,
        ),
    }
    found = run_all({n: f for n, (f, _) in cases.items()}, a, b, s)
    check(found, {n: right for n, (_, right) in cases.items()}, 1e-6)
    assert found["where scalars"].dtype == np.float32


PROMOTIONS = [
    ("i32", "i64", "int64"), ("i8", "i32", "int32"), ("f16", "f32", "float32"),
    ("f32", "f64", "float64"), ("i64", "f16", "float16"), ("i32", "f32", "float32"),
    ("i1", "i8", "int8"), ("i1", "f16", "float16"),
]  # fmt: skip


def test_promotion():
    def every(i1, i8, i32, i64, f16, f32, f64):
        values = {"i1": i1, "i8": i8, "i32": i32, "i64": i64, "f16": f16, "f32": f32, "f64": f64}
        made = {f"{a} {b}": values[a] + values[b] for a, b, _ in PROMOTIONS}
        made |= {f"{b} {a}": values[b] + values[a] for a, b, _ in PROMOTIONS}
        made |= {f"{n} 1": v + 1 for n, v in values.items()}
        made |= {f"{n} 1.5": v + 1.5 for n, v in values.items()}
        made |= {f"{n} np.float64": v * np.float64(2) for n, v in values.items()}
        return made

    names = ("bool", "int8", "int32", "int64", "float16", "float32", "float64")
    found = mw.jit(every)(*[np.ones(3, n) for n in names])
    types = {name: np.asarray(y).dtype.name for name, y in found.items()}
    for a, b, right in PROMOTIONS:
        assert types[f"{a} {b}"] == types[f"{b} {a}"] == right
    assert types["i1 1"] == "int64" and types["i8 1"] == "int8" and types["f16 1"] == "float16"
    assert types["i32 1.5"] == types["i64 1.5"] == types["i1 1.5"] == "float32"
    assert types["f16 1.5"] == "float16" and types["f64 1.5"] == "float64"
    assert types["f32 np.float64"] == "float32"


def test_python_scalar_arguments_are_weak():
    scaled = mw.jit(lambda x, rate: x * rate)
    x = np.ones(3, np.float16)
    assert np.asarray(scaled(x, 2.5)).dtype == np.float16
    assert np.array_equal(np.asarray(scaled(x, 4.0)), [4, 4, 4])
    assert scaled.cache_info().misses == 1  # another value is no other program
    assert np.asarray(scaled(x.astype(np.int32), 2)).dtype == np.int32


def test_result_type():
    assert mw.result_type(mw.float16, mw.bfloat16) is mw.float32
    assert mw.result_type(np.int32, 1.5) is mw.float32
    assert mw.result_type("i8", 1) is mw.int8
    assert repr(mw.bool) == "meshweave.bool"


def test_what_dtypes_are():
    for name in ("float16", "float32", "float64"):
        info, right = mw.finfo(name), np.finfo(name)
        assert (info.bits, info.max, info.eps) == (right.bits, right.max, right.eps)
        assert info.smallest_normal == right.smallest_normal and info.min == right.min
    assert mw.finfo(mw.bfloat16).max == 3.3895313892515355e38
    assert (mw.iinfo("i8").min, mw.iinfo(mw.int64).max) == (-128, 2**63 - 1)
    assert mw.isdtype(mw.int32, ("bool", "integral")) and not mw.isdtype(mw.bool, "numeric")
    assert mw.isdtype("f32", mw.float32) and not mw.isdtype("i8", "unsigned integer")
    assert mw.can_cast(mw.float16, mw.float32) and not mw.can_cast(np.int64, mw.int32)
    for wrong in (
        lambda: mw.finfo(int),
        lambda: mw.iinfo("f32"),
        lambda: mw.as_dtype(np.longdouble),
    ):
        with pytest.raises(UsageError):
            wrong()


def test_code_for_any_array_library_runs():
    def normalise(x):
        xp = x.__array_namespace__()
        return x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))

    x = np.arange(1.0, 7.0).reshape(2, 3)
    y = mw.jit(normalise)(x)
    assert np.allclose(np.asarray(y), x / np.sqrt((x * x).sum(-1, keepdims=True)))


@sampled(3)
@pytest.mark.parametrize(
    "name", ["exp", "exp2", "expm1", "log", "log1p", "tanh", "erf", "rsqrt", "sqrt", "sin"]
)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.5])
def test_a_function_of_a_constant_is_that_of_an_argument(name, value):
    function = getattr(mw, name)
    given = mw.jit(lambda x: function(x))(np.full(3, value, np.float32)).numpy()
    known = mw.jit(lambda x: function(mw.full((3,), value)) + x)(np.zeros(3, np.float32)).numpy()
    np.testing.assert_array_equal(known, given)


def test_a_function_of_the_mean_of_nothing_is_nan():
    mean = mw.jit(lambda x, axis: mw.exp(mw.mean(x, axis=axis)), static_argnames="axis")
    for shape, axis in (((0, 2), 0), ((2, 0), 1), ((1, 0), (0, 1))):
        assert np.isnan(mean(np.zeros(shape, np.float32), axis)).all()


def test_python_scalars_keep_their_digits_beside_float64() -> None:
    x, c = np.arange(1, 4) / 3, np.array([True, False, True])
    same = [
        (mw.jit(lambda: mw.asarray(0.1, dtype=mw.float64)), (), np.float64(0.1)),
        (mw.jit(lambda: mw.asarray([0.1, 1e300], dtype="f64")), (), np.array([0.1, 1e300])),
        (mw.jit(lambda: mw.asarray(16777217.0, dtype="i64")), (), np.int64(16777217)),
        (mw.jit(lambda x, s: x * (-s)), (x, 0.1), x * -0.1),
        (mw.jit(lambda x, s: x * mw.exp(s)), (x, np.float64(0.1)), x * np.exp(0.1)),
        (mw.jit(lambda x, n: x / mw.sqrt(n)), (x, 2), x / np.sqrt(2.0)),
        (mw.jit(lambda x, c: mw.where(c, 0.1, 0.2) * x), (x, c), np.where(c, 0.1, 0.2) * x),
    ]
    for function, arguments, wanted in same:
        found = np.asarray(function(*arguments))
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-15)
    alone, beside = mw.jit(lambda x, s: (-s, x * (-s)))(x, 0.1)
    assert (alone.dtype, beside.dtype) == (np.float32, np.float64)


@pytest.mark.parametrize("value", [300, [1, 300], [[-129]]])
def test_integers_that_do_not_fit_are_refused(value: object) -> None:
    with pytest.raises(CompileError, match=r"(300|-129) is no (meshweave\.)?int8"):
        mw.jit(lambda: mw.asarray(value, dtype="int8"))()
