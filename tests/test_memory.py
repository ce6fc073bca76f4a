"""Planned memory is the memory taken: the arena that a manifest states is what ranks allocate, they write up to its end
and nowhere behind; and what a region of hints takes is what its budget allows.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from depth import examples, sampled
from hint_programs import NO_MESH, attention, data, np_softmax
from hypothesis import event, example, given, settings
from hypothesis import strategies as st
from programs import Program as Drawn
from programs import programs
from test_hint_execute import SCHEDULES, in_region

import meshweave as mw
from meshweave.abi import ALIGNMENT
from meshweave.api.program import Program, budget_hints, build, lowered
from meshweave.errors import CompileError
from meshweave.layout import Mesh
from meshweave.lowering import stages
from meshweave.lowering.budget import cache_bytes, fewest
from meshweave.lowering.buffers import order_launches
from meshweave.lowering.buffers.memory import moments, region_bytes
from meshweave.lowering.cpu.target import bundle_of
from meshweave.runtime import memory as runtime_memory
from meshweave.runtime import program as runtime_program
from meshweave.runtime.local import dispatch as runtime_dispatch
from meshweave.runtime.local.engine import LocalEngine
from meshweave.transforms.slicing.ledger import read_ledger

GUARD, FILL = 4096, 0xA5
SLICED = [
    'slice = "t=8", order = "dfs"',
    'slice = "t=8", width = 3',
    'slice = "t=8", order = "bfs"',
    'slice = "t=3"',
    'peak_bytes = "40kB"',
    'slice = "t", order = "dfs"',
]


class Allocations:
    """Buffers of the engine, with guards in front and behind; all begin full of one byte."""

    def __init__(self) -> None:
        self.made: list[tuple[np.ndarray, int, int]] = []

    def aligned(self, nbytes: int) -> np.ndarray:
        whole = np.full(nbytes + 2 * GUARD, FILL, np.uint8)
        start = GUARD + -(whole.ctypes.data + GUARD) % ALIGNMENT
        self.made.append((whole, start, nbytes))
        return whole[start : start + nbytes]

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have arenas and arrays lie in these buffers; none lies in what an earlier array has left."""
        for module in (runtime_program, runtime_memory):
            monkeypatch.setattr(module, "aligned", self.aligned)
        monkeypatch.setattr(runtime_memory, "LEAST", 1 << 60)
        for module in (runtime_dispatch, runtime_memory):
            monkeypatch.setattr(module, "addressed_array", self.addressed)

    def addressed(
        self, shape: Sequence[int], dtype: np.dtype[Any], nbytes: int
    ) -> tuple[np.ndarray, int]:
        """As the engine's: a new result, and where it lies."""
        array = self.aligned(nbytes).view(dtype).reshape(shape)
        return array, array.ctypes.data

    def check(self) -> None:
        for whole, start, nbytes in self.made:
            assert np.all(whole[:start] == FILL) and np.all(whole[start + nbytes :] == FILL)

    @property
    def sizes(self) -> list[int]:
        return [nbytes for _, _, nbytes in self.made]

    def last_written(self, which: int) -> int:
        """How many bytes of a buffer there are up to the last that was written."""
        whole, start, nbytes = self.made[which]
        changed = np.flatnonzero(whole[start : start + nbytes] != FILL)
        return int(changed[-1]) + 1 if changed.size else 0


@pytest.fixture
def allocations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Allocations]:
    found = Allocations()
    found.patch(monkeypatch)
    yield found


@sampled(4)
@pytest.mark.parametrize("hints", [*SLICED, 'order = "strict"'])
def test_the_arena_is_what_was_planned_and_used_to_its_end(
    allocations: Allocations, hints: str
) -> None:
    q, k, v = data(8, 64, 16), data(8, 16, 64), data(8, 64, 16, seed=3)
    bundle = build(NO_MESH + scores(8, 64, hints))
    arena = bundle.manifest.arena_bytes
    assert arena > 0
    with Program(bundle, LocalEngine(timeout=30)) as program:
        assert allocations.sizes[0] == arena
        (got,) = program(q, k, v)
        ports = [port.nbytes for port in (*program.inputs, *program.outputs)]
        assert arena + sum(ports) == program.peak_bytes
        # Each argument at most once, where it lies unaligned; a result once more, as `Array.numpy` copies it.
        taken = Counter(allocations.sizes[1:])
        results = Counter(port.nbytes for port in program.outputs)
        assert results <= taken <= Counter(ports) + results
    allocations.check()
    assert arena - ALIGNMENT < allocations.last_written(0) <= arena
    np.testing.assert_allclose(got, np_softmax(q @ k, 2) @ v, rtol=2e-4, atol=2e-5)


MESHES = [Mesh(one=1), Mesh(x=2), Mesh(x=2, y=2)]


@settings(max_examples=examples(25))
@given(st.data())
def test_no_program_writes_beyond_its_buffers(data: st.DataObject) -> None:
    drawn: Drawn = data.draw(st.sampled_from(MESHES).flatmap(programs))
    text = drawn.text()
    first = next((i for i, s in enumerate(drawn.lines) if drawn.results[0][0].name in s), None)
    if first is not None and data.draw(st.booleans()):
        slices = 'slice = {value = "t=2", strength = "preferred"}'
        schedule = data.draw(st.sampled_from(SCHEDULES))
        text = in_region(drawn, first, ", ".join(filter(None, [slices, schedule])))
    found = Allocations()
    with pytest.MonkeyPatch.context() as patch:
        found.patch(patch)
        bundle = build(text if "dist.mesh" in text else NO_MESH + text)
        with Program(bundle, LocalEngine(timeout=30)) as program:
            ranks = program.mesh.nranks
            assert found.sizes[:ranks] == [bundle.manifest.arena_bytes] * ranks
            program(*[v.value for v, _ in drawn.inputs])
    found.check()


# What regions take.


def scores(heads: int, length: int, hints: str) -> str:
    """Attention that makes its scores: none of the kernels that do without."""
    return attention(heads, length, 16, f'{hints}, kernels = "-flash"')


def planned(text: str) -> tuple[dict[int, int], int, int]:
    """Intermediate bytes by region, slices of the first one, and the arena's."""
    with lowered(NO_MESH + text, "-", None) as (module, program):
        slices = read_ledger(module).regions[0].slices
        assert max(m.nbytes for m in moments(program)) <= program.plan.arena_bytes
        return region_bytes(program), slices, program.plan.arena_bytes


def test_depth_first_takes_a_slice_and_each_more_in_flight_a_slice_more() -> None:
    one = 64 * 64 * 4  # the scores of a head
    found = {}
    for width in (1, 2, 4, 8, 16):
        by_region, slices, _ = planned(scores(16, 64, f'slice = "t=16", width = {width}'))
        assert slices == 16
        found[width] = by_region[0]
    rows = 2 * 64 * 4  # the largest element and the sum of each row
    assert found[1] == one + rows
    for width in (2, 4, 8, 16):  # the scores of all in flight, and the softmax of one at work
        assert found[width] == width * one + one + rows, found


@sampled(4)
@pytest.mark.parametrize(
    ("budget", "slices"), [(1 << 20, 1), (160_000, 2), (70_000, 4), (40_000, 8), (20_000, 16)]
)
def test_a_budget_gets_the_fewest_slices_that_fit(budget: int, slices: int) -> None:
    by_region, chosen, _ = planned(scores(16, 64, f'slice = "t", peak_bytes = {budget}'))
    assert by_region[0] <= budget and chosen == slices


def test_a_budget_that_one_dim_cannot_keep_is_kept_along_another() -> None:
    by_region, slices, _ = planned(scores(2, 256, 'peak_bytes = "100kB"'))
    assert by_region[0] <= 100_000 and slices > 2


def test_a_budget_that_cannot_be_kept_says_what_the_least_is() -> None:
    with pytest.raises(CompileError, match=r"the least possible is ([\d,]+) bytes") as caught:
        planned(scores(4, 64, "peak_bytes = 8"))
    least = caught.value.message.split("allow ")[1].split(" ")[0]
    by_region, _, _ = planned(scores(4, 64, f"peak_bytes = {least}"))
    assert by_region[0] == int(least)


def test_the_cache_decides_where_nothing_else_does() -> None:
    heads, length = 16, 64
    while heads * length * length * 4 <= 2 * cache_bytes():
        length *= 2
    by_region, slices, _ = planned(scores(heads, length, 'order = "dfs"'))
    assert slices > 1 and (by_region[0] <= cache_bytes() or slices == heads)


@given(
    st.integers(1, 200),
    st.integers(0, 300),
    st.booleans(),
)
def test_fewest_is_the_least_number_that_fits(extent: int, limit: int, even: bool) -> None:
    """Where a slice of s elements takes s bytes, as it is for even slices."""
    count = fewest(extent, limit, lambda n: -(-extent // n), even)
    fit = [
        n for n in range(1, extent + 1) if -(-extent // n) <= limit and not (even and extent % n)
    ]
    if not fit:
        assert count is None
    elif even:
        assert count == fit[0]
    else:
        assert count is not None and count >= fit[0] and -(-extent // count) <= limit
        between = {-(-extent // s) for s in range(1, extent + 1)}
        if len(between) <= 16:
            assert count == fit[0]


OPEN = (
    'order = "dfs"',
    'slice = {value = "t", strength = "preferred"}',
    'slice = {value = "t", strength = "preferred"}, width = 2',
    'peak_bytes = {value = 256, strength = "preferred"}',
    'peak_bytes = {value = 64, strength = "preferred"}, order = "bfs"',
)


@settings(max_examples=examples(25))
@given(st.data())
def test_programs_with_open_numbers_of_slices_give_what_numpy_gives(data: st.DataObject) -> None:
    drawn: Drawn = data.draw(st.sampled_from(MESHES).flatmap(programs))
    first = next((i for i, s in enumerate(drawn.lines) if drawn.results[0][0].name in s), None)
    if first is None:
        return  # the result is an input
    text = in_region(drawn, data.draw(st.integers(0, first)), data.draw(st.sampled_from(OPEN)))
    text = text if "dist.mesh" in text else NO_MESH + text
    with lowered(text, "-", None) as (module, program):
        event(f"{min(read_ledger(module).regions[0].slices, 3)} slices or more")
        read_ledger(module).entries()
        bundle = bundle_of(program)
    with Program(bundle, LocalEngine(timeout=30)) as loaded:
        results = loaded(*[v.value for v, _ in drawn.inputs])
    for result, (value, _) in zip(results, drawn.results):
        np.testing.assert_array_equal(result, value.value)


# What whole programs take.

MOVED = """
"dist.mesh"() {sym_name = "mesh", axes = "x=3"} : () -> ()
func.func public @main(%a: tensor<1x2x1xf32> {dist.layout = #dist.layout<"[x, _, _]">},
                       %b: tensor<2x6x1xf32> {dist.layout = #dist.layout<"[_, _, _] +sum(x)">})
    -> (tensor<1x2x1xf32> {dist.layout = #dist.layout<"[_, _, _]">},
        tensor<2x6x1xf32> {dist.layout = #dist.layout<"[x, _, _]">}) {
  %0 = "dist.constrain"(%a) {layout = #dist.layout<"[_, x, _]">} : (tensor<1x2x1xf32>) -> tensor<1x2x1xf32>
  return %0, %b : tensor<1x2x1xf32>, tensor<2x6x1xf32>
}
"""


def arena_within(text: str, peak_bytes: int | None) -> tuple[int, set[str]]:
    """Return the arena of a program within a budget, and the reasons in its ledger."""
    with lowered(text, "-", None, hints=budget_hints(peak_bytes), verify=False) as made:
        module, program = made
        return program.areas[1], {entry.reason for entry in read_ledger(module).entries()}


@settings(max_examples=examples(60))
@example(MOVED)
@given(st.sampled_from(MESHES).flatmap(programs).map(Drawn.text))
def test_what_a_program_takes_without_a_budget_is_a_budget_that_it_keeps(text: str) -> None:
    taken, _ = arena_within(text, None)
    within, reasons = arena_within(text, max(1, taken))
    assert within == taken
    assert reasons <= {f"one piece: {taken:,} bytes of {max(1, taken):,}", "the op was erased"}


ENDS = """
"dist.mesh"() {sym_name = "mesh", axes = "x=2"} : () -> ()
func.func public @main(%a: tensor<3x1x7xbf16> {dist.layout = #dist.layout<"[_, _, x]">})
    -> (tensor<3x1x7xbf16> {dist.layout = #dist.layout<"[_, _, _]">},
        tensor<3x1x7xbf16> {dist.layout = #dist.layout<"[x, _, _]">}) {
  %e = tensor.empty() : tensor<3x1x7xbf16>
  %0 = linalg.add ins(%a, %a : tensor<3x1x7xbf16>, tensor<3x1x7xbf16>)
    outs(%e : tensor<3x1x7xbf16>) -> tensor<3x1x7xbf16>
  return %0, %a : tensor<3x1x7xbf16>, tensor<3x1x7xbf16>
}
"""


def test_no_budget_is_said_to_need_more_than_one_piece_takes() -> None:
    """A region would cost a buffer more at its end: slices take more than all of it without."""
    taken, _ = arena_within(ENDS, None)
    with pytest.raises(CompileError, match=f"in one piece; allow {taken} bytes"):
        arena_within(ENDS, 1)
    preferred = 'attributes {hint.hints = {peak_bytes = {value = "1", strength = "preferred"}}} {'
    within, reasons = arena_within(
        ENDS.replace('[x, _, _]">}) {', f'[x, _, _]">}}) {preferred}'), None
    )
    assert within == taken and reasons == {f"the least possible is {taken} bytes, in one piece"}


# The order of launches.


def chain(ws: list[mw.Array], x: mw.Array) -> mw.Array:
    for w in ws:
        x = mw.tanh(x @ w)
    return mw.sum(x * x)


def adam(
    ws: list[mw.Array], ms: list[mw.Array], vs: list[mw.Array], x: mw.Array
) -> tuple[mw.Array, list[mw.Array], list[mw.Array], list[mw.Array]]:
    value, gradients = mw.value_and_grad(chain)(ws, x)
    ms = [0.9 * m + g for m, g in zip(ms, gradients)]
    vs = [0.9 * v + g * g for v, g in zip(vs, gradients)]
    new = [w - 0.1 * m / (mw.sqrt(v) + 1e-6) for w, m, v in zip(ws, ms, vs)]
    return value, new, ms, vs


@sampled(1)
@pytest.mark.parametrize("mesh", ["dp=1", "dp=2"])
def test_a_gradient_is_not_kept_until_all_are_made(mesh: str) -> None:
    rng = np.random.default_rng(5)
    ws, ms, vs = ([rng.random((192, 192), "f4") / 96 for _ in range(8)] for _ in range(3))
    x = rng.normal(size=(6, 192)).astype("f4")
    layouts = (["[_, _]"] * 8, ["[_, _]"] * 8, ["[_, _]"] * 8, "[dp, _]")
    step = mw.jit(adam, mesh=mesh, in_layouts=layouts, donate=("ws", "ms", "vs"))
    text = step.lower(ws, ms, vs, x).as_text()
    found, arenas = [], []
    for order in (stages.order_launches, lambda *_: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stages, "order_launches", order)
            with lowered(text, "-", None) as (_, program):
                assert program.verified is not None and not program.verified.refuted
                arenas.append(program.plan.arena_bytes)
                bundle = bundle_of(program)
        with Program(bundle, LocalEngine(timeout=30)) as loaded:
            found.append([np.array(result) for result in loaded(*ws, *ms, *vs, x)])
    one = 192 * 192 * 4
    assert arenas[0] < 4 * one and arenas[1] >= 8 * one
    for ordered, plain in zip(*found, strict=True):
        np.testing.assert_array_equal(ordered, plain)


@settings(max_examples=examples(25))
@given(st.data())
def test_programs_whose_launches_are_ordered_give_what_numpy_gives(data: st.DataObject) -> None:
    drawn: Drawn = data.draw(st.sampled_from(MESHES).flatmap(programs))
    text = drawn.text()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_launches, "LARGE", 1)  # whatever ends the life of anything moves
        patch.setattr(order_launches._BlockOps, "peak", lambda self, order: 0)
        with lowered(text if "dist.mesh" in text else NO_MESH + text, "-", None) as (_, program):
            bundle = bundle_of(program)
    with Program(bundle, LocalEngine(timeout=30)) as loaded:
        results = loaded(*[v.value for v, _ in drawn.inputs])
    for result, (value, _) in zip(results, drawn.results):
        np.testing.assert_array_equal(result, value.value)


BIG = """
func.func @main(%a: tensor<30000x1xf32>, %b: tensor<1x30000xf32>, %v: tensor<30000x8xf32>) -> tensor<30000x8xf32> {
  %zero = arith.constant 0.0 : f32
  %whole = tensor.empty() : tensor<30000x30000xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%whole : tensor<30000x30000xf32>) -> tensor<30000x30000xf32>
  %y = linalg.matmul ins(%a, %b : tensor<30000x1xf32>, tensor<1x30000xf32>)
    outs(%filled : tensor<30000x30000xf32>) -> tensor<30000x30000xf32>
  %part = tensor.empty() : tensor<30000x8xf32>
  %start = linalg.fill ins(%zero : f32) outs(%part : tensor<30000x8xf32>) -> tensor<30000x8xf32>
  %z = linalg.matmul ins(%y, %v : tensor<30000x30000xf32>, tensor<30000x8xf32>)
    outs(%start : tensor<30000x8xf32>) -> tensor<30000x8xf32>
  %w = linalg.matmul ins(%y, %z : tensor<30000x30000xf32>, tensor<30000x8xf32>)
    outs(%start : tensor<30000x8xf32>) -> tensor<30000x8xf32>
  return %w : tensor<30000x8xf32>
}
"""


@pytest.mark.parametrize("engine", ["local", "emulate"])
def test_places_beyond_two_gib_have_addresses(engine: str) -> None:
    """It is compiled and not run, for it would take 3.6 GB; LLVM's literals of addresses end at 2 GiB."""
    bundle = build(NO_MESH + BIG, name="-", engine=engine)
    assert bundle.manifest.arena_bytes > 30000 * 30000 * 4
