"""Find the ranks that hold the others up, and say in words what each does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from meshweave.bundle import OpInfo
from meshweave.runtime.flight.processes import DEAD
from meshweave.runtime.flight.records import (
    DEVICE,
    ELSEWHERE,
    IDLE,
    LEFT,
    RETURNED,
    RUNNING,
    TOLD,
    RankRecord,
)

Ops = Callable[[int], OpInfo]
"""Return the op of a number, as `Manifest.op` does."""


def stragglers(ranks: Sequence[RankRecord]) -> list[RankRecord]:
    """Return the ranks that the others wait for; none where nobody waits.

    These are the ranks that have left before the call that others are in; else those whose process is stopped or dead;
    else those that wait for none or have not made the call that others are in; else, of those in collectives, those
    that have started the fewest.
    """
    here = [rank for rank in ranks if rank.state != ELSEWHERE]
    newest = max((rank.calls for rank in here), default=0)
    if left := [rank for rank in here if rank.state == LEFT and rank.calls < newest]:
        return left
    if gone := [rank for rank in here if rank.cannot_go_on]:
        return gone
    behind = [r for r in here if not r.waits or (r.state == RETURNED and r.calls < newest)]
    if behind:
        return behind
    inside = [rank for rank in here if rank.in_collective]
    fewest = min((rank.count for rank in inside), default=0)
    return [rank for rank in inside if rank.count == fewest] or [
        rank for rank in here if rank.state == DEVICE
    ]


def account(ranks: Sequence[RankRecord], op: Ops) -> str:
    """Say in one line where all ranks are, those first that hold the others up."""
    guilty = stragglers(ranks)
    others = [rank for rank in ranks if rank not in guilty]
    texts = _texts(ranks, op)
    return "; ".join(part for part in (_together(guilty, texts), _together(others, texts)) if part)


def where(rank: RankRecord, op: Ops) -> str:
    """Say what a rank does: `is in all_reduce[tp] f32 64x96 at mlp.mlir:7:8`, `is stopped, last seen: ...`."""
    place = _place(rank, op)
    if not rank.cannot_go_on:
        return place
    ending = f" ({rank.ending})" if rank.ending else ""
    what = f"died{ending}" if rank.process == DEAD else "is stopped"
    return f"{what}, last seen: {place.removeprefix('is ')}"


def _place(rank: RankRecord, op: Ops) -> str:
    if rank.state in _PLACES:
        return _PLACES[rank.state]
    if rank.state == DEVICE:
        last = f", which was given all up to {op(rank.op)}" if rank.op else ""
        return f"waits for its device{last}"
    if rank.in_collective:
        return f"is in {op(rank.op)}"
    if rank.op == 0:
        return "computes, before the first collective"
    return f"computes, after {op(rank.op)}"


_PLACES = {
    RETURNED: "has returned", IDLE: "has not begun", ELSEWHERE: "is on another host",
    LEFT: "has left the job", TOLD: "has ended the job",
}  # fmt: skip


def _texts(ranks: Sequence[RankRecord], op: Ops) -> dict[int, str]:
    """Say where each rank is, also in which call or in which round of a loop where ranks differ in that."""
    texts = {rank.rank: where(rank, op) for rank in ranks}
    begun = [rank for rank in ranks if rank.state in (RUNNING, RETURNED, DEVICE)]
    rounds = Counter(op for op, _ in {(r.op, r.count) for r in begun if r.in_collective})
    for rank in begun:
        if len({each.calls for each in begun}) > 1:
            texts[rank.rank] += f" (call {rank.calls})"
        elif rank.in_collective and rounds[rank.op] > 1:
            texts[rank.rank] += f" (collective {rank.count})"
    return texts


def _together(ranks: Sequence[RankRecord], texts: dict[int, str]) -> str:
    """Say where ranks are, those at the same place together: `ranks 0, 1 and 3 are in all_reduce...`."""
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(texts[rank.rank], []).append(rank.rank)
    parts = []
    for place, members in places.items():
        if len(members) > 1:
            for one, many in _PLURALS:
                if place.startswith(one):
                    place = many + place[len(one) :]
        parts.append(f"{named(members)} {place}")
    return "; ".join(parts)


_PLURALS = (
    ("is ", "are "), ("has ", "have "), ("computes", "compute"),
    ("waits for its device", "wait for their devices"),
)  # fmt: skip


def named(ranks: Sequence[int]) -> str:
    """Name ranks: `rank 2`, `ranks 0, 1 and 3`; many ranks are counted."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:6]))} and {len(ranks) - 6} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
