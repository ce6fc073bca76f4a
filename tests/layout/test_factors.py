"""Axes of a dim as axes of its factors, and back."""

from hypothesis import given
from hypothesis import strategies as st

from meshweave.layout.factors import Factor, Rule, merge_axes, pieces, split_axes

SIZES = {"x": 2, "y": 3, "z": 4}


def rule(*sizes: int) -> Rule:
    """One dim made of these factors, and the same factors as dims of their own."""
    merged = (tuple(range(len(sizes))),)
    apart = tuple((i,) for i in range(len(sizes)))
    whole = 1
    for n in sizes:
        whole *= n
    return Rule(
        tuple(Factor(n) for n in sizes),
        (merged,),
        (apart,),
        ((whole,), tuple(sizes)),
        (whole, whole),
    )


def test_a_lone_factor_takes_all_axes():
    assert split_axes(("x", "y"), (0,), rule(7), SIZES) == {0: ("x", "y")}
    assert merge_axes({0: ("x", "y")}, (0,), rule(7), SIZES) == (("x", "y"), True)


def test_axes_fill_the_major_factor_first():
    assert split_axes(("x", "y"), (0, 1), rule(2, 9), SIZES) == {0: ("x",), 1: ("y",)}
    assert split_axes(("x", "z"), (0, 1), rule(8, 5), SIZES) == {0: ("x", "z")}


def test_an_axis_across_a_boundary_belongs_to_no_factor():
    assert split_axes(("z",), (0, 1), rule(2, 8), SIZES) == {}
    assert split_axes(("x", "z"), (0, 1), rule(6, 8), SIZES) == {0: ("x",)}


def test_a_minor_factor_is_sharded_only_behind_wholly_sharded_ones():
    assert merge_axes({1: ("y",)}, (0, 1), rule(2, 9), SIZES) == ((), False)
    assert merge_axes({0: ("x",), 1: ("y",)}, (0, 1), rule(2, 9), SIZES) == (("x", "y"), True)
    assert merge_axes({0: ("x",)}, (0, 1), rule(6, 8), SIZES) == (("x",), True)


def test_an_axis_that_does_not_divide_a_shared_dim_is_refused():
    assert merge_axes({0: ("y",)}, (0, 1), rule(4, 5), SIZES) == ((), False)


def test_pieces_is_the_product():
    assert pieces((), SIZES) == 1
    assert pieces(("x", "z"), SIZES) == 8


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=3),
    st.permutations(sorted(SIZES)),
    st.integers(0, 3),
)
def test_what_spread_reads_join_gives_back(sizes: list[int], order: list[str], count: int):
    r = rule(*sizes)
    dim = tuple(range(len(sizes)))
    placed = split_axes(tuple(order[:count]), dim, r, SIZES)
    axes, whole = merge_axes(placed, dim, r, SIZES)
    kept = [a for f in dim for a in placed.get(f, ())]
    assert whole and list(axes) == kept == order[: len(kept)]
