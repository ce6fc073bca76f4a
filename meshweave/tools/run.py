"""Define `meshweave run` (compile, run, compare, report) and `meshweave compile` (write a bundle)."""

import argparse
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from meshweave.api.compiling.rank_program import Progress
from meshweave.api.lengths.sized import program_of
from meshweave.api.lengths.text import BoundedSize, bounded
from meshweave.api.program import (
    STAGES,
    Program,
    aim,
    budget_hints,
    build,
    finished,
    is_finished,
    lowered,
    one_rank,
    random_arguments,
)
from meshweave.api.progress import Bar
from meshweave.bundle import Bundle
from meshweave.errors import CompileError, MeshweaveError, UsageError
from meshweave.files.sources import Source, decoded, program_source, separated
from meshweave.hints.keys import Hint
from meshweave.layout import Mesh
from meshweave.plan.placement.goal import PlacementGoal
from meshweave.plan.placement.prices import MachinePrices
from meshweave.runtime.engine import Engine
from meshweave.runtime.engine import engine as engine_named
from meshweave.runtime.perf import write_perf_map
from meshweave.see.profile import read_prices
from meshweave.targets import ENGINES, Goal, engine_traits
from meshweave.tools.arrays import (
    NARROW_TOLERANCES,
    Difference,
    arguments,
    difference,
    dump,
    expected,
)
from meshweave.tools.guard import Stage
from meshweave.tools.sign import check_signature
from meshweave.tools.streams import begins_with, read_bytes

_ZIP = b"PK\x03\x04"  # how a bundle begins, and no text does
_LARGEST = sys.float_info.max  # JSON has no infinity


@dataclass(frozen=True)
class ProgramFile:
    """Hold what the user gave: a program's text and its name in errors, or a bundle."""

    name: str
    read: Source = field(default_factory=partial(Source, "", ""))
    bundle: Bundle | None = None

    @property
    def text(self) -> str:
        """Return the text, without large constants."""
        return self.read.text


def run(options: argparse.Namespace) -> int:
    """Run the command `run`; return the exit status."""
    with (
        StageDisplay(options.file, options.stage, quiet=options.json) as progress,
        ended_by_signals(),
    ):
        source = open_program(options.file, options.dim)
        if options.require_signature is not None:
            check_signature(source.bundle, source.name, options.require_signature)
        if options.check and source.bundle is not None:
            raise UsageError("--check needs the program's text: a bundle holds only compiled code")
        if options.perf_map and read_goal(options).engine != "local":
            raise UsageError("--perf-map goes with --engine local: other ranks are other processes")
        program = load_program(source, options, progress)
        with program:
            given = _arguments(program, options)
            wanted = (
                expected(program.outputs, options.expect) if options.expect is not None else None
            )
            progress("run")
            if options.perf_map:
                write_perf_map()
            with traced(options.trace):
                results = _fastest(program, given, options.repeat)
        differences = [] if wanted is None else _compared(program, results, wanted, "--expect")
        if options.check:
            progress("check")
            reference = _unsharded(options, source, program, given)
            differences += _compared(program, results, reference, "--check")
        files = dump(results, options.dump) if options.dump is not None else []
    if options.json:
        print(json.dumps(_summary(program, files, differences, options), allow_nan=False))
    else:
        _table(program, source.name, files, differences)
    return _verdict(differences)


@contextmanager
def traced(path: str | None) -> Iterator[None]:
    """Trace what runs inside, and write that to a file, where there is one."""
    if path is None:
        yield
        return
    from meshweave.see.trace import RankTrace

    with RankTrace() as found:
        yield
    found.save(path)


def write_bundle(options: argparse.Namespace) -> int:
    """Run the command `compile`; return the exit status."""
    with StageDisplay(options.file, options.stage, quiet=False) as progress, ended_by_signals():
        source = read_text(options.file, options.dim)
        output = (
            options.output or f"{Path(options.file).stem if options.file != '-' else 'program'}.mwb"
        )
        _check_gpu(options)
        if options.emit is not None:
            from meshweave.tools.emit import check_kind, text_of

            goal = read_goal(options)
            check_kind(goal, options.emit)
            with _module(source, options, progress) as module:
                print(text_of(module, goal, options.emit, options.verify), end="")
            return 0
        if options.report_json is None and options.ptx is None:
            bundle = _bundle(source, options, progress, here=False)
        else:
            bundle = _explained(source, options, progress)
        bundle.write(output)
    nbytes = len(bundle.code.to_bytes()) + sum(weight.nbytes for weight in bundle.weights)
    mesh = bundle.manifest.mesh or "one rank"
    print(f"{output}: {mesh}, engine {bundle.manifest.engine}, {nbytes:,} bytes")
    return 0


def _check_gpu(options: argparse.Namespace) -> None:
    """Raise UsageError for the option that writes gpu code, with another target."""
    goal = read_goal(options)
    if options.ptx is not None and not goal.chip:
        raise UsageError(f"--ptx goes with --target gpu, not {goal.target}")


def _lowered(source: ProgramFile, options: argparse.Namespace, progress: Progress) -> Any:
    where = (source.text, source.name, read_mesh(options), read_goal(options).engine, progress)
    return lowered(
        *where,
        verify=options.verify,
        machine=read_machine(options),
        hints=read_hints(options),
        auto=read_aim(options),
    )


@contextmanager
def _module(source: ProgramFile, options: argparse.Namespace, progress: Progress) -> Iterator[Any]:
    """Give the module of one rank's program, which may have code already."""
    if is_finished(source.text):
        with finished(source.text, source.name, read_goal(options)) as module:
            yield module
    else:
        with _lowered(source, options, progress) as (module, _):
            yield module


def _explained(source: ProgramFile, options: argparse.Namespace, progress: Progress) -> Bundle:
    """Compile a bundle, and write its decisions (`--report-json`) and device code (`--ptx`)."""
    from meshweave.files.whole import write_text
    from meshweave.lowering import bundle_of
    from meshweave.lowering.report import report_of
    from meshweave.tools.emit import text_of, write_ptx

    goal = read_goal(options)
    with _lowered(source, options, progress) as (module, program):
        bundle = bundle_of(program, goal).with_weights(source.read.weights)
        if options.report_json is not None:
            report = report_of(module, program, goal.chip).as_dict()
            write_text(options.report_json, json.dumps(report, indent=1) + "\n")
        if options.ptx is not None:
            write_ptx(options.ptx, bundle, text_of(module, goal, "host", options.verify))
    return bundle


def read_text(file: str, dims: Sequence[BoundedSize] = ()) -> ProgramFile:
    """Read a program from a file that holds text, as `open_program` does. Raises UsageError for a bundle."""
    source = open_program(file, dims)
    if source.bundle is not None:
        raise UsageError(f"{source.name} is compiled already")
    return source


def open_program(file: str, dims: Sequence[BoundedSize] = ()) -> ProgramFile:
    """Read a program's text, or a bundle. Raises MeshweaveError for what is neither.

    dims: the bounds of sizes that the text leaves open.
    """
    if file == "-":
        name, data = read_bytes(file)
        if data.startswith(_ZIP):
            return _of_bundle(Bundle.from_bytes(data, name), name, dims)
        source = separated(decoded(data, name), name)
    elif begins_with(file, _ZIP):
        return _of_bundle(Bundle.read(file), file, dims)
    else:
        source = program_source(Path(file), named=True)
    if not source.text.strip():
        raise CompileError("the program is empty", source.name)
    return ProgramFile(source.name, bounded(source, dims))


def _of_bundle(bundle: Bundle, name: str, dims: Sequence[BoundedSize]) -> ProgramFile:
    if dims:
        raise UsageError(f"--dim: {name} is compiled already, with its bounds")
    return ProgramFile(name, bundle=bundle)


def _bundle(
    source: ProgramFile, options: argparse.Namespace, progress: Progress, here: bool
) -> Bundle:
    return build(
        source.read,
        mesh=read_mesh(options),
        engine=options.engine,
        target=options.target,
        chip=options.chip,
        progress=progress,
        name=source.name,
        here=here,
        verify=options.verify,
        machine=read_machine(options),
        peak_bytes=next((hint.value for hint in read_hints(options)), None),
        auto=read_aim(options),
    )


def read_hints(options: argparse.Namespace) -> tuple[Hint, ...]:
    """Return the hints around the program: `--peak-bytes`. Raises UsageError for what is no number of bytes."""
    try:
        return budget_hints(options.peak_bytes)
    except MeshweaveError as error:
        raise UsageError(
            f"--peak-bytes {options.peak_bytes}: {error.message.partition(': ')[2]}"
        ) from None


def read_goal(options: argparse.Namespace) -> Goal:
    """Return what to compile for: `--target`, `--engine`, `--chip`. Raises UsageError if they do not fit together."""
    return Goal.of(options.target, options.engine, options.chip)


def read_machine(options: argparse.Namespace) -> MachinePrices | None:
    """Return the machine of `--profile`. Raises UsageError where nothing is chosen for it."""
    if options.profile is None:
        return None
    if not _arranges(options):
        raise UsageError("--profile goes with --mesh auto=N: nothing else is chosen by predictions")
    return read_prices(options.profile)


def read_aim(options: argparse.Namespace) -> PlacementGoal | None:
    """Return what `--mesh auto=N` minimises; None: nothing is chosen. Raises UsageError for what is no objective."""
    arranges = _arranges(options)
    if options.objective != "time" and not arranges:
        raise UsageError(
            "--objective goes with --mesh auto=N: nothing else is chosen by predictions"
        )
    try:
        return aim("auto" if arranges else None, options.objective)
    except UsageError as error:
        raise UsageError(f"--objective: {error.message.partition(': ')[2]}") from None


def read_mesh(options: argparse.Namespace) -> Mesh | None:
    """Return the mesh of `--mesh`. Raises UsageError if it is none."""
    if options.mesh is None:
        return None
    if not options.mesh.strip():
        raise UsageError("--mesh: axes and sizes are needed, e.g. --mesh x=2,y=2")
    try:
        mesh = Mesh.parse(options.mesh)
    except MeshweaveError as error:
        raise UsageError(f"--mesh: {error}") from None
    if mesh.is_symbolic:
        raise UsageError(f"--mesh: {mesh} has a symbol for a size, a number is needed")
    return mesh


def load_program(source: ProgramFile, options: argparse.Namespace, progress: Progress) -> Program:
    """Load the program, and note the seconds that it took."""
    began = time.perf_counter()
    bundle = source.bundle
    if bundle is None:
        bundle = _bundle(source, options, progress, here=True)
    else:
        _check_bundle(source, bundle, options)
    progress("load")
    program = program_of(bundle, _engine(bundle, options))
    program.seconds["compile"] = time.perf_counter() - began
    return program


def _engine(bundle: Bundle, options: argparse.Namespace) -> Engine:
    """Make the engine that the bundle is compiled for, or another that runs the same code."""
    name = options.engine or bundle.manifest.engine
    more = {what: True for what in ("graph", "share") if getattr(options, what)}
    for what in more:
        if what not in engine_traits(name).options:
            right = " or ".join(row.name for row in ENGINES.values() if what in row.options)
            raise UsageError(f"--{what} goes with --engine {right}, not {name}")
    return engine_named(name, timeout=options.timeout, flight=options.flight, **more)


def _check_bundle(source: ProgramFile, bundle: Bundle, options: argparse.Namespace) -> None:
    """Raise UsageError if the options ask for another mesh, target or engine than the bundle's."""
    manifest, mesh = bundle.manifest, read_mesh(options)
    if mesh is not None and mesh.ranks_to_arrange is None and mesh != Mesh.parse(manifest.mesh):
        raise UsageError(f"--mesh {mesh}: {source.name} is compiled for ({manifest.mesh})")
    if options.target not in (None, manifest.target):
        raise UsageError(
            f"--target {options.target}: {source.name} is compiled for target {manifest.target}"
        )
    if options.chip is not None and options.chip != manifest.chip:
        made_for = manifest.chip or f"target {manifest.target}"
        raise UsageError(f"--chip {options.chip}: {source.name} is compiled for {made_for}")
    if options.peak_bytes is not None:
        raise UsageError(
            f"--peak-bytes {options.peak_bytes}: {source.name} is compiled already: its text is needed"
        )
    own = engine_traits(manifest.engine)
    if options.engine and not engine_traits(options.engine).runs_code_of(own):
        raise UsageError(
            f"--engine {options.engine}: {source.name} is compiled for engine {manifest.engine}"
        )


def _arguments(program: Program, options: argparse.Namespace) -> list[np.ndarray[Any, Any]]:
    if options.input is None:
        return random_arguments(program.inputs, options.random or 0)
    return arguments(program.inputs, options.input)


def _fastest(
    program: Program, given: Sequence[np.ndarray[Any, Any]], repeat: int
) -> tuple[np.ndarray[Any, Any], ...]:
    """Run several times; return the last results, and keep the seconds of the fastest run."""
    seconds = []
    for _ in range(repeat):
        results = program(*given)
        seconds.append(program.seconds["run"])
    program.seconds["run"] = min(seconds)
    return results


def _unsharded(
    options: argparse.Namespace,
    source: ProgramFile,
    program: Program,
    given: Sequence[np.ndarray[Any, Any]],
) -> Sequence[np.ndarray[Any, Any]]:
    """Return what the same program gives on one rank."""
    goal = _reference(program)
    try:
        bundle = build(
            source.read,
            mesh=one_rank(program.mesh),
            engine=goal.engine,
            chip=goal.chip or None,
            name=source.name,
            whole=True,
            verify=options.verify,
        )
    except MeshweaveError as error:
        raise error.told(f"--check: the program does not compile for one rank: {error}") from None
    with program_of(bundle, engine_named(goal.engine, timeout=options.timeout)) as unsharded:
        return unsharded(*given)


def _reference(program: Program) -> Goal:
    """Return what the unsharded program is compiled for: the cpu, whose code has nothing in common with that of gpus.

    A gpu program with 16-bit floats as arguments or results keeps its target: they are rounded so often that numbers
    from other kernels say little.
    """
    manifest = program.bundle.manifest
    small = any(port.dtype in NARROW_TOLERANCES for port in (*program.inputs, *program.outputs))
    if manifest.chip and small:
        return Goal(manifest.target, manifest.engine, manifest.chip)
    return Goal()


def _compared(
    program: Program,
    results: Sequence[np.ndarray[Any, Any]],
    wanted: Sequence[np.ndarray[Any, Any]],
    reference: str,
) -> list[Difference]:
    triples = zip(program.outputs, results, wanted)
    return [difference(i, reference, *triple) for i, triple in enumerate(triples)]


def _verdict(differences: Sequence[Difference]) -> int:
    wrong = [d for d in differences if d.wrong]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        print(f"meshweave: error: {wrong[0]}{more}", file=sys.stderr)
    return 1 if wrong else 0


def _summary(
    program: Program, files: list[str], differences: list[Difference], options: argparse.Namespace
) -> dict[str, Any]:
    summary: dict[str, Any] = {"results": files}
    if options.check or options.expect is not None:
        summary["max_abs_err"] = min(max((d.error for d in differences), default=0.0), _LARGEST)
    summary["seconds"] = {name: program.seconds[name] for name in ("compile", "run")}
    summary["peak_bytes"] = program.peak_bytes
    summary["collectives"] = [
        {"op": c.op, "axes": list(c.axes), "bytes": c.bytes}
        for c in program.bundle.manifest.collectives
    ]
    if options.mesh is not None and _arranges(options) and program.bundle.origin is not None:
        placement = program.bundle.origin().placement
        nbytes = sum(c.bytes for c in program.bundle.manifest.collectives)
        summary["placement"] = placement.as_dict(nbytes)
    return summary


def _arranges(options: argparse.Namespace) -> bool:
    """Tell whether the axes of the mesh are to be chosen."""
    mesh = read_mesh(options)
    return mesh is not None and mesh.ranks_to_arrange is not None


def _table(program: Program, name: str, files: list[str], differences: list[Difference]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    manifest, ranks = program.bundle.manifest, program.mesh.nranks
    rows = [
        ("mesh", str(program.mesh) or "one rank"),
        ("engine", program.engine.name),
        ("time to compile", f"{program.seconds['compile'] * 1e3:,.0f} ms"),
        ("time to run", f"{program.seconds['run'] * 1e3:,.2f} ms"),
        ("peak memory of a rank", f"{program.peak_bytes:,} bytes"),
    ]
    for (op, axes), (count, nbytes) in _collectives(program).items():
        rows.append((f"{op} over {', '.join(axes)}", f"{count} x, {nbytes:,} bytes"))
    if not manifest.collectives:
        rows.append(("collectives", "none"))
    for d in differences:
        rows.append(
            (f"{d.reference}: error of result {d.index}", f"{d.error:.2e} of {d.largest:.3g}")
        )
    rows += [("written", file) for file in files]
    table = Table("what", show_header=True)
    table.add_column("value", justify="right", overflow="fold")
    for what, value in rows:
        table.add_row(Text(what), Text(value))
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(Text(f"{name} on {ranks} rank{'s' if ranks != 1 else ''}"))
    console.print(table)


def _collectives(program: Program) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """Count collectives by op and axes, with the bytes that the busiest rank receives in all of them."""
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    nbytes: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for c in program.bundle.manifest.collectives:
        counts[(c.op, c.axes)] += 1
        nbytes[(c.op, c.axes)] += c.bytes
    return {key: (counts[key], nbytes[key]) for key in counts}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn a request to end into an exception, so that ranks are ended and unfinished files removed."""

    def end(number: int, _: FrameType | None) -> None:
        for other in before:  # once is enough: a second one must not end the cleaning up
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {s: signal.signal(s, end) for s in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StageDisplay(Bar):
    """Show the current stage on a terminal, and note it for the message if native code crashes."""

    def __init__(self, file: str, stage: Stage, quiet: bool) -> None:
        super().__init__("meshweave", STAGES, quiet)
        self._file, self._note = file, stage

    def __call__(self, stage: str) -> None:
        """Begin a stage."""
        self._note(f"in stage {stage} of {self._file}")
        super().__call__(stage)
