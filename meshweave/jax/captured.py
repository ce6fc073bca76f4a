"""Take large arrays out of the program that JAX made of a function: as text they would take far more memory and time.

JAX makes constants of the arrays that a function holds. Here each large one becomes a call of @meshweave.captured with
a number, for which the StableHLO frontend makes an argument behind those of the function.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from meshweave.frontends.python.tracer import CAPTURED_BYTES
from meshweave.frontends.stablehlo import CAPTURED

JaxModule: TypeAlias = Any  # a module and an op of JAX's own copy of MLIR, which has no types
JaxOp: TypeAlias = Any
Elements: TypeAlias = np.ndarray[Any, Any]


def take_captured(module: JaxOp) -> tuple[Elements, ...]:
    """Take the large constants out of a module, and return them in the order of their numbers. bf16 comes as bits."""
    ir = import_module("jax.extend.mlir.ir")
    numbers: dict[Any, int] = {}  # of attributes, of which equal ones are one
    with module.context:
        for op in [op for op in ops_in(module) if op.name == "stablehlo.constant"]:
            type_ = op.results[0].type
            if isinstance(type_.element_type, ir.ComplexType):
                continue  # refused, with its place, when the text is read
            value = op.attributes["value"]
            nbytes = len(value) * (type_.element_type.width // 8 or 1)
            if value.is_splat or nbytes <= CAPTURED_BYTES:
                continue
            attributes = {
                "call_target_name": ir.StringAttr.get(CAPTURED),
                "backend_config": ir.StringAttr.get(str(numbers.setdefault(value, len(numbers)))),
            }
            call = ir.Operation.create(
                "stablehlo.custom_call",
                results=[type_],
                attributes=attributes,
                loc=op.location,
                ip=ir.InsertionPoint(op),
            )
            op.results[0].replace_all_uses_with(call.results[0])
            op.erase()
        return tuple(_elements(ir, value) for value in numbers)


def ops_in(op: JaxOp) -> Iterator[JaxOp]:
    """Yield the ops in an op, at all depths."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield inner.operation
                yield from ops_in(inner.operation)


def _elements(ir: JaxModule, value: Any) -> Elements:
    """Return the elements of an attribute, in its own memory, which stays for as long as they do."""
    if isinstance(value.type.element_type, ir.BF16Type):
        return np.asarray(_bits(ir, value, value.type)).view(np.uint16)
    return np.asarray(value)


def _bits(ir: JaxModule, value: Any, type_: Any) -> Any:
    """Return the attribute whose integers have the bits of these floats of 16 bits, of which NumPy knows nothing."""
    passes = import_module("jax.extend.mlir.passmanager")
    with ir.Location.unknown():
        bits = ir.RankedTensorType.get(type_.shape, ir.IntegerType.get_signless(16))
        module = ir.Module.parse(
            f"func.func @f() -> {bits} {{ %0 = arith.constant dense<0.0> : {type_} "
            f"%1 = arith.bitcast %0 : {type_} to {bits} return %1 : {bits} }}"
        )
        body = module.body.operations[0].regions[0].blocks[0]
        body.operations[0].attributes["value"] = value
        passes.PassManager.parse("builtin.module(canonicalize)").run(module.operation)
    return body.operations[0].attributes["value"]
