"""Bundles: what is written is read; what is damaged, foreign or cut short is one clear error."""

import contextlib
import json
import os
import zipfile
from dataclasses import replace

import pytest

from meshweave.bundle import FORMAT, Bundle, CollectiveInfo, Manifest, OpInfo, Port, slots
from meshweave.errors import MeshweaveError

MANIFEST = Manifest(
    mesh="dp=2, tp=3",
    engine="local",
    inputs=(Port("x", "f32", (8, 6), (4, 6), "[dp, _]"), Port("s", "i64", (), (), "[]")),
    outputs=(Port("y", "bf16", (8, 6), (4, 2), "[dp, tp]"),),
    arena_bytes=4096,
    groups=(("dp",), ("dp", "tp")),
    ops=(OpInfo(1, "all_reduce[tp] f32 8x6", "a.mlir:3:4"),),
    collectives=(CollectiveInfo("all_reduce", ("tp",), 192),),
    libraries=("openblas",),
)
BUNDLE = Bundle(MANIFEST, (b"one object", b"an other"))


def test_a_bundle_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "a.mwb"
    BUNDLE.write(path)
    assert Bundle.read(path) == BUNDLE
    assert Bundle.read(path).digest == BUNDLE.digest
    assert os.listdir(tmp_path) == ["a.mwb"]


def test_equal_bundles_are_equal_files():
    again = Bundle(Manifest.from_json(MANIFEST.to_json()), BUNDLE.objects)
    assert again.to_bytes() == BUNDLE.to_bytes()


def test_the_digest_covers_manifest_and_objects():
    assert Bundle(MANIFEST, (b"one object", b"an othe")).digest != BUNDLE.digest
    assert Bundle(MANIFEST, (b"one objectan other",)).digest != BUNDLE.digest


def test_every_truncation_is_refused():
    data = BUNDLE.to_bytes()
    for length in range(len(data)):
        with pytest.raises(MeshweaveError, match=r"^b: "):
            Bundle.from_bytes(data[:length], "b")


def test_a_flipped_byte_is_refused_or_harmless():
    data = BUNDLE.to_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x55
        with contextlib.suppress(MeshweaveError):  # else a date, a permission: no content
            assert Bundle.from_bytes(bytes(damaged)) == BUNDLE


def repacked(tmp_path, **members):
    path = tmp_path / "r.mwb"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "."), data)
    return path


def test_foreign_files_are_named(tmp_path):
    path = tmp_path / "x.mwb"
    path.write_bytes(b"\x7fELF")
    with pytest.raises(MeshweaveError, match=r"x.mwb: not a meshweave bundle"):
        Bundle.read(path)
    with pytest.raises(MeshweaveError, match=r"r.mwb: not a meshweave bundle"):
        Bundle.read(repacked(tmp_path, word__xml="hello"))
    with pytest.raises(MeshweaveError, match=r"cannot read the bundle: No such file"):
        Bundle.read(tmp_path / "none.mwb")
    with pytest.raises(MeshweaveError, match=r"cannot write the bundle: No such file"):
        BUNDLE.write(tmp_path / "no" / "folder.mwb")


def test_contents_that_do_not_match_the_digest_are_refused(tmp_path):
    path = repacked(
        tmp_path, manifest__json=MANIFEST.to_json(), object0__o=b"one object", digest=BUNDLE.digest
    )
    with pytest.raises(MeshweaveError, match="do not match its digest"):
        Bundle.read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, f"bundle format 99, this runtime reads format {FORMAT}"),
        ({"arena_bytes": -1}, "manifest.arena_bytes should be a count, is -1"),
        ({"arena_bytes": 1 << 80}, "manifest.arena_bytes should be a count"),
        ({"arena_bytes": True}, "manifest.arena_bytes should be a count, is True"),
        ({"groups": "dp"}, "manifest.groups should be a list, is 'dp'"),
        ({"groups": [[1]]}, r"manifest.groups\[0\]\[0\] should be text, is 1"),
        ({"ops": [{"id": 1}]}, r"manifest.ops\[0\] has no name"),
        ({"extra": 1}, "manifest has an unknown field 'extra'"),
        ({"inputs": [dict(json.loads(MANIFEST.to_json())["inputs"][0], dtype="f8")]},
         'no buffers of dtype "f8"'),
        ({"outputs": [dict(json.loads(MANIFEST.to_json())["outputs"][0], takes=0)]},
         "y takes the buffer of input 0: there is none like it that is free"),
        ({"outputs": [dict(json.loads(MANIFEST.to_json())["inputs"][0], takes=0)] * 2},
         "x takes the buffer of input 0: there is none like it that is free"),
        ({"outputs": [dict(json.loads(MANIFEST.to_json())["inputs"][0], takes=2)]},
         "x takes the buffer of input 2"),
        ({"outputs": [dict(json.loads(MANIFEST.to_json())["inputs"][0], takes=-1)]},
         r"manifest.outputs\[0\].takes should be a count, is -1"),
    ],
)  # fmt: skip
def test_a_wrong_manifest_says_where(change, message):
    value = json.loads(MANIFEST.to_json()) | change
    with pytest.raises(MeshweaveError, match=message):
        Manifest.from_json(json.dumps(value))


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", "[" * 100000, "null"])
def test_what_is_no_manifest_is_refused(text):
    with pytest.raises(MeshweaveError):
        Manifest.from_json(text)


def test_the_slots_follow_each_other():
    table = slots(MANIFEST)
    numbers = [table.arena, table.rank, table.status, table.private]
    numbers += [table.handle(0), table.member(0), table.handle(1), table.member(1)]
    numbers += [table.input(0), table.input(1), table.output(0), table.cores]
    assert numbers == list(range(table.count))


def test_an_unlisted_op_still_has_a_description():
    assert str(MANIFEST.op(1)) == "all_reduce[tp] f32 8x6 at a.mlir:3:4"
    assert "op 7" in str(MANIFEST.op(7))


def test_an_archive_that_says_too_much_is_not_unpacked(tmp_path):
    file = tmp_path / "bomb.mwb"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for k in range(4):
            archive.writestr(f"object{k}.o", bytes(64 << 20))
    with pytest.raises(
        MeshweaveError, match=r"bomb.mwb: a bundle of .* bytes may unpack to .* says 268,435,456"
    ):
        Bundle.read(file)


def test_constants_that_compress_well_are_read_again(tmp_path):
    made = replace(BUNDLE, constants=bytes(200 << 20))
    made.write(tmp_path / "a.mwb")
    assert Bundle.read(tmp_path / "a.mwb").constants == made.constants
