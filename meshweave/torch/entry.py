"""Compile a module of PyTorch or a step of training for a mesh; lay what it keeps out once: `from_torch`.

program = mw.from_torch(module.eval(), (x,), mesh="tp=2", placements={"up.weight": "[tp, _]"})
y = program(x)                           # torch tensors in, torch tensors out
step = mw.from_torch(train_step, (model, optimizer, x, y), mesh="dp=2", placements={"x": "[dp, _]"})
loss = step(model, optimizer, x, y)      # forward, backward and the optimizer's step
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from meshweave.api.lengths.call import Lengths
from meshweave.api.lengths.lowered import at, dims_of, one_of_all
from meshweave.api.program import aim, budget_hints
from meshweave.errors import UsageError
from meshweave.frontends.python.dtypes import as_dtype
from meshweave.frontends.torch.export import OutputLeaf, torch_package
from meshweave.frontends.torch.layouts import Placement
from meshweave.layout import Mesh
from meshweave.layout.lengths import Dim, ShapeDtype, Sizes, fitted
from meshweave.torch.imports import Imported, imported, kernels_around
from meshweave.torch.ports import torch_dtype
from meshweave.torch.program import TorchLengths, TorchProgram
from meshweave.torch.sizes import has_open_sizes, open_arguments, without_checks

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.export import ExportedProgram


def from_torch(
    module: nn.Module | ExportedProgram | Callable[..., Any],
    args: Sequence[object] = (),
    placements: Mapping[str, Placement] | None = None,
    mesh: Mesh | str | DeviceMesh | None = None,
    engine: str = "local",
    *,
    kwargs: Mapping[str, object] | None = None,
    out_placements: Placement | list[Placement | None] | None = None,
    state: Mapping[str, object] | None = None,
    timeout: float | None = None,
    verify: bool = True,
    layouts: str | None = None,
    peak_bytes: int | str | None = None,
    objective: str = "time",
) -> TorchProgram:
    """Compile a PyTorch module, or a whole step of training, for a mesh.

    module:     an nn.Module in evaluation mode; an ExportedProgram of torch.export; or a function that trains: it is
                called with modules and optimizers, or refers to them, and runs forward, backward and the optimizer's
                step (`docs/pytorch.md`). The program is called as the function is.
    args, kwargs: arguments like those of later calls, for their shapes and dtypes; an ExportedProgram has its own. A
                `mw.ShapeDtype` may have `Dim`s, sizes that each call chooses; so are symbolic sizes with a bound, that
                an ExportedProgram has of `torch.export.Dim("n", max=..)`.
    placements: the layouts of parameters, buffers and inputs by name (of the state_dict, and of `forward`), `*` matches
                anything: layout text, `mw.P(...)`, a Layout, DTensor placements, or (mesh, placements). What is not
                named takes the placements of its DTensor, if it is one, else what propagation finds.
    mesh:       the devices: a Mesh, its text, or a DeviceMesh; None: that of the DTensors, else one rank.
    engine:     what runs it: "local" (a thread per rank) or "mpi" (a process per rank).
    out_placements: the layouts of the results: one for all, or a list of one for each (None: what propagation finds).
    state:      whole tensors by name that replace the module's own: needed for DTensors whose other shards this
                process cannot see (a fake process group).
    timeout:    seconds without progress after which a call ends with RankError; None: 60 while a rank
                waits for another, and no limit while all compute.
    verify:     check the program of one rank against the whole program (`docs/verify.md`): a wrong one is refused.
    layouts:    "auto": what is not said is chosen at the least predicted time (`docs/placement.md`); `peak_bytes` is of
                arguments, parameters and results too then. objective: as in `meshweave.compile`.
    peak_bytes: the intermediate bytes that a rank may take, "64MiB": as `mw.hint(peak_bytes=..)` around all of it.
    `mw.kernels(...)` around this call, or torch's `sdpa_kernel(SDPBackend.MATH)`, chooses the fast paths.
    Raises UsageError for wrong arguments, LayoutError for layouts that do not fit, CompileError for what the program
    does that is not supported; each is one line.

    >>> import torch
    >>> import meshweave as mw
    >>> module, x = torch.nn.Linear(4, 8).eval(), torch.ones(2, 4)
    >>> with mw.from_torch(module, (x,), {"weight": "[tp, _]"}, mesh="tp=2") as program:
    ...     y = program(x)
    >>> torch.allclose(y, module(x), atol=1e-5)
    True
    """
    torch = torch_package()
    if not isinstance(args, tuple | list):
        raise UsageError(f"from_torch: args: a tuple is needed, got {type(args).__name__}")
    from torch.utils import _pytree

    kind, given = type(module).__name__, (tuple(args), dict(kwargs or {}))
    if has_open_sizes(torch, module):
        given = given if args or kwargs else open_arguments(torch, cast("ExportedProgram", module))
        module = without_checks(torch, cast("ExportedProgram", module))
    leaves, structure = _pytree.tree_flatten(given)

    dims, chosen, hints = dims_of(leaves), kernels_around(torch), budget_hints(peak_bytes)
    known = isinstance(module, torch.nn.Module | torch.export.ExportedProgram)
    if not known and callable(module):
        if dims or state or layouts:
            what = "dims of any size" if dims else "state" if state else "layouts"
            raise UsageError(f"from_torch: {what}: of modules only, not of a step of training")
        from meshweave.torch.step import compiled_step  # imports torch

        where_to = (placements, mesh, out_placements)
        return compiled_step(
            module, leaves, structure, *where_to, engine, timeout, verify, chosen, hints
        )

    def at_sizes(sizes: Sizes) -> Imported:
        examples = [_example(torch, at(leaf, sizes)) for leaf in leaves]
        called = _pytree.tree_unflatten(examples, structure)
        whole = cast("nn.Module | ExportedProgram", module)
        return imported(torch, whole, called, placements, mesh, out_placements, state, hints)

    if not dims:
        exported, text, where = at_sizes({})
        described = (exported, text, kind, where, engine, timeout, verify, chosen)
        return TorchProgram(*described, auto=aim(layouts, objective))
    if layouts is not None:
        raise UsageError(
            f"from_torch: layouts={layouts!r}: sizes that calls choose cannot be placed"
        )
    if hints:
        raise UsageError(
            "from_torch: peak_bytes: of programs whose sizes are known, not of dims that calls choose"
        )
    made = one_of_all(leaves, dims, at_sizes, lambda one: one.text)
    exported, _, where = made.traced[0]
    exported.outputs = [
        one._replace(
            constant=_constant(k, made.sizes, [t.exported.outputs[k] for t in made.traced])
        )
        for k, one in enumerate(exported.outputs)
    ]
    shapes: list[tuple[int | Dim, ...] | None] = [None] * len(exported.names)
    for leaf, index in zip(leaves, exported.inputs):
        if index is not None and isinstance(leaf, ShapeDtype):
            shapes[index] = leaf.shape
    lengths = Lengths(dims, tuple(shapes), made.results, made.bounded)
    return TorchLengths(exported, made.text, kind, where, engine, timeout, verify, chosen, lengths)


def _constant(number: int, sizes: Sequence[Sizes], traced: Sequence[OutputLeaf]) -> object:
    """Return what stands in the place of a result that is no tensor: a formula where it depends on sizes of a call.

    Raises UsageError for one that is none.
    """
    found = [one.constant for one in traced]
    if all(value == found[0] for value in found):
        return found[0]
    numbers = [value for value in found if isinstance(value, int)]
    made = fitted(sizes, numbers) if len(numbers) == len(found) else None
    if made is None:
        said = [
            f"{value} for {', '.join(f'{name}={size}' for name, size in one.items())}"
            for one, value in zip(sizes, found)
        ]
        raise UsageError(
            f"from_torch: result {number} is {said[0]} and {said[-1]}: a sum of multiples of sizes is right"
        )
    return made


def _example(torch: ModuleType, leaf: object) -> object:
    """Return an argument that torch.export takes: zeros where only its kind is known."""
    if isinstance(leaf, torch.Tensor) and hasattr(leaf, "_dynamo_dynamic_indices"):
        return leaf.detach()  # without the marks of torch.compile, which torch.export would heed
    if not isinstance(leaf, ShapeDtype):
        return leaf
    shape = tuple([size for size in leaf.shape if isinstance(size, int)])
    return torch.zeros(shape, dtype=torch_dtype(as_dtype(leaf.dtype).name))
