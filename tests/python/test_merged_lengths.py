"""Sizes that each call chooses and a reshape merges: one program gives for all of them what NumPy, JAX and torch do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave.errors import CompileError
from meshweave.frontends.python import tree

B, N = mw.Dim("b", max=4), mw.Dim("n", max=6)
SIZES = ((1, 1), (4, 6), (2, 5), (3, 2), (4, 1), (1, 6))
RNG = np.random.default_rng(5)


def numbers(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.5).astype(np.float32)


W, GAIN = numbers(8, 6), numbers(6)


def rows(xp: Any, x: Any) -> Any:
    y = x.reshape(-1, 8) @ W + GAIN
    sums = xp.sum(y, axis=0), xp.mean(y, axis=0), xp.max(y), xp.sum(y) / (x.shape[0] * x.shape[1])
    return y, y.reshape(x.shape[0], x.shape[1], 6), *sums, y.T @ y


def heads(xp: Any, x: Any) -> Any:
    b, n = x.shape[0], x.shape[1]
    y = xp.permute_dims(x.reshape(b, n, 2, 4), (0, 2, 1, 3)).reshape(2 * b, n, 4)
    s = xp.exp(y @ xp.permute_dims(y, (0, 2, 1)))
    s = (s / xp.sum(s, axis=-1, keepdims=True)) @ y
    return xp.permute_dims(s.reshape(b, 2, n, 4), (0, 2, 1, 3)).reshape(b * n, 8) @ W


def places(xp: Any, x: Any) -> Any:
    b, n = x.shape[0], x.shape[1]
    i, y = xp.arange(b * n), x.reshape(b * n, 8)
    more = xp.argmax(y, axis=0), xp.take_along_axis(y, xp.minimum(i, 7)[:, None], axis=1)
    return (
        i,
        y + xp.astype(i, xp.float32)[:, None],
        i.reshape(b, n),
        xp.sum(i),
        xp.arange(2 * n),
        *more,
    )


def turned(xp: Any, x: Any) -> Any:
    y = xp.permute_dims(x, (1, 0, 2)).reshape(-1, 8)
    return xp.tanh(y @ W), y.T @ y, y.reshape(x.shape[1], x.shape[0], 8), y[0]


def flat(xp: Any, x: Any) -> Any:
    y = xp.exp(x.reshape(-1)) * 2.0
    return y, y.reshape(x.shape), xp.mean(y), y.reshape(-1, 4)


def others(xp: Any, x: Any) -> Any:
    y = x.reshape(-1, 8)
    return xp.sort(y, axis=1), xp.cumulative_sum(y, axis=1), xp.concat([y, y], axis=1), y[:, 2:5]


@sampled(2)
@pytest.mark.parametrize("function", [rows, heads, places, turned, flat, others])
@pytest.mark.parametrize(
    ("mesh", "layout"), [(None, None), ("x=2", "[x, _, _]"), ("x=3", "[_, x, _]")]
)
def test_every_pair_of_sizes_gives_what_numpy_gives(
    function: Callable[..., Any], mesh: str | None, layout: str | None
) -> None:
    jitted = mw.jit(lambda x: function(mw, x), mesh=mesh, in_layouts=(layout,) if layout else None)
    jitted.lower(mw.ShapeDtype((B, N, 8), "f32")).compile()
    for b, n in SIZES:
        x = numbers(b, n, 8)
        found, _ = tree.flatten(jitted(x))
        wanted, _ = tree.flatten(function(np, x))
        for k, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert one.shape == np.shape(other)
            said = f"result {k} for b={b}, n={n}"
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5, err_msg=said)
    assert jitted.cache_info() == (len(SIZES), 0, 1)
    jitted.close()


def test_what_lies_behind_merged_ends_never_shows() -> None:
    jitted = mw.jit(lambda x: rows(mw, x))
    program = jitted.lower(mw.ShapeDtype((B, N, 8), "f32")).compile()
    x = numbers(2, 3, 8)
    before = [np.asarray(y) for y in program(x)]
    program(np.full((4, 6, 8), np.nan, np.float32))
    for one, other in zip(before, program(x), strict=True):
        assert np.array_equal(one, np.asarray(other))


def test_loops_carry_merged_sizes_in_their_order() -> None:
    def step(x: Any, turn: bool) -> Any:
        y = (mw.permute_dims(x, (1, 0, 2)) if turn else x).reshape(-1, 8)

        def one(carry: Any, _: Any) -> Any:
            return carry * 2.0, mw.sum(carry, axis=0)

        return mw.scan(one, y, None, length=2)

    for turn in (False, True):
        jitted = mw.jit(lambda x, turn=turn: step(x, turn))
        jitted.lower(mw.ShapeDtype((B, N, 8), "f32")).compile()
        for b, n in SIZES[:4]:
            x = numbers(b, n, 8)
            y = (x.transpose(1, 0, 2) if turn else x).reshape(-1, 8)
            last, sums = jitted(x)
            np.testing.assert_allclose(last, 4 * y, rtol=1e-6)
            np.testing.assert_allclose(sums, [y.sum(0), 2 * y.sum(0)], rtol=1e-4, atol=1e-5)


def test_results_lie_as_their_major_size_does() -> None:
    jitted = mw.jit(
        lambda x: x.reshape(-1, 8) * 2.0,
        mesh="x=2",
        in_layouts=("[x, _, _]",),
        out_layouts="[x, _]",
    )
    jitted.lower(mw.ShapeDtype((B, N, 8), "f32")).compile()
    x = numbers(3, 5, 8)
    found = jitted(x)
    assert str(found.layout) == "[x, _]"
    np.testing.assert_array_equal(found, x.reshape(-1, 8) * 2)


@pytest.mark.parametrize(("mesh", "layouts"), [(None, None), ("x=2", (None, "[x, _, _]"))])
def test_gradients_sum_over_merged_sizes(mesh: str | None, layouts: Any) -> None:
    def loss(w: Any, x: Any) -> Any:
        return mw.mean(mw.tanh(x.reshape(-1, 8) @ w) ** 2)

    jitted = mw.jit(mw.grad(loss), mesh=mesh, in_layouts=layouts)
    jitted.lower(W, mw.ShapeDtype((B, N, 8), "f32")).compile()
    for b, n in SIZES:
        x = numbers(b, n, 8)
        rows = x.reshape(-1, 8)
        y = np.tanh(rows @ W)
        wanted = rows.T @ (2 * y * (1 - y * y) / y.size)
        np.testing.assert_allclose(jitted(W, x), wanted, rtol=1e-4, atol=1e-6)
    assert jitted.cache_info() == (len(SIZES), 0, 1)
    jitted.close()


def test_jax_functions_may_merge_sizes() -> None:
    jax = pytest.importorskip("jax")

    def dense(x: Any, w: Any) -> Any:
        y = jax.nn.gelu(x.reshape(-1, 8) @ w)
        return y.reshape(*x.shape[:2], -1), y, y.mean(0)

    b, n = jax.export.symbolic_shape("b, n")
    kind = jax.ShapeDtypeStruct
    made = jax.export.export(jax.jit(dense))(kind((b, n, 8), "float32"), kind((8, 6), "float32"))
    for function in (dense, made.call):
        with mw.from_jax(
            function,
            mw.ShapeDtype((B, N, 8), "f32"),
            W,
            mesh="x=2",
            in_shardings=("[x, _, _]", None),
        ) as program:
            for size in SIZES[:4]:
                x = numbers(*size, 8)
                for one, other in zip(program(x, W), dense(x, W), strict=True):
                    assert one.shape == other.shape
                    np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.torch
def test_modules_of_pytorch_have_batch_and_length_of_any_size() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.norm = nn.Embedding(30, 8), nn.LayerNorm(8)
            self.into, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, tokens: Any) -> Any:
            x, (b, n) = self.table(tokens), tokens.shape
            rows = torch.addmm(self.into.bias, self.norm(x).view(-1, 8), self.into.weight.T)
            parts = rows.view(b, n, 24).split(8, dim=-1)
            q, k, v = (part.reshape(b, n, 2, 4).transpose(1, 2) for part in parts)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = x + self.out(mixed.transpose(1, 2).reshape(b, n, 8))
            return y, y.view(-1, 8), y.mean((0, 1))

    torch.manual_seed(0)
    module = Block().eval()
    args = (mw.ShapeDtype((B, N), "i64"),)
    heads = {"into.weight": "[tp, _]", "out.weight": "[_, tp]"}
    dims = {"tokens": {0: torch.export.Dim("b", max=4), 1: torch.export.Dim("n", max=6)}}
    exported = torch.export.export(
        module, (torch.zeros(3, 5, dtype=torch.int64),), dynamic_shapes=dims
    )
    compiler = mw.torch_backend()
    fast = torch.compile(module, backend=compiler, dynamic=True)
    with (
        torch.no_grad(),
        mw.from_torch(module, args, {"tokens": "[dp, _]", **heads}, "dp=2, tp=2") as sharded,
        mw.from_torch(exported) as brought,
    ):
        for b, n in ((4, 6), *SIZES[2:4], (1, 1)):
            tokens = torch.randint(0, 30, (b, n))
            wanted = module(tokens)
            for program in (sharded, brought, fast) if min(b, n) > 1 else (sharded, brought):
                for one, other in zip(program(tokens), wanted, strict=True):
                    assert one.shape == other.shape and torch.allclose(one, other, atol=1e-5)
    assert compiler.cache_info() == (2, 1, 1)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: mw.cumulative_sum(x.reshape(-1)),
        lambda x: mw.concat([x.reshape(-1), x.reshape(-1)]),
        lambda x: mw.pad(x.reshape(-1), ((0, 2),)),
    ],
    ids=["scan", "concat", "pad"],
)
def test_what_runs_along_a_merged_dim_needs_its_size_outside(function: Any) -> None:
    """Of 2 x n elements those of a call lie apart, of n x 2 side by side."""
    n = mw.Dim("n", max=11)
    inside = mw.jit(function, dims={"x": (None, n)})
    with pytest.raises(CompileError, match=r"along a dim of size 2\*n, .*: it may be the major"):
        inside(np.ones((2, 11), np.float32))
    outside, own = mw.jit(function, dims={"x": (n, None)}), mw.jit(function)
    for rows in (11, 3):
        x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
        np.testing.assert_array_equal(np.asarray(outside(x)), np.asarray(own(x)))


@pytest.mark.parametrize("shape", [(2, None), (2, None, 3), (None, 2)])
def test_places_in_a_merged_dim_are_those_of_the_call(shape: tuple[int | None, ...]) -> None:
    """Also where the first operand of an op says nothing of what was merged."""

    def placed(x: Any) -> Any:
        row = x.reshape(-1)
        count = x.shape[0] * x.shape[1] * (x.shape[2] if len(shape) == 3 else 1)
        added = mw.zeros(5, dtype=mw.float32).at[mw.arange(count) % 5].add(row)
        return mw.argmax(row), mw.zeros(70, dtype=mw.float32).at[mw.arange(count)].set(row), added

    n = mw.Dim("n", max=11)
    f = mw.jit(placed, dims={"x": tuple(None if size else n for size in shape)})
    for rows in (11, 4):
        x = np.random.default_rng(rows).standard_normal([size or rows for size in shape])
        x = x.astype(np.float32)
        at, put, added = map(np.asarray, f(x))
        row = x.reshape(-1)
        assert at == row.argmax()
        np.testing.assert_array_equal(put, np.pad(row, (0, 70 - row.size)))
        np.testing.assert_allclose(added, [row[k::5].sum() for k in range(5)], rtol=1e-4, atol=1e-5)


def test_what_reads_a_merged_dim_at_places_is_refused_by_name() -> None:
    n = mw.Dim("n", max=11)
    f = mw.jit(lambda x: mw.take(x.reshape(-1), mw.arange(3)), dims={"x": (None, n)})
    with pytest.raises(CompileError, match=r"read at, what lies behind the end of n"):
        f(np.ones((2, 11), np.float32))


@pytest.mark.parametrize("layout", ["[_*x]", "[2*_] order(0.1, 0.0)"])
def test_a_result_of_merged_size_in_other_layouts_than_blocks_is_refused(layout: str) -> None:
    f = mw.jit(lambda x: mw.concat([x, x]), mesh="x=2", in_layouts="[_]", out_layouts=layout)
    with pytest.raises(CompileError, match=r"result 0 in layout .* a result lies in plain blocks"):
        f.lower(mw.ShapeDtype((N,), "f32"))


def test_what_is_put_side_by_side_is_no_two_rows() -> None:
    """Of n and n elements the second ones begin at n, not at the bound: they were read from there."""
    n = mw.Dim("n", max=11)

    def joined(m: Any, x: Any) -> Any:
        return m.concat([x * 2, x], axis=0) * 2 - 1

    rows = mw.jit(lambda x: joined(mw, x).reshape(2, -1), dims={"x": (n,)})
    with pytest.raises(
        CompileError, match=r"n\*2 and 2\*n meet: their elements are in other orders"
    ):
        rows(np.ones(11, np.float32))
    meet = mw.jit(lambda x, y: joined(mw, x) + y.reshape(-1), dims={"x": (n,), "y": (None, n)})
    with pytest.raises(CompileError, match="their elements are in other orders"):
        meet(np.ones(11, np.float32), np.ones((2, 11), np.float32))
    pairs = mw.jit(lambda x: joined(mw, x).reshape(-1, 2) * 3, dims={"x": (n,)})
    for size in (11, 1, 4):
        x = np.arange(size, dtype=np.float32)
        right = (np.concatenate([x * 2, x]) * 2 - 1).reshape(-1, 2) * 3
        np.testing.assert_array_equal(np.asarray(pairs(x)), right)
