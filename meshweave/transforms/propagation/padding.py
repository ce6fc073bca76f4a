"""Tell whether what the body of an op computes may be computed on padding, whose content is undefined.

Reads at computed places must be held within the tensor, and divisions of integers must not trap: on a divisor of 0, nor
on the least integer divided by -1, whose quotient is too large. Frontends put such divisors aside by a `select`.
Anything that is not plain to see is answered with "no".
"""

from meshweave.ir.bindings import arith, ir
from meshweave.ir.build import named_predicate
from meshweave.ir.expressions import Apply, Body, BodyNode, Gather, Index, integer_of

UNSAFE_ON_PADDING = (
    "arith.divsi",
    "arith.divui",
    "arith.remsi",
    "arith.remui",
    "arith.ceildiv",
    "arith.floordiv",
    "math.ipowi",
    "tensor.extract",
    "memref.",
)
DIVISIONS = ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui")
"""Divisions whose divisors are looked at."""


def padding_safe(body: Body | None) -> bool:
    """Tell whether what a body computes may be computed on padding."""
    return body is not None and not any(
        (isinstance(node, Gather) and not all(within_ends(k, body) for k in node.operands))
        or (
            isinstance(node, Apply)
            and node.name.startswith(UNSAFE_ON_PADDING)
            and not (node.name in DIVISIONS and _may_divide(node, node.operands[1], body))
        )
        for node in body.nodes
    )


def within_ends(place: int, body: Body) -> bool:
    """Tell whether a place is that of a loop, or held between numbers whatever it is computed from."""
    node = body.nodes[place]
    if isinstance(node, Index) or integer_of(node) is not None:
        return True
    below = _held(node, "arith.minsi", body)
    return below is not None and _held(below, "arith.maxsi", body) is not None


def _held(node: BodyNode, name: str, body: Body) -> BodyNode | None:
    """Return what an op of that name compares with a number of 0 or more; None for any other node."""
    if not isinstance(node, Apply) or node.name != name:
        return None
    known = {k: integer_of(body.nodes[k]) for k in node.operands}
    rest = [body.nodes[k] for k, number in known.items() if number is None or number < 0]
    return rest[0] if len(rest) == 1 else None


def _may_divide(division: Apply, divisor: int, body: Body) -> bool:
    """Tell whether a division by node `divisor` does not trap, whatever numbers the body is given.

    The divisor is a known number, or a `select` of two that may divide: one that is not known may where it is taken
    only when it is neither 0 nor, with signs, -1 (or not -1 under the least integer).
    """
    number = integer_of(body.nodes[divisor])
    if number is not None:
        return number != 0 and (number != -1 or not _is_signed(division))
    node = body.nodes[divisor]
    if not isinstance(node, Apply) or node.name != "arith.select":
        return False
    condition, taken, other = node.operands
    if not _may_divide(division, taken, body):
        return False
    if _may_divide(division, other, body):
        return True
    excluded = _any_of(condition, body)
    return any(_equals(k, other, 0, body) for k in excluded) and (
        not _is_signed(division) or any(_overflows(k, division, other, body) for k in excluded)
    )


def _is_signed(division: Apply) -> bool:
    return division.name.endswith("si")


def _any_of(condition: int, body: Body) -> list[int]:
    """Return the conditions of which one must hold for `condition` to hold."""
    node = body.nodes[condition]
    if isinstance(node, Apply) and node.name == "arith.ori":
        return [k for part in node.operands for k in _any_of(part, body)]
    return [condition]


def _equals(condition: int, value: int, number: int, body: Body) -> bool:
    """Tell whether a condition says that node `value` is `number`."""
    node = body.nodes[condition]
    if not isinstance(node, Apply) or node.name != "arith.cmpi":
        return False
    predicate = node.attribute("predicate")
    assert predicate is not None
    sides = [integer_of(body.nodes[k]) for k in node.operands if k != value]
    equal = named_predicate(node.name, predicate) == arith.CmpIPredicate.eq
    return equal and value in node.operands and sides == [number]


def _overflows(condition: int, division: Apply, divisor: int, body: Body) -> bool:
    """Tell whether a condition holds where the quotient of the least integer and -1 is asked for."""
    if _equals(condition, divisor, -1, body):
        return True
    node = body.nodes[condition]
    if not isinstance(node, Apply) or node.name != "arith.andi":
        return False
    if not isinstance(division.type, ir.IntegerType):
        return False
    dividend, least = division.operands[0], -(1 << (division.type.width - 1))
    return all(
        _equals(k, divisor, -1, body) or _equals(k, dividend, least, body) for k in node.operands
    )
