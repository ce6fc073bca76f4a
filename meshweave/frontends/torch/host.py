"""Bring ops that programs define by `torch.library` into programs as calls of Python: `mw.host`.

before:  y = lib::op(x, 0.5)                  an op with a kernel for the cpu, which torch knows the shapes of
after:   y = mw.host(x) {number = ..}         of a function of arrays, which calls the op

The face has given each node its number (`meshweave/torch/host.py`). What writes its arguments is a call of torch's
`auto_functionalized`, which copies them first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshweave.errors import CompileError
from meshweave.frontends.stablehlo.inline import callee_of
from meshweave.frontends.torch.regions import place_of
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.calls import HOST
from meshweave.ir.ops import functions_of, ops_named, replace_op

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch import Tensor
    from torch.fx import Node

_LOWERED = ("aten", "prims", "prim", "quantized_decomposed", "meshweave")
"""Namespaces of ops that are lowered, or refused by name."""
_BY_TORCH = frozenset(
    f"aten::{name}"
    for name in (
        *("igamma", "igammac", "nextafter"),
        *("grid_sampler_2d_backward", "grid_sampler_3d", "grid_sampler_3d_backward"),
        *("_upsample_bilinear2d_aa", "_upsample_bilinear2d_aa_backward", "_upsample_bicubic2d_aa"),
        *("_upsample_bicubic2d_aa_backward", "segment_reduce", "_segment_reduce_backward"),
        *("_pdist_forward", "_pdist_backward", "masked_scatter_backward", "nonzero_static"),
        *("histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts", "as_strided_copy"),
    )
)
"""Ops of torch that nothing here lowers: torch's own kernels compute them, as do those of `torch.special`."""
_FUNCTIONAL = ("auto_functionalized", "auto_functionalized_v2")
CALL = "meshweave_host"
"""Mark of nodes that are called: the number of their function in this process."""
_NUMBER, _FUNCTION = "meshweave.host_number", "meshweave.host_function"


def is_called(target: Any) -> bool:
    """Tell whether what a node calls is an op that a program defines, with a kernel for the cpu, or one of these."""
    import torch

    if not isinstance(target, torch._ops.OpOverload):
        return str(target) in _FUNCTIONAL
    if (name := target._schema.name) in _BY_TORCH or name.startswith("aten::special_"):
        return True
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return target.namespace not in _LOWERED and any(
        has_kernel(target.name(), key) for key in ("CPU", "CompositeExplicitAutograd")
    )


def operands_of(node: Node) -> list[Node]:
    """Return the nodes among the arguments of a node, in the order in which its function takes them."""
    from torch.fx import Node
    from torch.utils import _pytree

    return [one for one in _pytree.tree_leaves((node.args, node.kwargs)) if isinstance(one, Node)]


def results_of(node: Node) -> list[Tensor]:
    """Return what a node gives, without elements. Raises CompileError for what is no tensor."""
    import torch

    made = node.meta["val"]
    made = [made] if isinstance(made, torch.Tensor) else list(made or [])
    if not made or not all(isinstance(one, torch.Tensor) for one in made):
        raise CompileError(
            f"not supported: {name_of(node)} gives what is no tensor", place_of(node)
        )
    return made


def host_call(node: Node) -> dict[str, ir.Attribute]:
    """Return what stands for the call of a node says: the number and the name of its function."""
    return {_NUMBER: i64(node.meta[CALL]), _FUNCTION: ir.StringAttr.get(name_of(node))}


def call_python(module: ir.Module) -> None:
    """Replace calls of functions that stand for such ops by `mw.host`. What has no elements is left out."""
    said = {n: f.attributes for n, f in functions_of(module).items() if _NUMBER in f.attributes}
    for call in ops_named(module.operation, "func.call"):
        if (known := said.get(callee_of(call))) is None:
            continue
        b = OpBuilder.before(call)
        given = [value for value in call.operands if 0 not in value.type.shape]
        types = [result.type for result in call.results]
        names = {"number": known[_NUMBER], "function": known[_FUNCTION]}
        kept = [t for t in types if 0 not in t.shape]
        made = iter(b.op(HOST, kept, given, **names).results if kept else ())
        replace_op(call, [b.empty(t) if 0 in t.shape else next(made) for t in types])
    for name in said:
        functions_of(module)[name].erase()


def name_of(node: Node) -> str:
    """Return the name of the op that a node calls, `lib::op`."""
    target = node.args[0] if str(node.target) in _FUNCTIONAL else node.target
    return str(getattr(target, "_name", target))
