"""Arrays to and from other libraries: DLPack without copies, local buffers of any library, what is refused and why."""

from typing import Any

import numpy as np
import pytest

import meshweave as mw
from meshweave.errors import MeshweaveError, UsageError

VALUE = np.arange(12, dtype="f4").reshape(3, 4)


def test_one_rank_gives_its_memory_without_a_copy() -> None:
    array = mw.Array.from_numpy(VALUE, mesh="x=1", layout="[x, _]")
    other = np.from_dlpack(array)
    assert np.shares_memory(other, array.shards[0]) and np.array_equal(other, VALUE)
    copy = np.from_dlpack(array.shards[0].copy())
    assert not np.shares_memory(copy, array.shards[0])
    assert array.__dlpack_device__() == VALUE.__dlpack_device__()


def test_several_ranks_that_hold_the_whole_give_a_copy() -> None:
    array = mw.Array.from_numpy(VALUE, mesh="x=2", layout="[_, _]")
    other = np.from_dlpack(array)
    assert np.array_equal(other, VALUE)
    assert not any(np.shares_memory(other, shard) for shard in array.shards)
    with pytest.raises(BufferError, match="several ranks hold it: only a copy"):
        array.__dlpack__(copy=False)


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [
        ("x=2", "[_, x]"),
        ("x=1", "[_, _] order(1, 0)"),
        ("x=2", "[_, _] +sum(x)"),
        ("x=2", "[x{0,3}, _]"),
        ("x=1", "[2*_, _]"),  # padded to 4 rows
    ],
)
def test_what_no_rank_holds_in_order_is_refused(mesh: str, layout: str) -> None:
    try:
        array = mw.Array.from_numpy(VALUE, mesh=mesh, layout=layout)
    except mw.MeshweaveError:
        pytest.fail(f"{layout} should fit")
    if layout == "[2*_, _]":
        assert array.shards[0].shape == (4, 4)
    with pytest.raises(BufferError, match=r"rank 0 does not hold the whole in order: redistribute"):
        np.from_dlpack(array)
    assert np.from_dlpack(array.shards[0]).dtype == np.float32  # per shard it goes


def test_a_square_in_another_order_is_not_taken_for_the_value() -> None:
    square = np.arange(9, dtype="f4").reshape(3, 3)
    array = mw.Array.from_numpy(square, mesh="x=1", layout="[_, _] order(1, 0)")
    with pytest.raises(BufferError):
        np.from_dlpack(array)


def test_other_devices_and_streams_are_refused_and_bf16_by_numpy() -> None:
    array = mw.Array.from_numpy(VALUE, mesh="", layout="[_, _]")
    with pytest.raises(BufferError, match="lies in the processor's memory"):
        array.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="has no stream"):
        array.__dlpack__(stream=1)
    bits = mw.Array.from_numpy(VALUE, mesh="", layout="[_, _]", dtype="bf16")
    with pytest.raises((BufferError, RuntimeError), match="dtype"):
        np.from_dlpack(bits)


class Foreign:
    """An array of another library, by DLPack alone."""

    def __init__(self, value: np.ndarray) -> None:
        self.value = value

    def __dlpack__(self, **options: Any) -> Any:
        return self.value.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


class Elsewhere(Foreign):
    """One in the memory of another device."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("on device 2")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("cannot convert to NumPy: copy it to the host first")


def test_arrays_of_other_libraries_come_in() -> None:
    whole = mw.Array.from_dlpack(Foreign(VALUE))
    assert whole.mesh.nranks == 1 and np.shares_memory(whole.shards[0], VALUE)
    cut = mw.Array.from_dlpack(Foreign(VALUE), mesh="x=2", layout="[_, x]")
    assert np.array_equal(cut.numpy(), VALUE)
    parts = [Foreign(VALUE[:, :2].copy()), VALUE[:, 2:]]
    array = mw.Array.from_shards(parts, mesh="x=2", layout="[_, x]", shape=(3, 4))
    assert np.array_equal(array.numpy(), VALUE)
    assert np.shares_memory(array.shards[0], parts[0].value)


def test_what_is_no_array_is_named() -> None:
    with pytest.raises(UsageError, match="from_dlpack: a list has no __dlpack__"):
        mw.Array.from_dlpack([1, 2])
    with pytest.raises(
        MeshweaveError, match=r"from_dlpack: Elsewhere: .*copy it to the host first"
    ):
        mw.Array.from_dlpack(Elsewhere(VALUE))
    shards = [VALUE, Elsewhere(VALUE)]
    with pytest.raises(MeshweaveError, match=r"rank 1: Elsewhere: .*host first"):
        mw.Array.from_shards(shards, mesh="x=2", layout="[x, _]", shape=(6, 4))
    with pytest.raises(MeshweaveError, match="rank 1: a object is no array of numbers"):
        mw.Array.from_shards([VALUE, object()], mesh="x=2", layout="[x, _]", shape=(6, 4))


def test_a_repr_says_who_holds_what() -> None:
    def text(mesh: str, layout: str) -> str:
        return repr(mw.Array.from_numpy(np.zeros((8, 6), "f4"), mesh=mesh, layout=layout))

    assert text("x=2", "[x, _]").endswith(
        "8x6xf32 [x, _] on (x=2): rank 0 [0:4, :], rank 1 [4:8, :])"
    )
    assert text("x=3", "[x, _]").endswith("rank 0 [0:3, :], rank 1 [3:6, :], rank 2 [6:8, :])")
    assert "rank 0 [0+4, 0:3], rank 1 [0+4, 3:6], rank 2 [1+5, 0:3]" in text(
        "x=4, y=2", "[2*x*_, y]"
    )
    assert text("x=8", "[x, _]").endswith("rank 3 [3:4, :], .. 8 ranks)")
    assert text("x=5", "[x, _]").count("rank ") == 4
    assert text("x=2", "[_, _]").endswith("whole on each of 2 ranks)")
    assert text("", "[_, _]").endswith("whole on one rank)")
    assert "rank 4 [-" not in text("x=4", "[x{8,0,0,0}, _]")
    assert "rank 1 [-, :]" in text("x=4", "[x{8,0,0,0}, _]")


@pytest.mark.torch
def test_torch_takes_and_gives() -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch (make test-torch)")
    array = mw.Array.from_numpy(VALUE.copy(), mesh="", layout="[_, _]")
    tensor = torch.from_dlpack(array)
    tensor[0, 0] = 5
    assert array.numpy()[0, 0] == 5  # the same memory
    assert mw.Array.from_dlpack(tensor).shape == (3, 4)
