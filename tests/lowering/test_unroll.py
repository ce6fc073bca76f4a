"""Loops of few rounds of elementwise ops are one kernel; all others stay loops. Either way they compute the same."""

import numpy as np
import pytest
from depth import sampled
from lowering.harness import run_text

from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.ir.ops import ops_named
from meshweave.lowering.nests.unroll import MOST_OPS
from meshweave.pipeline import run_pipeline

SHAPE = "tensor<{n}x{m}xi32>"
HEAD = """
func.func @main(%x: {t}, %y: {t}) -> {t} {{
  %from = arith.constant {start} : index
  %to = arith.constant {stop} : index
  %by = arith.constant {step} : index
  %turns = arith.constant dense<[13, 15, 26, 6]> : tensor<4xi32>
  %back = arith.constant dense<[17, 29, 16, 24]> : tensor<4xi32>
"""
MIX = """
  %r:4 = scf.for %k = %from to %to step %by iter_args(%a = %x, %b = %y, %s = %turns, %z = %back)
      -> ({t}, {t}, tensor<4xi32>, tensor<4xi32>) {{
    %one = tensor.extract_slice %s[2] [1] [1] : tensor<4xi32> to tensor<1xi32>
    %none = tensor.collapse_shape %one [] : tensor<1xi32> into tensor<i32>
    %n = tensor.extract %none[] : tensor<i32>
    %i = arith.index_cast %k : index to i32
    %add = tensor.splat %i : {t}
    %by_n = tensor.splat %n : {t}
    %c = arith.addi %a, %b : {t}
    %d = arith.shli %b, %by_n : {t}
    %e = arith.xori %c, %d : {t}
    %f = arith.addi %e, %add : {t}
    scf.yield %c, %f, %z, %s : {t}, {t}, tensor<4xi32>, tensor<4xi32>
  }}
  %w = arith.xori %r#0, %r#1 : {t}
  return %w : {t}
}}
"""
REDUCTION = """
  %r:2 = scf.for %k = %from to %to step %by iter_args(%a = %x, %b = %y) -> ({t}, {t}) {{
    %zero = arith.constant 0 : i32
    %none = tensor.splat %zero : tensor<{n}xi32>
    %sum = linalg.reduce {{ arith.addi }} ins(%a : {t}) outs(%none : tensor<{n}xi32>) dimensions = [1]
    %out = tensor.empty() : {t}
    %wide = linalg.broadcast ins(%sum : tensor<{n}xi32>) outs(%out : {t}) dimensions = [1]
    %c = arith.addi %wide, %b : {t}
    scf.yield %b, %c : {t}, {t}
  }}
  %w = arith.xori %r#0, %r#1 : {t}
  return %w : {t}
}}
"""


def text(body: str, start: int, stop: int, step: int, n: int, m: int) -> str:
    return (HEAD + body).format(
        t=SHAPE.format(n=n, m=m), start=start, stop=stop, step=step, n=n, m=m
    )


def mixed(x: np.ndarray, y: np.ndarray, rounds: range) -> tuple[np.ndarray, np.ndarray]:
    turns, back = 26, 16
    for k in rounds:
        x, y = x + y, ((x + y) ^ (y << turns)) + np.int32(k)
        turns, back = back, turns
    return x, y


def drawn(n: int, m: int) -> list[np.ndarray]:
    rng = np.random.default_rng(n + m)
    return [rng.integers(-(1 << 31), 1 << 31, (n, m), np.int64).astype(np.int32) for _ in range(2)]


def launches_and_loops(program: str) -> tuple[int, int]:
    program = f'"dist.mesh"() {{sym_name = "mesh", axes = "x=1"}} : () -> ()\n{program}'
    with context(), ir.Location.unknown():
        module = ir.Module.parse(program)
        run_pipeline(module, "lower-collectives,fuse-kernels")
        return len(ops_named(module.operation, "mw.launch")), len(
            ops_named(module.operation, "scf.for")
        )


@sampled(1)
@pytest.mark.parametrize("n, m", [(1, 1), (3, 17), (0, 4), (5, 33)])
@pytest.mark.parametrize("rounds", [range(5), range(1), range(2, 9, 3), range(0), range(90)])
def test_mixing_is_numpys(n: int, m: int, rounds: range) -> None:
    program = text(MIX, rounds.start, rounds.stop, rounds.step, n, m)
    x, y = drawn(n, m)
    (made,) = run_text(program, x, y)
    x, y = mixed(x, y, rounds)
    np.testing.assert_array_equal(made, x ^ y)


def test_few_rounds_are_kernels_without_a_loop() -> None:
    assert launches_and_loops(text(MIX, 0, 5, 1, 8, 16)) == (1, 0)
    assert launches_and_loops(text(MIX, 0, MOST_OPS, 1, 8, 16))[1] == 1


def test_reductions_stay_loops() -> None:
    program = text(REDUCTION, 0, 3, 1, 4, 6)
    assert launches_and_loops(program)[1] == 1
    x, y = drawn(4, 6)
    (made,) = run_text(program, x, y)
    for _ in range(3):
        x, y = y, x.sum(1, dtype=np.int32)[:, None] + y
    np.testing.assert_array_equal(made, x ^ y)
