"""The array API standard, 2024.12: every function is there with its signature, or is refused in words."""

import inspect

import numpy as np
import pytest
from traced import mw, run_all

from meshweave.errors import CompileError

# As the standard's pages write them; ours may take more by position.
SIGNATURES = """
abs(x, /)  acos(x, /)  acosh(x, /)  add(x1, x2, /)  asin(x, /)  asinh(x, /)  atan(x, /)  atan2(x1, x2, /)  atanh(x, /)
bitwise_and(x1, x2, /)  bitwise_left_shift(x1, x2, /)  bitwise_invert(x, /)  bitwise_or(x1, x2, /)
bitwise_right_shift(x1, x2, /)  bitwise_xor(x1, x2, /)  ceil(x, /)  clip(x, /, min=None, max=None)  conj(x, /)
copysign(x1, x2, /)  cos(x, /)  cosh(x, /)  divide(x1, x2, /)  equal(x1, x2, /)  exp(x, /)  expm1(x, /)  floor(x, /)
floor_divide(x1, x2, /)  greater(x1, x2, /)  greater_equal(x1, x2, /)  hypot(x1, x2, /)  imag(x, /)  isfinite(x, /)
isinf(x, /)  isnan(x, /)  less(x1, x2, /)  less_equal(x1, x2, /)  log(x, /)  log1p(x, /)  log2(x, /)  log10(x, /)
logaddexp(x1, x2, /)  logical_and(x1, x2, /)  logical_not(x, /)  logical_or(x1, x2, /)  logical_xor(x1, x2, /)
maximum(x1, x2, /)  minimum(x1, x2, /)  multiply(x1, x2, /)  negative(x, /)  nextafter(x1, x2, /)
not_equal(x1, x2, /)  positive(x, /)  pow(x1, x2, /)  real(x, /)  reciprocal(x, /)  remainder(x1, x2, /)  round(x, /)
sign(x, /)  signbit(x, /)  sin(x, /)  sinh(x, /)  square(x, /)  sqrt(x, /)  subtract(x1, x2, /)  tan(x, /)  tanh(x, /)
trunc(x, /)  where(condition, x1, x2, /)
arange(start, /, stop=None, step=1, *, dtype=None, device=None)  asarray(obj, /, *, dtype=None, device=None, copy=None)
empty(shape, *, dtype=None, device=None)  empty_like(x, /, *, dtype=None, device=None)
eye(n_rows, n_cols=None, /, *, k=0, dtype=None, device=None)  from_dlpack(x, /, *, device=None, copy=None)
full(shape, fill_value, *, dtype=None, device=None)  full_like(x, /, fill_value, *, dtype=None, device=None)
linspace(start, stop, /, num, *, dtype=None, device=None, endpoint=True)  meshgrid(*arrays, indexing="xy")
ones(shape, *, dtype=None, device=None)  ones_like(x, /, *, dtype=None, device=None)  tril(x, /, *, k=0)
triu(x, /, *, k=0)  zeros(shape, *, dtype=None, device=None)  zeros_like(x, /, *, dtype=None, device=None)
astype(x, dtype, /, *, copy=True, device=None)  can_cast(from_, to, /)  finfo(type, /)  iinfo(type, /)
isdtype(dtype, kind)  result_type(*arrays_and_dtypes)
take(x, indices, /, *, axis=None)  take_along_axis(x, indices, /, *, axis=-1)
matmul(x1, x2, /)  matrix_transpose(x, /)  tensordot(x1, x2, /, *, axes=2)  vecdot(x1, x2, /, *, axis=-1)
broadcast_arrays(*arrays)  broadcast_to(x, /, shape)  concat(arrays, /, *, axis=0)  expand_dims(x, /, *, axis=0)
flip(x, /, *, axis=None)  moveaxis(x, source, destination, /)  permute_dims(x, /, axes)
repeat(x, repeats, /, *, axis=None)
reshape(x, /, shape, *, copy=None)  roll(x, /, shift, *, axis=None)  squeeze(x, /, axis)  stack(arrays, /, *, axis=0)
tile(x, repetitions, /)  unstack(x, /, *, axis=0)
argmax(x, /, *, axis=None, keepdims=False)  argmin(x, /, *, axis=None, keepdims=False)
count_nonzero(x, /, *, axis=None, keepdims=False)  nonzero(x, /)
searchsorted(x1, x2, /, *, side="left", sorter=None)
unique_all(x, /)  unique_counts(x, /)  unique_inverse(x, /)  unique_values(x, /)
argsort(x, /, *, axis=-1, descending=False, stable=True)  sort(x, /, *, axis=-1, descending=False, stable=True)
cumulative_prod(x, /, *, axis=None, dtype=None, include_initial=False)
cumulative_sum(x, /, *, axis=None, dtype=None, include_initial=False)
max(x, /, *, axis=None, keepdims=False)  mean(x, /, *, axis=None, keepdims=False)
min(x, /, *, axis=None, keepdims=False)  prod(x, /, *, axis=None, dtype=None, keepdims=False)
std(x, /, *, axis=None, correction=0.0, keepdims=False)  sum(x, /, *, axis=None, dtype=None, keepdims=False)
var(x, /, *, axis=None, correction=0.0, keepdims=False)
all(x, /, *, axis=None, keepdims=False)  any(x, /, *, axis=None, keepdims=False)
diff(x, /, *, axis=-1, prepend=None, append=None, n=1)
linalg.cross(x1, x2, /, *, axis=-1)  linalg.diagonal(x, /, *, offset=0)  linalg.matmul(x1, x2, /)
linalg.matrix_norm(x, /, *, keepdims=False, ord="fro")  linalg.matrix_transpose(x, /)  linalg.outer(x1, x2, /)
linalg.tensordot(x1, x2, /, *, axes=2)  linalg.trace(x, /, *, offset=0, dtype=None)
linalg.vecdot(x1, x2, /, *, axis=-1)  linalg.vector_norm(x, /, *, axis=None, keepdims=False, ord=2)
linalg.cholesky(x, /, *, upper=False)  linalg.det(x, /)  linalg.eigh(x, /)  linalg.eigvalsh(x, /)  linalg.inv(x, /)
linalg.matrix_power(x, n, /)  linalg.matrix_rank(x, /, *, rtol=None)  linalg.pinv(x, /, *, rtol=None)
linalg.qr(x, /, *, mode="reduced")  linalg.slogdet(x, /)  linalg.solve(x1, x2, /)
linalg.svd(x, /, *, full_matrices=True)  linalg.svdvals(x, /)
fft.fft(x, /, *, n=None, axis=-1, norm="backward")  fft.ifft(x, /, *, n=None, axis=-1, norm="backward")
fft.fftn(x, /, *, s=None, axes=None, norm="backward")  fft.ifftn(x, /, *, s=None, axes=None, norm="backward")
fft.rfft(x, /, *, n=None, axis=-1, norm="backward")  fft.irfft(x, /, *, n=None, axis=-1, norm="backward")
fft.rfftn(x, /, *, s=None, axes=None, norm="backward")  fft.irfftn(x, /, *, s=None, axes=None, norm="backward")
fft.hfft(x, /, *, n=None, axis=-1, norm="backward")  fft.ihfft(x, /, *, n=None, axis=-1, norm="backward")
fft.fftfreq(n, /, *, d=1.0, dtype=None, device=None)  fft.rfftfreq(n, /, *, d=1.0, dtype=None, device=None)
fft.fftshift(x, /, *, axes=None)  fft.ifftshift(x, /, *, axes=None)
"""
ENTRIES = [entry.strip() for line in SIGNATURES.split("\n") for entry in line.split("  ") if entry]


@pytest.mark.parametrize("entry", ENTRIES)
def test_signature(entry):
    name, _, rest = entry.partition("(")
    wanted = inspect.signature(eval(f"lambda {rest[:-1]}: 0".replace(", /,", ",/,")))
    namespace, _, own = name.rpartition(".")
    found = inspect.signature(getattr(getattr(mw, namespace) if namespace else mw, own))
    kinds = inspect.Parameter
    for parameter in wanted.parameters.values():
        if parameter.kind in (kinds.POSITIONAL_ONLY, kinds.VAR_POSITIONAL):
            continue  # their names are not called by
        here = found.parameters[parameter.name]
        assert parameter.default in (kinds.empty, here.default), parameter.name
        assert here.kind in (parameter.kind, kinds.POSITIONAL_OR_KEYWORD), parameter.name
    by_place = [p for p in wanted.parameters.values() if p.kind is not kinds.KEYWORD_ONLY]
    ours = [p for p in found.parameters.values() if p.kind is not kinds.KEYWORD_ONLY]
    assert len(ours) >= len(by_place)
    for here, parameter in zip(ours, by_place, strict=False):
        positional_only = parameter.kind is kinds.POSITIONAL_ONLY
        assert here.kind is parameter.kind or (not positional_only), parameter.name
        if parameter.kind is not kinds.VAR_POSITIONAL:
            assert parameter.default in (kinds.empty, here.default), parameter.name


def test_the_standards_constants_operators_and_attributes():
    assert (
        (mw.e, mw.pi, mw.inf) == (np.e, np.pi, np.inf) and np.isnan(mw.nan) and mw.newaxis is None
    )
    names = "add and eq floordiv ge gt invert le lshift lt matmul mod mul ne neg or pos pow rshift sub truediv xor abs"
    others = "array_namespace bool complex dlpack dlpack_device float getitem index int setitem radd rmatmul rpow"

    def function(x):
        for name in (*names.split(), *others.split()):
            assert hasattr(type(x), f"__{name}__"), name
        for name in ("dtype", "device", "mT", "ndim", "shape", "size", "T", "to_device"):
            assert hasattr(x, name), name
        assert x.to_device(x.device) is x and x.__array_namespace__() is mw
        y = x
        y += 1
        y **= 2
        assert y is not x
        return y

    assert mw.jit(function)(np.ones((2, 2), np.float32)).numpy().tolist() == [[4, 4], [4, 4]]


def test_what_the_namespace_says_of_itself():
    assert mw.__array_api_version__ == "2024.12"
    info = mw.__array_namespace_info__()
    assert info.capabilities()["data-dependent shapes"] is True
    seen = []
    mw.jit(lambda x: seen.append(mw.__array_namespace_info__().capabilities()) or x)(np.ones(2))
    assert seen[0]["boolean indexing"] is seen[0]["data-dependent shapes"] is False
    assert info.default_dtypes()["integral"] is mw.int64 and info.devices() == [
        info.default_device()
    ]
    assert set(info.dtypes(kind="real floating")) == {"float32", "float64"}
    assert info.dtypes()["bool"] is mw.bool


@pytest.mark.parametrize(
    "name", ["nonzero", "unique_all", "unique_counts", "unique_inverse", "unique_values"]
)
def test_shapes_that_depend_on_elements_are_refused(name):
    with pytest.raises(CompileError, match=f"{name}: the shape of the result depends") as caught:
        mw.jit(lambda x: getattr(mw, name)(x))(np.ones(3, np.float32))
    assert caught.value.location.startswith(f"{__file__}:")


def test_dlpack_in_and_out():
    x = np.arange(6.0).reshape(2, 3)
    array = mw.from_dlpack(x)
    assert np.shares_memory(array.shards[0], x) and isinstance(array, mw.Array)
    assert not np.shares_memory(mw.from_dlpack(x, copy=True).shards[0], x)
    found = run_all({"y": lambda a: a + mw.from_dlpack(x), "self": lambda a: mw.from_dlpack(a)}, x)
    assert np.array_equal(found["y"], 2 * x) and np.array_equal(found["self"], x)
    with pytest.raises(mw.MeshweaveError, match='"gpu" is not NAME=SIZE'):
        mw.from_dlpack(x, device="gpu")
    laid = mw.from_dlpack(x, device="x=2")
    assert laid.mesh == mw.Mesh.parse("x=2") and np.array_equal(laid, x)
    again = mw.from_dlpack(laid)
    again[0, 0] = 9.0  # Arrays share no elements that change
    assert again.layout == laid.layout and np.array_equal(laid, x)
    with pytest.raises(BufferError, match="needs a copy, copy=False"):
        mw.from_dlpack(x, device="x=2", copy=False)
    with pytest.raises(CompileError, match="from_dlpack: a list has no __dlpack__"):
        mw.jit(lambda a: mw.from_dlpack([1]) + a)(x)


def test_devices_are_the_mesh():
    y = run_all(
        {"y": lambda x: mw.zeros((2,), device=x.device) + mw.ones_like(x, device=None)}, np.zeros(2)
    )
    assert y["y"].tolist() == [1, 1]
    with pytest.raises(CompileError, match="full: device='cuda': tensors lie on the mesh"):
        mw.jit(lambda x: x + mw.zeros((2,), device="cuda"))(np.zeros(2))


def test_linalg():
    rng = np.random.default_rng(5)
    m, v, w = (
        rng.standard_normal((3, 4, 5)),
        rng.standard_normal((4, 3)),
        rng.standard_normal((2, 1, 3)),
    )
    cases = {f"diagonal {k}": (lambda m, v, w, k=k: mw.linalg.diagonal(m, offset=k), np.diagonal(m, k, 1, 2))
             for k in (0, 1, -2, 4, -3, 5, -9)}  # fmt: skip
    cases |= {
        "trace": (lambda m, v, w: mw.linalg.trace(m, offset=1), np.trace(m, 1, 1, 2)),
        "cross": (lambda m, v, w: mw.linalg.cross(v, w), np.cross(v, w)),
        "cross first": (lambda m, v, w: mw.linalg.cross(v.T, v.T, axis=0), 0 * v.T),
        "fro": (lambda m, v, w: mw.linalg.matrix_norm(m), np.linalg.norm(m, axis=(1, 2))),
    }
    for ord in (1, -1, np.inf, -np.inf):
        right = np.linalg.norm(m, ord, (1, 2), keepdims=True)
        cases[f"matrix {ord}"] = (
            lambda m, v, w, o=ord: mw.linalg.matrix_norm(m, ord=o, keepdims=True),
            right,
        )
    for ord in (0, 1, 2, 3, 0.5, -1, np.inf, -np.inf):
        right = np.linalg.norm(v, ord, axis=0)
        cases[f"vector {ord}"] = (
            lambda m, v, w, o=ord: mw.linalg.vector_norm(v, axis=0, ord=o),
            right,
        )
    cases["all"] = (lambda m, v, w: mw.linalg.vector_norm(m), np.linalg.norm(m.ravel()))
    for options in ({}, {"mesh": "x=2, y=2", "in_layouts": ("[_, x, y]", "[_*y, x]", "[x, _, _]")}):
        found = run_all({n: f for n, (f, _) in cases.items()}, m, v, w, **options)
        for name, (_, right) in cases.items():
            assert found[name].shape == np.shape(right), name
            assert np.allclose(found[name], right, 1e-13, 1e-13), name


def test_factorisations():
    rng = np.random.default_rng(6)
    m, t, v = (rng.standard_normal(shape) for shape in ((3, 4, 4), (5, 4), (3, 4, 2)))
    p, lin = m @ m.swapaxes(1, 2) + np.eye(4), mw.linalg
    cases = {
        "cholesky": (lambda p, m, t, v: lin.cholesky(p), np.linalg.cholesky(p)),
        "upper": (
            lambda p, m, t, v: lin.cholesky(p, upper=True),
            np.linalg.cholesky(p).swapaxes(1, 2),
        ),
        "det": (lambda p, m, t, v: lin.det(m), np.linalg.det(m)),
        "sign": (lambda p, m, t, v: lin.slogdet(m).sign, np.linalg.slogdet(m).sign),
        "logabsdet": (lambda p, m, t, v: lin.slogdet(m).logabsdet, np.linalg.slogdet(m).logabsdet),
        "inv": (lambda p, m, t, v: lin.inv(m), np.linalg.inv(m)),
        "solve": (lambda p, m, t, v: lin.solve(m, v), np.linalg.solve(m, v)),
        "solve one": (lambda p, m, t, v: lin.solve(m, v[0, :, 0]), np.linalg.solve(m, v[0, :, 0])),
        "solve all": (lambda p, m, t, v: lin.solve(m[0], v), np.linalg.solve(m[0], v)),
        "Q": (lambda p, m, t, v: lin.qr(t).Q, np.linalg.qr(t).Q),
        "R": (lambda p, m, t, v: lin.qr(t.T).R, np.linalg.qr(t.T).R),
        "all of Q": (
            lambda p, m, t, v: lin.qr(t, mode="complete").Q,
            np.linalg.qr(t, "complete").Q,
        ),
        "svdvals": (lambda p, m, t, v: lin.svdvals(t), np.linalg.svdvals(t)),
        "svd": (lambda p, m, t, v: (lambda u, s, vh: (u[:, :4] * s) @ vh)(*lin.svd(t)), t),
        "eigvalsh": (lambda p, m, t, v: lin.eigvalsh(p), np.linalg.eigvalsh(p)),
        "eigh": (lambda p, m, t, v: (lambda w, x: (x * w[:, None]) @ x.mT)(*lin.eigh(p)), p),
        "pinv": (lambda p, m, t, v: lin.pinv(t), np.linalg.pinv(t)),
        "rank": (lambda p, m, t, v: lin.matrix_rank(t @ t.T), np.array(4)),
        "power": (lambda p, m, t, v: lin.matrix_power(m, -3), np.linalg.matrix_power(m, -3)),
        "power 0": (lambda p, m, t, v: lin.matrix_power(m, 0), np.linalg.matrix_power(m, 0)),
        "norm 2": (lambda p, m, t, v: lin.matrix_norm(m, ord=2), np.linalg.norm(m, 2, (1, 2))),
        "norm nuc": (lambda p, m, t, v: lin.matrix_norm(t, ord="nuc"), np.linalg.norm(t, "nuc")),
        "none": (lambda p, m, t, v: lin.cholesky(-p), np.full_like(p, np.nan)),
    }
    layouts = ("[x, _, _]", "[_, x, _]", "[x, _]", "[_, _, x]")
    for options in ({}, {"mesh": "x=2", "in_layouts": layouts}):
        found = run_all({n: f for n, (f, _) in cases.items()}, p, m, t, v, **options)
        for name, (_, right) in cases.items():
            np.testing.assert_allclose(found[name], right, 1e-9, 1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: mw.linalg.cross(x, x), "sizes 4 and 4 along the axis, 3 and 3 are right"),
        (lambda x: mw.linalg.trace(x[0]), "trace: x has 1 dims, at least 2 are right"),
        (lambda x: mw.linalg.matrix_norm(x, ord="sum"), "ord='sum'"),
        (lambda x: mw.linalg.inv(x[:3]), r"inv: matrices of shape \[3, 4\], square ones are right"),
        (lambda x: mw.linalg.cholesky(x[0]), "cholesky: x has 1 dims, at least 2 are right"),
        (lambda x: mw.linalg.solve(x, x[:3]), "solve: 3 rows in x2, 4 are right"),
        (lambda x: mw.linalg.qr(x, mode="r"), "qr: mode='r'"),
        (lambda x: mw.linalg.vector_norm(x, ord="2"), "a Python number is right"),
    ],
)
def test_what_linalg_refuses(function, says):
    with pytest.raises(CompileError, match=says):
        mw.jit(function)(np.ones((4, 4)))


NUMBERS = ("int8", "int16", "int32", "int64", "float16", "float32", "float64")


def test_every_pair_of_dtypes_promotes_as_the_standard_and_we_say():
    """Of one kind as in NumPy; an integer beside a float takes the float's type; a bool the other's."""

    def wanted(a, b):
        if a == "bool" or b == "bool":
            return b if a == "bool" else a
        if a[0] == b[0]:
            return np.result_type(a, b).name
        return a if a[0] == "f" else b

    names = ("bool", *NUMBERS)
    arrays = {name: np.ones(2, name) for name in names}
    pairs = [(a, b) for a in names for b in names if (a, b) != ("bool", "bool")]
    found = run_all({f"{a} {b}": lambda t, a=a, b=b: t[a] + t[b] for a, b in pairs}, arrays)
    for a, b in pairs:
        assert (
            found[f"{a} {b}"].dtype.name == wanted(a, b) == str(repr(mw.result_type(a, b)))[10:]
        ), (a, b)
        assert mw.can_cast(a, b) == (wanted(a, b) == b)


def test_operators_with_python_numbers_on_either_side():
    """Numbers take the array's dtype unless their kind is higher; each operator, its reflected and in-place form."""
    x = np.array([1, -2, 3, -7, 5])
    operators = {
        "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
        "//": lambda a, b: a // b, "%": lambda a, b: a % b, "<": lambda a, b: a < b, "==": lambda a, b: a == b,
        "!=": lambda a, b: a != b, ">=": lambda a, b: a >= b,
    }  # fmt: skip
    bits = {"&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b}
    shifts = {"<<": lambda a, b: a << b, ">>": lambda a, b: a >> b}
    for name in NUMBERS:
        integer = name.startswith("int")
        many = {**operators, **(bits | shifts if integer else {})}
        cases = {f"x {sign} 3": lambda a, f=f: f(a, 3) for sign, f in many.items()}
        cases |= {
            f"3 {sign} x": lambda a, f=f: f(3, a) for sign, f in many.items() if sign not in shifts
        }
        cases |= (
            {"1 << x": lambda a: 1 << abs(a), "x ** 2": lambda a: a**2}
            if integer
            else {"2 ** x": lambda a: 2**a}
        )
        cases["~, -, +, abs"] = lambda a, i=integer: abs(-(+a)) + (~a if i else 0)
        found = run_all(cases, x.astype(name))
        for case, call in cases.items():
            right = np.asarray(call(x.astype(name)))
            if right.dtype.kind == "f" and integer:
                right = right.astype(np.float32)  # the default floating dtype
            assert found[case].dtype == right.dtype, (name, case)
            tolerance = (
                0
                if integer and "/" not in case
                else mw.finfo(mw.float32).eps * (2 if name != "float16" else 2**14)
            )
            assert np.allclose(found[case], right, tolerance, 0), (name, case)


def test_in_place_operators_bind_anew():
    def f(x):
        y = z = x
        y += 1
        y *= 2
        y -= x
        y /= 4
        y @= mw.eye(3)
        return y, z

    x = np.arange(9, dtype=np.float32).reshape(3, 3)
    y, z = mw.jit(f)(x)
    assert np.allclose(y.numpy(), ((x + 1) * 2 - x) / 4) and np.array_equal(z.numpy(), x)
