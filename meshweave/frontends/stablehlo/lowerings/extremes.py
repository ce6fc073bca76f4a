"""Let the place of an extreme, as JAX's argmax finds it pair by pair, be the least place of what equals the extreme.

These are two reductions of one number each, which vectors do.
"""

import math

from meshweave.frontends.stablehlo.counted import counted_dim
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64_array, tensor_type
from meshweave.ir.ops import body_of, is_used, producer, replace_op, terminator

_COMMUTE = ("stablehlo.or", "stablehlo.and")
_EXTREMES = {"GT": "stablehlo.maximum", "LT": "stablehlo.minimum"}


def lower_place(op: ir.Operation) -> None:
    """Rewrite a stablehlo.reduce that finds the first place of an extreme along a dim; leave any other alone."""
    dims = [int(d) for d in op.attributes["dimensions"]]
    if len(op.results) != 2 or len(dims) != 1 or is_used(op.results[0]):
        return
    (dim,), (value, places, start, first) = dims, list(op.operands)
    size, element = value.type.shape[dim], value.type.element_type
    direction = _direction(op, isinstance(element, ir.FloatType))
    if direction is None or not size or counted_dim(places) != dim or _number(first) != 0:
        return
    if _number(start) not in _least(element, direction):
        return
    b = OpBuilder.before(op)
    best = _reduced(b, _EXTREMES[direction], value, start, dim)
    others = [d for d in range(len(value.type.shape)) if d != dim]
    wide = b.one(
        "stablehlo.broadcast_in_dim", value.type, best, broadcast_dimensions=i64_array(others)
    )
    found = _compared(b, "EQ", value, wide)
    if isinstance(element, ir.FloatType):  # beside a NaN the extreme is NaN
        found = b.one("stablehlo.or", found.type, found, _compared(b, "NE", value, value))
    kind = places.type.element_type
    end = b.one(
        "stablehlo.constant",
        tensor_type([], kind),
        value=ir.DenseElementsAttr.get_splat(tensor_type([], kind), ir.IntegerAttr.get(kind, size)),
    )
    none = b.one("stablehlo.broadcast_in_dim", places.type, end, broadcast_dimensions=i64_array([]))
    held = b.one("stablehlo.select", places.type, found, places, none)
    replace_op(op, [best, _reduced(b, "stablehlo.minimum", held, end, dim)])


def _least(element: ir.Type, direction: str) -> list[float]:
    """Return what no number comes before: an infinity, or the integer at the end."""
    if isinstance(element, ir.FloatType):
        return [-math.inf if direction == "GT" else math.inf]
    if element.width < 8:
        return []
    low, high = (
        (0, element.width)
        if element.is_unsigned
        else (-1 << (element.width - 1), element.width - 1)
    )
    return [low if direction == "GT" else (1 << high) - 1]


def _number(value: ir.Value) -> float | None:
    """Return the number that a tensor without dims always is, or None."""
    op = producer(value)
    known = op.attributes["value"] if op is not None and op.name == "stablehlo.constant" else None
    if not isinstance(known, ir.DenseElementsAttr) or not known.is_splat:
        return None
    number: float = known.get_splat_value().value
    return number


def _compared(b: OpBuilder, direction: str, left: ir.Value, right: ir.Value) -> ir.Value:
    attr = ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
    type_ = tensor_type(left.type.shape, ir.IntegerType.get_signless(1))
    return b.one("stablehlo.compare", type_, left, right, comparison_direction=attr)


def _reduced(b: OpBuilder, name: str, value: ir.Value, start: ir.Value, dim: int) -> ir.Value:
    """Reduce a tensor along a dim by an op of two numbers."""
    shape, element = list(value.type.shape), value.type.element_type
    type_, number = (
        tensor_type([*shape[:dim], *shape[dim + 1 :]], element),
        tensor_type([], element),
    )
    op = b.op("stablehlo.reduce", [type_], [value, start], 1, dimensions=i64_array([dim]))
    inner, arguments = b.block(op.regions[0], [number, number])
    inner.op("stablehlo.return", [], [inner.one(name, number, *arguments)])
    return op.result


def _direction(op: ir.Operation, is_float: bool) -> str | None:
    """Return how values are compared where the body keeps the first of two extremes and its place; else None."""
    block = body_of(op)
    names = dict(zip(block.arguments, ("best", "at", "value", "place"), strict=True))
    made = [_text(value, names) for value in terminator(block).operands]
    for direction in _EXTREMES:
        kept = f"{direction}(best, value)"
        if is_float:
            kept = _joined("or", [kept, "NE(best, best)"])
        same = _joined("and", ["EQ(best, value)", "LT(at, place)"])
        first = _joined("or", [kept, same])
        if made == [f"select({kept}, best, value)", f"select({first}, at, place)"]:
            return direction
    return None


def _joined(name: str, operands: list[str]) -> str:
    return f"{name}({', '.join(sorted(operands))})"


def _text(value: ir.Value, names: dict[ir.Value, str]) -> str:
    """Write what a value of a body is computed from, alike for operands in either order where that does not matter."""
    op = producer(value)
    if op is None or value in names:
        return names.get(value, "?")
    operands = [_text(v, names) for v in op.operands]
    if op.name in _COMMUTE:
        return _joined(op.name.removeprefix("stablehlo."), operands)
    if op.name == "stablehlo.compare":
        direction = str(op.attributes["comparison_direction"]).split()[-1].rstrip(">")
        if direction in ("EQ", "NE"):
            operands = sorted(operands)
        return f"{direction}({', '.join(operands)})"
    return f"{op.name.removeprefix('stablehlo.')}({', '.join(operands)})"


LOWER = {"stablehlo.reduce": lower_place}
