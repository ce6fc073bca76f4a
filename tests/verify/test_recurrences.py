"""Trips of a loop that are alike are one term, however many there are, and those of another loop are another one."""

from collections import Counter
from collections.abc import Sequence

import pytest
from depth import DEEP, sampled, some
from verify import loops
from verify.mutants import computes_the_same, mutants, verdict
from verify.pairs import compared, mesh

from meshweave.dialects import lent_context
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from meshweave.verification import walk
from meshweave.verification.answer import Answer
from meshweave.verification.check import verify
from meshweave.verification.terms.terms import Term

PROGRAMS = loops.traced()
LOOP = """
func.func @main(%a: tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[x, _]">}}, %w: tensor<90x6xf32>)
    -> (tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[x, _]">}},
        tensor<{n}x6xf32> {{dist.layout = #dist.layout<"[x, _]">}}) {{
  %begin = arith.constant {begin} : index
  %end = arith.constant {end} : index
  %step = arith.constant {step} : index
  %all = arith.constant 89 : index
  %zero = arith.constant dense<0.0> : tensor<{n}x6xf32>
  %r:3 = scf.for %t = %begin to %end step %step iter_args(%s = %a, %z = {start}, %k = %w)
      -> (tensor<{n}x6xf32>, tensor<{n}x6xf32>, tensor<90x6xf32>) {{
    %back = arith.subi %all, %t : index
    %row = tensor.extract_slice %k[{place}, 0] [1, 6] [1, 1] : tensor<90x6xf32> to tensor<6xf32>
    %e = linalg.generic {{
        indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (j)>, affine_map<(i, j) -> (i, j)>],
        iterator_types = ["parallel", "parallel"]}}
        ins(%s, %row : tensor<{n}x6xf32>, tensor<6xf32>) outs(%s : tensor<{n}x6xf32>) {{
    ^bb0(%x: f32, %y: f32, %o: f32):
      %d = {op} %x, %y : f32
      %m = math.sin %d : f32
      linalg.yield %m : f32
    }} -> tensor<{n}x6xf32>
    %p = arith.addf {added} : tensor<{n}x6xf32>
    scf.yield {handed} : tensor<{n}x6xf32>, tensor<{n}x6xf32>, tensor<90x6xf32>
  }}{noted}
  return {results} : tensor<{n}x6xf32>, tensor<{n}x6xf32>
}}
"""
TAKEN = """
func.func @main(%w: tensor<6xf32>) -> tensor<6xf32> {{
  %begin = arith.constant 0 : index
  %end = arith.constant 90 : index
  %step = arith.constant 1 : index
  %zero = arith.constant dense<0.0> : tensor<6xf32>
  %r:2 = scf.for %t = %begin to %end step %step iter_args(%s = %w, %k = %w)
      -> (tensor<6xf32>, tensor<6xf32>) {{
    %e = linalg.generic {{indexing_maps = [affine_map<(i) -> (i)>], iterator_types = ["parallel"]}}
        outs(%zero : tensor<6xf32>) {{
    ^bb0(%o: f32):
      %i = linalg.index 0 : index
      %v = tensor.extract {of}[%i] : tensor<6xf32>
      linalg.yield %v : f32
    }} -> tensor<6xf32>
    %p = arith.addf %s, %e : tensor<6xf32>
    %n = math.sin %k : tensor<6xf32>
    scf.yield %p, %n : tensor<6xf32>, tensor<6xf32>
  }}
  return %r#0 : tensor<6xf32>
}}
"""
RIGHT = {
    "begin": 0,
    "end": 90,
    "step": 1,
    "start": "%zero",
    "place": "%t",
    "op": "arith.subf",
    "added": "%z, %s",
    "handed": "%e, %p, %k",
    "results": "%r#0, %r#1",
    "noted": "",
}
CARRIED = (
    '{{dist.global = tensor<8x6xf32>, dist.layout = #dist.layout<"{0}">}}, '
    '{{dist.global = tensor<8x6xf32>, dist.layout = #dist.layout<"{0}">}}, '
    '{{dist.global = tensor<90x6xf32>, dist.layout = #dist.layout<"[_, _]">}}'
)


def noted(layout: str = "[x, _]") -> dict[str, object]:
    """What dist-partition notes on the loop, of a layout."""
    return {"noted": f" {{dist.carried = [{CARRIED.format(layout)}]}}"}


def said(wrong: dict[str, object], most: int = 600, axes: str = "x=2") -> Answer:
    """What is found of a rank's program with a loop in which some things are otherwise."""
    whole = mesh(axes) + LOOP.format(n=8, **RIGHT)
    local = mesh(axes) + LOOP.format(n=4, **(RIGHT | wrong))
    return _found(whole, local, most)


def _found(whole: str, local: str, most: int = 600) -> Answer:
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        modules = [parse_module(text, ctx, "loop") for text in (whole, local)]
        return verify(*modules, most=most, again=False)


@pytest.mark.parametrize(
    ("said", "slices", "sums"),
    [
        (noted(), 2, 2),
        ({}, 4, 7),
        (noted("[_*x, _]"), 4, 6),
        (noted("[_, x]"), 5, 7),
        (noted("[x, x]"), 5, 7),
    ],
    ids=["noted", "not noted", "noted wrong", "of another shape", "no layout"],
)
def test_the_body_of_a_loop_is_read_once_where_its_layouts_are_noted(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, object], slices: int, sums: int
) -> None:
    """Else it is read until what it carries stays in its form: what nothing carried reaches is made once, or twice."""
    made: Counter[str] = Counter()
    handler = walk._handler

    def counted(name: str) -> walk.Handler:
        def read(program: walk.ProgramWalk, op: ir.Operation) -> Sequence[Term]:
            made[name] += 1
            return handler(name)(program, op)

        return read

    monkeypatch.setattr(walk, "_handler", counted)
    loop = LOOP.replace("extract_slice %k", "extract_slice %w")
    whole, local = [mesh("x=2") + loop.format(n=n, **(RIGHT | said)) for n in (8, 4)]
    assert _found(whole, local).status == 0
    assert (made["tensor.extract_slice"], made["arith.addf"]) == (slices, sums)


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"nested"}))
def test_each_body_of_a_compiled_program_is_read_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: Counter[ir.Operation] = Counter()
    op = walk.ProgramWalk.op

    def counted(program: walk.ProgramWalk, one: ir.Operation, name: str) -> None:
        reads[one] += 1
        op(program, one, name)

    monkeypatch.setattr(walk.ProgramWalk, "op", counted)
    whole, local = PROGRAMS[name]
    assert _found(whole, local, most=20_000).status == 0
    assert {*reads.values()} == {1}


def test_a_body_that_looks_around_is_read_again() -> None:
    """Both tensors begin as the same one."""
    one, other = [mesh("x=2") + TAKEN.format(of=of) for of in ("%s", "%k")]
    assert _found(one, one).status == _found(other, other).status == 0
    assert not _found(one, other).proven
    assert not _found(other, one).proven


def test_trips_that_are_alike_take_one_term() -> None:
    """Each trip alone makes six."""
    assert said({}, most=120).status == 0


@sampled(1)
@pytest.mark.parametrize(
    "wrong",
    [
        {"begin": 1},
        {"end": 89},
        {"step": 2},
        {"place": "%back"},
        {"place": "%begin"},
        {"start": "%a"},
        {"op": "arith.mulf"},
        {"added": "%z, %e"},
        {"added": "%s, %s"},
        {"handed": "%p, %e, %k"},
        {"handed": "%e, %z, %k"},
        {"results": "%r#1, %r#0"},
    ],
    ids=str,
)
def test_a_loop_that_does_something_else_is_another(wrong: dict[str, object]) -> None:
    assert said(wrong).status != 0
    assert said(wrong | noted()).status != 0
    assert said(wrong | noted("[_*x, _]")).status != 0


def test_operands_in_another_order_are_the_same_loop() -> None:
    assert said({"added": "%s, %z"}).status == 0


@pytest.mark.parametrize(
    "wrong", [{"place": "%back"}, {"op": "arith.addf"}, {"handed": "%e, %s, %k"}], ids=str
)
def test_an_element_behind_trips_is_computed(wrong: dict[str, object]) -> None:
    """So a loop of a few trips that is wrong is refuted, not only unproven."""
    few = {"begin": 78, "end": 88}
    whole = mesh("x=2") + LOOP.format(n=8, **(RIGHT | few))
    local = mesh("x=2") + LOOP.format(n=4, **(RIGHT | few | wrong))
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        modules = [parse_module(text, ctx, "loop") for text in (whole, local)]
        assert verify(*modules).status == 1


@sampled(1)
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_loops_of_many_trips_are_proven(name: str) -> None:
    assert compared(*PROGRAMS[name]).status == 0


@pytest.mark.parametrize(
    "name", some(["cell", "gated", "layers", "running", "nested", "descent"], 2)
)
def test_no_mutant_that_computes_something_else_is_proven(name: str) -> None:
    for mutant in mutants(6 if DEEP else 2, 3, {f"loop {name}": PROGRAMS[name]}):
        found = verdict(mutant)
        assert found != "proven" or computes_the_same(mutant), f"{mutant.change}:\n{mutant.local}"
