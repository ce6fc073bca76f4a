"""No wrong program of one rank is proven: small changes of right ones, from a seed (`mutants.py` runs thousands)."""

from collections import Counter

import pytest
from depth import some
from verify.mutants import computes_the_same, mutants, programs, verdict


@pytest.mark.parametrize("seed", some(range(2), 2))
def test_no_mutant_that_computes_something_else_is_proven(seed: int) -> None:
    counts: Counter[str] = Counter()
    for mutant in mutants(40, seed, programs()):
        found = verdict(mutant)
        counts[found] += 1
        assert found != "proven" or computes_the_same(mutant), f"{mutant.change}:\n{mutant.local}"
    assert counts["refuted"] > 5
