"""Several NCCL ranks: on as many GPUs, or sharing those that there are."""

import numpy as np
import pytest
from gpu.programs import RANKS, check


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", RANKS)
def test_ranks_give_what_float64_gives(name: str, dtype: str, bundle_of, load) -> None:
    case = RANKS[name]
    (result,) = load(bundle_of(case, dtype))(*case.arguments(dtype))
    check(case, result, dtype)


def test_a_program_runs_again_on_other_numbers(bundle_of, load) -> None:
    case = RANKS["tensor_parallel"]
    program, given = load(bundle_of(case, "f32")), case.arguments("f32")
    first, again = program(*given)[0], program(*given)[0]
    assert first.tobytes() == again.tobytes()
    (other,) = program(2 * given[0], *given[1:])
    assert np.abs(other - first).max() > 0.1
