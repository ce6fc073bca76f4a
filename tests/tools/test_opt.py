"""`meshweave-opt`: what it prints, where, and with which exit status."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from depth import sampled

ROOT = Path(__file__).resolve().parent.parent.parent

PROGRAM = """\
"dist.mesh"() {sym_name = "mesh", axes = "x=2, y=3"} : () -> ()
func.func @f(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">}) -> i32 {
  %0 = arith.constant 1 : i32
  %1 = arith.addi %0, %0 : i32
  return %1 : i32
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    return path


def test_the_result_goes_to_standard_output(opt: Callable, file: Path) -> None:
    done = opt(file, "-p", "canonicalize")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith('#layout = #dist.layout<"[x, _]">\nmodule {\n')
    assert "arith.addi" not in done.out and "constant 2" in done.out


@sampled(1)
@pytest.mark.parametrize(
    "arguments",
    [
        ("-p", "func.func(canonicalize,cse)"),
        ("--pass-pipeline=builtin.module(func.func(canonicalize,cse))",),
        ("-pass-pipeline=canonicalize",),
        ("--canonicalize", "--cse"),
        ("-canonicalize", "-cse"),
        ("--canonicalize=max-iterations=2 top-down=true", "--cse"),
    ],
)
def test_pipelines_and_flags_ask_for_the_same(
    opt: Callable, file: Path, arguments: tuple[str, ...]
) -> None:
    assert opt(file, *arguments).out == opt(file, "-p", "canonicalize").out


def test_the_output_reads_back_and_prints_alike(opt: Callable, file: Path, tmp_path: Path) -> None:
    once = tmp_path / "once.mlir"
    assert opt(file, "-o", once).out == ""
    twice = opt(once)
    assert twice.out == once.read_text()


def test_an_output_file_is_written_whole_or_not_at_all(
    opt: Callable, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.mlir"
    out.write_text("precious")
    assert opt(file, "-p", "transform-interpreter", "-o", out).status == 1
    assert out.read_text() == "precious"
    assert opt(file, "-o", out).status == 0
    assert out.read_text().startswith("#layout")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.mlir", "program.mlir"]


def test_generic_form_locations_and_elided_constants(opt: Callable, tmp_path: Path) -> None:
    file = tmp_path / "c.mlir"
    file.write_text(
        "func.func @c() -> tensor<4xi32> {\n"
        "  %0 = arith.constant dense<[1, 2, 3, 4]> : tensor<4xi32>\n"
        "  return %0 : tensor<4xi32>\n}\n"
    )
    assert '"func.return"' in opt(file, "--mlir-print-op-generic").out
    assert f'loc("{file}":2:8)' in opt(file, "--mlir-print-debuginfo").out
    assert "__elided__" in opt(file, "--mlir-elide-elementsattrs-if-larger=3").out


def test_unregistered_dialects_are_let_in_on_request(opt: Callable, tmp_path: Path) -> None:
    file = tmp_path / "u.mlir"
    file.write_text('"sdy.mesh"() {} : () -> ()\n')
    assert opt(file).status == 1
    assert opt(file, "--allow-unregistered-dialect").status == 0


STABLEHLO = """\
func.func public @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) -> tensor<8xf32> {
  %0 = stablehlo.add %a, %a : tensor<8xf32>
  return %0 : tensor<8xf32>
}
sdy.mesh @mesh = <["x"=2]>
"""


def test_stablehlo_is_shown_in_the_global_view(opt: Callable, tmp_path: Path) -> None:
    file = tmp_path / "s.mlir"
    file.write_text(STABLEHLO)
    plain = opt(file)
    assert plain.status == 0 and "stablehlo" not in plain.out and "sdy" not in plain.out
    assert '#layout = #dist.layout<"[x]">' in plain.out and "arith.addf" in plain.out
    assert '"linalg.map"' in opt(file, "--mlir-print-op-generic").out
    assert f'loc("{file}":2:8)' in opt(file, "--mlir-print-debuginfo").out
    assert "tensor<4xf32>" in opt(file, "-p", "dist-pipeline").out
    again = tmp_path / "again.mlir"
    again.write_text(plain.out)
    assert opt(again).out == plain.out


def test_stablehlo_is_split_and_verified(opt: Callable, tmp_path: Path) -> None:
    file = tmp_path / "s.mlir"
    wrong = STABLEHLO.replace("  %0 =", "  // expected-error @below {{custom_call @f}}\n  %0 =")
    wrong = wrong.replace(
        "add %a, %a : tensor<8xf32>", "custom_call @f(%a) : (tensor<8xf32>) -> tensor<8xf32>"
    )
    file.write_text(f"{STABLEHLO}// -----\n{wrong}// -----\n{PROGRAM}")
    assert opt(file, "--split-input-file", "--verify-diagnostics").status == 0
    done = opt(file, "--split-input-file")
    assert done.status == 1 and f"{file}:9:8: error: not supported" in done.err


def test_passes_of_stablehlo_get_its_text(opt: Callable, tmp_path: Path) -> None:
    file = tmp_path / "s.mlir"
    file.write_text(
        "func.func @f(%a: tensor<8xf32>) -> tensor<8xf32> {\n"
        "  %0 = stablehlo.add %a, %a : tensor<8xf32>\n  return %0 : tensor<8xf32>\n}\n"
    )
    assert "stablehlo.add" in opt(file, "-p", "func.func(stablehlo-aggressive-simplification)").out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func @f( {", "1:15: error: "),
        (
            "func.func @f() -> i32 {\n  return %0 : i32\n}",
            "2:10: error: use of undeclared SSA value",
        ),
        ("module {\n  foo.bar\n}", "2:3: error: Dialect `foo' not found"),
        ("\n  dist.mesh @m", '2:3: error: dist.mesh is written in generic form, "dist.mesh"(...)'),
        ('"dist.mesh"() {sym_name = "m", axes = "x=0"} : () -> ()', "1:1: error: 'dist.mesh' op"),
        ("func.func @f(%a: tensor<99999999999999999999xf32>)", "error: "),
        ("module attributes {a.b = " + "[" * 20000, "error: brackets nested deeper than 256"),
        ("module {" * 20000 + "}" * 20000, "error: brackets nested deeper than 256"),
        ("\0\0", None),
        ("", None),
    ],
)
def test_malformed_programs_end_in_one_line(
    opt: Callable, tmp_path: Path, text: str, message: str | None
) -> None:
    file = tmp_path / "bad.mlir"
    file.write_text(text)
    done = opt(file, "--canonicalize")
    if message is None:
        assert done.status in (0, 1)
        return
    assert done.status == 1 and done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith(f"{file}:") and message in line.replace("1:14", "1:15")


def test_truncated_programs_end_in_one_line(opt: Callable, tmp_path: Path) -> None:
    whole = (ROOT / "examples" / "mlp" / "mlp.mlir").read_text()
    file = tmp_path / "cut.mlir"
    for at in range(0, len(whole) - 4, 97):
        file.write_text(whole[:at])
        done = opt(file, "--allow-unregistered-dialect")
        assert done.status in (0, 1)
        assert len(done.err.splitlines()) == done.status, whole[:at][-40:]


def test_files_that_cannot_be_read_or_written(opt: Callable, file: Path, tmp_path: Path) -> None:
    missing = opt(tmp_path / "none.mlir")
    assert missing.status == 1 and "No such file" in missing.err
    assert opt(tmp_path).status == 1
    binary = tmp_path / "binary.mlir"
    binary.write_bytes(b"ML\xefR\x00\xff")
    assert opt(binary).status == 1
    assert opt(file, "-o", tmp_path / "none" / "out.mlir").status == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("-p", "nonsense-pass"),
        ("-p", "cse", "--cse"),
        ("--splt-input-file",),
        ("another.mlir",),
        ("--cse", "--mlir-print-ir-after=canonicalize"),
        ("--mlir-elide-elementsattrs-if-larger=many",),
        ("-o",),
    ],
)
def test_wrong_usage_is_status_2_and_one_line(
    opt: Callable, file: Path, arguments: tuple[str, ...]
) -> None:
    done = opt(file, *arguments)
    assert done.status == 2 and done.out == ""
    (line,) = done.err.splitlines()
    assert line.startswith("meshweave-opt: ")


def test_all_expectations_met_is_status_0(opt: Callable, tmp_path: Path) -> None:
    file = tmp_path / "e.mlir"
    file.write_text(
        "func.func @f() -> i32 {\n  // expected-error @below {{undeclared}}\n  return %0 : i32\n}\n"
    )
    assert opt(file, "--verify-diagnostics").status == 0
    file.write_text(file.read_text().replace("undeclared", "something else"))
    done = opt(file, "--verify-diagnostics")
    assert done.status == 1
    assert [line.split(": ", 2)[2].split(":")[0] for line in done.err.splitlines()] == [
        "unexpected error",
        'expected error "something else" was not produced',
    ]


def test_standard_input_and_a_reader_that_leaves() -> None:
    """As in a shell: from a pipe, into `head` that closes early."""
    body = "".join(f"func.func @f{i}() {{ return }}\n" for i in range(20000))
    command = [sys.executable, "-m", "meshweave.tools.opt"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, input="func.func @g() { return }\n", capture_output=True, text=True, env=env
    )
    assert done.returncode == 0 and "@g" in done.stdout
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    assert child.stdin and child.stdout and child.stderr
    child.stdin.write(body.encode())
    child.stdin.close()
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(60) == 0
    assert child.stderr.read() == b""
    child.stderr.close()


def test_a_start_loads_little(file: Path) -> None:
    """A lit test is one or two starts, of about 0.35 s. Modules are named: seconds depend on the load."""
    code = "import sys; from meshweave.tools.opt import run; run(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", code, str(file), "-o", os.devnull]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    loaded = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    names = loaded.split()
    assert not {"rich", "jax", "torch", "mpi4py", "llvmlite", "numpy.testing"} & set(names)
    rooms = {".".join(name.split(".")[:2]) for name in names if name.startswith("meshweave.")}
    later = {"api", "jax", "lowering", "report", "runtime", "simulator", "torch", "verification"}
    assert not {f"meshweave.{room}" for room in later} & rooms
