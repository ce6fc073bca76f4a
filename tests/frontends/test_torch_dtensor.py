"""DTensors of a real process group: two processes over gloo; and their placements, of every kind, as layouts."""

import datetime
import os
import socket
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.multiprocessing as processes  # noqa: E402
from torch import distributed  # noqa: E402

import meshweave as mw  # noqa: E402

ROWS, WIDTH = 5, 6  # rows do not divide by two


def _work(rank: int, port: int) -> None:
    """What each of the two processes runs; what fails in one of them fails the test."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    wait = datetime.timedelta(seconds=60)
    distributed.init_process_group("gloo", rank=rank, world_size=2, timeout=wait)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    module, x = torch.nn.Linear(WIDTH, ROWS).eval(), torch.randn(3, WIDTH)
    wanted = module(x).detach()
    for name, value in list(module.named_parameters()):
        placed = distribute_tensor(value.detach(), mesh, [Shard(0)])
        setattr(module, name, torch.nn.Parameter(placed))
    assert module.weight.to_local().shape[0] == (3, 2)[rank]
    with mw.from_torch(module, (x,)) as program:
        assert str(program.parameters["weight"].layout) == "[tp, _]"
        assert torch.allclose(program(x), wanted, atol=1e-5)
        assert torch.allclose(program(distribute_tensor(x, mesh, [Shard(0)])), wanted, atol=1e-5)
    addends = DTensor.from_local(torch.full((3, 2), rank + 1.0), mesh, [Partial()])
    with mw.from_torch(torch.nn.ReLU(), (addends,)) as program:
        assert program.program.inputs[0].layout == "[_, _] +sum(tp)"
        assert torch.equal(program(addends), torch.full((3, 2), 3.0))
    distributed.destroy_process_group()


def test_two_processes_each_hold_a_shard_and_get_the_whole_result() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.spawn(_work, (port,), nprocs=2)


@pytest.fixture
def fake_group() -> Any:
    """A process group of four ranks, of which this process is the first."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    distributed.destroy_process_group()


def test_placements_on_a_mesh_of_two_axes(fake_group: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.placement_types import _StridedShard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    x = torch.arange(48.0).reshape(8, 6)
    kinds = {
        "[dp*tp, _]": [Shard(0), Shard(0)],
        "[tp*dp, _]": [_StridedShard(0, split_factor=2), Shard(0)],
        "[dp, tp]": [Shard(0), Shard(1)],
        "[_, dp]": [Shard(1), Replicate()],
        "[_, _]": [Replicate(), Replicate()],
    }
    for layout, said in kinds.items():
        with mw.from_torch(torch.nn.ReLU(), (x,), {"input": (mesh, said)}, mesh) as program:
            assert program.program.inputs[0].layout.removesuffix(" uneven(nested)") == layout
            assert torch.equal(program(x), x)
    uneven = distribute_tensor(torch.ones(5, 3), mesh, [Replicate(), Shard(0)])
    with mw.from_torch(torch.nn.ReLU(), (uneven,), mesh=mesh) as program:
        assert program.program.inputs[0].layout == "[tp, _]"
        assert torch.equal(program(torch.ones(5, 3)), torch.ones(5, 3))
