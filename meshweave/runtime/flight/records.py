"""Define what is known of each rank at one time, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from meshweave.runtime.flight.processes import DEAD, STOPPED

# IDLE: has not begun this call. ELSEWHERE: on a host that the board does not reach. DEVICE: waits for its device. LEFT:
# has closed the program or ended in order. TOLD: has said what went wrong, and ends the job.
IDLE, RUNNING, RETURNED, ELSEWHERE, DEVICE, LEFT, TOLD = STATES = (
    *("idle", "running", "returned", "elsewhere", "device", "left", "told"),
)  # fmt: skip


@dataclass(frozen=True)
class CollectiveRecord:
    """Describe a collective that a rank has started.

    sequence: counts the collectives of this rank, from 1; ranks that keep together count alike. op: its number in the
    program. half: "start" or "wait" of an async collective, else "". ended: whether it has ended.
    """

    sequence: int
    op: int
    half: str
    ended: bool


@dataclass(frozen=True)
class RankRecord:
    """Hold what is known of a rank.

    state:   one of STATES. op: the collective of this call that it has started last, by its number; 0 for none.
    within:  whether that has not ended. count: the collectives that it has started. calls: the calls that it has begun.
    pid:     its process, 0 where the rank is a thread. process: "alive", "stopped", "dead" or "unknown". ending: how
             it died, as far as that is known. ended: when, in milliseconds since 1970; 0: not known.
    entries: its last collectives, the oldest first.
    """

    rank: int
    state: str
    op: int = 0
    within: bool = False
    count: int = 0
    calls: int = 0
    pid: int = 0
    process: str = "unknown"
    ending: str = ""
    ended: int = 0
    entries: tuple[CollectiveRecord, ...] = ()

    @property
    def in_collective(self) -> bool:
        """Tell whether it runs and is in a collective."""
        return self.state == RUNNING and self.within

    @property
    def waits(self) -> bool:
        """Tell whether it can only wait: it is in a collective, has returned, or waits for its device."""
        return self.in_collective or self.state in (RETURNED, DEVICE)

    @property
    def cannot_go_on(self) -> bool:
        """Tell whether its process is stopped or dead, before it was done."""
        return self.process in (STOPPED, DEAD) and self.state not in (LEFT, TOLD)
