"""Check that a program can be run: it has one public `@main` with a body, on tensors that buffers hold.

Other programs are refused here, with the place, before any pass sees them.
"""

from math import prod

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.ops import body_of, functions_of

ELEMENTS = ("f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "i1", "index")
MAX_NDIM = 32  # the limit of NumPy 1
MAX_BYTES = 1 << 62  # sums of a few such counts still fit 64 bits


def check_entry(module: ir.Module) -> None:
    """Raise CompileError unless `module` has a `@main` that can be called with arrays."""
    main = _main(module)
    arguments = body_of(main).arguments
    for index, argument in enumerate(arguments):
        _check(f"argument {index} of @main", argument.type, location_text(argument.location))
    for index, type_ in enumerate(main.attributes["function_type"].value.results):
        _check(f"result {index} of @main", type_, location_text(main.location))


def _main(module: ir.Module) -> ir.Operation:
    names = functions_of(module)
    main = names.get("main")
    if main is None:
        others = f"; it has {', '.join('@' + name for name in names)}"[:200] if names else ""
        raise CompileError(
            f"the program has no function @main{others}", location_text(module.operation)
        )
    if not len(main.regions[0].blocks):
        raise CompileError("@main has no body", location_text(main.location))
    visibility = main.attributes.get("sym_visibility")
    if visibility is not None and visibility.value == "private":
        raise CompileError("@main is private: it must be public", location_text(main.location))
    return main


def _check(who: str, type_: ir.Type, where: str) -> None:
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        raise CompileError(
            f"{who} is {_short(type_)}: only tensors of static shape go in and out", where
        )
    element, shape = str(type_.element_type), tuple(type_.shape)
    if element not in ELEMENTS:
        known = ", ".join(ELEMENTS)
        raise CompileError(
            f"{who} is {_short(type_)}: no buffers of {element}, there are {known}", where
        )
    if len(shape) > MAX_NDIM:
        raise CompileError(f"{who} has {len(shape)} dims, at most {MAX_NDIM} work", where)
    if prod(shape) * 8 > MAX_BYTES:
        raise CompileError(f"{who} is {_short(type_)}: more elements than can be addressed", where)
    if type_.encoding is not None:
        raise CompileError(f"{who} is {_short(type_)}: a tensor must have no encoding", where)


def _short(type_: ir.Type) -> str:
    text = str(type_)
    return text if len(text) <= 80 else text[:76] + " ..."
