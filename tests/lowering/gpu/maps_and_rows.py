"""Small programs for kernels: their text, and what they compute in double precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from lowering.gpu.device_runs import NUMPY, bits, numbers

FLOATS = ("f64", "f32", "f16", "bf16")
ROUNDING = {"f64": 1e-14, "f32": 3e-6, "f16": 4e-3, "bf16": 3e-2}  # relative, of a few ops
Array = np.ndarray


def tensor(shape: Sequence[int], dtype: str) -> str:
    """A tensor's type."""
    return "tensor<" + "".join(f"{n}x" for n in shape) + f"{dtype}>"


def stored(values: Array, dtype: str) -> Array:
    """Numbers as the elements of that type, bf16 as bits."""
    return bits(values) if dtype == "bf16" else values.astype(NUMPY[dtype])


def doubles(values: Array, dtype: str) -> Array:
    """Elements as numbers; whole ones stay whole."""
    if dtype == "bf16":
        return numbers(values).astype(np.float64)
    return values.astype(np.float64) if dtype in FLOATS else values


def constant(name: str, value: float, dtype: str) -> str:
    """A constant's line; infinities too."""
    if value in (np.inf, -np.inf):
        bits_ = {"f64": "7FF0000000000000", "f32": "7F800000", "f16": "7C00", "bf16": "7F80"}[dtype]
        if value < 0:
            bits_ = "F" + bits_[1:]
        return f"%{name} = arith.constant 0x{bits_} : {dtype}"
    if dtype == "i1":
        return f"%{name} = arith.constant {'true' if value else 'false'}"
    number = f"{value:.6e}" if dtype in FLOATS else str(int(value))
    return f"%{name} = arith.constant {number} : {dtype}"


def dims(count: int) -> list[str]:
    """Names of loops."""
    return [f"d{k}" for k in range(count)]


def indexing(ndim: int, kept: Sequence[int]) -> str:
    """The map of an operand that has these loops as its dims."""
    return f"affine_map<({', '.join(dims(ndim))}) -> ({', '.join(f'd{k}' for k in kept)})>"


def generic(
    result: str,
    operands: Sequence[tuple[str, Sequence[int], str]],
    out: tuple[str, Sequence[int], str],
    shape: Sequence[int],
    reductions: Sequence[int],
    body: Sequence[str],
) -> str:
    """A linalg.generic over `shape`. operands, out: (value, loops that are its dims, element type).
    The body's arguments are %x0, %x1, .. and %o; it defines %r.
    """
    every = [*operands, out]
    maps = ", ".join(indexing(len(shape), kept) for _, kept, _ in every)
    kinds = ", ".join('"reduction"' if d in reductions else '"parallel"' for d in range(len(shape)))
    types = [tensor([shape[d] for d in kept], t) for _, kept, t in every]
    names = ", ".join(v for v, _, _ in operands)
    ins = f"ins({names} : {', '.join(types[:-1])}) " if operands else ""
    arguments = ", ".join(f"%x{k}: {t}" for k, (_, _, t) in enumerate(operands))
    arguments += (", " if operands else "") + f"%o: {out[2]}"
    lines = "\n    ".join(body)
    return (
        f"{result} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{kinds}]}} "
        f"{ins}outs({out[0]} : {types[-1]}) {{\n  ^bb0({arguments}):\n    {lines}\n"
        f"    linalg.yield %r : {out[2]}\n  }} -> {types[-1]}"
    )


def filled(name: str, shape: Sequence[int], dtype: str, value: float) -> str:
    """A tensor that holds `value` everywhere."""
    kind = tensor(shape, dtype)
    return (
        f"{constant(name + '_start', value, dtype)}\n"
        f"%{name}_empty = tensor.empty() : {kind}\n"
        f"%{name} = linalg.fill ins(%{name}_start : {dtype}) outs(%{name}_empty : {kind}) -> {kind}"
    )


def function(arguments: Sequence[str], body: Sequence[str], result: str, kind: str) -> str:
    """`@main` of arguments %a0, %a1, .. of these types."""
    signature = ", ".join(f"%a{k}: {t}" for k, t in enumerate(arguments))
    lines = "\n".join(body)
    return f"func.func @main({signature}) -> {kind} {{\n{lines}\nreturn {result} : {kind}\n}}"


@dataclass(frozen=True)
class Reduction:
    """A combiner: its op, what it starts from, and NumPy's word for it."""

    op: str
    start: float
    numpy: Callable[..., Array]


SUM = Reduction("arith.addf", 0.0, np.add)
PRODUCT = Reduction("arith.mulf", 1.0, np.multiply)
LARGEST = Reduction("arith.maximumf", -np.inf, np.maximum)
LEAST = Reduction("arith.minimumf", np.inf, np.minimum)
WHOLE_SUM = Reduction("arith.addi", 0, np.add)
WHOLE_LARGEST = Reduction("arith.maxsi", -100, np.maximum)
ANY = Reduction("arith.ori", 0, np.bitwise_or)
ALL = Reduction("arith.andi", -1, np.bitwise_and)


def reduced(shape: Sequence[int], over: Sequence[int], dtype: str, how: Reduction) -> str:
    """A program that reduces its argument over some dims."""
    kept = [d for d in range(len(shape)) if d not in over]
    left = [shape[d] for d in kept]
    start = how.start if dtype != "i1" else bool(how.start)
    body = [
        filled("f", left, dtype, start),
        generic(
            "%0", [("%a0", range(len(shape)), dtype)], ("%f", kept, dtype), shape, over,
            [f"%r = {how.op} %o, %x0 : {dtype}"],
        ),
    ]  # fmt: skip
    return function([tensor(shape, dtype)], body, "%0", tensor(left, dtype))


def softmax(rows: int, columns: int, dtype: str) -> str:
    """exp(x - max x) / sum of it, row by row, as four ops."""
    shape, whole, row = (rows, columns), (0, 1), (0,)
    empty = f"%e = tensor.empty() : {tensor(shape, dtype)}"
    body = [
        empty,
        filled("low", [rows], dtype, -np.inf),
        filled("zero", [rows], dtype, 0.0),
        generic("%max", [("%a0", whole, dtype)], ("%low", row, dtype), shape, [1],
                [f"%r = arith.maximumf %x0, %o : {dtype}"]),
        generic("%exp", [("%a0", whole, dtype), ("%max", row, dtype)], ("%e", whole, dtype), shape, [],
                [f"%d = arith.subf %x0, %x1 : {dtype}", f"%r = math.exp %d : {dtype}"]),
        generic("%sum", [("%exp", whole, dtype)], ("%zero", row, dtype), shape, [1],
                [f"%r = arith.addf %x0, %o : {dtype}"]),
        generic("%0", [("%exp", whole, dtype), ("%sum", row, dtype)], ("%e", whole, dtype), shape, [],
                [f"%r = arith.divf %x0, %x1 : {dtype}"]),
    ]  # fmt: skip
    return function([tensor(shape, dtype)], body, "%0", tensor(shape, dtype))


def softmax_of(x: Array) -> Array:
    """The same by NumPy."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def layer_norm(rows: int, columns: int, dtype: str) -> str:
    """(x - mean) / sqrt(variance + 1e-5) * scale + shift; sums in f32 for small types."""
    wide = "f64" if dtype == "f64" else "f32"
    shape, whole, row, column = (rows, columns), (0, 1), (0,), (1,)
    up = [f"%u = arith.extf %x0 : {dtype} to {wide}"] if wide != dtype else []
    x = "%u" if up else "%x0"
    last = [
        *up, f"%c = arith.subf {x}, %x1 : {wide}", f"%v = arith.mulf %c, %x2 : {wide}",
    ]  # fmt: skip
    if up:
        last += [
            f"%s = arith.extf %x3 : {dtype} to {wide}", f"%t = arith.extf %x4 : {dtype} to {wide}",
            f"%w = arith.mulf %v, %s : {wide}", f"%q = arith.addf %w, %t : {wide}",
            f"%r = arith.truncf %q : {wide} to {dtype}",
        ]  # fmt: skip
    else:
        last += [f"%w = arith.mulf %v, %x3 : {wide}", f"%r = arith.addf %w, %x4 : {wide}"]
    body = [
        f"%e = tensor.empty() : {tensor(shape, dtype)}",
        f"%er = tensor.empty() : {tensor([rows], wide)}",
        constant("n", columns, wide), constant("eps", 1e-5, wide), constant("one", 1, wide),
        filled("zero", [rows], wide, 0.0),
        generic("%sum", [("%a0", whole, dtype)], ("%zero", row, wide), shape, [1],
                [*up, f"%r = arith.addf %o, {x} : {wide}"]),
        generic("%mean", [("%sum", row, wide)], ("%er", row, wide), shape[:1], [],
                [f"%r = arith.divf %x0, %n : {wide}"]),
        generic("%square", [("%a0", whole, dtype), ("%mean", row, wide)], ("%zero", row, wide), shape, [1],
                [*up, f"%c = arith.subf {x}, %x1 : {wide}", f"%p = arith.mulf %c, %c : {wide}",
                 f"%r = arith.addf %o, %p : {wide}"]),
        generic("%inverse", [("%square", row, wide)], ("%er", row, wide), shape[:1], [],
                [f"%v = arith.divf %x0, %n : {wide}", f"%w = arith.addf %v, %eps : {wide}",
                 f"%s = math.sqrt %w : {wide}", f"%r = arith.divf %one, %s : {wide}"]),
        generic("%0", [("%a0", whole, dtype), ("%mean", row, wide), ("%inverse", row, wide),
                       ("%a1", column, dtype), ("%a2", column, dtype)], ("%e", whole, dtype), shape, [], last),
    ]  # fmt: skip
    edge = tensor([columns], dtype)
    return function([tensor(shape, dtype), edge, edge], body, "%0", tensor(shape, dtype))


def layer_norm_of(x: Array, scale: Array, shift: Array) -> Array:
    """The same by NumPy."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift


def transposed(shape: Sequence[int], order: Sequence[int], dtype: str) -> str:
    """The argument with its dims in another order, plus a second one that lies as the result."""
    left = [shape[d] for d in order]
    kind = tensor(left, dtype)
    add = "arith.addf" if dtype in FLOATS else "arith.addi"
    body = [
        f"%e = tensor.empty() : {kind}",
        f"%t = linalg.transpose ins(%a0 : {tensor(shape, dtype)}) outs(%e : {kind}) "
        f"permutation = [{', '.join(map(str, order))}]",
        f"%0 = {add} %t, %a1 : {kind}",
    ]
    return function([tensor(shape, dtype), kind], body, "%0", kind)
