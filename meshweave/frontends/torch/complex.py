"""Let a graph whose complex tensors are pairs of parts have no complex ones: arguments and results hold both parts.

before:  z = placeholder [4] complex64;   part(z, 0) .. pair(a, b)                       pair(a, b) is returned
after:   z = placeholder [4, 2] float32;  select(z, -1, 0) .. cat(unsqueeze(a), ..)      the bytes are the same
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshweave.errors import CompileError
from meshweave.frontends.complex.ports import dict_of, in_parts
from meshweave.frontends.torch.regions import place_of
from meshweave.ir.bindings import ir

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch.fx import Graph, GraphModule, Node

_PAIR, _PART = "meshweave.pair.default", "meshweave.part.default"
_CHECK = "aten._assert_tensor_metadata.default"
"""What torch.export puts before conversions: the dtype is known."""
_PACKED = "meshweave_complex"
"""Mark of nodes whose complex numbers are real ones with a last dim of 2."""


def without_complex(root: GraphModule) -> GraphModule:
    """Return a graph on real tensors: itself where it has no complex ones.

    Raises CompileError for what computes with complex numbers in another way than by pairs.
    """
    import torch

    if not any(_is_complex(node) for node in root.graph.nodes):
        return root
    graph = torch.fx.Graph()
    values: dict[Node, Node] = {}
    returned = graph.graph_copy(root.graph, values)
    graph.output(returned)
    _cancel(graph)
    for node in list(graph.nodes):
        if str(node.target) == _CHECK:
            graph.erase_node(node)
    made = torch.fx.GraphModule(root, graph)
    for node in list(graph.nodes):
        if node.op in ("placeholder", "get_attr") and _is_complex(node):
            _pack(torch, made, node)
    end = graph.output_node()
    end.args = (tuple(_packed(torch, node) for node in end.args[0]),)
    _erase_unused(graph)
    for node in graph.nodes:
        if node.op == "call_function" and _is_complex(node):
            raise CompileError(f"not supported: {node.target} of complex numbers", place_of(node))
    made.recompile()
    return made


def mark_complex(main: ir.Operation, root: GraphModule) -> None:
    """Say of each argument and result of a program that holds both parts of complex numbers that it does."""
    nodes = list(root.graph.nodes)
    sides = (
        ("arg_attrs", [n for n in nodes if n.op == "placeholder"]),
        ("res_attrs", list(nodes[-1].args[0])),
    )
    for key, ports in sides:
        marked = [bool(getattr(port, "meta", {}).get(_PACKED)) for port in ports]
        if any(marked):
            given = main.attributes[key] if key in main.attributes else [{}] * len(ports)
            said = [
                in_parts(dict_of(one)) if m else dict_of(one)
                for one, m in zip(given, marked, strict=True)
            ]
            main.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in said])


def _is_complex(node: Node) -> bool:
    values = node.meta.get("val")
    every = values if isinstance(values, tuple | list) else (values,)
    return any(getattr(getattr(v, "dtype", None), "is_complex", False) for v in every)


def _cancel(graph: Graph) -> None:
    """Read the parts that a pair is made of instead of taking them out of it."""
    for node in list(graph.nodes):
        if str(node.target) == _PART and str(node.args[0].target) == _PAIR:
            node.replace_all_uses_with(node.args[0].args[node.args[1]])
    _erase_unused(graph)


def _erase_unused(graph: Graph) -> None:
    for node in reversed(list(graph.nodes)):
        if not node.users and str(node.target) in (_PAIR, _PART):
            graph.erase_node(node)


def _pack(torch: Any, root: GraphModule, node: Node) -> None:
    """Let an argument or a constant hold both parts, and its readers select one."""
    if node.op == "get_attr":
        value = getattr(root, node.target)
        setattr(root, node.target, torch.view_as_real(value.resolve_conj()).clone())
    value = node.meta["val"]
    node.meta |= {_PACKED: True, "val": value.new_empty([*value.shape, 2], dtype=_real(value))}
    node.meta.pop("tensor_meta", None)
    for user in list(node.users):
        if str(user.target) == _PART:
            user.target, user.args = torch.ops.aten.select.int, (node, -1, user.args[1])


def _real(value: Any) -> Any:
    return value.dtype.to_real()


def _packed(torch: Any, node: Any) -> Any:
    """Return a node that holds both parts of what is returned."""
    if str(getattr(node, "target", "")) != _PAIR:
        return node
    graph, aten, value = node.graph, torch.ops.aten, node.meta["val"]
    shape, kind = list(value.shape), _real(value)
    meta = {name: said for name, said in node.meta.items() if name != "tensor_meta"}
    with graph.inserting_after(node):
        made = graph.call_function(aten.cat.default, ((), -1))
    columns = []
    for part in node.args:
        with graph.inserting_before(made):
            columns.append(graph.call_function(aten.unsqueeze.default, (part, -1)))
        columns[-1].meta = {**meta, "val": value.new_empty([*shape, 1], dtype=kind)}
    made.args = (columns, -1)
    made.meta = {**meta, "val": value.new_empty([*shape, 2], dtype=kind), _PACKED: True}
    return made
