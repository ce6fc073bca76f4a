"""Redistributions between all layouts of small tensors, run element by element: every element must
arrive, and the plan must state truly what it moves.

python tests/plan/sweep.py                        every case on the simulator (minutes); prints how many
python tests/plan/sweep.py --part 20              every 20th
python tests/plan/sweep.py --sample 1             the sample of the test suite: see `sample`
python tests/plan/sweep.py --engine local --part 20   compiled, on an engine: local or mpi
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, product
from math import gcd, prod
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from strategies import all_layouts, numbered

from meshweave.errors import LayoutError
from meshweave.layout import Layout, Mesh, gather, scatter
from meshweave.layout.digits import from_allocation
from meshweave.plan.redistribute import Plan, plan_redistribute
from meshweave.plan.simulate import simulate
from meshweave.plan.steps import COLLECTIVES

Case = tuple[Mesh, tuple[int, ...], Layout, Layout]

MESHES = (
    Mesh(x=2),
    Mesh(x=4),
    Mesh(x=2, y=2),
    Mesh(x=2, y=3),
    Mesh(x=4, y=2),
    Mesh(x=2, y=2, z=2),
)
SHAPES = {
    1: ((8,), (24,), (0,), (1,), (5,), (7,), (10,)),
    2: ((8, 12), (6, 7), (5, 1), (2, 0)),
    3: ((4, 8, 4), (3, 5, 2)),
}
BEYOND_BLOCKS = {
    1: ("[_*x]", "[_*x*2]", "[2*x]", "[2*_] order(0.1, 0.0)", "[_*x] +sum(y)", "[x:(1)2]",
        "[x*y] uneven(nested)", "[y*_*x]", "[x:(2)2*y]", "[y] +min(x)", "[_] +prod(x)",
        "[_] +avg(x, y)", "[_] +sum(x) +max(y)"),
    2: ("[_*x, _]", "[_, _*y]", "[x, y] order(1, 0)", "[_*x*2, y]", "[_, _*x] +sum(y)",
        "[x*y, _] uneven(nested)", "[_, y*x] uneven(nested)", "[2*x, 2*y] order(1.0, 0.1, 1.1, 0.0)",
        "[x:(1)2, x:(2)2]", "[x:(2)2*y, _]", "[y, _*x] +max(z)",
        "[_, x] +avg(y)", "[_, _] +max(y) +sum(x)"),
    3: ("[_*x, y, _]", "[_, x, y] order(2, 0, 1)", "[x, _*y, _] +sum(z)", "[_, 2*x, z*y]",
        "[z*y*x, _, _] uneven(nested)"),
}  # fmt: skip


def irregular(size: int, parts: int, ndim: int) -> str:
    """The first dim in parts of unequal extents."""
    extents = [size // (2 * parts)] * (parts - 1)
    listed = ",".join(map(str, [*extents, size - sum(extents)]))
    return "[" + ", ".join([f"x{{{listed}}}"] + ["_"] * (ndim - 1)) + "]"


def candidates(mesh: Mesh, shape: tuple[int, ...]) -> list[Layout]:
    """Every layout in blocks, and those beyond that fit mesh and shape."""
    found = all_layouts(mesh, len(shape))
    texts = [*BEYOND_BLOCKS[len(shape)], irregular(shape[0], mesh.size("x"), len(shape))]
    for text in texts:
        layout = Layout.parse(text)
        try:
            layout.check(mesh, shape)
        except LayoutError:
            continue  # an axis that this mesh has not
        found.append(layout)
    return found


def strata() -> Iterator[tuple[Mesh, tuple[int, ...], list[Layout]]]:
    """Each mesh and shape, and the layouts between which there are redistributions."""
    for mesh, shapes in product(MESHES, SHAPES.values()):
        for shape in shapes:
            yield mesh, shape, candidates(mesh, shape)


def cases() -> Iterator[Case]:
    """Mesh, shape, source and target of every case."""
    for mesh, shape, every in strata():
        yield from ((mesh, shape, a, b) for a, b in product(every, every))


def sample(times: int, seed: int = 0) -> Iterator[Case]:
    """The same few cases every time: of each mesh and shape, every layout is `times` times the
    source and `times` times the target.

    seed: another sample for every number.
    """
    for mesh, shape, every in strata():
        count = len(every)
        stride = next(
            k for k in range(count // 3 + 1 + seed, 2 * count + seed) if gcd(k, count) == 1
        )
        for turn in range(min(times, count)):
            shift = (turn * count // times + seed) % count
            for k, source in enumerate(every):
                yield mesh, shape, source, every[(k * stride + shift) % count]


def check(mesh: Mesh, shape: tuple[int, ...], source: Layout, target: Layout, **options) -> Plan:
    """Plan it and run it on the simulator: every element in its place, the bytes as stated."""
    value = numbered(shape)
    made = plan_redistribute(source, target, mesh, shape, value.itemsize, **options)
    shards: Sequence[np.ndarray] = scatter(value, mesh, source)
    busiest, peak = [], max(shard.nbytes for shard in shards)
    for step in made:
        ran = simulate([step], shards, mesh, shape)
        busiest += ran.busiest
        peaks = (a.nbytes + b.nbytes for a, b in zip(shards, ran.shards, strict=True))
        shards, peak = ran.shards, max(peak, *peaks)
    story = (str(mesh), shape, str(source), str(target), list(map(str, made)))
    with np.errstate(all="ignore"):
        assert np.array_equal(gather(shards, mesh, target, shape), value), story
    if not target.partial:
        for rank, right in enumerate(scatter(value, mesh, target)):
            have, want = (from_allocation(b, target, mesh, shape) for b in (shards[rank], right))
            assert np.array_equal(have[~np.isnan(want)], want[~np.isnan(want)]), (rank, story)
    assert busiest == [step.nbytes for step in made], (busiest, story)
    assert sum(busiest) == made.nbytes >= made.lower_bound, story
    assert made.launches == sum(step.op in COLLECTIVES for step in made), story
    ends = [prod(la.local_shape(mesh, shape)) * value.itemsize for la in (source, target)]
    assert made.peak_bytes == peak, (peak, story)
    assert made.staging_bytes == max(0, peak - max(ends)), story
    return made


def main() -> None:
    """Run the sweep and print the count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", type=int, default=1, help="run every PARTth case")
    parser.add_argument("--first", type=int, default=0, help="the first case")
    parser.add_argument("--sample", type=int, metavar="TIMES", help="a sample instead of all")
    parser.add_argument("--engine", default="simulate", choices=("simulate", "local", "mpi"))
    options = parser.parse_args()
    every = cases() if options.sample is None else sample(options.sample)
    chosen = islice(every, options.first, None, options.part)
    count: Counter[str] = Counter()
    if options.engine == "simulate":
        for case in chosen:
            check(*case)
            count[str(case[0])] += 1
    else:
        from plan.engines import run_cases

        for case, wrong in run_cases(chosen, options.engine):
            if wrong is not None:
                sys.exit(wrong)
            count[str(case[0])] += 1
    for mesh, number in count.items():
        print(f"{number:8} on ({mesh})")
    print(f"{count.total()} redistributions ({options.engine}), no wrong element")


if __name__ == "__main__":
    main()
