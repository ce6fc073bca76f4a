"""Give the ops that programs define by `torch.library` numbers of this process, by which compiled code calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree
from torch.utils._python_dispatch import _disable_current_modes

from meshweave.bundle import public_dtype
from meshweave.errors import CompileError
from meshweave.frontends.torch.host import CALL, is_called, name_of, operands_of, results_of
from meshweave.frontends.torch.regions import place_of
from meshweave.runtime.host import ArrayKind, PythonFunction, registered

_OURS = {torch.bfloat16: "bf16", torch.bool: "i1"}


def take_calls(root: GraphModule) -> None:
    """Give numbers to the calls of such ops in a graph, and in those within.

    Raises CompileError for tensors that no function here takes: complex ones, and floats of 8 bits.
    """
    for module in root.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            if node.op == "call_function" and is_called(node.target):
                kinds = [
                    tuple(_kind(one, node) for one in side)
                    for side in ([n.meta["val"] for n in operands_of(node)], results_of(node))
                ]
                node.meta[CALL] = registered(
                    PythonFunction(name_of(node), _of_arrays(node), *kinds)
                )


def _kind(value: Tensor, node: Node) -> ArrayKind:
    if value.dtype.is_complex or "float8" in str(value.dtype):
        what = f"{name_of(node)} with tensors of {value.dtype}"
        raise CompileError(f"not supported: {what}", place_of(node))
    own = _OURS.get(value.dtype)
    kind = public_dtype(own) if own else np.dtype(str(value.dtype).removeprefix("torch."))
    return ArrayKind(tuple(value.shape), kind)


def _of_arrays(node: Node) -> Callable[..., Sequence[Any]]:
    """Return what calls the op of a node on arrays in the place of its tensors."""
    leaves, structure = _pytree.tree_flatten((node.args, node.kwargs))
    places = [k for k, one in enumerate(leaves) if isinstance(one, Node)]
    dtypes = [leaves[k].meta["val"].dtype for k in places]
    target: Any = node.target
    rest = [None if k in places else one for k, one in enumerate(leaves)]

    def called(*arrays: Any) -> list[Any]:
        whole = list(rest)
        for place, array, dtype in zip(places, arrays, dtypes, strict=True):
            whole[place] = _tensor(array, dtype)
        args, kwargs = _pytree.tree_unflatten(whole, structure)
        with torch.no_grad(), _disable_current_modes():
            made = target(*args, **kwargs)
        made = [made] if isinstance(made, torch.Tensor) else list(made)
        return [_array(value) for value in made]

    return called


def _tensor(array: Any, dtype: Any) -> Tensor:
    if not array.size:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.tobytes()), dtype=dtype).reshape(array.shape)


def _array(value: Tensor) -> Any:
    """Return the elements as an array; NumPy has no bf16, ml_dtypes has."""
    if value.dtype != torch.bfloat16:
        return value.numpy()
    return value.contiguous().view(torch.int16).numpy().view(public_dtype("bf16"))
