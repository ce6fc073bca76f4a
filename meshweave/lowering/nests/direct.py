"""Let linalg ops take as operands what their bodies read at the places of their loops.

before:  generic outs(%o) { %i = linalg.index 0;  %p = tensor.extract %q[%i, %c0];  %x = tensor.extract %t[%p];  .. }
after:   generic ins(%q) (d0) -> (d0, 0) outs(%o) { ^bb0(%p, %out):  %x = tensor.extract %t[%p];  .. }

An operand may be computed where it is read; a tensor that is read at computed places is made first.
"""

from __future__ import annotations

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, segments
from meshweave.ir.ops import body_of, producer, replace_op

Places = list[ir.AffineExpr]


def read_directly(op: ir.Operation) -> None:
    """Rewrite a linalg.generic that reads a tensor at the places of its loops; any other stays."""
    block = body_of(op)
    inner = [view.operation for view in block.operations]
    reads = [o for o in inner if o.name == "tensor.extract"]
    found = [(read, places) for read in reads if (places := _places(read)) is not None]
    if found:
        _rewrite(op, block, found)


def _places(read: ir.Operation) -> Places | None:
    """Return where an op in a body reads, over the loops; None where it computes that."""
    made = [_place(value) for value in list(read.operands)[1:]]
    places = [place for place in made if place is not None]
    return places if len(places) == len(made) else None


def _place(value: ir.Value) -> ir.AffineExpr | None:
    op = producer(value)
    if op is not None and op.name == "linalg.index":
        return ir.AffineDimExpr.get(op.attributes["dim"].value)
    if op is not None and op.name == "arith.constant":
        return ir.AffineConstantExpr.get(op.attributes["value"].value)
    return None


def _rewrite(op: ir.Operation, block: ir.Block, found: list[tuple[ir.Operation, Places]]) -> None:
    operands, results = list(op.operands), len(op.results)
    inputs, outs = operands[: len(operands) - results], operands[len(operands) - results :]
    maps = list(op.attributes["indexing_maps"])
    loops = ir.AffineMapAttr(maps[-1]).value.n_dims
    added = [ir.AffineMapAttr.get(ir.AffineMap.get(loops, 0, places)) for _, places in found]
    attributes = {name: op.attributes[name] for name in op.attributes}
    attributes["indexing_maps"] = ir.ArrayAttr.get(
        [*maps[: len(inputs)], *added, *maps[len(inputs) :]]
    )
    attributes["operandSegmentSizes"] = segments(len(inputs) + len(found), results)
    tensors = [read.operands[0] for read, _ in found]
    types = [result.type for result in op.results]
    made = OpBuilder.before(op).op(
        "linalg.generic", types, [*inputs, *tensors, *outs], 1, **attributes
    )
    block.append_to(made.regions[0])
    for read, _ in found:
        argument = block.add_argument(read.results[0].type, op.location)
        replace_op(read, [argument])
    for old in list(block.arguments)[len(inputs) : len(operands)]:
        old.replace_all_uses_with(block.add_argument(old.type, op.location))
    for _ in outs:
        block.erase_argument(len(inputs))
    replace_op(op, list(made.results))
