"""Draw cases of a kind from a seed, batch after batch; shrink what fails; keep it as a file.

Hypothesis draws and shrinks. A case that may crash or hang runs in a fork of this process. The batches of a run have
the seeds S, S+1, ..: the seed in a kept file, given as `--seed`, draws that failure in its first batch.
"""

import contextlib
import faulthandler
import os
import pickle
import re
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hypothesis
from commands import load
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from patience import IdleClock, wait_for

MEMORY = 16 << 30
"""Bytes of address space that a case gets in a process of its own."""


class Refused(Exception):
    """Report that a case is no case: counted apart."""


class OutOfTime(BaseException):
    """End a batch from inside: the time for it is over."""


@dataclass(frozen=True)
class Kind:
    """Describe one kind of case.

    check: raises when a case goes wrong, Refused when the case asks for what cannot be had. text: what is kept.
    seconds: that a case may take in a fork of this process, of an idle machine; 0: it runs here, being pure Python, in
    a second. stays: it runs here all the same, for threads that a fork would be without. engine: what runs a case, to
    be counted by.
    lines: a case is text, from which lines can be dropped to make it smaller. batch: cases of one seed.
    """

    name: str
    cases: st.SearchStrategy[Any]
    check: Callable[[Any], None]
    text: Callable[[Any], str] = str
    seconds: int = 0
    stays: bool = False
    engine: Callable[[Any], str] | None = None
    lines: bool = False
    batch: int = 50

    def wrong(self, case: Any) -> str | None:
        """Return what is wrong with a case, None if nothing is. Raises Refused."""
        if self.seconds and not self.stays:
            return apart(lambda: self.check(case), self.seconds)
        return _here(lambda: self.check(case), self.seconds or 1.0)


@dataclass(frozen=True)
class Failure:
    """Hold a case that went wrong. seed: of its batch."""

    kind: str
    seed: int
    wrong: str
    text: str

    def keep(self, folder: Path) -> Path:
        """Write the case to the folder; return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.kind}-{self.seed}.txt"
        again = f"python -m tests.fuzz --only {self.kind} --seed {self.seed}"
        path.write_text(f"{again}\n\n{self.wrong}\n\n{self.text}\n")
        return path


def search(
    kind: Kind, seed: int, seconds: float, counts: Counter[str], shrinking: float = 60.0
) -> list[Failure]:
    """Run batches until the time is over; return the failures."""
    end = time.monotonic() + seconds
    found = []
    while time.monotonic() < end:
        if (failure := batch(kind, seed, end, counts, shrinking)) is not None:
            found.append(failure)
        seed += 1
    return found


def batch(
    kind: Kind, seed: int, end: float, counts: Counter[str], shrinking: float = 60.0
) -> Failure | None:
    """Run the cases of a seed until `end`; return the first failure, as small as it gets within `shrinking` seconds."""
    smallest: Failure | None = None

    def run(case: Any) -> None:
        nonlocal smallest, end
        if time.monotonic() > end:
            raise OutOfTime
        try:
            wrong = kind.wrong(case)
        except Refused:
            counts["refused"] += 1
            return
        if smallest is None:
            counts["cases"] += 1
            counts.update([f"on {kind.engine(case)}"] if kind.engine else [])
        if wrong is None or (smallest is not None and _sort(wrong) != _sort(smallest.wrong)):
            return
        if smallest is None:
            end = time.monotonic() + shrinking
        new = Failure(kind.name, seed, wrong, kind.text(case))
        if smallest is None or len(new.text) <= len(smallest.text):
            smallest = new
        raise AssertionError(_sort(wrong))

    test = settings(
        max_examples=kind.batch, database=None, derandomize=False, deadline=None,
        print_blob=False, report_multiple_bugs=False, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )(hypothesis.seed(seed)(given(kind.cases)(run)))  # fmt: skip
    with contextlib.suppress(OutOfTime, AssertionError, hypothesis.errors.Flaky):
        test()
    if smallest is not None and kind.lines:
        return fewer_lines(kind, smallest, end)
    return smallest


def fewer_lines(kind: Kind, failure: Failure, end: float) -> Failure:
    """Drop the lines without which a text still fails in the same way, until `end`."""
    lines = failure.text.split("\n")
    size = len(lines) // 2
    while size:
        at = 0
        while at < len(lines) and time.monotonic() < end:
            fewer = lines[:at] + lines[at + size :]
            with contextlib.suppress(Refused):
                wrong = kind.wrong("\n".join(fewer))
                if wrong is not None and _sort(wrong) == _sort(failure.wrong):
                    lines = fewer
                    continue
            at += size
        size //= 2
    return replace(failure, text="\n".join(lines))


def _sort(wrong: str) -> str:
    """Return what failures of one sort share: their first line up to the first value in it."""
    return re.split(r"[\d\"'(\[]", wrong.partition("\n")[0])[0]


def _here(check: Callable[[], None], seconds: float) -> str | None:
    clock = IdleClock()

    def late(*_: Any) -> None:
        if clock.read() > seconds:
            signal.setitimer(signal.ITIMER_REAL, 2, 2)  # again where something has caught this one
            raise TimeoutError(f"no end within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        check()
    except (Refused, OutOfTime):
        raise
    except Exception as error:
        return _told(error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return None


def _told(error: Exception) -> str:
    """Return the error, its kind, and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {place.name}: {error}"


def apart(check: Callable[[], None], seconds: int) -> str | None:
    """Run a check in a fork of this process; return what is wrong, a crash or a hang too. Raises Refused."""
    load()
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            _child(check, answer.fileno(), said.fileno())
        code, is_late = wait_for(child, seconds, signal.SIGABRT)
        answer.seek(0), said.seek(0)
        told, output = answer.read(), said.read().decode(errors="replace")[-4000:]
    if is_late:
        return f"no end within {seconds} s\n{output}"
    if code or not told:
        how = signal.strsignal(-code) if code < 0 else f"status {code}"
        return f"crash: {how}\n{output}"
    refused, wrong = pickle.loads(told)
    if refused:
        raise Refused
    return None if wrong is None else str(wrong)


def _child(check: Callable[[], None], answer: int, said: int) -> None:
    """Be the process of a case: never return."""
    try:
        for number in (1, 2):
            os.dup2(said, number)
        faulthandler.enable(said)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        refused, wrong = False, None
        try:
            check()
        except Refused:
            refused = True
        except Exception as error:
            wrong = _told(error)
        os.write(answer, pickle.dumps((refused, wrong)))
        os._exit(0)
    finally:
        os._exit(70)
