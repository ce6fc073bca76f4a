"""What the benchmarks share: the peer's process, best of several runs, and tables."""

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def best(action: Callable[[], Any], repeat: int = 5) -> float:
    """The least seconds that `action` took in `repeat` runs, after one that is not counted."""
    action()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def jax_peer(
    name: str, *arguments: str, python: str | None = None
) -> dict[str, float | None] | None:
    """Seconds that JAX takes (compile, propagate, run) in a process of its own; None when JAX is not installed.

    python: an interpreter that has JAX, when it is not this one.
    """
    if python is None:
        if importlib.util.find_spec("jax") is None:
            return None
        python = sys.executable
    command = [python, "-m", "benchmarks.peers.jax_models", name, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    except OSError as error:
        print(f"no column for JAX: {python}: {error.strerror}", file=sys.stderr)
        return None
    if done.returncode:
        print(f"jax_peer {name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def jax_training(size: str, python: str | None = None) -> str | None:
    """A training step of the transformer of a size, as JAX exports it; None when JAX is not installed."""
    if python is None and importlib.util.find_spec("jax") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.mlir"
        module = [python or sys.executable, "-m", "benchmarks.peers.jax_models", "transformer"]
        subprocess.run([*module, "--size", size, "--train-text", file], cwd=ROOT, check=True)
        return file.read_text()


def milliseconds(seconds: float | None) -> str:
    """`12.3 ms`; a dash for None."""
    return "-" if seconds is None else f"{seconds * 1e3:,.1f} ms"


def table(title: str, *columns: str) -> Any:
    """An empty table whose first column is text and all others numbers."""
    from rich.table import Table

    made = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i == 0 else "right")
    return made


def show(made: Any) -> None:
    """Print a table."""
    from rich.console import Console

    Console(highlight=False, width=None if sys.stdout.isatty() else 130).print(made)
