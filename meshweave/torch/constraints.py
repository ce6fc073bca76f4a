"""Read the hooks of torch's distributed modules as constraints: `parallelize_module`, `fully_shard`, DDP.

Such hooks bring tensors from the layout of one module to that of the next. In a program for all ranks a tensor is
whole, and a hook is a layout that it has there.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor, nn

from meshweave.errors import UsageError
from meshweave.frontends.torch.constrain import OPERATION, constrain
from meshweave.frontends.torch.export import Exported
from meshweave.frontends.torch.layouts import layout_on_axes, mesh_of
from meshweave.layout import Layout, Mesh
from meshweave.layout.interchange import Replicate


class _HookLayouts(NamedTuple):
    """Hold the placements that a hook gives to values: by place, or by name, empty where it says nothing."""

    axes: Mesh
    values: Sequence[Sequence[Any]] = ()
    named: Mapping[str, Sequence[Any]] = MappingProxyType({})


@contextmanager
def constrained(module: nn.Module, mesh: Mesh) -> Iterator[None]:
    """Let constraints stand for the hooks of torch's distributed modules in this block.

    Raises UsageError for a hook of `distribute_module` that is the user's own.
    """
    kept: list[tuple[nn.Module, str, Any]] = []
    wrappers: list[nn.Module] = []
    try:
        for path, inner in module.named_modules():
            if isinstance(inner, nn.parallel.DistributedDataParallel):
                wrappers.append(inner)
                inner.__dict__["forward"] = inner.module.__call__
            for row in ("_forward_pre_hooks", "_forward_hooks"):
                hooks = getattr(inner, row)
                found = {
                    key: _read(hook, path or type(inner).__name__) for key, hook in hooks.items()
                }
                if not any(one is not None for one in found.values()):
                    continue
                kept.append((inner, row, hooks))
                after = row == "_forward_hooks"
                new = OrderedDict()
                for key, hook in hooks.items():
                    said = found[key]
                    if said is None:
                        new[key] = hook
                    elif after:
                        new[key] = _after(said, mesh, key in inner._forward_hooks_with_kwargs)
                    else:
                        new[key] = _before(said, mesh, key in inner._forward_pre_hooks_with_kwargs)
                setattr(inner, row, new)
        yield
    finally:
        for inner, row, hooks in kept:
            setattr(inner, row, hooks)
        for wrapper in wrappers:
            del wrapper.__dict__["forward"]


def gathered(module: nn.Module, sharded: Mapping[str, Any], mesh: Mesh) -> dict[str, Layout]:
    """Return the layouts that parameters of `fully_shard` have where they are used: whole over its axes."""
    axes: dict[int, tuple[str, ...]] = {}
    for inner in module.modules():
        state = inner._get_fsdp_state() if hasattr(inner, "_get_fsdp_state") else None
        for group in getattr(state, "_fsdp_param_groups", ()):
            for one in group.fsdp_params:
                axes[id(one.sharded_param)] = mesh_of(group.mesh_info.mesh).names
    found = {}
    for name, value in sharded.items():
        if id(value) in axes:
            own = mesh_of(value.device_mesh)
            at_use = [
                Replicate() if axis in axes[id(value)] else placement
                for axis, placement in zip(own.names, value.placements, strict=True)
            ]
            found[name] = layout_on_axes(at_use, own, mesh, value.shape)
    return found


def gather(exported: Exported, used: Mapping[str, Layout], mesh: Mesh) -> None:
    """Let what reads these arguments of a graph read them in these layouts."""
    graph = exported.graph.graph
    given = [node for node in graph.nodes if node.op == "placeholder"]
    for name, node in zip(exported.names, given, strict=True):
        if name in used and node.users:
            first = next(iter(node.users))
            with graph.inserting_before(first):
                args = (node, str(used[name]), list(mesh.names))
                made = graph.call_function(OPERATION, args)
            made.meta = {"val": node.meta["val"]} | {
                k: v for k, v in first.meta.items() if k in ("stack_trace", "meshweave_place")
            }
            node.replace_all_uses_with(made, lambda user, own=made: user is not own)
    exported.graph.recompile()


def _read(hook: Callable[..., Any], who: str) -> _HookLayouts | None:
    """Return what a hook says; None where it is no hook of torch's distributed modules."""
    home = getattr(hook, "__module__", "") or ""
    if home.startswith("torch.distributed.fsdp"):
        return _HookLayouts(Mesh())  # parameters are gathered where they are used
    if not home.startswith("torch.distributed.tensor"):
        return None
    free = inspect.getclosurevars(hook).nonlocals
    axes, style = mesh_of(free["device_mesh"]), free.get("self")
    inner = free.get("input_fn") or free.get("output_fn")
    if style is not None:
        before = getattr(style, "desired_input_layouts", None)
        after = getattr(style, "desired_output_layouts", None)
        named = getattr(style, "desired_input_kwarg_layouts", None) or {}
        each = [() if one is None else (one,) for one in before or after or ()]
        return _HookLayouts(axes, each, {k: (v,) for k, v in named.items() if v is not None})
    function = getattr(inner, "func", inner)
    kind = getattr(function, "__qualname__", "")
    if not getattr(function, "__module__", "").startswith("torch.distributed.tensor"):
        raise UsageError(
            f"{who}: distribute_module has the hook {kind}, which is not torch's: a parallel style"
            " (ColwiseParallel, PrepareModuleInput, ..) is right"
        )
    args = getattr(inner, "args", ())
    placements = [one for one in args if isinstance(one, tuple)]
    return _HookLayouts(axes, placements[-1:])


def _before(said: _HookLayouts, mesh: Mesh, with_kwargs: bool) -> Callable[..., Any]:
    def with_names(_: nn.Module, args: Any, kwargs: Any) -> Any:
        named = {k: _constrained(v, said.named.get(k, ()), said, mesh) for k, v in kwargs.items()}
        return _each(args, said, mesh), named

    def plain(_: nn.Module, args: Any) -> Any:
        return _each(args, said, mesh)

    return with_names if with_kwargs else plain


def _after(said: _HookLayouts, mesh: Mesh, with_kwargs: bool) -> Callable[..., Any]:
    def hook(_: nn.Module, *given: Any) -> Any:
        found = given[-1]
        several = isinstance(found, tuple | list)
        made = _each(tuple(found) if several else (found,), said, mesh)
        return type(found)(made) if several else made[0]

    return hook


def _each(values: Sequence[Any], said: _HookLayouts, mesh: Mesh) -> tuple[Any, ...]:
    placements = [*said.values, *[()] * len(values)]
    return tuple([_constrained(v, one, said, mesh) for v, one in zip(values, placements)])


def _constrained(value: Any, placements: Sequence[Any], said: _HookLayouts, mesh: Mesh) -> Any:
    """Give a tensor placements on the mesh of a hook."""
    if not placements or not isinstance(value, Tensor):
        return value
    layout = layout_on_axes(placements, said.axes, mesh, value.shape)
    return constrain(value, str(layout), said.axes.names)
