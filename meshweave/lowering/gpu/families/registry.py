"""List the families of kernels, the most special first.

Each makes a kernel of a unit, or leaves it to the next. The last one takes every unit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from meshweave.hints.fast_paths import KERNELS
from meshweave.lowering.gpu.facts import Facts, facts_of
from meshweave.lowering.gpu.families import columns, elementwise, pieces, plain, rows, transpose
from meshweave.lowering.gpu.families.cublaslt import LibraryProduct, library_product
from meshweave.lowering.gpu.families.flash import family as flash
from meshweave.lowering.gpu.families.gemm import family as gemm
from meshweave.lowering.gpu.families.recompute import recomputed
from meshweave.lowering.gpu.families.reduction import combiners
from meshweave.lowering.gpu.families.spare import spare_kernel
from meshweave.lowering.gpu.kernel import DeviceKernel, Target
from meshweave.lowering.host.program import LoweredProgram
from meshweave.lowering.nests.rows import LARGEST_ROW, KernelUnit, finished

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
LARGE = 1 << 16  # elements from which a launch costs less than reading them large steps apart


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
    """Return the unit, or parts of it, to be launched in this order.

    Nests are launched in parts where only a plain kernel could do them together and the rows that they
    share are too few to be a block each, where such rows are long, and where a kernel of rows would read large steps
    apart what one of columns reads side by side. A reduction to few results is two launches, and so are a product of
    few rows whose depth is cut and an attention of few queries.
    """
    halves = gemm.halves(unit, target.within(unit.nests), facts) or flash.halves(unit, facts)
    if halves is not None:
        return halves
    count = math.prod(unit.nests[0].sizes[: unit.rows])
    if len(unit.nests) == 1:
        return _in_pieces(unit, target, facts)
    few = _few_long_rows(unit, target)
    enough = count >= ENOUGH_ROWS or build(unit, target, facts).family != "plain"
    if enough and not few and not _across(unit, target):
        return [(unit, facts)]
    unit = recomputed(unit, unit.rows, facts) if few else unit
    alone = Facts(facts.alignments)
    found: list[tuple[KernelUnit, Facts]] = []
    for part in _in_turn(unit, target, alone):
        found += _in_pieces(part, target, alone) if len(part.nests) == 1 else [(part, alone)]
    return found


def _few_long_rows(unit: KernelUnit, target: Target) -> bool:
    """Tell whether nests share rows that are too few for a block each, and so long that each launch is worth it."""
    if "rows" in target.within(unit.nests).disabled or not rows.along_memory(unit):
        return False
    count = math.prod(unit.nests[0].sizes[: unit.rows])
    elements = max(math.prod(nest.sizes[unit.rows :]) for nest in unit.nests)
    return elements > LARGEST_ROW and pieces.number_along(count, elements) > 1


def _across(unit: KernelUnit, target: Target) -> bool:
    """Tell whether a large reduction among several nests reads down columns, not along rows."""
    if {"columns", "elementwise"} & target.within(unit.nests).disabled or unit.nests[0].contraction:
        return False
    for nest, step in zip(unit.nests, unit.steps):
        one = KernelUnit([nest], 0, unit.pointers, [step])
        large = nest.reductions and math.prod(nest.sizes) >= LARGE
        if large and columns.suits(one) and not rows.suits(one):
            return True
    return False


def _in_turn(unit: KernelUnit, target: Target, facts: Facts) -> list[KernelUnit]:
    """Return reductions alone, and together the maps between them that one kernel does element by element."""
    found: list[KernelUnit] = []
    for maps, run in groupby(zip(unit.nests, unit.steps), lambda pair: not pair[0].reductions):
        nests, steps = (list(each) for each in zip(*run))
        together = KernelUnit(nests, unit.rows, unit.pointers, steps)
        if len(nests) > 1 and maps and build(together, target, facts).family == "elementwise":
            found.append(together)
            continue
        for nest, step in zip(nests, steps):
            found.append(finished(KernelUnit([nest], 0, unit.pointers, [step])))
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

    def launches(self, program: LoweredProgram) -> Iterator[tuple[KernelUnit, Facts]]:
        """Yield the units that a program launches, in order, with what is known of the memory of each."""
        for body in program.bodies:
            for _, entry in body.plan.moments:
                if isinstance(entry, KernelUnit):
                    yield from launches_of(entry, self.target, facts_of(entry, body.plan))

    def number(self, kernel: DeviceKernel) -> int:
        """Return the number of a kernel that is no unit's; those with the same code are one."""
        for number, known in enumerate(self.kernels):
            if known == kernel:
                return number
        self.kernels.append(kernel)
        return len(self.kernels) - 1

    def spare(self, product: LibraryProduct) -> int:
        """Return the number of the kernel that does a product where the library has no algorithm for it."""
        info = product.info
        return self.number(spare_kernel(info.dtype, info.result or info.dtype, info.accumulate))

    def name_of(self, unit: KernelUnit, facts: Facts) -> str:
        """Return the name, of those in `hints.fast_paths`, of the kernel that does a unit."""
        found = self.of(unit, facts)
        if isinstance(found, LibraryProduct):
            return "gemm_tf32" if found.info.compute == "tf32" else "cublaslt"
        family = self.kernels[found].family
        return family if family in KERNELS else "codegen"
