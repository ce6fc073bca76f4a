"""Arrays on disk: what was saved comes back on any mesh in any layout; what is damaged or incomplete is named."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_layouts, meshes

import meshweave as mw
from meshweave.bundle import NUMPY_DTYPES, numpy_dtype
from meshweave.errors import LayoutError, MeshweaveError, UsageError
from meshweave.layout import Layout, Mesh, scatter
from meshweave.runtime.arrays import saving

VALUE = np.arange(48, dtype="f4").reshape(8, 6)


def rows() -> mw.Array:
    return mw.Array.from_numpy(VALUE, mesh="x=2, y=2", layout="[x, _]")


def test_an_array_comes_back_as_it_was(tmp_path: Path) -> None:
    rows().save(tmp_path / "a")
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == ["manifest.json", "rank0.npy", "rank1.npy", "rank2.npy", "rank3.npy"]
    again = mw.load(tmp_path / "a")
    assert (again.mesh, again.layout, again.dtype_name) == (rows().mesh, rows().layout, "f32")
    assert all(np.array_equal(a, b) for a, b in zip(again.shards, rows().shards))
    again.shards[0][0, 0] = 7  # it is a copy, not the file
    assert mw.load(tmp_path / "a").numpy()[0, 0] == 0


@pytest.mark.parametrize("dtype", sorted(set(NUMPY_DTYPES) - {"bf16"}))
def test_every_dtype(dtype: str, tmp_path: Path) -> None:
    value = np.arange(6).astype(numpy_dtype(dtype))
    shards = scatter(value, Mesh(x=2), Layout.parse("[x]"))
    mw.Array(shards, Mesh(x=2), Layout.parse("[x]"), (6,), dtype).save(tmp_path / "a")
    assert np.array_equal(mw.load(tmp_path / "a", mesh="y=3", layout="[y]").numpy(), value)


def test_bf16_keeps_its_bits(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0x7FC1, 0x8000, 0x0001], "u2")
    array = mw.Array.from_shards([bits], mesh="x=1", layout="[_]", shape=(4,), dtype="bf16")
    array.save(tmp_path / "a")
    again = mw.load(tmp_path / "a", mesh="x=2", layout="[x]")
    assert again.dtype_name == "bf16" and np.array_equal(np.concatenate(again.shards), bits)


@settings(max_examples=examples(150))
@given(data=st.data())
def test_any_layout_on_any_mesh(data: st.DataObject, tmp_path_factory: Any) -> None:
    """The value is the same, and what a rank gets is what scattering the value would give it."""
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=0, max_size=3), label="shape"))
    value = np.arange(int(np.prod(shape)), dtype="i8").reshape(shape)
    source_mesh, mesh = data.draw(meshes()), data.draw(meshes())
    source = data.draw(any_layouts(source_mesh, shape), label="source")
    target = data.draw(any_layouts(mesh, shape), label="target")
    folder = tmp_path_factory.mktemp("saved") / "a"
    mw.Array.from_numpy(value, mesh=source_mesh, layout=source).save(folder)
    again = mw.load(folder, mesh=mesh, layout=target)
    assert np.array_equal(again.numpy(), value)
    for ours, right in zip(again.shards, scatter(value, mesh, target), strict=True):
        assert np.array_equal(ours, right)
    shutil.rmtree(folder)


def test_what_is_still_to_be_reduced_is_reduced_or_kept(tmp_path: Path) -> None:
    parts = [np.full((2, 3), float(rank), "f4") for rank in range(4)]
    mesh, layout = "x=2, y=2", "[x, _] +sum(y)"
    array = mw.Array.from_shards(parts, mesh=mesh, layout=layout, shape=(4, 3))
    array.save(tmp_path / "a")
    same = mw.load(tmp_path / "a")
    assert [shard[0, 0] for shard in same.shards] == [0, 1, 2, 3]
    other = mw.load(tmp_path / "a", mesh="z=3", layout="[_, z]")
    assert np.array_equal(other.numpy(), array.numpy())
    pending = mw.load(tmp_path / "a", mesh="z=2", layout="[_, _] +sum(z)")
    assert np.array_equal(pending.numpy(), array.numpy())


def test_only_the_files_that_a_layout_needs_are_read(tmp_path: Path) -> None:
    rows().save(tmp_path / "a")
    for rank in (1, 3):  # copies of what ranks 0 and 2 have
        (tmp_path / "a" / f"rank{rank}.npy").unlink()
    assert np.array_equal(mw.load(tmp_path / "a", mesh="z=2", layout="[_, z]").numpy(), VALUE)
    with pytest.raises(MeshweaveError, match=r"rank1.npy: cannot be read: No such file"):
        mw.load(tmp_path / "a")


def test_damage_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    rows().save(folder)
    path = folder / "rank2.npy"
    whole = path.read_bytes()

    def refused(data: bytes, match: str, verify: bool = True) -> None:
        path.write_bytes(data)
        with pytest.raises(MeshweaveError, match=match) as caught:
            mw.load(folder, verify=verify)
        assert str(path) in str(caught.value)

    refused(whole[:-4], "220 bytes, 224 were saved")
    refused(whole[:-1] + b"\1", "its contents do not match its SHA-256")
    refused(b"\0" * len(whole), "not a .npy array", verify=False)
    refused(
        whole.replace(b"(4, 6)", b"(6, 4)"), r"float32 \[6, 4\], float32 \[4, 6\]", verify=False
    )
    refused(whole.replace(b"(4, 6)", b"((4, 6"), "rank2.npy: not a .npy array", verify=False)
    pickled = bytearray(whole.replace(b"'<f4'", b"'|O' "))
    refused(bytes(pickled), "not a .npy array", verify=False)
    path.write_bytes(whole)
    assert np.array_equal(mw.load(folder).numpy(), VALUE)


def changed(manifest: dict[str, Any], **other: Any) -> str:
    return json.dumps({**manifest, **other})


def test_wrong_manifests_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    rows().save(folder)
    path = folder / "manifest.json"
    good = json.loads(path.read_text())
    wrong = {
        "{": "not JSON",
        "[" * 100_000: "not JSON",
        "[]": "not the manifest of a saved array",
        '{"kind": "meshweave array", "format": 99}': "format 99, this version reads format 1",
        changed(good, files=[]): "0 files, the mesh .* has 4 ranks",
        changed(good, files=3): "damaged",
        changed(good, mesh="x=0"): "manifest.json: ",
        changed(good, mesh="x=N, y=2"): "has a symbol for a size",
        changed(good, mesh=3): "mesh should be text, is 3",
        changed(good, layout="[x, _, _]"): "manifest.json: .*dims",
        changed(good, shape=[8, -6]): "shape .* is none",
        changed(good, shape=[8, "6"]): "shape .* is none",
        changed(good, shape=8): "damaged",
        changed(good, dtype="f99"): "no arrays of dtype 'f99'",
        changed(good, dtype=["f32"]): "dtype should be text, is",
        changed(good, dtype="f64"): r"rank0.npy: float32 \[4, 6\], float64 \[4, 6\] was saved",
    }
    for text, match in wrong.items():
        path.write_text(text)
        with pytest.raises(MeshweaveError, match=match):
            mw.load(folder)
    path.unlink()
    with pytest.raises(MeshweaveError, match=r"no array was saved here: manifest.json: No such"):
        mw.load(folder)
    with pytest.raises(MeshweaveError, match="no array was saved here"):
        mw.load(tmp_path / "none")


def test_a_manifest_that_says_more_than_there_is_allocates_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    rows().save(folder)
    path = folder / "manifest.json"
    good = json.loads(path.read_text())
    for shape in ([1 << 40, 6], [1 << 70, 6], [8, 1 << 40]):
        path.write_text(changed(good, shape=shape))
        for other in ({}, {"mesh": "z=3", "layout": "[_, z]"}):
            with pytest.raises(MeshweaveError, match=r"rank0\.npy has 224 bytes, a rank's part of"):
                mw.load(folder, **other)
    large = [{**entry, "bytes": (1 << 42) * 24 + 128} for entry in good["files"]]
    path.write_text(changed(good, shape=[1 << 43, 6], files=large))
    with pytest.raises(MeshweaveError, match=r"rank0.npy: 224 bytes, \d+ were saved"):
        mw.load(folder, mesh="z=3", layout="[_, z]")
    path.write_text(changed(good, files=[{**f, "path": "/etc/hostname"} for f in good["files"]]))
    assert np.array_equal(mw.load(folder).numpy(), VALUE)  # names in a manifest are not followed
    for wrong in (3, None):
        with pytest.raises(UsageError, match="a path is right"):
            mw.load(wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="a path is right"):
            rows().save(wrong)


SAVE_FOREVER = """
import sys
import numpy as np
import meshweave as mw
for version in range(2, 10000):
    array = mw.Array.from_numpy(np.full((64, 4096), version, "f4"), mesh="x=4", layout="[x, _]")
    array.save(sys.argv[1], overwrite=True)
    print(version, flush=True)
"""


def test_a_process_killed_while_it_saves_leaves_one_whole_array(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    first = mw.Array.from_numpy(np.ones((64, 4096), "f4"), mesh="x=4", layout="[x, _]")
    first.save(folder)
    saver = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOREVER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert saver.stdout is not None
    try:
        for delay in (0.0, 0.001, 0.003, 0.006, 0.01):
            before = int(saver.stdout.readline())
            time.sleep(delay)
            saver.send_signal(signal.SIGSTOP)  # in the middle of what comes next
            value = mw.load(folder).numpy()
            assert (value == value[0, 0]).all() and value[0, 0] >= before
            saver.send_signal(signal.SIGCONT)
    finally:
        saver.kill()
        saver.wait()
        saver.stdout.close()
    value = mw.load(folder).numpy()
    assert (value == value[0, 0]).all() and value[0, 0] > 1
    mw.Array.from_numpy(VALUE, mesh="", layout="[_, _]").save(folder, overwrite=True)
    assert np.array_equal(mw.load(folder).numpy(), VALUE)


def test_layouts_that_do_not_fit_are_named(tmp_path: Path) -> None:
    rows().save(tmp_path / "a")
    with pytest.raises(LayoutError, match="say which layout it is to have"):
        mw.load(tmp_path / "a", mesh="z=2")
    with pytest.raises(LayoutError, match=r"a: .*dims"):
        mw.load(tmp_path / "a", layout="[x]")


def test_folders_are_replaced_only_when_asked_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deep" / "a"
    rows().save(folder)
    with pytest.raises(MeshweaveError, match="exists already: overwrite=True"):
        rows().save(folder)
    one = mw.Array.from_numpy(VALUE * 2, mesh="x=1", layout="[_, _]")
    one.save(folder, overwrite=True)
    assert sorted(os.listdir(folder)) == ["manifest.json", "rank0.npy"]
    monkeypatch.setattr(saving, "_exchanged", lambda *_: False)  # an older system
    rows().save(folder, overwrite=True)
    assert np.array_equal(mw.load(folder).numpy(), VALUE)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    for place in (mine, mine / "notes.txt"):
        with pytest.raises(MeshweaveError, match="is no saved array: it is not replaced"):
            one.save(place, overwrite=True)
    assert os.listdir(folder.parent) == ["a"] and os.listdir(mine) == ["notes.txt"]


def test_a_save_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    rows().save(folder)

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "_write_manifest", full)
    for target in (folder, tmp_path / "b"):
        with pytest.raises(MeshweaveError, match="cannot save the array: No space left"):
            mw.Array.from_numpy(VALUE * 2, mesh="", layout="[_, _]").save(target, overwrite=True)
    assert os.listdir(tmp_path) == ["a"]
    assert np.array_equal(mw.load(folder).numpy(), VALUE)


def test_empty_arrays_and_scalars(tmp_path: Path) -> None:
    empty = mw.Array.from_numpy(np.zeros((0, 3), "f4"), mesh="x=2", layout="[x, _]")
    empty.save(tmp_path / "empty")
    assert mw.load(tmp_path / "empty", mesh="y=3", layout="[_, y]").shape == (0, 3)
    assert mw.load(tmp_path / "empty").shards[1].shape == (0, 3)
    mw.Array.from_numpy(np.float64(2.5), mesh="x=2", layout="[]").save(tmp_path / "scalar")
    assert mw.load(tmp_path / "scalar", mesh="", layout="[]").numpy() == 2.5
