"""Plan on a mesh with symbolic sizes: the steps once, their bytes as formulas in the symbols.

The steps are those of the plan for one choice of numbers; the formulas are true of every choice for which the plan has
the same steps (`holds`, `sizes_that_hold`). Specializing the mesh plans again, so nothing depends on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshweave.errors import PlanError
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.plan import formula as f
from meshweave.plan.family import family, sizes_text, symbols
from meshweave.plan.formula import Formula
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.steps import COLLECTIVES, OPS, PlanStep

PROBE = 4  # ranks along a symbolic axis in the plan whose steps are taken


@dataclass(frozen=True)
class SymbolicStep:
    """Describe a step, and the bytes that the busiest rank receives in it.

    details: those of `PlanStep.details`, except the sources of a permute, which depend on the sizes.
    """

    op: str
    axes: tuple[str, ...]
    source: Layout
    target: Layout
    nbytes: Formula
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SymbolicPlan:
    """Hold a plan for every size of the symbolic axes of a mesh: see `redistribute.Plan` for the words.

    ops:  the steps that plans for numbers may use.
    ends: source and target.
    """

    steps: tuple[SymbolicStep, ...]
    nbytes: Formula
    launches: int
    peak_bytes: Formula
    mesh: Mesh
    shape: tuple[int, ...]
    itemsize: int
    ops: tuple[str, ...]
    ends: tuple[Layout, Layout]

    def holds(self, **sizes: int) -> bool:
        """Tell whether the plan for these numbers has the same steps, so that the formulas give its bytes."""
        mesh = self.mesh.specialize(**sizes)
        made = plan_redistribute(*self.ends, mesh, self.shape, self.itemsize, ops=self.ops)
        mine = [(step.op, step.axes, step.target) for step in self.steps]
        return mine == [(step.op, step.axes, step.target) for step in made]

    def sizes_that_hold(self) -> list[dict[str, int]]:
        """Return, out of a few choices of numbers (`family`), those for which the formulas give the bytes."""
        return [sizes for sizes in family(self.mesh) if self.holds(**sizes)]

    def certificate(self) -> str:
        """State the launches, and the numbers for which the formulas are known to give the bytes."""
        sizes = "; ".join(map(sizes_text, self.sizes_that_hold())) or "none of the usual numbers"
        launches = f"{self.launches} launch{'es' if self.launches != 1 else ''}"
        return f"{launches}; exact for {sizes}: elsewhere another plan may be cheaper"

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as `meshweave plan --json` prints it: formulas as text."""
        return {
            "steps": [
                {
                    "op": step.op,
                    "axes": list(step.axes),
                    "bytes": str(step.nbytes),
                    **step.details,
                }
                for step in self.steps
            ],
            "bytes": str(self.nbytes),
            "launches": self.launches,
            "peak_bytes": str(self.peak_bytes),
            "symbols": list(symbols(self.mesh)),
            "holds": [sizes_text(sizes) for sizes in self.sizes_that_hold()],
        }


def symbolic_plan(
    source: Layout,
    target: Layout,
    mesh: Mesh,
    shape: Sequence[int],
    itemsize: int,
    *,
    ops: tuple[str, ...] = OPS,
    probe: Mapping[str, int] | None = None,
) -> SymbolicPlan:
    """Return the plan on a mesh with symbolic sizes.

    probe: a number for each symbol, at which the steps are chosen; by default 4 for all.
    Raises PlanError where the layouts are not in blocks or only an exchange does it: what that moves has no formula.
    """
    sizes = dict.fromkeys(symbols(mesh), PROBE) | dict(probe or {})
    # The bytes that a table of pieces moves are no formula of the sizes alone.
    allowed = tuple(op for op in ops if op not in ("exchange", "relayout"))
    for layout in (source, target):
        layout.check(mesh, shape)
        if not layout.is_block:
            raise PlanError(f"layout {layout}: formulas are for layouts in blocks")
    made = plan_redistribute(source, target, mesh.specialize(**sizes), shape, itemsize, ops=allowed)
    count = _Counts(mesh, tuple(shape), itemsize)
    steps = tuple(_symbolic_step(s, count) for s in made)
    for step, concrete in zip(steps, made, strict=True):
        assert step.nbytes.at(sizes) == concrete.nbytes, (step, concrete)
    peaks = [f.total([count.local(s.source), count.local(s.target)]) for s in made]
    peak = f.product([f.number(itemsize), f.largest(peaks or [count.local(source)])])
    assert peak.at(sizes) == made.peak_bytes, (str(peak), made.peak_bytes)
    return SymbolicPlan(
        steps,
        f.total(step.nbytes for step in steps),
        sum(step.op in COLLECTIVES for step in steps),
        peak,
        mesh,
        tuple(shape),
        itemsize,
        ops,
        (source, target),
    )


def local_bytes(layout: Layout, mesh: Mesh, shape: Sequence[int], itemsize: int) -> Formula:
    """Return the bytes of a rank's allocation of a tensor in a layout in blocks."""
    count = _Counts(mesh, tuple(shape), itemsize)
    return f.product([f.number(itemsize), count.local(layout)])


def _symbolic_step(step: PlanStep, count: "_Counts") -> SymbolicStep:
    details = {name: value for name, value in step.details().items() if name != "sources"}
    return SymbolicStep(step.op, step.axes, step.source, step.target, count.received(step), details)


@dataclass(frozen=True)
class _Counts:
    """Count elements and bytes of steps between blocks, as formulas."""

    mesh: Mesh
    shape: tuple[int, ...]
    itemsize: int

    def ranks(self, axes: Sequence[str]) -> Formula:
        return f.product(f.size(self.mesh.axis(name).size) for name in axes)

    def extents(self, layout: Layout) -> list[Formula]:
        """Return the size on a rank of each dim."""
        return [
            f.ceil_div(f.number(n), self.ranks(axes))
            for n, axes in zip(self.shape, layout.block_axes(), strict=True)
        ]

    def local(self, layout: Layout) -> Formula:
        return f.product(self.extents(layout))

    def received(self, step: PlanStep) -> Formula:
        """Return the bytes that the busiest rank receives: `cost.received`, with symbols."""
        if step.op not in COLLECTIVES:
            return f.number(0)
        group = self.ranks(step.axes)
        others = f.minus(group, f.number(1))
        item = f.number(self.itemsize)
        if step.op == "permute":
            return f.product([item, self.local(step.source)])
        if step.op == "all_reduce":
            whole = self.local(step.source)
            chunk = f.ceil_div(whole, group)  # received others times, then all but one of them
            more = f.product([f.minus(group, f.number(2)), chunk])
            return f.product([item, f.total([whole, more])])
        if step.op == "all_to_all":
            assert step.split_dim is not None
            extents = self.extents(step.source)
            extents[step.split_dim] = f.ceil_div(extents[step.split_dim], group)
            return f.product([item, *extents, others])
        unit = step.source if step.op == "all_gather" else step.target
        return f.product([item, self.local(unit), others])
