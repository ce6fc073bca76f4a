"""Write functions as MLIR text, value by value.

A `Value` knows its type and the function that it belongs to, so Python's operators write ops.
Integers are taken as not negative: `//`, `%` and `>>` are the unsigned ops.

    place = writer.offset(pointer, writer.times(row, 64), "f32")
    writer.store(writer.load(place, "f32") * 2.0, place)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

Number = int | float
_AS_WRITTEN = "#llvm.loop_annotation<unroll = <disable = true>>"
_FLOATS = {"f64": ">d", "f32": ">f", "f16": ">e"}


class Value:
    """Name an SSA value of a known type; operators write ops."""

    __slots__ = ("name", "type", "writer")

    def __init__(self, writer: Writer, name: str, type_: str) -> None:
        self.writer, self.name, self.type = writer, name, type_

    @property
    def is_float(self) -> bool:
        """Tell whether this is a floating-point number (or a vector of them)."""
        return element_of(self.type) in ("f64", "f32", "f16", "bf16")

    @property
    def is_vector(self) -> bool:
        """Tell whether this is a vector."""
        return self.type.startswith("vector")

    def _binary(self, other: Value | Number, integer: str, floating: str | None = None) -> Value:
        name = floating if self.is_float else integer
        assert name is not None, f"{integer} on {self.type}"
        right = self.writer.as_value(other, self.type)
        assert right.type == self.type, f"{name} of {self.type} and {right.type}"
        return self.writer.let(f"{name} {self.name}, {right.name} : {self.type}", self.type)

    def __add__(self, other: Value | Number) -> Value:
        return self if _is(other, 0) else self._binary(other, "arith.addi", "arith.addf")

    def __sub__(self, other: Value | Number) -> Value:
        return self if _is(other, 0) else self._binary(other, "arith.subi", "arith.subf")

    def __mul__(self, other: Value | Number) -> Value:
        return self if _is(other, 1) else self._binary(other, "arith.muli", "arith.mulf")

    def __truediv__(self, other: Value | Number) -> Value:
        return self._binary(other, "arith.divsi", "arith.divf")

    def __floordiv__(self, other: Value | Number) -> Value:
        return self if _is(other, 1) else self._binary(other, "arith.divui")

    def __mod__(self, other: Value | Number) -> Value:
        return self._binary(other, "arith.remui")

    def __and__(self, other: Value | Number) -> Value:
        return self._binary(other, "arith.andi")

    def __or__(self, other: Value | Number) -> Value:
        return self._binary(other, "arith.ori")

    def __xor__(self, other: Value | Number) -> Value:
        return self._binary(other, "arith.xori")

    def __lshift__(self, other: Value | Number) -> Value:
        return self._binary(other, "arith.shli")

    def __rshift__(self, other: Value | Number) -> Value:
        return self._binary(other, "arith.shrui")


class OpenLoop(NamedTuple):
    """Hold a loop that has been begun: its counter, what it carries, and its results.

    The results are known once it is closed.
    """

    counter: Value
    carried: list[Value]
    results: list[Value]


class Writer:
    """Write the lines of a function in order; constants come first, each once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.head: list[str] = []
        self._constants: dict[tuple[str, str], Value] = {}
        self._count = 0

    # Lines and names.

    def fresh(self) -> str:
        """Return a new name."""
        self._count += 1
        return f"%v{self._count}"

    def add(self, line: str) -> None:
        """Write a line."""
        self.lines.append(line)

    def let(self, text: str, type_: str) -> Value:
        """Write a line that defines a value of that type."""
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return Value(self, name, type_)

    def let_first(self, text: str, type_: str) -> Value:
        """Define a value where the function begins."""
        name = self.fresh()
        self.head.append(f"{name} = {text}")
        return Value(self, name, type_)

    def constant(self, value: Number, type_: str = "i32") -> Value:
        """Return a number, or a vector with that number in each lane."""
        return self.literal(number_text(value, element_of(type_)), type_)

    def literal(self, literal: str, type_: str) -> Value:
        """Return the constant that MLIR writes so (without its type)."""
        key = (literal, type_)
        if key not in self._constants:
            body = f"dense<{literal}>" if type_.startswith("vector") else literal
            typed = body if type_ == "i1" else f"{body} : {type_}"  # true and false have one type
            self._constants[key] = self.let_first(f"arith.constant {typed}", type_)
        return self._constants[key]

    def as_value(self, value: Value | Number, type_: str) -> Value:
        """Return the value, or the constant of that type."""
        return value if isinstance(value, Value) else self.constant(value, type_)

    # Control flow.

    def open_loop(
        self,
        start: Value | Number,
        end: Value | Number,
        step: Value | Number = 1,
        carried: Sequence[Value] = (),
        type_: str = "i64",
    ) -> OpenLoop:
        """Begin a loop that carries values."""
        bounds = [self.as_value(v, type_).name for v in (start, end, step)]
        counter, result = Value(self, self.fresh(), type_), self.fresh()
        inner = [Value(self, self.fresh(), v.type) for v in carried]
        head = f"scf.for {counter.name} = {bounds[0]} to {bounds[1]} step {bounds[2]}"
        if carried:
            pairs = ", ".join(f"{a.name} = {b.name}" for a, b in zip(inner, carried))
            types = ", ".join(v.type for v in carried)
            head = f"{result}:{len(carried)} = {head} iter_args({pairs}) -> ({types})"
        self.add(f"{head} : {type_} {{")
        results = [Value(self, f"{result}#{k}", v.type) for k, v in enumerate(carried)]
        return OpenLoop(counter, inner, results)

    def open(
        self, end: Value | Number, step: Value | Number = 1, start: Value | Number = 0
    ) -> Value:
        """Begin a loop that carries nothing; return its counter, an i64."""
        return self.open_loop(start, end, step).counter

    def close(self, values: Sequence[Value] = (), as_written: bool = False) -> None:
        """End the innermost loop or branch, which hands these on.

        as_written: LLVM is not to write out the iterations of the loop one after the other, for that hides what could
        be vectors.
        """
        if values:
            names, types = (", ".join(x) for x in zip(*((v.name, v.type) for v in values)))
            self.add(f"scf.yield {names} : {types}")
        self.add(f"}} {{llvm.loop_annotation = {_AS_WRITTEN}}}" if as_written else "}")

    def for_(
        self,
        start: Value | Number,
        end: Value | Number,
        step: Value | Number,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value] | None],
        type_: str = "i32",
    ) -> list[Value]:
        """Write a loop; `body(counter, carried)` gives the next carried values. Return the last ones."""
        loop = self.open_loop(start, end, step, carried, type_)
        self._close(body(loop.counter, loop.carried), [v.type for v in carried])
        return loop.results

    def if_(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value] | None],
        otherwise: Callable[[], Sequence[Value] | None] | None = None,
        types: Sequence[str] = (),
    ) -> list[Value]:
        """Write a branch; both sides give values of `types`."""
        result = self.fresh()
        head = f"scf.if {condition.name}"
        if types:
            head = f"{result}:{len(types)} = {head} -> ({', '.join(types)})"
        self.add(f"{head} {{")
        self._close(then(), types)
        if otherwise is not None:
            self.lines[-1] = "} else {"
            self._close(otherwise(), types)
        return [Value(self, f"{result}#{k}", t) for k, t in enumerate(types)]

    def _close(self, values: Sequence[Value] | None, types: Sequence[str]) -> None:
        given = list(values or ())
        assert [v.type for v in given] == list(types), f"{[v.type for v in given]}, not {types}"
        self.close(given)

    # Numbers.

    def op(self, name: str, settings: str, operands: Sequence[Value], type_: str) -> Value:
        """Write an op of one result in the generic form."""
        names = ", ".join([v.name for v in operands])
        types = ", ".join([v.type for v in operands])
        return self.let(f'"{name}"({names}) {{{settings}}} : ({types}) -> {type_}', type_)

    def plus(self, value: Value, other: Value | Number) -> Value:
        """Add indices whose sum does not overflow."""
        return value if _is(other, 0) else self._exact("arith.addi", value, other)

    def times(self, value: Value, other: Value | Number) -> Value:
        """Multiply indices whose product does not overflow."""
        return value if _is(other, 1) else self._exact("arith.muli", value, other)

    def _exact(self, op: str, left: Value, right: Value | Number) -> Value:
        other = self.as_value(right, left.type)
        return self.let(f"{op} {left.name}, {other.name} overflow<nsw> : {left.type}", left.type)

    def compare(self, predicate: str, left: Value, right: Value | Number) -> Value:
        """Compare to an i1. predicate: one of arith.cmpi's, or of arith.cmpf's for floats."""
        op = "arith.cmpf" if left.is_float else "arith.cmpi"
        other = self.as_value(right, left.type)
        return self.let(f"{op} {predicate}, {left.name}, {other.name} : {left.type}", "i1")

    def select(self, condition: Value, left: Value, right: Value) -> Value:
        """Take `left` where the condition holds, else `right`; of vectors lane by lane where the condition is one."""
        names = f"{condition.name}, {left.name}, {right.name}"
        types = f"{condition.type}, {left.type}" if condition.is_vector else left.type
        return self.let(f"arith.select {names} : {types}", left.type)

    def least(self, left: Value, right: Value | Number) -> Value:
        """Return the lesser of two signed integers."""
        other = self.as_value(right, left.type)
        return self.let(f"arith.minsi {left.name}, {other.name} : {left.type}", left.type)

    def greatest(self, left: Value, right: Value | Number) -> Value:
        """Return the greater of two signed integers."""
        other = self.as_value(right, left.type)
        return self.let(f"arith.maxsi {left.name}, {other.name} : {left.type}", left.type)

    def convert(self, op: str, value: Value, type_: str) -> Value:
        """Write an op that gives a value another type, such as arith.extf or llvm.bitcast."""
        return self.let(f"{op} {value.name} : {value.type} to {type_}", type_)

    def wide(self, value: Value) -> Value:
        """Extend an i32 that is not negative to i64."""
        return value if value.type == "i64" else self.convert("arith.extui", value, "i64")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """Compute a * b + c, rounded once."""
        return self.let(f"math.fma {a.name}, {b.name}, {c.name} : {a.type}", a.type)

    # Memory.

    def offset(self, pointer: Value, nbytes: Value | Number, type_: str = "i8") -> Value:
        """Return the address `nbytes` further (or that many elements of `type_`).

        A Value may be i32 (signed) or i64.
        """
        head = f"llvm.getelementptr inbounds {pointer.name}"
        if not isinstance(nbytes, Value):
            if not nbytes:
                return pointer
            if not -(1 << 31) < nbytes < 1 << 31:
                return self.offset(pointer, self.constant(nbytes, "i64"), type_)
            return self.let(
                f"{head}[{nbytes}] : ({pointer.type}) -> {pointer.type}, {type_}", pointer.type
            )
        signature = f"({pointer.type}, {nbytes.type}) -> {pointer.type}, {type_}"
        return self.let(f"{head}[{nbytes.name}] : {signature}", pointer.type)

    def load(self, pointer: Value, type_: str, align: int = 0) -> Value:
        """Load a value; align: in bytes, where it is not the type's own."""
        mark = f" {{alignment = {align} : i64}}" if align else ""
        return self.let(f"llvm.load {pointer.name}{mark} : {pointer.type} -> {type_}", type_)

    def load_masked(self, pointer: Value, type_: str, mask: Value, align: int) -> Value:
        """Load the lanes of a vector that a mask names; zeros for the others, whose memory is not touched."""
        zero = self.constant(0, type_)
        names = f"{pointer.name}, {mask.name}, {zero.name}"
        types = f"({pointer.type}, {mask.type}, {type_}) -> {type_}"
        settings = f"{{alignment = {align} : i32}}"
        return self.let(f'"llvm.intr.masked.load"({names}) {settings} : {types}', type_)

    def first_lanes(self, count: Value, lanes: int) -> Value:
        """Make the mask of the first `count` (i64) of so many lanes."""
        numbers = self.literal(str(list(range(lanes))), f"vector<{lanes}xi64>")
        mask = f"vector<{lanes}xi1>"
        most = self.spread(count, lanes)
        return self.let(f"arith.cmpi slt, {numbers.name}, {most.name} : {most.type}", mask)

    def add_pairs(self, left: Value, right: Value, sums: Value) -> Value:
        """Add the products of pairs to 16 sums: of bf16, given as i16, to f32 by AVX512-BF16; of i16 to i32."""
        if element_of(sums.type) == "i32":  # LLVM makes one instruction of it where AVX512-VNNI is
            names, kind = (
                f"{left.name}, {right.name}",
                f"({left.type}, {right.type}) -> {sums.type}",
            )
            text = f'llvm.call_intrinsic "llvm.x86.avx512.pmaddw.d.512"({names}) : {kind}'
            return sums + self.let(text, sums.type)
        kind = "vector<32xbf16>"
        pairs = [self.convert("llvm.bitcast", value, kind) for value in (left, right)]
        names = ", ".join(value.name for value in (sums, *pairs))
        types = f"({sums.type}, {kind}, {kind}) -> {sums.type}"
        name = "llvm.x86.avx512bf16.dpbf16ps.512"
        return self.let(f'llvm.call_intrinsic "{name}"({names}) : {types}', sums.type)

    def total(self, vector: Value) -> Value:
        """Add up the lanes of a vector of floats, in any order."""
        kind = element_of(vector.type)
        none = self.constant(-0.0, kind)
        types = f"({kind}, {vector.type}) -> {kind}"
        settings = "{fastmathFlags = #llvm.fastmath<reassoc>}"
        names = f"{none.name}, {vector.name}"
        return self.let(f'"llvm.intr.vector.reduce.fadd"({names}) {settings} : {types}', kind)

    def store(self, value: Value, pointer: Value, align: int = 0) -> None:
        """Store a value."""
        mark = f" {{alignment = {align} : i64}}" if align else ""
        self.add(f"llvm.store {value.name}, {pointer.name}{mark} : {value.type}, {pointer.type}")

    def prefetch(self, pointer: Value) -> None:
        """Ask for what lies at an address, to be read later: it comes to the second cache."""
        settings = "{cache = 1 : i32, hint = 2 : i32, rw = 0 : i32}"
        self.add(f'"llvm.intr.prefetch"({pointer.name}) {settings} : ({pointer.type}) -> ()')

    def vector(self, values: Sequence[Value]) -> Value:
        """Make a vector of values."""
        type_ = f"vector<{len(values)}x{values[0].type}>"
        result = self.let(f"llvm.mlir.poison : {type_}", type_)
        for k, value in enumerate(values):
            place = self.constant(k).name
            text = f"llvm.insertelement {value.name}, {result.name}[{place} : i32] : {type_}"
            result = self.let(text, type_)
        return result

    def lane(self, vector: Value, number: int) -> Value:
        """Return one element of a vector."""
        text = f"llvm.extractelement {vector.name}[{self.constant(number).name} : i32]"
        return self.let(f"{text} : {vector.type}", element_of(vector.type))

    def field(self, struct: Value, number: int, type_: str) -> Value:
        """Return one member of a struct."""
        return self.let(f"llvm.extractvalue {struct.name}[{number}] : {struct.type}", type_)

    def spread(self, number: Value, lanes: int) -> Value:
        """Make a vector with a number in each of its lanes."""
        type_ = f"vector<{lanes}x{number.type}>"
        none = self.let(f"llvm.mlir.poison : {type_}", type_)
        zero = self.constant(0).name
        first = self.let(
            f"llvm.insertelement {number.name}, {none.name}[{zero} : i32] : {type_}", type_
        )
        return self.shuffle(first, none, [0] * lanes)

    def shuffle(self, left: Value, right: Value, lanes: Sequence[int]) -> Value:
        """Pick lanes of two vectors, those of `right` counted after those of `left`."""
        names = f"{left.name}, {right.name}"
        type_ = f"vector<{len(lanes)}x{element_of(left.type)}>"
        return self.let(f"llvm.shufflevector {names} {list(lanes)} : {left.type}", type_)

    def local_buffer(self, count: int, type_: str) -> Value:
        """Reserve room for `count` elements while the function runs, aligned to a cache line."""
        size = self.constant(count)
        text = f"llvm.alloca {size.name} x {type_} {{alignment = 64 : i64}} : (i32) -> !llvm.ptr"
        return self.let_first(text, "!llvm.ptr")


def two_sum(total: Value, addend: Value, lost: Value) -> tuple[Value, Value]:
    """Add to a total; return the sum, and what rounding has lost of it and before.

    Knuth, The Art of Computer Programming, volume 2, section 4.2.2, theorem B.
    """
    both = total + addend
    part = both - total
    return both, lost + ((total - (both - part)) + (addend - part))


def corrected(total: Value, lost: Value) -> Value:
    """Add what rounding lost to a sum; of infinities that is not a number, and they stay."""
    writer = total.writer
    return writer.select(writer.compare("ord", lost, lost), total + lost, total)


def element_of(type_: str) -> str:
    """Return the type of one lane: "bf16" of "vector<8xbf16>"; any other type is its own."""
    return type_.split("x")[-1].rstrip(">") if type_.startswith("vector") else type_


def passed(type_: str) -> str:
    """Return the type that a function takes a number as: of bf16 its bits, which no machine converts on the way."""
    return "i16" if type_ == "bf16" else type_


def number_text(value: Number, type_: str) -> str:
    """Return a number as a literal of that type; floats by their bits, so that none is changed."""
    if type_ == "i1":
        return "true" if value else "false"
    if type_ == "bf16":
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        assert not bits & 0xFFFF or value != value, f"{value} is no bf16"
        return f"0x{bits >> 16:04X}"
    form = _FLOATS.get(type_)
    return str(int(value)) if form is None else f"0x{struct.pack(form, value).hex().upper()}"


def _is(value: Value | Number, number: int) -> bool:
    """Tell whether this is that number, known now."""
    return not isinstance(value, Value) and value == number
