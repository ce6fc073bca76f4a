"""What a loop keeps of each round is computed again in the round that reads it, where a budget asks for that."""

import re
from typing import Any

import numpy as np
import pytest
from depth import DEEP, deep, thinned

import meshweave as mw
from meshweave.dialects import context
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from meshweave.ir.ops import body_of
from meshweave.transforms.slicing.rounds import compute_in_rounds, stacks_of

RNG = np.random.default_rng(5)
ROUNDS, WIDTH, ROWS = 6, 16, 256


def layers() -> tuple[dict[str, Any], Any]:
    ps = {k: (RNG.normal(size=(ROUNDS, WIDTH, WIDTH)) / 4).astype(np.float32) for k in "ab"}
    return ps, RNG.normal(size=(ROWS, WIDTH)).astype(np.float32)


def loss(ps: dict[str, Any], x: Any) -> Any:
    def layer(x: Any, p: Any) -> Any:
        h = mw.tanh(x @ p["a"])
        return x + mw.sin(h) * h @ p["b"], None

    return mw.mean(mw.scan(layer, x, ps)[0] ** 2)


@pytest.mark.parametrize(
    ("mesh", "layouts"),
    [
        ("dp=2", (None, "[dp, _]")),
        pytest.param(None, None, marks=deep),
        pytest.param("tp=2", ({"a": "[_, _, tp]", "b": "[_, tp, _]"}, None), marks=deep),
    ],
)
def test_a_scan_over_layers_keeps_a_budget(mesh: str | None, layouts: Any) -> None:
    def step(ps: Any, x: Any) -> Any:
        return mw.value_and_grad(loss)(ps, x)

    def within(nbytes: int) -> Any:
        def inner(ps: Any, x: Any) -> Any:
            with mw.hint(peak_bytes=nbytes):
                return step(ps, x)

        return inner

    ps, x = layers()
    options = {} if mesh is None else {"mesh": mesh, "in_layouts": layouts}
    plain = mw.jit(step, **options)
    wanted = plain(ps, x)
    whole = plain.explain().report.arena_bytes
    for share in thinned((0.7, 0.85), 2):
        small = mw.jit(within(int(whole * share)), **options)
        found = small(ps, x)
        report = small.explain().report
        assert report.arena_bytes <= whole * share
        assert any("values that loops keep of each round" in row.reason for row in report.ledger)
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
        for name in "ab":
            np.testing.assert_allclose(found[1][name], wanted[1][name], rtol=1e-5, atol=1e-8)
    if not DEEP:
        return
    with pytest.raises(
        CompileError, match=r"the least possible is [\d,]+ bytes, \d+ of \d+ values"
    ):
        mw.jit(within(2048), **options)(ps, x)


def test_what_is_made_again_in_rounds_counts_in_a_placement() -> None:
    """Of 248,836 bytes that the placed step takes without a bound."""
    f = mw.jit(
        lambda ps, x: mw.value_and_grad(loss)(ps, x),
        mesh="dp=2",
        layouts="auto",
        peak_bytes=174_767,
    )
    f(*layers())
    report = f.explain().report
    (reason,) = {row.reason for row in report.ledger if "in the round" in row.reason}
    found = re.search(r"([\d.e-]+) ms predicted", reason)
    assert found and report.placement is not None and report.placement.memory is not None
    assert 1e3 * report.placement.memory.again == pytest.approx(float(found[1]), rel=0.01)


LOOPS = """
func.func @main(%c: tensor<4xf32>, %w: tensor<3x4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %0 = arith.constant 0 : index
  %1 = arith.constant 1 : index
  %2 = arith.constant 2 : index
  %3 = arith.constant 3 : index
  %zero = arith.constant dense<0.0> : tensor<3x4xf32>
  %f:2 = scf.for %k = %0 to %3 step %1 iter_args(%x = %c, %s = %zero) -> (tensor<4xf32>, tensor<3x4xf32>) {
    %wk = tensor.extract_slice %w[%k, 0] [1, 4] [1, 1] : tensor<3x4xf32> to tensor<4xf32>
    %y = arith.mulf %x, %wk : tensor<4xf32>
    %t = math.tanh %y : tensor<4xf32>
    %row = tensor.expand_shape %t [[0, 1]] output_shape [1, 4] : tensor<4xf32> into tensor<1x4xf32>
    %n = tensor.insert_slice %row into %s[%AT, 0] [1, 4] [1, 1] : tensor<1x4xf32> into tensor<3x4xf32>
    %z = arith.addf %t, %x : tensor<4xf32>
    scf.yield %z, %n : tensor<4xf32>, tensor<3x4xf32>
  }
  %b = scf.for %k = %0 to %3 step %1 iter_args(%x = %f#0) -> (tensor<4xf32>) {
    %r = arith.subi %2, %k : index
    %row = tensor.extract_slice %f#1[%r, 0] [1, 4] [1, 1] : tensor<3x4xf32> to tensor<1x4xf32>
    %t = tensor.collapse_shape %row [[0, 1]] : tensor<1x4xf32> into tensor<4xf32>
    %y = arith.mulf %x, %t : tensor<4xf32>
    scf.yield %y : tensor<4xf32>
  }
  return %f#0, %b : tensor<4xf32>, tensor<4xf32>
}
"""


def rounds_of(text: str) -> tuple[int, str]:
    """Return how many stacks a program has, and the program with all of them computed again."""
    ctx = context()
    with ctx, ir.Location.unknown(ctx):
        module = parse_module(text, ctx, "loops.mlir")
        block = body_of(module.body.operations[0].operation)
        count = len(stacks_of(block))
        compute_in_rounds(block, count, None)
        module.operation.verify()
        return count, str(module)


def test_what_is_carried_in_is_kept_instead() -> None:
    count, made = rounds_of(LOOPS.replace("%AT", "%k"))
    assert count == 1 and made.count("math.tanh") == 2
    c, w = RNG.normal(size=4).astype(np.float32), RNG.normal(size=(3, 4)).astype(np.float32)
    with mw.compile(made) as again, mw.compile(LOOPS.replace("%AT", "%k")) as plain:
        for found, wanted in zip(again(c, w), plain(c, w), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_a_stack_that_is_not_filled_round_by_round_stays() -> None:
    """Round k writes row 0: what the other rows hold is not of any round."""
    text = LOOPS.replace("%AT", "%0")
    assert rounds_of(text)[0] == 0
    assert rounds_of(LOOPS.replace("%AT", "%k").replace("%3 step", "%2 step", 1))[0] == 0
