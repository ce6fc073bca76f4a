"""Define sort and argsort as stable merge sorts of rows, written as loops, since no linalg op sorts.

Runs of 1, 2, 4, ... elements are merged in pairs from one buffer into the other. The indices of the elements are moved,
so that any number of arrays can be put in their order.
"""

from __future__ import annotations

from collections.abc import Callable

from meshweave.frontends.python.builder import TraceBuilder, tensor_type
from meshweave.frontends.python.control import for_loop
from meshweave.frontends.python.dtypes import DEFAULT_INT
from meshweave.frontends.python.functions.create import iota
from meshweave.frontends.python.functions.index import take_along_axis
from meshweave.frontends.python.functions.manipulate import axis_of, moveaxis, reshape
from meshweave.frontends.python.tracer import ArrayLike, Tracer, tensor, tracing


def argsort(
    x: ArrayLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tracer:
    """Return the indices that sort x along `axis`, as int64; equal elements keep their order, NaNs are the largest."""
    value = tensor(x)
    dim = axis_of("argsort", axis, value.ndim)
    rows = moveaxis(value, dim, -1)
    flat = reshape(rows, (value.size // max(value.shape[dim], 1), value.shape[dim]))
    order = _orders(flat, descending)
    return moveaxis(reshape(order, rows.shape), -1, dim)


def sort(
    x: ArrayLike, /, *, axis: int = -1, descending: bool = False, stable: bool = True
) -> Tracer:
    """Sort x along `axis`; NaNs are the largest."""
    value = tensor(x)
    dim = axis_of("sort", axis, value.ndim)
    places = argsort(value, axis=dim, descending=descending)
    return take_along_axis(value, places, axis=dim)


def _orders(value: Tracer, descending: bool) -> Tracer:
    """Return the indices that sort each row of a matrix."""
    count, size = value.shape
    start = iota(value.shape, 1, DEFAULT_INT)
    if count == 0 or size < 2:
        return start
    trace = tracing(value)
    writer = _Merge(trace, value, descending)
    name = writer.write(trace.name(start))
    return Tracer(trace, name, value.shape, DEFAULT_INT)


class _Merge:
    """Write the loops of a merge sort."""

    def __init__(self, trace: TraceBuilder, value: Tracer, descending: bool) -> None:
        self.trace, self.let, self.value, self.descending = trace, trace.let, value, descending
        self.count, self.size = value.shape
        self.source = trace.name(value)
        self.type = tensor_type(value.shape, DEFAULT_INT)

    def index(self, op: str, *operands: str) -> str:
        """Add an op of arith on indices; return the name of its result."""
        return self.let(f"arith.{op} {', '.join(operands)} : index")

    def loop(
        self, end: str, carried: list[tuple[str, str]], body: Callable[[str, list[str]], list[str]]
    ) -> list[str]:
        """Write scf.for from 0 to `end`; carried: (start, type); body(iv, names) gives the next ones."""
        trace = self.trace
        with trace.inside("a loop of a sort") as block:
            iv, names = trace.fresh(), [trace.fresh() for _ in carried]
            following = body(iv, names)
        bounds = f"{iv} = {self.zero} to {end} step {self.one}"
        pairs = [(name, start) for name, (start, _) in zip(names, carried)]
        return for_loop(trace, bounds, pairs, [type_ for _, type_ in carried], block, following)

    def write(self, start: str) -> str:
        """Write the loops; return the name of the sorted indices. start: the indices 0, 1, ... of each row."""
        self.zero, self.one = self.trace.index(0), self.trace.index(1)
        rows, passes = self.trace.index(self.count), self.trace.index((self.size - 1).bit_length())
        self.end = self.trace.index(self.size)
        self.last = self.trace.index(self.size - 1)
        spare = self.let(f"tensor.empty() : {self.type}")

        def merge(number: str, buffers: list[str]) -> list[str]:
            width = self.index("shli", self.one, number)
            made = self.loop(
                rows,
                [(buffers[1], self.type)],
                lambda row, into: [self._row(row, width, buffers[0], into[0])],
            )
            return [made[0], buffers[0]]

        return self.loop(passes, [(start, self.type), (spare, self.type)], merge)[0]

    def _row(self, row: str, width: str, source: str, target: str) -> str:
        """Merge all pairs of runs of one row."""
        state = [(self.zero, "index"), (self.zero, "index"), (target, self.type)]

        def place(position: str, names: list[str]) -> list[str]:
            return self._place(row, width, source, position, *names)

        return self.loop(self.end, state, place)[2]

    def _place(
        self, row: str, width: str, source: str, position: str, left: str, right: str, target: str
    ) -> list[str]:
        """Write one index. left, right: the next elements of the two runs."""
        both = self.index("addi", width, width)
        within = self.index("remui", position, both)
        base = self.index("subi", position, within)
        middle = self.index("minsi", self.index("addi", base, width), self.end)
        stop = self.index("minsi", self.index("addi", base, both), self.end)
        starts = self.let(f"arith.cmpi eq, {within}, {self.zero} : index")
        left, right = (
            self.index("select", starts, base, left),
            self.index("select", starts, middle, right),
        )
        a, b = (self._at(source, row, self.index("minsi", i, self.last)) for i in (left, right))
        has_right = self.let(f"arith.cmpi slt, {right}, {stop} : index")
        no_left = self.let(f"arith.cmpi sge, {left}, {middle} : index")
        # the right one only where it must come first: that is stable
        first = self.let(f"arith.andi {has_right}, {self._precedes(row, b, a)} : i1")
        takes_right = self.let(f"arith.ori {no_left}, {first} : i1")
        chosen = self.let(f"arith.select {takes_right}, {b}, {a} : i64")
        written = self.let(f"tensor.insert {chosen} into {target}[{row}, {position}] : {self.type}")
        next_left = self.index("addi", left, self.index("select", takes_right, self.zero, self.one))
        next_right = self.index(
            "addi", right, self.index("select", takes_right, self.one, self.zero)
        )
        return [next_left, next_right, written]

    def _at(self, source: str, row: str, place: str) -> str:
        return self.let(f"tensor.extract {source}[{row}, {place}] : {self.type}")

    def _precedes(self, row: str, a: str, b: str) -> str:
        """Return an i1: whether the element at index `a` (i64) comes before that at `b`; NaNs are the largest."""
        x, y = (self._element(row, place) for place in (a, b))
        if self.descending:
            x, y = y, x
        dtype = self.value.dtype
        if dtype.kind != "f":
            return self.let(
                f"arith.cmpi {'ult' if dtype.kind == 'b' else 'slt'}, {x}, {y} : {dtype}"
            )
        below = self.let(f"arith.cmpf olt, {x}, {y} : {dtype}")
        nan = self.let(f"arith.cmpf uno, {y}, {y} : {dtype}")
        number = self.let(f"arith.cmpf ord, {x}, {x} : {dtype}")
        return self.let(f"arith.ori {below}, {self.let(f'arith.andi {nan}, {number} : i1')} : i1")

    def _element(self, row: str, place: str) -> str:
        at = self.let(f"arith.index_cast {place} : i64 to index")
        return self.let(f"tensor.extract {self.source}[{row}, {at}] : {self.value.type}")
