"""Trace a Python function, for arguments of given shapes, into the text of a program in the global view."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from meshweave.errors import CompileError, LayoutError, MeshweaveError, UsageError
from meshweave.frontends.python import tree
from meshweave.frontends.python.builder import (
    PACKAGE,
    Elements,
    TraceBuilder,
    quoted,
    render,
    tensor_type,
)
from meshweave.frontends.python.dtypes import DType, default_floating, float64
from meshweave.frontends.python.place import checked, is_layout, layout_attr
from meshweave.frontends.python.tracer import Tracer, is_operand, tensor
from meshweave.layout import Layout, Mesh

AUTO = "auto"
"""In place of a layout: it is to be chosen."""


@dataclass(frozen=True)
class ArgumentSpec:
    """Describe an argument to the compiler.

    shape: global. weak: is it a Python scalar? layout: of an Array. narrow: the integer dtype that a Python scalar has
    to fit, if it meets one narrower than dtype.
    """

    shape: tuple[int, ...]
    dtype: DType
    weak: bool = False
    layout: Layout | None = None
    narrow: DType | None = None

    def taking(self, types: Collection[DType]) -> ArgumentSpec:
        """Let the spec of a Python integer have the narrowest of the dtypes that it took."""
        if self.dtype.kind != "i":
            return self
        kinds = [d for d in types if d.kind == "u" or (d.kind == "i" and d.bits < self.dtype.bits)]
        return replace(self, narrow=min(kinds, key=lambda d: d.bits)) if kinds else self

    def __str__(self) -> str:
        text = "x".join(map(str, (*self.shape, self.dtype)))
        return f"{text} {self.layout}" if self.layout is not None else text


@dataclass(frozen=True)
class TracedProgram:
    """Hold a traced program.

    structure: of what it returns. hints: the places and texts of its hints. specs: of its arguments.
    captured: the elements of the arguments behind those, which are arrays that the function holds; bf16 as bits.
    results: the specs of what it returns, leaf by leaf.
    """

    text: str
    structure: tree.Structure
    hints: tuple[tuple[str, str], ...] = ()
    specs: tuple[ArgumentSpec, ...] = ()
    captured: tuple[Elements, ...] = ()
    results: tuple[ArgumentSpec, ...] = ()


def trace_program(
    function: Callable[..., Any],
    arguments: Callable[[Sequence[Tracer]], tuple[tuple[Any, ...], dict[str, Any]]],
    specs: Sequence[ArgumentSpec],
    layouts: Sequence[Layout | None],
    mesh: Mesh,
    out_layouts: object,
    where: str,
    weak_float: DType | None = None,
    donated: Sequence[str | None] = (),
    place: str | None = None,
) -> TracedProgram:
    """Trace a program by running `function` on traced values.

    arguments: makes its arguments from the traced leaves. where: `file:line` of the function, for errors about it.
    donated: how strongly each argument is donated, None: not.
    weak_float: the dtype of floats of Python scalars alone: if they turn out to be needed in float64, so that no digit
    is lost, the function runs once more. place: what all locations of the program are called; None: the user's lines.
    """
    weak_float = weak_float or default_floating()
    trace = TraceBuilder(mesh, weak_float, place)
    specs = [replace(s, dtype=weak_float) if s.weak and s.dtype.kind == "f" else s for s in specs]
    with trace.active():
        values = [
            Tracer(trace, f"%arg{i}", spec.shape, spec.dtype, spec.weak)
            for i, spec in enumerate(specs)
        ]
        args, kwargs = arguments(values)
        returned = _run(function, args, kwargs, where)
        results, structure = _results(returned, where)
        names = [trace.name(value) for value in results]
    if trace.needs_float64 and weak_float is not float64:
        again = (function, arguments, specs, layouts, mesh, out_layouts, where)
        return trace_program(*again, float64, donated, place)
    specs = [spec.taking(trace.taken.get(f"%arg{i}", ())) for i, spec in enumerate(specs)]
    wanted = result_layouts(out_layouts, structure, results, mesh, where)
    name = re.sub(r"\W", "_", getattr(function, "__name__", "main"), flags=re.ASCII)
    body = render(trace.top.lines)
    types = [v.type for v in results]
    parameters = [
        f"%arg{i}: {tensor_type(s.shape, s.dtype)}{_attrs(s.dtype, layout, strength)}"
        for i, (s, layout, strength) in enumerate(zip(specs, layouts, donated or repeat(None)))
    ]
    parameters += [f"{array.name}: {array.type}{_attrs(array.dtype)}" for array in trace.captured]
    outs = ", ".join(f"{v.type}{_attrs(v.dtype, layout)}" for v, layout in zip(results, wanted))
    places = "".join(f"{alias} = {place}\n" for alias, place in trace.locations.items())
    code = getattr(function, "__code__", None)
    own = f" loc({quoted(code.co_filename)}:{code.co_firstlineno}:1)" if code else " loc(unknown)"
    own = own if place is None else trace.loc()
    text = (
        f"{places}module @{name} {{\n"
        f'"dist.mesh"() {{axes = "{mesh}", sym_name = "mesh"}} : () -> (){own}\n'
        f"func.func public @main({', '.join(parameters)}) -> ({outs}) {{\n{body}\n"
        f"return {', '.join(names)} : {', '.join(types)}{own}\n}}{own}\n}}\n"
    )
    hints = tuple((region.place, region.hints) for region in trace.regions)
    captured = tuple(array.elements for array in trace.captured)
    made = tuple([ArgumentSpec(v.shape, v.dtype) for v in results])
    return TracedProgram(text, structure, hints, tuple(specs), captured, made)


def _run(
    function: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object], where: str
) -> object:
    """Call the function; our errors without a place get the line of the user's code that caused them."""
    try:
        return function(*args, **kwargs)
    except RecursionError:
        name = getattr(function, "__name__", "the function")
        raise CompileError(
            f"{name} never stops calling itself: while it is traced, only Python values can end a recursion; "
            "mw.while_loop and mw.scan repeat",
            where,
        ) from None
    except MeshweaveError as error:
        if error.location is not None:
            raise
        raise error.told(error.message, line_of(error) or where) from None


def line_of(error: BaseException, *packages: str) -> str | None:
    """Return `file:line` of the innermost frame of an error outside of this package, and of the folders `packages`."""
    found, frame = None, error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        found = found if name.startswith((PACKAGE, *packages)) else f"{name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return found


def _results(returned: object, where: str) -> tuple[list[Tracer], tree.Structure]:
    leaves, structure = tree.flatten(returned)
    for path, leaf in zip(tree.paths(structure), leaves):
        if not is_operand(leaf):
            raise CompileError(f"result{path} is a {type(leaf).__name__}: no array", where)
    if not leaves:
        raise CompileError("the function returns no array", where)
    return [tensor(leaf) for leaf in leaves], structure


def _attrs(dtype: DType, layout: Layout | None = None, strength: str | None = None) -> str:
    said = [] if layout is None else [f"dist.layout = {layout_attr(layout)}"]
    said += ["dist.unsigned"] if dtype.kind == "u" else []
    said += [] if strength is None else [f'dist.donate = "{strength}"']
    return f" {{{', '.join(said)}}}" if said else ""


def spread_layouts(
    given: object, structure: tree.Structure, shapes: Sequence[Sequence[int]], mesh: Mesh, what: str
) -> list[Layout | None]:
    """Return a layout for each leaf of a pytree, given a prefix of it: None where any will do. Errors name the leaf.

    Raises LayoutError, or UsageError where the prefix does not fit.
    """
    leaves = tree.broadcast_prefix(given, structure, is_layout, what)
    found: list[Layout | None] = []
    for path, leaf, shape in zip(tree.paths(structure), leaves, shapes):
        try:
            is_open = leaf is None or (isinstance(leaf, str) and leaf == AUTO)
            found.append(None if is_open else checked(leaf, mesh, tuple(shape)))
        except LayoutError as error:
            raise LayoutError(f"{what}{path}: {error.message}") from None
    return found


def result_layouts(
    given: object, structure: tree.Structure, results: Sequence[Tracer], mesh: Mesh, where: str
) -> list[Layout | None]:
    """Return a layout for each result. Raises LayoutError or UsageError, at the function, naming the result."""
    try:
        return spread_layouts(given, structure, [v.shape for v in results], mesh, "out_layouts")
    except (LayoutError, UsageError) as error:
        raise error.told(error.message, where) from None
