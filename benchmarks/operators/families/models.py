"""Forms that models bring, in the sizes that they bring them: seven columns, one row, 197 tokens, images of 223x225."""

from __future__ import annotations

from typing import Any

from benchmarks.operators.case import Case, Function, Split, both, dp, nbytes

FAMILY = "models"


def _case(name: str, arguments: tuple[str, ...], jax: Function, torch: Function) -> Case:
    return Case(FAMILY, f"{name} {arguments[0]}", arguments, jax, torch)


def _alike(name: str, arguments: tuple[str, ...], written: Function) -> Case:
    return Case(FAMILY, f"{name} {arguments[0]}", arguments, **both(written))


def _partition(np: Any, x: Any) -> Any:
    """Cut an image of Swin into windows of 7x7."""
    parts = x.reshape(1, 8, 7, 8, 7, 96)
    return np.moveaxis(parts, 2, 3).reshape(64, 49, 96)


def _shuffle(np: Any, x: Any) -> Any:
    """Make an image twice as wide and high from four times the channels."""
    parts = np.moveaxis(x.reshape(1, 16, 2, 2, 28, 28), (2, 3), (3, 5))
    return parts.reshape(1, 16, 56, 56)


def _boxes(np: Any, a: Any, b: Any) -> Any:
    """Compute how much each of some boxes overlaps with each of others."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    sides = np.clip(high - low, 0, None)
    areas = [(x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1]) for x in (a, b)]
    shared = sides[..., 0] * sides[..., 1]
    return shared / (areas[0][:, None] + areas[1][None] - shared + 1e3)


def _rotated(np: Any, x: Any, c: Any, s: Any) -> Any:
    """Turn neighbouring numbers of each head."""
    a, b = x[..., ::2], x[..., 1::2]
    return np.stack([a * c - b * s, a * s + b * c], -1).reshape(x.shape)


def _merged(np: Any, x: Any) -> Any:
    """Put the four neighbours of each square of an image of Swin side by side."""
    squares = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
    return np.concatenate(squares, -1)


def _pad(mode: str, torchs: str, by: tuple[int, ...] = ()) -> Case:
    widths = ((0, 0), (0, 0), (3, 3), (3, 3))
    image = "f32[1,3,223,225]"
    return Case(
        FAMILY,
        f"pad by {mode} {image}{', gradient' if by else ''}",
        (image, "f32[1,3,229,231]") if by else (image,),
        lambda jax, x: jax.numpy.pad(x, widths, mode),
        lambda torch, x: torch.nn.functional.pad(x, (3, 3, 3, 3), torchs),
        gradient=by,
    )


def _sampled(jax: Any, x: Any, grid: Any) -> Any:
    """Read an image between its points, at places from -1 to 1, zeros beyond, as grid_sample does."""
    np, (count, height, width) = jax.numpy, x.shape[:3]
    across, down = (grid[..., 0] + 1) * (width - 1) / 2, (grid[..., 1] + 1) * (height - 1) / 2
    left, top = np.floor(across).astype(int), np.floor(down).astype(int)
    right_share, low_share = across - left, down - top
    image = np.arange(count)[:, None, None]

    def at(row: Any, column: Any, share: Any) -> Any:
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        row, column = np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)
        return np.where(inside[..., None], x[image, row, column], 0) * share[..., None]

    return (
        at(top, left, (1 - right_share) * (1 - low_share))
        + at(top, left + 1, right_share * (1 - low_share))
        + at(top + 1, left, (1 - right_share) * low_share)
        + at(top + 1, left + 1, right_share * low_share)
    )


def _sampling(by: tuple[int, ...] = ()) -> Case:
    arguments = ("f32[2,31,33,3]", "f32[2,17,19,2]")
    return Case(
        FAMILY,
        f"grid sample of {arguments[0]}{', gradient' if by else ''}",
        (*arguments, "f32[2,17,19,3]") if by else arguments,
        _sampled,
        lambda torch, x, grid: torch.nn.functional.grid_sample(
            x.permute(0, 3, 1, 2), grid, align_corners=True
        ).permute(0, 2, 3, 1),
        gradient=by,
    )


def _recurrence(jax: Any, decay: Any, x: Any) -> Any:
    """Compute h = decay * h + x along the first dim, as state space models do."""

    def joined(one: Any, other: Any) -> Any:
        return one[0] * other[0], one[1] * other[0] + other[1]

    return jax.lax.associative_scan(joined, (decay / 4, x))[1]


def _frames(jax: Any, x: Any) -> Any:
    """Cut sound into windows that overlap."""
    np = jax.numpy
    return x[np.arange(98)[:, None] * 160 + np.arange(400)]


_WIDTHS = (3, 5, 7, 16, 32, 1, 9, 64, 11, 2, 8, 30)
_HEAD = ("f32[1,197,8,64]", "f32[197,1,32]", "f32[197,1,32]")

CASES = (
    _alike("windows of", ("f32[1,56,56,96]",), _partition),
    _alike("pixel shuffle of", ("f32[1,64,28,28]",), _shuffle),
    _alike("overlap of boxes", ("f32[300,4]", "f32[301,4]"), _boxes),
    _alike("rotation of neighbours", _HEAD, _rotated),
    _alike("four squares of", ("f32[1,56,56,96]",), _merged),
    _alike("every second of", ("f32[8,224,224]",), lambda np, x: x[:, ::2, ::2] * 1.0),
    _pad("reflect", "reflect"),
    _pad("edge", "replicate"),
    _pad("wrap", "circular"),
    *(_pad(*modes, by=(0,)) for modes in (("reflect", "reflect"), ("wrap", "circular"))),
    _sampling(),
    _sampling((0, 1)),
    _case("quarter turn of", ("f32[301,257]",),
          lambda jax, x: jax.numpy.rot90(x) * 1.0, lambda torch, x: torch.rot90(x) * 1.0),
    Case(FAMILY, "recurrence by associative_scan f32[1001,16]", ("f32[1001,16]+", "f32[1001,16]"),
         _recurrence, dp=dp(("f32[1001,16]", "f32[1001,16]"), bound=nbytes("f32[2,16]"))),
    Case(FAMILY, "cumulative logsumexp of f32[64,1001]", ("f32[64,1001]",),
         lambda jax, x: jax.lax.cumlogsumexp(x, 1), lambda torch, x: torch.logcumsumexp(x, 1),
         tp=Split(("[_, x]",), nbytes("f32[64]"))),
    _case("concatenate 12 columns", tuple(f"f32[64,{n}]" for n in _WIDTHS),
          lambda jax, *x: jax.numpy.concatenate(x, 1), lambda torch, *x: torch.cat(x, 1)),
    _case("concatenate 12 rows", tuple(f"f32[{n},64]" for n in _WIDTHS),
          lambda jax, *x: jax.numpy.concatenate(x, 0), lambda torch, *x: torch.cat(x, 0)),
    _case("softmax of", ("f32[10007,7]",),
          lambda jax, x: jax.nn.softmax(x, 1), lambda torch, x: torch.softmax(x, 1)),
    _case("softmax of", ("bf16[1,30522]",),
          lambda jax, x: jax.nn.softmax(x, 1), lambda torch, x: torch.softmax(x, 1)),
    _case("masked softmax of", ("f32[8,3,197,197]", "bool[197,197]"),
          lambda jax, x, m: jax.nn.softmax(jax.numpy.where(m, x, -1e9), -1),
          lambda torch, x, m: torch.softmax(x.masked_fill(~m, -1e9), -1)),
    _case("cumsum along 1 of", ("f32[100000,8]",),
          lambda jax, x: jax.numpy.cumsum(x, 1), lambda torch, x: torch.cumsum(x, 1)),
    _case("cumprod along 1 of", ("f32[100000,7]",),
          lambda jax, x: jax.numpy.cumprod(x, 1), lambda torch, x: torch.cumprod(x, 1)),
    _case("cummax of", ("f32[100003]",),
          lambda jax, x: jax.lax.cummax(x), lambda torch, x: torch.cummax(x, 0)[0]),
    _case("max along 1 of", ("i32[10007,7]",),
          lambda jax, x: x.max(1), lambda torch, x: x.amax(1)),
    _case("gated half of", ("f32[7,1536]",),
          lambda jax, x: jax.nn.glu(x), lambda torch, x: torch.nn.functional.glu(x)),
    _case("silu of", ("f16[197,769]",),
          lambda jax, x: jax.nn.silu(x), lambda torch, x: torch.nn.functional.silu(x)),
    _case("product with sums of int32 of", ("i8[128,512]", "i8[512,512]"),
          lambda jax, x, w: jax.lax.dot(x, w, preferred_element_type=jax.numpy.int32),
          lambda torch, x, w: torch._int_mm(x, w)),
    _alike("product of", ("i32[127,129]", "i32[129,65]"), lambda np, x, w: x @ w),
    _alike("product of", ("f64[1000,7]", "f64[7,7]"), lambda np, x, w: x @ w),
    _alike("products of", ("f32[12,197,64]", "f32[12,64,197]"), lambda np, a, b: a @ b),
    _case("gather along 1 of", ("f32[64,1000]", "i32[64,5]<1000"),
          lambda jax, x, i: jax.numpy.take_along_axis(x, i, 1),
          lambda torch, x, i: torch.gather(x, 1, i.long())),
    _case("five largest hit of", ("f32[64,1000]", "i32[64]<1000"),
          lambda jax, x, y: (jax.lax.top_k(x, 5)[1] == y[:, None]).any(1).mean(),
          lambda torch, x, y: (torch.topk(x, 5)[1] == y[:, None]).any(1).float().mean()),
    *(_case("exact gelu of", (f"{kind}[512,1024]",),
            lambda jax, x: jax.nn.gelu(x, approximate=False),
            lambda torch, x: torch.nn.functional.gelu(x)) for kind in ("f32", "bf16")),
    _case("concatenate 24", ("f32[16,64]",) * 24,
          lambda jax, *x: jax.numpy.concatenate(x, 1), lambda torch, *x: torch.cat(x, 1)),
    _alike("stack 32", ("f32[]",) * 32, lambda np, *x: np.stack(x)),
    *(_alike("short sum of", (f"{kind}[16384]",) * 2, lambda np, x, y: x + y)
      for kind in ("i8", "i16", "f16", "f32")),
    _alike("remainder by 7 of", ("i32[512,1024]",), lambda np, x: x % 7),
    _alike("larger of", ("i64[512,1024]", "i64[512,1024]"), lambda np, x, y: np.maximum(x, y)),
    _alike("mean of columns of", ("f32[100000,3]",), lambda np, x: x.mean(0)),
    _case("log softmax of columns of", ("f32[1000,512]",),
          lambda jax, x: jax.nn.log_softmax(x, 0), lambda torch, x: torch.log_softmax(x, 0)),
    _case("numbers of bytes of", ("u8[4,224,224,3]",),
          lambda jax, x: x.transpose(0, 3, 1, 2).astype("float32") / 255,
          lambda torch, x: (x.permute(0, 3, 1, 2).float() / 255).contiguous()),
    _case("twice as large", ("f32[4,32,32,16]",),
          lambda jax, x: jax.image.resize(x, (4, 64, 64, 16), "bilinear"),
          lambda torch, x: torch.nn.functional.interpolate(
              x.permute(0, 3, 1, 2), scale_factor=2, mode="bilinear").permute(0, 2, 3, 1)),
    _case("half as large", ("f32[1,3,224,224]",),
          lambda jax, x: jax.image.resize(x, (1, 3, 112, 112), "bilinear"),
          lambda torch, x: torch.nn.functional.interpolate(
              x, scale_factor=0.5, mode="bilinear", antialias=True)),
    _case("place of the largest of short rows of", ("f32[65536,7]",),
          lambda jax, x: x.argmax(1), lambda torch, x: x.argmax(1)),
    _case("the largest by selection of", ("f32[1000,1000]",),
          lambda jax, x: jax.lax.top_k(x, 1), lambda torch, x: x.topk(1)),
    _alike("every other row and third column of", ("f32[1001,1003]",), lambda np, x: x[::2, 1::3] * 1.0),
    _case("rolled by one along 1", ("f32[64,1001]",),
          lambda jax, x: jax.numpy.roll(x, 1, 1), lambda torch, x: torch.roll(x, 1, 1)),
    _case("frames of 400, each 160, of", ("f32[16000]",), _frames,
          lambda torch, x: x.unfold(0, 400, 160).contiguous()),
    _case("five largest of", ("f32[8,1001]",),
          lambda jax, x: jax.lax.top_k(x, 5), lambda torch, x: tuple(x.topk(5))),
    _case("numbers of columns of", ("i8[511,1023]", "f32[1023]"),
          lambda jax, q, s: q.astype(s.dtype) * s, lambda torch, q, s: q.float() * s),
    _case("where the mask is, bytes of", ("i8[513,1025]", "i8[513,1025]", "bool[513,1025]"),
          lambda jax, x, y, m: jax.numpy.where(m, x, y), lambda torch, x, y, m: torch.where(m, x, y)),
    _case("max of columns of", ("i8[513,1025]",),
          lambda jax, x: x.max(0), lambda torch, x: x.amax(0)),
    _case("any of rows of", ("bool[1024,1023]",),
          lambda jax, x: x.any(1), lambda torch, x: x.any(1)),
    _case("places counted by cumsum of", ("bool[8,511]",),
          lambda jax, x: jax.numpy.cumsum(x.astype("int32"), 1),
          lambda torch, x: x.cumsum(1, dtype=torch.int32)),
    _case("halves of bytes of", ("u8[1024,511]",),
          lambda jax, x: jax.numpy.stack([x & 15, x >> 4], -1).reshape(1024, 1022),
          lambda torch, x: torch.stack([x & 15, x >> 4], -1).reshape(1024, 1022)),
    _case("heads to the front of", ("f32[8,197,12,64]",),
          lambda jax, x: x.transpose(0, 2, 1, 3), lambda torch, x: x.transpose(1, 2).contiguous()),
    _case("heads repeated 4 times of", ("f32[1,4,511,64]",),
          lambda jax, x: jax.numpy.repeat(x, 4, 1), lambda torch, x: x.repeat_interleave(4, 1)),
    *(_case("attention of one query of", (f"{kind}[1,8,1,64]", *(f"{kind}[1,8,511,64]",) * 2),
            lambda jax, q, k, v: jax.nn.softmax(q @ k.swapaxes(-1, -2) / 8) @ v,
            lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v))
      for kind in ("f32", "bf16")),
    _case("softmax of", ("bf16[12,197,197]",),
          lambda jax, x: jax.nn.softmax(x), lambda torch, x: torch.softmax(x, -1)),
    _case("causal convolution by 4 of", ("f32[1,512,1001]", "f32[512,1,4]"),
          lambda jax, x, k: jax.lax.conv_general_dilated(x, k, (1,), [(3, 0)], feature_group_count=512),
          lambda torch, x, k: torch.nn.functional.conv1d(
              torch.nn.functional.pad(x, (3, 0)), k, groups=512)),
)  # fmt: skip
