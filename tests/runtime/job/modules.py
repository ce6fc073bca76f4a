"""Run as one rank of a job: train modules that torch has distributed, as one program, beside whole ones."""

import atexit
import copy
import os
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import meshweave as mw


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 9), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def train_step(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    for part in (*model.children(), model):
        fully_shard(part, mesh=mesh)
    return model


def in_columns(model: nn.Module, mesh: Any) -> nn.Module:
    return parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


HOW = {
    "dp": (sharded, lambda model, mesh: nn.parallel.DistributedDataParallel(model)),
    "tp": (in_columns,),
}


def check(axis: str, distribute: Any) -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (mw.size(),), mesh_dim_names=(axis,))
    whole = Mlp()
    ours = distribute(copy.deepcopy(whole), mesh)
    optimizers = [torch.optim.AdamW(one.parameters(), 0.01) for one in (ours, whole)]
    batches = [(torch.randn(8, 6), torch.randint(5, (8,))) for _ in range(20)]
    said = {"x": "[dp, _]", "y": "[dp]"} if axis == "dp" else {}
    step = mw.from_torch(train_step, (ours, optimizers[0], *batches[0]), said, mesh)
    for batch in batches:
        loss = step(ours, optimizers[0], *batch)
        assert torch.allclose(loss, train_step(whole, optimizers[1], *batch), rtol=1e-5)
    for one, two in zip(ours.parameters(), whole.parameters(), strict=True):
        value = one.full_tensor() if hasattr(one, "full_tensor") else one
        assert torch.allclose(value, two, atol=1e-5)


mw.init()
distributed.init_process_group("gloo")
for axis, ways in HOW.items():
    for distribute in ways:
        check(axis, distribute)
print(f"rank {mw.rank()} of {mw.size()} is done", flush=True)
distributed.destroy_process_group()
# Threads of gloo live on with the meshes: one that wants the interpreter while it is torn down aborts the process.
atexit._run_exitfuncs()
os._exit(0)
