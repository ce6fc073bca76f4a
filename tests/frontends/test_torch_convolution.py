"""Transposed convolutions and gradients of convolutions of every kind, against torch."""

import random
from dataclasses import dataclass
from typing import Any

import pytest
from depth import sampled

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import meshweave as mw  # noqa: E402
from meshweave.frontends.torch.decompositions import convolution  # noqa: E402

aten, nn = torch.ops.aten, torch.nn


@dataclass(frozen=True)
class Kind:
    """The operands of a convolution, and its settings."""

    x: Any
    w: Any
    b: Any
    settings: tuple[Any, ...]

    def result(self) -> Any:
        return aten.convolution.default(self.x, self.w, self.b, *self.settings)


def drawn(seed: int, dtype: Any = torch.float64) -> Kind:
    """A convolution with everything that there is, plain or transposed."""
    r = random.Random(seed)
    ndim, groups, transposed = r.choice([1, 2, 2, 3]), r.choice([1, 1, 2, 3]), r.random() < 0.5
    channels, results = groups * r.choice([1, 2, 3]), groups * r.choice([1, 2, 4])

    def numbers(low: int, high: int) -> list[int]:
        return [r.randint(low, high) for _ in range(ndim)]

    window, stride, dilation, padding = numbers(1, 4), numbers(1, 3), numbers(1, 3), numbers(0, 3)
    reach = [(k - 1) * d for k, d in zip(window, dilation)]
    space = [
        n + (0 if transposed else m) for n, m in zip(numbers(4, {1: 12, 2: 8, 3: 5}[ndim]), reach)
    ]
    if transposed:  # something is left when the padding is cut off
        padding = [min(p, m // 2) for p, m in zip(padding, reach)]
    more = [r.randint(0, max(s, d) - 1) if transposed else 0 for s, d in zip(stride, dilation)]
    torch.manual_seed(seed)
    first, second = (channels, results) if transposed else (results, channels)
    return Kind(
        torch.randn(r.choice([1, 2]), channels, *space, dtype=dtype),
        torch.randn(first, second // groups, *window, dtype=dtype),
        torch.randn(results, dtype=dtype),
        (stride, padding, dilation, transposed, more, groups),
    )


def is_plain(kind: Kind) -> bool:
    """Tell whether upstream knows a convolution that is not transposed: groups in three dims it does not."""
    return kind.settings[5] == 1 or kind.w.dim() < 5


@pytest.mark.parametrize("seed", range(80))
def test_every_kind_is_what_it_is_made_of(seed: int) -> None:
    kind = drawn(seed)
    wanted = kind.result()
    made = convolution.convolution(kind.x, kind.w, kind.b, *kind.settings)
    assert (made is NotImplemented) == (not kind.settings[3] and is_plain(kind))
    if made is not NotImplemented:
        torch.testing.assert_close(made, wanted)
    slope = torch.randn_like(wanted)
    given = (slope, kind.x, kind.w, [kind.b.numel()], *kind.settings, [True] * 3)
    for ours, theirs in zip(
        convolution.backward(*given), aten.convolution_backward.default(*given)
    ):
        torch.testing.assert_close(ours, theirs)


class Step(torch.nn.Module):
    """A convolution and its gradients."""

    def __init__(self, settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def forward(self, x: Any, w: Any, b: Any, slope: Any) -> Any:
        sizes = [b.shape[0]]
        out = aten.convolution.default(x, w, b, *self.settings)
        return out, *aten.convolution_backward.default(
            slope, x, w, sizes, *self.settings, [True] * 3
        )


def test_groups_in_three_dims() -> None:
    """Which upstream does not know, plain and transposed, with bf16 rounded once."""
    torch.manual_seed(0)
    layers = (
        nn.Conv3d(4, 6, (3, 2, 1), (2, 1, 1), (1, 0, 2), groups=2),
        nn.ConvTranspose3d(6, 2, 2, groups=2),
    )
    model, x = nn.Sequential(*layers), torch.randn(4, 5, 4, 3)  # without a batch
    with mw.from_torch(model, (x,), {"input": "[_, a, _, _]"}, "a=2") as program:
        torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)
    first, half = model[0].bfloat16(), x.bfloat16()
    with mw.from_torch(first, (half,)) as program:
        wide = first.double()(half.double())
        assert (program(half) - wide).abs().max() <= wide.abs().max() * 2**-8


@sampled(1)
@pytest.mark.parametrize("mesh", [None, "a=3"])
@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_programs(seed: int, mesh: str | None) -> None:
    kind = drawn(seed, torch.float32)
    args = (kind.x.repeat(5, *[1] * (kind.x.dim() - 1)), kind.w, kind.b)
    wanted = aten.convolution.default(*args, *kind.settings)
    args = (*args, torch.randn_like(wanted))
    step = Step(kind.settings)
    rows = {"x": "[a" + ", _" * (kind.x.dim() - 1) + "]"} if mesh else {}
    with mw.from_torch(step, args, mesh=mesh, placements=rows) as program:
        got = program(*args)
        assert not program.program.bundle.manifest.certificate.unproven
    for ours, theirs in zip(got, step(*args)):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))
