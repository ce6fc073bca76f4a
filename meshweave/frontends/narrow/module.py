"""Write a program with floats of 8 bits or integers of 4 as one on bytes.

before:  linalg.generic ins(%a : tensor<4xf8E4M3FN>) outs(%b : tensor<4xf32>) {arith.extf}
after:   linalg.generic ins(%a : tensor<4xi8>) outs(%b : tensor<4xf32>) {the bits of an f32 out of those of a byte}

Ops that move elements move bytes. Scalar ops read their operands, compute in f32 (integers in i8) and round, each for
itself. Ops that compute without a body of scalars (products with names, sorts, reductions over ranks) take wider
tensors. An argument or result says what its bytes are: `dist.bits = "f8E4M3FN"`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from meshweave.dialects.dist import BITS, LayoutAttr
from meshweave.errors import CompileError
from meshweave.frontends.complex.ports import dict_of
from meshweave.frontends.narrow.formats import (
    FORMATS,
    Format,
    byte_type,
    element_of,
    format_of,
    with_element,
)
from meshweave.frontends.narrow.numbers import narrowed, widened
from meshweave.frontends.narrow.scalars import rewrite
from meshweave.ir.bindings import PassManager, ir, linalg
from meshweave.ir.build import OpBuilder
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, functions_of, ops_where, replace_op, terminator
from meshweave.ir.pipeline_text import CANONICALIZE

_BODIES = ("linalg.generic", "linalg.map", "linalg.reduce", "mw.scan", "mw.scatter")
_MOVES = (
    *("tensor.", "hint.", "scf.", "func.", "linalg.yield", "mw.yield", "linalg.index"),
    *("linalg.fill", "linalg.copy", "linalg.transpose", "linalg.broadcast"),
    *("dist.constrain", "dist.redistribute", "dist.to_", "dist.all_slice", "dist.all_gather"),
    *("dist.all_to_all", "dist.permute", "dist.exchange"),
)
_COMPUTE = ("linalg.", "mw.", "dist.")
_SCALARS = ("arith.", "math.")
_ELEMENT = re.compile(rf"\b(?:(?:\d+|\?)x)*(?:{'|'.join(FORMATS)}|[us]i4)\b")


class _Typed(NamedTuple):
    """Hold an op, and the types that its operands and results had."""

    op: ir.Operation
    given: list[ir.Type]
    made: list[ir.Type]


def holds_narrow(text: str) -> bool:
    """Tell whether the text of a program may have such elements."""
    # Most texts have neither, and the pattern takes twenty times as long to say so.
    return ("f8E" in text or "i4" in text) and _ELEMENT.search(text) is not None


def write_as_bytes(module: ir.Module) -> None:
    """Write the floats of 8 bits and integers of 4 of a module as bytes.

    Raises CompileError for what there is no way to write.
    """
    for function in functions_of(module).values():
        if len(function.regions[0].blocks):
            _write_function(function)


def _write_function(function: ir.Operation) -> None:
    block = body_of(function)
    constants, found = [], []
    for op in ops_where(function, _is_narrow):
        _check(op)
        if op.name == "arith.constant":
            constants.append(op)
        found.append(_Typed(op, [v.type for v in op.operands], [v.type for v in op.results]))
    arguments = [a.type for a in block.arguments]
    results = [v.type for v in terminator(block).operands]
    if not found and not any(map(format_of, (*arguments, *results))):
        return
    _describe(function, "arg_attrs", arguments)
    _describe(function, "res_attrs", results)
    bytes_of = _bytes_of(constants)
    for op in ops_where(function, lambda op: True):
        _retype(op.results)
        for region in op.regions:
            for inner in region:
                _retype(inner.arguments)
    for op, value in zip(constants, bytes_of, strict=True):
        op.attributes["value"] = value
    for typed in found:
        op = typed.op
        if op.name == "tensor.bitcast":
            replace_op(op, [op.operands[0]])
        elif op.name == "arith.constant" or op.name.startswith((*_BODIES, *_MOVES)):
            continue
        elif op.name.startswith(_SCALARS):
            rewrite(*typed)
        else:
            _widen(typed)
    types = [a.type for a in block.arguments], [v.type for v in terminator(block).operands]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))


def _is_narrow(op: ir.Operation) -> bool:
    """Tell whether an op has narrow operands or results; the bodies of ops with names are theirs."""
    around = op.parent.name if op.parent is not None else ""
    if around.startswith("linalg.") and around not in _BODIES:
        return False
    return any(format_of(v.type) is not None for v in (*op.operands, *op.results))


def _check(op: ir.Operation) -> None:
    """Raise CompileError for an op that is not known here, and for sums that are still to be added up."""
    if not op.name.startswith((*_BODIES, *_MOVES, *_COMPUTE, *_SCALARS)):
        kind = next(
            str(element_of(v.type)) for v in (*op.operands, *op.results) if format_of(v.type)
        )
        raise CompileError(f"{op.name} of {kind} is not supported", location_text(op))
    for name in op.attributes:
        if isinstance(op.attributes[name], LayoutAttr):
            _check_layout(op.attributes[name], format_of(op.operands[0].type), location_text(op))


def _check_layout(layout: ir.Attribute, kind: Format | None, where: str) -> None:
    if kind is not None and LayoutAttr(layout).layout.partial:
        raise CompileError(
            f"layout {LayoutAttr(layout).layout} of {kind.element}: such numbers are not added up over ranks: "
            f"convert to {kind.wide} before",
            where,
        )


def _describe(function: ir.Operation, key: str, types: Sequence[ir.Type]) -> None:
    """Say of each argument or result that is narrow what its bytes are."""
    kinds = [format_of(type_) for type_ in types]
    if not any(kinds):
        return
    given = function.attributes[key] if key in function.attributes else [{}] * len(types)
    made = []
    for entry, kind in zip(given, kinds, strict=True):
        own = dict_of(entry)
        if kind is not None:
            own[BITS] = ir.StringAttr.get(kind.element)
            if "dist.layout" in own:
                _check_layout(own["dist.layout"], kind, location_text(function))
        made.append(ir.DictAttr.get(own))
    function.attributes[key] = ir.ArrayAttr.get(made)


def _retype(values: Sequence[ir.Value]) -> None:
    for value in values:
        if format_of(value.type) is not None:
            value.set_type(with_element(value.type, byte_type()))


def _bytes_of(constants: Sequence[ir.Operation]) -> list[ir.Attribute]:
    """Return the values of constants as bytes: upstream folds casts of constants, and knows all their forms."""
    if not constants:
        return []
    module = ir.Module.create()
    b = OpBuilder(ir.InsertionPoint(module.body), ir.Location.unknown())
    types = [with_element(op.results[0].type, byte_type()) for op in constants]
    made = b.op(
        "func.func",
        regions=1,
        sym_name=ir.StringAttr.get("bytes"),
        function_type=ir.TypeAttr.get(ir.FunctionType.get([], types)),
    )
    inner, _ = b.block(made.regions[0])
    values = []
    for op, type_ in zip(constants, types, strict=True):
        same = element_of(op.results[0].type)
        cast = "arith.extui" if isinstance(same, ir.IntegerType) else "arith.bitcast"
        values.append(inner.one(cast, type_, inner.constant(op.attributes["value"])))
    inner.op("func.return", [], values)
    PassManager.parse(f"builtin.module({CANONICALIZE})").run(module.operation)
    return [value.owner.attributes["value"] for value in terminator(body_of(made)).operands]


def _widen(typed: _Typed) -> None:
    """Make an op that computes once more, on wider tensors, and narrow what it gives."""
    op, b = typed.op, OpBuilder.before(typed.op)
    operands = [
        value if (kind := format_of(type_)) is None else _converted(b, value, kind, True)
        for value, type_ in zip(op.operands, typed.given, strict=True)
    ]
    kinds = [format_of(type_) for type_ in typed.made]
    types = [
        type_ if kind is None else with_element(type_, ir.Type.parse(kind.wide))
        for type_, kind in zip(typed.made, kinds, strict=True)
    ]
    attributes = {name: op.attributes[name] for name in op.attributes}
    made = b.op(op.name, types, operands, len(op.regions), **attributes)
    if len(op.regions):
        linalg.fill_builtin_region(made)
    values = [
        value if kind is None else _converted(b, value, kind, False)
        for value, kind in zip(made.results, kinds, strict=True)
    ]
    replace_op(op, values)


def _converted(b: OpBuilder, value: ir.Value, kind: Format, wider: bool) -> ir.Value:
    """Make a tensor (or scalar) of bytes one of wider numbers, or the other way."""
    change = widened if wider else narrowed
    if not isinstance(value.type, ir.ShapedType):
        return change(b, value, kind)
    element = ir.Type.parse(kind.wide) if wider else byte_type()
    into = b.empty(with_element(value.type, element))
    return b.elementwise([value], into, lambda inner, given: change(inner, given[0], kind))
