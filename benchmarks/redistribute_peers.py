"""Our default plans beside Shardy's, for every pair of layouts of a matrix on a mesh of two axes.

PYTHON -m benchmarks.redistribute_peers [--mesh 2,2] [--shape 1024x1024]

PYTHON has jax (its `jaxlib.mlir` holds Shardy's pass `sdy-reshard-to-collectives`); nothing is
compiled or run. Bytes are what the busiest rank receives: of Shardy's ops as rings and pairwise
exchanges do them, which is how our steps are counted. Prints the sums, the pairs in which Shardy
takes more and, first of all, those in which we do.
"""

import argparse
import itertools
import re
import time
from statistics import median
from typing import Any

from benchmarks.redistribute import MIB, layouts
from meshweave.layout import Layout, Mesh
from meshweave.layout.interchange import from_shardy, to_shardy
from meshweave.plan.redistribute import cache_clear, plan_redistribute
from meshweave.plan.steps import BLOCK_OPS

_OP = re.compile(
    r"sdy\.(all_gather|all_slice|all_to_all|collective_permute|all_reduce|reduce_scatter)\b(.*)"
)
_AXIS = re.compile(r'"(\w+)"(?::\(\d+\)(\d+))?')


def shardy(
    source: Layout, target: Layout, mesh: Mesh, shape: tuple[int, ...]
) -> tuple[int, list[str], float]:
    """Bytes, ops and seconds of Shardy's plan."""
    from jax._src.interpreters import mlir as interpreter
    from jaxlib.mlir import ir, passmanager

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
        return *_bytes(str(module), source, mesh, shape), seconds


def _bytes(text: str, source: Layout, mesh: Mesh, shape: tuple[int, ...]) -> tuple[int, list[str]]:
    """Bytes of the ops in the text, and their names."""
    now, total, names = source, 0, []
    for kind, rest in _OP.findall(text):
        params, _, out = rest.partition("out_sharding=")
        after = from_shardy(out[: out.index("]>") + 2]).layout
        held, next_ = (_local(layout, mesh, shape) for layout in (now, after))
        if kind == "all_gather":
            total += next_ - held
        elif kind == "all_to_all":
            group = 1
            for name, sub in _AXIS.findall(params):
                group *= int(sub) if sub else mesh.size(name)
            total += (group - 1) * held // group
        elif kind == "collective_permute":
            total += held
        names.append(kind)
        now = after
    return total, names


def _local(layout: Layout, mesh: Mesh, shape: tuple[int, ...]) -> int:
    size = 4
    for extent in layout.local_shape(mesh, shape):
        size *= extent
    return size


def main() -> None:
    """Compare every pair."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", default="2,2", help="sizes of the two axes")
    parser.add_argument("--shape", default="1024x1024")
    options = parser.parse_args()
    x, y = map(int, options.mesh.split(","))
    mesh, shape = Mesh(x=x, y=y), tuple(map(int, options.shape.split("x")))
    every = layouts(mesh, 2, False)
    ours = theirs = bound = fixed = above = 0
    worse, better, seconds, mine = [], [], [], []
    cache_clear()
    for source, target in itertools.product(every, every):
        began = time.perf_counter()
        plan = plan_redistribute(source, target, mesh, shape, 4)
        mine.append(time.perf_counter() - began)
        nbytes, names, took = shardy(source, target, mesh, shape)
        seconds.append(took)
        ours, theirs, bound = ours + plan.nbytes, theirs + nbytes, bound + plan.lower_bound
        alone = plan_redistribute(source, target, mesh, shape, 4, ops=BLOCK_OPS).nbytes
        fixed, above = fixed + alone, above + (alone > nbytes)
        row = (str(source), str(target), plan.nbytes, nbytes, [s.op for s in plan], names)
        (worse if plan.nbytes > nbytes else better if plan.nbytes < nbytes else []).append(row)
    print(
        f"{options.shape} f32 on ({mesh}), {len(every) ** 2} pairs, MiB received by the busiest rank"
    )
    print(f"meshweave {ours / MIB:.2f} (collectives only {fixed / MIB:.2f}), Shardy {theirs / MIB:.2f}, "
          f"lower bound {bound / MIB:.2f}")  # fmt: skip
    print(
        f"time to plan, median: meshweave {median(mine) * 1e6:.0f} us, Shardy {median(seconds) * 1e6:.0f} us"
    )
    print(f"with collectives only meshweave takes more in {above} pairs")
    print(f"meshweave takes more in {len(worse)} pairs, Shardy in {len(better)}:")
    for row in worse + better:
        print("  {} -> {}: {} against {} bytes, {} against {}".format(*row))


if __name__ == "__main__":
    main()
