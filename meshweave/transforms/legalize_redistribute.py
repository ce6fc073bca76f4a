"""dist-legalize-redistribute: each redistribute gets its plan, the cheapest steps from its source to its target.

before:  redistribute %a {source = #dist.layout<"[_, y] +sum(x)">, target = #dist.layout<"[x, y]">}
after:   the same with plan = [{op = "reduce_scatter", axes = ["x"], dim = 0, kind = "sum", bytes = .., target = ..}]

An epilogue: any pass that makes a redistribute may be followed by it. One that moves nothing goes.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from meshweave.bindings import ir
from meshweave.dialects.dist import LayoutAttr, axes_attr
from meshweave.errors import PlanError
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.steps import BLOCK_OPS, Step
from meshweave.transforms.base import Pass, at, ops_of, replace
from meshweave.transforms.mesh import mesh_of_module
from meshweave.transforms.rules import item_bytes

# The planner looks at every rank, and counts elements and bytes in 64-bit integers.
MAX_RANKS = 1 << 20
MAX_BYTES = 1 << 62


@dataclass(frozen=True)
class LegalizeRedistribute(Pass):
    """Give each `dist.redistribute` the plan with the least cost."""

    name: ClassVar[str] = "dist-legalize-redistribute"

    def run(self, module: Any) -> None:
        ops = ops_of(module, "dist.redistribute")
        if not ops:
            return
        mesh = mesh_of_module(module, concrete=True)
        assert mesh is not None  # the verifier of redistribute read its axes
        context = module.operation.context
        with context, ir.Location.unknown(context):
            for op in ops:
                source, target = (
                    LayoutAttr(op.operation.attributes[n]).layout for n in ("source", "target")
                )
                if source == target:
                    replace(op, [op.operation.operands[0]])
                    continue
                with at(op, "dist.redistribute"):
                    steps = _steps(op.operation.results[0].type, source, target, mesh)
                op.operation.attributes["plan"] = ir.ArrayAttr.get([step_attr(s) for s in steps])


def _steps(type_: Any, source: Layout, target: Layout, mesh: Mesh) -> tuple[Step, ...]:
    shape, nbytes = tuple(type_.shape), item_bytes(type_.element_type)
    if mesh.nranks > MAX_RANKS:
        raise PlanError(f"mesh ({mesh}) has {mesh.nranks} ranks, plans are for at most {MAX_RANKS}")
    if prod(shape) * nbytes > MAX_BYTES:
        raise PlanError(f"{type_} has {prod(shape) * nbytes} bytes, at most {MAX_BYTES} work")
    return plan_redistribute(source, target, mesh, shape, nbytes, ops=BLOCK_OPS).steps


def step_attr(step: Step) -> Any:
    """A step as a dictionary attribute: op, axes, target, bytes, and what its op has besides."""
    entry: dict[str, Any] = {
        "op": ir.StringAttr.get(step.op),
        "axes": axes_attr(step.axes),
        "target": LayoutAttr.make(step.target),
        "bytes": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), step.nbytes),
    }
    for name, value in step.details().items():
        entry[name] = _plain_attr(value)
    return ir.DictAttr.get(entry)


def _plain_attr(value: Any) -> Any:
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, tuple):
        return ir.ArrayAttr.get([_plain_attr(v) for v in value])
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
