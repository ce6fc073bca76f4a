"""Show a progress bar on the terminal during long work: its name, its stage, the share that is done."""

from __future__ import annotations

import sys
import time
from typing import Any

DELAY = 0.5  # seconds before it shows: what is quicker needs none


class Bar:
    """Show a bar until the `with` ends; call it with the name of each stage as it begins.

    stages: about how many there are. Nothing is shown if `quiet`, if standard error is no terminal, nor before DELAY
    seconds.
    """

    def __init__(self, what: str, stages: int, quiet: bool = False) -> None:
        self._what, self._stages = what, stages
        self._shown: Any = None
        self._quiet = quiet or not sys.stderr.isatty()
        self._began, self._count = time.monotonic(), 0

    def __enter__(self) -> Bar:
        return self

    def __call__(self, stage: str) -> None:
        """Begin a stage."""
        self._count += 1
        if self._quiet:
            return
        if self._shown is None:
            if time.monotonic() - self._began < DELAY:
                return
            self._start()
        done = min(self._count - 1, self._stages - 1)
        self._shown.update(
            self._shown.task_ids[0], completed=done, description=f"{self._what}: {stage}"
        )

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        self._shown = Progress(*columns, console=Console(stderr=True), transient=True)
        self._shown.add_task(self._what, total=self._stages)
        self._shown.start()
