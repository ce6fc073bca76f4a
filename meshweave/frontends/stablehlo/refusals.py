"""Refuse what a StableHLO program must not have, before a later stage fails on it, and all in one error."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod

from meshweave.errors import CompileError
from meshweave.files.constants import NAME
from meshweave.frontends.stablehlo.cursor import place
from meshweave.frontends.stablehlo.lowerings.host import is_callback
from meshweave.frontends.stablehlo.lowerings.lapack import routine
from meshweave.frontends.stablehlo.lowerings.sorting import approximate_order
from meshweave.ir.bindings import ir
from meshweave.ir.locations import location_text
from meshweave.ir.ops import Ops, body_of, functions_of, ops_where

_HUGE = re.compile(r"(?<![\w.])[0-9]{10,}")
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))
_SHAPE = re.compile(r"tensor<[\dx]*$")  # where a size is, also behind the numbers of a constant
_NO_PLACE = {
    re.compile(r"complex<(?!f32>|f64>)"): "complex numbers are not supported",
    re.compile(r"stablehlo\.complex (?![^\n]*complex<)"): "complex numbers are not supported",
    re.compile(r"memref<"): "a StableHLO program has tensors only, no buffers",
    re.compile(r"vector<"): "a StableHLO program has tensors only, no vectors",
}
CRASHES = {
    re.compile(
        r"stablehlo\.all_to_all[^}]*?dense<[^>]*> :\s+tensor<0x"
    ): "all_to_all without groups",
    re.compile(
        rf"dense_resource<(?!{NAME}[0-9a-f]{{64}}>)"
    ): "a constant in a resource that the program does not have",
}
"""What ends the process in upstream's parser or passes, or hangs it, and why it is refused. Tests say that it does."""


def refuse_early(text: str, name: str) -> None:
    """Refuse what no parser or pass of upstream should see: CRASHES, large numbers outside constants, wrong types."""

    def before(m: "re.Match[str]") -> str:
        return text[text.rfind("\n", 0, m.start()) + 1 : m.end()]

    # Most programs have no such number, and looking for one by the expression takes twenty times as long.
    long = b"0" * 10 in text.encode(errors="replace").translate(_DIGITS)
    for m in _HUGE.finditer(text) if long else ():
        line = before(m)
        constant = "dense<" in line and not _SHAPE.search(line)
        if int(m.group()[:20]) >= 2**32 and not constant and line.count('"') % 2 == 0:
            raise CompileError(
                f"{m.group()[:40]} is too large a number here", place(text, m.start(), name)
            )
    for word, reason in (_NO_PLACE | CRASHES).items():
        for m in word.finditer(text):
            line = before(m)
            if line.count('"') % 2 == 0 and "//" not in line:
                raise CompileError(reason, place(text, m.start(), name))


_MOST = 2**48
"""Elements that no tensor has."""
_DIMS = re.compile(r"tensor<([\s\dx?*]*)")


def check_program(module: ir.Module, text: str) -> None:
    """Refuse programs of several replicas, and types that no program here can have. text: the program."""
    attrs = module.operation.attributes
    if "mhlo.num_replicas" in attrs and attrs["mhlo.num_replicas"].value != 1:
        raise CompileError(
            f"a program of {attrs['mhlo.num_replicas'].value} replicas (pmap) is not supported: "
            "use jit with shardings",
            location_text(module.operation),
        )
    # A comment may stand between the sizes of a type.
    if "//" not in text and all(map(_is_usual, set(_DIMS.findall(text)))):
        return
    first: dict[ir.Type, ir.Operation] = {}  # each type, and the first op that has it
    for op in ops_where(module.operation, lambda op: len(op.results) > 0):
        for result in op.results:
            first.setdefault(result.type, op)
    for function in functions_of(module).values():
        for kind in function.attributes["function_type"].value.inputs:
            first.setdefault(kind, function)
    for type_, op in first.items():
        _check_type(type_, op)


def _is_usual(dims: str) -> bool:
    """Tell whether a type with these dims, as a program's text has them, needs no closer look."""
    sizes = re.findall(r"\d+", dims)
    return "?" not in dims and prod(map(int, sizes)) < _MOST


def _check_type(type_: ir.Type, where: ir.Operation) -> None:
    if not isinstance(type_, ir.RankedTensorType):
        return
    if not type_.has_static_shape:
        raise CompileError(
            f"{type_}: a size that is open: a fixed one is right, or a bound, as meshweave run --dim n=4096 gives it",
            location_text(where),
        )
    size = prod(type_.shape)
    if size >= _MOST:
        raise CompileError(
            f"{type_} has {size} elements: too large for any machine", location_text(where)
        )


def refuse_unknown(ops: Ops, dialects: tuple[str, ...]) -> None:
    """Raise one CompileError for all `ops` that are not of these dialects: name, count, first place."""
    prefixes = (*(f"{dialect}." for dialect in dialects), "stablehlo.return")
    left: dict[str, list[ir.Operation]] = defaultdict(list)
    for name, found in ops.items():
        if not name.startswith(prefixes):
            for op in found:
                left[_described(op)].append(op)
    _refuse(left)


_NOT_LOWERED = (
    *("infeed", "outfeed", "send", "recv"),
    *("create_token", "after_all", "tuple", "get_tuple_element"),
)
"""StableHLO ops that nothing lowers."""


def refuse_unsupported(module: ir.Module, ops: Ops, text: str) -> None:
    """Raise one CompileError for all that is not supported.

    That is calls of libraries, ops that nothing lowers, and types that nothing computes with.
    ops: the ops of `module` by name. text: the program.
    """
    left: dict[str, list[ir.Operation]] = defaultdict(list)
    for op in ops.get("stablehlo.custom_call", ()):
        annotation = "mhlo.sharding" in op.attributes and _target(op) == "Sharding"
        known = is_callback(op) or routine(_target(op)) is not None
        if not (annotation or known or approximate_order(op) is not None):
            left[_described(op)].append(op)
    for name in _NOT_LOWERED:
        if f"stablehlo.{name}" in ops:
            left[f"stablehlo.{name}"] += ops[f"stablehlo.{name}"]
    for name, word in TYPES_NOT_LOWERED.items():
        if word in text:
            left[name] += _typed(module, word)
    _refuse({name: found for name, found in left.items() if found})


TYPES_NOT_LOWERED = {
    "quantised numbers": "!quant.",
    "tokens": "!stablehlo.token",
    "futures": "!stablehlo.future",
}
"""What a type says that nothing lowers. Of quantised ones upstream's passes crash: a test says so."""


def _typed(module: ir.Module, word: str) -> list[ir.Operation | ir.Value]:
    """Return the ops, and the arguments of functions, with a type that has `word` in it."""

    def has(value: ir.Value) -> bool:
        return word in str(value.type)

    found = list(ops_where(module.operation, lambda op: any(map(has, (*op.operands, *op.results)))))
    for function in functions_of(module).values():
        found += filter(has, body_of(function).arguments)
    return found


def _refuse(left: Mapping[str, Sequence[ir.Operation | ir.Value]]) -> None:
    if not left:
        return
    named = [
        f"{name} ({len(ops)}, first at {location_text(ops[0])})"
        for name, ops in sorted(left.items())
    ]
    first = next(iter(left.values()))[0]
    raise CompileError(f"not supported: {'; '.join(named)}", location_text(first))


def _described(op: ir.Operation) -> str:
    if op.name != "stablehlo.custom_call":
        return str(op.name)
    target = _target(op)
    callback = "a callback into Python: " if "python" in target and "callback" in target else ""
    return f"{callback}stablehlo.custom_call @{target}"


def _target(op: ir.Operation) -> str:
    return str(ir.StringAttr(op.attributes["call_target_name"]).value)
