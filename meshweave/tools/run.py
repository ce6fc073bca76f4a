"""`meshweave run`: compile, run, compare, report."""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from meshweave.api import Program, build, compile, one_rank, random_arguments
from meshweave.bundle import Port, numpy_dtype
from meshweave.errors import CompileError, MeshweaveError, UsageError
from meshweave.runtime.engine import engine as engine_named
from meshweave.tools.guard import Stage

TOLERANCE = 2e-4
"""Largest error that --check and --expect accept, relative to the largest element; bf16 and f16 get 2e-2."""


def run(options: argparse.Namespace) -> int:
    """The command; returns the exit status."""
    if options.repeat < 1:
        raise UsageError(f"--repeat {options.repeat}: at least 1 run")
    if options.timeout <= 0:
        raise UsageError(f"--timeout {options.timeout}: a positive number of seconds")
    source = _source(options.file)
    with _Progress(options.file, options.stage, quiet=options.json) as progress:
        program = compile(
            source,
            mesh=options.mesh,
            engine=options.engine,
            progress=progress,
            timeout=options.timeout,
        )
        with program:
            arguments = _arguments(program, options)
            progress("run")
            results = program(*arguments)
            best = program.seconds["run"]
            for _ in range(options.repeat - 1):
                results = program(*arguments)
                best = min(best, program.seconds["run"])
            program.seconds["run"] = best
            reference = _reference(options, source, program, arguments, progress)
    errors = None if reference is None else _errors(program.outputs, results, reference)
    files = _dump(results, options.dump)
    if options.json:
        print(json.dumps(_summary(program, files, errors)))
    else:
        _table(program, options, files, errors)
    return _verdict(program.outputs, errors)


def _source(file: str) -> "str | Path":
    if file == "-":
        return sys.stdin.read()
    path = Path(file)
    if not path.is_file():
        raise CompileError(f"{file}: no such file" if not path.exists() else f"{file}: not a file")
    return path


def _arguments(program: Program, options: argparse.Namespace) -> list[np.ndarray]:
    if options.input is None:
        return random_arguments(program.inputs, options.random or 0)
    files = [f for group in options.input for f in group]
    return _load_all(files)


def _load_all(files: Sequence[str]) -> list[np.ndarray]:
    return [load_array(file) for file in files]


def load_array(file: str) -> np.ndarray:
    """The array of a .npy file (never a pickle). Raises MeshweaveError naming the file."""
    try:
        array = np.load(file, allow_pickle=False)
    except FileNotFoundError:
        raise MeshweaveError(f"{file}: no such file") from None
    except (OSError, ValueError, EOFError) as error:
        raise MeshweaveError(f"{file}: no .npy array: {error}") from None
    if not isinstance(array, np.ndarray):
        raise MeshweaveError(f"{file}: an .npz archive; give one .npy file an argument")
    return array


def _reference(
    options: argparse.Namespace,
    source: "str | Path",
    program: Program,
    arguments: list[np.ndarray],
    progress: "_Progress",
) -> "Sequence[np.ndarray] | None":
    """What to compare with: the files of --expect, or the same program on one rank."""
    if options.expect is not None:
        values = _load_all([f for group in options.expect for f in group])
        if len(values) != len(program.outputs):
            raise MeshweaveError(
                f"--expect: {len(values)} files, the program has {len(program.outputs)} results"
            )
        return values
    if not options.check:
        return None
    progress("check")
    bundle = build(source, mesh=one_rank(program.mesh), engine="local")
    with Program(bundle, engine_named("local", timeout=options.timeout)) as unsharded:
        return unsharded(*arguments)


def _errors(
    ports: Sequence[Port], results: Sequence[np.ndarray], reference: Sequence[np.ndarray]
) -> list[tuple[float, float]]:
    """For each result its largest absolute error, and the largest element of the reference."""
    found = []
    for i, (port, mine, other) in enumerate(zip(ports, results, reference)):
        if mine.shape != other.shape:
            raise MeshweaveError(f"result {i} has shape {mine.shape}, the reference {other.shape}")
        kind = numpy_dtype(port.dtype).kind
        wide = np.complex128 if kind == "c" else np.float64
        a, b = mine.astype(wide), other.astype(wide)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            distance = np.where(same, 0.0, np.abs(a - b))
        distance = np.where(np.isnan(distance), np.inf, distance)
        finite = np.abs(b[np.isfinite(b)])
        found.append((float(distance.max(initial=0.0)), float(finite.max(initial=0.0))))
    return found


def _tolerance(port: Port) -> float:
    return {"bf16": 2e-2, "f16": 2e-2}.get(port.dtype, TOLERANCE)


def _wrong(ports: Sequence[Port], errors: "list[tuple[float, float]] | None") -> list[str]:
    wrong = []
    for i, (port, (error, largest)) in enumerate(zip(ports, errors or ())):
        limit = _tolerance(port) * max(largest, np.finfo(np.float32).tiny)
        if error > limit:
            wrong.append(f"result {i} is off by {error:.3g}, more than {limit:.3g}")
    return wrong


def _verdict(ports: Sequence[Port], errors: "list[tuple[float, float]] | None") -> int:
    wrong = _wrong(ports, errors)
    for line in wrong:
        print(f"meshweave: error: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _dump(results: Sequence[np.ndarray], directory: "str | None") -> list[str]:
    """Write each result whole or not at all; the files' names."""
    if directory is None:
        return []
    files = []
    try:
        os.makedirs(directory, exist_ok=True)
        for i, result in enumerate(results):
            path = os.path.join(directory, f"result{i}.npy")
            handle, temporary = tempfile.mkstemp(dir=directory, prefix=".result", suffix=".npy")
            try:
                with os.fdopen(handle, "wb") as out:
                    np.save(out, result, allow_pickle=False)
                os.chmod(temporary, 0o644)
                os.replace(temporary, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
            files.append(path)
    except OSError as error:
        raise MeshweaveError(f"--dump {directory}: {error.strerror}") from None
    return files


def _summary(
    program: Program, files: list[str], errors: "list[tuple[float, float]] | None"
) -> dict[str, Any]:
    summary: dict[str, Any] = {"results": files}
    if errors is not None:
        summary["max_abs_err"] = max((error for error, _ in errors), default=0.0)
    summary["seconds"] = {name: program.seconds[name] for name in ("compile", "run")}
    summary["peak_bytes"] = program.peak_bytes
    summary["collectives"] = [
        {"op": c.op, "axes": list(c.axes), "bytes": c.bytes}
        for c in program.bundle.manifest.collectives
    ]
    return summary


def _table(
    program: Program,
    options: argparse.Namespace,
    files: list[str],
    errors: "list[tuple[float, float]] | None",
) -> None:
    from rich.console import Console
    from rich.table import Table

    ranks = program.mesh.nranks
    table = Table(
        title=f"{options.file} on {ranks} rank{'s' if ranks != 1 else ''}", title_justify="left"
    )
    table.add_column("what")
    table.add_column("value", justify="right")
    table.add_row("mesh", str(program.mesh) or "one rank")
    table.add_row("engine", options.engine)
    table.add_row("time to compile", f"{program.seconds['compile'] * 1e3:,.0f} ms")
    table.add_row("time to run", f"{program.seconds['run'] * 1e3:,.2f} ms")
    table.add_row("peak memory of a rank", f"{program.peak_bytes:,} bytes")
    for (op, axes), (count, nbytes) in _collectives(program).items():
        table.add_row(f"{op} over {', '.join(axes)}", f"{count} x, {nbytes:,} bytes")
    if not program.bundle.manifest.collectives:
        table.add_row("collectives", "none")
    for i, (error, largest) in enumerate(errors or ()):
        table.add_row(f"result {i}: largest error", f"{error:.2e} of {largest:.3g}")
    for file in files:
        table.add_row("written", file)
    Console(highlight=False).print(table)


def _collectives(program: Program) -> dict[tuple[str, tuple[str, ...]], tuple[int, int]]:
    """By op and axes: how many, and the bytes that the busiest rank receives in all of them."""
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    nbytes: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for c in program.bundle.manifest.collectives:
        counts[(c.op, c.axes)] += 1
        nbytes[(c.op, c.axes)] += c.bytes
    return {key: (counts[key], nbytes[key]) for key in counts}


class _Progress:
    """The stage at work, shown while it lasts; silent when nobody looks at a terminal."""

    def __init__(self, file: str, stage: Stage, quiet: bool) -> None:
        from rich.console import Console

        self._file, self._stage = file, stage
        self._console = Console(stderr=True)
        self._quiet = quiet or not self._console.is_terminal
        self._status: Any = None

    def __enter__(self) -> "_Progress":
        if not self._quiet:
            self._status = self._console.status("meshweave")
            self._status.start()
        return self

    def __call__(self, stage: str) -> None:
        self._stage(f"in stage {stage} of {self._file}")
        if self._status is not None:
            self._status.update(f"meshweave: {stage}")

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
