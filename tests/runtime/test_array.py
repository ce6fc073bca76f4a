"""Distributed arrays: what goes in comes out; what does not fit names argument, dim and rank."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from runtime.programs import CallOf, program

import meshweave
from meshweave.bundle import Port
from meshweave.errors import LayoutError, MeshweaveError, UsageError
from meshweave.layout import Layout, Mesh
from meshweave.runtime import Array, collect, engine, limits, memory, place
from meshweave.runtime.arrays.array import dtype_name
from meshweave.runtime.arrays.elements import narrow, wide

MESH = Mesh.parse("x=2, y=3")
ROWS = Layout.parse("[x, _]")


@pytest.mark.parametrize(
    "text", ["[x, _]", "[_, y]", "[x*y, _]", "[y, x]", "[_, _]", "[x, _] +sum(y)"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
def test_a_scattered_array_has_its_value(text, dtype):
    if dtype == "bool" and "sum" in text:
        return
    value = np.arange(35).reshape(7, 5).astype(dtype)
    array = Array.from_numpy(value, mesh=MESH, layout=text)
    assert np.array_equal(np.asarray(array), value)
    assert array.shape == (7, 5)


def test_bf16_is_taken_from_f32_and_given_back_as_f32():
    value = np.array([1.0, 1.00390625, 1.01171875, -2.5, np.inf, 3.4e38], "f4")
    array = Array.from_numpy(value, mesh=MESH, layout="[x]", dtype="bf16")
    assert array.shards[0].dtype == np.uint16
    right = np.array([1.0, 1.0, 1.015625, -2.5, np.inf, np.inf], "f4")
    assert np.array_equal(array.numpy(), right)
    partial = Array.from_numpy(value[:4], mesh=MESH, layout="[x] +sum(y)", dtype="bf16")
    assert np.array_equal(partial.numpy(), right[:4])


@pytest.mark.parametrize("layout", ["[x, _]", "[_, y]", "[_, y] +sum(x)", "[_, _] +max(y)"])
def test_bits_of_bf16_stay_what_they_are(layout):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    value = np.random.default_rng(0).standard_normal((7, 5)).astype(ml_dtypes.bfloat16)
    for given in (value, value.view(np.uint16)):
        array = Array.from_numpy(given, mesh=MESH, layout=layout, dtype="bf16")
        assert np.array_equal(array.numpy(), value.astype(np.float32))
        again = Array.from_shards(
            array.shards, mesh=MESH, layout=layout, shape=(7, 5), dtype="bf16"
        )
        assert np.array_equal(again.numpy(), array.numpy())


def test_bf16_keeps_nan():
    bits = narrow(np.array([np.nan, -np.nan], "f4"), "bf16")
    assert np.isnan(wide(bits, "bf16")).all()
    payload = np.array([0x7F800001], "u4").view("f4")
    assert np.isnan(wide(narrow(payload, "bf16"), "bf16")).all()


def test_wrong_shards_are_named():
    good = [np.zeros((4, 5), "f4")] * 6
    Array(good, MESH, ROWS, (7, 5), "f32")
    with pytest.raises(MeshweaveError, match=r"5 shards, the mesh \(x=2, y=3\) has 6"):
        Array(good[:5], MESH, ROWS, (7, 5), "f32")
    bad = [*good[:4], np.zeros((3, 5), "f4"), good[5]]
    with pytest.raises(MeshweaveError, match="the shard of rank 4: dim 0 has size 3, 4 is right"):
        Array(bad, MESH, ROWS, (7, 5), "f32")
    with pytest.raises(MeshweaveError, match="rank 0: a shard of dtype float32, float64 is right"):
        Array(good, MESH, ROWS, (7, 5), "f64")
    with pytest.raises(LayoutError, match="has 2 dims"):
        Array(good, MESH, ROWS, (7,), "f32")


def test_dtypes_have_names():
    assert dtype_name(np.zeros(1, "i8")) == "i64"
    assert dtype_name(np.zeros(1, "?")) == "i1"
    with pytest.raises(MeshweaveError, match="arrays of dtype object"):
        dtype_name(np.zeros(1, object))


X = np.arange(24, dtype="f4").reshape(4, 6)


@pytest.mark.parametrize(
    "value",
    [
        X[::-1, ::-2],
        X.T[1:],
        np.asfortranarray(X),
        X[:0],
        np.broadcast_to(X[0], (3, 6)),
        X.tolist(),
    ],
)
def test_arrays_in_any_memory_order_are_laid_out_and_copied(value):
    given = np.asarray(value)
    given.flags.writeable = False
    laid = Array.from_numpy(value, mesh="x=2, y=2", layout="[_*x, y]")
    assert np.array_equal(laid.numpy(), value) and laid.shape == given.shape
    for shard in laid.shards:
        assert shard.flags.writeable and not np.shares_memory(shard, given)
    first, second = np.asfortranarray(X[:2]), X[2:][::-1]
    kept = Array.from_shards([first, second], mesh="x=2", layout="[x, _]", shape=(4, 6))
    assert np.array_equal(kept.numpy(), np.concatenate([first, second]))


NONE = [
    ("from_numpy", X.astype(">f4"), r"dtype >f4: bytes in another machine's order; astype\('float32'\) is right"),
    ("from_numpy", np.array([[None]]), "arrays of dtype object cannot be laid out"),
    ("from_numpy", np.array([["a"]]), "arrays of dtype <U1 cannot be laid out"),
    ("from_numpy", [[1.0, 2.0], [3.0]], "list: .*inhomogeneous"),
    ("from_numpy", np.ma.masked_array(X, X > 3), "a masked array"),
]  # fmt: skip


@pytest.mark.parametrize(("who", "value", "says"), NONE, ids=[str(i) for i in range(len(NONE))])
def test_what_is_no_array_of_numbers_is_refused_by_argument_and_rank(who, value, says):
    with pytest.raises(MeshweaveError, match=f"{who}: {says}"):
        Array.from_numpy(value, mesh="x=2", layout="[x, _]")
    with pytest.raises(MeshweaveError, match=f"rank 0: {says}"):
        Array.from_shards([value, X[:2]], mesh="x=2", layout="[x, _]", shape=(4, 6))


def test_dtypes_of_few_bits_are_laid_out_as_they_are():
    for few in ("int4", "uint4", "float8_e5m2"):
        value = X.astype(getattr(ml_dtypes, few))
        array = Array.from_numpy(value, mesh="x=2", layout="[x, _]")
        assert array.dtype.name == few and array.shards[0].dtype == value.dtype
        assert np.asarray(array).tobytes() == value.tobytes()
    with pytest.raises(MeshweaveError, match="dtype float8_e3m4 cannot be laid out"):
        Array.from_numpy(X.astype(ml_dtypes.float8_e3m4), mesh="x=2", layout="[x, _]")


@pytest.mark.parametrize("dtype", ["f32", "float32", np.float32, np.dtype("f4"), meshweave.float32])
def test_dtypes_are_said_in_any_way(dtype):
    assert Array.from_numpy(X, mesh="", layout="[_, _]", dtype=dtype).dtype_name == "f32"
    shards = [X[:2], X[2:]]
    assert (
        Array.from_shards(shards, mesh="x=2", layout="[x, _]", shape=(4, 6), dtype=dtype).dtype_name
        == "f32"
    )
    with pytest.raises(UsageError, match="dtype 'f8e4': known are f64, f32"):
        Array.from_numpy(X, mesh="", layout="[_, _]", dtype="f8e4")
    with pytest.raises(MeshweaveError, match="from_numpy: dtype float64, float32 is right"):
        Array.from_numpy(X.astype("f8"), mesh="", layout="[_, _]", dtype=dtype)


@pytest.mark.parametrize("shape", [4, (4, 6.0), "46", None])
def test_shapes_that_are_none_are_refused(shape):
    with pytest.raises(UsageError, match=r"from_shards: shape .* integers are right"):
        Array.from_shards([X[:2], X[2:]], mesh="x=2", layout="[x, _]", shape=shape)


def test_numpys_protocol_copies_only_where_it_must():
    alone = Array.from_numpy(X, mesh="", layout="[_, _]")
    assert np.shares_memory(np.asarray(alone, copy=False), alone.shards[0])
    assert not np.shares_memory(np.array(alone), alone.shards[0])
    assert np.asarray(alone, dtype="f8").dtype == np.float64
    assert (alone.ndim, alone.size) == (2, 24)
    spread = Array.from_numpy(X, mesh="x=2", layout="[x, _]")
    for array, dtype in (
        (spread, None),
        (alone, "f8"),
        (Array.from_numpy(X, mesh="", layout="[_*2, _] order(0.1, 0.0, 1)"), None),
    ):
        with pytest.raises(ValueError, match="copy"):
            np.asarray(array, dtype=dtype, copy=False)
        assert np.array_equal(np.asarray(array, dtype=dtype), X)
    total = np.add(spread, 1)
    assert isinstance(total, Array) and total.layout == spread.layout
    assert np.array_equal(total, X + 1)


def doubling():
    """Adds the two halves of an 8x6 array: each rank holds 4x6, the output is replicated."""
    halves = Port("w", "f32", (8, 6), (4, 6), "[x, _]")
    total = Port("r", "f32", (4, 6), (4, 6), "[_, _]")
    call = CallOf("mw_all_reduce_sum_f32", 0, ("input", 0), ("output", 0), (24,))
    return program("x=2", "local", [("x",)], [halves], [total], [call])


@pytest.fixture(scope="module")
def executable():
    return engine("local").load(doubling())


def test_global_arrays_go_in_and_come_out(executable):
    value = np.random.default_rng(1).standard_normal((8, 6)).astype("f4")
    (result,) = collect(executable, executable.run(place(executable, [value])))
    assert np.array_equal(result.numpy(), value[:4] + value[4:])
    laid = Array.from_numpy(value, mesh=executable.mesh, layout=ROWS)
    (again,) = collect(executable, executable.run(place(executable, [laid])))
    assert np.array_equal(again.numpy(), result.numpy())
    assert repr(again).endswith("4x6xf32 [_, _] on (x=2): whole on each of 2 ranks)")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "0 inputs, the program has 1"),
        ([np.zeros((8, 6))], r'input 0 "w": dtype float64, float32 is right'),
        ([np.zeros((8,), "f4")], r'input 0 "w": 1 dims, 2 are right'),
        ([np.zeros((8, 5), "f4")], r'input 0 "w": dim 1 has size 5, 6 is right'),
    ],
)
def test_global_arrays_that_do_not_fit_are_named(executable, values, message):
    with pytest.raises(MeshweaveError, match=message):
        place(executable, values)


def test_arrays_laid_out_otherwise_are_refused(executable):
    columns = Layout.parse("[_, x]")
    other = Array.from_numpy(np.zeros((8, 6), "f4"), mesh=executable.mesh, layout=columns)
    with pytest.raises(MeshweaveError, match=r"f32 \[x, _\] on \(x=2\) is right"):
        place(executable, [other])


GOOD = np.zeros((4, 6), "f4")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([[GOOD]], "inputs for 1 ranks, the program has 2"),
        ([[GOOD], []], "rank 1: 0 inputs, the program has 1"),
        ([[GOOD], [GOOD[:3]]], r'input 0 "w", rank 1: dim 0 has size 3, 4 is right \(its local'),
        ([[GOOD], [GOOD[0]]], 'input 0 "w", rank 1: 1 dims, 2 are right'),
        ([[GOOD.astype("f8")], [GOOD]], 'input 0 "w", rank 0: dtype float64, float32 is right'),
        ([[GOOD], [GOOD.tolist()]], 'input 0 "w", rank 1: a NumPy array is needed, got list'),
    ],
)
def test_local_arrays_that_do_not_fit_are_named(executable, inputs, message):
    with pytest.raises(MeshweaveError, match=message):
        executable.run(inputs)


def test_arrays_that_are_not_contiguous_are_copied(executable):
    value = np.arange(48.0, dtype="f4").reshape(6, 8).T
    result = executable.run([[value[:4]], [value[4:]]])
    assert np.array_equal(result[1][0], value[:4] + value[4:])


def test_a_bound_call_reads_what_its_inputs_hold_then(executable):
    call = executable.bind([[GOOD], [GOOD]])
    call()
    assert not call.outputs[0][0].any()
    for row in call.inputs:
        row[0][...] = 2.0
    call()
    assert (call.outputs[1][0] == 4.0).all()
    GOOD[...] = 0.0


def test_unknown_engines_are_named():
    with pytest.raises(UsageError, match='no engine "tcp"; there are local, mpi'):
        engine("tcp")


@pytest.mark.parametrize("name", ["local", "mpi"])
def test_a_program_that_needs_more_memory_than_there_is_says_so(name):
    huge = Port("w", "f32", (1 << 50,), (1 << 50,), "[_]")
    started = engine(name)
    for outputs, arena in (([], 1 << 62), ([huge], 0)):
        with pytest.raises(MeshweaveError, match=r"the program needs .* TiB .* are free"):
            started.load(program("x=1", name, [], [], outputs, [], arena))
    started.close()


@pytest.mark.parametrize("name", ["local", "mpi"])
def test_memory_that_the_system_does_not_give_is_one_line(name, monkeypatch):
    monkeypatch.setattr(limits, "available_bytes", lambda: None)  # it does not tell
    huge = Port("w", "f32", (1 << 50,), (1 << 50,), "[_]")
    started = engine(name)
    executable = started.load(program("x=1", name, [], [], [huge], []))
    with pytest.raises(MeshweaveError, match=r"no memory for (a buffer|buffers) of 45035996273704"):
        executable.run([[]])
    started.close()


def test_more_ranks_than_an_engine_starts_are_refused():
    for name in ("local", "mpi"):
        most = limits.max_ranks(name)
        limits.check_ranks(name, Mesh(x=most))
        with pytest.raises(MeshweaveError, match=rf"has {most + 1} ranks, engine {name} runs at m"):
            limits.check_ranks(name, Mesh(x=most + 1))


def test_what_is_free_is_told():
    assert 0 < limits.available_bytes() < 1 << 60


def test_an_array_of_one_element_is_a_number():
    one = Array.from_numpy(np.float32([[2.5]]), mesh="x=2", layout="[_, _]")
    assert (one.item(), float(one), int(one), bool(one)) == (2.5, 2.5, 2, True)
    assert not Array.from_numpy(np.array(0), mesh="", layout="[]")
    several = Array.from_numpy(np.arange(3), mesh="x=2", layout="[x]")
    with pytest.raises(UsageError, match=r"the truth of an array of shape \(3,\): mw.any"):
        bool(several)
    for number in (float, int, complex, Array.item):
        with pytest.raises(MeshweaveError, match=r"an array of shape \(3,\) is no single number"):
            number(several)


def test_an_array_of_bf16_may_have_no_dims():
    one = Array.from_numpy(np.float32(1.5), mesh="x=2", layout="[]", dtype="bf16")
    assert one.numpy().shape == () and one.item() == 1.5
    assert np.isnan(wide(narrow(np.array(np.nan, "f4"), "bf16"), "bf16"))


def test_values_are_compared_element_by_element():
    a, b = (Array.from_numpy(np.arange(4, dtype="f4"), mesh="x=2", layout="[x]") for _ in range(2))
    for other in (a, b, np.arange(4.0)):
        assert (a == other).layout == a.layout and (a == other).all()
    assert (a == 1.0).tolist() == [False, True, False, False] and (a != b).tolist() == [False] * 4
    assert a != None  # noqa: E711
    with pytest.raises(TypeError, match="unhashable"):
        hash(a)


@pytest.mark.parametrize("layout", ["[_, _]", "[x, _]", "[_, x]"])
def test_from_numpy_takes_the_memory_of_its_shards_once(layout: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(memory, "_left", {})
    value = np.zeros((512, 512))
    tracemalloc.start()
    array = Array.from_numpy(value, mesh="x=2", layout=layout)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    nbytes = sum(shard.nbytes for shard in array.shards)
    assert nbytes <= most < nbytes + value.nbytes / 4
    assert all(shard.ctypes.data % 64 == 0 for shard in array.shards)
