"""A type checker sees real types behind the public names, though these load on first use."""

import subprocess
import sys
from pathlib import Path

import pytest

import meshweave as mw

ROOT = Path(__file__).resolve().parent.parent

USER = """\
import numpy as np

import meshweave as mw


@mw.jit
def double(x: mw.Array) -> object:
    return mw.exp(x)


mesh = mw.Mesh(x=2)
array = mw.Array.from_numpy(np.ones(4), mesh=mesh, layout="[x]")
"""
SEEN = {
    "double": "meshweave.api.jit.Jitted",
    "mw.jit(lambda x: x)": "meshweave.api.jit.Jitted",
    'mw.jit(mesh="x=2")': "def (def (*Any, **Any) -> Any) -> meshweave.api.jit.Jitted",
    "mesh": "meshweave.layout.mesh.Mesh",
    "mesh.nranks": "int",
    'mw.Layout.parse("[x]")': "meshweave.layout.layout.Layout",
    "array": "meshweave.runtime.arrays.array.Array",
    "array.numpy()": "numpy.ndarray[",
    'mw.compile("a.mlir")': "meshweave.api.program.Program",
    "mw.bool": "meshweave.frontends.python.dtypes.DType",
    "mw.exp(array)": "meshweave.frontends.python.tracer.",
    "mw.linalg.diagonal": "def (",
    'mw.MeshweaveError("a").exit_status': "int",
    "mw.__version__": "str",
}
"""What a user writes -> how its type begins."""


def checked(path: Path) -> str:
    """What mypy, strict, says of a file."""
    command = [sys.executable, "-m", "mypy", "--strict", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500).stdout


def test_a_type_checker_sees_the_public_names(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    path = tmp_path / "user.py"
    path.write_text(USER + "".join(f"reveal_type({text})\n" for text in SEEN))
    *notes, last = checked(path).splitlines()
    assert last.startswith("Success")
    types = [note.partition('Revealed type is "')[2] for note in notes]
    for (text, wanted), found in zip(SEEN.items(), types, strict=True):
        assert found.startswith(wanted), text


def test_a_type_checker_refuses_what_is_wrong(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    path = tmp_path / "user.py"
    path.write_text("import meshweave as mw\nmw.no_such_name\nmw.Mesh(x=2).nranks + 'a'\n")
    said = checked(path)
    assert 'Module has no attribute "no_such_name"' in said
    assert 'Unsupported operand types for + ("int" and "str")' in said


def test_the_stub_has_every_public_name() -> None:
    stub = (ROOT / "meshweave" / "__init__.pyi").read_text()
    words = set(stub.replace(",", " ").replace('"', " ").split())
    assert {*mw.__all__, *dir(mw)} <= words
