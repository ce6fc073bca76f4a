"""Replace calls of device functions by the function's code.

The `.param` variables of a call become local memory of the thread; the parameters and results of the
function stand for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meshweave.simulator.ptx.flow import label_of
from meshweave.simulator.ptx.program import (
    Address,
    Instruction,
    Negated,
    Operand,
    PredicatePair,
    PtxFunction,
    PtxModule,
    Register,
    Symbol,
    Vector,
)

_DEPTH = 16


def inlined(module: PtxModule, function: PtxFunction, depth: int = 0) -> PtxFunction:
    """Return the function without calls.

    Raises EmulationError for calls of what is not in the module, of registers, and of functions that call themselves.
    """
    if not any(instruction.parts[0] == "call" for instruction in function.code):
        return function if function.entry else _with_local_parameters(function)
    out = _with_local_parameters(function)
    code, labels = out.code, out.labels
    out.code, out.labels = [], {}
    places = []
    for instruction in code:
        places.append(len(out.code))
        if instruction.parts[0] == "call":
            _splice(out, instruction, module, depth)
        else:
            out.code.append(instruction)
    places.append(len(out.code))
    out.labels |= {name: places[at] for name, at in labels.items()}
    return out


def _with_local_parameters(function: PtxFunction) -> PtxFunction:
    """Move the function's `.param` variables, except an entry's parameters, to local memory."""
    own = {parameter.name for parameter in function.parameters if function.entry}
    variables = {
        name: replace(variable, space="local") if variable.space == "param" else variable
        for name, variable in function.variables.items()
    }
    code = [_in_local(instruction, own) for instruction in function.code]
    return replace(
        function,
        registers=dict(function.registers),
        variables=variables,
        code=code,
        labels=dict(function.labels),
    )


def _in_local(instruction: Instruction, own: set[str]) -> Instruction:
    if instruction.parts[0] not in ("ld", "st") or "param" not in instruction.parts:
        return instruction
    for operand in instruction.operands:
        if isinstance(operand, Address) and getattr(operand.base, "name", "") in own:
            return instruction
    parts = tuple("local" if part == "param" else part for part in instruction.parts)
    return replace(instruction, parts=parts)


def _splice(out: PtxFunction, call: Instruction, module: PtxModule, depth: int) -> None:
    """Append the code of the function that is called."""
    results, target, arguments = _call_operands(call)
    callee = module.functions.get(target.name) if isinstance(target, Symbol) else None
    if callee is None or depth > _DEPTH:
        name = getattr(target, "name", target)
        why = f'no function "{name}" in the module' if callee is None else f'"{name}" calls itself'
        raise call.refuse(why)
    body = inlined(module, callee, depth + 1)
    tag = f"#{len(out.code)}"
    end = f"end{tag}"
    names = {
        parameter.name: argument.name for parameter, argument in zip(body.parameters, arguments)
    }
    names |= {result.name: place.name for result, place in zip(body.results, results)}
    names |= {name: name + tag for name in (*body.registers, *body.variables)}
    if call.guard is not None:
        jump = Instruction(("bra",), (Symbol(end),), call.line, call.guard, not call.negated, (0,))
        out.code.append(jump)
    start = len(out.code)
    for instruction in body.code:
        out.code.append(_renamed(instruction, body, names, tag, end))
    out.registers |= {name + tag: bits for name, bits in body.registers.items()}
    out.variables |= {name + tag: variable for name, variable in body.variables.items()}
    out.labels |= {name + tag: start + at for name, at in body.labels.items()}
    out.labels[end] = len(out.code)


def _call_operands(call: Instruction) -> tuple[tuple[Any, ...], Any, tuple[Any, ...]]:
    operands = list(call.operands)
    results = operands.pop(0).parts if operands and isinstance(operands[0], Vector) else ()
    target = operands.pop(0) if operands else None
    arguments = operands.pop(0).parts if operands and isinstance(operands[0], Vector) else ()
    return results, target, arguments


def _renamed(
    instruction: Instruction, body: PtxFunction, names: dict[str, str], tag: str, end: str
) -> Instruction:
    guard = None if instruction.guard is None else names.get(instruction.guard, instruction.guard)
    name = instruction.parts[0]
    if name == "ret":
        return replace(
            instruction,
            parts=("bra",),
            operands=(Symbol(end),),
            guard=guard,
            scope=(0,),
        )
    if name == "bra":
        target = Symbol(label_of(instruction, body) + tag)
        return replace(instruction, operands=(target,), guard=guard, scope=(0,))
    operands = tuple(_rename(operand, names) for operand in instruction.operands)
    return replace(instruction, operands=operands, guard=guard)


def _rename(operand: Operand, names: dict[str, str]) -> Any:
    if isinstance(operand, (Register, Symbol)):
        return type(operand)(names.get(operand.name, operand.name))
    if isinstance(operand, Address):
        return Address(_rename(operand.base, names), operand.offset)
    if isinstance(operand, Vector):
        return Vector(tuple(_rename(part, names) for part in operand.parts))
    if isinstance(operand, PredicatePair):
        return PredicatePair(_rename(operand.first, names), _rename(operand.second, names))
    if isinstance(operand, Negated):
        return Negated(_rename(operand.register, names))
    return operand
