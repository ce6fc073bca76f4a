"""Let the backward graph of a model compute the scores of its attentions anew, rather than take them from the forward.

That is what `remake-scores` does within one program. Here forward and backward are programs of their own, and what one
saves for the other is a result: so it is said to the partitioner of autograd's graphs, as checkpointing says it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from meshweave.frontends.torch.export import torch_package
from meshweave.hints.fast_paths import Choice

if TYPE_CHECKING:
    from torch.fx import Graph, Node

LEAST = 64 << 10
"""Bytes that the scores of a head must exceed: smaller ones are no `flash`."""


def remake_scores(joint: Graph, kernels: Choice | None) -> None:
    """Mark what makes the scores of attentions in a joint graph, where `flash` may compute them."""
    if kernels is not None and not kernels.allows("flash"):
        return
    torch: Any = torch_package()
    from torch.utils.checkpoint import CheckpointPolicy

    aten = torch.ops.aten
    for node in joint.nodes:
        if node.target not in (aten._safe_softmax.default, aten._softmax.default):
            continue
        value = node.meta.get("val")
        if value is None or not _is_large(value):
            continue
        moved = list(_moved(node, aten))
        if any(_is_product(user, aten) for one in moved for user in one.users):
            for one in (*_made_of(node, aten), *moved):
                one.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE


def _is_large(value: Any) -> bool:  # a torch.Tensor, or a fake one
    sizes = value.shape[-2:]
    if len(sizes) < 2 or not all(isinstance(n, int) for n in sizes):
        return False
    return bool(prod(sizes) * max(4, value.element_size()) > LEAST)


def _is_product(node: Node, aten: Any) -> bool:
    return node.target in (aten.bmm.default, aten.mm.default, aten.matmul.default)


def _moved(node: Node, aten: Any) -> Iterator[Node]:
    """Yield the node and all that only moves its elements."""
    moves = (
        aten.detach.default, aten.expand.default, aten.view.default, aten._unsafe_view.default,
        aten.clone.default, aten.reshape.default, aten.alias.default,
    )  # fmt: skip
    yield node
    for user in node.users:
        if user.target in moves:
            yield from _moved(user, aten)


def _made_of(node: Node, aten: Any) -> list[Node]:
    """Return what is between a product and the softmax of it, the product first among them; each node once."""
    known: dict[Node, bool] = {}  # whether a node is, or is made of, a product
    waiting = [*node.all_input_nodes]
    while waiting:
        one = waiting[-1]
        inputs = [] if _is_product(one, aten) or one.op != "call_function" else one.all_input_nodes
        left = [other for other in inputs if other not in known]
        if left and one not in known:
            waiting += left
            continue
        known[waiting.pop()] = _is_product(one, aten) or any(known[other] for other in inputs)
    return [one for one, made in known.items() if made]
