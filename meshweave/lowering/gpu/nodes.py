"""What a nest computes in one iteration of its loops, written as ops of a device kernel.

f16 and bf16 are computed in f32 and rounded after each op, as on the cpu. An op is contracted only
where the nest's own marks allow it, so that the bits do not depend on the kernel around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshweave.lowering.bind import Access, Nest, Store
from meshweave.lowering.gpu.builder import Builder, Value
from meshweave.lowering.kernels import Node
from meshweave.lowering.payload import CONTRACT, EXACT
from meshweave.lowering.rows import Unit
from meshweave.lowering.steps import element_bytes

SMALL = ("f16", "bf16")  # computed in f32
# Ops that take or give f16 and bf16 as they are.
_AS_THEY_ARE = ("arith.select", "arith.bitcast", "arith.constant")
_STORED = {"i1": "i8", "index": "i64"}  # how elements lie in memory, where not as themselves


@dataclass(frozen=True)
class Frame:
    """What all iterations of a kernel share. pointers, scalars: of the unit; index: type of loop
    indices and offsets, "i32" or "i64"; alignments: of the pointers, in bytes.
    """

    builder: Builder
    pointers: tuple[Value, ...]
    scalars: tuple[Value, ...]
    index: str
    alignments: tuple[int, ...]

    def constant(self, number: int) -> Value:
        """A number as an index."""
        return self.builder.constant(number, self.index)

    def linear(self, const: int, strides: Sequence[int], index: Sequence[Value | None]) -> Value:
        """const + sum of stride * index; indices whose stride is 0 may be missing."""
        total: Value | None = None
        for stride, part in zip(strides, index):
            if not stride:
                continue
            assert part is not None
            if stride != 1:
                part = self._exact("arith.muli", part, self.constant(stride))
            total = part if total is None else self._exact("arith.addi", total, part)
        if total is None:
            return self.constant(const)
        return self._exact("arith.addi", total, self.constant(const)) if const else total

    def _exact(self, op: str, left: Value, right: Value) -> Value:
        """Index arithmetic that does not overflow."""
        return self.builder.let(
            f"{op} {left.name}, {right.name} overflow<nsw> : {self.index}", self.index
        )

    def digits(self, number: Value, sizes: Sequence[int]) -> list[Value]:
        """The indices of loops over `sizes` in iteration `number` of them all, the last fastest."""
        found: list[Value] = []
        for k, size in enumerate(reversed(sizes)):
            last = k == len(sizes) - 1
            found.insert(0, number if last else number % size)
            number = number if last else number // max(size, 1)
        return found

    def address(self, access: Access, type_: str, index: Sequence[Value | None]) -> Value:
        """Of the element that `access` means there."""
        pointer = self.pointers[access.pointer]
        if not access.const and not any(access.strides):
            return pointer
        place = self.linear(access.const, access.strides, index)
        return self.builder.offset(pointer, place, stored(type_))

    def loaded(self, value: Value, type_: str) -> Value:
        """What an element as it lies in memory stands for."""
        if type_ == "i1":
            return self.builder.convert("arith.trunci", value, "i1")
        return (
            self.builder.convert("arith.index_cast", value, "index") if type_ == "index" else value
        )

    def in_memory(self, value: Value) -> Value:
        """The value as it lies in memory."""
        if value.type == "i1":
            return self.builder.convert("arith.extui", value, "i8")
        if value.type == "index":
            return self.builder.convert("arith.index_cast", value, "i64")
        return value

    def op(self, name: str, settings: str, operands: Sequence[Value], type_: str) -> Value:
        """A scalar op; f16 and bf16 go through f32."""
        if name == "arith.extf" or name == "arith.truncf":
            return self.resized(operands[0], type_)
        small = type_ in SMALL or any(v.type in SMALL for v in operands)
        if small and name not in _AS_THEY_ARE:
            operands = [self.widened(v) for v in operands]
            result = "f32" if type_ in SMALL else type_
            return self.resized(self._op(name, settings, operands, result), type_)
        return self._op(name, settings, operands, type_)

    def _op(self, name: str, settings: str, operands: Sequence[Value], type_: str) -> Value:
        types = ", ".join(v.type for v in operands)
        names = ", ".join(v.name for v in operands)
        return self.builder.let(f'"{name}"({names}) {{{settings}}} : ({types}) -> {type_}', type_)

    def widened(self, value: Value) -> Value:
        """An f16 or bf16 as f32, anything else as it is."""
        return self.resized(value, "f32") if value.type in SMALL else value

    def resized(self, value: Value, type_: str) -> Value:
        """A float as another float type; between f64 and the small ones by way of f32."""
        if value.type == type_:
            return value
        if "f32" not in (value.type, type_):
            value = self.resized(value, "f32")
        grows = _WIDTH[type_] > _WIDTH[value.type]
        return self.builder.convert("arith.extf" if grows else "arith.truncf", value, type_)


_WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def stored(type_: str) -> str:
    """The type of an element in memory."""
    return _STORED.get(type_, type_)


class Iteration:
    """One iteration of a nest: `index` of its loops, and the nodes computed so far by number."""

    def __init__(
        self,
        frame: Frame,
        nest: Nest,
        index: Sequence[Value | None],
        values: Mapping[int, Value] | None = None,
        guard: Value | None = None,
    ) -> None:
        """values: nodes that are known already. guard: an i1 that says whether the iteration
        exists; where it does not, memory is left alone and loads give 0.
        """
        self.frame, self.nest, self.index, self.guard = frame, nest, index, guard
        self.values = dict(values or {})

    def compute(self, numbers: Iterable[int]) -> list[Value]:
        """The values of these nodes, with all that they need."""
        wanted = list(numbers)
        for number in sorted(needed(self.nest, wanted, self.values)):
            self.values[number] = self._node(self.nest.code[number])
        return [self.values[number] for number in wanted]

    def store(self, store: Store, value: Value) -> None:
        """Put a result where it belongs."""
        address = self.frame.address(store.access, str(store.type), self.index)
        self.frame.builder.store(self.frame.in_memory(value), address)

    def held(self, store: Store) -> Value:
        """What the place of a result holds."""
        kind = str(store.type)
        return self._load(self.frame.address(store.access, kind, self.index), kind)

    def _load(self, address: Value, kind: str) -> Value:
        found = guarded_load(self.frame.builder, self.guard, address, stored(kind))
        return self.frame.loaded(found, kind)

    def _node(self, node: Node) -> Value:
        frame, what = self.frame, node[0]
        if what == "load":
            kind = str(node[2])
            return self._load(frame.address(node[1], kind, self.index), kind)
        if what == "constant":
            return _constant(frame.builder, node)
        if what == "scalar":
            return frame.scalars[node[1]]
        if what == "index":
            return self._index(node)
        if what == "gather":
            return self._gather(node)
        assert what == "op", f"a node {what} that no loop has set"
        operands = [self.values[k] for k in node[3]]
        return frame.op(node[1], settings_text(node), operands, str(node[4]))

    def _index(self, node: Node) -> Value:
        _, const, strides, scalars = node
        frame, builder = self.frame, self.frame.builder
        value = builder.convert(
            "arith.index_cast", frame.linear(const, strides, self.index), "index"
        )
        for scalar, factor in scalars:
            part = frame.scalars[scalar]
            value = value + (part if factor == 1 else part * builder.constant(factor, "index"))
        return value

    def _gather(self, node: Node) -> Value:
        _, pointer, strides, numbers, type_ = node
        frame, builder, total = self.frame, self.frame.builder, None
        for stride, number in zip(strides, numbers):
            part = builder.convert("arith.index_cast", self.values[number], "i64") * stride
            total = part if total is None else total + part
        place = frame.pointers[pointer]
        if total is not None:
            place = builder.offset(place, total, stored(str(type_)))
        return self._load(place, str(type_))


def guarded_load(
    builder: Builder, guard: Value | None, address: Value, type_: str, align: int = 0
) -> Value:
    """What lies there, or 0 where the guard does not hold."""
    if guard is None:
        return builder.load(address, type_, align)
    zero = builder.constant(0, type_)
    (found,) = builder.if_(
        guard, lambda: [builder.load(address, type_, align)], lambda: [zero], [type_]
    )
    return found


def _constant(builder: Builder, node: Node) -> Value:
    """The constant of a node: its attribute knows how to write itself."""
    kind, text = str(node[2]), str(node[1])
    return builder.literal(text.rsplit(" : ", 1)[0] if " : " in text else text, kind)


def settings_text(node: Node) -> str:
    """The attributes of an op. Sums over a loop that are marked add products without rounding them
    first; nothing else may be changed.
    """
    marks = {key for key, _ in node[2]}
    parts = []
    for key, attr in node[2]:
        if key in (CONTRACT, EXACT):
            continue
        text = str(attr)
        if key == "fastmath":
            fuses = CONTRACT in marks and EXACT not in marks and str(node[4]) in ("f32", "f64")
            text = f"#arith.fastmath<{'contract' if fuses else 'none'}>"
        parts.append(f"{key} = {text}")
    return ", ".join(parts)


def inputs_of(node: Node) -> tuple[int, ...]:
    """The nodes that a node reads."""
    return tuple(node[3]) if node[0] in ("op", "gather") else ()


def needed(nest: Nest, numbers: Iterable[int], known: Iterable[int] = ()) -> set[int]:
    """The nodes that these are computed from, themselves included, without the known ones."""
    found: set[int] = set()
    todo = list(numbers)
    while todo:
        number = todo.pop()
        if number not in found and number not in known:
            found.add(number)
            todo += inputs_of(nest.code[number])
    return found


def results(nest: Nest) -> list[int]:
    """The nodes that are stored, and the start values of reductions."""
    starts = [s.initial for s in nest.stores if s.initial is not None]
    return [s.value for s in nest.stores] + starts


def dims_of(nest: Nest) -> list[frozenset[int]]:
    """Of each node the loops that it depends on."""
    found: list[frozenset[int]] = []
    for node in nest.code:
        if node[0] in ("load", "index"):
            strides = node[1].strides if node[0] == "load" else node[2]
            found.append(frozenset(d for d, s in enumerate(strides) if s))
        else:
            found.append(frozenset().union(*(found[k] for k in inputs_of(node))))
    return found


def frame_of(builder: Builder, unit: Unit, index: str) -> Frame:
    """The frame of a kernel that has the parameters of facts.parameters_of(unit)."""
    names = [f"p{k}" for k in range(len(unit.pointers.places))]
    scalars = []
    for k, scalar in enumerate(unit.pointers.scalars):
        value, kind = builder[f"s{k}"], str(scalar.type)
        if kind == "i1":
            value = builder.convert("arith.trunci", value, "i1")
        elif kind == "index":
            value = builder.convert("arith.index_cast", value, "index")
        scalars.append(value)
    alignments = tuple(builder.parameter(name).align for name in names)
    return Frame(builder, tuple(builder[n] for n in names), tuple(scalars), index, alignments)


def width(type_: Any) -> int:
    """Bytes of an element in memory."""
    return element_bytes(type_)
