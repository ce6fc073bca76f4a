"""What regions and options ask of kernels, op by op, and what becomes of those hints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshweave.errors import UsageError
from meshweave.fast_paths import BIT_EXACT, DETERMINISTIC, KERNELS, REFERENCE, TOL, Choice, known
from meshweave.hints import REQUIRED, Hint, HintError
from meshweave.ledger import HONOURED, SUPERSEDED, Ledger, Outcome, Said
from meshweave.transforms.hint_ledger import OP, number, ops_met, regions_marked


@dataclass
class Asked:
    """What holds for an op.

    off:      who has switched a kernel off, by its name.
    kernels:  the hints `kernels` around it; numerics: the one that holds, None where nothing is said.
    outcomes: of those hints, by number.
    """

    off: dict[str, str] = field(default_factory=dict)
    kernels: tuple[Said, ...] = ()
    numerics: Said | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    @property
    def bit_exact(self) -> bool:
        """Must its bits not depend on how the program is cut?"""
        return self.numerics is not None and self.numerics.hint.parsed.kind == BIT_EXACT

    @property
    def as_written(self) -> bool:
        """Must every op be computed as it is written: bit-exact, or within less than what reordered sums take?"""
        if self.numerics is None:
            return False
        said = self.numerics.hint.parsed
        return self.bit_exact or (said.kind == TOL and max(said.rtol, said.atol) < ROUNDING)

    def allows(self, name: str) -> bool:
        """May it take this kernel?"""
        return name not in self.off

    def why_not(self, name: str) -> str:
        """Who has switched the kernel off; empty where nobody has."""
        return self.off.get(name, "")


ROUNDING = 1e-5
"""What sums of f32 in another order may move results by, of the size of what is added. Below it ops run as written."""


class Askings:
    """What holds for the ops of a module: by the number that the ledger gave each, else by the region that its location
    says it is of. Raises HintError for a kernel that is none.
    """

    def __init__(self, ledger: Ledger, options: Choice) -> None:
        base = dict.fromkeys(options.disabled, "switched off for the whole program")
        self._ledger = ledger
        self._outside = Asked(dict(base))
        self._regions = [_of_region(ledger, r.number, base) for r in ledger.regions]

    def __iter__(self) -> Iterator[Asked]:
        """Of the ops in no region, then of each region."""
        return iter([self._outside, *self._regions])

    def of(self, op: Any) -> Asked:
        """What holds for an op."""
        n = number(op, OP)
        if 0 <= n < len(self._ledger.ops):
            return self.of_number(n)
        regions = [r for r in regions_marked(op.location) if r < len(self._regions)]
        return self._regions[max(regions)] if regions else self._outside

    def of_number(self, number: int) -> Asked:
        """What holds for the op with this number in the ledger."""
        region = self._ledger.ops[number].region
        return self._regions[region] if region >= 0 else self._outside


def _of_region(ledger: Ledger, region: int, base: Mapping[str, str]) -> Asked:
    """Outer hints first: an inner one has precedence, but for a required disable, which nothing undoes."""
    asked = Asked(dict(base))
    chain = [-1, *ledger.chain(region)]
    asked.kernels = tuple(
        s for r in chain for s in ledger.said if s.region == r and s.hint.key == "kernels"
    )
    held = dict.fromkeys(base, "")  # who holds a kernel down for good
    for said in asked.kernels:
        outcome = Outcome(HONOURED, said.hint.value)
        for name, on in said.hint.parsed:
            _check(said.hint, name)
            if on and name in held:
                by = held[name] or "switched off by an option"
                outcome = Outcome(SUPERSEDED, f"by {by}" if held[name] else by)
            elif on:
                asked.off.pop(name, None)
            else:
                asked.off[name] = f"switched off by {said.hint} at {said.hint.where}"
                if said.hint.strength == REQUIRED:
                    held[name] = f"{said.hint} at {said.hint.where}"
        asked.outcomes[said.number] = outcome
    asked.numerics = ledger.effective(region).get("numerics")
    if asked.as_written and asked.numerics is not None:
        said = asked.numerics
        for kernel in KERNELS.values():
            if not kernel.suits(BIT_EXACT):
                asked.off.setdefault(
                    kernel.name, f"{said.hint} at {said.hint.where} needs sums in order"
                )
    if asked.numerics is not None:
        asked.outcomes[asked.numerics.number] = Outcome(HONOURED, _numerics(asked))
    return asked


def _check(hint: Hint, name: str) -> None:
    try:
        known(name, str(hint))
        if name == REFERENCE and f"-{name}" in hint.value.split():
            raise UsageError(
                f"{hint}: {REFERENCE} is what is left when all else is off: it stays on"
            )
    except UsageError as error:
        raise HintError(error.message, hint.where) from None


def _numerics(asked: Asked) -> str:
    if asked.as_written:
        return "every op as written, sums from first to last"
    assert asked.numerics is not None
    if asked.numerics.hint.parsed.kind == DETERMINISTIC:
        return "every kernel gives the same bits in every run"
    return f"every kernel rounds within {ROUNDING:g}"


def settle_asked(module: Any, ledger: Ledger, asked: Askings) -> None:
    """Close the hints `kernels` and `numerics` of the ops that are there."""
    for op in ops_met(module, ledger):
        for said, outcome in asked.of_number(op).outcomes.items():
            ledger.close(said, op, outcome)
