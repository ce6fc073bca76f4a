"""dist-legalize-redistribute: each redistribute gets its plan, the cheapest steps from its source to its target.

before:  redistribute %a {source = #dist.layout<"[_, y] +sum(x)">, target = #dist.layout<"[x, y]">}
after:   the same with plan = [{op = "reduce_scatter", axes = ["x"], dim = 0, kind = "sum", bytes = .., source = ..,
         target = ..}]

An epilogue: any pass that makes a redistribute may be followed by it, as often as is liked. What is redundant goes
first, as by dist-fold-redistribute. A plan that is there already, and still leads from the source to the target, stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from meshweave.dialects.dist import LayoutAttr, axes_attr
from meshweave.errors import UsageError
from meshweave.ir.bindings import ir
from meshweave.plan.steps import BLOCK_OPS, OPS, PlanStep
from meshweave.transforms.base import Pass, at, mesh_of_module, ops_of
from meshweave.transforms.propagation.symbolic import legalize_symbolic
from meshweave.transforms.redistribution.fold_redistribute import fold_redistributes
from meshweave.transforms.redistribution.plans import MOVE, Plans

STEPS = {"all": OPS, "block": BLOCK_OPS}
"""Which steps plans may use, by the option `steps`."""


@dataclass(frozen=True)
class LegalizeRedistribute(Pass):
    """Give each `dist.redistribute` the plan with the least cost.

    steps: `all`, or `block` for slices and collectives of blocks alone: no exchange, relayout or embedding.
    """

    name: ClassVar[str] = "dist-legalize-redistribute"
    steps: str = "all"

    def __post_init__(self) -> None:
        if self.steps not in STEPS:
            raise UsageError(f'option steps: "{self.steps}" is none of {", ".join(STEPS)}')

    def run(self, module: ir.Module) -> None:
        if legalize_symbolic(module, str(self), STEPS[self.steps]) or not ops_of(module, MOVE):
            return
        mesh = mesh_of_module(module, concrete=True)
        assert mesh is not None  # the verifier of redistribute read its axes
        plans = Plans(mesh, STEPS[self.steps])
        fold_redistributes(module, plans)
        made: dict[tuple[ir.Type, ir.Attribute, ir.Attribute], ir.Attribute] = {}
        for op in ops_of(module, MOVE):
            attributes = op.operation.attributes
            if _is_kept(attributes):
                continue
            key = (op.operation.results[0].type, attributes["source"], attributes["target"])
            if key not in made:
                layouts = [LayoutAttr(attr).layout for attr in key[1:]]
                with at(op, MOVE):
                    made[key] = plan_attr(plans.made(key[0], *layouts).steps)
            attributes["plan"] = made[key]


def _is_kept(attributes: Mapping[str, ir.Attribute]) -> bool:
    """Tell whether the plan that is there begins with the op's source and ends with its target."""
    plan = attributes.get("plan")
    if not isinstance(plan, ir.ArrayAttr) or not len(plan):
        return False
    first, last = ir.DictAttr(plan[0]), ir.DictAttr(plan[len(plan) - 1])
    return (
        "source" in first
        and first["source"] == attributes["source"]
        and "target" in last
        and last["target"] == attributes["target"]
    )


def plan_attr(steps: tuple[PlanStep, ...]) -> ir.Attribute:
    """Return the steps of a plan as an array of dictionaries."""
    return ir.ArrayAttr.get([step_attr(step) for step in steps])


def step_attr(step: PlanStep) -> ir.Attribute:
    """Return a step as a dictionary attribute: op, axes, source, target, bytes, and what its op has besides."""
    entry: dict[str, ir.Attribute] = {
        "op": ir.StringAttr.get(step.op),
        "axes": axes_attr(step.axes),
        "source": LayoutAttr.make(step.source),
        "target": LayoutAttr.make(step.target),
        "bytes": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), step.nbytes),
    }
    for name, value in step.details().items():
        entry[name] = _plain_attr(value)
    return ir.DictAttr.get(entry)


def _plain_attr(value: object) -> ir.Attribute:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, tuple):
        return ir.ArrayAttr.get([_plain_attr(v) for v in value])
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
