"""torch-mlir's own dialect (tm_tensor), for which no linalg op is: scan, sort and scatter, as plain loops."""

from collections.abc import Sequence
from typing import Any

from meshweave.bindings import ir
from meshweave.errors import CompileError
from meshweave.frontends.build import Builder
from meshweave.frontends.loops import sorted_rows
from meshweave.locations import location_text


def lower_tm_tensor(module: Any) -> None:
    """Lower all of them. Only the module's own wrapper stays valid. CompileError for one in another form."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in _LOWER:
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        results = _LOWER[op.name](op, Builder(ir.InsertionPoint(op), op.location))
        for old, new in zip(op.results, results):
            old.replace_all_uses_with(new)
        if any(True for result in op.results for _ in result.uses):
            raise CompileError(f"not supported: {op.name} of this form", location_text(op.location))
        op.erase()


def _scan(op: Any, b: Builder) -> list[Any]:
    """Along a dim, each element combined with the one before it. The sums up to the end, its second result, are none of
    torch's ops.
    """
    source = op.operands[0]
    dim, inclusive = (ir.IntegerAttr(op.attributes["dimension"]).value, op.attributes["inclusive"])
    if not ir.BoolAttr(inclusive).value:
        raise CompileError("not supported: an exclusive scan", location_text(op.location))
    block, shape = op.regions[0].blocks[0], list(source.type.shape)
    if 0 in shape or shape[dim] < 2:
        return [source]
    steps = [n - 1 if d == dim else n for d, n in enumerate(shape)]

    def place(k: Builder, at: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        (made,) = values
        following = list(at)
        following[dim] = k.binary("addi", at[dim], k.number(1))
        pair = [k.element(source, following), k.element(made, at)]
        return [k.put(_applied(k, block, pair)[0], made, following)]

    return b.loops(steps, [source], place)


def _applied(k: Builder, block: Any, scalars: Sequence[Any]) -> list[Any]:
    """The ops of a region of scalars moved here; what it yields. A block can be applied once."""
    *ops, end = list(block.operations)
    values = list(end.operands)
    arguments = list(block.arguments)
    for argument, scalar in zip(arguments, scalars, strict=True):
        argument.replace_all_uses_with(scalar)
    found = [
        scalars[arguments.index(v)] if isinstance(v, ir.BlockArgument) and v in arguments else v
        for v in values
    ]
    for op in ops:
        k.ip.block.append(op.operation)
    return found


def _sort(op: Any, b: Builder) -> list[Any]:
    """Stable, NaNs as the largest, as torch does. Of upstream's comparator, `<=` or `>=`, the direction counts."""
    names = [inner.operation for inner in op.regions[0].blocks[0].operations]
    compare = names[0]
    if len(names) != 2 or compare.name not in ("arith.cmpf", "arith.cmpi"):
        raise CompileError("not supported: sort with this order", location_text(op.location))
    number = ir.IntegerAttr(compare.attributes["predicate"]).value
    is_float = compare.name == "arith.cmpf"
    ascending, descending, unsigned = ((4, 5), (2, 3), ()) if is_float else ((2, 3), (4, 5), (6, 7))
    if number not in (*ascending, *descending, *unsigned, 8, 9):
        raise CompileError("not supported: sort with this order", location_text(op.location))
    down = number in descending or (not is_float and number in (8, 9))

    def precedes(k: Builder, pairs: Sequence[Any]) -> Any:
        x, y = (pairs[1], pairs[0]) if down else (pairs[0], pairs[1])
        return _less(k, x, y)

    dim = ir.IntegerAttr(op.attributes["dimension"]).value
    return sorted_rows(b, list(op.operands), dim, precedes)


def _less(k: Builder, x: Any, y: Any) -> Any:
    """x < y, where no number is larger than NaN."""
    kind = x.type
    if isinstance(kind, ir.IntegerType):
        return k.compare("ult" if kind.width == 1 else "slt", x, y)
    below = _compare_floats(k, "olt", x, y)
    nan, number = _compare_floats(k, "uno", y, y), _compare_floats(k, "ord", x, x)
    return k.binary("ori", below, k.binary("andi", nan, number))


def _compare_floats(k: Builder, predicate: str, x: Any, y: Any) -> Any:
    number = {"olt": 4, "ord": 7, "uno": 14}[predicate]
    attr = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    kind = ir.IntegerType.get_signless(1)
    return k.one("arith.cmpf", kind, x, y, predicate=attr)


def _scatter(op: Any, b: Builder) -> list[Any]:
    """One update after the other, each window of `updates` where its row of `indices` says. A negative index counts
    from the end, an update that lies outside is dropped.
    """
    updates, indices, original = op.operands
    dims = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"]))
    block, shape = op.regions[0].blocks[0], list(original.type.shape)
    skipped = len(shape) - (len(updates.type.shape) - 1)

    def update(k: Builder, at: Sequence[Any], values: Sequence[Any]) -> list[Any]:
        (made,) = values
        place: list[Any] = [k.number(0)] * skipped + list(at[1:])
        inside = None
        for number, dim in enumerate(dims):
            start = _from_start(k, k.element(indices, [at[0], k.number(number)]), shape[dim])
            window = dim >= skipped
            place[dim] = k.binary("addi", start, place[dim]) if window else start
            holds = k.compare("ult", place[dim], k.number(shape[dim]))
            inside = holds if inside is None else k.binary("andi", inside, holds)

        def write(w: Builder) -> list[Any]:
            pair = [w.element(updates, at), w.element(made, place)]
            return [w.put(_applied(w, block, pair)[0], made, place)]

        return k.choose(inside, [made.type], write, lambda _: [made])

    if 0 in shape:
        return [original]
    return b.loops(list(updates.type.shape), [original], update)


def _from_start(k: Builder, index: Any, size: int) -> Any:
    at = k.one("arith.index_cast", k.index, index)
    wrapped = k.binary("addi", at, k.number(size))
    return k.select(k.compare("slt", at, k.number(0)), wrapped, at)


_LOWER = {"tm_tensor.scan": _scan, "tm_tensor.sort": _sort, "tm_tensor.scatter": _scatter}
