"""The ops of random programs: each appends one op that reads `a` (and perhaps others) to a program."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from programs import Array, Program, Value, dense, number, tensor_type
from strategies import layouts

BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum}
ARITH = {
    "add": ("addf", "addi"),
    "sub": ("subf", "subi"),
    "mul": ("mulf", "muli"),
    "max": ("maximumf", "maxsi"),
    "min": ("minimumf", "minsi"),
}
FOLD = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
FOLD_I1 = {"arith.ori": np.logical_or, "arith.andi": np.logical_and, "arith.xori": np.logical_xor}


def arith(name: str, a: Value) -> str:
    """The name of an op of the arith dialect for the type of `a`."""
    return f"arith.{ARITH[name][0 if a.is_float else 1]}"


def elementwise(draw: st.DrawFn, p: Program, a: Value) -> None:
    if a.element == "i1":
        return
    b = draw(st.sampled_from(p.like(a)))
    name = draw(st.sampled_from(sorted(BINARY)))
    text = f"linalg.{name} ins({a.name}, {b.name} : {a.type}, {b.type}) outs($E : $T) -> $T"
    p.op(text, BINARY[name], a, b)


def arith_on_tensors(draw: st.DrawFn, p: Program, a: Value) -> None:
    b = draw(st.sampled_from(p.like(a)))
    if a.element == "i1":
        name = draw(st.sampled_from(sorted(FOLD_I1)))
        p.op(f"{name} {a.name}, {b.name} : $T", FOLD_I1[name], a, b)
        return
    name = draw(st.sampled_from(["add", "mul"]))
    p.op(f"{arith(name, a)} {a.name}, {b.name} : $T", BINARY[name], a, b)


def compare(draw: st.DrawFn, p: Program, a: Value) -> None:
    if a.element == "i1":
        return
    b = draw(st.sampled_from(p.like(a)))
    op, less = ("arith.cmpf", "olt") if a.is_float else ("arith.cmpi", "slt")
    p.op(f"{op} {less}, {a.name}, {b.name} : {a.type}", np.less, a, b, element="i1")


def select(draw: st.DrawFn, p: Program, a: Value) -> None:
    masks = [v for v in p.values if v.element == "i1" and v.shape == a.shape]
    if not masks:
        compare(draw, p, a)
        return
    c, b = draw(st.sampled_from(masks)), draw(st.sampled_from(p.like(a)))
    text = f"arith.select {c.name}, {a.name}, {b.name} : {c.type}, $T"
    p.op(text, lambda x, m, y: np.where(m, x, y), a, c, b)


def convert(draw: st.DrawFn, p: Program, a: Value) -> None:
    """To f32 or i32, and back again in later ops."""
    if a.is_float:
        p.op(f"arith.fptosi {a.name} : {a.type} to $T", lambda x: x, a, element="i32")
    elif a.element == "i1":
        p.op(f"arith.extui {a.name} : {a.type} to $T", lambda x: x, a, element="i32")
    else:
        p.op(f"arith.sitofp {a.name} : {a.type} to $T", lambda x: x, a, element="f32")


def absolute(draw: st.DrawFn, p: Program, a: Value) -> None:
    if a.element != "i1":
        p.op(f"math.abs{'f' if a.is_float else 'i'} {a.name} : $T", np.abs, a)


def divide(draw: st.DrawFn, p: Program, a: Value) -> None:
    """By b * b + 1, which is nowhere 0; only in padding it may be."""
    if a.element not in ("i32", "i64"):
        return
    b = draw(st.sampled_from(p.like(a)))
    square = p.op(f"arith.muli {b.name}, {b.name} : $T", lambda y: y * y, b)
    if square is None:
        return
    one = p.helper(f"arith.constant dense<1> : {a.type}")
    more = p.op(f"arith.addi {square.name}, {one} : $T", lambda y: y + 1, square)
    if more is not None:
        op = draw(st.sampled_from(["arith.divsi", "arith.remsi"]))
        quotient = lambda x, y: np.sign(x) * (np.abs(x) // y)  # noqa: E731
        remainder = lambda x, y: x - y * quotient(x, y)  # noqa: E731
        fn = quotient if op == "arith.divsi" else remainder
        p.op(f"{op} {a.name}, {more.name} : $T", fn, a, more)


def constant(draw: st.DrawFn, p: Program, a: Value) -> None:
    """a + a constant, a splat or not."""
    if a.element == "i1" or a.value.size == 0:
        return
    value = np.arange(a.value.size).reshape(a.shape) % draw(st.sampled_from([1, 3])) + 1
    name = p.helper(f"arith.constant dense<{dense(value, a.element)}> : {a.type}")
    p.op(f"{arith('add', a)} {a.name}, {name} : $T", lambda x: x + value.astype(x.dtype), a)


def transpose(draw: st.DrawFn, p: Program, a: Value) -> None:
    order = draw(st.permutations(range(len(a.shape))))
    text = f"linalg.transpose ins({a.name} : {a.type}) outs($E : $T) permutation = {list(order)}"
    p.op(text, lambda x: np.transpose(x, order), a)


def broadcast(draw: st.DrawFn, p: Program, a: Value) -> None:
    dim, extent = draw(st.integers(0, len(a.shape))), draw(st.sampled_from([1, 2, 3, 4]))
    shape = (*a.shape[:dim], extent, *a.shape[dim:])
    text = f"linalg.broadcast ins({a.name} : {a.type}) outs($E : $T) dimensions = [{dim}]"
    p.op(text, lambda x: np.broadcast_to(np.expand_dims(x, dim), shape), a)


def reduce(draw: st.DrawFn, p: Program, a: Value) -> None:
    """linalg.reduce over some dims, from a number or a tensor."""
    dims = sorted(draw(st.sets(st.integers(0, len(a.shape) - 1), min_size=1, max_size=2)))
    axes = tuple(dims)
    shape = tuple(n for d, n in enumerate(a.shape) if d not in axes)
    if a.element == "i1":
        op = draw(st.sampled_from(sorted(FOLD_I1)))
        fold: Any = FOLD_I1[op]
    else:
        name = draw(st.sampled_from(sorted(FOLD)))
        op, fold = arith(name, a), FOLD[name]
    inits = [v for v in p.values if v.shape == shape and v.element == a.element]
    start: Any = draw(st.sampled_from([0, 1]))
    if inits and draw(st.booleans()):
        init = draw(st.sampled_from(inits))
        name, others = init.name, (init,)
    else:
        name, others = p.filled(shape, start, a.element), ()

    def fn(x: Array, *i: Array) -> Array:
        first = i[0] if i else np.full(shape, start, x.dtype)
        return fold(fold.reduce(x, axis=axes), first) if all(x.shape[d] for d in axes) else first

    bound = math.prod(np.maximum(np.abs(a.value.astype("f8")), 1).ravel()) if "mul" in op else None
    bound = np.abs(a.value.astype("f8")).sum() if "add" in op else bound
    type_ = tensor_type(shape, a.element)
    text = f"linalg.reduce {{ {op} }} ins({a.name} : {a.type}) outs({name} : {type_}) dimensions = {dims}"
    p.op(text, fn, a, *others, bound=bound)


def dot_bound(a: Value, b: Value) -> float:
    """No sum of products of elements of a and b gets larger."""
    return float(np.abs(a.value.astype("f8")).sum() * np.abs(b.value.astype("f8")).max(initial=0))


def matmul(draw: st.DrawFn, p: Program, a: Value) -> None:
    """matmul, matvec, vecmat, dot, batch_matmul, whatever fits; the first two from 0 or 1."""
    names = {
        (2, 2): "matmul",
        (2, 1): "matvec",
        (1, 2): "vecmat",
        (1, 1): "dot",
        (3, 3): "batch_matmul",
    }
    others = [
        b
        for b in p.values
        if b.element == a.element != "i1"
        and (len(a.shape), len(b.shape)) in names
        and a.shape[-1] == b.shape[max(0, len(b.shape) - 2)]
        and (len(a.shape) < 3 or a.shape[0] == b.shape[0])
    ]
    if not others:
        return
    b = draw(st.sampled_from(others))
    start = draw(st.sampled_from([0, 1]))
    init = p.filled((a.value @ b.value).shape, start, a.element)
    name = names[len(a.shape), len(b.shape)]
    text = f"linalg.{name} ins({a.name}, {b.name} : {a.type}, {b.type}) outs({init} : $T) -> $T"
    p.op(text, lambda x, y: x @ y + x.dtype.type(start), a, b, bound=dot_bound(a, b) + 1)


def matmul_transposed(draw: st.DrawFn, p: Program, a: Value) -> None:
    """a times the transpose of b, by indexing maps."""
    others = [
        b
        for b in p.values
        if b.element == a.element != "i1"
        and len(a.shape) == len(b.shape) == 2
        and a.shape[1] == b.shape[1]
    ]
    if not others:
        return
    b = draw(st.sampled_from(others))
    init = p.filled((a.shape[0], b.shape[0]), 0, a.element)
    maps = ", ".join(f"affine_map<(m, n, k) -> ({dims})>" for dims in ("m, k", "n, k", "m, n"))
    text = (
        f"linalg.matmul indexing_maps = [{maps}] ins({a.name}, {b.name} : {a.type}, {b.type}) "
        f"outs({init} : $T) -> $T"
    )
    p.op(text, lambda x, y: x @ y.T, a, b, bound=dot_bound(a, b))


def reshape(draw: st.DrawFn, p: Program, a: Value) -> None:
    """expand_shape or collapse_shape, of several dims at once, with dims of extent 1."""
    apart: list[list[int]] = []
    for n in a.shape:
        parts = [k for k in (1, 2, 3, 4, 6) if n % k == 0] if n else [1]
        k = draw(st.sampled_from(parts))
        apart.append(draw(st.sampled_from([[n], [k, n // k], [n // k, k], [n, 1]])))
    if draw(st.booleans()) and len(a.shape) <= 3:
        shape = [n for group in apart for n in group]
        text = (
            f"tensor.expand_shape {a.name} {_groups(apart)} output_shape {shape} : {a.type} into $T"
        )
        p.op(text, lambda x: x.reshape(shape), a)
        return
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(a.shape) - 1)))))
    ends = [c for c in cuts if c < len(a.shape)] + [len(a.shape)]
    runs = [list(a.shape[i:j]) for i, j in zip([0, *ends], ends)]
    if len(runs) < len(a.shape):
        merged = [math.prod(run) for run in runs]
        text = f"tensor.collapse_shape {a.name} {_groups(runs)} : {a.type} into $T"
        p.op(text, lambda x: x.reshape(merged), a)


def _groups(runs: list[list[int]]) -> list[list[int]]:
    """[[2, 3], [4]] -> [[0, 1], [2]]."""
    groups, first = [], 0
    for run in runs:
        groups.append(list(range(first, first + len(run))))
        first += len(run)
    return groups


def extract_slice(draw: st.DrawFn, p: Program, a: Value) -> None:
    """A slice with offsets and strides in one dim; dims of size 1 may be dropped. Of nothing there is none."""
    if not all(a.shape):
        return
    box = _box(draw, a.shape)
    offsets, sizes, strides = ([b[i] for b in box] for i in range(3))
    index: list[Any] = [slice(o, o + (s - 1) * t + 1, t) for o, s, t in box]
    drop = [d for d, s in enumerate(sizes) if s == 1 and draw(st.booleans())]
    keep = [s for d, s in enumerate(sizes) if d not in drop]
    text = f"tensor.extract_slice {a.name}{offsets} {sizes} {strides} : {a.type} to $T"
    p.op(text, lambda x: x[tuple(index)].reshape(keep), a)


def _box(draw: st.DrawFn, shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """(offset, size, stride) for each dim: all of it but in some."""
    dims = draw(st.sets(st.integers(0, len(shape) - 1), max_size=2))
    box = []
    for d, n in enumerate(shape):
        if d not in dims or n == 0:
            box.append((0, n, 1))
            continue
        first, stride = draw(st.integers(0, n - 1)), draw(st.sampled_from([1, 1, 2, 3]))
        box.append((first, draw(st.integers(1, (n - 1 - first) // stride + 1)), stride))
    return box


def insert_slice(draw: st.DrawFn, p: Program, a: Value) -> None:
    """A slice of `a` into another place of a value like it. Of nothing there is none."""
    if not all(a.shape):
        return
    into = draw(st.sampled_from(p.like(a)))
    box = _box(draw, a.shape)
    offsets, sizes, strides = ([b[i] for b in box] for i in range(3))
    index = tuple(slice(o, o + (s - 1) * t + 1, t) for o, s, t in box)
    begin = tuple(slice(0, s) for s in sizes)
    part = p.op(
        f"tensor.extract_slice {a.name}{[0] * len(sizes)} {sizes} {[1] * len(sizes)} : {a.type} to $T",
        lambda x: x[begin],
        a,
    )
    assert part is not None

    def inserted(x: Array, y: Array) -> Array:
        x = x.copy()
        x[index] = y
        return x

    text = f"tensor.insert_slice {part.name} into {into.name}{offsets} {sizes} {strides} : {part.type} into $T"
    p.op(text, inserted, into, part)


def pad(draw: st.DrawFn, p: Program, a: Value) -> None:
    low = [draw(st.sampled_from([0, 0, 1, 2])) for _ in a.shape]
    high = [draw(st.sampled_from([0, 0, 1])) for _ in a.shape]
    value = draw(st.sampled_from([0, 1]))
    scalar = p.constant(value, a.element)
    indices = ", ".join(f"%i{d}: index" for d in range(len(low)))
    text = (
        f"tensor.pad {a.name} low{low} high{high} {{\n  ^bb0({indices}):\n"
        f"    tensor.yield {scalar} : {a.element}\n  }} : {a.type} to $T"
    )
    p.op(text, lambda x: np.pad(x, list(zip(low, high)), constant_values=value), a)


def concat(draw: st.DrawFn, p: Program, a: Value) -> None:
    b = draw(st.sampled_from(p.like(a)))
    dim = draw(st.integers(0, len(a.shape) - 1))
    text = f"tensor.concat dim({dim}) {a.name}, {b.name} : ({a.type}, {b.type}) -> $T"
    p.op(text, lambda x, y: np.concatenate([x, y], dim), a, b)


def constrain(draw: st.DrawFn, p: Program, a: Value) -> None:
    kinds = draw(st.sampled_from([(), ("sum", "max")])) if a.element != "i1" else ()
    layout = draw(layouts(p.mesh, len(a.shape), kinds=kinds))
    p.op(
        f'"dist.constrain"({a.name}) {{layout = #dist.layout<"{layout}">}} : ({a.type}) -> $T',
        lambda x: x,
        a,
    )


def convolution(draw: st.DrawFn, p: Program, a: Value) -> None:
    if len(a.shape) != 4 or a.element == "i1":
        return
    kh, kw = (draw(st.integers(1, min(2, n))) for n in a.shape[1:3])
    features, stride = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    weights = np.arange(kh * kw * a.shape[3] * features).reshape(kh, kw, a.shape[3], features) % 3
    type_ = tensor_type(weights.shape, a.element)
    w = p.helper(f"arith.constant dense<{dense(weights, a.element)}> : {type_}")
    oh, ow = ((n - k) // stride + 1 for n, k in zip(a.shape[1:3], (kh, kw)))
    init = p.filled((a.shape[0], oh, ow, features), 1, a.element)

    def convolved(x: Array) -> Array:
        total = 1
        for i in range(kh):
            for j in range(kw):
                part = x[:, i : i + stride * oh : stride, j : j + stride * ow : stride][:, :oh, :ow]
                total = total + np.einsum("nhwc,cf->nhwf", part, weights[i, j].astype(x.dtype))
        return np.asarray(total)

    text = (
        f"linalg.conv_2d_nhwc_hwcf {{strides = dense<{stride}> : vector<2xi64>}} "
        f"ins({a.name}, {w} : {a.type}, {type_}) outs({init} : $T) -> $T"
    )
    p.op(text, convolved, a, bound=2 * np.abs(a.value.astype("f8")).sum() + 1)


def pooling(draw: st.DrawFn, p: Program, a: Value) -> None:
    if len(a.shape) != 4 or a.element == "i1":
        return
    kh, kw = (draw(st.integers(1, min(2, n))) for n in a.shape[1:3])
    oh, ow = a.shape[1] - kh + 1, a.shape[2] - kw + 1
    init = p.filled((a.shape[0], oh, ow, a.shape[3]), -5, a.element)
    window = tensor_type((kh, kw), a.element)
    empty = p.helper(f"tensor.empty() : {window}")
    shifted = [(i, j) for i in range(kh) for j in range(kw)]
    text = (
        f"linalg.pooling_nhwc_max ins({a.name}, {empty} : {a.type}, {window}) "
        f"outs({init} : $T) -> $T"
    )
    p.op(
        text,
        lambda x: np.maximum(np.max([x[:, i : i + oh, j : j + ow] for i, j in shifted], 0), -5),
        a,
    )


def scalar_first(p: Program, a: Value) -> str:
    """The element of `a` at 0, .., 0, as a scalar; its name."""
    zero = p.helper("arith.constant 0 : index", "c")
    where = ", ".join([zero] * len(a.shape))
    return p.helper(f"tensor.extract {a.name}[{where}] : {a.type}", "e")


OPS = (
    elementwise, arith_on_tensors, compare, select, convert, absolute, divide, constant, transpose, broadcast,
    reduce, matmul, matmul_transposed, reshape, extract_slice, insert_slice, pad, concat, constrain, convolution,
    pooling,
)  # fmt: skip
__all__ = ["OPS", "arith", "dot_bound", "number", "scalar_first"]
