"""No wrong program of one rank is proven: small changes of right ones, from a seed (`mutants.py` runs thousands)."""

from collections import Counter

import pytest
from depth import DEEP, some
from verify import parts, recent
from verify.mutants import computes_the_same, mutants, programs, verdict
from verify.pairs import compared

import meshweave as mw


@pytest.mark.parametrize("seed", some(range(2), 2))
def test_no_mutant_that_computes_something_else_is_proven(seed: int) -> None:
    counts: Counter[str] = Counter()
    for mutant in mutants(40, seed, programs()):
        found = verdict(mutant)
        counts[found] += 1
        assert found != "proven" or computes_the_same(mutant), f"{mutant.change}:\n{mutant.local}"
    assert counts["refuted"] > 5


def test_no_mutant_of_a_part_at_a_time_is_proven() -> None:
    made = {f"part {name}": pair for name, pair in parts.on_tensors().items()}
    counts: Counter[str] = Counter()
    for mutant in mutants(40 if DEEP else 15, 5, made):
        found = verdict(mutant)
        counts[found] += 1
        assert found != "proven" or computes_the_same(mutant), f"{mutant.change}:\n{mutant.local}"
    assert counts["refuted"] > (5 if DEEP else 2)


@pytest.mark.parametrize(
    "name", some(["step, uneven", "step, placed", "updated rows", "any length"], 2)
)
def test_no_mutant_of_a_step_or_an_update_is_proven(name: str) -> None:
    f, given, options = recent.cases()[name]
    lowered = mw.jit(f, **options).lower(*given)
    made = {"recent": (lowered.as_text(), lowered.as_text("local"))}
    assert compared(*made["recent"]).status == 0
    for mutant in mutants(8, 2, made):
        found = verdict(mutant)
        assert found != "proven" or computes_the_same(mutant), f"{mutant.change}:\n{mutant.local}"
