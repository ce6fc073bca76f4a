"""Give an array another layout: plan, compile once, run.

array = meshweave.Array.from_numpy(value, mesh="x=2, y=2", layout="[x, _]")
moved = meshweave.redistribute(array, "[_*y, x]")
"""

import atexit
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, overload

from meshweave.api.program import shared
from meshweave.bundle import Bundle, numpy_dtype
from meshweave.errors import UsageError
from meshweave.frontends.python.builder import fail
from meshweave.frontends.python.place import constrain
from meshweave.frontends.python.tracer import Tracer
from meshweave.layout import Layout, Mesh
from meshweave.layout.arguments import as_layout
from meshweave.layout.digits import carried
from meshweave.layout.meshes import on_mesh
from meshweave.layout.spec import LayoutLike
from meshweave.plan.boxes import copied
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.simulate import simulate
from meshweave.plan.steps import PlanStep
from meshweave.runtime.arrays.array import Array, as_mesh
from meshweave.runtime.engine import Engine, Executable
from meshweave.runtime.engine import engine as engine_named
from meshweave.runtime.forks import new_reentrant_lock
from meshweave.runtime.job.current import ENGINE, engine_of, own_rank, ranks_here
from meshweave.runtime.limits import check_ranks
from meshweave.runtime.memory import Values
from meshweave.targets import engine_traits

TIMEOUT = 60.0  # seconds without progress of any rank
# Programs kept loaded: where they share this process's memory, and elsewhere.
KEPT, KEPT_APART = 16, 2


@overload
def redistribute(
    x: Array, layout: LayoutLike, engine: str = "local", *, mesh: Mesh | str | None = None
) -> Array: ...
@overload
def redistribute(
    x: Tracer, layout: LayoutLike, engine: str = "local", *, mesh: Mesh | str | None = None
) -> Tracer: ...
def redistribute(
    x: Array | Tracer,
    layout: LayoutLike,
    engine: str = "local",
    *,
    mesh: Mesh | str | None = None,
) -> Array | Tracer:
    """Give the same global value another layout, on its mesh or on another one.

    x: an Array, which `engine` moves at once; or a traced value, for which this is `constrain`.
    layout: text, `P(...)` or a Layout. The result shares the shards of x if nothing has to move.
    mesh: where the value goes, as from training to serving; None: it stays on its own mesh. Within one process a mesh
          of any ranks, each of which reads what it will hold and nothing else. In a job (`mw.init`) other axes of the
          same ranks, by one plan as a rule, or one rank, each process its own.
    Raises LayoutError (inside a traced function CompileError, at the line of the call) for a layout that does not fit
    x or the mesh, UsageError for an x of another kind, PlanError if there is no plan, RankError if a rank fails.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> rows = mw.Array.from_numpy(np.arange(8).reshape(2, 4), mesh="x=2", layout="[x, _]")
    >>> mw.redistribute(rows, "[_, x]").shards[1].tolist()
    [[2, 3], [6, 7]]
    """
    if isinstance(x, Tracer):
        if mesh is not None:
            fail(f"redistribute: mesh ({mesh}): a program has one mesh, that of its values")
        return constrain(x, layout)
    if mesh is None or not isinstance(x, Array) or as_mesh(mesh) == x.mesh:
        return moved(x, layout, engine)
    return _carried(x, layout, as_mesh(mesh), engine)


def _carried(array: Array, layout: LayoutLike, mesh: Mesh, engine: str) -> Array:
    """Take an array to another mesh: by a plan where it has as many ranks, else each rank reads what it will hold."""
    target = as_layout(layout, len(array.shape))
    if mesh.is_symbolic or mesh.ranks_to_arrange is not None:
        raise UsageError(f"redistribute: mesh ({mesh}) has no axes of known sizes")
    target.check(mesh, array.shape)
    if array.kind.rank is not None and mesh.nranks == 1:
        whole = moved(array, Layout.replicated(len(array.shape)), engine)
        alone = Array(whole.here, mesh, whole.layout, array.shape, array.dtype_name)
        return moved(alone, target, engine)
    is_same_size = mesh.nranks == array.mesh.nranks
    if is_same_size and (array.kind.rank is not None or engine != "local"):
        return _renumbered(array, target, mesh, engine)
    ranks_here(mesh)  # refuses meshes that a job has no ranks for
    check_ranks(engine, mesh)
    whole = moved(array, array.layout.without_partial(), engine)
    plain = target.without_partial()
    if own_rank(mesh) is not None:
        given = Array.from_numpy(whole.numpy(), mesh=mesh, layout=plain, dtype=array.dtype_name)
        return moved(given, target, engine)
    shards = carried(whole.held, (whole.mesh, whole.layout), (mesh, plain), array.shape)
    return moved(Array(shards, mesh, plain, array.shape, array.dtype_name), target, engine)


def _renumbered(array: Array, target: Layout, mesh: Mesh, engine: str) -> Array:
    """Take an array to a mesh of the same ranks: by one plan, on the mesh in whose axes both layouts can be said.

    Where there is none, because of sums, memory orders or nested sizes, these are undone before and done behind.
    """
    for middle in (array.mesh, mesh, _row(mesh)):
        ends = on_mesh(array.layout, array.mesh, middle), on_mesh(target, mesh, middle)
        if ends[0] is not None and ends[1] is not None:
            there = moved(_said(array, middle, ends[0]), ends[1], engine)
            return _said(there, mesh, target)
    plain = moved(array, _bare(array.layout), engine)
    return moved(_renumbered(plain, _bare(target), mesh, engine), target, engine)


def _row(mesh: Mesh) -> Mesh:
    """Return the mesh of the same ranks along one axis."""
    return Mesh(r=mesh.nranks)


def _said(array: Array, mesh: Mesh, layout: Layout) -> Array:
    """Return an array of the same shards, which are those of this layout too."""
    return Array(array.here, mesh, layout, array.shape, array.dtype_name, array.kind.rank)


def _bare(layout: Layout) -> Layout:
    """Return a layout without what only some meshes can say: pending reductions, memory orders, nested sizes."""
    return Layout(layout.dims)


def moved(array: Array, layout: LayoutLike, engine: str) -> Array:
    """Redistribution the shards of an array by the cheapest plan.

    A small array that moves for the first time is moved by NumPy, step by step, which takes less time than compiling.
    For the next one of the same mesh, shape, dtype and layouts code is compiled and kept.
    """
    if not isinstance(array, Array):
        raise UsageError(f"redistribute: an Array is needed, got {type(array).__name__}")
    target = as_layout(layout, len(array.shape))
    target.check(array.mesh, array.shape)
    itemsize = numpy_dtype(array.dtype_name).itemsize
    engine = engine_of(engine, array.mesh)
    steps = plan_redistribute(array.layout, target, array.mesh, array.shape, itemsize).steps
    move = Redistribution(
        array.layout, target, array.mesh, array.shape, array.dtype_name, steps, engine
    )
    if array.kind.rank is not None:
        if steps:
            return run_part(move, array)
        return Array(array.here, array.mesh, target, array.shape, array.dtype_name, array.kind.rank)
    shards = replayed(move, array.shards) if _ONCE.first(move) else run(move, array.shards)
    return Array(shards, array.mesh, target, array.shape, array.dtype_name)


REPLAYED = 1 << 22  # bytes of all shards up to which moving them once takes less than to compile


class Redistribution(NamedTuple):
    """Describe a planned redistribution: everything that its code depends on."""

    source: Layout
    target: Layout
    mesh: Mesh
    shape: tuple[int, ...]
    dtype: str
    steps: tuple[PlanStep, ...]
    engine: str


class _Once:
    """Remember redistributions made once, without code; the oldest beyond `most` are forgotten."""

    def __init__(self, most: int = 1024) -> None:
        self._lock, self._moves, self._most = new_reentrant_lock(), OrderedDict[Any, None](), most

    def first(self, move: Redistribution) -> bool:
        """Tell whether to do this one without code: it is new, small, and only copies."""
        if not engine_traits(move.engine).reads_peers:
            return False
        kind = move[:5]  # which decide about the steps
        with self._lock:
            if kind in self._moves:
                return False
            self._moves[kind] = None
            while len(self._moves) > self._most:
                self._moves.popitem(last=False)
        sizes = (layout.allocation_shape(move.mesh, move.shape) for layout in move[:2])
        nbytes = max(map(prod, sizes)) * move.mesh.nranks * numpy_dtype(move.dtype).itemsize
        return nbytes <= REPLAYED and not any(step.kind for step in move.steps)


_ONCE = _Once()


def replayed(move: Redistribution, shards: Sequence[Values]) -> list[Values]:
    """Return every rank's allocation after the steps, computed by NumPy: at once between blocks, else by step."""
    check_ranks(move.engine, move.mesh)
    source, target = move.source, move.target
    if move.steps and source.is_block and target.is_block and source.partial == target.partial:
        return copied(source, target, move.mesh, move.shape, shards)
    return list(simulate(move.steps, shards, move.mesh, move.shape).shards)


def run(move: Redistribution, shards: Sequence[Values]) -> list[Values]:
    """Return every rank's allocation after the steps, run on an engine. Raises MeshweaveError if they cannot run."""
    runner = engine_named(move.engine, timeout=TIMEOUT)  # refuses what is no engine
    if not move.steps:
        runner.close()
        return list(shards)
    with _LOADED.lock:
        executable = _LOADED.get(move, runner)
        outputs = executable.run([[shard] for shard in shards])
    return [row[0] for row in outputs]


def run_part(move: Redistribution, array: Array) -> Array:
    """Return this rank's part of an array of a job after the steps."""
    with _LOADED.lock:
        executable: Any = _LOADED.get(move, engine_named(move.engine, timeout=TIMEOUT))
        made: Array = executable.run_arrays([array])[0]
    return made


class _Loaded:
    """Keep programs, the one used last at the end. A run holds the lock: a program runs once at a time."""

    def __init__(self) -> None:
        self.lock = new_reentrant_lock()
        self._programs: OrderedDict[Redistribution, tuple[Executable, Engine]] = OrderedDict()

    def get(self, move: Redistribution, runner: Engine) -> Executable:
        """Return the program of a redistribution, loaded by `runner` if it is new."""
        if move in self._programs:
            runner.close()
            self._programs.move_to_end(move)
            return self._programs[move][0]
        try:
            executable = runner.load(compiled(move))
        except BaseException:
            runner.close()
            raise
        same = [other for other in self._programs if other.engine == move.engine]
        most = KEPT if engine_traits(move.engine).reads_peers else KEPT_APART
        for other in same[: max(0, len(same) + 1 - most)]:
            self._close(other)
        self._programs[move] = (executable, runner)
        return executable

    def clear(self) -> None:
        """Release all programs."""
        with self.lock:
            for move in list(self._programs):
                self._close(move)

    def _close(self, move: Redistribution) -> None:
        executable, runner = self._programs.pop(move)
        executable.close()
        runner.close()


_LOADED = _Loaded()
atexit.register(_LOADED.clear)


def clear() -> None:
    """Release the programs that are kept, with the threads and processes that wait for the next array."""
    _LOADED.clear()


def compiled(move: Redistribution) -> Bundle:
    """Return the bundle of a redistribution, read from the disk if an earlier process has compiled it."""
    check_ranks(move.engine, move.mesh)
    return shared(
        ("move", *map(str, move[:5]), move.engine, *map(str, move.steps)),
        lambda: _compiled(move),
        f"redistribute {move.source} to {move.target}" if move.engine == ENGINE else "",
    )


def _compiled(move: Redistribution) -> Bundle:
    from meshweave.dialects import lent_context
    from meshweave.ir.bindings import ir
    from meshweave.lowering import compile_program
    from meshweave.pipeline import run_pipeline

    with lent_context() as ctx, ctx, ir.Location.unknown(ctx):
        module = ir.Module.parse(module_text(move))
        run_pipeline(module, "dist-partition,canonicalize,cse")
        return compile_program(module, move.engine)


def module_text(move: Redistribution) -> str:
    """Return the program as text: one redistribute with its plan."""
    from meshweave.transforms.redistribution.legalize_redistribute import step_attr

    sizes = "".join(f"{size}x" for size in move.shape)
    type_ = f"tensor<{sizes}{move.dtype}>"
    first, last = (f'#dist.layout<"{layout}">' for layout in (move.source, move.target))
    steps = ", ".join(str(step_attr(step)) for step in move.steps)
    return (
        f'"dist.mesh"() {{sym_name = "mesh", axes = "{move.mesh}"}} : () -> ()\n'
        f"func.func @main(%a: {type_} {{dist.layout = {first}}}) -> "
        f"({type_} {{dist.layout = {last}}}) {{\n"
        f'  %r = "dist.redistribute"(%a) {{source = {first}, target = {last}, '
        f"plan = [{steps}]}} : ({type_}) -> {type_}\n"
        f"  return {{dist.layouts = {{operands = [{last}], results = []}}}} %r : {type_}\n}}\n"
    )
