"""Define `meshweave plan`, which shows how a tensor gets from one layout to another, at which cost, and can do it."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meshweave.api import redistribution
from meshweave.bundle import NUMPY_DTYPES, numpy_dtype
from meshweave.errors import MeshweaveError, UsageError
from meshweave.layout import Layout, Mesh, gather, scatter
from meshweave.layout.digits import from_allocation
from meshweave.layout.places import indices_at
from meshweave.plan.proof import minimal_among
from meshweave.plan.redistribute import Plan, plan_redistribute
from meshweave.plan.simulate import simulate
from meshweave.plan.steps import OPS
from meshweave.plan.symbolic import symbolic_plan
from meshweave.runtime.arrays.elements import narrow, wide
from meshweave.see.profile import read_prices
from meshweave.targets import ENGINES, Goal
from meshweave.tools.arrays import save
from meshweave.tools.picture import picture

if TYPE_CHECKING:  # here, for --json needs no tables
    from rich.table import Table

SIMULATOR = "simulate"
RUNNERS = (*ENGINES, SIMULATOR)

Values = np.ndarray[Any, np.dtype[Any]]


def plan_command(options: argparse.Namespace) -> int:
    """Run the command; return the exit status."""
    mesh, shape = _mesh(options.mesh), _shape(options.shape)
    source, target = Layout.parse(options.source), Layout.parse(options.target)
    if options.dtype not in NUMPY_DTYPES:
        raise UsageError(f"--dtype {options.dtype}: there are {', '.join(NUMPY_DTYPES)}")
    for layout in (source, target):
        layout.check(mesh, shape)
    itemsize = numpy_dtype(options.dtype).itemsize
    if mesh.is_symbolic:
        return _symbolic(options, source, target, mesh, shape, itemsize)
    engine = _engine(options)
    made = plan_redistribute(
        source,
        target,
        mesh,
        shape,
        itemsize,
        profile=None if options.profile is None else read_prices(options.profile).profile,
        memory_bytes=_bytes(options.memory),
        ops=_ops(options.steps),
    )
    report = made.as_dict()
    report["minimal_among"] = minimal_among(made, mesh, shape, itemsize)
    wrong = 0
    if engine is not None:
        replay = Replay(source, target, mesh, shape, options.dtype)
        try:
            results = replay.run(made, engine)
        finally:
            redistribution.clear()
        report["engine"] = engine
        if options.dump is not None:
            report["results"] = _dump(results, options.dump)
        if options.check:
            report["wrong_elements"] = wrong = replay.wrong(results)
    if options.json:
        print(json.dumps(report))
    else:
        _print(made, report, source, target, mesh, shape)
    if wrong:
        raise MeshweaveError(f"{wrong} elements are not what {target} says")
    return 0


def _mesh(text: str) -> Mesh:
    try:
        return Mesh.parse(text)
    except MeshweaveError as error:
        raise UsageError(f"--mesh: {error}") from None


def _shape(text: str) -> tuple[int, ...]:
    parts = text.strip().split("x") if text.strip() else []
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise UsageError(f'--shape "{text}": sizes joined by x, such as 16x8, are needed')
    return tuple(map(int, parts))


def _engine(options: argparse.Namespace) -> str | None:
    """Return what runs the plan; None: nothing does."""
    if not options.execute and not options.check:
        for name in ("engine", "dump"):
            if getattr(options, name) is not None:
                raise UsageError(f"--{name} goes with --execute")
        return None
    engine = options.engine or (Goal.engine if options.execute else SIMULATOR)
    if engine not in RUNNERS:
        raise UsageError(f'no engine "{engine}"; there are {", ".join(RUNNERS)}')
    return str(engine)


def _ops(text: str | None) -> tuple[str, ...]:
    if text is None:
        return OPS
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in OPS:
            raise UsageError(f'--steps: no step "{name}"; there are {", ".join(OPS)}')
    return tuple(op for op in OPS if op in names)


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"--memory {text}: a number of bytes is needed")
    return int(text)


def _dump(results: Sequence[Values], directory: str) -> list[str]:
    """Write each rank's buffer as a .npy file, whole or not at all; return the files' names."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        flat = [np.ascontiguousarray(buffer).reshape(-1) for buffer in results]
        return [save(buffer, directory, f"rank{rank}.npy") for rank, buffer in enumerate(flat)]
    except OSError as error:
        raise MeshweaveError(f"--dump {directory}: {error.strerror}") from None


def _print(
    made: Plan,
    report: dict[str, Any],
    source: Layout,
    target: Layout,
    mesh: Mesh,
    shape: tuple[int, ...],
) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    size = "x".join(map(str, shape)) or "a scalar"
    console.print(f"{size} on ({mesh}): {source} to {target}", markup=False, soft_wrap=True)
    console.print(_steps_table(made))
    console.print(_proof(made, report), soft_wrap=True)
    console.print()
    for layout in (source, target):
        console.print(picture(layout, mesh, shape))
    if "wrong_elements" in report:
        console.print(f"executed on {report['engine']}: {report['wrong_elements']} wrong elements")
    for file in report.get("results", ()):
        console.print(f"written: {file}", soft_wrap=True)


def _steps_table(made: Plan) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in ("step", "over", "how", "to"):
        table.add_column(name)
    table.add_column("received by the busiest rank", justify="right")
    for step in made:
        details = [f"{name} {_short(value)}" for name, value in step.details().items()]
        cells = (step.op, ", ".join(step.axes), ", ".join(details), str(step.target))
        table.add_row(*map(Text, cells), f"{step.nbytes:,} bytes")
    if not made.steps:
        table.add_row("nothing to do", "", "", "", "0 bytes")
    return table


def _short(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    shown = ", ".join(map(str, value[:8]))
    return f"({shown}, ...)" if len(value) > 8 else f"({shown})"


def _proof(made: Plan, report: dict[str, Any]) -> str:
    among = report["minimal_among"]
    proved = {
        "all plans": "no plan has fewer bytes",
        "collectives": "no plan of collectives has fewer bytes; an exchange might",
        None: "not proved to have the fewest bytes",
    }[among]
    if made.search_stopped:
        proved += "; the search stopped at its limit, so others may be cheaper"
    return (
        f"{made.nbytes:,} bytes received by the busiest rank, at least {made.lower_bound:,} by any plan: "
        f"{proved}\n{made.launches} launch{'es' if made.launches != 1 else ''}, peak {made.peak_bytes:,} bytes "
        f"on a rank, {made.staging_bytes:,} of them staging, about {made.seconds * 1e6:,.1f} us"
    )


def _symbolic(
    options: argparse.Namespace,
    source: Layout,
    target: Layout,
    mesh: Mesh,
    shape: tuple[int, ...],
    itemsize: int,
) -> int:
    """Print formulas in the symbols of the mesh."""
    if options.execute or options.check:
        raise UsageError(f"mesh ({mesh}) is symbolic: --execute and --check need numbers")
    made = symbolic_plan(source, target, mesh, shape, itemsize, ops=_ops(options.steps))
    if options.json:
        print(json.dumps(made.as_dict()))
        return 0
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in ("step", "over", "to", "received by the busiest rank, bytes"):
        table.add_column(name)
    for step in made.steps:
        cells = (step.op, ", ".join(step.axes), str(step.target), str(step.nbytes))
        table.add_row(*map(Text, cells))
    table.add_row("in all", "", "", str(made.nbytes))
    table.add_row("peak", "", "", str(made.peak_bytes))
    console = Console(highlight=False)
    console.print(f"on ({mesh}): {source} to {target}", markup=False, soft_wrap=True)
    console.print(table)
    console.print(made.certificate(), markup=False, soft_wrap=True)
    return 0


@dataclass(frozen=True)
class Replay:
    """Redistribute the element numbers 0 to n-1, as elements of `dtype`."""

    source: Layout
    target: Layout
    mesh: Mesh
    shape: tuple[int, ...]
    dtype: str

    def value(self) -> Values:
        """Return the global value, in a form that NumPy computes in."""
        numbers = np.arange(prod(self.shape)).reshape(self.shape)
        kind = np.dtype(np.float32) if self.dtype == "bf16" else numpy_dtype(self.dtype)
        value: Values = numbers.astype(kind)
        return wide(narrow(value, self.dtype), self.dtype)

    def run(self, plan: Plan, engine: str) -> list[Values]:
        """Return the allocation of every rank after the plan. Raises MeshweaveError if it cannot run."""
        shards = scatter(self.value(), self.mesh, self.source)
        if engine == SIMULATOR:
            ran = simulate(plan.steps, shards, self.mesh, self.shape).shards
            return [narrow(np.asarray(shard, order="C"), self.dtype) for shard in ran]
        narrowed = [narrow(np.asarray(shard, order="C"), self.dtype) for shard in shards]
        ends = (self.source, self.target, self.mesh, self.shape, self.dtype)
        return redistribution.run(
            redistribution.Redistribution(*ends, plan.steps, engine), narrowed
        )

    def wrong(self, results: Sequence[Values]) -> int:
        """Count the elements of the results that are not what the target layout says."""
        value = self.value()
        shards = [wide(result, self.dtype) for result in results]
        if self.target.partial:
            buffer = self.target.allocation_shape(self.mesh, self.shape)
            shards = [shard.reshape(buffer) for shard in shards]
            with np.errstate(all="ignore"):
                found = gather(shards, self.mesh, self.target, self.shape)
            return int((found != value).sum())
        count = 0
        for rank, shard in enumerate(shards):
            local = from_allocation(shard, self.target, self.mesh, self.shape)
            index = [
                indices_at(self.target, self.mesh, self.shape, dim, at)
                for dim, at in enumerate(self._coordinates(rank))
            ]
            inside = np.ix_(*[np.flatnonzero(row >= 0) for row in index])
            right = value[np.ix_(*[row[row >= 0] for row in index])]
            count += int((local[inside] != right).sum()) if index else int(local != right)
        return count

    def _coordinates(self, rank: int) -> list[list[int]]:
        return [
            [self.mesh.coordinate(rank, name) for name in self.target.axes_of(dim)]
            for dim in range(len(self.shape))
        ]
