"""Define `mw.expect`: what the programs that are called inside may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import TracebackType

from meshweave.bundle import port_bytes
from meshweave.errors import BudgetError, UsageError
from meshweave.report import Report
from meshweave.runtime.watched import WATCHERS, Watched
from meshweave.see.account import known_of, why
from meshweave.see.budget import Budget, Excess, Spent


def expect(
    *,
    bytes: int | str | None = None,
    collectives: int | str | Mapping[str, int | str] | None = None,
    peak: int | str | None = None,
    compiles: int | str | None = None,
) -> Expected:
    """Expect that the programs called in a `with` take no more than this; raise BudgetError at its end if they do.

    bytes:       what the busiest rank receives in the collectives of all calls together: `"<= 3 MiB"`, or a number.
    collectives: how often each may run in all calls together, `{"all_gather": 0}`; a number bounds all of them.
    peak:        the most that a rank holds at a time in any of the programs: inputs, results, and all between.
    compiles:    programs that are made: compiled, or read from the disk where an earlier process has compiled them.

    A number alone is the most that is allowed; `"== 2"`, `"< 3 MiB"`, `">= 1"` say otherwise. Bytes and collectives are
    those that the compiler has counted, of loops as far as their length is known. The error says for each collective
    that counts where it stands, which argument, op or constraint it is there for, and what else would do. The value of
    the `with` has what was taken: `nbytes`, `peak_bytes`, `compiles`, `collectives`.

    Raises UsageError for limits that are none.

    >>> import numpy as np
    >>> import meshweave as mw
    >>> double = mw.jit(lambda x: x + x, mesh="x=2", in_layouts="[x]", out_layouts="[x]")
    >>> with mw.expect(bytes=0, collectives={"all_gather": 0}, compiles=1) as spent:
    ...     y = double(np.ones(4, np.float32))
    >>> spent.nbytes, spent.compiles
    (0, 1)
    """
    given = {"bytes": bytes, "collectives": collectives, "peak": peak, "compiles": compiles}
    if all(value is None for value in given.values()):
        raise UsageError("expect: a limit is needed, such as bytes=0")
    return Expected(Budget.of(given, "expect"))


class Expected:
    """Count what programs take while it is entered."""

    def __init__(self, budget: Budget) -> None:
        self.budget, self.meter = budget, Meter()

    def __enter__(self) -> Spent:
        return self.meter.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.meter.stop()
        if kind is None and (found := self.budget.exceeded(self.meter.spent)):
            raise BudgetError("\n".join(self.meter.account(found)))


class Meter:
    """Listen to all calls of programs, and add up what they take."""

    def __init__(self) -> None:
        self.spent = Spent()
        self._programs: dict[int, Watched] = {}

    def start(self) -> Spent:
        """Begin to listen; return what will be filled in."""
        WATCHERS.add(self)
        return self.spent

    def stop(self) -> None:
        """Listen no more."""
        WATCHERS.remove(self)

    def compiled(self) -> None:
        """Count a program that was made."""
        self.spent.compiles += 1

    def begins(self, program: Watched) -> bool:
        """Count what a call of a program will take."""
        manifest, spent = program.bundle.manifest, self.spent
        self._programs[id(program.bundle)] = program
        spent.nbytes += sum(each.bytes for each in manifest.collectives)
        spent.collectives += Counter(each.op for each in manifest.collectives)
        ports = (*manifest.inputs, *manifest.outputs)
        spent.peak_bytes = max(spent.peak_bytes, manifest.arena_bytes + port_bytes(ports))
        return True

    def account(self, found: list[Excess]) -> list[str]:
        """Return the lines that say what was too much, and why."""
        reports: list[Report] = []
        if any(excess.what != "compiles" for excess in found):
            reports = [known_of(program.bundle) for program in self._programs.values()]
        return [line for excess in found for line in why(excess, reports)]
