"""Run a module in the global view on one rank: constraints say nothing there, so they are taken
out. For tests only.
"""

import ctypes
from typing import Any

import numpy as np

from meshweave.ir.bindings import ExecutionEngine, PassManager, ir
from meshweave.ir.factorizations import in_loops as factored_in_loops
from meshweave.ir.ops import replace_op
from meshweave.ir.routines import LAPACK
from meshweave.ir.scans import SCAN, by_doubling
from meshweave.ir.scatters import SCATTER, in_rounds
from meshweave.ir.sorting import ORDER, SORT, in_passes, spread
from meshweave.lowering.host.narrow import CONVERSIONS, round_once
from meshweave.transforms.base import ops_of

_LOWER = (
    "builtin.module(convert-tensor-to-linalg,"
    "one-shot-bufferize{bufferize-function-boundaries=true "
    "function-boundary-type-conversion=identity-layout-map allow-return-allocs-from-loops=true},"
    "buffer-results-to-out-params{hoist-static-allocs=true modify-public-functions=true},"
    "canonicalize,func.func(refback-munge-memref-copy),convert-bufferization-to-memref,"
    "func.func(convert-linalg-to-loops),expand-strided-metadata,lower-affine,convert-scf-to-cf,"
    "func.func(math-extend-to-supported-types{target-type=f32},"
    "arith-emulate-unsupported-floats{source-types=bf16 target-type=f32},"
    "arith-expand{include-bf16=true}),func.func(math-expand-ops),"
    "convert-math-to-llvm,convert-math-to-libm,convert-to-llvm,reconcile-unrealized-casts)"
)


def run(module: Any, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Results of @main for `inputs`, in order."""
    with module.context, ir.Location.unknown():
        outputs = _strip(module)
        for op in ops_of(module.operation, SCAN):
            replace_op(op.operation, by_doubling(op.operation))
        for op in ops_of(module.operation, SCATTER):
            replace_op(op.operation, in_rounds(op.operation, in_rows=False))
        for op in ops_of(module.operation, SORT):
            replace_op(op.operation, spread(op.operation))
        for op in ops_of(module.operation, ORDER):
            replace_op(op.operation, [in_passes(op.operation)])
        for op in ops_of(module.operation, LAPACK):
            replace_op(op.operation, factored_in_loops(op.operation))
        round_once(  # LLVM's own way is a function that no library here has, on some CPUs
            op.operation for op in ops_of(module.operation, *CONVERSIONS)
        )
        PassManager.parse(_LOWER).run(module.operation)
        engine = ExecutionEngine(module, opt_level=1)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.raw_lookup("_mlir_ciface_main"))
    arrays = [np.array(a, order="C") for a in inputs] + outputs
    descriptors = [_descriptor(a) for a in arrays]
    pointers = [ctypes.pointer(d) for d in descriptors]
    packed = (ctypes.c_void_p * len(pointers))(*[ctypes.addressof(p) for p in pointers])
    function(ctypes.addressof(packed))
    return outputs


def _strip(module: Any) -> list[np.ndarray]:
    """Take the dist ops and attributes out; empty arrays for the results."""
    doomed: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in ("dist.constrain", "dist.mesh"):
            doomed.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in doomed:
        for result in op.results:
            result.replace_all_uses_with(op.operands[0])
        op.erase()
    (main,) = module.body.operations
    kind = main.attributes["function_type"].value
    readonly = ir.DictAttr.get({"bufferization.writable": ir.BoolAttr.get(False)})
    main.attributes["arg_attrs"] = ir.ArrayAttr.get([readonly] * len(kind.inputs))
    if "res_attrs" in main.attributes:
        del main.attributes["res_attrs"]
    main.attributes["llvm.emit_c_interface"] = ir.UnitAttr.get()
    return [np.zeros(t.shape, _dtype(t.element_type)) for t in kind.results]


def _dtype(element: Any) -> Any:
    names = {"bf16": "uint16", "i1": "bool", "f16": "float16", "f32": "float32", "f64": "float64"}
    text = str(element)
    return np.dtype(names.get(text, f"int{text[1:]}"))


def _descriptor(array: np.ndarray) -> Any:
    class Memref(ctypes.Structure):
        _fields_ = [
            ("base", ctypes.c_void_p),
            ("data", ctypes.c_void_p),
            ("offset", ctypes.c_int64),
            *(
                [("sizes", ctypes.c_int64 * array.ndim), ("strides", ctypes.c_int64 * array.ndim)]
                if array.ndim
                else []
            ),
        ]

    where = array.ctypes.data
    if not array.ndim:
        return Memref(where, where, 0)
    return Memref(where, where, 0, array.shape, tuple(s // array.itemsize for s in array.strides))
