"""Read tensors that torch-mlir has made of one dim: which loops, of the dims that were merged, each element has.

place d0 of 36 reads x[(d0 / 3) % 12, d0 % 3]       loops of 12 and of 3, and x runs with both
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, iterator_types, static_offsets, static_sizes
from meshweave.ir.expressions import (
    Apply,
    Body,
    BodyNode,
    Gather,
    Index,
    integer_of,
    read_body,
)
from meshweave.ir.ops import body_of, producer

Digit = tuple[int, int]
"""A place divided by the first number, of which the remainder by the second is left."""


@dataclass(frozen=True)
class Flat:
    """Hold what a flat tensor reads: a tensor with the digits of its dims, or a digit itself where `tensor` is None."""

    tensor: ir.Value | None
    digits: tuple[Digit, ...]


def flat_parts(values: Sequence[ir.Value | None]) -> tuple[list[Flat], list[Digit]] | None:
    """Return what flat tensors of one length read, and the digits of their places, the first dim's first.

    None where some tensor is no such.
    """
    found = [None if value is None else _part(value) for value in values]
    parts = [part for part in found if part is not None]
    if len(parts) < len(values) or not values or values[0] is None:
        return None
    digits = sorted({digit for part in parts for digit in part.digits}, reverse=True)
    size = values[0].type.shape[0]
    steps = [prod(mod for _, mod in digits[k + 1 :]) for k in range(len(digits))]
    whole = prod(mod for _, mod in digits) == size and [step for step, _ in digits] == steps
    return (parts, digits) if whole else None


def columns(indices: ir.Value) -> list[ir.Value | None]:
    """Return the columns that were put side by side into a matrix; None for one that is not known."""
    found: list[ir.Value | None] = [None] * indices.type.shape[1]
    op = producer(indices)
    if indices.type.shape[1] == 1:
        return [indices]
    while op is not None and op.name == "tensor.insert_slice":
        offsets, sizes = static_offsets(op), static_sizes(op)
        if offsets[0] or sizes != [indices.type.shape[0], 1]:
            return found
        if 0 <= offsets[1] < len(found):
            found[offsets[1]] = found[offsets[1]] or op.operands[0]
        op = producer(op.operands[1])
    return found


def _part(value: ir.Value) -> Flat | None:
    """Return what a result of an op with one loop reads at each place."""
    op = producer(value)
    if (
        op is None
        or op.name != "linalg.generic"
        or list(iterator_types(op)) != [IteratorType.PARALLEL]
    ):
        return None
    try:
        body = read_body(body_of(op))
    except CompileError:
        return None
    number, size = ir.OpResult(value).result_number, value.type.shape[0]
    node = body.nodes[body.results[number]]
    if isinstance(node, Apply) and node.name == "arith.index_cast":
        digit = _digit(body, node.operands[0], size)
        return None if digit is None else Flat(None, (digit,))
    return _read(body, node, size)


def _read(body: Body, node: BodyNode, size: int) -> Flat | None:
    """Return the tensor that a node reads at digits, whose dims are as long as these have values."""
    if not isinstance(node, Gather):
        return None
    found = [_digit(body, k, size) for k in node.operands]
    digits = tuple([d for d in found if d is not None])
    fits = [mod for _, mod in digits] == list(node.access.type.shape)
    return Flat(node.access, digits) if fits and len(set(digits)) == len(found) else None


def _digit(body: Body, number: int, size: int) -> Digit | None:
    """Return the digit of the loop's place that a node is."""
    node = body.nodes[number]
    if isinstance(node, Index):
        return 1, size
    if not isinstance(node, Apply) or node.name not in _DIVISIONS:
        return None
    of, by = _digit(body, node.operands[0], size), integer_of(body.nodes[node.operands[1]])
    if of is None or by is None or by <= 0:
        return None
    step, mod = of
    if by >= mod:
        return of if "rem" in node.name else None
    if mod % by:
        return None
    return (step, by) if "rem" in node.name else (step * by, mod // by)


_DIVISIONS = ("arith.remsi", "arith.remui", "arith.divsi", "arith.divui")
