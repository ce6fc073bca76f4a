"""mw.Array and mw.redistribute: what goes in comes out, in memory as the layout says; what does not fit is named."""

from math import prod
from typing import Any

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import any_layouts, meshes, shapes

import meshweave as mw
from meshweave.abi import DTYPES
from meshweave.api import redistribution
from meshweave.api.redistribution import _renumbered
from meshweave.bundle import numpy_dtype
from meshweave.errors import LayoutError, MeshweaveError, UsageError
from meshweave.layout import Layout, Mesh, digits
from meshweave.layout.digits import gather_at, scatter

MESH = Mesh(x=2, y=2)
VALUE = np.arange(48, dtype="f4").reshape(8, 6)


@pytest.fixture(autouse=True, scope="module")
def _nothing_stays_loaded():
    yield
    redistribution.clear()


def test_shards_lie_in_memory_order():
    array = mw.Array.from_numpy(np.arange(6), mesh="x=1", layout="[2*_] order(0.1, 0.0)")
    assert array.shards[0].reshape(-1).tolist() == [0, 3, 1, 4, 2, 5]
    columns = mw.Array.from_numpy(VALUE, mesh=MESH, layout="[_, x] order(1, 0)")
    assert columns.shards[0].shape == (3, 8)
    assert np.array_equal(columns.shards[2], VALUE[:, 3:].T)
    assert np.array_equal(np.asarray(columns), VALUE)


def test_an_array_of_shards_has_their_value():
    rows = mw.Array.from_shards([VALUE[:4], VALUE[4:]], mesh="x=2", layout="[x, _]", shape=(8, 6))
    assert np.array_equal(rows.numpy(), VALUE)
    assert repr(rows).endswith("8x6xf32 [x, _] on (x=2): rank 0 [0:4, :], rank 1 [4:8, :])")
    bits = mw.Array.from_shards(
        [np.array([0x3F80, 0x4000], "u2")], mesh="x=1", layout="[_]", shape=(2,), dtype="bf16"
    )
    assert bits.numpy().tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("shards", "more", "message"),
    [
        ([VALUE[:4]], {}, r"1 shards, the mesh \(x=2\) has 2"),
        ([VALUE[:4], VALUE[4:7]], {}, "the shard of rank 1: dim 0 has size 3, 4 is right"),
        ([VALUE[:4], VALUE[4]], {}, "the shard of rank 1: 1 dims, 2 are right"),
        ([VALUE[:4], VALUE[4:].astype("f8")], {}, "rank 1: dtype float64, float32 is right"),
        ([], {}, "no shards, and no dtype either"),
        ([VALUE[:4]] * 2, {"layout": "[z, _]"}, 'no axis "z"'),
        ([VALUE[:4]] * 2, {"layout": 7}, "layout: text"),
        ([VALUE[:4]] * 2, {"mesh": 7}, "mesh: text or a Mesh is needed, got int"),
    ],
)
def test_shards_that_do_not_fit_are_named(shards, more, message):
    arguments = {"mesh": "x=2", "layout": "[x, _]", "shape": (8, 6), **more}
    with pytest.raises(MeshweaveError, match=message) as caught:
        mw.Array.from_shards(shards, **arguments)
    assert "\n" not in str(caught.value)


@sampled(1)
@pytest.mark.parametrize(
    "target",
    [
        "[_, x]",
        "[_*x, _]",
        "[_*x*2, y] order(1, 0)",
        "[x:(1)2, _]",
        "[x{3,5}, y]",
        "[x*y, _] uneven(nested)",
        "[x*y*3*_, _] uneven(nested)",
        "[y, _] +sum(x)",
        "[y, _] +avg(x)",
        "[_, _] +max(x) +prod(y)",
    ],
)
def test_an_array_takes_any_layout_and_keeps_its_value(target):
    array = mw.Array.from_numpy(VALUE, mesh=MESH, layout="[x, _]")
    for _ in ("piece by piece", "compiled"):
        moved = mw.redistribute(array, target)
        assert moved.layout == Layout.parse(target)
        assert (moved.shape, moved.dtype, moved.mesh) == (array.shape, array.dtype, array.mesh)
        assert np.array_equal(moved.numpy(), VALUE)
        assert np.array_equal(moved.redistribute("[_, y]").numpy(), VALUE)


@sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_moves(dtype):
    kind = "f4" if dtype == "bf16" else numpy_dtype(dtype)
    value = (np.arange(35) % 3).reshape(7, 5).astype(kind)
    array = mw.Array.from_numpy(value, mesh=MESH, layout="[x, _]", dtype=dtype)
    for target in ("[_*y, x] order(1, 0)", "[_, y] +max(x)", "[x{3,4}, _]"):
        for _ in ("piece by piece", "compiled"):
            assert np.array_equal(array.redistribute(target).numpy(), value), target


def test_specs_and_layouts_name_layouts_too():
    array = mw.Array.from_numpy(VALUE, mesh=MESH, layout=mw.P("x", None))
    for target in (mw.P(None, "y"), Layout.parse("[_, y]")):
        assert str(array.redistribute(target).layout) == "[_, y]"


def test_processes_move_arrays_too():
    array = mw.Array.from_numpy(VALUE, mesh="x=2", layout="[x, _]")
    for _ in range(2):
        assert np.array_equal(array.redistribute("[_, _*x]", engine="mpi").numpy(), VALUE)


def test_another_spelling_moves_nothing():
    array = mw.Array.from_numpy(VALUE, mesh=MESH, layout="[x, _]")
    same = array.redistribute("[x:(1)2, _]")
    assert all(a is b for a, b in zip(array.shards, same.shards, strict=True))


def counted(monkeypatch) -> list:
    """What is compiled from now on; nothing is loaded or known yet."""
    redistribution.clear()
    monkeypatch.setattr(redistribution, "_ONCE", redistribution._Once())
    compiled, count = redistribution.compiled, []
    monkeypatch.setattr(redistribution, "compiled", lambda m: count.append(m) or compiled(m))
    return count


def test_the_second_move_of_a_kind_is_compiled_and_no_later_one(monkeypatch):
    count = counted(monkeypatch)
    for start in range(4):
        array = mw.Array.from_numpy(VALUE + start, mesh=MESH, layout="[x, _]")
        assert np.array_equal(array.redistribute("[_*y, x]").numpy(), VALUE + start)
        assert len(count) == min(start, 1)
    for size in range(2, 2 + redistribution.KEPT):
        other = mw.Array.from_numpy(np.zeros((2, size), "f4"), mesh="x=2", layout="[x, _]")
        for _ in range(2):
            other.redistribute("[_, _]")
    array.redistribute("[_*y, x]")
    assert len(count) == 2 + redistribution.KEPT


def test_large_moves_reductions_and_those_between_processes_are_compiled_at_once(monkeypatch):
    count = counted(monkeypatch)
    large = np.zeros((redistribution.REPLAYED // 4, 2), "f4")
    mw.Array.from_numpy(large, mesh="x=2", layout="[x, _]").redistribute("[_, x]")
    partial = mw.Array.from_numpy(VALUE, mesh="x=2", layout="[_, _] +sum(x)")
    assert np.array_equal(partial.redistribute("[x, _]").numpy(), VALUE)
    assert len(count) == 2


@pytest.mark.parametrize(
    ("array", "layout", "engine", "kind", "message"),
    [
        (None, "[x]", "local", LayoutError, "has 1 dims, the tensor 8x6 has 2"),
        (None, "[q, _]", "local", LayoutError, 'no axis "q"'),
        (None, "[x", "local", LayoutError, "column"),
        (None, None, "local", UsageError, "layout: text"),
        (None, "[_, x]", "gpu", UsageError, 'no engine "gpu"; there are local, mpi'),
        (VALUE, "[_, x]", "local", UsageError, "redistribute: .*Array is needed, got ndarray"),
    ],
)
def test_what_cannot_be_moved_is_refused(array, layout, engine, kind, message):
    if array is None:
        array = mw.Array.from_numpy(VALUE, mesh=MESH, layout="[x, _]")
    with pytest.raises(kind, match=message) as caught:
        mw.redistribute(array, layout, engine=engine)
    assert "\n" not in str(caught.value)


@settings(max_examples=examples(60))
@given(st.data())
def test_an_array_goes_to_another_mesh(data: st.DataObject) -> None:
    """Of any size, from and to any layouts; each rank reads what it will hold, and no more."""
    shape = data.draw(shapes(data.draw(st.integers(0, 3))))
    source, target = data.draw(meshes()), data.draw(meshes())
    before, after = (data.draw(any_layouts(mesh, shape)) for mesh in (source, target))
    value = np.random.default_rng(0).integers(-4, 5, shape).astype("f4")
    array = mw.Array.from_numpy(value, mesh=source, layout=before)
    read = []

    def counting(*arguments: Any) -> Any:
        found = gather_at(*arguments)
        read.append(found.size)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "gather_at", counting)
        moved = mw.redistribute(array, after, mesh=target)
    assert (moved.mesh, moved.layout) == (target, after)
    assert np.array_equal(moved.numpy(), value)
    assert all(n <= prod(after.local_shape(target, shape)) for n in read)


@settings(max_examples=examples(60))
@given(st.data())
def test_a_plan_takes_an_array_to_other_axes(data: st.DataObject) -> None:
    """As in a job, whose ranks are the same ones whatever the axes."""
    source, target = data.draw(meshes()), data.draw(meshes())
    if source.nranks != target.nranks:
        target = Mesh(p=source.nranks)
    shape = data.draw(shapes(data.draw(st.integers(0, 3))))
    before, after = (data.draw(any_layouts(mesh, shape)) for mesh in (source, target))
    value = np.random.default_rng(0).integers(-4, 5, shape).astype("f4")
    array = mw.Array.from_numpy(value, mesh=source, layout=before)
    moved = _renumbered(array, after, target, "local")
    assert (moved.mesh, moved.layout) == (target, after)
    assert np.array_equal(moved.numpy(), value)
    if not after.partial:
        for shard, wanted in zip(moved.shards, scatter(value, target, after)):
            assert shard.shape == wanted.shape


def test_processes_take_an_array_to_other_axes() -> None:
    array = mw.Array.from_numpy(VALUE, mesh="x=2, y=2", layout="[x, _] +sum(y)")
    moved = mw.redistribute(array, "[_, z]", mesh="z=4", engine="mpi")
    assert np.array_equal(moved.numpy(), VALUE)
    assert np.array_equal(moved.redistribute("[z, _]", mesh="z=3", engine="mpi").numpy(), VALUE)


def test_bf16_sums_go_to_another_mesh() -> None:
    array = mw.Array.from_numpy(VALUE, mesh="x=2", layout="[_, x]", dtype="bf16")
    partial = mw.redistribute(array, "[_, _] +sum(x)")
    served = mw.redistribute(partial, "[y*_, _]", mesh="y=3")
    assert served.dtype_name == "bf16" and np.array_equal(served.numpy(), VALUE)
    assert np.array_equal(partial.redistribute("[_, y] +sum(x)", mesh="x=2, y=4").numpy(), VALUE)


@pytest.mark.parametrize(
    ("more", "error", "message"),
    [
        ({"layout": "[x, _]", "mesh": "z=3"}, LayoutError, 'no axis "x"'),
        ({"layout": "[z, _]", "mesh": "z=N"}, UsageError, "has no axes of known sizes"),
        ({"layout": "[_, _]", "mesh": "auto=2"}, UsageError, "has no axes of known sizes"),
        ({"layout": "[z, _]", "mesh": "z=3", "engine": "tcp"}, UsageError, "tcp"),
        ({"layout": "[z, _]", "mesh": 7}, UsageError, "mesh: text or a Mesh is needed, got int"),
    ],
)
def test_a_mesh_that_an_array_cannot_go_to_is_named(
    more: dict[str, Any], error: type[MeshweaveError], message: str
) -> None:
    array = mw.Array.from_numpy(VALUE, mesh="x=2", layout="[x, _]")
    with pytest.raises(error, match=message):
        mw.redistribute(array, **more)


def test_a_traced_value_stays_on_its_mesh() -> None:
    f = mw.jit(lambda a: mw.redistribute(a, "[_, _]", mesh="y=3"), mesh="x=2")
    with pytest.raises(MeshweaveError, match="a program has one mesh"):
        f(VALUE)
