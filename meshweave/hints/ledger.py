"""Keep the ledger of hints, as plain values: what became of each hint for each op.

It has a pair (hint, op) for every hint and every op in its region, and closes when each pair has one outcome.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshweave.errors import MeshweaveError
from meshweave.hints.keys import KEYS, Hint, HintError, resolve

HONOURED, SUPERSEDED, UNSUPPORTED = "honoured", "superseded", "unsupported"
INFEASIBLE, DEAD = "infeasible", "dead"
OUTCOMES = (INFEASIBLE, UNSUPPORTED, SUPERSEDED, HONOURED, DEAD)
"""The possible outcomes of a hint for an op. Where the copies of an op differ, the first of these holds."""


@dataclass(frozen=True)
class Outcome:
    """State what became of a hint for an op, why, and what the user can do about it.

    allow: the bytes that a budget must allow to be kept; 0: none is known. unchanged: a budget is kept in one piece, in
    which nothing runs again.
    """

    kind: str
    reason: str = ""
    remedy: str = ""
    allow: int = 0
    unchanged: bool = False


def budget_kept(nbytes: int, limit: int, way: str, unchanged: bool = False) -> Outcome:
    """Return the outcome of a budget of `limit` bytes in a region that takes `nbytes` in a way, `one piece`."""
    return Outcome(HONOURED, f"{way}: {nbytes:,} bytes of {limit:,}", unchanged=unchanged)


def budget_too_small(nbytes: int, reason: str) -> Outcome:
    """Return the outcome of a budget that nothing keeps, in a region that takes `nbytes`."""
    return Outcome(INFEASIBLE, reason, f"allow {nbytes} bytes", allow=nbytes)


@dataclass(frozen=True)
class StatedHint:
    """Hold a hint with its number and that of its region (-1: a compile option)."""

    number: int
    region: int
    hint: Hint


@dataclass(frozen=True)
class Refusal:
    """Say of a hint that it is not obeyed, and why."""

    hint: Hint
    outcome: Outcome

    def __str__(self) -> str:
        """Return it on one line, `slice = "t=8" (required) is infeasible: why; what would do`."""
        outcome = self.outcome
        cure = f"; {outcome.remedy}" if outcome.remedy else ""
        why = f": {outcome.reason}" if outcome.reason else ""
        return f"{self.hint} ({self.hint.strength}) is {outcome.kind}{why}{cure}"


class RefusedHintError(HintError):
    """Report a required hint that cannot be obeyed. refusal: what the message says, as values."""

    def __init__(
        self, message: str, location: str | None = None, refusal: Refusal | None = None
    ) -> None:
        super().__init__(message, location)
        self.refusal = refusal


@dataclass(frozen=True)
class Op:
    """Hold an op in a region: its number, name, place, and the number of the innermost region around it."""

    number: int
    name: str
    where: str
    region: int


@dataclass(frozen=True)
class Region:
    """Describe a region: its number, place, its parent (-1: none), and whether a pass has applied and dissolved it.

    slices, order, width: how it runs once it is applied.
    """

    number: int
    where: str
    parent: int = -1
    applied: bool = False
    slices: int = 1
    order: str = "strict"
    width: int = 1


@dataclass(frozen=True)
class Entry:
    """Hold a line of the ledger: the hint, the op, and what became of the two."""

    location: str
    key: str
    value: str
    strength: str
    op: str
    op_location: str
    outcome: str
    reason: str
    remedy: str

    def line(self) -> str:
        """Return the line as text: `file:3:8: slice = "t=8" on linalg.matmul at file:5:10: honoured (why); remedy`."""
        why = f" ({self.reason})" if self.reason else ""
        cure = f"; {self.remedy}" if self.remedy else ""
        head = f'{self.location}: {self.key} = "{self.value}" on {self.op} at {self.op_location}'
        return f"{head}: {self.outcome}{why}{cure}"


@dataclass
class Ledger:
    """Record every hint, every op it is about, and what became of each pair."""

    regions: list[Region]
    said: list[StatedHint]
    ops: list[Op]
    outcomes: dict[tuple[int, int], Outcome]

    @staticmethod
    def empty() -> "Ledger":
        """Return a ledger without hints and ops."""
        return Ledger([], [], [], {})

    def chain(self, region: int) -> list[int]:
        """Return the numbers of `region` and those around it, outermost first."""
        found: list[int] = []
        while region >= 0:
            found.append(region)
            region = self.regions[region].parent
        return found[::-1]

    def hints_of(self, op: int) -> list[StatedHint]:
        """Return the hints that concern an op: compile options, then those of its regions, outermost first."""
        chain = [-1, *self.chain(self.ops[op].region)]
        return [s for number in chain for s in self.said if s.region == number]

    def effective(self, region: int) -> dict[str, StatedHint]:
        """Return the hint of each key that holds in `region`. Raises HintError where two contradict."""
        chain = [-1, *self.chain(region)]
        found = [
            s
            for number in chain
            for s in self.said
            if s.region == number and (KEYS[s.hint.key].inherited or number == region)
        ]
        resolved = resolve([s.hint for s in found], [chain.index(s.region) for s in found])
        return {key: found[i] for key, i in resolved.effective.items()}

    def pairs(self) -> list[tuple[int, int]]:
        """Return (hint, op) for every hint and every op that it is about."""
        return [(s.number, op.number) for op in self.ops for s in self.hints_of(op.number)]

    def close(self, said: int, op: int, outcome: Outcome) -> None:
        """Record what became of a pair. An outcome recorded for another copy of the op stays if it weighs more."""
        old = self.outcomes.get((said, op))
        if old is None or OUTCOMES.index(outcome.kind) < OUTCOMES.index(old.kind):
            self.outcomes[said, op] = outcome

    def is_closed(self, said: int, op: int, kind: str) -> bool:
        """Tell whether the outcome recorded for a pair is of this kind."""
        outcome = self.outcomes.get((said, op))
        return outcome is not None and outcome.kind == kind

    def open_pairs(self) -> list[tuple[StatedHint, Op]]:
        """Return the pairs without an outcome."""
        return [(self.said[s], self.ops[o]) for s, o in self.pairs() if (s, o) not in self.outcomes]

    def apply_region(self, number: int, slices: int = 1, width: int = 1) -> None:
        """Record that a pass has applied and dissolved the region: it runs in `slices`, `width` of them in flight."""
        old = self.regions[number]
        order = "strict" if slices == 1 else "dfs" if width < slices else "bfs"
        self.regions[number] = Region(old.number, old.where, old.parent, True, slices, order, width)

    def name(self, region: int) -> str:
        """Return the name of a region: its bundle, else its number."""
        bundles = [s.hint.value for s in self.said if (s.region, s.hint.key) == (region, "bundle")]
        return bundles[0] if bundles else f"region{region}"

    def entries(self) -> tuple[Entry, ...]:
        """Return the lines of the ledger, op by op. Raises MeshweaveError while a pair is open."""
        if left := self.open_pairs():
            said, op = left[0]
            raise MeshweaveError(
                f"the ledger does not close: nothing is known of {said.hint} on {op.name}", op.where
            )
        found = []
        for s, o in self.pairs():
            hint, op, outcome = self.said[s].hint, self.ops[o], self.outcomes[s, o]
            row = (hint.where, hint.key, hint.value, hint.strength, op.name, op.where)
            found.append(Entry(*row, outcome.kind, outcome.reason, outcome.remedy))
        return tuple(found)

    def report(self) -> str:
        """Return the ledger as text: a line per pair, then a count of each outcome."""
        entries = self.entries()
        counts = [
            f"{n} {kind}" for kind in OUTCOMES if (n := sum(e.outcome == kind for e in entries))
        ]
        total = f"{len(entries)} pairs of hint and op: {', '.join(counts) or 'none'}"
        return "\n".join([*(entry.line() for entry in entries), total]) + "\n"

    def rows(self) -> list[dict[str, str]]:
        """Return the ledger for JSON.

        Scripts rely on the field names hint, op, location, outcome and reason.
        """
        return [
            {
                "hint": f"{e.key}={e.value}",
                "op": e.op,
                "location": e.op_location,
                "outcome": e.outcome,
                "reason": e.reason,
                "key": e.key,
                "value": e.value,
                "strength": e.strength,
                "region": e.location,
                "remedy": e.remedy,
            }
            for e in self.entries()
        ]

    def to_value(self) -> dict[str, Any]:
        """Return the ledger as plain JSON values; `from_value` reads them back."""
        return {
            "regions": [
                {"where": r.where, "parent": r.parent, "applied": int(r.applied)}
                | ({"slices": r.slices, "order": r.order, "width": r.width} if r.applied else {})
                for r in self.regions
            ],
            "hints": [
                {
                    "region": s.region,
                    "key": s.hint.key,
                    "value": s.hint.value,
                    "strength": s.hint.strength,
                    "where": s.hint.where,
                }
                for s in self.said
            ],
            "ops": [{"name": o.name, "where": o.where, "region": o.region} for o in self.ops],
            "outcomes": [
                {"hint": s, "op": o, "is": x.kind, "reason": x.reason}
                | ({"remedy": x.remedy} if x.remedy else {})
                | ({"allow": x.allow} if x.allow else {})
                | ({"unchanged": 1} if x.unchanged else {})
                for (s, o), x in sorted(self.outcomes.items())
            ],
        }

    @staticmethod
    def from_value(value: Mapping[str, Any]) -> "Ledger":
        """Read what `to_value` returned. Raises HintError for anything else."""
        try:
            regions = [
                Region(
                    *(i, r["where"], r["parent"], bool(r["applied"])),
                    *(r.get("slices", 1), r.get("order", "strict"), r.get("width", 1)),
                )
                for i, r in enumerate(value["regions"])
            ]
            said = [
                StatedHint(
                    i, h["region"], Hint.make(h["key"], h["value"], h["strength"], h["where"])
                )
                for i, h in enumerate(value["hints"])
            ]
            ops = [Op(i, o["name"], o["where"], o["region"]) for i, o in enumerate(value["ops"])]
            outcomes = {
                (x["hint"], x["op"]): Outcome(
                    *(x["is"], x["reason"], x.get("remedy", "")),
                    *(x.get("allow", 0), bool(x.get("unchanged", 0))),
                )
                for x in value["outcomes"]
            }
        except (KeyError, TypeError) as error:
            raise HintError(f"hint.ledger is not what hint-apply writes: {error}") from None
        ledger = Ledger(regions, said, ops, outcomes)
        if not _sound(ledger):
            raise HintError("hint.ledger is not what hint-apply writes: a number is out of range")
        return ledger


def _sound(ledger: Ledger) -> bool:
    """Tell whether all numbers name something, parents come before children, and all outcomes have known kinds."""
    regions, said, ops = len(ledger.regions), len(ledger.said), len(ledger.ops)
    return (
        all(-1 <= r.parent < r.number for r in ledger.regions)
        and all(-1 <= s.region < regions for s in ledger.said)
        and all(-1 <= o.region < regions for o in ledger.ops)
        and all(0 <= s < said and 0 <= o < ops for s, o in ledger.outcomes)
        and all(x.kind in OUTCOMES for x in ledger.outcomes.values())
    )
