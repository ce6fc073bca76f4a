"""Group kernels for gpus: a product takes with it what is done with each element of its result.

A conversion to another type always goes along: the library and our kernels both round the sums as
they store them. Anything else goes along where a kernel of ours computes the product, for the
library would have to be given up for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from meshweave.lowering.buffers.schedule import Schedule
from meshweave.lowering.buffers.steps import Buffers, Step
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.cublaslt import library_product
from meshweave.lowering.gpu.families.gemm.family import computes
from meshweave.lowering.gpu.families.gemm.results import converts, followers
from meshweave.lowering.gpu.families.pieces import FEW
from meshweave.lowering.gpu.families.products import product_of
from meshweave.lowering.gpu.families.rows import along_memory
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.nests.bind import LoopNest, Pointers, reordered
from meshweave.lowering.nests.rows import MOST_NESTS, KernelUnit, related, shared_rows

LONGEST = 1 << 62  # elements of a row: any number


class DeviceSchedule(Schedule):
    """Schedule a function, with products that may end in elementwise nests."""

    def __init__(self, buffers: Buffers, target: Target) -> None:
        """target: what the kernels will be made for, and by whom."""
        self.target = target
        super().__init__(buffers)

    def _joined(self, unit: KernelUnit, step: Step) -> bool:
        if not unit.nests[0].contraction:
            return super()._joined(unit, step)
        kernel = step.kernel
        if len(unit.steps) == MOST_NESTS or kernel is None:
            return False
        if kernel.reductions or kernel.contraction:
            return False
        if self.marks.keep_apart(step.op.location, unit.steps[-1].op.location):
            return False
        mark = unit.pointers.mark()
        nest = in_order_of(unit.nests[0], self._nest(step, unit.pointers))
        if related(nest, unit.nests, unit.pointers) and self._follows(unit, nest):
            unit.rows = len(nest.sizes)
            unit.nests.append(nest)
            unit.steps.append(step)
            return True
        unit.pointers.restore(mark)
        return False

    def _rows(self, nests: list[LoopNest], pointers: Pointers) -> int:
        """Return the number of outer loops that nests share: threads take neighbouring rows, so any will do.

        A few rows may be of any length where they are read along memory, for then many blocks do each.
        """
        found = shared_rows(nests, pointers)
        if found:
            return found
        rows = shared_rows(nests, pointers, largest=LONGEST)
        few = math.prod(nests[0].sizes[:rows]) < FEW
        return rows if rows and few and along_memory(KernelUnit(nests, rows, pointers, [])) else 0

    def _follows(self, unit: KernelUnit, nest: LoopNest) -> bool:
        """Tell whether each iteration of `nest` belongs to one element of the product, and is to be done with it."""
        longer = KernelUnit([*unit.nests, nest], len(nest.sizes), unit.pointers, unit.steps)
        product = product_of(unit.nests[0])
        if product is None or not computes(unit, self.target) or followers(longer, product) is None:
            return False
        if len(unit.nests) == 1 and converts(nest, unit.nests[0]):
            return True
        count = len(unit.pointers.places)
        unread = Facts((1,) * count, frozenset(range(count)))
        return library_product(unit, self.target, unread) is None


def in_order_of(product: LoopNest, nest: LoopNest) -> LoopNest:
    """Return the nest with its loops in the order in which the product stores what it reads of it."""
    store = product.stores[0].access
    steps = [store.strides[d] for d in product.parallel]
    for load in nest.loads:
        pointer, strides = load.access
        distinct = len(set(steps)) == len(steps)
        if pointer == store.pointer and distinct and sorted(steps) == sorted(strides):
            return reordered(nest, [strides.index(step) for step in steps])
    return nest


def schedule_for(target: Target) -> Callable[[Buffers], Schedule]:
    """Return what plans a function for that target, as `Schedule` does."""
    return lambda buffers: DeviceSchedule(buffers, target)
