"""`mw.special` beside SciPy, in f64 and f32, at the ends too, and on ranks; gradients beside JAX."""

import numpy as np
import pytest
from depth import sampled, some

import meshweave as mw
from meshweave.errors import MeshweaveError

scipy = pytest.importorskip("scipy.special")
ENDS = [0.0, -0.0, 1, 2, -1, -2.5, 40, 700, np.inf, np.nan]
REALS = np.concatenate([np.linspace(-9, 26, 141), 10.0 ** np.arange(-12, 5), ENDS])
PARTS = np.concatenate(
    [np.linspace(0, 1, 41), 10.0 ** -np.arange(1, 300, 20), [1 - 1e-9, 2, np.nan]]
)
POSITIVE = np.concatenate([np.linspace(0.01, 12, 60), 10.0 ** np.arange(-2, 4)])
ULPS = {
    "digamma": 400, "psi": 400, "erfc": 600, "erfcx": 60, "ndtr": 600, "log_ndtr": 200, "gammaln": 400, "i1": 40,
}  # fmt: skip
"""Units in the last place of f64 where SciPy's own last digits, or zeros, allow no fewer; 32 for others."""
UNARY = {
    **dict.fromkeys(
        (
            "gammaln", "gamma", "digamma", "psi", "erf", "erfc", "erfcx", "ndtr", "log_ndtr", "i0", "i0e", "i1", "i1e",
            "entr", "expit", "log_expit",
        ),
        REALS,
    ),
    **dict.fromkeys(("erfinv", "erfcinv", "ndtri", "logit"), PARTS),
}  # fmt: skip
A, B = (v.ravel() for v in np.meshgrid(10.0 ** np.linspace(-2, 3, 12), np.linspace(0, 2.5, 9)))
BINARY = {
    "gammainc": (A, A * B), "gammaincc": (A, A * B), "betaln": (A, B + 0.1), "beta": (A, B + 0.1),
    "xlogy": (B, A), "xlog1py": (B, A), "rel_entr": (B, A), "kl_div": (B, A), "zeta": (B + 1.01, A),
}  # fmt: skip


def apart(got, wanted, ulps, dtype):
    """Whether finite numbers are within units in the last place, and others equal."""
    finite = np.isfinite(wanted) & (abs(wanted) > 1e3 * np.finfo(dtype).tiny)
    near = abs(got - wanted) <= ulps * np.spacing(abs(wanted).astype(dtype))
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    small = np.isfinite(wanted) & (abs(got) <= 2e3 * np.finfo(dtype).tiny)
    return ~np.where(finite, near, same | small)


@sampled(6)
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_functions_are_scipys(dtype, name):
    x = UNARY[name].astype(dtype)
    got = getattr(mw.special, name)(x).numpy()
    with np.errstate(all="ignore"):
        wanted = getattr(scipy, name)(x.astype("f8")).astype(dtype)
        wrong = apart(got, wanted, ULPS.get(name, 32) if dtype == "f8" else 4, dtype)
    assert got.dtype == dtype and not wrong.any(), (x[wrong], got[wrong], wanted[wrong])


@pytest.mark.parametrize("name", some(list(BINARY), 4))
def test_functions_of_two_numbers_are_scipys(name):
    got, wanted = (getattr(m, name)(*BINARY[name]) for m in (mw.special, scipy))
    np.testing.assert_allclose(got, wanted, rtol=3e-11, atol=1e-290)


def test_ends_of_the_incomplete_gamma_functions():
    ends = np.array([0, 0, 1, 1, np.inf, 1, -1, np.nan]), np.array([0, 1, 0, np.inf, 1, -1, 1, 1])
    both = mw.jit(lambda a, x: (mw.special.gammainc(a, x), mw.special.gammaincc(a, x)))(*ends)
    np.testing.assert_array_equal(both[0], scipy.gammainc(*ends))
    np.testing.assert_array_equal(both[1], scipy.gammaincc(*ends))


def test_functions_with_an_order():
    x = POSITIVE

    def several(x):
        own = mw.special
        return own.polygamma(2, x), own.factorial(x), own.multigammaln(x + 2, 3)

    wanted = scipy.polygamma(2, x), scipy.gamma(x + 1), scipy.multigammaln(x + 2, 3)
    for got, right in zip(mw.jit(several)(x), wanted, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-13, atol=1e-14)
    poles = np.array([0.0, -1.0, -4.0])
    of_poles = mw.jit(lambda x: [mw.special.polygamma(n, x) for n in (1, 2, 3)])(poles)
    np.testing.assert_array_equal(of_poles, [scipy.polygamma(n, poles) for n in (1, 2, 3)])
    for call in (lambda: mw.special.polygamma(-1, x), lambda: mw.special.multigammaln(x, 0)):
        with pytest.raises(MeshweaveError, match="is right"):
            call()


def test_near_its_zeros_log_gamma_keeps_its_digits():
    z = np.array([1e-5, -1e-6, 1e-12]) + 1 - 1
    right = -0.5772156649015329 * z + np.pi**2 / 12 * z**2 - 1.2020569031595943 / 3 * z**3
    np.testing.assert_allclose(mw.special.gammaln(1 + z), right, rtol=1e-11)


def test_on_ranks_and_mapped():
    x = np.arange(1.0, 8)
    split = mw.jit(lambda x: mw.special.i0e(x), mesh="x=2", in_layouts="[x]")
    np.testing.assert_allclose(split(x), scipy.i0e(x), rtol=1e-14)
    assert "0 collectives" in split.explain()
    np.testing.assert_allclose(mw.vmap(mw.special.ndtr)(x), scipy.ndtr(x), rtol=1e-13)
