"""Report which kernel each op of a program got in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshweave.hints.fast_paths import KERNELS, PRODUCTS, REFERENCE
from meshweave.ir.locations import location_text
from meshweave.lowering.gpu.families import registry as families
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.host.program import LoweredProgram
from meshweave.report import KernelRow
from meshweave.transforms.kernels.select_kernels import joined, reasons_of

FLASH = "flash"
_FUSED = "computed in the kernel of what reads it"
_FORM = "its sizes, its strides, the chip or what shares its kernel is not for it"


def taken_rows(
    rows: Sequence[KernelRow], program: LoweredProgram, chip: str
) -> tuple[KernelRow, ...]:
    """Return the rows of `select-kernels` with the kernel that the lowering takes; without any, a row for each unit."""
    chosen = families.Chosen(Target(chip))
    launches = [(unit, chosen.name_of(unit, facts)) for unit, facts in chosen.launches(program)]
    if not rows:
        made = [KernelRow("loops", kernel, _fastest(kernel), u.where) for u, kernel in launches]
        return tuple(made)
    taken: dict[tuple[str, bool], list[str]] = {}
    for unit, kernel in launches:
        for nest, step in zip(unit.nests, unit.steps, strict=True):
            place = (location_text(step.op.location), nest.contraction)
            taken.setdefault(place, []).append(kernel)
    return tuple(_taken(row, taken) for row in rows)


def _fastest(kernel: str) -> str:
    return f"{kernel} is the fastest for it"


def _taken(row: KernelRow, taken: Mapping[tuple[str, bool], list[str]]) -> KernelRow:
    """Return the row of an op with the kernel that it got."""
    if row.kernel == REFERENCE:
        return row
    product = row.kernel in PRODUCTS
    found = taken.get((row.where, product)) or taken.get((row.where, not product))
    if not found:
        return replace(row, why=_FUSED)
    kernel, *others = [name for name in KERNELS if name in found]
    if kernel == row.kernel == FLASH:
        return row
    names = list(KERNELS)
    faster = [r for r in reasons_of(row.why) if names.index(r[0]) < names.index(kernel)]
    reasons = [joined([reason]) for reason in faster]
    if product and kernel != row.kernel:
        also = "" if kernel in PRODUCTS else ", nor for any other of products"
        reasons.append(f"{row.kernel}: {_FORM}{also}")
    if not product and kernel in PRODUCTS:
        reasons.append("computed with the product that it belongs to")
    reasons += [f"another part of it by {name}" for name in others]
    return replace(row, kernel=kernel, why="; ".join(reasons) or _fastest(kernel))
