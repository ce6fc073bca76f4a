"""The moves of benchmarks/bandwidth.py in torch with gloo: seconds of each, as JSON.

    PYTHON -m benchmarks.peers.gloo N RANKS REPEAT

PYTHON has torch; nothing of meshweave is imported. A process a rank, one thread each. What gloo cannot do
is left out.
"""

import json
import sys
import time
from typing import Any

from benchmarks.peers.torch_ranks import run


def measured(n: int, ranks: int, repeat: int) -> dict[str, float]:
    """Seconds of each move, the fastest of the runs, by the slowest rank."""
    import torch
    import torch.distributed as dist

    half = n // ranks
    ones = torch.ones

    def all_to_all(split: int, concat: int, x: Any) -> Any:
        packed = torch.stack(x.chunk(ranks, split)).contiguous()
        came = torch.empty_like(packed)
        dist.all_to_all_single(came, packed)
        return came.flatten(0, 1) if concat == 0 else torch.cat(list(came), concat)

    def all_gather(dim: int, x: Any) -> Any:
        came = torch.empty((ranks, *x.shape))
        dist.all_gather(list(came), x)
        return came.flatten(0, 1) if dim == 0 else torch.cat(list(came), dim)

    def reduce_scatter(dim: int, x: Any) -> Any:
        packed = x if dim == 0 else torch.stack(x.chunk(ranks, dim)).flatten(0, 1)
        came = torch.empty((packed.shape[0] // ranks, packed.shape[1]))
        dist.reduce_scatter_tensor(came, packed.contiguous())
        return came

    moves = {
        "all_gather, rows": (lambda x: all_gather(0, x), ones(half // 2, n)),
        "all_gather, columns": (lambda x: all_gather(1, x), ones(n, half // 2)),
        "all_to_all [x, _] to [_, x]": (lambda x: all_to_all(1, 0, x), ones(half, n)),
        "all_to_all [_, x] to [x, _]": (lambda x: all_to_all(0, 1, x), ones(n, half)),
        "reduce_scatter, rows": (lambda x: reduce_scatter(0, x), ones(half, n)),
        "reduce_scatter, columns": (lambda x: reduce_scatter(1, x), ones(n, half)),
        "all_reduce": (lambda x: dist.all_reduce(x), ones(half, n)),
    }
    found = {}
    for name, (move, x) in moves.items():
        times = []
        try:
            for _ in range(repeat + 1):
                dist.barrier()
                began = time.perf_counter()
                move(x)
                dist.barrier()
                times.append(time.perf_counter() - began)
        except (RuntimeError, NotImplementedError) as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        found[name] = min(times[1:])
    return found


def rank_main(rank: int, n: int, ranks: int, repeat: int, port: str) -> None:
    """One rank; rank 0 prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks
    )
    found = measured(n, ranks, repeat)
    if rank == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def main() -> None:
    """Start a process a rank, or be one of them."""
    n, ranks, repeat = (int(text) for text in sys.argv[1:4])
    if len(sys.argv) > 4:
        rank_main(int(sys.argv[4]), n, ranks, repeat, sys.argv[5])
        return
    sys.exit(run("benchmarks.peers.gloo", ranks, sys.argv[1:4]))


if __name__ == "__main__":
    main()
