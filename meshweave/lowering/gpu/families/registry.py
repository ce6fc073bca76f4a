"""List the families of kernels, the most special first.

Each makes a kernel of a unit, or leaves it to the next. The last one takes every unit.
"""

from __future__ import annotations

import math

from meshweave.hints.fast_paths import KERNELS
from meshweave.lowering.gpu.facts import Facts, facts_of
from meshweave.lowering.gpu.families import columns, elementwise, pieces, plain, rows, transpose
from meshweave.lowering.gpu.families.cublaslt import LibraryProduct, library_product
from meshweave.lowering.gpu.families.flash import family as flash
from meshweave.lowering.gpu.families.gemm import family as gemm
from meshweave.lowering.gpu.families.reduction import combiners
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.nests.rows import KernelUnit, finished

FAMILIES = (
    ("flash", flash.build),
    ("gemm", gemm.build),
    ("transpose", transpose.build),
    ("elementwise", elementwise.build),
    ("rows", rows.build),
    ("columns", columns.build),
    ("plain", plain.build),
)
ENOUGH_ROWS = 264  # blocks that keep a device busy: two for each multiprocessor


def build(unit: KernelUnit, target: Target, facts: Facts | None = None) -> DeviceKernel:
    """Return the kernel of a unit. facts: of its memory; None: what its pointers alone tell."""
    facts, target = facts or facts_of(unit), target.within(unit.nests)
    if isinstance(unit, pieces.PieceUnit):
        first = columns.build_pieces if unit.inner >= 0 else pieces.build_along
        return first(unit, facts)
    for name, family in FAMILIES:
        if name == "plain" or name not in target.disabled:
            made = family(unit, target, facts)
            if made is not None:
                return made
    raise AssertionError("plain kernels take every unit")


def launches_of(unit: KernelUnit, target: Target, facts: Facts) -> list[tuple[KernelUnit, Facts]]:
    """Return the unit, or its nests one by one, to be launched in this order.

    Nests are launched alone where only a plain kernel could do them together and the rows that they
    share are too few to be a block each. A reduction to few results is two launches,
    and so is a product of few rows whose depth is cut.
    """
    halves = gemm.halves(unit, target.within(unit.nests), facts)
    if halves is not None:
        return halves
    count = math.prod(unit.nests[0].sizes[: unit.rows])
    if len(unit.nests) == 1:
        return _in_pieces(unit, target, facts)
    if count >= ENOUGH_ROWS:
        return [(unit, facts)]
    if build(unit, target, facts).family != "plain":
        return [(unit, facts)]
    alone = Facts(facts.alignments)
    found: list[tuple[KernelUnit, Facts]] = []
    for nest, step in zip(unit.nests, unit.steps):
        one = finished(KernelUnit([nest], 0, unit.pointers, [step]))
        found += _in_pieces(one, target, alone)
    return found


def _in_pieces(unit: KernelUnit, target: Target, facts: Facts) -> list[tuple[KernelUnit, Facts]]:
    """Return a unit of one nest, or the two that it is where its results are too few to keep a device busy."""
    (nest,), target = unit.nests, target.within(unit.nests)
    whole = [(unit, facts)]
    if not nest.reductions or 0 in nest.sizes or nest.limits or combiners(nest) is None:
        return whole
    if gemm.computes(unit, target):
        return whole
    cut, inner = 1, -1
    if "rows" not in target.disabled and (rows.suits(unit) or not columns.suits(unit)):
        cut = pieces.number_along(*rows.volume(unit))
        unit = rows.inner_last(unit)
    elif "columns" not in target.disabled and columns.suits(unit):
        cut, inner = columns.pieces_of(unit, facts)
    if cut < 2:
        return whole
    parts = pieces.parts_of(unit, facts, cut, inner)
    return [(parts.first, parts.facts), (parts.second, parts.facts)]


class Chosen:
    """Hold what does the units of a program: each kernel once, and products of the library."""

    def __init__(self, target: Target) -> None:
        """target: what the kernels are made for."""
        self.target = target
        self.kernels: list[DeviceKernel] = []
        self._found: dict[object, int | LibraryProduct] = {}

    def of(self, unit: KernelUnit, facts: Facts) -> int | LibraryProduct:
        """Return the number of the kernel that does what `unit` does, or the product of the library that it is.

        Kernels depend also on which pointers go to one buffer.
        """
        roots = unit.pointers.roots
        key = (unit.key, tuple(roots.index(root) for root in roots), facts)
        if key not in self._found:
            product = library_product(unit, self.target, facts)
            self._found[key] = len(self.kernels) if product is None else product
            if product is None:
                self.kernels.append(build(unit, self.target, facts))
        return self._found[key]

    def name_of(self, unit: KernelUnit, facts: Facts) -> str:
        """Return the name, of those in `hints.fast_paths`, of the kernel that does a unit."""
        found = self.of(unit, facts)
        if isinstance(found, LibraryProduct):
            return "gemm_tf32" if found.info.compute == "tf32" else "cublaslt"
        family = self.kernels[found].family
        return family if family in KERNELS else "codegen"
