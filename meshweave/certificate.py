"""Define the certificate of a compiled program: what a check apart from the passes has proven of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Certificate:
    """Say which results of a program of one rank are proven to be those of the whole program. Empty: not checked.

    checker:  what proved them, with its version.
    whole:    SHA-256 of the bytecode of the whole program, as it is before layouts are chosen.
    local:    the same of the program of one rank.
    proven:   names of the results that are.
    unproven: for each of the others its name, its place and the reason.
    """

    checker: str = ""
    whole: str = ""
    local: str = ""
    proven: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        if not self.checker:
            return "not checked against the whole program"
        count = len(self.proven) + len(self.unproven)
        rest = "".join(f"\n  unproven: {line}" for line in self.unproven)
        return (
            f"{len(self.proven)} of {count} results proven to be those of the whole program{rest}"
        )


UNCHECKED = Certificate()
"""The certificate of a program of which nothing is proven."""
