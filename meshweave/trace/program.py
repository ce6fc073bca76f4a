"""From a Python function and the shapes of its arguments to the text of a program in the global view."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshweave.errors import CompileError, LayoutError, MeshweaveError, UsageError
from meshweave.layout import Layout, Mesh
from meshweave.trace import tree
from meshweave.trace.builder import PACKAGE, Trace, quoted, render, tensor_type
from meshweave.trace.dtypes import DType, float32, float64
from meshweave.trace.place import checked, is_layout, layout_attr
from meshweave.trace.tracer import Tracer, is_operand, tensor


@dataclass(frozen=True)
class Spec:
    """What an argument is to the compiler: global shape, dtype, whether it is a Python scalar, the layout that an Array
    has, and the integer type that a scalar has to fit, where it takes one that is narrower than dtype.
    """

    shape: tuple[int, ...]
    dtype: DType
    weak: bool = False
    layout: Layout | None = None
    narrow: DType | None = None

    def taking(self, types: Collection[DType]) -> Spec:
        """The same, of a Python scalar that took these types: float64 where one is, so that no digit is lost."""
        if float64 in types and self.dtype is float32:
            return replace(self, dtype=float64)
        kinds = [d for d in types if d.kind == self.dtype.kind == "i" and d.bits < self.dtype.bits]
        return replace(self, narrow=min(kinds, key=lambda d: d.bits)) if kinds else self

    def __str__(self) -> str:
        text = "x".join(map(str, (*self.shape, self.dtype)))
        return f"{text} {self.layout}" if self.layout is not None else text


@dataclass(frozen=True)
class Program:
    """A traced program: its text, the structure of what it returns, the hints in it (their places and texts), and what
    its arguments are.
    """

    text: str
    structure: tree.Structure
    hints: tuple[tuple[str, str], ...] = ()
    specs: tuple[Spec, ...] = ()


def trace_program(
    function: Callable[..., Any],
    arguments: Callable[[Sequence[Tracer]], tuple[tuple[Any, ...], dict[str, Any]]],
    specs: Sequence[Spec],
    layouts: Sequence[Layout | None],
    mesh: Mesh,
    out_layouts: Any,
    where: str,
) -> Program:
    """Run `function` on traced values.

    arguments: makes its arguments of the traced leaves. where: `file:line` of the function, for errors about it.
    Where a Python scalar turns out to be needed in float64, it is run once more.
    """
    trace = Trace(mesh)
    with trace.active():
        values = [
            Tracer(trace, f"%arg{i}", spec.shape, spec.dtype, spec.weak)
            for i, spec in enumerate(specs)
        ]
        args, kwargs = arguments(values)
        returned = _run(function, args, kwargs, where)
        results, structure = _results(returned, where)
        names = [trace.name(value) for value in results]
    given = tuple(specs)
    specs = [spec.taking(trace.taken.get(f"%arg{i}", ())) for i, spec in enumerate(given)]
    if any(now.dtype != before.dtype for now, before in zip(specs, given)):
        return trace_program(function, arguments, specs, layouts, mesh, out_layouts, where)
    wanted = result_layouts(out_layouts, structure, results, mesh, where)
    name = re.sub(r"\W", "_", getattr(function, "__name__", "main"), flags=re.ASCII)
    body = render(trace.top.lines)
    types = [v.type for v in results]
    parameters = ", ".join(
        f"%arg{i}: {tensor_type(s.shape, s.dtype)}{_attrs(layout)}"
        for i, (s, layout) in enumerate(zip(specs, layouts))
    )
    outs = ", ".join(f"{t}{_attrs(layout)}" for t, layout in zip(types, wanted))
    places = "".join(f"{alias} = {place}\n" for alias, place in trace.locations.items())
    own = f" loc({_place(function)})"
    text = (
        f"{places}module @{name} {{\n"
        f'"dist.mesh"() {{axes = "{mesh}", sym_name = "mesh"}} : () -> (){own}\n'
        f"func.func public @main({parameters}) -> ({outs}) {{\n{body}\n"
        f"return {', '.join(names)} : {', '.join(types)}{own}\n}}{own}\n}}\n"
    )
    hints = tuple((region.place, region.hints) for region in trace.regions)
    return Program(text, structure, hints, tuple(specs))


def _run(function: Callable[..., Any], args: Any, kwargs: Any, where: str) -> Any:
    """What the function returns; errors of ours without a place get the line of the user's code that they come from."""
    try:
        return function(*args, **kwargs)
    except RecursionError:
        name = getattr(function, "__name__", "the function")
        raise CompileError(
            f"{name} calls itself without end: when it is traced only Python's values end a recursion; "
            "mw.while_loop and mw.scan repeat",
            where,
        ) from None
    except MeshweaveError as error:
        if error.location is not None:
            raise
        raise type(error)(error.message, _line_of(error) or where) from None


def _line_of(error: BaseException) -> str | None:
    """`file:line` of the innermost frame of an error that is not of this package."""
    found, frame = None, error.__traceback__
    while frame is not None:
        name = frame.tb_frame.f_code.co_filename
        found = found if name.startswith(PACKAGE) else f"{name}:{frame.tb_lineno}"
        frame = frame.tb_next
    return found


def _results(returned: Any, where: str) -> tuple[list[Tracer], tree.Structure]:
    leaves, structure = tree.flatten(returned)
    for path, leaf in zip(tree.paths(structure), leaves):
        if not is_operand(leaf):
            raise CompileError(f"result{path} is a {type(leaf).__name__}: no array", where)
    if not leaves:
        raise CompileError("the function returns no array", where)
    return [tensor(leaf) for leaf in leaves], structure


def _attrs(layout: Layout | None) -> str:
    return "" if layout is None else f" {{dist.layout = {layout_attr(layout)}}}"


def _place(function: Any) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return "unknown"
    return f"{quoted(code.co_filename)}:{code.co_firstlineno}:1"


def spread_layouts(
    given: Any, structure: tree.Structure, shapes: Sequence[Sequence[int]], mesh: Mesh, what: str
) -> list[Layout | None]:
    """A layout for each leaf of a pytree from a prefix of it. Raises LayoutError or UsageError, naming the leaf."""
    leaves = tree.spread(given, structure, is_layout, what)
    found: list[Layout | None] = []
    for path, leaf, shape in zip(tree.paths(structure), leaves, shapes):
        try:
            found.append(None if leaf is None else checked(leaf, mesh, tuple(shape)))
        except LayoutError as error:
            raise LayoutError(f"{what}{path}: {error.message}") from None
    return found


def result_layouts(
    given: Any, structure: tree.Structure, results: Sequence[Tracer], mesh: Mesh, where: str
) -> list[Layout | None]:
    """A layout for each result. Raises LayoutError or UsageError, at the function, naming the result."""
    try:
        return spread_layouts(given, structure, [v.shape for v in results], mesh, "out_layouts")
    except (LayoutError, UsageError) as error:
        raise type(error)(error.message, where) from None
