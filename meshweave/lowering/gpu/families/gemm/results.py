"""Store the elements of a product, and what elementwise nests of the same unit make of each.

A nest after the contraction may follow in the same kernel when it does, for each element of C and
for nothing else, one iteration. What an earlier nest stored it reads from a register.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meshweave.ir.expressions import Apply, Load
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.products import Contraction, starts_from
from meshweave.lowering.gpu.nodes import DeviceFrame, DeviceIteration
from meshweave.lowering.nests.bind import Access, LoopNest
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value


def followers(unit: KernelUnit, product: Contraction) -> list[LoopNest] | None:
    """Return the nests after the contraction, if each iteration of theirs belongs to one element of C, else None."""
    nest, rest = unit.nests[0], unit.nests[1:]
    if rest and (nest.parallel != list(range(unit.rows)) or nest is not product.nest):
        return None
    for each in rest:
        if each.reductions or each.sizes != nest.sizes[: unit.rows]:
            return None
        if any(store.reads or store.initial is not None for store in each.stores):
            return None
    return rest if _element_by_element(unit, rest) else None


def _element_by_element(unit: KernelUnit, rest: Sequence[LoopNest]) -> bool:
    """Tell whether what one nest writes is read by another at the same element only."""
    roots, stored = unit.pointers.roots, unit.pointers.written_roots
    written: dict[int, tuple[Access, ...]] = {}
    for k, nest in enumerate(unit.nests):
        if any(roots[gather.access.pointer] in stored for gather in nest.gathers):
            return False
        for load in nest.loads:
            pointer = load.access.pointer
            if roots[pointer] not in stored:
                continue
            if k == 0 or shortened(load.access, unit.rows) not in written.get(pointer, ()):
                return False
        for store in nest.stores:
            access = shortened(store.access, unit.rows)
            if rest and any(roots[p] is roots[access.pointer] for p in written):
                return False
            written[access.pointer] = (access,)
    return True


def converts(nest: LoopNest, product: LoopNest) -> bool:
    """Tell whether a nest only rounds or widens what `product` stores."""
    store = nest.stores[0]
    node = nest.code[store.value]
    if len(nest.stores) != 1 or not isinstance(node, Apply):
        return False
    if node.name not in ("arith.truncf", "arith.extf"):
        return False
    source = nest.code[node.operands[0]]
    whole, rows = product.stores[0].access, len(nest.sizes)
    return isinstance(source, Load) and shortened(source.access, rows) == shortened(whole, rows)


def shortened(access: Access, rows: int) -> Access:
    """Return an access over the shared loops alone."""
    return access._replace(strides=access.strides[:rows])


class Results:
    """Write what is done with an element of C."""

    def __init__(
        self, frame: DeviceFrame, unit: KernelUnit, product: Contraction, facts: Facts
    ) -> None:
        self.frame, self.unit, self.product = frame, unit, product
        self.rest = unit.nests[1:]
        last = set(unit.pointers.written) & set(facts.dead)
        self.unread = last if self.rest else set()  # results that only this kernel reads

    @property
    def nbytes(self) -> int:
        """Return the bytes of the smallest element that is stored, from 2 to 4."""
        stores = [s for nest in self.unit.nests for s in nest.stores]
        kept = [s for s in stores if s.access.pointer not in self.unread]
        return min(4, max(2, min(element_bytes(s.type) for s in kept)))

    def row(
        self, batch: Value, row: Value, column: Value, totals: Sequence[Value], tile: int
    ) -> None:
        """Write elements of C side by side from `column` on, those that exist. tile: columns of a tile."""
        writer, n = self.frame.writer, self.product.n
        columns = [writer.wide(column) + k for k in range(len(totals))]

        def write(k: int) -> None:
            numbers = [writer.wide(batch), writer.wide(row), columns[k]]
            index: list[Value | None] = [None] * len(self.product.nest.sizes)
            for loops, number in zip((self.product.batch, self.product.m, n), numbers):
                for dim, digit in zip(loops.dims, self.frame.digits(number, loops.sizes)):
                    index[dim] = digit
            self.element(index, totals[k])

        def all_of_them() -> None:
            for k in range(len(totals)):
                write(k)

        if n.count % len(totals) == 0:
            writer.where(writer.inside(column, n.count, tile), all_of_them)
        else:
            for k, each in enumerate(columns):
                inside = writer.compare("ult", each, n.count)
                writer.if_(inside, partial(write, k))

    def element(self, index: Sequence[Value | None], total: Value) -> None:
        """Finish and store the element at `index`, whose products add up to `total`."""
        frame, store = self.frame, self.product.c
        here = DeviceIteration(frame, self.product.nest, index)
        if starts_from(self.product) != "zero":
            total = frame.resized(here.start(store), total.type) + total
        value = frame.resized(total, str(store.type))
        rows = self.unit.rows
        known = {shortened(store.access, rows): value}
        if store.access.pointer not in self.unread:
            here.store(store, value)
        for nest in self.rest:
            values = {
                number: known[shortened(node.access, rows)]
                for number, node in enumerate(nest.code)
                if isinstance(node, Load) and shortened(node.access, rows) in known
            }
            here = DeviceIteration(frame, nest, index[:rows], values)
            for each, made in zip(nest.stores, here.compute([s.value for s in nest.stores])):
                known[shortened(each.access, rows)] = made
                if each.access.pointer not in self.unread:
                    here.store(each, made)
