"""Read which sizes torch leaves open: symbolic dims of exported programs and of what `torch.compile` captures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from meshweave.errors import UsageError
from meshweave.layout.lengths import Dim, ShapeDtype

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor
    from torch.export import ExportedProgram
    from torch.fx import GraphModule

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
    return ShapeDtype(tuple(shape), str(value.dtype).removeprefix("torch."))


def _inputs(program: ExportedProgram) -> Mapping[Any, Tensor]:
    names = set(program.graph_signature.user_inputs)
    nodes = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in names]
    return {n.name: n.meta["val"] for n in nodes if hasattr(n.meta["val"], "shape")}


def upper(bounds: Any) -> int | None:
    """Return the largest of a range of torch's; None for one without an end."""
    end = bounds.upper
    return int(end) if isinstance(end, int) or end.is_Integer else None
