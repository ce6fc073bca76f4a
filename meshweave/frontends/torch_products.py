"""Products of matrices with their dims apart: torch folds dims around a product, and takes them apart behind it.

before:  batch_matmul(collapse(q), collapse(k)), expanded     [b*h, m, k] x [b*h, k, n]
after:   one linalg.generic over b, h, m, n, k                a dim that is sharded stays a dim
"""

from typing import Any

from meshweave.bindings import ir


def unfold_products(module: Any) -> None:
    """Do so with every product that is written like that. Only the module's own wrapper stays valid."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name in ("linalg.matmul", "linalg.batch_matmul"):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        _unfold(op)


def _unfold(op: Any) -> None:
    batched = op.name == "linalg.batch_matmul"
    expand = _only_user(op.results[0])
    if expand is None or expand.name != "tensor.expand_shape" or not _folds_first(expand):
        return
    wide = expand.results[0].type
    count = len(wide.shape) - len(op.results[0].type.shape) + 1  # dims that are folded into one
    left = _unfolded(op.operands[0], list(wide.shape)[:count])
    right = _unfolded(op.operands[1], list(wide.shape)[:count]) if batched else op.operands[1]
    start = _fill_value(op.operands[2])
    same = len({str(op.operands[i].type.element_type) for i in range(3)}) == 1
    if left is None or right is None or start is None or not same:
        return
    made = _product(op, left, right, start, wide, count, batched)
    expand.results[0].replace_all_uses_with(made)
    expand.erase()
    op.erase()


def _only_user(value: Any) -> Any:
    users = [use.owner for use in value.uses]
    return users[0].operation if len(users) == 1 else None


def _groups(op: Any) -> list[list[int]]:
    return [[int(i.value) for i in group] for group in op.attributes["reassociation"]]


def _folds_first(op: Any) -> bool:
    """Does a reshape fold its first dims and leave the others as they are?"""
    return all(len(group) == 1 for group in _groups(op)[1:])


def _unfolded(value: Any, sizes: list[int]) -> Any:
    """The value whose first dims, of these sizes, were folded into one; None where it was made otherwise."""
    maker = value.owner
    if isinstance(maker, ir.Block) or maker.operation.name != "tensor.collapse_shape":
        return None
    source = maker.operation.operands[0]
    fits = list(source.type.shape)[: len(sizes)] == sizes
    return source if fits and _folds_first(maker.operation) else None


def _fill_value(value: Any) -> Any:
    maker = value.owner
    if isinstance(maker, ir.Block) or maker.operation.name != "linalg.fill":
        return None
    return maker.operation.operands[0]


def _product(
    op: Any, left: Any, right: Any, start: Any, kind: Any, count: int, batched: bool
) -> Any:
    """The product as a linalg.generic: the folded dims first, then rows (of a batched one), columns, and the sum."""
    at, where = ir.InsertionPoint(op), op.location
    rows = list(range(count + batched))
    column, inner = len(rows), len(rows) + 1
    batch = rows[:-1] if batched else []
    reads = [[*rows, inner], [*batch, inner, column], [*rows, column]]
    maps = [
        ir.AffineMap.get(inner + 1, 0, [ir.AffineExpr.get_dim(d) for d in dims]) for dims in reads
    ]
    iterators = ["parallel"] * (inner) + ["reduction"]
    empty = ir.Operation.create("tensor.empty", [kind], [], loc=where, ip=at).result
    filled = _fill(start, empty, at, where)
    made = ir.Operation.create(
        "linalg.generic",
        [kind],
        [left, right, filled],
        {
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            "iterator_types": ir.ArrayAttr.get(
                [ir.Attribute.parse(f"#linalg.iterator_type<{name}>") for name in iterators]
            ),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([2, 1]),
        },
        regions=1,
        loc=where,
        ip=at,
    )
    element = kind.element_type
    block = ir.Block.create_at_start(made.regions[0], [element] * 3, [where] * 3)
    inside = ir.InsertionPoint(block)
    suffix = "i" if isinstance(element, ir.IntegerType) else "f"
    a, b, total = block.arguments
    term = ir.Operation.create(f"arith.mul{suffix}", [element], [a, b], loc=where, ip=inside)
    added = ir.Operation.create(
        f"arith.add{suffix}", [element], [total, term.result], loc=where, ip=inside
    )
    ir.Operation.create("linalg.yield", [], [added.result], loc=where, ip=inside)
    return made.result


def _fill(start: Any, empty: Any, at: Any, where: Any) -> Any:
    """linalg.fill of a tensor."""
    made = ir.Operation.create(
        "linalg.fill",
        [empty.type],
        [start, empty],
        {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1])},
        regions=1,
        loc=where,
        ip=at,
    )
    element = empty.type.element_type
    block = ir.Block.create_at_start(made.regions[0], [element] * 2, [where] * 2)
    ir.Operation.create(
        "linalg.yield", [], [block.arguments[0]], loc=where, ip=ir.InsertionPoint(block)
    )
    return made.result
