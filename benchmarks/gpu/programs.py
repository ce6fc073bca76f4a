"""Programs for GPUs, written once for meshweave and for NumPy: what the tests run and the benchmark times."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_INFINITIES = {
    "bf16": {"0x7F800000": "0x7F80", "0xFF800000": "0xFF80"},
    "f16": {"0x7F800000": "0x7C00", "0xFF800000": "0xFC00"},
}

Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """A program. function(xp, *arrays): in terms that meshweave and NumPy have both; mesh and layouts:
    where it is to run, and where its arguments and its result lie.
    """

    name: str
    function: Function
    shapes: tuple[tuple[int, ...], ...]
    mesh: str = "x=1"
    layouts: tuple[str, ...] = ()
    result: str | None = None

    def text(self, dtype: str) -> str:
        """The program, in MLIR."""
        import meshweave as mw

        sizes = dict(pair.split("=") for pair in self.mesh.replace(" ", "").split(","))
        layouts = self.layouts or tuple(f"[{', '.join('_' * len(s))}]" for s in self.shapes)
        jitted = mw.jit(
            lambda *arrays: self.function(mw, *arrays),
            mesh=mw.Mesh(**{name: int(size) for name, size in sizes.items()}),
            in_layouts=layouts,
            out_layouts=self.result,
        )
        text = jitted.lower(*(np.zeros(s, np.float32) for s in self.shapes)).as_text()
        if dtype == "f32":
            return text
        for infinity, bits in _INFINITIES[dtype].items():  # constants that are given by their bits
            text = text.replace(infinity, bits)
        return text.replace("f32", dtype)

    def build(self, dtype: str, engine: str, chip: str, kernels: str | None = None) -> Any:
        """Its bundle; kernels: as for meshweave.compile."""
        from meshweave.api.program import build

        return build(self.text(dtype), name=self.name, engine=engine, chip=chip, kernels=kernels)

    def arguments(self, dtype: str) -> list[np.ndarray]:
        """Normal numbers that the type holds."""
        rng = np.random.default_rng(len(self.name))
        values = [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes]
        return [rounded(value, dtype) for value in values]

    def sampled(self, dtype: str) -> list[np.ndarray]:
        """Like `arguments`, made soon however large: a sample of normal numbers, over and over."""
        rng = np.random.default_rng(len(self.name))
        some = rounded(rng.standard_normal(999_983).astype(np.float32), dtype)
        return [np.resize(np.roll(some, i), shape) for i, shape in enumerate(self.shapes)]

    def expected(self, dtype: str) -> np.ndarray:
        """What float64 gives."""
        return self.function(np, *(a.astype(np.float64) for a in self.arguments(dtype)))


def rounded(value: np.ndarray, dtype: str) -> np.ndarray:
    """Values that the type holds, in a type that NumPy has."""
    if dtype == "bf16":
        bits = value.view(np.uint32).astype(np.uint64)
        up = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
        return up.astype(np.uint32).view(np.float32)
    return value.astype(np.float16) if dtype == "f16" else value


def softmax(xp: Any, x: Any) -> Any:
    """Over the last dim."""
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def norm(xp: Any, x: Any, scale: Any, bias: Any) -> Any:
    """Layer norm over the last dim."""
    apart = x - xp.mean(x, axis=-1, keepdims=True)
    spread = xp.mean(apart * apart, axis=-1, keepdims=True)
    return apart / xp.sqrt(spread + 1e-5) * scale + bias


def gelu(xp: Any, x: Any) -> Any:
    """The tanh approximation."""
    return x * (0.5 * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def attention(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """Of heads x positions x width."""
    scores = q @ xp.permute_dims(k, (0, 2, 1)) / q.shape[-1] ** 0.5
    return softmax(xp, scores) @ v


def mlp(xp: Any, x: Any, up: Any, down: Any) -> Any:
    """Two products, gelu between them; weights are scaled so that numbers stay of size one."""
    return gelu(xp, x @ up / up.shape[0] ** 0.5) @ down / down.shape[0] ** 0.5


def cases(pairs: Sequence[tuple[str, Function, Sequence[tuple[int, ...]]]]) -> dict[str, Case]:
    """Programs of one rank by name."""
    return {name: Case(name, function, tuple(shapes)) for name, function, shapes in pairs}


HEADS = 32


def block(
    xp: Any, x: Any, b1: Any, b2: Any, g1: Any, g2: Any, qkv: Any, out: Any, up: Any, down: Any
) -> Any:
    """A transformer block of batch x positions x width; weights are scaled so that numbers stay of
    size one.
    """
    batch, positions, width = x.shape
    head = width // HEADS
    parts = xp.reshape(norm(xp, x, g1, b1) @ qkv / width**0.5, (batch, positions, 3, HEADS, head))
    parts = xp.permute_dims(parts, (2, 0, 3, 1, 4))
    q, k, v = (xp.reshape(parts[i], (batch * HEADS, positions, head)) for i in range(3))
    mixed = xp.reshape(attention(xp, q, k, v), (batch, HEADS, positions, head))
    x = x + xp.reshape(xp.permute_dims(mixed, (0, 2, 1, 3)), x.shape) @ out / width**0.5
    return x + mlp(xp, norm(xp, x, g2, b2), up, down)
