"""Describe what an op computes for one element: a straight line of typed scalar nodes.

A node names earlier nodes by their numbers. What a leaf reads depends on who built the expression, so the classes are
generic in it:

    stage                         access of a load or gather     index form       source of a scalar
    body of a linalg op           the tensor read (`ir.Value`)   loop number      `ir.Value`
    fused kernel                  `Element`: operand and map     `Linear`         operand number
    loop nest bound to pointers   `Access`: pointer and strides  `BoundIndex`     parameter number

Nodes are frozen and hashable, and equal nodes of one `NodeTable` have one number. Each is also one MLIR op: the numbers
are its operands, everything else is attributes and a result type.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Generic, TypeVar

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.ops import producer

A = TypeVar("A", bound=Hashable)
I = TypeVar("I", bound=Hashable)  # noqa: E741
S = TypeVar("S", bound=Hashable)
T = TypeVar("T")

EXACT = "mw.exact"
"""Mark of an op that is computed as written: not reordered, contracted or approximated.

It stands beside arith's flags, which only ever allow more: here an op without flags may be approximated, and a sum over
loops be reordered, unless it is marked. It is on single ops because a kernel may hold ops of which only some are.
"""
CONTRACT = "contract"
"""Flag of arith on a product, and on the sum over a loop that it is added to: the product need not be rounded first."""


@dataclass(frozen=True, slots=True)
class Argument:
    """Stand for block argument `number` of the body that the expression was read from."""

    number: int


@dataclass(frozen=True, slots=True)
class Load(Generic[A]):
    """Read one element of a tensor or buffer."""

    access: A
    type: ir.Type


@dataclass(frozen=True, slots=True)
class Gather(Generic[A]):
    """Read one element at computed places: one operand, an index, for each dim."""

    access: A
    operands: tuple[int, ...]
    type: ir.Type


@dataclass(frozen=True, slots=True)
class Index(Generic[I]):
    """Take a form over the loops as a number of type `index`."""

    form: I


@dataclass(frozen=True, slots=True)
class Constant:
    """Hold a number known at compile time."""

    value: ir.Attribute
    type: ir.Type


@dataclass(frozen=True, slots=True)
class Scalar(Generic[S]):
    """Take a number known when the program runs, the same in all iterations."""

    source: S
    type: ir.Type


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Read what output `number` holds so far."""

    number: int
    type: ir.Type


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply a scalar op of one result, such as arith.addf. attributes: (name, attribute) pairs."""

    name: str
    attributes: tuple[tuple[str, ir.Attribute], ...]
    operands: tuple[int, ...]
    type: ir.Type

    def attribute(self, name: str) -> ir.Attribute | None:
        """Return an attribute by name, None when the op has none of that name."""
        return next((value for key, value in self.attributes if key == name), None)

    @property
    def is_exact(self) -> bool:
        """Tell whether the op is computed as written."""
        return self.attribute(EXACT) is not None

    def exact(self) -> Apply:
        """Return the op marked to be computed as written."""
        return replace(self, attributes=(*self.attributes, (EXACT, ir.UnitAttr.get())))

    def contracted(self) -> Apply:
        """Return the op with the flag of arith that lets products be added without rounding them first."""
        flag = ("fastmath", ir.Attribute.parse(f"#arith.fastmath<{CONTRACT}>"))
        others = [pair for pair in self.attributes if pair[0] != "fastmath"]
        return replace(self, attributes=(flag, *others))


Node = Argument | Load[A] | Gather[A] | Index[I] | Constant | Scalar[S] | Accumulator | Apply
AnyNode = Node[Any, Any, Any]  # for functions that read no leaf
BodyNode = Node[ir.Value, int, ir.Value]


def inputs(node: AnyNode) -> tuple[int, ...]:
    """Return the numbers of the nodes that a node reads."""
    return node.operands if isinstance(node, (Apply, Gather)) else ()


def renumber(node: Node[A, I, S], numbers: Sequence[int]) -> Node[A, I, S]:
    """Return the node reading node `numbers[k]` where it read node k."""
    if not isinstance(node, (Apply, Gather)):
        return node
    operands = tuple([numbers[k] for k in node.operands])
    if isinstance(node, Apply):
        return Apply(node.name, node.attributes, operands, node.type)
    return Gather(node.access, operands, node.type)


def type_text(node: AnyNode) -> str:
    """Return the type of a node as MLIR writes it."""
    assert not isinstance(node, Argument), "an argument has the type of what it stands for"
    return "index" if isinstance(node, Index) else str(node.type)


def is_number(node: AnyNode, number: float) -> bool:
    """Tell whether a node is the constant `number`."""
    value = node.value if isinstance(node, Constant) else None
    return isinstance(value, (ir.FloatAttr, ir.IntegerAttr)) and value.value == number


def integer_of(node: BodyNode) -> int | None:
    """Return the integer that a node is, written in the body or in front of it; None for any other."""
    value = node.value if isinstance(node, Constant) else None
    if isinstance(node, Scalar) and (made := producer(node.source)) is not None:
        value = made.attributes["value"] if made.name == "arith.constant" else None
    return int(value.value) if isinstance(value, ir.IntegerAttr) else None


def needed(nodes: Sequence[AnyNode], roots: Iterable[int], known: Container[int] = ()) -> set[int]:
    """Return the numbers of the nodes that `roots` are computed from, roots included, known ones left out."""
    found: set[int] = set()
    todo = list(roots)
    while todo:
        number = todo.pop()
        if number not in found and number not in known:
            found.add(number)
            todo += inputs(nodes[number])
    return found


def gathered(nodes: Sequence[AnyNode], own: Callable[[AnyNode], Iterable[T]]) -> list[frozenset[T]]:
    """Return for each node the union of `own` over the node and all that it is computed from."""
    found: list[frozenset[T]] = []
    for node in nodes:
        found.append(frozenset(own(node)).union(*[found[k] for k in inputs(node)]))
    return found


class NodeTable(Generic[A, I, S]):
    """Number nodes; equal ones have one number."""

    def __init__(self) -> None:
        self.nodes: list[Node[A, I, S]] = []
        self._numbers: dict[Node[A, I, S], int] = {}

    def put(self, node: Node[A, I, S]) -> int:
        """Return the number of a node."""
        number = self._numbers.setdefault(node, len(self.nodes))
        if number == len(self.nodes):
            self.nodes.append(node)
        return number


@dataclass(frozen=True)
class Expression(Generic[A, I, S]):
    """Hold nodes in the order computed, and the numbers of those that are the results."""

    nodes: tuple[Node[A, I, S], ...]
    results: tuple[int, ...]

    @cached_property
    def used(self) -> frozenset[int]:
        """Return the nodes that are results or are read by another node."""
        return frozenset(self.results).union(*map(inputs, self.nodes))


Body = Expression[ir.Value, int, ir.Value]
"""The body of a linalg op as read from the IR; node k is block argument k, as far as there are arguments."""
EMPTY: Body = Expression((), ())


@lru_cache(maxsize=1 << 8)
def _argument(number: int) -> Argument:
    return Argument(number)


def read_body(block: ir.Block) -> Body:
    """Return what the body of a linalg op (or tensor.generate, whose arguments are indices) computes.

    Raises CompileError for an op inside it that has regions, several results or is not a scalar op.
    """
    numbers: dict[ir.Value, int] = {a: k for k, a in enumerate(block.arguments)}
    nodes: list[BodyNode] = [_argument(k) for k in range(len(numbers))]

    def put(value: ir.Value, node: BodyNode) -> int:
        numbers[value] = len(nodes)
        nodes.append(node)
        return numbers[value]

    def number_of(value: ir.Value) -> int:
        known = numbers.get(value)
        return put(value, Scalar(value, value.type)) if known is None else known

    for view in block.operations:
        op = view.operation
        name, made = op.name, op.results
        if name in ("linalg.yield", "tensor.yield", "mw.yield"):
            results = tuple([number_of(v) for v in op.operands])  # may add nodes
            return Expression(tuple(nodes), results)
        if name == "tensor.extract":
            tensor, *places = op.operands
            node: BodyNode = Gather(tensor, tuple([number_of(v) for v in places]), made[0].type)
        elif name == "linalg.index":
            node = Index(op.attributes["dim"].value)
        elif name == "mw.index":
            node = Index(op.attributes["map"].value.results[0].position)
        elif name == "arith.constant":
            node = Constant(op.attributes["value"], made[0].type)
        elif len(op.regions) or len(made) != 1:
            raise CompileError(
                f"{name} inside a linalg body is not supported", location_text(op.location)
            )
        else:
            operands = tuple([number_of(v) for v in op.operands])
            every = op.attributes  # asked for once: each time it is made anew
            attributes = tuple([(key, every[key]) for key in every]) if len(every) else ()
            node = Apply(name, attributes, operands, made[0].type)
        put(made[0], node)
    raise AssertionError("a body that yields nothing")
