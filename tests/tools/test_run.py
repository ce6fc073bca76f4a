"""`meshweave run` and `meshweave compile`: what they take, print, write and leave, and their exit statuses."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT, Outcome, meshweave, real, start
from depth import sampled
from runtime.programs import CallOf, exits, on_rank, program, sleeps

from meshweave.errors import CompileError
from meshweave.lowering import stages
from meshweave.runtime.processes.launch import descendants
from meshweave.tools import cli

EXAMPLES = ROOT / "examples"
MLP = EXAMPLES / "mlp"
INPUTS = [MLP / f"in{i}.npy" for i in range(5)]

TWICE = """module {{
  "dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()
  func.func @main(%a: tensor<{type}> {{dist.layout = #dist.layout<"{layout}">}}) -> tensor<{type}> {{
    %0 = {op} : tensor<{type}>
    return %0 : tensor<{type}>
  }}
}}
"""


def twice(folder: Path, type_: str, layout: str, mesh: str = "x=2", op: str = "") -> Path:
    """A program of one argument and one result; by default it adds the argument to itself."""
    float_ = not type_.endswith(("i1", "i8", "i16", "i32", "i64", "index"))
    file = folder / "twice.mlir"
    op = op or f"arith.add{'f' if float_ else 'i'} %a, %a"
    file.write_text(TWICE.format(type=type_, layout=layout, mesh=mesh, op=op))
    return file


def failed(outcome: Outcome, status: int, *says: str) -> None:
    """It ended with this status, one line that says so, and nothing else."""
    assert outcome.status == status, outcome
    assert outcome.err.startswith("meshweave: error: ") and outcome.err.count("\n") == 1, (
        outcome.err
    )
    for words in says:
        assert words in outcome.err
    assert outcome.out == ""


# What it prints and writes


@pytest.mark.parametrize("kind", ["buffers", "llvm"])
def test_code_that_is_printed_is_checked_unless_that_is_off(kind, monkeypatch, capsys):
    def refuse(module):
        raise CompileError("the buffers are checked")

    monkeypatch.setattr(stages.Reference, "of", refuse)
    command = ["compile", str(MLP / "mlp.mlir"), "--mesh", "dp=1,tp=1", "--emit", kind]
    status = cli.command(command)
    failed(Outcome(status, *capsys.readouterr()), 1, "the buffers are checked")
    assert cli.command([*command, "--no-verify"]) == 0


def test_json_has_the_keys_that_scripts_rely_on(tmp_path):
    done = meshweave(
        *("run", MLP / "mlp.mlir", "--mesh", "dp=2,tp=2", "--input", *INPUTS),
        *("--check", "--dump", tmp_path / "new" / "folder", "--json"),
    )
    assert (done.status, done.err) == (0, "")
    said = json.loads(done.out)
    assert list(said) == ["results", "max_abs_err", "seconds", "peak_bytes", "collectives"]
    assert said["results"] == [str(tmp_path / "new" / "folder" / "result0.npy")]
    assert 0 <= said["max_abs_err"] < 1e-5
    assert set(said["seconds"]) == {"compile", "run"} and min(said["seconds"].values()) > 0
    assert said["peak_bytes"] > 64 * 128 * 4 // 2
    (collective,) = said["collectives"]
    assert collective == {"op": "all_reduce", "axes": ["tp"], "bytes": collective["bytes"]}
    wanted = np.load(MLP / "out0.npy")
    np.testing.assert_allclose(np.load(said["results"][0]), wanted, atol=1e-5)


def test_without_a_check_there_is_no_error_in_the_json():
    said = json.loads(meshweave("run", MLP / "mlp.mlir", "--random", 3, "--json").out)
    assert list(said) == ["results", "seconds", "peak_bytes", "collectives"]


def test_the_table_tells_time_collectives_memory_and_errors(tmp_path):
    folder = tmp_path / "a [bold]name[/]"  # not markup
    done = meshweave(
        *("run", MLP / "mlp.mlir", "--input", *INPUTS[:2], "--input", *INPUTS[2:], "--repeat", 2),
        *("--check", "--expect", MLP / "out0.npy", "--dump", folder),
    )
    assert (done.status, done.err) == (0, "")
    for words in (
        *("mlp.mlir on 4 ranks", "dp=2, tp=2", "time to compile", "time to run", "peak memory"),
        *("all_reduce over tp", "1 x, 12,288 bytes", "--check: error of result 0"),
        *("--expect: error of result 0", "[bold]name[/]"),
    ):
        assert words in done.out


def test_the_mesh_is_the_modules_own_unless_told(tmp_path):
    file = twice(tmp_path, "6x8xf32", "[x, _]", mesh="x=3")
    assert "on 3 ranks" in meshweave("run", file).out
    assert "on 2 ranks" in meshweave("run", file, "--mesh", "x=2").out
    assert "on 6 ranks" in meshweave("run", file, "--mesh", "x=2, y=3", "--check").out
    plain = tmp_path / "plain.mlir"
    plain.write_text(
        "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {return %a : tensor<4xf32>}"
    )
    assert "on 1 rank\n" in meshweave("run", plain).out
    assert "on 2 ranks" in meshweave("run", plain, "--mesh", "x=2").out


@sampled(1)
@pytest.mark.parametrize("seed", [0, 7])
def test_a_seed_gives_the_same_arguments_on_every_mesh(tmp_path, seed):
    files = []
    for mesh in ("dp=2,tp=2", "dp=1,tp=4"):
        folder = tmp_path / mesh
        meshweave("run", MLP / "mlp.mlir", "--mesh", mesh, "--random", seed, "--dump", folder)
        files.append(np.load(folder / "result0.npy"))
    np.testing.assert_allclose(*files, rtol=1e-4, atol=1e-2)


def test_standard_input(tmp_path):
    text = (MLP / "mlp.mlir").read_bytes()
    assert "<stdin> on 4 ranks" in meshweave("run", "-", "--check", stdin=text).out
    failed(meshweave("run", "-", stdin=b"module {"), 1, "<stdin>:1:")
    failed(meshweave("run", "-", stdin=b""), 1, "<stdin>: the program is empty")
    failed(meshweave("run", "-", stdin=b"\xff\xfe"), 1, "<stdin>: is not text")


@sampled(1)
@pytest.mark.parametrize(
    ("type_", "layout", "dtype"),
    [
        ("5x4xf32", "[x, _]", "float32"),
        ("5x4xf64", "[_, x]", "float64"),
        ("5x4xf16", "[x, _]", "float16"),
        ("5x4xbf16", "[x, _]", "float32"),
        ("5x4xbf16", "[x, _]", "uint16"),
        ("5x4xbf16", "[x, _]", "V2"),
        ("5xi64", "[x]", "int64"),
        ("5xi32", "[x]", "int32"),
        ("5xi16", "[x]", "int16"),
        ("5xi8", "[x]", "int8"),
        ("f32", "[]", "float32"),
        ("0x3xf32", "[x, _]", "float32"),
        ("3x0xi32", "[x, _]", "int32"),
        ("1xf32", "[x]", "float32"),
    ],
)
def test_every_dtype_and_shape_goes_in_and_out(tmp_path, type_, layout, dtype):
    shape = [int(n) for n in type_.split("x")[:-1]]
    value = (np.arange(np.prod(shape, dtype=int)) - 3).reshape(shape)
    value, wanted = value.astype("float32"), 2 * value
    if dtype in ("uint16", "V2"):
        value = (value.view(np.uint32) >> 16).astype(np.uint16).view(dtype)
    else:
        value = value.astype(dtype)
    np.save(tmp_path / "in.npy", value)
    np.save(tmp_path / "wanted.npy", wanted)
    done = meshweave(
        *("run", twice(tmp_path, type_, layout), "--input", tmp_path / "in.npy", "--check"),
        *("--expect", tmp_path / "wanted.npy", "--dump", tmp_path, "--json"),
    )
    assert (done.status, done.err) == (0, "")
    assert json.loads(done.out)["max_abs_err"] == 0
    result = np.load(tmp_path / "result0.npy")
    assert result.dtype == ("float32" if "bf16" in type_ else dtype)
    np.testing.assert_array_equal(result, wanted)


def test_booleans_go_in_and_out(tmp_path):
    file = twice(tmp_path, "7xi1", "[x]", op="arith.andi %a, %a")
    value = np.arange(7) % 3 == 1
    np.save(tmp_path / "in.npy", value)
    done = meshweave("run", file, "--input", tmp_path / "in.npy", "--dump", tmp_path, "--check")
    assert done.status == 0, done
    np.testing.assert_array_equal(np.load(tmp_path / "result0.npy"), value)


def test_the_mpi_engine_gives_the_same(tmp_path):
    done = meshweave(
        *("run", MLP / "mlp.mlir", "--engine", "mpi", "--mesh", "dp=1,tp=2", "--input", *INPUTS),
        *("--expect", MLP / "out0.npy", "--check", "--json"),
    )
    assert (done.status, done.err) == (0, "")


# Comparisons


def test_results_that_are_not_as_expected_are_status_1_and_say_where(tmp_path):
    wrong = np.load(MLP / "out0.npy")
    wrong[3, 5] += 1
    np.save(tmp_path / "wrong.npy", wrong)
    arguments = ("run", MLP / "mlp.mlir", "--input", *INPUTS, "--expect", tmp_path / "wrong.npy")
    done = meshweave(*arguments, "--json")
    assert done.status == 1
    assert done.err.startswith("meshweave: error: --expect: result 0 is off by 1 at [3, 5] (")
    assert done.err.count("\n") == 1
    assert json.loads(done.out)["max_abs_err"] == pytest.approx(1, rel=1e-3)


def test_an_error_without_bound_is_still_json(tmp_path):
    file = twice(tmp_path, "2xf32", "[x]", op="arith.divf %a, %a")
    np.save(tmp_path / "in.npy", np.zeros(2, "f4"))
    np.save(tmp_path / "wanted.npy", np.ones(2, "f4"))
    done = meshweave(
        *(
            "run",
            file,
            "--input",
            tmp_path / "in.npy",
            "--expect",
            tmp_path / "wanted.npy",
            "--json",
        )
    )
    assert done.status == 1 and "is off by inf" in done.err
    assert json.loads(done.out)["max_abs_err"] == sys.float_info.max


# Wrong usage


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "required: COMMAND"),
        (["rnu"], 'no command "rnu"; did you mean "run"?'),
        (["run"], "required: FILE"),
        (["run", "FILE", "other"], "unrecognized arguments: other"),
        (["run", "FILE", "--mehs", "x=2"], 'no option "--mehs"; did you mean "--mesh"?'),
        (["run", "FILE", "--engin=mpi"], 'no option "--engin"; did you mean "--engine"?'),
        (["run", "FILE", "--engine", "mpj"], 'no engine "mpj"; did you mean "mpi"?'),
        (["run", "FILE", "--engine", "tcp"], 'no engine "tcp"; there are local, mpi'),
        (["run", "FILE", "--target", "vax"], 'no target "vax"; there are cpu, gpu'),
        (["run", "FILE", "--chip", "sm_70"], 'no chip "sm_70"; did you mean "sm_'),
        (["run", "FILE", "--chip", "sm_90"], "chip sm_90: target cpu has no chips, target gpu has"),
        (["run", "FILE", "--target", "gpu", "--engine", "local"], "engine local runs target cpu"),
        (
            ["run", "FILE", "--target", "cpu", "--engine", "nccl"],
            "target cpu needs engine local or mpi",
        ),
        (["compile", "FILE", "--ptx", "d"], "--ptx goes with --target gpu, not cpu"),
        (
            ["compile", "FILE", "--emit", "host"],
            "--emit host: target cpu has kernels, buffers, llvm, asm",
        ),
        (["run", "FILE", "--mesh", "hello"], '--mesh: mesh "hello": "hello" is not NAME=SIZE'),
        (["run", "FILE", "--mesh", ""], "--mesh: axes and sizes are needed"),
        (["run", "FILE", "--mesh", "dp=0,tp=1"], "--mesh: axis dp=0: a size is at least 1"),
        (["run", "FILE", "--mesh", "dp=N,tp=1"], "--mesh: dp=N, tp=1 has a symbol for a size"),
        (["run", "FILE", "--mesh", "dp=2,dp=2"], "--mesh: a mesh has axis dp only once"),
        (["run", "FILE", "--random", "x"], "--random x: a whole number of at least 0 is needed"),
        (["run", "FILE", "--random", "-1"], "--random -1: a whole number"),
        (["run", "FILE", "--repeat", "0"], "--repeat 0: a whole number of at least 1"),
        (["run", "FILE", "--timeout", "nan"], "--timeout nan: a positive number of seconds"),
        (["run", "FILE", "--timeout", "inf"], "--timeout inf: a positive number of seconds"),
        (["run", "FILE", "--random", "1", "--input", "a.npy"], "not allowed with argument"),
        (["compile", "FILE", "--check"], 'no option "--check"'),
        (["doctor", "now"], "unrecognized arguments: now"),
    ],
)
def test_wrong_usage_is_status_2(arguments, says):
    failed(meshweave(*(MLP / "mlp.mlir" if a == "FILE" else a for a in arguments)), 2, says)


def test_help_is_status_0():
    done = meshweave("run", "--help")
    assert done.status == 0 and "--mesh MESH" in done.out and done.err == ""
    assert meshweave("--version").out.startswith("meshweave 0.")


# A wrong program or input (tests/test_malformed.py has many more)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "nothere.mlir"], "cannot read nothere.mlir: No such file"),
        (["run", "."], "cannot read .: Is a directory"),
        (["run", "a\0b"], "cannot read a\0b: embedded null byte"),
        (["run", "FILE", "--mesh", "q=2"], "lacks axis dp, tp of the module's mesh (dp=2, tp=2)"),
        (["run", "FILE", "--mesh", "dp=1000000,tp=1000000"], "has 1000000000000 ranks, at most"),
        (["run", "FILE", "--mesh", "dp=5000,tp=1"], "engine local runs at most 1024"),
        (["run", "FILE", "--mesh", "dp=5000,tp=1", "--engine", "mpi"], "engine mpi runs at most"),
    ],
)
def test_wrong_programs_and_meshes(arguments, says):
    given = (MLP / "mlp.mlir" if a == "FILE" else a for a in arguments)
    done = meshweave(*given)
    assert done.status in (1, 2) and says in done.err and done.err.count("\n") == 1


def save(file: Path, array: np.ndarray) -> Path:
    np.save(file, array)
    return file


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda f: f, "in.npy: no such file"),
        (lambda f: f.parent, "is a directory"),
        (lambda f: f.touch() or f, "in.npy: not a .npy array"),
        (lambda f: f.write_bytes(b"hello") and f, "in.npy: not a .npy array"),
        (lambda f: f.write_bytes(b"\x80\x04\x95") and f, "in.npy: not a .npy array"),
        (lambda f: f.write_bytes(b"PK\x03\x04junk") and f, "in.npy: not a .npy array"),
        (
            lambda f: np.savez(f.with_suffix(".npz"), a=1) or f.with_suffix(".npz"),
            "an .npz archive",
        ),
        (lambda f: np.save(f, np.array([{}]), allow_pickle=True) or f, "in.npy: not a .npy array"),
        (lambda f: save(f, np.ones((4, 6), "f4")), 'in.npy: input 0 "arg0": dim 0 has size 4, 5'),
        (lambda f: save(f, np.ones((5, 6, 1), "f4")), 'input 0 "arg0": 3 dims, 2 are right'),
        (lambda f: save(f, np.ones((5, 6))), 'in.npy: input 0 "arg0": dtype float64, float32'),
        (lambda f: save(f, np.ones((5, 6), ">f4")), "dtype >f4, float32 is right"),
        (lambda f: save(f, np.full((5, 6), "x")), "dtype <U1, float32 is right"),
        (
            lambda f: f.write_bytes(save(f, np.ones((5, 6), "f4")).read_bytes()[:-8]) and f,
            "in.npy: not a .npy array",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_named(tmp_path, make, says):
    file = twice(tmp_path, "5x6xf32", "[x, _]")
    failed(meshweave("run", file, "--input", make(tmp_path / "in.npy")), 1, says)


def test_a_header_that_promises_too_much_is_refused(tmp_path):
    data = bytearray(save(tmp_path / "in.npy", np.ones((5, 6), "f4")).read_bytes())
    data[:128] = data[:128].replace(b"(5, 6), }", b"(9999999999999, 6), }")[:127] + b"\n"
    (tmp_path / "in.npy").write_bytes(data)
    file = twice(tmp_path, "5x6xf32", "[x, _]")
    failed(meshweave("run", file, "--input", tmp_path / "in.npy"), 1, "in.npy: ")


def test_the_wrong_number_of_files_is_said(tmp_path):
    run = ("run", MLP / "mlp.mlir")
    failed(
        meshweave(*run, "--input", INPUTS[0]), 1, "--input: 1 file, the program takes 5: arg0 f32"
    )
    failed(meshweave(*run, "--input", *INPUTS, INPUTS[0]), 1, "--input: 6 files")
    failed(meshweave(*run, "--expect", *INPUTS), 1, "--expect: 5 files, the program has 1 results")
    failed(
        meshweave(*run, "--expect", INPUTS[0]), 1, "in0.npy: shape (64, 128), result 0 has (64, 96)"
    )
    text = save(tmp_path / "text.npy", np.full((64, 96), "x"))
    failed(meshweave(*run, "--expect", text), 1, "text.npy: dtype <U1: numbers are needed")


def test_a_folder_that_cannot_be_written_is_said_and_left_alone(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    run = ("run", MLP / "mlp.mlir", "--dump")
    failed(meshweave(*run, taken), 1, "--dump", "file exists")
    failed(meshweave(*run, taken / "below"), 1, "--dump", "not a directory")
    (tmp_path / "result0.npy").mkdir()
    failed(meshweave(*run, tmp_path), 1, "--dump", "is a directory")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["result0.npy", "taken"]


# Bundles


def test_a_compiled_program_runs_without_a_compiler(tmp_path):
    bundle = tmp_path / "mlp.mwb"
    done = meshweave("compile", MLP / "mlp.mlir", "--mesh", "dp=1,tp=2", "-o", bundle)
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(f"{bundle}: dp=1, tp=2, engine local, ")
    code = (
        "import sys\nfrom meshweave.tools.cli import command\n"
        "status = command(sys.argv[1:])\n"
        "assert not {'torch_mlir', 'mlir', 'meshweave.ir.bindings'} & set(sys.modules)\n"
        "sys.exit(status)"
    )
    arguments = ["run", bundle, "--json", "--expect", MLP / "out0.npy", "--input", *INPUTS]
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert json.loads(ran.stdout)["max_abs_err"] < 1e-5
    assert "on 2 ranks" in meshweave("run", "-", stdin=bundle.read_bytes()).out


def test_a_bundle_has_its_mesh_and_its_engine(tmp_path):
    bundle = tmp_path / "mlp.mwb"
    meshweave("compile", MLP / "mlp.mlir", "-o", bundle)
    assert meshweave("run", bundle, "--mesh", "dp=2, tp=2", "--engine", "local").status == 0
    failed(
        meshweave("run", bundle, "--mesh", "dp=4,tp=1"), 2, "mlp.mwb is compiled for (dp=2, tp=2)"
    )
    failed(meshweave("run", bundle, "--engine", "mpi"), 2, "is compiled for engine local")
    failed(meshweave("run", bundle, "--check"), 2, "--check needs the program's text")
    failed(meshweave("compile", bundle), 2, "is compiled already")
    data = bundle.read_bytes()
    bundle.write_bytes(data[: len(data) // 2])
    failed(meshweave("run", bundle), 1, "mlp.mwb: not a meshweave bundle, or cut short")
    failed(meshweave("compile", MLP / "mlp.mlir", "-o", tmp_path / "no" / "x"), 1, "cannot write")


OPEN = """module {
  "dist.mesh"() {sym_name = "mesh", axes = "dp=2, tp=2"} : () -> ()
  func.func @main(%x: tensor<?x6xf32> {dist.layout = #dist.layout<"[dp, _]">}, %w: tensor<6x4xf32>)
      -> (tensor<?x4xf32>, tensor<4xf32>) {
    %c0 = arith.constant 0 : index
    %z = arith.constant 0.0 : f32
    %n = tensor.dim %x, %c0 : tensor<?x6xf32>
    %e = tensor.empty(%n) : tensor<?x4xf32>
    %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x4xf32>) -> tensor<?x4xf32>
    %p = linalg.matmul ins(%x, %w : tensor<?x6xf32>, tensor<6x4xf32>) outs(%f : tensor<?x4xf32>) -> tensor<?x4xf32>
    %c = "dist.constrain"(%p) {layout = #dist.layout<"[dp, tp]">} : (tensor<?x4xf32>) -> tensor<?x4xf32>
    %t = math.tanh %c : tensor<?x4xf32>
    %k = arith.constant dense<1.0> : tensor<4xf32>
    %r = linalg.reduce ins(%t : tensor<?x4xf32>) outs(%k : tensor<4xf32>) dimensions = [0]
      (%a: f32, %b: f32) { %v = arith.addf %a, %b : f32 linalg.yield %v : f32 }
    return %t, %r : tensor<?x4xf32>, tensor<4xf32>
  }
}
"""


def test_a_bundle_serves_every_size_up_to_its_bound(tmp_path):
    """Of text with ? in it; three rows on two ranks, and one."""
    (tmp_path / "open.mlir").write_text(OPEN)
    bundle = tmp_path / "open.mwb"
    done = meshweave("compile", tmp_path / "open.mlir", "--dim", "n=7", "-o", bundle)
    assert done.status == 0, done.err
    w = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    np.save(tmp_path / "w.npy", w)
    for rows in (1, 3, 7):
        x = np.random.default_rng(rows).standard_normal((rows, 6)).astype(np.float32)
        y = np.tanh(x @ w)
        for name, value in (("x", x), ("y", y), ("sum", 1 + y.sum(0))):
            np.save(tmp_path / f"{name}.npy", value)
        files = [tmp_path / f"{name}.npy" for name in ("x", "w", "y", "sum")]
        done = meshweave("run", bundle, "--input", *files[:2], "--expect", *files[2:], "--json")
        assert done.status == 0, done.err
    np.save(tmp_path / "x.npy", np.zeros((8, 6), np.float32))
    done = meshweave("run", bundle, "--input", *files[:2])
    failed(done, 2, "dim 0 has size 8, n may be 1 to 7")


def test_a_size_that_does_not_follow_from_the_arguments_is_refused(tmp_path):
    text = """func.func @main(%x: tensor<?xf32>, %n: tensor<index>) -> tensor<?xf32> {
      %k = tensor.extract %n[] : tensor<index>
      %y = tensor.extract_slice %x[0] [%k] [1] : tensor<?xf32> to tensor<?xf32>
      return %y : tensor<?xf32>
    }"""
    (tmp_path / "open.mlir").write_text(text)
    done = meshweave("run", tmp_path / "open.mlir", "--dim", "n=7")
    failed(done, 1, "open.mlir:3", "its sizes do not follow from those of the arguments")


def test_compile_writes_beside_where_one_stands(tmp_path):
    done = real("meshweave", "compile", MLP / "mlp.mlir", "-o", tmp_path / "a.mwb")
    assert done.status == 0 and (tmp_path / "a.mwb").stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.iterdir()] == ["a.mwb"]


# Ranks that fail; interrupts


GATHER = CallOf("mw_all_gather", 0, ("input", 0), ("output", 0), (16,))


def stuck(folder: Path, engine: str, text: str) -> Path:
    """A bundle for two ranks: `text`, then a collective."""
    ports = [("f32", (4,))], [("f32", (8,))]
    made = program("x=2", engine, [("x",)], *ports, [text, GATHER], externals=("sleep", "_exit"))
    path = folder / "stuck.mwb"
    made.write(path)
    return path


@pytest.mark.parametrize("engine", ["local", "mpi"])
def test_a_rank_that_stalls_is_status_3(tmp_path, engine, times):
    bundle = stuck(tmp_path, engine, on_rank(1, sleeps(40 * times), "1"))
    done = meshweave("run", bundle, "--timeout", 1.5 * times, "--dump", tmp_path / "out")
    failed(done, 3, "rank 0", "mw_all_gather at test.mlir:2:1")
    assert not (tmp_path / "out").exists()


def test_a_rank_that_dies_is_status_3(tmp_path):
    bundle = stuck(tmp_path, "mpi", on_rank(1, exits(7), "1"))
    failed(meshweave("run", bundle), 3, "rank 1")


def ended(process: subprocess.Popen, number: int, seconds: float) -> tuple[int, str, set[int]]:
    """Send a signal to a running command's group; its status, last words, and which processes are left."""
    family: set[int] = set()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        family |= set(descendants(process.pid))
        time.sleep(0.1)
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=100)
    end = time.monotonic() + 60
    while (left := {pid for pid in family if _lives(pid)}) and time.monotonic() < end:
        time.sleep(0.02)
    return process.returncode, err, left


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@sampled(4)
@pytest.mark.parametrize("engine", ["local", "mpi"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(tmp_path, engine, number, times):
    bundle = stuck(tmp_path, engine, on_rank(1, sleeps(1000), "1"))
    process = start("meshweave", "run", bundle, "--dump", tmp_path / "out")
    status, err, left = ended(process, number, (2.0 if engine == "mpi" else 1.0) * times)
    assert status == 128 + number and left == set()
    assert err == ("meshweave: interrupted\n" if number == signal.SIGINT else "")
    assert not (tmp_path / "out").exists()


def test_native_code_that_hears_no_signal_is_ended(tmp_path):
    made = program("x=1", "local", [], [], [], [sleeps(1000)], externals=("sleep",))
    made.write(tmp_path / "a.mwb")
    process = start("meshweave", "run", tmp_path / "a.mwb")
    while not descendants(process.pid) and process.poll() is None:
        time.sleep(0.1)
    time.sleep(1)
    for _ in range(3):  # libc's sleep ends early at a signal; what computes would not
        os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=100) == 130


def test_a_step_that_fails_is_named(tmp_path):
    made = program("x=1", "local", [], [], [], ["\n  %b = llvm.mlir.constant(65541 : i32) : i32\n"
                   "  llvm.br ^fail(%b : i32)\n^never:"])  # fmt: skip
    made.write(tmp_path / "a.mwb")
    failed(meshweave("run", tmp_path / "a.mwb"), 3, "rank 0 failed in op 1", "code 5")


# Progress


def test_progress_is_shown_on_a_terminal_and_only_there(tmp_path):
    terminal, side = pty.openpty()
    at_once = "import meshweave.api.progress as p; p.DELAY = 0; from meshweave.tools.cli import main; main()"
    command = [sys.executable, "-c", at_once, "run", MLP / "mlp.mlir"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=side, cwd=ROOT)
    os.close(side)
    seen = b""
    while chunk := _read(terminal):
        seen += chunk
    assert process.wait(timeout=100) == 0
    os.close(terminal)
    assert b"meshweave" in seen
    assert real("meshweave", "run", MLP / "mlp.mlir").err == ""


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side is closed
        return b""


def test_peak_bytes_is_a_budget_of_the_whole_program(tmp_path):
    attention = EXAMPLES / "attention" / "attention.mlir"
    plain = json.loads(
        meshweave("run", attention, "--mesh", "dp=1,tp=1", "--random", "1", "--json").out
    )
    ports = 4 * 32 * 128 * 128  # bytes of q, k, v and the result
    run = ("run", attention, "--mesh", "dp=1,tp=1", "--random", "1", "--check", "--json")
    small = json.loads(meshweave(*run, "--peak-bytes", "64KiB").out)
    assert small["peak_bytes"] - ports <= 64 << 10 < plain["peak_bytes"] - ports
    report = tmp_path / "r.json"
    done = meshweave(
        *("compile", attention, "--peak-bytes", "64KiB", "--report-json", report),
        *("-o", tmp_path / "a.mwb"),
    )
    assert done.status == 0
    assert {row["outcome"] for row in json.loads(report.read_text())["ledger"]} == {"honoured"}
    failed(
        meshweave(*run, "--peak-bytes", "64"),
        1,
        'peak_bytes = "64"',
        "the least possible is",
        "allow",
    )
    failed(meshweave(*run, "--peak-bytes", "lots"), 2, "--peak-bytes lots: a number of B, KiB")
    failed(meshweave("run", tmp_path / "a.mwb", "--peak-bytes", "1MiB"), 2, "is compiled already")
