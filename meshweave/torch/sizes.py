"""Read which sizes torch leaves open: symbolic dims of exported programs and of what `torch.compile` captures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from meshweave.errors import UsageError
from meshweave.frontends.torch.export import torch_package
from meshweave.layout.lengths import Dim, ShapeDtype, Sizes

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import Graph, GraphModule, Node

Open: TypeAlias = Callable[[Any, str], Dim]
"""Return the dim that a symbolic size is, told whose it is."""


def has_open_sizes(torch: ModuleType, source: object) -> bool:
    """Tell whether something is an exported program with symbolic sizes."""
    return isinstance(source, torch.export.ExportedProgram) and any(
        not isinstance(size, int) for value in _inputs(source).values() for size in value.shape
    )


def open_arguments(
    torch: ModuleType, program: ExportedProgram
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return arguments and keyword arguments like those of calls, a `Dim` for each symbolic size.

    Raises UsageError, which names argument and dim, for a size without a bound, or one that is computed from others.
    """
    from torch.utils import _pytree

    def dim(size: Any, who: str) -> Dim:
        symbol = size.node.expr
        if not symbol.is_Symbol:
            raise UsageError(f"{who} is {symbol}: a size of its own is right")
        most = upper(program.range_constraints[symbol])
        if most is None:
            raise UsageError(
                f"{who} has no bound: torch.export.Dim({str(symbol)!r}, max=..) is right, or an mw.ShapeDtype for it"
            )
        return Dim(str(symbol), most)

    inputs = _inputs(program)
    leaves, structure = _pytree.tree_flatten(program.example_inputs)
    names = program.graph_signature.user_inputs
    kinds = [
        kind_of(inputs[name], f"argument {name}", dim) if name in inputs else leaf
        for name, leaf in zip(names, leaves, strict=True)
    ]
    args, kwargs = _pytree.tree_unflatten(kinds, structure)
    return tuple(args), dict(kwargs)


def without_checks(torch: ModuleType, program: ExportedProgram) -> GraphModule:
    """Return an exported program as a module that takes sizes beyond its bounds too, as tracing needs it to."""
    knows = "check_guards" in inspect.signature(program.module).parameters
    made = program.module(**({"check_guards": False} if knows else {}))
    return torch.fx.GraphModule(made, made.graph)  # without the hook that checks arguments


def kind_of(value: Tensor, who: str, dim: Open) -> ShapeDtype:
    """Describe a tensor of torch's compiler, whose shape may have symbolic sizes."""
    shape = [
        size if isinstance(size, int) else dim(size, f"{who}: dim {d}")
        for d, size in enumerate(value.shape)
    ]
    return ShapeDtype(tuple(shape), _dtype(value))


def _inputs(program: ExportedProgram) -> Mapping[Any, Tensor]:
    names = set(program.graph_signature.user_inputs)
    nodes = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in names]
    return {n.name: n.meta["val"] for n in nodes if hasattr(n.meta["val"], "shape")}


def upper(bounds: Any) -> int | None:
    """Return the largest of a range of torch's; None for one without an end."""
    end = bounds.upper
    return int(end) if isinstance(end, int) or end.is_Integer else None


@dataclass(frozen=True)
class OpenInputs:
    """Describe the inputs of a graph that `torch.compile` captured with symbolic sizes.

    shapes: of each input with such, names in their place, and None for a size that a program is made for; None for any
    other input. most: the largest that torch says a size may be, by name; None: it says nothing.
    """

    shapes: tuple[tuple[int | str | None, ...] | None, ...]
    most: Mapping[str, int | None]

    def without(self, names: Collection[str]) -> OpenInputs | None:
        """Return the same with programs for each of some sizes; None where no other is open."""
        shapes = [
            None if shape is None else tuple([None if n in names else n for n in shape])
            for shape in self.shapes
        ]
        left = [s if s and any(isinstance(n, str) for n in s) else None for s in shapes]
        most = {name: size for name, size in self.most.items() if name not in names}
        return OpenInputs(tuple(left), most) if most else None

    def held(self, inputs: Sequence[Tensor]) -> tuple[int, ...]:
        """Return the sizes of inputs with open ones that a program is made for."""
        pairs = [(shape, v.shape) for shape, v in zip(self.shapes, inputs) if shape is not None]
        return tuple([size for one, other in pairs for n, size in zip(one, other) if n is None])

    def sizes(self, inputs: Sequence[Tensor]) -> dict[str, int]:
        """Return the sizes that a call chooses."""
        return {
            name: size
            for shape, value in zip(self.shapes, inputs)
            for name, size in zip(shape or (), value.shape if shape else ())
            if isinstance(name, str)
        }

    def dims(self, sizes: Sizes) -> Iterator[dict[str, Dim]]:
        """Yield dims for a program that these sizes are right for: up to what torch says, else up to powers of two.

        A bound of torch's may be a fixed size of the program too, such as that of a table; a lesser one is none.
        """
        powers = {name: max(LEAST, 1 << (size - 1).bit_length()) for name, size in sizes.items()}
        bounds = {name: self.most[name] or power for name, power in powers.items()}
        yield {name: Dim(name, bound) for name, bound in bounds.items()}
        lesser = {name: min(power, bounds[name]) for name, power in powers.items()}
        if lesser != bounds:
            yield {name: Dim(name, bound) for name, bound in lesser.items()}

    def arguments(self, inputs: Sequence[Tensor], dims: Mapping[str, Dim]) -> list[object]:
        """Return arguments like those of calls."""
        return [
            value
            if shape is None
            else ShapeDtype(
                tuple([dims.get(n, s) for n, s in zip(shape, value.shape)]),  # type: ignore[arg-type]
                _dtype(value),
            )
            for shape, value in zip(self.shapes, inputs, strict=True)
        ]


LEAST = 64
"""The least bound of a size for which torch gives none."""


def open_inputs(inputs: Sequence[Node]) -> OpenInputs | None:
    """Return what is open in the shapes of inputs of a captured graph; None for nothing, or more than sizes alone."""
    shapes: list[tuple[int | str, ...] | None] = []
    most: dict[str, int | None] = {}
    for node in inputs:
        shape = getattr(node.meta.get("example_value"), "shape", ())
        named = list(map(_size, shape))
        if None in named:
            return None
        for name, size in zip(named, shape):
            if isinstance(name, str):
                most[name] = upper(size.node.shape_env.var_to_range[size.node.expr])
        is_open = any(isinstance(name, str) for name in named)
        shapes.append(tuple([name for name in named if name is not None]) if is_open else None)
    return OpenInputs(tuple(shapes), most) if most else None


def _size(size: Any) -> int | str | None:
    """Return a size of torch's compiler, the name of one that is open; None for one that is computed from such."""
    if isinstance(size, int):
        return size
    made = size.node.expr
    return int(made) if made.is_number else str(made) if made.is_Symbol else None


def sizes_in(graph: Graph) -> dict[Node, tuple[Node, int]]:
    """Return the placeholders that are sizes of others, each with a tensor and a dim that has it."""
    given = [(n, n.meta.get("example_value")) for n in graph.nodes if n.op == "placeholder"]
    places: dict[str, tuple[Node, int]] = {}
    for node, value in given:
        for dim, size in enumerate(getattr(value, "shape", ())):
            if isinstance(name := _size(size), str):
                places.setdefault(name, (node, dim))
    return {
        node: places[str(value)]
        for node, value in given
        if not hasattr(value, "shape") and hasattr(value, "node") and str(value) in places
    }


def numbers_in(graph: Graph) -> list[int]:
    """Return the numbers of the arguments that are Python's floats, which torch hands over as tensors."""
    given = [node for node in graph.nodes if node.op == "placeholder"]
    return [
        k
        for k, node in enumerate(given)
        if getattr(node.meta.get("grapharg"), "pass_arg_as_tensor", False)
        and all(user.op == "call_method" and user.target == "item" for user in node.users)
    ]


def with_metas(captured: GraphModule) -> GraphModule:
    """Return a graph whose nodes keep what torch says of them now; it takes some of that back."""
    return with_numbers(captured, {})


def with_numbers(captured: GraphModule, values: Mapping[int, float]) -> GraphModule:
    """Return a graph that has numbers in it, in the place of the arguments that they are."""
    fx = torch_package().fx
    graph, made = fx.Graph(), dict[Any, Any]()
    given = [node for node in captured.graph.nodes if node.op == "placeholder"]
    numbers = {given[k]: value for k, value in values.items()}
    for node in captured.graph.nodes:
        if node in numbers:
            continue
        if node.op == "call_method" and node.target == "item" and node.args[0] in numbers:
            made[node] = numbers[node.args[0]]
            continue
        made[node] = graph.node_copy(node, lambda old: made[old])
        made[node].meta = dict(node.meta)
    return fx.GraphModule(captured, graph)


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
