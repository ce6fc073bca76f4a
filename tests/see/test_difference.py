"""The difference of two compiles: what moves in one of them, what that costs, and how pages show it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from commands import meshweave

import meshweave as mw
from meshweave.api.explain import Explanation
from meshweave.see.budget import Budget

X, W = np.ones((8, 16), np.float32), np.ones((16, 16), np.float32)


def said(out: str, mesh: str = "x=2") -> Explanation:
    @mw.jit(mesh=mesh, in_layouts=("[x, _]", "[_, _]"), out_layouts=out)
    def layer(rows: mw.Array, w: mw.Array) -> mw.Array:
        return mw.exp(mw.tanh(rows)) @ w

    return layer.lower(X, W).compile().explain()


def test_what_moves_in_one_of_both_is_named_with_its_line_and_cause() -> None:
    found = said("[x, _]").difference(said("[_, _]"))
    figures = {f.what: (f.here, f.there) for f in found.figures}
    assert figures["bytes received by the busiest rank"] == (0, 4 * 16 * 4)
    assert figures["collectives"] == (0, 1)
    (move,) = found.moves
    assert (move.here, move.there) == ("", "1 x all_gather over x")
    assert move.cause.startswith('argument rows lies in "[x, _]", as it was said, but result 0')
    assert "mw.exp(mw.tanh(rows)) @ w" in str(found)


def test_ops_that_lie_otherwise_are_named() -> None:
    @mw.jit(mesh="x=2", in_layouts="[_, _]", out_layouts="[x, _]")
    def rows(a: mw.Array) -> mw.Array:
        return mw.tanh(a)

    @mw.jit(mesh="x=2", in_layouts="[_, _]", out_layouts="[_, x]")
    def columns(a: mw.Array) -> mw.Array:
        return mw.tanh(a)

    found = rows.lower(X).compile().explain().difference(columns.lower(X).compile().explain())
    (op,) = found.ops
    assert (op.what, op.op) == ("layout", "an elementwise op `mw.tanh(a)` 8x16xf32")
    assert (op.here, op.there) == ("[x, _]", "[_, x]")


def test_two_compiles_of_one_program_do_nothing_otherwise() -> None:
    found = said("[x, _]").difference(said("[x, _]"))
    assert found.moves == found.ops == ()
    assert all(f.here == f.there for f in found.figures)


def test_a_larger_mesh_has_its_own_bytes_and_work() -> None:
    found = said("[_, _]").difference(said("[_, _]", mesh="x=4"))
    figures = {f.what: (f.here, f.there) for f in found.figures}
    assert figures["bytes received by the busiest rank"] == (4 * 16 * 4, 6 * 16 * 4)
    here, there = figures["iterations of loops on a rank"]
    assert here == 2 * there
    (move,) = found.moves
    assert (move.nbytes_here, move.nbytes_there) == (256, 384)


PROGRAM = """func.func @main(%a: tensor<8x6xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x6xf32> {dist.layout = #dist.layout<"[_, _]">}) {
  %e = math.exp %a : tensor<8x6xf32>
  return %e : tensor<8x6xf32>
}
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
"""


def test_the_command_compares_with_another_mesh_and_a_budget(tmp_path: Path) -> None:
    program, page, budget = tmp_path / "p.mlir", tmp_path / "p.html", tmp_path / "b.toml"
    program.write_text(PROGRAM)
    budget.write_text('bytes = "90 B"\npeak = "1 KiB"\n')
    done = meshweave("view", program, "-o", page, "--diff-mesh", "x=4", "--budget", budget)
    assert done.status == 0, done
    text = page.read_text()
    assert "p.mlir on x=4" in text and "+48" in text  # 6 of 8 rows come from others, not 4
    assert "receives 96 bytes, at most 90 B is expected" in text


def test_a_budget_is_a_line_in_the_picture_of_memory() -> None:
    page = said("[_, _]").page
    ports = page.report.peak_bytes - page.report.arena_bytes
    limited = replace(page, budget=Budget.of({"peak": ports + 512}, "test")).html
    assert "Within the budget." in limited or "is expected" in limited
    assert 'class="limit"' in limited and "512 B, which the budget leaves" in limited
    assert 'class="limit"' not in page.html
