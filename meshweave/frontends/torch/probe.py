"""Find all that a PyTorch program does which is not supported, for one error: try each op alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from meshweave.errors import CompileError
from meshweave.frontends.torch.regions import place_of

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch.fx import GraphModule, Node

Problem = tuple[str, str | None]
"""What is not supported, and its place in the user's source."""


def refusal(problems: Sequence[Problem]) -> CompileError:
    """Return one error, of one line, for all problems."""
    known = list(dict.fromkeys(problems))
    if len(known) == 1:
        return CompileError(f"not supported: {known[0][0]}", known[0][1])
    said = [text if place is None else f"{text} ({place})" for text, place in known]
    return CompileError(f"not supported: {'; '.join(said)}")


def failing_ops(graph: GraphModule, lower: Callable[[GraphModule], object]) -> list[Problem]:
    """List the ops of a GraphModule, inner ones too, for which `lower` raises CompileError: each once for a line."""
    import torch

    found: list[Problem] = []
    tried: set[tuple[object, str, str | None]] = set()
    for module in graph.modules():
        nodes = module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()
        for node in nodes:
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
                continue
            if node.meta.get("val") is None:  # an assertion, which has no result to return
                continue
            key = (node.target, str(node.meta.get("val")), place_of(node))
            if key in tried:
                continue
            tried.add(key)
            try:
                lower(_alone(torch, module, node))
            except CompileError:
                found.append((str(node.target), place_of(node)))
    return found


def _alone(torch: ModuleType, owner: GraphModule, node: Node) -> GraphModule:
    """Make a GraphModule of one op whose operands are arguments."""
    graph = torch.fx.Graph()
    values: dict[Node, Node] = {}
    for source in node.all_input_nodes:
        if source.op == "get_attr":
            values[source] = graph.node_copy(source)
        else:
            values[source] = graph.placeholder(source.name)
            values[source].meta = dict(source.meta)
    copy = graph.node_copy(node, values.__getitem__)
    outputs = [copy]
    if isinstance(node.meta.get("val"), tuple | list):
        outputs = []
        for index, value in enumerate(node.meta["val"]):
            outputs.append(graph.call_function(operator.getitem, (copy, index)))
            outputs[-1].meta["val"] = value
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(owner, graph)
