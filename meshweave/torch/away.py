"""Let the value of a tensor lie elsewhere: with the ranks of a program, or in a trace.

Whatever uses such a tensor through torch gets what its home gives in its place. It stays the object that it is:
modules, optimizers and lists of parameters need not know.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils import _pytree


class Home(Protocol):
    """Say where the value of a tensor lies."""

    def here(self, name: str, tensor: Tensor, reads: bool) -> Tensor:
        """Return what is used in the place of a tensor: another one, or itself once it has its value.

        reads: whether its elements may be read or written, not only its form.
        """


class _Away:
    """Give what a tensor's home gives, to whatever uses the tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.compiler.is_dynamo_compiling():  # a tensor like others: its value is of no account
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            away = [one for one in _pytree.tree_leaves((args, kwargs)) if isinstance(one, _Away)]
            used = partial(_used, reads=func not in OF_FORM)
            args, kwargs = _pytree.tree_map(used, (args, kwargs or {}))
            found = func(*args, **kwargs)
            # What writes a tensor returns it.
            return next((one for one in away if found is _used(one, reads=False)), found)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        memo[id(self)] = made = copy.deepcopy(_plain(self), memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain(self).__reduce_ex__(protocol)


class AwayTensor(_Away, Tensor):  # type: ignore[misc]
    """Stand for a tensor whose value is elsewhere."""


class AwayParameter(_Away, nn.Parameter):  # type: ignore[misc]
    """Stand for a parameter whose value is elsewhere."""


OF_FORM = {
    *[
        getattr(Tensor, name).__get__
        for name in ("grad", "shape", "dtype", "device", "layout", "ndim")
    ],
    *[
        getattr(Tensor, name).__get__
        for name in ("requires_grad", "is_leaf", "grad_fn", "itemsize")
    ],
    *(Tensor.grad.__set__, Tensor.grad.__delete__, Tensor.size, Tensor.dim, Tensor.numel),
    *(Tensor.stride, Tensor.is_floating_point, Tensor.is_complex, Tensor.requires_grad_),
}
_PLACE = "_meshweave_home"


def home_of(tensor: Tensor) -> tuple[Home, str] | None:
    """Return where the value of a tensor lies, and its name there; None where it has its value itself."""
    found: tuple[Home, str] | None = tensor.__dict__.get(_PLACE)
    return found


def send(tensor: Tensor, home: Home, name: str) -> None:
    """Let the value of a tensor lie at a home."""
    tensor.__dict__[_PLACE] = home, name
    if not isinstance(tensor, _Away):
        tensor.__class__ = AwayParameter if isinstance(tensor, nn.Parameter) else AwayTensor


def fetch(tensor: Tensor) -> None:
    """Let a tensor have its value itself again."""
    if home_of(tensor) is not None:
        _used(tensor)
        release(tensor)


def release(tensor: Tensor) -> None:
    """Let a tensor be a plain one again, with what its memory holds."""
    del tensor.__dict__[_PLACE]
    tensor.__class__ = nn.Parameter if isinstance(tensor, nn.Parameter) else Tensor


@contextmanager
def fetched(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Let tensors be plain ones for a while."""
    away = [(tensor, place) for tensor in tensors if (place := home_of(tensor)) is not None]
    for tensor, _ in away:
        fetch(tensor)
    try:
        yield
    finally:
        for tensor, (home, name) in away:
            send(tensor, home, name)


@contextmanager
def replaced(tensors: dict[str, Tensor], home: Home) -> Iterator[None]:
    """Let tensors, by name, be at a home for a while, and then where they were before."""
    before = {name: home_of(tensor) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        send(tensor, home, name)
    try:
        yield
    finally:
        for name, tensor in tensors.items():
            place = before[name]
            if place is not None:
                send(tensor, *place)
            else:
                release(tensor)


def _used(value: Any, reads: bool = True) -> Any:
    if isinstance(value, _Away):
        assert isinstance(value, Tensor)
        place = home_of(value)
        if place is not None:
            return place[0].here(place[1], value, reads)
    return value


def _plain(value: Any) -> Tensor:
    """Return a tensor of the usual kind in the memory of one that is away, with its value."""
    with torch._C.DisableTorchFunctionSubclass():
        _used(value)
        data = value.detach()
    return nn.Parameter(data, value.requires_grad) if isinstance(value, nn.Parameter) else data
