"""Files of NumPy, llama.cpp and PyTorch: the tensors that they hold, in any layout; no code of theirs runs."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshweave as mw
from meshweave.errors import MeshweaveError
from meshweave.layout import scatter

VALUE = np.random.default_rng(0).standard_normal((6, 64)).astype("f4")
LAYOUTS = ("[_, _]", "[x, y]", "[_, x*y]", "[y, _*x]", "[_, x] order(1, 0)", "[_*x*2, y]")


def read(path: Path, name: str | None, value: np.ndarray[Any, Any], dtype: str = "f32") -> None:
    """Every layout of a tensor in a file is what scattering the value gives."""
    for layout in LAYOUTS:
        array = mw.Array.from_file(path, name, mesh="x=2, y=2", layout=layout)
        assert array.dtype_name == dtype
        for found, right in zip(
            array.shards, scatter(value, array.mesh, array.layout), strict=True
        ):
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("value", [VALUE, np.asfortranarray(VALUE)], ids=["C", "Fortran"])
def test_npy(value: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", value)
    read(tmp_path / "a.npy", None, VALUE)


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", w=VALUE, n=np.arange(3))
    read(tmp_path / "a.npz", "w", VALUE)
    np.savez_compressed(tmp_path / "b.npz", w=VALUE)
    with pytest.raises(MeshweaveError, match=r"w.npy is compressed.*np.savez is right"):
        mw.Array.from_file(tmp_path / "b.npz")


def objects() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([{}], object), allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a file of tensors"),
        (b"hello world", "not a file of tensors"),
        (b"\x93NUMPY\x01\x00", "not a .npy array"),
        (b"\x93NUMPY\x09\x00" + b"\0" * 60, "not a .npy array"),
        (objects(), "dtype object"),
        (b"GGUF\3\0\0\0", "bytes 8 to"),
        (b"GGUF\1\0\0\0" + b"\0" * 16, "no GGUF file of version 2 or 3"),
        (b"PK\3\4" + b"\0" * 60, "no zip archive"),
    ],
)
def test_other_files_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(MeshweaveError) as error:
        mw.Array.from_file(tmp_path / "a")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_npy_cut_short_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VALUE)
    os.truncate(tmp_path / "a.npy", 1000)
    with pytest.raises(MeshweaveError, match=r"bytes of elements, f32 .6, 64. takes 1536"):
        mw.Array.from_file(tmp_path / "a.npy")


# GGUF.


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(
    tensors: dict[str, tuple[tuple[int, ...], int, bytes]],
    keys: tuple[bytes, ...] = (),
    alignment: int = 32,
) -> bytes:
    """A file of tensors: shape, type and bytes of each."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    data = b""
    for name, (shape, kind, content) in tensors.items():
        data += b"\0" * (-len(data) % alignment)
        head += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        data += content
    return head + b"\0" * (-len(head) % alignment) + data


def q8_0(value: np.ndarray[Any, Any]) -> tuple[bytes, np.ndarray[Any, Any]]:
    """Blocks of 32 numbers of 8 bits, and the numbers that they mean."""
    blocks = value.reshape(-1, 32)
    scale = (np.abs(blocks).max(-1, keepdims=True) / 127).astype("f2")
    numbers = np.round(blocks / scale.astype("f4")).astype("i1")
    packed = b"".join(s.tobytes() + n.tobytes() for s, n in zip(scale, numbers))
    return packed, (scale.astype("f4") * numbers).reshape(value.shape)


def q4_0(value: np.ndarray[Any, Any]) -> tuple[bytes, np.ndarray[Any, Any]]:
    blocks = value.reshape(-1, 32)
    scale = (np.abs(blocks).max(-1, keepdims=True) / 7).astype("f2")
    numbers = np.clip(np.round(blocks / scale.astype("f4")), -8, 7).astype("i1")
    nibbles = (numbers + 8).astype("u1")
    packed = b"".join(
        s.tobytes() + (n[:16] | n[16:] << 4).tobytes() for s, n in zip(scale, nibbles)
    )
    return packed, (scale.astype("f4") * numbers).reshape(value.shape)


KEYS = (
    text("general.name") + struct.pack("<I", 8) + text("a model"),
    text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc"),
    text("scores") + struct.pack("<IIQ", 9, 6, 3) + b"\0" * 12,
    text("general.alignment") + struct.pack("<II", 4, 64),
)


def test_gguf(tmp_path: Path) -> None:
    (eight, wanted8), (four, wanted4) = q8_0(VALUE), q4_0(VALUE)
    bits = (VALUE.view("u4") >> 16).astype("u2")
    file = gguf(
        {
            "f32": ((6, 64), 0, VALUE.tobytes()), "f16": ((6, 64), 1, VALUE.astype("f2").tobytes()),
            "bf16": ((6, 64), 30, bits.tobytes()), "q8": ((6, 64), 8, eight), "q4": ((6, 64), 2, four),
        }, KEYS, 64,
    )  # fmt: skip
    (tmp_path / "m.gguf").write_bytes(file)
    read(tmp_path / "m.gguf", "f32", VALUE)
    read(tmp_path / "m.gguf", "f16", VALUE.astype("f2"), "f16")
    read(tmp_path / "m.gguf", "bf16", bits, "bf16")
    read(tmp_path / "m.gguf", "q8", wanted8)
    read(tmp_path / "m.gguf", "q4", wanted4)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (gguf({"a": ((2,), 14, b"0" * 8)}), "tensor a: type 14; F32"),
        (gguf({"a": ((3,), 0, b"0" * 8)}), "its tensors end at"),
        (gguf({"a": ((1 << 60,), 0, b"0" * 8)}), "its tensors end at"),
        (gguf({"a": ((33,), 8, b"0" * 34)}), "is not in blocks of 32"),
        (gguf({"a": ((1,) * 9, 0, b"0" * 4)}), "tensor a: 9 dims"),
        (gguf({}, (text("a") + struct.pack("<IIQ", 9, 6, 1 << 60),)), "a list of"),
        (gguf({}, (text("a") + struct.pack("<IIQ", 9, 9, 1),)), "a value of type 9"),
        (gguf({}, (struct.pack("<Q", 1 << 40),)), "a text of 1099511627776 bytes"),
        (
            gguf({}, (text("general.alignment") + struct.pack("<II", 4, 0),)),
            "general.alignment is 0",
        ),
    ],
)
def test_damaged_gguf_is_refused(file: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(file)
    with pytest.raises(MeshweaveError) as error:
        mw.Array.from_file(tmp_path / "m.gguf", "a")
    assert words in str(error.value) and "\n" not in str(error.value)


# PyTorch.


def archive(
    pickled: bytes, storages: dict[str, bytes], path: Path, method: int = zipfile.ZIP_STORED
) -> None:
    with zipfile.ZipFile(path, "w", method) as out:
        out.writestr("archive/data.pkl", pickled)
        for key, data in storages.items():
            out.writestr(f"archive/data/{key}", data)


@pytest.mark.torch
def test_checkpoints_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    whole = torch.from_numpy(VALUE.copy())
    state: Any = {
        "w": whole, "part": whole[2:5], "turned": whole.t().contiguous().t(),
        "model": {"b": torch.nn.Parameter(whole.to(torch.bfloat16))}, "step": 3, "names": ["a", torch.arange(3)],
    }  # fmt: skip
    torch.save(state, tmp_path / "m.pt")
    read(tmp_path / "m.pt", "w", VALUE)
    read(tmp_path / "m.pt", "turned", VALUE)
    read(tmp_path / "m.pt", "part", VALUE[2:5])
    read(tmp_path / "m.pt", "model.b", whole.to(torch.bfloat16).view(torch.uint16).numpy(), "bf16")
    assert mw.Array.from_file(tmp_path / "m.pt", "names.1").numpy().tolist() == [0, 1, 2]
    torch.save({"w": whole[:, ::2]}, tmp_path / "m.pt")
    with pytest.raises(
        MeshweaveError, match=r"tensor w: shape .* at strides .*: save it contiguous"
    ):
        mw.Array.from_file(tmp_path / "m.pt")
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "m.pt")
    assert mw.Array.from_file(tmp_path / "m.pt", "weight").shape == (2, 2)


class Evil:
    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.call = call, args

    def __reduce__(self) -> Any:
        return self.call


def test_a_pickle_runs_no_code(tmp_path: Path) -> None:
    for evil in (
        Evil(os.system, f"touch {tmp_path / 'ran'}"),
        Evil(eval, "1 + 1"),
        Evil(getattr, 1, "real"),
    ):
        archive(pickle.dumps({"w": evil}), {}, tmp_path / "m.pt")
        with pytest.raises(
            MeshweaveError, match=r"not read, for it asks for .*: a state dict of plain"
        ) as error:
            mw.Array.from_file(tmp_path / "m.pt")
        assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


NAMES = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
)
"""The start of a pickle of a tensor: its storage; then come the first element, the shape and the strides."""


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def tensor(start: int, shape: int, stride: int) -> bytes:
    ends = number(start) + b"(" + number(shape) + b"t(" + number(stride) + b"t\x89NtR."
    return NAMES + ends


@pytest.mark.parametrize(
    ("pickled", "words"),
    [
        (b"", "its data.pkl is damaged"),
        (b"\x80\x02" + b"(" * 100, "its data.pkl is damaged"),
        (tensor(0, 5, 1), "shape (5,) from element 0 on, its storage has 16 bytes"),
        (tensor(3, 2, 1), "from element 3 on"),
        (tensor(-1, 2, 1), "for a tensor of shape"),
        (tensor(0, 2, 3), "save it contiguous"),
        (tensor(0, 4, 0), "save it contiguous"),
        (b"\x80\x02X\x01\x00\x00\x00x\x85Q.", "not read, for a storage ('x',)"),
        (b"\x80\x02]q\x00h\x00a.", "nested deeper than 100"),
    ],
)
def test_damaged_checkpoints_are_refused(pickled: bytes, words: str, tmp_path: Path) -> None:
    archive(pickled, {"0": b"\0" * 16}, tmp_path / "m.pt")
    with pytest.raises(MeshweaveError) as error:
        mw.Array.from_file(tmp_path / "m.pt")
    assert words in str(error.value) and "\n" not in str(error.value)


def test_the_tensor_of_a_pickle_by_hand(tmp_path: Path) -> None:
    archive(tensor(1, 3, 1), {"0": np.arange(4, dtype="f4").tobytes()}, tmp_path / "m.pt")
    assert mw.Array.from_file(tmp_path / "m.pt").numpy().tolist() == [1, 2, 3]
    archive(tensor(1, 3, 1), {"0": b"\0" * 16}, tmp_path / "m.pt", zipfile.ZIP_DEFLATED)
    with pytest.raises(MeshweaveError, match=r"no checkpoint of torch.save"):
        mw.Array.from_file(tmp_path / "m.pt")


@pytest.mark.torch
def test_checkpoints_of_torch_in_several_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values = {name: torch.randn(6, 8) for name in ("layers.0.up", "layers.1.up", "norm")}
    where = {name: f"pytorch_model-0000{k % 2}.bin" for k, name in enumerate(values)}
    for file in set(where.values()):
        torch.save({n: v for n, v in values.items() if where[n] == file}, tmp_path / file)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    for path in (tmp_path, index):
        found = mw.load_safetensors(path, {"*.up": "[_, x]"}, mesh="x=2")
        assert {n: str(a.layout) for n, a in found.items()} == {
            n: "[_, x]" if "up" in n else "[_, _]" for n in values
        }
        for name, value in values.items():
            np.testing.assert_array_equal(found[name].numpy(), value.numpy())
    one = mw.Array.from_file(tmp_path, "layers.1.up", mesh="x=2", layout="[x, _]")
    np.testing.assert_array_equal(one.numpy(), values["layers.1.up"].numpy())
    index.unlink()
    assert sorted(mw.load_safetensors(tmp_path)) == sorted(values)
    index.write_text(json.dumps({"weight_map": {"gone": "pytorch_model-00000.bin"}}))
    with pytest.raises(MeshweaveError, match=r"tensor gone is not in pytorch_model-00000\.bin"):
        mw.load_safetensors(tmp_path)
