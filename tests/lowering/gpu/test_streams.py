"""Waits between streams: against happens-before as it is defined, one edge after the other."""

from __future__ import annotations

from depth import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshweave.lowering.gpu.host.streams import BARRIER, Range, StreamWork, awaited, planned

RANGES = st.builds(
    lambda memory, first, size: Range(memory, first, first + size),
    st.sampled_from("ab"),
    st.integers(0, 12),
    st.integers(0, 6),
)
SOME = st.lists(RANGES, max_size=2).map(tuple)
OPS = st.lists(
    st.one_of(st.builds(StreamWork, st.integers(0, 3), SOME, SOME), st.just(BARRIER)), max_size=14
)


def touched(ranges: tuple[Range, ...]) -> set[tuple[str, int]]:
    """The bytes, one by one."""
    return {(r.memory, b) for r in ranges for b in range(r.first, r.last)}


def must_be_ordered(a: StreamWork, b: StreamWork) -> bool:
    if BARRIER in (a, b):
        return True  # also with what touches no byte
    reads, writes = touched(a.reads), touched(a.writes)
    theirs = touched(b.writes)
    return bool(writes & theirs or writes & touched(b.reads) or reads & theirs)


def before(ops: list[StreamWork], waits: list[tuple[int, ...]]) -> set[tuple[int, int]]:
    """The transitive closure of the order of each stream and of the waits."""
    edges = {(a, b) for b in range(len(ops)) for a in range(b) if ops[a].stream == ops[b].stream}
    edges |= {(a, b) for b, found in enumerate(waits) for a in found}
    for middle in range(len(ops)):
        into = [a for a, b in edges if b == middle]
        out = [b for a, b in edges if a == middle]
        edges |= {(a, b) for a in into for b in out}
    return edges


A, B = Range("a", 0, 8), Range("a", 8, 16)


@settings(max_examples=examples(400))
@given(OPS)
@example([StreamWork(1, (), (A,)), StreamWork(2, (A,)), StreamWork(1, (), (A,))])
def test_what_conflicts_is_ordered_and_nothing_more(ops: list[StreamWork]) -> None:
    waits = awaited(ops)
    order = before(ops, waits)
    needed = {(a, b) for b in range(len(ops)) for a in range(b) if must_be_ordered(ops[a], ops[b])}
    assert needed <= order
    # Every edge is there for a conflict, and none follows from the others.
    for b, found in enumerate(waits):
        for a in found:
            assert a < b and ops[a].stream != ops[b].stream and ops[b].conflicts(ops[a])
            fewer = [tuple(x for x in w if (x, k) != (a, b)) for k, w in enumerate(waits)]
            assert (a, b) not in before(ops, fewer)


@settings(max_examples=examples(300))
@given(OPS)
def test_a_planned_event_stands_for_the_operation_that_is_waited_for(ops: list[StreamWork]) -> None:
    recorded: dict[int, int] = {}
    for number, (point, waits) in enumerate(zip(planned(ops), awaited(ops), strict=True)):
        assert point.stream == ops[number].stream
        assert tuple(recorded[event] for event in point.waits) == waits
        if point.record >= 0:
            recorded[point.record] = number


def test_independent_operations_wait_for_the_fork_alone() -> None:
    ops = [
        BARRIER,
        StreamWork(1, (), (A,)),
        StreamWork(2, (), (B,)),
        StreamWork(1, (A,), (A,)),
        StreamWork(2, (B,), (B,)),
        BARRIER,
    ]
    assert awaited(ops) == [(), (0,), (0,), (), (), (3, 4)]


def test_memory_that_is_used_again_is_waited_for() -> None:
    ops = [StreamWork(1, (), (A,)), StreamWork(1, (A,), (B,)), StreamWork(2, (), (A,))]
    assert awaited(ops) == [(), (), (1,)]


def test_readers_do_not_wait_for_readers() -> None:
    assert awaited([StreamWork(1, (A,)), StreamWork(2, (A,)), StreamWork(0, (A,), (B,))]) == [
        (),
        (),
        (),
    ]


def test_a_wait_that_follows_from_another_is_left_out() -> None:
    ops = [StreamWork(1, (), (A,)), StreamWork(2, (A,), (B,)), StreamWork(3, (A, B), ())]
    assert awaited(ops) == [(), (0,), (1,)]


def test_events_are_used_again() -> None:
    ops = [StreamWork(k % 2, (A,), (A,)) for k in range(12)]
    assert {point.record for point in planned(ops)} == {-1, 0}
