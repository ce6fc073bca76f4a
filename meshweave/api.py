"""compile() and Program: frontend, pipeline, lowering and engine in one call.

program = meshweave.compile("block.mlir", mesh="dp=2, tp=2")
(y,) = program(x, w1, w2)                # global NumPy arrays in, global NumPy arrays out
"""

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meshweave.bundle import Bundle, Port, numpy_dtype
from meshweave.cache import cached
from meshweave.errors import CompileError, MeshweaveError, UsageError
from meshweave.fast_paths import ALL, Choice, as_choice
from meshweave.layout import Mesh
from meshweave.pipeline_text import GLOBAL_PASSES
from meshweave.progress import Bar
from meshweave.runtime.array import collect, place
from meshweave.runtime.engine import engine as engine_named
from meshweave.runtime.limits import check_ranks
from meshweave.sources import read_source
from meshweave.targets import Goal

Progress = Callable[[str], None]
_SMALL = 1 << 16  # bytes of a program's text


def passes_with(
    kernels: Choice = ALL, passes: Sequence[str] = GLOBAL_PASSES, target: str = "cpu"
) -> tuple[str, ...]:
    """The passes for a target, `select-kernels` with the kernels that `kernels` disables and enables."""
    options = {"hint-apply": [], "hint-budget": [], "select-kernels": []}  # type: dict[str, list[str]]
    if kernels.disabled:
        for name in ("select-kernels", "hint-budget"):
            options[name].append(f"disable={','.join(kernels.disabled)}")
    if kernels.enabled:
        options["select-kernels"].append(f"enable={','.join(kernels.enabled)}")
    if target != "cpu":
        for found in options.values():
            found.append(f"target={target}")
    return tuple(
        f"{name}{{{' '.join(found)}}}" if (found := options.get(name)) else name for name in passes
    )


def _silent(_: str) -> None:
    pass


def compile(
    source: "str | os.PathLike[str]",
    *,
    mesh: "str | Mesh | None" = None,
    engine: str | None = None,
    target: str | None = None,
    chip: str | None = None,
    progress: Progress | None = None,
    timeout: float = 60.0,
    kernels: "str | Choice | None" = None,
) -> "Program":
    """Compile a program for a mesh and load it.

    source:   a file, or its text: StableHLO as JAX exports it (with Shardy shardings), or MLIR with `dist` ops.
    mesh:     sizes to use instead of the module's own, with the same axis names; None: the module's, or one rank.
    engine:   what runs it: "local" (a thread per rank, the default) or "mpi" (a process per rank) on target cpu,
              "nccl" (a process per gpu, the default) or "emulate" (no gpu needed) on target gpu.
    target:   what code is made for: "cpu" or "gpu"; by default what the engine runs. chip: the gpu, "sm_90".
    progress: called with the name of each stage as it begins; by default a bar shows what takes long on a terminal.
    timeout:  seconds without progress of any rank after which a run ends with RankError.
    kernels:  fast paths that ops may take: "-flash" for all but that one, "reference" for that one only,
              "+gemm_tf32" for one that is off by default.
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
    began = time.perf_counter()
    goal = Goal.of(target, engine, chip)
    runs_on = engine_named(goal.engine, timeout=timeout)
    bundle = build(
        source, mesh=mesh, engine=goal.engine, chip=chip, progress=progress, kernels=kernels
    )
    if progress is not None:
        progress("load")
    program = Program(bundle, runs_on)
    program.seconds["compile"] = time.perf_counter() - began
    return program


def build(
    source: "str | os.PathLike[str]",
    *,
    mesh: "str | Mesh | None" = None,
    engine: str | None = None,
    target: str | None = None,
    chip: str | None = None,
    progress: Progress | None = None,
    name: str | None = None,
    whole: bool = False,
    kernels: "str | Choice | None" = None,
) -> Bundle:
    """The bundle of a program: everything of `compile` but loading it.

    name:  `source` is text, and this is what errors call it.
    whole: `mesh` has one rank, where a layout beyond blocks (of sub-axes, with extents listed) may not fit: there the
           whole tensor stands for it.
    What an earlier process has compiled is read from the disk (`meshweave.cache`).
    """
    if not isinstance(source, str | os.PathLike):
        raise UsageError(
            f"source: a path or a program's text is needed, got {type(source).__name__}"
        )
    where, choice, goal = _mesh(mesh), as_choice(kernels), Goal.of(target, engine, chip)
    if progress is not None:
        progress("read")
    text, own_name = read_source(source, name is not None)
    name = name or own_name
    bundle, found = cached(
        (
            *("program", text, name, where and str(where), goal, _tools(goal), whole),
            *(choice.disabled, choice.enabled),
        ),
        lambda: _built(text, name, where, goal, progress, whole, choice),
    )
    if found and bundle.manifest.mesh:  # by a machine that takes more ranks, it may be
        check_ranks(goal.engine, Mesh.parse(bundle.manifest.mesh))
    return bundle


def _tools(goal: Goal) -> tuple[str, ...]:
    """What makes code besides MLIR."""
    if goal.target != "gpu":
        return ()
    from meshweave.lowering.gpu.toolchain import versions

    return versions()


def _built(
    text: str,
    name: str,
    mesh: Mesh | None,
    goal: Goal,
    progress: Progress | None,
    whole: bool,
    kernels: Choice,
) -> Bundle:
    """What `build` gives, compiled."""
    from meshweave.lowering import bundle_of

    with (
        Bar(f"compiling {os.path.basename(name)}", len(GLOBAL_PASSES) + 3) as bar,
        lowered(text, name, mesh, goal.engine, progress or bar, whole, kernels=kernels) as (
            _,
            made,
        ),
    ):
        (progress or bar)("code")
        return bundle_of(made, goal, kernels)


@contextmanager
def lowered(
    text: str,
    name: str,
    mesh: Mesh | None,
    engine: str = "local",
    progress: Progress = _silent,
    whole: bool = False,
    strip: bool = False,
    kernels: Choice = ALL,
) -> Iterator[tuple[Any, Any]]:
    """Inside: the module in the local view, with its ledger, and the program before code generation.

    strip: without its hints. The rest as of `build`.
    """
    from meshweave.bindings import ir, lent_context
    from meshweave.frontends import load_module
    from meshweave.frontends.entry import check_entry
    from meshweave.lowering.hint_budget import check_budgets
    from meshweave.lowering.program import lower
    from meshweave.pipeline import run_pipeline
    from meshweave.transforms.interface import forget_interfaces

    with _collector_paused(), lent_context(len(text) <= _SMALL) as ctx, ctx:
        module = load_module(text, ctx, name)
        check_entry(module)
        if whole:
            forget_interfaces(module)
        check_ranks(engine, _placed(module, mesh))
        chosen = passes_with(kernels, target=Goal.of(engine=engine).target)
        passes = ("hint-strip", *chosen) if strip else chosen
        run_pipeline(module, ",".join(passes), progress=progress, verify=False)
        progress("lower")
        _verified(module)
        with ir.Location.unknown():
            program = lower(module, engine, kernels.disabled)
            check_budgets(module, program)
            yield module, program


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No garbage collection inside: compiling makes millions of values and few cycles; looking for them takes a tenth
    of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _verified(module: Any) -> None:
    """Verify, when the mesh has changed and behind all passes: after each it would take as long as the passes."""
    from meshweave.bindings import ir
    from meshweave.locations import compile_error

    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise compile_error(error) from None


def _mesh(mesh: "str | Mesh | None") -> Mesh | None:
    """The mesh that an argument means. UsageError when it is none."""
    if mesh is None or isinstance(mesh, Mesh):
        return mesh
    if not isinstance(mesh, str):
        raise UsageError(f"mesh: text or a Mesh is needed, got {type(mesh).__name__}")
    try:
        parsed = Mesh.parse(mesh)
    except MeshweaveError as error:
        raise UsageError(f"mesh: {error}") from None
    if parsed.is_symbolic:
        raise UsageError(f"mesh: {parsed} has a symbol for a size, a number is needed")
    return parsed


def _placed(module: Any, mesh: Mesh | None) -> Mesh:
    """Let the module's mesh be `mesh`: another's sizes, or a mesh where it had none (by default that of one rank)."""
    from meshweave.locations import location_text
    from meshweave.transforms.mesh import mesh_of_module, mesh_op
    from meshweave.transforms.specialize_mesh import SpecializeMesh

    op = mesh_op(module)
    if op is None:
        _add_mesh(module, mesh or Mesh())
        _verified(module)  # the layouts that it has, against a mesh that nobody has looked at yet
        return mesh or Mesh()
    own = mesh_of_module(module)
    where = location_text(op)
    if mesh is None and own.is_symbolic:
        raise CompileError(f"mesh ({own}) has symbolic sizes: say which mesh to compile for", where)
    if mesh is None:
        return own
    if not mesh.axes:
        raise CompileError(
            f"the program needs axes {', '.join(own.names)}, the mesh given has none", where
        )
    SpecializeMesh(mesh=str(mesh)).run(module)
    _verified(module)
    return mesh


def _add_mesh(module: Any, mesh: Mesh) -> None:
    from meshweave.bindings import ir

    with ir.Location.unknown(module.context):
        ir.Operation.create(
            "dist.mesh",
            attributes={
                "sym_name": ir.StringAttr.get("mesh"),
                "axes": ir.StringAttr.get(str(mesh)),
            },
            ip=ir.InsertionPoint.at_block_begin(module.body),
        )


@dataclass
class Program:
    """A compiled program, loaded by an engine. Call it with global arrays; close it (or leave its `with`) when done.

    bundle:  what was compiled, or read from a file.
    engine:  what runs it: `meshweave.runtime.engine("local")`. It is closed with the program.
    seconds: that compiling took (where it is known), and the last run, by "compile" and "run".

    A call takes NumPy arrays, or Arrays that lie right, in the order of `inputs`, and gives a tuple of NumPy arrays.
    Raises MeshweaveError where the engine cannot load the bundle, and from a call for arguments that do not fit, naming
    the argument and the dim; RankError when a rank fails.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> from meshweave.runtime import engine
    >>> bundle = mw.jit(lambda x: x + x).lower(np.ones(3, np.float32)).compile().program.bundle
    >>> with mw.Program(bundle, engine("local")) as program:
    ...     program(np.arange(3, dtype=np.float32))[0].tolist()
    [0.0, 2.0, 4.0]
    """

    bundle: Bundle
    engine: Any
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        manifest = self.bundle.manifest
        self.mesh = Mesh.parse(manifest.mesh) if manifest.mesh else Mesh()
        try:
            self.executable = self.engine.load(self.bundle)
        except BaseException:
            self.engine.close()
            raise

    @property
    def inputs(self) -> Sequence[Port]:
        """What it takes, in order: name, dtype, global and local shape, layout."""
        return self.bundle.manifest.inputs

    @property
    def outputs(self) -> Sequence[Port]:
        """What it gives, in order."""
        return self.bundle.manifest.outputs

    @property
    def peak_bytes(self) -> int:
        """The most bytes a rank holds at a time: its inputs, its results and the arena of everything between."""
        ports = (*self.inputs, *self.outputs)
        return self.bundle.manifest.arena_bytes + sum(port.nbytes for port in ports)

    def __call__(self, *arrays: Any) -> tuple[np.ndarray, ...]:
        """Run it once. Raises MeshweaveError for wrong arguments, RankError when a rank fails."""
        shards = place(self.executable, arrays)
        began = time.perf_counter()
        results = self.executable.run(shards)
        self.seconds["run"] = time.perf_counter() - began
        return tuple(array.numpy() for array in collect(self.executable, results))

    def close(self) -> None:
        """Let go of threads, processes and memory."""
        self.executable.close()
        self.engine.close()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def random_arguments(ports: Sequence[Port], seed: int) -> list[np.ndarray]:
    """Arguments from a seed: normal numbers for floats, 0..99 for integers (as token ids), coin tosses for i1."""
    rng = np.random.default_rng(seed)
    return [_random(port, rng) for port in ports]


def _random(port: Port, rng: Any) -> np.ndarray:
    shape, dtype = port.global_shape, numpy_dtype(port.dtype)
    if port.dtype == "bf16":
        return rng.standard_normal(shape).astype(np.float32)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.integers(0, 100, shape).astype(dtype)


def one_rank(mesh: Mesh) -> Mesh:
    """The mesh with the same axes and one rank: the same program, unsharded."""
    return Mesh(**dict.fromkeys(mesh.names, 1))
