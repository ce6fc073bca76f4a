"""What a StableHLO program must not have, said before a later stage stumbles over it, and all in one error."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from meshweave.bindings import ir
from meshweave.errors import CompileError
from meshweave.frontends.cursor import place
from meshweave.frontends.lapack import routine
from meshweave.locations import location_text

_HUGE = re.compile(r"(?<![\w.])\d{10,}")
_NO_PLACE = {
    re.compile(r"complex<(?!f32>|f64>)"): "complex numbers are not supported",
    re.compile(r"stablehlo\.complex (?![^\n]*complex<)"): "complex numbers are not supported",
    re.compile(r"memref<"): "a StableHLO program has tensors only, no buffers",
    re.compile(r"vector<"): "a StableHLO program has tensors only, no vectors",
}


def refuse_early(text: str, name: str) -> None:
    """Refuse what makes MLIR's parser end the process: numbers beyond 32 bits outside constants,
    and wrong types.
    """
    for m in _HUGE.finditer(text):
        line = text[text.rfind("\n", 0, m.start()) + 1 : m.start()]
        if int(m.group()[:20]) >= 2**32 and "dense<" not in line and line.count('"') % 2 == 0:
            raise CompileError(
                f"{m.group()[:40]} is too large a number here", place(text, m.start(), name)
            )
    for word, reason in _NO_PLACE.items():
        for m in word.finditer(text):
            line = text[text.rfind("\n", 0, m.start()) + 1 : m.start()]
            if line.count('"') % 2 == 0 and "//" not in line:
                raise CompileError(reason, place(text, m.start(), name))


def check_program(module: Any) -> None:
    """Refuse programs of several replicas, and types that no program here can have."""
    attrs = module.operation.attributes
    if "mhlo.num_replicas" in attrs and attrs["mhlo.num_replicas"].value != 1:
        raise CompileError(
            f"a program of {attrs['mhlo.num_replicas'].value} replicas (pmap) is not supported: "
            "use jit with shardings",
            location_text(module.operation),
        )
    first: dict[Any, Any] = {}  # each type and the op where it comes first

    def visit(op: Any) -> Any:
        for result in op.results:
            first.setdefault(result.type, op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in module.body.operations:
        if op.operation.name == "func.func":
            for kind in op.operation.attributes["function_type"].value.inputs:
                first.setdefault(kind, op.operation)
    for kind, op in first.items():
        _check_type(kind, op)


def _check_type(kind: Any, where: Any) -> None:
    if not isinstance(kind, ir.RankedTensorType):
        return
    if not kind.has_static_shape:
        raise CompileError(
            f"{kind}: dynamic shapes are not supported: export with fixed sizes",
            location_text(where),
        )
    size = 1
    for n in kind.shape:
        size *= n
    if size >= 2**48:
        raise CompileError(
            f"{kind} has {size} elements: too large for any machine", location_text(where)
        )


def refuse_leftovers(module: Any, dialects: tuple[str, ...]) -> None:
    """One CompileError for every op that is not of these dialects: name, count, first place."""
    prefixes = tuple(f"{dialect}." for dialect in dialects)
    left: dict[str, list[Any]] = defaultdict(list)
    known: set[str] = set()

    def visit(op: Any) -> Any:
        name = op.name
        if name not in known:
            if name.startswith(prefixes):
                known.add(name)
            else:
                left[_described(op)].append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    left.pop("stablehlo.return", None)
    _refuse(left)


_NOWHERE = (
    *("fft", "infeed", "outfeed", "send", "recv"),
    *("create_token", "after_all", "tuple", "get_tuple_element"),
)
"""StableHLO ops that nothing lowers."""


def refuse_unsupported(module: Any, ops: Mapping[str, Sequence[Any]], text: str) -> None:
    """One CompileError for all that can be seen in StableHLO already: calls of libraries, ops that nothing lowers,
    complex numbers. ops: those of `module` by name; text: the program's.
    """
    left: dict[str, list[Any]] = defaultdict(list)
    for op in ops.get("stablehlo.custom_call", ()):
        annotation = "mhlo.sharding" in op.attributes and _target(op) == "Sharding"
        if not annotation and routine(_target(op)) is None:
            left[_described(op)].append(op)
    for name in _NOWHERE:
        if f"stablehlo.{name}" in ops:
            left[f"stablehlo.{name}"] += ops[f"stablehlo.{name}"]
    if "complex<" in text:
        left |= _complex(module)
    _refuse(left)


def _complex(module: Any) -> dict[str, list[Any]]:
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name != "func.func" and any(map(_is_complex, (*op.operands, *op.results))):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in module.body.operations:
        if op.operation.name == "func.func" and op.operation.regions[0].blocks:
            found += filter(_is_complex, op.operation.regions[0].blocks[0].arguments)
    return {"complex numbers": found} if found else {}


def _is_complex(value: Any) -> bool:
    return isinstance(getattr(value.type, "element_type", None), ir.ComplexType)


def _refuse(left: Mapping[str, Sequence[Any]]) -> None:
    if not left:
        return
    named = [
        f"{name} ({len(ops)}, first at {location_text(ops[0])})"
        for name, ops in sorted(left.items())
    ]
    first = next(iter(left.values()))[0]
    raise CompileError(f"not supported: {'; '.join(named)}", location_text(first))


def _described(op: Any) -> str:
    if op.name != "stablehlo.custom_call":
        return str(op.name)
    target = _target(op)
    callback = "a callback into Python: " if "python" in target and "callback" in target else ""
    return f"{callback}stablehlo.custom_call @{target}"


def _target(op: Any) -> str:
    return str(ir.StringAttr(op.attributes["call_target_name"]).value)
