"""Replay a plan on the digits of its layouts: find the step that does not lead where it says, whoever made it.

The index of a dim is a row of digits: coordinates of ranks, and local positions. To cut a dim is to cut its first local
digit and give the pieces to ranks; to join pieces is that read backwards. So a step between blocks is right iff its
source, changed in this way, has the digits of its target. That is a few numbers a dim, however large the tensor is.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from meshweave.errors import LayoutError
from meshweave.layout.algebra import (
    Pending,
    merged,
    normal,
    pending,
    refine_dim,
    same_dim,
    same_placement,
)
from meshweave.layout.layout import Layout
from meshweave.layout.mesh import Mesh
from meshweave.layout.notation import axis_factors
from meshweave.layout.places import Indices, coordinate, digits, irregular, is_nested
from meshweave.plan.collectives import BY_OP
from meshweave.plan.overlap import axes_within, overlap, same_sizes
from meshweave.plan.steps import PlanStep

Row = list[tuple[int, int]]
"""Digits of a dim, major first: the extent, and the distance between neighbours in ranks, 0 for a local digit."""

Rows = tuple[tuple[tuple[int, int], ...], ...]


def flaw(
    steps: Sequence[PlanStep], source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...]
) -> str | None:
    """Return what is wrong with steps that should lead from source to target; None where they are right."""
    now = source
    for step in steps:
        wrong = _wrong(step, mesh, shape) if step.source == now else f"it does not start at {now}"
        if wrong:
            return f"{step}: {wrong}"
        now = step.target
    return f"the steps end at {now}" if steps and now != target else None


def right_for(
    steps: Sequence[PlanStep], mesh: Mesh, shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return what each dim may be a multiple of, so that steps that are right for `shape` are right for that too.

    0: nothing else than it is in `shape`. None: nothing is known of any dim, where a layout is not in plain blocks.

    Where no layout or step cuts a dim, all ranks have all of it, however large it is. Where all cut a dim P without
    padding, the ranks that have index i of it have indices i * k .. i * k + k - 1 of a dim P * k: the digits of ranks
    stand before the one local digit, which alone grows. So what falls into place in P does in P * k.
    """
    units = [1] * len(shape)
    for step in steps:
        touched = (step.dim, step.split_dim, step.concat_dim)
        for layout in (step.source, step.target):
            if not layout.is_block:
                return None
            for dim, cut in enumerate(layout.block_axes()):
                axes = dict.fromkeys((*cut, *step.axes)) if dim in touched else cut
                if axes and units[dim]:
                    units[dim] = 0 if shape[dim] % mesh.axis_count(axes) else shape[dim]
    return tuple(units)


def _wrong(step: PlanStep, mesh: Mesh, shape: tuple[int, ...]) -> str | None:
    source, target = step.source, step.target
    if _pending_after(step, mesh) != pending(target, mesh):
        return "it leaves other reductions pending"
    dims = range(0 if 0 in shape else len(shape))
    unlike = [dim for dim in dims if not same_sizes(source, target, mesh, shape, dim)]
    if step.op == "relayout":
        found = overlap(source.without_partial(), target.without_partial(), mesh, shape)
        return f"a rank lacks {found.at_most} elements" if found.at_most else None
    if step.op == "exchange":
        strays = [dim for dim in unlike if _strays(step, mesh, shape, dim)]
        return f"dim {strays[0]} comes from ranks of other groups" if strays else None
    if step.op in ("all_reduce", "local"):
        bare = source.without_partial(), target.without_partial()
        return None if same_placement(*bare, mesh, shape) else "it moves no elements"
    if source.order is not None or target.order is not None:
        return "it keeps the memory order"
    if step.op == "permute":
        return _wrong_sources(step, mesh, shape)
    law = BY_OP["all_gather" if step.op == "embed" else step.op]
    details, group = step.details(), mesh.axis_count(step.axes)
    given, wanted = (layout.local_shape(mesh, shape) for layout in (source, target))
    if law.shape(given, group, details, wanted) != list(wanted):
        return f"it does not make {list(wanted)} of {list(given)}"
    ends = details.get(law.cuts), details.get(law.joins)
    wrong = [dim for dim in unlike if not _falls_into_place(step, mesh, shape, dim, *ends)]
    return f"the pieces of dim {wrong[0]} do not fall into place" if wrong else None


def _pending_after(step: PlanStep, mesh: Mesh) -> Pending | None:
    """Return the reductions that are pending after a step; None where it must not be done."""
    before = pending(step.source, mesh)
    axes = tuple(axis for axis in step.axes if mesh.size(axis) > 1)
    if step.op == "permute":  # which operands go where is told by its sources
        after = pending(step.target, mesh)
        return after if [kind for kind, _ in before] == [kind for kind, _ in after] else None
    if step.kind is None or not axes:
        return before
    if step.op not in BY_OP:
        good = step.op == "local" or step.kind != "avg"
        return merged([(step.kind, axes), *before]) if good else None
    if not before or before[0][0] != step.kind or not set(axes) <= set(before[0][1]):
        return None
    left = tuple(axis for axis in before[0][1] if axis not in axes)
    return merged([(step.kind, left), *before[1:]])


def _falls_into_place(
    step: PlanStep,
    mesh: Mesh,
    shape: tuple[int, ...],
    dim: int,
    cut: int | None,
    joined: int | None,
) -> bool:
    """Tell whether a dim, cut or joined or as it is, has the digits of the target."""
    have, want = (_row(layout, mesh, shape, dim) for layout in (step.source, step.target))
    if have is not None and dim == cut:
        have = _cut(have, step.axes, mesh, shape[dim])
    if want is not None and dim == joined:
        want = _cut(want, step.axes, mesh, shape[dim])
    if have is None or want is None:
        return False
    return _normal(have, shape[dim]) == _normal(want, shape[dim])


def _row(layout: Layout, mesh: Mesh, shape: tuple[int, ...], dim: int) -> Row | None:
    """Return the digits of a dim; None where it is in windows, or of sizes that are not those of plain blocks."""
    if layout.is_block:  # most are: their digits are told at once
        ranks = _ranks(layout.block_axes()[dim], mesh)
        return [*ranks, (-(-shape[dim] // prod(extent for extent, _ in ranks)), 0)]
    plain = layout
    if layout.window(dim) is not None:
        return None
    if irregular(layout, dim) is not None or is_nested(layout, mesh, shape, dim):
        rows = (axis_factors(factors) for factors in layout.dims)
        plain = Layout(tuple(tuple(replace(f, extents=None) for f in row) for row in rows))
        if not same_dim(layout, plain, mesh, shape, dim):
            return None
    row = digits(plain, mesh, shape)[dim]
    return [(d.extent, 0 if d.axis is None else mesh.stride(d.axis)) for d in row]


def _ranks(axes: Sequence[str], mesh: Mesh) -> Row:
    return [(mesh.size(axis), mesh.stride(axis)) for axis in axes]


def _cut(row: Row, axes: Sequence[str], mesh: Mesh, size: int) -> Row | None:
    """Cut the local positions of a dim into equal pieces over `axes`; None where a cut falls across a digit."""
    places = [at for at, (extent, weight) in enumerate(row) if weight == 0]
    wide = [at for at in places if row[at][0] != 1] or places[-1:]
    at, group = wide[0], mesh.axis_count(axes)
    extent, below = row[at][0], prod(extent for extent, _ in row[at + 1 :])
    if extent % group and (len(wide) > 1 or below * extent < size):
        return None
    return [*row[:at], *_ranks(axes, mesh), (-(-extent // group), 0), *row[at + 1 :]]


def _normal(row: Row, size: int) -> list[tuple[int, int, int]]:
    """Return the normal form of digits, wherever in memory they lie."""
    return normal([(extent, weight, 0) for extent, weight in row], size)


def _wrong_sources(step: PlanStep, mesh: Mesh, shape: tuple[int, ...]) -> str | None:
    """Check that each rank receives the blocks, and the operands, that it has in the target."""
    rows = []
    for dim in range(len(shape)):
        have, want = (_row(layout, mesh, shape, dim) for layout in (step.source, step.target))
        if have is None or want is None or _locals(have) != _locals(want):
            return f"dim {dim} has other blocks in its target"
        rows.append((have, want))
    for one, other in zip(pending(step.source, mesh), pending(step.target, mesh)):
        rows.append((_ranks(one[1], mesh), _ranks(other[1], mesh)))
    ranks_of = [tuple([tuple([d for d in row if d[1]]) for row in side]) for side in zip(*rows)]
    return _wrong_senders(mesh, step.axes, step.sources or (), *(ranks_of or [(), ()]))


@lru_cache(maxsize=1 << 10)
def _wrong_senders(
    mesh: Mesh, axes: tuple[str, ...], sources: tuple[int, ...], have: Rows, want: Rows
) -> str | None:
    """Check that senders have, in each row of digits of ranks, the numbers that receivers want."""
    group, given = mesh.axis_count(axes), np.array(sources, np.int64)
    if not np.array_equal(np.sort(given), np.arange(group)):
        return f"its sources are no permutation of {group} members"
    ranks: Indices = np.arange(mesh.nranks)
    own = [coordinate(mesh, axis, ranks) for axis in axes]
    sizes = [mesh.size(axis) for axis in axes]
    theirs = np.unravel_index(given[np.ravel_multi_index(own, sizes)], sizes)
    senders = ranks
    for axis, here, there in zip(axes, own, theirs, strict=True):
        senders = senders + (there - here) * mesh.stride(axis)
    for held, wanted in zip(have, want, strict=True):
        if not np.array_equal(_numbers(held, senders), _numbers(wanted, ranks)):
            return "its sources do not have what the members want"
    return None


def _locals(row: Row) -> list[int]:
    return [extent for extent, weight in row if weight == 0 and extent != 1]


def _numbers(row: tuple[tuple[int, int], ...], ranks: Indices) -> Indices:
    """Return the number of the piece that each rank holds, by its digits of ranks."""
    found: Indices = np.zeros_like(ranks)
    for extent, weight in row:
        found = found * extent + ranks // weight % extent
    return found


def _strays(step: PlanStep, mesh: Mesh, shape: tuple[int, ...], dim: int) -> bool:
    """Tell whether a rank wants indices of a dim that may lie on ranks that differ outside of the step's axes."""
    refs = [ref for ref in step.source.axes_of(dim) if ref.partition(":")[0] not in step.axes]
    refs = [ref for ref in refs if mesh.size(ref) > 1]
    try:
        shared = refine_dim(step.source, step.target, mesh, shape, dim) if refs else ()
    except LayoutError:
        return True
    moved = [(d.one.weight, d.extent) for d in shared if d.one.device and d.one != d.other]
    return any(set(refs) & axes_within(mesh, refs, *digit) for digit in moved)
