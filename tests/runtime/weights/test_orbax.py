"""Checkpoints as Orbax writes them: each rank reads the chunks of its own part, and what is not whole is told."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_layouts, meshes

import meshweave as mw
from meshweave.errors import MeshweaveError


def written(folder: Path, ocdbt: bool, driver: str, chunk: int = 3, **arrays: Any) -> Path:
    """Write arrays, in chunks of at most so many elements along each dim, as Orbax does."""
    store = pytest.importorskip("tensorstore")
    tree = {}
    for name, array in arrays.items():
        kept = (
            {"driver": "ocdbt", "base": f"file://{folder}/", "path": f"layers.{name}/"}
            if ocdbt
            else {"driver": "file", "path": f"{folder}/layers.{name}/"}
        )
        store.open(
            {"driver": driver, "kvstore": kept}, create=True, dtype=array.dtype, shape=array.shape,
            chunk_layout=store.ChunkLayout(chunk_shape=[min(chunk, max(1, n)) for n in array.shape]),
        ).result()[...] = array  # fmt: skip
        tree[name] = {
            "key_metadata": [{"key": "layers", "key_type": 2}, {"key": name, "key_type": 2}],
            "value_metadata": {"value_type": "jax.Array"},
        }
    tree["name"] = {"key_metadata": [{"key": "name"}], "value_metadata": {"value_type": "string"}}
    said = {
        "tree_metadata": tree,
        "use_ocdbt": ocdbt,
        "use_zarr3": driver == "zarr3",
        "store_array_data_equal_to_fill_value": True,
    }
    folder.mkdir(exist_ok=True)
    (folder / "_METADATA").write_text(json.dumps(said))
    return folder


@settings(max_examples=examples(60))
@given(data=st.data())
def test_any_layout_of_any_shape(data: st.DataObject, tmp_path_factory: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), max_size=3), label="shape"))
    dtype = data.draw(st.sampled_from(["f4", "bf16", "i8", "u1", "?"]))
    value = np.random.default_rng(0).integers(0, 2 if dtype == "?" else 100, shape)
    kind = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bf16" else np.dtype(dtype)
    value = np.asarray(value).astype(kind)
    form = data.draw(st.sampled_from([(True, "zarr"), (False, "zarr"), (True, "zarr3")]))
    folder = written(tmp_path_factory.mktemp("orbax") / "w", *form, w=value)
    mesh = data.draw(meshes())
    layout = data.draw(any_layouts(mesh, shape))
    found = mw.load_safetensors(folder, {"layers.w": layout}, mesh=mesh)
    assert list(found) == ["layers.w"], "a text is no array"
    right = mw.Array.from_numpy(value, mesh=mesh, layout=layout)
    assert found["layers.w"].dtype_name == right.dtype_name
    for got, wanted in zip(found["layers.w"].shards, right.shards, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_a_rank_reads_its_own_chunks_alone(tmp_path: Path) -> None:
    value = np.arange(24, dtype=np.float32).reshape(6, 4)
    folder = written(tmp_path / "c", False, "zarr", w=value, scale=np.ones(3, np.float32))
    (folder / "layers.w" / "1.0").write_bytes(b"no chunk")  # rows 3 to 5
    part = mw.load_safetensors(folder, {"*.w": "[x, _]"}, mesh="x=2", rank=0)["layers.w"]
    np.testing.assert_array_equal(part, value[:3])
    with pytest.raises(MeshweaveError, match="c: cannot be read"):
        mw.load_safetensors(folder, {"*.w": "[x, _]"}, mesh="x=2", rank=1)
    (folder / "layers.w" / "1.0").unlink()
    with pytest.raises(MeshweaveError, match="c: cannot be read"):  # no zeros
        mw.load_safetensors(folder, {"*.w": "[x, _]"}, mesh="x=2", rank=1)
    one = mw.Array.from_file(folder, "layers.scale", mesh="x=3", layout="[x]")
    assert one.numpy().tolist() == [1, 1, 1]


def test_what_is_no_checkpoint_or_not_read_is_told(tmp_path: Path) -> None:
    kind = pytest.importorskip("ml_dtypes").float8_e4m3b11fnuz
    whole = written(tmp_path / "c", True, "zarr3", w=np.ones(3, kind))
    with pytest.raises(
        MeshweaveError, match=r"array layers\.w: no arrays of dtype float8_e4m3b11fnuz: "
    ):
        mw.load_safetensors(whole)
    (whole / "_METADATA").write_text("{}")
    with pytest.raises(MeshweaveError, match="no tree_metadata, which says what arrays there are"):
        mw.load_safetensors(whole)
    lost = written(tmp_path / "d", False, "zarr", w=np.ones(3))
    (lost / "layers.w" / ".zarray").unlink()
    with pytest.raises(MeshweaveError, match=r"d: array layers\.w: cannot be read: .*NOT_FOUND"):
        mw.load_safetensors(lost)


def test_folders_of_orbax_say_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_CHECKPOINT_METADATA").write_bytes(b"")
    with pytest.raises(MeshweaveError, match="without _METADATA: the folder of one tree, such as"):
        mw.load_safetensors(tmp_path)
    leaf = {"key_metadata": [{"key": "w"}], "value_metadata": {"value_type": "jax.Array"}}
    (tmp_path / "_METADATA").write_text(json.dumps({"tree_metadata": {"w": leaf}}))
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(
        MeshweaveError, match=r"tensorstore reads: pip install 'meshweave\[orbax\]'"
    ):
        mw.load_safetensors(tmp_path)
