"""Let a program of `torch.compile` read Python's floats in each call, where they are only used in arithmetic.

before:  %by = s.item();  %y = x * %by         s: the tensor as which torch hands a float over
after:   %by = s.to(float32);  %y = x * %by
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from meshweave.frontends.torch.export import torch_package

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor
    from torch.fx import Graph, GraphModule, Node

_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg)
"""What makes floats of floats, in f64 as Python does."""
_WITH_TENSORS = (
    *(operator.add, operator.sub, operator.mul, operator.truediv),
    *(operator.iadd, operator.isub, operator.imul, operator.itruediv),
    *(operator.lt, operator.le, operator.gt, operator.ge),
)
_NAMES = ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_")


def with_scalars(captured: GraphModule, numbers: Sequence[int]) -> tuple[GraphModule, list[int]]:
    """Return a graph that reads those of its `numbers`, arguments that are floats, in each call that it can.

    Also return the numbers that are left: what is no arithmetic with tensors of floats uses them. numbers: as
    `numbers_in` returns them.
    """
    given = [node for node in captured.graph.nodes if node.op == "placeholder"]
    derived = _derived(captured.graph, [given[k] for k in numbers])
    left = [k for k in numbers if not all(_fits(item, derived) for item in given[k].users)]
    read = [given[k] for k in numbers if k not in left]
    return (_rewritten(captured, read) if read else captured), left


def _derived(graph: Graph, numbers: Collection[Node]) -> set[Node]:
    """Return the nodes that are floats computed from arguments that are floats, and from nothing else."""
    found: set[Node] = set()
    for node in graph.nodes:
        item = node.op == "call_method" and node.target == "item" and node.args[0] in numbers
        computed = node.op == "call_function" and node.target in _ARITHMETIC and not node.kwargs
        inputs = node.all_input_nodes
        if item or (computed and inputs and all(one in found for one in inputs)):
            found.add(node)
    return found


def _fits(number: Node, derived: Collection[Node]) -> bool:
    """Tell whether all that uses a float can use a tensor in its place."""
    return all(
        _fits(user, derived) if user in derived else _is_with_tensor(user, derived)
        for user in number.users
    )


def _is_with_tensor(node: Node, derived: Collection[Node]) -> bool:
    """Tell whether an op takes a float and a tensor whose dtype its result has, or that it is compared in."""
    torch = torch_package()
    functions = (*_WITH_TENSORS, torch.add, torch.sub, torch.mul, torch.div)
    known = node.target in (functions if node.op == "call_function" else _NAMES)
    if node.op not in ("call_function", "call_method") or not known or node.kwargs:
        return False
    kinds = [_tensor(one) for one in node.args if one not in derived]
    return len(node.args) == 2 and len(kinds) == 1 and _takes(kinds[0])


def _takes(value: Tensor | None) -> bool:
    return value is not None and value.dtype.is_floating_point and value.ndim > 0


def _tensor(node: Any) -> Tensor | None:
    value = getattr(node, "meta", {}).get("example_value")
    return value if isinstance(value, torch_package().Tensor) else None


def _rewritten(captured: GraphModule, read: Sequence[Node]) -> GraphModule:
    """Return the graph with tensors in the place of the floats that the arguments `read` are."""
    fx = torch_package().fx
    graph, made = fx.Graph(), dict[Any, Any]()
    floats = _reached(captured.graph, read)
    for node in captured.graph.nodes:
        if node in floats and node.op == "call_method":
            made[node] = made[node.args[0]]  # the tensor itself, in f64
            continue
        as_tensor: Callable[[Node], Any] = made.__getitem__
        if node not in floats and any(one in floats for one in node.all_input_nodes):
            kind = next(t for t in map(_tensor, node.args) if t is not None)
            narrow = {
                one: graph.call_method("to", (made[one], kind.dtype))
                for one in node.all_input_nodes
                if one in floats
            }
            as_tensor = {**made, **narrow}.__getitem__
        made[node] = graph.node_copy(node, as_tensor)
        made[node].meta = dict(node.meta)
    return fx.GraphModule(captured, graph)


def _reached(graph: Graph, read: Sequence[Node]) -> set[Node]:
    """Return the floats that are computed in each call."""
    found: set[Node] = set()

    def users(node: Node) -> Iterator[Node]:
        yield from (user for user in node.users if user in derived)

    derived = _derived(graph, [n for n in graph.nodes if n.op == "placeholder"])
    waiting = [item for node in read for item in users(node)]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += users(node)
    return found
