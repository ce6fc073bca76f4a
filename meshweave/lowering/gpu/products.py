"""Contractions as products of matrices, C = A B for each index of a batch: which loops are batch,
rows, columns and depth, and where the two operands and the result lie.

Each of the four may be several loops that no stride makes one; an index over them all then has
digits. Rows and columns change places where that gives C columns of step 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.lowering.bind import Access, Nest, Store
from meshweave.lowering.payload import EXACT

_FLOATS = ("f64", "f32", "f16", "bf16")
_RESULTS = {"f64": ("f64",), "f32": ("f32",), "f16": ("f16", "f32"), "bf16": ("bf16", "f32")}


@dataclass(frozen=True)
class Loops:
    """Loops of a nest that are done as one, the last fastest. sizes: of each."""

    dims: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """Iterations of all together."""
        return math.prod(self.sizes)

    def strides(self, access: Access) -> tuple[int, ...]:
        """Of an access, along each of the loops."""
        return tuple(access.strides[d] for d in self.dims)


@dataclass(frozen=True)
class Product:
    """A contraction. a: batch, rows and depth; b: batch, depth and columns; c: the store of the
    result. dtype: of A and B; depth loops are merged for A and B, so `k` has loops of its own:
    a_depth and b_depth are the strides along them.
    """

    nest: Nest
    batch: Loops
    m: Loops
    n: Loops
    k: tuple[int, ...]
    a: Access
    b: Access
    a_depth: tuple[int, ...]
    b_depth: tuple[int, ...]
    c: Store
    dtype: str

    @property
    def depth(self) -> int:
        """Products that are added for each element."""
        return math.prod(self.k)

    @property
    def result(self) -> str:
        """Element type of C."""
        return str(self.c.type)


def product_of(nest: Nest) -> Product | None:
    """The product that a contraction is; None for one of other types or forms, or that is to be
    computed in order.
    """
    if not nest.contraction or len(nest.stores) != 1:
        return None
    store, factors = nest.stores[0], _factors(nest)
    if factors is None:
        return None
    (a, dtype), (b, other) = factors
    if dtype != other or str(store.type) not in _RESULTS.get(dtype, ()):
        return None
    groups = _groups(nest, a, b, store.access)
    if groups is None or not (groups["m"] and groups["n"] and groups["k"]):
        return None
    if _turned(groups, store.access):
        a, b = b, a
        groups["m"], groups["n"] = groups["n"], groups["m"]
    sizes, a_depth, b_depth = _merged(nest, groups["k"], a, b)
    batch, m, n = (
        Loops(tuple(groups[name]), tuple(nest.sizes[d] for d in groups[name]))
        for name in ("batch", "m", "n")
    )
    return Product(nest, batch, m, n, sizes, a, b, a_depth, b_depth, store, dtype)


def _factors(nest: Nest) -> list[tuple[Access, str]] | None:
    """The two accesses whose elements are multiplied, and their types; None for anything but a sum
    of products of elements, which may be widened first.
    """
    total = nest.code[nest.stores[0].value]
    if total[0] != "op" or total[1] != "arith.addf" or _exact(total):
        return None
    products = [k for k in total[3] if nest.code[k] != ("acc", 0)]
    if len(products) != 1 or len(total[3]) != 2:
        return None
    product = nest.code[products[0]]
    if product[0] != "op" or product[1] != "arith.mulf" or _exact(product):
        return None
    found = []
    for number in product[3]:
        node = nest.code[number]
        if node[0] == "op" and node[1] == "arith.extf":
            node = nest.code[node[3][0]]
        if node[0] != "load" or str(node[2]) not in _FLOATS:
            return None
        found.append((node[1], str(node[2])))
    return found


def _exact(node: tuple[object, ...]) -> bool:
    attributes = node[2]
    assert isinstance(attributes, tuple)
    return any(key == EXACT for key, _ in attributes)


def _groups(nest: Nest, a: Access, b: Access, c: Access) -> dict[str, list[int]] | None:
    """The loops in A and C, in B and C, in A and B, in all three; None when there are others."""
    names = {
        (True, False, True): "m", (False, True, True): "n", (True, True, False): "k",
        (True, True, True): "batch",
    }  # fmt: skip
    groups: dict[str, list[int]] = {"m": [], "n": [], "k": [], "batch": []}
    for dim, size in enumerate(nest.sizes):
        name = names.get((bool(a.strides[dim]), bool(b.strides[dim]), bool(c.strides[dim])))
        if name is None or (name == "k") != (dim in nest.reductions) or not size:
            return None
        groups[name].append(dim)
    for name in ("m", "n", "batch"):
        groups[name].sort(key=lambda d: -abs(c.strides[d]))
    groups["k"].sort(key=lambda d: (-abs(a.strides[d]), -abs(b.strides[d])))
    return groups


def _turned(groups: dict[str, list[int]], c: Access) -> bool:
    """Whether C has rows, and not columns, of step 1."""
    return c.strides[groups["m"][-1]] == 1 and c.strides[groups["n"][-1]] != 1


def _merged(
    nest: Nest, dims: Sequence[int], a: Access, b: Access
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Depth loops, those made one that walk both operands as one: sizes, strides of A, of B."""
    loops: list[tuple[int, int, int]] = []
    for dim in dims:
        size, down, across = nest.sizes[dim], a.strides[dim], b.strides[dim]
        if loops and loops[-1][1] == down * size and loops[-1][2] == across * size:
            size *= loops.pop()[0]
        loops.append((size, down, across))
    sizes, a_depth, b_depth = zip(*loops)
    return sizes, a_depth, b_depth


def starts_from(product: Product) -> str:
    """What C begins with: "zero", "held" (it is added to) or "value" (a node of the nest)."""
    store = product.c
    if store.initial is None:
        return "held" if store.reads else "zero"
    node = product.nest.code[store.initial]
    zero = node[0] == "constant" and node[1].value == 0.0
    return "zero" if zero else "value"
