"""Give an array another layout: plan, compile once, run.

array = meshweave.Array.from_numpy(value, mesh="x=2, y=2", layout="[x, _]")
moved = meshweave.redistribute(array, "[_*y, x]")
"""

import atexit
from collections import OrderedDict
from collections.abc import Sequence
from math import prod
from threading import RLock
from typing import Any, NamedTuple

from meshweave.bundle import numpy_dtype
from meshweave.cache import cached
from meshweave.errors import UsageError
from meshweave.layout import Layout, Mesh
from meshweave.plan.boxes import copied
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.simulate import simulate
from meshweave.plan.steps import Step
from meshweave.runtime.array import Array, Values, as_layout
from meshweave.runtime.engine import engine as engine_named
from meshweave.runtime.limits import check_ranks

TIMEOUT = 60.0  # seconds without progress of any rank
KEPT = {"local": 16, "mpi": 2}  # programs kept loaded, of each engine: those of mpi are processes
KEPT_ELSE = 2  # of any other engine: they hold a gpu, or stand in for one


def redistribute(array: Array, layout: Any, engine: str = "local") -> Array:
    """The same global value in another layout: a new Array (which shares the shards when nothing has to move).

    layout: text, a Layout or a PartitionSpec. engine: what moves the shards, "local" or "mpi".
    The plan is the cheapest one. A small array that moves for the first time is moved piece by piece as its plan says,
    which takes less than to compile it; the next one of this mesh, shape, dtype and layouts is, and the code is kept.
    Raises LayoutError for a layout that does not fit, UsageError for arguments of other kinds, PlanError when
    there is no plan, RankError when a rank fails.
    """
    if not isinstance(array, Array):
        raise UsageError(f"redistribute: an Array is needed, got {type(array).__name__}")
    target = as_layout(layout, len(array.shape))
    target.check(array.mesh, array.shape)
    itemsize = numpy_dtype(array.dtype).itemsize
    steps = plan_redistribute(array.layout, target, array.mesh, array.shape, itemsize).steps
    move = Move(array.layout, target, array.mesh, array.shape, array.dtype, steps, engine)
    shards = replayed(move, array.shards) if _ONCE.first(move) else run(move, array.shards)
    return Array(shards, array.mesh, target, array.shape, array.dtype)


REPLAYED = 1 << 22  # bytes of all shards up to which moving them once takes less than to compile


class Move(NamedTuple):
    """A planned redistribution, as it is compiled: everything that the code depends on."""

    source: Layout
    target: Layout
    mesh: Mesh
    shape: tuple[int, ...]
    dtype: str
    steps: tuple[Step, ...]
    engine: str


class _Once:
    """The moves that have been made once, without code; as many as `most`, the oldest are forgotten."""

    def __init__(self, most: int = 1024) -> None:
        self._lock, self._moves, self._most = RLock(), OrderedDict[Any, None](), most

    def first(self, move: Move) -> bool:
        """Whether this move shall be made without code: a small one, of nothing but copies, that is new."""
        if move.engine != "local":
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


def replayed(move: Move, shards: Sequence[Values]) -> list[Values]:
    """The allocation of every rank behind the steps, made by NumPy: at once between blocks, else step by step."""
    check_ranks(move.engine, move.mesh)
    source, target = move.source, move.target
    if move.steps and source.is_block and target.is_block and source.partial == target.partial:
        return copied(source, target, move.mesh, move.shape, shards)
    return list(simulate(move.steps, shards, move.mesh, move.shape).shards)


def run(move: Move, shards: Sequence[Values]) -> list[Values]:
    """The allocation of every rank behind the steps. Raises MeshweaveError when they cannot run."""
    runner = engine_named(move.engine, timeout=TIMEOUT)  # refuses what is no engine
    if not move.steps:
        runner.close()
        return list(shards)
    with _LOADED.lock:
        executable = _LOADED.get(move, runner)
        outputs = executable.run([[shard] for shard in shards])
    return [row[0] for row in outputs]


class _Loaded:
    """The programs that are kept, the one used last at the end. A run holds the lock: a program runs once at a time."""

    def __init__(self) -> None:
        self.lock = RLock()
        self._programs: OrderedDict[Move, tuple[Any, Any]] = OrderedDict()

    def get(self, move: Move, runner: Any) -> Any:
        """The program of a move, loaded by `runner` if it is new."""
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
        for other in same[: max(0, len(same) + 1 - KEPT.get(move.engine, KEPT_ELSE))]:
            self._close(other)
        self._programs[move] = (executable, runner)
        return executable

    def clear(self) -> None:
        """Let go of all programs."""
        with self.lock:
            for move in list(self._programs):
                self._close(move)

    def _close(self, move: Move) -> None:
        executable, runner = self._programs.pop(move)
        executable.close()
        runner.close()


_LOADED = _Loaded()
atexit.register(_LOADED.clear)


def clear() -> None:
    """Let go of the programs that are kept, and of the threads and processes that wait for the next array."""
    _LOADED.clear()


def compiled(move: Move) -> Any:
    """The bundle of a move, read from the disk where an earlier process has compiled it."""
    check_ranks(move.engine, move.mesh)
    return cached(
        ("move", *map(str, move[:5]), move.engine, *map(str, move.steps)), lambda: _compiled(move)
    )[0]


def _compiled(move: Move) -> Any:
    from meshweave.bindings import context, ir
    from meshweave.lowering import compile_program
    from meshweave.pipeline import run_pipeline

    ctx = context()
    with ctx, ir.Location.unknown(ctx):
        module = ir.Module.parse(module_text(move))
        run_pipeline(module, "dist-partition,canonicalize,cse")
        return compile_program(module, move.engine)


def module_text(move: Move) -> str:
    """The program: one redistribute with its plan."""
    from meshweave.transforms.legalize_redistribute import step_attr

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
