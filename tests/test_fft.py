"""Fourier transforms against NumPy: lengths of all kinds, rows and columns, batches, ranks that hold parts."""

import numpy as np
import pytest
from depth import sampled

import meshweave as mw
from meshweave.api import program as api
from meshweave.ir.fft import extents
from meshweave.lowering.cpu.fft.factors import chirp_transform, radices

TOLERANCE = {"f32": 2e-6, "f64": 1e-14}
SHORT = (1, 2, 3, 4, 5, 8, 15, 16, 18, 37)
LONG = (49, 64, 143, 240, 256, 1000, 1009, 1024)
KINDS = ("fft", "ifft", "rfft", "irfft")


def sample(shape, dtype):
    rng = np.random.default_rng(len(shape))
    numbers = rng.standard_normal(shape)
    return (numbers + 1j * rng.standard_normal(shape) if dtype[0] == "c" else numbers).astype(dtype)


def dtypes(kind, element):
    """NumPy's names of what goes in and comes out."""
    real, both = {"f32": ("float32", "complex64"), "f64": ("float64", "complex128")}[element]
    return (real if kind == "rfft" else both), (real if kind == "irfft" else both)


def type_of(shape, dtype):
    element = f"f{np.dtype(dtype).type(0).real.itemsize * 8}"
    element = f"complex<{element}>" if dtype[0] == "c" else element
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def program(kind, shape, dim, length, element, layout="", mesh="", apart=False):
    """The text of a program that transforms once, and the shape of what it takes. apart: its parts are two tensors."""
    given, made = ([*shape[:dim], n, *shape[dim + 1 :]] for n in extents(kind, length))
    source, target = (type_of(s, d) for s, d in zip((given, made), dtypes(kind, element)))
    head = f'"dist.mesh"() {{sym_name = "mesh", axes = "{mesh}"}} : () -> ()\n' if mesh else ""
    placed = f' {{dist.layout = #dist.layout<"{layout}">}}' if layout else ""
    said = f'kind = "{kind}", dim = {dim} : i64, length = {length} : i64'
    body = f'  %1 = "mw.fft"(%0) {{{said}}} : ({source}) -> {target}\n'
    casts = [
        f"  %{n} = tensor.cast %{v} : {t} to {t}\n"
        for n, v, t in ((0, "x", source), (2, "1", target))
    ]
    body = f"{casts[0]}{body}{casts[1]}  return %2 : {target}"
    if not apart:
        body = f'  %0 = "mw.fft"(%x) {{{said}}} : ({source}) -> {target}\n  return %0 : {target}'
    return f"{head}func.func @main(%x: {source}{placed}) -> {target} {{\n{body}\n}}", given


def check(kind, shape, dim, length, element="f32", engine="local", **placed):
    text, given = program(kind, shape, dim, length, element, **placed)
    x = sample(given, dtypes(kind, element)[0])
    with api.compile(text, engine=engine) as compiled:
        assert not compiled.bundle.manifest.certificate.unproven
        for _ in range(2):
            (y,) = (np.asarray(v) for v in compiled(x))
    n = {"n": length} if kind == "irfft" else {}
    wide = x.astype("float64" if kind == "rfft" else "complex128")
    right = getattr(np.fft, kind)(wide, axis=dim, **n) if x.size else np.zeros(y.shape)
    assert y.dtype == dtypes(kind, element)[1]
    largest = np.abs(right).max(initial=1e-30)
    assert np.abs(y - right).max(initial=0.0) <= TOLERANCE[element] * largest


@sampled(4)
@pytest.mark.parametrize("length", SHORT)
def test_columns_and_rows_of_short_transforms(length):
    for kind in KINDS:
        check(kind, [2, 0], 1, length)
        check(kind, [0, 5], 0, length, "f64")
        check(kind, [2, 0, 19], 1, length)
        check(kind, [2, 0], 1, length, apart=True)
        check(kind, [2, 0, 5], 1, length, apart=True)


@sampled(4)
@pytest.mark.parametrize("length", LONG)
def test_rows_of_long_transforms(length):
    check("fft", [0], 0, length, "f64")
    check("ifft", [3, 0], 1, length)
    check("ifft", [3, 0], 1, length, apart=True)
    check("rfft", [2, 0], 1, length)
    check("irfft", [2, 0], 1, length, "f64")


@sampled(1)
@pytest.mark.parametrize("shape", [(1009, 33), (1024, 17), (2, 1000, 50)])
def test_more_columns_than_are_computed_at_once(shape):
    dim, length = len(shape) - 2, shape[-2]
    for kind in KINDS:
        check(kind, [*shape], dim, length, "f64" if kind == "rfft" else "f32")


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batches(kind):
    check(kind, [0, 0], 1, 6)
    check(kind, [0, 0], 0, 6)


@sampled(5)
@pytest.mark.parametrize("engine", ["local", "mpi"])
@pytest.mark.parametrize(
    ("mesh", "layout"), [("x=2", "[_, x, _]"), ("x=3", "[x, _, _]"), ("x=2, y=2", "[x, y, _]")]
)
def test_ranks_hold_parts(mesh, layout, engine):
    for kind in ("fft", "irfft"):
        check(kind, [5, 0, 7], 1, 12, mesh=mesh, layout=layout, engine=engine)


def test_radices_are_written_out():
    for length in range(1, 600):
        try:
            assert np.prod(radices(length), dtype=int) == length
        except AssertionError:
            assert max(p for p in range(1, length + 1) if length % p == 0 and _is_prime(p)) > 31


def _is_prime(number):
    return number > 1 and all(number % k for k in range(2, int(number**0.5) + 1))


def test_a_chirp_is_even_around_zero():
    """The convolution of a chirp and its conjugate is a transform: of a one, it is the chirp's square."""
    spectrum = chirp_transform(5)
    around = np.fft.ifft(spectrum * len(spectrum))
    assert np.allclose(around[1:5], around[-1:-5:-1])


def test_gpus_have_none():
    text, _ = program("fft", [4], 0, 4, "f32")
    with pytest.raises(mw.MeshweaveError, match=r"mw\.fft: target gpu has no transforms"):
        api.build(text, engine="emulate")
