"""Price elementwise ops: what an element costs with all that is computed inside, and how many tensors it then reads.

What an op reads twice at one place is computed once, and counts once. What it reads at several places, as the
neighbours of a point, is computed for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshweave.ir.bindings import ir
from meshweave.lowering.nests.items import Item, Reader
from meshweave.lowering.nests.linear import IndexMap
from meshweave.transforms.kernels.element_costs import cost, functions

LARGEST = 400.0  # price above which a map is stored, so that no kernel grows without bound
FUNCTIONS = (
    4  # of a kernel: instructions of several do not overlap, and memory in between takes less time
)
REPEATED = (
    160.0  # part of a price, for what is computed at several places, above which it is stored
)
PRICED = ("map", "copy", "view", "splat")
Path = tuple[object, ...]
"""By which views and accesses, other than one element for one, an op reads what another one makes."""


class Prices:
    """Set the price of all items of a function.

    large: the tensors that an item reads about once for each of its elements. full: those maps that cost too much to be
    computed inside others; for their readers they are tensors.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.large: dict[int, set[ir.Value]] = {}
        self.full: set[int] = set()
        self._own: dict[int, float] = {}
        self._functions: dict[int, int] = {}
        self._inside: dict[int, dict[tuple[int, Path], float]] = {}
        for item in reader.items:
            if item.kind in PRICED:
                self._price(item)

    def _price(self, item: Item) -> None:
        """Set the price of an item whose sources have theirs."""
        self._own[item.number] = float(cost(item.body))
        self._functions[item.number] = functions(item.body)
        inside: dict[tuple[int, Path], float] = {(item.number, ()): 1.0}
        large: set[ir.Value] = set()
        for number, value in enumerate(item.sources):
            made = self.reader.made.get(value)
            if made is None or made.number not in self._own or made.number in self.full:
                large.add(value)
                continue
            ratio = min(1.0, max(made.elements, 1) / max(item.elements, 1))
            if item.kind == "view":
                ratio = 1.0
            step = _step(item, made, item.accesses[number] if item.accesses else None)
            for (inner, path), share in self._inside[made.number].items():
                key = (inner, (*step, *path))
                inside[key] = max(inside.get(key, 0.0), share * ratio)
            if ratio >= 0.5:
                large |= self.large[made.number]
        self._inside[item.number], self.large[item.number] = inside, large
        item.cost = self._sum(inside.items())
        each = {key[0]: (key, share) for key, share in inside.items()}
        once = self._sum(each.values())
        many = sum([self._functions[number] * share for number, (_, share) in each.items()])
        if item.kind == "map" and (
            once > LARGEST or many > FUNCTIONS or item.cost - once > REPEATED
        ):
            self.full.add(item.number)
        if item.kind == "view":
            item.sizes = tuple(item.op.results[0].type.shape)

    def _sum(self, inside: Iterable[tuple[tuple[int, Path], float]]) -> float:
        return sum([self._own[number] * share for (number, _), share in inside])


def _step(item: Item, made: Item, access: IndexMap | None) -> Path:
    """Return what an item adds to the path to what it reads: nothing where it reads one element for one, in order."""
    if item.kind == "view":
        return (item.number,) if item.op.name == "tensor.extract_slice" else ()
    if access is None or made.kind == "splat":
        return ()
    dims = [form.terms for form in access if form.terms]
    plain = all(form.dim is not None for form in access if form.terms)
    if plain and dims == sorted(dims) and made.elements == item.elements:
        return ()
    return (access,)
