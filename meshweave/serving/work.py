"""What waits to be computed: jobs in a queue of bounded length, and the limits of a server."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from meshweave.errors import MeshweaveError, RankError

MOST_LOST = 1
"""Failures of a rank that a job survives: it is begun again."""


@dataclass(frozen=True)
class ServerLimits:
    """Bound what a server takes on.

    queue: jobs that may wait. body: bytes of a request. seconds: that a request may take, its wait included. grace:
    seconds that requests get to finish when the server is told to stop.
    """

    queue: int = 256
    body: int = 64 << 20
    seconds: float = 120.0
    grace: float = 30.0


class QueueFullError(MeshweaveError):
    """Report that no more jobs may wait."""


class ServerClosedError(MeshweaveError):
    """Report that a server takes no more jobs, or ended before this one was done."""


class TookTooLongError(MeshweaveError):
    """Report a request that was not done in the time that one may take."""


@dataclass
class Job:
    """Hold one piece of work. given_up: nobody waits for it any more. lost: how often a rank failed under it."""

    given_up: bool = field(default=False, init=False)
    lost: int = field(default=0, init=False)

    def fail(self, error: Exception) -> None:
        """Tell who waits that the job failed. Called by the thread that works."""
        raise NotImplementedError


Kind = TypeVar("Kind", bound=Job)


class JobQueue(Generic[Kind]):
    """Hand jobs from those who ask to the thread that works, in order.

    >>> queue = JobQueue(1)
    >>> queue.put([Job()])
    >>> queue.take().given_up
    False
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._jobs: deque[Kind] = deque()
        self._changed = threading.Condition()
        self.closed = False

    def __len__(self) -> int:
        return len(self._jobs)

    def put(self, jobs: Sequence[Kind]) -> None:
        """Let jobs wait: all of them or none. Raises QueueFullError and ServerClosedError."""
        with self._changed:
            if self.closed:
                raise ServerClosedError("the server is stopping")
            if len(self._jobs) + len(jobs) > self.most:
                raise QueueFullError(
                    f"the queue is full: {len(self._jobs)} wait, {len(jobs)} more are over {self.most}"
                )
            self._jobs.extend(jobs)
            self._changed.notify()

    def put_back(self, jobs: Sequence[Kind]) -> None:
        """Let jobs that were begun be the next ones, beyond the limit too."""
        with self._changed:
            self._jobs.extendleft(reversed(jobs))
            self._changed.notify()

    def take(self, wait: bool = True) -> Kind | None:
        """Return the next job that somebody waits for. None: there is none, or, with `wait`, the queue was closed."""
        with self._changed:
            while True:
                while self._jobs:
                    job = self._jobs.popleft()
                    if not job.given_up:
                        return job
                if not wait or self.closed:
                    return None
                self._changed.wait()

    def close(self) -> None:
        """Take no more jobs, and fail those that wait."""
        with self._changed:
            self.closed = True
            left, self._jobs = self._jobs, deque()
            self._changed.notify_all()
        for job in left:
            job.fail(ServerClosedError("the server has stopped"))


class JobService(Generic[Kind]):
    """Do the jobs of a queue in a thread of its own, from `start` on; what it runs on is released there at the end.

    most: jobs that may wait. lost: called with the error each time that a rank fails. release: called by the thread,
    for ranks that it has started may end with it.
    """

    def __init__(
        self, most: int, lost: Callable[[RankError], None], release: Callable[[], None]
    ) -> None:
        self.queue: JobQueue[Kind] = JobQueue(most)
        self._lost, self._release = lost, release
        self._thread = threading.Thread(target=self._work, name="meshweave-jobs", daemon=True)

    def start(self) -> None:
        """Begin with the jobs."""
        self._thread.start()

    def close(self) -> None:
        """End: what runs is brought to an end, and jobs that wait fail."""
        self.queue.close()
        self._thread.join()

    def _work(self) -> None:
        try:
            self._serve()
        finally:
            self._release()

    def _serve(self) -> None:
        """Do the jobs until the queue is closed."""
        raise NotImplementedError

    def _begin_again(self, jobs: Sequence[Kind], error: RankError) -> None:
        """Put the jobs that a failed rank had back in the queue, or fail them if that was so before."""
        for job in jobs:
            job.lost += 1
            if job.lost > MOST_LOST:
                job.fail(error)
        self.queue.put_back([job for job in jobs if job.lost <= MOST_LOST])
