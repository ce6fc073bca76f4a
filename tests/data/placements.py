"""Which elements each rank holds, as DTensor and JAX place them: the answers of the peers themselves.

PYTHON tests/data/placements.py dtensor > tests/data/placements_dtensor.json    PYTHON has torch
PYTHON tests/data/placements.py jax > tests/data/placements_jax.json            PYTHON has jax

Elements are numbered 0.. in row-major order; `shards` lists them by rank, as they lie there. Nothing of
meshweave is used here.
"""

import json
import os
import sys
from itertools import permutations, product
from math import prod
from typing import Any

MESHES = ((2, 2), (2, 3), (4, 2), (2, 2, 2))
NAMES = "xyz"


def dtensor() -> list[dict[str, Any]]:
    """Local tensors of `distribute_tensor`, of all placements of small tensors; and what torch makes of
    orders in which a dim is cut.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for sizes in MESHES:
        for rank in range(prod(sizes)):
            if dist.is_initialized():
                dist.destroy_process_group()
            store = FakeStore()
            dist.init_process_group("fake", rank=rank, world_size=prod(sizes), store=store)
            mesh = init_device_mesh("cpu", sizes)
            for shape, words in _dtensor_cases(sizes):
                value = torch.arange(prod(shape)).reshape(shape)
                placements = [_placement(word) for word in words]
                local = distribute_tensor(value, mesh, placements, src_data_rank=None).to_local()
                key = (sizes, shape, words)
                empty = {"mesh": sizes, "shape": shape, "placements": words, "shards": []}
                row = rows.setdefault(key, empty)
                row["shards"].append(local.reshape(-1).tolist())
                row["orders"] = _orders(placements, mesh)
    return list(rows.values())


def _dtensor_cases(sizes: tuple[int, ...]) -> Any:
    words = ["R", "S0", "S1"]
    strided = ["T0/2", "T0/3", "T0/4"]
    if len(sizes) == 2:
        for shape in ((5, 3), (12, 4), (10, 2)):
            for row in product(words + strided, repeat=2):
                yield shape, row
    else:
        for shape in ((9, 2), (16, 2)):
            for row in product(words + strided[::2], repeat=3):
                if "S1" not in row or shape == (16, 2):
                    yield shape, row


def _placement(word: str) -> Any:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    if word[0] == "T":
        dim, split = word[1:].split("/")
        return _StridedShard(int(dim), split_factor=int(split))
    return Shard(int(word[1])) if word[0] == "S" else Replicate()


def _orders(placements: list[Any], mesh: Any) -> list[list[Any]] | None:
    """The order of cuts that torch reads from strided shards: [dim, axes]; None where it cannot."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    found = DTensorSpec._maybe_convert_StridedShard_to_shard_order(tuple(placements), mesh)
    if found is None:
        return None
    return [[entry.tensor_dim, list(entry.mesh_dims)] for entry in found]


def jax() -> list[dict[str, Any]]:
    """Shards of `device_put` for PartitionSpecs; and of results that Shardy, through XLA, places by
    shardings with sub-axes.
    """
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax as peer
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    rows = []
    shape = (24, 24)
    value = np.arange(prod(shape)).reshape(shape)
    for sizes in MESHES:
        names = NAMES[: len(sizes)]
        devices = np.array(peer.devices()[: prod(sizes)]).reshape(sizes)
        for order in permutations(names):
            for places in product(range(3), repeat=len(names)):
                spec = [[a for a, at in zip(order, places) if at == dim] for dim in (0, 1)]
                sharding = NamedSharding(
                    peer.sharding.Mesh(devices, tuple(names)), PartitionSpec(*map(tuple, spec))
                )
                put = peer.device_put(value, sharding)
                boxes = [_box(s.index, shape) for s in _by_device(put.addressable_shards)]
                row = {"mesh": sizes, "shape": shape, "spec": spec, "boxes": boxes}
                if row not in rows:
                    rows.append(row)
    for sizes, text in _SHARDY:
        rows.append(
            {"mesh": sizes, "shape": shape, "sdy": text, "boxes": _shardy(sizes, text, shape)}
        )
    return rows


_SHARDY = (
    ((4, 2), '[{"x":(1)2}, {}]'),
    ((4, 2), '[{"x":(2)2}, {}]'),
    ((4, 2), '[{"x":(2)2}, {"x":(1)2}]'),
    ((4, 2), '[{"x":(2)2, "y"}, {"x":(1)2}]'),
    ((4, 2), '[{"y", "x":(1)2}, {}]'),
    ((4, 2), '[{"x":(2)2, "x":(1)2}, {"y"}]'),
    ((4, 2), '[{"x", "y"}, {}]'),
    ((4, 2), '[{"y", "x"}, {}]'),
    ((8, 1), '[{"x":(2)2}, {"x":(1)2}]'),
    ((8, 1), '[{"x":(4)2, "x":(1)2}, {"x":(2)2}]'),
    ((8, 1), '[{"x":(1)4}, {"x":(4)2}]'),
    ((6, 1), '[{"x":(2)3}, {"x":(1)2}]'),
    ((6, 1), '[{"x":(1)3}, {"x":(3)2}]'),
    ((2, 3), '[{"y", "x"}, {}]'),
)


def _shardy(sizes: tuple[int, ...], sharding: str, shape: tuple[int, ...]) -> Any:
    """What each device holds of a result with this sharding, once XLA has compiled it."""
    import jax as peer
    import numpy as np
    from jax._src import compiler, op_shardings, xla_bridge
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    count = prod(sizes)
    axes = ", ".join(f'"{name}"={size}' for name, size in zip(NAMES, sizes))
    type_, whole = f"tensor<{'x'.join(map(str, shape))}xf32>", f"#sdy.sharding<@mesh, {sharding}>"
    text = (
        f"module @m attributes {{mhlo.num_partitions = {count} : i32, mhlo.num_replicas = 1 : i32}} {{\n"
        f"sdy.mesh @mesh = <[{axes}]>\n"
        f"func.func public @main(%a: {type_}) -> ({type_} {{sdy.sharding = {whole}}}) {{\n"
        f"  %0 = stablehlo.add %a, %a {{sdy.sharding = #sdy.sharding_per_value<[{whole[13:]}]>}} : {type_}\n"
        f"  return %0 : {type_}\n}} }}"
    )
    with mlir.make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        options = compiler.get_compile_options(
            num_replicas=1,
            num_partitions=count,
            device_assignment=np.arange(count).reshape(1, count),
        )
        build = options.executable_build_options
        build.use_spmd_partitioning = build.use_shardy_partitioner = True
        build.num_partitions = count
        devices = xla_client.DeviceList(tuple(peer.devices()[:count]))
        backend = xla_bridge.get_backend()
        made = compiler.backend_compile_and_load(backend, module, devices, options, [])
    found = xla_client.HloSharding.from_proto(made.get_output_shardings()[0])
    boxes = op_shardings.op_sharding_to_indices(found, shape, count)
    return [_box(box, shape) for box in boxes]


def _by_device(shards: Any) -> Any:
    return sorted(shards, key=lambda shard: shard.device.id)


def _box(index: Any, shape: tuple[int, ...]) -> list[list[int]]:
    """Per dim from and to."""
    return [list(part.indices(size)[:2]) for part, size in zip(index, shape)]


if __name__ == "__main__":
    made = {"dtensor": dtensor, "jax": jax}[sys.argv[1]]()
    print("[" + ",\n".join(json.dumps(row) for row in made) + "]")
