"""Read contractions as matrix products, C = A B for each index of a batch.

It finds which loops are batch, rows, columns and depth, and where the two operands and the result
lie.

Each of the four may be several loops that no stride makes one; an index over them all then has
digits. Rows and columns change places where that gives C columns of step 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from meshweave.ir.expressions import Accumulator, Apply, Load, is_number
from meshweave.lowering.nests.bind import Access, LoopNest, NestNode, Store

_FLOATS = ("f64", "f32", "f16", "bf16")
_RESULTS = {"f64": ("f64",), "f32": ("f32",), "f16": ("f16", "f32"), "bf16": ("bf16", "f32")}


@dataclass(frozen=True)
class LoopGroup:
    """Hold loops of a nest that are done as one, the last fastest. sizes: of each."""

    dims: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def count(self) -> int:
        """Count the iterations of all together."""
        return math.prod(self.sizes)

    def strides(self, access: Access) -> tuple[int, ...]:
        """Return the strides of an access along each of the loops."""
        return tuple(access.strides[d] for d in self.dims)


@dataclass(frozen=True)
class ProductOperand:
    """Describe A, or B: its access over the nest's loops, and the loops that are its rows (A) or columns (B).

    steps: strides along the depth loops of the `Contraction`.
    """

    access: Access
    rows: LoopGroup
    steps: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """Return the strides along the rows."""
        return self.rows.strides(self.access)


@dataclass(frozen=True)
class Contraction:
    """Describe a contraction.

    a: batch, rows and depth; b: batch, depth and columns; c: the store of the result. dtype: of A
    and B; depth loops are merged for A and B, so `k` has loops of its own.
    """

    nest: LoopNest
    batch: LoopGroup
    m: LoopGroup
    n: LoopGroup
    k: tuple[int, ...]
    a: ProductOperand
    b: ProductOperand
    c: Store
    dtype: str

    @property
    def depth(self) -> int:
        """Count the products that are added for each element."""
        return math.prod(self.k)

    @property
    def result(self) -> str:
        """Return the element type of C."""
        return str(self.c.type)


def product_of(nest: LoopNest) -> Contraction | None:
    """Return the product that a contraction is.

    None for one of other types or forms, or that is to be computed in order.
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
    if groups is None or not ((groups["m"] or groups["n"]) and groups["k"]):
        return None
    if _turned(groups, store.access):
        a, b = b, a
        groups["m"], groups["n"] = groups["n"], groups["m"]
    sizes, a_depth, b_depth = _merged(nest, groups["k"], a, b)
    batch, m, n = (
        LoopGroup(tuple(groups[name]), tuple(nest.sizes[d] for d in groups[name]))
        for name in ("batch", "m", "n")
    )
    operands = ProductOperand(a, m, a_depth), ProductOperand(b, n, b_depth)
    return Contraction(nest, batch, m, n, sizes, *operands, store, dtype)


def _factors(nest: LoopNest) -> list[tuple[Access, str]] | None:
    """Return the two accesses whose elements are multiplied, and their types.

    Return None for anything but a sum of products of elements, which may be widened first.
    """
    total = nest.code[nest.stores[0].value]
    if not _is_free(total, "arith.addf"):
        return None
    products = [k for k in total.operands if not isinstance(nest.code[k], Accumulator)]
    if len(products) != 1:
        return None
    product = nest.code[products[0]]
    if not _is_free(product, "arith.mulf"):
        return None
    found = []
    for number in product.operands:
        node = nest.code[number]
        if isinstance(node, Apply) and node.name == "arith.extf":
            node = nest.code[node.operands[0]]
        if not isinstance(node, Load) or str(node.type) not in _FLOATS:
            return None
        found.append((node.access, str(node.type)))
    return found


def _is_free(node: NestNode, name: str) -> TypeGuard[Apply]:
    """Tell whether a node is the op of that name, and its order need not be kept."""
    return isinstance(node, Apply) and node.name == name and not node.is_exact


def _groups(nest: LoopNest, a: Access, b: Access, c: Access) -> dict[str, list[int]] | None:
    """Return the loops in A and C, in B and C, in A and B, in all three; None when there are others."""
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
    """Tell whether C has rows, and not columns, of step 1, or has no columns."""
    if not (groups["m"] and groups["n"]):
        return not groups["n"]
    return c.strides[groups["m"][-1]] == 1 and c.strides[groups["n"][-1]] != 1


def _merged(
    nest: LoopNest, dims: Sequence[int], a: Access, b: Access
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Merge depth loops that walk both operands as one: sizes, strides of A, of B."""
    loops: list[tuple[int, int, int]] = []
    for dim in dims:
        size, down, across = nest.sizes[dim], a.strides[dim], b.strides[dim]
        if loops and loops[-1][1] == down * size and loops[-1][2] == across * size:
            size *= loops.pop()[0]
        loops.append((size, down, across))
    sizes, a_depth, b_depth = zip(*loops)
    return sizes, a_depth, b_depth


def starts_from(product: Contraction) -> str:
    """Return what C begins with: "zero", "held" (it is added to) or "value" (a node of the nest)."""
    store = product.c
    if store.initial is None:
        return "held" if store.reads else "zero"
    return "zero" if is_number(product.nest.code[store.initial], 0.0) else "value"
