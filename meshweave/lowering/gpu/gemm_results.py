"""What a product leaves behind: its elements, and what elementwise nests of the same unit make of
each.

A nest after the contraction may follow in the same kernel when it does, for each element of C and
for nothing else, one iteration. What an earlier nest stored it reads from a register.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meshweave.lowering.bind import Access, Nest
from meshweave.lowering.gpu.builder import Value
from meshweave.lowering.gpu.facts import Facts
from meshweave.lowering.gpu.nodes import Frame, Iteration, width
from meshweave.lowering.gpu.products import Loops, Product, starts_from
from meshweave.lowering.rows import Unit


def followers(unit: Unit, product: Product) -> list[Nest] | None:
    """The nests after the contraction, each iteration of which belongs to one element of C; None
    when one of them is anything else.
    """
    nest, rest = unit.nests[0], unit.nests[1:]
    loops = [d for d in range(len(nest.sizes)) if d not in nest.reductions]
    if rest and (loops != list(range(unit.rows)) or nest is not product.nest):
        return None
    for each in rest:
        if each.reductions or each.sizes != nest.sizes[: unit.rows]:
            return None
        if any(store.reads or store.initial is not None for store in each.stores):
            return None
    return rest if _element_by_element(unit, rest) else None


def _element_by_element(unit: Unit, rest: Sequence[Nest]) -> bool:
    """Whether what one nest writes is read by another at the same element only."""
    roots = [root for root, _, _ in unit.pointers.places]
    stored = {roots[k] for k in unit.pointers.written}
    written: dict[int, tuple[Access, ...]] = {}
    for k, nest in enumerate(unit.nests):
        for node in nest.code:
            if node[0] == "gather" and roots[node[1]] in stored:
                return False
            if node[0] != "load" or roots[node[1].pointer] not in stored:
                continue
            if k == 0 or shortened(node[1], unit.rows) not in written.get(node[1].pointer, ()):
                return False
        for store in nest.stores:
            access = shortened(store.access, unit.rows)
            if rest and any(roots[p] is roots[access.pointer] for p in written):
                return False
            written[access.pointer] = (access,)
    return True


def converts(nest: Nest, product: Nest) -> bool:
    """Whether a nest does nothing but to round or widen what `product` stores."""
    store = nest.stores[0]
    node = nest.code[store.value]
    if len(nest.stores) != 1 or node[0] != "op" or node[1] not in ("arith.truncf", "arith.extf"):
        return False
    source = nest.code[node[3][0]]
    whole, rows = product.stores[0].access, len(nest.sizes)
    return source[0] == "load" and shortened(source[1], rows) == shortened(whole, rows)


def shortened(access: Access, rows: int) -> Access:
    """An access over the shared loops alone."""
    return access._replace(strides=access.strides[:rows])


class Results:
    """Writes what is done with an element of C."""

    def __init__(self, frame: Frame, unit: Unit, product: Product, facts: Facts) -> None:
        self.frame, self.unit, self.product = frame, unit, product
        self.rest = unit.nests[1:]
        last = set(unit.pointers.written) & set(facts.dead)
        self.unread = last if self.rest else set()  # results that only this kernel reads

    def index(self, parts: Sequence[tuple[Loops, Value | Sequence[Value]]]) -> list[Value | None]:
        """Indices of the contraction's loops; a part is one number of all its loops, or digits."""
        found: list[Value | None] = [None] * len(self.product.nest.sizes)
        for loops, number in parts:
            digits = (
                self.frame.digits(number, loops.sizes)
                if isinstance(number, Value)
                else list(number)
            )
            for dim, digit in zip(loops.dims, digits):
                found[dim] = digit
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the smallest element that is stored, from 2 to 4."""
        stores = [s for nest in self.unit.nests for s in nest.stores]
        kept = [s for s in stores if s.access.pointer not in self.unread]
        return min(4, max(2, min(width(s.type) for s in kept)))

    def row(
        self, batch: Value, row: Value, column: Value, totals: Sequence[Value], tile: int
    ) -> None:
        """Elements of C side by side from `column` on, those that exist. tile: columns of a tile."""
        builder, n = self.frame.builder, self.product.n
        columns = [builder.wide(column) + k for k in range(len(totals))]
        whole = n.count % len(totals) == 0

        def write(k: int) -> None:
            numbers = [builder.wide(batch), builder.wide(row), columns[k]]
            loops = (self.product.batch, self.product.m, n)
            self.element(self.index(list(zip(loops, numbers))), totals[k])

        def all_of_them() -> None:
            for k in range(len(totals)):
                write(k)

        if n.count % tile == 0:
            all_of_them()
        elif whole:
            builder.if_(builder.compare("ult", column, n.count), all_of_them)
        else:
            for k, each in enumerate(columns):
                inside = builder.compare("ult", each, n.count)
                builder.if_(inside, partial(write, k))

    def element(self, index: Sequence[Value | None], total: Value) -> None:
        """Finish and store the element at `index`, whose products add up to `total`."""
        frame, store = self.frame, self.product.c
        value = self._started(index, total)
        kind = str(store.type)
        value = frame.resized(value, kind)
        rows = self.unit.rows
        known = {shortened(store.access, rows): value}
        if store.access.pointer not in self.unread:
            Iteration(frame, self.product.nest, index).store(store, value)
        for nest in self.rest:
            values = {
                number: known[shortened(node[1], rows)]
                for number, node in enumerate(nest.code)
                if node[0] == "load" and shortened(node[1], rows) in known
            }
            here = Iteration(frame, nest, index[:rows], values)
            for each, made in zip(nest.stores, here.compute([s.value for s in nest.stores])):
                known[shortened(each.access, rows)] = made
                if each.access.pointer not in self.unread:
                    here.store(each, made)

    def _started(self, index: Sequence[Value | None], total: Value) -> Value:
        """The sum, and what C begins with."""
        begins, store = starts_from(self.product), self.product.c
        if begins == "zero":
            return total
        here = Iteration(self.frame, self.product.nest, index)
        start = here.held(store)
        if begins == "value":
            assert store.initial is not None
            start = here.compute([store.initial])[0]
        return self.frame.resized(start, total.type) + total
