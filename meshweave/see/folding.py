"""Find rows that come again and again, such as those of the layers of a model."""

from __future__ import annotations

import re
from collections.abc import Container, Hashable, Sequence
from typing import NamedTuple

_LONGEST = 400  # rows of a layer
_FEWEST = 4  # rows that are worth folding, all repeats together


class Repeat(NamedTuple):
    """Say that `period` rows from `start` on come `times` times, one after the other."""

    start: int
    period: int
    times: int

    @property
    def end(self) -> int:
        """Return where the rows behind them begin."""
        return self.start + self.period * self.times


def repeats(rows: Sequence[Hashable], begins: Container[int] = ()) -> list[Repeat]:
    """Return rows in runs: those that come several times, by the run that folds most, and each other row by itself.

    begins: rows where something begins, as a layer does; a run begins there if it comes several times from there on.

    >>> [tuple(each) for each in repeats("abcdcdcde")]
    [(0, 1, 1), (1, 1, 1), (2, 2, 3), (8, 1, 1)]
    """
    numbers: dict[Hashable, int] = {}
    keys = [numbers.setdefault(row, len(numbers)) for row in rows]  # quick to compare
    found, at = list[Repeat](), 0
    while at < len(keys):
        best = Repeat(at, 1, 1)
        for period in range(1, min(_LONGEST, (len(keys) - at) // 2) + 1):
            if keys[at + period] != keys[at]:
                continue
            count = _count(keys, at, period)
            folds = count > 1 and count * period >= _FEWEST
            if folds and (count - 1) * period > (best.times - 1) * best.period:
                best = Repeat(at, period, count)
        if best.times > 1:
            ahead = range(at, at + best.period)
            start = next((s for s in ahead if s in begins and _count(keys, s, best.period) > 1), at)
            found += [Repeat(row, 1, 1) for row in range(at, start)]
            best = Repeat(start, best.period, _count(keys, start, best.period))
        found.append(best)
        at = best.end
    return found


def _count(keys: Sequence[int], at: int, period: int) -> int:
    """Count how often the rows from `at` on come."""
    same = 0
    while at + same + period < len(keys) and keys[at + same] == keys[at + same + period]:
        same += 1
    return 1 + same // period


def starts(layers: Sequence[str]) -> set[int]:
    """Return where a layer begins: the first number in its name is another one than before."""
    numbers = [re.search(r"\d+", name) for name in layers]
    said = [found[0] if found else "" for found in numbers]
    return {k for k in range(1, len(said)) if said[k] and said[k] != said[k - 1]}


def unnumbered(text: str) -> str:
    """Return a text whose numbers are all alike: `layers.3.up` and `layers.4.up` are."""
    return re.sub(r"\d+", "#", text)
