"""Hints in a graph of PyTorch: annotated nodes that lie together become `hints_wrapper` ops, one for each region.

annotate({"meshweave": {"slice": "t=8"}})      one region
annotate({"meshweave": [{..outer..}, {..}]})   two, the second in the first
annotate({"meshweave.inner": {..}})            inside what other keys of `meshweave` say: keys nest in their order
"""

import operator
from typing import Any

from meshweave.errors import CompileError

KEY = "meshweave"
_NUMBER = "#"  # tells regions apart that lie together and say the same

Chain = tuple[Any, ...]
"""The hints around a node, each region's dictionary frozen, outermost first."""


class Nested(dict[str, Any]):
    """Annotations of which an inner one under our key adds to the outer instead of replacing it."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        new = dict(*args, **kwargs)
        if KEY in self and KEY in new:
            new[KEY] = [*_levels(self[KEY]), *_levels(new[KEY])]
        super().update(new)


def _levels(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def chain_of(node: Any) -> Chain:
    """The hints that annotations put around a node. CompileError where they are no dictionaries."""
    custom = node.meta.get("custom") or {}
    found: list[Any] = []
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
                    found.append(_frozen(level))
    return tuple(found)


def _is_ours(key: Any) -> bool:
    return key == KEY or str(key).startswith(f"{KEY}.")


def _frozen(hints: dict[str, Any]) -> Any:
    items = ((k, _frozen(v) if isinstance(v, dict) else v) for k, v in hints.items())
    return tuple(sorted(items, key=lambda item: item[0]))


def thawed(frozen: Any) -> dict[str, Any]:
    """The dictionary that was frozen."""
    return {k: thawed(v) if isinstance(v, tuple) else v for k, v in frozen}


def _said(frozen: Any) -> dict[str, Any]:
    """The hints alone."""
    return {key: value for key, value in thawed(frozen).items() if key != _NUMBER}


def place_of(node: Any) -> str | None:
    """`file:line` of a node in the user's source, or None."""
    place: str | None = node.meta.get("meshweave_place")
    return place


def inline_wrappers(root: Any, wrapper: Any) -> None:
    """Put the bodies of hints_wrapper ops in their place, each node annotated with the hints.

    torch's decompositions refuse wrappers whose arguments are views of one tensor; annotations have no such limit.
    """
    count = 0
    while calls := [n for n in root.graph.nodes if n.op == "call_function" and n.target is wrapper]:
        for call in calls:
            _inline(root, call, count)
            count += 1
    root.graph.eliminate_dead_code()
    root.recompile()


def _inline(root: Any, call: Any, number: int) -> None:
    body = getattr(root, call.args[0].target)
    level = {**call.kwargs["hints"], _NUMBER: number}
    around = [thawed(f) for f in chain_of(call)]
    env = {}
    for node, value in zip(_placeholders(body.graph), call.args[1], strict=True):
        env[node] = value
    result: Any = None
    with root.graph.inserting_before(call):
        for node in body.graph.nodes:
            if node.op == "output":
                result = node.args[0]
            elif node.op != "placeholder":
                env[node] = _copied(root, body, node, env)
                _annotate(env[node], node, around, level)
    results = result if isinstance(result, tuple | list) else (result,)
    for user in list(call.users):
        user.replace_all_uses_with(env[results[user.args[1]]])
        root.graph.erase_node(user)
    root.graph.erase_node(call)


def _placeholders(graph: Any) -> list[Any]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _copied(root: Any, body: Any, node: Any, env: dict[Any, Any]) -> Any:
    """A copy of a node of the body in the graph around it; what it reads of the body moves along."""
    copy = root.graph.node_copy(node, env.__getitem__)
    if node.op == "get_attr":
        name = f"meshweave_{len(list(root.named_children()))}_{node.target.replace('.', '_')}"
        setattr(root, name, getattr(body, node.target))
        copy.target = name
    return copy


def _annotate(copy: Any, node: Any, around: list[Any], level: dict[str, Any]) -> None:
    own = [thawed(f) for f in chain_of(node)]
    own = own[len(around) :] if own[: len(around)] == around else own
    custom = {k: v for k, v in (copy.meta.get("custom") or {}).items() if not _is_ours(k)}
    copy.meta["custom"] = {**custom, KEY: [*around, level, *own]}


def wrap_regions(root: Any, wrapper: Any) -> None:
    """Put each run of nodes with equal hints in a GraphModule of its own, called by `wrapper`, torch's op."""
    _wrap(root, wrapper, 0, [0])


def _wrap(owner: Any, wrapper: Any, depth: int, count: list[int]) -> None:
    graph = owner.graph
    _gather_items(graph)
    calls = [n for n in graph.nodes if n.op == "call_function"]
    chains = {node: chain_of(node)[depth:] for node in calls}
    for run in _runs(graph, chains):
        _outline(owner, run, chains[run[0]][0], depth, wrapper, count)
    graph.lint()
    owner.recompile()


def _gather_items(graph: Any) -> None:
    """Put what takes the results of an op apart directly behind it, under the same hints."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is operator.getitem:
            source = node.args[0]
            source.append(node)
            node.meta["custom"] = source.meta.get("custom")


def _runs(graph: Any, chains: dict[Any, Chain]) -> list[list[Any]]:
    """Neighbouring nodes with equal outermost hints."""
    runs: list[list[Any]] = []
    open_run: list[Any] = []
    for node in graph.nodes:
        chain = chains.get(node, ())
        if node.op == "get_attr" or (_is_free(node) and not chain):
            continue  # computes nothing: may stand anywhere before its use
        if open_run and chain and chain[0] == chains[open_run[0]][0]:
            open_run.append(node)
        else:
            open_run = [node] if chain else []
            if chain:
                runs.append(open_run)
    return runs


def _is_free(node: Any) -> bool:
    return node.op == "call_function" and not node.all_input_nodes


def _outline(
    owner: Any, run: list[Any], hints: Any, depth: int, wrapper: Any, count: list[int]
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
    name = f"meshweave_region_{count[0]}"
    count[0] += 1
    inner = GraphModule(owner, body)
    setattr(owner, name, inner)
    graph = owner.graph
    with graph.inserting_after(run[-1]):
        reference = graph.get_attr(name)
    with graph.inserting_after(reference):
        call = graph.call_function(wrapper, (reference, tuple(inputs), {}), {"hints": _said(hints)})
    _describe(call, run[0], [n.meta["val"] for n in outputs])
    at = call
    for index, node in enumerate(outputs):
        with graph.inserting_after(at):
            at = graph.call_function(operator.getitem, (call, index))
        _describe(at, run[0], node.meta["val"])
        node.replace_all_uses_with(at)
    for node in reversed(run):
        graph.erase_node(node)
    _wrap(inner, wrapper, depth + 1, count)


def _describe(node: Any, like: Any, value: Any) -> None:
    node.meta["val"] = value
    for key in ("stack_trace", "meshweave_place"):
        if key in like.meta:
            node.meta[key] = like.meta[key]
