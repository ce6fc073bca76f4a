"""Fuse two collectives in a row: what dist-fuse-collectives does with an op and the one it reads.

Sizes: n is the extent of `dim` before, g the size of a group. Every rule gives the same elements wherever they are not
padding; `rounds` says of which reductions the last bits may differ.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshweave.dialects.dist import axes_attr, axes_of
from meshweave.ir.bindings import ir
from meshweave.layout.mesh import Mesh
from meshweave.plan.collectives import BY_OP, CollectiveRow

ROUNDING = ("sum", "prod", "avg")


def merge_axes(mesh: Mesh, axes: Sequence[str]) -> tuple[str, ...]:
    """Name the same members in the same order by the fewest axes: none of size 1, neighbouring sub-axes as one."""
    found: list[str] = []
    for name in axes:
        if mesh.size(name) == 1:
            continue
        found.append(name)
        while len(found) > 1 and (both := _neighbours(mesh, *found[-2:])) is not None:
            found[-2:] = [both]
    return tuple(found)


def _neighbours(mesh: Mesh, major: str, minor: str) -> str | None:
    """Return the one (sub-)axis that `major`, `minor` are, if they are next to each other."""
    base = mesh.axis(major)
    if mesh.axis(minor).name != base.name:
        return None
    size = mesh.size(major) * mesh.size(minor)
    if mesh.stride(major) != mesh.stride(minor) * mesh.size(minor):
        return None
    whole = mesh.size(base.name)
    if size == whole:
        return base.name
    before = whole * mesh.stride(base.name) // (mesh.stride(minor) * size)
    return f"{base.name}:({before}){size}"


def group_of(mesh: Mesh, axes: Sequence[str]) -> tuple[str, ...]:
    """Return the same group in the order of the mesh: for ops that give all members the same."""
    return merge_axes(mesh, sorted(axes, key=lambda name: -mesh.stride(name)))


def disjoint(mesh: Mesh, one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether no two ranks are in one group of both."""
    parts = [(mesh.stride(n), mesh.stride(n) * mesh.size(n)) for n in (*one, *other)]
    return all(a[1] <= b[0] for a, b in pairwise(sorted(parts)) if a[0] < a[1])


def composes(kind: str, element: ir.Type) -> bool:
    """Tell whether reducing over x and then over y is reducing over both.

    Averages of integers are cut off each time.
    """
    return kind != "avg" or not isinstance(element, (ir.IntegerType, ir.IndexType))


def rounds(kind: str, element: ir.Type) -> bool:
    """Tell whether the result depends on the order of the members: of floats, all but max and min."""
    return kind in ROUNDING and not isinstance(element, (ir.IntegerType, ir.IndexType))


@dataclass(frozen=True)
class Fused:
    """Describe the op that replaces two: its name and attributes; None for name: the operand of the first as it is.

    grows: its result is larger than that of the first, so it belongs where the second is.
    """

    name: str | None
    attributes: dict[str, ir.Attribute]
    grows: bool = False


@dataclass(frozen=True)
class CollectivePair:
    """Hold an op `outer` that reads `inner`; alone: nothing else reads it."""

    inner: ir.Operation
    outer: ir.Operation
    alone: bool
    mesh: Mesh
    bit_exact: bool

    def fused(self) -> Fused | None:
        """Return the one op for both, if there is one."""
        row = BY_OP[self.inner.name.removeprefix("dist.")]
        if self.outer.name.removeprefix("dist.") not in row.fuses:
            return None
        if self.inner.name == self.outer.name:
            return _twice(self, row) if self.alone else None
        if row.joins:
            return _gathered_and_sliced(self)
        rule = _scattered_and_gathered if row.cuts else _reduced_and_sliced
        return rule(self) if self.alone else None

    def axes(self, op: ir.Operation) -> tuple[str, ...]:
        return merge_axes(self.mesh, axes_of(op))

    @property
    def both(self) -> tuple[str, ...]:
        """Return the axes of both, those of the first major."""
        return (*axes_of(self.inner), *axes_of(self.outer))

    def same(self, *names: str) -> bool:
        """Tell whether these attributes are the same in both."""
        inner, outer = self.inner.attributes, self.outer.attributes
        return all(inner[name] == outer[name] for name in names)

    def extent(self, value: ir.Value, op: ir.Operation) -> int:
        """Return the extent of a value in the dim of `op`."""
        return int(value.type.shape[op.attributes["dim"].value])

    def separate(self) -> bool:
        return disjoint(self.mesh, axes_of(self.inner), axes_of(self.outer))

    def may_reorder(self, kind: str) -> bool:
        """Tell whether the members may be reduced in another order."""
        return not (self.bit_exact and rounds(kind, self.inner.results[0].type.element_type))

    def may_merge(self) -> bool:
        """Tell whether two reductions may be one."""
        kind = self.outer.attributes["kind"].value
        element = self.inner.results[0].type.element_type
        return (
            self.same("kind")
            and composes(kind, element)
            and self.may_reorder(kind)
            and self.separate()
        )

    def pieces_fit(self) -> bool:
        """Tell whether pieces of pieces begin where the pieces of both together do: the first divide evenly."""
        group = self.mesh.axis_count(axes_of(self.outer))
        return self.extent(self.inner.results[0], self.inner) % group == 0


def _twice(pair: CollectivePair, row: CollectiveRow) -> Fused | None:
    """Fuse an op over x, then over y: over (x, y), or over (y, x) where it joins pieces that are not cut at the end."""
    inner, outer = pair.inner, pair.outer
    if row.has_dims and not pair.same("dim"):
        return None
    if not (pair.may_merge() if row.reduces else pair.separate()):
        return None
    group = pair.mesh.axis_count(axes_of(inner))
    given, made = (
        pair.extent(v, inner) if row.joins else 0 for v in (*inner.operands, *inner.results)
    )
    if given * group != made or (row.cuts and not pair.pieces_fit()):
        return None
    both = (*axes_of(outer), *axes_of(inner)) if row.joins else pair.both
    axes = (merge_axes if row.has_dims else group_of)(pair.mesh, both)
    kept = {name: outer.attributes[name] for name in row.details}
    return Fused(outer.name, {"axes": axes_attr(axes), **kept}, grows=bool(row.joins))


def _reduced_and_sliced(pair: CollectivePair) -> Fused | None:
    """Fuse all_reduce, then all_slice in the same group: reduce_scatter, with the members in the order of the slice."""
    kind, mesh = pair.inner.attributes["kind"], pair.mesh
    same = group_of(mesh, axes_of(pair.inner)) == group_of(mesh, axes_of(pair.outer))
    if not (same and pair.may_reorder(kind.value)):
        return None
    kept = {"axes": axes_attr(pair.axes(pair.outer)), "dim": pair.outer.attributes["dim"]}
    return Fused("dist.reduce_scatter", {**kept, "kind": kind})


def _scattered_and_gathered(pair: CollectivePair) -> Fused | None:
    """Fuse reduce_scatter, then all_gather of the same pieces: all_reduce, if all that was there comes back."""
    inner, outer, kind = pair.inner, pair.outer, pair.inner.attributes["kind"]
    back = pair.same("dim") and outer.results[0].type == inner.operands[0].type
    if not (back and pair.axes(inner) == pair.axes(outer) and pair.may_reorder(kind.value)):
        return None
    axes = group_of(pair.mesh, axes_of(inner))
    return Fused("dist.all_reduce", {"axes": axes_attr(axes), "kind": kind}, grows=True)


def _gathered_and_sliced(pair: CollectivePair) -> Fused | None:
    """Fuse all_gather, then all_slice in the same group.

    Along the same dim that gives back what was there, along another one it is an all_to_all.
    """
    inner, outer = pair.inner, pair.outer
    if pair.axes(inner) != pair.axes(outer):
        return None
    if pair.same("dim"):
        same = outer.results[0].type == inner.operands[0].type
        return Fused(None, {}) if same else None
    dims = {"split_dim": outer.attributes["dim"], "concat_dim": inner.attributes["dim"]}
    if not pair.alone:
        return None
    return Fused("dist.all_to_all", {"axes": axes_attr(pair.axes(outer)), **dims})
