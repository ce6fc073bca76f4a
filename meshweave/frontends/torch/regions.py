"""Turn annotated nodes that follow each other in a graph of PyTorch into `hints_wrapper` ops, one for each region.

annotate({"meshweave": {"slice": "t=8"}})         one region
annotate({"meshweave": [{outer hints}, {...}]})   two, the second in the first
annotate({"meshweave.inner": {...}})              a region inside those of other keys: keys nest in their order
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from meshweave.errors import CompileError

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch._ops import HigherOrderOperator
    from torch.fx import Graph, GraphModule, Node

KEY = "meshweave"
_NUMBER = "#"  # tells neighbouring regions with equal hints apart

Hints = dict[str, object]
Chain = tuple[Hints, ...]
"""The hints around a node: the dictionary of each region, outermost first."""


class Nested(dict[str, Any]):
    """Hold annotations; an inner one under our key adds to the outer one instead of replacing it."""

    def update(self, *args: Any, **kwargs: Any) -> None:  # dict declares overloads
        new = dict(*args, **kwargs)
        if KEY in self and KEY in new:
            new[KEY] = [*_levels(self[KEY]), *_levels(new[KEY])]
        super().update(new)


def _levels(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else [value]


def chain_of(node: Node) -> Chain:
    """Return the hints that annotations put around a node. Raises CompileError where they are no dictionaries."""
    custom = node.meta.get("custom") or {}
    found: list[Hints] = []
    for key, value in custom.items():
        if _is_ours(key):
            for level in _levels(value):
                if not isinstance(level, dict) or not all(isinstance(k, str) for k in level):
                    raise CompileError(
                        f"annotation {key}: {level!r:.60} is no dictionary of hints, "
                        '{"slice": "t=8"} for example',
                        place_of(node),
                    )
                if level:
                    found.append(level)
    return tuple(found)


def _is_ours(key: object) -> bool:
    return key == KEY or str(key).startswith(f"{KEY}.")


def place_of(node: Node) -> str | None:
    """Return `file:line` of a node in the user's source, or None."""
    place: str | None = node.meta.get("meshweave_place")
    return place


def inline_wrappers(root: GraphModule, wrapper: HigherOrderOperator) -> None:
    """Replace hints_wrapper ops by their bodies, each node annotated with the hints.

    torch's decompositions refuse wrappers whose arguments are views of one tensor; annotations have no such limit.
    """
    numbers = count()
    while calls := [n for n in root.graph.nodes if n.op == "call_function" and n.target is wrapper]:
        for call in calls:
            _inline(root, call, next(numbers))
    root.graph.eliminate_dead_code()
    root.recompile()


def _inline(root: GraphModule, call: Node, number: int) -> None:
    body = getattr(root, call.args[0].target)
    level = {**call.kwargs["hints"], _NUMBER: number}
    around = list(chain_of(call))
    env: dict[Node, Node] = {}
    given = iter(call.args[1])
    result: Any = None
    with root.graph.inserting_before(call):
        for node in body.graph.nodes:
            if node.op == "output":
                result = node.args[0]
            elif node.op == "placeholder":
                env[node] = next(given)
            else:
                env[node] = _copied(root, body, node, env)
                own = list(chain_of(node))
                own = own[len(around) :] if own[: len(around)] == around else own
                custom = env[node].meta.get("custom") or {}
                kept = {k: v for k, v in custom.items() if not _is_ours(k)}
                env[node].meta["custom"] = {**kept, KEY: [*around, level, *own]}
    results = result if isinstance(result, tuple | list) else (result,)
    for user in list(call.users):
        user.replace_all_uses_with(env[results[user.args[1]]])
        root.graph.erase_node(user)
    root.graph.erase_node(call)


def _copied(root: GraphModule, body: GraphModule, node: Node, env: Mapping[Node, Node]) -> Node:
    """Copy a node of the body to the graph around it, with the attributes it reads."""
    copy = root.graph.node_copy(node, env.__getitem__)
    if node.op == "get_attr":
        name = f"meshweave_{len(list(root.named_children()))}_{node.target.replace('.', '_')}"
        setattr(root, name, getattr(body, node.target))
        copy.target = name
    return copy


def wrap_regions(root: GraphModule, wrapper: HigherOrderOperator) -> None:
    """Put each run of nodes with equal hints in a GraphModule of its own, called by `wrapper`, an op of torch."""
    _wrap(root, wrapper, 0, count())


def _wrap(
    owner: GraphModule, wrapper: HigherOrderOperator, depth: int, numbers: Iterator[int]
) -> None:
    graph = owner.graph
    _gather_items(graph)
    calls = [n for n in graph.nodes if n.op == "call_function"]
    chains = {node: chain_of(node)[depth:] for node in calls}
    for run in _runs(graph, chains):
        _outline(owner, run, chains[run[0]][0], depth, wrapper, numbers)
    graph.lint()
    owner.recompile()


def _gather_items(graph: Graph) -> None:
    """Move the nodes that unpack the results of an op directly behind it, under the same hints."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is operator.getitem:
            source = node.args[0]
            source.append(node)
            node.meta["custom"] = source.meta.get("custom")


def _runs(graph: Graph, chains: Mapping[Node, Chain]) -> list[list[Node]]:
    """Return the runs of neighbouring nodes with equal outermost hints."""
    runs: list[list[Node]] = []
    open_run: list[Node] = []
    for node in graph.nodes:
        chain = chains.get(node, ())
        free = node.op == "call_function" and not node.all_input_nodes
        if node.op == "get_attr" or (free and not chain):
            continue  # computes nothing: may be anywhere before its use
        if open_run and chain and chain[0] == chains[open_run[0]][0]:
            open_run.append(node)
        else:
            open_run = [node] if chain else []
            if chain:
                runs.append(open_run)
    return runs


def _outline(
    owner: GraphModule,
    run: list[Node],
    hints: Hints,
    depth: int,
    wrapper: HigherOrderOperator,
    numbers: Iterator[int],
) -> None:
    """Move a run into a GraphModule, and call that in its place."""
    from torch.fx import Graph, GraphModule

    inside = set(run)
    values = [n for node in run for n in node.all_input_nodes if n not in inside]
    inputs = [n for n in dict.fromkeys(values) if n.op != "get_attr"]
    attributes = [n for n in dict.fromkeys(values) if n.op == "get_attr"]
    outputs = [n for n in run if any(user not in inside for user in n.users)]
    body, env = Graph(), {}
    for node in inputs:
        env[node] = body.placeholder(node.name)
        env[node].meta = dict(node.meta)
    for node in (*attributes, *run):
        env[node] = body.node_copy(node, env.__getitem__)
    body.output(tuple(env[node] for node in outputs))
    name = f"meshweave_region_{next(numbers)}"
    inner = GraphModule(owner, body)
    setattr(owner, name, inner)
    graph = owner.graph
    with graph.inserting_after(run[-1]):
        reference = graph.get_attr(name)
    said = {key: value for key, value in hints.items() if key != _NUMBER}
    with graph.inserting_after(reference):
        call = graph.call_function(wrapper, (reference, tuple(inputs), {}), {"hints": said})
    _describe(call, run[0], [n.meta["val"] for n in outputs])
    at = call
    for index, node in enumerate(outputs):
        with graph.inserting_after(at):
            at = graph.call_function(operator.getitem, (call, index))
        _describe(at, run[0], node.meta["val"])
        node.replace_all_uses_with(at)
    for node in reversed(run):
        graph.erase_node(node)
    _wrap(inner, wrapper, depth + 1, numbers)


def _describe(node: Node, like: Node, value: object) -> None:
    node.meta["val"] = value
    for key in ("stack_trace", "meshweave_place"):
        if key in like.meta:
            node.meta[key] = like.meta[key]
