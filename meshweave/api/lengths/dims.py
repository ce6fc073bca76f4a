"""Read which sizes of its arguments a function leaves to each call: `mw.jit(.., dims={"x": (n, None)})`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from meshweave.errors import UsageError
from meshweave.frontends.python.program import ArgumentSpec
from meshweave.layout.lengths import Dim, ShapeDtype

OpenDims: TypeAlias = Sequence[Dim | int | None] | Mapping[int, Dim]
DimsOf: TypeAlias = Mapping[str, OpenDims]
"""For arguments by name a shape of dims, numbers, and None for what the argument of a call has; or dims by number."""


def checked_dims(
    given: DimsOf | None, names: Sequence[str], static: Sequence[str]
) -> dict[str, OpenDims]:
    """Return the dims of arguments by name. Raises UsageError for what names no array of the function."""
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"jit: dims is a {type(given).__name__}, a dict by arguments is right")
    for name, said in (given or {}).items():
        if name not in names or name in static:
            known = ", ".join(n for n in names if n not in static)
            raise UsageError(f"jit: dims: {name} is no array of the function: {known} are")
        right = isinstance(said, Mapping | Sequence) and not isinstance(said, str)
        sizes = said.values() if isinstance(said, Mapping) else said if right else ()
        if not right or not all(isinstance(s, Dim | int) or s is None for s in sizes):
            raise UsageError(f"jit: dims[{name!r}] is {said!r:.40}: a shape with Dims is right")
    return dict(given or {})


def opened(leaf: object, spec: ArgumentSpec, path: str, dims: Mapping[str, OpenDims]) -> object:
    """Return an argument, or what its kind is with the sizes open that calls choose."""
    said = dims.get(path)
    if said is None:
        return leaf
    shape: list[int | Dim] = list(spec.shape)
    wanted = dict(said) if isinstance(said, Mapping) else dict(enumerate(said))
    if (not isinstance(said, Mapping) and len(said) != len(shape)) or not all(
        isinstance(d, int) and 0 <= d < len(shape) for d in wanted
    ):
        raise UsageError(f"argument {path}: {len(shape)} dims, dims says {said!r:.60}")
    for d, size in wanted.items():
        if isinstance(size, Dim) and spec.shape[d] not in size.sizes:
            raise UsageError(
                f"argument {path}: dim {d} has size {spec.shape[d]}, {size.name} may be {size.min} to {size.max}"
            )
        if isinstance(size, int) and size != spec.shape[d]:
            raise UsageError(f"argument {path}: dim {d} has size {spec.shape[d]}, {size} is right")
        shape[d] = spec.shape[d] if size is None else size
    return ShapeDtype(tuple(shape), spec.dtype)
