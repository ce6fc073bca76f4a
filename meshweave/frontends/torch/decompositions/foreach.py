"""Take ops on lists of tensors apart, `_foreach_add` and its like: each tensor gets an op of its own."""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch._C import DispatchKey


@cache
def decompositions() -> dict[object, Callable[..., object]]:
    """Return by op what computes it tensor by tensor: torch's own code for devices that have no faster one."""
    schemas = torch._C._jit_get_all_schemas()
    names = {schema.name.removeprefix("aten::") for schema in schemas}
    packets = [
        getattr(torch.ops.aten, name)
        for name in sorted(names)
        if name.startswith("_foreach_") and not name.endswith("_")
    ]
    ops = [
        getattr(packet, overload)
        for packet in packets
        for overload in packet.overloads()
        if not overload.endswith("out")
    ]
    return {op: partial(op._op_dk, DispatchKey.CompositeExplicitAutograd) for op in ops}
