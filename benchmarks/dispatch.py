"""What a call costs: one small op, a perceptron's forward on two ranks, and what a new shape costs first, beside
torch's DTensor and JAX in the same run.

The layer: x (32x64) times 64x256, relu, times 256x64, the hidden dim over the ranks, f32. A tenth of what DTensor takes
eagerly and a third of its compiled form and of jax.jit are the aims. A step with many leaves shall cost what jax.jit
takes. DTensor is measured on a process group that moves
nothing, so that only its dispatch counts, and on gloo.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

import meshweave as mw
from benchmarks.common import ROOT, show, table
from benchmarks.peers.dispatch_torch import (
    BATCH,
    HIDDEN,
    LEAVES,
    WIDTH,
    decayed,
    microseconds,
)
from meshweave.api.program import build
from meshweave.plan import cache_clear, plan_redistribute
from meshweave.runtime.mpi.engine import mpiexec

RANKS = 2
ROWS = "[x, _]"
FIRST = range(16, 16 + 8 * 9, 8)  # sizes of tensors that are new


def numbers(*shape: int) -> np.ndarray:
    """The same normal numbers each time."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def small_op(repeat: int) -> float:
    """x w + b of 8x8 on one rank, NumPy arrays in: microseconds."""
    call = mw.jit(lambda b, x, w: x @ w + b)
    given = [numbers(*shape) for shape in ((8,), (8, 8), (8, 8))]
    return microseconds(lambda: call(*given), repeat)


def layer_function(engine: str) -> Any:
    """The layer, compiled for the ranks when it is called."""
    return mw.jit(
        lambda x, w1, b1, w2, b2: mw.relu(x @ w1 + b1) @ w2 + b2,
        mesh=mw.Mesh(x=RANKS),
        in_layouts=("[_, _]", "[_, x]", "[x]", "[x, _]", "[_]"),
        out_layouts="[_, _]",
        engine=engine,
    )


def layer_arguments(mesh: Any) -> list[Any]:
    """Its arguments; the parameters lie where they belong."""
    layouts = ("[_, x]", "[x]", "[x, _]", "[_]")
    shapes = ((WIDTH, HIDDEN), (HIDDEN,), (HIDDEN, WIDTH), (WIDTH,))
    parameters = [
        mw.Array.from_numpy(numbers(*shape), mesh=mesh, layout=layout)
        for shape, layout in zip(shapes, layouts)
    ]
    return [numbers(BATCH, WIDTH), *parameters]


def layer(repeat: int) -> float:
    """The forward on engine `local`: microseconds."""
    call = layer_function("local")
    given = layer_arguments(call.mesh)
    return microseconds(lambda: call(*given), repeat, 100)


def layer_inside(repeat: int) -> dict[str, float]:
    """The forward inside the ranks of an MPI job, which call it themselves."""
    call = layer_function("mpi")
    given = layer_arguments(call.mesh)
    bundle = build(call.lower(*given).program.text, engine="mpi", name="layer")
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/layer.mwb"
        bundle.write(path)
        command = [mpiexec(), "-n", str(RANKS), "-bind-to", "core", sys.executable, "-m", "mpi4py"]
        return figures([*command, "-m", "benchmarks.peers.dispatch_mpi", path, str(repeat)])


def state(repeat: int) -> float:
    """A step that writes LEAVES donated arrays of 8x8 in place, rows over the ranks: microseconds."""
    mesh = mw.Mesh(x=RANKS)
    step = mw.jit(decayed, mesh=mesh, in_layouts=([ROWS] * LEAVES, ROWS), donate="leaves")
    x, *leaves = [
        mw.Array.from_numpy(numbers(8, 8), mesh=mesh, layout=ROWS) for _ in range(LEAVES + 1)
    ]

    def call() -> None:
        leaves[:] = step(leaves, x)

    return microseconds(call, repeat, 20)


def first_redistributions() -> float:
    """The first redistribution of a shape that no call has had: microseconds, the median of nine."""
    mesh, times = mw.Mesh(x=RANKS), []
    for k in FIRST:
        array = mw.Array.from_numpy(numbers(k * RANKS, k), mesh=mesh, layout="[x, _]")
        began = time.perf_counter()
        mw.redistribute(array, "[_, x]")
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2] * 1e6


def first_plans(seen: bool) -> float:
    """The plan that is a part of it: microseconds, the median of nine.

    seen: whether there is a plan of another shape.
    """
    mesh, times = mw.Mesh(x=RANKS), []
    layouts = mw.Layout.parse("[x, _]"), mw.Layout.parse("[_, x]")
    for k in FIRST:
        cache_clear()
        if seen:
            plan_redistribute(*layouts, mesh, (RANKS, RANKS), 4)
        began = time.perf_counter()
        plan_redistribute(*layouts, mesh, (k * RANKS, k), 4)
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2] * 1e6


def figures(command: list[str]) -> dict[str, float]:
    """The JSON that a command prints last; nothing, and a line that says why, where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    if done.returncode or not done.stdout.strip():
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        print(f"no figures of {' '.join(command[1:])}: {said}", file=sys.stderr)
        return {}
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def peer(python: str | None, module: str, *arguments: str) -> dict[str, float]:
    """What a peer measured, in an interpreter that has it."""
    return figures([python or sys.executable, "-m", f"benchmarks.peers.{module}", *arguments])


def main(options: Any) -> None:
    """Measure and print."""
    repeat = max(15, options.repeat)
    ours = {
        "small op, mw.jit": small_op(repeat),
        "layer, mw.jit, local": layer(repeat),
        **layer_inside(repeat),
        f"state of {LEAVES} leaves, mw.jit": state(repeat),
        "first redistribution of a shape, mw": first_redistributions(),
        "plan of a shape, none known": first_plans(False),
        "plan of a shape, another's known": first_plans(True),
    }
    fake = peer(options.torch_python, "dispatch_torch", "fake", str(RANKS), str(repeat))
    gloo = peer(options.torch_python, "dispatch_torch", "gloo", str(RANKS), "5")
    jax = peer(options.jax_python, "dispatch_jax", str(RANKS), str(repeat))
    made = table(
        "microseconds a call, two ranks", "call", "us", "mw.jit, of it", "inside MPI, of it"
    )
    for name, value in {
        **ours,
        **fake,
        **{f"{k}, gloo": v for k, v in gloo.items()},
        **jax,
    }.items():
        what = name.split(",")[0]
        mine = next((v for k, v in ours.items() if k.split(",")[0] == what), None)
        inside = ours.get("layer, inside MPI ranks") if what == "layer" else None
        made.add_row(
            name,
            f"{value:.1f}",
            *("-" if m is None else f"{m / value:.2f}" for m in (mine, inside)),
        )
    show(made)


if __name__ == "__main__":
    raise SystemExit("run it as: python -m benchmarks dispatch")
