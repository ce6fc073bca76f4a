"""The program under construction: lines of MLIR text in nested blocks, each with the user's line.

Text, because it is made at a tenth of the price of ops in the bindings, needs no MLIR loaded, and is at once what a
cache of compiled programs is keyed by.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from meshweave.errors import CompileError
from meshweave.layout import Mesh
from meshweave.trace.dtypes import DType, float32, float64, literal

if TYPE_CHECKING:
    from meshweave.trace.tracer import Tracer

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""Files whose lines are not the user's."""
_state = threading.local()
MAX_ELEMENTS = 1 << 59  # of a tensor: its bytes still fit 64 bits with room to add some


def current() -> Trace | None:
    """The trace that this thread is in, None outside of one."""
    found: Trace | None = getattr(_state, "trace", None)
    return found


def user_frame() -> Any:
    """The innermost frame that is not of this package."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame


def where() -> str | None:
    """`file:line` of the user's code that is being traced."""
    frame = user_frame()
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def fail(message: str) -> NoReturn:
    """Raise CompileError at the user's line."""
    raise CompileError(message, where())


@lru_cache(maxsize=4096)
def tensor_type(shape: tuple[int, ...], dtype: DType) -> str:
    """The MLIR type of a tensor. CompileError at the user's line for one that no machine can address."""
    if prod(shape) > MAX_ELEMENTS:
        fail(f"a tensor of {'x'.join(map(str, shape))} elements is more than can be addressed")
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype.name}>"


@lru_cache(maxsize=4096)
def affine_map(ndim: int, results: tuple[str, ...]) -> str:
    """An affine map of d0 .. d{ndim - 1}."""
    dims = ", ".join(f"d{i}" for i in range(ndim))
    return f"affine_map<({dims}) -> ({', '.join(results)})>"


@lru_cache(maxsize=4096)
def broadcast_map(shape: tuple[int, ...], to: tuple[int, ...]) -> str:
    """How a tensor of `shape` is read in loops over the shape `to`, which it broadcasts to."""
    skip = len(to) - len(shape)
    reads = ["0" if n == 1 and to[skip + i] != 1 else f"d{skip + i}" for i, n in enumerate(shape)]
    return affine_map(len(to), tuple(reads))


class Block:
    """Lines of one region. region: the hint region that it is the body of; else a value made in it ends with it."""

    def __init__(self, parent: Block | None, what: str, region: Region | None = None) -> None:
        self.parent, self.what, self.region = parent, what, region
        self.lines: list[str | Region] = []
        self.empties: dict[str, str] = {}
        self.open = True


class Region:
    """A hint.region whose results are those of its values that are used after it."""

    def __init__(
        self, trace: Trace, hints: str, loc: str, time_axes: tuple[tuple[str, int | None], ...]
    ) -> None:
        """time_axes: of the slices that the hints ask for: names, and counts where they are given."""
        self.hints, self.time_axes, self.place = hints, time_axes, where() or ""
        trace.regions.append(self)
        self.block = Block(trace.block, "hint", self)
        self._trace, self._loc = trace, loc
        self._results: dict[str, tuple[str, str]] = {}

    def export(self, name: str, type_: str) -> str:
        """The name outside of a value inside."""
        if name not in self._results:
            self._results[name] = (self._trace.fresh(), type_)
        return self._results[name][0]

    def render(self) -> str:
        """The op."""
        inside = ", ".join(self._results)
        outside = ", ".join(name for name, _ in self._results.values())
        types = ", ".join(type_ for _, type_ in self._results.values())
        start = f"{outside} = " if outside else ""
        return (
            f'{start}"hint.region"() ({{\n{render(self.block.lines)}\n'
            f'"hint.yield"({inside}) : ({types}) -> (){self._loc}\n'
            f"}}) {{hints = {{{self.hints}}}}} : () -> ({types}){self._loc}"
        )


def render(lines: Sequence[str | Region]) -> str:
    """Lines as text."""
    return "\n".join([line if isinstance(line, str) else line.render() for line in lines])


class Body:
    """The body of a linalg op: scalars in, scalars out."""

    def __init__(self, loc: str) -> None:
        self.lines: list[str] = []
        self._loc = loc
        self._constants: dict[tuple[str, str], str] = {}

    def let(self, text: str) -> str:
        """One more op; the name of its result."""
        name = f"%b{len(self.lines)}"
        self.lines.append(f"{name} = {text}{self._loc}")
        return name

    def op(self, name: str, dtype: DType, *operands: str) -> str:
        """An op whose operands and result are of one type, `arith.addf` say."""
        return self.let(f"{name} {', '.join(operands)} : {dtype.name}")

    def constant(self, value: Any, dtype: DType) -> str:
        """A scalar constant."""
        text = literal(value, dtype)
        return self._constant(text if dtype.kind == "b" else f"{text} : {dtype.name}")

    def index(self, value: int) -> str:
        """A constant of type index."""
        return self._constant(f"{value} : index")

    def _constant(self, text: str) -> str:
        key = (text, "")
        if key not in self._constants:
            self._constants[key] = self.let(f"arith.constant {text}")
        return self._constants[key]

    def compare(self, predicate: str, dtype: DType, a: str, b: str) -> str:
        """i1 of a comparison: arith's predicate (olt, slt, eq, ..)."""
        op = "arith.cmpf" if dtype.kind == "f" else "arith.cmpi"
        return self.let(f"{op} {predicate}, {a}, {b} : {dtype.name}")

    def select(self, condition: str, dtype: DType, a: str, b: str) -> str:
        """`a` where the condition holds, else `b`."""
        return self.let(f"arith.select {condition}, {a}, {b} : {dtype.name}")

    def loop(self, dim: int) -> str:
        """The index of a loop."""
        return self.let(f"linalg.index {dim} : index")

    def cast(self, value: str, source: DType, target: DType) -> str:
        """The value in another type: towards zero from float to integer, `!= 0` to bool."""
        if source == target:
            return value
        if target.kind == "b":
            zero = self.constant(0, source)
            return self.compare("une" if source.kind == "f" else "ne", source, value, zero)
        if target.kind == "f" and target.bits == 16:
            if source.bits >= 32 and source.kind == "i":
                value, source = self.cast(value, source, float64), float64
            elif source.kind == "f" and source.bits == 16:
                value, source = self.cast(value, source, float32), float32
        return self.let(
            f"arith.{_cast_op(source, target)} {value} : {source.name} to {target.name}"
        )


def _cast_op(source: DType, target: DType) -> str:
    if source.kind == "b":
        return "uitofp" if target.kind == "f" else "extui"
    if source.kind == "i":
        if target.kind == "f":
            return "sitofp"
        return "extsi" if target.bits > source.bits else "trunci"
    if target.kind == "i":
        return "fptosi"
    return "extf" if target.bits > source.bits else "truncf"


class Trace:
    """One program: its blocks, fresh names, and the user's lines."""

    def __init__(self, mesh: Mesh | None = None) -> None:
        self.mesh = mesh or Mesh()
        self.block = self.top = Block(None, "the function")
        self.regions: list[Region] = []
        self._count = 0
        self._places: dict[tuple[Any, int], str] = {}
        self.locations: dict[str, str] = {}  # alias -> what it stands for
        self.taken: dict[str, set[DType]] = {}  # argument that is a Python scalar -> types it took

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Everything traced in this thread inside goes to this program."""
        before = current()
        _state.trace = self
        try:
            yield
        finally:
            _state.trace = before

    def fresh(self) -> str:
        """A new name."""
        self._count += 1
        return f"%{self._count}"

    def loc(self) -> str:
        """The location suffix of an op of the user's current line."""
        frame = user_frame()
        if frame is None:
            return ""
        key = (frame.f_code, frame.f_lasti)
        found = self._places.get(key)
        if found is None:
            place = f"{quoted(frame.f_code.co_filename)}:{frame.f_lineno}:{_column(frame)}"
            alias = f"#l{len(self._places)}"
            self.locations[alias] = f"loc({place})"
            found = self._places[key] = f" loc({alias})"
        return found

    def add(self, text: str) -> None:
        """One more op without results, at the user's line."""
        self.block.lines.append(text + self.loc())

    def let(self, text: str) -> str:
        """One more op with one result; its name."""
        name = self.fresh()
        self.block.lines.append(f"{name} = {text}{self.loc()}")
        return name

    def name(self, value: Tracer) -> str:
        """The name of a value here. CompileError when it has none: it left its trace or its body."""
        if value.trace is not self:
            fail("a value of another traced call is used here: give it in as an argument")
        name, block = value.name, value.block
        while not block.open:
            if block.region is None or block.parent is None:
                fail(
                    f"a value made inside {block.what} is used outside of it: return it from there"
                )
            name = block.region.export(name, value.type)
            block = block.parent
        return name

    def empty(self, type_: str) -> str:
        """An uninitialised tensor, to be written by the op that takes it; made once in a block."""
        block: Block | None = self.block
        while block is not None:
            if type_ in block.empties:
                return block.empties[type_]
            block = block.parent
        name = self.let(f"tensor.empty() : {type_}")
        self.block.empties[type_] = name
        return name

    def filled(self, shape: tuple[int, ...], dtype: DType, value: Any) -> str:
        """A tensor of one value, to be added to."""
        scalar = self.let(f"arith.constant {_typed(literal(value, dtype), dtype)}")
        type_ = tensor_type(shape, dtype)
        empty = self.empty(type_)
        return self.let(
            f"linalg.fill ins({scalar} : {dtype.name}) outs({empty} : {type_}) -> {type_}"
        )

    def index(self, value: int) -> str:
        """A constant of type index."""
        return self.let(f"arith.constant {value} : index")

    @contextlib.contextmanager
    def inside(self, what: str) -> Iterator[Block]:
        """A block of its own; its lines are for the caller to put somewhere."""
        block = self.block = Block(self.block, what)
        try:
            yield block
        finally:
            block.open = False
            assert block.parent is not None
            self.block = block.parent

    def generic(
        self,
        maps: Sequence[str],
        kinds: Sequence[str],
        inputs: Sequence[Tracer],
        out: str,
        out_type: str,
        body: Callable[[Body, list[str], str], str],
    ) -> str:
        """A linalg.generic with one result; kinds: "parallel" or "reduction" of each loop; body(b, ins, out) is what
        it yields.
        """
        loc = self.loc()
        lines = Body(loc)
        result = body(lines, [f"%i{k}" for k in range(len(inputs))], "%o")
        out_element = _element(out_type)
        arguments = [f"%i{k}: {value.dtype.name}" for k, value in enumerate(inputs)]
        arguments.append(f"%o: {out_element}")
        names = ", ".join([self.name(value) for value in inputs])
        types = ", ".join([value.type for value in inputs])
        ins = f" ins({names} : {types})" if inputs else ""
        name = self.fresh()
        quoted = ", ".join([f'"{kind}"' for kind in kinds])
        self.block.lines.append(
            f"{name} = linalg.generic {{indexing_maps = [{', '.join(maps)}], "
            f"iterator_types = [{quoted}]}}{ins} outs({out} : {out_type}) {{\n"
            f"^bb0({', '.join(arguments)}):\n"
            + "".join([f"  {line}\n" for line in lines.lines])
            + f"  linalg.yield {result} : {out_element}{loc}\n}} -> {out_type}{loc}"
        )
        return name


def _element(type_: str) -> str:
    return type_[type_.rfind("x") + 1 : -1] if "x" in type_ else type_[len("tensor<") : -1]


def _typed(text: str, dtype: DType) -> str:
    return text if dtype.kind == "b" else f"{text} : {dtype.name}"


def _column(frame: Any) -> int:
    """The column of what the frame runs, from 1; 1 where the interpreter does not say (Python 3.10)."""
    positions = getattr(frame.f_code, "co_positions", None)
    if positions is None:
        return 1
    found = next(islice(positions(), frame.f_lasti // 2, None), None)
    return 1 if found is None or found[2] is None else found[2] + 1


def quoted(text: str) -> str:
    """A text as an MLIR string."""
    return f'"{_escaped(text)}"'


def _escaped(name: str) -> str:
    """A text inside an MLIR string. Dots in hex where it would pass for an op of StableHLO's, as "sdy.py" would."""
    plain = (
        "/_-+ =:,()@"
        if any(f"{d}." in name for d in ("stablehlo", "chlo", "sdy"))
        else "/_-+ =:,()@."
    )
    out = []
    for char in name:
        if (char.isalnum() and char.isascii()) or char in plain:
            out.append(char)
        else:
            out += [f"\\{byte:02X}" for byte in char.encode("utf-8", "surrogateescape")]
    return "".join(out)
