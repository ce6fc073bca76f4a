"""A pre-norm causal transformer as StableHLO text with Shardy shardings, as JAX exports one, of any size.

Written out here so that benchmarks run where JAX is not installed; `peers/jax_models.py` holds the same model in JAX.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """layers, batch, seq(uence), width, heads, ffn (hidden width of the MLP); f32."""

    layers: int
    batch: int = 1
    seq: int = 512
    width: int = 768
    heads: int = 12
    ffn: int = 3072

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def gemms(self) -> list[tuple[int, int, int, int]]:
        """The matrix products of a layer: (how many, M, N, K)."""
        rows, pairs = self.batch * self.seq, self.batch * self.heads
        return [
            (4, rows, self.width, self.width),
            (pairs, self.seq, self.seq, self.head),
            (pairs, self.seq, self.head, self.seq),
            (1, rows, self.ffn, self.width),
            (1, rows, self.width, self.ffn),
        ]

    @property
    def flops(self) -> int:
        """Floating-point operations of all matrix products of a step."""
        return self.layers * sum(2 * count * m * n * k for count, m, n, k in self.gemms)


def weights(size: Size) -> list[tuple[tuple[int, ...], str]]:
    """Shapes of a layer's parameters and the Megatron sharding of each over axis tp."""
    e, h, d, f = size.width, size.heads, size.head, size.ffn
    heads = [((e, h, d), '{}, {"tp"}, {}')] * 3
    return [
        ((e,), "{}"), ((e,), "{}"), *heads, ((h, d, e), '{"tp"}, {}, {}'),
        ((e,), "{}"), ((e,), "{}"), ((e, f), '{}, {"tp"}'), ((f,), '{"tp"}'), ((f, e), '{"tp"}, {}'), ((e,), "{}"),
    ]  # fmt: skip


def tensor(*shape: int, element: str = "f32") -> str:
    """The type of a tensor."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


class _Text:
    """SSA text under construction."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def op(self, text: str) -> str:
        name = f"%{len(self.lines)}"
        self.lines.append(f"    {name} = stablehlo.{text}")
        return name

    def splat(self, number: str, *shape: int) -> str:
        scalar = self.op(f"constant dense<{number}> : tensor<f32>")
        return self.op(f"broadcast_in_dim {scalar}, dims = [] : (tensor<f32>) -> {tensor(*shape)}")

    def spread(
        self, value: str, have: tuple[int, ...], dims: list[int], want: tuple[int, ...]
    ) -> str:
        return self.op(
            f"broadcast_in_dim {value}, dims = {dims} : ({tensor(*have)}) -> {tensor(*want)}"
        )

    def both(self, name: str, a: str, b: str, *shape: int) -> str:
        return self.op(f"{name} {a}, {b} : {tensor(*shape)}")

    def reduced(self, value: str, how: str, start: str, *shape: int) -> str:
        init = self.op(f"constant dense<{start}> : tensor<f32>")
        last = len(shape) - 1
        return self.op(
            f"reduce({value} init: {init}) applies stablehlo.{how} across dimensions = [{last}] : "
            f"({tensor(*shape)}, tensor<f32>) -> {tensor(*shape[:-1])}"
        )

    def dot(
        self, a: str, ta: str, b: str, tb: str, contract: str, out: str, batch: str = ""
    ) -> str:
        batching = f"batching_dims = {batch}, " if batch else ""
        return self.op(
            f"dot_general {a}, {b}, {batching}contracting_dims = {contract} : ({ta}, {tb}) -> {out}"
        )


def transformer(size: Size, mesh: str = '"dp"=2, "tp"=2') -> str:
    """The module; arguments: x [batch, seq, width], then the parameters of each layer in the order of `weights`."""
    t, arguments = _Text(), [((size.batch, size.seq, size.width), '{"dp"}, {}, {}')]
    for _ in range(size.layers):
        arguments += weights(size)
    x = "%arg0"
    mask = _mask(t, size)
    per_layer = len(weights(size))
    for layer in range(size.layers):
        first = 1 + layer * per_layer
        x = _layer(t, size, x, [f"%arg{first + i}" for i in range(per_layer)], mask)
    given = ", ".join(
        f"%arg{i}: {tensor(*shape)} {{sdy.sharding = #sdy.sharding<@mesh, [{axes}]>}}"
        for i, (shape, axes) in enumerate(arguments)
    )
    out = tensor(size.batch, size.seq, size.width)
    body = "\n".join(t.lines)
    return (
        f"module @transformer {{\n  sdy.mesh @mesh = <[{mesh}]>\n"
        f"  func.func public @main({given}) -> ({out} {{sdy.sharding = #sdy.sharding<@mesh, "
        f'[{{"dp"}}, {{}}, {{}}]>}}) {{\n{body}\n    return {x} : {out}\n  }}\n}}\n'
    )


def _mask(t: _Text, size: Size) -> str:
    """The causal mask, [seq, seq] of i1."""
    ints = tensor(size.seq, size.seq, element="i32")
    rows, columns = (t.op(f"iota dim = {d} : {ints}") for d in (0, 1))
    return t.op(
        f"compare GE, {rows}, {columns}, SIGNED : ({ints}, {ints}) -> {tensor(size.seq, size.seq, element='i1')}"
    )


def _norm(t: _Text, size: Size, x: str, gain: str, bias: str) -> str:
    full, rows, one = (
        (size.batch, size.seq, size.width),
        (size.batch, size.seq),
        (size.batch, size.seq, 1),
    )

    def mean(value: str) -> str:
        total = t.spread(t.reduced(value, "add", "0.0", *full), rows, [0, 1], one)
        return t.both("divide", total, t.splat(f"{float(size.width)}", *one), *one)

    centred = t.both("subtract", x, t.spread(mean(x), one, [0, 1, 2], full), *full)
    variance = mean(t.both("multiply", centred, centred, *full))
    scale = t.op(
        f"rsqrt {t.both('add', variance, t.splat('1.0e-05', *one), *one)} : {tensor(*one)}"
    )
    y = t.both("multiply", centred, t.spread(scale, one, [0, 1, 2], full), *full)
    for name, parameter in (("multiply", gain), ("add", bias)):
        row = t.spread(parameter, (size.width,), [2], (1, 1, size.width))
        y = t.both(name, y, t.spread(row, (1, 1, size.width), [0, 1, 2], full), *full)
    return y


def _layer(t: _Text, size: Size, x: str, w: list[str], mask: str) -> str:
    b, s, e, h, d, f = size.batch, size.seq, size.width, size.heads, size.head, size.ffn
    full, act = (b, s, e), tensor(b, s, e)
    y = _norm(t, size, x, w[0], w[1])
    heads = []
    for parameter in w[2:5]:
        p = t.dot(y, act, parameter, tensor(e, h, d), "[2] x [0]", tensor(b, s, h, d))
        heads.append(
            t.op(
                f"transpose {p}, dims = [0, 2, 1, 3] : ({tensor(b, s, h, d)}) -> {tensor(b, h, s, d)}"
            )
        )
    q, k, v = heads
    context = _attention(t, size, q, k, v, mask)
    context = t.op(
        f"transpose {context}, dims = [0, 2, 1, 3] : ({tensor(b, h, s, d)}) -> {tensor(b, s, h, d)}"
    )
    projected = t.dot(context, tensor(b, s, h, d), w[5], tensor(h, d, e), "[2, 3] x [0, 1]", act)
    x = t.both("add", x, projected, *full)
    y = _norm(t, size, x, w[6], w[7])
    hidden = t.dot(y, act, w[8], tensor(e, f), "[2] x [0]", tensor(b, s, f))
    hidden = t.both("add", hidden, _row(t, w[9], f, (b, s, f)), b, s, f)
    hidden = _gelu(t, hidden, (b, s, f))
    out = t.dot(hidden, tensor(b, s, f), w[10], tensor(f, e), "[2] x [0]", act)
    out = t.both("add", out, _row(t, w[11], e, full), *full)
    return t.both("add", x, out, *full)


def _row(t: _Text, value: str, n: int, want: tuple[int, ...]) -> str:
    return t.spread(t.spread(value, (n,), [2], (1, 1, n)), (1, 1, n), [0, 1, 2], want)


def _attention(t: _Text, size: Size, q: str, k: str, v: str, mask: str) -> str:
    b, s, h, d = size.batch, size.seq, size.heads, size.head
    part, full = tensor(b, h, s, d), (b, h, s, s)
    scores = t.dot(q, part, k, part, "[3] x [3]", tensor(*full), "[0, 1] x [0, 1]")
    scores = t.both("multiply", scores, t.splat(f"{d**-0.5:.9e}", *full), *full)
    seen = t.op(
        f"broadcast_in_dim {mask}, dims = [2, 3] : ({tensor(s, s, element='i1')}) -> {tensor(*full, element='i1')}"
    )
    scores = t.op(
        f"select {seen}, {scores}, {t.splat('-1.0e+09', *full)} : {tensor(*full, element='i1')}, {tensor(*full)}"
    )
    one = (b, h, s, 1)
    top = t.spread(t.reduced(scores, "maximum", "0xFF800000", *full), (b, h, s), [0, 1, 2], one)
    shifted = t.both("subtract", scores, t.spread(top, one, [0, 1, 2, 3], full), *full)
    raised = t.op(f"exponential {shifted} : {tensor(*full)}")
    total = t.spread(t.reduced(raised, "add", "0.0", *full), (b, h, s), [0, 1, 2], one)
    weights_ = t.both("divide", raised, t.spread(total, one, [0, 1, 2, 3], full), *full)
    return t.dot(weights_, tensor(*full), v, part, "[3] x [2]", part, "[0, 1] x [0, 1]")


def _gelu(t: _Text, x: str, shape: tuple[int, ...]) -> str:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as jax.nn.gelu."""
    cube = t.both("multiply", t.both("multiply", x, x, *shape), x, *shape)
    inner = t.both("multiply", t.splat("4.471500e-02", *shape), cube, *shape)
    inner = t.both(
        "multiply", t.splat("7.978845830e-01", *shape), t.both("add", x, inner, *shape), *shape
    )
    outer = t.both("add", t.splat("1.0", *shape), t.op(f"tanh {inner} : {tensor(*shape)}"), *shape)
    return t.both("multiply", x, t.both("multiply", t.splat("0.5", *shape), outer, *shape), *shape)
