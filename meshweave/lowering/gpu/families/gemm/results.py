"""Store the elements of a product, and what elementwise nests of the same unit make of each.

A nest after the contraction may follow in the same kernel when it does, for each element of C and
for nothing else, one iteration. What an earlier nest stored it reads from a register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from meshweave.ir.expressions import Apply, Load, needed
from meshweave.lowering.buffers.steps import element_bytes
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.families.lanes import Lanes
from meshweave.lowering.gpu.families.products import Contraction, starts_from
from meshweave.lowering.gpu.nodes import DeviceFrame, DeviceIteration
from meshweave.lowering.nests.bind import Access, LoopNest, Store
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


class MadeElement(NamedTuple):
    """Hold a result of an element of C, and where a nest stores it."""

    nest: LoopNest
    store: Store
    value: Value


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

        def index_of(k: int) -> list[Value | None]:
            numbers = [writer.wide(batch), writer.wide(row), columns[k]]
            index: list[Value | None] = [None] * len(self.product.nest.sizes)
            for loops, number in zip((self.product.batch, self.product.m, n), numbers):
                for dim, digit in zip(loops.dims, self.frame.digits(number, loops.sizes)):
                    index[dim] = digit
            return index

        def write(k: int) -> None:
            self.element(index_of(k), totals[k])

        def all_of_them() -> None:
            places = [index_of(k) for k in range(len(totals))]
            read = self._read_together(places)
            made = [
                self.made(index, total, {at: values[k] for at, values in read.items()})
                for k, (index, total) in enumerate(zip(places, totals))
            ]
            for kept in zip(*made):
                self._store_together(kept[0], places, [each.value for each in kept])

        if n.count % len(totals) == 0:
            writer.where(writer.inside(column, n.count, tile), all_of_them)
        else:
            for k, each in enumerate(columns):
                inside = writer.compare("ult", each, n.count)
                writer.if_(inside, partial(write, k))

    def element(self, index: Sequence[Value | None], total: Value) -> None:
        """Finish and store the element at `index`, whose products add up to `total`."""
        for each in self.made(index, total):
            here = DeviceIteration(self.frame, each.nest, index[: len(each.nest.sizes)])
            here.store(each.store, each.value)

    def _store_together(
        self, first: MadeElement, places: Sequence[Sequence[Value | None]], values: list[Value]
    ) -> None:
        """Store one result of neighbouring elements, in as few instructions as its alignment allows."""
        frame, nest, store = self.frame, first.nest, first.store
        ndim = len(nest.sizes)
        if self._side_by_side(len(values)):
            dim = self.product.n.dims[-1]
            Lanes(frame, nest, places[0][:ndim], dim, len(values)).store(store, values)
            return
        for index, value in zip(places, values):
            DeviceIteration(frame, nest, index[:ndim]).store(store, value)

    def _side_by_side(self, count: int) -> bool:
        """Tell whether so many elements of a row that begin at a multiple of that are neighbours in one loop."""
        loops = self.product.n
        return bool(loops.dims) and loops.sizes[-1] % count == 0 and count & (count - 1) == 0

    def _read_together(
        self, places: Sequence[Sequence[Value | None]]
    ) -> dict[tuple[int, int], list[Value]]:
        """Return what nests after the product read for neighbouring elements: by nest and node, for each element."""
        found = dict[tuple[int, int], list[Value]]()
        if not self._side_by_side(len(places)):
            return found
        written, rows = set(self.unit.pointers.written_roots), self.unit.rows
        for at, nest in enumerate(self.rest):
            dim = self.product.n.dims[-1]
            lanes = Lanes(self.frame, nest, places[0][:rows], dim, len(places))
            for number in sorted(needed(nest.code, nest.results)):
                node = nest.code[number]
                if not isinstance(node, Load):
                    continue
                if self.unit.pointers.roots[node.access.pointer] in written:
                    continue  # it comes from a register
                alike = node.access.strides[dim] == 0
                values = lanes.load(node, 1 if alike else len(places))
                found[at, number] = values * len(places) if alike else values
        return found

    def made(
        self,
        index: Sequence[Value | None],
        total: Value,
        read: Mapping[tuple[int, int], Value] | None = None,
    ) -> list[MadeElement]:
        """Return what is to be stored of the element at `index`, whose products add up to `total`.

        read: what nests after the product load, by nest and node, as far as it is known.
        """
        found = list[MadeElement]()
        frame, store = self.frame, self.product.c
        here = DeviceIteration(frame, self.product.nest, index)
        if starts_from(self.product) != "zero":
            total = frame.resized(here.start(store), total.type) + total
        value = frame.resized(total, str(store.type))
        rows = self.unit.rows
        known = {shortened(store.access, rows): value}
        if store.access.pointer not in self.unread:
            found.append(MadeElement(self.product.nest, store, value))
        for at, nest in enumerate(self.rest):
            values = {number: value for (k, number), value in (read or {}).items() if k == at}
            values |= {
                number: known[shortened(node.access, rows)]
                for number, node in enumerate(nest.code)
                if isinstance(node, Load) and shortened(node.access, rows) in known
            }
            here = DeviceIteration(frame, nest, index[:rows], values)
            for each, made in zip(nest.stores, here.compute([s.value for s in nest.stores])):
                known[shortened(each.access, rows)] = made
                if each.access.pointer not in self.unread:
                    found.append(MadeElement(nest, each, made))
        return found
