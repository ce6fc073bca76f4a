"""The one import of MLIR: the bindings of the `torch-mlir` wheel, or the official `mlir` package where that is
installed.

Everything else says `from meshweave.bindings import ir, ...`. `context()` gives a context that knows our dialects,
ready to parse. The contexts stay single-threaded: Python verifiers on MLIR's worker threads would deadlock on the
interpreter lock.
"""

from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

try:
    from torch_mlir import ir
    from torch_mlir.dialects import (
        _ods_common,
        arith,
        bufferization,
        ext,
        func,
        linalg,
        llvm,
        math,
        memref,
        scf,
        tensor,
    )
    from torch_mlir.dialects.transform import interpreter as transform_interpreter
    from torch_mlir.execution_engine import ExecutionEngine
    from torch_mlir.passmanager import PassManager

    PACKAGE = "torch_mlir"
except ImportError:  # pragma: no cover - needs a machine with the official package
    from mlir import ir
    from mlir.dialects import (
        _ods_common,
        arith,
        bufferization,
        ext,
        func,
        linalg,
        llvm,
        math,
        memref,
        scf,
        tensor,
    )
    from mlir.dialects.transform import interpreter as transform_interpreter
    from mlir.execution_engine import ExecutionEngine
    from mlir.passmanager import PassManager

    PACKAGE = "mlir"

__all__ = [
    "PACKAGE",
    "ExecutionEngine",
    "PassManager",
    "arith",
    "bufferization",
    "context",
    "ext",
    "func",
    "ir",
    "linalg",
    "llvm",
    "math",
    "memref",
    "scf",
    "stablehlo",
    "tensor",
    "torch_importer",
    "transform_interpreter",
]

# Resolving the Python class of an op tries to import a module named after its namespace, and a failed import is not
# cached: with this prefix our own modules answer (meshweave/dialects/*.py, empty ones for stablehlo and mpi).
_ods_common._cext.globals.append_dialect_search_prefix("meshweave.dialects")


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
