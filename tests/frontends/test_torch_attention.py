"""PyTorch's attention is `flash`, whichever mask it has, and as torch.export decomposes it too."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import meshweave as mw  # noqa: E402
from tests.frontends.test_torch_hints import kernels_of  # noqa: E402

ROWS, COLUMNS, SIZE = 200, 264, 16
SEEN = torch.ones(ROWS, COLUMNS, dtype=torch.bool).tril(40)


class Attention(torch.nn.Module):
    """One call of PyTorch's, with a mask or causal."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, **self.options
        )


def given(dtype: Any = torch.float32, columns: int = COLUMNS) -> tuple[Any, ...]:
    torch.manual_seed(0)
    sizes = ((ROWS, SIZE), (columns, SIZE), (columns, SIZE))
    return tuple(torch.randn(2, 3, *size).to(dtype) for size in sizes)


def with_empty_rows() -> Any:
    mask = SEEN.clone()
    mask[[0, 7, 64, 199]] = False
    return mask


MASKS = {
    "none": None,
    "booleans": SEEN,
    "of each batch": SEEN.repeat(2, 1, 1, 1),
    "rows that nothing is left of": with_empty_rows(),
    "numbers": torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1)),
    "infinite numbers": torch.zeros(ROWS, COLUMNS).masked_fill(~with_empty_rows(), float("-inf")),
}


def check(source: Any, args: tuple[Any, ...], wanted: Any, tolerance: float = 2e-5) -> None:
    with mw.from_torch(source, args) as program:
        assert "flash" in kernels_of(program)
        found = program(*args)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found.double(), wanted.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str, decomposed: bool) -> None:
    args = given() if MASKS[name] is None else (*given(), MASKS[name])
    source: Any = Attention()
    wanted = source(*args)
    if name in ("rows that nothing is left of", "infinite numbers"):
        assert not wanted[:, :, 7].any()  # torch gives 0, not 0/0
    if decomposed:
        source = torch.export.export(source, args).run_decompositions()
    check(source, args, wanted)


@pytest.mark.parametrize("decomposed", [False, True])
def test_causal(decomposed: bool) -> None:
    args, source = given(columns=ROWS), Attention(is_causal=True, scale=0.3)
    wanted = source(*args)
    check(
        torch.export.export(source, args).run_decompositions() if decomposed else source,
        args,
        wanted,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_small_floats(dtype: Any, causal: bool) -> None:
    args, source = given(dtype, ROWS), Attention(is_causal=causal)
    wanted = source(*(x.double() for x in args)).to(dtype)
    check(source, args, wanted, 2e-3 if dtype == torch.float16 else 2e-2)


class Attentions(torch.nn.Module):
    """Calls of PyTorch's with each kind of mask."""

    def forward(self, q: Any, k: Any, v: Any, seen: Any, bias: Any) -> Any:
        attend = torch.nn.functional.scaled_dot_product_attention
        return (
            attend(q, k, v),
            attend(q, k, v, is_causal=True),
            attend(q, k, v, seen),
            attend(q, k, v, bias),
        )


@pytest.mark.parametrize(
    ("dtype", "decomposed"),
    [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float16, False)],
)
def test_scores_of_small_floats_are_not_rounded(dtype: Any, decomposed: bool) -> None:
    draw = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, 3, n, SIZE, generator=draw).to(dtype) for n in (9, 11, 11))
    bias = torch.randn(2, 1, 9, 11, generator=draw).to(dtype)
    # Scores of up to 30: a rounded one shifts its weight by an eighth.
    args, source = (4 * q, 4 * k, v, bias > -1, bias), Attentions()
    exact = source(*(x.double() if x.is_floating_point() else x for x in args))
    eager = source(*args)
    given: Any = torch.export.export(source, args).run_decompositions() if decomposed else source
    with mw.from_torch(given, args) as program:
        for found, theirs, right in zip(program(*args), eager, exact, strict=True):
            error, allowed = (found.double() - right).abs(), (theirs.double() - right).abs()
            assert error.mean() <= 1.1 * allowed.mean() and error.max() <= 1.5 * allowed.max()
