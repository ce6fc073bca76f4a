"""Compile a PyTorch module for a mesh, and lay its parameters out over the ranks once: `from_torch`.

program = mw.from_torch(module.eval(), (x,), mesh="tp=2", placements={"up.weight": "[tp, _]"})
y = program(x)                           # torch tensors in, torch tensors out
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meshweave.api import program as api
from meshweave.api.explain import explanation
from meshweave.api.lengths.call import Lengths, LengthsCompiled
from meshweave.api.lengths.lowered import at, dims_of, one_of_all
from meshweave.api.lowered import Lowered
from meshweave.errors import LayoutError, MeshweaveError, UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.dtypes import as_dtype
from meshweave.frontends.python.place import chosen_kernels
from meshweave.frontends.python.program import ArgumentSpec, TracedProgram
from meshweave.frontends.torch.export import Exported, OutputLeaf, export, torch_package
from meshweave.frontends.torch.layouts import (
    Placement,
    choose_mesh,
    is_dtensor,
    layout_from,
    layouts_by_name,
)
from meshweave.hints.fast_paths import Choice, as_choice
from meshweave.layout import Layout, Mesh
from meshweave.layout.lengths import Dim, Formula, ShapeDtype, Sizes, fitted
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.engine import engine as engine_named
from meshweave.runtime.forks import new_lock
from meshweave.torch.ports import Ports, from_tensor, placed, to_torch, torch_dtype
from meshweave.torch.sizes import has_open_sizes, open_arguments, without_checks

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.export import ExportedProgram


def from_torch(
    module: nn.Module | ExportedProgram,
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
) -> TorchProgram:
    """Compile a PyTorch module for a mesh.

    module:     an nn.Module in evaluation mode, or an ExportedProgram of torch.export.
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
        given = given if args or kwargs else open_arguments(torch, module)
        module = without_checks(torch, module)
    leaves, structure = _pytree.tree_flatten(given)

    def imported(sizes: Sizes) -> _Imported:
        examples = [_example(torch, at(leaf, sizes)) for leaf in leaves]
        called = _pytree.tree_unflatten(examples, structure)
        return _import(torch, module, called, placements, mesh, out_placements, state)

    dims, chosen = dims_of(leaves), _kernels(torch)
    if not dims:
        exported, text, where = imported({})
        return TorchProgram(exported, text, kind, where, engine, timeout, verify, chosen)
    made = one_of_all(leaves, dims, imported, lambda one: one.text)
    exported, _, where = made.traced[0]
    if exported.written:
        raise UsageError(
            f"from_torch: {kind} writes {exported.names[next(iter(exported.written.values()))]}: "
            "a program whose sizes each call chooses writes no argument and no buffer"
        )
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
    lengths = Lengths(dims, made.sizes[0], tuple(shapes), made.results)
    return TorchLengths(exported, made.text, kind, where, engine, timeout, verify, chosen, lengths)


class _Imported(NamedTuple):
    """Hold a module as torch.export sees it, its program in MLIR, and the mesh that it is for."""

    exported: Exported
    text: str
    mesh: Mesh


def _import(
    torch: ModuleType,
    module: nn.Module | ExportedProgram,
    called: tuple[tuple[object, ...], dict[str, object]],
    placements: Mapping[str, Placement] | None,
    mesh: Mesh | str | DeviceMesh | None,
    out_placements: Placement | list[Placement | None] | None,
    state: Mapping[str, object] | None,
) -> _Imported:
    """Export a module called with these arguments; the others are those of `from_torch`."""
    from torch.utils import _pytree

    given = _pytree.tree_leaves(called)
    with ExitStack() as undo:
        sharded = _dtensors(torch, module)
        meshes = [t.device_mesh for t in (*sharded.values(), *filter(is_dtensor, given))]
        where = choose_mesh(mesh, meshes)
        if sharded:
            undo.enter_context(_whole(torch, module, sharded, state or {}))
        whole = _pytree.tree_map(lambda v: _like(torch, v), called)
        exported = export(module, *whole)
    _take_state(torch, exported, state or {})
    own = _own_layouts(exported, sharded, given, where)
    named = layouts_by_name(placements or {}, exported.names, _shapes(exported), where)
    layouts = [one if one is not None else other for one, other in zip(named, own, strict=True)]
    output = next(n for n in exported.graph.graph.nodes if n.op == "output")
    shapes = [tuple(n.meta["val"].shape) for n in output.args[0]]
    results = _out_layouts(out_placements, shapes, where)
    from meshweave.frontends.torch.importer import linalg_text  # loads MLIR

    text = linalg_text(exported.graph, layouts, results, where, exported.written)
    return _Imported(exported, text, where)


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
    if not isinstance(leaf, ShapeDtype):
        return leaf
    shape = tuple([size for size in leaf.shape if isinstance(size, int)])
    return torch.zeros(shape, dtype=torch_dtype(as_dtype(leaf.dtype).name))


def _kernels(torch: ModuleType) -> Choice | None:
    """Return what `mw.kernels` and torch's `sdpa_kernel` around this call choose: no fused attention, no `flash`."""
    chosen, switches = chosen_kernels(), torch.backends.cuda
    if switches.flash_sdp_enabled() or switches.mem_efficient_sdp_enabled():
        return chosen
    plain_attention = Choice.of(None, {"flash": False})
    return plain_attention if chosen is None else plain_attention.within(chosen)


# DTensors


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
            whole = _full(torch, name, value, state)
            row[leaf] = (
                torch.nn.Parameter(whole, requires_grad=False)
                if row is owner._parameters
                else whole
            )
        yield
    finally:
        for row, leaf, value in kept:
            row[leaf] = value


def _full(torch: ModuleType, name: str, value: DTensor, state: Mapping[str, object]) -> Tensor:
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
    for name, shape in zip(exported.names, _shapes(exported), strict=True):
        value = sharded.get(name)
        found.append(None if value is None else layout_from(value, mesh, shape))
    for value, index in zip(given, exported.inputs):
        if index is not None and is_dtensor(value):
            found[index] = layout_from(value, mesh, value.shape)
        elif index is not None and isinstance(value, Array) and value.mesh == mesh:
            found[index] = value.layout
    return found


def _shapes(exported: Exported) -> list[tuple[int, ...]]:
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
            raise type(error)(f"out_placements[{number}]: {error.message}") from None
    return found


class TorchProgram:
    """Run a compiled PyTorch program, its parameters bound. Call it like the module; close it when done.

    text: the program in MLIR, in the global view. seconds: the times of compiling and of the last run.
    """

    def __init__(
        self,
        exported: Exported,
        text: str,
        name: str,
        mesh: Mesh,
        engine: str,
        timeout: float | None,
        verify: bool,
        kernels: Choice | None = None,
    ) -> None:
        began = time.perf_counter()
        runs_on = engine_named(engine, timeout=timeout)
        self.text, self.name, self.mesh = text, name, mesh
        self.kernels, self.verify = kernels, verify
        bundle = api.build(
            text, engine=engine, name=name, kernels=kernels, here=True, verify=verify
        )
        self.program = api.Program(bundle, runs_on)
        self._exported, self._executable = exported, self.program.executable
        self.parameters: dict[str, Array] = {}
        self._ports: Ports | None = None
        self._lock = new_lock()
        bound, exported.bound = exported.bound, {}  # the ranks hold them from now on
        self._held = tuple(bound)
        self.written = frozenset(exported.names[index] for index in exported.written.values())
        self.bind(bound)
        self.seconds = {"compile": time.perf_counter() - began}

    def bind(self, values: Mapping[str, object]) -> None:
        """Lay new values of parameters and buffers out over the ranks, by name; later calls use them.

        Raises UsageError for a name that the program does not hold, MeshweaveError for another shape or dtype.
        """
        names = self._exported.names
        self._ports = None
        for name, value in values.items():
            if name not in self._held:
                known = ", ".join(self._held) or "none"
                raise UsageError(f'bind: the program holds no "{name}": there are {known}')
            port = self.program.inputs[names.index(name)]
            try:
                made = placed(value, port, self.mesh)
                self.parameters[name] = made.copy() if name in self.written else made
            except MeshweaveError as error:
                raise type(error)(f"{name}: {error.message}") from None

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run it on torch tensors; return torch tensors in the structure that the module returns.

        With NumPy arrays or Arrays among the arguments it returns Arrays. Raises MeshweaveError for wrong arguments,
        RankError when a rank fails.
        """
        from torch.utils import _pytree

        leaves = self._leaves(args, kwargs)
        as_arrays = any(isinstance(leaf, Array | np.ndarray) for leaf in leaves)
        every = range(len(self._exported.outputs))
        found = self.results(leaves, every if as_arrays else ())
        return _pytree.tree_unflatten(found, self._exported.out_spec)

    def results(self, leaves: Sequence[object], as_arrays: Container[int]) -> list[Any]:
        """Run it on the leaves of its arguments; return those of what it returns.

        as_arrays: which of them stay on their ranks, as Arrays; the others are torch tensors, or constants.
        """
        outputs = self._exported.outputs
        whole = {one.result for k, one in enumerate(outputs) if k not in as_arrays}
        kept = {one.result for one in outputs} - whole
        with self._lock:
            ports = self._ports
            if ports is None or not ports.alive:
                self._ports = ports = Ports(
                    self._executable, self.program.mesh, self._exported, self.parameters
                )
                self.parameters |= ports.states()
            for leaf, index in zip(leaves, self._exported.inputs, strict=True):
                if index is not None:
                    self._put(ports, leaf, index)
            began = time.perf_counter()
            ports.call()
            self.seconds["run"] = time.perf_counter() - began
            self._write_back(ports, leaves)
            found = ports.results(kept)
        return [one.constant if one.result is None else found[one.result] for one in outputs]

    def _write_back(self, ports: Ports, leaves: Sequence[object]) -> None:
        """Let arguments that the program writes be what they are after it."""
        for leaf, index in zip(leaves, self._exported.inputs, strict=True):
            if index is not None and self._exported.names[index] in self.written:
                ports.write_back(index, leaf)

    def _put(self, ports: Ports, value: object, index: int) -> None:
        if not ports.put(index, value):
            name, port = self._exported.names[index], self.program.inputs[index]
            try:
                ports.put_array(index, placed(value, port, self.mesh))
            except MeshweaveError as error:
                raise type(error)(f"{self.name}: {name}: {error.message}") from None

    def _leaves(self, args: tuple[object, ...], kwargs: dict[str, object]) -> list[object]:
        """Return the leaves of the arguments in the order of the program. Raises UsageError for another structure."""
        from torch.utils import _pytree

        spec = self._exported.in_spec
        if spec is not None and kwargs:
            order = spec.children()[1].context or []
            if set(order) == set(kwargs):
                kwargs = {key: kwargs[key] for key in order}
        leaves, own = _pytree.tree_flatten((args, kwargs))
        if len(leaves) != len(self._exported.inputs) or (spec is not None and own != spec):
            names = [n for n in self._exported.names if n not in self._held]
            raise UsageError(
                f"{self.name}: {len(leaves)} arguments of another structure than it was compiled"
                f" for ({', '.join(names)})"
            )
        return list(leaves)

    def ledger(self) -> list[dict[str, str]]:
        """Return what became of each hint for each op of its region: rows of hint, op, location, outcome, reason.

        This compiles the program once more.
        """
        from meshweave.transforms.slicing.ledger import read_ledger  # loads MLIR

        kernels = as_choice(self.kernels)
        made = api.lowered(
            self.text, self.name, None, self._engine, kernels=kernels, verify=self.verify
        )
        with made as (module, _):
            return read_ledger(module).rows()

    def explain(self) -> str:
        """Return tables about the program: layouts, memory, what became of each hint, kernels and collectives."""
        results = [f"result{k}" for k in range(len(self.program.outputs))]
        title = f"{self.name} on ({self.mesh}), engine {self._engine}"
        names = (*self._exported.names, *results)
        decided = api.reported(
            *(self.text, self.name, None, self._engine),
            kernels=as_choice(self.kernels),
            verify=self.verify,
        )
        return explanation(title, names, self.program, decided, self.seconds["compile"])

    @property
    def _engine(self) -> str:
        return str(self._executable.manifest.engine)

    def close(self) -> None:
        """Free threads, processes and memory."""
        self.program.close()

    def __enter__(self) -> TorchProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<meshweave.from_torch {self.name} on ({self.mesh})>"


class TorchLengths(TorchProgram):
    """Run a compiled PyTorch program, its parameters bound, on arguments of any size up to the bounds of their dims."""

    def __init__(
        self,
        exported: Exported,
        text: str,
        name: str,
        mesh: Mesh,
        engine: str,
        timeout: float | None,
        verify: bool,
        kernels: Choice | None,
        lengths: Lengths,
    ) -> None:
        """Compile the program, as TorchProgram does. lengths: the shapes are those of all ports, None for weights."""
        super().__init__(exported, text, name, mesh, engine, timeout, verify, kernels)
        ports = self.program.inputs[: len(exported.names)]
        specs = [ArgumentSpec(tuple(p.global_shape), as_dtype(p.dtype)) for p in ports]
        structure = tree.Container(tuple, None, (tree.LEAF,) * len(self.program.outputs))
        program = TracedProgram(text, structure)
        lowered = Lowered(name, program, specs, exported.names, mesh, engine, kernels, verify)
        self._compiled = LengthsCompiled(lowered, self.program, self.seconds["compile"], lengths)

    def results(self, leaves: Sequence[object], as_arrays: Container[int]) -> list[Any]:
        """Run it on the leaves of its arguments, as `TorchProgram.results` does."""
        given = {
            index: leaf if isinstance(leaf, Array | np.ndarray) else from_tensor(leaf)
            for leaf, index in zip(leaves, self._exported.inputs, strict=True)
            if index is not None
        }
        values: list[Any] = [
            self.parameters.get(n, given.get(k)) for k, n in enumerate(self._exported.names)
        ]
        began = time.perf_counter()
        try:
            made: Sequence[Array] = self._compiled.call(values)
        except MeshweaveError as error:
            raise type(error)(f"{self.name}: {error.message}") from None
        self.seconds["run"] = time.perf_counter() - began
        sizes = self._compiled.sizes([np.shape(value) for value in values])
        return [
            (one.constant.at(sizes) if isinstance(one.constant, Formula) else one.constant)
            if one.result is None
            else made[one.result]
            if k in as_arrays
            else to_torch(made[one.result])
            for k, one in enumerate(self._exported.outputs)
        ]

    def explain(self) -> str:
        """Return tables about the program, as `TorchProgram.explain` does."""
        return self._compiled.explain()
