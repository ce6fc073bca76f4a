"""The sweep of operators: its cases are well-formed, one is measured for real, and tables and picture show them."""

import json
from collections import Counter

import pytest
from depth import deep

from benchmarks.operators.case import RANKS, Case, Split
from benchmarks.operators.families import CASES
from benchmarks.operators.results import (
    Row,
    cells,
    markdown,
    mean,
    picture,
    row_of,
    summary,
    worst_first,
)
from benchmarks.operators.sweep import Measurer, chosen


def test_every_case_is_named_once_and_cut_as_it_has_arguments() -> None:
    assert len(CASES) >= 300
    assert max(Counter((case.family, case.name) for case in CASES).values()) == 1
    for case in CASES:
        assert all(at < len(case.arguments) for at in case.gradient)
        for split in (case.dp, case.tp):
            assert split is None or len(split.layouts) == len(case.arguments), case.name


def test_arguments_are_drawn_as_their_forms_say() -> None:
    case = Case("f", "n", ("f32[3,4]+", "i32[50]<7", "bool[]", "bf16[2]"), lambda jax, *a: a)
    positive, whole, flag, short = case.drawn()
    assert positive.shape == (3, 4) and positive.min() > 0
    assert whole.min() >= 0 and whole.max() < 7
    assert flag.shape == () and flag.dtype == bool
    assert short.dtype.itemsize == 2
    with pytest.raises(ValueError, match=r'"f32\(3\)" is not of a form'):
        Case("f", "n", ("f32(3)",), lambda jax, a: a).drawn()


def test_a_family_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="no family sums; there are control, convolutions"):
        chosen(False, ["sums"])
    assert len(chosen(True, [])) < len(CASES) / 5


@deep
def test_a_case_is_measured_beside_jax() -> None:
    pytest.importorskip("jax")
    number = next(n for n, case in enumerate(CASES) if case.name == "roll of rows f32[1024,1024]")
    measurer = Measurer(quick=False)
    try:
        row = row_of(CASES[number], measurer.answer(number))
    finally:
        measurer.close()
    assert row.said == "" and row.wrong <= 1 and row.ratio and row.shared
    assert row.received["dp"] >= row.bound["dp"] == 7 * 4096


def test_a_case_that_takes_too_long_is_ended_and_another_process_is_started() -> None:
    measurer = Measurer(quick=True)
    measurer.limit = 0.01
    assert measurer.answer(0) == {"fault": "took over 0 s"}
    assert measurer.process is None


def test_what_was_measured_is_shown() -> None:
    slow = Row(
        "scans", "sum", {"ours": 4.0, "jax": 1.0, "torch": 2.0}, {"dp": 2.0}, {"dp": 9}, {"dp": 4}
    )
    fast = Row("shapes", "a <b>", {"ours": 1.0, "jax": 4.0})
    wrong = Row("shapes", "c", {"ours": 1.0, "jax": 2.0}, wrong=3.0)
    refused = Row("shapes", "d", said="one rank: no such op")
    rows = [fast, slow, wrong, refused]
    assert slow.ratio == 4.0 and slow.shared == 0.5 and slow.excess == 5
    assert worst_first(rows) == [refused, wrong, slow, fast]
    assert mean([4.0, 0.25]) == 1.0
    assert summary(rows)[-1] == ("all", "4", "1", "0.79", "1", "4.0", "1")
    assert "WRONG" in cells(wrong)[0] and "dp 9 of 4" in cells(slow)[3]
    drawn = picture(rows)
    assert drawn.count("<circle") == 3 and "a &lt;b&gt;: 0.25" in drawn
    assert "| scans: sum | 4.00 |" in markdown(rows, 9)
    assert json.dumps([row.as_dict() for row in rows])


def test_layouts_cut_the_axis_of_two_ranks() -> None:
    assert RANKS == 2
    assert Split(("[x, _]",)).bound == 0
