"""Every family of kernels against float64."""

import pytest
from gpu.programs import KERNELS, TOLERANCE, check


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_gives_what_float64_gives(name: str, dtype: str, bundle_of, load) -> None:
    case = KERNELS[name]
    (result,) = load(bundle_of(case, dtype))(*case.arguments(dtype))
    check(case, result, dtype)
