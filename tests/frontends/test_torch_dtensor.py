"""DTensors of a real process group: two processes over gloo; and their placements, of every kind, as layouts."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

import torch.multiprocessing as processes  # noqa: E402
from torch import distributed  # noqa: E402

import meshweave as mw  # noqa: E402
from meshweave.errors import UsageError  # noqa: E402

ROWS, WIDTH = 5, 6  # rows do not divide by two


def in_processes(work: Callable[[int], None], count: int, folder: Path) -> None:
    """Run `work` with the number of each of `count` processes over gloo; what fails in one of them fails the test."""
    processes.spawn(_one_of, (count, f"file://{folder}/meeting", work), nprocs=count)


def _one_of(rank: int, count: int, meeting: str, work: Callable[[int], None]) -> None:
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    work(rank)
    distributed.barrier()
    distributed.destroy_process_group()
    # Threads of gloo live on with the meshes: one that wants the interpreter while it is torn down aborts the process.
    os._exit(0)


def _work(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

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


def test_two_processes_each_hold_a_shard_and_get_the_whole_result(tmp_path: Path) -> None:
    in_processes(_work, 2, tmp_path)


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


class Parallel(torch.nn.Module):
    """A layer as tensor parallelism is explained with: a norm, a product cut by columns, one cut by rows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 8), torch.nn.Linear(8, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))


def parallel(mesh: Any, whole_results: bool = False) -> torch.nn.Module:
    """A module whose sequence is cut between its products, and whose parameters are cut over `dp` too."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Replicate() if whole_results else Shard(1)),
    }
    module = parallelize_module(Parallel().eval(), mesh["tp"], plan, src_data_rank=None)
    fully_shard(module.up, mesh=mesh["dp"])
    return fully_shard(module, mesh=mesh["dp"])


def plain_parallel() -> torch.nn.Module:
    torch.manual_seed(0)
    return Parallel().eval()


def _two_by_two(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    module, x = parallel(mesh), torch.linspace(-2, 2, 4 * 6 * WIDTH).sin().reshape(4, 6, WIDTH)
    rows, columns = (slice(n * k, n * k + n) for n, k in zip((2, 3), mesh.get_coordinate()))
    with torch.no_grad():
        part, wanted = module(x[rows, columns].contiguous()), plain_parallel()(x)
    assert torch.allclose(part, wanted[rows, columns], atol=1e-5)
    module.reshard()
    whole = {name: value.full_tensor().detach() for name, value in module.named_parameters()}
    if rank == 0:
        with mw.from_torch(module, (x,), {"x": "[dp, tp, _]"}, state=whole) as program:
            assert torch.allclose(program(x)[rows, columns], part, atol=1e-5)
            assert torch.allclose(program(x), wanted, atol=1e-5)


def test_tensor_and_sequence_parallel_and_fully_shard_on_two_by_two(tmp_path: Path) -> None:
    """Beside their own forward pass in four processes over gloo."""
    in_processes(_two_by_two, 4, tmp_path)


def test_hooks_are_layouts(fake_group: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    module, x = parallel(mesh), torch.ones(4, 6, WIDTH)
    state = plain_parallel().state_dict()
    hooks = [len(one._forward_hooks) for one in module.modules()]
    with mw.from_torch(module, (x,), {"x": "[dp, _, _]"}, state=state) as program:
        layouts = {name: str(one.layout) for name, one in program.parameters.items()}
        assert layouts["up.weight"].removesuffix(" uneven(nested)") == "[tp*dp, _]"
        assert layouts["down.weight"].removesuffix(" uneven(nested)") == "[dp, tp]"
        assert layouts["norm.weight"].removesuffix(" uneven(nested)") == "[dp]"
        assert program.program.outputs[0].layout == "[dp, tp, _]"  # as RowwiseParallel says
        assert torch.allclose(program(x), plain_parallel()(x), atol=1e-5)
        # six parameters are gathered over dp; what goes into three modules, and what comes out of two
        assert program.text.count("dist.constrain") == 11
        rows = program.explain().split("\n")
        assert sum("all_gather" in row and "dp" in row for row in rows) >= 1
    assert [len(one._forward_hooks) for one in module.modules()] == hooks


def test_hooks_of_the_user_are_refused(fake_group: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_module

    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    module = distribute_module(
        torch.nn.Sequential(torch.nn.Linear(4, 4)), mesh, input_fn=lambda m, args, where: args
    )
    state = {name: torch.ones(value.shape) for name, value in module.named_parameters()}
    with pytest.raises(
        UsageError, match=r"Sequential: distribute_module has the hook .*, which is not torch's"
    ):
        mw.from_torch(module.eval(), (torch.ones(2, 4),), state=state)


def train_step(module: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = (module(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _train(rank: int) -> None:
    """Three steps of a module cut over dp, in eager PyTorch and as one program."""
    from torch.distributed.device_mesh import init_device_mesh

    sizes = (2, 1)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
    theirs, ours = (parallel(mesh, whole_results=True).train() for _ in range(2))
    x, y = (torch.linspace(k, 4, 4 * 6 * WIDTH).sin().reshape(4, 6, WIDTH) for k in (-2, 3))
    parts = zip((4 // sizes[0], 6 // sizes[1]), mesh.get_coordinate(), strict=True)
    rows, columns = (slice(n * k, n * k + n) for n, k in parts)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1, 0.9) for one in (theirs, ours)]
    placements = {"x": "[dp, tp, _]", "y": "[dp, _, _]"}
    step = mw.from_torch(train_step, (ours, optimizers[1], x, y), placements, mesh)
    for k in range(3):
        wanted = train_step(theirs, optimizers[0], x[rows, columns].contiguous(), y[rows])
        distributed.all_reduce(wanted, distributed.ReduceOp.SUM)
        found = step(ours, optimizers[1], x, y)
        assert torch.allclose(found, wanted / 2, rtol=1e-5)
        if k == 1:  # written between calls, by all processes
            with torch.no_grad():
                for one in (theirs, ours):
                    one.reshard()
                    next(one.parameters()).mul_(0.5)
    for one in (theirs, ours):
        one.reshard()
    for (name, one), other in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        apart = (one.full_tensor() - other.full_tensor()).abs().max()
        assert apart < 1e-5, (name, apart, one.full_tensor(), other.full_tensor())


def test_fully_shard_trains(tmp_path: Path) -> None:
    in_processes(_train, 2, tmp_path)


def test_distributed_data_parallel_is_the_module_inside(fake_group: Any) -> None:
    module, x = plain_parallel(), torch.randn(4, 6, WIDTH)
    wrapped = torch.nn.parallel.DistributedDataParallel(module).eval()
    with mw.from_torch(wrapped, (x,), {"x": "[dp, _, _]"}, "dp=2") as program:
        assert torch.allclose(program(x), module(x), atol=1e-5)
    plain = plain_parallel()
    steps = [torch.optim.SGD(one.parameters(), 0.1) for one in (wrapped, plain)]
    step = mw.from_torch(train_step, (wrapped, steps[0], x, x), {"x": "[dp, _, _]"}, "dp=2")
    for _ in range(3):
        wanted = train_step(plain, steps[1], x, x)
        assert torch.allclose(step(wrapped, steps[0], x, x), wanted, rtol=1e-5)
    assert torch.allclose(wrapped.state_dict()["module.up.weight"], plain.up.weight, atol=1e-6)
