"""Units for gpus: a product takes with it what is done with each element of its result.

A conversion to another type always goes along: the library and our kernels both round the sums as
they store them. Anything else goes along where a kernel of ours computes the product, for the
library would have to be given up for it.
"""

from __future__ import annotations

from typing import Any

from meshweave.lowering.bind import Nest, reordered
from meshweave.lowering.gpu.cublaslt import library_product
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.gemm import computes
from meshweave.lowering.gpu.gemm_results import converts, followers
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.gpu.products import product_of
from meshweave.lowering.kernels import Kernel
from meshweave.lowering.rows import MOST_NESTS, Unit, related
from meshweave.lowering.schedule import Schedule
from meshweave.lowering.steps import Buffers, Step
from meshweave.transforms.hint_ledger import kept_apart


class DeviceSchedule(Schedule):
    """A schedule whose products may end in elementwise nests."""

    def __init__(
        self, buffers: Buffers, kernels: list[Kernel], in_place: frozenset[int], target: Target
    ) -> None:
        """target: what the kernels will be made for, and by whom."""
        self.target = target
        super().__init__(buffers, kernels, in_place)

    def _joined(self, unit: Unit, step: Step) -> bool:
        if not unit.nests[0].contraction:
            return super()._joined(unit, step)
        if len(unit.steps) == MOST_NESTS or not self._elementwise(step):
            return False
        if kept_apart(step.op.location, unit.steps[-1].op.location):
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

    def _elementwise(self, step: Step) -> bool:
        if step.what != "kernel":
            return False
        kernel = self.kernels[step.number]
        return not kernel.reductions and not kernel.contraction

    def _follows(self, unit: Unit, nest: Nest) -> bool:
        """Whether each iteration of `nest` belongs to one element of the product, and is to be done
        with it.
        """
        longer = Unit([*unit.nests, nest], len(nest.sizes), unit.pointers, unit.steps)
        product = product_of(unit.nests[0])
        if product is None or not computes(unit, self.target) or followers(longer, product) is None:
            return False
        if len(unit.nests) == 1 and converts(nest, unit.nests[0]):
            return True
        count = len(unit.pointers.places)
        return (
            library_product(unit, self.target, Facts((1,) * count, frozenset(range(count)))) is None
        )


def in_order_of(product: Nest, nest: Nest) -> Nest:
    """The nest with its loops in the order in which the product stores what it reads of it."""
    store = product.stores[0].access
    loops = [d for d in range(len(product.sizes)) if d not in product.reductions]
    steps = [store.strides[d] for d in loops]
    for node in nest.code:
        if node[0] != "load" or node[1][:2] != store[:2]:
            continue
        if len(set(steps)) == len(steps) and sorted(steps) == sorted(node[1].strides):
            return reordered(nest, [node[1].strides.index(step) for step in steps])
    return nest


def schedule_for(target: Target) -> Any:
    """Makes the schedule of a function for that target, as `Schedule` does."""

    def make(buffers: Buffers, kernels: list[Kernel], in_place: frozenset[int]) -> Schedule:
        return DeviceSchedule(buffers, kernels, in_place, target)

    return make
