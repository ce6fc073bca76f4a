"""Say why an op does not take an operand as it lies: what its rule makes of dims that move, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.dialects.dist import LayoutAttr
from meshweave.errors import MeshweaveError
from meshweave.ir.bindings import ir
from meshweave.layout import Layout, Mesh
from meshweave.layout.factors import FOUND, JOINED, MOVING, REDUCTION, SORTED, Rule, split_axes
from meshweave.layout.layout import AxisFactor, Partial
from meshweave.plan import plan_redistribute
from meshweave.see.words import OpName
from meshweave.transforms.propagation.rules.table import RuleTable
from meshweave.transforms.propagation.values import item_bytes
from meshweave.transforms.redistribution.plans import MOVE

Dims = dict[int, tuple[str, ...]]
"""The dims of a tensor that are cut, and the axes of each that are moved."""
_WORDS = {"sum": "adds up", "max": "takes the maximum", "min": "takes the minimum"}


@dataclass(frozen=True)
class Obstacle:
    """Say what an op does with dims that are moved. dims: those of its first result that they become; None: of none."""

    text: str
    dims: Dims | None = None


@dataclass(frozen=True)
class Readers:
    """Ask the rules of ops. mesh: that layouts are on."""

    mesh: Mesh
    table: RuleTable

    @property
    def sizes(self) -> dict[str, int]:
        """Return the number of ranks along each axis."""
        return {name: self.mesh.axis_count([name]) for name in self.mesh.names}

    def obstacle(self, op: ir.Operation, number: int, dims: Dims) -> Obstacle:
        """Return what an op does with the dims of operand `number`."""
        name = OpName.of(op)
        rule = self.table.rules[self.table.rule(op)[0]]
        own = rule.operands[number] if number < len(rule.operands) else None
        if own is None:
            return Obstacle(f"{name} reads all of it")
        becomes: Dims = {}
        for dim, axes in dims.items():
            over = " and ".join(axes)
            placed = split_axes(axes, own[dim], rule, self.sizes)
            if sum(map(len, placed.values())) < len(axes):
                return Obstacle(f"{name} cannot keep {self._split(rule, own[dim], dim, axes)}")
            for factor in placed:
                kind = rule.factors[factor].kind
                if kind == REDUCTION:
                    return Obstacle(self._reduces(op, name, rule, dim, axes))
                if kind == SORTED:
                    would = f"if that stayed over {over}, ranks would exchange parts of it"
                    return Obstacle(f"{name} orders all of dim {dim}: {would}")
                if kind in (JOINED, FOUND):
                    return Obstacle(f"{name} reads all of dim {dim}, which lies over {over}")
                found = _dim_of(rule, factor)
                if found is None:
                    return Obstacle(f"{name} needs dim {dim} whole, which lies over {over}")
                becomes[found] = placed[factor]
        return Obstacle(f"{name} hands it on", becomes)

    def reaches(self, op: ir.Operation, number: int, dims: Dims) -> str:
        """Say how far an op reads along a dim that is cut, around each index; "" where it reads no neighbours."""
        if op.name.startswith(("func.", "scf.")) or op.name == MOVE:
            return ""
        rule = self.table.rules[self.table.rule(op)[0]]
        for dim, axes in dims.items():
            window = rule.window(number, dim)
            if window is not None and window.reach > 1:
                over = " and ".join(axes)
                reads = f"reads {window.reach} indices of dim {dim} for each of its result"
                return f"{OpName.of(op)} {reads}: some are on the next rank over {over}"
        return ""

    def hands_on(self, op: ir.Operation, number: int) -> bool:
        """Tell whether an op makes a sum of operand `number` element by element, so that it could take addends."""
        rule = self.table.rules[self.table.rule(op)[0]]
        # Of x * x both operands are the same: that is not linear in x.
        same = {n for n, value in enumerate(op.operands) if value == op.operands[number]}
        found = [len(same & product) for product in rule.monomials if same & product]
        moves = any(factor.kind in MOVING for factor in rule.factors)
        return max(found, default=0) == 1 and not moves

    def _split(self, rule: Rule, factors: Sequence[int], dim: int, axes: Sequence[str]) -> str:
        """Say which factors a dim has that axes do not divide."""
        sizes = "x".join(str(rule.factors[n].size) for n in factors)
        cut = ", ".join(f"{axis}={self.sizes[axis]}" for axis in axes)
        return f"dim {dim} cut over {cut}: it is {sizes} there"

    def _reduces(
        self, op: ir.Operation, name: OpName, rule: Rule, dim: int, axes: tuple[str, ...]
    ) -> str:
        """Say that an op reduces along a dim, and what the reduction over ranks would bring if the dim stayed cut."""
        over = " and ".join(axes)
        if rule.reduction is None:
            return f"{name} combines all of dim {dim}, in a way that ranks cannot share"
        text = f"{name} {_WORDS.get(rule.reduction, 'reduces')} along dim {dim}"
        made = self.reduction(op, rule.reduction, axes)
        if made is None:
            return f"{text}, which lies over {over}"
        tensor, nbytes, steps = made
        return (
            f"{text}: if that stayed over {over}, each rank would have a part of its result {tensor}, "
            f"and {steps} bring {nbytes:,} bytes"
        )

    def reduction(
        self, op: ir.Operation, kind: str, axes: tuple[str, ...]
    ) -> tuple[str, int, str] | None:
        """Return the result of an op, and the bytes and steps of its reduction over axes to the layout it has."""
        type_ = op.results[0].type
        target = next(iter(layouts_of(op, "results")), None)
        if not isinstance(type_, ir.RankedTensorType) or target is None or not target.is_block:
            return None
        kept = [[a for a in target.axes_of(d) if a not in axes] for d in range(target.ndim)]
        try:
            source = Layout.blocks(kept, [*target.partial, Partial(kind, axes)])
            plan = plan_redistribute(
                source, target, self.mesh, type_.shape, item_bytes(type_.element_type)
            )
        except MeshweaveError:
            return None
        steps = " and ".join(dict.fromkeys(step.op for step in plan if step.nbytes))
        tensor = "x".join(map(str, (*type_.shape, type_.element_type)))
        return (tensor, plan.nbytes, f"{steps} would") if steps else None


def has_windows(layout: Layout) -> bool:
    """Tell whether ranks hold elements of their neighbours, too."""
    return any(layout.window(dim) is not None for dim in range(layout.ndim))


def dims_over(layout: Layout, axes: Sequence[str]) -> Dims:
    """Return the dims that a layout cuts over these axes."""
    found: Dims = {}
    for dim, factors in enumerate(layout.dims):
        here = tuple(f.name for f in factors if isinstance(f, AxisFactor) and f.name in axes)
        if here:
            found[dim] = here
    return found


def layouts_of(op: ir.Operation, side: str) -> list[Layout | None]:
    """Return the layouts that propagation has noted for operands or results."""
    record = op.attributes.get("dist.layouts")
    if record is None:
        return [None] * len(getattr(op, side))
    return [
        None if isinstance(a, ir.UnitAttr) else LayoutAttr(a).layout
        for a in ir.DictAttr(record)[side]
    ]


def _dim_of(rule: Rule, factor: int) -> int | None:
    """Return the dim of the first result that a factor is in."""
    row = rule.results[0] if rule.results else None
    for dim, factors in enumerate(row or ()):
        if factor in factors:
            return dim
    return None
