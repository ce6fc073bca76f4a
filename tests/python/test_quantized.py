"""Weights of few bits: within their bounds, whole blocks on each rank, products like those of what they stand for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from strategies import any_layouts

import meshweave as mw
from meshweave.api.quantized import PackedArray
from meshweave.errors import CompileError, LayoutError, MeshweaveError, UsageError
from meshweave.layout import Mesh

W = np.random.default_rng(0).standard_normal((64, 48)).astype("f4")
KINDS = (
    "int8[_, 1]",
    "int8[32, 1]",
    "int8[1, 1]",
    "int8[16, 12]",
    "int8[_, _]",
    "int4[32, 1]",
    "int4[_, 1]",
    "int4[8, 2]",
)


def by_hand(
    value: np.ndarray[Any, Any], kind: str
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What the numbers of each block stand for, and half a scale for each element."""
    text, sizes = kind.rstrip("]").split("[")
    most = 127 if text == "int8" else 7
    rows, columns = (
        n if s.strip() == "_" else int(s) for s, n in zip(sizes.split(","), value.shape)
    )
    near, half = np.empty_like(value), np.empty_like(value)
    for r in range(0, value.shape[0], rows):
        for c in range(0, value.shape[1], columns):
            part = value[r : r + rows, c : c + columns]
            scale = np.abs(part).max() / np.float32(most)
            near[r : r + rows, c : c + columns] = np.rint(part / (scale or 1)) * scale
            half[r : r + rows, c : c + columns] = scale / 2
    return near, half


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_the_nearest(kind: str) -> None:
    value = W.copy()
    value[:, 5] = 0
    q = mw.quantize(value, kind)
    near, half = by_hand(value, kind)
    assert q.shape == (64, 48) and isinstance(q, PackedArray) == (q.bits == 4)
    assert q.values.numpy().nbytes == 64 * 48 * q.bits // 8
    np.testing.assert_array_equal(q.dequantize().numpy(), near)
    assert (np.abs(near - value) <= half * (1 + 1e-5)).all()


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_other_floats(dtype: str) -> None:
    array = mw.Array.from_numpy(
        W.astype({"f64": "f8", "f16": "f2", "bf16": "f4"}[dtype]),
        mesh="",
        layout="[_, _]",
        dtype=dtype,
    )
    near, _ = by_hand(array.numpy().astype("f4"), "int8[32, 1]")
    np.testing.assert_array_equal(mw.quantize(array, "int8[32, 1]").dequantize().numpy(), near)


@settings(max_examples=examples(150))
@given(data=st.data())
def test_any_layout_that_keeps_blocks_whole(data: st.DataObject) -> None:
    """Each rank turns its own part; what it all stands for is the same in every layout, or the layout is refused."""
    mesh = Mesh(x=2, y=2)
    shape = tuple(
        data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))[d] * (4, 2)[d] for d in (0, 1)
    )
    value = np.random.default_rng(1).standard_normal(shape).astype("f4")
    layout = data.draw(any_layouts(mesh, shape))
    assume(not layout.partial)
    kind = data.draw(
        st.sampled_from(
            ["int8[4, 1]", "int8[1, 2]", "int8[_, 1]", "int8[1, 1]", "int4[4, 1]", "int4[1, 2]"]
        )
    )
    array = mw.Array.from_numpy(value, mesh=mesh, layout=layout)
    try:
        q = mw.quantize(array, kind)
    except LayoutError:
        return
    near, _ = by_hand(value, kind)
    np.testing.assert_array_equal(q.dequantize().numpy(), near)
    np.testing.assert_array_equal(gathered(q), near)


def gathered(q: Any) -> np.ndarray[Any, Any]:
    """What the global numbers and scales stand for."""
    numbers, scales = q.values.numpy(), q.scales.numpy()
    if q.bits == 4:
        numbers = np.stack([numbers << 4 >> 4, numbers >> 4], -1).reshape(q.shape)
    return numbers * scales.repeat(q.blocks[0], 0).repeat(q.blocks[1], 1)


@sampled(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 3, 20])
@pytest.mark.parametrize(
    "layout", ["[_, _]", "[_, y]", "[x, _]", "[x*y, _]", "[x, y]", "[_, x{32,16}]"]
)
def test_products(kind: str, rows: int, layout: str) -> None:
    x = np.random.default_rng(2).standard_normal((rows, 64)).astype("f4")
    try:
        q = mw.quantize(mw.Array.from_numpy(W, mesh="x=2, y=2", layout=layout), kind)
    except LayoutError:
        assert layout != "[_, _]"
        return
    near, _ = by_hand(W, kind)
    y = x @ q
    assert y.dtype_name == "f32"
    np.testing.assert_allclose(np.asarray(y), x @ near, atol=2e-4)


@pytest.mark.parametrize(("dtype", "rtol"), [("bf16", 2e-2), ("f16", 4e-3)])
def test_products_have_the_dtype_of_the_rows(dtype: str, rtol: float) -> None:
    x = mw.Array.from_numpy(
        W.T[:3].astype("f4" if dtype == "bf16" else "f2"), mesh="", layout="[_, _]", dtype=dtype
    )
    q = mw.quantize(W, "int8[32, 1]")
    y = x_at(x, q)
    np.testing.assert_array_equal((x @ q).numpy(), y.numpy())
    assert y.dtype_name == dtype
    np.testing.assert_allclose(
        y.numpy().astype("f4"), x.numpy().astype("f4") @ q.dequantize().numpy(), rtol=rtol, atol=0.1
    )


def x_at(x: Any, q: Any) -> mw.Array:
    y: mw.Array = mw.jit(lambda x, q: x @ q)(x, q)
    return y


def test_a_function_takes_them_as_an_argument() -> None:
    """Columns over ranks need no collective, rows one sum of the result; more dims in front are rows."""

    @mw.jit(mesh="tp=2")
    def mlp(x: Any, up: Any, down: Any) -> Any:
        return mw.maximum(x @ up, 0.0) @ down

    up = mw.quantize(mw.Array.from_numpy(W, mesh="tp=2", layout="[_, tp]"), "int8[_, 1]")
    down = mw.quantize(mw.Array.from_numpy(W.T, mesh="tp=2", layout="[tp, _]"), "int8[24, 1]")
    x = np.random.default_rng(3).standard_normal((2, 2, 64)).astype("f4")
    right = np.maximum(x @ up.dequantize().numpy(), 0) @ down.dequantize().numpy()
    np.testing.assert_allclose(np.asarray(mlp(x, up, down)), right, atol=1e-3)
    (program,) = mlp._programs.values()
    assert {c.op for c in program.program.bundle.manifest.collectives} == {"all_reduce"}


def test_dequantize_inside() -> None:
    q = mw.quantize(W, "int4[32, 1]")
    inside = mw.jit(lambda q: q.dequantize())
    np.testing.assert_array_equal(np.asarray(inside(q)), q.dequantize().numpy())


@pytest.mark.parametrize(
    ("kind", "rows"), [("int8[_, 1]", 16), ("int8[32, 1]", 4), ("int4[32, 1]", 4)]
)
def test_few_rows_make_no_copy_of_the_weights(kind: str, rows: int) -> None:
    w = np.random.default_rng(4).standard_normal((512, 1024)).astype("f4")
    q, x = mw.quantize(w, kind), np.ones((rows, 512), "f4")
    compiled = mw.jit(lambda x, q: x @ q).lower(x, q).compile()
    assert compiled.program.bundle.manifest.arena_bytes < w.nbytes / 2


def test_they_are_saved_and_loaded(tmp_path: Path) -> None:
    tree = {
        "a": mw.quantize(mw.Array.from_numpy(W, mesh="x=2", layout="[_, x]"), "int8[32, 1]"),
        "b": mw.quantize(W, "int4[_, 1]"),
    }
    mw.save(tree, tmp_path / "w")
    again = mw.load(tmp_path / "w")
    assert type(again["a"]) is type(tree["a"]) and type(again["b"]) is PackedArray
    for name in tree:
        np.testing.assert_array_equal(
            again[name].dequantize().numpy(), tree[name].dequantize().numpy()
        )
    assert str(again["a"].values.layout) == str(again["a"].scales.layout) == "[_, x]"


@pytest.mark.parametrize(
    ("kind", "layout", "error", "words"),
    [
        ("int8[32, 1]", "[x*y, _]", LayoutError, "cuts blocks of 32 along dim 0 of size 64: rank 0 holds 16 of it"),
        ("int8[_, 1]", "[x, _]", LayoutError, "cuts blocks of 64 along dim 0 of size 64: rank 0 holds 32"),
        ("int8[1, 16]", "[_, x]", LayoutError, "cuts blocks of 16 along dim 1 of size 48: rank 0 holds 24"),
        ("int8[4, 1]", "[_*x, _]", LayoutError, "cuts blocks of 4"),
        ("int4[4, 1]", "[_, _*x]", LayoutError, "cuts blocks of 2 along dim 1"),
        ("int8[7, 1]", "[_, _]", UsageError, "dim 0 has size 64, no multiple of 7"),
        ("int8[1]", "[_, _]", UsageError, "1 dims, the array has 2"),
        ("int3[1, 1]", "[_, _]", UsageError, "kind 'int3[1, 1]': \"int8[_, 1]\""),
        ("int8[0, 1]", "[_, _]", UsageError, "kind 'int8[0, 1]'"),
        (8, "[_, _]", UsageError, "kind 8"),
        ("int8[1, 1]", "[_, _] +sum(x)", UsageError, "a matrix of floats without pending reductions"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    kind: Any, layout: str, error: type[MeshweaveError], words: str
) -> None:
    array = mw.Array.from_numpy(W, mesh="x=2, y=2", layout=layout)
    with pytest.raises(error) as raised:
        mw.quantize(array, kind)
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_wrong_operands_are_refused() -> None:
    with pytest.raises(UsageError, match=r"i32 .64, 48. .*a matrix of floats"):
        mw.quantize(W.astype("i4"), "int8[1, 1]")
    with pytest.raises(UsageError, match="the last dim has odd size 3"):
        mw.quantize(W[:, :3], "int4[1, 1]")
    with pytest.raises(MeshweaveError, match="rank 0 holds numbers that are not finite"):
        mw.quantize(W * np.float32("inf"), "int8[1, 1]")
    q = mw.quantize(W, "int8[1, 1]")
    with pytest.raises(CompileError, match=r"matmul: \[2, 3\] @ \[64, 48\]: 64 elements in a row"):
        np.ones((2, 3), "f4") @ q
    with pytest.raises(CompileError, match="i32 @ a QuantizedArray: floats are right"):
        np.ones((2, 64), "i4") @ q


@pytest.mark.parametrize("shape", [(601, 257), (1030, 128), (129, 1025)])
def test_products_of_one_row_with_weights_that_no_cache_keeps(shape: tuple[int, int]) -> None:
    """Narrow ones are read a few steps of depth at a time, wide ones more; sizes divide by neither."""
    rng = np.random.default_rng(6)
    w, x = rng.standard_normal(shape).astype("f4"), rng.standard_normal((1, shape[0])).astype("f4")
    q = mw.quantize(w, "int8[_, 1]")
    want = x.astype("f8") @ q.dequantize().numpy().astype("f8")
    np.testing.assert_allclose(x @ q, want, atol=1e-5 * np.abs(want).max(), rtol=0)
