"""Write device kernels: a `gpu.func` of arith, scf, llvm and nvvm ops.

kernel = DeviceWriter("double", [Parameter("x", "!llvm.ptr<1>", align=4)], threads=256)
place = kernel.offset(kernel["x"], kernel.wide(kernel.thread() * 4))
kernel.store(kernel.load(place, "f32") * 2.0, place)
kernel.text()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshweave.lowering.writer import Value, Writer

GLOBAL = "!llvm.ptr<1>"
SHARED = "!llvm.ptr<3>"
Guard = Value | None  # an i1 that says whether something is done; None: it always is


@dataclass(frozen=True)
class Parameter:
    """Describe a parameter of a kernel.

    align: known alignment of the pointer in bytes; noalias, readonly: as LLVM means them.
    """

    name: str
    type: str
    align: int = 0
    noalias: bool = False
    readonly: bool = False

    @property
    def text(self) -> str:
        """Return the parameter as written in the signature."""
        marks = [f"llvm.align = {self.align} : i64"] if self.align else []
        marks += ["llvm.noalias"] * self.noalias + ["llvm.readonly"] * self.readonly
        if self.type.startswith("!llvm.ptr"):
            marks.append("llvm.noundef")
        return f"%{self.name}: {self.type}" + (f" {{{', '.join(marks)}}}" if marks else "")


class DeviceWriter(Writer):
    """Write a device kernel."""

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
        """Begin a kernel.

        threads: of a block, in one dimension. shared_bytes: declared by the kernel itself;
        dynamic_shared: given at launch instead. min_blocks: blocks that are to fit on a
        multiprocessor, which bounds the registers.
        """
        super().__init__()
        self.entry, self.parameters, self.threads = entry, tuple(parameters), threads
        self.shared_bytes, self.dynamic_shared = shared_bytes, dynamic_shared
        self.min_blocks = min_blocks
        self._shared: Value | None = None

    def parameter(self, name: str) -> Parameter:
        """Return the parameter of that name."""
        return next(p for p in self.parameters if p.name == name)

    def __getitem__(self, name: str) -> Value:
        """Return the value of a parameter."""
        return Value(self, f"%{name}", self.parameter(name).type)

    def text(self) -> str:
        """Return the body of a gpu.module: the kernel, and its shared memory."""
        marks = [f"nvvm.reqntid = array<i32: {self.threads}, 1, 1>"]
        marks += [f"nvvm.minctasm = {self.min_blocks} : i32"] if self.min_blocks else []
        signature = ", ".join(p.text for p in self.parameters)
        head = f"gpu.func @{self.entry}({signature}) kernel attributes {{{', '.join(marks)}}} {{"
        lines = [*self._globals(), head, *self.head, *self.lines, "gpu.return", "}", ""]
        return "\n".join(lines)

    def _globals(self) -> list[str]:
        if not (self.shared_bytes or self.dynamic_shared):
            return []
        linkage, count = ("external", 0) if self.dynamic_shared else ("internal", self.shared_bytes)
        return [
            f"llvm.mlir.global {linkage} @{self.entry}_shared() "
            f"{{addr_space = 3 : i32, alignment = 1024 : i64}} : !llvm.array<{count} x i8>"
        ]

    # Guards.

    def inside(self, number: Value, count: int, step: int) -> Guard:
        """Return whether `number` is below `count`; None where steps of `step` never go beyond it."""
        return self.compare("ult", number, count) if count % step else None

    def where(self, guard: Guard, body: Callable[[], None]) -> None:
        """Write the body, to be done where the guard holds."""
        if guard is None:
            body()
        else:
            self.if_(guard, body)

    def guarded(
        self, guard: Guard, body: Callable[[], Sequence[Value]], types: Sequence[str]
    ) -> list[Value]:
        """Return the values that the body gives; zeros where the guard does not hold."""
        if guard is None:
            return list(body())
        zeros = [self.constant(0, type_) for type_ in types]
        return self.if_(guard, body, lambda: zeros, types)

    # Threads and shared memory.

    def thread(self) -> Value:
        """Return the number of the thread in its block, an i32."""
        return self.let(f"nvvm.read.ptx.sreg.tid.x range <i32, 0, {self.threads}> : i32", "i32")

    def block(self, dim: str = "x") -> Value:
        """Return the number of the block in the grid, an i32."""
        return self.let(f"nvvm.read.ptx.sreg.ctaid.{dim} : i32", "i32")

    def shared(self, start: int = 0) -> Value:
        """Return the address of byte `start` of shared memory."""
        if self._shared is None:
            text = f"llvm.mlir.addressof @{self.entry}_shared : {SHARED}"
            self._shared = self.let_first(text, SHARED)
        return self.offset(self._shared, start) if start else self._shared

    def barrier(self, number: Value | int = 0, threads: int = 0) -> None:
        """Wait for every thread of the block; with `threads` for so many that come to barrier `number`."""
        self.add(f"nvvm.barrier{self._barrier(number, threads)}" if threads else "nvvm.barrier")

    def arrive(self, number: Value | int, threads: int) -> None:
        """Be one of the `threads` that a barrier waits for, and go on."""
        self.add(f"nvvm.barrier.arrive{self._barrier(number, threads)}")

    def _barrier(self, number: Value | int, threads: int) -> str:
        names = [self.as_value(value, "i32").name for value in (number, threads)]
        return f" id = {names[0]} number_of_threads = {names[1]}"

    def set_registers(self, count: int, more: bool) -> None:
        """Give this warpgroup so many registers a thread, more or less than it had."""
        self.add(f"nvvm.setmaxregister {'increase' if more else 'decrease'} {count}")

    def warp_barrier(self) -> None:
        """Wait for the 32 threads of the warp."""
        self.add(f"nvvm.bar.warp.sync {self.constant(-1).name} : i32")

    def shuffle_xor(self, value: Value, distance: int, width: int = 32) -> Value:
        """Return what the thread whose lane differs in bit `distance` holds, an i32 or f32.

        It is done in groups of `width` lanes, all of which must take part.
        """
        mask, lanes = self.constant(-1).name, self.constant(0x1F | (32 - width) << 8).name
        text = f"nvvm.shfl.sync bfly {mask}, {value.name}, {self.constant(distance).name}, {lanes}"
        return self.let(f"{text} : {value.type} -> {value.type}", value.type)

    def of_warp(self, value: Value) -> Value:
        """Return an i32 that the lanes of a warp have in common, in a way that assemblers see."""
        zero, lanes = self.constant(0).name, self.constant(0x1F).name
        text = f"nvvm.shfl.sync idx {self.constant(-1).name}, {value.name}, {zero}, {lanes}"
        return self.let(f"{text} : i32 -> i32", "i32")

    # Numbers.

    def most(self, left: Value, right: Value | int) -> Value:
        """Return the greater of two signed integers."""
        other = self.as_value(right, left.type)
        return self.let(f"arith.maxsi {left.name}, {other.name} : {left.type}", left.type)

    def larger(self, left: Value, right: Value) -> Value:
        """Return the larger of two floats; of a NaN and a number the number."""
        return self.let(f"arith.maxnumf {left.name}, {right.name} : {left.type}", left.type)

    def negative(self, value: Value) -> Value:
        """Return a float with the other sign."""
        return self.let(f"arith.negf {value.name} : {value.type}", value.type)

    def magnitude(self, value: Value) -> Value:
        """Return a float without its sign."""
        return self.let(f"math.absf {value.name} : {value.type}", value.type)

    def with_sign(self, value: Value, other: Value) -> Value:
        """Return an f32 that is negative, be it -0, where another is."""
        word, signs = (self.convert("llvm.bitcast", v, "i32") for v in (value, other))
        return self.convert("llvm.bitcast", word | signs & -(1 << 31), "f32")

    def inverse(self, value: Value) -> Value:
        """Return 1 by an f32, a unit off in the last place; subnormal numbers are 0."""
        return self.let(f"nvvm.rcp.approx.ftz.f {value.name} : f32", "f32")

    def exp2(self, value: Value) -> Value:
        """Return 2 to the power of an f32, a few units off in the last place; subnormal results are 0."""
        return self.let(f"nvvm.ex2 {value.name} {{ftz = true}} : f32", "f32")

    # Asynchronous copies and tensor cores.

    def copy_async(self, target: Value, source: Value, nbytes: int, some: Value | None) -> None:
        """Begin to copy `nbytes` (4, 8, 16) to shared memory, of which `some` are read, the rest zero."""
        cache = "cg" if nbytes == 16 else "ca"
        tail, kinds = (f", {some.name}", ", i32") if some is not None else ("", "")
        self.add(
            f"nvvm.cp.async.shared.global {target.name}, {source.name}, {nbytes}, cache = {cache}{tail}"
            f" : {SHARED}, {GLOBAL}{kinds}"
        )

    def commit_copies(self) -> None:
        """Make a group of the copies begun since the last call."""
        self.add("nvvm.cp.async.commit.group")

    def wait_copies(self, pending: int) -> None:
        """Wait until at most `pending` of this thread's groups are under way."""
        self.add(f"nvvm.cp.async.wait.group {pending}")

    def show_copies(self) -> None:
        """Let the tensor cores' own reads of shared memory see what this thread has written or copied there."""
        kind = "kind = #nvvm.proxy_kind<async.shared>, space = #nvvm.shared_space<cta>"
        self.add(f"nvvm.fence.proxy {{{kind}}}")

    def held(self, values: Sequence[Value]) -> Value:
        """Return a struct of registers, f32 or i32, that hold these from here on; LLVM would fill them at their use."""
        types = ", ".join([value.type for value in values])
        results = [{"f32": "=f", "i32": "=r"}[value.type] for value in values]
        ties = ",".join([*results, *map(str, range(len(values)))])
        names = ", ".join(value.name for value in values)
        kind = f"!llvm.struct<({types})>"
        text = f'llvm.inline_asm has_side_effects asm_dialect = att "", "{ties}" {names}'
        return self.let(f"{text} : ({types}) -> {kind}", kind)

    def load_matrices(self, pointer: Value, transpose: bool = False) -> list[Value]:
        """Load four 8x8 matrices of 16-bit elements, one i32 each; lane l gives the address of row l."""
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


def both(one: Guard, other: Guard) -> Guard:
    """Return the guard that holds where two do."""
    return other if one is None else one if other is None else one & other
