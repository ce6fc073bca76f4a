"""Programs that are placed, not propagated, give what NumPy gives: random ones on several meshes."""

import numpy as np
import pytest
from depth import examples, sampled
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Program, programs
from test_execute import FAMILIES, MESHES

import meshweave
from meshweave.plan.placement.elimination import Choices, cost_of
from meshweave.plan.placement.place import PlacementProblem


def check(p: Program) -> None:
    """Place `p`, run it and compare every result, element by element."""
    with meshweave.compile(p.text(), layouts="auto", timeout=30) as program:
        results = program(*[v.value for v, _ in p.inputs])
    for i, (result, (value, layout)) in enumerate(zip(results, p.results)):
        np.testing.assert_array_equal(result, value.value, f"result {i}, {layout}\n{p.text()}")


@sampled(4)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_placed_programs_give_what_numpy_gives(family: str) -> None:
    steps, count = FAMILIES[family]

    @settings(max_examples=examples(count // 8))
    @given(st.sampled_from(MESHES).flatmap(lambda mesh: programs(mesh, only=steps)))
    def run(p: Program) -> None:
        check(p)

    run()


@sampled(4)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_any_choices_give_what_numpy_gives(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, count = FAMILIES[family]

    @settings(max_examples=examples(count // 8))
    @given(st.sampled_from(MESHES[1:]).flatmap(lambda m: programs(m, only=steps)), st.integers(0))
    def run(p: Program, seed: int) -> None:
        rng = np.random.default_rng(seed)

        def solve(self: PlacementProblem, terms: object = ()) -> Choices:
            picks = tuple(int(rng.integers(n)) for n in self.sizes)
            return Choices(picks, cost_of(picks, self.terms), 0.0)

        monkeypatch.setattr(PlacementProblem, "solve", solve)
        check(p)

    run()
