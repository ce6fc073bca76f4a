"""Let torch draw the random numbers of a graph: its program takes them as further arguments.

A program for a mesh would have to know which of torch's numbers each rank needs. Drawn by torch's own generator, before
the call and in the order of the graph, they are those of eager PyTorch for every mesh and layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from meshweave.frontends.torch.export import torch_package

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor
    from torch.fx import Graph, Node

_Made: TypeAlias = "Node | tuple[_Made, ...]"
Draw: TypeAlias = "Callable[[Sequence[Any]], Tensor]"
"""What makes an argument, given those before it."""

_OF_FORMS = (
    "rand.default", "rand_like.default", "randn.default", "randn_like.default", "randint.default", "randint.low",
    "randint_like.default", "randint_like.low_dtype", "randperm.default", "bernoulli.p", "uniform.default",
    "normal.float_float", "normal_functional.default", "exponential.default", "geometric.default", "cauchy.default",
    "log_normal.default",
)  # fmt: skip
"""Ops that draw: of a tensor they read shape, strides and dtype alone."""


def lifted(graph: Graph) -> list[Draw]:
    """Make arguments of what the ops of a graph draw, behind its own; return what draws them, in order.

    The graph is changed. Ops that draw by chances that are computed stay as they are.
    """
    lifting = _Lifting(graph)
    for node in list(graph.nodes):
        lifting.node(node)
    return lifting.draws


class _Lifting:
    def __init__(self, graph: Graph) -> None:
        torch = torch_package()
        aten, higher = torch.ops.aten, torch.ops.higher_order
        packets = [name.split(".") for name in _OF_FORMS]
        self._of_forms = {getattr(getattr(aten, name), overload) for name, overload in packets}
        self._dropout, self._aten = aten.native_dropout.default, aten
        # Of a part that is computed again when going back: the state of the generator is saved, and used again.
        self._saving = getattr(higher, "run_and_save_rng_state", None)
        self._again = getattr(higher, "run_with_rng_state", None)
        self._graph = graph
        self._arguments = [node for node in graph.nodes if node.op == "placeholder"]
        self.draws: list[Draw] = []

    def node(self, node: Node) -> None:
        """Put arguments in the place of a node that draws."""
        if node.op != "call_function":
            return
        if node.target is self._saving:
            if self._draws(node.args[0]):
                state = self._argument(lambda _: torch_package().get_rng_state())
                drawn = self._drawn(node, *node.args)
                self._put(node, (state, drawn))
        elif node.target is self._again:
            if self._draws(node.args[1]):
                drawn = self._drawn(node, *node.args[1:], state=node.args[0])
                self._put(node, drawn)
        elif self._draws(node.target):
            self._put(node, self._drawn(node, node.target, *node.args))

    def _draws(self, op: object) -> bool:
        return op == self._dropout or op in self._of_forms

    def _drawn(self, node: Node, op: Any, *args: Any, state: Node | None = None) -> _Made:
        """Return what stands for the value of an op: an argument, or what dropout makes of one."""
        if op != self._dropout:
            return self._argument(_drawing(op, args, node.kwargs), state)
        return self._dropped(node, *args, state=state)

    def _argument(self, draw: Draw, state: Node | None = None) -> Node:
        """Add an argument behind the others. state: the argument with the generator's state to draw from."""
        if state is not None:
            draw = partial(_again, self._arguments.index(state), draw)
        last = self._arguments[-1:]
        with self._graph.inserting_after(last[0]) if last else self._graph.inserting_before():
            self._arguments.append(self._graph.placeholder(f"drawn_{len(self.draws)}"))
        self.draws.append(draw)
        return self._arguments[-1]

    def _dropped(
        self, node: Node, x: Node, rate: float, training: bool | None = True, *, state: Node | None
    ) -> tuple[Node, Node]:
        """Write dropout as torch computes it on a cpu: a mask that is drawn, and the scale of what stays."""
        like = x.meta["val"]
        rate = rate if training is not False else 0.0
        form = tuple(like.shape), like.stride()
        mask = self._argument(partial(_mask, *form, 1 - rate), state)
        mul, scale = self._aten.mul.Tensor, 0.0 if rate == 1 else 1 / (1 - rate)
        with self._graph.inserting_before(node):
            kept = self._graph.call_function(mul, (x, mask))
            scaled = self._graph.call_function(mul, (kept, scale))
        dense = torch_package().empty_like(like)  # where `like` is a view that repeats elements
        for made, value in ((mask, dense.to(torch_package().bool)), (kept, dense), (scaled, dense)):
            made.meta = {**node.meta, "val": value}
        return scaled, mask

    def _put(self, node: Node, made: _Made) -> None:
        """Put what was made in the place of a node; of several values each in the place of the node that takes it."""
        if isinstance(made, tuple):
            for user in list(node.users):
                self._put(user, made[user.args[1]])
        else:
            node.replace_all_uses_with(made)
            if "val" in node.meta:  # of a graph that is not exported again
                made.meta.setdefault("val", node.meta["val"])
        self._graph.erase_node(node)


def _mask(shape: Sequence[int], strides: Sequence[int], chance: float, _: Sequence[Any]) -> Tensor:
    """Draw a mask for a tensor of this form: torch draws in the order of memory, which a transposed tensor has too."""
    torch = torch_package()
    like = torch.empty_strided(shape, strides, dtype=torch.bool)
    mask: Tensor = torch.empty_like(like).bernoulli_(chance)
    return mask


def _again(place: int, draw: Draw, given: Sequence[Any]) -> Tensor:
    """Draw from a state of the generator that was saved, and leave it as it was."""
    torch = torch_package()
    with torch.random.fork_rng(devices=()):
        torch.set_rng_state(given[place])
        return draw(given)


def _drawing(op: Callable[..., Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Draw:
    """Return what draws as a node does, with blank tensors where it reads their form."""
    torch = torch_package()

    def form(value: Any) -> Any:
        if not hasattr(value, "meta"):
            return lambda: value
        like = value.meta["val"]
        return partial(torch.empty_strided, tuple(like.shape), like.stride(), dtype=like.dtype)

    placed = [form(value) for value in args]
    named = {name: form(v) for name, v in kwargs.items() if name not in ("device", "layout")}

    def draw(_: Sequence[Any]) -> Tensor:
        return op(*[make() for make in placed], **{name: make() for name, make in named.items()})

    return draw
