"""Write host code of the cpu: kernels that the cores of a rank share, and loops whose iterations they share.

The body of such a loop is a function of its own, `mw_loop_k(ptr cells, i64 number, ptr scratch)`: it finds in `cells`
what it needs of the function around it, and keeps its own buffers in the scratch memory of the core, or in the arena
where there is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from meshweave.abi import HOST_CALL, PURE, TraceBuffer
from meshweave.ir.bindings import ir
from meshweave.ir.calls import HostCall, called
from meshweave.ir.locations import location_text
from meshweave.lowering.buffers.function_plan import FunctionPlan
from meshweave.lowering.buffers.steps import Root, Step
from meshweave.lowering.cpu.collectives.cores import SHARE
from meshweave.lowering.cpu.iterations import SharedLoop, shared_loop
from meshweave.lowering.host.branches import type_text
from meshweave.lowering.host.emit import Code, Emitter
from meshweave.lowering.host.marks import MARK, MARK_TYPES
from meshweave.lowering.host.slices import ALONE, TraceSlice, trace_slices
from meshweave.lowering.nests.rows import Entry, KernelUnit

_POINTER = "!llvm.ptr"


class CpuEmitter(Emitter):
    """Write a function of the program."""

    def __init__(self, code: Code, plan: FunctionPlan, called: bool) -> None:
        super().__init__(code, plan, called)
        self._slices: dict[int, TraceSlice] = {}
        # How many kernels have slices of their own; None in a loop that is one slice.
        self._alone: int | None = 0 if called else ALONE

    def unit(self, unit: KernelUnit) -> None:
        """Call a kernel, which may take the cores of the rank."""
        self._mark_slice(unit)
        self._call_kernel(unit, self.code.name_of(unit))

    def routine(self, step: Step) -> None:
        """Call a routine."""
        self._mark(self._kernel(called(step.op).title, location_text(step.op.location)))
        super().routine(step)

    def host(self, step: Step) -> None:
        """Call a function of Python with the places of what it is given and of what it gives."""
        said = HostCall.of(step.op)
        self._mark(self._kernel(said.title, location_text(step.op.location)))
        places = [self._place(place) for place in (*step.operands, *step.outputs)]
        cells = self._cells(max(1, len(places)))
        for k, place in enumerate(places):
            at = self._behind(cells, 8 * k)
            self.lines.append(f"llvm.store {place}, {at} : {_POINTER}, {_POINTER}")
        types = f"(i64, i64, {_POINTER})"
        self.code.declared[HOST_CALL] = types
        rank = self._slot(self.slots.rank, "i64") if said.by_first else None
        rank = rank or self.i64(0 if said.effects else PURE)
        given = f"{self.i64(said.number)}, {rank}, {cells}"
        self.lines.append(f"llvm.call @{HOST_CALL}({given}) : {types} -> ()")

    def for_loop(self, step: Step) -> None:
        """Write an scf.for, or have the cores do its iterations."""
        loop = shared_loop(step, self.plan)
        if loop is None:
            with self._rounds(step):
                super().for_loop(step)
            return
        self._mark(self._kernel("loop", location_text(step.op.location)))
        body = _LoopBody(self.code, self.plan, self.called, loop)
        name = self.code.add_loop(body.text_of(step), loop.high - loop.low)
        outer = [(name, _POINTER) for name in body.outer]
        numbers = [(self._value(v), type_text(v.type)) for v in body.captured]
        cells = self._cells(len(outer) + len(numbers))
        for k, (value, type_) in enumerate((*outer, *numbers)):
            self.lines.append(
                f"llvm.store {value}, {self._behind(cells, 8 * k)} : {type_}, {_POINTER}"
            )
        function = self.let(f"llvm.mlir.addressof @{name} : {_POINTER}")
        given = [self._slot(self.slots.cores), function, cells, self.i64(loop.count)]
        types = f"({_POINTER}, {_POINTER}, {_POINTER}, i64)"
        self.code.declared[SHARE] = types
        self.lines.append(f"llvm.call @{SHARE}({', '.join(given)}) : {types} -> ()")

    def while_loop(self, step: Step) -> None:
        """Write an scf.while."""
        with self._rounds(step):
            super().while_loop(step)

    @contextmanager
    def _rounds(self, step: Step) -> Iterator[None]:
        """Mark a quiet loop, or what its rounds do."""
        self._mark_slice(step)
        before = self._alone
        self._alone = None if before is None or id(step) in self._slices else 0
        yield
        self._alone = before

    def _entries(self, entries: Sequence[Entry]) -> None:
        if self._alone is not None:
            found = trace_slices(entries, self._alone)
            self._slices |= found
            self._alone = max(0, self._alone - len(found))
        super()._entries(entries)

    def _mark_slice(self, entry: Entry) -> None:
        """Mark what begins a slice of a trace."""
        if (found := self._slices.get(id(entry))) is not None:
            self._mark(self._kernel(found.name, found.where))

    def _kernel(self, name: str, where: str) -> int:
        return TraceBuffer.KERNEL + self.code.mark(name, where)

    def _mark(self, what: int) -> None:
        """Tell whoever traces what begins now."""
        given = f"{self._slot(self.slots.status)}, {self.i64(what)}"
        self.code.declared[MARK] = MARK_TYPES
        self.lines.append(f"llvm.call @{MARK}({given}) : {MARK_TYPES} -> ()")

    def _cells(self, count: int) -> str:
        """Reserve memory where the function begins: in a loop it would be reserved again and again."""
        self._count += 1
        name = f"%cells{self._count}"
        self.lines[:0] = [
            f"{name}_count = llvm.mlir.constant({count} : i64) : i64",
            f"{name} = llvm.alloca {name}_count x i64 : (i64) -> {_POINTER}",
        ]
        return name


class _LoopBody(Emitter):
    """Write the function that does one iteration of a loop. captured: numbers of the function around it."""

    def __init__(self, code: Code, plan: FunctionPlan, called: bool, loop: SharedLoop) -> None:
        super().__init__(code, plan, called)
        self.loop = loop
        self.captured: list[ir.Value] = []
        buffers = plan.buffers
        self.outer = ["%ctx", "%frame"]  # pointers of the function around it
        if called:
            self.outer += [f"%in{k}" for k in range(buffers.inputs)]
            self.outer += [f"%out{k}" for k in range(buffers.outputs)]

    def text_of(self, step: Step) -> str:
        """Return the function, but for its name."""
        counter = step.op.regions[0].blocks[0].arguments[0]
        scaled = self.let(f"llvm.mul %number, {self.i64(self.loop.step)} : i64")
        number = self.let(f"llvm.add {scaled}, {self.i64(self.loop.first)} : i64")
        kind = type_text(counter.type)
        if kind != "i64":
            number = self.let(f"llvm.trunc {number} : i64 to {kind}")
        self._values[counter] = number
        arena = self._behind("%frame", self.loop.low)
        none = self.let(f"llvm.mlir.zero : {_POINTER}")
        alone = self.let(f'llvm.icmp "eq" %scratch, {none} : {_POINTER}')
        self.lines.append(f"%own = llvm.select {alone}, {arena}, %scratch : i1, {_POINTER}")
        self._entries(step.bodies[0])
        written, self.lines = self.lines, []
        names = [*self.outer, *(self._values[value] for value in self.captured)]
        types = [*[_POINTER] * len(self.outer), *(type_text(v.type) for v in self.captured)]
        for k, (name, type_) in enumerate(zip(names, types)):
            self.lines.append(
                f"{name} = llvm.load {self._behind('%cells', 8 * k)} : {_POINTER} -> {type_}"
            )
        body = "\n".join([*self.lines, *written, "llvm.return"])
        parameters = f"%cells: {_POINTER}, %number: i64, %scratch: {_POINTER}"
        return f"({parameters}) {{\n{body}\n}}\n"

    def unit(self, unit: KernelUnit) -> None:
        """Call a kernel that one core runs."""
        self._call_kernel(unit, self.code.alone_of(unit))

    def _value(self, value: ir.Value) -> str:
        if value not in self._values:
            self._values[value] = f"%outer{len(self.captured)}"
            self.captured.append(value)
        return self._values[value]

    def _base(self, root: Root) -> tuple[str, int]:
        if root in self.loop.own:
            return "%own", root.offset - self.loop.low
        return super()._base(root)
