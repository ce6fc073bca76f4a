"""Random tensor programs: the same one as MLIR text and as NumPy, with layouts on what goes in and comes out."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from strategies import layouts

from meshweave.layout import Layout, Mesh

Evaluate = Callable[..., np.ndarray]
MLIR_TYPE = {"float32": "f32", "float64": "f64", "int32": "i32"}


@dataclass
class Value:
    """A tensor of the program: its name in the text, its shape, and its value for the inputs at hand."""

    name: str
    value: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def type(self) -> str:
        return tensor_type(self.value)


def tensor_type(value: np.ndarray) -> str:
    """The MLIR type of an array."""
    return f"tensor<{''.join(f'{n}x' for n in value.shape)}{MLIR_TYPE[value.dtype.name]}>"


@dataclass
class Program:
    """A program under construction: the text of its ops, and its inputs."""

    mesh: Mesh
    dtype: np.dtype
    lines: list[str] = field(default_factory=list)
    inputs: list[tuple[Value, Layout]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    results: list[tuple[Value, Layout]] = field(default_factory=list)

    @property
    def element(self) -> str:
        return MLIR_TYPE[self.dtype.name]

    @property
    def is_float(self) -> bool:
        return self.dtype.kind == "f"

    def name(self, base: str = "v") -> str:
        return f"%{base}{len(self.lines)}"

    def op(self, text: str, value: np.ndarray) -> Value:
        """Append `NAME = text`; the new value."""
        new = Value(self.name(), np.array(value, self.dtype, order="C"))
        self.lines.append(f"{new.name} = {text}")
        self.values.append(new)
        return new

    def helper(self, text: str, base: str = "h") -> str:
        """Append an op that is no value of the program; its name."""
        name = self.name(base)
        self.lines.append(f"{name} = {text}")
        return name

    def empty(self, shape: tuple[int, ...]) -> tuple[str, str]:
        type_ = tensor_type(np.empty(shape, self.dtype))
        return self.helper(f"tensor.empty() : {type_}"), type_

    def filled(self, shape: tuple[int, ...], number: str) -> tuple[str, str]:
        scalar = self.helper(f"arith.constant {number} : {self.element}", "c")
        empty, type_ = self.empty(shape)
        fill = f"linalg.fill ins({scalar} : {self.element}) outs({empty} : {type_}) -> {type_}"
        return self.helper(fill), type_

    def text(self) -> str:
        """The module."""
        arguments = ", ".join(
            f'{v.name}: {v.type} {{dist.layout = #dist.layout<"{layout}">}}'
            for v, layout in self.inputs
        )
        results = ", ".join(
            f'{v.type} {{dist.layout = #dist.layout<"{layout}">}}' for v, layout in self.results
        )
        body = "\n  ".join(self.lines)
        names = ", ".join(v.name for v, _ in self.results)
        types = ", ".join(v.type for v, _ in self.results)
        return (
            f'"dist.mesh"() {{sym_name = "mesh", axes = "{self.mesh}"}} : () -> ()\n'
            f"func.func public @main({arguments}) -> ({results}) {{\n  {body}\n  return {names} : {types}\n}}\n"
        )


def _elementwise(draw: st.DrawFn, p: Program, a: Value) -> None:
    same = [v for v in p.values if v.shape == a.shape]
    b = draw(st.sampled_from(same))
    names = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum}
    name = draw(st.sampled_from(sorted(names)))
    empty, type_ = p.empty(a.shape)
    p.op(
        f"linalg.{name} ins({a.name}, {b.name} : {type_}, {type_}) outs({empty} : {type_}) -> {type_}",
        names[name](a.value, b.value),
    )


def _arith(draw: st.DrawFn, p: Program, a: Value) -> None:
    same = [v for v in p.values if v.shape == a.shape]
    b = draw(st.sampled_from(same))
    p.op(f"arith.add{'f' if p.is_float else 'i'} {a.name}, {b.name} : {a.type}", a.value + b.value)


def _transpose(draw: st.DrawFn, p: Program, a: Value) -> None:
    order = draw(st.permutations(range(len(a.shape))))
    value = np.transpose(a.value, order)
    empty, type_ = p.empty(value.shape)
    p.op(
        f"linalg.transpose ins({a.name} : {a.type}) outs({empty} : {type_}) permutation = {list(order)}",
        value,
    )


def _reduce(draw: st.DrawFn, p: Program, a: Value) -> None:
    dim = draw(st.integers(0, len(a.shape) - 1))
    kind = draw(st.sampled_from(["sum", "max", "min"]))
    suffix = "f" if p.is_float else "i"
    number = {"sum": "0.0" if p.is_float else "0", "max": "-1000.0" if p.is_float else "-1000"}
    number["min"] = "1000.0" if p.is_float else "1000"
    op = {"sum": f"add{suffix}", "max": "maximumf" if p.is_float else "maxsi"}
    op["min"] = "minimumf" if p.is_float else "minsi"
    start = {"sum": 0, "max": -1000, "min": 1000}[kind]
    fold = {"sum": np.add, "max": np.maximum, "min": np.minimum}[kind]
    value = fold.reduce(a.value, axis=dim, initial=np.asarray(start, p.dtype))
    init, type_ = p.filled(value.shape, number[kind])
    p.op(
        f"linalg.reduce {{ arith.{op[kind]} }} ins({a.name} : {a.type}) outs({init} : {type_}) dimensions = [{dim}]",
        value,
    )


def _matmul(draw: st.DrawFn, p: Program, a: Value) -> None:
    others = [
        v for v in p.values if len(v.shape) == 2 and len(a.shape) == 2 and v.shape[0] == a.shape[1]
    ]
    if not others:
        return
    b = draw(st.sampled_from(others))
    start = draw(st.sampled_from([0, 1]))  # an accumulator that is not neutral must be counted once
    value = a.value @ b.value + np.asarray(start, p.dtype)
    init, type_ = p.filled(value.shape, f"{start}.0" if p.is_float else str(start))
    p.op(
        f"linalg.matmul ins({a.name}, {b.name} : {a.type}, {b.type}) outs({init} : {type_}) -> {type_}",
        value,
    )


def _broadcast(draw: st.DrawFn, p: Program, a: Value) -> None:
    dim, extent = draw(st.integers(0, len(a.shape))), draw(st.sampled_from([2, 3, 4]))
    value = np.broadcast_to(np.expand_dims(a.value, dim), (*a.shape[:dim], extent, *a.shape[dim:]))
    empty, type_ = p.empty(value.shape)
    p.op(
        f"linalg.broadcast ins({a.name} : {a.type}) outs({empty} : {type_}) dimensions = [{dim}]",
        value,
    )


def _merge(draw: st.DrawFn, p: Program, a: Value) -> None:
    if len(a.shape) < 2:
        return
    dim = draw(st.integers(0, len(a.shape) - 2))
    shape = (*a.shape[:dim], a.shape[dim] * a.shape[dim + 1], *a.shape[dim + 2 :])
    value = a.value.reshape(shape)
    groups = (
        [[d] for d in range(dim)] + [[dim, dim + 1]] + [[d] for d in range(dim + 2, len(a.shape))]
    )
    type_ = tensor_type(value)
    p.op(f"tensor.collapse_shape {a.name} {groups} : {a.type} into {type_}", value)


def _split(draw: st.DrawFn, p: Program, a: Value) -> None:
    dim = draw(st.integers(0, len(a.shape) - 1))
    parts = [k for k in (1, 2, 3, 4, 6) if a.shape[dim] % k == 0]
    k = draw(st.sampled_from(parts))
    shape = (*a.shape[:dim], k, a.shape[dim] // k, *a.shape[dim + 1 :])
    value = a.value.reshape(shape)
    groups = (
        [[d] for d in range(dim)]
        + [[dim, dim + 1]]
        + [[d + 1] for d in range(dim + 1, len(a.shape))]
    )
    p.op(
        f"tensor.expand_shape {a.name} {groups} output_shape {list(shape)} : {a.type} into {tensor_type(value)}",
        value,
    )


def _slice(draw: st.DrawFn, p: Program, a: Value) -> None:
    dim = draw(st.integers(0, len(a.shape) - 1))
    first = draw(st.integers(0, a.shape[dim] - 1))
    size = draw(st.integers(1, a.shape[dim] - first))
    box = [slice(None)] * len(a.shape)
    box[dim] = slice(first, first + size)
    value = a.value[tuple(box)]
    offsets, sizes = [0] * len(a.shape), list(value.shape)
    offsets[dim] = first
    p.op(
        f"tensor.extract_slice {a.name}{offsets} {sizes} {[1] * len(a.shape)} : {a.type} to {tensor_type(value)}",
        value,
    )


def _concat(draw: st.DrawFn, p: Program, a: Value) -> None:
    b = draw(st.sampled_from([v for v in p.values if v.shape == a.shape]))
    dim = draw(st.integers(0, len(a.shape) - 1))
    value = np.concatenate([a.value, b.value], dim)
    p.op(
        f"tensor.concat dim({dim}) {a.name}, {b.name} : ({a.type}, {b.type}) -> {tensor_type(value)}",
        value,
    )


def _constrain(draw: st.DrawFn, p: Program, a: Value) -> None:
    layout = draw(layouts(p.mesh, len(a.shape), kinds=()))
    p.op(
        f'"dist.constrain"({a.name}) {{layout = #dist.layout<"{layout}">}} : ({a.type}) -> {a.type}',
        a.value,
    )


def _iota(draw: st.DrawFn, p: Program, a: Value) -> None:
    """a + its index along a dim, by linalg.index in the body of a generic."""
    dim = draw(st.integers(0, len(a.shape) - 1))
    index = np.arange(a.shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(a.shape))])
    empty, type_ = p.empty(a.shape)
    dims = ", ".join(f"d{d}" for d in range(len(a.shape)))
    identity = f"affine_map<({dims}) -> ({dims})>"
    kinds = ", ".join(['"parallel"'] * len(a.shape))
    cast = f"arith.sitofp %w : i32 to {p.element}" if p.is_float else "arith.addi %w, %w : i32"
    value = a.value + (index if p.is_float else 2 * index)
    p.op(
        f"linalg.generic {{indexing_maps = [{identity}, {identity}], iterator_types = [{kinds}]}} "
        f"ins({a.name} : {a.type}) outs({empty} : {type_}) {{\n"
        f"  ^bb0(%x: {p.element}, %o: {p.element}):\n    %i = linalg.index {dim} : index\n"
        f"    %w = arith.index_cast %i : index to i32\n    %n = {cast}\n"
        f"    %s = arith.add{'f' if p.is_float else 'i'} %x, %n : {p.element}\n    linalg.yield %s : {p.element}\n"
        f"  }} -> {type_}",
        value,
    )


STEPS = (
    _elementwise, _arith, _transpose, _reduce, _matmul, _broadcast, _merge, _split, _slice, _concat,
    _constrain, _iota,
)  # fmt: skip


@st.composite
def programs(draw: st.DrawFn, mesh: Mesh, max_steps: int = 6) -> Program:
    """A program of a few random ops over one or two inputs, everything laid out at random on `mesh`.

    Values are small whole numbers, so that sums in any order are exact.
    """
    dtype = np.dtype(draw(st.sampled_from(["float32", "float64", "int32"])))
    p = Program(mesh, dtype)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    for i in range(draw(st.integers(1, 3))):
        shape = tuple(
            draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 7, 8]), min_size=1, max_size=3))
        )
        value = Value(f"%arg{i}", rng.integers(-3, 4, shape).astype(dtype))
        p.inputs.append((value, draw(layouts(mesh, len(shape), kinds=()))))
        p.values.append(value)
    for _ in range(draw(st.integers(1, max_steps))):
        small = [
            v
            for v in p.values
            if len(v.shape) <= 4 and v.value.size <= 4096 and abs(v.value).max() < 1e4
        ]
        if (candidates := [v for v in small if v.shape]) != []:
            draw(st.sampled_from(STEPS))(draw, p, draw(st.sampled_from(candidates)))
    last = p.values[-1]
    some = draw(st.sampled_from(p.values))
    for value in (last, some):
        p.results.append((value, draw(layouts(mesh, len(value.shape), kinds=()))))
    return p
