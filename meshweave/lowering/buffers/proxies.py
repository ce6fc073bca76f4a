"""Let upstream bufferise ops of `mw`: each is a linalg.generic of the same operands while that runs.

MLIR asks an op's interface which operands it reads and writes, and dialects defined in Python cannot implement that
interface. So `replace_ops` puts a *proxy* in the place of each op on tensors, and `restore_ops` puts the op back, on
memrefs. A proxy's indexing maps say where element i is read in iteration i, so that upstream may work in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

from meshweave.ir.bindings import ir
from meshweave.ir.build import IteratorType, OpBuilder, i64
from meshweave.ir.calls import CALLS
from meshweave.ir.expressions import Gather, Load
from meshweave.lowering.nests import linear
from meshweave.lowering.nests.kernels import FusedKernel
from meshweave.transforms.base import ops_of

PROXY = "mw.proxy"  # attribute of a proxy: its number
WAIT = "mw.wait"  # attribute of the proxy of an `mw.wait`, which updates what was received
GIVING = (*CALLS, "func.call")
"""Ops that are given no tensors to write their results in."""
OPS = ("mw.launch", "mw.collective", "mw.start", "mw.wait", *GIVING)


@dataclass(frozen=True)
class Replaced:
    """Hold an op that a proxy replaces. outs: how many of the proxy's operands it writes."""

    name: str
    attributes: Mapping[str, ir.Attribute]
    outs: int


def replace_ops(
    functions: Sequence[ir.OpView], kernels: Mapping[str, FusedKernel]
) -> list[Replaced]:
    """Put proxies in the place of the ops of `mw` on tensors, and of calls; return those by number."""
    found: list[Replaced] = []
    for function in functions:
        for view in ops_of(function, *OPS):
            op = view.operation
            attributes = {key: op.attributes[key] for key in op.attributes}
            inputs, outs, maps, reads = _described(op, kernels)
            proxy = _proxy(op, inputs, outs, maps, reads)
            proxy.attributes[PROXY] = i64(len(found))
            if op.name == "mw.wait":
                proxy.attributes[WAIT] = ir.UnitAttr.get()
            found.append(Replaced(op.name, attributes, len(outs)))
            for old, new in zip(op.results, proxy.results, strict=True):
                old.replace_all_uses_with(new)
            op.erase()
    return found


def _described(
    op: ir.Operation, kernels: Mapping[str, FusedKernel]
) -> tuple[list[ir.Value], list[ir.Value], list[ir.AffineMap], list[bool]]:
    """Return the inputs and outputs of an op, its maps, and which outputs it reads."""
    operands = list(op.operands)
    if op.name == "mw.launch":
        kernel = kernels[op.attributes["kernel"].value]
        count = len(operands) - len(kernel.outputs)
        inputs, outs = operands[:count], operands[count:]
        reads = [output.reads for output in kernel.outputs]
        return inputs, outs, _kernel_maps(inputs, outs, kernel), reads
    if op.name in GIVING:
        outs = [OpBuilder.before(op).empty(r.type) for r in op.results]
        maps = [_constant_map(0, _rank(value)) for value in (*operands, *outs)]
        return operands, outs, maps, [False] * len(outs)
    ndim = _rank(operands[1])
    maps = [_constant_map(ndim, _rank(operands[0])), ir.AffineMap.get_identity(ndim)]
    return operands[:1], operands[1:2], maps, [True]


def _rank(value: ir.Value) -> int:
    return value.type.rank if isinstance(value.type, ir.ShapedType) else 0


def _kernel_maps(
    inputs: Sequence[ir.Value], outs: Sequence[ir.Value], kernel: FusedKernel
) -> list[ir.AffineMap]:
    """Return identity maps where the kernel reads element i in iteration i: then it may write in place."""
    whole, ndim = linear.identity(kernel.ndim), kernel.ndim
    accesses: dict[int, set[object]] = {}
    for node in kernel.code:
        if isinstance(node, (Load, Gather)):
            indices = node.access.indices if isinstance(node, Load) else None
            accesses.setdefault(node.access.operand, set()).add(indices)
    plain = ir.AffineMap.get_identity(ndim)
    direct = [accesses.get(k) == {whole} for k in range(len(inputs))]
    direct += [output.access == whole for output in kernel.outputs]
    values = (*inputs, *outs)
    if not any(direct):
        return _scattered_maps(values, ndim)
    return [
        plain if is_direct else _constant_map(ndim, _rank(value))
        for is_direct, value in zip(direct, values, strict=True)
    ]


def _scattered_maps(values: Sequence[ir.Value], ndim: int) -> list[ir.AffineMap]:
    """Return maps that say of no two operands that iteration i touches element i of both.

    Upstream asks operands for the sizes of loops, and crashes where none has one: the one loop is of one operand.
    """
    ranks = [_rank(value) for value in values]
    first = next((k for k, rank in enumerate(ranks) if rank), None)
    if first is None:
        return [_constant_map(ndim, 0) for _ in values]
    exprs = [ir.AffineDimExpr.get(0), *[ir.AffineConstantExpr.get(0)] * (ranks[first] - 1)]
    maps = [_constant_map(1, rank) for rank in ranks]
    maps[first] = ir.AffineMap.get(1, 0, exprs)
    return maps


def _constant_map(ndim: int, rank: int) -> ir.AffineMap:
    return ir.AffineMap.get(ndim, 0, [ir.AffineConstantExpr.get(0)] * rank)


def _proxy(
    before: ir.Operation, inputs: Sequence[ir.Value], outs: Sequence[ir.Value],
    maps: Sequence[ir.AffineMap], reads: Sequence[bool],
) -> ir.Operation:  # fmt: skip
    """Put a linalg.generic before an op; its body reads every input, and the outputs that are read."""

    def body(b: OpBuilder, arguments: list[ir.Value]) -> list[ir.Value]:
        used = arguments[: len(inputs)] + list(compress(arguments[len(inputs) :], reads))
        return list(b.op("mw.use", [value.type.element_type for value in outs], used).results)

    kinds = [IteratorType.PARALLEL] * maps[-1].n_dims
    return OpBuilder.before(before).generic(inputs, outs, maps, kinds, body)


def restore_ops(function: ir.OpView, replaced: Sequence[Replaced]) -> list[ir.Operation]:
    """Put the ops back in the place of their proxies, on memrefs; return them in program order.

    A func.call becomes an `mw.call`, which gives its results in buffers, as an `mw.lapack` does.
    """
    made = []
    for view in ops_of(function, "linalg.generic"):
        proxy = view.operation
        what = replaced[proxy.attributes[PROXY].value]
        attributes, name = dict(what.attributes), what.name
        if name == "func.call":
            name, attributes = "mw.call", {"callee": attributes["callee"]}
        if what.name in GIVING:
            attributes["outs"] = i64(what.outs)
        made.append(OpBuilder.before(proxy).op(name, [], proxy.operands, **attributes))
        proxy.erase()
    return made
