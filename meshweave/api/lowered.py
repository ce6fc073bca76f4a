"""Look at a traced program in stages, compile it, call it, explain it."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meshweave.api.callables.waiting import in_a_thread
from meshweave.api.signature import check_fits
from meshweave.errors import UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.program import ArgumentSpec, TracedProgram
from meshweave.hints.fast_paths import Choice, as_choice
from meshweave.layout import Layout, Mesh
from meshweave.runtime.arrays.array import Array, in_place_or_copied, run_arrays
from meshweave.runtime.arrays.kind import Kind, kind_of
from meshweave.runtime.job.current import check_same, engine_of
from meshweave.runtime.memory import Values
from meshweave.targets import Goal

if TYPE_CHECKING:  # here, for loading a program needs neither
    from meshweave.api.explain import Explanation
    from meshweave.api.program import Program
    from meshweave.plan.placement.goal import PlacementGoal
    from meshweave.report import Report
    from meshweave.see.page import Page
    from meshweave.see.trace import RankTrace

STAGES = ("traced", "propagated", "redistributed", "local")
"""The stages that `as_text` shows."""


def _passes(stage: str, every: Sequence[str]) -> tuple[str, ...]:
    """Return the passes before a stage, of those that compiling runs."""
    if stage == "traced":
        return ()
    if stage == "propagated":
        return tuple(every[: every.index("dist-insert-redistribute")])
    if stage == "redistributed":
        return tuple(every[: every.index("dist-partition")])
    return tuple(every)


def _unknown(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Return the leaves of arguments that are arrays."""
    if kwargs:
        raise UsageError("arguments are given by position, and this call names some")
    return list(args)


class Lowered:
    """Hold a function traced for arguments of one kind."""

    def __init__(
        self,
        name: str,
        program: TracedProgram,
        specs: Sequence[ArgumentSpec],
        names: Sequence[str],
        mesh: Mesh,
        engine: str,
        kernels: Choice | None = None,
        verify: bool = True,
        leaves_of: Callable[[Sequence[Any], dict[str, Any]], list[Any]] = _unknown,
        auto: PlacementGoal | None = None,
        peak_bytes: int | str | None = None,
        results: Sequence[str] = (),
    ) -> None:
        """Hold all this.

        results: what the user calls them, where their places do not say it.
        leaves_of: returns the leaves of the arguments of a call. auto: what layouts are chosen for, None: they are not.
        """
        self.leaves_of, self.auto, self.peak_bytes = leaves_of, auto, peak_bytes
        self.name, self.program, self.specs, self.names = name, program, specs, names
        self.results = tuple(results)
        self.mesh, self.engine = mesh, engine_of(engine, mesh)
        self.kernels, self.verify = kernels, verify

    def as_text(self, stage: str = "traced") -> str:
        """Return the program in MLIR at a stage.

        stage: "traced" (as the function said), "propagated" (each op with its layouts), "redistributed" (with the
        steps of each redistribution), or "local" (the program of one rank). Raises UsageError for another stage.
        """
        if stage not in STAGES:
            raise UsageError(f'as_text: stage "{stage}": known are {", ".join(STAGES)}')
        from meshweave.api.compiling.rank_program import passes_with
        from meshweave.dialects import context
        from meshweave.dialects.alias import hoist_aliases
        from meshweave.frontends.load import load_module
        from meshweave.pipeline import run_pipeline

        passes = _passes(
            stage,
            passes_with(
                as_choice(self.kernels),
                target=Goal.of(engine=self.engine).target,
                auto=self.auto,
            ),
        )
        ctx = context(unregistered=True)
        with ctx:
            module = load_module(self.program.text, ctx, self.name)
            if passes:
                run_pipeline(module, ",".join(passes))
            return str(hoist_aliases(str(module)))

    def compile(self, timeout: float | None = None, flight: str | None = None) -> Compiled:
        """Compile and load the program.

        timeout: seconds without progress after which a call ends with RankError; None: 60 while a rank
                 waits for another, and no limit while all compute.
        flight: as for `mw.jit`. Raises MeshweaveError, at the line at fault.
        """
        began = time.perf_counter()
        loaded = self.loaded(timeout, flight)
        return Compiled(self, loaded, time.perf_counter() - began)

    def loaded(self, timeout: float | None = None, flight: str | None = None) -> Program:
        """Compile the program and let its engine load it."""
        from meshweave.api import program as api
        from meshweave.runtime.engine import engine

        runs_on = engine(self.engine, timeout=timeout, flight=flight)
        bundle = api.build(
            self.program.text,
            engine=self.engine,
            name=self.name,
            kernels=self.kernels,
            here=True,
            verify=self.verify,
            names=self.port_names(len(self.program.captured)),
            peak_bytes=self.peak_bytes,
            auto=self.auto,
        )
        return api.Program(bundle, runs_on, name=self.name)

    def port_names(self, captured: int, chosen: Sequence[str] = ()) -> tuple[str, ...]:
        """Return what the user calls arguments and results.

        captured: how many arrays the function holds. chosen: sizes that each call chooses.
        """
        paths = tree.paths(self.program.structure)
        results = self.results or [f"result{path}" for path in paths]
        held = [f"captured{number}" for number in range(captured)]
        return (*self.names, *held, *chosen, *results)

    def released(self) -> Lowered:
        """Return the same without the arrays that the function holds, which a program has laid out for itself."""
        released = copy.copy(self)
        released.program = replace(self.program, captured=())
        return released

    def on(self, mesh: Mesh) -> Lowered:
        """Return the same for a mesh, which stands for the one that was to be chosen."""
        placed = copy.copy(self)
        placed.mesh = mesh
        return placed

    def report(self) -> Report:
        """Report what compiling decides: memory, slices, what became of each hint, kernels, collectives."""
        # Here, for loading a program needs none.
        from meshweave.api.program import budget_hints, reported

        return reported(
            *(self.program.text, self.name, None, self.engine),
            kernels=as_choice(self.kernels),
            verify=self.verify,
            names=self.port_names(len(self.program.captured)),
            auto=self.auto,
            hints=budget_hints(self.peak_bytes),
        )

    def __repr__(self) -> str:
        kinds = ", ".join(f"{n}: {s}" for n, s in zip(self.names, self.specs))
        return f"<lowered {self.name}({kinds}) on ({self.mesh})>"


class Compiled:
    """Hold a loaded program. seconds: how long compiling and loading took."""

    chosen: tuple[str, ...] = ()  # names of the sizes that each call chooses

    def __init__(self, lowered: Lowered, program: Program, seconds: float) -> None:
        if lowered.mesh.ranks_to_arrange is not None:
            lowered = lowered.on(program.mesh)
        self.lowered, self.program, self.seconds = lowered, program, seconds
        self._executable: Any = program.executable  # of any engine; Dispatch asks which
        self._ports = program.inputs
        self._layouts = [Layout.parse(port.layout) for port in self._ports]
        self._structure = lowered.program.structure
        self.whole = self._structure == tree.LEAF
        self._flat = tree.is_flat(self._structure)
        self._templates: list[Array] = []  # Arrays of the first call: later ones have other shards
        self.captured = self._laid_out(lowered.program.captured)
        self.lowered = lowered.released()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the program as the function that was lowered is called. Raises MeshweaveError for other arguments."""
        return self.call(self.lowered.leaves_of(args, kwargs))

    async def call_async(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in a thread, while other coroutines run; what it returns is what `await` gives."""
        return await in_a_thread(self, args, kwargs)

    def call(self, leaves: Sequence[Any]) -> Any:
        """Run the program on the leaves of the arguments; return what the function returns, with Arrays as leaves."""
        values = [
            self._ready(value, spec, layout)
            for value, spec, layout in zip(leaves, self.lowered.specs, self._layouts)
        ]
        for value, spec, name in zip(leaves, self.lowered.specs, self.lowered.names):
            check_fits(value, spec, name)
        held = self.captured
        arrays = run_arrays(self._executable, [*values, *held], len(held))
        if not self._templates:
            self._templates = [array.holding(()) for array in arrays]
        return self.returned(arrays)

    def fast(self, args: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        """Return a call for arguments just like these, NumPy arrays and Arrays, that checks nothing again."""
        from meshweave.runtime.local.dispatch import Dispatch

        right = [
            self._ready(a, s, lay) is a
            for a, s, lay in zip(args, self.lowered.specs, self._layouts)
        ]
        held = tuple(self.captured)
        sharded = [isinstance(value, Array) for value in (*args, *held)]
        if not all(right) or not Dispatch.applies(self._executable, sharded):
            return self.call
        dispatch, templates = Dispatch(self._executable, sharded), self._templates
        if self.whole:
            return lambda given: templates[0].holding([r[0] for r in dispatch((*given, *held))])

        def run(given: Sequence[Any]) -> Any:
            columns = zip(*dispatch((*given, *held)), strict=True)
            return self.returned([t.holding(column) for t, column in zip(templates, columns)])

        return run

    def result_kinds(self) -> list[Kind]:
        """Return the kind of each Array that the program gives."""
        return [
            kind_of(self.lowered.mesh, Layout.parse(p.layout), tuple(p.global_shape), p.dtype)
            for p in self.program.outputs
        ]

    def _laid_out(self, captured: Sequence[Values]) -> list[Array]:
        """Lay the arrays that the function holds out over the ranks, once for all calls.

        The ranks read the copies that tracing has made, where those lie right.
        """
        first, mesh = len(self.lowered.specs), self.lowered.mesh
        check_same(mesh, {f"captured{k}": v for k, v in enumerate(captured)}, self.lowered.name)
        placed = zip(captured, self._ports[first:], self._layouts[first:])  # sizes come behind
        return [
            in_place_or_copied(value, mesh, layout, port.dtype).alone()
            for value, port, layout in placed
        ]

    def returned(self, arrays: Sequence[Any]) -> Any:
        """Return what the function returns, of its leaves."""
        if self.whole:
            return arrays[0]
        return tuple(arrays) if self._flat else tree.unflatten(self._structure, iter(arrays))

    def _ready(self, value: object, spec: ArgumentSpec, layout: Layout) -> Array | Values:
        """Prepare an argument: an Array that lies right stays one, anything else becomes a NumPy array."""
        if isinstance(value, Array):
            if (value.layout, value.mesh) == (layout, self.lowered.mesh):
                return value
            if value.mesh == self.lowered.mesh:
                return value.redistribute(layout, engine=self.lowered.engine)
            return value.numpy()  # `place` lays it out
        return np.asarray(value, dtype=spec.dtype.numpy) if spec.weak else np.asarray(value)

    def explain(self) -> Explanation:
        """Draw tables about the program, as `Jitted.explain` does."""
        from meshweave.api.explain import explanation
        from meshweave.see.account import known_of

        decided = known_of(self.program.bundle)
        return explanation(self.title(), self._names(), self.program, decided, self.seconds)

    def view(self, trace: RankTrace | None = None) -> Page:
        """Return the page about the program, as `Program.view` does."""
        return self.program.view(trace, title=self.title(), names=self._names())

    def _names(self) -> tuple[str, ...]:
        """Return what the user calls arguments and results."""
        return self.lowered.port_names(len(self.captured), self.chosen)

    def title(self) -> str:
        """Return what tables about the program are called."""
        ranks = f"({self.lowered.mesh})" if self.lowered.mesh.names else "one rank"
        return f"{self.lowered.name} on {ranks}, engine {self.lowered.engine}"

    def __reduce__(self) -> Any:
        if type(self) is not Compiled:
            raise TypeError(f"{self.title()}: a program for sizes that calls choose is not pickled")
        held = replace(self.lowered.program, captured=tuple([a.numpy() for a in self.captured]))
        lowered = copy.copy(self.lowered)
        lowered.program = held
        return Compiled, (lowered, self.program, self.seconds)

    def close(self) -> None:
        """Release threads, processes and memory."""
        self.program.close()
