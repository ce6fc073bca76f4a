"""Sizes that each call chooses: one program gives for every size what a program for that size gives."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave.api.lengths.memory import arena_growth
from meshweave.errors import CompileError, MeshweaveError, UsageError
from meshweave.frontends.python import tree
from meshweave.layout.lengths import Dim, Formula, ShapeDtype, fitted, large_sizes, probes

MOST = 11
N = mw.Dim("n", max=MOST)
SIZES = (1, 5, 11)
RNG = np.random.default_rng(3)


def numbers(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.5).astype(np.float32)


W, TABLE, GAIN = numbers(8, 8), numbers(13, 8), numbers(8)


def attention(x: Any, w: Any) -> Any:
    q = x @ w
    place = mw.arange(x.shape[0])
    scores = mw.where(place[:, None] >= place[None, :], q @ x.T, -1e9)
    return mw.softmax(scores, axis=-1) @ x


def heads(x: Any, w: Any) -> Any:
    y = mw.permute_dims((x @ w).reshape(x.shape[0], 2, 4), (1, 0, 2))
    y = mw.softmax(y @ mw.permute_dims(y, (0, 2, 1)), axis=-1) @ y
    return mw.permute_dims(y, (1, 0, 2)).reshape(x.shape[0], 8), y


def norm(x: Any, gain: Any) -> Any:
    mean = mw.mean(x, axis=-1, keepdims=True)
    return (x - mean) / mw.sqrt(mw.var(x, axis=-1, keepdims=True) + 1e-5) * gain


def statistics(x: Any, w: Any) -> Any:
    return (
        mw.mean(x, axis=0), mw.var(x, axis=0, correction=0), mw.std(x), mw.min(x, axis=0), mw.max(x),
        mw.prod(x, axis=0), x.T @ x, mw.sum(x * (1.0 / x.shape[0])), x @ w - mw.mean(x, axis=0),
    )  # fmt: skip


def places(x: Any, w: Any) -> Any:
    return (
        mw.argmax(x, axis=0), mw.argmin(x, axis=1), mw.cumulative_sum(x, axis=0), mw.sort(x, axis=1), x[0],
        x[-1] + x[:, :1], mw.concat([x, x @ w], axis=1), mw.any(x > 0.5, axis=0),
        mw.sum(mw.astype(x > 0, mw.int32), axis=0),
    )  # fmt: skip


def repeated(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = x + mw.tanh(mw.softmax(x @ x.T, axis=-1) @ x @ w) - mw.mean(x, axis=0)

    def step(carry: Any, _: Any) -> Any:
        carry = mw.tanh(carry @ w)
        return carry, mw.sum(carry, axis=0)

    return mw.scan(step, x, None, length=2)


def lookup(tokens: Any, table: Any) -> Any:
    return mw.take(table, tokens, axis=0) * 2.0


PROGRAMS: dict[str, tuple[Callable[..., Any], Any]] = {
    f.__name__: (f, w)
    for f, w in [
        (attention, W), (heads, W), (norm, GAIN), (statistics, W), (places, W), (repeated, W), (lookup, TABLE),
    ]
}  # fmt: skip
PLACES: list[tuple[str, str | None, str | None]] = [
    *((name, None, None) for name in PROGRAMS), *((name, "x=3", "[x, _]") for name in PROGRAMS),
    ("attention", "x=2, y=2", "[x, y]"), ("statistics", "x=2, y=2", "[x, y]"), ("heads", "x=2", "[_, x]"),
]  # fmt: skip


def first_argument(name: str, size: int) -> np.ndarray:
    rng = np.random.default_rng(size)
    if name == "lookup":
        return rng.integers(0, 13, size).astype(np.int32)
    return (rng.standard_normal((size, 8)) * 0.5).astype(np.float32)


@cache
def results(name: str, size: int) -> list[np.ndarray]:
    """Return what a program for this size alone gives."""
    function, w = PROGRAMS[name]
    jitted = mw.jit(function)
    leaves, _ = tree.flatten(jitted(first_argument(name, size), w))
    found = [np.asarray(leaf) for leaf in leaves]
    jitted.close()
    return found


@sampled(3)
@pytest.mark.parametrize(("name", "mesh", "layout"), PLACES)
def test_every_size_gives_what_its_own_program_gives(
    name: str, mesh: str | None, layout: str | None
) -> None:
    function, w = PROGRAMS[name]
    x = first_argument(name, MOST)
    layout = "[x]" if layout and x.ndim == 1 else layout
    jitted = mw.jit(function, mesh=mesh, in_layouts=(layout, None) if layout else None)
    kind = mw.ShapeDtype((N, *x.shape[1:]), x.dtype.name)
    jitted.lower(kind, w).compile()
    for size in SIZES:
        found, _ = tree.flatten(jitted(first_argument(name, size), w))
        for one, other in zip(found, results(name, size), strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5, err_msg=f"n={size}")
    assert jitted.cache_info() == (len(SIZES), 0, 1)
    jitted.close()


def test_what_lies_behind_the_end_never_shows() -> None:
    """A call of few rows after one of many, whose rows are NaN and infinite, gives what it gives alone."""
    jitted = mw.jit(statistics)
    program = jitted.lower(mw.ShapeDtype((N, 8), "f32"), W).compile()
    x = numbers(3, 8)
    before = [np.asarray(y) for y in program(x, W)]
    program(np.full((MOST, 8), np.nan, np.float32), W)
    program(np.full((MOST, 8), np.inf, np.float32), W)
    for one, other in zip(before, program(x, W), strict=True):
        assert np.array_equal(one, np.asarray(other))


def test_two_sizes_and_a_square() -> None:
    m = mw.Dim("m", max=7)

    def cross(x: Any, y: Any, square: Any) -> Any:
        return mw.softmax(x @ y.T, axis=-1) @ y, square @ x

    jitted = mw.jit(cross)
    jitted.lower(
        mw.ShapeDtype((N, 4), "f32"), mw.ShapeDtype((m, 4), "f32"), mw.ShapeDtype((N, N), "f32")
    ).compile()
    for size, other in ((1, 1), (4, 7), (11, 3)):
        x, y, square = numbers(size, 4), numbers(other, 4), numbers(size, size)
        scores = np.exp(x @ y.T)
        one, two = jitted(x, y, square)
        np.testing.assert_allclose(
            one, scores / scores.sum(1, keepdims=True) @ y, rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(two, square @ x, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="argument square: dim 0 has size 5, n is 4 in this call"):
        jitted(numbers(4, 4), numbers(2, 4), numbers(5, 5))


def test_a_bound_that_is_a_fixed_size_too() -> None:
    """Shapes that agree by chance are told apart: the program is traced for other sizes."""
    n = mw.Dim("n", max=8)
    lowered = mw.jit(lambda x: mw.mean(x @ x.T, axis=0) + mw.mean(x.T @ x)).lower(
        mw.ShapeDtype((n, 8), "f32")
    )
    program = lowered.compile()
    for size in (1, 7, 8):
        x = numbers(size, 8)
        wanted = (x @ x.T).mean(0) + (x.T @ x).mean()
        np.testing.assert_allclose(program(x), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mesh", "layout"), [(None, None), ("x=2", ("[x, _]", None))])
def test_a_bound_may_be_the_size_of_a_table(mesh: str | None, layout: Any) -> None:
    """All of the table is read where n is the bound; a bound beyond its end is refused, at the slice."""
    n, table = mw.Dim("n", max=29), numbers(29, 8)
    positions = mw.jit(
        lambda x, t: mw.softmax(x + t[: x.shape[0]], axis=0), mesh=mesh, in_layouts=layout
    )
    positions.lower(mw.ShapeDtype((n, 8), "f32"), table).compile()
    for size in (29, 1, 28, 4):
        x = numbers(size, 8)
        wanted = np.exp(x + table[:size])
        np.testing.assert_allclose(
            positions(x, table), wanted / wanted.sum(0), rtol=1e-5, atol=1e-6
        )
    assert positions.cache_info() == (4, 0, 1)
    for most, refused in (
        (30, "for n=30: tensor.extract_slice: element 29 along dim 0, of size 29"),
        (100, "for n=97: shapes 97x8 and 29x8 do not broadcast"),
    ):
        beyond = mw.ShapeDtype((mw.Dim("n", max=most), 8), "f32")
        with pytest.raises(MeshweaveError, match=refused):
            positions.lower(beyond, table)


def shifted(xp: Any, x: Any, z: Any) -> Any:
    y = xp.concat([x[:1] - 1, x], axis=0)
    pairs = x[1:] * x[:-1]
    return (
        y[1:] - y[:-1],
        xp.mean(y, axis=0),
        y @ y.T,
        pairs,
        xp.sum(pairs, axis=0),
        x[:-1] - x[-1:],
    )


def joined(xp: Any, x: Any, z: Any) -> Any:
    y = xp.concat([x, z, x[:1]], axis=0)
    weights = xp.exp(y @ y.T)
    return y, xp.max(y, axis=0), weights @ y, y[1:], xp.concat([y, x], axis=0).T @ xp.concat([x, y])


@pytest.mark.parametrize("function", [shifted, joined])
@pytest.mark.parametrize(("mesh", "layouts"), [(None, None), ("x=2", ("[x, _]", "[x, _]"))])
def test_sums_of_sizes_are_sizes(function: Any, mesh: str | None, layouts: Any) -> None:
    """Pieces that are put behind each other, and parts of them, have sums of sizes and numbers as theirs."""
    m = mw.Dim("m", max=7)
    jitted = mw.jit(lambda x, z: function(mw, x, z), mesh=mesh, in_layouts=layouts)
    jitted.lower(mw.ShapeDtype((N, 8), "f32"), mw.ShapeDtype((m, 8), "f32")).compile()
    for n, other in ((11, 7), (1, 1), (2, 5), (10, 3)):
        x, z = numbers(n, 8), numbers(other, 8)
        for one, right in zip(jitted(x, z), function(np, x, z), strict=True):
            assert one.shape == right.shape
            np.testing.assert_allclose(one, right, rtol=2e-4, atol=2e-5, err_msg=f"{n}, {other}")
    assert jitted.cache_info() == (4, 0, 1)


def test_large_sizes_are_cut_for_the_cores() -> None:
    """Each core does its part of the rows that there are."""
    n = mw.Dim("n", max=1500)

    def block(x: Any, w: Any) -> Any:
        hidden = mw.maximum(x @ w, 0.0)
        scores = mw.softmax(hidden @ x.T, axis=-1)
        return scores @ x, x - mw.mean(hidden, axis=0), mw.sum(scores, axis=0), mw.exp(x).T

    jitted = mw.jit(block)
    w = numbers(96, 96) * 0.2
    jitted.lower(mw.ShapeDtype((n, 96), "f32"), w).compile()
    for size in (1, 15, 130, 777, 1500):
        x = numbers(size, 96)
        hidden = np.maximum(x @ w, 0)
        scores = np.exp(hidden @ x.T - (hidden @ x.T).max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
        wanted = (scores @ x, x - hidden.mean(0), scores.sum(0), np.exp(x).T)
        for one, other in zip(jitted(x, w), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_calls_that_do_not_fit_are_refused() -> None:
    jitted = mw.jit(lambda x: x + 1.0)
    program = jitted.lower(mw.ShapeDtype((N, 8), "f32")).compile()
    for call in (jitted, program):
        with pytest.raises(UsageError, match="argument x: dim 0 has size 12, n may be 1 to 11"):
            call(numbers(12, 8))
        with pytest.raises(UsageError, match="argument x: dim 0 has size 0, n may be 1 to 11"):
            call(numbers(0, 8))
    with pytest.raises(UsageError, match="argument x: dim 1 has size 7, 8 is right"):
        program(numbers(3, 7))
    with pytest.raises(UsageError, match="argument x: 1 dims, 2 are right"):
        program(numbers(3))
    with pytest.raises(UsageError, match="argument x: dtype float64, float32 is right"):
        program(np.zeros((3, 8)))
    with pytest.raises(UsageError, match="another structure"):
        program([numbers(3, 8)])
    assert jitted(numbers(3, 7)).shape == (3, 7)  # another program, for this size alone
    assert jitted.cache_info().misses == 1


B = mw.Dim("b", max=4)
X, Y = mw.ShapeDtype((N, 8), "f32"), mw.ShapeDtype((B, N, 8), "f32")
REFUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "slice": (lambda x: x[:4], (X,), "tensor.extract_slice: along a dim of size n.*a part that there is for all sizes"),
    "last": (lambda x: x[-4:], (X,), "a part that there is for all sizes: mw.Dim\\('n', max=11, min=4\\) has it"),
    "second": (lambda x: x[1], (X,), "min=2\\) has it"),
    "first": (lambda x, y: x.at[:4].set(y), (X, mw.ShapeDtype((4, 8), "f32")), "insert_slice: .*min=4\\) has it"),
    "short": (lambda x: mw.sum(x[2:], axis=0), (X,), "a slice takes a part that there is for all sizes"),
    "steps": (lambda x: x[::2], (X,), "dim 0 of its result is"),
    "joined": (lambda x: mw.concat([x.reshape(-1, 8), x[0]], axis=0), (Y,), "of its result is"),
    "reshape": (lambda x: x.reshape(-1, 8) + mw.permute_dims(x, (1, 0, 2)).reshape(-1, 8), (Y,),
                "b\\*n and n\\*b meet: their elements are in other orders"),
    "turned": (lambda x: x.reshape(x.shape[1], -1, 8), (Y,), "elements of b\\*n are read as those of n\\*b"),
    "row": (lambda x: x.reshape(-1, 8)[-1], (Y,), "tensor.extract_slice: along a dim of size b\\*n.*the first place"),
    "rows": (lambda x: mw.cumulative_sum(x.reshape(-1, 8), axis=0), (Y,), "mw.scan: along a dim of size b\\*n"),
    "flip of x * n rows": (
        lambda x: mw.flip(x.reshape(-1)), (X,), r"size 8\*n, .*: what is read backwards is as long as a size, or a sum",
    ),
    "sort": (lambda x: mw.sort(x, axis=0), (X,), "mw.sort: along a dim of size n"),
    "branch": (lambda x: x if x.shape[0] > 10 else x * 2, (X,), "another one for other sizes of n"),
    "root": (lambda x: x / x.shape[0] ** 0.5, (X,), "a number that depends on the size of n"),
    "loop": (lambda x: sum(x[i] for i in range(x.shape[0])), (X,), "another one for other sizes of n"),
    "fixed": (lambda x, y: x + y, (X, np.zeros((11, 8), np.float32)), "for n=7: .*do not broadcast"),
}  # fmt: skip


def test_integers_are_divided_whatever_lies_behind_the_end() -> None:
    compiled = (
        mw.jit(lambda x, y: (x // y, x % y)).lower(*(mw.ShapeDtype((N,), "i32"),) * 2).compile()
    )
    for n in (N.max, 1, N.max - 1, 2):
        x = RNG.integers(-50, 50, n, dtype=np.int32)
        y = RNG.choice(np.array([-7, -1, 1, 2, 9], np.int32), n)
        for found, wanted in zip(compiled(x, y), (x // y, x % y), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_have_such_a_size_is_refused_by_name(case: str) -> None:
    function, arguments, message = REFUSED[case]
    with pytest.raises(MeshweaveError, match=message) as caught:
        mw.jit(function).lower(*arguments)
    assert "test_lengths.py" in str(caught.value)


def test_calls_may_leave_sizes_open() -> None:
    """The first call compiles one program for all sizes of the dims that `dims` names."""
    m = mw.Dim("m", max=6)

    @mw.jit(dims={"x": (N, None), "y": {0: m}})
    def cross(x: Any, y: Any, scale: float = 1.0) -> Any:
        return mw.softmax(x @ y.T, axis=-1) @ y * scale

    for size, other in ((3, 4), (11, 6), (1, 1)):
        x, y = numbers(size, 5), numbers(other, 5)
        scores = np.exp(x @ y.T)
        wanted = 2 * (scores / scores.sum(1, keepdims=True) @ y)
        np.testing.assert_allclose(cross(x, y, 2.0), wanted, rtol=1e-4, atol=1e-5)
    assert cross.cache_info() == (2, 1, 1)
    assert "arguments and results, whole: 20*m + 40*n + 4 bytes" in cross.explain()
    assert "n up to 11, m up to 6" in cross.explain()
    with pytest.raises(UsageError, match="argument x: dim 0 has size 12, n may be 1 to 11"):
        cross(numbers(12, 5), numbers(2, 5), 2.0)
    assert cross(numbers(2, 4), numbers(2, 4), 2.0).shape == (2, 4)
    assert cross.cache_info().misses == 2  # other columns: another program, for all sizes too
    cross.close()


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"z": (N,)}, "dims: z is no array of the function: x are"),
        ({"x": 3}, "dims.'x'. is 3: a shape with Dims is right"),
        ({"x": ("n", None)}, "a shape with Dims is right"),
        ([N], "dims is a list, a dict by arguments is right"),
    ],
)
def test_dims_that_name_nothing_are_refused(dims: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mw.jit(lambda x: x, dims=dims)


def test_dims_that_do_not_fit_a_call_are_refused() -> None:
    with pytest.raises(UsageError, match="argument x: 1 dims, dims says"):
        mw.jit(lambda x: x + 1, dims={"x": (N, None)})(numbers(3))
    with pytest.raises(UsageError, match="dim 1 has size 4, 8 is right"):
        mw.jit(lambda x: x + 1, dims={"x": (N, 8)})(numbers(3, 4))
    with pytest.raises(UsageError, match="it is donated, and has a size that each call chooses"):
        mw.jit(lambda x: x + 1, dims={"x": (N, 8)}, donate=("x",))(numbers(3, 8))


def test_a_size_of_what_nothing_reads_is_refused() -> None:
    """Such an argument is none of the program of JAX, which then cannot know the size."""
    jax = pytest.importorskip("jax")
    kinds = mw.ShapeDtype((N, 3), "f32"), mw.ShapeDtype((MOST, 3), "f32")

    def cut(x: Any, y: Any) -> Any:
        return y[: x.shape[0]]

    with pytest.raises(
        UsageError, match="cut: n is the size of arguments that nothing reads: jit it"
    ):
        mw.from_jax(jax.jit(cut, donate_argnums=1), *kinds)
    with mw.from_jax(jax.jit(cut, keep_unused=True), *kinds) as program:
        y = numbers(MOST, 3)
        np.testing.assert_array_equal(program(y[:4], y), y[:4])
        array = mw.Array.from_numpy(y, mesh="", layout="[_, _]")
        np.testing.assert_array_equal(program(y[:5], array), y[:5])


def test_rows_at_a_place_that_is_computed_are_refused_with_what_is_right() -> None:
    jax = pytest.importorskip("jax")
    kinds = mw.ShapeDtype((16, 3), "f32"), mw.ShapeDtype((N, 3), "f32"), np.int32(0)

    def put(state: Any, rows: Any, start: Any) -> Any:
        return jax.lax.dynamic_update_slice(state, rows, (start, 0))

    with pytest.raises(
        CompileError, match=r"dim of size n, .*: x.at\[places\].set\(rows\) puts rows"
    ):
        mw.from_jax(put, *kinds)


def test_jax_functions_may_have_such_sizes() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    w = {"a": numbers(16, 16), "g": np.ones(16, np.float32)}

    def layer(x: Any, w: Any) -> Any:
        h = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * w["g"]
        q = (h @ w["a"]).reshape(-1, 4, 4).transpose(1, 0, 2)
        place = jnp.arange(x.shape[0])
        scores = jnp.einsum("hid,hjd->hij", q, q)
        scores = jnp.where(place[:, None] >= place[None, :], scores, -1e9)
        mixed = jnp.einsum("hij,hjd->ihd", jax.nn.softmax(scores, -1), q).reshape(-1, 16)
        return x + jax.nn.gelu(mixed @ w["a"]) - x.mean(0), x[-1]

    kind = mw.ShapeDtype((N, 16), "f32")
    with mw.from_jax(layer, kind, w, mesh="x=2", in_shardings=("[x, _]", None)) as program:
        for size in SIZES:
            x = numbers(size, 16)
            for one, other in zip(program(x, w), jax.jit(layer)(x, w), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
        with pytest.raises(UsageError, match="argument x: dim 0 has size 12, n may be 1 to 11"):
            program(numbers(12, 16), w)


def test_what_jax_has_exported_for_symbolic_shapes_is_called_with_any_size() -> None:
    jax = pytest.importorskip("jax")
    shapes, kind = jax.export.symbolic_shape, jax.ShapeDtypeStruct

    def mixed(x: Any, w: Any) -> Any:
        scores = jax.nn.softmax(x @ x.T, axis=-1)
        return {"y": scores @ (x @ w), "mean": x.mean(0), "rows": x.shape[0] * x[0]}

    (n,) = shapes("n")
    exported = jax.export.export(jax.jit(mixed))(kind((n, 4), "float32"), kind((4, 6), "float32"))
    w = numbers(4, 6)
    lengths = mw.ShapeDtype((N, 4), "f32")
    layouts = ("[x, _]", None)
    with mw.from_jax(exported.call, lengths, w, in_shardings=layouts, mesh="x=2") as program:
        for size in SIZES:
            x = numbers(size, 4)
            for name, wanted in jax.jit(mixed)(x, w).items():
                np.testing.assert_allclose(program(x, w)[name], wanted, rtol=1e-5, atol=1e-6)
    (even,) = shapes("2*n")
    exported = jax.export.export(jax.jit(mixed))(
        kind((even, 4), "float32"), kind((4, 6), "float32")
    )
    x = numbers(6, 4)
    with mw.from_jax(exported.call, x, w) as program:
        np.testing.assert_allclose(program(x, w)["mean"], x.mean(0), rtol=1e-5, atol=1e-6)


def test_an_assertion_on_sizes_that_does_not_hold_is_told_with_its_place() -> None:
    text = """
    func.func public @main(%a: tensor<7x8xf32>) -> tensor<7x8xf32> {
      %0 = stablehlo.convert %a : (tensor<7x8xf32>) -> tensor<?x8xf32>
      %least = stablehlo.constant dense<LEAST> : tensor<i32>
      %n = stablehlo.get_dimension_size %0, dim = 0 : (tensor<?x8xf32>) -> tensor<i32>
      %c = stablehlo.compare GE, %n, %least, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.custom_call @shape_assertion(%c, %n) {api_version = 2 : i32, error_message = "n is {0}, 9 is the least",
        has_side_effect = true} : (tensor<i1>, tensor<i32>) -> ()
      %1 = stablehlo.add %0, %0 : tensor<?x8xf32>
      %2 = stablehlo.convert %1 : (tensor<?x8xf32>) -> tensor<7x8xf32>
      return %2 : tensor<7x8xf32>
    }
    """
    a = numbers(7, 8)
    with mw.from_mlir(text.replace("LEAST", "7")) as program:
        np.testing.assert_array_equal(program(a)[0], a + a)
    with pytest.raises(CompileError, match="n is 7, 9 is the least") as refused:
        mw.from_mlir(text.replace("LEAST", "9"))
    assert refused.value.location


@pytest.mark.torch
def test_modules_of_pytorch_may_have_such_sizes() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(30, 8), nn.LayerNorm(8)
            self.into, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, tokens: Any) -> Any:
            x, size = self.table(tokens), tokens.shape[0]
            parts = self.into(self.norm(x)).split(8, dim=-1)
            q, k, v = (part.view(size, 2, 4).transpose(0, 1) for part in parts)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = x + self.out(mixed.transpose(0, 1).reshape(size, 8))
            return y, y[-1], y.mean(0)

    torch.manual_seed(0)
    module = Block().eval()
    kind = mw.ShapeDtype((N,), "i64")
    with mw.from_torch(module, (kind,), {"out.weight": "[x, _]"}, mesh="x=2") as program:
        for size in SIZES:
            tokens = torch.randint(0, 30, (size,))
            with torch.no_grad():
                wanted = module(tokens)
            for one, other in zip(program(tokens), wanted, strict=True):
                assert one.shape == other.shape and torch.allclose(one, other, atol=1e-5)
        with pytest.raises(UsageError, match="Block: argument tokens: dim 0 has size 12"):
            program(torch.zeros(12, dtype=torch.int64))
        assert "n up to 11" in program.explain()


@pytest.mark.torch
def test_numbers_that_a_module_returns_are_those_of_the_call() -> None:
    torch = pytest.importorskip("torch")

    class Sizes(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self, power: int) -> None:
            super().__init__()
            self.power = power

        def forward(self, x: Any) -> Any:
            return x * 2, {"rows": x.shape[0] ** self.power, "next": 3 * x.shape[0] + 1}, "text"

    kind = mw.ShapeDtype((N, 3), "f32")
    for power in (1, 2):
        with mw.from_torch(Sizes(power), (kind,)) as program:
            for size in SIZES:
                doubled, numbers, text = program(torch.ones(size, 3))
                assert doubled.shape == (size, 3) and text == "text"
                assert numbers == {"rows": size**power, "next": 3 * size + 1}
    with pytest.raises(UsageError, match=r"result 1 is 1331 for n=11 and .*a sum of multiples"):
        mw.from_torch(Sizes(3), (kind,))


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exported_programs_bring_their_sizes_and_bounds(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    export, dim = torch.export.export, torch.export.Dim
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Softmax(0)).eval()
    module, x = module.to(getattr(torch, dtype)), torch.ones(7, 4, dtype=getattr(torch, dtype))
    exported = export(module, (x,), dynamic_shapes=({0: dim("n", max=11)},))
    with mw.from_torch(exported, placements={"0.weight": "[x, _]"}, mesh="x=2") as program:
        for size in SIZES:
            x = torch.randn(size, 4).to(x.dtype)
            near = 1e-6 if dtype == "float32" else 1e-2
            assert torch.allclose(program(x), module(x), atol=near)
        with pytest.raises(UsageError, match="ExportedProgram: argument input: dim 0 has size 12"):
            program(torch.zeros(12, 4, dtype=x.dtype))
    open_end = export(module, (x,), dynamic_shapes=({0: dim.DYNAMIC},))
    with pytest.raises(UsageError, match=r"argument input: dim 0 has no bound: torch.export.Dim"):
        mw.from_torch(open_end)
    with mw.from_torch(open_end, (mw.ShapeDtype((N, 4), dtype),)) as program:
        assert program(x).shape == (len(x), 6)
    double = export(module, (x[:6],), dynamic_shapes=({0: 2 * dim("h", max=5)},))
    with pytest.raises(UsageError, match=r"argument input: dim 0 is 2\*\w+: a size of its own"):
        mw.from_torch(double)


def test_dims_say_what_is_wrong_with_them() -> None:
    with pytest.raises(UsageError, match="an identifier is right"):
        Dim("2n", max=4)
    with pytest.raises(UsageError, match="max=0, a number from 1 on is right"):
        Dim("n", max=0)
    with pytest.raises(UsageError, match="a number or a Dim is right"):
        ShapeDtype(("n",), "f32")  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match=r"dim n is Dim\('n', max=11\) and Dim\('n', max=12\): one bound is right"
    ):
        mw.jit(lambda x, y: x).lower(X, mw.ShapeDtype((mw.Dim("n", max=12),), "f32"))


def test_formulas_are_those_of_all_probes() -> None:
    dims = [Dim("n", max=64), Dim("m", max=9)]
    sizes = probes(dims, large_sizes(dims, {7, 22}), {7, 22})
    assert [(s["n"], s["m"]) for s in sizes] == [(61, 5), (13, 5), (61, 3), (17, 19)]
    assert large_sizes([Dim("n", max=64), Dim("m", max=64)], {122}) == {"n": 59, "m": 53}
    at = [3 * s["n"] - 2 * s["m"] + 5 for s in sizes]
    assert fitted(sizes, at) == Formula(5, ((("m",), -2), (("n",), 3)))
    assert str(Formula(5, ((("m",), -2), (("n",), 1)))) == "-2*m + n + 5"
    assert str(fitted(sizes, [3 * s["n"] * s["m"] - 1 for s in sizes])) == "3*m*n - 1"
    assert str(fitted(sizes, [s["n"] ** 2 for s in sizes])) == "n*n"
    assert fitted(sizes, [s["n"] * s["m"] + s["n"] for s in sizes]) is None
    assert fitted(sizes, [s["n"] // 2 for s in sizes]) is None


def test_gpus_run_the_same_program() -> None:
    """On the emulator: rows behind the end hold NaN."""
    n = mw.Dim("n", max=12)
    w = numbers(8, 8)
    jitted = mw.jit(lambda x, w: mw.softmax(x @ x.T, axis=-1) @ (x @ w) - mw.mean(x, axis=0))
    text = jitted.lower(mw.ShapeDtype((n, 8), "f32"), w).program.text
    with mw.compile(text, engine="emulate") as program:
        for size in (1, 5, 12):
            x = np.full((12, 8), np.nan, np.float32)
            x[:size] = numbers(size, 8)
            (y,) = program(x, w, np.asarray(size))
            np.testing.assert_allclose(y[:size], jitted(x[:size], w), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ["local", "mpi"])
def test_a_sum_over_ranks_moves_the_rows_that_there_are(engine: str) -> None:
    """Weights are cut, rows are not: the same program on every size, and what it adds up ends where the rows do."""
    n = mw.Dim("n", max=64)
    w, v = numbers(16, 32), numbers(32, 16)
    jitted = mw.jit(
        lambda x, w, v: x + mw.maximum(x @ w, 0.0) @ v,
        mesh="x=2", in_layouts=("[_, _]", "[_, x]", "[x, _]"), engine=engine,
    )  # fmt: skip
    lowered = jitted.lower(mw.ShapeDtype((n, 16), "f32"), w, v)
    lowered.compile()
    for size in (1, 5, 64, 5):
        x = numbers(size, 16)
        wanted = x + np.maximum(x @ w, 0) @ v
        np.testing.assert_allclose(jitted(x, w, v), wanted, rtol=1e-4, atol=1e-4)
    jitted.close()


@pytest.mark.parametrize(
    "condition", ["dense<true> : tensor<2xi1>", "dense<[true, false]> : tensor<2xi1>"]
)
def test_an_assertion_that_is_no_number_is_refused_in_a_line(condition: str) -> None:
    kind = condition.split(" : ")[1]
    text = f"""
    func.func public @main(%a: tensor<7xf32>) -> tensor<7xf32> {{
      %0 = stablehlo.convert %a : (tensor<7xf32>) -> tensor<?xf32>
      %c = stablehlo.constant {condition}
      stablehlo.custom_call @shape_assertion(%c) {{api_version = 2 : i32, has_side_effect = true}} : ({kind}) -> ()
      %2 = stablehlo.convert %0 : (tensor<?xf32>) -> tensor<7xf32>
      return %2 : tensor<7xf32>
    }}
    """
    if "false" not in condition:
        with mw.from_mlir(text) as program:
            assert program(np.ones(7, np.float32))[0].shape == (7,)
        return
    with pytest.raises(CompileError, match="shape_assertion"):
        mw.from_mlir(text)


def test_places_that_are_counted_from_no_offset_of_the_rank_compile() -> None:
    """A program of a rank from elsewhere may compare them with the size of a call."""
    n = mw.Dim("n", max=8)
    f = mw.jit(lambda x: mw.sum(mw.tanh(x @ x.T), axis=0), mesh="x=2", in_layouts=("[x, _]",))
    text = f.lower(mw.ShapeDtype((n, 6), "f32")).as_text("local")
    changed = re.sub(r"(arith.addi (%\w+)), %\w+ : index", r"\1, \2 : index", text, count=1)
    assert changed != text
    with mw.compile(changed):
        pass


@sampled(2)
@pytest.mark.parametrize(("mesh", "layout"), [("dp=2, tp=2", "[dp, _]"), (None, None)])
def test_the_arena_is_a_formula_of_the_bound(mesh: str | None, layout: str | None) -> None:
    """It is held against what programs with other bounds take, of which the formula has not been made."""

    def scores(x: Any, w: Any) -> Any:
        return mw.softmax(x @ x.T, axis=-1) @ (x @ w) - mw.mean(x, axis=0), mw.sort(x @ w, axis=1)

    def program(most: int) -> Any:
        jitted = mw.jit(scores, mesh=mesh, in_layouts=(layout, None))
        return jitted.lower(mw.ShapeDtype((mw.Dim("n", max=most), 8), "f32"), W).compile()

    large = program(1024)
    growth = large.arena_growth()
    assert growth.formula is not None and growth.divisor == 1
    assert f"everything between, on a rank: {growth.formula} bytes" in large.explain()
    for most in (608, 2048):
        planned = program(most).program.bundle.manifest.arena_bytes
        assert growth.formula.at({"n": most}) == planned > 0


def test_growth_that_no_formula_gives_is_shown_as_it_is() -> None:
    def stairs(sizes: Any) -> int:
        return int(sizes["n"] ** 2 + 64 * (sizes["n"] // 100))

    growth = arena_growth([mw.Dim("n", max=512)], stairs, 16)
    assert growth is not None and growth.formula is None
    assert str(growth).startswith("no formula of the sizes: 262,464 for n=512; ")
    assert arena_growth([mw.Dim("n", max=40)], stairs, 16) is None
    pair = [mw.Dim("b", max=8), mw.Dim("n", max=512)]
    found = arena_growth(pair, lambda s: (6 * s["b"] * s["n"] ** 2 + s["n"]) // 2, 32)
    assert found is not None and str(found).startswith(
        "(6*b*n*n + n)/2 bytes, as planned for b=8, n=512; "
    )


def put(x: Any, at: slice, rows: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x.at[at].set(rows)
    changed = x.copy()
    changed[at] = rows
    return changed


def joined(x: Any) -> Any:
    library = np if isinstance(x, np.ndarray) else mw
    return getattr(library, "concatenate" if library is np else "concat")([x, x * 2, x[:1]], axis=0)


def merged(m: Any, x: Any) -> Any:
    """Return three times as many rows, of which n is the minor size."""
    return m.reshape(m.stack([x, -x * 2, x + 1]), (-1, x.shape[1]))


PARTS: dict[str, tuple[int, Callable[[Any, Any], tuple[Any, ...]]]] = {
    "padded": (1, lambda m, x: (m.pad(x, ((1, 2), (0, 1)), constant_values=3.0),)),
    "padded scores": (1, lambda m, x: (m.sum(m.exp(m.pad(x @ x.T, ((1, 2), (3, 0)))), axis=1),)),
    "first and last": (4, lambda m, x: (x[:4] * 2, x[-4:], m.sum(x[1:4], axis=0), x[-2] + x[3])),
    "rest": (4, lambda m, x: (x[4:], m.sum(x[4:], axis=0), x[3:].T @ x[3:])),
    "joined": (1, lambda m, x: (joined(x), m.sum(joined(x), axis=0), m.max(joined(x), axis=0))),
    "written": (3, lambda m, x: (put(x, np.s_[1:], x[:-1] * 3), put(x, np.s_[1:-1], x[2:] * 3))),
    "last row": (
        1,
        lambda m, x: ((x @ x.T @ x)[-1], m.sum(x @ x.T, axis=1)[-1:], m.tanh(x @ x.T)[-1, -1]),
    ),
    "merged": (
        1,
        lambda m, x: (merged(m, x) @ x.T, m.max(merged(m, x), axis=0), m.sum(merged(m, x.T @ x))),
    ),
    "rolled": (1, lambda m, x: (m.roll(x, 1, axis=0), m.tile(x, (2, 1)), m.diff(x, axis=0))),
}


@sampled(2)
@pytest.mark.parametrize(
    ("mesh", "layout"), [(None, None), ("x=2", "[x, _]"), ("dp=2, tp=2", "[dp, tp]")]
)
@pytest.mark.parametrize("case", PARTS)
def test_parts_of_a_dim_are_those_of_the_size_of_the_call(
    case: str, mesh: str | None, layout: str | None
) -> None:
    """Behind the end lies NaN, which an earlier call has left there."""
    least, function = PARTS[case]
    jitted = mw.jit(lambda x: function(mw, x), mesh=mesh, in_layouts=(layout,) if layout else None)
    kind = mw.ShapeDtype((mw.Dim("n", max=MOST, min=least), 6), "f32")
    program = jitted.lower(kind).compile()
    program(np.full((MOST, 6), np.nan, np.float32))
    for size in sorted({least, least + 1, 5, MOST}):
        x = numbers(size, 6)
        for found, wanted in zip(program(x), function(np, x), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=f"n={size}")
    if least > 1:
        with pytest.raises(UsageError, match=f"n may be {least} to {MOST}"):
            program(numbers(least - 1, 6))
    jitted.close()


def test_a_least_size_is_one_that_the_bound_has() -> None:
    assert repr(mw.Dim("n", max=8, min=2)) == "Dim('n', max=8, min=2)"
    for least in (0, 9, True, "2"):
        with pytest.raises(UsageError, match="a number from 1 to 8 is right"):
            mw.Dim("n", max=8, min=least)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("mesh", "layouts"),
    [(None, None), ("x=2", ("[x, _]", None, None)), ("dp=2, tp=2", ("[dp, tp]", "[dp, _]", None))],
)
def test_as_many_rows_are_put_as_there_are(mesh: str | None, layouts: Any) -> None:
    """Into state of a fixed size, in place; rows and places behind the end, of an earlier call, are not."""

    def kept(state: Any, rows: Any, places: Any) -> Any:
        return state.at[places].set(rows), mw.zeros((12, 4)).at[places].add(rows)

    jitted = mw.jit(kept, mesh=mesh, in_layouts=layouts, donate=("state",))
    kinds = mw.ShapeDtype((12, 4), "f32"), mw.ShapeDtype((N, 4), "f32"), mw.ShapeDtype((N,), "i32")
    program = jitted.lower(*kinds).compile()
    assert program.program.outputs[0].takes == 0
    program(numbers(12, 4), np.full((MOST, 4), np.nan, np.float32), np.arange(MOST, dtype=np.int32))
    for size in SIZES:
        state, rows = numbers(12, 4), numbers(size, 4)
        places = np.random.default_rng(size).permutation(12)[:size].astype(np.int32)
        sums = np.zeros_like(state)
        np.add.at(sums, places, rows)
        wanted = state.copy()
        wanted[places] = rows
        for found, right in zip(program(state, rows, places), (wanted, sums), strict=True):
            np.testing.assert_allclose(np.asarray(found), right, atol=1e-6, err_msg=f"n={size}")
    jitted.close()


def test_attention_to_keys_that_are_kept_ends_with_the_queries() -> None:
    """Tiles of queries that a call does not have are left out, and so are the rows that they would read."""
    n = mw.Dim("n", max=150)  # three tiles, of which the last is shorter or not
    rng = np.random.default_rng(5)
    keys, values = (rng.standard_normal((2, 160, 8), np.float32) for _ in range(2))

    def attend(x: Any, w: Any, k: Any, v: Any) -> Any:
        q = mw.permute_dims((x @ w).reshape(x.shape[0], 2, 8), (1, 0, 2))
        seen = mw.arange(x.shape[0])[:, None] >= mw.arange(160)[None, :]
        scores = mw.where(seen, q @ mw.permute_dims(k, (0, 2, 1)), -np.inf)
        mixed = mw.softmax(scores, axis=-1) @ v
        return mw.permute_dims(mixed, (1, 0, 2)).reshape(x.shape[0], 16) @ w

    w = rng.standard_normal((16, 16), np.float32) / 4
    program = mw.jit(attend).lower(mw.ShapeDtype((n, 16), "f32"), w, keys, values).compile()
    assert "flash" in str(program.explain())
    whole = rng.standard_normal((150, 16), np.float32)
    wanted = np.asarray(program(whole, w, keys, values))
    q = (whole @ w).reshape(150, 2, 8).transpose(1, 0, 2)
    scores = np.where(np.tri(150, 160, dtype=bool), q @ keys.transpose(0, 2, 1), -np.inf)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    right = (share / share.sum(-1, keepdims=True) @ values).transpose(1, 0, 2).reshape(150, 16) @ w
    np.testing.assert_allclose(wanted, right, rtol=1e-4, atol=1e-5)
    for rows in (1, 49, 50, 51, 64, 101, 128, 149):
        # Rows of a longer call first: what they have left lies behind the end.
        np.testing.assert_allclose(
            program(whole[:rows], w, keys, values), wanted[:rows], rtol=1e-5, atol=1e-6
        )
        program(np.full((150, 16), np.nan, np.float32), w, keys, values)


@pytest.mark.parametrize(
    ("mesh", "layout"), [(None, None), ("x=3", "[x, _]"), ("x=2, y=2", "[y, x]")]
)
def test_rows_are_read_from_the_end_of_a_call_on(mesh: str | None, layout: str | None) -> None:
    """Of a call of n rows the first that is read is n - 1, on whatever rank that is."""

    def turned(m: Any, x: Any) -> Any:
        both = m.flip(m.flip(x.T, axis=0), axis=1)
        longer = m.flip(m.pad(x, ((2, 0), (0, 0))), axis=0)
        return x[::-1] * 2 + x, x[::-1][1:], both, longer, x[::-1].T @ x

    program = mw.jit(lambda x: turned(mw, x), mesh=mesh, in_layouts=(layout,) if layout else None)
    program.lower(mw.ShapeDtype((N, 8), "f32")).compile()
    program(np.full((MOST, 8), np.nan, np.float32))
    for rows in (1, 2, 4, 7, 10, MOST):
        x = np.random.default_rng(rows).integers(-4, 5, (rows, 8)).astype(np.float32)
        for found, right in zip(program(x), turned(np, x), strict=True):
            np.testing.assert_array_equal(np.asarray(found), right)
    program.close()


@pytest.mark.parametrize("causal", [False, True])
def test_attention_within_rows_that_a_call_chooses_has_no_scores(causal: bool) -> None:
    """Keys behind the end are in no maximum and no sum, whatever earlier calls have left there, and are not made."""
    n = mw.Dim("n", max=150)
    rng = np.random.default_rng(6)
    weights = rng.standard_normal((3, 16, 16), np.float32) / 4

    def attend(m: Any, x: Any, w: Any) -> Any:
        q, k, v = (m.reshape(x @ w[i], (-1, 2, 8)) for i in range(3))
        q, k, v = (m.permute_dims(y, (1, 0, 2)) for y in (q, k, v))
        scores = q @ m.permute_dims(k, (0, 2, 1)) * 2
        place = m.arange(x.shape[0])
        if causal:
            scores = m.where(place[:, None] >= place[None, :], scores, -np.inf)
        share = m.exp(scores - m.max(scores, axis=-1, keepdims=True))
        mixed = share / m.sum(share, axis=-1, keepdims=True) @ v
        return m.reshape(m.permute_dims(mixed, (1, 0, 2)), (-1, 16))

    program = (
        mw.jit(lambda x, w: attend(mw, x, w))
        .lower(mw.ShapeDtype((n, 16), "f32"), weights)
        .compile()
    )
    assert "flash" in str(program.explain())
    whole = rng.standard_normal((150, 16), np.float32)
    for rows in (150, 1, 15, 16, 17, 63, 64, 65, 129):
        program(np.full((150, 16), np.nan, np.float32), weights)
        right = attend(np, whole[:rows].astype("f8"), weights.astype("f8"))
        np.testing.assert_allclose(program(whole[:rows], weights), right, rtol=1e-4, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize(("mesh", "layout"), [(None, None), ("x=3", "[_, _, x]")])
def test_convolutions_and_pools_run_along_a_size(mesh: str | None, layout: str | None) -> None:
    """A window reads within what there is, and the padding begins where the call ends."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    torch.manual_seed(0)
    layers = nn.Conv1d(4, 6, 3, padding=1), nn.GELU(), nn.Conv1d(6, 4, 3, dilation=2, groups=2)
    module = nn.Sequential(*layers, nn.MaxPool1d(3, stride=1, padding=1)).eval()
    kind = mw.ShapeDtype((2, 4, mw.Dim("n", max=13, min=5)), "f32")
    placed = ({"input": layout}, mesh) if mesh else ()
    with torch.no_grad(), mw.from_torch(module, (kind,), *placed) as program:
        program(torch.full((2, 4, 13), torch.nan))
        for n in (5, 6, 9, 12, 13):
            x = torch.randn(2, 4, n)
            assert torch.allclose(program(x), module(x), atol=1e-5)
    with pytest.raises(CompileError, match="dim 2 of its result is"):
        mw.from_torch(nn.Conv1d(4, 4, 3, stride=2), (kind,))
