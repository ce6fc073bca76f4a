"""Run as one rank of a job: do everything that a program may do, against NumPy.

Usage: everything.py FOLDER [deep] [jax] [torch].
"""

import sys
from functools import partial

import numpy as np

import meshweave as mw
from meshweave.layout import Layout
from meshweave.layout.digits import scatter, without_padding

DEEP = "deep" in sys.argv


def whole(array: mw.Array) -> np.ndarray:
    return np.asarray(mw.redistribute(array, str(Layout.replicated(len(array.shape)))))


def parts(value: np.ndarray, mesh: mw.Mesh, layout: str) -> np.ndarray:
    """What this rank holds of a value, as all ranks in one process would have it."""
    laid, rank = Layout.parse(layout), mw.rank()
    shard = scatter(value, mesh, laid)[rank]
    return without_padding(shard, mesh, laid, value.shape, rank)


def layouts(mesh: mw.Mesh, rng: np.random.Generator, folder: str) -> None:
    """Uneven blocks, cyclic ones, two axes on a dim, empty parts: in, through programs and files, and out again."""
    every = (
        ((7, 3), "[a*b, _]"), ((5, 6), "[b, a]"), ((9, 2), "[_*a*2, b]"), ((1, 5), "[a, b]"), ((3, 4), "[_, a]"),
    )  # fmt: skip
    for shape, layout in every if DEEP else every[::2]:
        value = rng.standard_normal(shape).astype("f4")
        own = parts(value, mesh, layout)
        array = mw.Array.from_local(own, mesh=mesh, layout=layout, shape=shape)
        assert np.array_equal(array.local(), own)
        assert np.array_equal(mw.Array.from_numpy(value, mesh=mesh, layout=layout).local(), own)
        assert np.array_equal(whole(array), value), layout
        assert np.array_equal(whole(array * 2.0 + array), value * 2 + value)
        assert np.allclose(float(mw.sum(array * array)), (value * value).sum(), rtol=1e-5)
        array.save(f"{folder}/a", overwrite=True)
        moved = mw.load(f"{folder}/a", mesh=mesh, layout="[_, b]")
        assert np.array_equal(moved.local(), parts(value, mesh, "[_, b]"))
        mw.save({"w": array, "n": 3}, f"{folder}/t.safetensors")
        tree = mw.load(f"{folder}/t.safetensors")
        assert np.array_equal(tree["w"].local(), own) and int(tree["n"]) == 3
        read = mw.load_safetensors(f"{folder}/t.safetensors", {"w": layout}, mesh=mesh)["w"]
        assert np.array_equal(read.local(), own)


def other_meshes(mesh: mw.Mesh, rng: np.random.Generator) -> None:
    """The same ranks along other axes, with sums to do, memory orders and uneven parts; and each process for itself."""
    size, value = mw.size(), rng.integers(-4, 5, (7, 5)).astype("f4")
    row, turned = mw.Mesh(r=size), mw.Mesh(p=2, q=size // 2)
    for before, other, after in (
        ("[a*b, _]", turned, "[q, p]"), ("[_*b, a]", row, "[_, _*r]"),
        ("[_, a] order(1, 0)", turned, "[p, _] order(1, 0)"), ("[b, _] +sum(a)", row, "[r, _]"),
        ("[_, _] +max(b)", row, "[_, _] +sum(r)"), ("[b, a]", turned, "[q*p, _] uneven(nested)"),
    ):  # fmt: skip
        array = mw.Array.from_numpy(value, mesh=mesh, layout=before)
        moved = array.redistribute(after, mesh=other)
        assert (moved.mesh, str(moved.layout)) == (other, after)
        assert np.array_equal(whole(moved), value), (before, after)
        if "+" not in after:
            assert np.array_equal(moved.local(), parts(value, other, after)), (before, after)
    alone = array.redistribute("[_, _] order(1, 0)", mesh="")
    assert alone.mesh.nranks == 1 and np.array_equal(np.asarray(alone), value)
    assert np.array_equal(
        alone.redistribute("[b, a]", mesh=mesh).local(), parts(value, mesh, "[b, a]")
    )
    with mw.expect(bytes=0):  # rows of a and b are rows of r
        mw.redistribute(
            mw.Array.from_numpy(value, mesh=mesh, layout="[a*b, _]"), "[r, _]", mesh=row
        )
    try:
        array.redistribute("[z, _]", mesh=f"z={size + 1}")
    except mw.errors.MeshweaveError as error:
        assert f"this job has {size} processes: as many, or one, are right" in error.message
    else:
        raise AssertionError("an array went to ranks that there are not")


def elements(mesh: mw.Mesh, rng: np.random.Generator) -> None:
    """Assignment to elements, of numbers, of arrays and of Arrays that lie in parts, is NumPy's."""
    mask, new = rng.random((7, 5)) > 0.5, rng.standard_normal((7, 5)).astype("f4")
    keys = (3, (..., -1), slice(5, 1, -2), [0, 6, 2], mask, (np.array([1, 5]), np.array([2, 3])))
    every = ("[_*b, a]", "[a*b, _]", "[_, a] order(1, 0)", "[_, _] +sum(b)")
    for layout in every if DEEP else every[::3]:
        value = rng.standard_normal((7, 5)).astype("f4")
        array = mw.Array.from_numpy(value, mesh=mesh, layout=layout)
        part = mw.Array.from_numpy(new[:3], mesh=mesh, layout="[a, b]")
        where = mw.Array.from_numpy(~mask, mesh=mesh, layout="[b, _]")
        for key, to in (*((key, new[key]) for key in keys), (slice(1, 4), part), (where, 2.0)):
            array[key] = to
            value[np.asarray(~mask) if key is where else key] = new[:3] if to is part else to
            assert str(array.layout) == layout
            assert np.allclose(whole(array), value, atol=1e-6), (layout, key)
    try:
        array[mw.rank()] = 1.0
    except mw.errors.RankError as error:
        assert "the index is not the same on all ranks" in error.message, error
    else:
        raise AssertionError("the ranks assigned to elements of their own")


def training(mesh: mw.Mesh, rng: np.random.Generator) -> None:
    """Steps of data-parallel training: the losses and the weights are those of one process."""
    x, y = rng.standard_normal((10, 6)).astype("f4"), rng.standard_normal((10, 3)).astype("f4")
    w = rng.standard_normal((6, 3)).astype("f4")

    def step(w, x, y):  # type: ignore[no-untyped-def]
        error = x @ w - y
        gradient = (2.0 / 30) * (mw.matrix_transpose(x) @ error)
        return w - 0.1 * gradient, mw.mean(error * error)

    placed = {"w": "[_, _]", "x": "[a*b, _]", "y": "[a*b, _]"}
    ours = mw.jit(step, mesh=mesh, in_layouts=placed, out_layouts=("[_, _]", "[]"))
    given = [
        mw.Array.from_local(parts(v, mesh, "[a*b, _]"), mesh=mesh, layout="[a*b, _]", shape=v.shape)
        for v in (x, y)
    ]
    state: object = w
    for _ in range(5):
        state, loss = ours(state, *given)
        error = x @ w - y
        assert np.allclose(float(loss), (error * error).mean(), rtol=1e-5)
        w = w - np.float32(0.1) * (np.float32(2.0 / 30) * (x.T @ error))
    assert np.allclose(np.asarray(state), w, atol=1e-5)
    assert ours.cache_info().misses == 2  # NumPy's weights at first, then Arrays


def sources(mesh: mw.Mesh, rng: np.random.Generator) -> None:
    """Programs in MLIR, and of JAX and PyTorch where these are installed."""
    x, w = rng.standard_normal((6, 8)).astype("f4"), rng.standard_normal((8, 5)).astype("f4")
    type_ = "tensor<6x8xf32>"
    text = f"func.func @main(%x: {type_}) -> {type_} {{ %y = arith.addf %x, %x : {type_} return %y : {type_} }}"
    (doubled,) = mw.from_mlir(text, mesh=mesh)(x)
    assert np.array_equal(whole(doubled), x + x)
    if "jax" in sys.argv:
        import jax.numpy as jnp

        shardings = ("[a, b]", "[b, _]")
        program = mw.from_jax(lambda x, w: jnp.tanh(x @ w), x, w, in_shardings=shardings, mesh=mesh)
        for _ in range(2):
            assert np.allclose(whole(program(x, w)), np.tanh(x @ w), atol=1e-5)
    if "torch" in sys.argv:
        import torch

        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.GELU(), torch.nn.Linear(6, 3))
        placed = {"0.weight": "[a, _]", "2.weight": "[_, a]"}
        wanted = module(torch.from_numpy(x)).detach().numpy()
        with mw.from_torch(module.eval(), (torch.from_numpy(x),), placed, mesh=mesh) as ours:
            assert np.allclose(whole(ours(torch.from_numpy(x))), wanted, atol=1e-5)
        options = {"mesh": mesh, "placements": placed}
        fast = torch.compile(module, backend="meshweave", options=options)
        with torch.no_grad():
            assert np.allclose(fast(torch.from_numpy(x)).numpy(), wanted, atol=1e-5)
        gradients = []
        for each in (module, fast):
            module.zero_grad()
            (each(torch.from_numpy(x)) ** 2).sum().backward()
            gradients.append([p.grad.clone() for p in module.parameters()])
        assert all(map(partial(torch.allclose, atol=1e-4), *gradients))


def traced(mesh: mw.Mesh) -> None:
    """Each process traces its own rank: two programs by turns, each of which has marks of its own."""
    summed = mw.jit(lambda x: mw.sum(x, axis=0), mesh=mesh, in_layouts="[b, _]", out_layouts="[_]")
    turned = mw.jit(lambda x: x.T * 2.0, mesh=mesh, in_layouts="[b, _]", out_layouts="[_, b]")
    given = np.ones((4, 6), "f4")
    with mw.trace() as t:
        for _ in range(3):
            summed(given)
            turned(given)
    summed(given)
    assert (t.calls, t.unseen, t.dropped) == (6, 0, 0) and {s.rank for s in t.slices} == {mw.rank()}
    calls = [[s.name for s in t.slices if s.call == k and s.kind != "wait"] for k in range(6)]
    assert calls[::2] == [calls[0]] * 3 and calls[1::2] == [calls[1]] * 3, calls
    assert calls[0][-1].startswith("all_reduce[b]") and len(calls[1]) == 1, calls


def main() -> None:
    mw.init()
    mw.init()  # a second time changes nothing
    mesh = mw.Mesh(a=mw.size() // 2, b=2)
    rng = np.random.default_rng(7)
    layouts(mesh, rng, sys.argv[1])
    other_meshes(mesh, rng)
    elements(mesh, rng)
    training(mesh, rng)
    sources(mesh, rng)
    traced(mesh)
    alone = mw.jit(lambda x: x + 1)(np.arange(3))  # without a mesh each process is for itself
    assert np.asarray(alone).tolist() == [1, 2, 3]
    sys.stdout.write(f"rank {mw.rank()} of {mw.size()} is done\n")


main()
