"""Run a whole step of training as one program: `from_torch` of a function that calls modules and optimizers.

What the step keeps (parameters, buffers, state of optimizers) is donated state of the program: it lies with the ranks
and is written there. On one rank the tensors of PyTorch are that memory. On several they are away: whatever reads one
gets its value from the ranks, and what was read may have been written, so that the next call lays it out again. In a
job (`mw.init`) each process does so as one rank; reading what is cut over the ranks is then a call of all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import distribute_tensor
from torch.utils import _pytree

from meshweave.errors import MeshweaveError, UsageError
from meshweave.frontends.python.dtypes import as_dtype
from meshweave.frontends.torch.export import Exported, export, unused_name
from meshweave.frontends.torch.layouts import (
    Placement,
    choose_mesh,
    is_dtensor,
    layout_from,
    matching,
)
from meshweave.hints.fast_paths import Choice
from meshweave.hints.keys import Hint
from meshweave.layout import Layout, Mesh
from meshweave.layout.lengths import ShapeDtype
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.job.current import check_same, checksum, own_rank
from meshweave.runtime.local.engine import LocalCall
from meshweave.torch.away import fetch, home_of, release, send
from meshweave.torch.imports import full_value, laid_out, plain_module, shapes_of
from meshweave.torch.ports import Ports, from_tensor, placed, to_torch, torch_dtype, viewed
from meshweave.torch.program import TorchProgram
from meshweave.torch.steps.traced import (
    RateGroup,
    StepGraph,
    StepSubjects,
    subjects_of,
    traced_step,
)

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def compiled_step(
    step: Callable[..., Any],
    leaves: Sequence[Any],
    structure: _pytree.TreeSpec,
    placements: Mapping[str, Placement] | None,
    mesh: Mesh | str | DeviceMesh | None,
    out_placements: Placement | list[Placement | None] | None,
    engine: str,
    timeout: float | None,
    verify: bool,
    kernels: Choice | None,
    hints: Sequence[Hint] = (),
) -> TorchStep:
    """Compile a step called with these leaves of arguments, under hints; the others are those of `from_torch`."""
    name = getattr(step, "__name__", type(step).__name__)
    arrays = [leaf for leaf in leaves if isinstance(leaf, Array)]
    mesh = arrays[0].mesh if mesh is None and arrays else mesh
    lying = {k: leaf.layout for k, leaf in enumerate(leaves) if isinstance(leaf, Array)}
    leaves = [_sample(leaf) for leaf in leaves]
    args, kwargs = _pytree.tree_unflatten(list(leaves), structure)
    subjects = subjects_of(step, args, kwargs)
    for module in subjects.modules.values():
        plain_module(torch, module)
    sharded = {n: t for n, t in subjects.tensors().items() if is_dtensor(t)}
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    given = dict(zip(_names_of_arguments(step, leaves, structure), places, strict=True))
    sharded |= {name: leaves[k] for name, k in given.items() if is_dtensor(leaves[k])}
    where = choose_mesh(mesh, [value.device_mesh for value in sharded.values()])
    traced = traced_step(step, leaves, structure, subjects, where)
    exported = _exported(step, traced, subjects, leaves, structure)
    own = _beside_parameters(exported, placements or {}, where)
    for place, one in enumerate(exported.names):
        if own[place] is None and one in sharded:
            own[place] = layout_from(sharded[one], where, sharded[one].shape)
        elif own[place] is None and given.get(one) in lying:
            own[place] = lying[given[one]]
    results = out_placements
    if isinstance(out_placements, list) and len(out_placements) != traced.count:
        raise UsageError(
            f"out_placements: {len(out_placements)} entries, {name} returns {traced.count} tensors"
        )
    if out_placements is not None:
        each = (
            out_placements if isinstance(out_placements, list) else [out_placements] * traced.count
        )
        results = [*[None] * len(exported.written), *each]
    _, text, _ = laid_out(exported, own, placements, where, results, hints)
    return TorchStep(
        exported,
        text,
        name,
        where,
        engine,
        timeout,
        verify,
        kernels,
        traced,
        subjects,
        leaves,
        structure,
    )


def _sample(leaf: Any) -> Any:
    """Return a tensor without elements in the place of an Array, or of a description of one."""
    if isinstance(leaf, Array):
        return torch.empty(leaf.shape, dtype=torch_dtype(leaf.dtype_name), device="meta")
    if isinstance(leaf, ShapeDtype):
        dtype = torch_dtype(as_dtype(leaf.dtype).name)
        return torch.empty(cast("tuple[int, ...]", leaf.shape), dtype=dtype, device="meta")
    return leaf


class _Functional(nn.Module):  # type: ignore[misc]
    """Call a graph with what it keeps as buffers, and write these."""

    def __init__(self, graph: StepGraph, kept: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.graph = graph.graph
        self.count, self.names = graph.count, list(kept)
        self.places = [self.names.index(one) for one in graph.written]
        for number, value in enumerate(kept.values()):
            self.register_buffer(
                f"kept{number}", torch.empty(tuple(value.shape), dtype=value.dtype)
            )
        for number, value in enumerate(graph.constants):
            self.register_buffer(f"constant{number}", value)
        self.constants, self.drawn = len(graph.constants), len(graph.draws)

    def forward(self, *given: Tensor) -> Any:
        kept = [getattr(self, f"kept{k}") for k in range(len(self.names))]
        constants = [getattr(self, f"constant{k}") for k in range(self.constants)]
        place = len(given) - self.drawn
        made = self.graph(*kept, *given[:place], *constants, *given[place:])
        for place, value in zip(self.places, made[self.count :], strict=True):
            kept[place].copy_(value)
        return tuple(made[: self.count])


def _exported(
    step: Callable[..., Any],
    traced: StepGraph,
    subjects: StepSubjects,
    leaves: Sequence[Any],
    structure: _pytree.TreeSpec,
) -> Exported:
    """Export the graph of a step, with the names of what it keeps and takes."""
    kept = subjects.tensors()
    given = [node.meta["val"] for node in traced.graph.graph.nodes if node.op == "placeholder"]
    places = range(len(kept), len(given) - len(traced.draws) - len(traced.constants))
    given = [*[given[k] for k in places], *given[len(given) - len(traced.draws) :]]
    inputs = [torch.zeros(tuple(t.shape), dtype=t.dtype) for t in given]
    exported = export(_Functional(traced, kept), tuple(inputs), {})
    tensors = _names_of_arguments(step, leaves, structure)
    drawn = [f"drawn.{k}" for k in range(len(traced.draws))]
    named = iter([*subjects.rates, *[unused_name(one, kept) for one in tensors], *drawn])
    ours = {f"kept{k}": name for k, name in enumerate(kept)}
    bound = exported.bound
    renamed = [ours.get(one) or (one if one in bound else next(named)) for one in exported.names]
    exported.bound = {
        new: kept.get(new, bound[old])
        for old, new in zip(exported.names, renamed, strict=True)
        if old in bound
    }
    exported.names = renamed
    return exported


def _names_of_arguments(
    step: Callable[..., Any], leaves: Sequence[Any], structure: _pytree.TreeSpec
) -> list[str]:
    """Return the name of each tensor among the arguments: that of its parameter, and its place inside of it."""
    args, _ = structure.unflatten(list(leaves))
    parameters = list(inspect.signature(step).parameters.values())
    names = [one.name for one in parameters if one.kind != one.VAR_POSITIONAL]
    names += [f"{parameters[-1].name}.{k}" for k in range(len(args) - len(names))]
    found = []
    for path, leaf in _pytree.tree_flatten_with_path(structure.unflatten(list(leaves)))[0]:
        if isinstance(leaf, Tensor):
            keys = [
                getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path
            ]
            first = names[keys[1]] if keys[0] == 0 else keys[1]
            found.append(".".join(map(str, [first, *keys[2:]])))
    return found


def _beside_parameters(
    exported: Exported, placements: Mapping[str, Placement], mesh: Mesh
) -> list[Layout | None]:
    """Return layouts for state of optimizers: those of the parameters, where these have some and the same shape."""
    sizes = dict(zip(exported.names, shapes_of(exported), strict=True))
    found: list[Layout | None] = []
    for name, shape in sizes.items():
        owner = name.rpartition(".")[0]
        said = matching(placements, owner) if sizes.get(owner) == shape else None
        found.append(None if said is None else layout_from(said, mesh, shape))
    return found


class TorchStep(TorchProgram):
    """Run a compiled step of training. Call it like the function, with the same modules and optimizers."""

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
        traced: StepGraph,
        subjects: StepSubjects,
        leaves: Sequence[Any],
        structure: _pytree.TreeSpec,
    ) -> None:
        super().__init__(exported, text, name, mesh, engine, timeout, verify, kernels)
        self._traced, self._subjects = traced, subjects
        self._structure = structure
        self._fixed = {k: v for k, v in enumerate(leaves) if not isinstance(v, Tensor)}
        self._groups = {n: _options(group) for n, group in subjects.rates.items()}
        self._kept = {n: one for n, one in subjects.kept.items() if n in exported.names}
        self._trained = {n: t.requires_grad for n, t in subjects.tensors().items()}
        self._memory: dict[str, int] = {}  # addresses of those that are the memory of the one rank
        # Those that are away and have been written since they were read.
        self._stale: set[str] = set()
        self._parts: dict[str, Tensor] = {}  # of DTensors: what this process has been given of them
        # Those that are away and have been read, and perhaps written: in a job with a checksum of what was read.
        self._read: dict[str, bytes] = {}
        with self._lock:
            if self._in_job:
                self._renew(fresh=True)
            else:
                self._bound()

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run the step; return torch tensors in the structure that the function returns.

        In a job (`mw.init`) results with dims are Arrays, of which each process has its part. Raises UsageError for
        other modules, optimizers or options than it was compiled for, RankError where processes call it otherwise.
        """
        leaves, structure = _pytree.tree_flatten((args, kwargs))
        if structure != self._structure:
            raise UsageError(
                f"{self.name}: arguments of another structure than it was compiled for"
            )
        for k, value in self._fixed.items():
            given = leaves[k]
            plain = isinstance(value, int | float | str) and type(given) is type(value)
            if given is not value and not (plain and given == value):
                raise UsageError(
                    f"{self.name}: argument {k}: {_short(given)}, it was compiled for {_short(value)}"
                )
        given = [
            *[torch.tensor(self._rate(name), dtype=torch.float64) for name in self._subjects.rates],
            *[leaf for k, leaf in enumerate(leaves) if k not in self._fixed],
        ]
        drawn_from = torch.get_rng_state().numpy() if self._traced.draws else np.zeros(0)
        for draw in self._traced.draws:
            given.append(draw(()))
        if self._in_job:
            self._check_alike(given[: len(self._subjects.rates)], drawn_from)
        found = self.results(given, self._results_with_dims if self._in_job else ())
        for call in self._traced.calls:
            call.run()
        whole = [one if k is None else found[k] for k, one in self._traced.leaves]
        return _pytree.tree_unflatten(whole, self._traced.structure)

    def bind(self, values: Mapping[str, object]) -> None:
        """Refuse: what a step keeps are the tensors of its modules and optimizers."""
        raise UsageError(
            f"{self.name}: bind: a step keeps the tensors of modules and optimizers: write those"
        )

    def _rate(self, name: str) -> float:
        """Return the learning rate of a group. Raises UsageError where another option has changed."""
        group = self._subjects.rates[name]
        now = _options(group)
        for key, value in self._groups[name].items():
            if now.get(key) != value:
                raise UsageError(
                    f"{self.name}: {key} of {type(group.optimizer).__name__} is {now.get(key)}, it was compiled for"
                    f" {value}: only learning rates may change"
                )
        return float(group.options["lr"])

    def results(self, leaves: Sequence[object], as_arrays: Container[int]) -> list[Any]:
        """Run it on the leaves of its arguments, as `TorchProgram.results` does."""
        found = super().results(leaves, as_arrays)
        self._stale |= self.written - self._memory.keys() - self._parts.keys()
        for name in self._kept:  # in an order that all processes have: sets of names have none
            if name in self._parts and name in self.written:
                self._give_part(name)
        return found

    def _give_part(self, name: str) -> None:
        """Let a DTensor have its part of what the ranks hold."""
        tensor: Any = self._kept[name].find()
        with torch.no_grad():
            part = distribute_tensor(
                to_torch(self.parameters[name]),
                *(tensor.device_mesh, tensor.placements),
                src_data_rank=None,
            ).to_local()
            tensor.to_local().copy_(part)
        self._parts[name] = part.clone()

    @property
    def _in_job(self) -> bool:
        """Tell whether this process is one rank of the mesh."""
        return own_rank(self.program.mesh) is not None

    @property
    def _results_with_dims(self) -> list[int]:
        ports, found = self.program.outputs, enumerate(self._exported.outputs)
        return [k for k, one in found if one.result is not None and ports[one.result].global_shape]

    def _check_alike(self, rates: Sequence[Tensor], drawn_from: npt.NDArray[Any]) -> None:
        """See that all ranks of a job call it alike: the same rates and random numbers, and the same was written.

        Raises RankError on all of them where they do not.
        """
        with self._lock, torch._C.DisableTorchFunctionSubclass():
            tensors = {name: cast("Tensor", self._kept[name].find()) for name in self._read}
            sums = {name: checksum(from_tensor(value)) for name, value in tensors.items()}
            changed = {name: one for name, one in sums.items() if one != self._read[name]}
            self._read = changed
        said = ", ".join(changed) or "nothing"
        values = {
            "the learning rate": np.array([float(one) for one in rates]),
            "the state of torch's random numbers": drawn_from,
            f"what was written since the last call ({said})": np.frombuffer(
                repr(sorted(changed.items())).encode(), "u1"
            ),
        }
        check_same(self.mesh, values, self.name)

    def _on_a_job(self, leaves: Sequence[object], as_arrays: Container[int]) -> list[Any]:
        """Run it as one rank of a job, with what the tensors hold that it keeps."""
        with self._lock:
            self._renew(fresh=False)
        return super()._on_a_job(leaves, as_arrays)

    def _bound(self) -> Ports:
        """Return the buffers of the program, with what the tensors hold that it keeps."""
        fresh = self._ports is None or not self._ports.alive
        ports = super()._bound()
        self._renew(fresh, ports)
        return ports

    def _renew(self, fresh: bool, ports: Ports | None = None) -> None:
        """Copy to the ranks what has been written, or all. ports: the buffers; None in a job."""
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            fresh = self._agreed(fresh)
            if changed := self._subjects.changed():
                raise UsageError(f"{self.name}: {changed}: compile the step again")
            taken = {}
            for name, entry in self._kept.items():
                tensor = entry.find()
                if tensor is None or tensor.requires_grad != self._trained[name]:
                    what = (
                        "is not there any more" if tensor is None else "has another requires_grad"
                    )
                    raise UsageError(f"{self.name}: {name} {what}: compile the step again")
                if fresh or not self._holds(name, tensor):
                    taken[name] = tensor
            if taken and (both := self._subjects.overlap()):
                raise UsageError(f"{self.name}: {both[0]} and {both[1]} share memory")
            own = set(self._memory.values())
            for tensor in taken.values():
                if is_dtensor(tensor) or home_of(tensor) is not None:
                    continue  # not in memory of the program
                if tensor.untyped_storage().data_ptr() in own:
                    tensor.data = tensor.detach().clone()  # before that memory is written
            for name, tensor in taken.items():
                self._take(ports, name, tensor)

    def _agreed(self, fresh: bool) -> bool:
        """Tell whether all is laid out anew: where DTensors are kept, all processes do so as soon as one has to."""
        tensors: dict[str, Any] = {n: entry.find() for n, entry in self._kept.items()}
        sharded = {name: value for name, value in tensors.items() if is_dtensor(value)}
        if not sharded:
            return fresh
        for name, value in sharded.items():
            part = self._parts.get(name)
            fresh = fresh or part is None or not torch.equal(part, value.to_local())
        flag = torch.tensor(int(fresh))
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        return bool(flag.item())

    def _holds(self, name: str, tensor: Tensor) -> bool:
        """Tell whether the ranks hold the value of a tensor."""
        if name in self._parts:
            return True  # all processes have agreed on that
        if name in self._memory:
            here = tensor.data_ptr() == self._memory[name] and tensor.is_contiguous()
            return here and home_of(tensor) is None
        return home_of(tensor) == (self, name) and name not in self._read

    def _take(self, ports: Ports | None, name: str, tensor: Tensor) -> None:
        """Copy the value of a tensor to the ranks; from then on it lies there."""
        index = self._exported.names.index(name)
        port, rows = self.program.inputs[index], [] if ports is None else ports.call.inputs
        whole: Tensor | Array = tensor
        if is_dtensor(tensor):
            whole = full_value(torch, name, tensor, {})
        elif home_of(tensor) == (self, name):
            # One that was read has its value, and may have been written.
            whole = self.parameters[name] if name in self._stale else tensor
            release(tensor)
        else:
            fetch(tensor)
        try:
            array = placed(whole, port, self.mesh)
        except MeshweaveError as error:
            raise error.told(f"{self.name}: {name}: {error.message}") from None
        if ports is not None:
            for row, shard in zip(rows, array.shards, strict=True):
                row[index][...] = shard
            array = array.holding(row[index] for row in rows)
        if not isinstance(whole, Array):
            self._stale.discard(name)
        self._read.pop(name, None)
        if is_dtensor(tensor):
            self._parts[name] = tensor.to_local().clone()
        elif ports is not None and len(rows) == 1 and isinstance(ports.call, LocalCall):
            tensor.data = viewed(rows[0][index], port.dtype)
            self._memory[name] = tensor.data_ptr()
        else:
            send(tensor, self, name)
        self.parameters[name] = array

    def here(self, name: str, tensor: Tensor, reads: bool) -> Tensor:
        """Return a tensor that this program keeps, with its value."""
        if reads:
            with self._lock, torch._C.DisableTorchFunctionSubclass():
                if name in self._stale:
                    tensor.detach().copy_(to_torch(self.parameters[name]))
                    self._stale.discard(name)
                    self._read.pop(name, None)
                if name not in self._read:
                    self._read[name] = checksum(from_tensor(tensor)) if self._in_job else b""
        return tensor

    def close(self) -> None:
        """Free threads, processes and memory. Tensors that it keeps have their values again."""
        for name, entry in self._kept.items():
            tensor = entry.find()
            if tensor is not None and home_of(tensor) == (self, name):
                fetch(tensor)
        super().close()


def _options(group: RateGroup) -> dict[str, Any]:
    """Return the options of a group that are compiled in."""
    return {k: v for k, v in group.options.items() if k not in ("params", "lr", "initial_lr")}


def _short(value: object) -> str:
    return f"a {type(value).__name__}" if isinstance(value, nn.Module) else f"{value!r:.60}"
