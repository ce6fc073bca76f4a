"""Run the threads of a block, in an order that a seed draws, and answer what they stop for.

Threads run one after another, each until it stops: at a barrier, a copy or something that a warp does
together. So a thread that runs ahead is far ahead, and what is not ordered differs from seed to seed.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from meshweave.simulator.witness import warp, warpgroup
from meshweave.simulator.witness.copies import Copies, Copy
from meshweave.simulator.witness.fault import WitnessError
from meshweave.simulator.witness.fibers import ASKEW, ENDLESS, FINISHED, OUTSIDE, UNDIVIDED, Fibers

Array = np.ndarray
_OVERTAKE = 1 / 16  # how often another warp goes ahead
_COPY, _COMMIT = r"cp\.async\.c[ag]\.shared\.global\.(4|8|16)(\.s)?", r"cp\.async\.commit\.group"
_WAIT, _WAIT_ALL = r"cp\.async\.wait\.group", r"cp\.async\.wait\.all"
_BARRIER = r"barrier\.cta\.(sync|arrive)(\.aligned)?\.(all|count)"
_MASKED = r"shfl\.sync\.(up|down|bfly|idx)\.[if]32|bar\.warp\.sync"
_ALIGNED = (
    r"ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\.b16\.p3"
    r"|mma\.(m16n8k16\.row\.col\.(bf16|f32\.f32)|m16n8k8\.row\.col\.tf32)"
)
_PRODUCT = r"wgmma\.mma_async\.sync\.aligned\.m64n\d+k16\.f32\.(bf16\.bf16|f16\.f16)(\.by(\.\d)+)?"
_PRODUCTS = r"wgmma\.(commit|wait)_group\.sync\.aligned"
ANSWERED = (_COPY, _COMMIT, _WAIT, _WAIT_ALL, _BARRIER, _MASKED, _ALIGNED, _PRODUCT, _PRODUCTS)


@dataclass
class Barrier:
    """Count who has come to a numbered barrier."""

    expected: int = 0
    come: int = 0
    waiting: list[int] = field(default_factory=list)


@dataclass
class BlockRun:
    """Run one block.

    resume: runs threads, given their records. spaces: where memory begins and ends. manner: a number; any
    three that follow each other let copies land late, some at once, all at once, and warps run together
    and apart.
    """

    name: str
    where: str
    lines: list[str]
    requests: list[str]
    count: int
    fibers: Fibers
    resume: Callable[[Array], None]
    spaces: Array
    manner: int
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.why = self.fibers.why[: self.count]
        self.slots = self.fibers.slots[: self.count]
        # The request that a thread waits with; FINISHED; 0: it can run.
        self.resting = np.zeros(self.count, np.int64)
        self.barriers: dict[int, Barrier] = {}
        self.copies: dict[int, Copies] = {}
        self.products: dict[int, warpgroup.PendingProducts] = {}
        # How many of the copies land at once; whether warps run together, or one ahead of the others.
        self.at_once, self.ahead = (0.0, 0.5, 1.0)[self.manner % 3], self.manner % 2 == 0
        self.ranking = self.rng.permutation(-(-self.count // warp.WARP))

    def run(self) -> None:
        """Run all threads to their ends. Raises WitnessError: what a thread did, or that they wait for ever."""
        while True:
            ready = np.flatnonzero(self.resting == 0)
            if not len(ready):
                break
            chosen = self._chosen(ready)
            self.resume(self.fibers.addresses[chosen])
            stopped = np.sort(chosen)
            why = self.why[stopped]
            if (faults := stopped[why <= OUTSIDE]).size:
                raise self._fault(int(faults[0]))
            self.resting[stopped] = why
            for request in np.unique(why[why > 0]):
                self._asked(self.requests[request - 1], stopped[why == request])
            for each in stopped[why == FINISHED]:
                self._end(int(each))
            self._meet()
        if (self.resting != FINISHED).any():
            raise self._stuck()

    def error(self, thread: int, what: str) -> WitnessError:
        """Return an error of a thread."""
        return WitnessError(f"{self.name}: thread {thread} of {self.where}: {what}")

    def _chosen(self, ready: Array) -> Array:
        """Return the threads that run next: those of some warps, in any order."""
        warps = np.unique(ready // warp.WARP)
        if self.ahead:
            if self.rng.random() < _OVERTAKE:
                self.ranking = self.rng.permutation(self.ranking)
            some = warps[[np.argmax(self.ranking[warps])]]
        else:
            some = self.rng.permutation(warps)[: self.rng.integers(1, len(warps) + 1)]
        return self.rng.permutation(ready[np.isin(ready // warp.WARP, some)])

    def _fault(self, thread: int) -> WitnessError:
        line, address, size = (int(v) for v in self.fibers.records[thread, 8:11])
        why = self.why[thread]
        if why == ENDLESS:
            return self.error(thread, "does not end: too many branches")
        if why == UNDIVIDED:
            return self.error(
                thread, f"a quotient that there is not: {self.lines[line].strip()[:100]}"
            )
        what = {OUTSIDE: "outside every buffer", ASKEW: "not aligned as promised"}[int(why)]
        return self.error(
            thread, f"{size} bytes at {address:#x} are {what}: {self.lines[line].strip()[:100]}"
        )

    def _stuck(self) -> WitnessError:
        thread = int(np.flatnonzero(self.resting > 0)[0])
        waiting, ended = int((self.resting > 0).sum()), int((self.resting == FINISHED).sum())
        name = self.requests[self.resting[thread] - 1]
        return self.error(
            thread, f"waits for ever at {name}: {waiting} threads wait, {ended} have ended"
        )

    def _end(self, thread: int) -> None:
        """Check that nothing is under way for a thread that has ended."""
        if (copies := self.copies.get(thread)) and copies.under_way:
            raise self.error(thread, "ends before copies have landed that it asked for (cp.async)")
        products = self.products.get(thread // warpgroup.GROUP)
        if products and products.under_way(thread // warp.WARP):
            raise self.error(thread, "ends before it has waited for its products (wgmma)")

    # Requests that one thread answers for itself.

    def _asked(self, name: str, threads: Array) -> None:
        if re.fullmatch(_BARRIER, name):
            for thread in threads:
                self._arrive(name, int(thread))
        elif name.startswith("cp.async"):
            for thread in threads:
                self._copy(name, int(thread))
            self.resting[threads] = 0

    def _arrive(self, name: str, thread: int) -> None:
        number = int(self.slots[thread, 0]) & 0xFFFFFFFF
        expected = int(self.slots[thread, 1]) & 0xFFFFFFFF if name.endswith("count") else self.count
        if number > 15 or (expected % warp.WARP and expected != self.count):
            raise self.error(thread, f"{name}: barrier {number} for {expected} threads")
        barrier = self.barriers.setdefault(number, Barrier())
        if barrier.come and barrier.expected != expected:
            raise self.error(
                thread,
                f"{name}: barrier {number} for {expected} threads, for others {barrier.expected}",
            )
        barrier.expected, barrier.come = expected, barrier.come + 1
        if ".arrive" in name:
            self.resting[thread] = 0
        else:
            barrier.waiting.append(thread)
        if barrier.come == expected:
            self.resting[barrier.waiting] = 0
            del self.barriers[number]

    def _copy(self, name: str, thread: int) -> None:
        mine = self.copies.setdefault(thread, Copies())
        values = [int(v) for v in self.slots[thread, :3]]
        if name == "cp.async.commit.group":
            mine.close()
        elif name == "cp.async.wait.group":
            mine.wait(values[0], self.rng)
        elif name == "cp.async.wait.all":
            mine.close()
            mine.wait(0, self.rng)
        else:
            found = re.fullmatch(_COPY, name)
            assert found is not None
            size = int(found[1])
            nbytes = min(size, values[2] & 0xFFFFFFFF) if found[2] else size
            self.checked(thread, name, values[0], size, size)
            if nbytes:
                self.checked(thread, name, values[1], nbytes, size)
            kept = None if self.rng.random() < 0.5 else ctypes.string_at(values[1], nbytes)
            copy = Copy(values[0], values[1], nbytes, size, kept)
            if self.rng.random() < self.at_once:
                copy.land()
            else:
                mine.last.append(copy)

    def checked(self, thread: int, what: str, address: int, nbytes: int, align: int) -> None:
        """Raise WitnessError where bytes are outside every buffer, or not aligned."""
        within = (self.spaces[:, 0] <= address) & (address + nbytes <= self.spaces[:, 1])
        if not within.any():
            raise self.error(
                thread, f"{what}: {nbytes} bytes at {address:#x} are outside every buffer"
            )
        if address % align:
            raise self.error(thread, f"{what}: {address:#x} is no multiple of {align}")

    # Requests that threads answer together.

    def _meet(self) -> None:
        """Answer what whole warps, and groups of four, have come to."""
        for request in np.unique(self.resting[self.resting > 0]):
            name = self.requests[request - 1]
            if re.fullmatch(_MASKED, name):
                self._meet_masked(name, int(request))
            elif re.fullmatch(f"{_ALIGNED}|{_PRODUCTS}", name):
                self._meet_whole(name, int(request), warp.WARP)
            elif re.fullmatch(_PRODUCT, name):
                self._meet_whole(name, int(request), warpgroup.GROUP)

    def _meet_whole(self, name: str, request: int, size: int) -> None:
        if self.count % size:
            raise self.error(0, f"{name}: blocks of {self.count} threads")
        here = (self.resting == request).reshape(-1, size).all(1)
        if not here.any():
            return
        threads = np.arange(self.count).reshape(-1, size)[here]
        values = self.slots[threads]
        if name.startswith("ldmatrix"):
            found = warp.matrices_read(
                name, lambda w, n: self._rows(name, int(threads[0, 0]), w, n), values
            )
        elif re.fullmatch(_PRODUCT, name):
            found = np.stack(
                [self._multiplied(name, int(t[0]), v) for t, v in zip(threads, values)]
            )
        elif re.fullmatch(_PRODUCTS, name):
            found = values[..., :0]
            for each, value in zip(threads, values):
                self._end_products(name, int(each[0]), int(value[0, 0]))
        else:
            found = warp.multiplied(name, values)
        self._answer(threads, found)

    def _rows(self, name: str, thread: int, where: Array, nbytes: int) -> Array:
        """Read rows of shared memory."""
        base = self.fibers.shared.ctypes.data
        offsets = where.astype(np.int64) - base
        wrong = (offsets < 0) | (offsets > self.shared_bytes - nbytes) | (offsets % nbytes != 0)
        if wrong.any():
            self.checked(thread, name, int(where[wrong][0]), nbytes, nbytes)
            raise self.error(thread, f"{name}: {int(where[wrong][0]):#x} is not in shared memory")
        rows: Array = self.fibers.shared[offsets[..., None] + np.arange(nbytes)]
        return rows

    def _multiplied(self, name: str, thread: int, values: Array) -> Array:
        """Answer a product of a warpgroup, and note what it reads."""
        product = warpgroup.GroupProduct(name, values)
        if what := product.refusal():
            raise self.error(thread, f"{name}: {what}")
        places = product.places()
        if (last := max(int(where.max()) for where in places)) >= self.shared_bytes:
            raise self.error(thread, f"{name}: byte {last} of {self.shared_bytes} of shared memory")
        read = [self.fibers.shared[where] for where in places]
        group = self.products.setdefault(thread // warpgroup.GROUP, warpgroup.PendingProducts())
        group.read[-1].extend(zip(places, read))
        return product.result(read)

    def _end_products(self, name: str, thread: int, but: int) -> None:
        """Close a group of products, or wait for all but some: what they read must be there still."""
        group = self.products.setdefault(thread // warpgroup.GROUP, warpgroup.PendingProducts())
        number = thread // warp.WARP
        if ".commit" in name:
            group.close(number)
        elif group.changed(number, but, self.fibers.shared):
            raise self.error(
                thread, f"{name}: what a product reads was written before this wait for it"
            )

    @property
    def shared_bytes(self) -> int:
        """Return how many bytes of shared memory the block has: the first space is that."""
        return int(self.spaces[0, 1] - self.spaces[0, 0])

    def _meet_masked(self, name: str, request: int) -> None:
        """Answer the warps in which all lanes that a mask names have come with that mask."""
        padded = -(-self.count // warp.WARP) * warp.WARP
        here = np.zeros(padded, bool)
        here[: self.count] = self.resting == request
        masks = np.zeros(padded, np.uint64)
        masks[: self.count] = self.slots[:, 0] & np.uint64(0xFFFFFFFF)
        exists = np.arange(padded) < self.count
        bit = np.uint64(1) << np.arange(warp.WARP, dtype=np.uint64)
        for k, (come, mask, real) in enumerate(
            zip(*(x.reshape(-1, warp.WARP) for x in (here, masks, exists)))
        ):
            for one in np.unique(mask[come]):
                named, same = (one & bit != 0) & real, come & (mask == one)
                if (same & ~named).any():
                    thread = k * warp.WARP + int(np.argmax(same & ~named))
                    raise self.error(thread, f"{name}: its mask {int(one):#x} does not name itself")
                if (named & ~same).any():
                    continue
                self._answer_warp(name, k, same)

    def _answer_warp(self, name: str, number: int, lanes: Array) -> None:
        threads = number * warp.WARP + np.flatnonzero(lanes)
        if name == "bar.warp.sync":
            self.resting[threads] = 0
            return
        values = np.zeros((1, warp.WARP, 4), np.uint64)
        values[0, lanes] = self.slots[threads, :4]
        found = warp.shuffled(name, values)
        self._check_sources(name, threads, values, lanes)
        self._answer(threads, found[0, lanes])

    def _check_sources(self, name: str, threads: Array, values: Array, lanes: Array) -> None:
        """Raise WitnessError where a lane asks for the value of one that has not come."""
        numbered = values.copy()
        numbered[..., 1] = np.arange(warp.WARP)
        source = warp.shuffled(name, numbered)[0, :, 0].astype(np.int64)
        missing = lanes & ~lanes[source]
        if missing.any():
            lane = int(np.argmax(missing))
            thread = int(threads[0]) // warp.WARP * warp.WARP + lane
            raise self.error(
                thread, f"{name}: lane {int(source[lane])}, whose value it asks for, takes no part"
            )

    def _answer(self, threads: Array, found: Array) -> None:
        self.slots[threads, : found.shape[-1]] = found
        self.resting[threads] = 0
