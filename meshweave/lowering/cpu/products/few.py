"""Choose the kernel of a product by how many rows a call has: there is one for many, and some for few.

Few rows read each weight once, as `reuse` writes it, in groups of as many rows as a program for that size would have.
Behind the end of the rows a group computes what nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from meshweave.lowering.cpu.reuse import FEW, ROWS, reads_once, shape_of
from meshweave.lowering.cpu.sharing import POINTER
from meshweave.lowering.nests.bind import LoopNest, restrided
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value, Writer, passed


@dataclass(frozen=True)
class SizedUnit:
    """Name a kernel for calls whose scalars are at most these: (scalar, most) pairs."""

    most: tuple[tuple[int, int], ...]
    unit: KernelUnit


def sized_units(unit: KernelUnit) -> list[SizedUnit]:
    """Return kernels for few rows of a product, the fewest first; none where all sizes have the same one."""
    (nest, *more) = unit.nests
    if more or unit.rows or not nest.contraction or not nest.limits or len(nest.loads) != 2:
        return []
    found: list[SizedUnit] = []
    for row, scalar in nest.limits:
        weights = [load.access for load in nest.loads if not load.access.strides[row]]
        others = [(d, s) for d, s in nest.limits if d != row]
        if row in nest.reductions or len(weights) != 1:
            continue
        if any(weights[0].strides[d] or s == scalar for d, s in others):
            continue  # columns or depth that end, or two loops over one size
        for most, rows in _groups(nest.sizes[row]):
            few = _with_rows(nest, row, rows, [d for d, _ in others])
            if _is_served(few):
                sizes = ((scalar, most), *((s, 1) for _, s in others))
                found.append(SizedUnit(sizes, replace(unit, nests=[few])))
    return found


def _groups(bound: int) -> list[tuple[int, int]]:
    """Return up to how many rows a kernel of how many is right: one for each size of a group, some for single sizes.

    A kernel of several groups runs as many as a call fills, of which the last may run on: they end within the bound.
    """
    found: list[tuple[int, int]] = []
    for rows in range(1, min(FEW, bound) + 1):
        group = -(-rows // -(-rows // ROWS))
        size = min(FEW, bound) // group * group
        if rows <= ROWS:
            size = rows
        elif size < rows:
            size = bound
        if found and found[-1][1] == size:
            found.pop()
        found.append((rows, size))
    return found


def _with_rows(nest: LoopNest, row: int, rows: int, alone: Sequence[int]) -> LoopNest:
    """Return a product of so many rows; of the loops `alone` the first iteration is what there is."""
    sizes = tuple(rows if d == row else n for d, n in enumerate(nest.sizes))
    exact = rows == nest.sizes[row] or rows <= ROWS
    limits = tuple(pair for pair in nest.limits if not (exact and pair[0] == row))
    nest = replace(nest, sizes=sizes, limits=limits)
    keep = [d for d in range(len(sizes)) if d not in alone and not (d == row and rows == 1)]
    reductions = frozenset(k for k, d in enumerate(keep) if d in nest.reductions)
    return restrided(nest, tuple(sizes[d] for d in keep), reductions, keep)


def _is_served(nest: LoopNest) -> bool:
    """Tell whether loops for few rows, or for one, serve a product better than those for any number."""
    if reads_once(nest):
        return True
    shape = None if nest.limits else shape_of(nest, 0)
    return shape is not None and shape.row is None and not shape.outer


def by_size_text(
    name: str, unit: KernelUnit, sized: Sequence[tuple[SizedUnit, str]], other: str, cores: set[str]
) -> str:
    """Write the function `name` that calls the first kernel that fits the sizes of a call.

    sized: kernels with their functions; other: the function for all other sizes; cores: functions that take the
    rank's cores, which this one is then given too.
    """
    writer = Writer()
    types = [POINTER] * len(unit.pointers.places)
    types += [passed(str(s.type)) for s in unit.pointers.scalars]
    given = [Value(writer, f"%a{k}", type_) for k, type_ in enumerate(types)]
    scalars = given[len(unit.pointers.places) :]
    names = [*(function for _, function in sized), other]
    if cores & set(names):
        given.append(Value(writer, "%cores", POINTER))

    def call(function: str) -> None:
        values = given if function in cores else given[: len(types)]
        texts, kinds = (", ".join(x) for x in zip(*((v.name, v.type) for v in values)))
        writer.add(f"func.call @{function}({texts}) : ({kinds}) -> ()")

    def choose(left: Sequence[tuple[SizedUnit, str]]) -> None:
        if not left:
            call(other)
            return
        (size, function), *rest = left
        fits = [writer.compare("sle", scalars[s], most) for s, most in size.most]
        both = fits[0]
        for each in fits[1:]:
            both = both & each
        writer.if_(both, partial(call, function), partial(choose, rest))

    rows = sorted({s for size, _ in sized for s, _ in size.most})
    some = writer.compare("sgt", scalars[rows[0]], 0)
    for scalar in rows[1:]:
        some = some & writer.compare("sgt", scalars[scalar], 0)
    writer.if_(some, partial(choose, sized))
    parameters = ", ".join(f"{value.name}: {value.type}" for value in given)
    return "\n".join(
        [f"func.func @{name}({parameters}) {{", *writer.head, *writer.lines, "return", "}", ""]
    )
