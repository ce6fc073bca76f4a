"""Plans on symbolic meshes: formulas that give the bytes of the concrete plans."""

from fractions import Fraction
from itertools import product
from math import ceil

import pytest
from depth import sampled
from hypothesis import given
from hypothesis import strategies as st
from strategies import all_layouts

from meshweave.errors import LayoutError, PlanError
from meshweave.layout import Layout, Mesh
from meshweave.plan import formula as f
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.steps import BLOCK_OPS, OPS
from meshweave.plan.symbolic import symbolic_plan

MESH = Mesh(x="N", y=2)
N, M = f.size("N"), f.size("M")
P = Layout.parse


@pytest.mark.parametrize(
    "made, text, value",
    [
        (f.product([f.number(4), N, f.number(2)]), "8*N", 24),
        (f.total([N, f.number(2), N, f.number(1)]), "2*N + 3", 9),
        (f.product([N, f.minus(N, f.number(1))]), "N*(N - 1)", 6),
        (f.ceil_div(f.number(16), N), "ceil(16/N)", 6),
        (f.ceil_div(f.ceil_div(f.number(16), N), M), "ceil(16/(N*M))", 2),
        (f.largest([N, f.number(5), N, f.number(2)]), "max(N, 5)", 5),
        (f.minus(f.number(7), f.number(2)), "5", 5),
        (f.product([f.number(0), N]), "0", 0),
    ],
)
def test_formulas(made, text, value):
    assert (str(made), made.at({"N": 3, "M": 4})) == (text, value)


def test_a_formula_needs_numbers():
    assert f.product([M, N]).symbols == ("M", "N")
    with pytest.raises(PlanError, match=r'the formula N needs a number for "N"'):
        f.product([f.number(2), N]).at({})


def test_formulas_by_hand():
    made = symbolic_plan(P("[x, _]"), P("[_, x]"), MESH, (16, 8), 4)
    assert str(made.nbytes) == "4*ceil(16/N)*ceil(8/N)*(N - 1)"
    assert made.nbytes.at({"N": 2}) == 128 and made.launches == 1
    assert made.as_dict()["symbols"] == ["N"]
    made = symbolic_plan(P("[_, _] +sum(x)"), P("[x, _]"), Mesh(x="N"), (16, 8), 4)
    assert str(made.nbytes) == "32*ceil(16/N)*(N - 1)"


def python_value(formula, **sizes):
    """What Python makes of the text of a formula."""
    names = {name: Fraction(n) for name, n in sizes.items()}
    return eval(str(formula), {"ceil": ceil, "max": max, "__builtins__": {}}, names)


@sampled(4)
@pytest.mark.parametrize("ops", [OPS, BLOCK_OPS])
@pytest.mark.parametrize("shape", [(24, 16), (7, 10)])
def test_formulas_give_the_bytes_of_every_size(shape, ops):
    """Sizes that divide the dims and sizes that do not, between all pairs of layouts in blocks."""
    every = all_layouts(Mesh(x=2, y=2), 2)
    held = dict.fromkeys((1, 2, 3, 4, 5, 8, 16), 0)
    for source, target in product(every, every):
        made = symbolic_plan(source, target, MESH, shape, 4, ops=ops)
        for n in held:
            if made.holds(N=n):
                plan = plan_redistribute(source, target, MESH.specialize(N=n), shape, 4, ops=ops)
                assert python_value(made.nbytes, N=n) == made.nbytes.at({"N": n}) == plan.nbytes
                assert python_value(made.peak_bytes, N=n) == plan.peak_bytes
                assert made.launches == plan.launches
                held[n] += 1
    most = len(every) ** 2
    if ops == BLOCK_OPS:
        assert held[4] == most and all(held[n] > most / 2 for n in (2, 4, 8))
    assert held[2] and held[3] and held[5]


def test_a_certificate_says_for_which_numbers():
    made = symbolic_plan(P("[x, _]"), P("[_, x]"), MESH, (16, 8), 4)
    assert made.sizes_that_hold() == [{"N": 2}, {"N": 4}, {"N": 8}, {"N": 16}]
    assert made.certificate().startswith("1 launch; exact for N=2; N=4; N=8; N=16")
    assert made.as_dict()["holds"] == ["N=2", "N=4", "N=8", "N=16"]
    assert made.as_dict()["steps"][0]["split_dim"] == 1
    # Over an axis that no layout uses there is nothing to do, whatever its size.
    assert symbolic_plan(P("[y]"), P("[y]"), MESH, (8,), 4).holds(N=3)


def test_an_axis_of_one_rank_needs_no_steps():
    made = symbolic_plan(P("[x, _]"), P("[_, _]"), MESH, (16, 8), 4)
    assert made.nbytes.at({"N": 1}) == 0 and not made.holds(N=1)


def test_extents_need_a_number():
    with pytest.raises(
        LayoutError, match=r"x\{3,5\} lists 2 extents, but x has N ranks: give it a number first"
    ):
        symbolic_plan(P("[x{3,5}, _]"), P("[_, _]"), MESH, (8, 8), 4)


@given(st.sampled_from([2, 4, 8, 16]), st.sampled_from([2, 3]))
def test_two_symbols(n, m):
    mesh = Mesh(x="N", y="M")
    made = symbolic_plan(P("[x, y]"), P("[_, _]"), mesh, (48, 48), 4, ops=BLOCK_OPS)
    sizes = {"N": n, "M": m}
    plan = plan_redistribute(
        P("[x, y]"), P("[_, _]"), mesh.specialize(**sizes), (48, 48), 4, ops=BLOCK_OPS
    )
    if made.holds(**sizes):
        assert made.nbytes.at(sizes) == plan.nbytes


def test_what_has_no_formula_is_refused():
    with pytest.raises(PlanError, match=r"layout \[_\*x, _\]: formulas are for layouts in blocks"):
        symbolic_plan(P("[_*x, _]"), P("[_, _]"), MESH, (8, 8), 4)
