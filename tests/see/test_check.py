"""`meshweave check` and the plugin of pytest: what is within a budget, what is not, and files that are no budget."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import meshweave
from depth import sampled

import meshweave as mw
from meshweave.see.account import report_of_bundle

GATHERED = """func.func @main(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[_, _]">}) {
  %e = math.exp %a : tensor<8x6xf32>
  return %e : tensor<8x6xf32>
}
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "gathered.mlir"
    file.write_text(GATHERED)
    return file


def budget(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "budget.toml"
    file.write_text(text)
    return file


def test_within_a_budget(program: Path, tmp_path: Path) -> None:
    file = budget(
        tmp_path, 'bytes = "96 B"\npeak = "1 KiB"\ncompiles = 1\ncollectives.all_gather = 1\n'
    )
    done = meshweave("check", program, "--budget", file)
    assert done.status == 0, done
    assert "within the budget: 96 B received (1 x all_gather)" in done.out


def test_beyond_a_budget_the_reasons_are_said(program: Path, tmp_path: Path) -> None:
    file = budget(tmp_path, "[collectives]\nall_gather = 0\n")
    done = meshweave("check", program, "--budget", file)
    assert done.status == 1
    assert "collectives: all_gather runs 1 times, at most 0 is expected" in done.out
    assert 'argument %a lies in "[x, _]", as it was said' in done.out
    assert 'result 0 is wanted in "[_, _]", as it was said (gathered.mlir:4:3)' in done.out
    found = json.loads(meshweave("check", program, "--budget", file, "--json").out)
    assert (found["within"], found["spent"]["bytes"]) == (False, 96)


def test_a_bundle_is_held_to_a_budget_too(program: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "p.mwb"
    assert meshweave("compile", program, "-o", bundle).status == 0
    done = meshweave("check", bundle, "--budget", budget(tmp_path, "bytes = 95\n"))
    assert done.status == 1
    assert "all_gather over x: 1 x, 96 B, at gathered.mlir:3:8" in done.out


@pytest.mark.parametrize("axes", ["xy", "xx"])
def test_collectives_of_a_bundle_that_receive_as_much_have_their_own_places(axes: str) -> None:
    def gathers(a: mw.Array, b: mw.Array) -> tuple[mw.Array, mw.Array]:
        first = mw.redistribute(a + a, "[_, _]")
        return first, mw.redistribute(b * b, "[_, _]")

    value = np.ones((8, 4), np.float32)
    f = mw.jit(gathers, mesh="x=2, y=2", in_layouts=tuple(f"[{axis}, _]" for axis in axes))
    f(value, value)
    rows = report_of_bundle(f._last.program.bundle).collectives
    f.close()
    assert [row.axes for row in rows] == [(axis,) for axis in axes]
    lines = [int(row.where.split(":")[1]) for row in rows]
    assert lines == [gathers.__code__.co_firstlineno + n for n in (1, 2)]


@sampled(1)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("byts = 1", 'budget.toml: no limit is called "byts"; did you mean "bytes"?'),
        ("bytes = [", "budget.toml: no TOML"),
        ("bytes = true", "budget.toml: bytes: True is no limit"),
        ("[collectives]\nbroadcast = 1", 'no collective is called "broadcast"; there are'),
        (None, "budget.toml: No such file"),
    ],
)
def test_a_file_that_is_no_budget(
    program: Path, tmp_path: Path, text: str | None, message: str
) -> None:
    file = tmp_path / "budget.toml"
    if text is not None:
        file.write_text(text)
    done = meshweave("check", program, "--budget", file)
    assert done.status == 2 and message in done.err and done.err.count("\n") == 1, done


TESTS = """
import numpy as np, meshweave as mw
ROWS = {rows}
def test_gathers():
    f = mw.jit(lambda x: x + 1.0, mesh="x=2", in_layouts="[x, _]", out_layouts="[_, _]")
    f(np.ones((ROWS, 6), np.float32))
def test_calls_nothing():
    pass
"""


def run_tests(folder: Path, rows: int, *options: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(TESTS.format(rows=rows))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "meshweave.see.plugin", "--mw-budget"]
    done = subprocess.run(
        [*command, "b.toml", *options], cwd=folder, capture_output=True, text=True, timeout=500
    )
    return done.returncode, done.stdout + done.stderr


def test_the_plugin_records_and_compares(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    status, said = run_tests(tmp_path, 8)
    assert status == 0 and "budgets of 1 tests recorded" in said, said
    text = (tmp_path / "b.toml").read_text()
    assert '["test_it.py::test_gathers"]\nbytes = 96\n' in text and "all_gather = 1" in text
    status, said = run_tests(tmp_path, 16)
    assert status == 1, said
    assert "the busiest rank receives 192 bytes, at most 96 bytes is expected" in said
    assert 'argument x lies in "[x, _]", as it was said' in said
    (tmp_path / "b.toml").write_text("bytes = 3\n")
    status, said = run_tests(tmp_path, 8)
    assert status == 4 and "b.toml: bytes: a table is right" in said, said
