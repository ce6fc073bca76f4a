"""Import MLIR, in the one place that does: the `torch-mlir` wheel, or the official `mlir` package if that is installed.

All other files say `from meshweave.ir.bindings import ir, ...`. A context comes from `meshweave.dialects`.
"""

from functools import cache
from importlib import import_module
from types import ModuleType, SimpleNamespace

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
    "execution_library",
    "ext",
    "ir",
    "linalg",
    "llvm",
    "math",
    "stablehlo",
    "torch_importer",
    "transform_interpreter",
]

# Resolving the Python class of an op imports a module named after its namespace; our own are searched first
# (meshweave/dialects/*.py). Some of ours are empty: for namespaces without a module, since a failed import is repeated
# each time, and for namespaces whose modules load slowly and whose classes we do not use.
_globals = _ods_common._cext.globals
_globals.dialect_search_modules = ["meshweave.dialects", *_globals.dialect_search_modules]


@cache
def execution_library() -> ModuleType:
    """Return the extension module of `ExecutionEngine`, whose library has its functions of the C interface."""
    return import_module(f"{PACKAGE}._mlir_libs._mlirExecutionEngine")


@cache
def llvm() -> ModuleType:
    """Return the module that translates the LLVM dialect to LLVM IR."""
    return import_module(f"{PACKAGE}.dialects.llvm")


@cache
def transform_interpreter() -> ModuleType:
    """Return the module that runs scripts of the transform dialect."""
    return import_module(f"{PACKAGE}.dialects.transform.interpreter")


@cache
def stablehlo() -> ModuleType | None:
    """Return the StableHLO bindings with their passes registered, or None when this package has none."""
    if PACKAGE != "torch_mlir":
        return None
    import_module(f"{PACKAGE}._mlir_libs._torchMlir")  # registers stablehlo-legalize-to-linalg
    bindings = import_module(f"{PACKAGE}._mlir_libs._stablehlo")
    bindings.register_stablehlo_passes()
    return bindings


@cache
def torch_importer() -> SimpleNamespace | None:
    """Return torch-mlir's importer of FX graphs, or None when this package has none. Requires PyTorch.

    importer: the module of FxImporter and GraphNodeImporter. decompositions: the table for ops it cannot import.
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
