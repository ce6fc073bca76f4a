"""No wrong plan of memory is proven: small changes of right ones, from a seed (`buffer_mutants.py` runs thousands)."""

from collections import Counter

import pytest
from depth import sampled, some
from verify.buffer_mutants import CHANGES, Change, computes_the_same, mutants, programs, verdict


@sampled(4)
@pytest.mark.parametrize("change", some(CHANGES, 3), ids=lambda c: c.__name__)
def test_no_mutant_that_computes_something_else_is_proven(change: Change) -> None:
    counts: Counter[str] = Counter()
    for mutant in mutants(50, 1, programs(), (change,)):
        found = verdict(mutant)
        counts[found] += 1
        assert found != "proven" or computes_the_same(mutant), f"{mutant.change}:\n{mutant.buffers}"
    assert counts["refuted"] + counts["unproven"] + counts["refused"] > 0, counts
