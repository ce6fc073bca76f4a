"""Build the program being traced: lines of MLIR text in nested blocks, each with the user's source line.

Text costs a tenth of what ops in the bindings do, needs no MLIR loaded, and is itself the key of the cache of compiled
programs.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from math import prod
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np

from meshweave.errors import CompileError
from meshweave.frontends.python.dtypes import (
    INTEGERS,
    DType,
    Scalar,
    default_floating,
    float32,
    float64,
    int64,
    literal,
    part,
)
from meshweave.frontends.python.scopes import ThreadScope
from meshweave.hints.fast_paths import Choice
from meshweave.layout import Mesh

PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep
"""Files whose lines are not the user's."""


class _ThreadState(ThreadScope):
    """Hold what this thread is in: a trace, and choices of kernels around calls."""

    trace: TraceBuilder | None = None
    kernels: Choice | None = None


STATE = _ThreadState()
Elements: TypeAlias = np.ndarray[Any, Any]
MAX_ELEMENTS = 1 << 59  # of a tensor: its bytes still fit 64 bits with room to add some


def current() -> TraceBuilder | None:
    """Return the trace that this thread is in, None outside of one."""
    return STATE.trace


def user_frame() -> FrameType | None:
    """Return the innermost frame outside of this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        frame = frame.f_back
    return frame


def where() -> str | None:
    """Return `file:line` of the user's code that is being traced."""
    frame = user_frame()
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def fail(message: str, kind: type[CompileError] = CompileError) -> NoReturn:
    """Raise CompileError, or a kind of it, at the user's line."""
    raise kind(message, where())


@lru_cache(maxsize=4096)
def tensor_type(shape: tuple[int, ...], dtype: DType) -> str:
    """Return the MLIR type of a tensor. Raises CompileError at the user's line if no machine can address it."""
    if prod(shape) > MAX_ELEMENTS:
        fail(f"a tensor of {'x'.join(map(str, shape))} elements is more than can be addressed")
    return f"tensor<{''.join(f'{n}x' for n in shape)}{dtype.element}>"


@lru_cache(maxsize=4096)
def affine_map(ndim: int, results: tuple[str, ...]) -> str:
    """Return an affine map of d0 to d{ndim - 1}."""
    dims = ", ".join(f"d{i}" for i in range(ndim))
    return f"affine_map<({dims}) -> ({', '.join(results)})>"


@lru_cache(maxsize=4096)
def broadcast_map(shape: tuple[int, ...], to: tuple[int, ...]) -> str:
    """Return the map that reads a tensor of `shape` in loops over the shape `to`, which it broadcasts to."""
    skip = len(to) - len(shape)
    reads = ["0" if n == 1 and to[skip + i] != 1 else f"d{skip + i}" for i, n in enumerate(shape)]
    return affine_map(len(to), tuple(reads))


class Block:
    """Hold the lines of one region.

    region: the hint region whose body it is; its values stay usable outside. Values of other blocks end with the block.
    """

    def __init__(self, parent: Block | None, what: str, region: HintRegion | None = None) -> None:
        self.parent, self.what, self.region = parent, what, region
        self.lines: list[str | HintRegion] = []
        self.empties: dict[str, str] = {}
        self.open = True


TimeAxes: TypeAlias = tuple[tuple[str, int | None], ...]


class HintRegion:
    """Build a hint.region; its results are those of its values that are used after it."""

    def __init__(
        self,
        trace: TraceBuilder,
        hints: str,
        loc: str,
        time_axes: TimeAxes,
        back: tuple[str, TimeAxes] | None = None,
        place: str | None = None,
    ) -> None:
        """Begin a region.

        time_axes: of the slices that the hints ask for: names, and counts where given. back: hints and time axes of
        the gradients of its ops, by default the same. place: the user's line, by default the current one.
        """
        self.hints, self.time_axes, self.place = hints, time_axes, place or where() or ""
        self.back = (hints, time_axes) if back is None else back
        trace.regions.append(self)
        self.block = Block(trace.block, "hint", self)
        self._trace, self.loc = trace, loc
        self._results: dict[str, tuple[str, str]] = {}

    def export(self, name: str, type_: str) -> str:
        """Return the name that a value made inside has outside."""
        if name not in self._results:
            self._results[name] = (self._trace.fresh(), type_)
        return self._results[name][0]

    def render(self) -> str:
        """Return the op as text."""
        inside = ", ".join(self._results)
        outside = ", ".join(name for name, _ in self._results.values())
        types = ", ".join(type_ for _, type_ in self._results.values())
        start = f"{outside} = " if outside else ""
        return (
            f'{start}"hint.region"() ({{\n{render(self.block.lines)}\n'
            f'"hint.yield"({inside}) : ({types}) -> (){self.loc}\n'
            f"}}) {{hints = {{{self.hints}}}}} : () -> ({types}){self.loc}"
        )


def render(lines: Sequence[str | HintRegion]) -> str:
    """Return lines as text."""
    return "\n".join([line if isinstance(line, str) else line.render() for line in lines])


class Body:
    """Build the body of a linalg op from scalar ops."""

    def __init__(self, loc: str) -> None:
        self.lines: list[str] = []
        self.outer = 0  # loops around those that are known here: over the places of maps
        self._loc = loc
        self._constants: dict[str, str] = {}

    def let(self, text: str) -> str:
        """Add an op with one result; return its name."""
        name = f"%b{len(self.lines)}"
        self.lines.append(f"{name} = {text}{self._loc}")
        return name

    def op(self, name: str, dtype: DType, *operands: str) -> str:
        """Add an op whose operands and result have one type, such as `arith.addf`; return the name of its result."""
        return self.let(f"{name} {', '.join(operands)} : {dtype.element}")

    def constant(self, value: Scalar, dtype: DType) -> str:
        """Return the name of a scalar constant."""
        return self._constant(scalar(value, dtype))

    def index(self, value: int) -> str:
        """Return the name of a constant of type index."""
        return self._constant(f"arith.constant {value} : index")

    def _constant(self, text: str) -> str:
        if text not in self._constants:
            self._constants[text] = self.let(text)
        return self._constants[text]

    def compare(self, predicate: str, dtype: DType, a: str, b: str) -> str:
        """Compare by a predicate of arith (olt, slt, eq, ...), complex numbers by oeq or une; the result is an i1."""
        if dtype.kind == "c":
            return self.let(f"complex.{_EQUAL[predicate]} {a}, {b} : {dtype.element}")
        op = "arith.cmpf" if dtype.kind == "f" else "arith.cmpi"
        return self.let(f"{op} {predicate}, {a}, {b} : {dtype.element}")

    def select(self, condition: str, dtype: DType, a: str, b: str) -> str:
        """Choose `a` where the condition holds, else `b`."""
        return self.let(f"arith.select {condition}, {a}, {b} : {dtype.element}")

    def loop(self, dim: int) -> str:
        """Return the name of a loop's index."""
        return self.let(f"linalg.index {dim + self.outer} : index")

    def cast(self, value: str, source: DType, target: DType) -> str:
        """Convert a value: from float to integer by truncation, to bool as `!= 0`."""
        if source == target:
            return value
        if target.kind == "b":
            zero = self.constant(0, source)
            return self.compare("une" if source.kind in "fc" else "ne", source, value, zero)
        if target.kind == "c":
            return self._to_complex(value, source, target)
        if source.kind == "c":
            fail(
                f"{source!r} does not become {target!r}: mw.real, mw.imag or mw.abs make real numbers"
            )
        if target.kind == "u" and source.kind == "f":
            return self._to_unsigned(value, source, target)
        if target.element == source.element:
            return value
        if target.kind == "f" and target.bits < 32:
            if source.bits >= 32 and source.kind in INTEGERS:
                value, source = self.cast(value, source, float64), float64
            elif source.kind == "f" and source.bits < 32:
                value, source = self.cast(value, source, float32), float32
        return self.let(
            f"arith.{_cast_op(source, target)} {value} : {source.element} to {target.element}"
        )

    def _to_unsigned(self, value: str, source: DType, target: DType) -> str:
        """Truncate a float to an integer without sign; as in C, a negative one wraps around."""
        if source.bits < 32:
            value, source = self.cast(value, source, float32), float32
        if target.bits < 64:
            return self.cast(self.cast(value, source, int64), int64, target)
        half = self.constant(2.0**63, source)
        less = self.op("arith.subf", source, value, half)
        high = self.cast(less, source, int64)
        high = self.op("arith.xori", int64, high, self.constant(-(1 << 63), int64))
        is_low = self.compare("olt", source, value, half)
        inside = self.select(is_low, source, value, self.constant(0, source))
        return self.select(is_low, int64, self.cast(inside, source, int64), high)

    def part(self, number: int, dtype: DType, value: str) -> str:
        """Return the real part (0) or the imaginary one (1) of a number."""
        if dtype.kind != "c":
            return self.constant(0, dtype) if number else value
        return self.let(f"complex.{('re', 'im')[number]} {value} : {dtype.element}")

    def complex(self, dtype: DType, re: str, im: str) -> str:
        """Make a complex number of its parts."""
        return self.let(f"complex.create {re}, {im} : {dtype.element}")

    def _to_complex(self, value: str, source: DType, target: DType) -> str:
        if source.kind != "c":
            value, source = self.cast(value, source, part(target)), part(target)
        parts = [self.cast(self.part(k, source, value), part(source), part(target)) for k in (0, 1)]
        return self.complex(target, *parts)


def _stands_in(block: Block | None, body: Block) -> bool:
    """Tell whether a block that has ended is a body, or stands in it."""
    while block is not None and not block.open:
        if block is body:
            return True
        block = block.parent
    return False


Emit: TypeAlias = Callable[..., str]
"""Writes scalar ops into a Body, given it, a dtype and names of operands, and returns the name of what they make."""
_EQUAL = {"oeq": "eq", "une": "neq"}


def _cast_op(source: DType, target: DType) -> str:
    if source.kind == "b":
        return "uitofp" if target.kind == "f" else "extui"
    if source.kind in INTEGERS:
        sign = "s" if source.kind == "i" else "u"
        if target.kind == "f":
            return f"{sign}itofp"
        return f"ext{sign}i" if target.bits > source.bits else "trunci"
    if target.kind == "i":
        return "fptosi"
    return "extf" if target.bits > source.bits else "truncf"


class CapturedArray(NamedTuple):
    """Describe an array that the function holds, as an argument of its program.

    source: the user's array. elements: what it held when the function used it.
    """

    name: str
    type: str
    dtype: DType
    source: object
    elements: Elements


def _bits(array: Elements) -> Elements:
    """Return the elements as integers: NaNs can be equal, and 0.0 and -0.0 differ."""
    parts = array.view(array.real.dtype)
    return parts.view(f"u{parts.itemsize}")


class TracedValue(Protocol):
    """Describe a traced tensor to the builder: its program, the block it was made in, its name there, its types."""

    trace: TraceBuilder
    block: Block
    name: str
    key: str
    is_batched: bool
    type: str
    dtype: DType


class MapLevel(Protocol):
    """Describe a map that is being traced to the builder."""

    def compute(self, name: str, function: Any, call: Any, args: Any, kwargs: Any) -> Any:
        """Compute a primitive on values of which some may have a place for each of the map's."""

    def spread(self, parallel: Any, inputs: Any, *said: Any) -> Any:
        """Add a linalg.generic without reductions for all places of the map."""


class Recorder(Protocol):
    """Describe what notes ops for a gradient to the builder: it follows the values that have these keys."""

    tracked: set[str]


class TraceBuilder:
    """Build one program: its blocks, fresh names, and the user's source lines."""

    def __init__(
        self,
        mesh: Mesh | None = None,
        weak_float: DType | None = None,
        place: str | None = None,
    ) -> None:
        """Begin a program.

        weak_float: the dtype in which floats of Python scalars alone are computed. place: the name of all its
        locations; by default they are the user's lines.
        """
        self.mesh, self.weak_float = mesh or Mesh(), weak_float or default_floating()
        self._place = None if place is None else f" loc({quoted(place)})"
        self.needs_float64 = False  # has a float of Python scalars alone met float64?
        self.block = self.top = Block(None, "the function")
        self.regions: list[HintRegion] = []
        self._count = 0
        self._places: dict[tuple[CodeType, int], str] = {}
        self.locations: dict[str, str] = {}  # alias -> location
        self.taken: dict[str, set[DType]] = {}  # argument that is a Python scalar -> types it took
        self.captured: list[CapturedArray] = []
        self.tapes: list[Recorder] = []  # of the gradients around, the innermost last
        self.levels: list[MapLevel] = []  # of the maps around, the innermost last
        self.within = 0  # how many primitives are being traced, one inside of the other
        self.at: str | None = None  # the location of all ops; None: the user's lines
        self._noted: tuple[Block, dict[str, TracedValue]] | None = None

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Put everything that this thread traces meanwhile into this program."""
        before = current()
        STATE.trace = self
        try:
            yield
        finally:
            STATE.trace = before

    def fresh(self) -> str:
        """Return a new name."""
        self._count += 1
        return f"%{self._count}"

    def loc(self) -> str:
        """Return the location suffix of an op at the user's current line."""
        if self._place is not None:
            return self._place
        if self.at is not None:
            return self.at
        frame = user_frame()
        if frame is None:
            return ""
        key = (frame.f_code, frame.f_lasti)
        found = self._places.get(key)
        if found is None:
            place = f"{quoted(frame.f_code.co_filename)}:{frame.f_lineno}:{_columns(frame)}"
            alias = f"#l{len(self._places)}"
            self.locations[alias] = f"loc({place})"
            found = self._places[key] = f" loc({alias})"
        return found

    def add(self, text: str) -> None:
        """Add an op without results, at the user's line."""
        self.block.lines.append(text + self.loc())

    def let(self, text: str) -> str:
        """Add an op with one result, at the user's line; return its name."""
        name = self.fresh()
        self.block.lines.append(f"{name} = {text}{self.loc()}")
        return name

    def name(self, value: TracedValue) -> str:
        """Return the name of a value in this block. Raises CompileError if it left its trace or its body."""
        if value.trace is not self:
            fail("a value of another traced call is used here: give it in as an argument")
        if value.is_batched:
            fail(
                "mw.vmap: an op that is no part of a function of mw has no rule"
                if self.levels
                else "mw.vmap: a value of a mapped function is used outside of it: return it from there"
            )
        if self.tapes and not self.within:
            self.refuse_unknown(value)
        name, block = value.name, value.block
        if self._noted is not None and _stands_in(block, self._noted[0]):
            self._noted[1].setdefault(value.key, value)
            return name
        while not block.open:
            if block.region is None or block.parent is None:
                fail(
                    f"a value made inside {block.what} is used outside of it: return it from there"
                )
            name = block.region.export(name, value.type)
            block = block.parent
        return name

    def refuse_unknown(self, value: TracedValue) -> None:
        """Raise CompileError where an op outside of all primitives reads a value that a gradient follows."""
        if any(value.key in tape.tracked for tape in self.tapes):
            fail("mw.grad: an op that is no part of a function of mw has no derivative")

    @contextlib.contextmanager
    def rehearsed(self, body: Block) -> Iterator[dict[str, TracedValue]]:
        """Trace what is thrown away; give the values of a block that has ended which were used, by their keys."""
        before = self.tapes, self._noted, len(self.regions), self.block
        found: dict[str, TracedValue] = {}
        self.tapes, self._noted, self.block = [], (body, found), Block(self.block, "a rehearsal")
        try:
            yield found
        finally:
            self.tapes, self._noted, count, self.block = before
            del self.regions[count:]

    @contextlib.contextmanager
    def reopened(self, block: Block) -> Iterator[None]:
        """Add lines to a block that has ended."""
        before, self.block = self.block, block
        block.open = True
        self.within += 1
        try:
            yield
        finally:
            self.within -= 1
            block.open = False
            self.block = before

    def empty(self, type_: str) -> str:
        """Return an uninitialised tensor for an op to write; each block makes one of a type."""
        block: Block | None = self.block
        while block is not None:
            if type_ in block.empties:
                return block.empties[type_]
            block = block.parent
        name = self.let(f"tensor.empty() : {type_}")
        self.block.empties[type_] = name
        return name

    def filled(self, shape: tuple[int, ...], dtype: DType, value: Scalar) -> str:
        """Return a tensor filled with one value, for a reduction to start from."""
        start = self.scalar(value, dtype)
        type_ = tensor_type(shape, dtype)
        empty = self.empty(type_)
        return self.let(
            f"linalg.fill ins({start} : {dtype.element}) outs({empty} : {type_}) -> {type_}"
        )

    def scalar(self, value: Scalar, dtype: DType) -> str:
        """Return the name of a scalar constant."""
        return self.let(scalar(value, dtype))

    def index(self, value: int) -> str:
        """Return the name of a constant of type index."""
        return self.let(f"arith.constant {value} : index")

    def capture(self, source: object, elements: Elements, type_: str, dtype: DType) -> str:
        """Make an array an argument of the program, behind those of the function; return its name.

        source: the user's array. elements: what it holds now, copied: what is written to it later changes nothing.
        """
        for known in self.captured:
            if known.source is source and np.array_equal(_bits(known.elements), _bits(elements)):
                return known.name
        name = f"%captured{len(self.captured)}"
        self.captured.append(CapturedArray(name, type_, dtype, source, elements.copy()))
        return name

    @contextlib.contextmanager
    def inside(self, what: str) -> Iterator[Block]:
        """Trace into a new block, whose lines the caller puts where they belong."""
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
        inputs: Sequence[TracedValue],
        out: str,
        out_type: str,
        body: Callable[[Body, list[str], str], str],
    ) -> str:
        """Add a linalg.generic with one result; return its name.

        kinds: "parallel" or "reduction" for each loop. body(b, ins, out): the name of what it yields.
        """
        loc = self.loc()
        lines = Body(loc)
        result = body(lines, [f"%i{k}" for k in range(len(inputs))], "%o")
        out_element = _element(out_type)
        arguments = [f"%i{k}: {value.dtype.element}" for k, value in enumerate(inputs)]
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
    return _SHAPE.sub("", type_)[:-1]


_SHAPE = re.compile(r"^tensor<(\d+x)*")


def scalar(value: Scalar, dtype: DType) -> str:
    """Return the op that makes a scalar constant."""
    text = literal(value, dtype)
    if dtype.kind == "c":
        parts = ", ".join(f"{half} : {part(dtype)}" for half in text.strip("()").split(", "))
        return f"complex.constant [{parts}] : {dtype.element}"
    return f"arith.constant {text}" + ("" if dtype.kind == "b" else f" : {dtype.element}")


def _columns(frame: FrameType) -> str:
    """Return the columns of what the frame runs, `5 to :12`, from 1; 1 where Python does not say (Python 3.10)."""
    positions = getattr(frame.f_code, "co_positions", None)
    found = None if positions is None else next(islice(positions(), frame.f_lasti // 2, None), None)
    if found is None or found[2] is None:
        return "1"
    line, last, first, end = found
    return f"{first + 1} to :{end + 1}" if line == last and end > first else f"{first + 1}"


def quoted(text: str) -> str:
    """Return a text as an MLIR string; its dots escaped too if it would look like an op of StableHLO, as "sdy.py"."""
    looks = any(f"{dialect}." in text for dialect in ("stablehlo", "chlo", "sdy"))
    plain = "/_-+ =:,()@" if looks else "/_-+ =:,()@."
    out = []
    for char in text:
        if (char.isalnum() and char.isascii()) or char in plain:
            out.append(char)
        else:
            out += [f"\\{byte:02X}" for byte in char.encode("utf-8", "surrogateescape")]
    return f'"{"".join(out)}"'
