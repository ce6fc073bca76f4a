"""Make rules from the types of an op: any; of tensors of one shape; of tensors that must be whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meshweave.ir.bindings import ir
from meshweave.layout.factors import (
    WHOLE,
    Dims,
    Factor,
    Rule,
)
from meshweave.transforms.propagation.bodies import (
    Captured,
    is_tensor,
    monomials,
)
from meshweave.transforms.propagation.padding import UNSAFE_ON_PADDING
from meshweave.transforms.propagation.values import nbytes


def make_rule(
    name: str,
    factors: list[Factor],
    operands: list[ir.Type],
    results: list[ir.Type],
    dims: list[Dims | None],
    **more: Any,
) -> Rule:
    """Make a Rule whose sizes and bytes come from the types. dims: for each operand, then each result."""
    types = operands + results
    return Rule(
        tuple(factors),
        tuple(dims[: len(operands)]),
        tuple(dims[len(operands) :]),
        tuple([tuple(t.shape) if d is not None else None for t, d in zip(types, dims)]),
        tuple([nbytes(t) for t in types]),
        name=name,
        **more,
    )


def aligned_rule(
    name: str, operands: list[ir.Type], results: list[ir.Type], safe: bool = True
) -> Rule:
    """Make the rule of tensors of one shape: dim d of each is factor d."""
    shape: Sequence[int] = next((t.shape for t in results + operands if is_tensor(t)), [])
    factors = [Factor(extent) for extent in shape]
    dims: list[Dims | None] = [
        tuple((d,) for d in range(len(factors))) if is_tensor(t) else None
        for t in operands + results
    ]
    return make_rule(name, factors, operands, results, dims, padding_safe=safe)


def aligned_op_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Make the rule of an op whose tensors have one shape; else one that needs them whole."""
    types = [v.type for v in op.operands]
    results = [v.type for v in op.results]
    shapes = {tuple(t.shape) for t in types + results if is_tensor(t)}
    if len(shapes) > 1:
        return whole_rule(op, captured)
    safe = not op.name.startswith(UNSAFE_ON_PADDING)
    return replace(aligned_rule(op.name, types, results, safe), monomials=monomials(op))


def whole_rule(op: ir.Operation, captured: list[Captured]) -> Rule:
    """Make a rule that needs every dim of every tensor whole."""
    operands = [v.type for v in [*op.operands, *[c.value for c in captured]]]
    results = [v.type for v in op.results]
    factors: list[Factor] = []
    dims = [own_dims(t, factors, WHOLE) for t in operands + results]
    return make_rule(op.name, factors, operands, results, dims, padding_safe=False)


def own_dims(type_: ir.Type, factors: list[Factor], kind: str) -> Dims | None:
    """Add a new factor for each dim of the type."""
    if not is_tensor(type_):
        return None
    first = len(factors)
    factors.extend(Factor(extent, kind) for extent in type_.shape)
    return tuple((first + d,) for d in range(len(type_.shape)))
