"""Control flow of PyTorch programs, torch.cond and while_loop, in the torch dialect: upstream's `If` and `Loop`.

Their bodies are functions of their own, which are inlined once all is linalg.
"""

from collections.abc import Sequence
from typing import Any

from meshweave.bindings import ir


def import_cond(importer: Any, loc: Any, node: Any) -> list[Any]:
    """torch.cond: the results of one of two functions."""
    condition, *branches, operands = node.args
    types = _types(importer, node)
    values = _values(importer, loc, operands)
    flag = _flag(importer, importer._import_argument(loc, condition), loc)
    op = ir.Operation.create("torch.prim.If", types, [flag], regions=2, loc=loc)
    for region, branch in zip(op.regions, branches, strict=True):
        name = _function(importer, node, branch)
        with ir.InsertionPoint(ir.Block.create_at_start(region, [])):
            made = _call(name, values, types, loc)
            ir.Operation.create("torch.prim.If.yield", [], made, loc=loc)
    return list(op.results)


def import_while(importer: Any, loc: Any, node: Any) -> list[Any]:
    """while_loop: a condition and a body over what is carried, both reading the additional operands."""
    condition, body, carried, additional = node.args
    types = _types(importer, node)
    start, others = _values(importer, loc, carried), _values(importer, loc, additional)
    test, step = (_function(importer, node, f) for f in (condition, body))
    holds = [importer._cc.get_vtensor_type(_no_dims(), _bool())]
    count = ir.Operation.create(
        "torch.constant.int",
        [importer._cc.torch_int_type],
        [],
        {"value": importer._cc.integer_attr(2**63 - 1, 64)},
        loc=loc,
    ).result
    first = _flag(importer, _call(test, [*start, *others], holds, loc)[0], loc)
    op = ir.Operation.create("torch.prim.Loop", types, [count, first, *start], regions=1, loc=loc)
    arguments = [importer._cc.torch_int_type, *types]
    block = ir.Block.create_at_start(op.regions[0], arguments, [loc] * len(arguments))
    with ir.InsertionPoint(block):
        following = _call(step, [*list(block.arguments)[1:], *others], types, loc)
        again = _flag(importer, _call(test, [*following, *others], holds, loc)[0], loc)
        ir.Operation.create("torch.prim.Loop.condition", [], [again, *following], loc=loc)
    return list(op.results)


def _types(importer: Any, node: Any) -> list[Any]:
    return [importer._cc.value_info_to_type(value) for value in node.meta["val"]]


def _values(importer: Any, loc: Any, operands: Sequence[Any]) -> list[Any]:
    return [importer._import_argument(loc, operand) for operand in operands]


def _function(importer: Any, node: Any, reference: Any) -> str:
    """The name of the function of a body, imported now."""
    body = getattr(node.graph.owning_module, reference.target)
    fx = importer.fx_importer
    name = f"meshweave_body_{len(list(fx.module.body.operations))}"
    function = fx.import_stateless_graph(body.graph, func_name=name)
    function.operation.attributes["no_inline"] = ir.UnitAttr.get()
    return name


def _call(name: str, operands: Sequence[Any], types: Sequence[Any], loc: Any) -> list[Any]:
    callee = {"callee": ir.FlatSymbolRefAttr.get(name)}
    return list(ir.Operation.create("func.call", types, operands, callee, loc=loc).results)


def _flag(importer: Any, value: Any, loc: Any) -> Any:
    """A tensor of one element as a bool."""
    kind = importer._cc.torch_bool_type
    return ir.Operation.create("torch.aten.Bool.Tensor", [kind], [value], loc=loc).result


def _no_dims() -> Any:
    import torch

    return torch.Size([])


def _bool() -> Any:
    import torch

    return torch.bool


def ask_first(module: Any) -> None:
    """Ask in the first part of each scf.while whether to go on; upstream carries the answer beside the values, which
    bufferization does not take. Only the module's own wrapper stays valid.
    """
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name == "scf.while":
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        _ask_first(op)


def _ask_first(op: Any) -> None:
    after = op.regions[1].blocks[0]
    end = after.operations[len(after.operations) - 1].operation
    flag = end.operands[0].owner.operation
    if flag.name != "tensor.extract" or len(op.operands) != len(op.results) + 1:
        return
    test = flag.operands[0].owner.operation
    following = list(end.operands)[1:]
    types = [r.type for r in op.results]
    made = ir.Operation.create(
        "scf.while",
        types,
        list(op.operands)[1:],
        regions=2,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    first = ir.Block.create_at_start(made.regions[0], types, [op.location] * len(types))
    with ir.InsertionPoint(first), op.location:
        asked = test.clone()
        for number, value in enumerate(test.operands):
            if value in following:
                asked.operands[number] = first.arguments[following.index(value)]
        holds = ir.Operation.create("tensor.extract", [flag.results[0].type], [asked.results[0]])
        ir.Operation.create("scf.condition", [], [holds.result, *first.arguments])
    after.append_to(made.regions[1])
    with ir.InsertionPoint(end), op.location:
        ir.Operation.create("scf.yield", [], following)
    end.erase()
    flag.erase()
    test.erase()
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()
