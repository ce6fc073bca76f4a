"""Take complex tensors apart and put parts together, by two ops that cancel out in a graph.

before:  z = mul(x, y)                                        of complex tensors
after:   z = pair(part(x, 0) * part(y, 0) - .., ..)           and part(pair(a, b), 0) is a
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree

PART_OF = {torch.complex64: torch.float32, torch.complex128: torch.float64}
WHOLE_OF = {real: whole for whole, real in PART_OF.items()}

torch.library.define("meshweave::pair", "(Tensor re, Tensor im) -> Tensor")
torch.library.register_fake(
    "meshweave::pair", lambda re, im: re.new_empty(re.shape, dtype=WHOLE_OF[re.dtype])
)
torch.library.define("meshweave::part", "(Tensor z, int number) -> Tensor")
torch.library.register_fake(
    "meshweave::part", lambda z, number: z.new_empty(z.shape, dtype=PART_OF[z.dtype])
)


def pair(re: Tensor, im: Tensor) -> Tensor:
    """Return the complex tensor of two parts."""
    kind = torch.promote_types(re.dtype, im.dtype)
    re, im = torch.broadcast_tensors(re.to(kind), im.to(kind))
    whole: Tensor = torch.ops.meshweave.pair(re, im)
    return whole


def parts(value: Tensor | complex) -> tuple[Any, Any]:
    """Return the real and the imaginary part of a tensor or a number; 0 as the imaginary part of a real one."""
    if not isinstance(value, Tensor):
        return (value.real, value.imag) if isinstance(value, complex) else (value, 0)
    if value.is_complex():
        split = torch.ops.meshweave.part
        return split(value, 0), split(value, 1)
    return value, torch.zeros_like(value)


def is_complex(value: object) -> bool:
    """Tell whether a tensor, a number or a dtype is complex; no program has complex32."""
    kind = value.dtype if isinstance(value, Tensor) else value
    return isinstance(kind, complex) or (isinstance(kind, torch.dtype) and kind in PART_OF)


def any_complex(*args: object, **options: object) -> bool:
    """Tell whether there is a complex tensor, number or dtype among what an op is called with."""
    return any(map(is_complex, _pytree.tree_leaves((args, options))))


_PLACES = frozenset(("index", "indices", "mask", "condition", "repeats"))
"""Names of arguments that say where, not what."""
_NUMBERS = frozenset(("value", "fill_value", "other", "self", "s"))
"""Names of arguments that may be numbers of Python and say what."""


def by_parts(op: OpOverload) -> Callable[..., Any]:
    """Return what applies an op that moves or adds elements to each part.

    To the first alone, where a real dtype is asked for.
    """
    names = [argument.name for argument in op._schema.arguments]

    def computed(*args: Any, **options: Any) -> Any:
        def side(number: int) -> Any:
            given = [_side(name, value, number) for name, value in zip(names, args)]
            said = {name: _side(name, value, number) for name, value in options.items()}
            return op(*given, **said)

        kind = options.get("dtype")
        if kind is not None and not kind.is_complex:
            return side(0)
        made = [_pytree.tree_flatten(side(number)) for number in (0, 1)]
        (first, spec), (second, _) = made
        return _pytree.tree_unflatten([pair(*two) for two in zip(first, second)], spec)

    return computed


def _side(name: str, value: Any, number: int) -> Any:
    """Return an argument for the op on parts of this number."""
    if name in _PLACES:
        return value
    if isinstance(value, torch.dtype):
        return PART_OF.get(value, value)
    if isinstance(value, Tensor) or (name in _NUMBERS and isinstance(value, int | float | complex)):
        return parts(value)[number]
    if isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value):
        return [parts(one)[number] for one in value]
    return value
