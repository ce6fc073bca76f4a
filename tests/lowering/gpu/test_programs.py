"""Whole programs on the engine `emulate`: the examples against JAX's results, random programs against
NumPy, exchanges against the simulator.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from commands import meshweave as command
from depth import examples, sampled, some
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering.exchanges import Exchange, compiled, run_and_check
from lowering.gpu.examples import EXAMPLES, MESH, NAMES, TOLERANCE, arguments, expected, text_of
from lowering.harness import compile_text
from lowering.test_exchange import cases_for
from programs import Program, programs
from test_execute import check
from test_overlap import data, gathered, mlp, reduced, with_overlap

import meshweave
from meshweave.api.program import Program as Loaded
from meshweave.api.program import build
from meshweave.bundle import Bundle
from meshweave.errors import RankError
from meshweave.layout import Mesh
from meshweave.runtime import engine
from meshweave.simulator.driver.recorder import InjectedFailure

pytest.importorskip("llvmlite", reason="the back end for gpus is not installed")


@sampled(4)
@pytest.mark.parametrize("dtype", some(TOLERANCE, len(TOLERANCE)))
@pytest.mark.parametrize("name", NAMES)
def test_an_example_gives_what_jax_gives(name: str, dtype: str) -> None:
    wanted = expected(name)
    text = text_of(name, dtype)
    with meshweave.compile(text, mesh=MESH, engine="emulate", timeout=60) as program:
        (result,) = program(*arguments(name))
    limit = TOLERANCE[dtype] * np.abs(wanted).max()
    np.testing.assert_allclose(result, wanted, rtol=0, atol=limit)


@pytest.mark.parametrize("exponent", ["2 : i64", "-3 : i32", "3 : i64", "0 : i32"])
def test_whole_powers(exponent: str) -> None:
    number, kind = exponent.split(" : ")
    text = f"""
    #map = affine_map<(d0) -> (d0)>
    func.func @main(%a: tensor<37xf32>) -> tensor<37xf32> {{
      %e = tensor.empty() : tensor<37xf32>
      %n = arith.constant {exponent}
      %r = linalg.generic {{indexing_maps = [#map, #map], iterator_types = ["parallel"]}}
        ins(%a : tensor<37xf32>) outs(%e : tensor<37xf32>) {{
      ^bb0(%x: f32, %o: f32):
        %y = math.fpowi %x, %n : f32, {kind}
        linalg.yield %y : f32
      }} -> tensor<37xf32>
      return %r : tensor<37xf32>
    }}"""
    given = np.random.default_rng(3).standard_normal(37, np.float32)
    with meshweave.compile(text, engine="emulate", timeout=60) as program:
        (result,) = program(given)
    np.testing.assert_allclose(result, given.astype(np.float64) ** int(number), rtol=1e-5)


@sampled(1)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_run_checks_a_gpu_program(dtype: str, tmp_path) -> None:
    path = tmp_path / "mlp.mlir"
    path.write_text(text_of("mlp", dtype))
    folder = EXAMPLES / "mlp"
    inputs = [str(folder / f"in{i}.npy") for i in range(5)]
    done = command(
        *("run", path, "--mesh", "dp=2,tp=2", "--target", "gpu", "--engine", "emulate"),
        *("--chip", "sm_80", "--check", "--expect", folder / "out0.npy", "--input", *inputs),
    )
    assert done.status == 0, done
    assert "--check: error of result 0" in done.out and "--expect: error of result 0" in done.out


def test_a_bundle_of_a_gpu_program_runs(tmp_path) -> None:
    path = tmp_path / "p.mwb"
    program = EXAMPLES / "mlp" / "mlp.mlir"
    options = ("--target", "gpu", "--engine", "emulate", "--mesh", "dp=2,tp=2")
    assert command("compile", program, *options, "-o", path).status == 0
    done = command("run", path, "--json")
    assert done.status == 0 and '"all_reduce"' in done.out, done


@settings(max_examples=examples(16))
@given(
    st.sampled_from([Mesh(x=1), Mesh(x=2), Mesh(x=3), Mesh(x=2, y=2), Mesh(x=2, y=3)]).flatmap(
        programs
    )
)
def test_programs_give_what_numpy_gives(p: Program) -> None:
    check(p, "emulate")


CASES = {
    "x=2, y=2": (
        Exchange((8, 12), "[x, y]", "[_*y, x]"),
        Exchange((7, 12), "[_*x, _]", "[_, _*y]", "bf16"),
        Exchange((6, 7), "[x*y, _] uneven(nested)", "[_, y*x] uneven(nested)", "i8"),
        Exchange((40, 36), "[_*x*2, y]", "[x, y] order(1, 0)"),
        Exchange((8, 12), "[_, _] order(1, 0)", "[_, _]", "f64"),
        Exchange((5, 1), "[x{2,3}, _]", "[y{4,1}, _]", "i1"),
        Exchange((1, 1), "[x, y]", "[_, _]"),
        Exchange((2, 0), "[x, _]", "[_, y]"),
    ),
    "x=2, y=3": (
        Exchange((24,), "[_*x]", "[y*_*x]", "i64"),
        Exchange((6, 4, 20), "[_, x, y] order(2, 0, 1)", "[x, _*y, _]", "f16"),
    ),
}
"""Exchanges whose copies and messages are of all kinds: of any unit, packed, in place, none."""


@pytest.mark.parametrize("mesh", CASES)
def test_exchanges_and_relayouts(mesh: str) -> None:
    on = Mesh.parse(mesh)
    cases = [*CASES[mesh], *cases_for(on, 12)]
    running = engine("emulate", timeout=60)
    assert run_and_check(running, on, cases, compiled(on, cases, "emulate")) > 1000
    running.close()


def test_copies_keep_to_the_alignment_of_a_buffer() -> None:
    """Rows 1 to 4 of three f32 begin 12 bytes behind an address that 16 bytes at once may be read from."""
    text = """
    "dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
    func.func @main(%a: tensor<5x3xf32>) -> tensor<8x3xf32> {
      %0 = tensor.extract_slice %a[1, 0] [4, 3] [1, 1] : tensor<5x3xf32> to tensor<4x3xf32>
      %1 = "dist.exchange"(%0) {axes = ["x"], source = #dist.layout<"[x, _]">,
        target = #dist.layout<"[_, _]">, shape = array<i64: 8, 3>} : (tensor<4x3xf32>) -> tensor<8x3xf32>
      return %1 : tensor<8x3xf32>
    }"""
    values = [np.arange(15, dtype=np.float32).reshape(5, 3) + 100 * rank for rank in range(2)]
    running = engine("emulate", timeout=60)
    executable = running.load(compile_text(text, "emulate"))
    for (got,) in executable.run([[value] for value in values]):
        np.testing.assert_array_equal(got, np.concatenate([value[1:] for value in values]))
    executable.close()
    running.close()


# Overlap


@sampled(1)
@pytest.mark.parametrize("make", [reduced, mlp, gathered])
def test_collectives_under_compute_give_the_same_bits(make) -> None:
    text = make(2, 4)
    outputs = []
    for value in ("none", "auto"):
        with meshweave.compile(with_overlap(text, value), engine="emulate") as program:
            given = [data(*port.global_shape) for port in program.inputs]
            outputs.append(program(*given)[0])
            events = program.bundle.manifest.events
        assert events > 2 if value == "auto" else events == 2
    assert outputs[0].tobytes() == outputs[1].tobytes()


def test_a_collective_is_waited_for_behind_the_kernels_that_run_meanwhile(tmp_path) -> None:
    path = tmp_path / "p.mlir"
    path.write_text(with_overlap(mlp(2, 4), "auto"))
    done = command("compile", path, "--target", "gpu", "--emit", "host")
    assert done.status == 0, done
    step = done.out.split("llvm.func @step(")[1].split("llvm.func @mw_launch")[0]
    called = re.findall(r"llvm.call @(mw_\w+)\(", step)
    start = called.index("mw_all_reduce_sum_f32_start")
    wait = called.index("mw_wait", start)
    between = called[start + 1 : wait]
    assert any(name.startswith(("mw_launch", "mw_product")) for name in between), called


# The host


ONE_RANK = '"dist.mesh"() {sym_name = "mesh", axes = "x=1"} : () -> ()\n'
LOOP = """
func.func @main(%a: tensor<8xf32>, %limit: tensor<f32>) -> tensor<8xf32> {
  %c0 = arith.constant 0 : index
  %most = tensor.extract %limit[] : tensor<f32>
  %r = scf.while (%x = %a) : (tensor<8xf32>) -> tensor<8xf32> {
    %first = tensor.extract %x[%c0] : tensor<8xf32>
    %less = arith.cmpf olt, %first, %most : f32
    scf.condition(%less) %x : tensor<8xf32>
  } do {
  ^bb0(%x: tensor<8xf32>):
    %d = arith.addf %x, %x : tensor<8xf32>
    scf.yield %d : tensor<8xf32>
  }
  return %r : tensor<8xf32>
}
"""
INSERTED = """
func.func @main(%a: tensor<3x4xi1>, %b: tensor<5xf64>) -> (tensor<3x4xi1>, tensor<5xf64>) {
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %p = tensor.extract %a[%c2, %c1] : tensor<3x4xi1>
  %q = tensor.extract %b[%c2] : tensor<5xf64>
  %t = arith.constant true
  %n = arith.xori %p, %t : i1
  %m = arith.mulf %q, %q : f64
  %x = tensor.insert %n into %a[%c1, %c2] : tensor<3x4xi1>
  %y = tensor.insert %m into %b[%c1] : tensor<5xf64>
  return %x, %y : tensor<3x4xi1>, tensor<5xf64>
}
"""


def test_a_loop_on_data_waits_for_it_and_is_no_graph() -> None:
    with meshweave.compile(ONE_RANK + LOOP, engine="emulate") as program:
        (result,) = program(np.full(8, 1.5, np.float32), np.float32(20.0))
        assert not program.bundle.manifest.graph
    assert (result == 24.0).all()


def test_single_elements_are_read_and_written() -> None:
    a = np.arange(12).reshape(3, 4) % 2 == 0
    b = np.arange(5) * 1.25
    with meshweave.compile(ONE_RANK + INSERTED, engine="emulate") as program:
        first, second = program(a, b)
    wanted = a.copy()
    wanted[1, 2] = not a[2, 1]
    np.testing.assert_array_equal(first, wanted)
    np.testing.assert_array_equal(second, [0.0, 6.25, 2.5, 3.75, 5.0])


@cache
def named_mlp() -> Bundle:
    return build(text_of("mlp", "f32"), name="mlp", mesh=MESH, engine="emulate")


@pytest.mark.parametrize(
    ("function", "call", "code", "says"),
    [
        ("cuLaunchKernel", 1, 701, r"failed in elementwise\w* at mlp:\d+:\d+: CUDA_ERROR_LAUNCH"),
        ("cublasLtMatmul", 2, 13, r"failed in cublaslt 32x96x128 f32 at mlp:\d+:\d+: CUBLAS"),
        ("ncclAllReduce", 1, 3, r"failed in all_reduce\[tp\] f32 32x96 at mlp:\d+:\d+: ncclInternal"),
        ("cuEventRecord", 6, 400, r"failed in all_reduce\[tp\].* CUDA_ERROR_INVALID_HANDLE"),
    ],
)  # fmt: skip
def test_a_call_that_fails_names_op_and_place(
    function: str, call: int, code: int, says: str
) -> None:
    bundle = named_mlp()
    failing = engine("emulate", failures=[InjectedFailure(1, call, code, function)])
    with (
        Loaded(bundle, failing) as program,
        pytest.raises(RankError, match=f"rank 1 {says}"),
    ):
        program(*arguments("mlp"))
