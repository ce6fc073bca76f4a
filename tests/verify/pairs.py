"""Whole programs beside the programs of one rank that the passes make of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshweave.dialects import lent_context
from meshweave.frontends.load import load_module
from meshweave.ir.bindings import ir
from meshweave.ir.locations import parse_module
from meshweave.pipeline import run_pipeline
from meshweave.transforms.base import copied
from meshweave.verification.answer import Answer
from meshweave.verification.check import verify

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@contextmanager
def pair(text: str, pipeline: str = "dist-pipeline") -> Iterator[tuple[ir.Module, ir.Module]]:
    """The program, and what the passes make of it, in one context."""
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        whole = load_module(text, ctx, "whole")
        local = copied(whole)
        run_pipeline(local, pipeline)
        yield whole, local


def answer(text: str, pipeline: str = "dist-pipeline") -> Answer:
    """What the check says of a program that the passes have cut."""
    with pair(text, pipeline) as (whole, local):
        return verify(whole, local)


def texts(text: str) -> tuple[str, str]:
    """The program in the view of whole tensors, and the program of one rank."""
    with pair(text) as (whole, local):
        return str(whole), str(local)


def compared(whole: str, local: str) -> Answer:
    """What the check says of two texts."""
    with lent_context(unregistered=False) as ctx, ctx, ir.Location.unknown():
        return verify(parse_module(whole, ctx, "whole"), parse_module(local, ctx, "local"))


def mesh(axes: str) -> str:
    return f'"dist.mesh"() {{sym_name = "mesh", axes = "{axes}"}} : () -> ()\n'


def matmul(axes: str, a: str, b: str, r: str, sizes: tuple[int, int, int] = (8, 12, 6)) -> str:
    """A product and what is behind it, in these layouts."""
    m, k, n = sizes
    left, right, made = [f"tensor<{x}x{y}xf32>" for x, y in ((m, k), (k, n), (m, n))]
    said = [f'{{dist.layout = #dist.layout<"{text}">}}' for text in (a, b, r)]
    return (
        mesh(axes)
        + f"""func.func public @main(%a: {left} {said[0]}, %b: {right} {said[1]}) -> ({made} {said[2]}) {{
  %z = arith.constant dense<0.0> : {made}
  %m = linalg.matmul ins(%a, %b : {left}, {right}) outs(%z : {made}) -> {made}
  %e = math.exp %m : {made}
  return %e : {made}
}}
"""
    )


def softmax(axes: str, layout: str, shape: tuple[int, int] = (8, 12), slices: str = "") -> str:
    """A softmax of rows, written out, perhaps in slices."""
    m, n = shape
    wide, rows = f"tensor<{m}x{n}xf32>", f"tensor<{m}xf32>"
    body = f"""
  %low = arith.constant dense<0xFF800000> : {rows}
  %zero = arith.constant dense<0.0> : {rows}
  %e = tensor.empty() : {wide}
  %max = linalg.reduce {{ arith.maximumf }} ins(%a : {wide}) outs(%low : {rows}) dimensions = [1]
  %maxes = linalg.broadcast ins(%max : {rows}) outs(%e : {wide}) dimensions = [1]
  %less = arith.subf %a, %maxes : {wide}
  %exp = math.exp %less : {wide}
  %sum = linalg.reduce {{ arith.addf }} ins(%exp : {wide}) outs(%zero : {rows}) dimensions = [1]
  %sums = linalg.broadcast ins(%sum : {rows}) outs(%e : {wide}) dimensions = [1]
  %r = arith.divf %exp, %sums : {wide}
"""
    if slices:
        body = (
            f'%o = "hint.region"() ({{ {body} "hint.yield"(%r) : ({wide}) -> () }}) '
            f"{{hints = {{{slices}}}}} : () -> {wide}\n return %o : {wide}"
        )
    else:
        body += f"return %r : {wide}"
    said = f'{{dist.layout = #dist.layout<"{layout}">}}'
    return mesh(axes) + f"func.func public @main(%a: {wide} {said}) -> ({wide} {said}) {{ {body} }}"


def layers(calls: int) -> str:
    """A function with two products, called with different weights each time."""
    t = "tensor<8x8xf32>"
    weights = [(f"%a{k}", f"%b{k}") for k in range(calls)]
    given = [
        f'{a}: {t} {{dist.layout = #dist.layout<"[_, x]">}}, {b}: {t} {{dist.layout = #dist.layout<"[x, _]">}}'
        for a, b in weights
    ]
    body = [
        f"  %s{k + 1} = call @layer(%s{k}, {a}, {b}) : ({t}, {t}, {t}) -> {t}"
        for k, (a, b) in enumerate(weights)
    ]
    return (
        mesh("x=2")
        + f"""
func.func private @layer(%s: {t}, %a: {t}, %b: {t}) -> {t} {{
  %z = arith.constant dense<0.0> : {t}
  %m = linalg.matmul ins(%s, %a : {t}, {t}) outs(%z : {t}) -> {t}
  %e = math.tanh %m : {t}
  %n = linalg.matmul ins(%e, %b : {t}, {t}) outs(%z : {t}) -> {t}
  %r = arith.addf %n, %s : {t}
  return %r : {t}
}}
func.func public @main(%s0: {t}, {", ".join(given)}) -> {t} {{
{chr(10).join(body)}
  return %s{calls} : {t}
}}
"""
    )


def trips(count: int) -> str:
    """A loop with a product, whose weights are a slice of a tensor."""
    t, w = "tensor<8x8xf32>", f"tensor<{count}x8x8xf32>"
    return (
        mesh("x=2")
        + f"""
func.func public @main(%x: {t} {{dist.layout = #dist.layout<"[_, x]">}},
                       %w: {w} {{dist.layout = #dist.layout<"[_, x, _]">}}) -> {t} {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %n = arith.constant {count} : index
  %z = arith.constant dense<0.0> : {t}
  %r = scf.for %t = %c0 to %n step %c1 iter_args(%s = %x) -> ({t}) {{
    %a = tensor.extract_slice %w[%t, 0, 0] [1, 8, 8] [1, 1, 1] : {w} to {t}
    %m = linalg.matmul ins(%s, %a : {t}, {t}) outs(%z : {t}) -> {t}
    %e = math.tanh %m : {t}
    scf.yield %e : {t}
  }}
  return %r : {t}
}}
"""
    )


PROGRAMS: dict[str, str] = {
    "product of rows": matmul("x=2", "[x, _]", "[_, _]", "[x, _]"),
    "product of parts": matmul("x=2, y=3", "[x, y]", "[y, _]", "[x, _]"),
    "product of uneven parts": matmul("x=2, y=3", "[x, y]", "[y, _]", "[x, _]", (7, 10, 5)),
    "product scattered": matmul("x=2", "[_, x]", "[x, _]", "[x, _]"),
    "product moved": matmul("x=2, y=2", "[x*y, _]", "[_, y]", "[_*x, y]"),
    "softmax of columns": softmax("x=2", "[_, x]"),
    "softmax of uneven columns": softmax("x=2, y=2", "[y, x]", (6, 7)),
    "softmax in slices": softmax("x=2", "[x, _]", slices='slice = "t=2", order = "dfs"'),
    "layers of a function": layers(3),
    "layers of a loop": trips(4),
    "softmax in overlapping slices": softmax("x=1", "[_, _]", (10, 4), 'slice = "t=4"'),
}
"""Small programs by name."""
