"""What a linalg op computes for one element, as plain values: read once from the IR, composed
freely, printed as a kernel.

A `Payload` is a straight line of scalar ops. Its references are pairs: ("arg", i) is what operand i
holds in this iteration, ("op", k) the result of step k, ("value", v) a scalar from around the
linalg op.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from meshweave.bindings import ir
from meshweave.errors import CompileError
from meshweave.locations import location_text

Ref = tuple[str, Any]


class Step(NamedTuple):
    """One scalar op. attributes: (name, attribute) pairs; type: of its only result."""

    name: str
    attributes: tuple[tuple[str, Any], ...]
    operands: tuple[Ref, ...]
    type: Any


EXACT = "mw.exact"  # attribute of a scalar op that is computed as written, in the order written


def exact(step: Step) -> Step:
    """The step with nothing reordered, contracted or approximated."""
    return step._replace(attributes=(*step.attributes, (EXACT, ir.UnitAttr.get())))


CONTRACT = "mw.contract"  # attribute of a product and of the sum over a loop that it is added to


def contracted(payload: Payload, sums: Collection[Ref]) -> None:
    """Add products without rounding them first, within this body only: the bits of a result do not
    depend on what it is computed together with.

    sums: references to what a reduction holds so far. A product that is added there is marked, for
    such sums may be reordered; any other becomes a fused multiply-add.
    """
    steps: list[Step] = []
    new: list[Ref] = []  # of each old step

    def put(step: Step) -> Ref:
        steps.append(step)
        return ("op", len(steps) - 1)

    def moved(ref: Ref) -> Ref:
        return new[ref[1]] if ref[0] == "op" else ref

    for step in payload.steps:
        operands = tuple(moved(ref) for ref in step.operands)
        product = _product(step, operands, steps)
        if product is None:
            new.append(put(step._replace(operands=operands)))
            continue
        which, other = product, operands[1 - product]
        at = operands[which][1]
        if other in sums:
            mark = ((CONTRACT, ir.UnitAttr.get()),)
            steps[at] = steps[at]._replace(attributes=steps[at].attributes + mark)
            new.append(put(Step(step.name, step.attributes + mark, operands, step.type)))
            continue
        left, right = steps[at].operands
        if step.name == "arith.subf":
            negated = left if which else other
            opposite = put(Step("arith.negf", step.attributes, (negated,), step.type))
            left, other = (opposite, other) if which else (left, opposite)
        new.append(put(Step("math.fma", step.attributes, (left, right, other), step.type)))
    payload.steps = steps
    payload.yields = tuple(moved(ref) for ref in payload.yields)


def _product(step: Step, operands: tuple[Ref, ...], steps: list[Step]) -> int | None:
    """Which operand of a sum or difference in f32 or f64 is a product of the same body."""
    if step.name not in ("arith.addf", "arith.subf") or str(step.type) not in ("f32", "f64"):
        return None
    for k, (what, which) in enumerate(operands):
        if what == "op" and steps[which].name == "arith.mulf":
            return k
    return None


# Rough price of a scalar op in additions; what is not here costs 1 (arith) or 16 (math).
_COSTS = {
    "arith.divf": 4, "arith.divsi": 16, "arith.divui": 16, "arith.remf": 16, "arith.remsi": 16, "arith.remui": 16,
    "math.sqrt": 4, "math.rsqrt": 4, "math.absf": 1, "math.absi": 1, "math.fma": 1, "math.copysign": 1,
    "math.floor": 1, "math.ceil": 1, "math.roundeven": 1, "math.trunc": 1,
    "arith.constant": 0, "linalg.index": 1, "tensor.extract": 4,
}  # fmt: skip


@dataclass
class Payload:
    """The body of a linalg op: its steps in order and what it yields, one reference per result."""

    steps: list[Step] = field(default_factory=list)
    yields: tuple[Ref, ...] = ()
    captured: list[Any] = field(default_factory=list)  # tensors that steps read at computed places

    @property
    def cost(self) -> int:
        """Price of one element in additions."""
        return sum(step_cost(step.name) for step in self.steps)

    def reads(self, arg: int) -> bool:
        """Whether the value of operand `arg` matters."""
        wanted = ("arg", arg)
        return wanted in self.yields or any(wanted in s.operands for s in self.steps)


def step_cost(name: str) -> int:
    """Price of a scalar op in additions."""
    known = _COSTS.get(name)
    if known is not None:
        return known
    return 16 if name.startswith("math.") else 1


def read_payload(block: Any) -> Payload:
    """The payload in the body `block` of a linalg.generic (or tensor.generate: then the arguments
    are the indices).

    Raises CompileError for an op inside it that has regions, several results or is not a scalar op.
    """
    payload = Payload()
    refs: dict[Any, Ref] = {arg: ("arg", i) for i, arg in enumerate(block.arguments)}
    for view in block.operations:
        op = view.operation
        name = op.name
        operands = tuple(refs.get(v) or _outer(v) for v in op.operands)
        if name in ("linalg.yield", "tensor.yield"):
            payload.yields = operands
            break
        if name == "tensor.extract":
            payload.captured.append(op.operands[0])
        elif len(op.regions) or len(op.results) != 1:
            raise CompileError(
                f"{name} inside a linalg body is not supported", location_text(op.location)
            )
        attributes = tuple((key, op.attributes[key]) for key in op.attributes)
        refs[op.results[0]] = ("op", len(payload.steps))
        payload.steps.append(Step(name, attributes, operands, op.results[0].type))
    return payload


def _outer(value: Any) -> Ref:
    return ("value", value)


def constant_of(value: Any) -> Any:
    """The attribute of the arith.constant that makes `value`, None when something else does."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return owner.attributes["value"]
