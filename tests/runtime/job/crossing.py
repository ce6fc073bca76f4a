"""Run as one of four ranks, two on each host: add up over each axis, and count what the network brings.

Usage: crossing.py [AXES]: over these alone.
"""

import sys
from pathlib import Path

import numpy as np

import meshweave as mw

SIZE = 1 << 18  # elements of f32: a MiB


def received() -> int:
    """Count the bytes that have come to this host by its network."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split()[1]) for line in lines if "lo:" not in line)


def meet() -> None:
    """Wait until all ranks have come, and all that they have sent."""
    for _ in range(2):
        small = mw.Array.from_numpy(np.zeros(4, "f4"), mesh=mesh, layout="[a*b]")
        mw.redistribute(small, "[_]")


mw.init()
mesh, rank = mw.Mesh(a=2, b=2), mw.rank()
SUMS = {"b": 1 + 4 * (rank // 2), "a": 2 + 2 * (rank % 2), "a, b": 6}
for axes, value in SUMS.items() if len(sys.argv) < 2 else [(sys.argv[1], SUMS[sys.argv[1]])]:
    layout = f"[_] +sum({axes})"
    array = mw.Array.from_local(np.full(SIZE, rank, "f4"), mesh=mesh, layout=layout, shape=(SIZE,))
    add = mw.jit(lambda x: x + 0.0, mesh=mesh, in_layouts=layout, out_layouts="[_]")
    for _ in range(2):  # the first call compares and compiles
        meet()
        begun = received()
        total = add(array)
    assert (total.local() == value).all(), (axes, total.local()[:3], value)
    meet()
    sys.stdout.write(f"{axes.replace(', ', '')} rank {rank}: {received() - begun}\n")
