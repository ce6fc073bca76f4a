"""Compile the text of kernels and of the step function: upstream's conversions, then LLVM.

A small program is one ELF object, because what LLVM sets up for an object takes as long as such a program; a larger
one is cut into several, which threads compile side by side.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from meshweave.abi import HOST_CALL, TraceBuffer
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.ops import ADVANCE, ops_named, ops_where, replace_op
from meshweave.lowering.buffers.bufferize import run_passes
from meshweave.lowering.cpu import lapack
from meshweave.lowering.cpu.collectives.cores import SHARE
from meshweave.lowering.cpu.collectives.objects import object_of
from meshweave.lowering.cpu.mathpoly.replace import replace_functions
from meshweave.lowering.cpu.parts import Names, is_optimised, names_in, symbol_of, take_parts
from meshweave.lowering.cpu.products import blas
from meshweave.plan.machine import vectors

# bf16 is computed in f32 and rounded to nearest even by integer code: the machine's own conversion
# flushes denormals.
SMALL_FLOATS = (
    "math-extend-to-supported-types{target-type=f32},"
    "arith-emulate-unsupported-floats{source-types=bf16 target-type=f32},canonicalize,"
)
TO_LLVM = (
    "convert-scf-to-cf,convert-math-to-llvm,convert-math-to-libm,convert-func-to-llvm,convert-arith-to-llvm,"
    "convert-index-to-llvm,convert-ub-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)
KERNELS = f"func.func(arith-expand{{include-bf16=true}}),canonicalize,cse,{TO_LLVM}"
_MOVES = {
    f"llvm.{name}"
    for name in ("load", "store", "select", "bitcast", "mlir.constant", "br", "cond_br")
}
STEP = (
    "builtin.module(convert-math-to-llvm,convert-math-to-libm,convert-arith-to-llvm,"
    "convert-func-to-llvm,reconcile-unrealized-casts)"
)


def llvm_functions(
    step: str, kernels: str, places: Mapping[str, str], calls: Collection[str]
) -> ir.Module:
    """Return the step function, which is not to be optimised, and the kernels that it calls, in the LLVM dialect.

    places: where in the source each kernel comes from. calls: functions of other objects of the program. Raises
    CompileError at the place for an op or function that does not exist on this target.
    """
    module = ir.Module.parse(kernels)
    replace_functions(module)
    try:
        small = SMALL_FLOATS if "f16" in kernels else ""
        run_passes(module, f"builtin.module({small}{KERNELS})")
    except CompileError as error:
        raise _in_source(error, kernels, places) from None
    if "llvm.loop_annotation" in kernels:
        _tell_of_loops(module)
    for view in module.body.operations if small else ():
        if not ops_where(view.operation, lambda op: not _is_moved(op)):
            _as_bits(view.operation)
    _use_whole_vectors(module)
    names = {symbol_of(view.operation) for view in module.body.operations}
    for view in _step_module(step).body.operations:
        if symbol_of(view.operation) in names:
            continue  # declared there, defined here; or declared twice
        op = view.operation.clone(ir.InsertionPoint(module.body)).operation
        if op.name == "llvm.func" and len(op.regions[0].blocks):
            for plain in ("no_inline", "optimize_none"):
                op.attributes[plain] = ir.UnitAttr.get()
    check_functions(module, calls, places)
    return module


def _tell_of_loops(module: ir.Module) -> None:
    """Say to LLVM what is said of loops: upstream's conversions leave it under a name that its translation ignores."""
    for op in ops_named(module.operation, "llvm.br"):
        if "llvm.loop_annotation" in op.attributes:
            op.attributes["loop_annotation"] = op.attributes["llvm.loop_annotation"]
            del op.attributes["llvm.loop_annotation"]


def _use_whole_vectors(module: ir.Module) -> None:
    """Let LLVM use all bits of this machine's vectors: by itself it takes half of Intel's, for older ones' sake."""
    bits = ir.StringAttr.get(str(8 * vectors().nbytes))
    width = ir.ArrayAttr.get([ir.StringAttr.get("prefer-vector-width"), bits])
    for view in module.body.operations:
        if len(view.operation.regions[0].blocks):
            view.operation.attributes["passthrough"] = ir.ArrayAttr.get([width])


def _as_bits(function: ir.Operation) -> None:
    """Let values of bf16, which by now are only moved about, be their bits.

    LLVM would choose between vectors of them in f32, and to shorten that call a function of its runtime library, which
    is not there.
    """
    i16 = ir.IntegerType.get_signless(16)
    for op in ops_where(function, lambda op: True):
        arguments = [a for region in op.regions for block in region for a in block.arguments]
        for value in (*op.results, *arguments):
            if isinstance(value.type, ir.BF16Type):
                value.set_type(i16)
        number = op.attributes["value"] if op.name == "llvm.mlir.constant" else None
        if number is not None and isinstance(number.type, ir.BF16Type):
            bits = np.float32(number.value).view(np.int32) >> 16
            op.attributes["value"] = ir.IntegerAttr.get(i16, int(bits))
    for op in ops_named(function, "llvm.bitcast"):
        if op.results[0].type == op.operands[0].type:
            replace_op(op, [op.operands[0]])


def _is_moved(op: ir.Operation) -> bool:
    """Tell whether an op does no more to a bf16 than move it."""
    values = (*op.operands, *op.results)
    return op.name in _MOVES or not any(isinstance(v.type, ir.BF16Type) for v in values)


def declares(module: ir.Module, name: str) -> bool:
    """Tell whether a module names a function."""
    return any(symbol_of(view.operation) == name for view in module.body.operations)


def _step_module(text: str) -> ir.Module:
    module = ir.Module.parse(text)
    if "bf16" in text:
        run_passes(module, f"builtin.module({SMALL_FLOATS}arith-expand{{include-bf16=true}})")
    run_passes(module, STEP)
    return module


def _in_source(error: CompileError, text: str, places: Mapping[str, str]) -> CompileError:
    """Return the error of a pass on the text of kernels as one about the source."""
    found = re.search(r"operation '([\w.]+)'", error.message)
    what = f"{found[1]}: no lowering for this op on target cpu" if found else error.message
    line = int(error.location.split(":")[-2]) if error.location and ":" in error.location else 0
    names = re.findall(r"^func\.func @(\w+)", "\n".join(text.split("\n")[:line]), re.MULTILINE)
    return CompileError(what, places.get(names[-1]) if names else None)


def step_object(text: str, known: Collection[str], processor: str) -> bytes:
    """Compile the step function alone, which may call the functions `known` and the C library.

    processor: see `object_of`.
    """
    module = _step_module(text)
    check_functions(module, known, {})
    return object_of(module, _externals(module), 0, processor=processor)


class _QuickSwitching:
    """Let a thread that comes back from LLVM have Python's lock soon: it waits 5 ms for it by default.

    Several compiles may be inside at once; after the last the interval is what it was before the first.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _SECONDS))
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._before)


_SECONDS = 0.0003  # of a thread's turn
_SWITCHING = _QuickSwitching()


def machine_code(
    module: ir.Module, meanwhile: Callable[[], object] = lambda: None
) -> tuple[bytes, ...]:
    """Compile a module that `llvm_functions` has made to ELF objects, side by side.

    meanwhile: what one more thread does, once LLVM makes the code of the step. All else holds Python's lock: there, two
    threads would hold each other up. What it raises is raised.
    """
    ops = [view.operation for view in module.body.operations]
    named = {symbol_of(op): names_in(op) for op in ops}
    whole = _kept_apart(ops, named)
    parts = take_parts(module, named)
    for op in () if parts else whole:
        op.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<internal>")
    workers = min(len(parts), len(os.sched_getaffinity(0))) + 1
    with _SWITCHING, ThreadPoolExecutor(workers) as threads:
        work = list[Future[object]]()
        made = threads.map(_part_object, parts)
        first = object_of(
            module, _externals(module), begins=lambda: work.append(threads.submit(meanwhile))
        )
        for one in work:
            one.result()
        return first, *made


def _kept_apart(
    ops: Sequence[ir.Operation], named: Mapping[str | None, Names]
) -> list[ir.Operation]:
    """Keep LLVM from making the code of kernels twice; return the functions that only the module calls.

    ops: of the module. named: what each names, by its own name.

    MLIR's execution engine adds a wrapper to each function that is not internal, and LLVM would inline kernels there.
    """
    kernels = {symbol_of(op): op for op in ops if is_optimised(op)}
    called = set[str]().union(
        *(one.addressed if name in kernels else one.all for name, one in named.items())
    )
    for name in called & kernels.keys():
        kernels[name].attributes["no_inline"] = ir.UnitAttr.get()
    inside = set[str]().union(*(one.all for one in named.values())) & kernels.keys()
    inside -= {TraceBuffer.MARK}  # the runtime looks it up
    return [kernels[name] for name in inside]


def _part_object(part: str) -> bytes:
    """Compile a part of a module, in a context that no other thread uses."""
    with ir.Context() as context, ir.Location.unknown():
        context.enable_multithreading(False)
        module = ir.Module.parse(part)
        return object_of(module, _externals(module), alone=True)


def _externals(module: ir.Module) -> list[str]:
    """Return the names of the functions that a module only declares."""
    ops = [view.operation for view in module.body.operations]
    declared = [op for op in ops if op.name == "llvm.func" and not len(op.regions[0].blocks)]
    return sorted(name for op in declared if (name := symbol_of(op)))


def check_functions(module: ir.Module, calls: Collection[str], places: Mapping[str, str]) -> None:
    """Refuse what would end the process in LLVM's hands: ops outside the LLVM dialect, calls of unknown functions.

    calls: functions of other objects of the program. places: where functions come from in the source.
    """
    ops = [view.operation for view in module.body.operations]
    own = {symbol_of(op) for op in ops if op.name == "llvm.func" and len(op.regions[0].blocks)}
    known = {
        *own,
        *calls,
        *blas.SYMBOLS.values(),
        *blas.VECTORS.values(),
        *lapack.symbols(),
        SHARE,
        HOST_CALL,
    }
    for op in ops:
        if op.name != "mw.program":
            _check(op, known, places.get(symbol_of(op) or ""))


def _check(function: ir.Operation, known: Collection[str | None], where: str | None) -> None:
    problems: list[str] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if not op.name.startswith("llvm."):
            problems.append(f"{op.name}: no lowering for this op on target cpu")
        elif op.name == "llvm.call" and "callee" in op.attributes:
            name = op.attributes["callee"].value
            if name not in known and not hasattr(_LIBM, name):
                problems.append(f"{name}: no library of target cpu has this function")
        return ADVANCE

    function.walk(visit)
    if problems:
        raise CompileError(problems[0], where)


_LIBM = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
