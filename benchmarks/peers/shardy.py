"""What Shardy moves from one layout to another: bytes that the busiest rank receives, pair by pair.

PYTHON -m benchmarks.peers.shardy [--mesh 2,2] [--shape 1024x1024]

PYTHON has jax: its `jaxlib.mlir` holds Shardy's pass `sdy-reshard-to-collectives`. Nothing is compiled or run;
the ops are counted as rings and pairwise exchanges do them, which is how our steps are counted. One line of
JSON a pair.
"""

import argparse
import itertools
import json
import re
import time
from math import prod
from typing import Any

from benchmarks.redistribute import layouts
from meshweave.layout import Layout, Mesh
from meshweave.layout.interchange import from_shardy, to_shardy

_OP = re.compile(
    r"sdy\.(all_gather|all_slice|all_to_all|collective_permute|all_reduce|reduce_scatter)\b(.*)"
)
_AXIS = re.compile(r'"(\w+)"(?::\(\d+\)(\d+))?')


def moved(source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...]) -> dict[str, Any]:
    """Bytes, ops and seconds of Shardy's plan."""
    from jax._src.interpreters import mlir as interpreter
    from jaxlib.mlir import ir, passmanager

    if not all(layout.is_even(mesh, shape) for layout in (source, target)):
        return {"error": "where sizes do not divide, Shardy leaves what has to move to XLA"}
    first, last = (to_shardy(layout, mesh, shape) for layout in (source, target))
    type_ = f"tensor<{'x'.join(map(str, shape))}xf32>"
    axes = ", ".join(f'"{name}"={mesh.size(name)}' for name in mesh.names)
    text = (
        f"module {{ sdy.mesh @mesh = <[{axes}]>\n"
        f"func.func @main(%a: {type_} {{sdy.sharding = {first}}}) -> {type_} {{\n"
        f"  %0 = sdy.reshard %a {last.removeprefix('#sdy.sharding')} : {type_}\n"
        f"  return %0 : {type_}\n}} }}"
    )
    context: Any = interpreter.make_ir_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(text)
        passes = passmanager.PassManager.parse(
            "builtin.module(func.func(sdy-reshard-to-collectives))"
        )
        began = time.perf_counter()
        passes.run(module.operation)
        seconds = time.perf_counter() - began
        nbytes, ops = _bytes(str(module), source, mesh, shape)
    return {"bytes": nbytes, "ops": ops, "seconds": seconds}


def _bytes(text: str, source: Layout, mesh: Mesh, shape: tuple[int, ...]) -> tuple[int, list[str]]:
    """Bytes of the ops in the text, and their names. ValueError for an op that is not counted here."""
    now, total, names = source, 0, []
    for kind, rest in _OP.findall(text):
        params, _, out = rest.partition("out_sharding=")
        after = from_shardy(out[: out.index("]>") + 2]).layout
        held, next_ = (4 * prod(layout.local_shape(mesh, shape)) for layout in (now, after))
        if kind == "all_gather":
            total += next_ - held
        elif kind == "all_to_all":
            group = prod(int(k) if k else mesh.size(name) for name, k in _AXIS.findall(params))
            total += (group - 1) * held // group
        elif kind == "collective_permute":
            total += held
        elif kind != "all_slice":
            raise ValueError(f"sdy.{kind} is not counted")
        names.append(kind)
        now = after
    return total, names


def main() -> None:
    """Print what Shardy moves for every pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", default="2,2", help="sizes of the two axes")
    parser.add_argument("--shape", default="1024x1024")
    options = parser.parse_args()
    x, y = map(int, options.mesh.split(","))
    mesh, shape = Mesh(x=x, y=y), tuple(map(int, options.shape.split("x")))
    every = layouts(mesh, len(shape), False)  # a Shardy reshard has nothing pending
    for source, target in itertools.product(every, every):
        row = moved(source, target, mesh, shape)
        print(json.dumps({"source": str(source), "target": str(target), **row}))


if __name__ == "__main__":
    main()
