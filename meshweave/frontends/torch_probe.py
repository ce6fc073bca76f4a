"""All that a PyTorch program does which is not supported, for one error: each op is tried alone."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

from meshweave.errors import CompileError
from meshweave.frontends.torch_regions import place_of

Problem = tuple[str, str | None]
"""What is not supported, and its place in the user's source."""


def refusal(problems: Sequence[Problem]) -> CompileError:
    """One error of one line for all of them."""
    known = list(dict.fromkeys(problems))
    if len(known) == 1:
        return CompileError(f"not supported: {known[0][0]}", known[0][1])
    said = [text if place is None else f"{text} ({place})" for text, place in known]
    return CompileError(f"not supported: {'; '.join(said)}")


def failing_ops(graph: Any, lower: Callable[[Any], Any]) -> list[Problem]:
    """The ops of a GraphModule and of those in it that `lower` raises CompileError for, each once a line."""
    import torch

    found: list[Problem] = []
    tried: set[Any] = set()
    for module in graph.modules():
        nodes = module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ()
        for node in nodes:
            if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
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


def _alone(torch: Any, owner: Any, node: Any) -> Any:
    """A GraphModule of one op, all it reads being arguments."""
    graph, values = torch.fx.Graph(), {}
    for source in node.all_input_nodes:
        if source.op == "get_attr":
            values[source] = graph.node_copy(source)
        else:
            values[source] = graph.placeholder(source.name)
            values[source].meta = dict(source.meta)
    copy = graph.node_copy(node, values.__getitem__)
    several = isinstance(node.meta.get("val"), tuple | list)
    outputs: Any = (copy,)
    if several:
        outputs = []
        for index, value in enumerate(node.meta["val"]):
            outputs.append(graph.call_function(operator.getitem, (copy, index)))
            outputs[-1].meta["val"] = value
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(owner, graph)
