"""Price other ways to move a tensor, and say what one would write to move less."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshweave.errors import MeshweaveError
from meshweave.ir.bindings import ir
from meshweave.layout import Layout, Mesh
from meshweave.layout.layout import AxisFactor
from meshweave.plan import plan_redistribute
from meshweave.plan.cost import link_of, seconds
from meshweave.plan.steps import COLLECTIVES, OPS
from meshweave.report import Cause
from meshweave.see.obstacles import has_windows


def microseconds(steps: Sequence[tuple[str, tuple[str, ...], int]], mesh: Mesh) -> float:
    """Return what the planner says that a plan takes. steps: op, axes and bytes of each."""
    took = 0.0
    for op, axes, nbytes in steps:
        ranks = mesh.axis_count(axes)
        took += 1e6 * seconds(op, nbytes, ranks, link_of(mesh, axes)) if nbytes else 0.0
    return took


@dataclass(frozen=True)
class MoveStep:
    """Hold a step of a plan, read from its attribute."""

    op: str
    axes: tuple[str, ...]
    nbytes: int

    @staticmethod
    def read(entry: ir.Attribute) -> MoveStep:
        """Read an entry of `plan`."""
        fields = {a.name: a.attr for a in ir.DictAttr(entry)}
        axes = tuple(axis.value for axis in fields["axes"])
        return MoveStep(fields["op"].value, axes, fields["bytes"].value)

    @property
    def moves(self) -> bool:
        """Tell whether ranks talk to each other in it."""
        return self.op in COLLECTIVES


@dataclass(frozen=True)
class MovePrices:
    """Price other ways to move a tensor."""

    source: Layout
    target: Layout
    mesh: Mesh
    shape: tuple[int, ...]
    itemsize: int

    def next_best(self, steps: list[MoveStep]) -> tuple[int, int, str]:
        """Return the bytes of the plan that was taken, the least of any, and the best plan without its first move."""
        nbytes = sum(step.nbytes for step in steps)
        bound = nbytes
        try:
            made = plan_redistribute(self.source, self.target, self.mesh, self.shape, self.itemsize)
            bound = made.lower_bound
            first = next(step.op for step in steps if step.moves)
            ops = tuple(op for op in OPS if op != first)
            other = plan_redistribute(
                self.source, self.target, self.mesh, self.shape, self.itemsize, ops=ops
            )
        except MeshweaveError:
            return nbytes, min(bound, nbytes), ""
        names = ", ".join(f"{step.op} over {', '.join(step.axes)}" for step in other if step.nbytes)
        took = microseconds([(step.op, step.axes, step.nbytes) for step in other], self.mesh)
        price = f"{other.nbytes:,} bytes, {took:,.1f} us"
        return nbytes, bound, f"{names}: {price}" if names else ""

    def remedy(
        self, given: tuple[Cause, ...], wanted: tuple[Cause, ...], moved: tuple[str, ...], wish: str
    ) -> str:
        """Say what one would write so that nothing, or less, is moved. wish: a layout that lets dims stay cut."""
        ways = []
        if wanted and wanted[-1].kind in ("result", "constraint"):
            what = "that result" if wanted[-1].kind == "result" else "the constraint"
            if wish:
                ways.append(f'ask for {what} in "{wish}"')
            elif all(link.kind != "op" for link in wanted):
                ways += [way.format(what=what) for way in self._kept(moved)]
        if [link.kind for link in given] == ["constraint"] and not self.source.partial:
            ways.append(f'try "{self.target}" in that constraint, or leave it out')
        said = [link.kind for link in given]
        if said == ["argument"] and not (self.source.partial or has_windows(self.target)):
            what = given[0].text.split(" lies")[0]
            ways.append(f'give {what} as "{self.target}": every rank then holds that much of it')
        return "; or ".join(ways)

    def _kept(self, moved: tuple[str, ...]) -> Iterator[str]:
        """Offer the target with the axes kept where they are, or, for a sum, put on the first dim that they divide."""
        if not self.source.partial:
            yield f'leave {{what}} in "{self.source}": then nothing is moved'
            return
        axes = [[f.name for f in dim if isinstance(f, AxisFactor)] for dim in self.target.dims]
        for dim in range(len(axes)):
            row = [[*own, *moved] if d == dim else own for d, own in enumerate(axes)]
            try:
                layout = Layout.blocks(row)
                layout.check(self.mesh, self.shape)
                plan = plan_redistribute(self.source, layout, self.mesh, self.shape, self.itemsize)
            except MeshweaveError:
                continue
            yield f'ask for {{what}} in "{layout}": {plan.nbytes:,} bytes'
            return
