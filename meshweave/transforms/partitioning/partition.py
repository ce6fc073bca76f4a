"""dist-partition: the global program becomes the program of one rank (SPMD).

Types shrink to the allocations that the layouts say, in place; redistributes become the steps of their plans; values
that cost nothing to make anew are made where they are used. What a rank computes on padding is undefined and never
reaches a result: an op that reduces over a padded dim first gets neutral elements there (ops.py). A loop notes of what
the tensors that it carries are parts (`dist.carried`), as ports of functions do: the check of the program begins there.
"""

from dataclasses import dataclass
from typing import ClassVar

from meshweave.dialects.dist import LayoutAttr
from meshweave.ir.bindings import ir
from meshweave.ir.calls import HOST
from meshweave.ir.ops import terminator
from meshweave.ir.scans import SCAN
from meshweave.ir.scatters import SCATTER
from meshweave.ir.sorting import ORDER, SORT
from meshweave.layout.layout import Layout
from meshweave.transforms.base import (
    Pass,
    at,
    fail,
    functions,
    inline_single_block,
    mesh_of_module,
    ops_of,
    port_attrs,
    set_port_attrs,
)
from meshweave.transforms.partitioning.hosts import fix_host
from meshweave.transforms.partitioning.local import Local
from meshweave.transforms.partitioning.ops import FIXERS, fix_linalg
from meshweave.transforms.partitioning.orders import fix_order, fix_sort
from meshweave.transforms.partitioning.scans import fix_scan
from meshweave.transforms.partitioning.scatters import fix_scatter
from meshweave.transforms.partitioning.steps import emit_plan
from meshweave.transforms.partitioning.windows import WINDOWED, LocalOp
from meshweave.transforms.propagation.bodies import is_tensor
from meshweave.transforms.propagation.graph import MANUAL, STRUCTURED
from meshweave.transforms.propagation.values import is_free


@dataclass(frozen=True)
class Partition(Pass):
    """Turn the global program into the program of one rank, with explicit collectives."""

    name: ClassVar[str] = "dist-partition"

    def run(self, module: ir.Module) -> None:
        mesh = mesh_of_module(module, concrete=True)
        if mesh is None:
            return
        local = Local(mesh)
        for f in functions(module):
            _function(f, local)
        for f in functions(module):
            _function_type(f)
        _erase_free(module)


def _function(f: ir.Operation, local: Local) -> None:
    block = f.operation.regions[0].blocks[0]
    entries = port_attrs(f, "arg_attrs")
    for i, (argument, entry) in enumerate(zip(block.arguments, entries)):
        if is_tensor(argument.type):
            entry["dist.global"] = ir.TypeAttr.get(argument.type)
            layout = _annotation(f, entry, f"argument {i}")
            with at(f, f"argument {i}"):
                local.localise(argument, layout)
    set_port_attrs(f, "arg_attrs", [_interface(entry) for entry in entries])
    _block(block, local)


def _annotation(f: ir.Operation, entry: dict[str, ir.Attribute], what: str) -> Layout:
    if "dist.layout" not in entry:
        fail(f, f"{what} has no dist.layout: run dist-propagate first")
    return LayoutAttr(entry["dist.layout"]).layout


def _interface(entry: dict[str, ir.Attribute]) -> dict[str, ir.Attribute]:
    """Return what stays on an argument or result: how far it was open is settled by now."""
    settled = ("dist.open", "dist.replicated", "dist.priorities")
    return {n: a for n, a in entry.items() if n not in settled}


def _function_type(f: ir.Operation) -> None:
    """Set the function's type and results after its body is local."""
    block = f.operation.regions[0].blocks[0]
    entries = port_attrs(f, "res_attrs")
    for entry, type_ in zip(entries, f.operation.attributes["function_type"].value.results):
        if is_tensor(type_):
            entry["dist.global"] = ir.TypeAttr.get(type_)
    set_port_attrs(f, "res_attrs", [_interface(entry) for entry in entries])
    given = [v.type for v in terminator(block).operands]
    type_ = ir.FunctionType.get([a.type for a in block.arguments], given)
    f.operation.attributes["function_type"] = ir.TypeAttr.get(type_)


def _block(block: ir.Block, local: Local) -> None:
    for view in list(block.operations):
        op = view.operation
        if op.name == "dist.mesh" or is_free(op):
            continue
        if op.name == "dist.redistribute":
            emit_plan(op, local)
        elif MANUAL in op.attributes:
            _manual(op, local)
        elif "dist.layouts" in op.attributes:
            _op(op, local)
        elif any(is_tensor(v.type) for v in [*op.operands, *op.results]):
            fail(op, f"'{op.name}' has no dist.layouts: run dist-propagate first")
        elif op.name in STRUCTURED:  # it carries no tensor, but ops in it may read some
            _regions(op, [], [None] * len(op.results), local)


def _op(op: ir.Operation, local: Local) -> None:
    record = ir.DictAttr(op.attributes["dist.layouts"])
    if "values" in record:
        fail(
            op,
            f"'{op.name}' hands on another layout than it runs with: run dist-insert-redistribute first",
        )
    operands = [local.layout(a) for a in record["operands"]]
    results = [local.layout(a) for a in record["results"]]
    if op.name == "scf.for":
        op.attributes["dist.carried"] = _carried(op, ir.ArrayAttr(record["results"]))
    del op.attributes["dist.layouts"]
    for i, layout in enumerate(operands[: len(op.operands)]):
        if layout is not None:
            local.localise_operand(op, i, layout)
    for result, layout in zip(op.results, results):
        if layout is not None:
            with at(op, f"'{op.name}'"):
                local.localise(result, layout)
    if op.name.startswith("linalg."):
        fix_linalg(op, operands, local)
    elif op.name == SCAN:
        fix_scan(op, operands, local)
    elif op.name == ORDER:
        fix_order(op, operands, local)
    elif op.name == SORT:
        fix_sort(op, operands, local)
    elif op.name == SCATTER:
        fix_scatter(op, operands, local)
    elif op.name == HOST:
        fix_host(op, local)
    elif op.name in WINDOWED:
        WINDOWED[op.name](LocalOp(op, operands, results, local))
    elif op.name in FIXERS:
        FIXERS[op.name](op)
    elif op.name in STRUCTURED:
        _regions(op, operands, results, local)


def _regions(
    op: ir.Operation, operands: list[Layout | None], results: list[Layout | None], local: Local
) -> None:
    entering = {"scf.for": [[None, *results]], "scf.while": [operands, results]}.get(op.name)
    for number, region in enumerate(op.regions):
        for block in region.blocks:
            for argument, layout in zip(block.arguments, entering[number] if entering else ()):
                if layout is not None:
                    local.localise(argument, layout)
            _block(block, local)


def _carried(op: ir.Operation, layouts: ir.ArrayAttr) -> ir.ArrayAttr:
    """Say of what a loop carries what ports of functions say: with it the check reads the body once."""
    said = [
        {"dist.global": ir.TypeAttr.get(v.type), "dist.layout": layout} if is_tensor(v.type) else {}
        for v, layout in zip(list(op.regions[0].blocks[0].arguments)[1:], layouts, strict=True)
    ]
    return ir.ArrayAttr.get(list(map(ir.DictAttr.get, said)))


def _manual(op: ir.Operation, local: Local) -> None:
    """Splice in a region that is local already: what enters and leaves it is this rank's allocation."""
    for view in list(op.regions[0].blocks[0].operations):
        inner = view.operation
        if inner.name not in ("dist.to_local", "dist.to_global"):
            continue
        layout = LayoutAttr(inner.attributes["layout"]).layout
        if inner.name == "dist.to_local":
            local.localise_operand(inner, 0, layout)
        else:
            inner.operands[0] = local.settle(inner.operands[0], inner)
            local.note(inner.operands[0], inner.results[0].type, layout)
        local.replace(inner, [inner.operands[0]])
    inline_single_block(op)


def _erase_free(module: ir.Module) -> None:
    """Erase the global fills, empties and splats that nothing reads, readers first."""
    for op in reversed(
        ops_of(module, "linalg.fill", "tensor.splat", "tensor.empty", "arith.constant")
    ):
        if not any(True for _ in op.operation.results[0].uses):
            op.operation.erase()
