"""Write functions of complex numbers by formulas that hold for large, tiny and infinite numbers too.

before:  %r = complex.sqrt %z : complex<f32>
after:   the formula of `frontends.python.functions.of_complex`, on the parts of %z

What is written so reads upstream's formulas only where they hold.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.frontends.complex.bodies import clone_ops
from meshweave.frontends.python.builder import Body, Emit
from meshweave.frontends.python.dtypes import complex64, complex128
from meshweave.frontends.python.functions.of_complex import NAMED, OF_COMPLEX
from meshweave.ir.bindings import ir
from meshweave.ir.build import OpBuilder
from meshweave.ir.ops import body_of, functions_of, ops_where

_DTYPES = {"f32": complex64, "f64": complex128}


def expand_functions(module: ir.Module) -> None:
    """Replace the functions of complex numbers that a module calls."""
    formulas: dict[tuple[str, str], tuple[ir.Module, Sequence[ir.Operation]]] = {}
    for op in ops_where(module.operation, _is_function):
        key = op.name, str(op.operands[0].type.element_type)
        if key not in formulas:
            named = op.name.removeprefix("complex.")
            formulas[key] = _formula(NAMED[named], named, key[1], len(op.operands), op.context)
        formula, ops = formulas[key]
        places = dict(zip(body_of(functions_of(formula)["f"]).arguments, op.operands))
        clone_ops(ops[:-1], places, ir.InsertionPoint(op))
        op.results[0].replace_all_uses_with(places[ops[-1].operands[0]])
        op.erase()


def function_of(b: OpBuilder, name: str, values: Sequence[ir.Value]) -> ir.Value:
    """Compute a function of `of_complex` of complex scalars, or an op of the dialect `complex` of that name."""
    type_ = values[0].type
    if name in NAMED or name not in OF_COMPLEX:
        return b.one(f"complex.{name}", type_.element_type if name == "abs" else type_, *values)
    part = str(type_.element_type)
    formula, ops = _formula(OF_COMPLEX[name], name, part, len(values), type_.context)
    places = dict(zip(body_of(functions_of(formula)["f"]).arguments, values))
    clone_ops(ops[:-1], places, b.ip)
    return places[ops[-1].operands[0]]


def _is_function(op: ir.Operation) -> bool:
    if op.name.removeprefix("complex.") not in NAMED or not op.name.startswith("complex."):
        return False
    type_ = op.operands[0].type
    return isinstance(type_, ir.ComplexType) and str(type_.element_type) in _DTYPES


def _formula(
    emit: Emit, name: str, part: str, count: int, context: ir.Context
) -> tuple[ir.Module, list[ir.Operation]]:
    """Return a function that computes an op of so many numbers, and the ops of its body."""
    body, dtype = Body(""), _DTYPES[part]
    names = [f"%z{k}" for k in range(count)]
    made = emit(body, dtype, *names)
    result = part if name == "abs" else dtype.element
    given = ", ".join(f"{z}: {dtype.element}" for z in names)
    lines = "\n".join([*body.lines, f"return {made} : {result}"])
    module = ir.Module.parse(f"func.func private @f({given}) -> {result} {{\n{lines}\n}}", context)
    return module, [view.operation for view in body_of(functions_of(module)["f"]).operations]
