"""Tell Python's logger `meshweave` what is compiled: what, why, how long it took, and whether it was kept on disk."""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from contextlib import AbstractContextManager
from typing import TextIO

from meshweave.api.lowered import Compiled
from meshweave.frontends.python.builder import where
from meshweave.runtime.forks import new_lock

LOG = logging.getLogger("meshweave")
MANY = 16  # programs of one function or line, of which the logger warns, and again whenever they have doubled
LINES = 1024  # lines that are remembered


class _Lines:
    """Count the programs that each line of the user's code has compiled."""

    def __init__(self) -> None:
        self._lock = new_lock()
        self._lines: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def add(self, line: str, what: str) -> tuple[int, str]:
        """Count one more; return how many there are, and what the one before was."""
        with self._lock:
            count, before = self._lines.pop(line, (0, ""))
            self._lines[line] = count + 1, what
            if len(self._lines) > LINES:
                self._lines.popitem(last=False)
            return count + 1, before


_LINES = _Lines()


def tell(what: str, compiled: Compiled, why: str, own: int = 0) -> None:
    """Tell of a program, and warn of a line that has compiled many. own: how many the function itself has."""
    kept = " (kept on disk)" if compiled.program.bundle.is_kept else ""
    LOG.info(
        "%s compiled in %.0f ms%s%s", what, 1000 * compiled.seconds, kept, f": {why}" * bool(why)
    )
    line = where() or "a line"
    specs = ", ".join(map(str, compiled.lowered.specs))
    mine = f"{compiled.lowered.name}({specs})"
    count, before = _LINES.add(line, mine)
    if own < MANY <= count and count & (count - 1) == 0:
        LOG.warning(
            "%s: this line has compiled %d programs, last %s, before it %s: sizes that vary want "
            "mw.Dim or padding, and mw.jit is to be called once, outside of loops",
            *(line, count, mine, before),
        )


class log_compiles(AbstractContextManager["log_compiles"]):
    """Write a line for each program that is compiled: what, how long it took, and what was new about the call.

    file: where to; standard error by default. The lines are those of Python's logger `meshweave`, at INFO. Called alone
    it holds from now on, as a context manager until that ends.

    >>> import io
    >>> import numpy as np
    >>> import meshweave as mw
    >>> said = io.StringIO()
    >>> with mw.log_compiles(said):
    ...     y = mw.jit(lambda x: x + 1)(np.ones(3, np.float32))
    >>> said.getvalue().startswith("meshweave: <lambda> compiled in ")
    True
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._handler = logging.StreamHandler(file or sys.stderr)
        self._handler.setFormatter(logging.Formatter("meshweave: %(message)s"))
        self._level = LOG.level
        LOG.addHandler(self._handler)
        if not LOG.isEnabledFor(logging.INFO):
            LOG.setLevel(logging.INFO)

    def __exit__(self, *_: object) -> None:
        LOG.removeHandler(self._handler)
        LOG.setLevel(self._level)
