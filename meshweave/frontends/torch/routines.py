"""Bring calls of LAPACK through torch-mlir's pipelines: as calls of functions without a body, named for the routine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshweave.frontends.stablehlo.inline import callee_of
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.lapack import lapack
from meshweave.ir.ops import functions_of, ops_named, replace_op

LIBRARY_OP = "meshweave.lapack.default"
"""The op of torch that stands for all routines: see `lapack.py`."""
_SAYS = "meshweave.lapack"  # attribute of a function: the routine and its flags


def declare_routine(
    module: ir.Module,
    routine: str,
    flags: Sequence[str],
    operands: Iterable[ir.Value],
    results: Sequence[ir.Type],
) -> str:
    """Declare a function that stands for a routine on operands of these types; return its name."""
    name = f"meshweave_lapack_{len(functions_of(module))}"
    types = ir.FunctionType.get([value.type for value in operands], results)
    OpBuilder(ir.InsertionPoint(module.body), ir.Location.current).op(
        "func.func",
        regions=1,
        sym_name=ir.StringAttr.get(name),
        sym_visibility=ir.StringAttr.get("private"),
        function_type=ir.TypeAttr.get(types),
        **{_SAYS: ir.StringAttr.get(" ".join([routine, *flags]))},
    )
    return name


def call_routines(module: ir.Module) -> None:
    """Replace calls of these functions by `mw.lapack`, on tensors."""
    said = {
        name: function.attributes[_SAYS].value.split()
        for name, function in functions_of(module).items()
        if _SAYS in function.attributes
    }
    for call in ops_named(module.operation, "func.call"):
        if callee_of(call) in said:
            routine, *flags = said[callee_of(call)]
            replace_op(call, lapack(OpBuilder.before(call), routine, list(call.operands), flags))
    for name in said:
        functions_of(module)[name].erase()
