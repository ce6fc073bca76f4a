"""What the recorder and its replay claim to catch: a program passes under 40 interleavings, and
each way to break it is told, by name, in whatever order things run.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from depth import sampled
from runtime.gpu.programs import Collect, Launch, OnRank, Texts, engine, program

from meshweave.errors import MeshweaveError, RankError

N = 64
A, B, C, D = (("arena", 4 * N * k) for k in range(4))
REDUCE = "mw_all_reduce_sum_f32"
FIRST = Collect(REDUCE, 0, A, B, (N,))
SECOND = Collect(REDUCE, 0, C, D, (N,))
OTHER_GROUP = Collect(REDUCE, 1, C, D, (N,))
# Two chains, the second's kernel beside the first's collective.
STEPS = [
    Launch("twice", ("input", 0), A, N),
    FIRST,
    Launch("plus_one", ("input", 0), C, N),
    SECOND,
    Launch("plus_one", B, ("output", 0), N),
    Launch("twice", D, ("output", 1), N),
]
GROUPS = [("x",), ("y",)]
ANY_SEED = range(0, 40, 8)


def built(steps=STEPS, mesh="x=2,y=2", change=None):
    port = ("f32", (N,))
    return program(mesh, GROUPS, [port], [port] * 2, steps, 16 * N, change=change)


def inputs():
    return [[np.full(N, 1.0 + rank, "f4")] for rank in range(4)]


def right(outputs):
    """x takes ranks r and r+2 together."""
    sums = [4.0, 6.0, 4.0, 6.0]
    expected = [[2 * total + 1, 2 * (total + 2)] for total in sums]
    return all((row[k] == want[k]).all() for row, want in zip(outputs, expected) for k in range(2))


BUNDLE = built()


@sampled(1)
@pytest.mark.parametrize("seed", range(40))
def test_the_program_passes_in_any_order(seed):
    executable = engine(seed=seed).load(BUNDLE)
    assert right(executable.run(inputs())) and right(executable.run(inputs()))


def test_orders_differ():
    orders = set()
    for seed in range(6):
        executable = engine(seed=seed).load(BUNDLE)
        executable.run(inputs())
        orders.add(tuple(str(entry) for entry in executable.recorder.scheduler.executed))
    assert len(orders) == 6


def skipping(text, function, call):
    """A module without the calls of `call` in one of its functions."""
    begin = text.index(f"llvm.func @{function}(%ctx")
    end = text.index("\n}", begin)
    body, count = re.subn(
        rf"(%\w+) = llvm.call @{call}\(.*\) : \(.*\) -> i32",
        r"\1 = llvm.mlir.constant(0 : i32) : i32",
        text[begin:end],
    )
    assert count
    return text[:begin] + body + text[end:]


def without(function, call):
    """A mutation: that call is dropped from a function of the collectives."""
    return lambda texts: Texts(texts.step, skipping(texts.collectives, function, call))


def fails(bundle, line, **options):
    """The run ends with this line, whatever the order."""
    for seed in ANY_SEED:
        with pytest.raises(RankError, match=line) as caught:
            engine(seed=seed, **options).load(bundle).run(inputs())
        assert "\n" not in str(caught.value)


def test_a_communication_stream_that_does_not_wait_races():
    line = (
        r"^race on rank \d: twice\(in0, arena, 64\) .* in test.mlir:twice and "
        r"all_reduce_sum f32 64 arena -> arena\+256 on ranks .* in all_reduce_sum_f32 at "
        r"test.mlir:2:1 write and read the same bytes at 0x\w+ and nothing orders them$|"
        r"^race on rank \d: all_reduce_sum f32 64 .* and (twice|plus_one)\(.* nothing orders them$|"
        r"^race on rank \d: (twice|plus_one)\(.* and all_reduce_sum .* nothing orders them$"
    )
    fails(built(change=without("mw_begin", "cuStreamWaitEvent")), line)


def test_a_compute_stream_that_does_not_wait_races():
    line = r"^race on rank \d: .*(all_reduce_sum|plus_one|twice).* nothing orders them$"
    fails(built(change=without("mw_wait", "cuStreamWaitEvent")), line)


def test_a_missing_wait_gives_wrong_numbers_in_some_orders():
    """The interleavings alone find it too, but not in each order."""
    bundle = built(change=without("mw_wait", "cuStreamWaitEvent"))
    wrong = sum(
        not right(engine(seed=seed, checks=False).load(bundle).run(inputs())) for seed in range(12)
    )
    assert wrong > 0


@pytest.mark.parametrize("function", ["mw_begin", "mw_posted"])
def test_an_event_that_is_not_recorded_is_told(function):
    line = r"^rank 0: s[01] waits for e[01], which nobody has recorded, in all_reduce_sum_f32 at "
    fails(built(change=without(function, "cuEventRecord")), line)


def mutated(position, replacement):
    return [*STEPS[:position], replacement, *STEPS[position + 1 :]]


def test_collectives_swapped_on_one_rank_are_told():
    """Their counts and dtypes agree: real ranks would sum the wrong buffers without a word."""
    steps = [STEPS[0], STEPS[2], OnRank(2, (SECOND, FIRST), (FIRST, SECOND)), *STEPS[4:]]
    line = (
        r"^different ops of the program meet on the communicator of ranks 0,2: rank 0: "
        r"all_reduce_sum f32 64 arena -> arena\+256 on ranks 0,2 in all_reduce_sum_f32 at "
        r"test.mlir:\d:1 against rank 2: .* in all_reduce_sum_f32 at test.mlir:\d:1$"
    )
    fails(built(steps), line)


def test_groups_taken_in_another_order_on_two_ranks_dead_lock():
    steps = [
        STEPS[0],
        STEPS[2],
        OnRank(2, (OTHER_GROUP, FIRST), (OnRank(1, (OTHER_GROUP, FIRST), (FIRST, OTHER_GROUP)),)),
        *STEPS[4:],
    ]
    line = r"^deadlock: rank 0 waits .*; rank 2: all_reduce_sum f32 64 .* which waits for rank 3"
    fails(built(steps), line)


def test_a_wrong_count_on_one_rank_is_told():
    wrong = Collect(REDUCE, 0, A, B, ((N, N - 1),))
    line = (
        r"^different counts, dtypes or reductions meet on .*: rank \d: all_reduce_sum f32 64 .* "
        r"against rank \d: all_reduce_sum f32 63 "
    )
    fails(built(mutated(1, wrong)), line)


def test_another_operation_on_one_rank_is_told():
    gather = Collect("mw_all_gather", 0, A, C, (4 * N,))
    steps = mutated(1, OnRank(0, (gather,), (FIRST,)))
    line = r"^different operations meet on .*: rank 0: all_gather u8 256 .* against rank 2: all_reduce_sum"
    fails(built(steps), line)


def test_a_collective_that_one_rank_leaves_out_is_told():
    steps = [STEPS[0], OnRank(3, (), (FIRST,)), *STEPS[4:]]
    fails(
        built(steps),
        r"^deadlock: rank 1 waits for the end of s0; .*all_reduce_sum f32 64 .* which waits for rank 3",
    )


def test_a_message_that_nobody_takes_is_told():
    wrong = Collect("mw_permute", 0, A, B, (4 * N, (1, 0), (1, 1)))
    line = (
        r"^deadlock: .*group \[send u8 256 .* to 1 .*; recv u8 256 .* from 1 .*\] in permute at "
        r"test.mlir:2:1, which waits for rank"
    )
    fails(built(mutated(1, wrong)), line)


def test_messages_of_different_sizes_are_told():
    wrong = Collect("mw_permute", 0, A, B, ((4 * N, 8), (1, 0), (1, 0)))
    fails(built(mutated(1, wrong)), r"^different counts, dtypes or reductions meet on ")


def test_a_group_that_is_not_ended_is_told():
    permute = Collect("mw_permute", 0, A, B, (4 * N, (1, 0), (1, 0)))
    bundle = built(mutated(1, permute), change=without("mw_permute", "ncclGroupEnd"))
    line = (
        r"^rank 0: waits for its device within a group of 3 NCCL calls that nobody has ended in "
        r"permute at test.mlir:2:1: ncclGroupEnd is missing$"
    )
    fails(bundle, line)


def test_a_collective_beyond_its_buffer_is_told():
    wide = Collect(REDUCE, 0, ("input", 0), A, (N + 1,))
    line = r"^rank 0: all_reduce: 260 bytes at in0 reach 4 beyond its 256 bytes$"
    fails(built(mutated(1, wide)), line)


def test_a_collective_that_overlaps_itself_is_told():
    shifted = Collect(REDUCE, 0, A, ("arena", 16), (N,))
    line = r"^rank 0: all_reduce from arena to arena\+16: they overlap, and not as in-place use allows$"
    fails(built(mutated(1, shifted)), line)


def test_messages_of_a_group_that_overlap_are_told():
    shifted = Collect("mw_permute", 0, A, ("arena", 16), (4 * N, (1, 0), (1, 0)))
    line = (
        r"^rank 0: send u8 256 arena to 1 on ranks 0,2 and recv u8 256 arena\+16 from 1 on ranks 0,2 "
        r"are in one group and touch the same bytes$"
    )
    fails(built(mutated(1, shifted)), line)


def test_memory_of_another_rank_is_told():
    """A kernel may only use what is its own."""
    bundle = BUNDLE
    executable = engine().load(bundle)
    memory = executable.recorder.memory
    theirs = next(a for a in memory if a.rank == 1 and a.name == "arena")
    with pytest.raises(MeshweaveError, match="arena is memory of rank 1"):
        memory.view(0, theirs.address, 4, "twice")
