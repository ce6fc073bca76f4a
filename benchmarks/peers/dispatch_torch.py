"""The calls of benchmarks/dispatch.py in torch: plain, DTensor eager and compiled. Microseconds as JSON.

    PYTHON -m benchmarks.peers.dispatch_torch fake|gloo RANKS REPEAT

PYTHON has torch; nothing of meshweave is imported. `fake`: one process, a process group that moves nothing, so that
only the cost of dispatch is left. `gloo`: a process a rank. One thread each.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.peers.torch_ranks import run

BATCH, WIDTH, HIDDEN = 32, 64, 256
LEAVES = 100


def decayed(leaves: list[Any], x: Any) -> list[Any]:
    """Return the next state of a step, of as many arrays."""
    return [leaf * 0.999 + x for leaf in leaves]


def microseconds(action: Callable[[], Any], repeat: int, inner: int = 200) -> float:
    """Of one call: the median over `repeat` runs of `inner` calls each."""
    for _ in range(inner):
        action()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        for _ in range(inner):
            action()
        times.append((time.perf_counter() - began) / inner)
    return sorted(times)[len(times) // 2] * 1e6


def small_op(mesh: Any, ranks: int, repeat: int) -> dict[str, float]:
    """addmm of 8x8 on each rank: rows over the ranks; cached, and the first call of a shape."""
    import torch
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def placed(rows: int, k: int) -> tuple[Any, Any, Any]:
        x, w, b = torch.randn(rows, k), torch.randn(k, k), torch.randn(k)
        return (
            distribute_tensor(b, mesh, [Replicate()]),
            distribute_tensor(x, mesh, [Shard(0)]),
            distribute_tensor(w, mesh, [Replicate()]),
        )

    addmm = torch.ops.aten.addmm.default
    given = placed(8 * ranks, 8)
    own = [tensor.to_local() for tensor in given]
    with torch.no_grad():
        found = {
            "small op, plain": microseconds(lambda: addmm(*own), repeat),
            "small op, DTensor": microseconds(lambda: addmm(*given), repeat),
        }
        firsts, moves = [], []
        for k in range(16, 16 + 8 * 9, 8):
            new = placed(k * ranks, k)
            began = time.perf_counter()
            addmm(*new)
            firsts.append(time.perf_counter() - began)
            began = time.perf_counter()
            new[1].redistribute(placements=[Shard(1)]).to_local()
            moves.append(time.perf_counter() - began)
    found["first call of a shape, DTensor"] = sorted(firsts)[len(firsts) // 2] * 1e6
    found["first redistribution of a shape, DTensor"] = sorted(moves)[len(moves) // 2] * 1e6
    return found


def layer(mesh: Any, repeat: int) -> dict[str, float]:
    """The forward of a perceptron whose hidden dim lies over the ranks."""
    import torch
    from torch import nn
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    class Perceptron(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

        def forward(self, x: Any) -> Any:
            return self.down(torch.relu(self.up(x)))

    torch.manual_seed(0)
    whole, x = Perceptron(), torch.randn(BATCH, WIDTH)
    spread = parallelize_module(
        Perceptron(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    compiled = torch.compile(spread)

    def forward(module: Any) -> Any:  # a result is asynchronous: without the wait it is no time
        with torch.no_grad():
            y = module(x)
            return y.wait() if hasattr(y, "wait") else y

    return {
        "layer, plain": microseconds(lambda: forward(whole), repeat, 100),
        "layer, DTensor": microseconds(lambda: forward(spread), repeat, 100),
        "layer, DTensor compiled": microseconds(lambda: forward(compiled), repeat, 100),
    }


def rank_main(rank: int, backend: str, ranks: int, repeat: int, port: str) -> None:
    """One rank; rank 0 prints."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    else:
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    found = {**small_op(mesh, ranks, repeat), **layer(mesh, repeat)}
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks, wait for them."""
    backend, ranks, repeat = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if len(sys.argv) > 4:
        rank_main(int(sys.argv[4]), backend, ranks, repeat, sys.argv[5])
        return
    count = 1 if backend == "fake" else ranks
    sys.exit(run("benchmarks.peers.dispatch_torch", count, sys.argv[1:4]))


if __name__ == "__main__":
    main()
