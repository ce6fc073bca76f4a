"""Peak bytes are known before a run: what a rank of each engine takes and writes is what the manifest says."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from depth import sampled, some
from hint_programs import attention, constrain, function, laid_out, matmul, region, tensor
from test_memory import Allocations

from meshweave.abi import ALIGNMENT
from meshweave.api.program import Program, build, lowered, random_arguments
from meshweave.lowering.host import functions
from meshweave.runtime.local.engine import LocalEngine
from meshweave.runtime.mpi.engine import mpiexec
from meshweave.runtime.mpi.window import VARIABLE
from meshweave.transforms import OutlineRepeats

T = tensor(32, 48)
ROWS = laid_out(T, "[x, _]")


def layers(mesh: str) -> str:
    """Twelve layers alike: a function that is called again and again."""
    body, now = "", "a0"
    for i in range(12):
        body += matmul(f"m{i}", now, "a1", 32, 48, 48) + f"%e{i} = math.tanh %m{i} : {T}\n"
        body += f"%s{i} = arith.addf %e{i}, %{now} : {T}\n"
        now = f"s{i}"
    given = [ROWS if mesh else T, tensor(48, 48)]
    return function(given, [T], f"{body}return %{now} : {T}", mesh)


def until(mesh: str) -> str:
    """A loop until a sum over all ranks is large."""
    S = tensor()
    body = f"""%one = arith.constant dense<1.0> : {T}
%zero = arith.constant dense<0.0> : {S}
%most = arith.constant 5000.0 : f32
%w = scf.while (%x = %a0) : ({T}) -> {T} {{
  %q = arith.mulf %x, %x : {T}
  %t = linalg.reduce ins(%q : {T}) outs(%zero : {S}) dimensions = [0, 1]
    (%u: f32, %v: f32) {{ %y = arith.addf %u, %v : f32 linalg.yield %y : f32 }}
  %n = tensor.extract %t[] : {S}
  %go = arith.cmpf olt, %n, %most : f32
  scf.condition(%go) %x : {T}
}} do {{
^bb0(%x: {T}):
  %d = math.absf %x : {T}
  %e = arith.addf %d, %one : {T}
  %m = linalg.matmul ins(%e, %a1 : {T}, {tensor(48, 48)}) outs(%x : {T}) -> {T}
  scf.yield %m : {T}
}}
return %w : {T}"""
    return function([ROWS if mesh else T, tensor(48, 48)], [T], body, mesh)


def sliced(mesh: str) -> str:
    """A gather in slices of columns, or as a ring."""
    body = matmul("c", "a0", "a1", 32, 48, 48) + constrain("d", "c", T, "[x, t]")
    inside = region("r", body, "%d", T, 'slice = "t=4", order = "dfs"')
    given = [ROWS, laid_out(tensor(48, 48), "[x, _]")]
    return function(given, [ROWS], f"{inside}return %r : {T}", mesh or "x=1")


def heads(mesh: str) -> str:
    """Attention in slices, at most so many bytes."""
    text = attention(8, 32, 16, 'slice = "t", peak_bytes = "20kB", kernels = "-flash"')
    return f'"dist.mesh"() {{sym_name = "mesh", axes = "{mesh or "x=1"}"}} : () -> ()\n{text}'


PROGRAMS: dict[str, Callable[[str], str]] = {
    "a function called several times": layers,
    "a while loop": until,
    "collectives in slices": sliced,
    "slices within a budget": heads,
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of few layers, and of few ops, are functions too."""
    monkeypatch.setattr(functions, "SMALLEST", 0)
    monkeypatch.setattr(OutlineRepeats.__init__, "__defaults__", (10, 3, 4))


def test_layers_are_one_function() -> None:
    with lowered(layers("x=2"), "-", None) as (_, program):
        assert max(body.times for body in program.bodies[:-1]) > 5


@sampled(1)
@pytest.mark.parametrize("mesh", ["x=1", "x=2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_rank_of_the_local_engine_takes_what_was_planned(
    name: str, mesh: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Allocations()
    found.patch(monkeypatch)
    bundle = build(PROGRAMS[name](mesh))
    arena = bundle.manifest.arena_bytes
    with Program(bundle, LocalEngine(timeout=30)) as program:
        ranks = program.mesh.nranks
        assert found.sizes[:ranks] == [arena] * ranks
        program(*random_arguments(program.inputs, 1))
        ports = sum(port.nbytes for port in (*program.inputs, *program.outputs))
        assert program.peak_bytes == arena + ports
        # Inputs that lie well are not copied; what is given back is, by `Array.numpy`.
        given_back = sum(port.nbytes for port in program.outputs)
        assert sum(found.sizes[ranks:]) <= ranks * ports + given_back
        for rank in range(ranks):
            assert arena - ALIGNMENT < found.last_written(rank) <= arena
    found.check()


MEASURE = """
import ctypes, json, sys
import numpy as np
from mpi4py import MPI
from meshweave.bundle import Bundle
from meshweave.runtime import run_inside
from meshweave.runtime.mpi import inside, rank
from meshweave.api.program import random_arguments

found = []


class Rank(rank.MpiRank):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        manifest = self.manifest
        at = int(self.table._base[self.table.slots.arena])
        self.memory = (ctypes.c_uint8 * manifest.arena_bytes).from_address(at)
        ctypes.memset(at, FILL, manifest.arena_bytes - manifest.early_bytes)

    def close(self):
        written = np.flatnonzero(np.frombuffer(self.memory, np.uint8) != FILL)
        found.append([len(self.memory), int(written[-1]) + 1, self._window is not None])
        super().close()


FILL = 0xA5
rank.MpiRank = inside.MpiRank = Rank
for path in sys.argv[1:]:
    bundle = Bundle.read(path)
    inputs = [np.resize(a, p.local_shape) for a, p in
              zip(random_arguments(bundle.manifest.inputs, MPI.COMM_WORLD.rank), bundle.manifest.inputs)]
    run_inside(bundle, inputs)
for line in MPI.COMM_WORLD.gather(json.dumps(found)) or []:
    print(line)
"""


@pytest.mark.parametrize("window", some(["1", "0"], 2))
def test_a_rank_of_mpi_takes_what_was_planned(tmp_path: Path, window: str) -> None:
    bundles = [build(make("x=2"), engine="mpi") for make in PROGRAMS.values()]
    paths = [str(tmp_path / f"{i}.mwb") for i in range(len(bundles))]
    for bundle, path in zip(bundles, paths, strict=True):
        bundle.write(path)
    script = tmp_path / "measure.py"
    script.write_text(MEASURE)
    done = subprocess.run(
        [mpiexec(), "-n", "2", sys.executable, "-m", "mpi4py", str(script), *paths],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), VARIABLE: window},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 2
    for row in rows:
        for name, bundle, (taken, written, shared) in zip(PROGRAMS, bundles, row, strict=True):
            arena = bundle.manifest.arena_bytes
            assert taken == arena and arena - ALIGNMENT < written <= arena, name
            assert not shared or window == "1"
