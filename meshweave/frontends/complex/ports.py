"""Let complex arguments and results of a function be real tensors of the same bytes, with a last dim of 2."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.dialects.dist import COMPLEX, LayoutAttr
from meshweave.errors import CompileError
from meshweave.frontends.complex.pairs import Pairs, is_complex, part_type
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import IteratorType, OpBuilder, dims_map, tensor_type
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, terminator
from meshweave.layout.layout import Layout


def split_arguments(function: ir.Operation, pairs: Pairs) -> list[ir.Operation]:
    """Take the parts out of each complex argument; return the ops that stand for the arguments in old ops."""
    block, made = body_of(function), []
    b = OpBuilder(ir.InsertionPoint.at_block_begin(block), function.location)
    for argument in block.arguments:
        if not is_complex(argument.type):
            continue
        _check(argument.type, function)
        old = pairs.stand_in(b, argument)
        made.append(old)
        argument.set_type(packed_type(argument.type))
        pairs.put(old.result, unpacked(b, argument))
        pairs.woven[old.result] = argument
    _describe(function, "arg_attrs", "inputs")
    return made


def join_results(function: ir.Operation, pairs: Pairs) -> None:
    """Put the parts of each complex result together, and set the type of the function."""
    block = body_of(function)
    end = terminator(block)
    b = OpBuilder.before(end)
    for number, value in enumerate(end.operands):
        if is_complex(value.type):
            _check(value.type, function)
            woven = pairs.woven.get(value)
            parts = pairs.part(value, 0), pairs.part(value, 1)
            end.operands[number] = packed(b, *parts) if woven is None else woven
    _describe(function, "res_attrs", "results")
    types = [a.type for a in block.arguments], [v.type for v in end.operands]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))


def unpacked(b: OpBuilder, tensor: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the parts of a tensor whose last dim holds both."""
    *shape, _ = tensor.type.shape
    type_ = tensor_type(shape, tensor.type.element_type)
    zeros, sizes = [0] * len(shape), [*shape, 1]
    return (
        b.extract_slice(tensor, type_, [*zeros, 0], sizes),
        b.extract_slice(tensor, type_, [*zeros, 1], sizes),
    )


def packed(b: OpBuilder, re: ir.Value, im: ir.Value) -> ir.Value:
    """Return a tensor whose last dim holds both parts."""
    ndim = len(re.type.shape)
    into = b.empty(tensor_type([*re.type.shape, 2], re.type.element_type))
    part, every = dims_map(ndim + 1, range(ndim)), dims_map(ndim + 1, range(ndim + 1))
    kinds = [IteratorType.PARALLEL] * (ndim + 1)

    def chosen(inner: OpBuilder, given: list[ir.Value]) -> Sequence[ir.Value]:
        is_re = inner.compare(arith.CmpIPredicate.eq, inner.loop_index(ndim), inner.index(0))
        return [inner.select(is_re, given[0], given[1])]

    return b.generic([re, im], [into], [part, part, every], kinds, chosen).result


def _check(type_: ir.Type, function: ir.Operation) -> None:
    """Raise CompileError for complex numbers that no array of NumPy's holds."""
    element = type_.element_type if isinstance(type_, ir.RankedTensorType) else type_
    if not isinstance(type_, ir.RankedTensorType) or str(part_type(element)) not in ("f32", "f64"):
        raise CompileError(f"no buffers of {element}", location_text(function))


def packed_type(type_: ir.Type) -> ir.Type:
    """Return the type of a complex tensor whose last dim holds both parts."""
    part = part_type(type_)
    return tensor_type([*part.shape, 2], part.element_type)


def _describe(function: ir.Operation, key: str, side: str) -> None:
    """Mark the complex arguments or results, and give their layouts the last dim."""
    types = getattr(function.attributes["function_type"].value, side)
    given = function.attributes[key] if key in function.attributes else [{}] * len(types)
    entries = [
        in_parts(dict_of(entry)) if is_complex(type_) else dict_of(entry)
        for entry, type_ in zip(given, types)
    ]
    if any(entries):
        made = [ir.DictAttr.get(entry) for entry in entries]
        function.attributes[key] = ir.ArrayAttr.get(made)


def dict_of(entry: ir.Attribute | dict[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    """Return the attributes of an argument or result by name."""
    return {n.name: n.attr for n in entry} if isinstance(entry, ir.DictAttr) else dict(entry)


def in_parts(entry: dict[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    """Return the attributes of an argument or result whose complex numbers are pairs in a last dim now."""
    entry[COMPLEX] = ir.UnitAttr.get()
    if "dist.layout" in entry:
        entry["dist.layout"] = LayoutAttr.make(_with_parts(LayoutAttr(entry["dist.layout"]).layout))
    if "dist.priorities" in entry:
        known = list(entry["dist.priorities"])
        entry["dist.priorities"] = ir.DenseI64ArrayAttr.get([*known, max(known, default=0)])
    return entry


def _with_parts(layout: Layout) -> Layout:
    """Return a layout with one more dim, which is whole, the last in memory too."""
    order = None if layout.order is None else (*layout.order, (layout.ndim, 0))
    return Layout((*layout.dims, ()), layout.partial, order, layout.uneven)
