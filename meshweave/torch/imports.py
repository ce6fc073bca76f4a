"""Import PyTorch modules: export them, read the layouts of their tensors, write their program in MLIR."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meshweave.errors import LayoutError, UsageError
from meshweave.frontends.python.place import chosen_kernels
from meshweave.frontends.torch.export import Exported, export
from meshweave.frontends.torch.layouts import (
    Placement,
    choose_mesh,
    is_dtensor,
    layout_from,
    layouts_by_name,
)
from meshweave.hints.fast_paths import Choice
from meshweave.hints.keys import Hint
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import Array
from meshweave.torch.ports import torch_dtype

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.export import ExportedProgram


class Imported(NamedTuple):
    """Hold a module as torch.export sees it, its program in MLIR, and the mesh that it is for."""

    exported: Exported
    text: str
    mesh: Mesh


def imported(
    torch: ModuleType,
    module: nn.Module | ExportedProgram,
    called: tuple[tuple[object, ...], dict[str, object]],
    placements: Mapping[str, Placement] | None,
    mesh: Mesh | str | DeviceMesh | None,
    out_placements: Placement | list[Placement | None] | None,
    state: Mapping[str, object] | None,
    hints: Sequence[Hint] = (),
) -> Imported:
    """Export a module called with these arguments; the others are those of `from_torch`."""
    from torch.utils import _pytree

    given = _pytree.tree_leaves(called)
    module = plain_module(torch, module)
    with ExitStack() as undo:
        sharded = _dtensors(torch, module)
        meshes = [t.device_mesh for t in (*sharded.values(), *filter(is_dtensor, given))]
        where = choose_mesh(mesh, meshes)
        if sharded:
            from meshweave.torch.constraints import constrained, gather, gathered  # imports torch

            used = gathered(module, sharded, where)
            undo.enter_context(_whole(torch, module, sharded, state or {}))
            undo.enter_context(constrained(module, where))
        whole = _pytree.tree_map(lambda v: _like(torch, v), called)
        exported = export(module, *whole)
    if sharded:
        gather(exported, used, where)
    _take_state(torch, exported, state or {})
    own = _own_layouts(exported, sharded, given, where)
    return laid_out(exported, own, placements, where, out_placements, hints)


def laid_out(
    exported: Exported,
    own: Sequence[Layout | None],
    placements: Mapping[str, Placement] | None,
    mesh: Mesh,
    out_placements: Placement | list[Placement | None] | None,
    hints: Sequence[Hint] = (),
) -> Imported:
    """Write the program of what was exported, with hints around it.

    own: the layouts of what has no name among `placements`.
    """
    named = layouts_by_name(placements or {}, exported.names, shapes_of(exported), mesh)
    layouts = [one if one is not None else other for one, other in zip(named, own, strict=True)]
    output = next(n for n in exported.graph.graph.nodes if n.op == "output")
    shapes = [tuple(n.meta["val"].shape) for n in output.args[0]]
    results = _out_layouts(out_placements, shapes, mesh)
    from meshweave.frontends.torch.importer import linalg_text  # loads MLIR
    from meshweave.torch.host import take_calls  # imports torch

    take_calls(exported.graph)
    text = linalg_text(
        exported.graph,
        layouts,
        results,
        mesh,
        exported.written,
        {one.key: one.value for one in hints},
    )
    return Imported(exported, text, mesh)


def kernels_around(torch: ModuleType) -> Choice | None:
    """Return what `mw.kernels` and torch's `sdpa_kernel` around this call choose: no fused attention, no `flash`."""
    chosen, switches = chosen_kernels(), torch.backends.cuda
    if switches.flash_sdp_enabled() or switches.mem_efficient_sdp_enabled():
        return chosen
    plain_attention = Choice.of(None, {"flash": False})
    return plain_attention if chosen is None else plain_attention.within(chosen)


# DTensors


def plain_module(
    torch: ModuleType, module: nn.Module | ExportedProgram
) -> nn.Module | ExportedProgram:
    """Return the module that DistributedDataParallel wraps; let what `fully_shard` has made hold its shards alone."""
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        module = module.module
    if isinstance(module, torch.nn.Module):
        for inner in module.modules():
            if type(inner).__name__.startswith("FSDP") and hasattr(inner, "reshard"):
                inner.reshard()
    return module


def _dtensors(torch: ModuleType, module: nn.Module | ExportedProgram) -> dict[str, DTensor]:
    """Return the parameters and buffers of a module that are DTensors, by name."""
    if not isinstance(module, torch.nn.Module):
        return {}
    named = (*module.named_parameters(), *module.named_buffers())
    return {name: value for name, value in named if is_dtensor(value)}


@contextmanager
def _whole(
    torch: ModuleType,
    module: nn.Module,
    sharded: Mapping[str, DTensor],
    state: Mapping[str, object],
) -> Iterator[None]:
    """Put whole tensors in the place of a module's DTensors for a while."""
    kept = []
    try:
        for name, value in sharded.items():
            owner = module.get_submodule(name.rpartition(".")[0])
            leaf = name.rpartition(".")[2]
            row = owner._parameters if leaf in owner._parameters else owner._buffers
            kept.append((row, leaf, row[leaf]))
            whole = full_value(torch, name, value, state)
            row[leaf] = (
                torch.nn.Parameter(whole, requires_grad=False)
                if row is owner._parameters
                else whole
            )
        yield
    finally:
        for row, leaf, value in kept:
            row[leaf] = value


def full_value(torch: ModuleType, name: str, value: DTensor, state: Mapping[str, object]) -> Tensor:
    """Return the whole value of a DTensor, or that of `state`."""
    if name in state:
        return torch.as_tensor(state[name]).detach()
    replicated = all(type(p).__name__ == "Replicate" for p in value.placements)
    if replicated or value.device_mesh.size() == 1:
        return value.to_local().detach()
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_backend() == "fake":
        raise UsageError(
            f"from_torch: {name} is a DTensor over a fake process group: its other shards are not"
            " in this process; give whole tensors, state=module.state_dict() before distribution"
        )
    return value.full_tensor().detach()


def _like(torch: ModuleType, value: object) -> object:
    """Return an argument as torch.export takes it: arrays as tensors of their shape and dtype."""
    if is_dtensor(value):
        return torch.zeros(value.shape, dtype=value.dtype)
    if isinstance(value, Array):
        return torch.zeros(value.shape, dtype=torch_dtype(value.dtype_name))
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, torch.Tensor) and value._is_view():
        return value.detach().clone()  # torch.export fails on a view beside its base
    return value


def _take_state(torch: ModuleType, exported: Exported, state: Mapping[str, object]) -> None:
    """Put whole tensors in the place of those that the program holds. Raises UsageError for what does not fit."""
    for name, value in state.items():
        if name not in exported.bound:
            continue  # a state_dict may hold more than the program uses
        whole, old = torch.as_tensor(value), exported.bound[name]
        if (whole.shape, whole.dtype) != (old.shape, old.dtype):
            raise UsageError(
                f"state: {name} is {whole.dtype} {tuple(whole.shape)},"
                f" {old.dtype} {tuple(old.shape)} is right"
            )
        exported.bound[name] = whole


# Layouts


def _own_layouts(
    exported: Exported, sharded: Mapping[str, DTensor], given: Sequence[object], mesh: Mesh
) -> list[Layout | None]:
    """Return the layouts that DTensors and Arrays have."""
    found: list[Layout | None] = []
    for name, shape in zip(exported.names, shapes_of(exported), strict=True):
        value = sharded.get(name)
        found.append(None if value is None else layout_from(value, mesh, shape))
    for value, index in zip(given, exported.inputs):
        if index is not None and is_dtensor(value):
            found[index] = layout_from(value, mesh, value.shape)
        elif index is not None and isinstance(value, Array) and value.mesh == mesh:
            found[index] = value.layout
    return found


def shapes_of(exported: Exported) -> list[tuple[int, ...]]:
    """Return the shape of each argument of an exported program."""
    nodes = [n for n in exported.graph.graph.nodes if n.op == "placeholder"]
    return [tuple(n.meta["val"].shape) for n in nodes]


def _out_layouts(
    said: Placement | list[Placement | None] | None, shapes: Sequence[Sequence[int]], mesh: Mesh
) -> list[Layout | None]:
    each = said if isinstance(said, list) else [said] * len(shapes)
    if len(each) != len(shapes):
        raise UsageError(f"out_placements: {len(each)} entries, the program has {len(shapes)}")
    found: list[Layout | None] = []
    for number, (one, shape) in enumerate(zip(each, shapes, strict=True)):
        try:
            found.append(None if one is None else layout_from(one, mesh, shape))
        except (LayoutError, UsageError) as error:
            raise error.told(f"out_placements[{number}]: {error.message}") from None
    return found
