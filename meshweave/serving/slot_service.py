"""Decode many sequences at a time: each has a slot of one program, and joins and leaves between steps.

A sequence under which a rank fails goes on: its prompt and the tokens that it has are put in a slot again, of ranks
that are started anew.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from meshweave.errors import MeshweaveError, RankError
from meshweave.serving.decoder import Decoder, Logits
from meshweave.serving.sampling import Sampling, pick
from meshweave.serving.work import Job, JobService, ServerClosedError


@dataclass
class Generation(Job):
    """Hold a prompt and what follows it.

    most: tokens to make at most. told: called with each token, by the thread that decodes; returns whether that is
    enough. ended: called at the end with "stop" or "length", or with the error that ended it.
    """

    prompt: tuple[int, ...]
    most: int
    how: Sampling
    told: Callable[[int], bool]
    ended: Callable[[str | Exception], None]
    made: list[int] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.how.seed)

    @property
    def tokens(self) -> list[int]:
        """Return all tokens so far."""
        return [*self.prompt, *self.made]

    def fail(self, error: Exception) -> None:
        """Tell who waits."""
        self.ended(error)


class SlotService(JobService[Generation]):
    """Decode the sequences of a queue; `close` ends it between two steps, and fails those that are not done.

    counted: called with how many tokens were read, and how many were made.
    """

    def __init__(
        self,
        decoder: Decoder,
        most: int,
        lost: Callable[[RankError], None],
        counted: Callable[[int, int], None] = lambda read, made: None,
    ) -> None:
        super().__init__(most, lost, decoder.close)
        self.decoder, self._counted = decoder, counted
        self._slots: list[Generation | None] = [None] * decoder.slots
        self._fresh = True  # whether the decoder holds what the slots say
        self.start()

    @property
    def running(self) -> int:
        """Return how many slots have a sequence."""
        return sum(sequence is not None for sequence in self._slots)

    def _serve(self) -> None:
        while True:
            try:
                if not self._round():
                    return
            except RankError as error:
                self._lost(error)
                self._begin_again(self._freed(), error)
            except Exception as error:  # who waits is told, and the next sequences are decoded
                if not isinstance(error, MeshweaveError):
                    traceback.print_exc(file=sys.stderr)
                self._fail_all(error)

    def _round(self) -> bool:
        """Fill free slots, then make a token for each sequence. Return False when the queue was closed."""
        for slot, held in enumerate(self._slots):
            if held is None:
                sequence = self.queue.take(wait=not self.running)
                if sequence is None:
                    break
                self._slots[slot] = sequence
                self._begin(slot, sequence)
        if self.queue.closed:
            self._fail_all(ServerClosedError("the server has stopped"))
            return False
        if self.running:
            self._step()
        return True

    def _begin(self, slot: int, sequence: Generation) -> None:
        tokens = sequence.tokens
        if not self._fresh:
            self.decoder.reset()
        self._fresh = False  # until the call has come back
        logits = self.decoder.prefill(slot, np.asarray(tokens, np.int32))
        self._fresh = True
        self._counted(len(tokens), 0)
        self._grow(slot, sequence, logits)

    def _step(self) -> None:
        tokens, places = (np.zeros(len(self._slots), np.int32) for _ in range(2))
        for slot, sequence in enumerate(self._slots):
            if sequence is not None:
                last = sequence.tokens
                tokens[slot], places[slot] = last[-1], len(last) - 1
        self._fresh = False
        logits = self.decoder.decode(tokens, places)
        self._fresh = True
        for slot, sequence in enumerate(self._slots):
            if sequence is not None:
                self._grow(slot, sequence, logits[slot])

    def _grow(self, slot: int, sequence: Generation, logits: Logits) -> None:
        """Give a sequence its next token, and free the slot if it was the last."""
        if sequence.given_up:
            self._slots[slot] = None
            return
        try:
            token = pick(logits, sequence.how, sequence.random)
        except MeshweaveError as error:
            self._leave(slot, sequence, error)
            return
        self._counted(0, 1)
        sequence.made.append(token)
        enough = token in self.decoder.ends or sequence.told(token)
        if enough or len(sequence.made) == sequence.most:
            self._leave(slot, sequence, "stop" if enough else "length")

    def _leave(self, slot: int, sequence: Generation, why: str | Exception) -> None:
        self._slots[slot] = None
        sequence.ended(why)

    def _fail_all(self, error: Exception) -> None:
        for sequence in self._freed():
            sequence.fail(error)

    def _freed(self) -> list[Generation]:
        """Free all slots, and return the sequences that were in them."""
        held = [sequence for sequence in self._slots if sequence is not None]
        self._slots = [None] * len(self._slots)
        return held
