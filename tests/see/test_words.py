"""Ops in the user's words: code of the line, layers of frameworks; and what a chain says about them is so."""

import re

import numpy as np
import pytest
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import meshweave as mw
from meshweave.report import Reason, Report
from meshweave.see.page import Page
from meshweave.see.words import read_stack

X, W = np.ones((8, 6), np.float32), np.ones((6, 4), np.float32)


@pytest.mark.parametrize(
    ("name", "layer", "backward", "primitive"),
    [
        ("jit(step)/jvp(Net)/layer1/norm/square", "Net/layer1/norm", False, "square"),
        ("jit(f)/transpose(jvp(Net))/up/dot_general", "Net/up", True, "dot_general"),
        ("jit(f)/transpose(jvp())/mul", "", True, "mul"),
        ("jit(f)/Net/while/body/closed_call/layer/add", "Net/layer", False, "add"),
        ("jit(f)/jit(main)/jit(_where)/select_n", "", False, "select_n"),
        ("layers.0.up/linear", "layers.0.up", False, "linear"),
        ("transpose(layers.0.up)/mm", "layers.0.up", True, "mm"),
        ("", "", False, ""),
    ],
)
def test_names_of_frameworks_are_read(
    name: str, layer: str, backward: bool, primitive: str
) -> None:
    assert read_stack(name) == (layer, backward, primitive)


def reasons(report: Report) -> list[Reason]:
    return [report.reasons[number] for row in report.collectives for number in row.reasons]


def test_ops_are_named_by_the_code_of_their_line() -> None:
    @mw.jit(mesh="x=2", in_layouts=("[x, _]", None), out_layouts="[_, _]")
    def f(rows: mw.Array, w: mw.Array) -> mw.Array:
        return mw.tanh(rows @ w)

    f(X, W)
    (reason,) = reasons(f.explain().report)
    assert [link.text for link in reason.given] == [
        "an elementwise op `mw.tanh(rows @ w)` works over x",
        "a product `rows @ w` works over x",
        'argument rows lies in "[x, _]", as it was said',
    ]
    codes = {row["op"]: row["code"] for row in f.explain().rows()}
    assert codes["a product"] == "rows @ w"


def test_a_gather_before_a_gradient_of_weights_says_what_the_sum_would_bring() -> None:
    """The chain gives the price of another program, which is compiled here too."""

    x, g = np.ones((4, 24), np.float32), np.ones((4, 16), np.float32)
    program = mw.jit(
        lambda x, g: mw.transpose(mw.exp(x)) @ mw.exp(g),
        mesh="x=2", in_layouts=("[x, _]", "[x, _]"), out_layouts="[_, _]",
    )  # fmt: skip
    found = reasons(program.lower(x, g).report())
    assert {reason.steps[0][0] for reason in found} == {"all_gather"}
    said = re.search(r"adds up along dim 1: if .* bring ([\d,]+) bytes", found[0].wanted[-1].text)
    assert said, found[0].wanted
    long = np.ones((400, 24), np.float32), np.ones((400, 16), np.float32)  # adds up, then
    rows = program.lower(*long).report().collectives
    assert [row.op for row in rows] == ["all_reduce"]
    assert int(said[1].replace(",", "")) == rows[0].nbytes


def test_of_all_readers_the_one_that_forces_a_sum_is_named() -> None:
    """An elementwise op that is not linear cannot take addends; results that propagation chose force nothing."""

    def f(x: mw.Array, w: mw.Array) -> tuple[mw.Array, mw.Array]:
        h = x @ w
        return h * 2.0, mw.exp(h) @ mw.transpose(h)

    layouts = ("[_, x]", "[x, _]")
    made = mw.jit(f, mesh="x=2", in_layouts=layouts, out_layouts=(None, "[_, _]"))
    (reason,) = reasons(made.lower(X, W).report())
    first, forces = (link.text for link in reason.wanted)
    assert first == "2 of its 3 readers need it so; of the nearest:"
    assert forces == "an elementwise op `mw.exp(h)` reads it added up over x"
    assert reason.remedy == ""


def test_ways_go_on_through_loops_and_squares_take_no_addends() -> None:
    """What a round of a loop adds up is read by the next round, which squares it."""

    def f(x: mw.Array, w: mw.Array) -> mw.Array:
        def round_of(h: mw.Array, _: object) -> tuple[mw.Array, None]:
            return mw.tanh(h * h) @ w, None

        return mw.scan(round_of, x, None, length=3)[0]

    made = mw.jit(f, mesh="x=2", in_layouts=("[_, _]", "[x, _]"), out_layouts="[_, _]")
    found = reasons(made.lower(np.ones((8, 6), np.float32), np.ones((6, 6), np.float32)).report())
    scattered, gathered = dict.fromkeys(found)
    assert [link.text for link in scattered.wanted] == [
        "2 of its 2 readers need it so; of the nearest:",
        "an elementwise op `h * h` reads it added up over x",
    ]
    texts = [link.text for link in gathered.given]
    assert texts[-1] == 'argument w lies in "[x, _]", as it was said'
    assert texts[-2].startswith("a product `mw.tanh(h * h) @ w` sums over a dim"), texts


def test_a_maximum_is_reduced_and_not_added_up() -> None:
    f = mw.jit(
        lambda x: mw.exp(mw.max(x, axis=1)), mesh="x=2", in_layouts="[_, x]", out_layouts="[_]"
    )
    (reason,) = reasons(f.lower(X).report())
    assert reason.given[0].text.startswith("a reduction `mw.max(x, axis=1)` reduces over a dim")
    assert reason.wanted[-1].text.endswith("reads it reduced over x")


def test_ways_go_on_through_regions_of_hints() -> None:
    def f(x: mw.Array, w: mw.Array) -> mw.Array:
        with mw.hint(slice="t=2"):
            h = mw.exp(x) @ w
        return mw.tanh(h)

    layouts = ("[x, y]", "[y, _]")
    made = mw.jit(f, mesh="x=2, y=2", in_layouts=layouts, out_layouts="[_, _]")
    added, gathered = reasons(made.lower(X, W).report())[-2:]
    assert added.wanted[-1].text == "an elementwise op `mw.tanh(h)` reads it added up over y"
    assert [link.text for link in gathered.given][1:] == [
        "a product `mw.exp(x) @ w` works over x",
        "an elementwise op `mw.exp(x)` works over x",
        'argument x lies in "[x, y]", as it was said',
    ]


def test_a_convolution_is_said_to_read_its_neighbours() -> None:
    def f(x: mw.Array, w: mw.Array) -> mw.Array:
        return mw.nn.conv(x, w, padding="SAME")

    made = mw.jit(f, mesh="x=2", in_layouts=("[_, x, _, _]", None), out_layouts="[_, x, _, _]")
    report = made.lower(
        np.ones((1, 8, 8, 2), np.float32), np.ones((3, 3, 2, 4), np.float32)
    ).report()
    (reason,) = reasons(report)
    assert "*_{4,-1,6}" in reason.target and reason.remedy == ""
    said = "reads 3 indices of dim 1 for each of its result: some are on the next rank over x"
    assert reason.wanted[-1].text.endswith(said), reason.wanted
    page = Page("conv", mw.Mesh(x=2), "local", report).html  # draws windows, which overlap
    assert '<th scope="row">rank 1</th>' in page and "<td>3..7</td>" in page


def test_a_sort_is_no_reader_that_hands_a_dim_on() -> None:
    f = mw.jit(
        lambda x: mw.sort(x, axis=1) * 2.0, mesh="x=2", in_layouts="[_, x]", out_layouts="[_, _]"
    )
    moved = reasons(f.lower(np.ones((8, 16), np.float32)).report())[0]
    assert moved.wanted[-1].text.startswith("sort `mw.sort(x, axis=1)` orders all of dim 1")
    assert "ask for" not in moved.remedy  # that would have ranks exchange parts of it


def test_a_reshape_that_cannot_keep_an_axis_says_so() -> None:
    f = mw.jit(
        lambda x: mw.reshape(x, (4, 3, 8)) + 1.0,
        mesh="x=2", in_layouts="[_, x]", out_layouts="[_, _, _]",
    )  # fmt: skip
    (reason,) = reasons(f.lower(np.ones((4, 24), np.float32)).report())
    assert "cannot keep dim 1 cut over x=2: it is 3x8 there" in reason.wanted[0].text


def test_bytes_of_complex_numbers_are_those_of_both_parts() -> None:
    f = mw.jit(lambda x: x + x, mesh="x=2", in_layouts="[x, _]", out_layouts="[_, _]")
    (reason,) = reasons(f.lower(np.ones((4, 4), np.complex64)).report())
    assert (reason.nbytes, reason.lower_bound) == (64, 64)
    assert reason.following.startswith("exchange over x: 64 bytes, ")


AXES = st.sampled_from(["[_, _]", "[x, _]", "[_, x]", "[x*y, _]", "[y, x]", "[x, y]"])


@settings(max_examples=examples(25), deadline=None)
@given(rows=AXES, weights=AXES, result=AXES, sizes=st.tuples(*[st.integers(1, 9)] * 3))
def test_a_wish_that_is_granted_moves_fewer_bytes(
    rows: str, weights: str, result: str, sizes: tuple[int, int, int]
) -> None:
    """Reasons agree with collectives; what is said to be written moves less, for any program of this kind."""
    m, k, n = sizes
    x, w = np.ones((m, k), np.float32), np.ones((k, n), np.float32)

    def lowered(out: str, rows: str = rows, weights: str = weights) -> Report:
        f = mw.jit(
            lambda x, w: mw.tanh(mw.exp(x) @ w),
            mesh="x=2, y=2", in_layouts=(rows, weights), out_layouts=out,
        )  # fmt: skip
        return f.lower(x, w).report()

    report = lowered(result)
    received = sum(row.nbytes for row in report.collectives)
    alone = [r for row in report.collectives for r in row.reasons]
    assert all(report.reasons[r].nbytes >= report.reasons[r].lower_bound for r in alone)
    assert sum(report.reasons[r].nbytes for r in set(alone)) == received
    for number in set(alone):
        wish = re.search(
            r'(?:ask for|leave) that result in "([^"]+)"', report.reasons[number].remedy
        )
        if wish is not None:
            less = lowered(wish[1])
            assert sum(row.nbytes for row in less.collectives) < received, (wish[1], report.reasons)
        given = re.search(r'give argument w as "([^"]+)"', report.reasons[number].remedy)
        if given is not None:
            less = lowered(result, weights=given[1])
            assert sum(row.nbytes for row in less.collectives) < received, (
                given[1],
                report.reasons,
            )


def test_layers_that_repeat_hand_on_to_the_next_one() -> None:
    """What 39 of 40 layers are read by is the next layer, not the result of the program."""

    def net(x: mw.Array, up: mw.Array, down: mw.Array) -> mw.Array:
        for _ in range(40):
            x = x + mw.tanh(x @ up) @ down
        return x

    layouts = ("[_, _]", "[_, x]", "[x, _]")
    f = mw.jit(net, mesh="x=2", in_layouts=layouts, out_layouts="[_, _]")
    x, up, down = np.ones((8, 8), np.float32), np.ones((8, 16), np.float32), np.ones((16, 8))
    report = f.lower(x, up, down.astype(np.float32)).report()
    assert [row.op for row in report.collectives] == ["all_reduce"] * 40
    first = report.reasons[report.collectives[10].reasons[0]]
    assert [link.kind for link in first.wanted].count("result") == 0, first.wanted
    assert 'argument up lies in "[_, x]"' in first.wanted[-1].text
