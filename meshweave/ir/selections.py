"""Tell reductions that select one of their elements, such as argmax: parts of them may be reduced apart, then together.

Such a body has several accumulators, and for each an element of the same type: it takes either, as comparisons of these
numbers among each other say. So what it does depends only on their order, and it is tried on all orders in which three
elements can be: whether it makes no difference how they are grouped, and whether the first may come in again later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, Values, named_predicate
from meshweave.ir.expressions import Apply, Argument, Body, BodyNode, Constant, needed

Numbers = np.ndarray[Any, Any]

FLOATS = (float("nan"), 0.0, 1.0, 2.0)
INTEGERS = (0, 1, 2)
MOST_ELEMENTS = 32
"""Elements of which all rows of three are tried."""
_EXTREMES: dict[str, Callable[..., Numbers]] = {
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
}
_LOGIC: dict[str, Callable[..., Numbers]] = {
    "arith.andi": np.logical_and,
    "arith.ori": np.logical_or,
    "arith.xori": np.logical_xor,
}
_ORDER: dict[str, Callable[..., Numbers]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


@dataclass(frozen=True)
class Selection:
    """Describe a body that selects. elements: for each result the node that it may take in place of what it holds."""

    body: Body
    held: tuple[int, ...]
    elements: tuple[int, ...]

    @property
    def reads_plain(self) -> bool:
        """Tell whether the elements are the arguments in front of the accumulators, in order."""
        return self.elements == tuple(range(len(self.elements)))

    def combine(self, b: OpBuilder, held: Values, given: Values) -> list[ir.Value]:
        """Build what is selected of what is held and of an element."""
        made = dict(zip((*self.held, *self.elements), (*held, *given), strict=True))
        order = sorted(needed(self.body.nodes, self.body.results, made))
        for number in order:
            node = self.body.nodes[number]
            if isinstance(node, Constant):
                made[number] = b.constant(node.value, node.type)
            else:
                assert isinstance(node, Apply)
                operands = [made[k] for k in node.operands]
                made[number] = b.one(node.name, node.type, *operands, **dict(node.attributes))
        return [made[k] for k in self.body.results]


def selection_of(body: Body) -> Selection | None:
    """Return how a body selects; None for one that does anything else, or where it matters how parts are grouped."""
    count = len(body.results)
    first = sum(isinstance(node, Argument) for node in body.nodes) - count
    held = tuple(range(first, first + count))
    if count < 2 or first < 0:
        return None
    elements = [_element(body, root, own, held) for root, own in zip(body.results, held)]
    known = tuple([k for k in elements if k is not None])
    if len(known) < count or len({*known, *held}) < 2 * count:
        return None
    found = Selection(body, held, known)
    return found if _compares_alike(found) and _groups_freely(found) else None


def _element(body: Body, root: int, own: int, held: Sequence[int]) -> int | None:
    """Return the node that a result may take in place of accumulator `own`."""
    node = body.nodes[root]
    if not isinstance(node, Apply) or node.name not in ("arith.select", *_EXTREMES):
        return None
    pair = node.operands[-2:]
    others = [k for k in pair if k != own]
    if len(others) != 1 or needed(body.nodes, others) & set(held):
        return None
    return others[0]


def _compares_alike(found: Selection) -> bool:
    """Tell whether a body compares parts of an element with the same parts of the other, in one order, and no more."""
    part = {k: at for row in (found.held, found.elements) for at, k in enumerate(row)}
    nodes, unsigned = found.body.nodes, set()
    for number in needed(nodes, found.body.results, part):
        node = nodes[number]
        logic = str(getattr(node, "type", "")) == "i1"
        if not isinstance(node, Apply):
            if not (isinstance(node, Constant) and logic):
                return False
            continue
        compares = node.name in ("arith.cmpf", "arith.cmpi")
        read = node.operands[1:] if node.name == "arith.select" else node.operands
        if compares or not logic:
            alike = all(k in part for k in read) and len({part[k] for k in read}) == 1
            if not alike or not (compares or node.name in ("arith.select", *_EXTREMES)):
                return False
        elif node.name not in ("arith.select", *_LOGIC):
            return False
        if node.name in ("arith.maxsi", "arith.minsi"):
            unsigned.add(False)
        elif node.name == "arith.cmpi" and _predicate(node) not in ("eq", "ne"):
            unsigned.add(_predicate(node)[0] == "u")
    return len(unsigned) < 2 and all(
        _domain(nodes, k, found) is not None for k in range(len(found.held))
    )


def _domain(nodes: Sequence[BodyNode], number: int, found: Selection) -> tuple[float, ...] | None:
    """Return numbers of the type of a part of an element that stand in every order in which three can."""
    node = nodes[found.body.results[number]]
    assert isinstance(node, Apply)
    if isinstance(node.type, ir.IntegerType):
        return INTEGERS if node.type.width > 1 else None
    return FLOATS if isinstance(node.type, ir.FloatType) else None


def _groups_freely(found: Selection) -> bool:
    """Tell whether (a b) c is a (b c), and whether (a b) a is a b: the start may come in again with each part."""
    domains = [_domain(found.body.nodes, k, found) for k in range(len(found.held))]
    elements = list(product(*[d for d in domains if d is not None]))
    if len(elements) > MOST_ELEMENTS:
        return False
    rows = np.array(elements).T
    a, b, c = (rows[:, at.reshape(-1)] for at in np.indices((len(elements),) * 3))
    once = _selected(found, _selected(found, a, b), c)
    twice = _selected(found, a, _selected(found, b, c))
    again = _selected(found, _selected(found, a, b), a)
    return _same(once, twice) and _same(again, _selected(found, a, b))


def _same(one: Numbers, other: Numbers) -> bool:
    return np.array_equal(one, other, equal_nan=True)


def _selected(found: Selection, held: Numbers, given: Numbers) -> Numbers:
    """Select by the body: parts of elements along the first dim."""
    values = dict(zip((*found.held, *found.elements), (*held, *given), strict=True))
    return np.stack([_value(found.body.nodes, k, values) for k in found.body.results])


def _value(nodes: Sequence[BodyNode], number: int, values: dict[int, Numbers]) -> Numbers:
    if number not in values:
        node = nodes[number]
        if isinstance(node, Constant):
            values[number] = np.asarray(bool(ir.IntegerAttr(node.value).value & 1))
        else:
            assert isinstance(node, Apply)
            values[number] = _applied(node, [_value(nodes, k, values) for k in node.operands])
    return values[number]


def _applied(node: Apply, given: Sequence[Numbers]) -> Numbers:
    if node.name == "arith.select":
        return np.where(given[0].astype(bool), given[1], given[2])
    functions: Mapping[str, Callable[..., Numbers]] = {**_EXTREMES, **_LOGIC}
    if node.name in functions:
        return functions[node.name](*given)
    name = _predicate(node)
    return _ORDER[name[-2:]](*given) if node.name == "arith.cmpi" else _compared(name, given)


def _predicate(node: Apply) -> str:
    attribute = node.attribute("predicate")
    assert attribute is not None
    return str(named_predicate(node.name, attribute).name).lower()


def _compared(name: str, given: Sequence[Numbers]) -> Numbers:
    """Compare floats: `o..` is false where one is NaN, `u..` true."""
    nan: Numbers = reduce(np.logical_or, map(np.isnan, given))
    if name in ("alwaysfalse", "alwaystrue"):
        return np.full_like(nan, name == "alwaystrue")
    if name in ("ord", "uno"):
        return np.equal(nan, name == "uno")
    found = _ORDER[name[1:]](*given)
    return np.where(nan, name[0] == "u", found)
