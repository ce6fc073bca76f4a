"""Lower torch-mlir's own dialect (tm_tensor) to plain loops: scan, sort and scatter, for which linalg has no op."""

from collections.abc import Callable

from meshweave.errors import CompileError
from meshweave.frontends.stablehlo.lowerings.loops import is_inside, sorted_rows
from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import OpBuilder, Values, predicate, tensor_type
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, is_used, move_body, ops_named
from meshweave.ir.scans import scan

_Int, _Float = arith.CmpIPredicate, arith.CmpFPredicate
_ASCENDING = {
    "arith.cmpf": (_Float.OLT, _Float.OLE),
    "arith.cmpi": (_Int.slt, _Int.sle, _Int.ult, _Int.ule),
}
_DESCENDING = {
    "arith.cmpf": (_Float.OGT, _Float.OGE),
    "arith.cmpi": (_Int.sgt, _Int.sge, _Int.ugt, _Int.uge),
}


def lower_tm_tensor(module: ir.Module) -> None:
    """Lower all ops of the dialect. Raises CompileError for one in another form.

    Only the module's own wrapper stays valid.
    """
    for op in ops_named(module.operation, *_LOWER):
        results = _LOWER[op.name](op, OpBuilder.before(op))
        for old, new in zip(op.results, results):
            old.replace_all_uses_with(new)
        if any(map(is_used, op.results)):
            raise CompileError(f"not supported: {op.name} of this form", location_text(op.location))
        op.erase()


def _scan(op: ir.Operation, b: OpBuilder) -> list[ir.Value]:
    """Combine each element along a dim with what came before it. No op of torch reads the second result, the totals."""
    source = op.operands[0]
    dim, inclusive = (ir.IntegerAttr(op.attributes["dimension"]).value, op.attributes["inclusive"])
    if not ir.BoolAttr(inclusive).value:
        raise CompileError("not supported: an exclusive scan", location_text(op.location))
    block, shape, element = body_of(op), list(source.type.shape), source.type.element_type
    start = _NEUTRAL.get(block.operations[0].operation.name)
    if len(block.operations) != 2 or start is None:
        raise CompileError("not supported: a scan with this body", location_text(op.location))
    kind = ir.FloatAttr if isinstance(element, ir.FloatType) else ir.IntegerAttr
    rest = tensor_type([*shape[:dim], *shape[dim + 1 :]], element)
    begin = b.one("tensor.splat", rest, b.constant(kind.get(element, start)))
    return scan(b, [source], [begin], dim, lambda k, pair: _applied(k, block, pair))


_NEUTRAL = {"arith.addf": -0.0, "arith.addi": 0, "arith.mulf": 1.0, "arith.muli": 1}


def _applied(k: OpBuilder, block: ir.Block, scalars: Values) -> list[ir.Value]:
    """Move the ops of a region of scalars here; return what it yields. A block can be applied once."""
    for argument, scalar in zip(block.arguments, scalars, strict=True):
        argument.replace_all_uses_with(scalar)
    return move_body(block, k.ip)


def _sort(op: ir.Operation, b: OpBuilder) -> list[ir.Value]:
    """Sort stably, NaNs as the largest, as torch does. Only the direction of upstream's comparator counts."""
    test, *others = (o.operation for o in body_of(op).operations)
    known = len(others) == 1 and test.name in _ASCENDING
    descends = known and predicate(test) in _DESCENDING[test.name]
    if not known or not (descends or predicate(test) in _ASCENDING[test.name]):
        raise CompileError("not supported: sort with this order", location_text(op.location))

    def precedes(k: OpBuilder, pairs: Values) -> ir.Value:
        x, y = (pairs[1], pairs[0]) if descends else (pairs[0], pairs[1])
        return _less(k, x, y)

    dim = ir.IntegerAttr(op.attributes["dimension"]).value
    return sorted_rows(b, list(op.operands), dim, precedes)


def _less(k: OpBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Compare x < y, where NaN is larger than all numbers."""
    if isinstance(x.type, ir.IntegerType):
        return k.compare(_Int.ult if x.type.width == 1 else _Int.slt, x, y)
    below = k.compare(_Float.OLT, x, y)
    nan, number = k.compare(_Float.UNO, y, y), k.compare(_Float.ORD, x, x)
    return k.binary("ori", below, k.binary("andi", nan, number))


def _scatter(op: ir.Operation, b: OpBuilder) -> list[ir.Value]:
    """Make one update after the other, each window of `updates` where its row of `indices` says.

    A negative index counts from the end; an update that lies outside is dropped.
    """
    updates, indices, original = op.operands
    dims = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"]))
    block, shape = body_of(op), list(original.type.shape)
    skipped = len(shape) - (len(updates.type.shape) - 1)

    def update(k: OpBuilder, at: Values, values: Values) -> list[ir.Value]:
        (made,) = values
        place: list[ir.Value] = [k.index(0)] * skipped + list(at[1:])
        for number, dim in enumerate(dims):
            start = k.element(indices, [at[0], k.index(number)])
            start = k.one("arith.index_cast", ir.IndexType.get(), start)
            wrapped = k.binary("addi", start, k.index(shape[dim]))
            start = k.select(k.compare(_Int.slt, start, k.index(0)), wrapped, start)
            place[dim] = k.binary("addi", start, place[dim]) if dim >= skipped else start

        def write(w: OpBuilder) -> list[ir.Value]:
            pair = [w.element(updates, at), w.element(made, place)]
            return [w.put_element(_applied(w, block, pair)[0], made, place)]

        inside = is_inside(k, [place[d] for d in dims], [shape[d] for d in dims])
        return k.if_else(inside, [made.type], write, lambda _: [made])

    if 0 in shape:
        return [original]
    return b.loops(list(updates.type.shape), [original], update)


_LOWER: dict[str, Callable[[ir.Operation, OpBuilder], list[ir.Value]]] = {
    "tm_tensor.scan": _scan,
    "tm_tensor.sort": _sort,
    "tm_tensor.scatter": _scatter,
}
