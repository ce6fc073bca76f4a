"""Hints as plain values: grammar, precedence, and a ledger that closes."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshweave.errors import MeshweaveError
from meshweave.hints.keys import (
    KEYS,
    PREFERRED,
    REQUIRED,
    STRENGTHS,
    Hint,
    HintError,
    Numerics,
    SliceOrder,
    TimeAxis,
    resolve,
    supports,
)
from meshweave.hints.ledger import (
    OUTCOMES,
    Ledger,
    Op,
    Outcome,
    Refusal,
    RefusedHintError,
    Region,
    StatedHint,
    budget_too_small,
)

VALUES = {
    "slice": ("t=8", "t:64", "t=4, u=2"),
    "order": ("dfs", "bfs", "strict", "dfs, before=@a", "after=@b"),
    "width": ("1", "16"),
    "peak_bytes": ("4096", "64MiB"),
    "stream": ("0", "3"),
    "bundle": ("front",),
    "fuse": ("must", "may", "never"),
    "kernels": ("-flash +blas", "+blas"),
    "numerics": ("bit_exact", "deterministic", "tol(1e-3, 0)"),
    "overlap": ("none", "auto"),
    "again": ("checkpoint",),
}


def test_every_key_has_values_that_read_well() -> None:
    assert set(VALUES) == set(KEYS)
    for key, values in VALUES.items():
        for value in values:
            assert Hint.make(key, value).parsed is not None


@pytest.mark.parametrize(
    "key, value, parsed",
    [
        ("slice", "t=4, u:64", (TimeAxis("t", 4), TimeAxis("u", None, 64))),
        ("order", "bfs, after=@a, before=@b", SliceOrder("bfs", ("b",), ("a",))),
        ("width", 4, 4),
        ("peak_bytes", "2 MiB", 2 << 20),
        ("peak_bytes", 100, 100),
        ("kernels", "-flash +blas", (("flash", False), ("blas", True))),
        ("numerics", "tol(1e-3, .5)", Numerics("tol", 1e-3, 0.5)),
    ],
)
def test_values(key: str, value: object, parsed: object) -> None:
    assert Hint.make(key, value).parsed == parsed


@pytest.mark.parametrize(
    "key, value",
    [
        *[("slice", v) for v in ("", "8", "t t", "t=", "t=0", "t=-1", "_=2", "t=2,t=3", "t=2;u=3")],
        *[("order", v) for v in ("", "fast", "dfs bfs", "before=a", "dfs,dfs")],
        *[("width", v) for v in ("0", "-1", "1.5", "")],
        *[("peak_bytes", v) for v in ("0", "1 TB", "x")],
        *[("kernels", v) for v in ("", "flash", "+a -a", "+")],
        *[("numerics", v) for v in ("exact", "tol(1)", "tol(a, b)")],
        ("stream", "-1"), ("stream", "16"), ("bundle", "a-b"), ("fuse", "always"), ("overlap", "yes"),
        ("ordre", "dfs"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_in_one_line_with_what_is_right(key: str, value: str) -> None:
    with pytest.raises(HintError) as caught:
        Hint.make(key, value)
    assert "\n" not in str(caught.value) and key in str(caught.value)


@given(st.text(max_size=12), st.sampled_from(list(KEYS)))
def test_no_text_does_worse_than_an_error(text: str, key: str) -> None:
    with contextlib.suppress(HintError):
        Hint.make(key, text)


def test_a_disable_is_required_and_an_enable_preferred() -> None:
    assert Hint.make("kernels", "-flash +blas").strength == REQUIRED
    assert Hint.make("kernels", "+blas").strength == PREFERRED
    assert Hint.make("kernels", "-flash", PREFERRED).strength == PREFERRED


def test_targets_publish_what_they_support() -> None:
    assert supports("cpu", "peak_bytes") and not supports("cpu", "stream")
    assert supports("gpu", "stream")
    with pytest.raises(HintError, match='no target "tpu"; there are cpu, gpu'):
        supports("tpu", "slice")


chains = st.lists(
    st.tuples(st.sampled_from(("dfs", "bfs")), st.sampled_from(STRENGTHS), st.integers(0, 3)),
    max_size=5,
    unique_by=lambda hint: hint[2],
)


@given(chains)
def test_required_beats_inner_beats_outer(chain: list[tuple[str, str, int]]) -> None:
    hints = [Hint.make("order", v, s, f"f:{d}") for v, s, d in chain]
    required = {v for v, s, _ in chain if s == REQUIRED}
    if len(required) > 1:
        with pytest.raises(HintError, match=r"order = .* at f:\d and order = .* at f:\d are both"):
            resolve(hints, [d for _, _, d in chain])
        return
    got = resolve(hints, [d for _, _, d in chain])
    if not chain:
        assert not got.effective and not got.superseded
        return
    holds = chain[got.effective["order"]]
    assert holds[1] == REQUIRED or not required
    assert all(
        holds[2] > d
        for v, s, d in chain
        if (s == REQUIRED) == (holds[1] == REQUIRED) and d != holds[2]
    )
    assert set(got.superseded) == set(range(len(chain))) - {got.effective["order"]}
    assert set(got.superseded.values()) <= {got.effective["order"]}


def test_slices_of_nested_regions_add_up() -> None:
    got = resolve([Hint.make("slice", "t=4"), Hint.make("slice", "u=2")], [1, 2])
    assert got.effective == {"slice": 1} and not got.superseded


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    n = draw(st.integers(1, 4))
    regions = [
        Region(i, f"f:{i}", draw(st.integers(-1, i - 1)), draw(st.booleans())) for i in range(n)
    ]
    keys = draw(
        st.lists(
            st.tuples(st.integers(-1, n - 1), st.sampled_from(list(VALUES))),
            max_size=6,
            unique=True,
        )
    )
    said = [
        StatedHint(i, r, Hint.make(k, draw(st.sampled_from(VALUES[k])), None, f"f:{r}"))
        for i, (r, k) in enumerate(keys)
    ]
    ops = [
        Op(i, "linalg.matmul", f"g:{i}", draw(st.integers(0, n - 1)))
        for i in range(draw(st.integers(0, 5)))
    ]
    return Ledger(regions, said, ops, {})


@given(ledgers(), st.randoms())
def test_a_ledger_closes_exactly_when_each_pair_has_an_outcome(
    ledger: Ledger, random: object
) -> None:
    pairs = ledger.pairs()
    assert len(set(pairs)) == len(pairs)
    wanted = {
        (s.number, o.number)
        for o in ledger.ops
        for s in ledger.said
        if s.region == -1 or s.region in ledger.chain(o.region)
    }
    assert set(pairs) == wanted
    order = list(pairs)
    random.shuffle(order)  # type: ignore[attr-defined]
    for i, (s, o) in enumerate(order):
        with pytest.raises(MeshweaveError, match="the ledger does not close"):
            ledger.entries()
        outcome = Outcome(
            OUTCOMES[i % len(OUTCOMES)], "why", "do that"[: 7 * (i % 2)], 7 * (i % 3), i % 2 == 0
        )
        ledger.close(s, o, outcome)
    assert len(ledger.entries()) == len(pairs) == len(ledger.rows())
    assert ledger.report().count("\n") == len(pairs) + 1
    again = Ledger.from_value(json.loads(json.dumps(ledger.to_value())))
    assert again == ledger


def test_a_refusal_has_its_numbers_however_it_is_told() -> None:
    said = Hint.make("peak_bytes", "1kB", where="f.py:3:1")
    refusal = Refusal(said, budget_too_small(2048, "the least possible is 2,048 bytes"))
    assert str(refusal) == (
        'peak_bytes = "1kB" (required) is infeasible: the least possible is 2,048 bytes; allow 2048 bytes'
    )
    told = RefusedHintError(str(refusal), "f.py:3:1", refusal).told("in other words", "g.py:1:1")
    assert str(told) == "g.py:1:1: in other words" and told.refusal == refusal
    assert type(told) is RefusedHintError and told.refusal.outcome.allow == 2048


@given(st.permutations(OUTCOMES))
def test_copies_of_an_op_share_the_outcome_that_weighs_most(order: list[str]) -> None:
    ledger = Ledger(
        [Region(0, "f:1")],
        [StatedHint(0, 0, Hint.make("order", "dfs"))],
        [Op(0, "x", "g:1", 0)],
        {},
    )
    for kind in order:
        ledger.close(0, 0, Outcome(kind))
    assert ledger.outcomes[0, 0].kind == OUTCOMES[0]


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"regions": 3, "hints": [], "ops": [], "outcomes": []},
        {"regions": [], "hints": [], "ops": [{"name": "x", "where": "", "region": 4}], "outcomes": []},
        {"regions": [], "hints": [], "ops": [], "outcomes": [{"hint": 0, "op": 0, "is": "dead", "reason": ""}]},
    ],
)  # fmt: skip
def test_what_is_no_ledger_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(HintError, match=r"hint.ledger is not what hint-apply writes"):
        Ledger.from_value(value)
