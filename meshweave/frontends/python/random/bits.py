"""Define keys and random bits by the hash Threefry-2x32 [Salmon, Moraes, Dror, Shaw, SC 2011]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from meshweave.frontends.python.builder import Body, affine_map, fail
from meshweave.frontends.python.dtypes import (
    DTYPES,
    INTEGERS,
    DType,
    DTypeLike,
    int64,
    uint32,
    uint64,
)
from meshweave.frontends.python.functions import elementwise as e
from meshweave.frontends.python.functions.manipulate import sizes_of, stack
from meshweave.frontends.python.tracer import (
    ArrayLike,
    Shape,
    Tracer,
    dtype_of,
    parallel,
    splat,
    tensor,
    tracing,
)

_TURNS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def key(seed: ArrayLike, /) -> Tracer:
    """Make a key of an integer: the numbers 0 and seed for one from 0 to 2**32 - 1, as JAX does.

    Higher bits make the first number; of a negative seed the lower 32 bits count.
    """
    value = tensor(seed)
    if value.shape or value.dtype.kind not in INTEGERS:
        fail(f"random.key: seed is {value!r}, one integer is right")
    low = e.astype(value, uint32)
    high = splat(tracing(), (), 0, uint32)
    if value.dtype.bits == 64:
        above = value if value.dtype.kind == "u" else e.maximum(value, 0)
        high = e.astype(e.floor_divide(above, 1 << 32), uint32)
    return stack([high, low])


def split(key: ArrayLike, /, num: Shape = 2) -> Tracer:
    """Make `num` keys of one, or a shape of keys; the last dim of the result holds their two numbers."""
    shape = sizes_of("random.split", num)
    words = _words("split", key)

    def body(b: Body, ins: list[str]) -> str:
        first, second = _hashed(b, ins, _place(b, shape))
        is_first = b.compare("eq", int64, _loop(b, len(shape)), b.constant(0, int64))
        return b.select(is_first, uint32, first, second)

    return _computed(words, (*shape, 2), uint32, body)


def fold_in(key: ArrayLike, data: ArrayLike, /) -> Tracer:
    """Make a key of another and an integer, the number of a step for example."""
    words, value = _words("fold_in", key), tensor(data)
    if value.shape or value.dtype.kind not in INTEGERS:
        fail(f"random.fold_in: data is {value!r}, one integer is right")

    def body(b: Body, ins: list[str]) -> str:
        first, second = _hashed(b, ins[:2], (b.constant(0, uint32), ins[2]))
        is_first = b.compare("eq", int64, _loop(b, 0), b.constant(0, int64))
        return b.select(is_first, uint32, first, second)

    return _computed([*words, e.astype(value, uint32)], (2,), uint32, body)


def bits(key: ArrayLike, /, shape: Shape = (), dtype: DTypeLike | None = None) -> Tracer:
    """Make random integers without sign, all values alike; dtype: uint32 by default."""
    wanted = dtype_of("random.bits", dtype, uint32)
    if wanted.kind != "u":
        fail(f"random.bits: dtype {wanted!r}, one of integers without sign is right")
    return drawn("bits", key, sizes_of("random.bits", shape), wanted.bits)


def drawn(name: str, key: ArrayLike, shape: tuple[int, ...], width: int) -> Tracer:
    """Make random bits: at each place the hash of the key and the place's number."""
    if any(n < 0 for n in shape):
        fail(f"random.{name}: shape {shape}, sizes must not be negative")
    out = DTYPES[f"ui{width}"]

    def body(b: Body, ins: list[str]) -> str:
        first, second = _hashed(b, ins, _place(b, shape))
        if width == 64:
            high, low = (b.cast(v, uint32, uint64) for v in (first, second))
            high = b.op("arith.shli", uint64, high, b.constant(32, uint64))
            return b.op("arith.ori", uint64, high, low)
        return b.cast(b.op("arith.xori", uint32, first, second), uint32, out)

    return _computed(_words(name, key), shape, out, body)


def _words(name: str, key: ArrayLike) -> list[Tracer]:
    """Return the two numbers of a key. Raises CompileError at the user's line where it is none."""
    value = tensor(key)
    if value.shape != (2,) or value.dtype is not uint32:
        fail(
            f"random.{name}: key is {value!r}: one of random.key or random.split is right, 2 of uint32"
        )
    return [value[0], value[1]]


def _computed(
    scalars: list[Tracer],
    shape: tuple[int, ...],
    dtype: DType,
    body: Callable[[Body, list[str]], str],
) -> Tracer:
    """Make a tensor of scalars and of the place of each element."""
    if 0 in shape:
        return splat(tracing(), shape, 0, dtype)
    return parallel(scalars, [affine_map(len(shape), ())] * len(scalars), shape, dtype, body)


def _loop(b: Body, dim: int) -> str:
    return b.let(f"arith.index_cast {b.loop(dim)} : index to i64")


def _place(b: Body, shape: tuple[int, ...]) -> tuple[str, str]:
    """Return the number of a place in row-major order, as its high and low 32 bits."""
    number = b.constant(0, int64)
    for d in range(len(shape)):
        step = b.constant(prod(shape[d + 1 :]), int64)
        number = b.op("arith.addi", int64, number, b.op("arith.muli", int64, _loop(b, d), step))
    low = b.cast(number, int64, uint32)
    if prod(shape) <= 1 << 32:
        return b.constant(0, uint32), low
    return b.cast(b.op("arith.shrui", int64, number, b.constant(32, int64)), int64, uint32), low


def _hashed(b: Body, words: Sequence[str], place: tuple[str, str]) -> tuple[str, str]:
    """Hash two numbers under a key: five times four rounds, each followed by a part of the key."""

    def op(name: str, x: str, y: str) -> str:
        return b.op(f"arith.{name}", uint32, x, y)

    (k0, k1), (x0, x1) = words, place
    last = op("xori", op("xori", k0, k1), b.constant(_PARITY, uint32))
    keys = (k0, k1, last)
    x0, x1 = op("addi", x0, k0), op("addi", x1, k1)
    for number in range(5):
        for turn in _TURNS[number % 2]:
            x0 = op("addi", x0, x1)
            left = op("shli", x1, b.constant(turn, uint32))
            x1 = op("ori", left, op("shrui", x1, b.constant(32 - turn, uint32)))
            x1 = op("xori", x0, x1)
        x0 = op("addi", x0, keys[(number + 1) % 3])
        x1 = op("addi", x1, keys[(number + 2) % 3])
        x1 = op("addi", x1, b.constant(number + 1, uint32))
    return x0, x1
