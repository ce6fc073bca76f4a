"""What operators on cut tensors bring a rank: results against JAX on one device, bytes, and the proof."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from depth import sampled, some, thinned

import meshweave as mw
from meshweave.api.program import reported
from meshweave.frontends.stablehlo.lowerings.reshape import middle

jax = pytest.importorskip("jax")
jnp = jax.numpy
MESHES = ("x=2", "x=3", "x=4", "x=2, y=2")
LAYOUTS = {
    "x=2": ("[x, _]", "[_, x]", "[_*x, _]"),
    "x=3": ("[x, _]", "[_, x]"),
    "x=4": ("[x, _]", "[_, x]", "[_*x, _]"),
    "x=2, y=2": ("[x, y]", "[y, x]", "[x*y, _]", "[_, y*x]"),
}
CASES = [(mesh, layout) for mesh in MESHES for layout in LAYOUTS[mesh]]


def runs(
    function: Any, *arrays: Any, mesh: str, layouts: tuple[str, ...], proven: bool = True
) -> dict[str, int]:
    """Compare what `function` gives on a mesh with what JAX gives; return the bytes of each collective.

    proven: whether some result is to be proven.
    """
    program = mw.from_jax(function, *arrays, mesh=mesh, in_shardings=layouts)
    found, right = program(*arrays), jax.jit(function)(*arrays)
    is_ours = lambda value: isinstance(value, mw.Array)  # noqa: E731
    for mine, theirs in zip(
        jax.tree.leaves(found, is_leaf=is_ours), jax.tree.leaves(right), strict=True
    ):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-5, atol=1e-5)
    decided = reported(program.text, "f", None, "local")
    assert decided.certificate.proven or not proven, str(decided.certificate)
    moved: dict[str, int] = {}
    for row in decided.collectives:
        moved[row.op] = moved.get(row.op, 0) + row.nbytes
    program.close()
    return moved


def drawn(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Draw whole numbers, of which many are equal; some floats are NaN."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-3, 4, shape).astype(dtype)
    if dtype.startswith("f"):
        values[rng.random(shape) < 0.05] = np.nan
    return values


@sampled(4)
@pytest.mark.parametrize("dtype", ["f4", "i4", "f2", "i1"])
@pytest.mark.parametrize("cut", some(CASES, 4))
def test_places_of_extremes_bring_pairs(cut: tuple[str, str], dtype: str) -> None:
    for number, shape in enumerate([(8, 12), (7, 5), (5, 1), (1, 9)]):
        x = drawn(shape, dtype, number)
        by = lambda x: (jnp.argmax(x, 0), jnp.argmin(x, 1), jnp.argmax(x))  # noqa: E731
        runs(by, x, mesh=cut[0], layouts=(cut[1],))


def test_an_extreme_of_columns_brings_a_number_and_a_place_of_each() -> None:
    x = drawn((64, 10), "f4", 3)
    by = lambda x: jnp.argmax(x, 0)  # noqa: E731
    assert runs(by, x, mesh="x=2", layouts=("[x, _]",)) == {"all_reduce": 10 * (4 + 4)}
    assert runs(by, x, mesh="x=4", layouts=("[x, _]",)) == {"all_reduce": 15 * (4 + 4)}


@pytest.mark.parametrize("cut", some(CASES, 12))
def test_a_window_at_a_known_place_is_put_into_pieces(cut: tuple[str, str]) -> None:
    x = np.random.default_rng(5).standard_normal((9, 11)).astype("f4")
    for by in (
        lambda x: x.at[1:-1, 2:-1].set(x[1:-1, 2:-1] * 2),
        lambda x: x.at[3].set(0),
        lambda x: x.at[1:8].add(1),
        lambda x: x.at[:, -1].set(x[:, 0]),
        lambda x: x.at[2, 3].multiply(7),
        lambda x: x.at[0:1, 4:6].min(-1),
        lambda x: x.at[12].set(3, mode="drop"),
    ):
        runs(by, x, mesh=cut[0], layouts=(cut[1],))


def test_inner_points_that_are_set_bring_edges() -> None:
    u = np.random.default_rng(6).standard_normal((64, 64)).astype("f4")

    def step(u: Any) -> Any:
        sides = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        return u.at[1:-1, 1:-1].set(sides / 4)

    assert runs(step, u, mesh="x=2", layouts=("[x, _]",)) == {"exchange": 64 * 4}
    assert runs(step, u, mesh="x=4", layouts=("[x, _]",)) == {"exchange": 2 * 64 * 4}
    assert runs(step, u, mesh="x=4", layouts=("[_, x]",)) == {"exchange": 2 * 64 * 4}
    assert runs(step, u, mesh="x=2, y=2", layouts=("[x, y]",)) == {"exchange": 65 * 4}

    def padded(u: Any) -> Any:
        p = jnp.pad(u, 1, constant_values=3)
        return p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] - p[1:-1, 2:]

    for mesh, layout, count in (("x=4", "[x, _]", 2 * 64), ("x=2, y=2", "[x, y]", 65)):
        moved = runs(padded, u, mesh=mesh, layouts=(layout,), proven=False)
        assert moved == {"exchange": count * 4}


def test_points_are_computed_where_they_are_put() -> None:
    """Divisions of integers must not meet what a rank has beyond the ends, and stay where they are."""
    rng = np.random.default_rng(8)
    for shape, mesh in (((13, 7), "x=3"), ((23, 3), "x=4")):
        u = rng.integers(1, 9, shape).astype("i4")
        for by in (
            lambda u: u.at[1:-2].set(u[:-3] + u[3:] * 2),
            lambda u: u.at[1:-1].set(u[2:] // u[:-2] + 1),
            lambda u: u.at[1:-1].set(jnp.where(u[2:] > 4, u[:-2], u[1:-1]) ** 2 + u[:-2]),
        ):
            runs(by, u, mesh=mesh, layouts=("[x, _]",))


def test_one_row_stays_where_it_is() -> None:
    rng = np.random.default_rng(7)
    x, w = (rng.standard_normal(s).astype("f4") for s in ((1, 48), (48, 40)))

    def layer(x: Any, w: Any) -> Any:
        h = jax.nn.gelu(x @ w)
        return (h - h.mean(-1, keepdims=True)) / h.std(-1, keepdims=True)

    assert runs(layer, x, w, mesh="x=2", layouts=("[x, _]", "[_, _]")) == {}
    image, kernel = (rng.standard_normal(s).astype("f4") for s in ((1, 3, 9, 9), (4, 3, 3, 3)))
    convolved = lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")  # noqa: E731
    whole, cut = "[_, _, _, _]", "[x, _, _, _]"
    assert runs(convolved, image, kernel, mesh="x=3", layouts=(cut, whole)) == {}


@pytest.mark.parametrize("rows", some([1, 2, 3], 2))
def test_fewer_rows_than_ranks(rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, 6)).astype("f4")
    by = lambda x: (jax.nn.softmax(x), x.sum(0), x.T @ x)  # noqa: E731
    for mesh, layout in (("x=4", "[x, _]"), ("x=2, y=2", "[x*y, _]"), ("x=2, y=2", "[y, x]")):
        runs(by, x, mesh=mesh, layouts=(layout,))


@pytest.mark.parametrize("cut", some(CASES, 8))
def test_flips_exchange_blocks(cut: tuple[str, str]) -> None:
    for shape in ((8, 12), (12, 8), (7, 5)):
        x = np.arange(float(np.prod(shape)), dtype="f4").reshape(shape)
        by = lambda x: (x[::-1] * 2, x[:, ::-1], jnp.flip(x) + x)  # noqa: E731
        runs(by, x, mesh=cut[0], layouts=(cut[1],))


def test_a_flip_brings_a_block() -> None:
    x = np.zeros((12, 5), "f4")
    for mesh in ("x=2", "x=3", "x=4"):
        rows = 12 // int(mesh[-1])
        moved = runs(lambda x: x[::-1], x, mesh=mesh, layouts=("[x, _]",))
        assert moved == {"permute": rows * 5 * 4}


@pytest.mark.parametrize("cut", some(CASES, 5))
def test_places_are_counted_where_they_are_wanted(cut: tuple[str, str]) -> None:
    x = np.random.default_rng(8).standard_normal((9, 9)).astype("f4")
    by = lambda x: (jnp.tril(x), jnp.where(jnp.arange(9) > jnp.arange(9)[:, None], x, 0))  # noqa: E731
    assert runs(by, x, mesh=cut[0], layouts=(cut[1],)) == {}


@pytest.mark.parametrize("cut", some(CASES, 20))
def test_an_axis_goes_to_another_dim_where_its_own_must_be_whole(cut: tuple[str, str]) -> None:
    for shape in thinned(((8, 12), (12, 8), (7, 5)), 2):
        x = np.random.default_rng(9).standard_normal(shape).astype("f4")
        by = lambda x: (jnp.sort(x, 1), jnp.argsort(x, 0), jax.lax.top_k(x, 3))  # noqa: E731
        runs(by, x, mesh=cut[0], layouts=(cut[1],))
        transform = lambda x: jnp.fft.irfft(jnp.fft.rfft(x, axis=0) * 2, n=8, axis=0)  # noqa: E731
        runs(transform, x, mesh=cut[0], layouts=(cut[1],))


def test_a_sort_of_columns_brings_whole_columns() -> None:
    x = np.random.default_rng(10).standard_normal((64, 16)).astype("f4")
    moved = runs(lambda x: jnp.sort(x, 0), x, mesh="x=2", layouts=("[x, _]",))
    assert moved == {"all_to_all": 32 * 8 * 4}
    moved = runs(lambda x: jnp.sort(x, 0), x, mesh="x=4", layouts=("[x, _]",))
    assert moved == {"all_to_all": 48 * 4 * 4}
    moved = runs(lambda x: jnp.sort(x[:, :3], 0), x, mesh="x=2", layouts=("[x, _]",))
    assert moved == {"merge": 32 * 3 * 4}


def test_the_gradient_of_a_sort_is_sorted_back() -> None:
    x, w = np.random.default_rng(12).integers(-9, 9, (2, 64, 3)).astype("f4")
    slope = jax.grad(lambda x, w: (jnp.sort(x, 0) * w).sum())
    moved = runs(slope, x, w, mesh="x=2", layouts=("[x, _]", "[x, _]"))
    assert moved == {"merge": 2 * 2 * 32 * 3 * 4}
    slope = jax.grad(lambda x, w: (jnp.sort(x) * w).sum())
    moved = runs(slope, x[:, 0], w[:, 0], mesh="x=4", layouts=("[x]", "[x]"))
    assert moved == {"merge": 2 * 2 * 16 * 4}


def test_other_updates_at_places_of_a_sort_stay_scatters() -> None:
    x = np.random.default_rng(13).standard_normal((2, 6)).astype("f4")
    longer = lambda x: jnp.zeros(9).at[jnp.argsort(x[0])].add(x[1])  # noqa: E731
    one = lambda x: x.at[0, jnp.argsort(x[0])[2]].set(7.0)  # noqa: E731
    whole = lambda x: x[0].at[jnp.argsort(x[1])].multiply(x[1])  # noqa: E731
    for by in (longer, one, whole):
        runs(by, x, mesh="x=2", layouts=("[_, x]",))


def test_a_reshape_goes_group_by_group() -> None:
    assert middle((4, 8, 8, 16), (4, 64, 4, 4)) == (4, 64, 16)
    assert middle((2, 6, 5), (3, 4, 5)) == (12, 5)
    assert middle((4, 1, 8), (4, 8)) == (4, 8)
    for source, target in (
        ((6, 4), (8, 3)),
        ((1, 8), (8,)),
        ((6,), (2, 3)),
        ((), (1,)),
        ((0, 2), (2, 0)),
    ):
        assert middle(source, target) is None


@pytest.mark.parametrize("layout", ["[x, _, _, _]", "[_, x, _, _]", "[_, _, _, x]"])
def test_a_reshape_keeps_what_is_cut(layout: str) -> None:
    x = np.random.default_rng(11).standard_normal((6, 8, 3, 16)).astype("f4")
    by = lambda x: x.reshape(-1, 24, 4, 4) * 2  # noqa: E731
    assert runs(by, x, mesh="x=2", layouts=(layout,)) == {}
    runs(by, x[:5], mesh="x=4", layouts=(layout,))
