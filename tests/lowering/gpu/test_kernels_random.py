"""Random linalg programs through device kernels: against NumPy in double precision, and to the last
bit against the cpu's code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering.harness import run_text as run_on_cpu

pytest.importorskip("llvmlite")

from depth import examples
from lowering.gpu import maps_and_rows as programs
from lowering.gpu.device_runs import NUMPY, DeviceRun
from lowering.gpu.maps_and_rows import ROUNDING, doubles, generic, stored, tensor

from meshweave.device import CHIPS
from meshweave.lowering.gpu.kernel import Target

SIZES = (1, 2, 3, 4, 5, 8, 12, 16, 24, 31, 33, 40)
DTYPES = ("f32", "f32", "f64", "f16", "bf16", "i32", "i64", "i8")
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
FAMILIES = ("transpose", "rows", "columns", "elementwise")


@dataclass(frozen=True)
class Operand:
    """An input that has these loops as dims, as a part of a larger tensor that begins at `start` of
    its last dim, with `step`.
    """

    dims: tuple[int, ...]
    start: int
    step: int


@dataclass(frozen=True)
class Program:
    """A map over `shape` of operands, its result's dims in `order`; then maybe a reduction of it
    over `over`, and maybe a map of both.
    """

    shape: tuple[int, ...]
    dtype: str
    operands: tuple[Operand, ...]
    ops: tuple[tuple[str, int, int], ...]
    order: tuple[int, ...]
    over: tuple[int, ...]
    combine: str
    joined: bool

    @property
    def floating(self) -> bool:
        """Whether elements are floats."""
        return self.dtype in programs.FLOATS

    def op(self, name: str) -> str:
        """The op of that name for the element type."""
        if self.floating:
            return f"arith.{name}f"
        return "arith." + {"maximum": "maxsi", "minimum": "minsi"}.get(name, name + "i")

    def whole(self, k: int) -> list[int]:
        """The shape of the tensor that operand k is a part of."""
        operand = self.operands[k]
        sizes = [self.shape[d] for d in operand.dims]
        if sizes:
            sizes[-1] = sizes[-1] * operand.step + operand.start
        return sizes

    def text(self) -> str:
        """As MLIR."""
        dtype, lines, operands = self.dtype, [], []
        for k, operand in enumerate(self.operands):
            sizes, whole = [self.shape[d] for d in operand.dims], self.whole(k)
            name = f"%a{k}"
            if whole != sizes:
                ones = ["1"] * (len(sizes) - 1)
                starts = ", ".join(["0"] * (len(sizes) - 1) + [str(operand.start)])
                lines.append(
                    f"%p{k} = tensor.extract_slice %a{k}[{starts}] [{', '.join(map(str, sizes))}] "
                    f"[{', '.join([*ones, str(operand.step)])}] : {tensor(whole, dtype)} to {tensor(sizes, dtype)}"
                )
                name = f"%p{k}"
            operands.append((name, operand.dims, dtype))
        first = [self.shape[d] for d in self.order]
        lines.append(f"%e = tensor.empty() : {tensor(first, dtype)}")
        body = [
            f"%t{k} = {self.op(n)} {self.value(a)}, {self.value(b)} : {dtype}"
            for k, (n, a, b) in enumerate(self.ops)
        ]
        body.append(
            f"%r = {self.op('add')} {self.value(len(self.operands) + len(self.ops) - 1)}, %x0 : {dtype}"
        )
        lines.append(generic("%m", operands, ("%e", self.order, dtype), self.shape, [], body))
        result, left = "%m", first
        if self.over:
            kept = [d for d in self.order if d not in self.over]
            left = [self.shape[d] for d in kept]
            lines.append(programs.filled("f", left, dtype, 1))
            lines.append(
                generic("%s", [("%m", self.order, dtype)], ("%f", kept, dtype), self.shape, self.over,
                        [f"%r = {self.op(self.combine)} %o, %x0 : {dtype}"])
            )  # fmt: skip
            result = "%s"
            if self.joined:
                lines.append(
                    generic("%j", [("%m", self.order, dtype), ("%s", kept, dtype)], ("%e", self.order, dtype),
                            self.shape, [], [f"%r = {self.op('sub')} %x0, %x1 : {dtype}"])
                )  # fmt: skip
                result, left = "%j", first
        types = [tensor(self.whole(k), dtype) for k in range(len(self.operands))]
        return programs.function(types, lines, result, tensor(left, dtype))

    def value(self, number: int) -> str:
        """The name of an operand or of a result of the body."""
        count = len(self.operands)
        return f"%x{number}" if number < count else f"%t{number - count}"

    def expected(self, inputs: list[np.ndarray]) -> np.ndarray:
        """By NumPy: floats in double precision."""
        values = []
        for operand, x in zip(self.operands, inputs):
            part = doubles(x, self.dtype)
            if operand.dims:
                part = part[..., operand.start :: operand.step]
            order = sorted(range(len(operand.dims)), key=lambda k: operand.dims[k])
            full = np.ones(len(self.shape), int)
            full[[operand.dims[k] for k in order]] = [part.shape[k] for k in order]
            values.append(np.broadcast_to(part.transpose(order).reshape(full), self.shape))
        for name, a, b in self.ops:
            values.append(BINARY[name](values[a], values[b]))
        mapped = values[-1] + values[0]
        result = mapped
        if self.over:
            start = np.ones((), mapped.dtype)
            total = BINARY[self.combine].reduce(
                mapped, axis=self.over, keepdims=True, dtype=mapped.dtype
            )
            total = BINARY[self.combine](start, total)
            if not self.joined:
                kept = [d for d in self.order if d not in self.over]
                return total.reshape([self.shape[d] for d in sorted(kept)]).transpose(
                    np.argsort(np.argsort(kept))
                )
            result = mapped - total
        return result.transpose(self.order)


@st.composite
def any_program(draw) -> Program:
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.lists(st.sampled_from(SIZES), min_size=ndim, max_size=ndim)))
    dtype = draw(st.sampled_from(DTYPES))
    every = list(range(ndim))
    operands = []
    for k in range(draw(st.integers(1, 3))):
        dims = draw(st.permutations(every))
        if k:
            dims = dims[: draw(st.integers(0, ndim))]
        operands.append(
            Operand(
                tuple(dims),
                draw(st.sampled_from((0, 0, 1, 4))),
                draw(st.sampled_from((1, 1, 1, 2))),
            )
        )
    ops = []
    for k in range(draw(st.integers(1, 4))):
        earlier = st.integers(0, len(operands) + k - 1)
        names = sorted(BINARY) if k < 2 else ["add", "maximum", "minimum", "sub"]
        ops.append((draw(st.sampled_from(names)), draw(earlier), draw(earlier)))
    over = draw(st.sets(st.sampled_from(every), max_size=ndim))
    combine = draw(st.sampled_from(["add", "maximum", "minimum"]))
    order = tuple(draw(st.permutations(every)))
    return Program(
        shape,
        dtype,
        tuple(operands),
        tuple(ops),
        order,
        tuple(sorted(over)),
        combine,
        draw(st.booleans()),
    )


def inputs_of(program: Program) -> list[np.ndarray]:
    rng = np.random.default_rng(len(program.ops))
    made = []
    for k in range(len(program.operands)):
        x = rng.standard_normal(program.whole(k)) * 2
        made.append(
            stored(x, program.dtype) if program.floating else (x * 3).astype(NUMPY[program.dtype])
        )
    return made


def check(program: Program, target: Target) -> None:
    text, inputs = program.text(), inputs_of(program)
    made = DeviceRun(text, target, assemble=False)
    (found,) = made.run(*inputs)
    wanted = program.expected(inputs)
    if not program.floating:
        np.testing.assert_array_equal(found, wanted.astype(found.dtype))
        return
    if program.dtype in ("f32", "f64") and not program.over:
        np.testing.assert_array_equal(found, run_on_cpu(text, *inputs)[0])
    large = 1 + max(np.abs(doubles(x, program.dtype)).max(initial=0) for x in inputs) ** 4
    terms = np.prod([program.shape[d] for d in program.over]) if program.combine == "add" else 1
    bound = 8 * ROUNDING[program.dtype] * (large + np.abs(wanted).max(initial=0) + terms)
    assert np.abs(doubles(found, program.dtype) - wanted).max(initial=0) <= bound


@settings(max_examples=examples(70))
@given(any_program(), st.sampled_from([*CHIPS]))
def test_any_program_by_the_kernels_that_are_chosen(program, chip):
    check(program, Target(chip))


@settings(max_examples=examples(30))
@given(any_program(), st.sets(st.sampled_from(FAMILIES), min_size=1))
def test_any_program_without_some_families(program, disabled):
    check(program, Target(disabled=frozenset(disabled)))
