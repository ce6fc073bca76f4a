"""Keep parameters and buffers laid out over the ranks, each once for all programs that read it in one layout."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from meshweave.frontends.torch.export import torch_package
from meshweave.frontends.torch.layouts import is_dtensor
from meshweave.runtime.arrays.array import Array
from meshweave.runtime.arrays.blocks import HeldPart, parts, plain
from meshweave.runtime.arrays.kind import Kind
from meshweave.torch.program import TorchProgram

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor


class LaidOut:
    """Remember what the ranks hold of tensors, for as long as these live.

    A piece that torch calls for many modules, as for each expert, is one program, which reads the parameters of each
    where they lie; and programs of several sizes read the same.
    """

    def __init__(self, frozen: bool) -> None:
        """Keep nothing yet. frozen: tensors are written through torch alone; else each use compares their elements."""
        self._frozen = frozen
        self._kept: dict[_Place, _Kept] = {}

    def give(self, program: TorchProgram, name: str, value: Tensor) -> None:
        """Let a program read a tensor as its parameter `name`, laid out anew only if need be."""
        held = program.parameters[name]
        kept = self._kept.get(_place(program, name, value))
        if kept is None or not kept.mark.holds(value, kept.laid):
            program.bind({name: value})
            self.keep(program, name, value)
        elif kept.laid is not held:
            program.bind({name: kept.laid})

    def keep(self, program: TorchProgram, name: str, value: Tensor) -> None:
        """Note that the parameter `name` of a program is this tensor, as its elements are now."""
        place, laid, kept = _place(program, name, value), program.parameters[name], self._kept
        alive = weakref.ref(value, lambda _: kept.pop(place, None))
        kept[place] = _Kept(_Mark(value, laid, self._frozen), laid, alive)

    def knows(self, program: TorchProgram, name: str, value: Tensor) -> bool:
        """Tell whether the tensor has been laid out as the program reads it."""
        return _place(program, name, value) in self._kept


class _Kept(NamedTuple):
    """Hold what is laid out of a tensor, what tells whether it is still right, and what ends with the tensor."""

    mark: _Mark
    laid: Array
    alive: weakref.ref[Tensor]


_Place = tuple[int, Kind, int]


def _place(program: TorchProgram, name: str, value: Tensor) -> _Place:
    """Return what tells apart what is kept: the tensor, how it lies, and the program where that writes it."""
    own = id(program) if name in program.written else 0
    return id(value), program.parameters[name].kind, own


class _Mark:
    """Remember a tensor, to tell whether another one is given or it has been written.

    It keeps torch's count of writes. A tensor that is not `frozen` is compared with what is laid out of it, or with a
    copy of its bits where its parts are no blocks.
    """

    def __init__(self, value: Tensor, laid: Array | None, frozen: bool) -> None:
        self._tensor, self._place = weakref.ref(value), value.data_ptr()
        self._version = None if value.is_inference() else value._version
        self._frozen = frozen
        # In a job all ranks have to find the same, whichever part has changed.
        self._in_blocks, self._parts = False, list[HeldPart]()
        if laid is not None and laid.kind.rank is None and plain(laid.layout):
            self._in_blocks, self._parts = True, parts(laid.mesh, laid.layout, laid.shape)
        self._bits = None if frozen or self._in_blocks else _bits(value).clone()

    def holds(self, value: Tensor, laid: Array | None) -> bool:
        """Tell whether `value` is the same tensor with the same elements. laid: what the ranks hold of it."""
        if self._frozen:
            same = self._place == value.data_ptr() and self._tensor() is value
            return same and self._version is not None and self._version == value._version
        if self._in_blocks:
            assert laid is not None
            return _is_laid_out(value, laid, self._parts)
        return bool(torch_package().equal(self._bits, _bits(value)))


def _is_laid_out(value: Tensor, laid: Array, parts: Sequence[HeldPart]) -> bool:
    """Tell whether the blocks of an array hold the bits of a tensor."""
    torch, bits = torch_package(), _bits(value)
    if tuple(bits.shape) != laid.shape:
        return False
    held = laid.held
    for part in parts:
        shard = held[part.rank]
        whole = shard if shard.itemsize > 8 else shard.view(f"i{shard.itemsize}")
        if not torch.equal(torch.from_numpy(whole[part.inside]), bits[part.place]):
            return False
    return True


def _bits(value: Tensor) -> Tensor:
    """Return a tensor's elements as integers, so that NaNs are equal to themselves."""
    torch = torch_package()
    whole = value.full_tensor() if is_dtensor(value) else value
    whole = whole.detach()
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return whole.view(kinds[whole.element_size()]) if whole.element_size() in kinds else whole
