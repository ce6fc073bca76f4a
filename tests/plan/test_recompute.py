"""What runs again: schedules are complete, peaks are counted right, the front falls, and no choice beats the bound."""

from itertools import combinations, pairwise
from math import isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshweave.plan.recompute import (
    RowRun,
    RowWork,
    WorkRow,
    alive,
    joined,
    least_seconds,
    peak,
    schedule,
    seconds,
    tradeoffs,
)


def layers(count: int, cheap: bool = False) -> WorkRow:
    """A product and an activation a layer, and back: activations are kept. cheap: the products too."""
    works: list[RowWork] = []
    nbytes = [0]

    def make(
        reads: tuple[int, ...], cost: float, kind: int, size: int = 100, maps: bool = False
    ) -> int:
        nbytes.append(size)
        works.append(RowWork(reads, (len(nbytes) - 1,), cost, kind, True, maps))
        return len(nbytes) - 1

    x, kept = 0, []
    for _ in range(count):
        product = make((x,), 10.0, 1)
        y = make((product,), 1.0, 2)
        kept.append((x, product, y))
        x = y
    g = make((x,), 1.0, 3)
    for x, product, y in reversed(kept):
        g = make((g, y, product) if cheap else (g, y), 1.0, 4)
        make((g, x), 10.0, 5, 0)
        g = make((g,), 10.0, 6)
    return WorkRow(tuple(works), tuple(nbytes))


def replayed(row: WorkRow, runs: list[RowRun]) -> int:
    """The peak of a schedule, by looking at every moment at all values that are needed later."""
    most = 0
    for at, run in enumerate(runs):
        made = {(v, r.copy) for r in runs[: at + 1] for v in row.works[r.work].makes}
        needed = {key for r in runs[at:] for key in r.reads}
        now = {(v, run.copy) for v in row.works[run.work].makes}
        most = max(most, sum(row.nbytes[v] for v, _ in made & (needed | now)))
    return most


@st.composite
def rows(draw: st.DrawFn) -> WorkRow:
    count = draw(st.integers(3, 9))
    works, nbytes = [], [0]
    for number in range(count):
        reads = draw(st.sets(st.integers(0, number), min_size=1, max_size=3))
        nbytes.append(draw(st.sampled_from([0, 40, 100, 300])))
        works.append(
            RowWork(
                tuple(sorted(reads)),
                (number + 1,),
                float(draw(st.integers(1, 9))),
                number,
                draw(st.booleans()),
            )
        )
    return WorkRow(tuple(works), tuple(nbytes))


@given(row=rows(), data=st.data())
def test_every_work_reads_what_has_been_made(row: WorkRow, data: st.DataObject) -> None:
    able = [n for n, may in enumerate(row.may_repeat) if may]
    again = data.draw(st.sets(st.sampled_from(able))) if able else set()
    runs = schedule(row, again)
    assert [run.work for run in runs if not run.copy] == list(range(len(row.works)))
    copies = [run.work for run in runs if run.copy]
    assert len(set(copies)) == len(copies) and set(copies) <= again
    made: set[tuple[int, bool]] = {(0, False)}
    for run in runs:
        assert set(run.reads) <= made
        assert [v for v, _ in run.reads] == list(row.works[run.work].reads)
        made |= {(v, run.copy) for v in row.works[run.work].makes}
    assert peak(row, runs) == replayed(row, runs) == max(alive(row, runs))


@given(row=rows())
def test_the_front_falls_and_no_choice_beats_the_bound(row: WorkRow) -> None:
    front = tradeoffs(row)
    assert front[0].again == frozenset() and front[0].peak == peak(row, schedule(row, ()))
    for one, other in pairwise(front):
        assert other.peak < one.peak and other.seconds > one.seconds
    able = [n for n, may in enumerate(row.may_repeat) if may]
    every = [schedule(row, c) for k in range(len(able) + 1) for c in combinations(able, k)]
    for point in front:
        best = min(seconds(row, runs) for runs in every if peak(row, runs) <= point.peak)
        assert least_seconds(row, point.peak) <= best + 1e-9 <= point.seconds + 2e-9


def test_cheap_works_run_again_before_whole_layers_and_layers_by_the_root_of_their_number() -> None:
    front = tradeoffs(layers(64, cheap=True))
    first = {layers(64, cheap=True).works[n].kind for n in front[1].again}
    assert first == {2}  # the activations, which the kept products give
    front = tradeoffs(layers(64))
    assert front[0].peak == 6600
    assert front[-1].peak <= (2 * isqrt(64) + 2) * 100
    assert front[-1].seconds < 64 * 11  # the layers once more, but for those that are kept


@pytest.mark.parametrize("count", [2, 5])
def test_elementwise_works_are_one_with_their_only_reader(count: int) -> None:
    chain = [RowWork((k,), (k + 1,), 1.0, k, True, True) for k in range(count)]
    row = joined(WorkRow((*chain, RowWork((count,), (count + 1,), 5.0, 9)), (0, *[8] * count, 8)))
    assert [w.reads for w in row.works] == [(0,), (count,)]
    assert row.members == (tuple(range(count)), (count,)) and row.works[0].seconds == count
