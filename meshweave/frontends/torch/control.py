"""Import the control flow of PyTorch programs, torch.cond and while_loop, as `If` and `Loop` of the torch dialect.

Their bodies are functions of their own, which are inlined once all is linalg.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder, Values
from meshweave.ir.ops import body_of, ops_named, producer, replace_op, terminator

if TYPE_CHECKING:  # PyTorch is optional, and takes seconds to import
    from torch.fx import Node

Importer: TypeAlias = Any  # torch-mlir's GraphNodeImporter, which has no types


class ControlFlow:
    """Import the node of a torch.cond or while_loop through torch-mlir's importer of nodes, at one location."""

    def __init__(self, importer: Importer, loc: ir.Location, node: Node) -> None:
        self.importer, self.types, self.node = importer, importer._cc, node
        self.b = OpBuilder(ir.InsertionPoint.current, loc)
        self.results = [self.types.value_info_to_type(value) for value in node.meta["val"]]

    def cond(self) -> list[ir.Value]:
        """Import torch.cond; return the results of the function that is chosen."""
        condition, *branches, operands = self.node.args
        values = self._values(operands)
        flag = self._flag(self.b, *self._values([condition]))
        op = self.b.op("torch.prim.If", self.results, [flag], 2)
        for region, branch in zip(op.regions, branches, strict=True):
            name = self._function(branch)
            inner, _ = self.b.block(region)
            inner.op("torch.prim.If.yield", [], _call(inner, name, values, self.results))
        return list(op.results)

    def while_loop(self) -> list[ir.Value]:
        """Import while_loop: a condition and a body of the carried values, which both read the additional operands."""
        condition, body, carried, additional = self.node.args
        start, others = self._values(carried), self._values(additional)
        test, step = self._function(condition), self._function(body)
        integer = self.types.torch_int_type
        limit = self.types.integer_attr(2**63 - 1, 64)
        count = self.b.one("torch.constant.int", integer, value=limit)
        first = self._holds(self.b, test, [*start, *others])
        op = self.b.op("torch.prim.Loop", self.results, [count, first, *start], 1)
        inner, (_, *values) = self.b.block(op.regions[0], [integer, *self.results])
        following = _call(inner, step, [*values, *others], self.results)
        again = self._holds(inner, test, [*following, *others])
        inner.op("torch.prim.Loop.condition", [], [again, *following])
        return list(op.results)

    def _values(self, operands: Sequence[object]) -> list[ir.Value]:
        return [self.importer._import_argument(self.b.loc, operand) for operand in operands]

    def _function(self, reference: Node) -> str:
        """Import the function of a body; return its name."""
        fx = self.importer.fx_importer
        name = f"meshweave_body_{len(list(fx.module.body.operations))}"
        import_body(self.importer, self.node, reference, name)
        return name

    def _holds(self, b: OpBuilder, test: str, operands: Values) -> ir.Value:
        """Call the function of a condition; return its answer as a bool."""
        answer = ir.Type.parse("!torch.vtensor<[],i1>")
        return self._flag(b, *_call(b, test, operands, [answer]))

    def _flag(self, b: OpBuilder, value: ir.Value) -> ir.Value:
        """Return a tensor of one element as a bool."""
        return b.one("torch.aten.Bool.Tensor", self.types.torch_bool_type, value)


def import_body(importer: Importer, node: Node, reference: Node, name: str) -> ir.Operation:
    """Import the graph that `node` reads as `reference` as a function, and return that."""
    body = getattr(node.graph.owning_module, reference.target)
    function = importer.fx_importer.import_stateless_graph(body.graph, func_name=name).operation
    function.attributes["no_inline"] = ir.UnitAttr.get()
    return function


def _call(b: OpBuilder, name: str, operands: Values, types: Sequence[ir.Type]) -> list[ir.Value]:
    return list(b.op("func.call", types, operands, callee=ir.FlatSymbolRefAttr.get(name)).results)


def ask_first(module: ir.Module) -> None:
    """Ask in the first part of each scf.while whether to go on.

    Upstream carries the answer beside the values, which bufferization does not take. Only the module's own wrapper
    stays valid.
    """
    for op in ops_named(module.operation, "scf.while"):
        _ask_first(op)


def _ask_first(op: ir.Operation) -> None:
    after = body_of(op, 1)
    end = terminator(after)
    flag = producer(end.operands[0])
    if flag is None or flag.name != "tensor.extract" or len(op.operands) != len(op.results) + 1:
        return
    test = producer(flag.operands[0])
    assert test is not None  # upstream computes the answer in the body
    following = list(end.operands)[1:]
    b, types = OpBuilder.before(op), [r.type for r in op.results]
    made = b.op("scf.while", types, list(op.operands)[1:], 2)
    before, values = b.block(made.regions[0], types)
    asked = test.clone(ip=before.ip)
    for number, value in enumerate(test.operands):
        if value in following:
            asked.operands[number] = values[following.index(value)]
    holds = before.element(asked.results[0])
    before.op("scf.condition", [], [holds, *values])
    after.append_to(made.regions[1])
    OpBuilder(ir.InsertionPoint(end), op.location).op("scf.yield", [], following)
    end.erase()
    flag.erase()
    test.erase()
    replace_op(op, list(made.results))
