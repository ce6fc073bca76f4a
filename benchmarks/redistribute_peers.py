"""Our default plans beside Shardy's and DTensor's, for every pair of layouts of a matrix on two mesh axes.

python -m benchmarks.redistribute_peers [--jax-python P] [--torch-python P] [--mesh 2,2] [--shape 1024x1024]
                                        [--record FILE]

A peer that is not installed beside meshweave, nor in the interpreter named for it, is left out, and that is
said. Bytes are what the busiest rank receives; sums are over the pairs that a peer can do at all.
"""

import argparse
import importlib.util
import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import ROOT, show, table
from benchmarks.redistribute import MIB, layouts
from meshweave.errors import MeshweaveError
from meshweave.layout import Mesh
from meshweave.plan.proof import BYTES_ONLY
from meshweave.plan.redistribute import Plan, cache_clear, plan_redistribute

PEERS = {"Shardy": ("jax", "benchmarks.peers.shardy"), "DTensor": ("torch", "benchmarks.peers.dtensor")}  # fmt: skip

Pair = tuple[str, str]


@dataclass
class Comparison:
    """A peer's figures beside ours: sums over the pairs that the peer can do.

    worse, better: the pairs in which we receive more, and fewer, bytes than the peer.
    refused:       the pairs that the peer cannot do.
    """

    pairs: int = 0
    ours: int = 0
    theirs: int = 0
    bound: int = 0
    worse: list[str] = field(default_factory=list)
    better: list[str] = field(default_factory=list)
    refused: int = 0


def ask(peer: str, python: str | None, mesh: str, shape: str) -> dict[Pair, dict[str, Any]] | None:
    """What the peer says of each pair, by source and target; None when it is not installed.

    MeshweaveError when it is, and fails.
    """
    package, module = PEERS[peer]
    if python is None:
        if importlib.util.find_spec(package) is None:
            return None
        python = sys.executable
    command = [python, "-m", module, "--mesh", mesh, "--shape", shape]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MeshweaveError(f"{' '.join(command)}: {last}")
    rows = map(json.loads, done.stdout.splitlines())
    return {(row["source"], row["target"]): row for row in rows}


def plans(mesh: Mesh, shape: tuple[int, ...]) -> tuple[dict[Pair, Plan], float]:
    """Our default plan of every pair, and the median of the seconds that making one took."""
    every = layouts(mesh, len(shape), True)
    made, seconds = {}, []
    cache_clear()
    for source, target in itertools.product(every, every):
        began = time.perf_counter()
        made[str(source), str(target)] = plan_redistribute(source, target, mesh, shape, 4)
        seconds.append(time.perf_counter() - began)
    return made, median(seconds)


def compare(ours: dict[Pair, Plan], theirs: dict[Pair, dict[str, Any]]) -> Comparison:
    """Ours beside a peer's, pair by pair."""
    found = Comparison()
    for pair, row in theirs.items():
        if "error" in row:
            found.refused += 1
            continue
        plan, nbytes = ours[pair], row["bytes"]
        found.pairs += 1
        found.ours += plan.nbytes
        found.theirs += nbytes
        found.bound += plan.lower_bound
        ops = ", ".join(step.op for step in plan) or "nothing", ", ".join(row["ops"]) or "nothing"
        line = f"{pair[0]} -> {pair[1]}: {plan.nbytes} ({ops[0]}) against {nbytes} ({ops[1]})"
        if plan.nbytes != nbytes:
            (found.worse if plan.nbytes > nbytes else found.better).append(line)
    return found


def fewest(mesh: Mesh, shape: tuple[int, ...]) -> int:
    """Bytes of all pairs where only bytes count: the fewest that our steps can do."""
    every = layouts(mesh, len(shape), True)
    return sum(
        plan_redistribute(source, target, mesh, shape, 4, profile=BYTES_ONLY).nbytes
        for source, target in itertools.product(every, every)
    )


def record(answers: dict[str, dict[Pair, dict[str, Any]]], mesh: str, shape: str) -> str:
    """The peers' answers as JSON: bytes of each pair, null where the peer refuses."""
    found = {
        peer: {f"{a} -> {b}": row.get("bytes") for (a, b), row in rows.items()}
        for peer, rows in answers.items()
    }
    return json.dumps({"mesh": mesh, "shape": shape, "bytes": found}, indent=1) + "\n"


def main() -> None:
    """Compare every pair and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jax-python", help="an interpreter with jax")
    parser.add_argument("--torch-python", help="an interpreter with torch")
    parser.add_argument("--mesh", default="2,2", help="sizes of the two axes")
    parser.add_argument("--shape", default="1024x1024")
    parser.add_argument("--record", metavar="FILE", help="also write the peers' answers there")
    options = parser.parse_args()
    x, y = map(int, options.mesh.split(","))
    mesh, shape = Mesh(x=x, y=y), tuple(map(int, options.shape.split("x")))
    ours, seconds = plans(mesh, shape)
    total, least = sum(plan.nbytes for plan in ours.values()), fewest(mesh, shape)
    print(
        f"{options.shape} f32 on ({mesh}): {len(ours)} pairs, all planned; default plans "
        f"{total / MIB:.2f} MiB, fewest known {least / MIB:.2f} MiB ({total / max(1, least):.4f}); "
        f"{seconds * 1e6:.0f} us to make one, median"
    )
    made = table("MiB received by the busiest rank, summed over the pairs that the peer can do",
                 "peer", "pairs", "refused", "meshweave", "peer's", "lower bound",
                 "we take more in", "the peer in")  # fmt: skip
    answers, lines = {}, []
    for peer, python in (("Shardy", options.jax_python), ("DTensor", options.torch_python)):
        rows = ask(peer, python, options.mesh, options.shape)
        if rows is None:
            print(f"{peer}: {PEERS[peer][0]} is not installed; name an interpreter that has it "
                  f"with --{PEERS[peer][0]}-python")  # fmt: skip
            continue
        answers[peer] = rows
        c = compare(ours, rows)
        sums = [f"{nbytes / MIB:.2f}" for nbytes in (c.ours, c.theirs, c.bound)]
        counts = str(c.pairs), str(c.refused), *sums, str(len(c.worse)), str(len(c.better))
        made.add_row(peer, *counts)
        times = [row["seconds"] for row in rows.values() if "seconds" in row]
        lines += [f"{peer}: {median(times) * 1e6:.0f} us to plan a pair, median"] if times else []
        lines += [f"more than {peer}: {line}" for line in c.worse]
        lines += [f"fewer than {peer}: {line}" for line in c.better]
    if answers:
        show(made)
        print("\n".join(lines))
    if options.record:
        Path(options.record).write_text(record(answers, options.mesh, options.shape))


if __name__ == "__main__":
    main()
