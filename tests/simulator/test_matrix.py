"""ldmatrix, stmatrix and mma against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from simulator.kernels import NUMPY, entry, run

from meshweave.simulator.ptx import EmulationError

TILE = ".shared .align 16 .b8 tile[1024];\n"
LANE = np.arange(32)


def _names(letter: str, first: int, count: int) -> str:
    return "{" + ", ".join(f"%{letter}{first + n}" for n in range(count)) + "}"


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_gives_each_lane_its_elements(count, transposed):
    """Lane 4 r + c gets elements 2 c, 2 c + 1 of row r (of column r when transposed)."""
    x, out = np.arange(512, dtype=np.uint16), np.zeros((32, count, 2), np.uint16)
    how = ".trans" if transposed else ""
    body = f"""mad.wide.u32 %d1, %r31, 32, %d20; mul.lo.u32 %r1, %r31, 32;
    ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d1]; st.shared.v4.u32 [%r1], {{%r2, %r3, %r4, %r5}};
    ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d1+16];
    st.shared.v4.u32 [%r1+16], {{%r2, %r3, %r4, %r5}}; bar.sync 0; mul.lo.u32 %r6, %r31, 16;
    ldmatrix.sync.aligned.m8n8.x{count}{how}.shared.b16 {_names("r", 10, count)}, [%r6];
    mad.wide.u32 %d2, %r31, {4 * count}, %d21;"""
    body += "".join(f"st.global.u32 [%d2+{4 * n}], %r{10 + n};" for n in range(count))
    run(entry(body, 2, TILE), [x, out])
    tiles = x[: 64 * count].reshape(count, 8, 8)
    tiles = tiles.transpose(0, 2, 1) if transposed else tiles
    assert np.array_equal(out.transpose(1, 0, 2).reshape(count, 8, 8), tiles)


@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix_is_the_opposite(transposed):
    x, out = np.arange(256, dtype=np.uint16), np.zeros(256, np.uint16)
    how = ".trans" if transposed else ""
    body = f"""mad.wide.u32 %d1, %r31, 16, %d20; ld.global.v4.u32 {{%r2, %r3, %r4, %r5}}, [%d1];
    mul.lo.u32 %r6, %r31, 16;
    stmatrix.sync.aligned.m8n8.x4{how}.shared.b16 [%r6], {{%r2, %r3, %r4, %r5}}; bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4{how}.shared.b16 {{%r12, %r13, %r14, %r15}}, [%r6];
    mad.wide.u32 %d2, %r31, 16, %d21; st.global.v4.u32 [%d2], {{%r12, %r13, %r14, %r15}};"""
    run(entry(body, 2, TILE), [x, out])
    assert np.array_equal(out, x)


def _numbers(shape: tuple[int, ...], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Small whole numbers, which every type holds: as elements and as f64."""
    values = np.random.default_rng(len(kind)).integers(-8, 9, shape).astype(np.float32)
    if kind == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16), values.astype(np.float64)
    return values.astype(NUMPY.get(kind, np.float32)), values.astype(np.float64)


def _fragment(matrix: np.ndarray, per_word: int) -> np.ndarray:
    """A matrix of 8-row tiles, each of 4 words across, as [register, lane] words; down first."""
    rows, columns = matrix.shape
    width = 4 * per_word
    tiles = [
        matrix[r : r + 8, c : c + width]
        for c in range(0, columns, width)
        for r in range(0, rows, 8)
    ]
    return np.stack(
        [np.ascontiguousarray(t).reshape(32, per_word).view(np.uint32)[:, 0] for t in tiles]
    )


SHAPES = [
    (16, "bf16", "f32"), (16, "f16", "f32"), (16, "f16", "f16"), (8, "bf16", "f32"),
    (8, "f16", "f32"), (8, "tf32", "f32"), (4, "tf32", "f32"),
]  # fmt: skip


@pytest.mark.parametrize(("k", "kind", "result"), SHAPES)
def test_mma_multiplies_and_adds(k, kind, result):
    per_word = 1 if kind == "tf32" else 2
    a, a64 = _numbers((16, k), kind)
    b, b64 = _numbers((8, k), kind)  # n x k
    c, c64 = _numbers((16, 8), result)
    words = [_fragment(a, per_word), _fragment(b, per_word)]
    packed = result == "f16"
    accumulators = _fragment(c, 2) if packed else _accumulators(c)
    operands = np.concatenate([*words, accumulators])
    out = np.zeros((len(accumulators), 32), np.uint32)
    first, body = [0], "mad.wide.u32 %d1, %r31, 4, %d20; mad.wide.u32 %d2, %r31, 4, %d21;\n"
    for n in range(len(operands)):
        body += f"ld.global.b32 %r{n}, [%d1+{128 * n}];\n"
    for part in (*words, accumulators):
        first.append(first[-1] + len(part))
    names = [_names("r", at, end - at) for at, end in itertools.pairwise(first)]
    target = _names("r", 20, len(accumulators))
    body += f"""mma.sync.aligned.m16n8k{k}.row.col.{result}.{kind}.{kind}.{result}
    {target}, {names[0]}, {names[1]}, {names[2]};\n"""
    body += "".join(f"st.global.b32 [%d2+{128 * n}], %r{20 + n};" for n in range(len(out)))
    run(entry(body, 2), [operands, out])
    want = a64 @ b64.T + c64
    if packed:
        assert np.array_equal(out, _fragment(want.astype(np.float16), 2))
    else:
        assert np.array_equal(out, _accumulators(want.astype(np.float32)))


def _accumulators(matrix: np.ndarray) -> np.ndarray:
    """A 16x8 matrix of f32 as four registers: two elements of row r, two of row r + 8."""
    halves = matrix.reshape(2, 8, 4, 2).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(halves).reshape(4, 32).view(np.uint32)


def test_mma_of_f64():
    a, b, c = (
        np.random.default_rng(n).standard_normal((8, w)) for n, w in ((0, 4), (1, 4), (2, 8))
    )
    out = np.zeros((8, 8))
    body = """mad.wide.u32 %d1, %r31, 8, %d20; ld.global.f64 %d2, [%d1];
    mad.wide.u32 %d1, %r31, 8, %d21; ld.global.f64 %d3, [%d1];
    mad.wide.u32 %d1, %r31, 16, %d22; ld.global.v2.f64 {%d4, %d5}, [%d1];
    mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d6, %d7}, {%d2}, {%d3}, {%d4, %d5};
    mad.wide.u32 %d1, %r31, 16, %d23; st.global.v2.f64 [%d1], {%d6, %d7};"""
    run(entry(body, 4), [a, b, c, out])
    assert np.allclose(out, a @ b.T + c, rtol=1e-14)


def test_a_matrix_needs_the_whole_warp():
    body = """setp.ge.u32 %p1, %r31, 16; @%p1 bra END; mul.lo.u32 %r6, %r31, 16;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r6]; END: add.u32 %r9, %r31, 1;"""
    with pytest.raises(
        EmulationError, match="lanes 0x0000ffff of the warp are here, 0xffffffff are meant"
    ):
        run(entry(body, 0, TILE), [])
