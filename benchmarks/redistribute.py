"""How good plans of redistributions are, and how fast they are made.

python -m benchmarks.redistribute           tables: bytes against the fewest known, speed of planning
python -m benchmarks.redistribute --sweep N also runs every Nth redistribution between all layouts of
                                            small tensors on the simulator
"""

import argparse
import itertools
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.common import ROOT, show, table
from meshweave.layout import Layout, Mesh, Partial
from meshweave.plan.proof import BYTES_ONLY
from meshweave.plan.redistribute import plan_redistribute
from meshweave.plan.steps import BLOCK_OPS

MIB = 2**20


def layouts(mesh: Mesh, ndim: int, pending: bool) -> list[Layout]:
    """Every layout in blocks, both orders of axes, with or without a pending sum."""
    found = set()
    for row in itertools.permutations(mesh.names):
        for places in itertools.product(range(ndim + 1 + pending), repeat=len(row)):
            dims = [[a for a, at in zip(row, places) if at == dim] for dim in range(ndim)]
            axes = tuple(a for a, at in zip(row, places) if at == ndim + 1)
            found.add(Layout.blocks(dims, [Partial("sum", axes)] if axes else []))
    return sorted(found, key=str)


def placements() -> list[Layout]:
    """What DTensor can say on a mesh of two axes: each replicates, shards a dim, or is partial."""
    found = []
    for row in itertools.product("R01P", repeat=2):
        dims = [[a for a, at in zip("xy", row) if at == str(dim)] for dim in (0, 1)]
        axes = tuple(a for a, at in zip("xy", row) if at == "P")
        found.append(Layout.blocks(dims, [Partial("sum", axes)] if axes else []))
    return found


def bytes_table(shape: tuple[int, ...]) -> Any:
    """Bytes of the busiest rank, in sum over all pairs, on 2x2."""
    mesh = Mesh(x=2, y=2)
    plain, every = layouts(mesh, 2, False), layouts(mesh, 2, True)
    sums = [layout for layout in every if layout.partial]
    rows: list[tuple[str, Sequence[Layout], Sequence[Layout]]] = [
        ("blocks to blocks", plain, plain),
        ("pending sums to blocks", sums, plain),
        ("what DTensor can say", placements(), placements()),
        ("everything to everything", every, every),
    ]
    name, unit = ("MiB", MIB) if shape[0] * shape[1] > 1 << 16 else ("KiB", 1 << 10)
    made = table(
        f"{shape[0]}x{shape[1]} f32 on 2x2: {name} received by the busiest rank, summed over pairs",
        *("pairs", "count", "default", "collectives only", "fewest known", "lower bound"),
        *("proved minimal", "above fewest", "launches"),
    )
    for pairs, sources, targets in rows:
        total: Counter[str] = Counter()
        for source, target in itertools.product(sources, targets):
            plan = plan_redistribute(source, target, mesh, shape, 4)
            fewest = plan_redistribute(source, target, mesh, shape, 4, profile=BYTES_ONLY)
            fixed = plan_redistribute(source, target, mesh, shape, 4, ops=BLOCK_OPS)
            total += Counter(
                count=1, default=plan.nbytes, fixed=fixed.nbytes, fewest=fewest.nbytes,
                bound=plan.lower_bound, proved=plan.proved_minimal,
                above=plan.nbytes > fewest.nbytes, launches=plan.launches,
            )  # fmt: skip
        sums_of = [f"{total[k] / unit:.2f}" for k in ("default", "fixed", "fewest", "bound")]
        counts = [str(total[k]) for k in ("proved", "above", "launches")]
        made.add_row(pairs, str(total["count"]), *sums_of, *counts)
    return made


HARD = [
    ("[a*b, c, d, _]", "[d, b*a, _, c]"),
    ("[a*b*c*d, _, _, _]", "[_, d*c*b*a, _, _]"),
    ("[a*b*c*d, _, _, _]", "[d*c*b*a, _, _, _]"),
    ("[a, b, _, _] +sum(c, d)", "[c, d, a, b]"),
    ("[_, _, _, _] +sum(a, b, c, d)", "[a, b, c, d]"),
    ("[a*b, _, _, _]", "[_, _, c*d, _]"),
    ("[_*a, b, _, _]", "[c, d, a, b]"),
]
BEYOND = ("[_*x, y]", "[x, _*y]", "[_*x*4, z]", "[x, y] order(1, 0)", "[y:(1)2, y:(2)2*x]", "[z*y*x, _] uneven(nested)",
          "[4*x, 2*y] order(1.0, 0.1, 1.1, 0.0)")  # fmt: skip


def forget() -> None:
    """Empty every cache of layouts and plans: what is asked next is asked for the first time."""
    for name, module in sorted(sys.modules.items()):
        if name.startswith(("meshweave.layout", "meshweave.plan")):
            for value in vars(module).values():
                if hasattr(value, "cache_clear") and hasattr(value, "cache_info"):
                    value.cache_clear()


Pairs = Sequence[tuple[str, str]]


def questions() -> Iterator[tuple[Mesh, tuple[int, ...], Pairs]]:
    """Meshes of three axes and of four, shapes, and pairs of layouts to plan between."""
    for mesh, shape in (
        (Mesh(x=2, y=4, z=2), (512, 768)),
        (Mesh(x=2, y=4, z=2), (511, 767)),
        (Mesh(x=16, y=8, z=16), (4096, 8192)),
        (Mesh(x=16, y=8, z=16), (4095, 8191)),
    ):
        every = [str(layout) for layout in layouts(mesh, 2, True)] + list(BEYOND)
        yield mesh, shape, list(itertools.islice(itertools.product(every, every), 0, None, 23))
    for mesh in (Mesh(a=2, b=2, c=2, d=2), Mesh(a=16, b=16, c=8, d=8)):
        for shape in ((4096, 4096, 64, 64), (4097, 4001, 61, 63)):
            yield mesh, shape, HARD


def speed_table() -> Any:
    """Seconds to plan one pair, the first time and again."""
    made = table("planning a pair", "mesh", "pairs", "cold, median", "worst", "cached, median")
    for mesh, shape, pairs in questions():
        cold, warm = _speed(mesh, shape, pairs)
        made.add_row(
            f"{mesh}: {mesh.nranks} ranks, {'x'.join(map(str, shape))}",
            str(len(pairs)),
            f"{median(cold) * 1e3:.2f} ms",
            f"{max(cold) * 1e3:.1f} ms",
            f"{median(warm) * 1e6:.1f} us",
        )
    return made


def _speed(mesh: Mesh, shape: tuple[int, ...], pairs: Pairs) -> tuple[list[float], list[float]]:
    """The seconds (of the processor: other work on the machine does not count) that planning each
    pair took with every cache empty, and again.
    """
    cold, warm = [], []
    for one, other in pairs:
        forget()
        source, target = Layout.parse(one), Layout.parse(other)
        for times in (cold, warm):
            began = time.process_time()
            plan_redistribute(source, target, mesh, shape, 4)
            times.append(time.process_time() - began)
    return cold, warm


def sweep(part: int) -> None:
    """Run every `part`th case of the sweep of the tests."""
    file = ROOT / "tests" / "plan" / "sweep.py"
    subprocess.run([sys.executable, str(file), "--part", str(part)], check=True)


def main(options: argparse.Namespace | None = None) -> None:
    """Print the tables."""
    if options is None:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--sweep", type=int, metavar="N", help="run every Nth case")
        options = parser.parse_args()
    for shape in ((1024, 1024), (16, 8)):
        show(bytes_table(shape))
    show(speed_table())
    if getattr(options, "sweep", None):
        sweep(options.sweep)


if __name__ == "__main__":
    main()
