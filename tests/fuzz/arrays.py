"""Saved arrays and .npy files with changed bytes: refused, or the array that they say, whatever memory they ask for."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from commands import meshweave
from hypothesis import strategies as st

import meshweave as mw
from fuzz.search import Kind
from fuzz.stablehlo import settled
from fuzz.text import damaged, json_changed
from meshweave.errors import MeshweaveError

VALUE = np.arange(48, dtype="f4").reshape(8, 6)
PROGRAM = (
    "func.func @main(%a: tensor<8x6xf32>) -> tensor<8x6xf32> {\n  return %a : tensor<8x6xf32>\n}\n"
)
TARGETS = ({}, {"mesh": "z=3", "layout": "[_, z]"}, {"mesh": "", "layout": "[_, _]"})
HEADERS = (
    b"(8, 6)", b"(6, 8)", b"(4, 6)", b"(1099511627776, 6)", b"(0, 6)", b"(-1, 6)", b"()", b"('a',)", b"'<f4'", b"'>f4'",
    b"'|O'", b"'<f8'", b"'<c8'", b"'|V4'", b"'<U4'", b"[('a', '<f4')]", b"False", b"True", b"None",
)  # fmt: skip


@functools.cache
def saved() -> dict[str, bytes]:
    """The files of a saved array."""
    with tempfile.TemporaryDirectory() as folder:
        array = mw.Array.from_numpy(VALUE, mesh="x=2, y=2", layout="[x, _]")
        array.save(Path(folder, "a"))
        return {file.name: file.read_bytes() for file in sorted(Path(folder, "a").iterdir())}


@st.composite
def cases(draw: st.DrawFn) -> Any:
    """Files of a saved array, one of which is changed; where it goes; whether sums are checked."""
    files = dict(saved())
    name = draw(st.sampled_from(["manifest.json", "rank0.npy", "rank2.npy"]))
    if name == "manifest.json" and draw(st.integers(0, 3)):
        value = json.loads(files[name])
        for _ in range(draw(st.integers(1, 3))):
            value = json_changed(draw, value)
        files[name] = json.dumps(value).encode()
    elif name != "manifest.json" and draw(st.booleans()):
        old, new = (draw(st.sampled_from(HEADERS)) for _ in range(2))
        files[name] = files[name].replace(old, new)
    else:
        files[name] = draw(damaged(files[name]))
    return files, draw(st.sampled_from(TARGETS)), draw(st.booleans())


def check(case: Any) -> None:
    """Load the array, and give a program its first file."""
    files, target, verify = case
    with tempfile.TemporaryDirectory(prefix="meshweave-fuzz-") as folder:
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        try:
            array = mw.load(folder, verify=verify, **target)
        except MeshweaveError as error:
            assert "\n" not in str(error), f"more than a line: {error}"
        else:
            assert array.numpy().shape == array.shape, f"{array.numpy().shape}, not {array.shape}"
        program = Path(folder, "p.mlir")
        program.write_text(PROGRAM)
        settled(meshweave("run", program, "--input", Path(folder, "rank0.npy")))


def text(case: Any) -> str:
    files, target, verify = case
    names = [name for name, data in files.items() if data != saved()[name]]
    return f"{target}, verify={verify}\n" + "\n".join(f"{n}: {files[n]!r}" for n in names)


KINDS = (Kind("arrays", cases(), check, text, seconds=60),)
