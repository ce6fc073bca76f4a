"""What every program goes through first: checks, one function, everything generic, no op that the
later stages do not know.
"""

from __future__ import annotations

from math import prod
from typing import Any

from meshweave.bindings import ir
from meshweave.bundle import Port
from meshweave.errors import CompileError
from meshweave.layout.layout import Layout
from meshweave.locations import location_text
from meshweave.transforms.base import functions, ops_of, walk

MAX_ELEMENTS = 1 << 59  # of a tensor: its bytes, and sums of some, still fit 64 bits

PREPARE = (
    "builtin.module(inline,func.func(convert-elementwise-to-linalg,linalg-generalize-named-ops),"
    "canonicalize,cse)"
)


def main_function(module: Any) -> Any:
    """The function @main. CompileError when there is none."""
    for function in functions(module):
        if function.operation.attributes["sym_name"].value == "main":
            return function
    raise CompileError("no function @main with a body")


_LINALG = ("linalg.generic", "linalg.yield", "linalg.index")
_DIALECTS = ("linalg.", "tensor.", "arith.", "math.", "scf.", "func.", "builtin.")


def refuse_unknown(function: Any, kept: set[str], target: str) -> None:
    """CompileError for the first op that nothing here lowers; calls are left of functions in `kept`
    only.
    """
    for op in walk(function):
        if op.name == "func.call":
            name = op.attributes["callee"].value
            if name in kept:
                continue
            raise CompileError(
                f"call of @{name}: it has no body, or calls itself", location_text(op.location)
            )
        unknown = op.name.startswith("linalg.") and op.name not in _LINALG
        if unknown or not op.name.startswith(_DIALECTS):
            raise CompileError(
                f"{op.name}: no lowering for this op on target {target}", location_text(op.location)
            )
        for result in op.results:
            if isinstance(result.type, ir.ShapedType) and not _static(result.type):
                raise CompileError(
                    f"{op.name}: {result.type} has no static shape", location_text(op.location)
                )
            if isinstance(result.type, ir.ShapedType) and prod(result.type.shape) > MAX_ELEMENTS:
                raise CompileError(
                    f"{op.name}: {result.type} has more elements than any machine can address",
                    location_text(op.location),
                )


def spell_out(function: Any) -> None:
    """Write tensor.pad and tensor.concat as insertions: whoever makes the pieces then writes them
    in place. An op whose loops never run gives what it starts from.
    """
    for op in ops_of(function, "linalg.generic"):
        _without_iterations(op.operation)
    for op in ops_of(function, "tensor.pad", "tensor.concat"):
        make = _pad if op.operation.name == "tensor.pad" else _concat
        op.operation.results[0].replace_all_uses_with(make(op.operation))
        op.operation.erase()


def _without_iterations(op: Any) -> None:
    """Replace an op that reduces over nothing: later passes would drop it, and its results with it."""
    given = [v for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    if not any(0 in v.type.shape for v in given) or all(0 in r.type.shape for r in op.results):
        return
    starts = list(op.operands)[len(op.operands) - len(op.results) :]
    for result, start in zip(op.results, starts):
        result.replace_all_uses_with(start)
    op.erase()


def _pad(op: Any) -> Any:
    block = op.regions[0].blocks[0]
    end = block.operations[len(block.operations) - 1].operation
    inner = [o for o in block.operations if o.operation.name != "tensor.yield"]
    value = end.operands[0]
    where = location_text(op.location)
    if any(o.operation.name != "arith.constant" for o in inner) or value in list(block.arguments):
        raise CompileError("tensor.pad: only a padding of one value is supported", where)
    if len(op.operands) != 1:
        raise CompileError("tensor.pad: the amount of padding must be static", where)
    ip = ir.InsertionPoint(op)
    if not isinstance(value.owner, ir.Block) and value.owner.operation.block == block:
        value = value.owner.operation.clone(ip).result
    into = ir.Operation.create(
        "tensor.splat", results=[op.results[0].type], operands=[value], loc=op.location, ip=ip
    ).result
    return _insert(op, op.operands[0], into, list(op.attributes["static_low"]))


def _concat(op: Any) -> Any:
    dim = op.attributes["dim"].value
    type_ = op.results[0].type
    ip = ir.InsertionPoint(op)
    into = ir.Operation.create("tensor.empty", results=[type_], loc=op.location, ip=ip).result
    start = 0
    for piece in op.operands:
        offsets = [start if d == dim else 0 for d in range(type_.rank)]
        into = _insert(op, piece, into, offsets)
        start += piece.type.shape[dim]
    return into


def _insert(op: Any, piece: Any, into: Any, offsets: list[int]) -> Any:
    shape = list(piece.type.shape)
    return ir.Operation.create(
        "tensor.insert_slice",
        results=[into.type],
        operands=[piece, into],
        attributes={
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, 0, 0, 0]),
            "static_offsets": ir.DenseI64ArrayAttr.get(offsets),
            "static_sizes": ir.DenseI64ArrayAttr.get(shape),
            "static_strides": ir.DenseI64ArrayAttr.get([1] * len(shape)),
        },
        loc=op.location,
        ip=ir.InsertionPoint(op),
    ).result


def _static(type_: Any) -> bool:
    return bool(type_.has_rank and type_.has_static_shape)


def ports(module: Any) -> tuple[tuple[Port, ...], tuple[Port, ...], str]:
    """Inputs and outputs of @main, and the text of the mesh."""
    meshes = ops_of(module, "dist.mesh")
    mesh = meshes[0].operation.attributes["axes"].value if meshes else ""
    op = main_function(module).operation
    type_ = op.attributes["function_type"].value
    sides = (("arg", "arg_attrs", type_.inputs), ("result", "res_attrs", type_.results))
    found = []
    for word, key, types in sides:
        attrs = list(op.attributes[key]) if key in op.attributes else [{}] * len(types)
        found.append(
            tuple(_port(f"{word}{k}", t, a, op) for k, (t, a) in enumerate(zip(types, attrs)))
        )
    return found[0], found[1], mesh


def _port(name: str, type_: Any, attrs: Any, op: Any) -> Port:
    where = location_text(op.location)
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise CompileError(
            f"{name} is {type_}: only tensors of static shape can go in and out", where
        )
    shape = tuple(type_.shape)
    whole = attrs["dist.global"].value if "dist.global" in attrs else type_
    layout = Layout.replicated(len(shape))
    text = attrs["dist.layout"].value if "dist.layout" in attrs else str(layout)
    return Port(name, str(type_.element_type), tuple(whole.shape), shape, text)
