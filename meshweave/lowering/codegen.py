"""Text of kernels and of the step function to machine code: upstream's conversions, then LLVM, in one
ELF object: what LLVM sets up for an object takes as long as a small program.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Mapping
from typing import Any

from meshweave.bindings import ir
from meshweave.errors import CompileError
from meshweave.lowering import mathpoly
from meshweave.lowering.bufferize import run_passes
from meshweave.lowering.collectives import object_of

# bf16 is computed in f32 and rounded to nearest even by integer code: the machine's own conversion
# flushes denormals.
SMALL_FLOATS = (
    "math-extend-to-supported-types{target-type=f32},"
    "arith-emulate-unsupported-floats{source-types=bf16 target-type=f32},canonicalize,"
    "func.func(arith-expand{include-bf16=true})"
)
TO_LLVM = (
    "convert-scf-to-cf,convert-math-to-llvm,convert-math-to-libm,convert-func-to-llvm,convert-arith-to-llvm,"
    "convert-index-to-llvm,convert-ub-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"
)
KERNELS = f"builtin.module({SMALL_FLOATS},canonicalize,cse,{TO_LLVM})"
STEP = (
    "builtin.module(convert-math-to-llvm,convert-math-to-libm,convert-arith-to-llvm,"
    "convert-func-to-llvm,reconcile-unrealized-casts)"
)


def program_object(step: str, kernels: str, known: set[str], places: Mapping[str, str]) -> bytes:
    """The object of the step function, which is not optimised, and of the kernels, at O3, that it calls.

    known: functions that the program's other objects or its libraries have; the C library's are
    looked up. places: where in the source each kernel comes from. Raises CompileError there for an op
    or function that does not exist on this target.
    """
    module = ir.Module.parse(kernels)
    mathpoly.run(module)
    try:
        run_passes(module, KERNELS)
    except CompileError as error:
        raise _in_source(error, kernels, places) from None
    names = {_symbol(view.operation) for view in module.body.operations}
    for view in _step_module(step).body.operations:
        if _symbol(view.operation) in names:
            continue  # declared there, defined here; or declared twice
        op = view.operation.clone(ir.InsertionPoint(module.body)).operation
        if op.name == "llvm.func" and len(op.regions[0].blocks):
            for plain in ("no_inline", "optimize_none"):
                op.attributes[plain] = ir.UnitAttr.get()
    return _object(module, known, places, 3)


def _symbol(op: Any) -> str | None:
    return op.attributes["sym_name"].value if "sym_name" in op.attributes else None


def _step_module(text: str) -> Any:
    module = ir.Module.parse(text)
    run_passes(module, STEP)
    return module


def _in_source(error: CompileError, text: str, places: Mapping[str, str]) -> CompileError:
    """The error of a pass on the text of kernels, as one about the source."""
    found = re.search(r"operation '([\w.]+)'", error.message)
    what = f"{found[1]}: no lowering for this op on target cpu" if found else error.message
    line = int(error.location.split(":")[-2]) if error.location and ":" in error.location else 0
    names = re.findall(r"^func\.func @(\w+)", "\n".join(text.split("\n")[:line]), re.MULTILINE)
    return CompileError(what, places.get(names[-1]) if names else None)


def step_object(text: str, known: set[str]) -> bytes:
    """The object of the step function alone, which may call the functions `known` and the C library."""
    return _object(_step_module(text), known, {}, 0)


def _object(module: Any, known: set[str], places: Mapping[str, str], opt_level: int) -> bytes:
    externals: set[str] = set()
    for view in module.body.operations:
        op = view.operation
        name = _symbol(op)
        if name is not None and op.name == "llvm.func" and not len(op.regions[0].blocks):
            externals.add(name)
        _check(op, known, places.get(name or ""))
    return object_of(module, sorted(externals), opt_level)


def _check(function: Any, known: set[str], where: str | None) -> None:
    """Refuse ops outside the LLVM dialect, which would end the process in LLVM's hands, and calls
    of functions that no library has.
    """
    problems: list[str] = []

    def visit(op: Any) -> Any:
        if not op.name.startswith("llvm."):
            problems.append(f"{op.name}: no lowering for this op on target cpu")
        elif op.name == "llvm.call" and "callee" in op.attributes:
            name = op.attributes["callee"].value
            if name not in known and not hasattr(_LIBM, name):
                problems.append(f"{name}: no library of target cpu has this function")
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    if problems:
        raise CompileError(problems[0], where)


_LIBM = ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")
