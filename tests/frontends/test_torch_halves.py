"""Ops on 16-bit floats lie as near to f64 as those of eager PyTorch: they are computed in f32, and rounded once."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import meshweave as mw  # noqa: E402


class Ops(nn.Module):
    """Compute what upstream rounds in between."""

    def forward(self, x: Tensor, w: Tensor, b: Tensor, image: Tensor) -> dict[str, Tensor]:
        place = torch.arange(64) % 7
        return {
            "linear": F.linear(x, w, b),
            "linear of three dims": F.linear(x.reshape(4, 16, 32), w, b),
            "addmm": torch.addmm(b, x, w.t(), beta=-0.7, alpha=1.7),
            "addmv": torch.addmv(x[:, 0], x, w[0], alpha=1.7),
            "bilinear": F.bilinear(x[:, :4], x[:, 4:8], w[:, :16].reshape(48, 4, 4)),
            "rms_norm": F.rms_norm(x, (32,), w[0]),
            "norm": torch.linalg.vector_norm(x, 3, -1),
            "elu": F.elu(x),
            "selu": F.selu(x),
            "gelu": F.gelu(x),
            "avg_pool": F.avg_pool2d(image, 3),
            "index_add": torch.zeros(7, 32, dtype=x.dtype).index_add(0, place, x),
            "scatter_add": torch.zeros(7, 32, dtype=x.dtype).scatter_add(
                0, place.unsqueeze(-1).expand(64, 32), x
            ),
            "embedding_bag": F.embedding_bag(place.reshape(4, 16), w, mode="mean"),
        }


def far(found: Any, wanted: Any) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    ("kind", "mesh", "x"), [(torch.bfloat16, "x=2", "[_, x]"), (torch.float16, None, None)]
)
def test_they_are_as_near_as_eager(kind: Any, mesh: str | None, x: str | None) -> None:
    torch.manual_seed(0)
    shapes = (64, 32), (48, 32), (48,), (2, 3, 12, 12)
    given = [torch.randn(shape).to(kind) for shape in shapes]
    given[2] *= 9  # a bias that rounds more than the product does
    module = Ops().eval()
    exact, eager = module(*[value.double() for value in given]), module(*given)
    placements = {"x": x} if x else None
    with mw.from_torch(module, tuple(given), mesh=mesh, placements=placements) as program:
        found = program(*given)
    for name, value in exact.items():
        assert found[name].dtype == kind
        assert far(found[name], value) <= 1.1 * far(eager[name], value), name
