"""Quotients, remainders and numbers of Python beside tensors are those of eager PyTorch to the bit."""

from collections.abc import Callable
from typing import Any

import pytest

import meshweave as mw

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Calls(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def check(function: Callable[..., Any], *args: Any) -> None:
    with mw.from_torch(Calls(function), args) as program:
        for got, wanted in zip(program(*args), function(*args), strict=True):
            assert got.dtype == wanted.dtype
            assert torch.equal(got.nan_to_num(7, 8, 9), wanted.nan_to_num(7, 8, 9))


def operands(dtype: Any) -> tuple[Any, Any]:
    """Return random numbers, quotients near whole numbers, and what is infinite, zero or no number."""
    torch.manual_seed(0)
    x, y = 3 * torch.randn(12, 16), torch.randn(12, 16)
    x[0], y[0] = torch.arange(16) * 0.3, 0.3
    x[1], y[1] = torch.arange(16) * 0.1, -0.1
    y[2], x[3], x[4], x[5], x[6] = 0, 0, torch.inf, torch.nan, 1e4
    y[7], y[8] = torch.inf, -torch.inf
    return x.to(dtype), y.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quotients_and_remainders(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        down = torch.div(x, y, rounding_mode="floor"), torch.div(x, 0.3, rounding_mode="floor")
        left = torch.fmod(x, y), torch.fmod(x, -0.7), x % y, torch.remainder(0.3, y)
        return *down, x // y, x // -0.7, torch.div(x, y, rounding_mode="trunc"), *left

    check(function, *operands(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_beside_short_floats(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        compared = x > 0.3, x >= 0.3, x == 0.3, x < 0.3, x <= 0.3, x != 0.3
        divided = x / 0.3, 0.3 / x, torch.div(x, y, rounding_mode="trunc"), torch.fmod(x, y)
        return x * 0.3, x + 0.1, 1 / 3 * x, torch.nn.functional.leaky_relu(x), *divided, *compared

    check(function, *operands(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_constants_beside_whole_numbers(dtype: Any) -> None:
    def function(x: Any) -> Any:
        constants = [torch.full((), value, dtype=dtype) for value in (0.3, -0.7, 1.5)]
        found = [(c < 0, c < -1, c <= 1, c > 1, c == 0, c != 1) for c in constants]
        return [torch.logical_xor(x < 0, one) for row in found for one in row]

    check(function, torch.tensor([0.5, -1.0]))


def of_bytes(a: Any, b: Any) -> Any:
    """Compute with uint8 of which many have their first bit, which is no sign."""
    by, rows = b.clamp(min=1), torch.tensor([5, 1, 7])
    table = torch.arange(256, dtype=torch.float32).unsqueeze(1)
    sums = a + b, a - b, a * b, a // by, a % by, -a, ~a, a & b, a << 2, a >> 3, a.abs(), a**2, 5 - a
    mixed = a + 200, a + 0.5, a / by, a.to(torch.int8) + b, torch.remainder(a, 7), a * a.float()
    orders = (
        a < b,
        a >= 128,
        torch.maximum(a, b),
        a.clamp(50, 200),
        torch.where(a > b, a, b),
        a.sort(1)[0],
    )
    reduced = (
        a.sum(),
        a.sum(0),
        a.cumsum(1),
        *a.max(1),
        a.argmin(1),
        a.any(1),
        (a > 128).sum(),
        a.topk(3)[0],
    )
    casts = (
        a.float() / 255,
        a.long(),
        a.bool(),
        (a.int() * 7 - 300).to(torch.uint8),
        a.float().mean(1),
    )
    moves = a.flip(1), a[rows], torch.cat([a, b], 1), torch.nn.functional.pad(a, (1, 2), value=200)
    put = (
        a.index_put((rows,), b[:3]),
        a.masked_fill(a > 128, 7),
        torch.full((3,), 200, dtype=torch.uint8) + a[:3, 0],
    )
    packed = (
        torch.stack([a & 15, a >> 4], -1).flatten(1) * 0.5,
        torch.nn.functional.embedding(a.long(), table),
    )
    return *sums, *mixed, *orders, *reduced, *casts, *moves, *put, *packed


@pytest.mark.parametrize("mesh", ["", "x=3"])
def test_integers_without_sign(mesh: str) -> None:
    torch.manual_seed(0)
    a, b = (torch.randint(0, 256, (8, 12), dtype=torch.uint8) for _ in range(2))
    rows = {"args_0": "[x, _]"} if mesh else None
    with mw.from_torch(Calls(of_bytes), (a, b), rows, mesh or None) as program:
        found = program(a, b)
    for number, (got, wanted) in enumerate(zip(found, of_bytes(a, b), strict=True)):
        assert got.dtype == wanted.dtype, number
        torch.testing.assert_close(
            got, wanted, rtol=1e-6, atol=1e-6, msg=lambda m, n=number: f"{n}: {m}"
        )


def test_bits_are_taken_for_another_dtype() -> None:
    def function(f: Any, u: Any) -> Any:
        bits = f.view(torch.int32)
        wide = f.double().view(torch.int64), f.bfloat16().view(torch.int16), u.view(torch.int8)
        eight = u.view(torch.float8_e4m3fn).float(), f.to(torch.float8_e5m2).view(torch.uint8)
        few = bits & 7
        beside = bits | 4, 4 ^ bits, 1 << few, 1000 >> few, torch.bitwise_left_shift(few, 2)
        exponent = (bits >> 23 & 255) - 127
        return (
            bits,
            (bits + 1).view(torch.float32),
            exponent,
            *wide,
            *eight,
            *beside,
            (f > 0) | True,
        )

    torch.manual_seed(0)
    check(function, torch.randn(6, 8), torch.randint(0, 127, (6, 8), dtype=torch.uint8))


def test_numbers_of_8_bits_with_scales() -> None:
    def function(x: Any, w: Any, scales: Any, zeros: Any) -> Any:
        kept = torch.fake_quantize_per_channel_affine(x, scales, zeros, 0, -8, 7)
        packed = torch._weight_int8pack_mm(x, w, scales[:4])
        return kept, packed, *torch.frexp(x)

    torch.manual_seed(0)
    x = torch.randn(6, 8) * 10.0 ** torch.randint(-42, 3, (6, 8))
    zeros = torch.randint(-5, 5, (6,), dtype=torch.int32)
    given = x, torch.randint(-128, 128, (4, 8), dtype=torch.int8), torch.rand(6) + 0.1, zeros
    with mw.from_torch(Calls(function), given) as program:
        kept, packed, mantissa, exponent = program(*given)
    right = function(*given)
    assert torch.equal(kept, right[0]) and torch.equal(mantissa, right[2])
    assert torch.equal(exponent, right[3])
    torch.testing.assert_close(packed, right[1])

    def scaled(a: Any, b: Any) -> Any:
        small = [v.to(torch.float8_e4m3fn) for v in (a, b.t())]
        return torch._scaled_mm(
            small[0], small[1].t(), torch.tensor(0.5), torch.tensor(2.0), out_dtype=torch.float32
        )

    a, b = torch.randn(16, 32), torch.randn(32, 16)
    with mw.from_torch(Calls(scaled), (a, b)) as program:
        torch.testing.assert_close(program(a, b), scaled(a, b))


def test_signs_of_integers_and_medians_of_what_is_a_number() -> None:
    def function(i: Any, f: Any) -> Any:
        signs = torch.copysign(i, i.flip(0)), torch.copysign(i, f), torch.copysign(f, -1.0)
        medians = f.nanmedian(), *f.nanmedian(1), f.nanmedian(0, keepdim=True)[0]
        alone = *torch.max(i[0, 0], 0), *torch.min(f[0, 1], 0), *torch.aminmax(f[0, 0], dim=0)
        return *signs, *medians, *alone, torch.empty_strided((2, 3), (1, 2)).fill_(2)

    torch.manual_seed(0)
    f = torch.randn(6, 5)
    f[f > 1], f[2] = torch.nan, torch.nan
    f[2, 3] = 1
    check(function, torch.randint(-9, 9, (6, 5), dtype=torch.int32), f)


def test_what_is_no_number_stays_none_and_is_found() -> None:
    """Upstream takes x == x for true, and of a NaN beside a number makes either, as they come."""

    def function(x: Any, y: Any) -> Any:
        same = x == x, (x + 1) == (x + 1), torch.isclose(x, x), torch.isclose(x, y, equal_nan=True)
        cut = x.clamp(-1, 1), x.clamp(min=0), x.clamp_max(1), torch.clamp(x, y, y + 1)
        active = (
            torch.nn.functional.hardtanh(x),
            torch.nn.functional.relu6(x),
            torch.nn.functional.hardsigmoid(x),
        )
        pairs = torch.maximum(x, y), torch.minimum(x, y), torch.maximum(x, y[0]), torch.fmax(x, y)
        places = x.argmax(1), x.argmin(0), x.argmax(), *x.max(1), *y.min(0, keepdim=True)
        return *same, *cut, *active, *pairs, *places

    torch.manual_seed(0)
    x, y = torch.randn(5, 7), torch.randn(5, 7)
    x[0, 2], x[3], y[1, 1], y[3, :4], x[2, 0], x[2, 3] = (
        torch.nan,
        torch.nan,
        torch.nan,
        torch.nan,
        torch.inf,
        -torch.inf,
    )
    x[4, :3], y[4, 0], y[2, 0] = torch.tensor([0.0, -0.0, 0.0]), 0.0, torch.inf
    check(function, x, y)
    check(function, x.bfloat16(), y.bfloat16())


def test_integers_where_floats_are_more_common() -> None:
    def function(i: Any, e: Any, image: Any) -> Any:
        powers = i**e, torch.pow(3, e), torch.angle(i), torch.isclose(i, i.flip(0))
        pooled = torch.nn.functional.max_pool2d(image, 2, return_indices=True)
        rows = torch.tensor([0, 2, 2])
        kinds = ("prod", "amax", "mean")
        reduced = [
            i.index_reduce(0, rows, i[:3], kind, include_self=kind != "amax") for kind in kinds
        ]
        sums = (
            torch.addmm(i, i[:, :5], i, beta=0.2, alpha=2),
            torch.addmv(i[:, 0], i, i[0], beta=1.9),
        )
        batch = torch.addbmm(i, image[0, :, :5, :5].int(), image[0, :, :5].int(), beta=0.2, alpha=2)
        copies = (
            torch.view_copy(i, (6, 5)),
            torch.permute_copy(i, (1, 0)),
            torch.narrow_copy(i, 0, 1, 2),
        )
        return *powers, *pooled, *reduced, *sums, batch, *copies

    torch.manual_seed(0)
    i = torch.randint(-9, 9, (5, 6), dtype=torch.int32)
    e = torch.randint(0, 12, (5, 6), dtype=torch.int32)
    check(function, i, e, torch.randint(-9, 9, (1, 2, 6, 6)))


def test_bools_that_share_a_place() -> None:
    def function(x: Any, places: Any, y: Any) -> Any:
        kinds = ("sum", "prod", "amax", "amin")
        reduced = [
            x.scatter_reduce(0, places, y, kind, include_self=among)
            for kind in kinds
            for among in (True, False)
        ]
        put = torch.index_put(x, (places,), y, accumulate=True), x.put(places, y, accumulate=True)
        return *reduced, *put, x.scatter_add(0, places, y), x.index_add(0, places, y)

    x, y = (torch.rand(n) > 0.4 for n in (9, 14))
    check(function, x, torch.randint(0, 5, (14,)), y)


def test_gathered_by_one_index_or_of_one_element() -> None:
    def function(x: Any, places: Any) -> Any:
        of_one = x[0].gather(0, places * 0), x[0].gather(0, places[0] * 0)
        return x.gather(0, places[1]), x.gather(-1, places[0]), *of_one

    check(function, torch.randn(5), torch.tensor([2, 4]))


@pytest.mark.parametrize("mesh", [None, "x=2"])
def test_the_most_frequent_element(mesh: str | None) -> None:
    """The smallest of several, and its last place; a NaN is equal to nothing."""
    x = torch.randint(0, 4, (5, 9), generator=torch.Generator().manual_seed(1))
    y = torch.tensor([[torch.nan, 2.0, 1.0, 2.0, torch.nan, torch.nan, torch.nan]])

    def modes(x: Any, y: Any) -> Any:
        return *torch.mode(x, 1), torch.mode(x, 0, keepdim=True).values, torch.mode(y)[0]

    said = {"args_0": "[_, x]"} if mesh else None
    with mw.from_torch(Calls(modes), (x, y), said, mesh) as program:
        values, places, *rest = program(x, y)
    wanted, _, *others = modes(x, y)
    assert torch.equal(values, wanted) and torch.equal(x.gather(1, places[:, None])[:, 0], wanted)
    assert all(torch.equal(a, b) for a, b in zip(rest, others, strict=True))


def test_places_of_nan_in_pools_are_the_last_ones() -> None:
    torch.manual_seed(5)
    pools = torch.nn.functional
    x = torch.randn(2, 4, 5, 6)
    x[torch.rand(x.shape) < 0.3] = torch.nan
    x[1, 0] = -torch.inf

    def function(x: Any) -> Any:
        cubes = pools.max_pool3d(x, 2, padding=1, return_indices=True)
        planes = pools.max_pool2d(x, 3, 2, 1, return_indices=True)
        lines = pools.max_pool1d(x[1], 3, 2, 1, return_indices=True)
        rows = pools.adaptive_max_pool1d(x[0], 4, return_indices=True)
        return (
            *cubes,
            *planes,
            *lines,
            *rows,
            *pools.adaptive_max_pool2d(x, (3, 4), return_indices=True),
        )

    check(function, x)


@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_exponentials_are_as_exact_as_those_of_eager(dim: int) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(33, 7, generator=rng) * 30
    slopes = torch.randn(33, 7, generator=rng)
    made = torch.compile(lambda x: x.logcumsumexp(dim), backend=mw.torch_backend(), dynamic=False)

    def computed(function: Any, dtype: Any) -> list[torch.Tensor]:
        given = x.to(dtype).requires_grad_()
        result = function(given)
        return [result.detach(), *torch.autograd.grad(result, given, slopes.to(dtype))]

    right = computed(lambda x: x.logcumsumexp(dim), torch.float64)
    eager = computed(lambda x: x.logcumsumexp(dim), torch.float32)
    for ours, theirs, exact in zip(computed(made, torch.float32), eager, right, strict=True):
        allowed = 1.2 * float((theirs - exact).abs().max())
        assert float((ours - exact).abs().max()) <= allowed


def test_sums_of_exponentials_of_what_is_no_number_and_of_numbers_far_apart() -> None:
    inf, nan = torch.inf, torch.nan
    rows = [-inf, -inf, 1.0, 2.0, inf, nan], [0.0, -1000.0, 1000.0, 1000.0, -inf, 2.0], [-inf] * 6
    x = torch.tensor(rows)

    def function(x: Any) -> Any:
        last = [one.logcumsumexp(-1) for one in (x, x.half(), x[0], x.double().expand(2, 3, 6))]
        return *last, x.logcumsumexp(0), x[0, 2].logcumsumexp(0), x[:0].logcumsumexp(1)

    check(function, x)
