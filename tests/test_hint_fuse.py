"""`fuse = "never"`: each op of the region is a kernel of its own, and the results are those of fused ones."""

from typing import Any

import numpy as np
import pytest
from depth import examples, sampled
from hint_programs import NO_MESH, data, function, matmul, region, run, softmax, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import programs
from test_hint_execute import MESHES, in_region

from meshweave.api.program import Program, lowered
from meshweave.lowering.buffers.schedule import KernelUnit
from meshweave.lowering.cpu.target import bundle_of
from meshweave.runtime.local.engine import LocalEngine
from meshweave.transforms.slicing.ledger import read_ledger

T = tensor(24, 16)
CHAIN = f"%1 = math.exp %a0 : {T}\n%2 = arith.mulf %1, %a0 : {T}\n%r0 = arith.addf %2, %1 : {T}\n"
FLIPPED = (
    f"%0 = tensor.empty() : {tensor(16, 24)}\n"
    f"%1 = linalg.transpose ins(%a0 : {T}) outs(%0 : {tensor(16, 24)}) permutation = [1, 0]\n"
    + matmul("c", "a0", "1", 24, 16, 24) + f"%r0 = math.tanh %c : {tensor(24, 24)}\n"
)  # fmt: skip


def kernels(text: str) -> tuple[int, str]:
    """How many kernels a step runs, and the ledger."""
    with lowered(NO_MESH + text, "-", None) as (module, program):
        entries = program.plan.moments
        return sum(isinstance(e, KernelUnit) for _, e in entries), read_ledger(module).report()


def said(fuse: str, body: str, result: str, hints: str = "") -> str:
    inside = region("r", body, "%r0", result, f'fuse = "{fuse}"{hints}')
    return function([T], [result], f"{inside}return %r : {result}")


@sampled(1)
@pytest.mark.parametrize(
    "body, result, fused, apart",
    [(CHAIN, T, 1, 3), (softmax("r0", "a0", T, 1), T, 1, 4), (FLIPPED, tensor(24, 24), 2, 3)],
)
def test_never_takes_a_kernel_for_each_op(body: str, result: str, fused: int, apart: int) -> None:
    count, ledger = kernels(said("may", body, result))
    assert count == fused and "honoured (ops are computed in the kernel of another" in ledger
    count, ledger = kernels(said("never", body, result))
    assert count >= apart and "honoured (each op is a kernel of its own)" in ledger
    a = data(24, 16)
    for one, other in zip(
        run(said("never", body, result), [a]), run(said("may", body, result), [a])
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_the_innermost_region_says() -> None:
    inner = region("i", CHAIN, "%r0", T, 'fuse = "may"')
    outer = region("r", f"{inner}%4 = math.sqrt %i : {T}\n", "%4", T, 'fuse = "never"')
    assert kernels(function([T], [T], f"{outer}return %r : {T}"))[0] == 2
    inner, outer = inner.replace("may", "never"), outer.replace("never", "may", 1)
    swapped = region("r", f"{inner}%4 = math.sqrt %i : {T}\n", "%4", T, 'fuse = "may"')
    assert kernels(function([T], [T], f"{swapped}return %r : {T}"))[0] == 4


def test_what_stands_around_is_fused_as_ever() -> None:
    before = f"%x = math.absf %a0 : {T}\n%y = arith.addf %x, %x : {T}\n"
    inside = region("r", f"%r0 = math.exp %y : {T}\n", "%r0", T, 'fuse = "never"')
    after = f"%z = arith.mulf %r, %r : {T}\n%w = arith.addf %z, %r : {T}\nreturn %w : {T}"
    assert kernels(function([T], [T], before + inside + after))[0] == 3


def test_in_slices_too() -> None:
    text = said("never", CHAIN, T, ', slice = "t=4"')
    a = data(24, 16)
    np.testing.assert_allclose(run(text, [a])[0], np.exp(a) * a + np.exp(a), rtol=1e-5)
    assert "each op is a kernel of its own" in kernels(text)[1]


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_random_programs_unfused(draws: Any) -> None:
    p = draws.draw(st.sampled_from(MESHES).flatmap(programs))
    first = next((i for i, line in enumerate(p.lines) if p.results[0][0].name in line), None)
    if first is None:
        return  # the result is an input
    text = in_region(p, draws.draw(st.integers(0, first)), 'fuse = "never"')
    with lowered(text if "dist.mesh" in text else NO_MESH + text, "-", None) as (_, program):
        bundle = bundle_of(program)
    with Program(bundle, LocalEngine(timeout=30)) as loaded:
        results = loaded(*[v.value for v, _ in p.inputs])
    for result, (value, _) in zip(results, p.results):
        np.testing.assert_array_equal(result, value.value)
