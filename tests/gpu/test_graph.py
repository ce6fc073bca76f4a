"""Steps as CUDA graphs give the bits that steps give."""

import pytest
from gpu.programs import KERNELS, RANKS


@pytest.mark.parametrize("case", [KERNELS["attention"], RANKS["tensor_parallel"]])
def test_a_graph_gives_the_same_bits(case, bundle_of, load, runs_on) -> None:
    if runs_on != "nccl":
        pytest.skip("graphs are of engine nccl")
    bundle, given = bundle_of(case, "f32"), case.arguments("f32")
    assert bundle.manifest.graph
    plain = load(bundle)(*given)[0]
    captured = load(bundle, graph=True)
    for _ in range(4):  # the first time it is not a graph yet
        assert captured(*given)[0].tobytes() == plain.tobytes()
