"""Put the dumps of all hosts side by side: one fault, all ranks, and who held the others up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshweave.runtime.flight.diagnosis import account, named, stragglers
from meshweave.runtime.flight.dump import Dump
from meshweave.runtime.flight.processes import ALIVE, DEAD
from meshweave.runtime.flight.records import ELSEWHERE, CollectiveRecord, RankRecord


@dataclass(frozen=True)
class Fault:
    """Hold the dumps of one fault, the oldest first.

    ranks: each as the dump of its host tells it. hosts: of each rank; empty where no dump tells of it.
    """

    dumps: tuple[Dump, ...]
    ranks: tuple[RankRecord, ...]
    hosts: tuple[str, ...]

    @property
    def stragglers(self) -> list[RankRecord]:
        """Return the ranks that held the others up."""
        return stragglers(self.ranks)

    def verdict(self) -> str:
        """Name the ranks that held the others up, and say where all were; or at what ranks went different ways."""
        return self._parting() or account(self.ranks, self.dumps[0].op)

    def sequences(self) -> list[int]:
        """Return the numbers of the collectives that any rank still knows."""
        return sorted({entry.sequence for rank in self.ranks for entry in rank.entries})

    def entries(self, sequence: int) -> dict[int, CollectiveRecord]:
        """Return what each rank says of a collective, by its number; without those that know nothing of it."""
        found = {}
        for rank in self.ranks:
            place = sequence - rank.count - 1 + len(rank.entries)
            if 0 <= place < len(rank.entries):
                found[rank.rank] = rank.entries[place]
        return found

    def _parting(self) -> str:
        """Say where ranks first started different collectives as the same one, if they did."""
        for sequence in self.sequences():
            ops: dict[tuple[int, str], list[int]] = {}
            for rank, entry in self.entries(sequence).items():
                ops.setdefault((entry.op, entry.half), []).append(rank)
            if len(ops) > 1:
                told = [
                    f"{named(who)} started {self.dumps[0].op(op)}" for (op, _), who in ops.items()
                ]
                return f"the ranks went different ways at collective {sequence}: {'; '.join(told)}"
        return ""


def faults(dumps: Iterable[Dump]) -> list[Fault]:
    """Put together what is told of each fault, the oldest first."""
    of: dict[tuple[str, str, str], list[Dump]] = {}
    for dump in sorted(dumps, key=lambda dump: dump.written):
        of.setdefault((dump.incident, dump.program, dump.mesh), []).append(dump)
    return [_fault(each) for each in of.values()]


def _fault(dumps: Sequence[Dump]) -> Fault:
    ranks, hosts = [], []
    for absent in dumps[0].ranks:
        told = [(d.ranks[absent.rank], d.host) for d in dumps]
        known = [pair for pair in told if pair[0].state != ELSEWHERE]
        rank, host = max(known, key=lambda pair: pair[0].count, default=(absent, ""))
        ranks.append(rank)
        hosts.append(host)
    first = min((r.ended for r in ranks if r.process == DEAD and r.ended), default=0)
    return Fault(tuple(dumps), tuple(before(rank, first) for rank in ranks), tuple(hosts))


def as_died(record: RankRecord, rank: int, ending: str, time: int) -> RankRecord:
    """Return the record of a rank as it was when rank `rank` died at `time`, by what is known after it.

    ending: how it ended, as far as that is known.
    """
    if record.rank == rank:
        return replace(record, process=DEAD, ending=ending, ended=time)
    return before(record, time)


def before(rank: RankRecord, time: int) -> RankRecord:
    """Return the record of a rank without its death, where that came after `time`: the launcher ended it then.

    time: in milliseconds since 1970; 0 for the death of no rank.
    """
    if time and rank.process == DEAD and rank.ended != time:
        return replace(rank, process=ALIVE, ending="", ended=0)
    return rank
