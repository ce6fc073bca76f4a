"""Sequences in slots: each gets its own tokens, whoever joins, leaves or fails beside it; and how tokens are picked."""

import queue
import random
from typing import Any

import numpy as np
import pytest
from depth import sampled
from serving.decoders import PlainDecoder, continued

from meshweave.errors import MeshweaveError, RankError
from meshweave.serving.sampling import Sampling, pick
from meshweave.serving.slot_service import Generation, SlotService
from meshweave.serving.work import Job, JobQueue, QueueFullError, ServerClosedError

GREEDY = Sampling(temperature=0)


class Asked:
    """A sequence and what came of it."""

    def __init__(self, prompt: list[int], most: int, stop: int | None = None) -> None:
        self.tokens: list[int] = []
        self.end: queue.Queue[Any] = queue.Queue()
        self.stop = stop
        self.job = Generation(tuple(prompt), most, GREEDY, self._told, self.end.put)

    def _told(self, token: int) -> bool:
        self.tokens.append(token)
        return token == self.stop

    def why(self) -> Any:
        return self.end.get(timeout=100)


def served(decoder: PlainDecoder, asked: list[Asked], lost: list[Any] | None = None) -> None:
    """Submit all at once and wait for them."""
    service = SlotService(decoder, 999, (lost if lost is not None else []).append)
    service.queue.put([a.job for a in asked])
    ends = [a.why() for a in asked]
    for one, end in zip(asked, ends):
        one.end.put(end)
    service.close()
    assert decoder.closed


@pytest.mark.parametrize("seed", range(4))
def test_each_sequence_gets_its_own_tokens(seed: int) -> None:
    rng, decoder = random.Random(seed), PlainDecoder(slots=1 + seed)
    asked = [
        Asked([rng.randrange(64) for _ in range(rng.randint(1, 9))], rng.randint(1, 9))
        for _ in range(20)
    ]
    served(decoder, asked)
    for one in asked:
        assert one.why() == "length"
        assert one.tokens == continued(one.job.prompt, one.job.most)
    steps = sum(one.job.most - 1 for one in asked)
    assert decoder.steps < steps / decoder.slots + 20, "slots work side by side"
    assert decoder.most == decoder.slots or seed == 0


def test_a_sequence_ends_where_it_should() -> None:
    after = continued([1, 2], 9)
    end = PlainDecoder(ends=[after[3]])
    one, two = Asked([1, 2], 9), Asked([1, 2], 9, stop=after[1])
    served(end, [one, two])
    assert one.why() == two.why() == "stop"
    first = after.index(after[3])
    assert one.tokens == after[:first], "what ends a text is no part of it"
    assert two.tokens == after[:2]


@pytest.mark.parametrize("at", range(8))
def test_sequences_go_on_after_a_rank_has_failed(at: int) -> None:
    decoder, lost = PlainDecoder(failures=[None] * at + [RankError("rank 1 died")]), []
    asked = [Asked([n], 4) for n in range(5)]
    served(decoder, asked, lost)
    assert [a.tokens for a in asked] == [continued([n], 4) for n in range(5)]
    assert len(lost) == 1 and decoder.resets == 1


def test_those_that_lose_their_ranks_twice_are_told_and_the_next_are_served() -> None:
    decoder, lost = PlainDecoder(slots=2, failures=[RankError("a"), RankError("b")]), []
    asked = [Asked([n], 3) for n in range(4)]
    served(decoder, asked, lost)
    ends = [a.why() for a in asked]
    assert [str(e) for e in ends] == ["b", "length", "length", "length"]
    assert asked[3].tokens == continued([3], 3) and len(lost) == 2


def test_another_failure_ends_those_that_are_in_slots_alone(capsys: Any) -> None:
    decoder = PlainDecoder(slots=2, failures=[None, None, ValueError("wrong shape")])
    asked = [Asked([n], 3) for n in range(4)]
    served(decoder, asked)
    ends = [a.why() for a in asked]
    assert [str(e) for e in ends] == ["wrong shape", "wrong shape", "length", "length"]
    assert "ValueError: wrong shape" in capsys.readouterr().err


def test_a_decoder_that_cannot_begin_again_is_asked_again_for_the_next() -> None:
    class Stuck(PlainDecoder):
        def reset(self) -> None:
            super().reset()
            if self.resets == 1:
                self.broken = True
                raise MeshweaveError("no memory")

    decoder = Stuck(slots=1, failures=[MeshweaveError("lost")])
    asked = [Asked([n], 2) for n in range(3)]
    served(decoder, asked)
    assert [str(a.why()) for a in asked] == ["lost", "no memory", "length"]


def test_who_gives_up_frees_the_slot_or_the_place() -> None:
    decoder = PlainDecoder(slots=1)
    decoder.go.clear()
    service = SlotService(decoder, 2, print)
    long, waits, last = Asked([1], 100), Asked([2], 2), Asked([3], 2)
    service.queue.put([long.job])
    while not service.running:
        pass
    service.queue.put([waits.job])
    long.job.given_up = waits.job.given_up = True
    service.queue.put([last.job])
    decoder.go.set()
    assert last.why() == "length" and decoder.steps == 1
    service.close()


def test_a_service_that_ends_tells_those_who_wait() -> None:
    decoder = PlainDecoder(slots=1, seconds=0.05)
    service = SlotService(decoder, 9, print)
    asked = [Asked([1], 100), Asked([2], 2)]
    service.queue.put([a.job for a in asked])
    while not service.running:
        pass
    service.close()
    for one in asked:
        assert isinstance(one.why(), ServerClosedError)
    with pytest.raises(ServerClosedError):
        service.queue.put([Asked([1], 1).job])


def test_a_queue_takes_all_or_none() -> None:
    jobs: JobQueue[Job] = JobQueue(3)
    jobs.put([Job(), Job()])
    with pytest.raises(QueueFullError, match="the queue is full: 2 wait, 2 more are over 3"):
        jobs.put([Job(), Job()])
    jobs.put([Job()])
    assert len(jobs) == 3


@sampled(1)
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.3, 0.7), (1.0, 0.0)])
def test_tokens_are_drawn_as_often_as_they_should(temperature: float, top_p: float) -> None:
    logits = np.array([2.0, 1.0, 0.0, -1.0, 1.5], np.float32)
    weights = np.exp(logits.astype(np.float64) / temperature)
    weights /= weights.sum()
    kept, total = np.zeros(5), 0.0
    for token in np.argsort(-weights):
        if total < top_p or not kept.any():
            kept[token] = weights[token]
        total += weights[token]
    kept /= kept.sum()
    rng = np.random.default_rng(0)
    drawn = [pick(logits, Sampling(temperature, top_p), rng) for _ in range(20000)]
    found = np.bincount(drawn, minlength=5) / len(drawn)
    np.testing.assert_allclose(found, kept, atol=4 * np.sqrt(0.25 / len(drawn)))
    assert not found[kept == 0].any()


def test_what_a_seed_draws_and_what_nan_does() -> None:
    logits = np.linspace(0, 2, 50)

    def draw(seed: int) -> list[int]:
        rng = np.random.default_rng(seed)
        return [pick(logits, Sampling(), rng) for _ in range(20)]

    assert draw(1) == draw(1) != draw(2)
    with pytest.raises(MeshweaveError, match="the model gave NaN for the next token"):
        pick(np.array([0, np.nan, 1]), GREEDY, np.random.default_rng(0))
    assert pick(np.array([-np.inf, 2.0]), Sampling(), np.random.default_rng(0)) == 1
