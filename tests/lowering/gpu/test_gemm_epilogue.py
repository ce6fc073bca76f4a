"""Products and what is done with each element of them, in one kernel."""

from __future__ import annotations

import numpy as np
import pytest
from depth import sampled
from lowering.gpu.products import Case, doubles, einsum, stored, units_of

pytest.importorskip("llvmlite")

from lowering.gpu.device_runs import DeviceRun

from meshweave.lowering.buffers import plan_memory
from meshweave.lowering.gpu.facts import facts_of
from meshweave.lowering.gpu.families.cublaslt import library_product
from meshweave.lowering.gpu.families.epilogues import DeviceSchedule, in_order_of
from meshweave.lowering.gpu.kernel import Target
from meshweave.lowering.host import program

NO_LIBRARY = frozenset({"cublaslt"})
TF32, PLAIN = Target("sm_80", tf32=True, disabled=NO_LIBRARY), Target("sm_80", disabled=NO_LIBRARY)


@pytest.fixture(autouse=True)
def device_schedules(monkeypatch):
    """Programs get the schedules that the gpu target makes of them, for a target without the
    library unless a test says `target`.
    """
    made = {"target": PLAIN}
    monkeypatch.setattr(
        plan_memory,
        "schedule_of",
        lambda *_: lambda buffers: DeviceSchedule(buffers, made["target"]),
    )
    monkeypatch.setattr(program, "_follow", lambda _: in_order_of)
    return made


def elementwise(case: Case, body: str, more: str = "") -> str:
    """The product, then `body` on %x, an element of it, and %y, one of a row; it yields %r.

    more: statements after that, on %1.
    """
    c, row = case.type("c"), f"tensor<{case.n}x{case.kind}>"
    loops = ", ".join(f"d{k}" for k in range(len(case.batch) + 2))
    last = loops.split(", ")[-1]
    kinds = ", ".join(['"parallel"'] * (len(case.batch) + 2))
    same, maps = f"affine_map<({loops}) -> ({loops})>", f"affine_map<({loops}) -> ({last})>"
    result = "%2" if more else "%1"
    return f"""func.func @main(%a: {case.type("a")}, %b: {case.type("b")}, %row: {row}) -> {c} {{
      {case.filled()}
      %0 = {case.product("%f")}
      %1 = linalg.generic {{indexing_maps = [{same}, {maps}, {same}], iterator_types = [{kinds}]}}
        ins(%0, %row : {c}, {row}) outs(%e : {c}) {{
        ^bb0(%x: {case.kind}, %y: {case.kind}, %o: {case.kind}):
          {body}
          linalg.yield %r : {case.kind}
        }} -> {c}
      {more}
      return {result} : {c}
    }}"""


def relu_of_sum(kind: str) -> str:
    return f"""%s = arith.addf %x, %y : {kind}
      %o0 = arith.constant 0.0 : {kind}
      %r = arith.maximumf %s, %o0 : {kind}"""


CASES = {
    "bf16": (Case(64, 48, 64, "bf16"), PLAIN),
    "bf16 ragged": (Case(41, 57, 73, "bf16"), PLAIN),
    "bf16 to f32": (Case(40, 40, 72, "bf16", "f32"), PLAIN),
    "tf32": (Case(40, 36, 40, "f32"), TF32),
    "f32": (Case(41, 37, 43, "f32"), PLAIN),
    "f32 batch": (Case(20, 24, 18, "f32", batch=(3,)), PLAIN),
    "f16 batch, B turned": (Case(20, 24, 40, "f16", batch=(2,), turned_b=True), PLAIN),
}


@sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_a_bias_and_an_activation_are_part_of_the_kernel(name):
    case, target = CASES[name]
    made = DeviceRun(elementwise(case, relu_of_sum(case.kind)), target)
    assert len(made.families) == 1 and made.families[0].startswith("gemm")
    a, b = case.inputs(4, whole=True)
    row = stored(np.random.default_rng(8).integers(-9, 10, case.n), case.kind)
    (found,) = made.run(a, b, row)
    product = doubles(stored(case.expected([a, b]), case.kind), case.kind)
    wanted = np.maximum(product + doubles(row, case.kind), 0)
    np.testing.assert_array_equal(
        doubles(found, case.kind), doubles(stored(wanted, case.kind), case.kind)
    )


@pytest.mark.parametrize("n", [96, 90])
def test_what_follows_reads_and_writes_16_bytes_at_a_time(n):
    body = "%s = arith.addf %x, %y : bf16\n%r = math.tanh %s : bf16"
    case = Case(40, n, 64, "bf16")
    made = DeviceRun(elementwise(case, body), PLAIN, assemble=False)
    (kernel,) = made.kernels
    wide = "vector<8xbf16>" in kernel.text
    assert wide == (n == 96), "rows of 90 elements begin anywhere"
    a, b = case.inputs(3, whole=True)
    row = stored(np.linspace(-1, 1, n), "bf16")
    found = doubles(made.run(a, b, row)[0], "bf16")
    wanted = np.tanh(case.expected([a, b]) + doubles(row, "bf16"))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-2)


def test_what_only_the_kernel_reads_is_not_stored():
    case = Case(64, 64, 64, "bf16", "f32")
    made = DeviceRun(elementwise(case, relu_of_sum("f32")), PLAIN)
    plain = DeviceRun(case.text(), PLAIN)
    (with_it,), (without,) = made.modules, plain.modules
    assert with_it.ptx.count("st.global") == without.ptx.count("st.global") > 0


def test_a_product_that_is_also_a_result_is_stored_too():
    case = Case(40, 48, 64, "bf16", "f32")
    text = elementwise(case, relu_of_sum("f32"))
    c = case.type("c")
    text = text.replace(f"-> {c} {{\n", f"-> ({c}, {c}) {{\n", 1)
    text = text.replace(f"return %1 : {c}", f"return %1, %0 : {c}, {c}")
    made = DeviceRun(text, PLAIN)
    assert made.families == ["gemm_mma"]
    a, b = case.inputs(4, whole=True)
    finished, product = made.run(a, b, np.ones(case.n, np.float32))
    wanted = case.expected([a, b])
    np.testing.assert_array_equal(product, wanted)
    np.testing.assert_array_equal(finished, np.maximum(wanted + 1, 0))


def test_two_steps_after_the_product():
    """The second one reads the first one's result, and C again."""
    case = Case(40, 48, 40, "f32")
    c = case.type("c")
    same = "affine_map<(i, j) -> (i, j)>"
    more = f"""%2 = linalg.generic {{indexing_maps = [{same}, {same}, {same}],
        iterator_types = ["parallel", "parallel"]}} ins(%1, %0 : {c}, {c}) outs(%e : {c}) {{
        ^bb0(%x: f32, %y: f32, %o: f32):
          %t = math.exp %x : f32
          %u = arith.divf %y, %t : f32
          linalg.yield %u : f32
        }} -> {c}"""
    body = """%q = arith.addf %x, %y : f32
      %h = arith.constant 0.01 : f32
      %w = arith.mulf %q, %h : f32
      %r = math.tanh %w : f32"""
    made = DeviceRun(elementwise(case, body, more), TF32)
    a, b = case.inputs(4, whole=True)
    row = np.linspace(-1, 1, case.n, dtype=np.float32)
    (found,) = made.run(a, b, row)
    product = case.expected([a, b])
    wanted = product / np.exp(np.tanh((product + row) * 0.01))
    assert made.families == ["gemm_tf32"]
    np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=1e-5)


def test_a_sum_over_rows_stays_apart():
    case = Case(40, 48, 40, "f32")
    c = case.type("c")
    text = f"""func.func @main(%a: {case.type("a")}, %b: {case.type("b")}) -> tensor<40xf32> {{
      {case.filled()}
      %0 = {case.product("%f")}
      %s = tensor.empty() : tensor<40xf32>
      %z = linalg.fill ins(%zero : f32) outs(%s : tensor<40xf32>) -> tensor<40xf32>
      %1 = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i)>],
        iterator_types = ["parallel", "reduction"]}} ins(%0 : {c}) outs(%z : tensor<40xf32>) {{
        ^bb0(%x: f32, %o: f32):
          %t = arith.addf %o, %x : f32
          linalg.yield %t : f32
        }} -> tensor<40xf32>
      return %1 : tensor<40xf32>
    }}"""
    made = DeviceRun(text, PLAIN)
    assert made.families[0] == "gemm_fma" and len(made.families) == 2
    a, b = case.inputs(4, whole=True)
    np.testing.assert_array_equal(made.run(a, b)[0], case.expected([a, b]).sum(1))


def rounded(case: Case) -> str:
    """A product in f32 of f16 or bf16, rounded to the type of its operands."""
    c, small = case.type("c"), case.type("c").replace("f32", case.dtype)
    same = "affine_map<(i, j) -> (i, j)>"
    return f"""func.func @main(%a: {case.type("a")}, %b: {case.type("b")}) -> {small} {{
      {case.filled()}
      %0 = {case.product("%f")}
      %t = tensor.empty() : {small}
      %1 = linalg.generic {{indexing_maps = [{same}, {same}],
        iterator_types = ["parallel", "parallel"]}} ins(%0 : {c}) outs(%t : {small}) {{
        ^bb0(%x: f32, %o: {case.dtype}):
          %r = arith.truncf %x : f32 to {case.dtype}
          linalg.yield %r : {case.dtype}
        }} -> {small}
      return %1 : {small}
    }}"""


def test_the_library_takes_a_conversion_along(device_schedules):
    device_schedules["target"] = target = Target("sm_80")
    (unit,), schedule = units_of(rounded(Case(40, 48, 64, "bf16", "f32")))
    product = library_product(unit, target, facts_of(unit, schedule))
    assert product is not None and product.info.dtype == "bf16"
    assert product.info.alignment == 16
    assert unit.pointers.places[product.d].nbytes == 2
    assert library_product(unit, target) is None, "C itself might be read"


def test_what_the_library_computes_it_computes_alone(device_schedules):
    device_schedules["target"] = target = Target("sm_80")
    case = Case(40, 48, 64, "bf16")
    (first, _), _ = units_of(elementwise(case, relu_of_sum("bf16")))
    assert library_product(first, target) is not None


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_sums_are_rounded_as_they_are_stored(dtype):
    case = Case(40, 48, 64, dtype, "f32")
    made = DeviceRun(rounded(case), PLAIN)
    assert made.families == ["gemm_mma"]
    a, b = case.inputs(6, whole=True)
    (found,) = made.run(a, b)
    wanted = doubles(stored(case.expected([a, b]), dtype), dtype)
    np.testing.assert_array_equal(doubles(found, dtype), wanted)


def test_a_transposed_result_is_written_by_the_product():
    """Heads go back between rows and columns as the sums are rounded."""
    more = """%t = tensor.empty() : tensor<20x3x16xbf16>
      %1 = linalg.generic {indexing_maps = [affine_map<(i, h, j) -> (h, i, j)>,
        affine_map<(i, h, j) -> (i, h, j)>], iterator_types = ["parallel", "parallel", "parallel"]}
        ins(%0 : tensor<3x20x16xf32>) outs(%t : tensor<20x3x16xbf16>) {
        ^bb0(%x: f32, %o: bf16):
          %r = arith.truncf %x : f32 to bf16
          linalg.yield %r : bf16
        } -> tensor<20x3x16xbf16>
      return %1 : tensor<20x3x16xbf16>"""
    text = einsum("hik,hkj->hij", {"h": 3, "i": 20, "j": 16, "k": 24}, "bf16", "f32", more)
    rng = np.random.default_rng(3)
    a, b = rng.integers(-4, 5, (3, 20, 24)), rng.integers(-4, 5, (3, 24, 16))
    made = DeviceRun(text, PLAIN)
    assert made.families == ["gemm_mma"]
    (found,) = made.run(stored(a, "bf16"), stored(b, "bf16"))
    wanted = stored(np.einsum("hik,hkj->ihj", a, b), "bf16")
    np.testing.assert_array_equal(found, wanted)
