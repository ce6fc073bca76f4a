"""Run a compiled program for those who ask, one call after the other, in a thread of its own.

A call under which a rank fails is made once more, on ranks that are started anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from meshweave.api.program import Program
from meshweave.errors import RankError
from meshweave.serving.work import MOST_LOST, Job, JobQueue

Arrays: TypeAlias = Sequence[np.ndarray[Any, Any]]


@dataclass
class ArrayJob(Job):
    """Hold the arguments of a call. answer: called once, by the thread that runs the program."""

    arguments: Arrays
    answer: Callable[[Arrays | Exception], None]

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        self.answer(error)


class ArrayService:
    """Run a program for the jobs of a queue. lost: called with the error each time that a rank fails."""

    def __init__(self, program: Program, most: int, lost: Callable[[RankError], None]) -> None:
        self.program, self._lost = program, lost
        self.queue: JobQueue[ArrayJob] = JobQueue(most)
        self.running = 0
        self._thread = threading.Thread(target=self._work, name="meshweave-arrays", daemon=True)
        self._thread.start()

    def submit(self, job: ArrayJob) -> None:
        """Let a job wait its turn. Raises QueueFullError and ServerClosedError."""
        self.queue.put([job])

    def close(self) -> None:
        """End after the call that runs; the program is closed too."""
        self.queue.close()
        self._thread.join()

    def _work(self) -> None:
        try:
            self._serve()
        finally:  # here, for ranks that this thread has started may end with it
            self.program.close()

    def _serve(self) -> None:
        while (job := self.queue.take()) is not None:
            self.running = 1
            try:
                job.answer(self.program(*job.arguments))
            except RankError as error:
                self._lost(error)
                self._again(job, error)
            except Exception as error:  # whoever asked is told, and the next job is run
                job.fail(error)
            self.running = 0

    def _again(self, job: ArrayJob, error: RankError) -> None:
        job.lost += 1
        if job.lost > MOST_LOST:
            job.fail(error)
        else:
            self.queue.put_back([job])
