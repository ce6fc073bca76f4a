"""Take arrays of JAX's onto our ranks, and give results back as JAX's: shards by shards where the two agree on them.

A shard of a `jax.Array` is the memory of one device. Where a rank needs the very part of the global array that a shard
is, it reads that memory; otherwise the array is moved, and Python's logger `meshweave` is told.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from meshweave.jax.placements import jax_has, program_mesh
from meshweave.layout import Layout, Mesh
from meshweave.layout.arguments import as_layout
from meshweave.layout.interchange import to_spec
from meshweave.runtime.arrays.array import Array, dtype_name
from meshweave.runtime.arrays.blocks import plain

_LOG = logging.getLogger("meshweave")
_Index: TypeAlias = tuple[tuple[int, int], ...]
"""Where a part of a global array begins and ends, in each dim."""


@cache
def let_jax_take_arrays() -> None:
    """Let JAX take an Array wherever it takes one of NumPy's: as an argument of its functions and transformations.

    `__jax_array__` alone serves those that convert their arguments first. What JAX knows of types is internal to it: a
    JAX that keeps it elsewhere has `__jax_array__`.
    """
    try:
        core, dtypes = import_module("jax._src.core"), import_module("jax._src.dtypes")
        types, values = core.pytype_aval_mappings, dtypes.canonicalize_value_handlers
        shaped, canonical = core.ShapedArray, dtypes.canonicalize_dtype
    except (ImportError, AttributeError):
        return
    types[Array] = lambda a: shaped(a.shape, canonical(a.dtype), weak_type=a.weak_type)
    values[Array] = lambda a: a.__jax_array__()


def is_spread(value: Any) -> bool:
    """Tell whether JAX has laid an array on several devices, all of which this process reaches."""
    sharding = getattr(value, "sharding", None)
    return sharding is not None and sharding.num_devices > 1 and bool(value.is_fully_addressable)


def from_shards(value: Any, name: str, mesh: Mesh, layout: Layout) -> Array | np.ndarray[Any, Any]:
    """Return a `jax.Array` of several devices as the ranks take it; `name` is what the logger calls it.

    Where each rank needs one of its shards, those are not copied. Else it is moved, by a plan of ours where it is over
    this mesh, and put together first where it is not.
    """
    found = _over_shards(value, mesh, layout)
    if found is not None:
        return found
    sharding = value.sharding
    lies = getattr(sharding, "spec", sharding)
    if hasattr(sharding, "spec") and program_mesh(sharding.mesh) == mesh:
        found = _over_shards(value, mesh, as_layout(sharding.spec, value.ndim))
    if found is not None:
        _LOG.warning("%s lies as %s, the program takes %s: it is moved", name, lies, layout)
        return found.redistribute(layout)
    _LOG.warning(
        "%s lies as %s, the program takes %s on (%s): it is put together and cut again",
        *(name, lies, layout, mesh),
    )
    return np.asarray(value)


def _over_shards(value: Any, mesh: Mesh, layout: Layout) -> Array | None:
    """Return an Array over the memory of an array's shards; None where a rank needs what is no shard."""
    if not plain(layout) or not layout.is_even(mesh, value.shape):
        return None
    parts = {_index(s.index, value.shape): s.data for s in value.addressable_shards}
    local, held = layout.local_shape(mesh, value.shape), []
    for rank in range(mesh.nranks):
        starts = layout.offsets(mesh, value.shape, rank)
        part = parts.get(tuple([(o, o + n) for o, n in zip(starts, local, strict=True)]))
        if part is None:
            return None
        held.append(np.asarray(part))
    name = dtype_name(held[0])
    bits = [part.view(np.uint16) for part in held] if name == "bf16" else held
    return Array.from_shards(bits, mesh=mesh, layout=layout, shape=value.shape, dtype=name)


def _index(index: Sequence[slice], shape: Sequence[int]) -> _Index:
    return tuple([part.indices(size)[:2] for part, size in zip(index, shape, strict=True)])


def to_jax(jax: ModuleType, array: Array, devices: Any, weak: bool) -> Any:
    """Return an Array as a `jax.Array`, sharded as it is over `devices`, a mesh of JAX's, if that has our layout.

    devices: None for JAX's default device, where the array is put together.
    """
    here = array.kind.rank is None  # not the part of one process alone
    if here and devices is not None and program_mesh(devices) == array.mesh:
        found = _on_devices(jax, array, devices)
    else:
        found = jax.numpy.asarray(elements(array))
    return weakly_typed(found) if weak else found


def weakly_typed(value: Any) -> Any:
    """Return a `jax.Array` that takes the dtype of what it meets, as a Python number does."""
    convert = import_module("jax.extend.core.primitives").convert_element_type_p
    return convert.bind(value, new_dtype=value.dtype, weak_type=True, sharding=None)


def elements(array: Array) -> np.ndarray[Any, Any]:
    """Return the global value in its dtype. In a job (`mw.init`) all ranks make this call."""
    if array.kind.rank is not None:
        array = array.redistribute(Layout.replicated(len(array.shape)))
    return array.numpy().astype(array.dtype, copy=False)


def _on_devices(jax: ModuleType, array: Array, devices: Any) -> Any:
    layout, mesh, named = array.layout, array.mesh, jax.sharding.NamedSharding
    if not jax_has(layout, mesh, array.shape):
        whole = named(devices, jax.sharding.PartitionSpec())
        return jax.device_put(array.__jax_array__(), whole)
    bf16 = array.dtype_name == "bf16"
    held = [shard.view(array.dtype) if bf16 else shard for shard in array.shards]
    placed = [
        jax.device_put(shard, device)
        for shard, device in zip(held, devices.devices.flat, strict=True)
    ]
    sharding = named(devices, jax.sharding.PartitionSpec(*to_spec(layout)))
    return jax.make_array_from_single_device_arrays(array.shape, sharding, placed)
