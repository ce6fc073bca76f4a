"""Write the kernel that does a library product where cuBLASLt has no algorithm for it: a thread for each result.

It takes all sizes as numbers, so a program has one for each kind of product, not for each product.
"""

from __future__ import annotations

from functools import cache

from meshweave.device import GemmInfo
from meshweave.hints.fast_paths import DETERMINISTIC
from meshweave.lowering.gpu.kernel import DeviceKernel
from meshweave.lowering.gpu.writer import GLOBAL, DeviceWriter, Parameter
from meshweave.lowering.writer import Value

FAMILY = "spare"
SPARE_THREADS = 256
_NBYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}
_NUMBERS = ("results", "m", "n", "k", "a_down", "a_along", "b_down", "b_along", "d_down")
_STRIDES = ("a_batch", "b_batch", "d_batch")


@cache
def spare_kernel(kind: str, result: str, accumulate: bool) -> DeviceKernel:
    """Return the kernel that does products of elements of type `kind`; it adds to D, of type `result`, or writes it.

    p0, p1 and p2 are A, B and D; the numbers are those of `spare_numbers`. Sums are kept in f32, of f64 in f64, and
    rounded once.
    """
    adds = "_added" if accumulate else ""
    pointers = [Parameter(f"p{k}", GLOBAL, readonly=k < 2) for k in range(3)]
    scalars = [Parameter(name, "i64") for name in (*_NUMBERS, *_STRIDES)]
    b = DeviceWriter(f"{FAMILY}_{kind}_{result}{adds}", [*pointers, *scalars], SPARE_THREADS)
    wide = "f64" if kind == "f64" else "f32"
    number = b.wide(b.block()) * SPARE_THREADS + b.wide(b.thread())

    def element(pointer: str, kind: str, *terms: Value) -> Value:
        place = terms[0]
        for term in terms[1:]:
            place = place + term
        return b.offset(b[pointer], place * _NBYTES[kind])

    def read(place: Value, kind: str) -> Value:
        value = b.load(place, kind, _NBYTES[kind])
        return value if kind == wide else b.convert("arith.extf", value, wide)

    def compute() -> None:
        column, rest = number % b["n"], number // b["n"]
        row, batch = rest % b["m"], rest // b["m"]
        a, c = (
            batch * b["a_batch"] + row * b["a_down"],
            batch * b["b_batch"] + column * b["b_along"],
        )

        def step(k: Value, sums: list[Value]) -> list[Value]:
            left = read(element("p0", kind, a, k * b["a_along"]), kind)
            right = read(element("p1", kind, c, k * b["b_down"]), kind)
            return [b.fma(left, right, sums[0])]

        (total,) = b.for_(b.constant(0, "i64"), b["k"], 1, [b.constant(0.0, wide)], step, "i64")
        place = element("p2", result, batch * b["d_batch"], row * b["d_down"], column)
        if accumulate:
            total = total + read(place, result)
        if result != wide:
            total = b.convert("arith.truncf", total, result)
        b.store(total, place, _NBYTES[result])

    b.if_(b.compare("ult", number, b["results"]), compute)
    return DeviceKernel.of(b, 1, FAMILY, DETERMINISTIC)


def spare_numbers(info: GemmInfo) -> list[int]:
    """Return the numbers that the kernel is launched with for a product, in the order of its parameters."""
    a = (1, info.lda) if info.transpose_a else (info.lda, 1)
    b = (1, info.ldb) if info.transpose_b else (info.ldb, 1)
    strides = (info.stride_a, info.stride_b, info.stride_d)
    return [info.batch * info.m * info.n, info.m, info.n, info.k, *a, *b, info.ldd, *strides]


def spare_blocks(info: GemmInfo) -> int:
    """Return the blocks of a launch for a product."""
    return -(-info.batch * info.m * info.n // SPARE_THREADS)
