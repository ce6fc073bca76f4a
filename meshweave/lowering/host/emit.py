"""Write the step function, `i32 step(ptr ctx)`, as text in the LLVM dialect.

It is a straight line of calls on pointers into the arena, inputs and outputs, with loops and branches where the program
has them.

A function that it calls several times, `i32 mw_function_k(ptr ctx, inputs.., outputs.., ptr frame)`,
is written in the same way: its pointers come as arguments.

A collective is announced in the status row (`abi.StatusRow`) before it starts and after it ended; when it fails, step
returns its op number and code at once. One that is started early is announced twice: while it is
started, and while it is waited for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from meshweave.abi import ABORTED, Slots, StatusRow, TraceBuffer
from meshweave.bundle import OpInfo
from meshweave.dialects.mw import TIMES
from meshweave.errors import CompileError
from meshweave.exchange.table import Loop, loops_of
from meshweave.ir.bindings import ir
from meshweave.ir.calls import HostCall, Written, called
from meshweave.ir.locations import location_text
from meshweave.lowering.buffers.function_plan import FunctionPlan
from meshweave.lowering.buffers.steps import MemrefPlace, Root, Step
from meshweave.lowering.communication.calls import Call
from meshweave.lowering.host.branches import Branches, type_text
from meshweave.lowering.nests.linear import Linear
from meshweave.lowering.nests.rows import Entry, KernelUnit
from meshweave.lowering.writer import passed


class Code:
    """Hold the module of the step function and what it calls.

    calls[i]: what collective i does. name_of(unit): the kernel to call. constants: the bytes of each memref.global.
    """

    def __init__(
        self,
        slots: Slots,
        calls: list[Call],
        name_of: Callable[[KernelUnit], str],
        constants: Mapping[str, bytes],
        emitter: type[Emitter] | None = None,
        areas: Mapping[int, int] | None = None,
        routine_of: Callable[[Written], str] | None = None,
        shared: Collection[str] = (),
        alone_of: Callable[[KernelUnit], str] | None = None,
    ) -> None:
        """Begin an empty module.

        emitter: what writes a function, for targets whose calls of kernels differ from the cpu's.
        areas: see `communication.areas`, for targets whose collectives have them.
        routine_of: the function that does what `mw.lapack` or `mw.fft` says, for targets that have it.
        shared: kernels that take the rank's cores too; they may be added later. alone_of(unit): one that does not.
        """
        self.slots, self.calls, self.name_of, self.constants = slots, calls, name_of, constants
        self.emitter = emitter or Emitter
        self.areas, self.shared = areas or {}, shared
        self.routine_of = routine_of
        self.alone_of = alone_of or name_of
        self.core_bytes = 0  # of memory that each further core needs
        self.marks: list[OpInfo] = []  # what a traced step tells of besides collectives
        self._numbers: dict[tuple[str, str], int] = {}
        self._loops = 0
        self.declared: dict[str, str] = {}  # external function -> its type
        self.globals: set[str] = set()
        self.called: set[str] = set()  # functions of this module
        self._functions: list[str] = []

    def add(self, plan: FunctionPlan, number: int | None) -> None:
        """Write a function. number: of one that others call; None: the step itself."""
        self._functions.append(self.emitter(self, plan, number is not None).text(number))

    def mark(self, name: str, where: str) -> int:
        """Return the number of what a traced step tells of, the same for all calls of a name at a place."""
        number = self._numbers.setdefault((name, where), len(self.marks))
        if number == len(self.marks):
            self.marks.append(OpInfo(number, name, where))
        return number

    def add_loop(self, text: str, nbytes: int) -> str:
        """Add the function that does an iteration of a loop, in `nbytes` of memory; return its name."""
        name = f"mw_loop_{self._loops}"
        self._loops += 1
        self.core_bytes = max(self.core_bytes, nbytes)
        self._functions.append(f"llvm.func @{name}{text}")
        return name

    def text(self) -> str:
        """Return the module."""
        declarations = "".join(f"llvm.func @{n}{t}\n" for n, t in sorted(self.declared.items()))
        constants = "".join(f"{_global(n, self.constants[n])}\n" for n in sorted(self.globals))
        return declarations + constants + "".join(self._functions)


class Emitter(Branches):
    """Write the blocks of one function."""

    def __init__(self, code: Code, plan: FunctionPlan, called: bool) -> None:
        """Begin a function. called: by others; its buffers are then its arguments."""
        super().__init__()
        self.code, self.slots, self.plan, self.called = code, code.slots, plan, called

    def text(self, number: int | None) -> str:
        """Return the function; see Code.add."""
        if not self.called:
            self.lines.append(f"%frame = llvm.load {self._slot_at(self.slots.arena)} : {_LOADED}")
        self._entries(self.plan.entries)
        if not self.called:
            self._mark(TraceBuffer.NOTHING)
        name, arguments = "step", ["%ctx"]
        if self.called:
            name = function_symbol(number)
            buffers = self.plan.buffers
            arguments += [f"%in{k}" for k in range(buffers.inputs)]
            arguments += [f"%out{k}" for k in range(buffers.outputs)] + ["%frame"]
        body = "\n".join(self.lines)
        ends = "" if self.called else self._failed_end()
        return (
            f"llvm.func @{name}({', '.join(f'{a}: !llvm.ptr' for a in arguments)}) -> i32 {{\n{body}\n"
            "%done = llvm.mlir.constant(0 : i32) : i32\nllvm.return %done : i32\n"
            f"^failed(%code: i32):\n{ends}llvm.return %code : i32\n}}\n"
        )

    def _failed_end(self) -> str:
        """Return what a step does before it fails: a trace holds what it did until then."""
        written, self.lines = self.lines, []
        self._mark(TraceBuffer.NOTHING)
        ends, self.lines = self.lines, written
        return "".join(f"{line}\n" for line in ends)

    # Names.

    def i64(self, value: int) -> str:
        return self.let(f"llvm.mlir.constant({value} : i64) : i64")

    def _slot(self, number: int, type_: str = "!llvm.ptr") -> str:
        return self.let(f"llvm.load {self._slot_at(number)} : !llvm.ptr -> {type_}")

    def _slot_at(self, number: int) -> str:
        return self._behind("%ctx", 8 * number)

    def _behind(self, pointer: str, nbytes: int | str) -> str:
        """Return the address so many bytes behind a pointer; numbers from 2 GiB on are no literals of the op."""
        if nbytes == 0:
            return pointer
        if isinstance(nbytes, int) and nbytes < 1 << 31:
            return self.let(
                f"llvm.getelementptr {pointer}[{nbytes}] : (!llvm.ptr) -> !llvm.ptr, i8"
            )
        by = self.i64(nbytes) if isinstance(nbytes, int) else nbytes
        return self.let(f"llvm.getelementptr {pointer}[{by}] : (!llvm.ptr, i64) -> !llvm.ptr, i8")

    def _moved(self, pointer: str, value: ir.Value, nbytes: int) -> str:
        """Return the address that is `value` times `nbytes` further."""
        step = self.let(f"llvm.mul {self._value(value)}, {self.i64(nbytes)} : i64")
        return self._behind(pointer, step)

    def _value(self, value: ir.Value) -> str:
        found = self._values.get(value)
        if found is None:
            raise CompileError(
                f"a value of type {value.type} is not known here", location_text(value.location)
            )
        return found

    # Addresses.

    def _base(self, root: Root) -> tuple[str, int]:
        """Return a pointer to the buffer, and the bytes to add to it."""
        if root.kind == "arena":
            return "%frame", root.offset
        if root.kind in ("input", "output"):
            if self.called:
                return f"%{root.kind.removesuffix('put')}{root.index}", 0
            slot = self.slots.input if root.kind == "input" else self.slots.output
            return self._slot(slot(root.index)), 0
        if root.kind == "constant":
            return self._constant(root), 0
        return self._value(root.value), 0

    def _constant(self, root: Root) -> str:
        name = root.value.owner.attributes["name"].value
        self.code.globals.add(name)
        return self.let(f"llvm.mlir.addressof @{name} : !llvm.ptr")

    def _address(self, root: Root, offset: Linear, nbytes: int) -> str:
        """Return the address of the element at `offset`, in elements of `nbytes`."""
        pointer, start = self._base(root)
        start += offset.const * nbytes
        pointer = self._behind(pointer, start)
        for dim, factor in offset.terms:
            value = self.plan.buffers.symbols.values[-1 - dim]
            pointer = self._moved(pointer, value, factor * nbytes)
        return pointer

    def _place(self, place: MemrefPlace) -> str:
        return self._address(place.root, place.offset, place.width)

    # Steps.

    def _entries(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, KernelUnit):
                self.unit(entry)
            elif entry.what in _METHODS:
                getattr(self, _METHODS[entry.what])(entry)
            else:
                self._scalar(entry)

    def unit(self, unit: KernelUnit) -> None:
        self._call_kernel(unit, self.code.name_of(unit))

    def _call_kernel(self, unit: KernelUnit, name: str) -> None:
        """Call the function that does what a unit does."""
        pointers = [self._address(*place) for place in unit.pointers.places]
        scalars = [self._passed(s) for s in unit.pointers.scalars]
        kinds = [passed(type_text(s.type)) for s in unit.pointers.scalars]
        types = ["!llvm.ptr"] * len(pointers) + kinds
        if name in self.code.shared:
            scalars.append(self._slot(self.slots.cores))
            types.append("!llvm.ptr")
        self.code.declared[name] = f"({', '.join(types)})"
        self.lines.append(
            f"llvm.call @{name}({', '.join(pointers + scalars)}) : ({', '.join(types)}) -> ()"
        )

    def _passed(self, value: ir.Value) -> str:
        """Return a scalar as a kernel takes it."""
        name, type_ = self._value(value), type_text(value.type)
        if passed(type_) == type_:
            return name
        return self.let(f"llvm.bitcast {name} : {type_} to {passed(type_)}")

    def routine(self, step: Step) -> None:
        """Call the function that does what the op says for each matrix or row of a batch."""
        said, routine_of = called(step.op), self.code.routine_of
        assert routine_of is not None and not isinstance(said, HostCall), "refused where none is"
        name = routine_of(said)
        places = [*step.operands, *step.outputs, *([step.scratch] if step.scratch else [])]
        types = ", ".join(["!llvm.ptr"] * len(places))
        self.code.declared[name] = f"({types})"
        given = ", ".join([self._place(place) for place in places])
        self.lines.append(f"llvm.call @{name}({given}) : ({types}) -> ()")

    def host(self, step: Step) -> None:
        """Call a function of Python, on targets that do."""
        raise AssertionError(f"{step.op.name}: refused where there is none")

    def collective(self, step: Step) -> None:
        if step.ticket >= 0:
            self.start(step)
        else:
            call = self.code.calls[step.number]
            self._collective(call, call.symbol, self._arguments(step, call))

    def start(self, step: Step) -> None:
        """Start a collective: it is not done when this returns."""
        self._early(step, "start", StatusRow.START)

    def wait(self, step: Step) -> None:
        """Wait until a collective that was started is done."""
        self._early(step, "wait", StatusRow.WAIT)

    def _early(self, step: Step, which: str, half: int) -> None:
        call = self.code.calls[step.number]
        given = [*self._arguments(step, call), *self._area(step.number, call)]
        self._collective(call, f"{call.symbol}_{which}", given, half)

    def _arguments(self, step: Step, call: Call) -> list[tuple[str, str]]:
        """Return the arguments of a collective, with their types."""
        given = [("%ctx", "!llvm.ptr"), (self.i64(call.group), "i64")]
        given += [(self._place(p), "!llvm.ptr") for p in (step.operands[0], step.outputs[0])]
        given += [(self._argument(a, call), "i64") for a in call.arguments]
        if call.exchange >= 0:
            section = self._slot(self.slots.exchange(call.exchange))
            given += [(section, "!llvm.ptr"), (self._scratch(step), "!llvm.ptr")]
        elif call.scratch:
            given.append((self._scratch(step), "!llvm.ptr"))
        return given

    def _area(self, number: int, call: Call) -> list[tuple[str, str]]:
        """Return the address of the area of an async collective, and the bytes that it sends."""
        at = self._behind(self._slot(self.slots.arena), self.code.areas[number])
        return [(at, "!llvm.ptr"), (self.i64(call.early), "i64")]

    def _collective(
        self, call: Call, symbol: str, given: list[tuple[str, str]], half: int = 0
    ) -> None:
        """Call `symbol` between two announcements. half: of an async collective, what this call is: START or WAIT."""
        status = self._slot(self.slots.status)
        self._mark(call.op_id + half)
        following = self._announce(status, call.op_id + half)
        values, types = (", ".join(column) for column in zip(*given))
        self.code.declared[symbol] = f"({types}) -> i32"
        code = self.let(f"llvm.call @{symbol}({values}) : ({types}) -> i32")
        self._check(code, call.op_id)
        self._marked(call, half)
        self._set_word(status, StatusRow.ENDED, following)

    def _mark(self, what: int) -> None:
        """Tell whoever traces what begins now; see `abi.TraceBuffer`."""

    def _marked(self, call: Call, half: int) -> None:
        """Tell whoever traces that a collective is enqueued, on targets whose devices do it later."""

    def _announce(self, status: str, entry: int) -> str:
        """Write in the status row that a collective starts; return how many have started."""
        count_at = self._behind(status, 8 * StatusRow.STARTED)
        count = self.let(f"llvm.load {count_at} : !llvm.ptr -> i64")
        place = self.let(f"llvm.and {count}, {self.i64(StatusRow.ENTRIES - 1)} : i64")
        ring = self._behind(status, 8 * StatusRow.RING)
        at = self.let(f"llvm.getelementptr {ring}[{place}] : (!llvm.ptr, i64) -> !llvm.ptr, i64")
        self.lines.append(f"llvm.store volatile {self.i64(entry)}, {at} : i64, !llvm.ptr")
        following = self.let(f"llvm.add {count}, {self.i64(1)} : i64")
        self._set_word(status, StatusRow.STARTED, following)
        return following

    def _leave_if_told(self) -> None:
        at = self._behind(self._slot(self.slots.status), 8 * StatusRow.LEAVE)
        told = self.let(f"llvm.load volatile {at} : !llvm.ptr -> i64")
        leaves = self.let(f'llvm.icmp "ne" {told}, {self.i64(0)} : i64')
        code, on = self.let(f"llvm.mlir.constant({ABORTED} : i32) : i32"), self._fresh_block()
        self.lines.append(f"llvm.cond_br {leaves}, ^failed({code} : i32), {on}")
        self.lines.append(f"{on}:")

    def _set_word(self, status: str, word: int, value: str) -> None:
        """Write a word of the status row, which others read at any time."""
        at = self._behind(status, 8 * word)
        self.lines.append(f"llvm.store volatile {value}, {at} : i64, !llvm.ptr")

    def call(self, step: Step) -> None:
        """Call another function of this module. A code that it returns already names the op."""
        pointers = ["%ctx", *(self._place(p) for p in (*step.operands, *step.outputs))]
        self._own(function_symbol(step.number), pointers, ["!llvm.ptr"] * len(pointers), None)

    def _own(
        self, name: str, arguments: Sequence[str], types: Sequence[str], op_id: int | None
    ) -> None:
        """Call a function of host code. op_id: see `_check`."""
        self.code.called.add(name)
        code = self.let(f"llvm.call @{name}({', '.join(arguments)}) : ({', '.join(types)}) -> i32")
        self._check(code, op_id)

    def _scratch(self, step: Step) -> str:
        """Return the address of the step's own memory, null when it has none."""
        if step.scratch is None:
            return self.let("llvm.mlir.zero : !llvm.ptr")
        return self._place(step.scratch)

    def _argument(self, argument: int | str, call: Call) -> str:
        """Return a number, the entry of a table ("table:1,2,0") at this member index, or a multiple of an input."""
        if isinstance(argument, int):
            return self.i64(argument)
        if argument.startswith(TIMES):
            number, factor = map(int, argument.removeprefix(TIMES).split("*"))
            size = self.let(f"llvm.load {self._slot(self.slots.input(number))} : !llvm.ptr -> i64")
            return self.let(f"llvm.mul {size}, {self.i64(factor)} : i64")
        entries = np.array(argument.split(":")[1].split(","), np.int64)
        member = self._slot(self.slots.member(call.group), "i64")
        result = ""
        for loop in loops_of(entries, np.arange(len(entries))):
            value = self._walked(loop, member)
            if result:
                here = self.let(f'llvm.icmp "sge" {member}, {self.i64(loop.target)} : i64')
                value = self.let(f"llvm.select {here}, {value}, {result} : i1, i64")
            result = value
        return result

    def _walked(self, loop: Loop, place: str) -> str:
        """Return the source that a loop has for the target `place`, from the digits of that place."""
        value = self.i64(loop.source)
        behind = self.let(f"llvm.sub {place}, {self.i64(loop.target)} : i64")
        for level in loop.levels:
            digit = self.let(f"llvm.udiv {behind}, {self.i64(level.target_step)} : i64")
            digit = self.let(f"llvm.urem {digit}, {self.i64(level.times)} : i64")
            part = self.let(f"llvm.mul {digit}, {self.i64(level.source_step)} : i64")
            value = self.let(f"llvm.add {value}, {part} : i64")
        return value

    def _check(self, code: str, op_id: int | None) -> None:
        """Leave where a call has failed. op_id: of the op whose failure it is; None: the code names it."""
        zero = self.let("llvm.mlir.constant(0 : i32) : i32")
        bad = self.let(f'llvm.icmp "ne" {code}, {zero} : i32')
        if op_id is not None:
            mask = self.let("llvm.mlir.constant(65535 : i32) : i32")
            low = self.let(f"llvm.and {code}, {mask} : i32")
            high = self.let(f"llvm.mlir.constant({op_id << 16} : i32) : i32")
            code = self.let(f"llvm.or {low}, {high} : i32")
        after = self._fresh_block()
        self.lines += [f"llvm.cond_br {bad}, ^failed({code} : i32), {after}", f"{after}:"]

    # Ops that stay: numbers, single elements, control flow.

    def member(self, step: Step) -> None:
        """Write mw.member: this rank's member number in a group."""
        group = step.op.attributes["group"].value
        self._values[step.op.results[0]] = self._slot(self.slots.member(group), "i64")

    def _scalar(self, step: Step) -> None:
        op = step.op
        if op.name in ("func.return", "scf.yield", "scf.condition"):
            return
        if len(op.results) != 1:
            raise CompileError(f"{op.name}: no lowering for this op", location_text(op.location))
        result = op.results[0]
        if op.name in ("arith.index_cast", "arith.index_castui"):
            self._values[result] = self._cast(op)
            return
        if isinstance(result.type, ir.MemRefType):
            self._values[result] = self._chosen(op)
            return
        operands = ", ".join(self._value(v) for v in op.operands)
        types = ", ".join(type_text(v.type) for v in op.operands)
        settings = ", ".join(f"{n} = {_attribute(op.attributes[n])}" for n in op.attributes)
        kind = type_text(result.type)
        self._values[result] = self.let(
            f'"{op.name}"({operands}) {{{settings}}} : ({types}) -> {kind}'
        )

    def _chosen(self, op: ir.Operation) -> str:
        """Write an arith.select of buffers, which MLIR makes of an scf.if that only chooses."""
        if op.name != "arith.select":
            raise CompileError(f"{op.name}: no lowering for this op", location_text(op.location))
        given = [self._based(value, op.results[0]) for value in list(op.operands)[1:]]
        return self.let(
            f"llvm.select {self._value(op.operands[0])}, {', '.join(given)} : i1, !llvm.ptr"
        )

    def _based(self, value: ir.Value, target: ir.Value) -> str:
        place, own = (self.plan.buffers.place(v) for v in (value, target))
        start = place.offset.plus(Linear(-own.offset.const))
        return self._address(place.root, start, place.width)

    def _cast(self, op: ir.Operation) -> str:
        given, wanted = type_text(op.operands[0].type), type_text(op.results[0].type)
        value = self._value(op.operands[0])
        if given == wanted:
            return value
        wider = int(wanted[1:]) > int(given[1:])
        extend = "llvm.sext" if op.name == "arith.index_cast" else "llvm.zext"
        return self.let(f"{extend if wider else 'llvm.trunc'} {value} : {given} to {wanted}")

    def _element(self, place: MemrefPlace, indices: Sequence[ir.Value]) -> str:
        pointer = self._place(place)
        for value, stride in zip(indices, place.strides):
            pointer = self._moved(pointer, value, stride * place.width)
        return pointer

    def load(self, step: Step) -> None:
        """Write a memref.load of one element, which becomes a number."""
        place, *indices = step.operands
        kind = type_text(place.element)
        address = self._element(place, indices)
        if kind == "i1":
            byte = self.let(f"llvm.load {address} : !llvm.ptr -> i8")
            value = self.let(f"llvm.trunc {byte} : i8 to i1")
        else:
            value = self.let(f"llvm.load {address} : !llvm.ptr -> {kind}")
        self._values[step.op.results[0]] = value

    def store(self, step: Step) -> None:
        """Write a memref.store of one element."""
        number, place, *indices = step.operands
        kind, value = type_text(place.element), self._value(number)
        if kind == "i1":
            kind, value = "i8", self.let(f"llvm.zext {value} : i1 to i8")
        self.lines.append(
            f"llvm.store {value}, {self._element(place, indices)} : {kind}, !llvm.ptr"
        )


_METHODS = {
    "collective": "collective", "wait": "wait", "call": "call", "mw.member": "member",
    "routine": "routine", "host": "host",
    "memref.load": "load", "memref.store": "store",
    "scf.for": "for_loop", "scf.if": "if_else", "scf.while": "while_loop",
}  # fmt: skip
_LOADED = "!llvm.ptr -> !llvm.ptr"


def function_symbol(number: int | None) -> str:
    """Return the name of function `number` in the step's module."""
    return f"mw_function_{number}"


def _attribute(attr: ir.Attribute) -> str:
    """Return an attribute's text, with `index` numbers as i64."""
    return re.sub(r": index$", ": i64", str(attr))


def _global(name: str, data: bytes) -> str:
    """Write a constant buffer, byte for byte."""
    count = len(data)
    return (
        f'llvm.mlir.global internal constant @{name}(dense<"0x{data.hex()}"> : tensor<{count}xi8>) '
        f"{{addr_space = 0 : i32, alignment = 64 : i64}} : !llvm.array<{count} x i8>"
    )
