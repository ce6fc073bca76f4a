"""What `mw.expect` counts, what it says of too much, and what it refuses; reasons of collectives."""

import re

import numpy as np
import pytest

import meshweave as mw
from meshweave.api.jit import Jitted
from meshweave.errors import BudgetError, UsageError
from meshweave.see.budget import Bound

X = np.arange(48, dtype=np.float32).reshape(8, 6)
W = np.ones((6, 4), np.float32)


def gathered(engine: str = "local") -> Jitted:
    return mw.jit(
        lambda x: x + 1.0, mesh="x=4", in_layouts="[x, _]", out_layouts="[_, _]", engine=engine
    )


def lines_of(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines()]


def test_bytes_and_collectives_of_all_calls_are_added_up() -> None:
    f = gathered()
    with mw.expect(bytes="<= 288 B", collectives={"all_gather": 2}, compiles=1) as spent:
        for _ in range(2):
            assert np.array_equal(np.asarray(f(X)), X + 1)
    assert spent.nbytes == 2 * 6 * 6 * 4  # six of eight rows come from the other ranks
    assert spent.collectives == {"all_gather": 2}
    with mw.expect(bytes="== 144 B", compiles=0):
        f(X)
    said = "receives 144 bytes, less than 144 B is expected"
    with pytest.raises(BudgetError, match=said), mw.expect(bytes="< 144 B"):
        f(X)


def test_the_peak_is_that_of_the_largest_program() -> None:
    f = gathered()
    peak = f.lower(X).compile().program.peak_bytes
    with mw.expect(peak=peak):
        f(X)
    said = f"a rank holds {peak:,} bytes, at most {peak - 1:,}"
    with pytest.raises(BudgetError, match=said), mw.expect(peak=peak - 1):
        f(X)


def test_a_result_that_is_wanted_whole_is_named_with_the_argument_that_is_not() -> None:
    f = gathered()
    with pytest.raises(BudgetError) as found, mw.expect(collectives={"all_gather": 0}):
        f(X)
    lines = lines_of(found.value)
    assert lines[0] == "collectives: all_gather runs 1 times, at most 0 is expected"
    assert lines[1].startswith("all_gather over x: 1 x, 144 B, at test_expect.py:")
    assert "8x6xf32 comes as [x, _] and is wanted as [_, _]" in lines
    assert 'since argument x lies in "[x, _]", as it was said' in lines
    assert any('result 0 is wanted in "[_, _]", as it was said' in line for line in lines)
    assert any(
        re.match(r"144 bytes, the least of any plan; [\d.]+ us as planned$", line) for line in lines
    )
    assert 'to move less: leave that result in "[x, _]": then nothing is moved' in lines


def test_a_constraint_is_named_with_its_line() -> None:
    @mw.jit(mesh="x=2", in_layouts=("[x, _]", None), out_layouts="[_, _]")
    def f(x: mw.Array, w: mw.Array) -> mw.Array:
        y = mw.constrain(x * 2.0, "[_, _]")  # the cause
        return y @ w

    with pytest.raises(BudgetError) as found, mw.expect(bytes=0):
        f(X, W)
    wanted = [line for line in lines_of(found.value) if line.startswith("it is wanted so")]
    assert len(wanted) == 1 and 'constraint "[_, _]"' in wanted[0], wanted
    number = int(re.search(r"test_expect\.py:(\d+)", wanted[0])[1])  # type: ignore[index]
    with open(__file__) as file:
        assert "the cause" in file.readlines()[number - 1]


def test_a_sum_is_named_with_the_argument_that_is_cut_along_it() -> None:
    @mw.jit(mesh="x=2", in_layouts=(None, "[x, _]"), out_layouts="[_, _]")
    def f(x: mw.Array, weights: mw.Array) -> mw.Array:
        return mw.exp(x) @ weights

    with pytest.raises(BudgetError) as found, mw.expect(bytes=0):
        f(X, W)
    text = " ".join(lines_of(found.value))
    assert "a product `mw.exp(x) @ weights` sums over a dim that lies over x: each rank has" in text
    assert 'argument weights lies in "[x, _]", as it was said' in text


def test_a_collective_that_an_op_makes_itself_is_said_to_be_so() -> None:
    f = mw.jit(
        lambda x: mw.cumulative_sum(x, axis=0),
        mesh="x=4",
        in_layouts="[x, _]",
        out_layouts="[x, _]",
    )
    with pytest.raises(BudgetError) as found, mw.expect(bytes=0):
        f(X)
    assert "the op itself makes it: it works along a dim that is cut" in lines_of(found.value)


def test_each_layer_that_is_outlined_has_its_reason() -> None:
    @mw.jit(mesh="x=2", in_layouts=("[_, _]", "[_, x]"), out_layouts="[_, _]")
    def f(x: mw.Array, w: mw.Array) -> mw.Array:
        for _ in range(40):
            x = mw.constrain(mw.tanh(x @ w) + mw.exp(x) * mw.sin(x), "[_, _]")
        return x

    report = f.lower(np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)).report()
    assert len(report.collectives) == 40
    assert all(row.reasons for row in report.collectives)
    reason = report.reasons[report.collectives[20].reasons[0]]
    assert reason.given[-1].text.startswith("argument w"), reason
    assert reason.wanted[-1].kind == "constraint"


def test_the_engine_mpi_counts_alike() -> None:
    f = gathered("mpi")
    with mw.expect(bytes="== 144 B", collectives=1):
        f(X)
    f.close()


def test_expectations_nest_and_let_errors_through() -> None:
    f = gathered()
    f(X)
    with mw.expect(bytes=288), pytest.raises(BudgetError), mw.expect(bytes=0):
        f(X)
    with pytest.raises(ZeroDivisionError), mw.expect(bytes=0):
        f(X)
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "expect: a limit is needed, such as bytes=0"),
        (
            {"bytes": "lots"},
            """expect: bytes: 'lots' is no limit; "<= 3 MiB" or a number of bytes""",
        ),
        ({"bytes": -1}, "expect: bytes: -1 is no limit"),
        ({"bytes": "3 MiBs"}, 'expect: bytes: no unit "MiBs"; there are B, KB'),
        ({"bytes": "0.3 B"}, "'0.3 B' is no whole number"),
        ({"compiles": "1 B"}, 'expect: compiles: no unit "B"; there are none'),
        ({"collectives": {"all_gathr": 0}}, 'no collective is called "all_gathr"; did you mean'),
        ({"collectives": [1]}, "expect: collectives: [1]: a number, or"),
    ],
)
def test_what_is_no_limit_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as found:
        mw.expect(**given)  # type: ignore[arg-type]
    assert message in str(found.value)


def test_limits_read_units_and_signs() -> None:
    assert Bound.read("x", "1.001 KB", True).bound == 1001  # 1000.9999999999999 as floats
    read = [Bound.read("x", text, True) for text in ("1.5 KiB", "< 2 KB", "1_000", ">= 1 GiB")]
    assert [(limit.sign, limit.bound) for limit in read] == [
        *(("<=", 1536), ("<", 2000), ("<=", 1000), (">=", 1 << 30)),
    ]
    assert [limit.holds(2000) for limit in read] == [False, False, False, False]
    assert Bound.read("x", "< 2 KB", True).holds(1999)
