"""`meshweave run`: compile, run, compare, report. `meshweave compile`: what run does first, into a file."""

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from meshweave.api import Program, build, lowered, one_rank, random_arguments
from meshweave.bundle import Bundle
from meshweave.errors import CompileError, MeshweaveError, UsageError
from meshweave.layout import Mesh
from meshweave.runtime.engine import engine as engine_named
from meshweave.targets import TARGETS, Goal
from meshweave.tools.arrays import Difference, arguments, difference, dump, expected
from meshweave.tools.guard import Stage
from meshweave.tools.streams import read_bytes

_ZIP = b"PK\x03\x04"  # how a bundle begins, and no text does
_LARGEST = (
    sys.float_info.max
)  # JSON has no infinity; every limit that a script compares with is less


@dataclass(frozen=True)
class Source:
    """What the user gave: a program's text and its name in errors, or a bundle."""

    name: str
    text: str = ""
    bundle: Bundle | None = None


def run(options: argparse.Namespace) -> int:
    """The command `run`; returns the exit status."""
    with (
        Progress(options.file, options.stage, quiet=options.json) as progress,
        ended_by_signals(),
    ):
        source = _source(options.file)
        if options.check and source.bundle is not None:
            raise UsageError("--check needs the program's text: a bundle is only what became of it")
        program = _program(source, options, progress)
        with program:
            given = _arguments(program, options)
            wanted = (
                expected(program.outputs, options.expect) if options.expect is not None else None
            )
            progress("run")
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


def write_bundle(options: argparse.Namespace) -> int:
    """The command `compile`; returns the exit status."""
    with Progress(options.file, options.stage, quiet=False) as progress, ended_by_signals():
        source = read_text(options.file)
        output = (
            options.output or f"{Path(options.file).stem if options.file != '-' else 'program'}.mwb"
        )
        _check_gpu(options)
        if options.emit is not None:
            from meshweave.tools.emit import text_of

            with _lowered(source, options, progress) as (_, program):
                print(text_of(program, read_goal(options), options.emit), end="")
            return 0
        if options.report_json is None and options.ptx is None:
            bundle = _bundle(source, options, progress)
        else:
            bundle = _explained(source, options, progress)
        bundle.write(output)
    mesh = bundle.manifest.mesh or "one rank"
    print(f"{output}: {mesh}, engine {bundle.manifest.engine}, {os.path.getsize(output):,} bytes")
    return 0


def _check_gpu(options: argparse.Namespace) -> None:
    """UsageError for options that show the code of gpus where there is none."""
    target = read_goal(options).target
    for name in ("ptx", "emit"):
        if getattr(options, name) is not None and target != "gpu":
            raise UsageError(f"--{name} goes with --target gpu, not {target}")


def _lowered(source: Source, options: argparse.Namespace, progress: "Progress") -> Any:
    engine = read_goal(options).engine
    return lowered(source.text, source.name, read_mesh(options), engine, progress)


def _explained(source: Source, options: argparse.Namespace, progress: "Progress") -> Bundle:
    """The bundle; what was decided on the way goes to the file of `--report-json`, device code to the folder of
    `--ptx`.
    """
    from meshweave.lowering import bundle_of
    from meshweave.lowering.report import report_of
    from meshweave.tools.emit import text_of, write_ptx
    from meshweave.tools.report import write_text

    goal = read_goal(options)
    with _lowered(source, options, progress) as (module, program):
        bundle = bundle_of(program, goal)
        if options.report_json is not None:
            report = report_of(module, program).as_dict()
            write_text(options.report_json, json.dumps(report, indent=1) + "\n")
        if options.ptx is not None:
            write_ptx(options.ptx, bundle, text_of(program, goal, "host"))
    return bundle


def read_text(file: str) -> Source:
    """The program in a file that holds text. UsageError for a bundle."""
    source = _source(file)
    if source.bundle is not None:
        raise UsageError(f"{source.name} is compiled already")
    return source


def _source(file: str) -> Source:
    name, data = read_bytes(file)
    if data.startswith(_ZIP):
        return Source(name, bundle=Bundle.from_bytes(data, name))
    from meshweave.sources import decoded

    text = decoded(data, name)
    if not text.strip():
        raise CompileError("the program is empty", name)
    return Source(name, text)


def _bundle(source: Source, options: argparse.Namespace, progress: "Progress") -> Bundle:
    return build(
        source.text,
        mesh=read_mesh(options),
        engine=options.engine,
        target=options.target,
        chip=options.chip,
        progress=progress,
        name=source.name,
    )


def read_goal(options: argparse.Namespace) -> Goal:
    """What to compile for, by `--target`, `--engine` and `--chip`. UsageError where they do not fit together."""
    return Goal.of(options.target, options.engine, options.chip)


def read_mesh(options: argparse.Namespace) -> Mesh | None:
    """The mesh of `--mesh`. UsageError when it is none."""
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


def _program(source: Source, options: argparse.Namespace, progress: "Progress") -> Program:
    """The program, loaded, with the seconds that it took."""
    began = time.perf_counter()
    bundle = source.bundle
    if bundle is None:
        bundle = _bundle(source, options, progress)
    else:
        _check_bundle(source, bundle, options)
    progress("load")
    program = Program(bundle, _engine(bundle, options))
    program.seconds["compile"] = time.perf_counter() - began
    return program


def _engine(bundle: Bundle, options: argparse.Namespace) -> Any:
    """What runs the bundle: the engine that it is compiled for, or another that runs the same code."""
    name = options.engine or bundle.manifest.engine
    more = {what: True for what in ("graph", "share") if getattr(options, what)}
    if more and name != "nccl":
        raise UsageError(f"--{min(more)} goes with --engine nccl, not {name}")
    return engine_named(name, timeout=options.timeout, **more)


def _check_bundle(source: Source, bundle: Bundle, options: argparse.Namespace) -> None:
    """A bundle has its mesh and its engine: what is asked for must be the same."""
    manifest, mesh = bundle.manifest, read_mesh(options)
    if mesh is not None and mesh != Mesh.parse(manifest.mesh):
        raise UsageError(f"--mesh {mesh}: {source.name} is compiled for ({manifest.mesh})")
    if options.target not in (None, manifest.target):
        raise UsageError(
            f"--target {options.target}: {source.name} is compiled for target {manifest.target}"
        )
    if options.chip is not None and options.chip != manifest.chip:
        made_for = manifest.chip or f"target {manifest.target}"
        raise UsageError(f"--chip {options.chip}: {source.name} is compiled for {made_for}")
    same_code = TARGETS["gpu"] if manifest.target == "gpu" else (manifest.engine,)
    if options.engine not in (None, *same_code):
        raise UsageError(
            f"--engine {options.engine}: {source.name} is compiled for engine {manifest.engine}"
        )


def _arguments(program: Program, options: argparse.Namespace) -> list[np.ndarray]:
    if options.input is None:
        return random_arguments(program.inputs, options.random or 0)
    return arguments(program.inputs, options.input)


def _fastest(program: Program, given: Sequence[np.ndarray], repeat: int) -> tuple[np.ndarray, ...]:
    """The results of the last of some runs; of the fastest, its seconds."""
    seconds = []
    for _ in range(repeat):
        results = program(*given)
        seconds.append(program.seconds["run"])
    program.seconds["run"] = min(seconds)
    return results


def _unsharded(
    options: argparse.Namespace, source: Source, program: Program, given: Sequence[np.ndarray]
) -> Sequence[np.ndarray]:
    """What the same program gives on one rank."""
    goal = _reference(program)
    try:
        bundle = build(
            source.text,
            mesh=one_rank(program.mesh),
            engine=goal.engine,
            chip=goal.chip or None,
            name=source.name,
            whole=True,
        )
    except MeshweaveError as error:
        raise type(error)(f"--check: the program does not compile for one rank: {error}") from None
    with Program(bundle, engine_named(goal.engine, timeout=options.timeout)) as unsharded:
        return unsharded(*given)


def _reference(program: Program) -> Goal:
    """What the unsharded program is compiled for: the cpu, whose code has nothing in common with that of gpus. Only
    where 16-bit floats go in or out it is the program's own target: they are rounded so often that the numbers of
    other kernels say little.
    """
    manifest = program.bundle.manifest
    small = any(port.dtype in ("bf16", "f16") for port in (*program.inputs, *program.outputs))
    if manifest.target == "gpu" and small:
        return Goal(manifest.target, manifest.engine, manifest.chip)
    return Goal()


def _compared(
    program: Program, results: Sequence[np.ndarray], wanted: Sequence[np.ndarray], reference: str
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
    return summary


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
    """By op and axes: how many, and the bytes that the busiest rank receives in all of them."""
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    nbytes: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for c in program.bundle.manifest.collectives:
        counts[(c.op, c.axes)] += 1
        nbytes[(c.op, c.axes)] += c.bytes
    return {key: (counts[key], nbytes[key]) for key in counts}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """A request to end is an exception meanwhile: ranks are ended and half a file is removed on the way out."""

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


class Progress:
    """The stage at work, shown while it lasts; silent when nobody looks at a terminal."""

    def __init__(self, file: str, stage: Stage, quiet: bool) -> None:
        self._file, self._stage = file, stage
        self._quiet = quiet or not sys.stderr.isatty()
        self._status: Any = None

    def __enter__(self) -> "Progress":
        if not self._quiet:
            from rich.console import Console

            self._status = Console(stderr=True).status("meshweave")
            self._status.start()
        return self

    def __call__(self, stage: str) -> None:
        self._stage(f"in stage {stage} of {self._file}")
        if self._status is not None:
            self._status.update(f"meshweave: {stage}")

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
