"""mw.vmap: what is computed for each place is what the function gives for that place alone."""

import inspect
import pkgutil
from importlib import import_module

import numpy as np
import pytest
from depth import deep, sampled
from traced import check, mw, run_all

import meshweave.frontends.python
from meshweave.errors import CompileError
from meshweave.frontends.python.mapping.rules import MADE_OF_OTHERS, REFUSED, RULES
from tests.python.test_names import ARRAYS, SAME, Named
from tests.python.test_sharded import FUNCTIONS
from tests.python.test_sharded import A as ROWS
from tests.python.test_sharded import B as COLUMNS
from tests.python.test_sharded import I as PLACES

RNG = np.random.default_rng(17)
X = RNG.standard_normal((4, 3, 5)).astype(np.float32)
W = RNG.standard_normal((5, 2)).astype(np.float32)


def several(array, axis=0):
    """Three arrays like one, stacked."""
    flipped = np.stack([array, array[::-1], np.roll(array, 1, axis=-1)])
    return np.moveaxis(np.sort(flipped, -1) if array is ARRAYS[-1] else flipped, 0, axis)


@sampled(2)
@pytest.mark.parametrize(
    ("mesh", "layouts", "part"),
    [("", None, 0), ("", None, 1), ("x=2", "auto", 2)],
    ids=["one", "one too", "two"],
)
@deep
def test_names_of_numpys_are_mapped(mesh, layouts, part):
    cases = dict(list(SAME.items())[part::3])
    stacks = [several(a) for a in ARRAYS]
    with np.errstate(all="ignore"):
        rows = [{n: np.asarray(f(np, Named(*[s[k] for s in stacks]))) for n, f in cases.items()}
                for k in range(3)]  # fmt: skip
    right = {n: np.stack([row[n] for row in rows]) for n in cases}
    traced = {n: mw.vmap(lambda *xs, f=f: f(mw, Named(*xs))) for n, f in cases.items()}
    spread = (
        {}
        if layouts is None
        else {"in_layouts": tuple(f"[{', '.join(['x', *'_' * (s.ndim - 1)])}]" for s in stacks)}
    )
    found = run_all(traced, *stacks, mesh=mesh, **spread)
    real = {n: (v.real + 2 * v.imag if np.iscomplexobj(v) else v) for n, v in right.items()}
    ours = {n: (v.real + 2 * v.imag if np.iscomplexobj(v) else v) for n, v in found.items()}
    check(ours, real, 5e-5)


@sampled(5)
@pytest.mark.parametrize(
    "axes", [(0, 0, 0), (1, None, 2), (None, 2, 0), (-1, None, None), (None, None, 1)]
)
def test_each_kind_of_function_is_mapped_along_any_dim(axes):
    arrays = (ROWS, COLUMNS, PLACES)
    given = [a if axis is None else several(a, axis) for a, axis in zip(arrays, axes)]

    def apart(f):
        def each(*xs):
            rows = [
                f(*[x if a is None else mw.take(x, k, axis=a) for x, a in zip(xs, axes)])
                for k in range(3)
            ]
            return mw.stack(rows, axis=1)

        return each

    # of one dim at least, so that the places may be the second one
    functions = {n: (lambda a, b, i, f=f: mw.atleast_1d(f(a, b, i))) for n, f in FUNCTIONS.items()}
    right = run_all({n: apart(f) for n, f in functions.items()}, *given)
    found = run_all({n: mw.vmap(f, axes, out_axes=1) for n, f in functions.items()}, *given)
    check(found, right, 1e-5)


def test_images_and_windows_are_mapped():
    images = RNG.standard_normal((3, 2, 7, 6, 4)).astype(np.float32)
    windows = RNG.standard_normal((3, 2, 3, 4, 5)).astype(np.float32)

    def conv(x, w):
        return mw.nn.conv(x, w, stride=2, padding=1)

    apart = {
        "image": lambda x, w, k: conv(x[k], w[0]),
        "window": lambda x, w, k: conv(x[0], w[k]),
        "both": lambda x, w, k: conv(x[k], w[k]),
        "pool": lambda x, w, k: mw.nn.max_pool(x[k], 2, padding=1),
        "slope": lambda x, w, k: mw.grad(lambda v: mw.sum(conv(x[k], v) ** 2))(w[0]),
    }
    mapped = {
        "image": lambda x, w: mw.vmap(conv, (0, None))(x, w[0]),
        "window": lambda x, w: mw.vmap(conv, (None, 0))(x[0], w),
        "both": lambda x, w: mw.vmap(conv)(x, w),
        "pool": lambda x, w: mw.vmap(lambda v: mw.nn.max_pool(v, 2, padding=1))(x),
        "slope": lambda x, w: mw.vmap(lambda v: mw.grad(lambda u: mw.sum(conv(v, u) ** 2))(w[0]))(
            x
        ),
    }
    right = {
        n: lambda x, w, f=f: mw.stack([f(x, w, k) for k in range(3)]) for n, f in apart.items()
    }
    check(run_all(mapped, images, windows), run_all(right, images, windows), 1e-4)


DRAWS = {
    "normal": lambda k: mw.random.normal(k, (3, 2)),
    "uniform": lambda k: mw.random.uniform(k, (4,), minval=1.0, maxval=3.0),
    "bernoulli": lambda k: mw.random.bernoulli(k, 0.3, (5,)),
    "randint": lambda k: mw.random.randint(k, (3,), 0, 10),
    "split": lambda k: mw.random.split(k, 3),
    "fold_in": lambda k: mw.random.fold_in(k, 7),
    "permutation": lambda k: mw.random.permutation(k, 6),
    "categorical": lambda k: mw.random.categorical(k, mw.asarray(X[0]), axis=0),
    "choice": lambda k: mw.random.choice(k, 5, (4,)),
}  # fmt: skip


def test_random_numbers_of_many_keys_are_those_of_each():
    keys = mw.random.split(mw.random.key(3), 3)
    given = {n: lambda ks, f=f: mw.vmap(f)(ks) for n, f in DRAWS.items()}
    nested = {"nested": lambda ks: mw.vmap(mw.vmap(DRAWS["normal"]))(mw.vmap(DRAWS["split"])(ks))}
    found = run_all({**given, **nested}, keys)
    for name, f in DRAWS.items():
        for k in range(3):
            np.testing.assert_array_equal(found[name][k], f(keys[k]), err_msg=name)
    inner = mw.random.split(keys[1], 3)
    np.testing.assert_array_equal(found["nested"][1, 2], DRAWS["normal"](inner[2]))
    slope = mw.vmap(mw.grad(lambda s, k: mw.sum(mw.random.normal(k, (4,)) * s)))(X[0, 0, :3], keys)
    each = [float(mw.sum(mw.random.normal(keys[k], (4,)))) for k in range(3)]
    np.testing.assert_allclose(slope, each, 1e-5)


def test_gradients_of_lookups_are_mapped():
    table = RNG.standard_normal((6, 5)).astype(np.float32)
    ids = np.array([[0, 5, 5], [-1, 2, 9], [1, 1, 1]])

    def loss(t, i):
        return mw.sum(mw.take(t, i, axis=0) ** 3)

    found = mw.vmap(mw.grad(loss), (None, 0))(table, ids)
    wanted = np.zeros((3, 6, 5), np.float32)
    for k, row in enumerate(np.clip(np.where(ids < 0, ids + 6, ids), 0, 5)):
        np.add.at(wanted[k], row, 3 * table[row] ** 2)
    np.testing.assert_allclose(found, wanted, 1e-5)


def primitives():
    home = meshweave.frontends.python
    for module in pkgutil.walk_packages(home.__path__, home.__name__ + "."):
        for value in vars(import_module(module.name)).values():
            if inspect.isfunction(value) and isinstance(getattr(value, "primitive", None), str):
                yield value.primitive


def test_every_primitive_has_a_rule_or_is_refused_in_a_line():
    found = set(primitives())
    assert len(found) > 60
    assert set(RULES) | MADE_OF_OTHERS | set(REFUSED) <= found
    assert len([n for n in found if n in RULES or n in MADE_OF_OTHERS]) > 0.9 * len(found)


def test_maps_nest_and_go_around_gradients_and_inside():
    def f(x, w):
        return mw.sum(mw.tanh(x @ w) ** 3)

    def slope(x, w):
        y = np.tanh(x @ w)
        return (3 * y**2 * (1 - y**2)) @ w.T

    each = mw.vmap(mw.vmap(mw.grad(f), (0, None)), (0, None))
    np.testing.assert_allclose(each(X, W), slope(X, W), 1e-4, 1e-5)
    total = mw.grad(lambda x: mw.sum(mw.vmap(mw.vmap(lambda r: f(r, W)), out_axes=0)(x)))
    np.testing.assert_allclose(total(X), slope(X, W), 1e-4, 1e-5)
    outer = mw.vmap(lambda a: mw.vmap(lambda b: a * b)(X[0, 0]), out_axes=1)(X[0, 0])
    np.testing.assert_allclose(outer, np.outer(X[0, 0], X[0, 0]))
    inside = mw.jit(
        lambda x: mw.vmap(mw.jit(lambda r: r @ W))(x), mesh="x=2", in_layouts="[x, _, _]"
    )
    np.testing.assert_allclose(inside(X), X @ W, 1e-5, 1e-5)
    around = mw.vmap(mw.jit(lambda r: r @ W, mesh="x=2"), in_axes=1, out_axes=1)
    assert around(X).mesh == mw.Mesh(x=2)
    np.testing.assert_allclose(around(X), X @ W, 1e-5, 1e-5)


def test_loops_and_branches_are_mapped():
    last, each = mw.vmap(
        lambda r, c: mw.scan(lambda c, v: (c + v, c * 2), c, r, reverse=True), in_axes=(1, None)
    )(X, np.zeros(5, np.float32))
    np.testing.assert_allclose(last, X.sum(0), 1e-5, 1e-6)
    assert each.shape == (3, 4, 5)
    np.testing.assert_allclose(each[:, 0], (X.sum(0) - X[0]) * 2, 1e-5, 1e-5)
    chosen = mw.vmap(
        lambda r: mw.cond(mw.sum(r) > 0, lambda v: {"a": v * 2}, lambda v: {"a": v}, r)
    )
    positive = X.sum((1, 2), keepdims=True) > 0
    np.testing.assert_allclose(chosen(X)["a"], np.where(positive, X * 2, X))
    common = mw.vmap(lambda r, p: mw.cond(p > 0, lambda: r * 2, lambda: r), in_axes=(0, None))
    np.testing.assert_allclose(common(X, np.float32(1)), X * 2)
    size = np.float32([1, 3, 9])
    doubled = mw.vmap(
        lambda v: mw.while_loop(lambda s: s[0] < 10, lambda s: (s[0] * 2, s[1] + 1), (v, 0))
    )
    value, count = doubled(size)
    np.testing.assert_array_equal(value, [16, 12, 18])
    np.testing.assert_array_equal(count, [4, 2, 1])
    slope = mw.grad(
        lambda x: mw.sum(
            mw.vmap(lambda r: mw.scan(lambda c, v: (c * v, None), mw.ones((5,)), r)[0])(x)
        )
    )
    np.testing.assert_allclose(slope(X), X.prod(1, keepdims=True) / X, 1e-3, 1e-4)


def test_pytrees_and_axes():
    made = mw.vmap(
        lambda p, q=None: {"s": p["a"] + p["b"], "c": 7},
        ({"a": 0, "b": None},),
        {"s": 1, "c": None},
    )
    found = made({"a": X, "b": X[0]})
    np.testing.assert_array_equal(found["s"], np.moveaxis(X + X[0], 0, 1))
    assert float(found["c"]) == 7
    ones = mw.vmap(lambda: mw.ones((2,)), axis_size=3)()
    assert ones.shape == (3, 2)


MISTAKES = {
    "sizes [3, 4] along in_axes": lambda: mw.vmap(lambda a, b: a)(X, X[0]),
    "in_axes names no dim": lambda: mw.vmap(lambda a: a, None)(X),
    "there is no dim 3": lambda: mw.vmap(lambda a: a, 3)(X),
    "has no dims: in_axes of None": lambda: mw.vmap(lambda a, b: a)(X, 2.0),
    "differs from place to place": lambda: mw.vmap(lambda a: a, out_axes=None)(X),
    "constrain says where": lambda: mw.vmap(lambda a: mw.constrain(a, "[_, _]"))(X),
    "a scan inside of a gradient inside": lambda: mw.vmap(
        mw.grad(lambda a: mw.sum(mw.scan(lambda c, v: (c * v, None), a[0], a)[0]))
    )(X),
    "in_axes": lambda: mw.vmap(lambda a: a, (0, 0))(X),
}  # fmt: skip


@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_is_one_line(said):
    with pytest.raises(mw.MeshweaveError) as caught:
        MISTAKES[said]()
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_value_of_a_map_does_not_leave_it():
    kept = []

    def leaks(x):
        mw.vmap(lambda r: kept.append(r) or r)(x)
        return kept[0] + 1

    with pytest.raises(CompileError, match="used outside of it: return it"):
        mw.jit(leaks)(X)
