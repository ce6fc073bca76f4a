"""Complex tensors of PyTorch: what programs compute with them is what eager PyTorch does, on one rank and on two."""

from typing import Any

import pytest
from depth import sampled

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from frontends.test_torch_coverage import agree  # noqa: E402

import meshweave as mw  # noqa: E402


class Called(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Call a function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def numbers(*shape: int, dtype: Any = torch.complex64, seed: int = 0) -> Any:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def hermitian(z: Any) -> Any:
    return z @ z.mH + 4 * torch.eye(4)


Z, W, X = numbers(4, 6), numbers(6, 4, seed=1), numbers(4, 6, dtype=torch.float32)
SQUARE, SIGNAL = numbers(3, 4, 4), numbers(2, 32, dtype=torch.float32)
HANN = torch.hann_window(8)
CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "arithmetic": (lambda z, w: (z * w.T + 2j, z / w.T, 1 - z, z * 2, -z, z**2), (Z, W)),
    "products": (lambda z, w: (z @ w, torch.vdot(z[0], w[:, 0]), z[0] @ w), (Z, W)),
    "parts": (lambda z: (z.real, z.imag, z.abs(), z.angle(), z.conj().imag, z.mH), (Z,)),
    "functions": (lambda z: (z.exp(), z.log(), z.sqrt(), z.sin(), z.tanh(), z.acosh()), (Z,)),
    "powers": (lambda z: (z**0.3, z**z, z.prod(1), z.cumprod(0), z.pow(-2)), (Z,)),
    "moves": (
        lambda z: (torch.cat([z, z.flip(0)]), z[1:, ::2], z.roll(1, 0), torch.tril(z), z.T[[2, 0]]),
        (Z,),
    ),
    "sums": (lambda z: (z.sum(), z.mean(1), z.cumsum(0), z.std(), torch.linalg.norm(z)), (Z,)),
    "choices": (lambda z: (torch.where(z.real > 0, z, 1j), z == z.conj(), z.isfinite()), (Z,)),
    "written": (lambda z: z.clone().index_fill_(0, torch.tensor([1]), 2j).masked_fill_(z == 0, 1j), (Z,)),
    "filled": (
        lambda z: (
            torch.full_like(z, 2.0, dtype=torch.float64),
            torch.ones_like(z, dtype=torch.bool),
            torch.zeros_like(z, dtype=torch.float32) + z.real,
            torch.ones_like(z) * z,
            z.new_full((2,), 3, dtype=torch.int64),
            z.new_ones(6) * z,
        ),
        (Z,),
    ),
    "made": (
        lambda x: (
            torch.view_as_complex(x.view(4, 3, 2)),
            torch.complex(x, x),
            torch.polar(x, x),
            x.to(torch.complex128),
            x * 1j,
            torch.full((2,), 3 - 1j) * x[0, 0],
        ),
        (X,),
    ),
    "wide": (lambda z: (z.exp() * z, torch.view_as_real(z), z.to(torch.complex64)), (Z.to(torch.complex128),)),
    "fft": (
        lambda x, z: (
            torch.fft.rfft(x),
            torch.fft.irfft(torch.fft.rfft(x), 5),
            torch.fft.fft2(z, norm="ortho"),
            torch.fft.ifft(z, 7, 0, "forward"),
            torch.fft.fftshift(torch.fft.fft(x)),
            torch.fft.hfft(z),
        ),
        (X, Z),
    ),
    "windows": (
        lambda x: torch.stft(x, 8, 2, window=HANN, return_complex=True, pad_mode="reflect"),
        (SIGNAL,),
    ),
    "windows and back": (
        lambda x: torch.istft(torch.stft(x, 8, 2, window=HANN, return_complex=True), 8, 2, window=HANN),
        (SIGNAL,),
    ),
    "systems": (
        lambda a, b: (torch.linalg.solve(a, b), torch.linalg.inv(a), torch.linalg.det(a)),
        (SQUARE, numbers(3, 4, 2, seed=2)),
    ),
    "factors": (
        lambda a: (
            torch.linalg.cholesky(hermitian(a)),
            torch.cholesky_solve(a, torch.linalg.cholesky(hermitian(a))),
            torch.linalg.svdvals(a),
            torch.linalg.eigvalsh(hermitian(a)),
            torch.linalg.pinv(a[:, :, :2]),
            torch.linalg.solve_triangular(a, a.mT, upper=True, left=False),
        ),
        (SQUARE,),
    ),
    "a factor times the other": (
        lambda a: (lambda q, r: (q @ r, q.mH @ q))(*torch.linalg.qr(a)),
        (SQUARE,),
    ),
}  # fmt: skip


@sampled(1)
@pytest.mark.parametrize("mesh", [None, "x=2"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_torch(name: str, mesh: str | None) -> None:
    function, args = CASES[name]
    said = {f"args_{k}": "[x" + ", _" * (a.ndim - 1) + "]" for k, a in enumerate(args)}
    with mw.from_torch(Called(function), args, said if mesh else None, mesh) as program:
        agree(in_parts(program(*args)), in_parts(function(*args)))


def in_parts(value: Any) -> Any:
    """Replace each complex tensor by one of real numbers, with both parts."""
    return torch.utils._pytree.tree_map_only(
        torch.Tensor,
        lambda t: torch.view_as_real(t.resolve_conj()) if t.is_complex() else t.resolve_neg(),
        value,
    )


def test_a_conjugate_that_is_not_computed_yet_goes_in() -> None:
    with mw.from_torch(Called(lambda z, x: (z * 1, x + 0)), (Z, X)) as program:
        found, parts = program(Z.conj(), Z.conj().imag)
    assert torch.equal(found, Z.conj().resolve_conj()) and torch.equal(parts, -Z.imag)


def test_complex_parameters_and_gradients_under_torch_compile() -> None:
    """A layer of spectral convolution: weights are complex, the loss is real."""

    class Spectral(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(numbers(3, 3, 5, seed=4))

        def forward(self, x: Any) -> Any:
            modes = torch.einsum("bim,iom->bom", torch.fft.rfft(x)[..., :5], self.weight)
            return torch.fft.irfft(torch.nn.functional.pad(modes, [0, 4]), x.shape[-1]).tanh()

    module, x = Spectral(), numbers(4, 3, 16, dtype=torch.float32)
    for mesh in (None, "x=2"):
        placements = {"x": "[x, _, _]"} if mesh else {}
        compiled = torch.compile(module, backend=mw.torch_backend(mesh=mesh, placements=placements))
        grads = []
        for one in (module, compiled):
            given = x.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(
                one(given).square().sum(), module.weight, retain_graph=True
            )
            grads.append((slope, *torch.autograd.grad(one(given).exp().sum(), given)))
        agree(in_parts(grads[1]), in_parts(grads[0]))
        torch._dynamo.reset()
