"""`overlap = "auto"`: the same bits as without, collectives under compute, and the ledger says which."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from depth import examples, sampled
from hint_programs import constrain, data, function, laid_out, matmul, region, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from meshweave.abi import AsyncArea
from meshweave.api.program import Program, lowered
from meshweave.dialects import lent_context
from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.pipeline_text import GLOBAL_PASSES
from meshweave.lowering import compile_local
from meshweave.lowering.buffers.memory import region_bytes
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.stages import lower
from meshweave.pipeline import run_pipeline
from meshweave.runtime import engine
from meshweave.runtime.mpi.engine import MpiEngine
from meshweave.transforms.slicing.ledger import read_ledger

PASSES = ",".join(GLOBAL_PASSES)


@cache
def compiled(text: str, name: str = "local") -> tuple[Any, Any, str]:
    """The bundle, the ledger and the program behind the passes."""
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        module = ir.Module.parse(text)
        run_pipeline(module, PASSES)
        return compile_local(module, name), read_ledger(module), str(module)


def entries_of(text: str) -> Any:
    """The schedule of a program."""
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        module = ir.Module.parse(text)
        run_pipeline(module, PASSES)
        return lower(module).plan


def with_overlap(text: str, value: str) -> str:
    assert "OVERLAP" in text
    return text.replace("OVERLAP", f'overlap = "{value}"')


def outcomes(text: str) -> set[tuple[str, str]]:
    return overlapped(compiled(text)[1])


def overlapped(ledger: Any) -> set[tuple[str, str]]:
    """What a ledger says of overlap: outcomes and reasons."""
    return {(e.outcome, e.reason) for e in ledger.entries() if e.key == "overlap"}


# Programs.


def reduced(ranks: int, slices: int, n: int = 24) -> str:
    """exp(a b): the sum of a product over x is there slice by slice."""
    A, B, C = tensor(n, 8), tensor(8, 12), tensor(n, 12)
    body = matmul("c", "a0", "a1", n, 8, 12) + f"%e = math.tanh %c : {C}\n"
    inside = region("r", body, "%e", C, f'slice = "t={slices}", OVERLAP')
    given = [laid_out(A, "[_, x]"), laid_out(B, "[x, _]")]
    return function(given, [laid_out(C, "[_, _]")], f"{inside}return %r : {C}", f"x={ranks}")


def mlp(ranks: int, slices: int, n: int = 24, layout: str = "[_, _]") -> str:
    """Two products, the weights over x: one sum for each slice of rows."""
    A, B, H, W, C = tensor(n, 6), tensor(6, 16), tensor(n, 16), tensor(16, 10), tensor(n, 10)
    body = (
        matmul("h", "a0", "a1", n, 6, 16) + f"%e = math.tanh %h : {H}\n"
        + matmul("c", "e", "a2", n, 16, 10) + f"%f = arith.addf %c, %c : {C}\n"
    )  # fmt: skip
    inside = region("r", body, "%f", C, f'slice = "t={slices}", OVERLAP')
    given = [laid_out(A, "[_, _]"), laid_out(B, "[_, x]"), laid_out(W, "[x, _]")]
    return function(given, [laid_out(C, layout)], f"{inside}return %r : {C}", f"x={ranks}")


def gathered(ranks: int, slices: int) -> str:
    """a b with the rows of both over x, in slices of columns: each gathers its columns of b."""
    A, B, C = tensor(40, 16), tensor(16, 12), tensor(40, 12)
    body = matmul("c", "a0", "a1", 40, 16, 12) + constrain("d", "c", C, "[x, t]")
    inside = region("r", body, "%d", C, f'slice = "t={slices}", OVERLAP')
    given = [laid_out(A, "[x, _]"), laid_out(B, "[x, _]")]
    return function(given, [laid_out(C, "[x, _]")], f"{inside}return %r : {C}", f"x={ranks}")


def ring(ranks: int) -> str:
    """a b, slices of the dim that is summed are the shards of b: they go round."""
    k = 4 * ranks
    A, B, C = tensor(8, k), tensor(k, 6), tensor(8, 6)
    body = constrain("w", "a1", B, "[t, _]") + matmul("c", "a0", "w", 8, k, 6)
    inside = region("r", body, "%c", C, f'slice = "t={ranks}", OVERLAP')
    given = [laid_out(A, "[x, _]"), laid_out(B, "[x, _]")]
    return function(given, [laid_out(C, "[x, _]")], f"{inside}return %r : {C}", f"x={ranks}")


def nested(ranks: int, outer: int, inner: int) -> str:
    """A region in a region: each slice of rows in slices of columns."""
    A, B, C = tensor(12, 8), tensor(8, 12), tensor(12, 12)
    body = matmul("c", "a0", "a1", 12, 8, 12) + constrain("d", "c", C, "[_, u]")
    body += f"%e = math.tanh %d : {C}\n"
    within = region("q", body, "%e", C, f'slice = "u={inner}"')
    around = within + constrain("f", "q", C, "[t, _]")
    inside = region("r", around, "%f", C, f'slice = "t={outer}", OVERLAP')
    given = [laid_out(A, "[_, x]"), laid_out(B, "[x, _]")]
    return function(given, [laid_out(C, "[_, _]")], f"{inside}return %r : {C}", f"x={ranks}")


def written_out(ranks: int, slices: int) -> str:
    """Slices one after the other in the text, each with a sum that what follows needs."""
    A, B, C = tensor(6, 8), tensor(8, 6), tensor(6, 6)
    body = ""
    for k in range(slices):
        body += matmul(f"c{k}", f"a{k}", f"a{slices}", 6, 8, 6)
        body += constrain(f"d{k}", f"c{k}", C, "[_, _]") + f"%e{k} = math.tanh %d{k} : {C}\n"
        body += (
            f"%s{k} = arith.addf %e{k}, %s{k - 1} : {C}\n" if k else f"%s0 = math.exp %e0 : {C}\n"
        )
    inside = region("r", body, f"%s{slices - 1}", C, "OVERLAP")
    given = [laid_out(A, "[_, x]")] * slices + [laid_out(B, "[x, _]")]
    return function(given, [laid_out(C, "[_, _]")], f"{inside}return %r : {C}", f"x={ranks}")


CASES = {
    "reduced": (lambda r: reduced(r, 4), [(24, 8), (8, 12)], 1),
    "reduced in two": (lambda r: reduced(r, 2), [(24, 8), (8, 12)], 1),
    "mlp": (lambda r: mlp(r, 6), [(24, 6), (6, 16), (16, 10)], 1),
    "mlp, its result over x": (
        lambda r: mlp(r, 3, layout="[_, x]"), [(24, 6), (6, 16), (16, 10)], 1,
    ),
    "ragged": (lambda r: reduced(r, 5), [(24, 8), (8, 12)], 1),
    "gathered": (lambda r: gathered(r, 3), [(40, 16), (16, 12)], 1),
    "ring": (ring, None, 1),
    "nested": (lambda r: nested(r, 3, 2), [(12, 8), (8, 12)], 1),
    "written out": (lambda r: written_out(r, 3), [(6, 8)] * 3 + [(8, 6)], 2),
}  # fmt: skip


def shapes_of(name: str, ranks: int) -> list[tuple[int, ...]]:
    return CASES[name][1] or [(8, 4 * ranks), (4 * ranks, 6)]


@pytest.fixture(scope="module")
def engines() -> Any:
    """Of "library", engine mpi with the library's own calls, only with two ranks: of more it adds in an order of its
    own.
    """
    made = {"local": engine("local", timeout=30.0), "mpi": engine("mpi", timeout=30.0)}
    made["library"] = MpiEngine(30.0, window=False)
    yield made
    for one in made.values():
        one.close()


def results(text: str, inputs: list[Any], running: Any) -> list[Any]:
    with Program(compiled(text, running.name)[0], running) as program:
        first = [np.asarray(r) for r in program(*inputs)]
        again = [np.asarray(r) for r in program(*inputs)]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    return first


def check_bits(
    text: str, shapes: list[tuple[int, ...]], engines: dict[str, Any], name: str = "local"
) -> None:
    """The same bits with `auto` as with `none` on threads, which has been checked elsewhere."""
    inputs = [data(*shape, seed=i) for i, shape in enumerate(shapes)]
    auto = results(with_overlap(text, "auto"), inputs, engines[name])
    none = results(with_overlap(text, "none"), inputs, engines["local"])
    np.testing.assert_array_equal(auto[0], none[0])
    assert np.isfinite(auto[0]).all() and auto[0].any()


@sampled(4)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_same_bits_as_without(engines: Any, name: str, ranks: int) -> None:
    check_bits(CASES[name][0](ranks), shapes_of(name, ranks), engines)


@sampled(4)
@pytest.mark.parametrize(
    "name, where, ranks",
    [
        ("mlp", "mpi", 2), ("mlp", "mpi", 4), ("mlp", "library", 2), ("ring", "mpi", 2),
        ("ring", "mpi", 4), ("ring", "library", 2), ("gathered", "mpi", 2), ("nested", "mpi", 2),
        ("written out", "mpi", 4), ("written out", "library", 2),
    ],
)  # fmt: skip
def test_the_same_bits_of_processes(engines: Any, name: str, where: str, ranks: int) -> None:
    check_bits(CASES[name][0](ranks), shapes_of(name, ranks), engines, where)


@settings(max_examples=examples(12), deadline=None)
@given(
    st.sampled_from(("reduced", "mlp", "gathered", "nested", "written")),
    st.integers(2, 4),
    st.integers(1, 5),
    st.integers(1, 13),
    st.sampled_from(("", ', order = "bfs"', ", width = 2 : i64")),
)
def test_random_programs_keep_their_bits(
    engines: Any, kind: str, ranks: int, slices: int, n: int, schedule: str
) -> None:
    text, shapes = {
        "reduced": (reduced(ranks, slices, n), [(n, 8), (8, 12)]),
        "mlp": (mlp(ranks, slices, n), [(n, 6), (6, 16), (16, 10)]),
        "gathered": (gathered(ranks, slices), [(40, 16), (16, 12)]),
        "nested": (nested(ranks, slices, 2), [(12, 8), (8, 12)]),
        "written": (written_out(ranks, slices), [(6, 8)] * slices + [(8, 6)]),
    }[kind]
    check_bits(text.replace("OVERLAP", f"OVERLAP{schedule}"), shapes, engines)


@sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_collectives_run_ahead_and_the_ledger_says_so(name: str) -> None:
    text = with_overlap(CASES[name][0](2), "auto")
    bundle, ledger, program = compiled(text)
    found = overlapped(ledger)
    assert {outcome for outcome, _ in found} == {"honoured"}
    assert all("collectives run ahead: " in reason for _, reason in found)
    assert program.count("dist.early") >= CASES[name][2]
    after, ledger, program = compiled(with_overlap(CASES[name][0](2), "none"))
    assert "dist.early" not in program
    assert {outcome for outcome, _ in overlapped(ledger)} == {"honoured"}
    moved, right = ([(c.op, c.bytes) for c in b.manifest.collectives] for b in (bundle, after))
    assert sorted(moved) == sorted(right)


@pytest.mark.parametrize(
    "text, reason",
    [
        (mlp(2, 1), "all_reduce over x: nothing that does not need it is computed next to it"),
        (mlp(2, 4).replace("OVERLAP", 'OVERLAP, order = "bfs"'),
         "all_reduce over x: its loop computes nothing: slices run op by op"),
        (mlp(1, 4), "no collective in the region"),
    ],
)  # fmt: skip
def test_what_cannot_run_ahead_is_told_why(text: str, reason: str) -> None:
    assert outcomes(with_overlap(text, "auto")) == {("infeasible", reason)}
    required = text.replace("OVERLAP", 'overlap = {value = "auto", strength = "required"}')
    with pytest.raises(CompileError, match=r"overlap = .auto. .required. is infeasible: "):
        compiled(required)


# Loops of any kind.

LOCAL = tensor(3)
BINARY = ("arith.addf", "arith.mulf", "arith.maximumf")


@st.composite
def loops(draw: Any) -> tuple[str, int]:
    """A loop in the local view, which carries up to three tensors and moves and computes at random; how many it
    carries.
    """
    state = draw(st.integers(1, 3))
    body, values = "", [f"s{k}" for k in range(state)] + ["p"]
    for k in range(draw(st.integers(2, 9))):
        # Not the newest alone, so that ops cross over each other.
        one, other = (draw(st.sampled_from(values)) for _ in range(2))
        what = draw(st.sampled_from(("compute", "all_reduce", "permute", "compute")))
        if what == "compute":
            name = draw(st.sampled_from(BINARY))
            body += (
                f"%m{k} = {name} %{one}, %{other} : {LOCAL}\n%v{k} = math.tanh %m{k} : {LOCAL}\n"
            )
        elif what == "all_reduce":
            body += f'%v{k} = "dist.all_reduce"(%{one}) {{axes = ["x"], kind = "max"}} : ({LOCAL}) -> {LOCAL}\n'
        else:
            body += f'%v{k} = "dist.permute"(%{one}) {{axes = ["x"], sources = [1, 0]}} : ({LOCAL}) -> {LOCAL}\n'
        values.append(f"v{k}")
    handed = [draw(st.sampled_from(values)) for _ in range(state)]
    trips = draw(st.integers(1, 5))
    types = ", ".join([LOCAL] * state)
    carried = ", ".join(f"%s{k} = %a{k}" for k in range(state))
    text = (
        f"%c0 = arith.constant 0 : index\n%c1 = arith.constant 1 : index\n"
        f"%n = arith.constant {trips} : index\n"
        f"%l:{state} = scf.for %i = %c0 to %n step %c1 iter_args({carried}) -> ({types}) {{\n"
        f"%p = tensor.extract_slice %w[%i] [3] [1] : {tensor(8)} to {LOCAL}\n"
        f"{body}scf.yield {', '.join('%' + h for h in handed)} : {types}\n}}\n"
    )
    mine = f'{LOCAL} {{dist.global = {tensor(6)}, dist.layout = #dist.layout<"[x]">}}'
    whole = f'{tensor(8)} {{dist.global = {tensor(16)}, dist.layout = #dist.layout<"[x]">}}'
    given = ", ".join([f"%a{k}: {mine}" for k in range(state)] + [f"%w: {whole}"])
    out, results = ", ".join([mine] * state), ", ".join(f"%l#{k}" for k in range(state))
    return (
        '"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()\n'
        f"func.func @main({given}) -> ({out}) {{\n{text}return {results} : {types}\n}}\n"
    ), state


@settings(max_examples=examples(20), deadline=None)
@given(loops())
def test_random_loops_keep_their_bits(engines: Any, case: tuple[str, int]) -> None:
    text, state = case
    inputs = [data(6, seed=k) for k in range(state)] + [data(16)]
    found = []
    for passes in ("dist-overlap{everywhere=true},canonicalize,cse", "canonicalize,cse"):
        with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
            module = ir.Module.parse(text)
            run_pipeline(module, passes)
            bundle = compile_local(module)
        with Program(bundle, engines["local"]) as program:
            found.append([np.asarray(r) for r in program(*inputs)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


# Starts and waits, as the step will run them.


def faults(entries: list[Any]) -> list[str]:
    """What is wrong with the starts and waits of a block: a start that is not ended, an op that reads what is not there
    yet, or that writes what is still being sent.
    """
    found, open_ = [], {}
    for entry in entries:
        if isinstance(entry, KernelUnit):
            places, written = entry.pointers.places, entry.pointers.written
            roots = {k: place[0] for k, place in enumerate(places)}
            for number, (sent, given) in open_.items():
                if given in roots.values():
                    found.append(f"{number} is used before it is there")
                if sent in {root for k, root in roots.items() if k in written}:
                    found.append(f"{number} is still being sent")
            continue
        for body in entry.bodies:
            found += faults(body)
        if entry.what == "wait":
            open_.pop(entry.number, None)
        elif entry.what == "collective" and entry.ticket >= 0:
            open_[entry.ticket] = tuple(p.root for p in (*entry.operands, *entry.outputs))
    return found + [f"{number} is never waited for" for number in open_]


def without_waits(entries: list[Any]) -> list[Any]:
    for entry in entries:
        if not isinstance(entry, KernelUnit):
            entry.bodies = [without_waits(body) for body in entry.bodies]
    return [e for e in entries if isinstance(e, KernelUnit) or e.what != "wait"]


@pytest.mark.parametrize("name", ["mlp", "ring", "written out"])
def test_every_start_is_waited_for_before_its_result_is_read(name: str) -> None:
    schedule = entries_of(with_overlap(CASES[name][0](2), "auto"))
    assert not faults(schedule.entries)
    broken = faults(without_waits(schedule.entries))
    assert any("never waited for" in f for f in broken)


def test_an_op_that_is_put_before_the_wait_is_found() -> None:
    """The check above is one: with the wait at the end of its block it sees the reader."""
    schedule = entries_of(with_overlap(mlp(2, 6), "auto"))
    loop = next(
        e for e in schedule.entries if not isinstance(e, KernelUnit) and e.what == "scf.for"
    )
    body = loop.bodies[0]
    wait = next(e for e in body if not isinstance(e, KernelUnit) and e.what == "wait")
    body.remove(wait)
    body.insert(len(body) - 1, wait)
    found = faults(schedule.entries)
    assert any("used before it is there" in f for f in found)
    assert any("still being sent" in f for f in found)


def test_the_arena_says_what_it_takes() -> None:
    """What is sent lies in the arena twice for each collective that is started early."""
    bundle = compiled(with_overlap(mlp(2, 6), "auto"))[0].manifest
    sent = 4 * 10 * 4
    assert bundle.early_bytes == AsyncArea.nbytes(sent) == 128 + 2 * 192
    assert compiled(with_overlap(mlp(2, 6), "none"))[0].manifest.early_bytes == 0


def test_a_budget_counts_what_is_on_its_way() -> None:
    """The fewest slices that fit are planned as they will run, one slice more in flight."""
    text = mlp(2, 6).replace('slice = "t=6"', 'peak_bytes = "600B"')
    taken = {}
    for value in ("auto", "none"):
        with lowered(with_overlap(text, value), "mlp", None) as (module, program):
            slices = read_ledger(module).regions[0].slices
            taken[value] = slices, region_bytes(program)[0]
    assert all(nbytes <= 600 for _, nbytes in taken.values())
    assert taken["auto"][0] > taken["none"][0] > 1
