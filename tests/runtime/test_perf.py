"""Compiled functions are named for perf, by where they lie and how long they are."""

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from commands import meshweave

import meshweave as mw
from meshweave.errors import UsageError
from meshweave.runtime.perf import write_perf_map

PROGRAM = """func.func @main(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {
  %e = math.exp %a : tensor<8x6xf32>
  return %e : tensor<8x6xf32>
}
"""


def functions(path: Path) -> dict[str, tuple[int, int]]:
    """The functions of a map: where each begins, and its bytes."""
    rows = [line.split(" ", 2) for line in path.read_text().splitlines()]
    return {name: (int(start, 16), int(size, 16)) for start, size, name in rows}


def test_the_functions_of_a_loaded_program_do_not_overlap(tmp_path: Path) -> None:
    path = tmp_path / "perf.map"
    with mw.compile(PROGRAM) as program:
        program(np.ones((8, 6), np.float32))
        assert write_perf_map(str(path)) == str(path)
    found = functions(path)
    assert {"mw_kernel_0", "step"} <= set(found)
    rows = map(str.split, path.read_text().splitlines())
    places = sorted((int(start, 16), int(size, 16)) for start, size, _ in rows)
    assert all(size > 0 for _, size in places)
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(places))


@pytest.mark.skipif(shutil.which("gdb") is None, reason="no gdb is here")
def test_gdb_takes_the_names_from_the_file_beside_the_map(tmp_path: Path) -> None:
    path = tmp_path / "perf.map"
    with mw.compile(PROGRAM) as program:
        program(np.ones((8, 6), np.float32))
        write_perf_map(str(path))
    asked = [f"info symbol {start + size - 1:#x}" for start, size in functions(path).values()]
    commands = [f"add-symbol-file {tmp_path / 'perf.elf'}", *asked]
    batch = [word for command in commands for word in ("-ex", command)]
    done = subprocess.run(
        ["gdb", "-nx", "-batch", *batch], capture_output=True, text=True, timeout=500
    )
    said = done.stdout.splitlines()[1:]
    for (name, (_, size)), line in zip(functions(path).items(), said, strict=True):
        assert line == f"{name} + {size - 1} in section .text", (line, done.stderr)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    os.symlink(tmp_path / "kept", tmp_path / "map")
    with pytest.raises(UsageError, match="map: "):
        write_perf_map(str(tmp_path / "map"))
    assert (tmp_path / "kept").read_text() == "kept"


def test_the_command_writes_it_for_engine_local_alone(tmp_path: Path) -> None:
    program = tmp_path / "p.mlir"
    program.write_text(PROGRAM)
    done = meshweave("run", program, "--random", 1, "--perf-map", "--engine", "mpi")
    assert (done.status, "--perf-map goes with --engine local" in done.err) == (2, True), done
    before = set(Path("/tmp").glob("perf-*.map"))
    done = meshweave("run", program, "--random", 1, "--perf-map")
    assert done.status == 0, done
    (path,) = set(Path("/tmp").glob("perf-*.map")) - before
    assert "mw_kernel_0" in functions(path)
    assert path.with_suffix(".elf").read_bytes().startswith(b"\x7fELF")
    path.unlink()
    path.with_suffix(".elf").unlink()
