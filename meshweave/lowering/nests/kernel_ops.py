"""Write kernels as `mw.kernel` ops, and read them back.

A node of a kernel's code is one op of the body, in the same order: loads, gathers, indices, scalars and accumulators
are ops of `mw`, constants and arithmetic are upstream's. Symbol k of an affine map is operand k of the launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, i64
from meshweave.ir.expressions import (
    Accumulator,
    Apply,
    Argument,
    Constant,
    Gather,
    Index,
    Load,
    Scalar,
)
from meshweave.lowering.nests import linear
from meshweave.lowering.nests.kernels import ElementRef, FusedKernel, KernelNode, Output
from meshweave.lowering.nests.linear import IndexMap


@dataclass
class KernelWriter:
    """Writes kernels at the top of a module, each once."""

    module: ir.Module | ir.OpView
    names: dict[FusedKernel, str] = field(default_factory=dict)

    def name(self, kernel: FusedKernel) -> str:
        """Return the symbol of the `mw.kernel` op of a kernel, written when it is new."""
        name = self.names.get(kernel)
        if name is None:
            name = self.names[kernel] = f"k{len(self.names)}"
            self._write(name, kernel)
        return name

    def _write(self, name: str, kernel: FusedKernel) -> None:
        block = self.module.operation.regions[0].blocks[0]
        first = next(o.operation for o in block.operations if o.operation.name == "func.func")
        maps = [_map_attr(output.access, kernel) for output in kernel.outputs]
        attributes: dict[str, ir.Attribute] = {
            "sym_name": ir.StringAttr.get(name),
            "sizes": ir.DenseI64ArrayAttr.get(kernel.sizes),
            "reductions": ir.DenseI64ArrayAttr.get(sorted(kernel.reductions)),
            "inputs": ir.ArrayAttr.get([ir.TypeAttr.get(type_) for type_ in kernel.operands]),
            "outputs": ir.ArrayAttr.get(maps),
        }
        flags = (("contraction", kernel.contraction), ("no_library", not kernel.library))
        attributes |= {flag: ir.UnitAttr.get() for flag, on in flags if on}
        if kernel.switches:
            words = [ir.StringAttr.get(word) for word in sorted(kernel.switches)]
            attributes["switches"] = ir.ArrayAttr.get(words)
        if kernel.limits:
            attributes["limits"] = ir.DenseI64ArrayAttr.get(
                [n for pair in kernel.limits for n in pair]
            )
        b = OpBuilder(ir.InsertionPoint(first), ir.Location.unknown())
        inner, _ = b.block(b.op("mw.kernel", regions=1, **attributes).regions[0])
        values: list[ir.Value] = []
        for node in kernel.code:
            values.append(_written(inner, node, values, kernel))
        inner.op("mw.yield", [], [values[o.value] for o in kernel.outputs])


def _written(
    b: OpBuilder, node: KernelNode, values: Sequence[ir.Value], kernel: FusedKernel
) -> ir.Value:
    """Write one node; `values` are those of the nodes before it."""
    if isinstance(node, Apply):
        inputs = [values[k] for k in node.operands]
        return b.one(node.name, node.type, *inputs, **dict(node.attributes))
    if isinstance(node, Constant):
        return b.constant(node.value, node.type)
    if isinstance(node, Load):
        place = {"operand": i64(node.access.operand), "map": _map_attr(node.access.indices, kernel)}
        return b.one("mw.load", node.type, **place)
    if isinstance(node, Gather):
        inputs = [values[k] for k in node.operands]
        return b.one("mw.gather", node.type, *inputs, operand=i64(node.access.operand))
    if isinstance(node, Index):
        return b.one("mw.index", ir.IndexType.get(), map=_map_attr((node.form,), kernel))
    if isinstance(node, Scalar):
        return b.one("mw.scalar", node.type, operand=i64(node.source))
    assert not isinstance(node, Argument), "a kernel has no block arguments"
    initial = kernel.outputs[node.number].initial
    start = [] if initial is None else [values[initial]]
    return b.one("mw.accumulator", node.type, *start, result=i64(node.number))


def _map_attr(access: IndexMap, kernel: FusedKernel) -> ir.AffineMapAttr:
    """Return an access over a kernel's loops, and its operands as symbols where it needs them, as an affine map."""
    symbols = len(kernel.operands) if any(d < 0 for f in access for d, _ in f.terms) else 0
    return ir.AffineMapAttr.get(
        ir.AffineMap.get(kernel.ndim, symbols, [linear.to_expr(form) for form in access])
    )


def read_kernels(module: ir.Module | ir.OpView) -> dict[str, FusedKernel]:
    """Return the kernels of a module by their symbols."""
    ops = [view.operation for view in module.operation.regions[0].blocks[0].operations]
    kernels = [op for op in ops if op.name == "mw.kernel"]
    return {op.attributes["sym_name"].value: _read(op) for op in kernels}


def _read(op: ir.Operation) -> FusedKernel:
    numbers: dict[ir.Value, int] = {}
    starts: dict[int, int | None] = {}
    code: list[KernelNode] = []
    *ops, end = (view.operation for view in op.regions[0].blocks[0].operations)
    for inner in ops:
        inputs = tuple([numbers[value] for value in inner.operands])
        node = _node(inner, inputs)
        if isinstance(node, Accumulator):
            starts[node.number] = inputs[0] if inputs else None
        numbers[inner.results[0]] = len(code)
        code.append(node)
    attributes = op.attributes
    switches = attributes.get("switches", ())
    return FusedKernel(
        tuple(attributes["sizes"]),
        frozenset(attributes["reductions"]),
        tuple([attr.value for attr in attributes["inputs"]]),
        tuple(code),
        tuple(
            [
                Output(
                    _access(attr), value.type, numbers[value], starts.get(k),
                    k in starts and starts[k] is None,
                )
                for k, (attr, value) in enumerate(zip(attributes["outputs"], end.operands))
            ]
        ),
        "contraction" in attributes,
        "no_library" not in attributes,
        frozenset(word.value for word in switches),
        _pairs(attributes.get("limits", ())),
    )  # fmt: skip


def _pairs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    each = iter(numbers)
    return tuple(zip(each, each))


def _node(op: ir.Operation, inputs: tuple[int, ...]) -> KernelNode:
    name, attributes, type_ = op.name, op.attributes, op.results[0].type
    if name == "mw.load":
        return Load(ElementRef(attributes["operand"].value, _access(attributes["map"])), type_)
    if name == "mw.gather":
        return Gather(ElementRef(attributes["operand"].value), inputs, type_)
    if name == "mw.index":
        return Index(_access(attributes["map"])[0])
    if name == "mw.scalar":
        return Scalar(attributes["operand"].value, type_)
    if name == "mw.accumulator":
        return Accumulator(attributes["result"].value, type_)
    if name == "arith.constant":
        return Constant(attributes["value"], type_)
    return Apply(name, tuple([(key, attributes[key]) for key in attributes]), inputs, type_)


def _access(attr: ir.AffineMapAttr) -> IndexMap:
    found = linear.from_map(attr)
    if found is None:
        raise CompileError(f"mw.kernel: the map {attr} is not linear")
    return found
