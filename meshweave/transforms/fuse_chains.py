"""Two collectives in a row as one: what dist-fuse-collectives does with an op and the one it reads.

Sizes: n is the extent of `dim` before, g the size of a group. Every rule gives the same elements wherever they are not
padding; `rounds` says of which reductions the last bits may differ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from meshweave.bindings import ir
from meshweave.dialects.dist import axes_attr, axes_of
from meshweave.layout.mesh import Mesh

ROUNDING = ("sum", "prod", "avg")


def joined(mesh: Mesh, axes: Sequence[str]) -> tuple[str, ...]:
    """The same members in the same order by the fewest axes: none of size 1, neighbouring sub-axes as one."""
    found: list[str] = []
    for name in axes:
        if mesh.size(name) == 1:
            continue
        found.append(name)
        while len(found) > 1 and (both := _neighbours(mesh, *found[-2:])) is not None:
            found[-2:] = [both]
    return tuple(found)


def _neighbours(mesh: Mesh, major: str, minor: str) -> str | None:
    """The one (sub-)axis that `major`, `minor` are, if they lie next to each other."""
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
    """The same group in the order of the mesh: for ops that give all members the same."""
    return joined(mesh, sorted(axes, key=lambda name: -mesh.stride(name)))


def disjoint(mesh: Mesh, one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether no two ranks are in one group of both."""
    parts = [(mesh.stride(n), mesh.stride(n) * mesh.size(n)) for n in (*one, *other)]
    return all(a[1] <= b[0] for a, b in pairwise(sorted(parts)) if a[0] < a[1])


def composes(kind: str, element: Any) -> bool:
    """Whether reducing over x and then over y is reducing over both: averages of integers are cut off each time."""
    return kind != "avg" or not isinstance(element, (ir.IntegerType, ir.IndexType))


def rounds(kind: str, element: Any) -> bool:
    """Whether the result depends on the order of the members: of floats, all but max and min."""
    return kind in ROUNDING and not isinstance(element, (ir.IntegerType, ir.IndexType))


@dataclass(frozen=True)
class Fused:
    """The op that stands for two: its name and attributes; None for name: the operand of the first as it is.

    grows: its result is larger than that of the first, so it belongs where the second is.
    """

    name: str | None
    attributes: dict[str, Any]
    grows: bool = False


@dataclass(frozen=True)
class Pair:
    """An op `outer` that reads `inner`; alone: and nothing else does."""

    inner: Any
    outer: Any
    alone: bool
    mesh: Mesh
    bit_exact: bool

    def fused(self) -> Fused | None:
        """The one op for both, if there is one."""
        rule = _RULES.get((self.inner.name, self.outer.name))
        if rule is None or not (self.alone or rule is _gathered_and_sliced):
            return None
        return rule(self)

    def axes(self, op: Any) -> tuple[str, ...]:
        return joined(self.mesh, axes_of(op))

    @property
    def both(self) -> tuple[str, ...]:
        """The axes of both, those of the first major."""
        return (*axes_of(self.inner), *axes_of(self.outer))

    def same(self, *names: str) -> bool:
        """Whether these attributes are the same in both."""
        inner, outer = self.inner.attributes, self.outer.attributes
        return all(inner[name] == outer[name] for name in names)

    def extent(self, value: Any, op: Any) -> int:
        """The extent of a value in the dim of `op`."""
        return int(value.type.shape[op.attributes["dim"].value])

    def separate(self) -> bool:
        return disjoint(self.mesh, axes_of(self.inner), axes_of(self.outer))

    def may_reorder(self, kind: str) -> bool:
        """Whether the members may be reduced in another order."""
        return not (self.bit_exact and rounds(kind, self.inner.results[0].type.element_type))

    def may_merge(self) -> bool:
        """Whether two reductions may be one."""
        kind = self.outer.attributes["kind"].value
        element = self.inner.results[0].type.element_type
        return (
            self.same("kind")
            and composes(kind, element)
            and self.may_reorder(kind)
            and self.separate()
        )

    def pieces_fit(self) -> bool:
        """Whether pieces of pieces begin where the pieces of both together do: the first are cut without a rest."""
        group = self.mesh.axis_count(axes_of(self.outer))
        return self.extent(self.inner.results[0], self.inner) % group == 0


def _reduced_twice(pair: Pair) -> Fused | None:
    """all_reduce over x, then over y: over both."""
    if not pair.may_merge():
        return None
    axes = group_of(pair.mesh, pair.both)
    return Fused(
        "dist.all_reduce", {"axes": axes_attr(axes), "kind": pair.outer.attributes["kind"]}
    )


def _gathered_twice(pair: Pair) -> Fused | None:
    """all_gather over x, then over y, along one dim: over (y, x), if the first is not cut."""
    inner, outer = pair.inner, pair.outer
    group = pair.mesh.axis_count(axes_of(inner))
    whole = pair.extent(inner.operands[0], inner) * group == pair.extent(inner.results[0], inner)
    if not (pair.same("dim") and whole and pair.separate()):
        return None
    axes = joined(pair.mesh, (*axes_of(outer), *axes_of(inner)))
    return Fused(
        "dist.all_gather", {"axes": axes_attr(axes), "dim": outer.attributes["dim"]}, grows=True
    )


def _scattered_twice(pair: Pair) -> Fused | None:
    """reduce_scatter over x, then over y, along one dim: over (x, y)."""
    if not (pair.same("dim") and pair.may_merge() and pair.pieces_fit()):
        return None
    kept = {name: pair.outer.attributes[name] for name in ("dim", "kind")}
    axes = joined(pair.mesh, pair.both)
    return Fused("dist.reduce_scatter", {"axes": axes_attr(axes), **kept})


def _sliced_twice(pair: Pair) -> Fused | None:
    """all_slice over x, then over y, along one dim: over (x, y)."""
    if not (pair.same("dim") and pair.separate() and pair.pieces_fit()):
        return None
    axes = joined(pair.mesh, pair.both)
    return Fused("dist.all_slice", {"axes": axes_attr(axes), "dim": pair.outer.attributes["dim"]})


def _reduced_and_sliced(pair: Pair) -> Fused | None:
    """all_reduce, then all_slice in the same group: reduce_scatter, with the members in the order of the slice."""
    kind, mesh = pair.inner.attributes["kind"], pair.mesh
    same = group_of(mesh, axes_of(pair.inner)) == group_of(mesh, axes_of(pair.outer))
    if not (same and pair.may_reorder(kind.value)):
        return None
    kept = {"axes": axes_attr(pair.axes(pair.outer)), "dim": pair.outer.attributes["dim"]}
    return Fused("dist.reduce_scatter", {**kept, "kind": kind})


def _scattered_and_gathered(pair: Pair) -> Fused | None:
    """reduce_scatter, then all_gather of the same pieces: all_reduce, if all that was there comes back."""
    inner, outer, kind = pair.inner, pair.outer, pair.inner.attributes["kind"]
    back = pair.same("dim") and outer.results[0].type == inner.operands[0].type
    if not (back and pair.axes(inner) == pair.axes(outer) and pair.may_reorder(kind.value)):
        return None
    axes = group_of(pair.mesh, axes_of(inner))
    return Fused("dist.all_reduce", {"axes": axes_attr(axes), "kind": kind}, grows=True)


def _gathered_and_sliced(pair: Pair) -> Fused | None:
    """all_gather, then all_slice in the same group: along the same dim what was there, along another one an
    all_to_all.
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


_RULES: dict[tuple[str, str], Callable[[Pair], Fused | None]] = {
    ("dist.all_reduce", "dist.all_reduce"): _reduced_twice,
    ("dist.all_gather", "dist.all_gather"): _gathered_twice,
    ("dist.reduce_scatter", "dist.reduce_scatter"): _scattered_twice,
    ("dist.all_slice", "dist.all_slice"): _sliced_twice,
    ("dist.all_reduce", "dist.all_slice"): _reduced_and_sliced,
    ("dist.reduce_scatter", "dist.all_gather"): _scattered_and_gathered,
    ("dist.all_gather", "dist.all_slice"): _gathered_and_sliced,
}
