"""Run a batch of blocks in lock-step. Threads are split where they diverge and joined again where they meet.

A *fragment* is a set of threads at one place of the code. A divergent branch splits it in two; a
`Join` at the branch's post-dominator counts who has come back and lets them go on together. So code
that all threads reach is executed by all threads at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshweave.simulator.ptx.batch import Batch
from meshweave.simulator.ptx.fault import EmulationError
from meshweave.simulator.ptx.flow import EXIT
from meshweave.simulator.ptx.grid import GridLaunch
from meshweave.simulator.ptx.kernel import CodeBlock, DecodedKernel

_TURN = 4096  # blocks of code a fragment executes before another one gets its turn


@dataclass(eq=False)
class Join:
    """Count the threads that meet again: `missing` of those in `mask` are still on their way."""

    block: int
    parent: Join | None
    mask: np.ndarray
    missing: int


@dataclass(eq=False)
class Fragment:
    """Hold `count` threads, those of `mask`, about to execute `block`."""

    block: int
    mask: np.ndarray
    count: int
    join: Join | None


@dataclass(eq=False)
class Waiting:
    """Hold a fragment at a barrier: the barrier's number, and how many threads of a block it needs (None: all)."""

    fragment: Fragment
    barrier: int
    need: int | None
    code: CodeBlock


class Machine(Batch):
    """Run the threads of a batch.

    ready: fragments that can go on; waiting: those at barriers; arrivals: for a barrier, who has arrived and gone on.
    executed: instructions, summed over threads; steps: summed over fragments.
    """

    def __init__(self, launch: GridLaunch, kernel: DecodedKernel, blocks: np.ndarray) -> None:
        super().__init__(launch, kernel, blocks)
        self.codes = kernel.codes
        self.ready: list[Fragment] = []
        self.waiting: list[Waiting] = []
        self.arrivals: dict[int, np.ndarray] = {}
        self.executed = self.steps = 0

    def run(self) -> None:
        """Execute until every thread has ended."""
        self.ready.append(Fragment(0, self.alive.copy(), self.living, None))
        while self.ready or self.waiting:
            if self.ready:
                self._advance(self.ready.pop())
            else:
                self._release()

    def finish(self) -> None:
        """Check what must be complete at the end. Raises EmulationError for copies and products without a wait."""
        if self.flights:
            flight = self.flights[0]
            what = "a cp.async that nothing waits for before the kernel ends"
            raise self.fault(flight.access.line, what, int(flight.lanes[0]))
        if self.multiplying is not None and self.multiplying.reads:
            lane = int(self.multiplying.reads[0].lanes[0])
            raise self.fault(0, "a wgmma that nothing waits for before the kernel ends", lane)

    def _enter(self, fragment: Fragment) -> None:
        self.where = True if fragment.count == self.living else fragment.mask
        self.active = None if fragment.count == self.threads else fragment.mask
        self.lanes = self.all_lanes if self.active is None else np.flatnonzero(fragment.mask)

    def _advance(self, fragment: Fragment) -> None:
        """Execute a fragment until it ends, waits, meets its join or has used up its turn."""
        self._enter(fragment)
        codes, at, join = self.codes, fragment.block, fragment.join
        meet = join.block if join is not None else None
        for _ in range(_TURN) if self.ready or self.waiting else iter(int, 1):
            if at == meet:
                assert join is not None
                return self._arrive(join, fragment.count)
            if at == EXIT:
                return self._exit(fragment.mask, fragment.count, join)
            code = codes[at]
            for handler in code.handlers:
                handler(self)
            self._count(code, fragment.count)
            if code.kind == "go":
                at = code.target
            elif code.kind == "barrier":
                fragment.block = at
                if not self._barrier(fragment, code):
                    return None
                at = code.next
            else:
                fragment.block = at
                going = self._branch(fragment, code)
                if going is None:
                    return None
                at = going
        fragment.block = at
        self.ready.insert(0, fragment)
        return None

    def _count(self, code: CodeBlock, threads: int) -> None:
        self.executed += code.length * threads
        self.steps += code.length
        if self.steps > self.launch.limit:
            raise EmulationError(
                f"no end after {self.steps} instructions; it waits for what never comes, or raise "
                "Checks.limit"
            )

    def _branch(self, fragment: Fragment, code: CodeBlock) -> int | None:
        """Return the block where the fragment goes; None when it has been split."""
        guard = self.regs[code.guard]
        if guard.size == 1:
            return code.target if bool(guard[0]) != code.negated else code.next
        taken = fragment.mask > guard if code.negated else fragment.mask & guard
        count = int(np.count_nonzero(taken))
        if count == 0:
            return code.next
        if count == fragment.count:
            return code.target
        self._split(fragment, code, taken, count)
        return None

    def _split(self, fragment: Fragment, code: CodeBlock, taken: np.ndarray, count: int) -> None:
        join = fragment.join
        sides = [
            (code.next, fragment.mask & ~taken, fragment.count - count),
            (code.target, taken, count),
        ]
        met = join is not None and join.block == code.join
        if code.join != EXIT and EXIT not in (code.next, code.target) and not met:
            join = Join(code.join, join, fragment.mask, fragment.count)
        for target, mask, threads in sides:
            if target == EXIT:
                self._exit(mask, threads, join)
            elif join is not None and target == join.block:
                self._arrive(join, threads)
            else:
                self.ready.append(Fragment(target, mask, threads, join))

    def _arrive(self, join: Join, count: int) -> None:
        join.missing -= count
        if join.missing == 0:
            self._resume(join)

    def _resume(self, join: Join) -> None:
        mask = join.mask & self.alive
        count = int(np.count_nonzero(mask))
        if count:
            self.ready.append(Fragment(join.block, mask, count, join.parent))

    def _exit(self, mask: np.ndarray, count: int, join: Join | None) -> None:
        self.alive &= ~mask
        self.living -= count
        while join is not None:  # nobody waits for them any more
            join.missing -= count
            if join.missing == 0:
                self._resume(join)
            join = join.parent

    # -- barriers

    def _barrier(self, fragment: Fragment, code: CodeBlock) -> bool:
        """Tell whether the fragment may go on at once."""
        need = self._needed(fragment, code)
        whole = self.living == self.block_threads * len(self.blocks)
        everyone = fragment.count == self.living and (
            need is None or (whole and need == self.lanes_per_block)
        )
        if everyone and not self.waiting and not self.arrivals and not code.arrive:
            self.order.meet_all()
            return True
        self._whole_warps(fragment, code)
        if code.arrive and need is None:
            raise self.fault(code.line, "bar.arrive needs a number of threads")
        for barrier, mask in self._numbers(fragment, code):
            if code.arrive:
                arrived = self.arrivals.setdefault(barrier, np.zeros(self.threads, bool))
                arrived |= mask
                self.order.arrive(mask, barrier)
            else:
                count = int(np.count_nonzero(mask))
                part = Fragment(fragment.block, mask, count, fragment.join)
                self.waiting.append(Waiting(part, barrier, need, code))
        return code.arrive

    def _needed(self, fragment: Fragment, code: CodeBlock) -> int | None:
        """Return how many threads a barrier needs, None for all."""
        if code.need is None:
            return None
        values = np.unique(self._of(fragment, code.need))
        if values.size > 1 or values[0] % 32 or values[0] == 0:
            what = f"barrier of {', '.join(map(str, values))} threads; a multiple of 32 is needed, the same for all"
            raise self.fault(code.line, what)
        return int(values[0])

    def _numbers(self, fragment: Fragment, code: CodeBlock) -> list[tuple[int, np.ndarray]]:
        """Return the barriers that a fragment comes to, each with its threads."""
        values = self._of(fragment, code.barrier)
        found = [int(value) for value in np.unique(values)]
        if len(found) == 1:
            return [(found[0], fragment.mask)]
        numbers = np.full(self.threads, -1, np.int64)
        numbers[fragment.mask] = values
        return [(number, numbers == number) for number in found]

    def _of(self, fragment: Fragment, slot: int) -> np.ndarray:
        """Return what the threads of a fragment have in a slot: one element where it is the same for all."""
        values = self.regs[slot]
        return values[fragment.mask] if values.size > 1 else values

    def _whole_warps(self, fragment: Fragment, code: CodeBlock) -> None:
        warps = fragment.mask.reshape(-1, 32)
        partial = warps.any(1) & (warps != self.alive.reshape(-1, 32)).any(1)
        if self.checks.collectives and partial.any():
            lane = int(np.flatnonzero(partial)[0]) * 32
            raise self.fault(code.line, "barrier reached by part of a warp", lane)

    def _release(self) -> None:
        """Release the threads whose barrier is complete. Raises EmulationError at a deadlock."""
        moved = False
        for barrier in sorted({waiting.barrier for waiting in self.waiting}):
            moved |= self._release_one(barrier)
        if not moved:
            raise self._deadlock()

    def _release_one(self, barrier: int) -> bool:
        here = [waiting for waiting in self.waiting if waiting.barrier == barrier]
        stays = np.zeros(self.threads, bool)
        for waiting in here:
            stays |= waiting.fragment.mask
        arrived = self.arrivals.get(barrier, np.zeros(self.threads, bool))
        present = stays | arrived
        complete = self._threads_of(present) >= self._threads_of(self.alive)
        counted = self._threads_of(present.reshape(-1, 32).any(1).repeat(32))
        for waiting in here:
            if waiting.need is not None:  # warps are counted, as 32 threads each
                blocks = np.unique(self.block_of[waiting.fragment.mask])
                complete[blocks] = counted[blocks] >= waiting.need
        going = complete[self.block_of] & present
        if not going.any():
            return False
        self.order.meet(going & stays, going & arrived, barrier)
        if barrier in self.arrivals:
            arrived &= ~going
            if not arrived.any():
                del self.arrivals[barrier]
        for waiting in here:
            self._let_go(waiting, going)
        return True

    def _threads_of(self, mask: np.ndarray) -> np.ndarray:
        """Count the threads of a mask in each block of the batch."""
        return np.bincount(self.block_of[mask], minlength=len(self.blocks))

    def _let_go(self, waiting: Waiting, going: np.ndarray) -> None:
        fragment = waiting.fragment
        mask = fragment.mask & going
        count = int(np.count_nonzero(mask))
        if count == 0:
            return
        self.waiting.remove(waiting)
        self.ready.append(Fragment(waiting.code.next, mask, count, fragment.join))
        if count < fragment.count:
            rest = fragment.mask & ~going
            left = Fragment(fragment.block, rest, fragment.count - count, fragment.join)
            self.waiting.append(Waiting(left, waiting.barrier, waiting.need, waiting.code))

    def _deadlock(self) -> EmulationError:
        first = self.waiting[0]
        block = int(self.block_of[np.argmax(first.fragment.mask)])
        parts = []
        for waiting in self.waiting:
            count = int(np.count_nonzero(waiting.fragment.mask & (self.block_of == block)))
            if count:
                where = f"ptx line {waiting.code.line}"
                parts.append(f"{count} threads at barrier {waiting.barrier} ({where})")
        lane = int(np.argmax(first.fragment.mask))
        return self.fault(
            first.code.line,
            f"deadlock: {', '.join(parts)}, and nobody else comes",
            lane,
        )
