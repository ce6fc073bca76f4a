"""The four example programs: time to compile, time to run and peak memory, on each mesh and engine, beside JAX."""

import argparse
from pathlib import Path

import numpy as np

import meshweave
from benchmarks.common import ROOT, best, jax_peer, milliseconds, show, table

MESHES = ("dp=1,tp=1", "dp=2,tp=2", "dp=4,tp=1", "dp=1,tp=4", "dp=2,tp=4")
NAMES = ("mlp", "attention", "block", "gpt2l")


def inputs(name: str) -> list[np.ndarray]:
    """The example's arguments, in order."""
    folder = ROOT / "examples" / name
    return [np.load(folder / f"in{i}.npy") for i in range(len(list(folder.glob("in*.npy"))))]


def row(name: str, mesh: str, engine: str) -> tuple[float, float, int, float]:
    """Seconds to compile and to run, peak bytes of a rank, and the largest error relative to the largest element."""
    folder: Path = ROOT / "examples" / name
    arguments, expected = inputs(name), np.load(folder / "out0.npy")
    with meshweave.compile(folder / f"{name}.mlir", mesh=mesh, engine=engine) as program:
        error = np.abs(program(*arguments)[0] - expected).max() / np.abs(expected).max()
        run = min(best(lambda: program(*arguments), 3) and program.seconds["run"] for _ in range(5))
        return program.seconds["compile"], run, program.peak_bytes, float(error)


def main(options: argparse.Namespace) -> None:
    """Print the table."""
    made = table(
        "the example programs",
        "program", "mesh", "engine", "compile", "run", "peak bytes", "error", "JAX compile", "JAX run",
    )  # fmt: skip
    for name in NAMES:
        for mesh in MESHES:
            peer = jax_peer(name, "--mesh", mesh, python=options.jax_python)
            for engine in ("local", "mpi"):
                compile_, run, peak, error = row(name, mesh, engine)
                theirs = (peer or {}).get("compile"), (peer or {}).get("run")
                made.add_row(
                    name, mesh, engine, milliseconds(compile_), milliseconds(run), f"{peak:,}", f"{error:.1e}",
                    *map(milliseconds, theirs),
                )  # fmt: skip
    show(made)
