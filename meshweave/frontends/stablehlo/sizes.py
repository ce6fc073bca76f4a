"""Work out the sizes inside a program whose arguments have known ones, as a call of what `jax.export` has exported."""

import re
from collections.abc import Sequence

from meshweave.errors import CompileError
from meshweave.frontends.stablehlo.inline import inline_calls
from meshweave.ir.bindings import PassManager, ir
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, ops_named, producer

_OPEN = re.compile(r"tensor<[\dx]*\?")
_REFINE = "builtin.module(stablehlo-refine-shapes,func.func(stablehlo-canonicalize-dynamism))"


def set_sizes(main: ir.Operation, shapes: Sequence[Sequence[int]]) -> None:
    """Give the arguments of `main` these shapes."""
    kind = main.attributes["function_type"].value
    for argument, shape in zip(body_of(main).arguments, shapes, strict=True):
        argument.set_type(ir.RankedTensorType.get(shape, argument.type.element_type))
    inputs = [argument.type for argument in body_of(main).arguments]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, kind.results))


def settle_sizes(module: ir.Module, main: ir.Operation, text: str) -> None:
    """Give all tensors the sizes that follow from those of the arguments; take out assertions on them that hold.

    Nothing is done where an argument has a size that is not known, and what nothing says stays so. text: the program.

    Raises CompileError, with the message of the program, for an assertion that does not hold.
    """
    inputs = main.attributes["function_type"].value.inputs
    if not _OPEN.search(text) or not all(kind.has_static_shape for kind in inputs):
        return
    if "sdy.manual_computation" in text:  # upstream crashes on regions of ops that it does not know
        return
    # Upstream refines only functions whose calls all have the same sizes.
    inline_calls(module, main)
    PassManager.parse(_REFINE).run(module.operation)
    for op in ops_named(module.operation, "stablehlo.custom_call"):
        if op.attributes["call_target_name"].value == "shape_assertion":
            _check(op)


def _check(op: ir.Operation) -> None:
    holds, *numbers = [_number(value) for value in op.operands] or [None]
    if holds is None:
        return
    if not holds:
        said = op.attributes["error_message"].value if "error_message" in op.attributes else op.name
        for k, number in enumerate(numbers):
            said = said.replace(f"{{{k}}}", str(number))
        raise CompileError(said.partition(" Using the following")[0], location_text(op))
    op.erase()


def _number(value: ir.Value) -> int | None:
    made = producer(value)
    if made is None or made.name != "stablehlo.constant":
        return None
    held = made.attributes["value"]
    whole = isinstance(held, ir.DenseIntElementsAttr) and held.is_splat
    return int(held.get_splat_value().value) if whole else None
