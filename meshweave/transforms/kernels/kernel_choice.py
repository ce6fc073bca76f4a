"""Find what regions and options ask of kernels, op by op, and settle those hints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshweave.errors import UsageError
from meshweave.hints.fast_paths import (
    BIT_EXACT,
    DETERMINISTIC,
    KERNELS,
    REFERENCE,
    ROUNDING,
    TOL,
    Choice,
    FastPath,
    known,
)
from meshweave.hints.keys import REQUIRED, Hint, HintError, Numerics
from meshweave.hints.ledger import HONOURED, SUPERSEDED, Ledger, Outcome, StatedHint
from meshweave.ir.bindings import ir
from meshweave.transforms.slicing.ledger import OP, HintMarks, number, ops_met


@dataclass
class KernelRequest:
    """Hold what applies to an op.

    off:      who has switched a kernel off, by its name.
    kernels:  the hints `kernels` around it; numerics: the one that holds, None where nothing is said.
    outcomes: of those hints, by number.
    """

    off: dict[str, str] = field(default_factory=dict)
    kernels: tuple[StatedHint, ...] = ()
    numerics: StatedHint | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    @property
    def bit_exact(self) -> bool:
        """Tell whether its bits must not depend on how the program is cut."""
        return self.numerics is not None and self.numerics.hint.parsed.kind == BIT_EXACT

    @property
    def as_written(self) -> bool:
        """Tell whether every op must be computed as it is written.

        It must when bit-exact, or when `tol` is less than what reordered sums take.
        """
        if self.numerics is None:
            return False
        said = self.numerics.hint.parsed
        return self.bit_exact or (said.kind == TOL and self.within < ROUNDING[DETERMINISTIC])

    @property
    def within(self) -> float:
        """Return how far `tol` lets results move."""
        assert self.numerics is not None
        said: Numerics = self.numerics.hint.parsed
        return max(said.rtol, said.atol)

    def allows(self, name: str) -> bool:
        """Tell whether it may take this kernel."""
        return name not in self.off

    def why_not(self, name: str) -> str:
        """Say who has switched the kernel off; empty where it is on."""
        return self.off.get(name, "")


class Askings:
    """Find what applies to the ops of a module.

    An op is looked up by the number that the ledger gave it, else by the region that its location names. Raises
    HintError for a kernel that does not exist.
    """

    def __init__(self, ledger: Ledger, options: Choice) -> None:
        base = dict.fromkeys(options.disabled, "switched off for the whole program")
        unasked = [k.name for k in KERNELS.values() if not (k.default or options.allows(k.name))]
        start = {n: f'off unless asked for: kernels = "+{n}"' for n in unasked} | base
        self._ledger, self._marks = ledger, HintMarks()
        self._outside = KernelRequest(dict(start))
        self._regions = [_of_region(ledger, r.number, start, base) for r in ledger.regions]

    def __iter__(self) -> Iterator[KernelRequest]:
        """Yield the request of the ops in no region, then that of each region."""
        return iter([self._outside, *self._regions])

    def of(self, op: ir.Operation) -> KernelRequest:
        """Return what applies to an op."""
        n = number(op, OP)
        if 0 <= n < len(self._ledger.ops):
            return self.of_number(n)
        regions = [r for r in self._marks.regions(op.location) if r < len(self._regions)]
        return self._regions[max(regions)] if regions else self._outside

    def of_number(self, number: int) -> KernelRequest:
        """Return what applies to the op with this number in the ledger."""
        region = self._ledger.ops[number].region
        return self._regions[region] if region >= 0 else self._outside


def _of_region(
    ledger: Ledger, region: int, start: Mapping[str, str], base: Mapping[str, str]
) -> KernelRequest:
    """Apply outer hints first: an inner one has precedence, except over a required disable, which nothing undoes.

    start: who has switched a kernel off before; base: those of it that stay off.
    """
    asked = KernelRequest(dict(start))
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
    if asked.numerics is not None:
        _limit(asked, asked.numerics)
        asked.outcomes[asked.numerics.number] = Outcome(HONOURED, _numerics(asked))
    return asked


def _limit(asked: KernelRequest, said: StatedHint) -> None:
    """Switch off what a hint `numerics` does not allow, whoever has asked for it."""
    by = f"{said.hint} at {said.hint.where}"
    for kernel in KERNELS.values():
        if reason := _too_loose(asked, kernel):
            if kernel.name not in asked.off:
                _overruled(asked, kernel.name, f"{by} {reason}")
            asked.off.setdefault(kernel.name, f"{by} {reason}")


def _too_loose(asked: KernelRequest, kernel: FastPath) -> str:
    """Say what the numerics asked for need, where a kernel does not have it."""
    assert asked.numerics is not None
    kind = asked.numerics.hint.parsed.kind
    if asked.as_written and not kernel.suits(BIT_EXACT):
        return "needs sums in order"
    if not kernel.suits(kind, asked.within if kind == TOL else 0.0):
        return f"lets no factor be rounded: that takes tol({kernel.rounding:g}, 0)"
    return ""


def _overruled(asked: KernelRequest, name: str, by: str) -> None:
    """Settle the hints that ask for a kernel which numerics forbid."""
    for said in asked.kernels:
        if (name, True) in said.hint.parsed:
            asked.outcomes[said.number] = Outcome(SUPERSEDED, f"by {by}")


def _check(hint: Hint, name: str) -> None:
    try:
        known(name, str(hint))
        if name == REFERENCE and f"-{name}" in hint.value.split():
            raise UsageError(
                f"{hint}: {REFERENCE} is what is left when all else is off: it stays on"
            )
    except UsageError as error:
        raise HintError(error.message, hint.where) from None


def _numerics(asked: KernelRequest) -> str:
    if asked.as_written:
        return "every op as written, sums from first to last"
    assert asked.numerics is not None
    if asked.numerics.hint.parsed.kind == DETERMINISTIC:
        return "every kernel gives the same bits in every run"
    worst = max(kernel.rounding for kernel in KERNELS.values() if asked.allows(kernel.name))
    return f"every kernel rounds within {max(worst, ROUNDING[DETERMINISTIC]):g}"


def settle_asked(module: ir.Module, ledger: Ledger, asked: Askings) -> None:
    """Close the hints `kernels` and `numerics` of the ops that are there."""
    for op in ops_met(module, ledger):
        for said, outcome in asked.of_number(op).outcomes.items():
            ledger.close(said, op, outcome)
