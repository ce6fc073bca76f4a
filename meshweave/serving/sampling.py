"""Pick the next token of a sequence from its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshweave.errors import MeshweaveError


@dataclass(frozen=True)
class Sampling:
    """Say how tokens are picked. temperature: 0 takes the largest. top_p: of the likeliest that together have this."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None


def pick(logits: np.ndarray[Any, Any], how: Sampling, random: np.random.Generator) -> int:
    """Return a token. Raises MeshweaveError for logits that are NaN.

    >>> pick(np.array([0.0, 3.0, 1.0]), Sampling(temperature=0), np.random.default_rng(0))
    1
    """
    best = int(np.argmax(logits))  # a NaN, if there is one
    if np.isnan(logits[best]):
        raise MeshweaveError("the model gave NaN for the next token")
    if how.temperature == 0:
        return best
    wide = (np.asarray(logits, np.float64) - float(logits[best])) / how.temperature
    weights = np.exp(wide)
    if how.top_p < 1:
        weights[~_likeliest(weights, how.top_p)] = 0
    return int(random.choice(len(weights), p=weights / weights.sum()))


def _likeliest(weights: np.ndarray[Any, Any], part: float) -> np.ndarray[Any, Any]:
    """Mark the fewest weights that together are at least a part of the sum; the largest always."""
    order = np.argsort(-weights, kind="stable")
    before = np.concatenate([[0.0], np.cumsum(weights[order])[:-1]])
    kept = np.zeros(len(weights), bool)
    kept[order[before < part * weights.sum()]] = True
    kept[order[0]] = True
    return kept
