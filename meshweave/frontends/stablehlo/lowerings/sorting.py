"""Lower sorts and selections: by `mw.order` where the comparator is an order of one tensor, else by merging."""

import math

from meshweave.frontends.stablehlo.counted import counted_dim
from meshweave.frontends.stablehlo.lowerings.lapack import settings_of
from meshweave.frontends.stablehlo.lowerings.loops import apply_reducer
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, Values, tensor_type
from meshweave.ir.ops import body_of, producer, replace_op, terminator
from meshweave.ir.sorting import Order, first, sort, sorted_rows


def lower_sort(op: ir.Operation) -> None:
    """Lower stablehlo.sort, which may sort several tensors of one shape together."""
    comparator, b, inputs = body_of(op), OpBuilder.before(op), list(op.operands)
    dim = ir.IntegerAttr(op.attributes["dimension"]).value if "dimension" in op.attributes else -1
    shape = list(inputs[0].type.shape)
    dim %= max(1, len(shape))
    known = _order(comparator)
    if known is not None and shape:
        key, how = known
        moved = [k for k in range(len(inputs)) if k != key and counted_dim(inputs[k]) != dim]
        *made, places = sort(b, [inputs[k] for k in (key, *moved)], dim, how)
        found = dict(zip((key, *moved), made, strict=True))
        for k in set(range(len(inputs))) - set(found):
            found[k] = _as(b, places, inputs[k].type)
        replace_op(op, [found[k] for k in range(len(inputs))])
        return

    def precedes(inner: OpBuilder, pairs: Values) -> ir.Value:
        return apply_reducer(inner, comparator, pairs)[0]

    replace_op(op, sorted_rows(b, inputs, dim, precedes))


def _as(b: OpBuilder, places: ir.Value, type_: ir.Type) -> ir.Value:
    """Return places as numbers of another type."""
    return places if places.type == type_ else b.one("stablehlo.convert", type_, places)


def _order(comparator: ir.Block) -> tuple[int, Order] | None:
    """Return which tensor a comparator compares, and its order; None for any other comparator."""
    test = producer(terminator(comparator).operands[0])
    if test is None or test.name != "stablehlo.compare":
        return None
    (x, made_one), (y, also) = map(_compared, test.operands)
    arguments = list(comparator.arguments)
    if x not in arguments or y not in arguments or made_one != also or len(made_one) == 1:
        return None
    first, second = arguments.index(x), arguments.index(y)
    direction = _word(test, "comparison_direction")
    if first // 2 != second // 2 or first == second or direction not in ("LT", "GT"):
        return None
    element = x.type.element_type
    if not isinstance(element, (ir.FloatType, ir.IntegerType)):
        return None
    total = not made_one and _word(test, "compare_type") == "TOTALORDER"
    unsigned = isinstance(element, ir.IntegerType) and element.is_unsigned
    descending = (direction == "GT") != (first > second)
    return first // 2, Order(descending, total, unsigned)


def _compared(value: ir.Value) -> tuple[ir.Value, set[str]]:
    """Return what is compared, and what of it is made one before: "zeros", "nans"."""
    made_one: set[str] = set()
    while (chosen := producer(value)) is not None and chosen.name == "stablehlo.select":
        kind = _made_one(chosen)
        if not kind or kind in made_one:
            break
        made_one.add(kind)
        value = chosen.operands[2]
    return value, made_one


def _made_one(chosen: ir.Operation) -> str:
    """Tell whether a choice takes one number for "zeros" or "nans", and else the value; "" for any other."""
    test, to, rest = producer(chosen.operands[0]), producer(chosen.operands[1]), chosen.operands[2]
    if test is None or test.name != "stablehlo.compare":
        return ""
    (tested, other), direction = test.operands, _word(test, "comparison_direction")
    while rest != tested:
        made = producer(rest)
        if made is None or made.name != "stablehlo.select" or not _made_one(made):
            return ""
        rest = made.operands[2]
    number = _number(to)
    if direction == "NE" and other == tested and number is not None and math.isnan(number):
        return "nans"
    return "zeros" if direction == "EQ" and number == 0 == _number(producer(other)) else ""


def _number(op: ir.Operation | None) -> float | None:
    """Return the number that a constant is everywhere."""
    if op is None or op.name != "stablehlo.constant":
        return None
    value = op.attributes["value"]
    if not isinstance(value, ir.DenseFPElementsAttr) or not value.is_splat:
        return None
    return float(value.get_splat_value().value)


def _word(op: ir.Operation, name: str) -> str:
    """Return the last word of an attribute such as #stablehlo<comparison_type TOTALORDER>."""
    return str(op.attributes[name]).rstrip(">").split()[-1] if name in op.attributes else ""


def lower_top_k(op: ir.Operation) -> None:
    """Lower chlo.top_k: the largest elements along the last dim by their bits, and their places."""
    (value,), (best, found) = op.operands, op.results
    dim, count = len(value.type.shape) - 1, best.type.shape[-1]
    element, b = value.type.element_type, OpBuilder.before(op)
    unsigned = isinstance(element, ir.IntegerType) and element.is_unsigned
    largest, places = first(b, [value], dim, count, Order(True, True, unsigned))
    kind = tensor_type(list(found.type.shape), found.type.element_type)
    replace_op(op, [largest, _as(b, places, kind)])


def approximate_order(op: ir.Operation) -> Order | None:
    """Return the order in which a stablehlo.custom_call asks for the first elements, about; None for any other call.

    It begins with the number that comes after all others.
    """
    target = ir.StringAttr(op.attributes["call_target_name"]).value
    if target != "ApproxTopK" or len(op.operands) != 4:
        return None
    number = _number(producer(op.operands[2]))
    return Order(number < 0) if number is not None and math.isinf(number) else None


def lower_approximate_top_k(op: ir.Operation, how: Order) -> None:
    """Lower a call that asks for about the first elements along a dim: these are exact, as JAX's own on cpus."""
    value, (best, found), b = op.operands[0], op.results, OpBuilder.before(op)
    dim = ir.IntegerAttr(settings_of(op)["reduction_dim"]).value
    made, places = first(b, [value], dim, best.type.shape[dim], how)
    replace_op(op, [made, _as(b, places, found.type)])


LOWER = {"stablehlo.sort": lower_sort, "chlo.top_k": lower_top_k}
