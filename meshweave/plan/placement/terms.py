"""State a problem of least cost: variables with numbered choices, and a sum of tables over few of them each."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FORBIDDEN = 1e9
"""Seconds that stand for never."""

Numbers = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True)
class CostTerm:
    """Add `table[choices of the variables]`; its axes are the variables, in order and each once."""

    variables: tuple[int, ...]
    table: Numbers


@dataclass(frozen=True)
class Choices:
    """Hold a choice for each variable, its cost, and a bound that no choice is below."""

    picks: tuple[int, ...]
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """Return how much the cost may lie above the optimum, as a share of the cost; 0 where it is proven."""
        return max(0.0, 1 - self.bound / self.cost) if self.cost > self.bound else 0.0


def cost_of(picks: Sequence[int], terms: Sequence[CostTerm]) -> float:
    """Return the sum of the terms for these choices."""
    return float(sum(term.table[tuple([picks[v] for v in term.variables])] for term in terms))
