"""A training step with Adam in a process of its own: a turn for each line on standard input.

    PYTHON -m benchmarks.peers.training CASE CONTESTANT

CASE is one of benchmarks/training_models.py, CONTESTANT one of CONTESTANTS. Prints a line of JSON when it is ready,
`{"arena", "moved", "parameters"}` in bytes, and one for each turn: `{"seconds", "loss"}`. At the end of its input it
prints `{"peak"}`: the most bytes that its processes held in a turn, beyond what they hold once all is imported.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTESTANTS = {
    "meshweave": 1, "meshweave dp=2": 2, "meshweave tp=2": 2, "JAX": 1, "JAX dp=2": 2,
    "JAX tp=2": 2, "torch": 1, "inductor": 1, "DDP": 2, "FSDP": 2,
}  # fmt: skip
"""Who can take part, with the number of ranks."""

Step = Callable[[], float]


def resident(field: str) -> int:
    """Return a figure of this process's memory, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def forget_peak() -> None:
    """Let the most that this process has held be what it holds now."""
    Path("/proc/self/clear_refs").write_text("5")


def of_jax(case: str, contestant: str) -> tuple[Step, dict[str, int]]:
    """Return the step of JAX, or of meshweave on JAX's program, and what is known of its memory."""
    ranks = CONTESTANTS[contestant]
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={ranks}"
    import jax
    import numpy as np
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    from benchmarks.training_models import adam, jax_model

    model = jax_model(case)
    mesh_axis = contestant[-4:-2] if ranks > 1 else "dp"
    specs = jax.tree.map(
        lambda spec: spec if mesh_axis == "tp" else P(), model.specs, is_leaf=_is_spec
    )
    batch = [P("dp") if mesh_axis == "dp" else P()] * len(model.batch)
    shardings = (specs, specs, specs, P(), *batch)
    step = adam(model.loss)
    zeros = jax.tree.map(np.zeros_like, model.params)
    more = jax.tree.map(np.zeros_like, model.params)
    state: list[Any] = [model.params, zeros, more, np.float32(0)]
    known = {"parameters": sum(p.nbytes for p in jax.tree.leaves(model.params))}
    if contestant.startswith("meshweave"):
        import meshweave as mw

        mesh = f"{mesh_axis}={ranks}"
        ours = mw.jax.jit(step, mesh=mesh, in_shardings=shardings, donate_argnums=(0, 1, 2, 3))
        manifest = ours.lower(*state, *model.batch).program.bundle.manifest
        known["arena"] = manifest.arena_bytes * ranks
        known["moved"] = sum(one.bytes for one in manifest.collectives)
        call: Any = ours
    else:
        auto = (jax.sharding.AxisType.Auto,)
        mesh = jax.make_mesh((ranks,), (mesh_axis,), axis_types=auto)
        placed = jax.tree.map(lambda spec: NamedSharding(mesh, spec), shardings, is_leaf=_is_spec)
        results = (NamedSharding(mesh, P()), *placed[:4])
        jitted = jax.jit(
            step, in_shardings=placed, out_shardings=results, donate_argnums=(0, 1, 2, 3)
        )
        put = [jax.device_put(a, s) for a, s in zip((*state, *model.batch), placed)]
        state = put[:4]
        model = model._replace(batch=tuple(put[4:]))
        call = jitted.lower(*put).compile()
        known["arena"] = call.memory_analysis().temp_size_in_bytes * ranks

    def turn() -> float:
        loss, *new = call(*state, *model.batch)
        state[:] = new
        return float(np.asarray(loss))

    return turn, known


def _is_spec(value: object) -> bool:
    return type(value).__name__ == "PartitionSpec"


def of_torch(case: str, contestant: str) -> tuple[Step, dict[str, int]]:
    """Return the step of PyTorch: eager, compiled, or on ranks whose process group is there."""
    import torch

    from benchmarks.training_models import torch_model

    torch.set_num_threads(1 if CONTESTANTS[contestant] > 1 else os.cpu_count() or 1)
    module, loss_of, batch = torch_model(case)
    known = {"parameters": sum(p.numel() * p.element_size() for p in module.parameters())}
    if CONTESTANTS[contestant] > 1:
        import torch.distributed as dist

        batch = [b.chunk(dist.get_world_size())[dist.get_rank()] for b in batch]
    if contestant == "DDP":
        module = torch.nn.parallel.DistributedDataParallel(module)
    elif contestant == "FSDP":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, eps=1e-8)

    def forward(*given: Any) -> Any:
        return loss_of(module, *given)

    compute = torch.compile(forward) if contestant == "inductor" else forward

    def turn() -> float:
        optimizer.zero_grad()
        loss = compute(*batch)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return turn, known


def serve(step: Step, known: dict[str, int], held: int, rank: int) -> None:
    """Take a turn for each line; ranks of a group take it when the first one does."""

    def together(go: bool) -> bool:
        if rank < 0:
            return go
        import torch
        import torch.distributed as dist

        flag = torch.tensor([int(go)])
        dist.broadcast(flag, 0)
        return bool(flag.item())

    step()  # what is compiled or allocated once is not counted
    forget_peak()
    if rank <= 0:
        print(json.dumps(known), flush=True)
    while together(bool(sys.stdin.readline()) if rank <= 0 else True):
        began = time.perf_counter()
        loss = step()
        together(True)
        seconds = time.perf_counter() - began
        if rank <= 0:
            print(json.dumps({"seconds": seconds, "loss": loss}), flush=True)
    peak = resident("VmHWM") - held
    if rank >= 0:
        import torch
        import torch.distributed as dist

        total = torch.tensor([peak])
        dist.all_reduce(total)
        peak = int(total.item())
    if rank <= 0:
        print(json.dumps({"peak": peak}), flush=True)


def rank_main(case: str, contestant: str, rank: int, port: str) -> None:
    """Be one rank of a group of processes; rank -1 is a process alone."""
    is_torch = not contestant.startswith(("meshweave", "JAX"))
    if is_torch:
        import torch
        import torch.distributed as dist

        torch.manual_seed(0)
        if rank >= 0:
            address = f"tcp://127.0.0.1:{port}"
            dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    else:
        import jax  # noqa: F401

        import meshweave  # noqa: F401
    held = resident("VmRSS")
    step, known = (of_torch if is_torch else of_jax)(case, contestant)
    serve(step, known, held, rank)


def main() -> None:
    """Be a contestant: start a process a rank where it takes some, or be one of them."""
    case, contestant, *rest = sys.argv[1:]
    if rest:
        rank_main(case, contestant, int(rest[0]), rest[1])
    elif contestant in ("DDP", "FSDP"):
        from benchmarks.peers.torch_ranks import run

        sys.exit(run("benchmarks.peers.training", 2, [case, contestant]))
    else:
        rank_main(case, contestant, -1, "")


if __name__ == "__main__":
    main()
