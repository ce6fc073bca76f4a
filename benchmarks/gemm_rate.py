"""How close a whole transformer comes to the library's own GEMM rate, on one thread.

A 12-layer transformer (512 positions, width 768, 12 heads, hidden width 3072, f32, causal) as
linalg text in the form that StableHLO's lowering gives it, compiled by `compile_local` and run on
one rank. Printed, for each batch size: seconds to compile, milliseconds per run, GFLOP/s counting
the multiplications of matrices only, the rate of the same products done by the library in the same
run, their ratio (goal: at least 0.85), the arena, and copies of whole tensors in the program.

    python benchmarks/gemm_rate.py [--layers 12] [--batch 1 2] [--runs 5]
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshweave.dialects import context
from meshweave.ir.bindings import ir
from meshweave.lowering import compile_local
from meshweave.lowering.cpu.target import lower
from meshweave.lowering.nests.rows import Unit
from meshweave.runtime.libraries import openblas
from meshweave.runtime.local.engine import LocalEngine

S, E, H, F = 512, 768, 12, 3072
D = E // H


class Text:
    """The function under construction: values are (name, shape) pairs."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.arguments: list[tuple[int, ...]] = []
        self.constants: dict[str, str] = {}
        self._count = 0

    def argument(self, *shape: int) -> tuple[str, tuple[int, ...]]:
        """One more input."""
        self.arguments.append(shape)
        return f"%arg{len(self.arguments) - 1}", shape

    def let(self, text: str) -> str:
        """One more op."""
        self._count += 1
        self.lines.append(f"%v{self._count} = {text}")
        return f"%v{self._count}"

    def constant(self, value: str, shape: Sequence[int]) -> Any:
        """A tensor of one value."""
        literal = f"arith.constant dense<{value}> : {type_of(shape)}"
        if literal not in self.constants:
            self.constants[literal] = self.let(literal)
        return self.constants[literal], tuple(shape)

    def empty(self, shape: Sequence[int], element: str = "f32") -> str:
        """A tensor to write into."""
        kind = type_of(shape, element)
        return self.let(f"tensor.empty() : {kind}")

    def map(self, op: str, *inputs: Any, element: str = "f32") -> Any:
        """An elementwise op."""
        shape = inputs[0][1]
        out = self.empty(shape, element)
        kinds = [type_of(shape, i[2] if len(i) > 2 else "f32") for i in inputs]
        names = ", ".join(i[0] for i in inputs)
        text = f"linalg.map {{ {op} }} ins({names} : {', '.join(kinds)})"
        value = self.let(f"{text} outs({out} : {type_of(shape, element)})")
        return (value, shape) if element == "f32" else (value, shape, element)

    def broadcast(self, x: Any, shape: Sequence[int], dims: Sequence[int]) -> Any:
        """x repeated along new dims."""
        element = x[2] if len(x) > 2 else "f32"
        out = self.empty(shape, element)
        text = f"linalg.broadcast ins({x[0]} : {type_of(x[1], element)}) outs({out} : {type_of(shape, element)})"
        return (self.let(f"{text} dimensions = {list(dims)}"), tuple(shape), *x[2:])

    def reduce(self, op: str, x: Any, start: str) -> Any:
        """x reduced over its last dim."""
        shape = x[1][:-1]
        fill = self.fill(shape, start)
        text = f"linalg.reduce {{ {op} }} ins({x[0]} : {type_of(x[1])}) outs({fill} : {type_of(shape)})"
        return self.let(f"{text} dimensions = [{len(shape)}]"), shape

    def fill(self, shape: Sequence[int], value: str) -> str:
        """A tensor filled with a value."""
        number = self.let(f"arith.constant {value} : f32")
        out = self.empty(shape)
        kind = type_of(shape)
        return self.let(f"linalg.fill ins({number} : f32) outs({out} : {kind}) -> {kind}")

    def transpose(self, x: Any, order: Sequence[int]) -> Any:
        """x with its dims in another order."""
        shape = tuple(x[1][d] for d in order)
        out = self.empty(shape)
        text = f"linalg.transpose ins({x[0]} : {type_of(x[1])}) outs({out} : {type_of(shape)})"
        return self.let(f"{text} permutation = {list(order)}"), shape

    def contract(self, a: Any, b: Any, maps: str, shape: Sequence[int], loops: str) -> Any:
        """Sum of products."""
        out, kind = self.fill(shape, "0.0"), type_of(shape)
        dims = loops.split()
        kinds = ", ".join(f'"{"reduction" if d == "k" else "parallel"}"' for d in dims)
        access = ", ".join(f"affine_map<({', '.join(dims)}) -> ({m})>" for m in maps.split("|"))
        return self.let(
            f"linalg.generic {{indexing_maps = [{access}], iterator_types = [{kinds}]}} "
            f"ins({a[0]}, {b[0]} : {type_of(a[1])}, {type_of(b[1])}) outs({out} : {kind}) {{\n"
            "^bb0(%a: f32, %b: f32, %c: f32):\n%p = arith.mulf %a, %b : f32\n"
            f"%s = arith.addf %c, %p : f32\nlinalg.yield %s : f32\n}} -> {kind}"
        ), tuple(shape)

    def reshape(self, op: str, x: Any, groups: str, shape: Sequence[int]) -> Any:
        """expand_shape or collapse_shape."""
        more = f" output_shape {list(shape)}" if op == "expand" else ""
        return self.let(
            f"tensor.{op}_shape {x[0]} {groups}{more} : {type_of(x[1])} into {type_of(shape)}"
        ), tuple(shape)


def type_of(shape: Sequence[int], element: str = "f32") -> str:
    """The type of a tensor."""
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"


def dense(g: Text, x: Any, w: Any) -> Any:
    """[b, s, k] @ [k, n]"""
    shape = (*x[1][:2], w[1][1])
    return g.contract(x, w, "b, s, k|k, n|b, s, n", shape, "b s n k")


def layer_norm(g: Text, x: Any, gain: Any, bias: Any) -> Any:
    """Layer norm over the last dim."""
    batch, shape = x[1][0], x[1]
    rows = (batch, S)
    width, epsilon = g.constant(f"{E}.0", rows), g.constant("1.0e-5", rows)
    mean = g.map("arith.divf", g.reduce("arith.addf", x, "0.0"), width)
    d = g.map("arith.subf", x, g.broadcast(mean, shape, [2]))
    squares = g.reduce("arith.addf", g.map("arith.mulf", d, d), "0.0")
    deviation = g.map(
        "math.sqrt", g.map("arith.addf", g.map("arith.divf", squares, width), epsilon)
    )
    y = g.map("arith.divf", d, g.broadcast(deviation, shape, [2]))
    y = g.map("arith.mulf", y, g.broadcast(gain, shape, [0, 1]))
    return g.map("arith.addf", y, g.broadcast(bias, shape, [0, 1]))


def attention(g: Text, qkv: Any, mask: Any) -> Any:
    """Causal attention of all heads from [b, s, 3 E]."""
    batch = qkv[1][0]
    x = g.reshape("expand", qkv, "[[0], [1], [2, 3, 4]]", (batch, S, 3, H, D))
    x = g.transpose(x, (2, 0, 3, 1, 4))
    parts = []
    for k in range(3):
        sizes = [1, batch, H, S, D]
        window = f"[{k}, 0, 0, 0, 0] {sizes} [1, 1, 1, 1, 1] : {type_of(x[1])} to {type_of(sizes)}"
        part = g.let(f"tensor.extract_slice {x[0]}{window}"), tuple(sizes)
        parts.append(g.reshape("collapse", part, "[[0, 1], [2], [3], [4]]", (batch, H, S, D)))
    q, k, v = parts
    scores = (batch, H, S, S)
    s = g.contract(q, k, "b, h, m, k|b, h, n, k|b, h, m, n", scores, "b h m n k")
    s = g.map("arith.divf", s, g.constant(f"{D**0.5}", scores))
    s = g.map("arith.select", mask, s, g.constant("-1.0e9", scores))
    largest = g.reduce("arith.maximumf", s, "0xFF800000")
    e = g.map("math.exp", g.map("arith.subf", s, g.broadcast(largest, scores, [3])))
    total = g.reduce("arith.addf", e, "0.0")
    p = g.map("arith.divf", e, g.broadcast(total, scores, [3]))
    o = g.contract(p, v, "b, h, m, k|b, h, k, n|b, h, m, n", (batch, H, S, D), "b h m n k")
    o = g.transpose(o, (0, 2, 1, 3))
    return g.reshape("collapse", o, "[[0], [1], [2, 3]]", (batch, S, E))


def gelu(g: Text, x: Any) -> Any:
    """The tanh form."""
    cube = g.map("arith.mulf", g.map("arith.mulf", x, x), x)
    inner = g.map("arith.addf", x, g.map("arith.mulf", g.constant("0.044715", x[1]), cube))
    t = g.map("math.tanh", g.map("arith.mulf", g.constant("0.797884583", x[1]), inner))
    half = g.map(
        "arith.mulf", g.constant("0.5", x[1]), g.map("arith.addf", g.constant("1.0", x[1]), t)
    )
    return g.map("arith.mulf", x, half)


def causal_mask(g: Text, batch: int) -> Any:
    """[b, h, s, s] of i1, from the positions."""
    out = g.empty((S,), "i32")
    positions = (g.let(
        f"linalg.map outs({out} : {type_of((S,), 'i32')}) (%o: i32) {{\n%i = linalg.index 0 : index\n"
        "%n = arith.index_cast %i : index to i32\nlinalg.yield %n : i32\n}"
    ), (S,), "i32")  # fmt: skip
    rows, columns = (g.broadcast(positions, (S, S), [d]) for d in (1, 0))
    below = g.map("arith.cmpi {predicate = 5 : i64}", rows, columns, element="i1")
    return g.broadcast(below, (batch, H, S, S), [0, 1])


def transformer(layers: int, batch: int) -> tuple[str, list[tuple[int, ...]]]:
    """The program's text and the shapes of its inputs."""
    g = Text()
    x = g.argument(batch, S, E)
    mask = causal_mask(g, batch)
    for _ in range(layers):
        vectors = [g.argument(E) for _ in range(4)]
        wqkv, wo, w1, w2 = (g.argument(*s) for s in ((E, 3 * E), (E, E), (E, F), (F, E)))
        h = dense(g, layer_norm(g, x, *vectors[:2]), wqkv)
        x = g.map("arith.addf", x, dense(g, attention(g, h, mask), wo))
        h = dense(g, layer_norm(g, x, *vectors[2:]), w1)
        x = g.map("arith.addf", x, dense(g, gelu(g, h), w2))
    kind = type_of(x[1])
    arguments = ", ".join(f"%arg{k}: {type_of(s)}" for k, s in enumerate(g.arguments))
    body = "\n".join([*g.lines, f"return {x[0]} : {kind}"])
    mesh = '"dist.mesh"() {sym_name = "mesh", axes = "x=1"} : () -> ()\n'
    return f"{mesh}func.func @main({arguments}) -> {kind} {{\n{body}\n}}", g.arguments


def products(batch: int) -> list[tuple[int, int, int, int]]:
    """(times, m, n, k) of a layer's matrix products."""
    m, heads = batch * S, batch * H
    return [
        (1, m, 3 * E, E),
        (heads, S, S, D),
        (heads, S, D, S),
        (1, m, E, E),
        (1, m, F, E),
        (1, m, E, F),
    ]


def flops(layers: int, batch: int) -> float:
    """Operations in matrix products."""
    return layers * sum(2.0 * t * m * n * k for t, m, n, k in products(batch))


def library_seconds(batch: int, runs: int) -> float:
    """Seconds the library takes for a layer's products, best of `runs`; its matrices are as in the
    program.
    """
    gemm = openblas().scipy_cblas_sgemm
    i, f, p = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    gemm.argtypes = [i, i, i, i, i, i, f, p, i, p, i, f, p, i]
    total = 0.0
    for times, m, n, k in products(batch):
        a, b, c = (np.ones(s, np.float32) for s in ((m, k), (k, n), (m, n)))
        arguments = (
            101,
            111,
            111,
            m,
            n,
            k,
            1.0,
            a.ctypes.data,
            k,
            b.ctypes.data,
            n,
            0.0,
            c.ctypes.data,
            n,
        )
        total += times * min(
            timed(lambda arguments=arguments: gemm(*arguments)) for _ in range(runs + 1)
        )
    return total


def timed(call: Any) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def copies(module: Any) -> int:
    """Copies of tensors in the program."""
    with module.context, ir.Location.unknown():
        entries = lower(module).plan.entries
    units = [entry for entry in entries if isinstance(entry, Unit)]
    return sum(step.what == "copy" for unit in units for step in unit.steps)


def measure(layers: int, batch: int, runs: int) -> None:
    """Compile, run and print one line."""
    text, shapes = transformer(layers, batch)
    with context(), ir.Location.unknown():
        module = ir.Module.parse(text)
    start = time.perf_counter()
    bundle = compile_local(module)
    compiled = time.perf_counter() - start
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(s, np.float32) * (0.02 if len(s) == 2 else 1.0) for s in shapes]
    executable = LocalEngine().load(bundle)
    call = executable.bind([[v.astype(np.float32) for v in values]])
    library = layers * library_seconds(batch, runs)
    seconds = min(timed(call) for _ in range(runs))
    executable.close()
    work = flops(layers, batch)
    print(
        f"layers {layers} batch {batch}: compile {compiled:.2f} s, run {1e3 * seconds:.0f} ms, "
        f"{work / seconds / 1e9:.1f} GFLOP/s; library alone {work / library / 1e9:.1f} GFLOP/s, "
        f"ratio {library / seconds:.3f}; arena {bundle.manifest.arena_bytes / 2**20:.2f} MiB, "
        f"copies {copies(module)}"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    for batch in options.batch:
        measure(options.layers, batch, options.runs)


if __name__ == "__main__":
    main()
