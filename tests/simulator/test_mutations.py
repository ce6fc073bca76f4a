"""The proof that the checks check: tiled products with a barrier dropped, a wait weakened or an
address changed are noticed; what is not noticed is listed, with the reason.
"""

from __future__ import annotations

import re

import pytest
from simulator.tiled import PIPELINED, PLAIN, outcome

from meshweave.simulator.ptx import Checks

KERNELS = {"plain": PLAIN, "pipelined": PIPELINED}


def lines_with(body: str, pattern: str) -> list[int]:
    """Numbers of the lines that a pattern is found in."""
    return [n for n, line in enumerate(body.split("\n")) if re.search(pattern, line)]


def without(body: str, line: int) -> str:
    """The body with a line left out."""
    lines = body.split("\n")
    return "\n".join([*lines[:line], *lines[line + 1 :]])


def changed(body: str, line: int, old: str, new: str) -> str:
    """The body with a line changed."""
    lines = body.split("\n")
    assert old in lines[line]
    return "\n".join([*lines[:line], lines[line].replace(old, new), *lines[line + 1 :]])


SYNCHRONISATION = [
    (name, line)
    for name, body in KERNELS.items()
    for line in lines_with(body, r"bar\.sync|wait_group|commit_group")
]


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_are_right(name):
    assert outcome(KERNELS[name]) == "right"


@pytest.mark.parametrize(("name", "line"), SYNCHRONISATION)
def test_a_dropped_barrier_wait_or_commit_is_noticed(name, line):
    assert outcome(without(KERNELS[name], line)) != "right"


def test_what_is_said_of_each():
    (first, second), (wait,) = lines_with(PLAIN, "bar.sync"), lines_with(PIPELINED, "wait_group")
    assert "race: reads shared byte" in outcome(
        without(PLAIN, first)
    ) or "nothing wrote" in outcome(without(PLAIN, first))
    assert "race: writes shared byte" in outcome(without(PLAIN, second))
    assert "cp.async is in flight" in outcome(without(PIPELINED, wait))
    assert "cp.async is in flight" in outcome(changed(PIPELINED, wait, "1", "2"))
    (barrier,) = lines_with(PIPELINED, "bar.sync")
    assert "race: " in outcome(without(PIPELINED, barrier))


ADDRESSES = [
    (name, line, old, new)
    for name, body in KERNELS.items()
    for line, text in enumerate(body.split("\n"))
    for pattern in (r"%r[45], %r31, (4),", r"\[%r[89]\+(60)\]", r"%r19, %r19, (1024)", r"%r16, %r16, (1024)",
                    r"%d[12], %d[12], (\d+);", r"%r17, %r4, (1024)", r"%r13, (4), %d3")
    for match in [re.search(pattern, text)] if match
    for old, new in [(match[0], match[0].replace(match[1], str(int(match[1]) + shift)))
                     for shift in (4, -4) ]
]  # fmt: skip


@pytest.mark.parametrize(("name", "line", "old", "new"), ADDRESSES)
def test_a_changed_address_is_noticed(name, line, old, new):
    assert outcome(changed(KERNELS[name], line, old, new)) != "right"


# With the checks off, lock-step execution hides what only timing would show: the checks are needed.
HIDDEN = [
    (name, line) for name, line in SYNCHRONISATION if "bar.sync" in KERNELS[name].split("\n")[line]
]


@pytest.mark.parametrize(("name", "line"), HIDDEN)
def test_lock_step_alone_does_not_show_a_missing_barrier(name, line):
    assert outcome(without(KERNELS[name], line), Checks(races=False)) == "right"


def test_more_barriers_than_needed_are_not_errors():
    """Truly redundant: a second barrier, a wait for all where a wait for some would do."""
    (barrier,) = lines_with(PIPELINED, "bar.sync")
    assert outcome(changed(PIPELINED, barrier, "bar.sync 0;", "bar.sync 0; bar.sync 0;")) == "right"
    (wait,) = lines_with(PIPELINED, "wait_group")
    assert outcome(changed(PIPELINED, wait, "wait_group 1", "wait_group 0")) == "right"
