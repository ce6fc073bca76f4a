"""Run compiled PyTorch programs: their parameters lie with the ranks, torch tensors go in and come out."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from meshweave.api import program as api
from meshweave.api.explain import Explanation, explanation
from meshweave.api.lengths.call import Lengths, LengthsCompiled
from meshweave.api.lowered import Lowered
from meshweave.api.signature import fast_key
from meshweave.errors import MeshweaveError, UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.dtypes import as_dtype
from meshweave.frontends.python.program import ArgumentSpec, TracedProgram
from meshweave.frontends.torch.export import Exported
from meshweave.hints.fast_paths import Choice, as_choice
from meshweave.layout import Mesh
from meshweave.layout.lengths import Formula, Sizes
from meshweave.plan.placement.goal import PlacementGoal
from meshweave.runtime.arrays.array import Array, run_arrays
from meshweave.runtime.engine import engine as engine_named
from meshweave.runtime.forks import new_reentrant_lock
from meshweave.runtime.job.current import check_same, engine_of, own_rank
from meshweave.see.account import known_of
from meshweave.see.page import Page
from meshweave.see.trace import RankTrace
from meshweave.torch.ports import Ports, from_tensor, own_tensor, placed, to_torch


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
        auto: PlacementGoal | None = None,
    ) -> None:
        began = time.perf_counter()
        engine = engine_of(engine, mesh)
        runs_on = engine_named(engine, timeout=timeout)
        self.text, self.name = text, name
        self.kernels, self.verify, self.auto = kernels, verify, auto
        bundle = api.build(
            text,
            engine=engine,
            name=name,
            kernels=kernels,
            here=True,
            verify=verify,
            names=exported.names,
            auto=auto,
        )
        self.program = api.Program(bundle, runs_on, name=name)
        self.mesh = mesh if mesh.ranks_to_arrange is None else self.program.mesh
        self._exported, self._executable = exported, self.program.executable
        self.parameters: dict[str, Array] = {}
        self._ports: Ports | None = None
        self._lock = new_reentrant_lock()  # an argument may be a tensor that this program keeps
        self._new = True  # whether no call has compared its tensors on the ranks of a job yet
        bound, exported.bound = exported.bound, {}  # the ranks hold them from now on
        self._held = tuple(bound)
        self.written = frozenset(exported.names[index] for index in exported.written.values())
        self._lay_out(bound)
        self.seconds = {"compile": time.perf_counter() - began}

    def bind(self, values: Mapping[str, object]) -> None:
        """Lay new values of parameters and buffers out over the ranks, by name; later calls use them.

        Raises UsageError for a name that the program does not hold, MeshweaveError for another shape or dtype.
        """
        self._lay_out(values)

    def _lay_out(self, values: Mapping[str, object]) -> None:
        names = self._exported.names
        self._check_same(values)
        for name, value in values.items():
            if name not in self._held:
                known = ", ".join(self._held) or "none"
                raise UsageError(f'bind: the program holds no "{name}": there are {known}')
            index = names.index(name)
            try:
                made = placed(value, self.program.inputs[index], self.mesh)
            except MeshweaveError as error:
                raise error.told(f"{name}: {error.message}") from None
            self.parameters[name] = made.copy() if name in self.written else made
            if self._ports is not None and not self._ports.point(index, self.parameters[name]):
                self._ports = None

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run it on torch tensors; return torch tensors in the structure that the module returns.

        With NumPy arrays or Arrays among the arguments, or in a job (`mw.init`), it returns Arrays. Raises
        MeshweaveError for wrong arguments, RankError when a rank fails.
        """
        from torch.utils import _pytree

        leaves = self._leaves(args, kwargs)
        as_arrays = any(isinstance(leaf, Array | np.ndarray) for leaf in leaves)
        as_arrays |= own_rank(self.program.mesh) is not None
        every = range(len(self._exported.outputs))
        found = self.results(leaves, every if as_arrays else ())
        return _pytree.tree_unflatten(found, self._exported.out_spec)

    def results(self, leaves: Sequence[object], as_arrays: Container[int]) -> list[Any]:
        """Run it on the leaves of its arguments; return those of what it returns.

        as_arrays: which of them stay on their ranks, as Arrays; the others are torch tensors, or constants.
        """
        outputs = self._exported.outputs
        if own_rank(self.program.mesh) is not None:
            return self._on_a_job(leaves, as_arrays)
        whole = {one.result for k, one in enumerate(outputs) if k not in as_arrays}
        kept = {one.result for one in outputs} - whole
        with self._lock:
            ports = self._bound()
            for leaf, index in zip(leaves, self._exported.inputs, strict=True):
                if index is not None:
                    self._put(ports, leaf, index)
            began = time.perf_counter()
            ports.run()
            self.seconds["run"] = time.perf_counter() - began
            self._write_back(ports, leaves)
            found = ports.results(kept)
        return [one.constant if one.result is None else found[one.result] for one in outputs]

    def _bound(self) -> Ports:
        """Return the buffers of the program, made if need be."""
        ports = self._ports
        if ports is None or not ports.alive:
            self._ports = ports = Ports(
                self._executable, self.program.mesh, self._exported, self.parameters
            )
            self.parameters |= ports.states()
        return ports

    def _check_same(self, values: Mapping[str, object]) -> None:
        """See that all ranks of a job give the same tensors. Raises RankError where they differ."""
        if own_rank(self.mesh) is not None:
            whole = {n: from_tensor(v) for n, v in values.items() if not isinstance(v, Array)}
            check_same(self.mesh, whole, self.name)

    def _on_a_job(self, leaves: Sequence[object], as_arrays: Container[int]) -> list[Any]:
        """Run it on the own parts of a job, as `results` says: tensors are whole, and the same on all ranks."""
        names, ports, given = self._exported.names, self.program.inputs, dict(self.parameters)
        states: dict[str, Any] = {}
        if self._new:
            leaves_of = zip(leaves, self._exported.inputs, strict=True)
            self._check_same({names[k]: leaf for leaf, k in leaves_of if k is not None})
            self._new = False
        for leaf, index in zip(leaves, self._exported.inputs, strict=True):
            if index is None:
                continue
            name = names[index]
            try:
                given[name] = placed(leaf, ports[index], self.mesh)
            except MeshweaveError as error:
                raise error.told(f"{self.name}: {name}: {error.message}") from None
            if name in self.written:
                states[name] = leaf
        with self._lock:
            began = time.perf_counter()
            made = run_arrays(self._executable, [given[name] for name in names])
            self.seconds["run"] = time.perf_counter() - began
        self._keep_written(made, states)
        found = enumerate(self._exported.outputs)
        return [
            one.constant
            if one.result is None
            else made[one.result]
            if k in as_arrays
            else to_torch(made[one.result])
            for k, one in found
        ]

    def _keep_written(self, made: Sequence[Array], states: Mapping[str, Any]) -> None:
        """Let parameters, and the arguments `states` by name, be what the program has written."""
        for number, index in self._exported.written.items():
            leaf = states.get(name := self._exported.names[index])
            if leaf is None:
                self.parameters[name] = made[number]
            elif isinstance(leaf, Array):
                leaf.become(made[number])
            elif isinstance(leaf, np.ndarray):
                leaf[...] = to_torch(made[number]).numpy()
            else:
                leaf.detach().copy_(to_torch(made[number]))

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
                raise error.told(f"{self.name}: {name}: {error.message}") from None

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
        for k, (name, value) in self._exported.fixed.items():
            if type(leaves[k]) is not type(value) or repr(leaves[k]) != repr(value):
                raise UsageError(
                    f"{self.name}: argument {name} is {leaves[k]!r:.60}, and {value!r:.60} is a part of the program: "
                    "a number that changes is a tensor"
                )
        return list(leaves)

    def ledger(self) -> list[dict[str, str]]:
        """Return what became of each hint for each op of its region: rows of hint, op, location, outcome, reason.

        This compiles the program once more.
        """
        from meshweave.transforms.slicing.ledger import read_ledger  # loads MLIR

        kernels = as_choice(self.kernels)
        made = api.lowered(
            *(self.text, self.name, None, self._engine), kernels=kernels, verify=self.verify,
            auto=self.auto,
        )  # fmt: skip
        with made as (module, _):
            return read_ledger(module).rows()

    def explain(self) -> Explanation:
        """Return tables about the program: layouts, memory, what became of each hint, kernels and collectives."""
        results = [f"result{k}" for k in range(len(self.program.outputs))]
        ranks = f"({self.mesh})" if self.mesh.names else "one rank"
        title = f"{self.name} on {ranks}, engine {self._engine}"
        names = (*self._exported.names, *results)
        decided = known_of(self.program.bundle)
        return explanation(title, names, self.program, decided, self.seconds["compile"])

    def view(self, trace: RankTrace | None = None) -> Page:
        """Return the page about the program; trace: what was measured, to show beside the prediction."""
        return self.explain().page.beside(trace)

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

    _fast: dict[Hashable, tuple[Callable[[Sequence[Any]], Any], Sizes]]

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
        names, states = self._exported.names, dict[str, Any]()
        for leaf, index in zip(leaves, self._exported.inputs, strict=True):
            if index is not None and names[index] in self.written:
                states[names[index]] = leaf
                given[index] = leaf if isinstance(leaf, Array) else np.array(given[index])
        with self._lock:
            values: list[Any] = [self.parameters.get(n, given.get(k)) for k, n in enumerate(names)]
            began = time.perf_counter()
            try:
                made, sizes = self._called(values)
            except MeshweaveError as error:
                raise error.told(f"{self.name}: {error.message}") from None
            self.seconds["run"] = time.perf_counter() - began
            self._keep_written(made, states)
        return [
            (one.constant.at(sizes) if isinstance(one.constant, Formula) else one.constant)
            if one.result is None
            else made[one.result]
            if k in as_arrays
            else to_torch(made[one.result])
            if one.result in self._exported.written
            else own_tensor(made[one.result])
            for k, one in enumerate(self._exported.outputs)
        ]

    def _called(self, values: Sequence[Any]) -> tuple[Sequence[Array], Sizes]:
        """Return the results of a call, and the sizes that it chose; a second one of its kind checks nothing."""
        key = fast_key([values[k] for k in self._given])
        known = self._fast.get(key)
        if known is not None:
            call, sizes = known
            return call(values), sizes
        sizes = self._compiled.sizes([np.shape(value) for value in values])
        stay = {
            k: self.parameters[name]
            for k, name in enumerate(self._exported.names)
            if name in self.parameters and name not in self.written
        }
        later = self._compiled.fast(values, stay)  # before the call takes what it writes
        made: Sequence[Array] = self._compiled.call(values)
        if key is not None:
            self._fast[key] = later, sizes
        return made, sizes

    def _lay_out(self, values: Mapping[str, object]) -> None:
        super()._lay_out(values)
        self._fast = {}  # calls do not look at parameters again
        names = enumerate(self._exported.names)
        self._given = [number for number, name in names if name not in self.parameters]

    def explain(self) -> Explanation:
        """Return tables about the program, as `TorchProgram.explain` does."""
        return self._compiled.explain()
