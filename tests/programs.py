"""Random tensor programs: the same one as MLIR text and as NumPy, with layouts on what goes in and comes out.

This file is the machinery; the ops that programs are made of are in program_ops.py and program_regions.py.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from strategies import any_layouts, layouts

from meshweave.layout import Layout, Mesh

Array = np.ndarray
Evaluate = Callable[..., Any]

DTYPES = {
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "f16": np.dtype("f2"),
    "bf16": np.dtype("f4"),
    "i32": np.dtype("i4"),
    "i64": np.dtype("i8"),
    "i1": np.dtype("?"),
    "index": np.dtype("i8"),
}
EXACT = {
    "f32": 2.0**24,
    "f64": 2.0**50,
    "f16": 1024.0,
    "bf16": 128.0,
    "i32": 2.0**30,
    "i64": 2.0**50,
}
"""Whole numbers up to here stay exact, whatever the order in which they are added."""
SIZES = (1, 1, 2, 3, 4, 5, 6, 7, 8)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the program: its name in the text, and its value for the inputs at hand."""

    name: str
    element: str
    value: Array
    made: "tuple[Evaluate, tuple[Value, ...]] | None" = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def type(self) -> str:
        return tensor_type(self.shape, self.element)

    @property
    def is_float(self) -> bool:
        return "f" in self.element


def tensor_type(shape: Sequence[int], element: str) -> str:
    """The MLIR type."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def number(value: Any, element: str) -> str:
    """A value of Python as a literal."""
    if element == "i1":
        return "true" if value else "false"
    return repr(float(value)) if "f" in element else str(int(value))


def dense(value: Array, element: str) -> str:
    """An array as the body of a `dense<..>` literal."""
    if value.ndim == 0:
        return number(value[()], element)
    return "[" + ", ".join(dense(row, element) for row in value) + "]"


@dataclass(frozen=True)
class Port:
    """An argument or result: its layout (None: none is given), and how far propagation may change it."""

    layout: Layout | None
    more: str = ""

    @property
    def text(self) -> str:
        if self.layout is None:
            return ""
        return f' {{dist.layout = #dist.layout<"{self.layout}">{self.more}}}'


@dataclass
class Program:
    """A program under construction: the text of its ops, and its inputs."""

    mesh: Mesh
    any_layout: bool = False
    lines: list[str] = field(default_factory=list)
    inputs: list[tuple[Value, Port]] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    results: list[tuple[Value, Port]] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    count: int = 0
    depth: int = 0

    def name(self, base: str = "v") -> str:
        self.count += 1
        return f"%{base}{self.count}"

    def op(
        self, text: str, evaluate: Evaluate, *operands: Value, element: str = "", bound: Any = None
    ) -> Value | None:
        """Append `NAME = text`; the new value, None (and nothing appended) where numbers get too large to be exact.

        In `text`, $T is the type of the result and $E an empty tensor of that type. bound: the largest number that
        comes up on the way, where it is not in the result.
        """
        element = element or operands[0].element
        with np.errstate(all="ignore"):
            value = np.array(evaluate(*[o.value for o in operands]), DTYPES[element], order="C")
        largest = max(np.abs(value.astype("f8")).max(initial=0.0), 0.0 if bound is None else bound)
        if value.size > 4096 or not largest <= EXACT.get(element, np.inf):
            return None
        type_ = tensor_type(value.shape, element)
        if "$E" in text:
            text = text.replace("$E", self.helper(f"tensor.empty() : {type_}"))
        new = Value(self.name(), element, value, (evaluate, operands))
        self.lines.append(f"{new.name} = {text.replace('$T', type_)}")
        self.values.append(new)
        return new

    def helper(self, text: str, base: str = "h") -> str:
        """Append an op that is no value of the program; its name."""
        name = self.name(base)
        self.lines.append(f"{name} = {text}")
        return name

    def constant(self, value: Any, element: str) -> str:
        """A scalar constant; its name."""
        if element == "i1":
            return self.helper(f"arith.constant {number(value, element)}", "c")
        return self.helper(f"arith.constant {number(value, element)} : {element}", "c")

    def filled(self, shape: Sequence[int], value: Any, element: str) -> str:
        """A tensor full of a number; its name."""
        scalar = self.constant(value, element)
        type_ = tensor_type(shape, element)
        empty = self.helper(f"tensor.empty() : {type_}")
        return self.helper(
            f"linalg.fill ins({scalar} : {element}) outs({empty} : {type_}) -> {type_}"
        )

    def like(self, a: Value) -> list[Value]:
        """The values of the type of `a`."""
        return [v for v in self.values if v.type == a.type]

    def text(self) -> str:
        """The module."""
        arguments = ", ".join(f"{v.name}: {v.type}{port.text}" for v, port in self.inputs)
        results = ", ".join(f"{v.type}{port.text}" for v, port in self.results)
        body = "\n  ".join(self.lines)
        names = ", ".join(v.name for v, _ in self.results)
        types = ", ".join(v.type for v, _ in self.results)
        return (
            f'"dist.mesh"() {{sym_name = "mesh", axes = "{self.mesh}"}} : () -> ()\n'
            f"func.func public @main({arguments}) -> ({results}) {{\n  {body}\n  return {names} : {types}\n}}\n"
            + "".join(self.functions)
        )


def evaluate(wanted: Value, known: dict[Value, Array]) -> Array:
    """The value of `wanted` for other values of what it is made of; fills `known`."""
    if wanted not in known:
        if wanted.made is None:
            return wanted.value
        fn, operands = wanted.made
        with np.errstate(all="ignore"):
            result = np.array(fn(*[evaluate(o, known) for o in operands]), DTYPES[wanted.element])
        known[wanted] = result
    return known[wanted]


def exact(values: Sequence[Array], element: str) -> bool:
    """Are these all small enough?"""
    return all(
        np.abs(v.astype("f8")).max(initial=0.0) <= EXACT.get(element, np.inf) for v in values
    )


KINDS = {"i1": ("max", "min")}


def ports(draw: st.DrawFn, p: Program, value: Value) -> Port:
    """A layout for an argument or result, or none, with or without leave to change it."""
    mesh = p.mesh
    what = draw(st.sampled_from(["closed", "closed", "partial", "open", "none"]))
    if what == "none":
        return Port(None)
    ndim = len(value.shape)
    kinds = KINDS.get(value.element, ("sum", "max", "min")) if what == "partial" else ()
    if p.any_layout and what != "open":
        return Port(draw(any_layouts(mesh, value.shape, kinds)))
    layout = draw(layouts(mesh, ndim, kinds=kinds))
    if what != "open" or not ndim:
        return Port(layout)
    dims = draw(st.lists(st.integers(0, ndim - 1), min_size=1, unique=True))
    more = f", dist.open = array<i64: {', '.join(map(str, dims))}>"
    if draw(st.booleans()):
        axes = [a for a in mesh.names if a not in layout.used_axes and draw(st.booleans())]
        more += ", dist.replicated = [" + ", ".join(f'"{a}"' for a in axes) + "]"
    if draw(st.booleans()):
        numbers = [str(draw(st.integers(0, 2))) for _ in range(ndim)]
        more += f", dist.priorities = array<i64: {', '.join(numbers)}>"
    return Port(layout, more)


def candidates(p: Program) -> list[Value]:
    """The values that a further op may read first."""
    return [v for v in p.values if v.shape and len(v.shape) <= 4 and v.element != "index"]


def extend(draw: st.DrawFn, p: Program, steps: Sequence[Callable[..., None]], most: int) -> None:
    """Append some random ops of `steps`."""
    for _ in range(draw(st.integers((most + 1) // 2, most))):
        if found := candidates(p):
            draw(st.sampled_from(steps))(draw, p, draw(st.sampled_from(found)))


@st.composite
def programs(
    draw: st.DrawFn, mesh: Mesh, max_steps: int = 6, only: Any = None, any_layout: bool = False
) -> Program:
    """A program of a few random ops over one to three inputs, everything laid out at random on `mesh`.

    Values are small whole numbers, so that sums in any order are exact. only: the ops to draw from. any_layout: what
    goes in and comes out is in all that the notation can say, not only in blocks, and may be empty.
    """
    from program_regions import STEPS

    p = Program(mesh, any_layout)
    sizes = (*SIZES, 0) if any_layout else SIZES
    main = draw(st.sampled_from(["f32", "f32", "f64", "i32", "f16", "bf16", "i64"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shapes: list[tuple[int, ...]] = []
    for i in range(draw(st.integers(1, 3))):
        element = draw(st.sampled_from([main, main, main, "i32", "i1"]))
        if shapes and draw(st.booleans()):  # so that there are pairs to add
            shape, element = shapes[-1], main
        else:
            shape = tuple(draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3)))
        shapes.append(shape)
        numbers = rng.integers(-2, 3, shape)
        value = Value(f"%arg{i}", element, np.array(numbers, DTYPES[element]))
        p.inputs.append((value, ports(draw, p, value)))
        p.values.append(value)
    extend(draw, p, only or STEPS, max_steps)
    for value in (p.values[-1], draw(st.sampled_from(p.values))):
        p.results.append((value, ports(draw, p, value)))
    return p
