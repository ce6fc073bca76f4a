"""Choose the types of what reductions hold while they run, where those of their results are slow.

The largest of bf16 is found in f32, where the machine has an instruction; that is exact. Sums and products of bf16 and
f16 are held in f32, unless the program is computed as written: rounding each partial sum takes longer, and loses what a
sum of more than a few hundred numbers still gets. The least of numbers that are places along a loop, as an argmax looks
for, is found in 32 bits: twice as many fit a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshweave.ir.bindings import ir
from meshweave.ir.expressions import Accumulator, Apply, Constant, Index, needed
from meshweave.lowering.nests.bind import LoopNest, NestNode, Store

EXTREMES = {f"arith.{name}f" for name in ("maximum", "minimum", "maxnum", "minnum")}
SUMS = {"arith.addf", "arith.mulf"}
MOST = (1 << 31) - 1


def with_fast_types(nest: LoopNest) -> LoopNest:
    """Return the nest with accumulators of the types that reduce fast; a result is converted as it is stored."""
    if not any(str(store.type) in ("bf16", "f16", "i64") for store in nest.stores):
        return nest
    nodes = list(nest.code)
    stores = [_with_fast_type(nest, nodes, k, store) for k, store in enumerate(nest.stores)]
    return replace(nest, code=tuple(nodes), stores=tuple(stores))


def _with_fast_type(nest: LoopNest, nodes: list[NestNode], number: int, store: Store) -> Store:
    """Return how a result is stored; the nodes that compute it in another type are added."""
    value = nest.code[store.value]
    if not isinstance(value, Apply) or len(value.operands) != 2:
        return store
    if not _reduces_alone(nest, number, store):
        return store
    held, other = sorted(value.operands, key=lambda k: not isinstance(nest.code[k], Accumulator))

    def reduced(addend: int, type_: ir.Type) -> int:
        places = {held: len(nodes), other: addend}
        nodes.append(Accumulator(number, type_))
        nodes.append(replace(value, operands=tuple(places[k] for k in value.operands), type=type_))
        return len(nodes) - 1

    may_be_longer = value.name in EXTREMES or (value.name in SUMS and not value.is_exact)
    if may_be_longer and str(store.type) in ("bf16", "f16"):
        nodes.append(Apply("arith.extf", (), (other,), ir.F32Type.get()))
        return replace(store, value=reduced(len(nodes) - 1, ir.F32Type.get()))
    first = None if store.initial is None else _constant(nest.code[store.initial])
    if value.name != "arith.minsi" or str(store.type) != "i64" or first is None:
        return store
    if not _is_small(nest, other):
        return store
    i32 = ir.IntegerType.get_signless(32)
    nodes.append(Constant(ir.IntegerAttr.get(i32, min(first, MOST)), i32))
    initial = len(nodes) - 1
    return replace(store, value=reduced(_small(nodes, other), i32), initial=initial)


def _reduces_alone(nest: LoopNest, number: int, store: Store) -> bool:
    """Tell whether what a result holds is read by its own reduction alone, once."""
    held = [
        k
        for k, node in enumerate(nest.code)
        if isinstance(node, Accumulator) and node.number == number
    ]
    wanted = needed(nest.code, nest.results)
    readers = [k for k in wanted for at in _operands(nest.code[k]) if at in held]
    return readers == [store.value]


def _operands(node: NestNode) -> Sequence[int]:
    return node.operands if isinstance(node, Apply) else ()


def _constant(node: NestNode) -> int | None:
    """Return the integer that a node is, where that is not below what 32 bits hold."""
    number = node.value if isinstance(node, Constant) else None
    if not isinstance(number, ir.IntegerAttr):
        return None
    return int(number.value) if number.value >= -MOST else None


def _is_small(nest: LoopNest, number: int) -> bool:
    """Tell whether a node is a place along the loops, or one of several such."""
    node = nest.code[number]
    if isinstance(node, Apply) and node.name == "arith.select":
        return all(_is_small(nest, k) for k in node.operands[1:])
    if isinstance(node, Apply) and node.name == "arith.index_cast":
        index = nest.code[node.operands[0]]
        if not isinstance(index, Index) or index.form.scalars:
            return False
        steps = zip(index.form.strides, nest.sizes)
        return abs(index.form.const) + sum(abs(s) * n for s, n in steps) <= MOST
    known = _constant(node)
    return known is not None and known <= MOST


def _small(nodes: list[NestNode], number: int) -> int:
    """Return the number of a node that is the same in 32 bits; those it needs are added."""
    node, i32 = nodes[number], ir.IntegerType.get_signless(32)
    made: NestNode
    if isinstance(node, Constant):
        made = Constant(ir.IntegerAttr.get(i32, node.value.value), i32)
    else:
        assert isinstance(node, Apply)
        if node.name == "arith.select":
            condition, *values = node.operands
            operands = (condition, *[_small(nodes, k) for k in values])
            made = replace(node, operands=operands, type=i32)
        else:
            made = replace(node, type=i32)
    nodes.append(made)
    return len(nodes) - 1
