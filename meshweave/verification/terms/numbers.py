"""Compute integers that are made of numbers alone, as ops of `arith` do: modulo 2 to the power of their bits."""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import copysign

from meshweave.verification.terms.arith import is_integer, predicate_of
from meshweave.verification.terms.terms import Node, Term, Terms, dims_values

_SIGNED: dict[str, Callable[[int, int], int]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.andi": operator.and_,
    "arith.ori": operator.or_,
    "arith.xori": operator.xor,
    "arith.maxsi": max,
    "arith.minsi": min,
    "arith.shli": operator.lshift,
    "arith.shrsi": operator.rshift,
    "arith.divsi": lambda a, b: int(copysign(1, a) * copysign(1, b)) * (abs(a) // abs(b)),
    "arith.remsi": lambda a, b: int(copysign(1, a)) * (abs(a) % abs(b)),
}
_UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "arith.maxui": max,
    "arith.minui": min,
    "arith.shrui": operator.rshift,
    "arith.divui": operator.floordiv,
    "arith.remui": operator.mod,
}
_CASTS = ("arith.index_cast", "arith.extsi", "arith.trunci")
_UNSIGNED_CASTS = ("arith.index_castui", "arith.extui")
_COMPARES = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_SHIFTS = ("arith.shli", "arith.shrsi", "arith.shrui")
_DIVISIONS = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui")


def number_of(terms: Terms, view: Term, known: dict[Term, int | None] | None = None) -> int | None:
    """Return the integer that a value is, of an i1 0 or 1; None where it is made of anything else, or undefined."""
    known = {} if known is None else known
    if view not in known:
        known[view] = _number_of(terms, view, known)
    return known[view]


def _number_of(terms: Terms, view: Term, known: dict[Term, int | None]) -> int | None:
    node = terms.nodes[view.node]
    if view.guards or any(fill is not None for fill in view.fills) or not _bits(node.type):
        return None
    if node.op == "iota":
        return None if view.exprs[0].terms else view.exprs[0].const
    if node.op == "const":
        return node.detail[0] if isinstance(node.detail[0], int) else None
    if not node.op.startswith("arith."):
        return None
    reads = [terms.composed(read, dims_values(view.exprs)) for read in node.reads]
    if node.op == "arith.select":
        condition = number_of(terms, reads[0], known)
        return None if condition is None else number_of(terms, reads[1 if condition else 2], known)
    numbers = [number_of(terms, read, known) for read in reads]
    if any(number is None for number in numbers):
        return None
    return _computed(node, [n for n in numbers if n is not None], terms.type_of(reads[0]))


def _computed(node: Node, numbers: list[int], given: str) -> int | None:
    """Return what an op computes of integers of type `given`; None for an op without a rule, and what is undefined."""
    bits, name = _bits(given), node.op
    if name in _CASTS:
        return _signed(numbers[0], _bits(node.type)) if given != "i1" else None
    if name in _UNSIGNED_CASTS:
        return _signed(numbers[0] % (1 << bits), _bits(node.type))
    if name == "arith.cmpi":
        predicate = predicate_of(node.detail)
        if predicate < 0:
            return None
        if predicate >= len(_COMPARES):
            numbers, predicate = [n % (1 << bits) for n in numbers], predicate - 4
        return int(_COMPARES[predicate](*numbers))
    if name in _SHIFTS and not 0 <= numbers[1] < bits:
        return None
    if name in _DIVISIONS and numbers[1] == 0:
        return None
    if name in _UNSIGNED:
        return _signed(_UNSIGNED[name](*[n % (1 << bits) for n in numbers]), bits)
    return _signed(_SIGNED[name](*numbers), bits) if name in _SIGNED else None


def _bits(type_: str) -> int:
    """Return how many bits an integer has; 0 of what is none."""
    if type_ == "index":
        return 64
    return int(type_[1:]) if type_ == "i1" or is_integer(type_) else 0


def _signed(number: int, bits: int) -> int:
    """Return the number that so many bits hold: of a single one 0 or 1."""
    number %= 1 << bits
    return number - (1 << bits) if bits > 1 and number >> (bits - 1) else number
