"""Sorts and selections: by the places of the elements in order, of every type, along any dim, with ties and NaN."""

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scatters import status

import meshweave as mw
from meshweave.api.program import build
from meshweave.ir import sorting
from meshweave.runtime.mpi.engine import MpiEngine
from meshweave.transforms.partitioning import orders
from tests.executed import on, partitioned, run

FLOATS, INTEGERS = ("float32", "float64", "float16"), ("int8", "int32", "int64", "bool")


def sample(shape, dtype, seed):
    """Elements with many ties, and among floats NaN, infinities and both zeros."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-9, 9, shape).astype(dtype)
    if dtype not in FLOATS:
        return x
    odd = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7, -3.5], dtype)
    return np.where(rng.random(shape) < 0.3, rng.choice(odd, shape), x)


def first(x, axis, count, descending):
    """The places of the first elements in order: stable, NaNs the largest."""
    if descending:
        nan = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
        wide = x.astype(np.float64)
        places = np.lexsort((np.where(nan, 0, -wide), ~nan), axis=axis)
    else:
        places = np.argsort(x, axis=axis, kind="stable")
    return np.take(places, range(count), axis=axis)


@settings(max_examples=examples(14), deadline=None)
@given(
    shape=st.sampled_from([(1,), (0, 3), (9,), (5, 7), (3, 130), (2, 3, 40), (40, 6), (2, 900)]),
    dtype=st.sampled_from([*FLOATS, *INTEGERS]),
    axis=st.integers(0, 2),
    descending=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_places_are_those_of_numpy(shape, dtype, axis, descending, seed):
    x, axis = sample(shape, dtype, seed), axis % len(shape)
    for count in {x.shape[axis], min(3, x.shape[axis])}:
        pick = mw.jit(lambda x, k=count: mw.top_k(x, k, axis=axis, largest=descending))
        values, places = map(np.asarray, pick(x))
        wanted = first(x, axis, count, descending)
        np.testing.assert_array_equal(places, wanted)
        np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, axis))


@sampled(5)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", ["up", "down", "same", "random"])
@pytest.mark.parametrize("count", [1, 20, 700])
def test_few_of_long_rows_whatever_their_form(dtype, form, count):
    x = np.sort(np.random.default_rng(0).standard_normal((2, 5003)).astype(dtype), axis=1)
    x = {"up": x, "down": -x, "same": np.zeros_like(x), "random": np.sin(x * 1e6)}[form]
    _, places = mw.jit(lambda x: mw.top_k(x, count))(x)
    np.testing.assert_array_equal(places, first(x, 1, count, True))


@pytest.mark.parametrize("layout", ["[x, _]", "[_, x]"])
def test_rows_and_columns_on_ranks_are_proven(layout):
    source = f"""
func.func public @main(%a: tensor<7x10xf32> {{{layout}}}) -> (tensor<7x3xi32> {{[x, _]}}) {{
  %0 = "mw.order"(%a) {{dim = 1 : i64, descending, total}} : (tensor<7x10xf32>) -> tensor<7x3xi32>
  return %0 : tensor<7x3xi32>
}}"""
    x = np.random.default_rng(0).standard_normal((7, 10)).astype(np.float32)
    certificate = build(on("x=3", source)).manifest.certificate
    assert certificate.proven == ("@main result 0",)
    with mw.compile(on("x=3", source), timeout=30) as program:
        np.testing.assert_array_equal(program(x)[0], first(x, 1, 3, True))


def test_another_order_is_not_proven():
    text = """
func.func public @main(%a: tensor<8xf32> {[x]}) -> (tensor<2xi32> {[_]}) {
  %0 = "mw.order"(%a) {dim = 0 : i64} : (tensor<8xf32>) -> tensor<2xi32>
  return %0 : tensor<2xi32>
}"""
    text = on("x=1", text)
    assert mw.verify(text, text).status == 0
    assert mw.verify(text, text.replace("{dim = 0 : i64}", "{dim = 0 : i64, total}")).status != 0


def test_jax_sorts_and_selections():
    jax = pytest.importorskip("jax")
    jnp, lax = jax.numpy, jax.lax
    x = sample((3, 300), "float32", 1)
    for function in (
        lambda x: lax.top_k(x, 7),
        lambda x: lax.top_k(x, 200),
        lambda x: (jnp.sort(x, axis=0), jnp.argsort(x, axis=1)),
        lambda x: jnp.argsort(x, axis=1, descending=True),
        lambda x: lax.sort((x, x * 2, -x), dimension=1, num_keys=1),
        lambda x: lax.sort((jnp.nan_to_num(x), x), dimension=1, num_keys=2),
    ):
        _same(jax, function, x)
    for dtype in ("uint8", "uint32", "int8", "float16"):
        values = (np.abs(np.nan_to_num(x, posinf=9, neginf=8)) * 20).astype(dtype)
        _same(jax, lambda x: (*lax.top_k(x, 5), jnp.sort(x, axis=0)), values)
    finite = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    _same(jax, jax.grad(lambda x: (lax.top_k(x, 3)[0] ** 2).sum()), finite)
    _same(jax, jax.grad(lambda x: (jnp.sort(x)[:, ::2] ** 2).sum()), finite)


def test_selections_that_may_be_about_right_are_exact():
    jax = pytest.importorskip("jax")
    jnp, lax = jax.numpy, jax.lax
    x = np.random.default_rng(4).standard_normal((5, 40)).astype(np.float32)
    x[:, 7] = x[:, 3]  # the first of equals
    selected = (lax.approx_max_k, lax.approx_min_k)

    def all_of(x):
        return [select(x, 3, reduction_dimension=dim) for select in selected for dim in (0, -1)]

    def loss(x):
        return sum(jnp.sin(values).sum() for values, _ in all_of(x))

    wanted = jax.tree.leaves((jax.jit(all_of)(x), jax.jit(jax.grad(loss))(x)))
    for mesh, layout in ((None, None), ("x=2", "[x, _]"), ("x=3", "[_, x]")):
        made = mw.jax.jit(
            lambda x: (all_of(x), jax.grad(loss)(x)), mesh=mesh, in_shardings=mesh and (layout,)
        )
        for ours, theirs in zip(jax.tree.leaves(made(x)), wanted, strict=True):
            np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-5, atol=1e-6)


def _same(jax, function, x):
    wanted = jax.tree.leaves(jax.jit(function)(x))
    with mw.from_jax(function, x) as program:
        made = jax.tree.leaves(program(x))
    for got, want in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


def test_gpus_sort_in_passes():
    source = """
func.func public @main(%a: tensor<3x9xf32> {[_, _]}) -> (tensor<3x4xi32> {[_, _]}) {
  %0 = "mw.order"(%a) {dim = 1 : i64} : (tensor<3x9xf32>) -> tensor<3x4xi32>
  return %0 : tensor<3x4xi32>
}"""
    x = sample((3, 9), "float32", 0)
    with mw.compile(on("x=1", source), engine="emulate", timeout=60) as program:
        np.testing.assert_array_equal(program(x)[0], first(x, 1, 4, False))


def places(shape: tuple[int, int], count: int, layouts: tuple[str, str], how: str) -> str:
    """Where the first `count` of each row of %t are."""
    (rows, columns), (t, r) = shape, layouts
    return f"""
func.func @main(%t: tensor<{rows}x{columns}xf32> {{{t}}}) -> (tensor<{rows}x{count}xi32> {{{r}}}) {{
  %0 = "mw.order"(%t) {{dim = 1 : i64{how}}} : (tensor<{rows}x{columns}xf32>) -> tensor<{rows}x{count}xi32>
  return %0 : tensor<{rows}x{count}xi32>
}}
"""


ROWS_CUT = {
    "x=4": [("[_, x]", "[_, _]"), ("[_, x]", "[_, x]")],
    "x=2, y=3": [("[_, y*x]", "[_, _]"), ("[x, y]", "[x, _]"), ("[_, x*y]", "[y, x]")],
}


@sampled(2)
@pytest.mark.parametrize("how", ["", ", descending", ", descending, total"])
@pytest.mark.parametrize("mesh", ROWS_CUT)
def test_few_in_order_of_rows_that_are_cut(mesh: str, how: str) -> None:
    """Each rank finds its own first ones, of which all find the first: among equal ones those of the first ranks."""
    for number, layouts in enumerate(ROWS_CUT[mesh]):
        shape, count = [((5, 48), 3), ((3, 48), 6), ((1, 96), 1)][number]
        x = np.random.default_rng(count).integers(-2, 3, shape).astype(np.float32)
        keys = -x if "descending" in how else x
        if "total" not in how:
            x[0, ::7] = np.nan
            keys = np.where(np.isnan(x), -9 if "descending" in how else 9, keys)
        else:
            x[0, ::7], x[0, 1::7] = 0.0, -0.0
            keys = -(x + np.where(np.signbit(x), -0.5, 0) * (x == 0))
        text = places(shape, count, layouts, how)
        assert partitioned(mesh, text).count("mw.order") == 2
        (made,) = run(mesh, text, x)
        np.testing.assert_array_equal(made, np.argsort(keys, 1, kind="stable")[:, :count])


def test_what_ranks_find_first_is_proven_and_a_wrong_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = places((5, 32), 3, ("[_, x]", "[_, _]"), ", descending")
    local = partitioned("x=2", text)
    assert local.count("mw.order") == 2
    assert status(on("x=2", text), local) == 0
    once, last = local.index("descending, "), local.rindex("descending, ")
    gone = len("descending, ")
    wrongs = [
        local.replace("arith.constant 16 : index", "arith.constant 15 : index"),
        local.replace("arith.constant 5 : index", "arith.constant 4 : index"),
        local.replace("arith.addi", "arith.subi"),
        local.replace("arith.maxsi", "arith.minsi", 1),
        local[:once] + local[once + gone :],
        local[:last] + local[last + gone :],
        local.replace("descending, ", ""),
    ]
    # Two of each rank are not enough for the first three.
    monkeypatch.setattr(orders, "min", lambda a, b: min(a, b) - 1, raising=False)
    wrongs.append(partitioned("x=2", text))
    for wrong in wrongs:
        assert wrong != local and status(on("x=2", text), wrong) != 0


def sorts(shape, dim, layouts, how="", dtype="f32"):
    """Elements in order along a dim, those of another tensor moved along, and the places where they were."""
    t, r = layouts
    x, other, places = ("x".join(map(str, shape)) + f"x{d}" for d in (dtype, "f64", "i32"))
    return f"""
func.func @main(%t: tensor<{x}> {{{t}}}, %v: tensor<{other}> {{{t}}})
    -> (tensor<{x}> {{{r}}}, tensor<{other}> {{{r}}}, tensor<{places}> {{{r}}}) {{
  %0:3 = "mw.sort"(%t, %v) {{dim = {dim} : i64{how}}}
    : (tensor<{x}>, tensor<{other}>) -> (tensor<{x}>, tensor<{other}>, tensor<{places}>)
  return %0#0, %0#1, %0#2 : tensor<{x}>, tensor<{other}>, tensor<{places}>
}}
"""


DTYPES = {
    "f32": "float32",
    "f16": "float16",
    "f64": "float64",
    "i8": "int8",
    "i64": "int64",
    "i1": "bool",
}
CUT = {
    "x=2": [((8,), 0, ("[x]", "[x]"))],
    "x=3": [((9, 4), 0, ("[x, _]", "[x, _]")), ((7, 2), 0, ("[x, _]", "[x, _]"))],
    "x=4": [
        ((4,), 0, ("[x]", "[x]")), ((5,), 0, ("[x]", "[x]")), ((2, 403), 1, ("[_, x]", "[_, _]")),
        ((2,), 0, ("[x]", "[x]")),
    ],
    "x=2, y=2": [((3, 8, 2), 1, ("[_, y*x, _]", "[_, y*x, _]")), ((3, 5), 1, ("[y, x]", "[y, x]"))],
}  # fmt: skip


@sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mesh", CUT)
def test_a_dim_that_is_cut_is_sorted_where_it_lies(mesh: str, dtype: str) -> None:
    """Each rank receives what is in its part of the result, and no more; equal elements keep their order."""
    for number, (shape, dim, layouts) in enumerate(CUT[mesh]):
        how = ", descending" * ((number + len(dtype)) % 2)
        text = sorts(shape, dim, layouts, how, dtype)
        local = partitioned(mesh, text)
        assert local.count("dist.merge") == 1 and "mw.sort" not in local
        assert status(on(mesh, text), local) == 0
        x, other = sample(shape, DTYPES[dtype], len(shape)), np.random.default_rng(1).random(shape)
        wanted = first(x, dim, shape[dim], bool(how))
        made, moved, places = run(mesh, text, x, other)
        np.testing.assert_array_equal(places, wanted)
        np.testing.assert_array_equal(made, np.take_along_axis(x, wanted, dim))
        np.testing.assert_array_equal(
            np.signbit(made), np.signbit(np.take_along_axis(x, wanted, dim))
        )
        np.testing.assert_array_equal(moved, np.take_along_axis(other, wanted, dim))


@pytest.mark.parametrize("window", [True, False])
def test_processes_merge_through_memory_and_by_messages(window: bool) -> None:
    how = ", descending, total"
    x = sample((4, 60), "float32", 3)
    bits = x.view(np.int32)
    keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits).astype(np.int64)
    wanted = np.argsort(-keys, 1, kind="stable")
    text = on("x=3", sorts((4, 60), 1, ("[_, x]", "[_, x]"), how))
    with mw.Program(build(text, engine="mpi"), MpiEngine(60.0, window=window)) as program:
        made, _, places = program(x, x.astype(np.float64))
    np.testing.assert_array_equal(places, wanted)
    np.testing.assert_array_equal(made.view(np.int32), np.take_along_axis(bits, wanted, 1))


def test_gpus_gather_what_they_sort() -> None:
    x = sample((2, 8), "float32", 3)
    text = on("x=2", sorts((2, 8), 1, ("[_, x]", "[_, x]")))
    with mw.compile(text, engine="emulate", timeout=60) as program:
        np.testing.assert_array_equal(program(x, x.astype(np.float64))[2], first(x, 1, 8, False))


def test_what_ranks_merge_is_proven_and_a_wrong_one_is_not() -> None:
    text = sorts((5, 8), 1, ("[_, x]", "[_, x]"), ", descending")
    local = partitioned("x=2", text)
    assert status(on("x=2", text), local) == 0
    merge, order = '{axes = ["x"], descending, dim', "{descending, dim = 1 : i64}"
    wrongs = {
        "arith.addi": "arith.subi",
        "arith.constant 4 : index": "arith.constant 3 : index",
        merge: '{axes = ["x"], dim',
        merge + " ": '{axes = ["x"], descending, total, dim ',
        order: "{dim = 1 : i64}",
        "%arg1[%11, %12]": "%arg1[%12, %11]",
        "(%2, %4, %9)": "(%2, %arg1, %9)",
        "(%2, %4, %9) ": "(%arg0, %4, %9) ",
    }
    for right, wrong in wrongs.items():
        assert right in local and status(on("x=2", text), local.replace(right, wrong)) != 0
    text = sorts((5, 7), 1, ("[_, x]", "[_, x]"))
    local = partitioned("x=2", text)
    for wrong in (
        local.replace("0x7FC00000", "0x7F800000"),
        local.replace("%c7 = arith.constant 7", "%c7 = arith.constant 6"),
    ):
        assert wrong != local and status(on("x=2", text), wrong) != 0


def test_gradients_of_a_sort_move_as_much() -> None:
    x, w = np.random.default_rng(0).random((2, 2, 12), np.float32)
    w[0] = np.sort(w[0])

    def loss(x, w):
        return (mw.sort(x, axis=1, descending=True) * w).sum()

    f = mw.jit(mw.grad(loss), mesh="x=4", in_layouts=("[_, x]", "[_, x]"), out_layouts="[_, x]")
    wanted = np.take_along_axis(w, np.argsort(np.argsort(-x, 1), 1), 1)
    np.testing.assert_array_equal(np.asarray(f(x, w)), wanted)
    moves = f.lower(x, w).compile().program.bundle.manifest.collectives
    assert [(c.op, c.bytes) for c in moves] == [("merge", 2 * 3 * 8)] * 2
    np.testing.assert_array_equal(np.asarray(mw.jit(mw.grad(loss))(x, w)), wanted)
    each = mw.jit(mw.vmap(mw.grad(lambda x, w: (mw.sort(x, descending=True) * w).sum())))
    np.testing.assert_array_equal(np.asarray(each(x, w)), wanted)


@sampled(1)
@pytest.mark.parametrize("largest", [False, True])
def test_most_of_a_row_in_order_is_what_a_sort_begins_with(largest: bool) -> None:
    x = sample((3, 42), "float32", 5)
    wanted = first(x, 1, 30, largest)
    for mesh, layout in (("x=4", "[_, x]"), ("x=2, y=2", "[y, _*x]"), ("x=3", "[x, _]")):
        pick = mw.jit(
            lambda x: mw.top_k(x, 30, axis=1, largest=largest), mesh=mesh, in_layouts=(layout,)
        )
        values, places = map(np.asarray, pick(x))
        np.testing.assert_array_equal(places, wanted)
        np.testing.assert_array_equal(values, np.take_along_axis(x, wanted, 1))
        moves = pick.lower(x).compile().program.bundle.manifest.collectives
        assert {c.op for c in moves} <= {"merge", "exchange", "all_gather"}
        assert ("merge" in {c.op for c in moves}) == (mesh != "x=3")


def test_of_a_sort_no_more_is_put_in_order_than_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    x, counts, order = sample((5, 40), "float32", 6), [], sorting.order
    monkeypatch.setattr(
        sorting, "order", lambda b, k, d, n, how: [counts.append(n), order(b, k, d, n, how)][1]
    )
    for read, count in ((lambda s: s[:, :7], 7), (lambda s: s[1:, :9:2], 40), (lambda s: s, 40)):
        made = mw.jit(lambda x, read=read: read(mw.sort(x, axis=1)))(x)
        np.testing.assert_array_equal(np.asarray(made), read(np.sort(x, 1)))
        assert counts.pop() == count and not counts


def received(program, rank_program):
    """What ranks receive, where all results are proven."""
    assert "unproven" not in program.explain()
    return sum(c.bytes for c in rank_program.bundle.manifest.collectives)


def test_what_differs_is_found_where_it_lies() -> None:
    x = np.random.default_rng(3).integers(0, 50, 512).astype(np.int32)
    f = mw.jit(lambda x: mw.unique_all(x, size=64), mesh="x=4", in_layouts=("[x]",))
    values, places, inverse, counts = map(np.asarray, f(x))
    wanted = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    for got, right in zip((values[:50], places[:50], inverse, counts[:50]), wanted, strict=True):
        np.testing.assert_array_equal(got, right)
    own, first, few = 512 // 4 * 8, 64 * 4 * 3 // 2, 4 + 12 + 6  # pairs of a sort, and the first
    program = f.lower(x).compile()
    assert received(program, program.program) <= own + own + 3 * first + few
    f = mw.jit(lambda x: mw.unique_all(x, size=64)[0], mesh="x=4", in_layouts=("[x]",))
    program = f.lower(x).compile()
    assert received(program, program.program) <= own // 2 + first + few


@sampled(3)
@pytest.mark.parametrize("shape", [(13,), (8, 3), (1,), (16,)])
@pytest.mark.parametrize("mesh, layouts", [("x=3", "[x]"), ("x=2, y=2", "[x*y]"), ("x=4", "[x]")])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
def test_what_differs_keeps_its_bits(shape, mesh, layouts, dtype) -> None:
    """Of equal elements the first one counts, -0.0 or 0.0; each NaN is one of its own; pieces may be uneven."""
    x = sample(shape, dtype, 7)
    layout = layouts[:-1] + ", _]" * (len(shape) - 1) if len(shape) > 1 else layouts
    f = mw.jit(lambda x: mw.unique_all(x, size=9), mesh=mesh, in_layouts=(layout,))
    values, places, inverse, counts = map(np.asarray, f(x))
    order = first(x.ravel(), 0, x.size, False)
    row = x.ravel()[order]
    new = np.append(True, row[1:] != row[:-1])
    ranks, found = np.cumsum(new) - 1, min(new.sum(), 9)
    np.testing.assert_array_equal(inverse.ravel()[order], ranks)
    np.testing.assert_array_equal(counts, np.bincount(ranks, minlength=9)[:9])
    np.testing.assert_array_equal(values, np.append(row[new], [row[0]] * 9)[:9])
    np.testing.assert_array_equal(np.signbit(values[:found]), np.signbit(row[new][:9]))
    np.testing.assert_array_equal(places, np.append(order[new], [0] * 9)[:9])
    if x.size > 8:
        assert "unproven" not in f.explain()


def test_what_is_read_at_the_places_of_a_sort_is_sorted_with_it() -> None:
    """In our programs and in JAX's, whose places may count from the end: no rank has more than its part."""
    jax = pytest.importorskip("jax")
    x, y = np.random.default_rng(5).integers(0, 9, (2, 64)).astype(np.float32)
    order = np.argsort(x, kind="stable")
    options = {"mesh": "x=4", "in_layouts": ("[x]", "[x]"), "out_layouts": ("[x]", "[x]")}

    def both(x, y):
        order = mw.argsort(x)
        return mw.take(x, order), y[order]

    f = mw.jit(both, **options)
    for got, wanted in zip(f(x, y), (x[order], y[order]), strict=True):
        np.testing.assert_array_equal(got, wanted)
    program = f.lower(x, y).compile()
    assert received(program, program.program) <= 2 * 64

    def unique(x):
        return jax.numpy.unique(x, size=12, fill_value=-1, return_inverse=True)

    with mw.from_jax(unique, x, mesh="x=4", in_shardings="[x]") as program:
        for got, wanted in zip(program(x), unique(x), strict=True):
            np.testing.assert_array_equal(got, wanted)
        assert received(program, program.program) <= 4 * 64 + 2 * 12 * 4 * 3 // 2 + 4 + 12 + 6


def test_of_a_read_elsewhere_nothing_is_proven() -> None:
    def text(last: int) -> str:
        return f"""
        func.func @main(%x: tensor<8xi32> {{dist.layout = #dist.layout<"[x]">}}) -> tensor<8xi32> {{
          %s:2 = "mw.sort"(%x) {{dim = 0 : i64}} : (tensor<8xi32>) -> (tensor<8xi32>, tensor<8xi32>)
          %e = tensor.empty() : tensor<8xi32>
          %read = linalg.map ins(%s#1 : tensor<8xi32>) outs(%e : tensor<8xi32>) (%in: i32, %out: i32) {{
            %last = arith.constant {last} : index
            %place = arith.index_cast %in : i32 to index
            %held = arith.minsi %place, %last : index
            %one = tensor.extract %x[%held] : tensor<8xi32>
            linalg.yield %one : i32
          }}
          return %read : tensor<8xi32>
        }}"""

    local = partitioned("x=2", text(7))
    assert "dist.merge" in local and "all_gather" not in local
    assert status(on("x=2", text(7)), local) == 0 != status(on("x=2", text(6)), local)
    assert "all_gather" in partitioned("x=2", text(6))


def test_what_is_sorted_in_uneven_pieces_is_reduced_without_their_padding() -> None:
    x = sample((3, 7), "float64", 5)
    x = np.where(np.isfinite(x), x, 3.0)
    options = {"mesh": "x=2, y=2", "in_layouts": ("[y, x]",), "out_layouts": "[_]"}

    def sums(x):
        up = mw.sort(x, axis=1)
        return mw.concat([mw.sum(up, axis=0), mw.sum(mw.sort(x, axis=0) * up, axis=1)])

    up, down = np.sort(x, 1), np.sort(x, 0)
    wanted = np.concatenate([up.sum(0), (down * up).sum(1)])
    np.testing.assert_allclose(np.asarray(mw.jit(sums, **options)(x)), wanted)


def test_what_is_sorted_by_places_is_put_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank a gradient is no second sort; rows without places, which are padding, write nowhere."""
    x, w = np.random.default_rng(2).random((2, 5, 9), np.float32)
    puts, put = [], sorting.put
    monkeypatch.setattr(sorting, "put", lambda *given: [puts.append(given), put(*given)][1])

    def slopes(x, w):
        return mw.grad(lambda x: (mw.sort(x, axis=1) * w).sum())(x)

    wanted = np.take_along_axis(w, np.argsort(np.argsort(x, 1), 1), 1)
    np.testing.assert_array_equal(np.asarray(mw.jit(slopes)(x, w)), wanted)
    rows = {"mesh": "x=2", "in_layouts": ("[x, _]",) * 2, "out_layouts": "[x, _]"}
    np.testing.assert_array_equal(np.asarray(mw.jit(slopes, **rows)(x, w)), wanted)
    assert len(puts) == 2  # once for each program
