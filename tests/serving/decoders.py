"""A decoder without a program: its next token follows from all tokens of a sequence, so that a slot that is confused
with another, or a token that is missing, shows."""

import threading
import time
from collections.abc import Sequence

import numpy as np

VOCABULARY = 64


def following(tokens: Sequence[int]) -> int:
    """Return the token that comes behind these."""
    total = 0
    for token in tokens:
        total = (total * 31 + token + 7) % 1_000_003
    return total % VOCABULARY


def continued(prompt: Sequence[int], count: int) -> list[int]:
    """Return the `count` tokens behind a prompt."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(following(tokens))
    return tokens[len(prompt) :]


class PlainDecoder:
    """See the module. failures: raised by calls, one after the other. seconds: that a call takes."""

    length, vocabulary = 128, VOCABULARY

    def __init__(
        self,
        slots: int = 3,
        failures: Sequence[Exception | None] = (),
        seconds: float = 0.0,
        ends: Sequence[int] = (),
    ) -> None:
        self.slots, self.ends, self.seconds = slots, ends, seconds
        self.failures = list(failures)
        self.go = threading.Event()
        self.go.set()
        self.held: list[list[int]] = [[] for _ in range(slots)]
        self.resets = self.steps = self.most = 0
        self.broken = self.closed = False

    def _call(self) -> None:
        self.go.wait(100)
        time.sleep(self.seconds)
        assert not self.broken, "what a failed call held is lost"
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            self.broken = True
            raise failure

    def prefill(self, slot: int, tokens: np.ndarray) -> np.ndarray:
        self._call()
        self.held[slot] = tokens.tolist()
        return self._logits(slot)

    def decode(self, tokens: np.ndarray, places: np.ndarray) -> np.ndarray:
        self._call()
        self.steps += 1
        self.most = max(self.most, int((places > 0).sum()))
        for slot, (token, place) in enumerate(zip(tokens, places)):
            self.held[slot][int(place) :] = [int(token)]
        return np.stack([self._logits(slot) for slot in range(self.slots)])

    def _logits(self, slot: int) -> np.ndarray:
        logits = np.zeros(VOCABULARY, np.float32)
        logits[following(self.held[slot])] = 5.0
        return logits

    def reset(self) -> None:
        self.resets += 1
        self.broken = False
        self.held = [[] for _ in range(self.slots)]

    def close(self) -> None:
        self.closed = True
