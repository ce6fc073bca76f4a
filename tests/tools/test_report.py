"""`meshweave report` and `meshweave compile --report-json`: what they say, draw and refuse."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from commands import Outcome, meshweave
from hint_programs import NO_MESH, attention

from meshweave.report import Moment, Report, human_bytes
from meshweave.tools.chart import Curve, line_chart, memory_chart
from meshweave.tools.report import picture

GATHERED = """module {
  "dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
  func.func @main(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">})
      -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[_, _]">}) {
    %r = "hint.region"() ({
      %e = math.exp %a : tensor<8x6xf32>
      %s = arith.addf %e, %a : tensor<8x6xf32>
      "hint.yield"(%s) : (tensor<8x6xf32>) -> ()
    }) {hints = {slice = "t=2", order = "dfs", bundle = "early", stream = 3}} : () -> tensor<8x6xf32>
    return %r : tensor<8x6xf32>
  }
}
"""
KEYS = ["peak_bytes", "state_bytes", "regions", "ledger", "kernels", "collectives", "certificate"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "gathered.mlir"
    file.write_text(GATHERED)
    return file


@pytest.fixture
def heads(tmp_path: Path) -> Path:
    file = tmp_path / "heads.mlir"
    hints = 'slice = "t=8", order = "dfs", kernels = "-flash"'
    file.write_text(NO_MESH + attention(8, 64, 16, hints))
    return file


def refused(outcome: Outcome, status: int, *says: str) -> None:
    assert outcome.status == status, outcome
    assert outcome.err.startswith("meshweave: error: ") and outcome.err.count("\n") == 1
    for words in says:
        assert words in outcome.err
    assert outcome.out == ""


def test_compile_writes_what_it_decided(program: Path, tmp_path: Path) -> None:
    report, out = tmp_path / "r.json", tmp_path / "p.mwb"
    done = meshweave("compile", program, "-o", out, "--report-json", report)
    assert done.status == 0 and out.exists(), done
    said = json.loads(report.read_text())
    assert list(said) == KEYS
    (region,) = said["regions"]
    assert region == {
        "name": "early", "slices": 2, "order": "dfs", "width": 1,
        "intermediate_bytes": region["intermediate_bytes"],
    }  # fmt: skip
    outcomes = {(row["hint"], row["op"]): row["outcome"] for row in said["ledger"]}
    assert outcomes["slice=t=2", "math.exp"] == "honoured"
    assert outcomes["stream=3", "arith.addf"] == "unsupported"
    for row in said["ledger"]:
        assert set(row) == {"hint", "op", "location", "outcome", "reason"}
        assert row["location"].startswith(str(program))
    assert said["collectives"] == [{"op": "all_gather", "axes": ["x"], "bytes": 96}]
    assert said["kernels"] and all(set(k) == {"op", "kernel", "why"} for k in said["kernels"])
    ran = json.loads(meshweave("run", out, "--json").out)
    assert ran["peak_bytes"] == said["peak_bytes"]


def test_report_says_the_same_as_compile(program: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    meshweave("compile", program, "-o", tmp_path / "p.mwb", "--report-json", report)
    done = meshweave("report", program, "--json")
    assert done.status == 0 and json.loads(done.out) == json.loads(report.read_text())


def test_report_prints_tables(program: Path) -> None:
    done = meshweave("report", program)
    assert done.status == 0, done
    for words in ("regions", "early", "ledger", "honoured", "kernels", "codegen", "all_gather"):
        assert words in done.out


def test_a_program_without_hints_has_neither_regions_nor_ledger(tmp_path: Path) -> None:
    file = tmp_path / "plain.mlir"
    file.write_text("func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
                    "%0 = math.exp %a : tensor<8xf32>\nreturn %0 : tensor<8xf32>\n}\n")  # fmt: skip
    said = json.loads(meshweave("report", file, "--json").out)
    assert said["regions"] == said["ledger"] == said["collectives"] == []
    assert said["peak_bytes"] == 64


def test_the_mesh_may_be_another(program: Path) -> None:
    wide = json.loads(meshweave("report", program, "--mesh", "x=4", "--json").out)
    assert wide["collectives"] == [{"op": "all_gather", "axes": ["x"], "bytes": 144}]


def test_the_picture_names_the_peak_with_its_op_and_line(heads: Path, tmp_path: Path) -> None:
    svg = tmp_path / "live.svg"
    done = meshweave("report", heads, "--svg", svg)
    assert done.status == 0, done
    root = ET.fromstring(svg.read_text())
    texts = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text")]
    titles = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}title")]
    said = json.loads(meshweave("report", heads, "--json").out)
    peak = human_bytes(said["regions"][0]["intermediate_bytes"])
    assert any(t.startswith(f"as compiled: peak {peak} in loops, heads.mlir:12") for t in texts), (
        texts
    )
    assert any(t.startswith("without hints: peak ") for t in texts)
    assert any(t.startswith("matrix product, heads.mlir:10:") for t in titles)


def test_the_curves_stay_in_the_picture() -> None:
    moments = tuple(Moment("loops", f"a.mlir:{k}:1", k * 1000) for k in range(40))
    drawn = picture("a.mlir", Report(0, 0), Report(0, 0, moments=moments))
    root = ET.fromstring(drawn)
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        x, y = float(rect.get("x", 0)), float(rect.get("y", 0))
        assert x + float(rect.get("width", 0)) <= 961 and 0 <= y <= 420
        assert y + float(rect.get("height", 0)) <= 421


def test_charts_of_nothing_are_pictures_too() -> None:
    for drawn in (
        memory_chart("<a> & b", [Curve("c", [], [])]),
        memory_chart("none", []),
        memory_chart("zero", [Curve("c", [0, 0], ["a", "b"])]),
        line_chart("lines", [], [], "width", "slices"),
        line_chart("lines", [1, 2, 4], [10, 20, 40], "width", "slices"),
    ):
        assert ET.fromstring(drawn).tag.endswith("svg")


def test_human_bytes() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1024, 4202496, 1 << 33)] == [
        "0 B", "1023 B", "1 KiB", "4.01 MiB", "8 GiB",
    ]  # fmt: skip


def test_what_is_wrong_is_one_line(program: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.mlir"
    broken.write_text("func.func @main(")
    refused(meshweave("report", broken), 1, "broken.mlir")
    refused(meshweave("report", tmp_path / "none.mlir"), 1, "none.mlir")
    refused(meshweave("report", program, "--mesh", "z=2"), 1, "lacks axis x")
    refused(meshweave("report", program, "--colour"), 2, "--colour")
    nowhere = tmp_path / "no" / "where.svg"
    refused(meshweave("report", program, "--svg", nowhere), 2, "where.svg", "No such file")
    bundle = tmp_path / "p.mwb"
    assert meshweave("compile", program, "-o", bundle).status == 0
    refused(meshweave("report", bundle), 2, "compiled already")
    refused(meshweave("compile", program, "-o", bundle, "--report-json", nowhere), 2, "where.svg")


def test_a_budget_that_cannot_be_kept_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "tight.mlir"
    file.write_text(NO_MESH + attention(8, 64, 16, 'peak_bytes = 8, kernels = "-flash"'))
    refused(meshweave("report", file), 1, "tight.mlir:3:6", "the least possible is", "bytes")
