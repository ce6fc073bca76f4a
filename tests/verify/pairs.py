"""Whole programs beside the programs of one rank that the passes make of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meshweave.dialects import context
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
    with context() as ctx, ir.Location.unknown():
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
    with context() as ctx, ir.Location.unknown():
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


PROGRAMS: dict[str, str] = {
    "product of rows": matmul("x=2", "[x, _]", "[_, _]", "[x, _]"),
    "product of parts": matmul("x=2, y=3", "[x, y]", "[y, _]", "[x, _]"),
    "product of uneven parts": matmul("x=2, y=3", "[x, y]", "[y, _]", "[x, _]", (7, 10, 5)),
    "product scattered": matmul("x=2", "[_, x]", "[x, _]", "[x, _]"),
    "product moved": matmul("x=2, y=2", "[x*y, _]", "[_, y]", "[_*x, y]"),
    "softmax of columns": softmax("x=2", "[_, x]"),
    "softmax of uneven columns": softmax("x=2, y=2", "[y, x]", (6, 7)),
    "softmax in slices": softmax("x=2", "[x, _]", slices='slice = "t=2", order = "dfs"'),
    "softmax in overlapping slices": softmax("x=1", "[_, _]", (10, 4), 'slice = "t=4"'),
}
"""Small programs by name."""
