"""compile() and Program: what they take, give and refuse, and that importing the package costs nothing."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT

import meshweave
from meshweave.api.program import build, one_rank, random_arguments
from meshweave.bundle import Port
from meshweave.errors import CompileError, LayoutError, MeshweaveError, UsageError
from meshweave.runtime import engine

MLP = ROOT / "examples" / "mlp"
ADD = """module {
  "dist.mesh"() {sym_name = "mesh", axes = "x=2, y=2"} : () -> ()
  func.func @main(%a: tensor<6x4xf32> {dist.layout = #dist.layout<"[x, _]">}, %b: tensor<6x4xf32>)
      -> (tensor<6x4xf32> {dist.layout = #dist.layout<"[_, y]">}, tensor<6x4xf32>) {
    %0 = arith.addf %a, %b : tensor<6x4xf32>
    %1 = arith.mulf %a, %b : tensor<6x4xf32>
    return %0, %1 : tensor<6x4xf32>, tensor<6x4xf32>
  }
}
"""
A, B = np.arange(24, dtype="f4").reshape(6, 4), np.full((6, 4), 3, "f4")
NO_MESH = "func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}\n"


def test_a_program_is_called_with_global_arrays_and_gives_global_arrays():
    with meshweave.compile(ADD) as program:
        total, product = program(A, B)
        again, _ = program(A, total)
    assert isinstance(total, np.ndarray) and total.dtype == np.float32
    np.testing.assert_array_equal(total, A + B)
    np.testing.assert_array_equal(product, A * B)
    np.testing.assert_array_equal(again, A + A + B)


def test_a_program_tells_what_it_is():
    with meshweave.compile(ADD) as program:
        assert str(program.mesh) == "x=2, y=2"
        assert [p.dtype for p in program.inputs] == ["f32", "f32"]
        assert [p.global_shape for p in program.outputs] == [(6, 4), (6, 4)]
        assert program.inputs[0].local_shape == (3, 4) and program.inputs[0].layout == "[x, _]"
        assert program.peak_bytes >= 3 * 4 * 4
        assert program.seconds["compile"] > 0 and "run" not in program.seconds
        program(A, B)
        assert program.seconds["run"] > 0


@pytest.mark.parametrize("kind", [str, Path])
def test_a_source_is_a_path_or_a_text(kind):
    inputs = [np.load(MLP / f"in{i}.npy") for i in range(5)]
    with meshweave.compile(kind(MLP / "mlp.mlir")) as program:
        np.testing.assert_allclose(program(*inputs)[0], np.load(MLP / "out0.npy"), atol=1e-4)
    with meshweave.compile((MLP / "mlp.mlir").read_text()) as program:
        np.testing.assert_allclose(program(*inputs)[0], np.load(MLP / "out0.npy"), atol=1e-4)


@pytest.mark.parametrize(
    ("mesh", "is_"),
    [
        (None, "x=2, y=2"),
        ("y=1,x=3", "y=1, x=3"),
        (meshweave.Mesh(x=1, y=4), "x=1, y=4"),
        ("x=1, y=2, z=2", "x=1, y=2, z=2"),
    ],
)
def test_a_mesh_is_text_or_a_mesh(mesh, is_):
    with meshweave.compile(ADD, mesh=mesh) as program:
        assert str(program.mesh) == is_
        np.testing.assert_array_equal(program(A, B)[0], A + B)


def test_a_program_without_a_mesh_runs_on_one_rank_or_on_the_mesh_given():
    value = np.ones(4, "f4")
    for mesh, ranks in ((None, 1), ("x=3", 3)):
        with meshweave.compile(NO_MESH, mesh=mesh) as program:
            assert program.mesh.nranks == ranks
            np.testing.assert_array_equal(program(value)[0], value)


def test_the_mpi_engine_is_called_in_the_same_way():
    with meshweave.compile(ADD, mesh="x=2, y=1", engine="mpi") as program:
        np.testing.assert_array_equal(program(A, B)[0], A + B)


def test_each_stage_is_announced():
    stages: list[str] = []
    meshweave.compile(ADD, progress=stages.append).close()
    assert stages[0] == "read" and stages[-3:] == ["lower", "code", "load"]
    assert "dist-propagate" in stages


def test_a_program_is_compiled_for_more_ranks_than_this_machine_runs(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (8, 8))  # open files
    bundle = build(NO_MESH, mesh="x=65536", engine="mpi")
    assert bundle.manifest.mesh == "x=65536"
    for call in (lambda: meshweave.compile(ADD, engine="mpi"), lambda: engine("mpi").load(bundle)):
        with pytest.raises(MeshweaveError, match=r"engine mpi runs at most 0 on this machine"):
            call()


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"source": 7}, UsageError, "source: a path or a program's text is needed, got int"),
        ({"source": b"module {}"}, UsageError, "got bytes"),
        ({"mesh": 4}, UsageError, "mesh: text or a Mesh is needed, got int"),
        ({"mesh": "x"}, UsageError, 'mesh: mesh "x": "x" is not NAME=SIZE'),
        ({"mesh": "x=0"}, UsageError, "mesh: axis x=0: a size is at least 1"),
        ({"mesh": "x=N"}, UsageError, "mesh: x=N has a symbol for a size"),
        ({"mesh": ""}, CompileError, "the program needs axes x, y, the mesh given has none"),
        ({"mesh": "q=2"}, CompileError, "lacks axis x, y of the module's mesh"),
        ({"mesh": "x=2000,y=2"}, MeshweaveError, "has 4000 ranks, engine local runs at most 1024"),
        ({"engine": "tcp"}, UsageError, 'no engine "tcp"; there are local, mpi'),
        ({"source": "none.mlir"}, CompileError, "none.mlir: cannot be read: No such file"),
        ({"source": Path("/")}, CompileError, "/: cannot be read: Is a directory"),
        ({"source": "module {"}, CompileError, "-:1:"),
        ({"source": ""}, CompileError, "cannot be read|the program is empty"),
    ],
)
def test_wrong_arguments_are_named(options, error, says):
    with pytest.raises(error, match=says.replace("(", r"\(")) as caught:
        meshweave.compile(**{"source": ADD, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ((), "0 inputs, the program has 2"),
        ((A, B, B), "3 inputs, the program has 2"),
        ((A, B[:5]), 'input 1 "arg1": dim 0 has size 5, 6 is right'),
        ((A[0], B), 'input 0 "arg0": 1 dims, 2 are right'),
        ((A, 3.0), 'input 1 "arg1": 0 dims, 2 are right'),
        ((A, B.astype("f8")), 'input 1 "arg1": dtype float64, float32 is right'),
        ((A, B.astype(">f4")), "dtype >f4, float32 is right"),
        ((A, B.astype(object)), "dtype object, float32 is right"),
    ],
)
def test_wrong_arrays_are_named(arrays, says):
    with (
        meshweave.compile(ADD) as program,
        pytest.raises(MeshweaveError, match=says),
    ):
        program(*arrays)


def test_arrays_may_lie_in_any_way():
    with meshweave.compile(ADD) as program:
        result, _ = program(np.asfortranarray(A), np.concatenate([B, B], 1)[:, ::2])
    np.testing.assert_array_equal(result, A + B)


def test_lists_of_another_dtype_are_not_converted():
    with (
        meshweave.compile(ADD) as program,
        pytest.raises(MeshweaveError, match="dtype float64, float32 is right"),
    ):
        program(A.tolist(), B)


def test_a_closed_program_says_so():
    with meshweave.compile(ADD) as program:
        program(A, B)
    with pytest.raises(MeshweaveError, match="the program is closed"):
        program(A, B)
    program.close()


def test_a_program_is_closed_when_its_block_fails():
    with pytest.raises(ZeroDivisionError), meshweave.compile(ADD) as program:
        raise ZeroDivisionError
    with pytest.raises(MeshweaveError, match="the program is closed"):
        program(A, B)


def test_a_bundle_of_another_engine_is_refused():
    with pytest.raises(MeshweaveError, match='for engine "local", not "mpi"'):
        meshweave.Program(build(ADD), engine("mpi"))


def test_the_same_program_is_compiled_to_the_same_bundle():
    assert build(ADD).digest == build(ADD).digest
    assert build(ADD).digest != build(ADD, mesh="x=4, y=1").digest


def test_text_may_have_a_name():
    with pytest.raises(CompileError, match=r"^mine:1:\d+: "):
        build("module {", name="mine")


def test_random_arguments_are_of_the_seed():
    ports = [
        Port("a", dtype, (3, 5), (3, 5), "[_, _]")
        for dtype in ("f32", "f16", "bf16", "i1", "i8", "i64", "complex<f32>")
    ]
    first, again, other = (random_arguments(ports, seed) for seed in (0, 0, 1))
    kinds = [a.dtype.name for a in first]
    assert kinds == ["float32", "float16", "float32", "bool", "int8", "int64", "complex64"]
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not np.array_equal(first[0], other[0])
    assert str(one_rank(meshweave.Mesh(x=2, y=3))) == "x=1, y=1"


# The package


def test_the_public_names_are_there():
    assert set(meshweave.__all__) < set(dir(meshweave))
    for name in meshweave.__all__:
        assert getattr(meshweave, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        _ = meshweave.compil
    assert issubclass(LayoutError, meshweave.MeshweaveError)


def fresh(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_nothing_heavy():
    heavy = {"torch_mlir", "mlir", "numpy", "rich", "mpi4py", "torch", "jax"}
    print_loaded = f"print(sorted({heavy!r} & set(sys.modules)))"
    assert fresh(f"import sys, meshweave\n{print_loaded}") == "[]\n"
    names = f"import sys\nfrom meshweave import *\ncompile, Program, Layout, Mesh\n{print_loaded}"
    assert fresh(names) == "['numpy']\n"
    assert fresh(f"import sys, meshweave.tools.cli\n{print_loaded}") == "[]\n"
