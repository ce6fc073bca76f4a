"""Plan the redistributes of one module, each kind once, and say what they take."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf, prod

from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import MeshweaveError, PlanError
from meshweave.ir.bindings import ir
from meshweave.layout.algebra import pending
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.steps import OPS, Plan
from meshweave.transforms.propagation.values import item_bytes

MOVE = "dist.redistribute"
MAX_RANKS = 1 << 20  # the planner looks at every rank
MAX_BYTES = 1 << 62  # and counts elements and bytes in 64-bit integers


@dataclass
class Plans:
    """Plan the redistributes of one module. ops: the steps that plans may use."""

    mesh: Mesh
    ops: tuple[str, ...] = OPS
    _plans: dict[Hashable, Plan | None] = field(default_factory=dict)

    def plan(self, type_: ir.Type, source: Layout, target: ir.Attribute) -> Plan | None:
        """Return the plan between two layout attributes for a tensor type; None where there is none."""
        key = (type_, source, target)
        if key not in self._plans:
            try:
                layouts = [LayoutAttr(attr).layout for attr in (source, target)]
                self._plans[key] = self.made(type_, *layouts)
            except MeshweaveError:
                self._plans[key] = None
        return self._plans[key]

    def made(self, type_: ir.Type, source: Layout, target: Layout) -> Plan:
        """Return the plan.

        Raises PlanError or LayoutError where there is none, or the tensor is beyond what plans count.
        """
        shape, nbytes = tuple(type_.shape), item_bytes(type_.element_type)
        check_size(type_, self.mesh)
        return plan_redistribute(source, target, self.mesh, shape, nbytes, ops=self.ops)

    def seconds(self, type_: ir.Type, source: ir.Attribute, target: ir.Attribute) -> float:
        """Estimate the seconds that the plan takes; infinite where there is none, as from windows, and 0 to stay."""
        if source == target:
            return 0.0
        plan = self.plan(type_, source, target)
        return inf if plan is None else plan.seconds

    def reduces(self, source: ir.Attribute, target: ir.Attribute) -> bool:
        """Tell whether other reductions are pending in `target` than in `source`."""
        layouts = [LayoutAttr(attr).layout for attr in (source, target)]
        return pending(layouts[0], self.mesh) != pending(layouts[1], self.mesh)


def check_size(type_: ir.Type, mesh: Mesh) -> None:
    """Raise PlanError for a mesh or a tensor beyond what the planner counts."""
    nbytes = prod(type_.shape) * item_bytes(type_.element_type)
    if mesh.nranks > MAX_RANKS:
        raise PlanError(f"mesh ({mesh}) has {mesh.nranks} ranks, plans are for at most {MAX_RANKS}")
    if nbytes > MAX_BYTES:
        raise PlanError(f"{type_} has {nbytes} bytes, at most {MAX_BYTES} work")
