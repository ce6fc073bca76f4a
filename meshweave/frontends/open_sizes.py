"""Read a program whose arguments have open sizes, `tensor<?x64xf32>`, for sizes that are known.

Arguments get their sizes; what the program computes of these, and the types of all other tensors, follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshweave.dialects.dist import LENGTHS
from meshweave.errors import CompileError
from meshweave.frontends.shardy.text import to_generic
from meshweave.frontends.stablehlo.frontend import is_stablehlo, load_stablehlo
from meshweave.frontends.stablehlo.inline import entry_function
from meshweave.frontends.stablehlo.sizes import set_sizes
from meshweave.ir.bindings import PassManager, ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.locations import location_text, parse_module
from meshweave.ir.ops import body_of, ops_where, producer, terminator
from meshweave.ir.pipeline_text import CLEAN_UP

_ALIKE = ("arith.", "math.", "dist.constrain", "dist.redistribute")
"""Ops whose tensors all have one shape: upstream does not learn it of them."""
_ROUNDS = 64  # of `CLEAN_UP`, each of which settles what a region or such an op hides


@dataclass(frozen=True)
class OpenArgument:
    """Describe an argument as its program does.

    shape: with None where a size is open. names: of its dims, or "". where: its place in the source.
    """

    shape: tuple[int | None, ...]
    names: tuple[str, ...]
    where: str

    @property
    def open(self) -> list[int]:
        """List the dims whose sizes are open."""
        return [d for d, size in enumerate(self.shape) if size is None]


def open_arguments(text: str, ctx: ir.Context, name: str) -> list[OpenArgument]:
    """Return the arguments of a program. Raises CompileError for what is no program, and for names that do not fit."""
    allowed = ctx.allow_unregistered_dialects
    ctx.allow_unregistered_dialects = True
    try:
        module = parse_module(to_generic(text, name) if is_stablehlo(text) else text, ctx, name)
        with ctx:
            main = entry_function(module)
            kinds = main.attributes["function_type"].value.inputs
            given = main.attributes.get("arg_attrs", ())
            marks = [{a.name: a.attr for a in one} for one in given] or [{} for _ in kinds]
            return [_argument(k, *one, main) for k, one in enumerate(zip(kinds, marks))]
    finally:
        ctx.allow_unregistered_dialects = allowed


def _argument(
    number: int, kind: ir.Type, mark: dict[str, ir.Attribute], main: ir.Operation
) -> OpenArgument:
    if not isinstance(kind, ir.RankedTensorType):
        raise CompileError(f"argument {number} is {kind}: a tensor is right", location_text(main))
    shape = tuple(
        None if kind.is_dynamic_dim(d) else kind.get_dim_size(d) for d in range(kind.rank)
    )
    names = tuple(one.value for one in mark[LENGTHS]) if LENGTHS in mark else ("",) * kind.rank
    if len(names) != kind.rank or any(n and s is not None for n, s in zip(names, shape)):
        raise CompileError(
            f'argument {number} is {kind}, {LENGTHS} has {list(names)}: a name for each ?, and "" for a number',
            location_text(main),
        )
    return OpenArgument(shape, names, location_text(body_of(main).arguments[number].location))


def load_at(text: str, ctx: ir.Context, name: str, shapes: Sequence[Sequence[int]]) -> ir.Module:
    """Return the module of a program, as `load.load_module` does, for arguments of these shapes.

    Its weights stay constants. Raises CompileError at an op whose sizes do not follow from those of the arguments.
    """
    if is_stablehlo(text):
        return load_stablehlo(text, ctx, name, shapes, weights=False)
    module = parse_module(text, ctx, name)
    with ctx, ir.Location.unknown(ctx):
        main = entry_function(module)
        old = [argument.type for argument in body_of(main).arguments]
        set_sizes(main, shapes)
        b = OpBuilder(ir.InsertionPoint.at_block_begin(body_of(main)), main.location)
        for argument, kind in zip(body_of(main).arguments, old):
            if argument.type != kind:
                uses = list(argument.uses)
                seen = b.one("tensor.cast", kind, argument)
                for use in uses:
                    use.owner.operands[use.operand_number] = seen
        _settle(module, main)
    return module


def _settle(module: ir.Module, main: ir.Operation) -> None:
    """Let all sizes follow from those of the arguments."""
    manager = PassManager.parse(CLEAN_UP)
    for _ in range(_ROUNDS):
        manager.run(module.operation)
        hidden = [op for op in ops_where(main, _is_alike) if _learn(op)]
        if not hidden:
            break
    end = terminator(body_of(main))
    for k, value in enumerate(end.operands):
        end.operands[k] = _known(value) or value
    kind = main.attributes["function_type"].value
    results = [value.type for value in end.operands]
    main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(kind.inputs, results))
    manager.run(module.operation)
    for op in ops_where(main, lambda op: any(map(_is_open, op.results))):
        raise CompileError(
            f"{op.name}: its result is {op.results[0].type}: its sizes do not follow from those of the arguments",
            location_text(op),
        )
    module.operation.verify()


def _is_open(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and not value.type.has_static_shape


def _known(value: ir.Value) -> ir.Value | None:
    """Return the tensor of known sizes that a value is a cast of; None where it is none."""
    op = producer(value)
    if op is None or op.name != "tensor.cast" or _is_open(op.operands[0]):
        return None
    return op.operands[0] if _is_open(value) else None


def _is_alike(op: ir.Operation) -> bool:
    return op.name.startswith(_ALIKE) and any(map(_is_open, op.results))


def _learn(op: ir.Operation) -> bool:
    """Give an op whose tensors have one shape that of an operand which is known; tell whether there is one."""
    found = [known for value in op.operands if (known := _known(value)) is not None]
    if not found:
        return False
    shape, before, behind = found[0].type.shape, OpBuilder.before(op), OpBuilder.after(op)
    for k, value in enumerate(op.operands):
        if isinstance(value.type, ir.RankedTensorType) and _is_open(value):
            kind = ir.RankedTensorType.get(shape, value.type.element_type)
            op.operands[k] = _known(value) or before.one("tensor.cast", kind, value)
    for result in op.results:
        old = result.type
        result.set_type(ir.RankedTensorType.get(shape, old.element_type))
        uses = list(result.uses)
        seen = behind.one("tensor.cast", old, result)
        for use in uses:
            use.owner.operands[use.operand_number] = seen
    return True
