"""Bring what torch-mlir does not know through its pipelines, as calls of functions without a body.

Calls of LAPACK become `mw.lapack`, constraints of layouts `dist.constrain`: an attribute of the function says which.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshweave.dialects.dist import LayoutAttr
from meshweave.frontends.stablehlo.inline import callee_of
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.lapack import lapack
from meshweave.ir.ops import functions_of, ops_named, replace_op
from meshweave.layout import Layout

LIBRARY_OP = "meshweave.lapack.default"
"""The op of torch that stands for all routines: see `lapack.py`."""
CONSTRAIN_OP = "meshweave.constrain.default"
"""The op of torch that gives a value a layout over some axes: see `constrain.py`."""
_SAYS = "meshweave.lapack"  # attribute of a function: the routine and its flags
_LAYOUT, _AXES = "meshweave.layout", "meshweave.axes"


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


def declare_constraint(module: ir.Module, layout: str, axes: Sequence[str], type_: ir.Type) -> str:
    """Declare a function that stands for a constraint of a value of this type; return its name."""
    name = f"meshweave_constrain_{len(functions_of(module))}"
    OpBuilder(ir.InsertionPoint(module.body), ir.Location.current).op(
        "func.func",
        regions=1,
        sym_name=ir.StringAttr.get(name),
        sym_visibility=ir.StringAttr.get("private"),
        function_type=ir.TypeAttr.get(ir.FunctionType.get([type_], [type_])),
        **{_LAYOUT: ir.StringAttr.get(layout), _AXES: ir.StringAttr.get(" ".join(axes))},
    )
    return name


def place_constraints(module: ir.Module) -> None:
    """Replace calls of these functions by `dist.constrain`: other axes may shard the value further."""
    said = {n: f for n, f in functions_of(module).items() if _LAYOUT in f.attributes}
    for call in ops_named(module.operation, "func.call"):
        function = said.get(callee_of(call))
        if function is not None:
            axes = function.attributes[_AXES].value.split()
            value = call.operands[0]
            made = OpBuilder.before(call).op(
                "dist.constrain",
                [value.type],
                [value],
                layout=LayoutAttr.make(Layout.parse(function.attributes[_LAYOUT].value)),
                open=ir.DenseI64ArrayAttr.get(list(range(len(value.type.shape)))),
                replicated=ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes]),
            )
            replace_op(call, list(made.results))
    for function in said.values():
        function.erase()


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
