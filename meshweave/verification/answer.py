"""Say what a check found: which values are proven, which are wrong, which are neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WAY_OUT = "please report it; verify=False, or --no-verify, leaves the check out"
"""What to do where a compile is refused: the check, too, may be at fault."""


@dataclass(frozen=True)
class Finding:
    """Describe a value that is not proven.

    value: its name. place: where it is made. reason: what was expected and what is.
    """

    value: str
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.value}: {self.reason}"


@dataclass(frozen=True)
class Answer:
    """Hold the outcome of a check.

    proven: names of the results that are what the whole program says. refuted: those that are not.
    unproven: those that nothing is shown of, and why. values: how many values of the program have a known meaning.
    """

    proven: tuple[str, ...]
    refuted: tuple[Finding, ...]
    unproven: tuple[Finding, ...]
    values: int = 0

    @property
    def status(self) -> int:
        """Return the exit status of the command: 0 all proven, 1 something is refuted, 3 otherwise."""
        return 1 if self.refuted else 3 if self.unproven or not self.proven else 0

    def as_json(self) -> dict[str, Any]:
        """Return the lists as JSON has them."""
        return {
            "proven": list(self.proven),
            "refuted": [vars(f) for f in self.refuted],
            "unproven": [vars(f) for f in self.unproven],
            "values": self.values,
        }

    def __str__(self) -> str:
        if self.refuted:
            return f"refuted: {self.refuted[0]}"
        count = f"{len(self.proven)} of {len(self.proven) + len(self.unproven)} results proven"
        return count + "".join(f"\nunproven: {f}" for f in self.unproven)


def joined(answers: Sequence[Answer]) -> Answer:
    """Return the outcome of several checks as one."""
    return Answer(
        tuple([name for a in answers for name in a.proven]),
        tuple([f for a in answers for f in a.refuted]),
        tuple([f for a in answers for f in a.unproven]),
        sum(a.values for a in answers),
    )
