"""Ops that read windows of tensors that are cut: right on any blocks, and no more bytes than are read."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshweave as mw

Index = tuple[int | slice, ...]


def run(
    f: Callable[..., Any], args: list[Any], mesh: str, layouts: tuple[str, ...], out: str = ""
) -> Any:
    """Run a function and compare it with NumPy; all that it gives must be proven. Returns the compiled program."""
    wanted = f(*args)
    options = {"out_layouts": out} if out else {}
    jitted = mw.jit(f, mesh=mesh, in_layouts=layouts, **options)
    np.testing.assert_array_equal(np.asarray(jitted(*args)), wanted)
    text = str(jitted.explain(*args))
    assert "1 of 1 results proven" in text, text
    return text


def received(text: str) -> int:
    """Return the bytes that the busiest rank receives, as the report says."""
    words = text.replace(",", "").split("busiest rank ")
    return int(words[1].split()[0]) if len(words) > 1 else 0


def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return (np.arange(np.prod(shape)).reshape(shape) * 3 % 101).astype(dtype)


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (np.s_[1:], 1),
        (np.s_[:-1], 0),
        (np.s_[-1:], 1),
        (np.s_[5], 1),
        (np.s_[300:310], 3),
        (np.s_[::2], 125),
    ],
)
def test_a_slice_brings_the_rows_that_it_reads(index: Index, rows: int) -> None:
    text = run(lambda x: x[index], [numbers((1000, 3))], "x=4", ("[x, _]",))
    assert received(text) <= 12 * rows


@pytest.mark.parametrize(
    ("mesh", "shape", "layout", "index", "dtype"),
    [
        ("x=4", (17, 3), "[x, _]", np.s_[3:], np.float64),
        ("x=4", (5, 3), "[x, _]", np.s_[1:], np.int8),
        ("x=4", (7,), "[x]", np.s_[6:], np.float16),
        ("x=4", (3, 2), "[x, _]", np.s_[1, 1:], np.int32),
        ("x=4", (12, 2), "[_*x, _]", np.s_[2:9], np.float32),
        ("x=2,y=2", (9, 7), "[x, y]", np.s_[1:, :-1], np.float32),
        ("x=2,y=2", (9, 7), "[y*x, _]", np.s_[2:8:3, 1:], np.bool_),
        ("x=2,y=2", (9, 7), "[y, _]", np.s_[0:0, 1:], np.float32),
        ("x=2,y=3", (8, 9, 2), "[x, y, _]", np.s_[4:5, 1::4], np.int64),
    ],
)
def test_slices_of_uneven_blocks(
    mesh: str, shape: tuple[int, ...], layout: str, index: Index, dtype: Any
) -> None:
    run(lambda x: x[index], [numbers(shape, dtype)], mesh, (layout,))


def test_an_array_does_not_lie_in_windows() -> None:
    with pytest.raises(mw.MeshweaveError, match="dim 0 is in windows"):
        mw.jit(lambda x: x, mesh="x=2", in_layouts=("[x*_{2,0,3}]",))(numbers((4,)))
