"""The one import of MLIR: the bindings of the `torch-mlir` wheel, or the official `mlir` package where that is
installed.

Everything else says `from meshweave.bindings import ir, ...`. `context()` gives a context that knows our dialects,
ready to parse. The contexts stay single-threaded: Python verifiers on MLIR's worker threads would deadlock on the
interpreter lock.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

try:
    from torch_mlir import ir
    from torch_mlir._mlir_libs import _mlirDialectsLinalg as linalg
    from torch_mlir.dialects import _ods_common, arith, ext, math
    from torch_mlir.execution_engine import ExecutionEngine
    from torch_mlir.passmanager import PassManager

    PACKAGE = "torch_mlir"
except ImportError:  # pragma: no cover - needs a machine with the official package
    from mlir import ir
    from mlir._mlir_libs import _mlirDialectsLinalg as linalg
    from mlir.dialects import _ods_common, arith, ext, math
    from mlir.execution_engine import ExecutionEngine
    from mlir.passmanager import PassManager

    PACKAGE = "mlir"

__all__ = [
    "PACKAGE",
    "ExecutionEngine",
    "PassManager",
    "arith",
    "context",
    "ext",
    "ir",
    "lent_context",
    "linalg",
    "llvm",
    "math",
    "stablehlo",
    "torch_importer",
    "transform_interpreter",
]

# Resolving the Python class of an op imports a module named after its namespace: our own are looked at first
# (meshweave/dialects/*.py). Empty ones stand for namespaces without a module, since a failed import is tried again each
# time, and for those whose modules take long to import, and whose classes we do not use.
_globals = _ods_common._cext.globals
_globals.dialect_search_modules = ["meshweave.dialects", *_globals.dialect_search_modules]


@cache
def llvm() -> Any:
    """The module that translates the LLVM dialect to LLVM IR."""
    return import_module(f"{PACKAGE}.dialects.llvm")


@cache
def transform_interpreter() -> Any:
    """The module that runs scripts of the transform dialect."""
    return import_module(f"{PACKAGE}.dialects.transform.interpreter")


@cache
def stablehlo() -> ModuleType | None:
    """The StableHLO bindings with their passes registered, or None when this package has none."""
    if PACKAGE != "torch_mlir":
        return None
    from torch_mlir._mlir_libs import _stablehlo, _torchMlir  # noqa: F401 (registers stablehlo-legalize-to-linalg)

    _stablehlo.register_stablehlo_passes()
    return _stablehlo


@cache
def torch_importer() -> Any:
    """torch-mlir's importer of FX graphs, or None when this package has none. PyTorch must be there.

    importer: the module of FxImporter and GraphNodeImporter. decompositions: the table for what it cannot import.
    register: makes a context know the torch dialect.
    """
    if PACKAGE != "torch_mlir":
        return None
    from torch_mlir._mlir_libs import _torchMlir  # noqa: F401 (registers torch's passes)
    from torch_mlir.dialects import torch
    from torch_mlir.extras import fx_importer
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table

    return SimpleNamespace(
        importer=fx_importer,
        decompositions=get_decomposition_table,
        register=torch.register_dialect,
    )


def context(unregistered: bool = False) -> Any:
    """A new context with the `dist`, `hint` and (where available) `stablehlo` dialects loaded.

    unregistered: also accept ops of dialects nobody has registered (`sdy`, `chlo` in what JAX exports).
    """
    from meshweave.dialects import load

    ctx = ir.Context()
    load(ctx)
    if (hlo := stablehlo()) is not None:
        hlo.register_dialect(ctx, True)
    ctx.allow_unregistered_dialects = unregistered
    return ctx


_USES = 32  # a context keeps all types and attributes that were ever made in it
_IDLE: deque[tuple[Any, int]] = deque(maxlen=2)


@contextmanager
def lent_context(small: bool) -> Iterator[Any]:
    """A context as `context(unregistered=True)` gives, for programs that are compiled one after another: making one
    takes as long as the passes on a small program. What is given back is lent again, to one at a time and a number of
    times; not after an error, and not when it has held a program that is not small.
    """
    try:
        ctx, uses = _IDLE.pop()
    except IndexError:
        ctx, uses = context(unregistered=True), 0
    yield ctx
    if small and uses + 1 < _USES:
        _IDLE.append((ctx, uses + 1))
