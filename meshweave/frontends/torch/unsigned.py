"""Compute with uint8 in int32: upstream takes unsigned integers for signed ones in most ops.

Sums, products and bits of integers are the same whether they wrap around at each step or at the end, and comparisons,
quotients and orders are those of the numbers that int32 holds.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from meshweave.dialects.dist import UNSIGNED
from meshweave.frontends.complex.ports import dict_of
from meshweave.frontends.torch.host import is_called
from meshweave.ir.bindings import ir

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch.fx import GraphModule, Node

_MOVES = frozenset(
    (
        *("alias", "cat", "clone", "constrain", "copy", "detach", "expand", "flip", "index", "index_select"),
        *("lift_fresh_copy", "permute", "repeat", "reshape", "roll", "select", "slice", "split", "split_with_sizes"),
        *("squeeze", "stack", "t", "transpose", "unbind", "unsqueeze", "view", "_unsafe_view"),
    )
)  # fmt: skip
"""Ops, by name, that move elements as they are."""


def compute_wide(root: GraphModule) -> None:
    """Let ops that compute with uint8 compute with int32, and take the last 8 bits of what they give."""
    import torch

    for module in root.modules():
        if isinstance(module, torch.fx.GraphModule):
            nodes = list(module.graph.nodes)
            values = [node.meta.get("val") for node in nodes]
            mode = next((v.fake_mode for v in values if hasattr(v, "fake_mode")), nullcontext())
            changed = [_widen(torch, node, mode) for node in nodes]
            if any(changed):
                module.recompile()


def mark_unsigned(main: ir.Operation, root: GraphModule) -> None:
    """Say of each argument and result of a program that is uint8 that it has no sign."""
    import torch

    nodes = list(root.graph.nodes)
    sides = (
        ("arg_attrs", [n for n in nodes if n.op == "placeholder"]),
        ("res_attrs", list(nodes[-1].args[0])),
    )
    for key, ports in sides:
        marked = [_dtype(port) is torch.uint8 for port in ports]
        if any(marked):
            given = main.attributes[key] if key in main.attributes else [{}] * len(ports)
            unit = {UNSIGNED: ir.UnitAttr.get()}
            said = [
                dict_of(one) | (unit if m else {}) for one, m in zip(given, marked, strict=True)
            ]
            main.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(one) for one in said])


def _dtype(node: Any) -> Any:
    """Return the dtype of what an argument of a node is; None where that is no tensor."""
    return getattr(getattr(node, "meta", {}).get("val"), "dtype", None)


def _widen(torch: Any, node: Node, mode: AbstractContextManager[Any]) -> bool:
    """Let a node compute in int32 where it has to; tell whether it does. mode: in which tensors have no elements."""
    target, own = node.target, torch.uint8
    if not isinstance(target, torch._ops.OpOverload) or node.meta.get("val") is None:
        return False  # no op, or one that only asserts
    if target._schema.name.split("::")[-1] in _MOVES or is_called(target):
        return False
    given = [n for n in node.all_input_nodes if _dtype(n) is own]
    asked = node.kwargs.get("dtype") is own
    if not given and not asked:
        return False
    graph, old = node.graph, node.meta["val"]
    with graph.inserting_before(node):
        for source in given:
            node.replace_input_with(source, _number(torch, source))
    if asked:
        node.kwargs = {**node.kwargs, "dtype": torch.int32}
    with mode:
        node.meta["val"] = _computed(torch, node)
    node.meta.pop("tensor_meta", None)
    if isinstance(old, torch.Tensor):
        _cast_back(torch, node, old)
        return True
    for user in list(node.users):
        if user.target is operator.getitem:
            was, user.meta["val"] = user.meta["val"], node.meta["val"][user.args[1]]
            user.meta.pop("tensor_meta", None)
            _cast_back(torch, user, was)
    return True


def _computed(torch: Any, node: Node) -> Any:
    """Return what a node gives now, without elements."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    function: Callable[..., Any] = node.target
    return function(*args, **kwargs)


def _cast_back(torch: Any, node: Node, was: Any) -> None:
    """Give the readers of a node what it gave before, in its dtype."""
    if node.meta["val"].dtype == was.dtype:
        return
    with node.graph.inserting_after(node):
        back = _cast(torch, node, was.dtype)
    node.replace_all_uses_with(back, delete_user_cb=lambda user: user is not back)


def _number(torch: Any, node: Node) -> Node:
    """Make nodes that convert uint8 to int32, where upstream takes the first bit for a sign."""
    wide = _cast(torch, node, torch.int32)
    return _made(wide, torch.ops.aten.bitwise_and.Scalar, (wide, 255), {}, wide.meta["val"])


def _cast(torch: Any, node: Node, dtype: Any) -> Node:
    """Make a node that converts another; to uint8 as upstream converts to int8."""
    value = node.meta["val"].to(dtype)
    return _made(node, torch.ops.aten._to_copy.default, (node,), {"dtype": dtype}, value)


def _made(like: Node, target: Any, args: Any, kwargs: Any, value: Any) -> Node:
    made: Node = like.graph.call_function(target, args, kwargs)
    made.meta = {k: v for k, v in like.meta.items() if k != "tensor_meta"} | {"val": value}
    return made
