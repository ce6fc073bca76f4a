"""Tensors of files: each rank gets what scattering the whole would give it, and reads no more than that."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_layouts, meshes

import meshweave as mw
from meshweave.api.weights import _Careful
from meshweave.bundle import numpy_dtype
from meshweave.errors import LayoutError, MeshweaveError, UsageError
from meshweave.layout import Layout, Mesh, scatter
from meshweave.runtime.mpi.engine import mpiexec
from meshweave.runtime.weights import boxes
from meshweave.runtime.weights.boxes import OpenFile
from meshweave.runtime.weights.safetensors import DTYPES, read_header


def same(array: mw.Array, value: np.ndarray[Any, Any]) -> None:
    """Every rank holds what scattering the value would give it."""
    wanted = scatter(value, array.mesh, array.layout)
    for found, right in zip(array.shards, wanted, strict=True):
        np.testing.assert_array_equal(found, right)


@settings(max_examples=examples(150))
@given(data=st.data())
def test_any_layout_of_any_shape(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Saved in one layout, loaded in another; bands and gaps of any size are read."""
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=4), label="shape"))
    value = np.arange(int(np.prod(shape)), dtype="i4").reshape(shape)
    file = tmp_path_factory.mktemp("weights") / "w.safetensors"
    of, on = data.draw(meshes()), data.draw(meshes())
    source, target = (data.draw(any_layouts(m, shape)) for m in (of, on))
    # It is there so that the other is not at the start.
    first = mw.Array.from_numpy(np.ones(3), mesh="", layout="[_]")
    mw.save({"w": mw.Array.from_numpy(value, mesh=of, layout=source), "a": first}, file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            boxes, "BAND", data.draw(st.sampled_from([1, 40, 200, 4 << 20]), label="band")
        )
        patch.setattr(boxes, "GAP", data.draw(st.sampled_from([0, 8, 4096]), label="gap"))
        same(mw.load_safetensors(file, {"w": target}, mesh=on)["w"], value)
        rank = data.draw(st.integers(0, on.nranks - 1))
        part = mw.load_safetensors(file, {"w": target}, mesh=on, rank=rank)["w"]
        np.testing.assert_array_equal(part, scatter(value, on, target)[rank])


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_dtype(name: str, tmp_path: Path) -> None:
    dtype = numpy_dtype(DTYPES[name])
    value = np.frombuffer(np.random.default_rng(0).bytes(6 * dtype.itemsize), dtype)
    value = (value.view("u1") & 1).view("?") if name == "BOOL" else value
    array = mw.Array(
        scatter(value, Mesh(x=2), Layout.parse("[x]")),
        Mesh(x=2),
        Layout.parse("[x]"),
        (6,),
        DTYPES[name],
    )
    mw.save({"w": array}, tmp_path / "w")
    again = mw.load(tmp_path / "w", mesh="y=3", layout="[y]")["w"]
    assert again.dtype_name == DTYPES[name]
    assert b"".join(s.tobytes() for s in again.shards) == value.tobytes()


@pytest.mark.parametrize("name", ["F8_E4M3", "F8_E5M2"])
def test_floats_of_8_bits_are_read_as_they_are(name: str, tmp_path: Path) -> None:
    """Each byte is that of the file, NaNs too, and is written again; each rank reads its own columns."""
    kinds = pytest.importorskip("ml_dtypes")
    kind = kinds.float8_e4m3fn if name == "F8_E4M3" else kinds.float8_e5m2
    value = np.arange(256, dtype=np.uint8).reshape(2, 128)
    path = tmp_path / "w.safetensors"
    path.write_bytes(header({"w": entry(0, 256, (2, 128), name)}, value.tobytes()))
    found = mw.load_safetensors(path, {"w": "[_, x]"}, mesh="x=2")["w"]
    assert found.dtype == kind and [s.shape for s in found.shards] == [(2, 64)] * 2
    assert found.numpy().tobytes() == value.tobytes()
    mw.save({"w": found}, tmp_path / "again.safetensors")
    again = mw.load_safetensors(tmp_path / "again.safetensors")["w"]
    assert again.dtype == kind and again.numpy().tobytes() == value.tobytes()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32"])
def test_partial_layouts_hold_the_value_once(dtype: str, tmp_path: Path) -> None:
    value = np.arange(8, dtype="f4" if dtype == "bf16" else numpy_dtype(dtype))
    for layout in ("[_] +sum(x)", "[_] +max(x)", "[_] +avg(x)"):
        array = mw.Array.from_numpy(value, mesh="x=2", layout=layout, dtype=dtype)
        mw.save(array, tmp_path / "w")
        again = mw.load(tmp_path / "w")
        for found, right in zip(again.shards, array.shards, strict=True):
            np.testing.assert_array_equal(found, right)


def test_a_tree_comes_back(tmp_path: Path) -> None:
    rows = mw.Array.from_numpy(np.ones((4, 2)), mesh="x=2", layout="[x, _]")
    tree = {"layers": [{"w": rows, 1: None}, (rows, np.arange(3))], "step": 7, "empty": {}}
    mw.save(tree, tmp_path / "model")
    again = mw.load(tmp_path / "model")
    assert set(again) == {"layers", "step", "empty"} and again["empty"] == {}
    assert isinstance(again["layers"][1], tuple) and again["layers"][0][1] is None
    assert (again["layers"][0]["w"].mesh, str(again["layers"][0]["w"].layout)) == (
        rows.mesh,
        "[x, _]",
    )
    assert int(again["step"]) == 7
    found, _ = read_header(tmp_path / "model")
    assert sorted(found) == ["layers.0.w", "layers.1.0", "layers.1.1", "step"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    mw.save({"w": np.ones(3)}, tmp_path / "w")
    before = (tmp_path / "w").read_bytes()
    with pytest.raises(UsageError, match=r"save: s: .*<U1"):
        mw.save({"w": np.ones(4), "s": np.array("x")}, tmp_path / "w")
    assert (tmp_path / "w").read_bytes() == before and os.listdir(tmp_path) == ["w"]
    mw.save({"w": np.zeros(5)}, tmp_path / "w")
    assert mw.load(tmp_path / "w")["w"].shape == (5,)


def checkpoint(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Write a checkpoint of two files with an index; return its tensors."""
    values = {
        f"layers.{k}.{n}": np.full((4, 6), 10 * k, "f4") for k in range(2) for n in ("up", "down")
    }
    for k in range(2):
        mw.save(
            {n: v for n, v in values.items() if n.startswith(f"layers.{k}")},
            folder / f"{k}.safetensors",
        )
    where = {name: f"{name.split('.')[1]}.safetensors" for name in values}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return values


def test_a_checkpoint_in_several_files(tmp_path: Path) -> None:
    values = checkpoint(tmp_path)
    layouts = {"*.up": "[x, _]", "layers.1.*": "[_, x]"}
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        found = mw.load_safetensors(path, layouts, mesh="x=3")
        assert {n: str(a.layout) for n, a in found.items()} == {
            "layers.0.up": "[x, _]", "layers.0.down": "[_, _]", "layers.1.up": "[x, _]", "layers.1.down": "[_, x]",
        }  # fmt: skip
        for name, array in found.items():
            same(array, values[name])
    (tmp_path / "model.safetensors.index.json").unlink()
    assert sorted(mw.load_safetensors(tmp_path)) == sorted(values)


@pytest.mark.parametrize(
    ("layouts", "kind", "words"),
    [
        ({"*.upp": "[x, _]"}, MeshweaveError, "pattern '*.upp': no tensor fits it"),
        ({"*": None, "*.up": "[x, _]"}, MeshweaveError, "earlier patterns have all that fits it"),
        ({"*.up": "[z, _]"}, LayoutError, 'tensor layers.0.up: layout [z, _]'),
        ({"*.up": "[x]"}, LayoutError, "tensor layers.0.up"),
        ({3: "[x]"}, UsageError, "pattern 3: text is right"),
    ],
)  # fmt: skip
def test_layouts_that_do_not_fit(
    layouts: Any, kind: type[MeshweaveError], words: str, tmp_path: Path
) -> None:
    checkpoint(tmp_path)
    with pytest.raises(kind) as error:
        mw.load_safetensors(tmp_path, layouts, mesh="x=2")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_other_mistakes_are_named(tmp_path: Path) -> None:
    mw.save({"w": np.ones(3), "v": np.ones(3)}, tmp_path / "w")
    for call, kind, words in (
        (lambda: mw.load_safetensors(tmp_path / "w", mesh="x=2", rank=2), UsageError, "ranks 0 to 1"),
        (lambda: mw.load_safetensors(3), UsageError, "path is of type int"),
        (lambda: mw.load(tmp_path / "none"), MeshweaveError, "no array was saved here"),
        (lambda: mw.save({"a": {"b": 1}, "a.b": 2}, tmp_path / "x"), UsageError, "two arrays .* a.b"),
        (lambda: mw.save({(1, 2): 1}, tmp_path / "x"), UsageError, "key .1, 2. of a dict"),
        (lambda: mw.save({"a": 1j}, tmp_path / "x"), UsageError, "no dtype complex<f64>"),
        (lambda: mw.save({"a": 1}, tmp_path / "no" / "x"), MeshweaveError, "cannot be written: No such"),
        (lambda: mw.Array.from_file(tmp_path / "w"), MeshweaveError, "2 tensors .*say which"),
        (lambda: mw.Array.from_file(tmp_path / "w", "W"), MeshweaveError, "no tensor 'W'"),
        (lambda: mw.Array.from_file(tmp_path), MeshweaveError, "no model.safetensors.index.json"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words):
            call()


def test_rank_0_of_a_job_names_the_file_that_it_cannot_write(tmp_path: Path) -> None:
    for place, at in ((tmp_path / "no" / "x", 0), (tmp_path / "x", 1)):
        careful = _Careful(place)
        with ExitStack() as stack:
            careful.open(stack)
            if at:
                full = stack.enter_context(open("/dev/full", "wb", 0))
                stack.enter_context(patch.object(careful, "file", full))
            assert careful.write(b"abc") == 3 and careful.write(b"d") == 1  # for the other ranks
            with pytest.raises(MeshweaveError, match=f"^{place}: cannot be written: No s"):
                careful.ended(stack)


def header(value: object, data: bytes = b"") -> bytes:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, shape: Any = (2,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "a header of 0 bytes in a file of 0"),
        (b"\1\2", "no safetensors file"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "a header of 4611686018427387904 bytes"),
        ((100).to_bytes(8, "little") + b"{}", "a header of 100 bytes in a file of 10"),
        (header(b"{nonsense"), "the header is not right JSON"),
        (header(b"[" * 5000), "the header is not right JSON"),
        (header([1]), "the header is no JSON object"),
        (header(b'{"a":1,"a":1}'), "a name is there twice"),
        (header({"a": 1}), "tensor a: 1, a dtype, a shape"),
        (header({"a": entry(0, 8, (2.0,))}, b"0" * 8), "a dtype, a shape"),
        (header({"a": entry(0, 8, (-2,))}, b"0" * 8), "a dtype, a shape"),
        (header({"a": entry(0, 8, (True, 2))}, b"0" * 8), "a dtype, a shape"),
        (header({"a": entry(0, 8, dtype="F4")}, b"0" * 8), "no arrays of dtype F4: F64, F32"),
        (header({"a": entry(0, 1, (), dtype="F8_E8M0")}, b"0"), "no arrays of dtype F8_E8M0"),
        (header({"a": entry(0, 8, (2,), dtype="F8_E5M2")}, b"0" * 8), "bytes 0 to 8, F8_E5M2 [2] takes 2"),
        (header({"a": entry(0, 8, (3,))}, b"0" * 8), "tensor a: bytes 0 to 8, F32 [3] takes 12"),
        (header({"a": entry(0, 8, (1 << 62, 1 << 62))}, b"0" * 8), "tensor a: bytes 0 to 8"),
        (header({"a": entry(0, 8), "b": entry(4, 12)}, b"0" * 12), "tensor b overlaps another"),
        (header({"a": entry(0, 8), "b": entry(9, 17)}, b"0" * 17), "tensor b has a gap before it"),
        (header({"a": entry(0, 8)}, b"0" * 7), "7 bytes of data, the header says 8"),
        (header({"a": entry(0, 8)}, b"0" * 9), "9 bytes of data, the header says 8"),
        (header({"a": entry(0, 8), "__metadata__": 3}, b"0" * 8), "__metadata__ is no object"),
    ],
)  # fmt: skip
def test_damaged_headers_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(data)
    with pytest.raises(MeshweaveError) as error:
        mw.load_safetensors(tmp_path / "w.safetensors")
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"a": "../secret"}}, "tensor a in '../secret': a file of this folder"),
        ({"weight_map": {"a": 3}}, "a file of this folder is right"),
        ({"weight_map": {"b": "w.safetensors"}}, "tensor b is not in w.safetensors"),
        ({"weight_map": {"a": "v.safetensors"}}, "v.safetensors: cannot be read: No such file"),
        ({}, "no weight_map"),
    ],
)
def test_a_wrong_index_is_refused(index: Any, words: str, tmp_path: Path) -> None:
    mw.save({"a": np.ones(3)}, tmp_path / "w.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(MeshweaveError) as error:
        mw.load_safetensors(tmp_path)
    assert words in str(error.value)


@pytest.mark.parametrize(
    "tree", ['{"dict": 3}', '"none"', '{"set": []}', "[" * 3000, '{"list": [{}]}']
)
def test_damaged_trees_are_refused(tree: str, tmp_path: Path) -> None:
    text = {"a": entry(0, 8), "__metadata__": {"meshweave.tree": tree}}
    (tmp_path / "w").write_bytes(header(text, b"0" * 8))
    with pytest.raises(MeshweaveError, match="metadata"):
        mw.load(tmp_path / "w")


def test_a_file_cut_short_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    mw.save({"w": np.ones(1 << 16)}, tmp_path / "w")
    stored = read_header(tmp_path / "w")[0]["w"]
    with OpenFile(tmp_path / "w") as file:
        os.truncate(tmp_path / "w", 4096)
        with pytest.raises(MeshweaveError, match="cut short at 4096 bytes"):
            stored.shard(file, Mesh(), Layout.parse("[_]"), 0)


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.safetensors")
    with pytest.raises(MeshweaveError, match="no regular file"):
        mw.load_safetensors(tmp_path / "w.safetensors")


# The most memory that the process had; getrusage would count that of the process it was forked from. Each rank writes a
# file: a launcher may mix lines.
READ = r"""
import os, re, sys
import meshweave as mw
rank = int(os.environ.get("PMI_RANK", sys.argv[2]))
part = mw.load_safetensors(sys.argv[1], sys.argv[3], mesh="x=4", rank=rank)["w"]
peak = 1024 * int(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1])
with open(f"{sys.argv[4]}/rank{rank}", "w") as file:
    file.write(f"{part.nbytes} {peak} {int(part.flat[-1])}")
"""


def big(folder: Path) -> Path:
    """A file of 256 MiB, of rows that hold their number, written some at a time."""
    text = {"w": entry(0, 1 << 28, (1 << 13, 1 << 13))}
    with open(folder / "big.safetensors", "wb") as file:
        file.write(header(text))
        for begin in range(0, 1 << 13, 512):
            file.write(np.repeat(np.arange(begin, begin + 512, dtype="f4"), 1 << 13).tobytes())
    return folder / "big.safetensors"


@sampled(4)
@pytest.mark.parametrize(
    "layout", ["[x, _]", "[_, x]", "[_*x*2, _]", "[_, x] order(1, 0)", "[_, _*x]"]
)
def test_a_rank_takes_the_memory_of_its_shard(layout: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", READ, str(big(tmp_path)), "1", layout, str(tmp_path)]
    subprocess.run(command, capture_output=True, text=True, check=True, timeout=500)
    nbytes, rss, last = map(int, (tmp_path / "rank1").read_text().split())
    assert nbytes == 1 << 26 and rss <= nbytes + (64 << 20)
    assert last == (4095 if layout == "[x, _]" else 8187 if layout == "[_*x*2, _]" else 8191)


def test_ranks_of_mpiexec_take_the_memory_of_their_shards(tmp_path: Path) -> None:
    """Each process reads its own part, and nothing is gathered."""
    command = [mpiexec(), "-n", "4", sys.executable, "-c", READ, str(big(tmp_path)), "0", "[x, _]"]
    subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, check=True, timeout=500
    )
    found = [tuple(map(int, file.read_text().split())) for file in tmp_path.glob("rank*")]
    assert sorted(last for _, _, last in found) == [2047, 4095, 6143, 8191]
    assert all(nbytes == 1 << 26 and rss <= nbytes + (64 << 20) for nbytes, rss, _ in found)
