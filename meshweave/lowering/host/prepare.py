"""Prepare a program for lowering: check it, make every op generic, refuse what the later stages do not know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from meshweave.bundle import Port
from meshweave.dialects.dist import (
    BITS,
    COMPLEX,
    LEAST,
    LENGTH,
    LENGTHS,
    MERGED,
    TAKES,
    UNSIGNED,
    WEIGHT,
)
from meshweave.errors import CompileError
from meshweave.hints.fast_paths import KERNEL, SWITCHES
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, tensor_type
from meshweave.ir.calls import HOST
from meshweave.ir.factorizations import LOOPS
from meshweave.ir.factorizations import in_loops as factored_in_loops
from meshweave.ir.fft import FFT
from meshweave.ir.lapack import of_nothing
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, replace_op, terminator
from meshweave.ir.routines import LAPACK, LIBRARY
from meshweave.ir.scans import SCAN, by_doubling, generic_scan
from meshweave.ir.scatters import SCATTER, in_rounds
from meshweave.ir.scores.attention import ATTENTION, spelled
from meshweave.ir.scores.reduced import REDUCED_SCORES, spelled_sums
from meshweave.ir.sorting import ORDER, SORT, SWITCH, coded, in_passes, spread
from meshweave.layout.layout import Layout
from meshweave.transforms.base import functions, ops_of, walk

MAX_ELEMENTS = 1 << 59  # of a tensor: its bytes, and sums of some, still fit 64 bits

PREPARE = (
    "builtin.module(func.func(convert-elementwise-to-linalg,linalg-generalize-named-ops),"
    "canonicalize,cse)"
)


def main_function(module: ir.Module) -> ir.OpView:
    """Return the function @main. Raises CompileError when there is none."""
    for function in functions(module):
        if function.operation.attributes["sym_name"].value == "main":
            return function
    raise CompileError("no function @main with a body")


_LINALG = ("linalg.generic", "linalg.yield", "linalg.index")
_DIALECTS = ("linalg.", "tensor.", "arith.", "math.", "scf.", "func.", "builtin.", "mw.")


def refuse_unknown(ops: Iterable[ir.Operation], kept: set[str], target: str) -> None:
    """Raise CompileError for the first of a function's ops that nothing here lowers.

    Of calls only those of functions in `kept` are left.
    """
    for op in ops:
        if refused := _refusal(op, kept, target):
            raise CompileError(refused, location_text(op.location))


def _refusal(op: ir.Operation, kept: set[str], target: str) -> str:
    """Return why an op cannot be lowered; empty where it can."""
    if op.name == "func.call":
        name = op.attributes["callee"].value
        return "" if name in kept else f"call of @{name}: it has no body, or calls itself"
    unknown = op.name.startswith("linalg.") and op.name not in _LINALG
    if unknown or not op.name.startswith(_DIALECTS):
        return f"{op.name}: no lowering for this op on target {target}"
    if op.name == LAPACK and target == "gpu" and op.attributes["routine"].value not in LOOPS:
        return f"{op.name} {op.attributes['routine'].value}: target gpu has no LAPACK"
    if op.name == FFT and target == "gpu":
        return f"{op.name}: target gpu has no transforms"
    if op.name == HOST and target == "gpu":
        return f"{op.attributes['function'].value}: target gpu calls no functions of Python"
    for type_ in (result.type for result in op.results):
        if isinstance(type_, ir.ShapedType) and not _static(type_):
            return f"{op.name}: {type_} has no static shape"
        if isinstance(type_, ir.ShapedType) and prod(type_.shape) > MAX_ELEMENTS:
            return f"{op.name}: {type_} has more elements than any machine can address"
    return ""


FILLED = 1 << 14
"""Elements of a padded tensor below which all of it is filled first: more kernels would take longer."""


def spell_out(function: ir.OpView, target: str) -> None:
    """Write scans, sorts, scatters and LAPACK as linalg ops or loops, and tensor.pad and tensor.concat as insertions.

    So the ops that make the pieces write them in place. An op whose loops never run gives what it starts from. Kernels
    of gpus run in no order: there scans take rounds. Attention of one op is written out where no kernel computes it.
    """
    if any(op.name in _WHOLE for op in walk(function)):
        _spell_whole(function, target)
    for op in ops_of(function, "linalg.generic"):
        _without_iterations(op.operation)
    for op in ops_of(function, "tensor.pad", "tensor.concat"):
        make = _pad if op.operation.name == "tensor.pad" else _concat
        op.operation.results[0].replace_all_uses_with(make(op.operation))
        op.operation.erase()


_WHOLE = frozenset((SORT, SCAN, SCATTER, ORDER, FFT, LAPACK, ATTENTION, REDUCED_SCORES))


def _spell_whole(function: ir.OpView, target: str) -> None:
    """Write the ops that say in one what takes many."""
    for op in ops_of(function, SORT):
        replace_op(op.operation, spread(op.operation))
    for op in ops_of(function, SCAN):
        made = by_doubling(op.operation) if target == "gpu" else generic_scan(op.operation)
        replace_op(op.operation, made)
    for op in ops_of(function, SCATTER):
        replace_op(op.operation, in_rounds(op.operation, target == "cpu"))
    for op in ops_of(function, ORDER):
        replace_op(
            op.operation, [in_passes(op.operation) if target == "gpu" else _order(op.operation)]
        )
    for op in ops_of(function, FFT):
        if any(0 in value.type.shape for value in (*op.operation.operands, *op.operation.results)):
            b = OpBuilder.before(op.operation)
            replace_op(op.operation, [b.empty(result.type) for result in op.operation.results])
    for op in ops_of(function, LAPACK):
        if any(0 in value.type.shape for value in op.operation.operands):
            replace_op(op.operation, of_nothing(op.operation))
        elif target == "gpu" or not _by_library(op.operation):
            replace_op(op.operation, factored_in_loops(op.operation))
    if target == "cpu":
        for name, meaning in ((ATTENTION, spelled), (REDUCED_SCORES, spelled_sums)):
            for op in ops_of(function, name):
                operands = list(op.operation.operands)
                replace_op(op.operation, [meaning(op.operation, OpBuilder.before(op), operands)])


def _order(op: ir.Operation) -> ir.Value:
    """Write an order as the op whose kernel sorts; of one element there is one order."""
    type_, b = op.results[0].type, OpBuilder.before(op)
    if 0 in type_.shape or op.operands[0].type.shape[op.attributes["dim"].value] < 2:
        return b.one("tensor.splat", type_, b.integer(0, type_.element_type))
    return coded(op, **{SWITCHES: ir.StringAttr.get(SWITCH)})


def _by_library(op: ir.Operation) -> bool:
    """Tell whether LAPACK itself does an `mw.lapack`: it may be switched off for what loops do too."""
    chosen = op.attributes[KERNEL].value if KERNEL in op.attributes else LIBRARY
    return chosen == LIBRARY or op.attributes["routine"].value not in LOOPS


def _without_iterations(op: ir.Operation) -> None:
    """Replace an op that reduces over nothing: later passes would drop it, and its results with it."""
    given = [v for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    if not any(0 in v.type.shape for v in given) or all(0 in r.type.shape for r in op.results):
        return
    starts = list(op.operands)[len(op.operands) - len(op.results) :]
    for result, start in zip(op.results, starts):
        result.replace_all_uses_with(start)
    op.erase()


def _pad(op: ir.Operation) -> ir.Value:
    block = body_of(op)
    end = terminator(block)
    inner = [o for o in block.operations if o.operation.name != "tensor.yield"]
    value = end.operands[0]
    where = location_text(op.location)
    if any(o.operation.name != "arith.constant" for o in inner) or value in list(block.arguments):
        raise CompileError("tensor.pad: only a padding of one value is supported", where)
    if len(op.operands) != 1:
        raise CompileError("tensor.pad: the amount of padding must be static", where)
    b = OpBuilder.before(op)
    if not isinstance(value.owner, ir.Block) and value.owner.operation.block == block:
        value = value.owner.operation.clone(b.ip).result
    type_, low = op.results[0].type, list(op.attributes["static_low"])
    if prod(type_.shape) < FILLED:
        into = b.one("tensor.splat", type_, value)
    else:
        into = b.empty(type_)
        for offsets, shape in borders(type_.shape, op.operands[0].type.shape, low):
            border = b.one("tensor.splat", tensor_type(shape, type_.element_type), value)
            into = b.insert_slice(border, into, offsets)
    return b.insert_slice(op.operands[0], into, low)


def borders(
    shape: Sequence[int], inside: Sequence[int], low: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """Return the offsets and shapes of the boxes around one of shape `inside` at `low`: two for each dim.

    Those of a dim are as long as the whole in the dims behind it, and as the inside in the dims before it.
    """
    for dim, (size, most, start) in enumerate(zip(shape, inside, low, strict=True)):
        for first, count in ((0, start), (start + most, size - start - most)):
            if count > 0:
                offsets = [*low[:dim], first, *[0] * (len(shape) - dim - 1)]
                yield offsets, [*inside[:dim], count, *shape[dim + 1 :]]


def _concat(op: ir.Operation) -> ir.Value:
    dim = op.attributes["dim"].value
    type_ = op.results[0].type
    b = OpBuilder.before(op)
    into, start = b.empty(type_), 0
    for piece in op.operands:
        offsets = [start if d == dim else 0 for d in range(type_.rank)]
        into = b.insert_slice(piece, into, offsets)
        start += piece.type.shape[dim]
    return into


def _static(type_: ir.Type) -> bool:
    return bool(type_.has_rank and type_.has_static_shape)


def ports(module: ir.Module) -> tuple[tuple[Port, ...], tuple[Port, ...], str]:
    """Return the inputs and outputs of @main, and the text of the mesh."""
    meshes = ops_of(module, "dist.mesh")
    mesh = meshes[0].operation.attributes["axes"].value if meshes else ""
    op = main_function(module).operation
    type_ = op.attributes["function_type"].value
    sides = (("arg", "arg_attrs", type_.inputs), ("result", "res_attrs", type_.results))
    found: list[tuple[Port, ...]] = []
    none = ir.DictAttr.get({}, context=op.context)
    known: dict[tuple[ir.Type, ir.Attribute], Port] = {}  # many are alike
    for word, key, types in sides:
        attrs = list(op.attributes[key]) if key in op.attributes else [none] * len(types)
        row = []
        for k, said in enumerate(zip(types, attrs)):
            if said not in known:
                known[said] = _port(f"{word}{k}", *said, op)
            row.append(replace(known[said], name=f"{word}{k}"))
        found.append(tuple(row))
    return found[0], found[1], mesh


def _port(name: str, type_: ir.Type, attrs: Mapping[str, ir.Attribute], op: ir.Operation) -> Port:
    where = location_text(op.location)
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise CompileError(
            f"{name} is {type_}: only tensors of static shape can go in and out", where
        )
    shape = tuple(type_.shape)
    whole = attrs["dist.global"].value if "dist.global" in attrs else type_
    layout = Layout.replicated(len(shape))
    text = attrs["dist.layout"].value if "dist.layout" in attrs else str(layout)
    takes = attrs[TAKES].value if TAKES in attrs else None
    held = attrs[BITS].value if BITS in attrs else type_.element_type
    element = f"{'u' if UNSIGNED in attrs else ''}{held}"
    weight = attrs[WEIGHT].value if WEIGHT in attrs else ""
    port = Port(name, element, tuple(whole.shape), shape, text, takes, weight, *_lengths(attrs))
    return _complex(port) if COMPLEX in attrs else port


def _lengths(
    attrs: Mapping[str, ir.Attribute],
) -> tuple[str, int, tuple[str, ...], tuple[int, ...]]:
    """Return what a port says of sizes that each call chooses."""
    return (
        attrs[LENGTH].value if LENGTH in attrs else "",
        attrs[LEAST].value if LEAST in attrs else 1,
        tuple(name.value for name in attrs[LENGTHS]) if LENGTHS in attrs else (),
        tuple(attrs[MERGED]) if MERGED in attrs else (),
    )


def _complex(port: Port) -> Port:
    """Return a port as its user sees it, with complex numbers for its last dim, in which they lie whole."""
    layout = Layout.parse(port.layout)
    last = layout.ndim - 1
    order = None if layout.order is None else tuple(f for f in layout.order if f[0] != last)
    own = Layout(layout.dims[:-1], layout.partial, order, layout.uneven)
    sizes = port.global_shape[:-1], port.local_shape[:-1]
    whole = Port(port.name, f"complex<{port.dtype}>", *sizes, str(own), port.takes)
    merged = (*port.merged[:-1],) if port.merged else ()
    return replace(whole, length=port.length, lengths=port.lengths[:-1], merged=merged)
