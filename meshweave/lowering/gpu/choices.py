"""What kernel each op of a program got in the end, which only its units tell: who shares a kernel with whom, sizes,
strides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from meshweave.fast_paths import KERNELS, PRODUCTS, REFERENCE
from meshweave.locations import location_text
from meshweave.lowering.gpu import families
from meshweave.lowering.gpu.cublaslt import library_product
from meshweave.lowering.gpu.facts import Facts, facts_of
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.program import Program
from meshweave.lowering.rows import Unit
from meshweave.report import KernelRow

_FUSED = "computed in the kernel of what reads it"
_FORM = "its sizes, its strides or what shares its kernel is not for it"


def taken_rows(rows: Sequence[KernelRow], program: Program) -> tuple[KernelRow, ...]:
    """The rows of `select-kernels` with the kernel that the lowering took; without any, one for each unit."""
    launches = list(_launches(program))
    if not rows:
        made = [KernelRow("loops", kernel, _fastest(kernel), u.where) for u, kernel in launches]
        return tuple(made)
    taken: dict[tuple[str, bool], list[str]] = {}
    for unit, kernel in launches:
        for nest, step in zip(unit.nests, unit.steps, strict=True):
            place = (location_text(step.op.location), nest.contraction)
            taken.setdefault(place, []).append(kernel)
    return tuple(_taken(row, taken) for row in rows)


def _launches(program: Program) -> Iterator[tuple[Unit, str]]:
    """What the program launches, with the name of the kernel."""
    made: dict[Any, str] = {}
    target = Target()
    for body in program.bodies:
        for _, entry in body.schedule.moments:
            if not isinstance(entry, Unit):
                continue
            for unit, facts in families.launches_of(entry, target, facts_of(entry, body.schedule)):
                key = families.key_of(unit, facts)
                if key not in made:
                    made[key] = _kernel(unit, target, facts)
                yield unit, made[key]


def _kernel(unit: Unit, target: Target, facts: Facts) -> str:
    product = library_product(unit, target, facts)
    if product is not None:
        return "gemm_tf32" if product.info.compute == "tf32" else "cublaslt"
    family = families.build(unit, target, facts).family
    return family if family in KERNELS else "codegen"


def _fastest(kernel: str) -> str:
    return f"{kernel} is the fastest for it"


def _taken(row: KernelRow, taken: Mapping[tuple[str, bool], list[str]]) -> KernelRow:
    """The row of one op with the kernel that it got."""
    if row.kernel == REFERENCE:
        return row
    product = row.kernel in PRODUCTS
    found = taken.get((row.where, product)) or taken.get((row.where, not product))
    if not found:
        return replace(row, why=_FUSED)
    kernel, *others = [name for name in KERNELS if name in found]
    reasons = _faster(row, kernel)
    if product and kernel != row.kernel:
        also = "" if kernel in PRODUCTS else ", nor for any other of products"
        reasons.append(f"{row.kernel}: {_FORM}{also}")
    if not product and kernel in PRODUCTS:
        reasons.append("computed with the product that it belongs to")
    reasons += [f"another part of it by {name}" for name in others]
    return replace(row, kernel=kernel, why="; ".join(reasons) or _fastest(kernel))


def _faster(row: KernelRow, kernel: str) -> list[str]:
    """What the row says of kernels that are faster than this one."""
    names = list(KERNELS)
    reasons = re.split(rf"; (?=(?:{'|'.join(names)}): )", row.why)
    heads = [(reason.partition(":")[0], reason) for reason in reasons]
    return [r for name, r in heads if name in KERNELS and names.index(name) < names.index(kernel)]
