"""List what complex tensors decompose into, by op, around the table for real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch._decomp import decomposition_table
from torch._export.utils import _collect_all_valid_cia_ops
from torch._ops import OpOverload

from meshweave.frontends.torch.decompositions.of_complex import functions, tensors
from meshweave.frontends.torch.decompositions.of_complex.parts import (
    any_complex,
    by_parts,
    pair,
    parts,
)

Decomposition = Callable[..., Any]
_BY_PARTS = """
    view _unsafe_view reshape expand permute transpose t slice select squeeze unsqueeze cat stack split
    split_with_sizes unbind clone alias detach lift_fresh lift_fresh_copy flip roll repeat index index_select gather
    constant_pad_nd diagonal diag_embed tril triu unfold sum mean cumsum neg masked_fill where scatter scatter_add
    index_put index_add index_copy index_fill slice_scatter select_scatter diagonal_scatter as_strided copy full
    full_like new_full new_zeros zeros zeros_like fill scalar_tensor trace take masked_scatter empty empty_like
    new_empty select_backward slice_backward diagonal_backward unfold_backward block_diag _reshape_alias put
    new_empty_strided empty_strided movedim narrow as_strided_scatter squeeze_copy expand_copy nansum embedding
    view_copy slice_copy select_copy permute_copy transpose_copy unsqueeze_copy t_copy diagonal_copy
    col2im im2col reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    reflection_pad1d_backward replication_pad1d_backward embedding_dense_backward _efficientzerotensor
"""
"""Ops that move or add elements."""
_REAL = ("ones", "ones_like", "new_ones", "eye", "arange")
"""Ops that make tensors of real numbers."""


def with_complex(table: Mapping[Any, Decomposition]) -> dict[Any, Decomposition]:
    """Return a table of decompositions with those of complex numbers, where an op is called with any."""
    rules = _rules()
    made = dict(table)
    for op, composed in _ops().items():
        of_complex = rules.get(op) or table.get(op) or composed
        makes = op._schema.name.startswith(_MAKERS) and op not in table
        made[op] = _chosen(of_complex, table.get(op), always=makes)
    return made | functions.made_of_real() | tensors.made_of_real()


_MAKERS = ("aten::fft_", "aten::stft", "aten::istft")
"""Beginnings of names of ops that are composed of others and make complex numbers of real ones."""


@cache
def _ops() -> dict[OpOverload, Decomposition | None]:
    """Return all ops that complex numbers are decomposed for, with what PyTorch composes them of, if it does."""
    listed = [op for op in decomposition_table if isinstance(op, OpOverload)]
    made = {op: decomposition_table[op] for op in listed if not op._can_decompose()}
    composed = {op: _composed(op) for op in _collect_all_valid_cia_ops()}
    return dict.fromkeys(_rules()) | made | composed


@cache
def _rules() -> Mapping[Any, Decomposition]:
    moves = {op: by_parts(op) for op in _overloads(_BY_PARTS.split())}
    ones = {op: _as_real(op) for op in _overloads(_REAL)}
    return moves | ones | functions.rules() | tensors.rules()


def _overloads(names: Iterable[str]) -> list[OpOverload]:
    """Return the ops of these names that write to no argument."""
    packets = [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]
    every = [getattr(packet, kind) for packet in packets for kind in packet.overloads()]
    return [op for op in every if not op._schema.is_mutable]


def _chosen(
    of_complex: Decomposition | None, of_real: Decomposition | None, always: bool = False
) -> Decomposition:
    """Return what decomposes an op: by its arguments."""

    def computed(*args: Any, **options: Any) -> Any:
        if of_complex is not None and (always or any_complex(*args, **options)):
            return of_complex(*args, **options)
        return NotImplemented if of_real is None else of_real(*args, **options)

    return computed


def _composed(op: OpOverload) -> Decomposition:
    """Return what torch composes an op of."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return lambda *args, **options: op._op_dk(key, *args, **options)


def _as_real(op: OpOverload) -> Decomposition:
    def computed(*args: Any, dtype: torch.dtype | None = None, **options: Any) -> Any:
        kind = dtype if dtype is not None else args[0].dtype
        real = [parts(one)[0] if isinstance(one, torch.Tensor) else one for one in args]
        if not kind.is_complex:
            return op(*real, dtype=kind, **options)
        made = op(*real, dtype=kind.to_real(), **options)
        return pair(made, torch.zeros_like(made))

    return computed
