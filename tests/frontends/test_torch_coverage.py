"""What models use at inference, each case against torch: on one rank, and with arguments sharded over two and four."""

from typing import Any

import pytest
from depth import FEWER, some

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch_cases  # noqa: E402
import torch_cases_ops  # noqa: E402, F401 (adds its cases)
from torch.utils import _pytree  # noqa: E402

import meshweave as mw  # noqa: E402

MESHES = (None, "x=2", "x=2, y=2")
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


def agree(found: Any, wanted: Any) -> None:
    """Structure, dtypes, shapes, NaNs and infinities are the same, numbers within the tolerance of their dtype."""
    ours, own = _pytree.tree_flatten(found)
    theirs, their = _pytree.tree_flatten(wanted)
    assert own == their
    for one, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if not other.is_floating_point():
            assert torch.equal(one, other)
            continue
        finite = torch.isfinite(other)
        assert torch.equal(one[~finite].nan_to_num(7.0), other[~finite].nan_to_num(7.0))
        assert torch.equal(torch.isnan(one), torch.isnan(other))
        if finite.any():
            scale = max(1.0, float(other[finite].abs().max()))
            apart = float((one.double() - other.double())[finite].abs().max())
            assert apart <= TOLERANCE[other.dtype] * scale


def placements(module: Any, args: Any, mesh: str | None) -> dict[str, str]:
    """On two ranks each argument's rows; on four the first's rows and columns, the last dim of the next, and so on."""
    if mesh is None:
        return {}
    signature = torch.export.export(module, args).graph_signature
    names = [s.arg.name for s in signature.input_specs if s.kind.name == "USER_INPUT"]
    found: dict[str, str] = {}
    for name, value in zip(names, _pytree.tree_leaves(args), strict=True):
        if isinstance(value, torch.Tensor) and value.ndim:
            rest = ["_"] * (value.ndim - 1)
            dims = ["x", *rest]
            if mesh != "x=2":
                both = ["x", "y", *rest][: value.ndim]
                dims = [*rest, "x*y"] if len(found) % 2 else both
            found[name] = f"[{', '.join(dims)}]"
    return found


def check(name: str, mesh: str | None) -> None:
    module, args = torch_cases.CASES[name].make()
    with torch.no_grad():
        wanted = module(*args)
    _, args = torch_cases.CASES[name].make()
    with mw.from_torch(module, args, placements(module, args, mesh), mesh) as program:
        agree(program(*args), wanted)


@pytest.mark.parametrize("name", some(torch_cases.CASES, FEWER))
def test_agrees_with_torch(name: str) -> None:
    """Each case on one of the meshes, by turns; `python tests/frontends/test_torch_coverage.py` runs all on all."""
    check(name, MESHES[list(torch_cases.CASES).index(name) // FEWER % len(MESHES)])


if __name__ == "__main__":
    for every_name in torch_cases.CASES:
        for every_mesh in MESHES:
            print(every_name, every_mesh or "one rank")
            check(every_name, every_mesh)
