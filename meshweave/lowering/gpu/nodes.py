"""Compute iterations of a loop nest in a device kernel.

f16 and bf16 are computed in f32 and rounded after each op, as on the cpu. An op is contracted only
where the nest's own marks allow it, so that the bits do not depend on the kernel around it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meshweave.ir.expressions import CONTRACT, EXACT, Apply, Index
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.gpu.quotients import quotient
from meshweave.lowering.gpu.writer import DeviceWriter, Guard
from meshweave.lowering.nests.bind import LoopNest, Store
from meshweave.lowering.nests.evaluate import Frame, Iteration, Place
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value

_FAR = (1 << 31) - (1 << 12)  # less what a loop's last step may go beyond
SMALL = ("f16", "bf16")  # computed in f32
# Ops that take or give f16 and bf16 as they are.
_AS_THEY_ARE = ("arith.select", "arith.bitcast", "arith.constant")
# Ops that a device has for bf16 itself.
_NARROW = ("arith.addf", "arith.subf", "arith.mulf")
_WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


@dataclass(frozen=True)
class DeviceFrame(Frame):
    """Hold what all iterations of a device kernel share. alignments: of the pointers, in bytes."""

    writer: DeviceWriter
    alignments: tuple[int, ...]
    # What was rounded to bf16, by the name of the result: where it is computed with, it is rounded within f32.
    _rounded: dict[str, Value] = field(default_factory=dict, compare=False)

    def constant(self, number: int) -> Value:
        """Return a number as an index."""
        return self.writer.constant(number, self.index)

    def as_index(self, value: Value) -> Value:
        """Return an i32 that is not negative as an index."""
        return self.writer.wide(value) if self.index == "i64" else value

    def digits(self, number: Value, sizes: Sequence[int]) -> list[Value]:
        """Return the indices of loops over `sizes` in iteration `number` of them all, the last fastest."""
        found: list[Value] = []
        for k, size in enumerate(reversed(sizes)):
            last = k == len(sizes) - 1
            found.insert(0, number if last else number % size)
            number = number if last else number // max(size, 1)
        return found

    def bytes_to(
        self, number: Value, sizes: Sequence[int], strides: Sequence[int], nbytes: int
    ) -> Value:
        """Return the bytes to iteration `number` of loops over elements of `nbytes`, an i64."""
        total = self.writer.constant(0, "i64")
        for digit, stride in zip(self.digits(number, sizes), strides):
            total = self.writer.wide(digit) * (stride * nbytes) + total
        return total

    def op(self, name: str, settings: str, operands: Sequence[Value], type_: str) -> Value:
        """Write a scalar op; f16 and bf16 go through f32."""
        if name == "arith.extf" or name == "arith.truncf":
            return self.resized(operands[0], type_)
        small = type_ in SMALL or any(v.type in SMALL for v in operands)
        if small and name not in _AS_THEY_ARE:
            operands = [self.widened(v) for v in operands]
            result = "f32" if type_ in SMALL else type_
            if name == "arith.divf" and type_ == "bf16":
                return self._narrowed(quotient(self.writer, *operands), type_)
            found = self.writer.op(name, settings, operands, result)
            return (self.resized if name in _NARROW else self._narrowed)(found, type_)
        return self.writer.op(name, settings, operands, type_)

    def widened(self, value: Value) -> Value:
        """Return an f16 or bf16 as f32, anything else as it is."""
        source = self._rounded.get(value.name)
        if source is not None:
            # The upper half of a word, whose lower half is 0, is the f32 itself: one instruction rounds.
            zero = self.writer.constant(0.0, "f32")
            pair = self.writer.vector([zero, source])
            pair = self.writer.convert("arith.truncf", pair, "vector<2xbf16>")
            return self.writer.convert("llvm.bitcast", pair, "f32")
        return self.resized(value, "f32") if value.type in SMALL else value

    def resized(self, value: Value, type_: str) -> Value:
        """Return a float as another float type; between f64 and the small ones by way of f32."""
        if value.type == type_:
            return value
        if "f32" not in (value.type, type_):
            value = self.resized(value, "f32")
        grows = _WIDTH[type_] > _WIDTH[value.type]
        return self.writer.convert("arith.extf" if grows else "arith.truncf", value, type_)

    def _narrowed(self, value: Value, type_: str) -> Value:
        """Return a float as another float type; what is rounded to bf16 may be computed with at once."""
        made = self.resized(value, type_)
        if type_ == "bf16" and value.type == "f32":
            self._rounded[made.name] = value
        return made


class DeviceIteration(Iteration):
    """Compute one iteration of a nest in a device kernel."""

    frame: DeviceFrame

    def __init__(
        self,
        frame: DeviceFrame,
        nest: LoopNest,
        place: Place,
        values: Mapping[int, Value] | None = None,
        guard: Guard = None,
    ) -> None:
        """Begin an iteration.

        guard: an i1 that says whether the iteration exists; where it does not, memory is left alone
        and loads give 0.
        """
        super().__init__(frame, nest, place, values)
        self.guard = guard

    def start(self, store: Store) -> Value:
        """Return what a result begins with: its start value, or what its place holds."""
        return self.load(store) if store.initial is None else self.compute([store.initial])[0]

    def apply(self, node: Apply, operands: Sequence[Value]) -> Value:
        """Write a scalar op."""
        return self.frame.op(node.name, settings_text(node), operands, str(node.type))

    def read(self, address: Value, type_: str) -> Value:
        """Load what lies at an address, if the iteration exists."""
        return guarded_load(self.frame.writer, self.guard, address, type_)


def guarded_load(
    writer: DeviceWriter, guard: Guard, address: Value, type_: str, align: int = 0
) -> Value:
    """Load what lies at an address; 0 where the guard does not hold."""
    (found,) = writer.guarded(guard, lambda: [writer.load(address, type_, align)], [type_])
    return found


def settings_text(node: Apply) -> str:
    """Return the attributes of an op.

    Sums over a loop that are marked add products without rounding them first; nothing else may be
    changed.
    """
    fuses = not node.is_exact and str(node.type) in ("f32", "f64")
    parts = []
    for key, attr in node.attributes:
        if key == "fastmath":
            flag = CONTRACT if fuses and CONTRACT in str(attr) else "none"
            parts.append(f"fastmath = #arith.fastmath<{flag}>")
        elif key != EXACT:
            parts.append(f"{key} = {attr}")
    return ", ".join(parts)


def frame_of(writer: DeviceWriter, unit: KernelUnit, index: str = "") -> DeviceFrame:
    """Return the frame of a kernel that has the parameters of facts.parameters_of(unit).

    index: type of indices; "": the smallest that does.
    """
    names = [f"p{k}" for k in range(len(unit.pointers.places))]
    scalars = []
    for k, scalar in enumerate(unit.pointers.scalars):
        value, kind = writer[f"s{k}"], str(scalar.type)
        if kind == "i1":
            value = writer.convert("arith.trunci", value, "i1")
        elif kind == "index":
            value = writer.convert("arith.index_cast", value, "index")
        scalars.append(value)
    alignments = tuple(writer.parameter(name).align for name in names)
    return DeviceFrame(
        writer,
        tuple(writer[n] for n in names),
        tuple(scalars),
        index or index_type(unit),
        alignments,
    )


def index_type(unit: KernelUnit) -> str:
    """Return i64 where an offset in bytes, or the number of an iteration, does not fit in an i32."""
    return "i64" if any(_reach(nest) > _FAR for nest in unit.nests) else "i32"


def _reach(nest: LoopNest) -> int:
    """Bound the indices and offsets in bytes of a nest."""
    spans = [math.prod(nest.sizes)]
    for each in nest.strided:
        spans.append(element_bytes(each.type) * _span(nest, each.access.strides))
    for node in nest.code:
        if isinstance(node, Index):
            spans.append(abs(node.form.const) + _span(nest, node.form.strides))
    return max(spans)


def _span(nest: LoopNest, strides: tuple[int, ...]) -> int:
    return sum(abs(s) * n for s, n in zip(strides, nest.sizes))
