"""The names that people type: NumPy's functions beyond the standard, against NumPy, on one rank and cut over four."""

import inspect
import re
from operator import attrgetter

import numpy as np
import pytest
from depth import deep, sampled, some
from traced import check, mw, run_all

from meshweave.errors import CompileError, UsageError
from meshweave.frontends.python.spelling import NEAR, SYNONYMS
from meshweave.frontends.python.tracer import Tracer
from meshweave.runtime.arrays.operators import Operators

RNG = np.random.default_rng(5)
A = RNG.standard_normal((5, 6)).astype(np.float32) * 3
A[1, 2] = A[3, 4] = np.nan
B = RNG.standard_normal((5, 6)).astype(np.float32)
B[0, :3] = 0, np.inf, -np.inf
M = RNG.standard_normal((5, 6)).astype(np.float32) * 2
V = RNG.standard_normal(7).astype(np.float32)
I = RNG.integers(0, 4, (5, 6))  # noqa: E741
Z = (M + 1j * M[::-1]).astype(np.complex64)
LEFT = np.sort(V)

SAME = {
    # elementwise
    "cbrt of nan": lambda m, x: m.cbrt(x.A),
    "cbrt": lambda m, x: m.cbrt(x.B),
    "deg2rad": lambda m, x: m.deg2rad(x.M),
    "rad2deg": lambda m, x: m.rad2deg(x.I),
    "sinc": lambda m, x: m.sinc(x.B[1:]),
    "angle": lambda m, x: m.angle(x.Z),
    "isposinf": lambda m, x: m.isposinf(x.B),
    "isneginf": lambda m, x: m.isneginf(x.B),
    "isreal": lambda m, x: m.isreal(x.Z),
    "iscomplex": lambda m, x: m.iscomplex(x.Z),
    "fmax": lambda m, x: m.fmax(x.A, x.B),
    "fmin": lambda m, x: m.fmin(x.B, x.A),
    "fmod": lambda m, x: m.fmod(x.M, x.V[:6]),
    "fmod near 0": lambda m, x: m.fmod(x.M * 1e-6, 3.0) * 1e6,
    "fmod of integers": lambda m, x: m.fmod(x.I - 2, 3),
    "heaviside": lambda m, x: m.heaviside(x.B, 0.5),
    "float_power": lambda m, x: m.float_power(x.I, 2.5),
    "logaddexp2": lambda m, x: m.logaddexp2(x.M, x.M[0]),
    "ldexp": lambda m, x: m.ldexp(x.M, x.I),
    "ldexp far": lambda m, x: m.ldexp(m.ldexp(x.M, -120), 121),
    "ldexp up": lambda m, x: m.ldexp(x.M * 1e-38, 140) * 1e-4,
    "divmod": lambda m, x: m.divmod(x.I, 3)[1],
    "modf": lambda m, x: m.modf(x.B)[0],
    "modf whole": lambda m, x: m.modf(x.M)[1],
    "nan_to_num": lambda m, x: m.nan_to_num(x.A),
    "nan_to_num 2": lambda m, x: m.nan_to_num(x.B, nan=1.0, posinf=7.0),
    "isclose": lambda m, x: m.isclose(x.B, x.B * 1.000001),
    "isclose nan": lambda m, x: m.isclose(x.A, x.A, equal_nan=True),
    "allclose": lambda m, x: m.allclose(x.M, x.M + 1e-9),
    "array_equal": lambda m, x: m.array_equal(x.A, x.A),
    "array_equal nan": lambda m, x: m.array_equal(x.A, x.A, equal_nan=True),
    "round": lambda m, x: m.round(x.M, 2),
    "round tens": lambda m, x: m.round(x.M * 100, -1),
    # shapes
    "ravel": lambda m, x: m.ravel(x.M),
    "transpose": lambda m, x: m.transpose(x.M[None]),
    "transpose axes": lambda m, x: m.transpose(x.M[None], (1, 0, 2)),
    "swapaxes": lambda m, x: m.swapaxes(x.M[None], 0, -1),
    "rollaxis": lambda m, x: m.rollaxis(x.M[None], 2, 0),
    "rollaxis back": lambda m, x: m.rollaxis(x.M[None], 0, 2),
    "atleast_1d": lambda m, x: m.atleast_1d(x.V[0]),
    "atleast_2d": lambda m, x: m.atleast_2d(x.V),
    "atleast_3d": lambda m, x: m.atleast_3d(x.V),
    "atleast_3d of 2": lambda m, x: m.atleast_3d(x.M),
    "vstack": lambda m, x: m.vstack([x.V[:6], x.M]),
    "hstack": lambda m, x: m.hstack([x.V, x.M[0]]),
    "hstack 2": lambda m, x: m.hstack([x.M, x.M[:, :2]]),
    "dstack": lambda m, x: m.dstack([x.M, x.M]),
    "column_stack": lambda m, x: m.column_stack([x.M[:, 0], x.M]),
    "block": lambda m, x: m.block([[x.M, x.M[:, :1]], [x.M[:2], x.M[:2, :1]]]),
    "array_split": lambda m, x: m.array_split(x.M, 3)[2],
    "array_split at": lambda m, x: m.array_split(x.M, (1, 4), axis=1)[1],
    "split": lambda m, x: m.split(x.M, 2, axis=1)[1],
    "vsplit": lambda m, x: m.vsplit(x.M, (2,))[0],
    "hsplit": lambda m, x: m.hsplit(x.M, 3)[1],
    "dsplit": lambda m, x: m.dsplit(x.M[None], 2)[0],
    "flipud": lambda m, x: m.flipud(x.M),
    "fliplr": lambda m, x: m.fliplr(x.M),
    **{f"rot90 {k}": lambda m, x, k=k: m.rot90(x.M, k) for k in (-1, 0, 1, 2)},
    "rot90 other": lambda m, x: m.rot90(x.M, 1, (1, 0)),
    "append": lambda m, x: m.append(x.M, x.V),
    "append a number": lambda m, x: m.append(x.M, 0.1),
    "append rows": lambda m, x: m.append(x.M, x.M, axis=0),
    "delete": lambda m, x: m.delete(x.M, (1, -1), axis=0),
    "delete one": lambda m, x: m.delete(x.M, 3),
    "insert": lambda m, x: m.insert(x.M, 2, x.V[:5], axis=1),
    "insert number": lambda m, x: m.insert(x.M, (1, 4), 7.0, axis=0),
    "insert flat": lambda m, x: m.insert(x.V, 3, 1.0),
    "insert some": lambda m, x: m.insert(x.V, (1, 1, 6), x.V[:3]),
    "insert a number": lambda m, x: m.insert(x.V, 3, 0.1),
    "array_split by NumPy's": lambda m, x: m.array_split(x.M, np.int64(3))[0],
    "fmax with a number": lambda m, x: m.fmax(x.A, 0.1),
    "float_power of a number": lambda m, x: m.float_power(x.I, 0.1),
    "resize": lambda m, x: m.resize(x.M, (7, 5)),
    "choose": lambda m, x: m.choose(x.I, (x.M, 0.1, x.M * 2, 3.0)),
    "select": lambda m, x: m.select([x.M > 1, x.M < 0], [x.M, x.M * 2], 5.0),
    "piecewise": lambda m, x: m.piecewise(
        x.M, [x.M < 0, x.M > 1], [lambda v: -v, 0.1, lambda v: v * 2]
    ),
    "unravel_index": lambda m, x: m.unravel_index(x.I, (2, 3))[1],
    "ravel_multi_index": lambda m, x: m.ravel_multi_index((x.I, x.I), (4, 5)),
    "ix_": lambda m, x: x.M[m.ix_(x.I[0], x.I[1])],
    # made
    "copy": lambda m, x: m.copy(x.M),
    "identity": lambda m, x: m.identity(3),
    "tri": lambda m, x: m.tri(3, 5, 1),
    "indices": lambda m, x: m.indices((2, 3)),
    "fromfunction": lambda m, x: m.fromfunction(lambda i, j: i * 2 + j, (3, 4)),
    "logspace": lambda m, x: m.logspace(-1, 2, 7),
    "geomspace": lambda m, x: m.geomspace(-2, -1000, 6),
    "geomspace open": lambda m, x: m.geomspace(1, 1000, 5, endpoint=False),
    "vander": lambda m, x: m.vander(x.V, 4),
    "vander up": lambda m, x: m.vander(x.V[:3], increasing=True),
    **{f"diag {k}": lambda m, x, k=k: m.diag(x.V, k) for k in (-2, 0, 1)},
    "diag of": lambda m, x: m.diag(x.M, 1),
    "diagflat": lambda m, x: m.diagflat(x.M[:2, :2], -1),
    "tril_indices": lambda m, x: m.tril_indices(4, 1, 3)[1],
    "triu_indices": lambda m, x: m.triu_indices(3)[0],
    "diag_indices": lambda m, x: m.diag_indices(3)[1],
    **{
        n: lambda m, x, n=n: getattr(m, n)(6)
        for n in ("bartlett", "blackman", "hamming", "hanning")
    },
    "kaiser": lambda m, x: m.kaiser(5, 2.0),
    # statistics
    "ptp": lambda m, x: m.ptp(x.M, axis=1),
    "average": lambda m, x: m.average(x.M, axis=0),
    "average weighted": lambda m, x: m.average(x.M, axis=1, weights=x.I[0] + 1),
    "average of all": lambda m, x: m.average(x.M, weights=x.I + 1),
    **{
        f"{n} {d}": lambda m, x, n=n, d=d: getattr(m, n)(x.A, axis=d)
        for d in (None, 0, (0, 1))
        for n in (
            "nansum",
            "nanprod",
            "nanmean",
            "nanmax",
            "nanmin",
            "nanvar",
            "nanstd",
            "nanmedian",
            "median",
        )
    },
    "nanvar ddof": lambda m, x: m.nanvar(x.A, axis=1, ddof=1, keepdims=True, dtype=np.float64),
    "var ddof": lambda m, x: m.var(x.M, 0, ddof=1),
    "nanargmax": lambda m, x: m.nanargmax(x.A, axis=1),
    "nanargmin": lambda m, x: m.nanargmin(x.A),
    "nancumsum": lambda m, x: m.nancumsum(x.A, axis=1, dtype=np.float64),
    "nansum complex": lambda m, x: m.nansum(m.where(x.M > 0, x.Z, np.nan), axis=1),
    "nanprod complex": lambda m, x: m.nanprod(m.where(x.M > 0, x.Z, np.nan), axis=1),
    "nanmean complex": lambda m, x: m.nanmean(m.where(x.M > 0, x.Z, np.nan), axis=0),
    "nancumprod": lambda m, x: m.nancumprod(x.A),
    "median odd": lambda m, x: m.median(x.M, axis=0),
    "median even": lambda m, x: m.median(x.B, axis=1, keepdims=True),
    **{
        f"quantile {n}": lambda m, x, n=n: m.quantile(
            x.M, np.float32([0, 0.375, 1]), axis=1, method=n
        )
        for n in ("linear", "lower", "higher", "midpoint", "nearest")
    },
    **{
        f"{n} at {q}": lambda m, x, n=n, q=q: m.stack(
            [
                m.quantile(m.arange(11.0), q, method=n),
                m.percentile(m.arange(11.0), 100 * q, method=n),
                m.percentile(m.arange(11.0), np.float32(100 * q), method=n),
            ]
        )
        for n in ("lower", "higher")
        for q in (0.1, 0.7, 0.9)
    },
    "quantile all": lambda m, x: m.quantile(x.M, 0.7),
    "percentile": lambda m, x: m.percentile(x.M, 20, axis=0, keepdims=True),
    "nanquantile": lambda m, x: m.nanquantile(x.A, q=0.4, axis=0),
    "nanpercentile": lambda m, x: m.nanpercentile(x.A, 40),
    "cov": lambda m, x: m.cov(x.M),
    "cov columns": lambda m, x: m.cov(x.M, rowvar=False),
    "cov of a row": lambda m, x: m.cov(x.M[:1]),
    "cov of one": lambda m, x: m.cov(x.V),
    "corrcoef": lambda m, x: m.corrcoef(x.M),
    "histogram": lambda m, x: m.histogram(x.M, 4)[0],
    "histogram edges": lambda m, x: m.histogram(x.M, 4)[1],
    "histogram range": lambda m, x: m.histogram(x.I, 3, (0.0, 3.0))[0],
    "histogram at": lambda m, x: m.histogram(x.M, np.float32([-1, 0, 2]), weights=x.I)[0],
    "histogram at integers": lambda m, x: m.histogram(x.M, np.array([0, 1, 3]))[0],
    "histogram density": lambda m, x: m.histogram(x.M, 5, density=True)[0],
    "digitize": lambda m, x: m.digitize(x.M, np.float32([-1, 0, 2])),
    "digitize right": lambda m, x: m.digitize(x.I, np.array([1, 2]), right=True),
    "trapezoid": lambda m, x: m.trapezoid(x.M, axis=0),
    "trapezoid at": lambda m, x: m.trapezoid(x.M, x.V[:6]),
    "ediff1d": lambda m, x: m.ediff1d(x.M),
    "gradient": lambda m, x: m.gradient(x.M)[1],
    "gradient one": lambda m, x: m.gradient(x.M, 2.0, axis=0),
    "interp": lambda m, x: m.interp(x.M, x.LEFT, x.V),
    "interp at a number": lambda m, x: m.interp(0.1, x.LEFT, x.V),
    "interp one": lambda m, x: m.interp(x.V[0], x.LEFT, x.V),
    "isin": lambda m, x: m.isin(x.I, np.array([0, 3])),
    "isin not": lambda m, x: m.isin(x.I, x.I[0, :2], invert=True),
    "unwrap": lambda m, x: m.unwrap(x.M * 4, axis=0),
    "lexsort": lambda m, x: m.lexsort(m.stack([x.M[0], m.round(x.M[1])])),
    # products
    "dot": lambda m, x: m.dot(x.M, x.V[:6]),
    "dot of many": lambda m, x: m.dot(x.M[:, :5], x.M[None]),
    "dot of numbers": lambda m, x: m.dot(x.M, 0.1),
    "inner": lambda m, x: m.inner(x.M, x.M[:2]),
    "vdot": lambda m, x: m.vdot(x.Z, x.Z),
    "kron": lambda m, x: m.kron(x.M[:2], x.V[:3]),
    "diagonal": lambda m, x: m.diagonal(x.M[None], 1, 2, 1),
    "trace": lambda m, x: m.trace(x.M),
    "cross": lambda m, x: m.cross(x.M[:, :3], x.V[:3]),
    **{
        f"{n} {w}": lambda m, x, n=n, w=w: getattr(m, n)(x.V, x.M[0, :4], w)
        for n in ("convolve", "correlate")
        for w in ("full", "same", "valid")
    },
    "convolve short": lambda m, x: m.convolve(x.M[0, :3], x.V),
    "correlate short": lambda m, x: m.correlate(x.M[0, :3], x.V, "same"),
    "correlate complex": lambda m, x: m.correlate(x.Z[0], x.Z[1, :3], "full"),
    "polyval": lambda m, x: m.polyval(x.V[:3], x.M),
    "polyval at a number": lambda m, x: m.polyval(x.V, 0.1),
    "polymul": lambda m, x: m.polymul(x.V[:3], x.V[3:]),
    "polyadd": lambda m, x: m.polyadd(x.V[:3], x.V),
    "polysub": lambda m, x: m.polysub(x.V, x.V[:3]),
    "polyder": lambda m, x: m.polyder(x.V),
    # of the standard, as people call it
    "sum by place": lambda m, x: m.sum(x.M, 0),
    "sort by place": lambda m, x: m.sort(x.M, 0),
    "take flat": lambda m, x: m.take(x.M, np.array([3, 8])),
    "squeeze all": lambda m, x: m.squeeze(x.M[None, :, :1]),
}
"""What is written, with the library as m and the arrays above as x."""


class Named:
    """The arrays by their names."""

    def __init__(self, *values):
        self.A, self.B, self.M, self.V, self.I, self.Z, self.LEFT = values


ARRAYS = (A, B, M, V, I, Z, LEFT)


@pytest.mark.parametrize(
    ("mesh", "layouts"),
    [
        pytest.param("", None, marks=deep),
        ("x=2, y=2", ("[x, y]", "[y, x]", "[x*y, _]", "[x]", "[_, y]", "[_*x, _]", "[_]")),
    ],
    ids=["one", "four"],
)
@pytest.mark.parametrize("part", some(range(4), 4))
def test_names_of_numpys_mean_what_they_mean_there(part, mesh, layouts):
    cases = dict(list(SAME.items())[part::4])
    with np.errstate(all="ignore"):
        right = {name: f(np, Named(*ARRAYS)) for name, f in cases.items()}
    traced = {name: (lambda *xs, f=f: f(mw, Named(*xs))) for name, f in cases.items()}
    found = run_all(traced, *ARRAYS, mesh=mesh, in_layouts=layouts)
    real = {n: (v.real + 2 * v.imag if np.iscomplexobj(v) else v) for n, v in right.items()}
    ours = {n: (v.real + 2 * v.imag if np.iscomplexobj(v) else v) for n, v in found.items()}
    check(ours, real, 2e-5)
    wrong = [n for n in cases if found[n].dtype.kind != np.asarray(right[n]).dtype.kind]
    assert not wrong


WIDE = tuple(x.astype(x.dtype.name.replace("32", "64").replace("x64", "x128")) for x in ARRAYS)


@sampled(2)
@pytest.mark.parametrize("part", range(2))
def test_with_wide_floats_as_the_default_dtypes_and_digits_are_numpys(part):
    cases = dict(list(SAME.items())[part::2])
    with np.errstate(all="ignore"):
        right = {name: np.asarray(f(np, Named(*WIDE))) for name, f in cases.items()}
    traced = {name: (lambda *xs, f=f: f(mw, Named(*xs))) for name, f in cases.items()}
    with mw.default_float("float64"):
        found = run_all(traced, *WIDE)
    wrong = {n: (found[n].dtype, v.dtype) for n, v in right.items() if found[n].dtype != v.dtype}
    assert wrong == {}
    for name, value in right.items():
        np.testing.assert_allclose(found[name], value, 1e-10, 1e-10, err_msg=name)


def test_the_default_float_holds_for_the_calls_within():
    f = mw.jit(lambda i: mw.zeros((2,)) + i / 3)
    with mw.default_float("float64"):
        assert f(I[0, :2]).dtype == np.float64 and mw.mean(I).dtype == np.float64
        assert mw.asarray([1.5]).dtype == np.float64 and mw.asarray([1j]).dtype == np.complex128
        with pytest.raises(CompileError, match="holds around calls"):
            mw.jit(mw.default_float("float32")(lambda x: x))(M)
    assert f(I[0, :2]).dtype == np.float32 and mw.mean(I).dtype == np.float32
    assert "other kernels or floats" in f.explain_misses()
    with pytest.raises(UsageError, match=r"default_float: meshweave\.float16, float32 or float64"):
        mw.default_float("float16")


COMMON = """abs absolute add all allclose any append arange arccos arcsin arctan arctan2 argmax argmin argsort argwhere
array array_equal array_split asarray atleast_1d atleast_2d average bincount bitwise_and block broadcast_to cbrt ceil
choose clip column_stack concatenate conj convolve copy corrcoef cos cosh count_nonzero cov cross cumprod cumsum deg2rad
delete diag diagonal diff digitize divide dot dstack einsum empty equal exp expand_dims expm1 eye flip fliplr flipud
floor floor_divide fmax fmin full full_like geomspace gradient greater heaviside histogram hstack hypot identity indices
inner insert interp isclose isfinite isin isinf isnan kron less linspace log log10 log1p log2 logaddexp logical_and
logical_not logical_or logspace matmul max maximum mean median meshgrid min minimum mod moveaxis multiply nan_to_num
nanmax nanmean nanmin nanstd nansum nonzero ones ones_like outer percentile piecewise power prod ptp quantile rad2deg
ravel real reciprocal remainder repeat reshape resize rint roll rot90 round searchsorted select sign sin sinc sinh sort
split sqrt square squeeze stack std subtract sum swapaxes take tan tanh tensordot tile trace transpose trapezoid tri
tril triu trunc union1d unique unravel_index vander var vdot vstack where zeros zeros_like"""


def jax_names():
    jnp = pytest.importorskip("jax.numpy")
    return [n for n in dir(jnp) if n[0].islower() and inspect.isfunction(getattr(jnp, n))]


@pytest.mark.parametrize("names", [COMMON.split, jax_names], ids=["numpy", "jax"])
def test_a_common_name_is_there_or_says_how_it_is_spelt(names):
    silent = []
    for name in names():
        try:
            getattr(mw, name)
        except AttributeError as error:
            silent += [name] if f"no attribute '{name}': " not in str(error) else []
    assert silent == []


def test_what_a_name_is_said_to_be_is_there():
    for own in (*SYNONYMS.values(), *NEAR.values()):
        assert callable(attrgetter(own)(mw)), own


def test_traced_values_have_the_methods_of_arrays():
    only = {
        "check_usable",
        "numpy",
        "item",
        "tolist",
        "tobytes",
        "to_device",
        "mesh",
        "dtype",
        "shape",
        "trace",
    }
    methods = {n for n in vars(Operators) if not n.startswith("_")} - only
    assert {n for n in methods if not hasattr(Tracer, n)} == set()


METHODS = {
    "sum": lambda x: x.sum(0), "mean": lambda x: x.mean(axis=1), "std": lambda x: x.std(ddof=1),
    "var": lambda x: x.var(0, keepdims=True), "max": lambda x: x.max(1), "ptp": lambda x: x.max() - x.min(),
    "argmax": lambda x: x.argmax(1), "argsort": lambda x: x.argsort(0), "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(1), "round": lambda x: x.round(1), "clip": lambda x: x.clip(-1, 1),
    "take": lambda x: x.take(np.array([1, 2]), 1), "repeat": lambda x: x.repeat(2, 0), "dot": lambda x: x.dot(x.T),
    "transpose": lambda x: x.transpose(1, 0), "transposed": lambda x: x.transpose(), "flatten": lambda x: x.flatten(),
    "diagonal": lambda x: x.diagonal(1), "swapaxes": lambda x: x.swapaxes(0, 1), "astype": lambda x: x.astype("int32"),
    "reshape": lambda x: x.reshape(3, -1), "squeeze": lambda x: x[:1].squeeze(), "real": lambda x: x.real,
    "nbytes": lambda x: x * 0 + x.nbytes, "all": lambda x: (x < 9).all(0), "prod": lambda x: x.prod(),
}  # fmt: skip


@pytest.mark.parametrize("layout", some(["[x, y]", ""], 2))
def test_methods_are_those_of_numpys_arrays(layout):
    a = mw.Array.from_numpy(M, mesh="x=2, y=2", layout=layout) if layout else mw.asarray(M)
    traced = run_all(METHODS, a, mesh="x=2, y=2" if layout else None)
    right = {name: f(M) for name, f in METHODS.items()}
    check(traced, right, 1e-6)
    if not layout:
        check({name: np.asarray(f(a)) for name, f in METHODS.items()}, right, 1e-6)


def test_an_attribute_that_arrays_lack_says_what_is_right():
    a = mw.asarray(M)
    for name, said in {"flip": "mw.flip(x) is right", "absolute": "mw.abs is np.absolute"}.items():
        with pytest.raises(AttributeError, match=re.escape(f"no attribute '{name}': {said}")):
            getattr(a, name)
    for name, said in {
        "test": "np.linalg.test(np.asarray",
        "einsum": "mw.einsum is right",
    }.items():
        with pytest.raises(AttributeError, match=re.escape(f"no attribute '{name}': {said}")):
            getattr(mw.linalg, name)
    assert not hasattr(a, "no_such_name") and not hasattr(mw.linalg, "no_such_name")
    assert dir(mw.linalg) == sorted(mw.linalg.__all__)


def test_counts_are_right_beyond_what_a_narrow_dtype_counts():
    for value in (np.array([0, 1, 1, 2, 255], np.uint8), np.array([True, False, True])):
        traced = mw.jit(lambda x: mw.bincount(x, length=258))(value)
        np.testing.assert_array_equal(traced, np.bincount(value, minlength=258))
        hot = np.asarray(mw.nn.one_hot(value, 258))
        np.testing.assert_array_equal(hot, value.astype(int)[:, None] == np.arange(258))


def test_histogram_takes_a_number_of_bins_outside_of_programs():
    for bins in (4, np.float32([-1, 0, 2])):
        for ours, theirs in zip(mw.histogram(M, bins), np.histogram(M, bins), strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-6)


WITH_NUMBERS = (
    lambda m, x: m.fmax(x, 0.1), lambda m, x: m.append(x, 0.1), lambda m, x: m.insert(x, 1, 0.1),
    lambda m, x: m.polyval(x + 1, 0.1), lambda m, x: m.dot(x + 1, 0.1), lambda m, x: m.kron(x + 1, 0.1),
    lambda m, x: m.interp(0.1, x, x), lambda m, x: m.piecewise(x, [x > 0], [0.1, 0.2]),
    lambda m, x: m.fmod(x + 5, 0.3), lambda m, x: m.heaviside(x, 0.1),
)  # fmt: skip


def test_numbers_keep_the_digits_of_wide_arrays_and_the_dtype_of_narrow_ones():
    for dtype, tolerance in ((np.float64, 1e-14), (np.float16, 2e-3)):
        x = np.array([0, 1], dtype)
        for f in WITH_NUMBERS:
            found = np.asarray(f(mw, x))
            assert found.dtype == dtype
            np.testing.assert_allclose(found, f(np, x), tolerance)
    row = np.array([0.1, 0.2])
    assert np.asarray(mw.isin(row, 0.1)).tolist() == [True, False]
    assert int(mw.searchsorted(row, 0.1)) == 0


def test_what_has_no_order_is_refused_with_complex_numbers():
    for f in (mw.nan_to_num, mw.nanvar, mw.nanmax):
        with pytest.raises(CompileError, match="complex64, a real one is right"):
            f(Z)


@sampled(1)
@pytest.mark.parametrize("dtype", ["bool", "i1", "u1", "i2", "u2", "u8"])
def test_bincount_counts_far_beyond_what_the_dtype_holds(dtype):
    x, none = np.array([1, 0, 1], dtype), np.array([], dtype)
    for given in (x, none):
        wanted = np.bincount(given.astype(int), minlength=301)
        np.testing.assert_array_equal(mw.bincount(given, minlength=301), wanted)
        np.testing.assert_array_equal(mw.jit(lambda v: mw.bincount(v, length=301))(given), wanted)
    np.testing.assert_array_equal(mw.bincount(x), [1, 2])


def test_bincount_finds_its_length_outside_of_programs():
    np.testing.assert_array_equal(mw.bincount(I[0]), np.bincount(I[0]))
    np.testing.assert_array_equal(
        mw.bincount(I[0], M[0], minlength=7),
        np.bincount(I[0], M[0], minlength=7).astype(np.float32),
    )
    with pytest.raises(CompileError, match=r"length=\.\. says it"):
        mw.jit(mw.bincount)(I[0])
