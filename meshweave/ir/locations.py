"""Report places in the user's source: locations as text, MLIR's errors as one line.

Also parses text under its file's name, so that locations are right.
"""

import re

from meshweave.errors import CompileError
from meshweave.ir.bindings import ir

_GENERIC_ONLY = re.compile(r"^[ \t]*(?:%[^=\n]*=[ \t]*)?((?:dist|hint)\.\w+)", re.MULTILINE)
_MODULE = re.compile(r'[ \t]*(module\b|"builtin.module")')
_UNNAMED = re.compile(r'"-"(:\d+:\d+)')
_TOP_LEVEL = re.compile(r"[ \t]*(//.*)?$|[#!][\w.$-]+[ \t]*=")


def location_text(where: ir.Location | ir.Value | ir.Operation | ir.OpView) -> str:
    """Return `file:line:col` of a location, an op or a value.

    A call site gives its callee, a fused location its first known part, a name location without a position its name,
    an unknown location "<unknown>".
    """
    loc = where if isinstance(where, ir.Location) else where.location
    return _position(loc) or "<unknown>"


def _position(loc: ir.Location) -> str | None:
    if type(loc) is ir.Location:  # as diagnostics carry it: ask for its own class
        loc = ir.Location.from_attr(loc.attr, loc.context)
    if isinstance(loc, ir.FileLineColLoc):
        if not loc.start_line:  # the whole file
            return str(loc.filename)
        return f"{loc.filename}:{loc.start_line}:{loc.start_col}"
    if isinstance(loc, ir.NameLoc):
        return _position(loc.child_loc) or loc.name_str
    if isinstance(loc, ir.CallSiteLoc):
        return _position(loc.callee) or _position(loc.caller)
    if isinstance(loc, ir.FusedLoc):
        return next((text for part in loc.locations if (text := _position(part))), None)
    return None


_NUMBER = re.compile(r"mw\.number\.(\d+)")


def numbered(where: ir.Location, number: int) -> ir.Location:
    """Return a location with a number, which it keeps through all passes; its place in the source stays."""
    return ir.Location.name(f"mw.number.{number}", where, where.context)


def numbers_in(where: ir.Location) -> tuple[int, ...]:
    """Return the numbers of a location, of a fused one those of all its parts."""
    return tuple(dict.fromkeys(int(n) for n in _NUMBER.findall(str(where))))


def one_line(message: str) -> str:
    """Return the first line of MLIR's message; what follows repeats the op."""
    return message.strip().split("\n", 1)[0].strip()


def _with_notes(diagnostic: ir.DiagnosticInfo) -> str:
    """Return the message and, in brackets, each note that says more than which op was at fault."""
    text = one_line(diagnostic.message)
    for note in diagnostic.notes:
        said = one_line(note.message)
        if said and not said.startswith(("see current operation", "Available dialects")):
            text += f" ({said} at {location_text(note.location)})"
    return text


def compile_error(error: ir.MLIRError) -> CompileError:
    """Report the first diagnostic of an `ir.MLIRError` on one line, and how many more there are."""
    diagnostics = list(error.error_diagnostics)
    if not diagnostics:
        return CompileError(one_line(error.message))
    first, more = diagnostics[0], len(diagnostics) - 1
    text = _with_notes(first) + (f" (and {more} more error{'s'[: more > 1]})" if more else "")
    where = _position(first.location)
    return CompileError(text, where)


# Deeper nesting of regions, types or attributes could overflow the stack of MLIR's recursive
# parser, printer and passes, and so end the process. Real programs nest a few tens deep.
MAX_NESTING = 256

_BRACKETS = b"()[]{}<>"
_NOT_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_TOKENS = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|->|([(\[{<])|([)\]}>])')


def check_nesting(text: str, name: str) -> None:
    """Raise CompileError at the first bracket that is nested deeper than MAX_NESTING."""
    rest = text.encode(errors="replace").replace(b"->", b"").translate(None, delete=_NOT_BRACKETS)
    for _ in range(MAX_NESTING):  # each round takes away the innermost pairs
        before = len(rest)
        for pair in (b"()", b"[]", b"{}", b"<>"):
            rest = rest.replace(pair, b"")
        if len(rest) == before:
            break
    if len(rest) > MAX_NESTING and (at := _too_deep(text)) is not None:
        raise CompileError(
            f"brackets nested deeper than {MAX_NESTING}", f"{name}:{_place(text, at)}"
        )


# linalg's parser ends the process on a list of dims that is none.
_DIMS = re.compile(
    r"\bouts\s*\([^()]*\)\s*(?:permutation|dimensions)\s*="
    r"(?!\s*\[\s*(?:-?\d{1,18}\s*(?:,\s*-?\d{1,18}\s*)*)?\])"
)


def _check_dims(text: str, name: str) -> None:
    """Raise CompileError at a list of dims of linalg that is none."""
    for m in _DIMS.finditer(text) if "outs" in text else ():
        if "//" not in text[text.rfind("\n", 0, m.end()) + 1 : m.end()]:
            raise CompileError(
                "a list of numbers, [0, 1], is right here", f"{name}:{_place(text, m.end())}"
            )


def _too_deep(text: str) -> int | None:
    """Find where the nesting first exceeds the limit, counted exactly, without strings and comments."""
    depth = 0
    for m in _TOKENS.finditer(text):
        if m[1]:
            depth += 1
            if depth > MAX_NESTING:
                return m.start()
        elif m[2]:
            depth = max(0, depth - 1)
    return None


def _place(text: str, at: int) -> str:
    return f"{text.count(chr(10), 0, at) + 1}:{at - text.rfind(chr(10), 0, at)}"


def parse_module(text: str, ctx: ir.Context, name: str = "-") -> ir.Module:
    """Parse `text` into an `ir.Module`, its locations under `name`; top-level ops without a module are put in one.

    Raises CompileError with the place of the first mistake.
    """
    check_nesting(text, name)
    _check_dims(text, name)
    try:
        with ctx:
            return _parse_named(text, name)
    except ir.MLIRError as error:
        raise _explain(error, text, name) from None


def _parse_named(text: str, name: str) -> ir.Module:
    """Parse text under its name; `ir.Operation.parse` takes a name, but only one op: a module."""
    first = next((line for line in text.split("\n") if not _TOP_LEVEL.match(line)), "")
    if not _MODULE.match(first):
        return _renamed(ir.Module.parse(text), name)
    try:
        top = ir.Operation.parse(text, source_name=name).operation
    except ir.MLIRError as error:
        if any("single top-level operation" in d.message for d in error.error_diagnostics):
            return _renamed(ir.Module.parse(text), name)  # more modules follow the first
        raise
    module = ir.Module.create(loc=top.location)
    for attr in top.attributes:
        module.operation.attributes[attr] = top.attributes[attr]
    for op in list(top.regions[0].blocks[0].operations):
        module.body.append(op.operation)
    return module


def _renamed(module: ir.Module, name: str) -> ir.Module:
    """Return `module`, which was read as "-", as if read under `name`.

    Locations cannot be set, so the module is printed and read again.
    """
    text = module.operation.get_asm(enable_debug_info=True)
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    return ir.Module.parse(_UNNAMED.sub(lambda m: f'"{quoted}"{m[1]}', text))


def _explain(error: ir.MLIRError, text: str, name: str) -> CompileError:
    """Find the place of an error where MLIR is silent: custom syntax of ops that have none."""
    if error.error_diagnostics:
        found = compile_error(error)
        if found.location and found.location.startswith("-:"):
            message = found.message.replace(" at -:", f" at {name}:")
            return CompileError(message, name + found.location[1:])
        return found
    if (m := _GENERIC_ONLY.search(text)) is not None:
        message = f'{m[1]} is written in generic form, "{m[1]}"(...)'
        return CompileError(message, f"{name}:{_place(text, m.start(1))}")
    return CompileError(one_line(error.message), name)
