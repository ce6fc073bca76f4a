"""Compile a program and load it: frontend, pipeline, lowering and engine in one call.

program = meshweave.compile("block.mlir", mesh="dp=2, tp=2")
(y,) = program(x, w1, w2)                # global NumPy arrays in, global NumPy arrays out
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from meshweave.api.callables.waiting import in_a_thread
from meshweave.api.compiling.donations import Donations, donated_numbers
from meshweave.api.compiling.meshes import (
    arrange,
    axis_names,
    check_mesh,
    give_mesh,
    mesh_of,
    own_mesh,
)
from meshweave.api.compiling.rank_program import Progress, RankRecipe, collector_paused, silent
from meshweave.api.progress import Bar
from meshweave.bundle import Bundle, Port, numpy_dtype, port_bytes
from meshweave.cache import cached, found
from meshweave.errors import MeshweaveError, UsageError
from meshweave.files.sources import Source, program_source
from meshweave.hints.fast_paths import ALL, Choice, as_choice
from meshweave.hints.keys import Hint
from meshweave.ir.pipeline_text import GLOBAL_PASSES
from meshweave.layout import Mesh
from meshweave.report import Report
from meshweave.runtime.arrays.array import Array, collect, place, run_arrays
from meshweave.runtime.engine import Engine
from meshweave.runtime.engine import engine as engine_named
from meshweave.runtime.job import current
from meshweave.runtime.limits import check_ranks
from meshweave.runtime.watched import told_compiled
from meshweave.runtime.weights.bundled import weights_of
from meshweave.see.trace import RankTrace
from meshweave.targets import Goal

if TYPE_CHECKING:  # here, for what is read from the disk needs no compiler
    from meshweave.ir.bindings import ir
    from meshweave.plan.placement.goal import PlacementGoal
    from meshweave.plan.placement.prices import MachinePrices
    from meshweave.see.page import Page

STAGES = len(GLOBAL_PASSES) + 4  # about how many `progress` is called with
NONE_DONATED: Mapping[int, str] = MappingProxyType({})


def compile(
    source: "str | os.PathLike[str] | Source",
    *,
    mesh: "str | Mesh | None" = None,
    engine: str | None = None,
    target: str | None = None,
    chip: str | None = None,
    progress: Progress | None = None,
    timeout: float | None = None,
    kernels: "str | Choice | None" = None,
    verify: bool = True,
    flight: str | None = None,
    donate: Donations = (),
    layouts: str | None = None,
    peak_bytes: int | str | None = None,
    objective: str = "time",
) -> "Program":
    """Compile a program for a mesh and load it.

    source:   a file, or its text: StableHLO as JAX exports it (with Shardy shardings), or MLIR with `dist` ops; or
              what `meshweave.files.sources.program_source` has read of it.
    mesh:     sizes to use instead of the module's own, with the same axis names; None: the module's, or one rank;
              "auto=4": so many ranks, whose axes and layouts are chosen (`docs/placement.md`).
    engine:   what runs it: "local" (a thread per rank, the default) or "mpi" (a process per rank) on target cpu,
              "nccl" (a process per gpu, the default) or "emulate" (no gpu needed) on target gpu.
    target:   what code is made for: "cpu" or "gpu"; by default what the engine runs. chip: the gpu, "sm_90".
    progress: called with the name of each stage as it begins; by default a bar shows what takes long on a terminal.
    timeout:  seconds without progress after which a run ends with RankError; None: 60 while a rank
              waits for another, and no limit while all compute.
    kernels:  fast paths that ops may take: "-flash" for all but that one, "reference" for that one only,
              "+gemm_tf32" for one that is off by default.
    verify:   check the program of one rank against the whole program (`docs/verify.md`): a wrong one is refused.
    flight:   a folder where a run that fails leaves what each rank did last, for `meshweave doctor --dump`.
    donate:   numbers of arguments whose buffers results may take, besides those that the program itself donates; a dict
              gives each its strength, "preferred" (the default) or "required".
    layouts:  "auto": what the program does not say of layouts is chosen at the least predicted time; None: propagated.
    peak_bytes: the intermediate bytes that a rank may take, "64MiB": as `mw.hint(peak_bytes=..)` around all of it.
              With layouts="auto" those of arguments and results count too, and layouts are chosen within the bound.
    objective: what layouts="auto" minimises: predicted "time", the "bytes" of a rank, or "bytes within 2e-3" seconds.
    Raises MeshweaveError: the program, its mesh or its layouts are wrong, or too large for this machine. UsageError:
    the arguments are.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> text = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"
    >>> with mw.compile(text) as program:
    ...     (y,) = program(np.arange(4, dtype=np.float32))
    >>> y.tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    began, where = time.perf_counter(), mesh_of(mesh)
    arranged = where is not None and where.ranks_to_arrange is not None
    auto = aim("auto" if arranged and layouts is None else layouts, objective)
    if current.current() is not None and (target or Goal.target) == Goal.target:
        source = source if isinstance(source, Source) else program_source(source, False)
        on = where or own_mesh(source)
        engine = current.engine_of(engine or Goal.engine, on)
    goal = Goal.of(target, engine, chip)
    runs_on = engine_named(goal.engine, timeout=timeout, flight=flight)
    bundle = build(
        source,
        mesh=where,
        engine=goal.engine,
        chip=chip,
        progress=progress,
        kernels=kernels,
        here=True,
        verify=verify,
        donate=donate,
        peak_bytes=peak_bytes,
        auto=auto,
    )
    if progress is not None:
        progress("load")
    program = Program(bundle, runs_on)
    program.seconds["compile"] = time.perf_counter() - began
    return program


def build(
    source: "str | os.PathLike[str] | Source",
    *,
    mesh: "str | Mesh | None" = None,
    engine: str | None = None,
    target: str | None = None,
    chip: str | None = None,
    progress: Progress | None = None,
    name: str | None = None,
    whole: bool = False,
    kernels: "str | Choice | None" = None,
    here: bool = False,
    verify: bool = True,
    donate: Donations = (),
    names: Sequence[str] = (),
    machine: "MachinePrices | None" = None,
    peak_bytes: int | str | None = None,
    auto: "PlacementGoal | None" = None,
) -> Bundle:
    """Compile a program to a bundle, without loading it; the arguments are those of `compile`.

    name:  what errors call a `source` that is text.
    whole: for a `mesh` of one rank, keep tensors whole where a layout (of sub-axes, with extents listed) does not fit.
    here:  it is to run on this machine: refuse more ranks than it takes, before the work of compiling.
    names: what reports call the arguments, and behind them all the results.
    auto:  what layouts are chosen for; None: they are not, unless the axes of the mesh are.
    What an earlier process has compiled is read from the disk (`meshweave.cache`).
    """
    if not isinstance(source, str | os.PathLike | Source):
        raise UsageError(
            f"source: a path or a program's text is needed, got {type(source).__name__}"
        )
    where, choice, goal = mesh_of(mesh), as_choice(kernels), Goal.of(target, engine, chip)
    given = donated_numbers(donate)
    hints = budget_hints(peak_bytes)
    if progress is not None:
        progress("read")
    read = program_source(source, name is not None)
    text, name = read.text, name or read.name
    here_made: list[Bundle] = []

    def make() -> Bundle:
        here_made.append(
            _built(
                *(text, name, where, goal, progress, whole, choice, here, verify, given, auto),
                *(machine, hints),
            )
        )
        return here_made[0]

    made = shared(
        (
            *("program", text, name, where and str(where), goal, _tools(goal), whole),
            *(choice.disabled, choice.enabled, verify, tuple(given.items()), auto, machine, hints),
        ),
        make,
        os.path.basename(name) if goal.engine == current.ENGINE and here else "",
    )
    told_compiled()
    is_kept = not here_made and current.current() is None  # else rank 0 may have made it
    origin = _Once(
        *(reported, text, name, where, goal.engine, whole, choice, False, given, names, auto),
        *(machine, hints),
    )
    return replace(made.with_weights(read.weights), origin=origin, is_kept=is_kept)


def reported(
    text: str,
    name: str,
    mesh: Mesh | None,
    engine: str,
    whole: bool = False,
    kernels: Choice = ALL,
    verify: bool = True,
    donate: Mapping[int, str] = NONE_DONATED,
    names: Sequence[str] = (),
    auto: "PlacementGoal | None" = None,
    machine: "MachinePrices | None" = None,
    hints: Sequence[Hint] = (),
    strip: bool = False,
) -> Report:
    """Report what compiling a program decides: memory, slices, what became of each hint, kernels, collectives and why.

    The program is compiled again for this, without code generation. The arguments are those of `build`. strip: leave
    all hints out, and reasons.
    """
    from meshweave.lowering.report import report_of

    made = lowered(
        *(text, name, mesh, engine), whole=whole, kernels=kernels, verify=verify, donate=donate,
        reasons=None if strip else names, auto=auto, machine=machine, hints=() if strip else hints,
        strip=strip,
    )  # fmt: skip
    with made as (module, program):
        return report_of(module, program)


def shared(parts: Sequence[object], make: Callable[[], Bundle], name: str) -> Bundle:
    """Return the bundle that `make` gives or gave for equal parts; in a job rank 0 makes it, for all.

    name: what the program is called in messages to ranks that do something else; empty for a program of this process
    alone.
    """
    job = current.current()
    if job is None or not name:
        return cached(parts, make)[0]
    job.agree(hashlib.sha256(repr(tuple(parts)).encode()).digest(), lambda: f"compile {name}")
    data = job.from_first(lambda: cached(parts, make)[0].to_bytes(), lambda: found(parts))
    return Bundle.from_bytes(data)


class _Once:
    """Make a report when it is first asked for, and keep it; another one of the program without its hints."""

    def __init__(self, make: Callable[..., Report], *given: Any, **more: Any) -> None:
        self._make = partial(make, *given, **more)
        self._made: dict[bool, Report] = {}

    def __call__(self, strip: bool = False) -> Report:
        """Return the report."""
        if strip not in self._made:
            self._made[strip] = self._make(strip=strip)
        return self._made[strip]


def _tools(goal: Goal) -> tuple[str, ...]:
    """Return the versions of what makes code besides MLIR."""
    if not goal.chip:
        return ()
    from meshweave.lowering.gpu.toolchain.versions import versions

    return versions()


def _built(
    text: str,
    name: str,
    mesh: Mesh | None,
    goal: Goal,
    progress: Progress | None,
    whole: bool,
    kernels: Choice,
    here: bool,
    verify: bool,
    donate: Mapping[int, str],
    auto: "PlacementGoal | None",
    machine: "MachinePrices | None",
    hints: Sequence[Hint],
) -> Bundle:
    """Compile what `build` has not found on the disk."""
    from meshweave.lowering import bundle_of

    if is_finished(text) and not hints:
        from meshweave.lowering import finished_bundle

        with finished(text, name, goal) as module:
            return finished_bundle(module, goal)
    with (
        Bar(f"compiling {os.path.basename(name)}", STAGES) as bar,
        lowered(
            *(text, name, mesh, goal.engine, say := progress or bar, whole),
            kernels=kernels,
            here=here,
            verify=verify,
            later=True,
            donate=donate,
            auto=auto,
            machine=machine,
            hints=hints,
        ) as (_, made),
    ):
        say("code")
        return bundle_of(made, goal, kernels)


def is_finished(text: str) -> bool:
    """Tell whether a program has the code of a target already: to-llvm or to-gpu has printed it."""
    return "mw.program" in text and ("llvm.func @step(" in text or "gpu.container_module" in text)


@contextmanager
def finished(text: str, name: str, goal: Goal) -> "Iterator[ir.Module]":
    """Give the module of a text that `is_finished`, if it is for the engine of a goal."""
    from meshweave.dialects import lent_context
    from meshweave.frontends.load import load_module
    from meshweave.ir.bindings import ir
    from meshweave.lowering.stages import check_engine

    with lent_context(len(text)) as ctx, ctx, ir.Location.unknown():
        module = load_module(text, ctx, name)
        check_engine(module, goal.engine)
        yield module


@contextmanager
def lowered(
    text: str,
    name: str,
    mesh: Mesh | None,
    engine: str = "local",
    progress: Progress = silent,
    whole: bool = False,
    strip: bool = False,
    kernels: Choice = ALL,
    here: bool = False,
    verify: bool = True,
    later: bool = False,
    donate: Mapping[int, str] = NONE_DONATED,
    reasons: Sequence[str] | None = None,
    auto: "PlacementGoal | None" = None,
    machine: "MachinePrices | None" = None,
    hints: Sequence[Hint] = (),
) -> Iterator[tuple[Any, Any]]:
    """Give the module in the local view, with its ledger, and the program before code generation.

    strip: remove its hints first. later: leave the checks to `bundle_of`, which makes them beside code generation.
    reasons: find why tensors move, and call the arguments so there. auto: place it for this, do not propagate.
    hints: what holds around all of it. The other arguments are those of `build`.
    """
    from meshweave.dialects import lent_context
    from meshweave.frontends.entry import check_entry
    from meshweave.frontends.load import load_module
    from meshweave.ir.bindings import ir
    from meshweave.lowering.stages import GLOBAL, stage_of
    from meshweave.plan.placement.goal import PlacementGoal
    from meshweave.transforms.propagation.donate import mark_donated
    from meshweave.transforms.propagation.interface import forget_interfaces
    from meshweave.transforms.propagation.within_bytes import best_within, is_bounded
    from meshweave.transforms.slicing.apply import hint_whole

    with collector_paused(), lent_context(len(text)) as ctx, ctx:
        module = load_module(text, ctx, name)
        with ir.Location.unknown():
            is_whole = stage_of(module) == GLOBAL
            if is_whole:
                check_entry(module)
                if donate:
                    mark_donated(module, donate)
                if hints:
                    hint_whole(module, hints)
                if whole:
                    forget_interfaces(module)
                named = axis_names(module)
                placed = give_mesh(module, mesh)
                if placed.ranks_to_arrange is not None:
                    auto = auto or PlacementGoal()
                    placed = arrange(module, placed, named, machine, auto)
                if here:
                    check_ranks(engine, placed)
            else:
                check_mesh(module, mesh)
                if hints:
                    told = "; ".join(f"{hint.key} = {hint.value}" for hint in hints)
                    raise UsageError(
                        f"{name}: {told}: this is one rank's program already: hints are for whole programs"
                    )

            how = (engine, progress, kernels, verify, later, strip, reasons, machine)
            recipe = RankRecipe(*how)
            is_timed = auto is not None and not auto.is_bytes
            if not is_whole:
                program = recipe.lowered(module)
            elif is_timed and not strip and is_bounded(module):
                module, program = best_within(module, recipe, machine)
            else:
                module, program = recipe.cut_and_lowered(module, auto)
            yield module, program


def budget_hints(peak_bytes: int | str | None) -> tuple[Hint, ...]:
    """Return the hints around a program that may take so many bytes. Raises HintError for what is no such number."""
    return () if peak_bytes is None else (Hint.make("peak_bytes", peak_bytes),)


def aim(layouts: str | None, objective: str = "time") -> "PlacementGoal | None":
    """Return what layouts are chosen for, as `layouts` and `objective` ask; None: they are not chosen.

    Raises UsageError if `layouts` is neither None nor "auto", or the objective is none.
    """
    from meshweave.plan.placement.goal import PlacementGoal

    if layouts not in (None, "auto"):
        raise UsageError(f'layouts={layouts!r:.40}: "auto" or None is right')
    goal = PlacementGoal.parse(objective)
    if layouts is None and goal.is_bytes:
        raise UsageError(f'objective={objective!r:.60} goes with layouts="auto"')
    return None if layouts is None else goal


@dataclass
class Program:
    """Hold a compiled program, loaded by an engine. Call it with global arrays; close it (or leave its `with`).

    bundle:  what was compiled, or read from a file.
    engine:  what runs it: `meshweave.runtime.engine("local")`. It is closed with the program.
    seconds: how long compiling (where known) and the last run took, as "compile" and "run".

    weights: the inputs that the program has itself, laid out once. name: what messages call it.

    A call takes NumPy arrays, or Arrays that lie right, in the order of `inputs`, and returns a tuple of NumPy arrays.
    Raises MeshweaveError if the engine cannot load the bundle, and from a call for arguments that do not fit, naming
    the argument and the dim; RankError if a rank fails.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> from meshweave.runtime import engine
    >>> bundle = mw.jit(lambda x: x + x).lower(np.ones(3, np.float32)).compile().program.bundle
    >>> with mw.Program(bundle, engine("local")) as program:
    ...     program(np.arange(3, dtype=np.float32))[0].tolist()
    [0.0, 2.0, 4.0]
    """

    bundle: Bundle
    engine: Engine
    seconds: dict[str, float] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        current.warn_of_launcher()
        manifest = self.bundle.manifest
        self.mesh = Mesh.parse(manifest.mesh) if manifest.mesh else Mesh()
        try:
            self.weights = tuple(weights_of(self.bundle))
            self.executable = self.engine.load(self.bundle)
            called: Any = self.executable
            if self.name and current.own_rank(self.mesh) is not None:
                called.called = self.name
        except BaseException:
            self.engine.close()
            raise

    @property
    def inputs(self) -> Sequence[Port]:
        """List the inputs that a call gives, in order: name, dtype, global and local shape, layout."""
        return self.bundle.manifest.given

    @property
    def outputs(self) -> Sequence[Port]:
        """List the results, in order."""
        return self.bundle.manifest.outputs

    @property
    def peak_bytes(self) -> int:
        """Return the most bytes a rank holds at a time: its inputs, its results and the arena of everything between."""
        ports = (*self.bundle.manifest.inputs, *self.outputs)
        return self.bundle.manifest.arena_bytes + port_bytes(ports)

    def __call__(self, *arrays: object) -> tuple[Any, ...]:
        """Run the program once. Raises MeshweaveError for wrong arguments, RankError when a rank fails.

        A result in the buffer of an Array that is donated is an Array again, the others are NumPy arrays; in a job
        (`mw.init`) all are Arrays, of which this process has its part.
        """
        if len(arrays) != len(self.inputs):
            raise MeshweaveError(f"{len(arrays)} inputs, the program has {len(self.inputs)}")
        results = self._run((*arrays, *self.weights))
        if current.own_rank(self.mesh) is not None:
            return tuple(results)
        return tuple(
            made
            if port.takes is not None and isinstance(arrays[port.takes], Array)
            else made.numpy()
            for made, port in zip(results, self.outputs, strict=True)
        )

    def view(
        self, trace: RankTrace | None = None, *, title: str = "", names: Sequence[str] = ()
    ) -> "Page":
        """Return the page about the program: what moves and why, layouts, time, memory. A notebook shows it.

        trace: what was measured, to show beside the prediction. title: of the page. names: of arguments and results.
        `view().save("page.html")` writes it: one file that needs no network. See docs/see.md.
        """
        from meshweave.see.account import before_hints, known_of  # here, for a call needs no page
        from meshweave.see.page import Page

        manifest, report = self.bundle.manifest, known_of(self.bundle)
        page = Page(
            title
            or f"program on {f'({self.mesh})' if self.mesh.names else 'one rank'}, engine {manifest.engine}",
            *(self.mesh, manifest.engine, report),
            ports=(*self.inputs, *self.outputs),
            names=tuple(names),
            before=before_hints(self.bundle) if report.regions else None,
        )
        return page.beside(trace)

    async def call_async(self, *arrays: object) -> tuple[Any, ...]:
        """Call it with the global `arrays` in a thread, while other coroutines run; `await` gives the results."""
        made: tuple[Any, ...] = await in_a_thread(self, arrays, {})
        return made

    def _run(self, values: Sequence[object]) -> list[Array]:
        with_arrays = any(isinstance(value, Array) for value in values)
        if with_arrays or current.own_rank(self.mesh) is not None:
            began = time.perf_counter()
            results = run_arrays(self.executable, values, len(self.weights))
        else:
            shards = place(self.executable, values)
            began = time.perf_counter()
            results = collect(self.executable, self.executable.run(shards))
        self.seconds["run"] = time.perf_counter() - began
        return results

    def __reduce__(self) -> Any:
        limit = getattr(self.engine, "timeout", None)
        return _unpickled, (
            self.bundle.to_bytes(),
            self.engine.name,
            limit,
            self.seconds,
            self.name,
        )

    def close(self) -> None:
        """Release threads, processes and memory."""
        self.executable.close()
        self.engine.close()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unpickled(
    data: bytes, engine: str, timeout: float | None, seconds: dict[str, float], name: str
) -> Program:
    """Load a program that was pickled in this process."""
    runs_on = engine_named(engine, timeout=timeout)
    return Program(Bundle.from_bytes(data, "a pickled program"), runs_on, seconds, name)


def random_arguments(ports: Sequence[Port], seed: int) -> list[np.ndarray]:
    """Make arguments from a seed: normal numbers for floats, 0 to 99 for integers (as token ids), random bools."""
    rng = np.random.default_rng(seed)
    return [_random(port, rng) for port in ports]


def _random(port: Port, rng: "np.random.Generator") -> np.ndarray[Any, Any]:
    shape, dtype = port.global_shape, numpy_dtype(port.dtype)
    if port.dtype == "bf16":
        return rng.standard_normal(shape).astype(np.float32)
    if dtype.kind == "f" or port.dtype.startswith("f8"):
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.integers(0, 100, shape).astype(dtype)


def one_rank(mesh: Mesh) -> Mesh:
    """Return the mesh with the same axes and one rank: that of the same program, unsharded."""
    return Mesh(**dict.fromkeys(mesh.names, 1))
