"""Programs proven case by case: irregular parts, stencils on their own result, edges, permutations of ranks."""

from collections.abc import Callable
from typing import Any

import numpy as np
from verify.pairs import mesh

import meshweave as mw

IRREGULAR = "[x{1,3,0,2}, _]"
PERMUTED = (
    mesh("x=4")
    + """
func.func @main(%a: tensor<8x3xf32> {dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<8x3xf32> {dist.layout = #dist.layout<"[x, _]">}) {
  %first = tensor.extract_slice %a[4, 0] [2, 3] [1, 1] : tensor<8x3xf32> to tensor<2x3xf32>
  %next = tensor.extract_slice %a[0, 0] [4, 3] [1, 1] : tensor<8x3xf32> to tensor<4x3xf32>
  %last = tensor.extract_slice %a[6, 0] [2, 3] [1, 1] : tensor<8x3xf32> to tensor<2x3xf32>
  %r = tensor.concat dim(0) %first, %next, %last
    : (tensor<2x3xf32>, tensor<4x3xf32>, tensor<2x3xf32>) -> tensor<8x3xf32>
  return %r : tensor<8x3xf32>
}""",
    mesh("x=4")
    + """
func.func @main(%a: tensor<2x3xf32> {dist.global = tensor<8x3xf32>, dist.layout = #dist.layout<"[x, _]">})
    -> (tensor<2x3xf32> {dist.global = tensor<8x3xf32>, dist.layout = #dist.layout<"[x, _]">}) {
  %r = "dist.permute"(%a) {axes = ["x"], sources = [2, 0, 1, 3]} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %r : tensor<2x3xf32>
}""",
)
"""Ranks 0, 1 and 2 hand on their rows in turn, rank 3 keeps its own: no sum of digits says that."""


def stencil(times: int) -> Callable[..., Any]:
    def smoothed(u: Any) -> Any:
        for _ in range(times):
            inner = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
            u = u.at[1:-1, 1:-1].set(inner * 0.25)
        return u

    return smoothed


def edges(u: Any) -> Any:
    u = u.at[0].set(u[1]).at[-1].set(u[-2])
    return u.at[:, 0].set(u[:, 1]).at[:, -1].set(u[:, -2])


def red_and_black(u: Any) -> Any:
    u = u.at[1:-1:2, 1:-1].set(u[:-2:2, 1:-1])
    return u.at[2:-1:2, 1:-1].set(u[1:-2:2, 1:-1])


def traced() -> dict[str, tuple[str, str]]:
    """Programs by name."""
    grid: dict[str, Any] = {"mesh": "x=2, y=2", "in_layouts": ("[x, y]",), "out_layouts": "[x, y]"}
    parts: dict[str, Any] = {"mesh": "x=4", "in_layouts": (IRREGULAR,)}
    cases: dict[str, tuple[Callable[..., Any], tuple[int, ...], dict[str, Any]]] = {
        "irregular sum": (lambda a: mw.sum(a, axis=0), (6, 3), parts),
        "irregular maximum": (lambda a: mw.max(a), (6, 3), parts),
        "irregular product": (lambda a: a.T @ a, (6, 3), parts),
        "irregular softmax": (lambda a: mw.nn.softmax(a, axis=0), (6, 3), parts),
        "stencil": (stencil(2), (6, 6), grid),
        "edges": (edges, (5, 6), grid),
        "red and black": (red_and_black, (8, 4), {**grid, "mesh": "x=2, y=1"}),
    }
    found = {"permuted": PERMUTED}
    for name, (f, shape, options) in cases.items():
        lowered = mw.jit(f, **options).lower(np.ones(shape, "f4"))
        found[name] = lowered.as_text(), lowered.as_text("local")
    return found
