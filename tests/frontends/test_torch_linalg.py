"""torch.linalg against torch itself: batches, vectors, broadcast matrices, and what has no factor."""

import itertools

import numpy as np
import pytest

import meshweave as mw
from meshweave.errors import CompileError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
linalg = torch.linalg

TOLERANCE = {torch.float32: 3e-4, torch.float64: 1e-10}


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def sample(*shape, dtype=torch.float32, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def positive(*shape, dtype=torch.float32):
    a = sample(*shape, shape[-1], dtype=dtype)
    return a @ a.mT + shape[-1] * torch.eye(shape[-1], dtype=dtype)


def agree(function, *args, **options):
    """The program gives what torch gives."""
    wanted = torch.utils._pytree.tree_leaves(function(*args))
    with mw.from_torch(Module(function), args, **options) as program:
        made = torch.utils._pytree.tree_leaves(program(*args))
    for got, want in zip(made, wanted, strict=True):
        got = torch.as_tensor(np.asarray(got))
        assert got.dtype == want.dtype and got.shape == want.shape
        tolerance = TOLERANCE.get(want.dtype, 0)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(
    ("dtype", "batch"), [(torch.float32, ()), (torch.float64, (2, 3)), (torch.float32, (0,))]
)
def test_systems(dtype, batch):
    def systems(a, b):
        factor = linalg.lu_factor(a)
        yield linalg.solve(a, b), linalg.solve(a, b.mT, left=False), linalg.solve(a, b[..., 0])
        yield linalg.inv(a), linalg.inv_ex(a), linalg.solve_ex(a, b)
        yield linalg.det(a), linalg.slogdet(-a), torch.logdet(a)
        yield factor, linalg.lu(a - 3), linalg.lu(a[..., :3]), linalg.lu(a[..., :3, :])
        yield linalg.lu_solve(*factor, b), linalg.lu_solve(*factor, b.mT, left=False, adjoint=True)
        yield linalg.cholesky(a), linalg.cholesky(a, upper=True), linalg.cholesky_ex(a)
        yield torch.cholesky_solve(b, linalg.cholesky(a)), torch.cholesky_inverse(a, upper=True)

    a, b = positive(*batch, 4, dtype=dtype), sample(*batch, 4, 3, dtype=dtype)
    agree(lambda a, b: list(systems(a, b)), a, b)


def test_triangular_systems():
    def systems(a, b):
        for upper, unit in itertools.product((True, False), repeat=2):
            options = {"upper": upper, "unitriangular": unit}
            yield linalg.solve_triangular(a, b, **options)
            yield linalg.solve_triangular(a, b.mT, left=False, **options)
            yield torch.triangular_solve(b, a, upper, True, unit)
        yield linalg.solve_triangular(a, b[:1], upper=upper)
        yield linalg.solve_triangular(a[0], b, upper=upper)

    agree(lambda a, b: list(systems(a, b)), positive(3, 4), sample(3, 4, 2))


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(torch.float32, (3, 3)), (torch.float64, (2, 5, 3)), (torch.float32, (2, 3, 5))],
)
def test_decompositions(dtype, shape):
    def decompositions(a):
        yield [linalg.qr(a, mode) for mode in ("reduced", "complete", "r")]
        yield _singular(a), _eigen(a), linalg.cond(a)
        yield (
            linalg.pinv(a),
            linalg.pinv(a[..., :2, :2], hermitian=True),
            linalg.matrix_rank(a),
            linalg.matrix_norm(a, 2),
        )
        yield linalg.householder_product(*torch.geqrf(a[..., :1]))

    agree(lambda a: list(decompositions(a)), sample(*shape, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_eigenvalues_of_any_matrix(dtype):
    def composed(a):
        values, vectors = linalg.eig(a)
        made = (vectors * values.unsqueeze(-2)) @ linalg.inv(vectors)
        return made.real, made.imag, linalg.eigvals(a).abs().sort().values

    a = sample(2, 5, 5, dtype=dtype)
    agree(composed, a)
    agree(composed, a, mesh="x=2", placements={"args_0": "[x, _, _]"})


def _singular(a):
    """What does not depend on the signs of vectors, which torch's library chooses otherwise."""
    found = [linalg.svdvals(a)]
    for full in (True, False):
        u, s, vt = linalg.svd(a, full_matrices=full)
        k = s.shape[-1]
        found += [s, u[..., :k] * s.unsqueeze(-2) @ vt[..., :k, :], u.mT @ u, vt @ vt.mT]
    return found


def _eigen(a):
    values, vectors = linalg.eigh(a @ a.mT, "U")
    made = vectors * values.unsqueeze(-2) @ vectors.mT
    return values, made, vectors.mT @ vectors, linalg.eigvalsh(a @ a.mT)


def test_what_has_no_factor():
    """Torch raises; a program gives NaN, and the ops with `_ex` the same info as torch."""
    a = torch.stack([torch.eye(3), torch.ones(3, 3), -torch.eye(3)])
    function = Module(lambda a: (linalg.cholesky(a), linalg.inv(a), linalg.cholesky_ex(a).info))
    with mw.from_torch(function, (a,)) as program:
        factor, inverse, info = map(np.asarray, program(a))
    assert np.isnan(factor).all((1, 2)).tolist() == [False, True, True]
    assert np.isnan(inverse).all((1, 2)).tolist() == [False, True, False]
    assert info.tolist() == linalg.cholesky_ex(a).info.tolist()


@pytest.mark.parametrize(
    ("dtype", "batch"), [(torch.float32, ()), (torch.float64, (2, 3)), (torch.float32, (0,))]
)
def test_functions_of_matrices(dtype, batch):
    a, b = positive(*batch, 4, dtype=dtype), sample(*batch, 4, 3, dtype=dtype)

    def functions(a, b):
        yield linalg.matrix_exp(-a)
        yield torch.lu_unpack(*linalg.lu_factor(b)), torch.lu_unpack(*linalg.lu_factor(b.mT))
        factor = torch.geqrf(b)
        yield torch.ormqr(*factor, b), torch.ormqr(*factor, b.mT, left=False, transpose=True)
        yield linalg.norm(b, dim=(-2, -1)), linalg.norm(b, dim=-1), linalg.norm(b, 1, (-2, -1))
        yield (
            linalg.norm(a, "nuc", (-2, -1), keepdim=True),
            linalg.norm(a),
            torch.addbmm(*sums(a, b)),
        )

    agree(lambda a, b: list(functions(a, b)), a, b)


def sums(a, b):
    """What addbmm takes: a matrix, and two batches."""
    return b.reshape(-1, 4, 3).sum(0), a.reshape(-1, 4, 4), b.reshape(-1, 4, 3)


def test_exponentials_of_large_small_and_no_matrices():
    turn = torch.tensor([[0.0, 1], [-1, 0]], dtype=torch.float64)
    scales = torch.tensor([0, 1e-30, 1e-8, 0.5, 3, 5.3, 5.5, 40, -300], dtype=torch.float64)
    agree(linalg.matrix_exp, scales[:, None, None] * (turn + torch.eye(2)))
    agree(linalg.matrix_exp, torch.tensor([[-1e5, 0], [0, 1]], dtype=torch.float64))
    agree(linalg.matrix_exp, torch.zeros(0, 0))
    function = Module(linalg.matrix_exp)
    with mw.from_torch(function, (torch.eye(2),)) as program:
        assert np.isnan(np.asarray(program(torch.eye(2) * 1e6))).all()
        assert np.isnan(np.asarray(program(torch.eye(2) * torch.nan))).any()


def test_tensors_as_matrices():
    a = positive(6) / 9
    agree(lambda a: linalg.tensorinv(a.reshape(2, 3, 6)), a)
    agree(lambda a: linalg.tensorinv(a.reshape(6, 3, 2), ind=1), a)
    agree(lambda a: linalg.tensorsolve(a.reshape(2, 3, 6), a[:2, :3]), a)


def test_views_of_nothing():
    agree(lambda a: (a.view(0, 6), a.reshape(-1, 3), a.reshape(3, -1), a @ a), torch.zeros(0, 3, 3))


def test_a_batch_on_ranks():
    a, b = positive(5, 4), sample(5, 4, 2)
    placements = {"args_0": "[x, _, _]", "args_1": "[x, _, _]"}
    agree(
        lambda a, b: (linalg.solve(a, b), linalg.svdvals(a)),
        a,
        b,
        mesh="x=2",
        placements=placements,
    )


def test_what_is_refused_says_so_in_a_line():
    for function in (linalg.ldl_factor, lambda a: linalg.lstsq(a, a).solution):
        with pytest.raises(CompileError, match=r"not supported|refuses") as caught:
            mw.from_torch(Module(function), (torch.eye(3),))
        assert "\n" not in str(caught.value) and "batch norm" not in str(caught.value)


def test_16_bits_are_refused_as_torch_refuses_them():
    with pytest.raises((CompileError, RuntimeError, NotImplementedError)):
        mw.from_torch(Module(linalg.inv), (torch.eye(3, dtype=torch.bfloat16),))
