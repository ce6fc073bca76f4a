"""A few cases of every kind find nothing; what is planted is found, made small, kept, and found again."""

import ctypes
import itertools
import os
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import commands
import patience
import pytest
from commands import meshweave
from depth import deep, sampled
from hypothesis import strategies as st

from fuzz import search
from fuzz.__main__ import KINDS, main
from fuzz.search import Failure, Kind, Refused, apart, batch
from fuzz.stablehlo import settled


@sampled(4)
@pytest.mark.parametrize("name", list(KINDS))
def test_a_short_run_finds_nothing(name: str, tmp_path: Path, record_property: Any) -> None:
    counts: Counter[str] = Counter()
    few = replace(KINDS[name], batch=KINDS[name].batch // 6)
    failure = batch(few, 0, time.monotonic() + 100, counts, shrinking=10.0)
    assert failure is None, failure.keep(tmp_path)
    assert counts["cases"] > 3
    record_property(f"count of fuzzed {name}", counts["cases"])


def planted(case: list[int]) -> None:
    if 13 in case:
        raise ValueError(f"13 in {case}")


def crash(case: list[int]) -> None:
    if any(number > 15 for number in case):
        ctypes.string_at(0)


def refuse(case: list[int]) -> None:
    if case:
        raise Refused


LISTS = st.lists(st.integers(0, 20), min_size=1, max_size=4)


def planting(kind: Kind, seed: int) -> Failure:
    found = batch(kind, seed, time.monotonic() + 60, Counter())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("check", "seconds", "says", "smallest"),
    [
        (planted, 0, "ValueError in planted: 13 in [13]", "[13]"),
        pytest.param(planted, 5, "ValueError in planted: 13 in [13]", "[13]", marks=deep),
        (crash, 5, "crash: Segmentation fault", "[16]"),
    ],
)
def test_what_is_planted_is_found_and_made_small(
    check: Any, seconds: int, says: str, smallest: str, tmp_path: Path
) -> None:
    kind = Kind("planted", LISTS, check, seconds=seconds)
    found = planting(kind, 5)
    assert found.wrong.startswith(says) and found.text == smallest
    if not seconds:  # in this process it is found again soon
        assert planting(kind, 5).text == smallest
    kept = found.keep(tmp_path)
    assert kept.name == "planted-5.txt" and "--only planted --seed 5\n" in kept.read_text()


def test_a_refusal_is_one_line_behind_any_remarks() -> None:
    remark, error = "p.mlir:1:1: remark: gathered whole\n", "p.mlir:2:1: error: no axis\n"
    settled(commands.Outcome(1, "", remark + error))
    for said in (remark, error + error, remark + error + "    at x\n"):
        with pytest.raises(AssertionError):
            settled(commands.Outcome(1, "", said))


def test_a_case_that_hangs_is_ended() -> None:
    told = str(apart(lambda: time.sleep(100), 1))
    assert told.startswith("no end within 1 s") and "in <lambda>" in told
    stuck = Kind("stuck", st.just(1), lambda case: time.sleep(100))
    assert str(stuck.wrong(1)) == "TimeoutError in late: no end within 1 s"


def test_on_a_busy_machine_a_case_has_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    busy = tmp_path / "loadavg"
    monkeypatch.setattr(patience, "LOAD", busy)
    for ready, most in ((1000 * len(os.sched_getaffinity(0)), 0.1), (1, 100.0)):
        busy.write_text(f"0.1 0.2 0.3 {ready}/5000 7")
        clock = patience.IdleClock()
        time.sleep(0.2)
        assert clock.read() < most
    assert clock.seconds >= 0.2


def test_lines_of_text_are_dropped() -> None:
    def check(text: str) -> None:
        assert not {"b", "e"} <= set(text.split("\n")), "b and e"

    kind = Kind("lines", st.just("a\nb\nc\nd\ne\nf"), check, lines=True)
    assert planting(kind, 0).text == "b\ne"


def test_what_is_refused_is_counted_apart() -> None:
    counts: Counter[str] = Counter()
    kind = Kind("refused", LISTS, refuse)
    assert batch(kind, 0, time.monotonic() + 60, counts) is None
    assert counts == {"refused": kind.batch}
    with pytest.raises(Refused):
        apart(lambda: refuse([1]), 5)


def test_the_command_says_what_it_did(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """By a clock that goes on with each case, so that a second is a number of cases on any machine."""
    ticks = itertools.count(0, 0.02)
    monkeypatch.setattr(search, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    run = ["--seconds", "1", "--seed", "3", "--only", "layouts", "--keep", str(tmp_path)]
    assert main(run) == 0 and "layouts: " in capsys.readouterr().out
    monkeypatch.setitem(KINDS, "layouts", Kind("layouts", LISTS, crash, seconds=5, batch=200))
    assert main(run) == 1
    out = capsys.readouterr().out
    assert "layouts-3.txt: crash: Segmentation fault" in out
    assert (tmp_path / "layouts-3.txt").read_text().endswith("\n[16]\n")


def test_a_command_that_does_not_end_has_a_status_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The guard kills it, as memory that runs out may: a kill before the time is over is no hang."""
    monkeypatch.setattr(commands, "SECONDS", 1)
    fifo = tmp_path / "p.mlir"
    os.mkfifo(fifo)
    assert meshweave("compile", fifo).status == 128 + signal.SIGALRM
