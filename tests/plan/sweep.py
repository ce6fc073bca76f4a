"""Redistributions between all layouts of small tensors, run element by element on the simulator.

python tests/plan/sweep.py            every case (minutes); prints how many, and what was wrong
python tests/plan/sweep.py --part 20  every 20th
"""

import argparse
import sys
from collections.abc import Iterator
from itertools import islice, product
from math import prod
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
        "[x*y] uneven(nested)", "[y*_*x]", "[x:(2)2*y]"),
    2: ("[_*x, _]", "[_, _*y]", "[x, y] order(1, 0)", "[_*x*2, y]", "[_, _*x] +sum(y)",
        "[x*y, _] uneven(nested)", "[_, y*x] uneven(nested)", "[2*x, 2*y] order(1.0, 0.1, 1.1, 0.0)",
        "[x:(1)2, x:(2)2]", "[x:(2)2*y, _]", "[y, _*x] +max(z)"),
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


def cases() -> Iterator[tuple[Mesh, tuple[int, ...], Layout, Layout]]:
    """Mesh, shape, source and target of every case."""
    for mesh, shapes in product(MESHES, SHAPES.values()):
        for shape in shapes:
            every = candidates(mesh, shape)
            yield from ((mesh, shape, a, b) for a, b in product(every, every))


def check(mesh: Mesh, shape: tuple[int, ...], source: Layout, target: Layout, **options) -> Plan:
    """Plan it and run it on the simulator: every element in its place, the bytes as stated."""
    value = numbered(shape)
    made = plan_redistribute(source, target, mesh, shape, value.itemsize, **options)
    ran = simulate(made.steps, scatter(value, mesh, source), mesh, shape)
    story = (str(mesh), shape, str(source), str(target), list(map(str, made)))
    with np.errstate(all="ignore"):
        assert np.array_equal(gather(ran.shards, mesh, target, shape), value), story
    if not target.partial:
        for rank, right in enumerate(scatter(value, mesh, target)):
            have, want = (
                from_allocation(b, target, mesh, shape) for b in (ran.shards[rank], right)
            )
            assert np.array_equal(have[~np.isnan(want)], want[~np.isnan(want)]), (rank, story)
    assert ran.busiest == tuple(step.nbytes for step in made), (ran.busiest, story)
    assert sum(ran.busiest) == made.nbytes >= made.lower_bound, story
    assert made.launches == sum(step.op in COLLECTIVES for step in made), story
    ends = [prod(la.local_shape(mesh, shape)) * value.itemsize for la in (source, target)]
    assert made.peak_bytes <= max(ends) + made.staging_bytes, story
    return made


def main() -> None:
    """Run the sweep and print the count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", type=int, default=1, help="run every PARTth case")
    parser.add_argument("--first", type=int, default=0, help="the first case")
    options = parser.parse_args()
    count = 0
    for case in islice(cases(), options.first, None, options.part):
        check(*case)
        count += 1
    print(f"{count} redistributions, no wrong element")


if __name__ == "__main__":
    main()
