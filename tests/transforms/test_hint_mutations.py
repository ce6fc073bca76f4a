"""No hint is lost: whatever passes run in between, in whatever order, the ledger closes or names what was dropped."""

import re
from typing import Any

import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from meshweave.dialects import context
from meshweave.errors import CompileError
from meshweave.hints.keys import REQUIRED
from meshweave.hints.ledger import OUTCOMES
from meshweave.ir.bindings import ir
from meshweave.ir.locations import compile_error
from meshweave.pipeline import run_pipeline
from meshweave.transforms.base import inline_single_block, walk
from meshweave.transforms.slicing.ledger import read_ledger, regions_of

TEXT = """
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func @main(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">}, %b: tensor<6x10xf32>, %t: i1)
    -> (tensor<8x10xf32>, tensor<8x10xf32>) {
  %false = arith.constant false
  %r = "hint.region"() ({
    %z = arith.constant dense<0.0> : tensor<8x10xf32>
    %one = arith.constant dense<1.0> : tensor<8x10xf32>
    %m = linalg.matmul ins(%a, %b : tensor<8x6xf32>, tensor<6x10xf32>) outs(%z : tensor<8x10xf32>) -> tensor<8x10xf32>
    %twice = arith.mulf %m, %one : tensor<8x10xf32>
    %e = math.exp %twice : tensor<8x10xf32>
    %again = math.exp %twice : tensor<8x10xf32>
    %unused = math.sin %m : tensor<8x10xf32>
    %i = "hint.region"() ({
      %s = arith.addf %e, %again : tensor<8x10xf32>
      %d = math.sqrt %s : tensor<8x10xf32>
      "hint.yield"(%d) : (tensor<8x10xf32>) -> ()
    }) {hints = {slice = {value = "u=5", strength = "preferred"}, order = "bfs", stream = 1}} : () -> tensor<8x10xf32>
    "hint.yield"(%i) : (tensor<8x10xf32>) -> ()
  }) {hints = {slice = "t=2", order = "dfs", kernels = "+blas"}} : () -> tensor<8x10xf32>
  %q = scf.if %false -> (tensor<8x10xf32>) {
    %g = "hint.region"() ({
      %c = math.cos %r : tensor<8x10xf32>
      "hint.yield"(%c) : (tensor<8x10xf32>) -> ()
    }) {hints = {order = "strict"}} : () -> tensor<8x10xf32>
    scf.yield %g : tensor<8x10xf32>
  } else {
    scf.yield %r : tensor<8x10xf32>
  }
  return %r, %q : tensor<8x10xf32>, tensor<8x10xf32>
}
"""
OURS = (
    "hint-apply", "dist-propagate", "dist-insert-redistribute", "dist-legalize-redistribute",
    "dist-partition", "hint-budget", "hint-slice", "select-kernels", "dist-overlap", "hint-verify",
)  # fmt: skip
BETWEEN = (
    "canonicalize",
    "cse",
    "sccp",
    "symbol-dce",
    "loop-invariant-code-motion",
    "inline",
    "dist-specialize-mesh",
)


def run(passes: list[str], mutate: Any = None) -> Any:
    """The ledger behind these passes; mutate: (where, what is done to the module in front of pass number `where`)."""
    with context() as ctx, ir.Location.unknown():
        module = ir.Module.parse(TEXT)
        for i, name in enumerate(passes):
            if mutate is not None and mutate[0] == i:
                mutate[1](module)
            run_pipeline(module, name)
        assert ctx is not None
        return read_ledger(module)


@st.composite
def orders(draw: st.DrawFn) -> list[str]:
    """Our passes in their order, with any others in between."""
    passes: list[str] = []
    for name in OURS:
        passes += draw(st.lists(st.sampled_from(BETWEEN), max_size=2))
        passes.append(name)
    return passes


@settings(max_examples=examples(25), deadline=None)
@given(orders())
def test_the_ledger_closes_whatever_runs_in_between(passes: list[str]) -> None:
    ledger = run(passes)
    entries = ledger.entries()
    assert len(entries) == len(ledger.pairs()) and all(e.outcome in OUTCOMES for e in entries)
    assert not [
        e for e in entries if e.strength == REQUIRED and e.outcome not in ("honoured", "dead")
    ]
    sine = [e.outcome for e in entries if e.op == "math.sin" and e.key == "slice"]
    cleaned = {"canonicalize", "cse"} & set(
        passes[passes.index("hint-apply") : passes.index("hint-slice")]
    )
    assert not cleaned or set(sine) <= {"dead"}  # none at all where it was gone before


@settings(max_examples=examples(25), deadline=None)
@given(st.permutations(OURS[:-1]))
def test_passes_out_of_order_never_lose_a_hint_silently(passes: list[str]) -> None:
    """Any order: the ledger closes, or an error says what is missing."""
    try:
        ledger = run([*passes, "hint-verify"])
    except CompileError as error:
        assert re.search(r"run (hint|dist|select)-[a-z-]+|was dropped|not applied", str(error)), (
            str(error)
        )
    else:
        assert ledger.entries()


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.sampled_from(BETWEEN[:-1]), max_size=6))
def test_upstream_passes_ahead_of_hint_apply_keep_every_region_that_runs(passes: list[str]) -> None:
    """In front of hint-apply no ledger could tell: they are counted. One stands where nothing ever runs."""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(TEXT)
        for name in passes:
            run_pipeline(module, name)
        said = {str(region.attributes["hints"]) for region in regions_of(module)}
    assert len(said) >= 2 and any("t=2" in s for s in said) and any("u=5" in s for s in said)


def dissolve(module: Any) -> None:
    """A pass that splices a region in and forgets its hints."""
    inline_single_block(regions_of(module)[-1])


def strip_numbers_of_one_region(module: Any) -> None:
    region = regions_of(module)[0]
    del region.attributes["hint.id"]


@pytest.mark.parametrize("place", range(1, 6))
def test_a_pass_that_drops_a_region_is_caught_and_the_region_named(place: int) -> None:
    with pytest.raises(
        CompileError,
        match=r'the region at .* was dropped by a pass before its hints were applied: order = "strict"',
    ):
        run(list(OURS), (place, dissolve))


def test_a_pass_that_drops_the_number_of_a_region_is_caught() -> None:
    with pytest.raises(
        CompileError, match="the hints of this region are not in the ledger: run hint-apply first"
    ):
        run(list(OURS), (2, strip_numbers_of_one_region))


def test_copies_of_a_region_share_their_entries() -> None:
    """A region that a pass copies is applied twice and accounted for once."""

    def copy(module: Any) -> None:
        (loop,) = [op for op in walk(module) if op.name == "scf.if"]
        first = regions_of(loop)[0]
        first.clone(ir.InsertionPoint(first))

    ledger = run(list(OURS), (1, copy))
    assert len(ledger.entries()) == len(ledger.pairs())


def test_errors_of_the_verifier_are_one_line() -> None:
    with context(), ir.Location.unknown():
        try:
            ir.Module.parse(TEXT.replace('"dfs"', '"fast"'))
        except ir.MLIRError as error:
            assert "hint order" in str(compile_error(error)) and "\n" not in str(
                compile_error(error)
            )
        else:
            raise AssertionError("a wrong value was accepted")
