"""Run a compiled program for those who ask, one call after the other, in a thread of its own.

A call under which a rank fails is made once more, on ranks that are started anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from meshweave.api.program import Program
from meshweave.errors import RankError
from meshweave.serving.work import Job, JobService

Arrays: TypeAlias = Sequence[np.ndarray[Any, Any]]


@dataclass
class ArrayJob(Job):
    """Hold the arguments of a call. answer: called once, by the thread that runs the program."""

    arguments: Arrays
    answer: Callable[[Arrays | Exception], None]

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        self.answer(error)


class ArrayService(JobService[ArrayJob]):
    """Run a program for the jobs of a queue; `close` ends it after the call that runs, and closes the program."""

    def __init__(self, program: Program, most: int, lost: Callable[[RankError], None]) -> None:
        super().__init__(most, lost, program.close)
        self.program, self.running = program, 0
        self.start()

    def submit(self, job: ArrayJob) -> None:
        """Let a job wait its turn. Raises QueueFullError and ServerClosedError."""
        self.queue.put([job])

    def _serve(self) -> None:
        while (job := self.queue.take()) is not None:
            self.running = 1
            try:
                job.answer(self.program(*job.arguments))
            except RankError as error:
                self._lost(error)
                self._begin_again([job], error)
            except Exception as error:  # whoever asked is told, and the next job is run
                job.fail(error)
            self.running = 0
