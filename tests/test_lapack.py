"""LAPACK routines against NumPy: batches, odd sizes, empty ones, ranks that hold parts of the batch."""

import itertools

import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave.api import program as api
from meshweave.bundle import Bundle
from meshweave.errors import CompileError, MeshweaveError
from meshweave.hints.fast_paths import as_choice
from meshweave.ir.routines import ROUTINES
from meshweave.runtime import engine
from meshweave.transforms.kernels.select_kernels import kernel_rows
from tests.executed import on

ELEMENTS = {"f32": "float32", "f64": "float64"}
TOLERANCE = {"float32": 2e-4, "float64": 1e-11}
BATCHES = ((), (3,), (2, 0, 2), (2, 3))


def sample(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def positive(shape, dtype):
    """Symmetric positive matrices."""
    a = sample((*shape, shape[-1]), dtype)
    return a @ a.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1], dtype=dtype)


def type_of(shape, element):
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def program(routine, shapes, element="f32", flags="", layouts=None):
    """The text of a program that calls a routine on operands of these shapes and gives all results."""
    row = ROUTINES[routine]
    batch = shapes[0][: len(shapes[0]) - len(row.operands[0])]
    sizes = {"c": 2}
    for shape, dims in zip(shapes, row.operands, strict=True):
        sizes |= zip(dims.strip("#"), shape[len(batch) :], strict=True)
    sizes["k"] = min(sizes.get("m", 0), sizes.get("n", 0))
    sizes["h"] = max(1, sizes.get("n", 0) - 1)
    made = [(*batch, *[sizes[d] for d in dims]) for dims in row.tensors]
    types = [type_of(s, e) for s, e in zip(made, row.types(element), strict=True)]
    said = layouts or [f"[{', '.join('_' * len(shape))}]" for shape in made]
    ports = [f"{t} {{{x}}}" for t, x in zip(types, said, strict=True)]
    count = len(shapes)
    names = ", ".join(f"%a{k}" for k in range(count))
    arguments = ", ".join(f"%a{k}: {p}" for k, p in enumerate(ports[:count]))
    values = ", ".join(f"%0#{k}" for k in range(len(types) - count))
    return f"""
func.func public @main({arguments}) -> ({", ".join(ports[count:])}) {{
  %0:{len(types) - count} = "mw.lapack"({names}) {{routine = "{routine}"{flags}}}
    : ({", ".join(types[:count])}) -> ({", ".join(types[count:])})
  return {values} : {", ".join(types[count:])}
}}"""


def call(routine, *operands, flags="", mesh="", layouts=None, **options):
    """The results of a routine, whose program is proven on every rank."""
    element = {v: k for k, v in ELEMENTS.items()}[str(operands[0].dtype)]
    text = program(routine, [a.shape for a in operands], element, flags, layouts)
    text = on(mesh or "x=1", text)
    with mw.compile(text, timeout=60, **options) as compiled:
        return compiled(*operands)


def close(got, wanted):
    tolerance = TOLERANCE[str(np.asarray(wanted).dtype)]
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def triangle(a, lower):
    return np.tril(a) if lower else np.triu(a)


def unpacked(factors):
    """The lower and the upper factor of LU in one matrix."""
    m, n = factors.shape[-2:]
    k = min(m, n)
    return np.tril(factors[..., :, :k], -1) + np.eye(m, k), np.triu(factors[..., :k, :])


def swapped(pivots, rows):
    """The order of rows that pivots say."""
    order = list(range(rows))
    for k, pivot in enumerate(pivots):
        order[k], order[pivot - 1] = order[pivot - 1], order[k]
    return order


@sampled(5)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("kernels", [None, "-lapack"])
def test_cholesky(dtype, batch, kernels):
    for size, lower in ((1, True), (5, True), (6, False)):
        a = positive((*batch, size), dtype)
        factor, info = call("potrf", a, flags=", lower" if lower else "", kernels=kernels)
        wanted = np.linalg.cholesky(a)
        close(triangle(factor, lower), wanted if lower else wanted.swapaxes(-1, -2))
        changed = factor != a
        assert not (changed & ~triangle(np.ones_like(changed), lower)).any(), "the other one stays"
        assert info.shape == batch and not info.any()


def test_parts_of_tensors():
    """Operands and results that lie in larger tensors are copied, but for those without gaps."""
    a = positive((4, 5), "float64")
    lin = mw.linalg

    def parts(a):
        whole = lin.cholesky(a)
        made = mw.concat([lin.cholesky(a[1:2]), lin.cholesky(a[2:])], axis=0)
        return whole, made, lin.cholesky(a[::2, :3, 1:4] @ a[::2, :3, 1:4].mT), lin.inv(a.mT[3])

    for got, wanted in zip(
        mw.jit(parts)(a),
        (
            np.linalg.cholesky(a),
            np.linalg.cholesky(a[1:]),
            np.linalg.cholesky(a[::2, :3, 1:4] @ a[::2, :3, 1:4].swapaxes(1, 2)),
            np.linalg.inv(a.mT[3]),
        ),
        strict=True,
    ):
        close(np.asarray(got), wanted)


def test_cholesky_tells_at_which_step_there_is_no_factor():
    a = np.stack([np.eye(4), np.diag([1.0, 1, -1, 1]), np.diag([0.0, 1, 1, 1])]).astype("float32")
    for kernels in (None, "-lapack"):
        assert call("potrf", a, flags=", lower", kernels=kernels)[1].tolist() == [0, 3, 1]


@sampled(5)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize("shape", [(1, 1), (5, 5), (7, 3), (3, 8), (0, 4), (40, 33)])
@pytest.mark.parametrize("kernels", [None, "-lapack"])
def test_lu(dtype, shape, kernels):
    a = sample((2, *shape), dtype)
    factors, pivots, info = call("getrf", a, kernels=kernels)
    assert pivots.dtype == np.int32 and info.tolist() == [0, 0]
    for k in range(2):
        lower, upper = unpacked(factors[k])
        close((lower @ upper).astype(dtype), a[k][swapped(pivots[k], shape[0])])


def test_lu_tells_the_first_step_without_a_pivot():
    a = np.stack([np.eye(3), np.ones((3, 3))])
    for kernels in (None, "-lapack"):
        assert call("getrf", a, kernels=kernels)[2].tolist() == [0, 2]


@sampled(4)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize("routine", ["trsm_left", "trsm_right"])
@pytest.mark.parametrize("kernels", [None, "-lapack"])
def test_triangular_systems(dtype, routine, kernels):
    left = routine == "trsm_left"
    for lower, transposed, unit in itertools.product((True, False), repeat=3):
        a = sample((2, 4, 4), dtype) / 4 + np.eye(4, dtype=dtype)
        b = sample((2, 4, 3) if left else (2, 3, 4), dtype)
        said = {"lower": lower, "transposed": transposed, "unit": unit}
        flags = "".join(f", {name}" for name, holds in said.items() if holds)
        (x,) = call(routine, a, b, flags=flags, kernels=kernels)
        system = triangle(a, lower)
        if unit:
            system = system - system * np.eye(4, dtype=dtype) + np.eye(4, dtype=dtype)
        if transposed:
            system = system.swapaxes(1, 2)
        close(system @ x if left else x @ system, b)


def test_rows_are_swapped_as_lu_says():
    a = sample((3, 6, 4), "float32")
    pivots = call("getrf", a)[1]
    (swapped_,) = call("laswp", a, pivots)
    for k in range(3):
        np.testing.assert_array_equal(swapped_[k], a[k][swapped(pivots[k], 6)])
    np.testing.assert_array_equal(call("laswp", swapped_, pivots, flags=", transposed")[0], a)
    wrong = np.array([[-5, 99]] * 3, np.int32)  # the nearest row, never one outside
    np.testing.assert_array_equal(call("laswp", a, wrong)[0], a[:, [0, 5, 2, 3, 4, 1]])


def test_triangular_systems_without_unknowns_or_sides():
    for size, sides in ((0, 3), (4, 0), (1, 1)):
        a, b = np.full((size, size), 2.0), np.ones((size, sides))
        (x,) = call("trsm_left", a, b, flags=", lower")
        np.testing.assert_array_equal(x, b / 2)


SHAPES = [(1, 1), (6, 6), (9, 4), (3, 8), (70, 65), (40, 3), (2, 50)]


def orthonormal(q):
    """Whether columns are of length 1 and apart from each other."""
    found = q.swapaxes(-1, -2) @ q
    close(found, np.zeros_like(found) + np.eye(q.shape[-1], dtype=q.dtype))


@sampled(3)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize("shape", SHAPES)
def test_qr(dtype, shape):
    a, k = sample((2, *shape), dtype), min(shape)
    packed, scales = call("geqrf", a)
    (q,) = call("orgqr", np.ascontiguousarray(packed[..., :k]), scales)
    orthonormal(q)
    close(q @ np.triu(packed[..., :k, :]), a)
    wanted = np.linalg.qr(a)
    close(q, wanted.Q)  # the signs too: LAPACK's
    close(np.triu(packed[..., :k, :]), wanted.R)


def test_the_first_columns_of_q_and_all_of_them():
    a = sample((5, 3), "float64")
    packed, scales = call("geqrf", a)
    wide = np.concatenate([packed, np.zeros((5, 2))], 1)
    (q,) = call("orgqr", wide, scales)
    orthonormal(q)
    (first,) = call("orgqr", packed, scales[:2])
    close(first[:, :2], q[:, :2])


@sampled(3)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_and_their_vectors(dtype, shape):
    a, k = sample((2, *shape), dtype), min(shape)
    wanted = np.linalg.svd(a, compute_uv=False)
    for routine, (m, n) in (
        ("gesdd", (k, k)), ("gesdd_full", shape), ("gesvd", (k, k)), ("gesvd_full", shape),
    ):  # fmt: skip
        values, u, vt, info = call(routine, a)
        assert u.shape == (2, shape[0], m) and vt.shape == (2, n, shape[1]) and not info.any()
        orthonormal(u)
        orthonormal(vt.swapaxes(-1, -2))
        close(values, wanted)
        close(u[..., :k] * values[:, None] @ vt[:, :k], a)
    for routine in ("gesdd_values", "gesvd_values"):
        values, info = call(routine, a)
        close(values, wanted)
        assert not info.any()


@sampled(5)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize("size", [1, 2, 7, 40])
@pytest.mark.parametrize("lower", [True, False])
def test_eigenvectors_of_one_triangle(dtype, size, lower):
    a = sample((3, size, size), dtype)
    whole = triangle(a, lower) + triangle(a, lower).swapaxes(1, 2) * (1 - np.eye(size, dtype=dtype))
    flags = ", lower" if lower else ""
    vectors, values, info = call("syevd", a, flags=flags)
    assert not info.any()
    orthonormal(vectors)
    close(whole @ vectors, vectors * values[:, None])
    close(values, np.linalg.eigvalsh(whole))
    close(call("syevd_values", a, flags=flags)[0], values)


def joined(values):
    """Complex numbers of their parts."""
    return values[..., 0] + 1j * values[..., 1]


@sampled(3)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_eigenvectors_of_any_matrix(dtype, size):
    a = sample((2, size, size), dtype)
    a[0, 0, 0] = a[0, -1, -1]  # of real ones and of pairs
    real, imaginary, left, right, info = call("geev", a)
    values, left, right = real + 1j * imaginary, joined(left), joined(right)
    assert not info.any()
    close(abs(a @ right - right * values[:, None]).astype(dtype), np.zeros(a.shape, dtype))
    turned = left.conj().mT
    close(abs(turned @ a - values[..., None] * turned).astype(dtype), np.zeros(a.shape, dtype))
    for name, number in (("geev_left", 2), ("geev_right", 2), ("geev_values", None)):
        alone = call(name, a)
        close(alone[0], real)
        if number:
            close(abs(joined(alone[2]) - (left if "left" in name else right)), np.zeros_like(a))


def test_what_is_not_finite_has_no_eigenvalues():
    a = sample((3, 4, 4), "float64")
    a[1, 2, 3], a[2, 0, 0] = np.nan, np.inf
    for routine in ("geev_values", "gees_form"):
        assert call(routine, a)[-1].tolist() == [0, -4, -4]


@sampled(3)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_forms_of_square_matrices(dtype, size):
    """Schur's, Hessenberg's, and the tridiagonal one of a symmetric matrix."""
    a = sample((2, size, size), dtype)
    form, vectors, real, imaginary, info = call("gees", a)
    orthonormal(vectors)
    close(vectors @ form @ vectors.mT, a)
    assert not info.any() and not np.tril(form, -2).any()
    wanted = np.sort_complex(np.linalg.eigvals(a))
    close(abs(np.sort_complex(real + 1j * imaginary) - wanted), np.zeros((2, size), dtype))
    close(call("gees_form", a)[0], form)
    packed, scales, info = call("gehrd", a)
    assert packed.shape == a.shape and scales.shape == (2, max(1, size - 1)) and not info.any()
    values = np.linalg.eigvals(np.triu(packed, -1))
    close(
        abs(np.prod(values, -1) - np.prod(wanted, -1)) / (1 + abs(np.prod(wanted, -1))),
        np.zeros(2, dtype),
    )
    for lower in (True, False):
        whole = triangle(a, lower) + triangle(a, lower).mT
        made = call("sytrd", whole, flags=", lower" if lower else "")
        diagonal, beside = made[1][0], made[2][0][: size - 1]
        found = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        close(np.linalg.eigvalsh(found), np.linalg.eigvalsh(whole[0]))


@sampled(3)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize(
    "shape, count", [((1, 1), 1), ((6, 4), 3), ((3, 8), 3), ((70, 66), 66), ((5, 3), 0)]
)
def test_products_with_q(dtype, shape, count):
    packed, scales = call("geqrf", sample((2, *shape), dtype))
    scales = np.ascontiguousarray(scales[:, :count])
    rows = shape[0]
    wide = np.zeros((2, rows, rows), dtype)
    wide[..., : min(shape)] = packed[..., : min(shape)]
    (q,) = call("orgqr", wide, scales)
    c = sample((2, rows, 5), dtype, 1)
    for flags, of in (("", q), (", transposed", q.mT)):
        close(call("ormqr_left", packed, scales, c, flags=flags)[0], of @ c)
        turned = np.ascontiguousarray(c.mT)
        close(call("ormqr_right", packed, scales, turned, flags=flags)[0], turned @ of)


@sampled(3)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize("shape", SHAPES)
def test_qr_of_columns_in_an_order(dtype, shape):
    a, k = sample((2, *shape), dtype), min(shape)
    first = np.zeros((2, shape[1]), np.int32)
    first[1, -1] = 1  # stays in front
    packed, places, scales = call("geqp3", a, first)
    (q,) = call("orgqr", np.ascontiguousarray(packed[..., :k]), scales)
    close(q @ np.triu(packed[..., :k, :]), np.take_along_axis(a, places[:, None] - 1, 2))
    sizes = abs(np.diagonal(packed, axis1=1, axis2=2)[0])
    assert (sizes[:-1] >= sizes[1:] * 0.999).all() and places[1, 0] == shape[1]


@sampled(3)
@pytest.mark.parametrize("dtype", ELEMENTS.values())
@pytest.mark.parametrize("size", [1, 2, 9])
def test_tridiagonal_systems(dtype, size):
    below, above, b = (
        sample((2, size), dtype, 1),
        sample((2, size), dtype, 2),
        sample((2, size, 3), dtype),
    )
    below[:, 0] = np.nan  # not read
    diagonal = sample((2, size), dtype) + 4
    x, info = call("gtsv", below, diagonal, above, b)
    close(call("gtsv_finite", below, diagonal, above, b)[0], x)
    for k in range(2):
        whole = np.diag(diagonal[k]) + np.diag(below[k, 1:], -1) + np.diag(above[k, :-1], 1)
        close(whole @ x[k], b[k])
    assert not info.any()
    assert call("gtsv", *[np.zeros_like(below)] * 3, b)[1].tolist() == [1, 1]


def test_matrices_without_elements():
    """Nothing fails, and square factors are identities."""
    values, u, vt, info = call("gesdd_full", np.ones((2, 3, 0)))
    assert values.shape == (2, 0) and vt.shape == (2, 0, 0) and not info.any()
    np.testing.assert_array_equal(u, np.stack([np.eye(3)] * 2))
    (q,) = call("orgqr", np.ones((4, 2)), np.ones(0))
    np.testing.assert_array_equal(q, np.eye(4, 2))
    (product,) = call("ormqr_left", np.ones((2, 0)), np.ones(0), np.ones((2, 3)))
    np.testing.assert_array_equal(product, np.ones((2, 3)))
    for routine in (
        "syevd", "potrf", "getrf", "geqrf", "gesdd", "gesdd_values", "syevd_values", "geev", "gees", "gehrd",
    ):  # fmt: skip
        for shape in ((0, 0), (0, 3, 3)):
            results = call(routine, np.ones(shape))
            assert all(not np.any(result) for result in results)


@pytest.mark.parametrize("routine", ["gesdd", "syevd"])
def test_nan_is_told_apart(routine):
    """One matrix of a batch holds NaN: it alone has NaN in its results, or fails."""
    a = positive((3, 4), "float64")
    a[1, 2, 2] = np.nan
    *results, info = call(routine, a)
    assert info[0] == info[2] == 0
    assert info[1] or any(np.isnan(r[1]).any() for r in results)
    assert not any(np.isnan(r[::2]).any() for r in results)


def test_decompositions_of_a_batch_on_ranks():
    a = sample((5, 4, 3), "float32")
    for routine, results in (("gesdd", 4), ("geqrf", 2), ("geev_right", 4)):
        if routine.startswith("geev"):
            a = a[:, :3].copy()
        ndims = [len(dims.strip("#")) for dims in ROUTINES[routine].results]
        layouts = ["[_, y, x]", *[f"[x*y{', _' * n}]" for n in ndims]]
        text = on("x=2,y=2", program(routine, [a.shape], layouts=layouts))
        assert len(api.build(text).manifest.certificate.proven) == results
        made = call(routine, a, mesh="x=2,y=2", layouts=layouts)
        for got, wanted in zip(made, call(routine, a), strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("mesh", ["x=2,y=1", "x=2,y=2"])
def test_ranks_hold_parts_of_the_batch_and_of_the_sides(mesh):
    """Five matrices on two ranks: one of the parts is padding."""
    a, b = positive((5, 4), "float32"), sample((5, 4, 3), "float32")
    (x,) = call(
        "trsm_left", a, b, flags=", lower", mesh=mesh,
        layouts=["[x, _, _]", "[_, _, y]", "[x, _, y]"],
    )  # fmt: skip
    close(np.tril(a) @ x, b)
    factor, info = call(
        "potrf", a, flags=", lower", mesh=mesh, layouts=["[_, x, y]", "[x*y, _, _]", "[x]"]
    )
    close(np.tril(factor), np.linalg.cholesky(a))
    assert not info.any()


def test_the_whole_matrix_is_gathered_and_the_batch_is_not():
    text = program("potrf", [(4, 6, 6)], "f32", ", lower", ["[x, y, _]", "[x, _, y]", "[x]"])
    manifest = api.build(on("x=2,y=2", text)).manifest
    assert [(c.op, c.axes) for c in manifest.collectives] == [("all_gather", ("y",))]
    assert len(manifest.certificate.proven) == 2 and not manifest.certificate.unproven


def test_another_routine_is_not_proven():
    text = on("x=1", program("potrf", [(3, 4, 4)], "f32", ", lower"))
    assert mw.verify(text, text).status == 0
    assert mw.verify(text, text.replace(", lower", "")).status != 0
    swap = text.replace("%0#0", "%1").replace(
        "  return", "  %1 = arith.addf %0#0, %0#0 : tensor<3x4x4xf32>\n  return"
    )
    assert mw.verify(text, swap).status != 0


def test_a_bundle_finds_the_library(tmp_path):
    a = positive((3, 5), "float64")
    text = on("x=1", program("potrf", [a.shape], "f64", ", lower"))
    api.build(text).write(tmp_path / "factor.mwb")
    bundle = Bundle.read(tmp_path / "factor.mwb")
    assert "openblas" in bundle.manifest.libraries
    loaded = engine("local").load(bundle)
    close(np.tril(loaded.run([[a]])[0][0]), np.linalg.cholesky(a))
    loaded.close()


def test_gpus_factor_in_loops():
    a = positive((5,), "float32")
    text = on("x=1", program("potrf", [a.shape], "f32", ", lower"))
    with mw.compile(text, engine="emulate", timeout=60) as compiled:
        close(np.tril(compiled(a)[0]), np.linalg.cholesky(a))


def test_gpus_have_no_other_routines():
    text = on("x=1", program("gesdd", [(4, 4)]))
    with pytest.raises(CompileError, match=r"mw\.lapack gesdd: target gpu has no LAPACK") as caught:
        mw.compile(text, engine="emulate")
    assert "\n" not in str(caught.value)


def test_kernels_say_who_factors():
    text = program("potrf", [(4, 4)], "f32", ", lower")
    for kernels, wanted in ((None, "lapack"), ("-lapack", "codegen"), ("reference", "reference")):
        with api.lowered(on("x=1", text), "f", None, kernels=as_choice(kernels)) as (module, _):
            assert [row["kernel"] for row in kernel_rows(module)] == [wanted]


def test_what_nothing_else_computes_stays_with_the_library():
    text = on("x=1", program("geqrf", [(4, 3)]))
    with api.lowered(text, "f", None, kernels=as_choice("reference")) as (module, _):
        (row,) = kernel_rows(module)
        assert row["kernel"] == "lapack" and row["why"] == "nothing else computes geqrf"
    text = on(
        "x=1",
        """
func.func public @main(%a: tensor<4x4xf32>) -> (tensor<4xf32>) {
  %0 = "hint.region"() ({
    %1:2 = "mw.lapack"(%a) {routine = "syevd_values"} : (tensor<4x4xf32>) -> (tensor<4xf32>, tensor<i32>)
    "hint.yield"(%1#0) : (tensor<4xf32>) -> ()
  }) {hints = {kernels = "-lapack"}} : () -> tensor<4xf32>
  return %0 : tensor<4xf32>
}""",
    )
    with pytest.raises(CompileError, match="is infeasible: nothing else computes syevd_values"):
        mw.compile(text)


def test_errors_are_one_line():
    text = on("x=1", program("potrf", [(4, 4)], "f32").replace("potrf", "chol"))
    with pytest.raises(CompileError, match="needs a `routine`, one of potrf, getrf"):
        mw.compile(text)


def few(x):
    """Return what some functions of complex matrices give: one program, for its compile takes long."""
    positive_ = x @ mw.conj(x).mT + mw.eye(3, dtype=x.dtype)
    return mw.linalg.svd(x[:, :2]), mw.linalg.cholesky(positive_), mw.linalg.solve(x, positive_)


def many(x):
    """Return what the other functions give."""
    lin, positive_ = mw.linalg, x @ mw.conj(x).mT + mw.eye(3, dtype=x.dtype)
    factors = lin.svd(x[:, :2], full_matrices=False), lin.qr(x), lin.qr(x[..., :2], mode="complete")
    values = lin.svdvals(x), lin.svdvals(x.mT[:, :2]), lin.eigvalsh(positive_)
    rest = lin.cholesky(positive_, upper=True), lin.inv(x), lin.pinv(x[:, :2]), lin.matrix_rank(x)
    more = lin.solve(x, x[0, 0]), lin.matrix_power(x, -2), lin.det(x)
    return *factors, lin.slogdet(x), lin.eigh(positive_), lin.eig(x), *values, *rest, *more


@pytest.mark.parametrize(
    "dtype, every",
    [
        ("complex64", False),
        *[pytest.param(d, True, marks=pytest.mark.deep) for d in ("complex64", "complex128")],
    ],
)
def test_complex_matrices(dtype, every):
    x = (sample((4, 3, 3), "float64") + 1j * sample((4, 3, 3), "float64", 1)).astype(dtype)
    tolerance = 1e-3 if dtype == "complex64" else 1e-12
    h = x @ x.conj().mT + np.eye(3)

    def near(got, wanted):
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=tolerance, atol=tolerance)

    program = mw.jit(few, mesh="x=2", in_layouts="[x, _, _]")
    (u, s, vh), factor, y = program(x)
    assert "0 collectives" in program.explain() and s.dtype == x.real.dtype
    near(s, np.linalg.svd(x[:, :2], compute_uv=False))
    near((u.numpy() * s.numpy()[:, None]) @ vh.numpy()[:, :2], x[:, :2])
    near(vh.numpy() @ vh.numpy().conj().mT, np.broadcast_to(np.eye(3), x.shape))
    near(factor, np.linalg.cholesky(h))
    near(y, np.linalg.solve(x, h))
    if not every:
        return
    (u, s, vh), (q, r), (q2, r2), (sign, log), (w, v), (w2, v2), *values = mw.jit(many)(x)
    near(x @ v2.numpy(), v2.numpy() * w2.numpy()[:, None])
    near((u.numpy() * s.numpy()[:, None]) @ vh.numpy(), x[:, :2])
    near(q, np.linalg.qr(x)[0])
    near(r, np.linalg.qr(x)[1])
    near(q2.numpy() @ r2.numpy(), x[..., :2])
    near(sign.numpy() * np.exp(log.numpy()), np.linalg.det(x))
    near(w, np.linalg.eigvalsh(h))
    near(v.numpy() * w.numpy()[:, None] @ v.numpy().conj().mT, h)
    right = (
        np.linalg.svd(x, compute_uv=False), np.linalg.svd(x.mT[:, :2], compute_uv=False), np.linalg.eigvalsh(h),
        np.linalg.cholesky(h, upper=True), np.linalg.inv(x), np.linalg.pinv(x[:, :2]), [3] * 4,
        np.linalg.solve(x, x[0, 0][:, None])[..., 0], np.linalg.matrix_power(x, -2), np.linalg.det(x),
    )  # fmt: skip
    for got, wanted in zip(values, right, strict=True):
        near(got, wanted)


def test_complex_matrices_that_fail_or_are_empty():
    a = np.zeros((2, 2, 2), np.complex64)
    a[1] = -np.eye(2)
    assert np.isnan(mw.linalg.cholesky(mw.asarray(a)).numpy()).all()
    assert np.isnan(mw.linalg.inv(mw.asarray(a)).numpy()[0]).all()
    u, s, vh = mw.linalg.svd(mw.asarray(a[0][:0]))
    assert u.shape == (0, 0) and s.shape == (0,)
    np.testing.assert_array_equal(vh.numpy(), np.eye(2))
    wrong = program("potrf_complex", [(2, 2, 3)])
    with pytest.raises(MeshweaveError, match="needs numbers of 2 parts, not of 3"):
        mw.compile(on("x=1", wrong))
