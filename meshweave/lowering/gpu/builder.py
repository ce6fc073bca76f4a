"""Device kernels as text: an `llvm.func` of arith, scf, llvm and nvvm ops, written value by value.

A `Value` knows its type and the kernel that it belongs to, so Python's operators write ops. Integers
are taken as not negative: `//`, `%` and `>>` are the unsigned ops.

    kernel = Builder("double", [Parameter("x", "!llvm.ptr<1>", align=4)], threads=256)
    place = kernel.offset(kernel["x"], kernel.wide(kernel.thread() * 4))
    kernel.store(kernel.load(place, "f32") * 2.0, place)
    kernel.text()
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

GLOBAL = "!llvm.ptr<1>"
SHARED = "!llvm.ptr<3>"
Number = int | float
_FLOATS = {"f64": ("<d", "<Q"), "f32": ("<f", "<I"), "f16": ("<e", "<H")}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel. align: known alignment of the pointer in bytes; noalias, readonly:
    as LLVM means them.
    """

    name: str
    type: str
    align: int = 0
    noalias: bool = False
    readonly: bool = False

    @property
    def text(self) -> str:
        """As it stands in the signature."""
        marks = [f"llvm.align = {self.align} : i64"] if self.align else []
        marks += ["llvm.noalias"] * self.noalias + ["llvm.readonly"] * self.readonly
        if self.type.startswith("!llvm.ptr"):
            marks.append("llvm.noundef")
        return f"%{self.name}: {self.type}" + (f" {{{', '.join(marks)}}}" if marks else "")


class Value:
    """An SSA value: its name, its type, and operators that write ops."""

    __slots__ = ("builder", "name", "type")

    def __init__(self, builder: Builder, name: str, type_: str) -> None:
        self.builder, self.name, self.type = builder, name, type_

    @property
    def is_float(self) -> bool:
        """Whether this is a floating-point number (or a vector of them)."""
        return element_of(self.type) in ("f64", "f32", "f16", "bf16")

    def _binary(self, other: Value | Number, integer: str, floating: str | None = None) -> Value:
        name = floating if self.is_float else integer
        assert name is not None, f"{integer} on {self.type}"
        right = self.builder.as_value(other, self.type)
        assert right.type == self.type, f"{name} of {self.type} and {right.type}"
        return self.builder.let(f"{name} {self.name}, {right.name} : {self.type}", self.type)

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


class Builder:
    """A kernel under construction. Everything is written in order, constants at the start."""

    def __init__(
        self,
        entry: str,
        parameters: Sequence[Parameter],
        threads: int,
        *,
        shared_bytes: int = 0,
        dynamic_shared: bool = False,
        min_blocks: int = 0,
    ) -> None:
        """threads: of a block, in one dimension. shared_bytes: declared by the kernel itself;
        dynamic_shared: given at launch instead. min_blocks: blocks that are to fit on a
        multiprocessor, which bounds the registers.
        """
        self.entry, self.threads = entry, threads
        self.shared_bytes, self.dynamic_shared, self.min_blocks = (
            shared_bytes,
            dynamic_shared,
            min_blocks,
        )
        self.parameters = tuple(parameters)
        self.lines: list[str] = []
        self._head: list[str] = []
        self._shared: Value | None = None
        self._constants: dict[tuple[str, str], Value] = {}
        self._count = 0

    def parameter(self, name: str) -> Parameter:
        """The parameter of that name."""
        return next(p for p in self.parameters if p.name == name)

    def __getitem__(self, name: str) -> Value:
        """The value of a parameter."""
        return Value(self, f"%{name}", self.parameter(name).type)

    def text(self) -> str:
        """The body of a gpu.module: the kernel, and its shared memory."""
        marks = ["nvvm.kernel", f"nvvm.reqntid = array<i32: {self.threads}, 1, 1>"]
        marks += [f"nvvm.minctasm = {self.min_blocks} : i32"] if self.min_blocks else []
        signature = ", ".join(p.text for p in self.parameters)
        head = f"llvm.func @{self.entry}({signature}) attributes {{{', '.join(marks)}}} {{"
        lines = [*self._globals(), head, *self._head, *self.lines, "llvm.return", "}", ""]
        return "\n".join(lines)

    def _globals(self) -> list[str]:
        if not (self.shared_bytes or self.dynamic_shared):
            return []
        linkage, count = ("external", 0) if self.dynamic_shared else ("internal", self.shared_bytes)
        return [
            f"llvm.mlir.global {linkage} @{self.entry}_shared() "
            f"{{addr_space = 3 : i32, alignment = 1024 : i64}} : !llvm.array<{count} x i8>"
        ]

    # Plumbing.

    def fresh(self) -> str:
        """A new name."""
        self._count += 1
        return f"%v{self._count}"

    def add(self, line: str) -> None:
        """One more line."""
        self.lines.append(line)

    def let(self, text: str, type_: str) -> Value:
        """A line that defines a value of that type."""
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return Value(self, name, type_)

    def constant(self, value: Number, type_: str = "i32") -> Value:
        """A number, or a vector with that number in each lane."""
        return self.literal(number_text(value, element_of(type_)), type_)

    def literal(self, literal: str, type_: str) -> Value:
        """The constant that MLIR writes so (without its type)."""
        if (literal, type_) not in self._constants:
            name = self.fresh()
            body = f"dense<{literal}>" if type_.startswith("vector") else literal
            typed = body if type_ == "i1" else f"{body} : {type_}"  # true and false have one type
            self._head.append(f"{name} = arith.constant {typed}")
            self._constants[literal, type_] = Value(self, name, type_)
        return self._constants[literal, type_]

    def as_value(self, value: Value | Number, type_: str) -> Value:
        """The value, or the constant of that type."""
        return value if isinstance(value, Value) else self.constant(value, type_)

    # Control flow.

    def for_(
        self,
        start: Value | Number,
        end: Value | Number,
        step: Value | Number,
        carried: Sequence[Value],
        body: Callable[[Value, list[Value]], Sequence[Value] | None],
        type_: str = "i32",
    ) -> list[Value]:
        """A loop; `body(iv, carried)` gives the next carried values. The last ones are the result."""
        bounds = [self.as_value(v, type_).name for v in (start, end, step)]
        iv, result = Value(self, self.fresh(), type_), self.fresh()
        inner = [Value(self, self.fresh(), v.type) for v in carried]
        head = f"scf.for {iv.name} = {bounds[0]} to {bounds[1]} step {bounds[2]}"
        if carried:
            pairs = ", ".join(f"{a.name} = {b.name}" for a, b in zip(inner, carried))
            types = ", ".join(v.type for v in carried)
            head = f"{result}:{len(carried)} = {head} iter_args({pairs}) -> ({types})"
        self.add(f"{head} : {type_} {{")
        self._close(body(iv, inner), [v.type for v in carried])
        return [Value(self, f"{result}#{k}", v.type) for k, v in enumerate(carried)]

    def if_(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value] | None],
        otherwise: Callable[[], Sequence[Value] | None] | None = None,
        types: Sequence[str] = (),
    ) -> list[Value]:
        """A branch; both sides give values of `types`."""
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
        if given:
            names = ", ".join(v.name for v in given)
            self.add(f"scf.yield {names} : {', '.join(types)}")
        self.add("}")

    # Numbers.

    def compare(self, predicate: str, left: Value, right: Value | Number) -> Value:
        """An i1. predicate: as arith.cmpi has them, or arith.cmpf for floats."""
        op = "arith.cmpf" if left.is_float else "arith.cmpi"
        other = self.as_value(right, left.type)
        return self.let(f"{op} {predicate}, {left.name}, {other.name} : {left.type}", "i1")

    def select(self, condition: Value, left: Value, right: Value) -> Value:
        """`left` where the condition holds, else `right`."""
        names = f"{condition.name}, {left.name}, {right.name}"
        return self.let(f"arith.select {names} : {left.type}", left.type)

    def convert(self, op: str, value: Value, type_: str) -> Value:
        """One of the ops that take a value and give another type: arith.extf, llvm.bitcast, ..."""
        return self.let(f"{op} {value.name} : {value.type} to {type_}", type_)

    def wide(self, value: Value) -> Value:
        """An i32, not negative, as i64."""
        return value if value.type == "i64" else self.convert("arith.extui", value, "i64")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self.let(f"math.fma {a.name}, {b.name}, {c.name} : {a.type}", a.type)

    def thread(self) -> Value:
        """Number of the thread in its block, an i32."""
        return self.let(f"nvvm.read.ptx.sreg.tid.x range <i32, 0, {self.threads}> : i32", "i32")

    def block(self, dim: str = "x") -> Value:
        """Number of the block in the grid, an i32."""
        return self.let(f"nvvm.read.ptx.sreg.ctaid.{dim} : i32", "i32")

    # Memory.

    def shared(self, start: int = 0) -> Value:
        """Address of byte `start` of shared memory."""
        if self._shared is None:
            name = self.fresh()
            self._head.append(f"{name} = llvm.mlir.addressof @{self.entry}_shared : {SHARED}")
            self._shared = Value(self, name, SHARED)
        return self.offset(self._shared, start) if start else self._shared

    def offset(self, pointer: Value, nbytes: Value | Number, type_: str = "i8") -> Value:
        """The address `nbytes` further (or that many elements of `type_`). A Value may be i32
        (signed) or i64.
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
        """What lies there; align: in bytes, where it is not the type's own."""
        mark = f" {{alignment = {align} : i64}}" if align else ""
        return self.let(f"llvm.load {pointer.name}{mark} : {pointer.type} -> {type_}", type_)

    def store(self, value: Value, pointer: Value, align: int = 0) -> None:
        """Put the value there."""
        mark = f" {{alignment = {align} : i64}}" if align else ""
        self.add(f"llvm.store {value.name}, {pointer.name}{mark} : {value.type}, {pointer.type}")

    def vector(self, values: Sequence[Value]) -> Value:
        """A vector of these."""
        type_ = f"vector<{len(values)}x{values[0].type}>"
        result = self.let(f"llvm.mlir.poison : {type_}", type_)
        for k, value in enumerate(values):
            place = self.constant(k).name
            text = f"llvm.insertelement {value.name}, {result.name}[{place} : i32] : {type_}"
            result = self.let(text, type_)
        return result

    def lane(self, vector: Value, number: int) -> Value:
        """One element of a vector."""
        text = f"llvm.extractelement {vector.name}[{self.constant(number).name} : i32]"
        return self.let(f"{text} : {vector.type}", element_of(vector.type))

    def field(self, struct: Value, number: int, type_: str) -> Value:
        """One member of a struct."""
        return self.let(f"llvm.extractvalue {struct.name}[{number}] : {struct.type}", type_)

    # Threads together.

    def barrier(self) -> None:
        """Every thread of the block comes here before any goes on."""
        self.add("nvvm.barrier")

    def warp_barrier(self) -> None:
        """The same for the 32 threads of a warp."""
        self.add(f"nvvm.bar.warp.sync {self.constant(-1).name} : i32")

    def shuffle_xor(self, value: Value, distance: int, width: int = 32) -> Value:
        """What the thread whose lane differs in bit `distance` holds, an i32 or f32; in groups of
        `width` lanes, all of which must come here.
        """
        mask, lanes = self.constant(-1).name, self.constant(0x1F | (32 - width) << 8).name
        text = f"nvvm.shfl.sync bfly {mask}, {value.name}, {self.constant(distance).name}, {lanes}"
        return self.let(f"{text} : {value.type} -> {value.type}", value.type)

    # Asynchronous copies and tensor cores.

    def copy_async(self, target: Value, source: Value, nbytes: Value | None = None) -> None:
        """Begin to copy 16 bytes from global to shared memory; of them `nbytes` are read, the rest
        is zero.
        """
        tail = f", {nbytes.name}" if nbytes is not None else ""
        types = f"{SHARED}, {GLOBAL}" + (", i32" if nbytes is not None else "")
        self.add(
            f"nvvm.cp.async.shared.global {target.name}, {source.name}, 16, cache = cg{tail} : {types}"
        )

    def commit_copies(self) -> None:
        """The copies begun since the last call are a group."""
        self.add("nvvm.cp.async.commit.group")

    def wait_copies(self, pending: int) -> None:
        """Wait until at most `pending` of this thread's groups are under way."""
        self.add(f"nvvm.cp.async.wait.group {pending}")

    def load_matrices(self, pointer: Value, transpose: bool = False) -> list[Value]:
        """Four 8x8 matrices of 16-bit elements, one i32 each; lane l gives the address of row l."""
        struct_type = "!llvm.struct<(i32, i32, i32, i32)>"
        settings = (
            f"num = 4 : i32, layout = #nvvm.mma_layout<{'col' if transpose else 'row'}>, "
            "shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>, "
            "eltType = #nvvm.ld_st_matrix_elt_type<b16>"
        )
        found = self.let(
            f"nvvm.ldmatrix {pointer.name} {{{settings}}} : ({SHARED}) -> {struct_type}",
            struct_type,
        )
        return [self.field(found, k, "i32") for k in range(4)]


def element_of(type_: str) -> str:
    """The type of one lane: "bf16" of "vector<8xbf16>"; any other type is its own."""
    return type_.split("x")[-1].rstrip(">") if type_.startswith("vector") else type_


def number_text(value: Number, type_: str) -> str:
    """A number as a literal of that type; floats by their bits, so that none is changed."""
    if type_ == "i1":
        return "true" if value else "false"
    if type_ not in (*_FLOATS, "bf16"):
        return str(int(value))
    if type_ == "bf16":
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        assert not bits & 0xFFFF or value != value, f"{value} is no bf16"
        return f"0x{bits >> 16:04X}"
    packed, unpacked = _FLOATS[type_]
    bits = struct.unpack(unpacked, struct.pack(packed, value))[0]
    return f"0x{bits:0{2 * struct.calcsize(unpacked)}X}"


def _is(value: Value | Number, number: int) -> bool:
    """Whether this is that number, known now."""
    return not isinstance(value, Value) and value == number
