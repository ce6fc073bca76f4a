"""Ops that read windows of tensors that are cut: right on any blocks, and no more bytes than are read."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st

import meshweave as mw

Index = tuple[int | slice, ...]


def run(
    f: Callable[..., Any], args: list[Any], mesh: str, layouts: tuple[str, ...], out: str = ""
) -> Any:
    """Run a function and compare it with NumPy; all that it gives must be proven. Returns the compiled program."""
    wanted = f(*args)
    options = {"out_layouts": out} if out else {}
    jitted = mw.jit(f, mesh=mesh, in_layouts=layouts, **options)
    np.testing.assert_array_equal(np.asarray(jitted(*args)), wanted)
    text = str(jitted.explain(*args))
    assert "1 of 1 results proven" in text, text
    return text


def received(text: str) -> int:
    """Return the bytes that the busiest rank receives, as the report says."""
    words = text.replace(",", "").split("busiest rank ")
    return int(words[1].split()[0]) if len(words) > 1 else 0


def numbers(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return (np.arange(np.prod(shape)).reshape(shape) * 3 % 101).astype(dtype)


@sampled(1)
@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (np.s_[1:], 1),
        (np.s_[:-1], 0),
        (np.s_[-1:], 1),
        (np.s_[5], 1),
        (np.s_[300:310], 3),
        (np.s_[::2], 125),
    ],
)
def test_a_slice_brings_the_rows_that_it_reads(index: Index, rows: int) -> None:
    text = run(lambda x: x[index], [numbers((1000, 3))], "x=4", ("[x, _]",))
    assert received(text) <= 12 * rows


@pytest.mark.parametrize(
    ("mesh", "shape", "layout", "index", "dtype"),
    [
        ("x=4", (17, 3), "[x, _]", np.s_[3:], np.float64),
        ("x=4", (5, 3), "[x, _]", np.s_[1:], np.int8),
        ("x=4", (7,), "[x]", np.s_[6:], np.float16),
        ("x=4", (3, 2), "[x, _]", np.s_[1, 1:], np.int32),
        ("x=4", (12, 2), "[_*x, _]", np.s_[2:9], np.float32),
        ("x=2,y=2", (9, 7), "[x, y]", np.s_[1:, :-1], np.float32),
        ("x=2,y=2", (9, 7), "[y*x, _]", np.s_[2:8:3, 1:], np.bool_),
        ("x=2,y=2", (9, 7), "[y, _]", np.s_[0:0, 1:], np.float32),
        ("x=2,y=3", (8, 9, 2), "[x, y, _]", np.s_[4:5, 1::4], np.int64),
    ],
)
def test_slices_of_uneven_blocks(
    mesh: str, shape: tuple[int, ...], layout: str, index: Index, dtype: Any
) -> None:
    run(lambda x: x[index], [numbers(shape, dtype)], mesh, (layout,))


@sampled(1)
@pytest.mark.parametrize("rows", [1000, 998, 5, 1])
@pytest.mark.parametrize("shift", [1, -1, 3])
def test_a_roll_brings_what_comes_from_neighbours(rows: int, shift: int) -> None:
    def rolled(x: Any) -> Any:
        library: Any = np if isinstance(x, np.ndarray) else mw
        return library.roll(x, shift, axis=0)

    text = run(rolled, [numbers((rows, 3))], "x=4", ("[x, _]",))
    assert received(text) <= 12 * 4 * abs(shift)


@pytest.mark.parametrize(
    ("mesh", "layout", "shapes", "dim"),
    [
        ("x=4", "[x, _]", [(100, 3), (1, 3), (50, 3)], 0),
        ("x=4", "[x, _]", [(2, 3), (1, 3)], 0),
        ("x=2,y=2", "[x, y]", [(7, 5), (7, 4), (7, 1)], 1),
        ("x=2,y=3", "[y*x]", [(5,), (8,)], 0),
    ],
)
def test_tensors_side_by_side(
    mesh: str, layout: str, shapes: list[tuple[int, ...]], dim: int
) -> None:
    def joined(*parts: Any) -> Any:
        plain = isinstance(parts[0], np.ndarray)
        return np.concatenate(parts, dim) if plain else mw.concat(parts, axis=dim)

    run(joined, [numbers(shape) for shape in shapes], mesh, (layout,) * len(shapes))


@sampled(1)
@pytest.mark.parametrize("index", [np.s_[2], np.s_[1:], np.s_[2:7:2], np.s_[:0]])
@pytest.mark.parametrize(
    ("mesh", "layout"),
    [("x=1", "[x, _]"), ("x=1,y=2", "[x, y]"), ("x=1,y=2", "[y*x, _]"), ("x=1,y=2", "[x*y, _]")],
)
def test_slices_along_an_axis_of_one_rank(mesh: str, layout: str, index: Index) -> None:
    run(lambda x: x[index], [numbers((9, 4))], mesh, (layout,))


@pytest.mark.parametrize(
    ("mesh", "layout", "out"),
    [("x=1", "[x, _]", "[x, _]"), ("x=1,y=2", "[y*x, _]", ""), ("x=1,y=2", "[y, _]", "[x, _]")],
)
def test_tensors_side_by_side_along_an_axis_of_one_rank(mesh: str, layout: str, out: str) -> None:
    def joined(a: Any, b: Any) -> Any:
        return np.concatenate([a, b]) if isinstance(a, np.ndarray) else mw.concat([a, b], axis=0)

    run(joined, [numbers((5, 3)), numbers((4, 3))], mesh, (layout,) * 2, out)


@sampled(1)
@pytest.mark.parametrize(
    "mesh, layout", [("x=1", "[x, _]"), ("x=4", "[x, _]"), ("x=2,y=2", "[y, x]")]
)
def test_what_is_put_together_twice_is_proven(mesh: str, layout: str) -> None:
    def joined(a: Any, b: Any) -> Any:
        library: Any = np if isinstance(a, np.ndarray) else mw
        return library.concat([b, library.roll(a, 1, axis=0), library.roll(b, -2, axis=0)], axis=0)

    run(joined, [numbers((5, 3)), numbers((9, 3))], mesh, (layout,) * 2)


PAD = """
    %r = tensor.pad %a low[2, 1] high[1, 0] {
    ^bb0(%i: index, %j: index):
      %c = arith.constant 7.0 : f32
      tensor.yield %c : f32
    } : tensor<9x6xf32> to tensor<12x7xf32>
    return %r : tensor<12x7xf32>
"""
INSERT = """
    %r = tensor.insert_slice %b into %a[3, 2] [5, 3] [1, 1] : tensor<5x3xf32> into tensor<9x6xf32>
    return %r : tensor<9x6xf32>
"""


@sampled(1)
@pytest.mark.parametrize("layout", ["[x*y, _]", "[x, y]", "[_, y]", "[y, _]"])
@pytest.mark.parametrize("body", [PAD, INSERT])
def test_padding_and_parts_put_in(body: str, layout: str) -> None:
    a, b = numbers((9, 6)), -numbers((5, 3))
    wanted = a.copy()
    wanted[3:8, 2:5] = b
    if body == PAD:
        wanted = np.pad(a, ((2, 1), (1, 0)), constant_values=7)
    text = f"""
    "dist.mesh"() {{axes = "x=2, y=3", sym_name = "mesh"}} : () -> ()
    func.func @main(%a: tensor<9x6xf32> {{dist.layout = #dist.layout<"{layout}">}},
        %b: tensor<5x3xf32>) -> tensor<{"x".join(map(str, wanted.shape))}xf32> {{{body}}}
    """
    with mw.from_mlir(text) as program:
        np.testing.assert_array_equal(program(a, b)[0], wanted)
        assert program.bundle.manifest.certificate.unproven == ()


AT_A_PLACE = """
    %k = tensor.extract %at[] : tensor<index>
    %r = tensor.insert_slice %b into %a[%k, 2] [5, 3] [1, 1] : tensor<5x3xf32> into tensor<9x6xf32>
    return %r : tensor<9x6xf32>
"""
APART = """
    %r = tensor.insert_slice %b into %a[3, 1] [5, 3] [1, 2] : tensor<5x3xf32> into tensor<9x6xf32>
    return %r : tensor<9x6xf32>
"""


@sampled(1)
@pytest.mark.parametrize("layout", ["[x, _]", "[_, y]", "[x, y]", "[_, y*x]", "[_*x, _]"])
@pytest.mark.parametrize("body", [AT_A_PLACE, APART])
def test_parts_put_in_places_apart_or_not_known(body: str, layout: str) -> None:
    a, b, at = numbers((9, 6)), -numbers((5, 3)), np.array(4)
    wanted = a.copy()
    wanted[np.s_[3:8, 1:6:2] if body == APART else np.s_[4:9, 2:5]] = b
    text = f"""
    "dist.mesh"() {{axes = "x=2, y=3", sym_name = "mesh"}} : () -> ()
    func.func @main(%a: tensor<9x6xf32> {{dist.layout = #dist.layout<"{layout}">}},
        %b: tensor<5x3xf32>, %at: tensor<index>)
        -> (tensor<9x6xf32> {{dist.layout = #dist.layout<"{layout}">}}) {{{body}}}
    """
    with mw.from_mlir(text) as program:
        np.testing.assert_array_equal(program(a, b, at)[0], wanted)
        assert program.bundle.manifest.certificate.unproven == ()


@pytest.mark.parametrize("into", ["%a[0, 2] [3, 3]", "%a[0, %k] [3, 1]"])
def test_parts_that_are_full_where_a_rank_has_more_places_than_there_are_elements(
    into: str,
) -> None:
    """Blocks of four on two ranks: three elements lie in four places of one rank."""
    part = "3x3" if "%k" not in into else "3"
    a, at = numbers((3, 6)), np.array(4)
    b = -numbers((3, 3) if part == "3x3" else (3,))
    wanted = a.copy()
    wanted[:, np.s_[2:5] if part == "3x3" else 4] = b
    text = f"""
    "dist.mesh"() {{axes = "x=2", sym_name = "mesh"}} : () -> ()
    func.func @main(%a: tensor<3x6xf32> {{dist.layout = #dist.layout<"[x*4*_, _]">}},
        %b: tensor<{part}xf32>, %at: tensor<index>)
        -> (tensor<3x6xf32> {{dist.layout = #dist.layout<"[x*4*_, _]">}}) {{
      %k = tensor.extract %at[] : tensor<index>
      %r = tensor.insert_slice %b into {into} [1, 1] : tensor<{part}xf32> into tensor<3x6xf32>
      return %r : tensor<3x6xf32>
    }}
    """
    with mw.from_mlir(text) as program:
        np.testing.assert_array_equal(program(a, b, at)[0], wanted)
        assert program.bundle.manifest.certificate.unproven == ()


@given(st.data())
@settings(max_examples=examples(25), deadline=None)
def test_dims_in_reverse(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=2)))
    dims = data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1))
    step = tuple(slice(None, None, -1 if d in dims else 1) for d in range(len(shape)))
    layouts = st.sampled_from(["[_]", "[x]", "[x*y]", "[y]", "[_*x]", "[2*y*_]"])
    if len(shape) == 2:
        layouts = st.sampled_from(
            ["[_, _]", "[x, _]", "[_, x*y]", "[y, x]", "[_*x, y]", "[_, _*y]"]
        )
    run(lambda x: x[step], [numbers(shape)], "x=2, y=3", (data.draw(layouts),), data.draw(layouts))


ROLLED = """
    %k = tensor.extract %at[] : tensor<index>
    %two = tensor.concat dim(0) %a, %a : (tensor<9x6xf32>, tensor<9x6xf32>) -> tensor<18x6xf32>
    %r = tensor.extract_slice %two[%k, 0] [9, 6] [1, 1] : tensor<18x6xf32> to tensor<9x6xf32>
    return %r : tensor<9x6xf32>
"""


@pytest.mark.parametrize("layout", ["[x, _]", "[_, y]", "[y*x, _]"])
def test_a_roll_by_a_number_that_is_not_known(layout: str) -> None:
    text = f"""
    "dist.mesh"() {{axes = "x=2, y=3", sym_name = "mesh"}} : () -> ()
    func.func @main(%a: tensor<9x6xf32>, %at: tensor<index>)
        -> (tensor<9x6xf32> {{dist.layout = #dist.layout<"{layout}">}}) {{{ROLLED}}}
    """
    a = numbers((9, 6))
    with mw.from_mlir(text) as program:
        for at in (0, 4, 9):
            np.testing.assert_array_equal(program(a, np.array(at))[0], np.roll(a, -at, axis=0))
        assert program.bundle.manifest.certificate.unproven == ()


CONV = """
    %z = arith.constant 0.0 : f32
    %e = tensor.empty() : OUT
    %i = linalg.fill ins(%z : f32) outs(%e : OUT) -> OUT
    %r = linalg.conv_2d_nhwc_hwcf {dilations = dense<DILATION> : tensor<2xi64>, strides = dense<STRIDE> : tensor<2xi64>}
      ins(%x, %w : IN, tensor<3x2x2x4xf32>) outs(%i : OUT) -> OUT
    return %r : OUT
"""
POOL = """
    %z = arith.constant 0xFF800000 : f32
    %e = tensor.empty() : OUT
    %k = tensor.empty() : tensor<3x2xf32>
    %i = linalg.fill ins(%z : f32) outs(%e : OUT) -> OUT
    %r = linalg.pooling_nhwc_max {dilations = dense<DILATION> : tensor<2xi64>, strides = dense<STRIDE> : tensor<2xi64>}
      ins(%x, %k : IN, tensor<3x2xf32>) outs(%i : OUT) -> OUT
    return %r : OUT
"""


def windows_of(x: Any, stride: int, dilation: int) -> Any:
    """Return what windows of 3 by 2 see of an image: dims (batch, places, places, channels, 3, 2)."""
    reach = (2 * dilation + 1, dilation + 1)
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(1, 2))
    return seen[:, ::stride, ::stride, :, ::dilation, ::dilation]


@sampled(4)
@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize(
    ("mesh", "layout", "rows"),
    [
        ("x=1", "[_, x, _, _]", 9),
        ("x=4", "[_, x, _, _]", 40),
        ("x=2, y=2", "[_, x, y, _]", 13),
        ("x=2, y=3", "[_, y*x, _, _]", 9),
    ],
)
@pytest.mark.parametrize("body", [CONV, POOL])
def test_windows_over_images_that_are_cut(
    body: str, mesh: str, layout: str, rows: int, stride: int, dilation: int
) -> None:
    x, w = numbers((2, rows, 11, 2)), numbers((3, 2, 2, 4)) - 50
    seen = windows_of(x, stride, dilation)
    if body == CONV:
        wanted = np.einsum("nhwcab,abco->nhwo", seen.astype(np.float64), w).astype(np.float32)
    else:
        wanted = seen.max((4, 5))
    types = {"OUT": wanted.shape, "IN": x.shape}
    for name, shape in types.items():
        body = body.replace(name, f"tensor<{'x'.join(map(str, shape))}xf32>")
    body = body.replace("STRIDE", str(stride)).replace("DILATION", str(dilation))
    text = f"""
    "dist.mesh"() {{axes = "{mesh}", sym_name = "mesh"}} : () -> ()
    func.func @main(%x: tensor<2x{rows}x11x2xf32> {{dist.layout = #dist.layout<"{layout}">}},
        %w: tensor<3x2x2x4xf32>) -> {body.split("return %r : ")[1].strip()} {{{body}}}
    """
    with mw.from_mlir(text) as program:
        np.testing.assert_array_equal(program(x, w)[0], wanted)
        manifest = program.bundle.manifest
    assert manifest.certificate.unproven == ()
    if rows == 40:  # a rank reads two rows of a neighbour, or four, each of 2 x 11 x 2 elements
        assert sum(c.bytes for c in manifest.collectives) <= 2 * dilation * 4 * 44 * 2


PADDED = """
    %z = arith.constant 3.0 : f32
    %p = tensor.pad %x low[0, 1, LEFT, 0] high[0, 1, 0, 0] {
    ^bb0(%a: index, %b: index, %c: index, %d: index):
      tensor.yield %z : f32
    } : IN to PAD
    %e = tensor.empty() : OUT
    %i = linalg.fill ins(%z : f32) outs(%e : OUT) -> OUT
    %r = linalg.conv_2d_nhwc_hwcf {dilations = dense<1> : tensor<2xi64>, strides = dense<STRIDE> : tensor<2xi64>}
      ins(%p, %w : PAD, tensor<3x2x2x4xf32>) outs(%i : OUT) -> OUT
    return %r : OUT
"""


@sampled(1)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("mesh", "layout", "rows", "left", "nbytes"),
    [
        ("x=4", "[_, x, _, _]", 40, 0, 2 * 4 * 44),
        ("x=4", "[_, x, _, _]", 39, 2, None),
        ("x=2, y=2", "[_, x, y, _]", 12, 1, None),
        ("x=2, y=2", "[_, y*x, _, _]", 13, 0, None),
    ],
)
def test_what_is_padded_is_read_in_one_exchange(
    mesh: str, layout: str, rows: int, left: int, nbytes: int | None, stride: int
) -> None:
    """Padded rows lie in other blocks than those of the result: what a rank reads is padded, and nothing else."""
    x, w = numbers((2, rows, 11, 2)), numbers((3, 2, 2, 4)) - 50
    padded = np.pad(x, ((0, 0), (1, 1), (left, 0), (0, 0)), constant_values=3)
    seen = windows_of(padded, stride, 1).astype(np.float64)
    wanted = (np.einsum("nhwcab,abco->nhwo", seen, w) + 3).astype(np.float32)
    body = PADDED.replace("LEFT", str(left)).replace("STRIDE", str(stride))
    for name, shape in {"OUT": wanted.shape, "IN": x.shape, "PAD": padded.shape}.items():
        body = body.replace(name, f"tensor<{'x'.join(map(str, shape))}xf32>")
    text = f"""
    "dist.mesh"() {{axes = "{mesh}", sym_name = "mesh"}} : () -> ()
    func.func @main(%x: tensor<2x{rows}x11x2xf32> {{dist.layout = #dist.layout<"{layout}">}},
        %w: tensor<3x2x2x4xf32>) -> {body.split("return %r : ")[1].strip()} {{{body}}}
    """
    with mw.from_mlir(text) as program:
        np.testing.assert_array_equal(program(x, w)[0], wanted)
        manifest = program.bundle.manifest
    assert manifest.certificate.unproven == ()
    moved = [c for c in manifest.collectives if c.op == "exchange"]
    if nbytes is not None:  # a row of each neighbour, of 2 x 11 x 2 elements
        assert len(moved) == 1 and moved[0].bytes <= nbytes


@sampled(1)
@pytest.mark.parametrize("shift", [400, 7])
@pytest.mark.parametrize(
    ("mesh", "layout", "out", "nbytes"),
    [
        ("x=4", "[x, _]", "[_, _]", 24000),
        ("x=4", "[x, _]", "[x, _]", 16000),
        ("x=2,y=2", "[y, x]", "[x, _]", 16000),
    ],
)
def test_what_is_wanted_whole_is_not_put_together_in_windows(
    mesh: str, layout: str, out: str, nbytes: int, shift: int
) -> None:
    def joined(a: Any, b: Any) -> Any:
        library: Any = np if isinstance(a, np.ndarray) else mw
        return library.concat([library.roll(a, shift, axis=0), b], axis=0)

    text = run(joined, [numbers((1000, 4)), numbers((1000, 4))], mesh, (layout,) * 2, out)
    assert received(text) <= nbytes + 32 * shift


def test_an_array_does_not_lie_in_windows() -> None:
    with pytest.raises(mw.MeshweaveError, match="dim 0 is in windows"):
        mw.jit(lambda x: x, mesh="x=2", in_layouts=("[x*_{2,0,3}]",))(numbers((4,)))


def stencil(u: Any) -> Any:
    """Return a step of Jacobi's method on the inside of a grid."""
    return (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) * np.float32(0.25)


@pytest.mark.parametrize(
    ("mesh", "layout", "nbytes"), [("x=4", "[x, _]", 3 * 408), ("x=2,y=2", "[x, y]", 4 * 103)]
)
def test_a_stencil_brings_its_halo_in_one_exchange(mesh: str, layout: str, nbytes: int) -> None:
    text = run(stencil, [numbers((102, 102))], mesh, (layout,))
    assert "1 collective brings" in text
    assert received(text) <= nbytes


@pytest.mark.parametrize("shape", [(5, 9), (3, 3), (17, 4)])
def test_stencils_of_uneven_blocks(shape: tuple[int, int]) -> None:
    run(stencil, [numbers(shape)], "x=2,y=3", ("[y, x]",))


def jacobi(u: Any) -> Any:
    """Return a step of Jacobi's method on a grid whose border stays."""
    if isinstance(u, np.ndarray):
        whole = u.copy()
        whole[1:-1, 1:-1] = stencil(u)
        return whole
    rows = mw.concat([u[1:-1, :1], stencil(u), u[1:-1, -1:]], axis=1)
    return mw.concat([u[:1], rows, u[-1:]], axis=0)


@sampled(1)
@pytest.mark.parametrize("shape", [(100, 100), (9, 14), (5, 3)])
def test_jacobi_moves_its_edges_and_nothing_else(shape: tuple[int, int]) -> None:
    text = run(jacobi, [numbers(shape)], "x=2,y=2", ("[x, y]",), "[x, y]")
    if shape == (100, 100):
        assert "1 collective brings" in text
        assert received(text) == 4 * (50 + 50 + 1)


@pytest.mark.parametrize("layout", ["[_*x*y]", "[_*3*x*y]", "[2*x*_*y]", "[x*2*y*3*_]"])
@pytest.mark.parametrize("size", [3, 11])
def test_places_in_nested_sizes_that_are_no_run(layout: str, size: int) -> None:
    """Each digit cuts what the one before left, so that local ones have pieces of several lengths."""
    rng = np.random.default_rng(size)
    x, places = rng.permutation(size) + 1.0, rng.integers(0, size, 6)

    def f(x: Any, places: Any) -> tuple[Any, ...]:
        found = mw.searchsorted(mw.sort(x), x), x.at[places].add(1.0)
        return mw.sum(x), mw.max(-x), mw.arange(size) * x, mw.take(x, places), x[::-1], *found

    added = x.copy()
    np.add.at(added, places, 1.0)
    wanted = x.sum(), -1.0, np.arange(size) * x, x[places], x[::-1], x.astype(int) - 1, added
    made = mw.jit(f, mesh="x=2, y=2", in_layouts=(f"{layout} uneven(nested)", "[_]"))(x, places)
    for y, right in zip(made, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(y), right)
