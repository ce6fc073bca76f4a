"""Name ops as users know them: the code of their line, and the layer that their framework has noted in locations.

JAX writes `jit(step)/transpose(jvp(Net))/layer0/up/dot_general`; programs of PyTorch get `layers.0.up/linear`, in a
backward pass `transpose(layers.0.up)/linear`.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass

from meshweave.ir.bindings import ir
from meshweave.transforms.kernels.kernel_patterns import is_product

_LONGEST = 40  # characters of code in a name
_ENTRIES = ("jit(", "pjit(")  # what JAX's names begin with
_WRAPPED = re.compile(r"(\w+)\((.*)\)")
_CALL = ("jit", "pjit", "jvp", "vmap", "transpose", "remat", "checkpoint", "shard_map")
_PLUMBING = (
    *("while", "body", "cond", "scan", "closed_call", "core_call", "pjit", "main"),
    *("checkpoint", "remat", "remat2", "rematted_computation"),
    *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
)
"""Parts of JAX's names that say how a program is built, not what of it."""
_PLAIN = {
    "linalg.reduce": "a reduction",
    "linalg.matmul": "a product",
    "linalg.batch_matmul": "a product",
    "tensor.expand_shape": "a reshape",
    "tensor.collapse_shape": "a reshape",
}


@dataclass(frozen=True)
class OpName:
    """Hold what is known of an op's name.

    kind: what the op is, "a product". layer: `Net/layer0/up`, of what a framework has noted. backward: whether it is of
    a backward pass. primitive: what the framework calls the op. code: what the user wrote for it.
    """

    kind: str
    layer: str = ""
    backward: bool = False
    primitive: str = ""
    code: str = ""

    @staticmethod
    def of(op: ir.Operation) -> OpName:
        """Name an op."""
        stack = _stack(op.location)
        # Columns of JAX begin with 0, those of Python programs with 1.
        code = _code(op.location, 0 if stack.startswith(_ENTRIES) else 1)
        return OpName(word(op), *read_stack(stack), code)

    @property
    def owner(self) -> str:
        """Return the layer, and whether its backward pass is meant; nothing without a layer."""
        if self.backward:
            return f"the backward pass{f' of {self.layer}' if self.layer else ''}"
        return self.layer

    def __str__(self) -> str:
        if self.owner:
            named = self.kind == "an elementwise op" and self.primitive
            return f"{self.primitive if named else self.kind} in {self.owner}"
        return f"{self.kind} `{self.code}`" if self.code else self.kind


def word(op: ir.Operation) -> str:
    """Return the kind of an op, with its article."""
    name: str = op.name
    if name == "linalg.generic":
        if "reduction" not in str(op.attributes["iterator_types"]):
            return "an elementwise op"
        return "a product" if is_product(op) else "a reduction"
    if name == "linalg.map":
        return "an elementwise op"
    return _PLAIN.get(name, name.split(".", 1)[-1].replace("_", " "))


def read_stack(name: str) -> tuple[str, bool, str]:
    """Read a name that a framework has noted: the layer, whether the op is of a backward pass, and the primitive.

    >>> read_stack("jit(step)/transpose(jvp(Net))/layer0/jit(gelu)/mul")
    ('Net/layer0/gelu', True, 'mul')
    """
    first, *rest = _parts(name) or [""]
    layers, backward = [], False
    for part in [*(() if first.startswith(_ENTRIES) else (first,)), *rest[:-1]]:
        inner = part
        while (found := _WRAPPED.fullmatch(inner)) is not None and found[1] in _CALL:
            backward |= found[1] == "transpose"
            inner = found[2]
        hidden = inner in _PLUMBING or inner.startswith(("_", "branch_"))
        if inner and not hidden:
            layers.append(inner)
    return "/".join(layers), backward, rest[-1] if rest else ""


def _parts(name: str) -> list[str]:
    """Split a name at the slashes outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(name):
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth == 0:
            parts.append(name[start:at])
            start = at + 1
    return [*parts, name[start:]] if parts else []


def argument_name(value: ir.Value) -> str:
    """Return what an argument is called in its location, or in the line of MLIR that it stands in; "" if nowhere."""
    for part in _places(value.location):
        if isinstance(part, ir.NameLoc):
            return str(part.name_str)
        if isinstance(part, ir.FileLineColLoc):
            line = linecache.getline(part.filename, part.start_line)
            found = re.match(r"%[\w$.-]+", line[max(part.start_col - 1, 0) :])
            return found[0] if found else ""
    return ""


def _stack(loc: ir.Location) -> str:
    """Return the name that a framework has noted, nothing where there is none."""
    for part in _places(loc):
        if isinstance(part, ir.NameLoc) and "/" in part.name_str:
            return str(part.name_str)
    return ""


def _code(loc: ir.Location, first: int) -> str:
    """Return the user's code of an op, where its place says where that ends, on one line of a file that is there.

    first: the number of the first column; columns count bytes, as Python's own.
    """
    for part in _places(loc):
        if isinstance(part, ir.FileLineColLoc):
            wide = part.start_line == part.end_line and part.end_col > part.start_col >= first
            if not wide:
                return ""
            line = linecache.getline(part.filename, part.start_line).encode()
            found = [
                line[part.start_col - n : part.end_col - n].decode(errors="replace").strip()
                for n in (first, 1 - first)
            ]
            # Not all ops of a program have names that tell whose columns these are; half a bracket does.
            code = next(filter(_balanced, found), found[0])
            return code if len(code) <= _LONGEST else f"{code[: _LONGEST - 3]} .."
    return ""


def _balanced(code: str) -> bool:
    """Tell whether code closes as many brackets as it opens, and does not begin with what an expression cannot."""
    pairs = all(code.count(a) == code.count(b) for a, b in ("()", "[]", "{}"))
    return pairs and not code.startswith(("=", ",", ")", "]"))


def _places(loc: ir.Location) -> Iterator[ir.Location]:
    """Yield a location and those within it, those that it gives first first."""
    if type(loc) is ir.Location:
        loc = ir.Location.from_attr(loc.attr, loc.context)
    yield loc
    if isinstance(loc, ir.NameLoc):
        yield from _places(loc.child_loc)
    elif isinstance(loc, ir.CallSiteLoc):
        yield from _places(loc.callee)
        yield from _places(loc.caller)
    elif isinstance(loc, ir.FusedLoc):
        for part in loc.locations:
            yield from _places(part)
