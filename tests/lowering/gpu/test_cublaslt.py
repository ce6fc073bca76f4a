"""Which units the library takes, and that what it is told is the product that the unit is."""

from __future__ import annotations

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lowering.gpu.products import Case, doubles, einsum, stored, units_of

import meshweave as mw
from meshweave.device import GemmInfo
from meshweave.lowering.gpu.families import cublaslt
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.runtime.gpu.interface import LT_UNSUPPORTED
from meshweave.simulator.driver.recorder import InjectedFailure
from meshweave.simulator.engine import EmulateEngine


def unit_of(text: str) -> KernelUnit:
    """The unit of a program that is its product."""
    (found,) = [unit for unit in units_of(text)[0] if unit.nests[0].contraction]
    return found


def product_of(text: str, target: Target | None = None) -> cublaslt.LibraryProduct | None:
    return cublaslt.library_product(unit_of(text), target or Target())


def done(info: GemmInfo, a: np.ndarray, b: np.ndarray, d: np.ndarray) -> np.ndarray:
    """What the library makes of flat arrays, in double precision: D, as it lies in memory."""

    def matrices(data: np.ndarray, rows: int, columns: int, lead: int, stride: int, turned: bool):
        lines, along = (columns, rows) if turned else (rows, columns)
        at = np.arange(lines)[:, None] * lead + np.arange(along)
        at = np.arange(info.batch)[:, None, None] * stride + at
        return (data[at].swapaxes(1, 2) if turned else data[at]), at

    left, _ = matrices(a, info.m, info.k, info.lda, info.stride_a, info.transpose_a)
    right, _ = matrices(b, info.k, info.n, info.ldb, info.stride_b, info.transpose_b)
    held, at = matrices(d, info.m, info.n, info.ldd, info.stride_d, False)
    made = d.copy()
    made[at] = left @ right + (held if info.accumulate else 0)
    return made


@settings(max_examples=examples(30), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(["f64", "f32", "f16", "bf16"]),
    st.tuples(st.integers(8, 30), st.integers(8, 30), st.integers(2, 30)),
    st.tuples(*[st.booleans()] * 4),
    st.sampled_from([(), (2,), (2, 3)]),
)
def test_what_the_library_is_told_is_the_product(dtype, sizes, flags, batch):
    case = Case(*sizes, dtype, "", *flags[:3], batch, flags[3])
    found = product_of(case.text())
    assert found is not None
    inputs = case.inputs(3, whole=True)
    flat = [doubles(v, dtype).ravel() for v in inputs]
    d = flat[2] if case.accumulate else np.full(case.expected(inputs).size, np.nan)
    unit = unit_of(case.text())
    by_root = {
        k: flat[root.index] if root.kind == "input" else d
        for k, (root, _, _) in enumerate(unit.pointers.places)
    }
    made = done(found.info, by_root[found.a], by_root[found.b], d)
    np.testing.assert_array_equal(made.reshape(case.shape("c")), case.expected(inputs))
    assert unit.pointers.written == {found.d} and found.info.dtype == dtype


def test_rows_of_a_batch_that_share_a_matrix_are_one_product():
    text = einsum("bik,kj->bij", {"b": 4, "i": 64, "j": 96, "k": 128}, "f32", "f32")
    found = product_of(text)
    assert found is not None
    assert found.info == GemmInfo("f32", 256, 96, 128, 128, 96, 96)


def test_tf32_is_asked_for_where_the_target_allows_it():
    text, half = Case(16, 16, 16, "f32").text(), Case(16, 16, 16, "f16").text()
    assert product_of(text, Target()).info.compute == "f32"
    assert product_of(text, Target(tf32=True)).info.compute == "tf32"
    assert product_of(half, Target(tf32=True)).info.compute == "f32"


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_result_may_stay_in_f32(dtype):
    info = product_of(Case(64, 64, 64, dtype, "f32").text()).info
    assert (info.dtype, info.result) == (dtype, "f32")
    assert product_of(Case(64, 64, 64, dtype).text()).info.result == ""


NOT = {
    "few rows": (Case(4, 64, 64, "f32"), Target()),
    "switched off": (Case(64, 64, 64, "f32"), Target(disabled=frozenset({"cublaslt"}))),
}


@pytest.mark.parametrize("what", NOT)
def test_what_the_library_does_not_take(what):
    case, target = NOT[what]
    assert product_of(case.text(), target) is None
    assert cublaslt.library_product(unit_of(case.text()), target) is None


@pytest.mark.parametrize("kernels", ["codegen", "reference"])
def test_ops_that_are_not_for_a_library(kernels):
    text = Case(32, 32, 32, "f32").text()
    text = text.replace("linalg.generic {", f'linalg.generic {{mw.kernel = "{kernels}", ')
    assert product_of(text) is None


def test_a_start_that_is_not_zero_is_for_kernels():
    text = Case(32, 32, 32, "f32").text().replace("constant 0.0", "constant 2.0")
    assert product_of(text) is None
    from lowering.gpu.device_runs import DeviceRun

    pytest.importorskip("llvmlite")
    a, b = (stored(np.full((32, 32), v), "f32") for v in (1, 3))
    made = DeviceRun(text)
    assert made.families == ["gemm_fma"]
    np.testing.assert_array_equal(made.run(a, b)[0], np.full((32, 32), 98))


SPARES = [
    Case(9, 11, 17, "f32"),
    Case(8, 40, 33, "bf16", "f32", turned_a=True, batch=(2,)),
    Case(12, 8, 5, "f16", turned_b=True, accumulate=True),
    Case(20, 9, 7, "f64", turned_a=True, turned_b=True, turned_c=True, batch=(2, 3)),
    Case(33, 16, 64, "bf16", accumulate=True),
]


@sampled(1)
@pytest.mark.parametrize("case", SPARES, ids=str)
@pytest.mark.parametrize("code", [LT_UNSUPPORTED, 0])
def test_a_kernel_of_ours_does_what_the_library_has_no_algorithm_for(case, code):
    pytest.importorskip("llvmlite")
    asked = "cublasLtMatmulAlgoGetHeuristic"  # that returns 0 here says that there are none
    failing = [InjectedFailure(0, 1, code, asked)]
    inputs = case.inputs(5, whole=True)
    with mw.compile(case.text(), engine="emulate") as program:
        made = EmulateEngine(failures=failing).load(program.bundle)
    ((result,),) = made.run([inputs])
    launched = made.recorder.text(0)
    made.close()
    assert "spare_" in launched and "matmul" not in launched
    np.testing.assert_array_equal(doubles(result, case.kind), case.expected(inputs))


def test_products_of_a_kind_have_one_kernel_for_where_there_is_no_algorithm():
    pytest.importorskip("llvmlite")
    kinds = [mw.ShapeDtype(shape, "f32") for shape in ((16, 8), (8, 24), (24, 9))]
    lowered = mw.jit(lambda a, b, c: a @ b @ c, mesh="x=1", engine="emulate").lower(*kinds)
    manifest = lowered.compile().program.bundle.manifest
    assert len(manifest.gemms) == 2
    assert [kernel.entry for kernel in manifest.kernels] == ["spare_f32_f32"]
