"""Take the tokens out of a program of JAX that calls Python in an order: here calls stay in that of the program.

before:  %t1, %y = custom_call @xla_ffi_python_cpu_callback(%t0, %x) {has_side_effect = true}
after:   %y = custom_call @xla_ffi_python_cpu_callback(%x) {has_side_effect = true}

What hands on tokens, loops, branches and calls, is given a false instead, which nothing reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from meshweave.jax.captured import JaxModule, JaxOp, ops_in
from meshweave.jax.placements import entry_of


def has_token(values: Any) -> bool:
    """Tell whether a token is among operands or results."""
    return any(map(is_token, values))


def take_tokens(module: JaxModule) -> None:
    """Take the tokens out of a module; arguments and results of the entry that are tokens are gone."""
    ir = import_module("jax.extend.mlir.ir")
    ops = list(ops_in(module))
    if not any(has_token((*op.operands, *op.results)) for op in ops):
        return
    with module.context, ir.Location.unknown():
        false = ir.RankedTensorType.get([], ir.IntegerType.get_signless(1))
        for op in ops:
            if op.name == "stablehlo.custom_call" and has_token(op.operands):
                _without_token(ir, op)
        for block in list(_blocks_in(module)):
            _let_read_false(ir, block, false)
        for op in list(ops_in(module)):
            if op.name in ("stablehlo.create_token", "stablehlo.after_all"):
                op.erase()
        _entry_without(ir, entry_of(module))
        for block in _blocks_in(module):
            results = [result for view in block.operations for result in view.operation.results]
            for value in filter(is_token, [*block.arguments, *results]):
                value.set_type(false)
        for op in ops_in(module):
            if op.name == "func.func":
                kind = op.attributes["function_type"].value
                sides = [
                    [false if _of_token(t) else t for t in s] for s in (kind.inputs, kind.results)
                ]
                op.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*sides))


def _blocks_in(op: JaxOp) -> Iterator[Any]:
    """Yield the blocks in an op, at all depths."""
    for region in op.regions:
        for block in region.blocks:
            yield block
            for view in block.operations:
                yield from _blocks_in(view.operation)


def _let_read_false(ir: JaxModule, block: Any, false: Any) -> None:
    """Let the ops of a block read one false in the place of every token.

    Of several kinds of calls each has a token, in an order of JAX's that differs from process to process.
    """
    readers = [view.operation for view in block.operations if has_token(view.operation.operands)]
    if not readers:
        return
    zero = ir.DenseElementsAttr.get_splat(false, ir.BoolAttr.get(False))
    first = ir.InsertionPoint.at_block_begin(block)
    made = ir.Operation.create(
        "stablehlo.constant", [false], attributes={"value": zero}, ip=first
    ).results[0]
    for op in readers:
        for number, value in enumerate(op.operands):
            if is_token(value):
                op.operands[number] = made


def _without_token(ir: JaxModule, op: JaxOp) -> None:
    """Make a call without its token, which goes on as it came."""
    token, *operands = op.operands
    attributes = {name: op.attributes[name] for name in op.attributes}
    for name, values in (("operand_layouts", op.operands), ("result_layouts", op.results)):
        if name in attributes:
            kept = [a for a, v in zip(attributes[name], values) if not is_token(v)]
            attributes[name] = ir.ArrayAttr.get(kept)
    made = ir.Operation.create(
        op.name,
        results=[r.type for r in op.results if not is_token(r)],
        operands=operands,
        attributes=attributes,
        loc=op.location,
        ip=ir.InsertionPoint(op),
    )
    left = iter(made.results)
    for result in op.results:
        result.replace_all_uses_with(token if is_token(result) else next(left))
    op.erase()


def _entry_without(ir: JaxModule, entry: JaxOp) -> None:
    """Let the entry neither take tokens, which nothing reads, nor return them."""
    block, kind = entry.regions[0].blocks[0], entry.attributes["function_type"].value
    last = list(block.operations)[-1].operation
    taken, given = ([not _of_token(t) for t in types] for types in (kind.inputs, kind.results))
    kept = [v for v, keeps in zip(last.operands, given) if keeps]
    ir.Operation.create(last.name, operands=kept, loc=last.location, ip=ir.InsertionPoint(last))
    last.erase()
    for number in reversed([n for n, keeps in enumerate(taken) if not keeps]):
        block.erase_argument(number)
    for name, keeps in (("arg_attrs", taken), ("res_attrs", given)):
        if name in entry.attributes:
            said = [a for a, keep in zip(entry.attributes[name], keeps) if keep]
            entry.attributes[name] = ir.ArrayAttr.get(said)
    types = ir.FunctionType.get([a.type for a in block.arguments], [v.type for v in kept])
    entry.attributes["function_type"] = ir.TypeAttr.get(types)


def is_token(value: Any) -> bool:
    """Tell whether a value is a token."""
    return _of_token(value.type)


def _of_token(type_: Any) -> bool:
    return str(type_) == "!stablehlo.token"
