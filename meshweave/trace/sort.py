"""sort and argsort: stable merge sorts of the rows, with loops, since no linalg op sorts.

Runs of 1, 2, 4, .. places are merged in pairs from one buffer into the other; what is moved are the places of the
elements in their row, so that any number of arrays can follow them.
"""

from __future__ import annotations

from typing import Any

from meshweave.trace.builder import Trace, tensor_type
from meshweave.trace.dtypes import DEFAULT_INT, DType
from meshweave.trace.index import take_along_axis
from meshweave.trace.manipulate import axis_of, moveaxis, reshape
from meshweave.trace.tracer import Tracer, tensor, tracing


def argsort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tracer:
    """The indices that sort x along `axis`, equal elements in their order; NaNs are the largest. int64."""
    value = tensor(x)
    dim = axis_of("argsort", axis, value.ndim)
    rows = moveaxis(value, dim, -1)
    flat = reshape(rows, (value.size // max(value.shape[dim], 1), value.shape[dim]))
    order = _orders(flat, descending)
    return moveaxis(reshape(order, rows.shape), -1, dim)


def sort(x: Any, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tracer:
    """x with its elements in order along `axis`; NaNs are the largest."""
    value = tensor(x)
    dim = axis_of("sort", axis, value.ndim)
    places = argsort(value, axis=dim, descending=descending)
    return take_along_axis(value, places, axis=dim)


def _orders(value: Tracer, descending: bool) -> Tracer:
    """For each row of a matrix the places that sort it."""
    from meshweave.trace.create import iota

    count, size = value.shape
    start = iota(value.shape, 1, DEFAULT_INT)
    if count == 0 or size < 2:
        return start
    trace = tracing(value)
    writer = _Merge(trace, value, descending)
    name = writer.write(trace.name(start))
    return Tracer(trace, name, value.shape, DEFAULT_INT)


class _Merge:
    """Writes the loops."""

    def __init__(self, trace: Trace, value: Tracer, descending: bool) -> None:
        self.trace, self.value, self.descending = trace, value, descending
        self.count, self.size = value.shape
        self.source = trace.name(value)
        self.type = tensor_type(value.shape, DEFAULT_INT)

    def let(self, text: str) -> str:
        """One more op."""
        return self.trace.let(text)

    def index(self, op: str, *operands: str) -> str:
        """An op of arith on indices."""
        return self.let(f"arith.{op} {', '.join(operands)} : index")

    def pick(self, condition: str, a: str, b: str) -> str:
        """`a` where the condition holds, else `b`."""
        return self.index("select", condition, a, b)

    def loop(self, end: str, carried: list[tuple[str, str]], body: Any) -> list[str]:
        """scf.for from 0 to `end`; carried: (start, type); body(iv, names) gives the next ones."""
        trace = self.trace
        iv, names = trace.fresh(), [trace.fresh() for _ in carried]
        result = trace.fresh()
        types = ", ".join(t for _, t in carried)
        starts = ", ".join(f"{n} = {s}" for n, (s, _) in zip(names, carried))
        lines = trace.block.lines
        many = f":{len(carried)}" if len(carried) > 1 else ""
        lines.append(
            f"{result}{many} = scf.for {iv} = {self.zero} to {end} step {self.one} "
            f"iter_args({starts}) -> ({types}) {{"
        )
        following = body(iv, names)
        loc = trace.loc()
        lines.append(f"scf.yield {', '.join(following)} : {types}{loc}\n}}{loc}")
        return [f"{result}#{i}" for i in range(len(carried))] if many else [result]

    def write(self, start: str) -> str:
        """The loops; the name of the sorted places. start: the places 0, 1, .. of each row."""
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
        """Write one place. left, right: the next elements of the two runs."""
        both = self.index("addi", width, width)
        within = self.index("remui", position, both)
        base = self.index("subi", position, within)
        middle = self.index("minsi", self.index("addi", base, width), self.end)
        stop = self.index("minsi", self.index("addi", base, both), self.end)
        starts = self.let(f"arith.cmpi eq, {within}, {self.zero} : index")
        left, right = self.pick(starts, base, left), self.pick(starts, middle, right)
        a, b = (self._at(source, row, self.index("minsi", i, self.last)) for i in (left, right))
        has_right = self.let(f"arith.cmpi slt, {right}, {stop} : index")
        no_left = self.let(f"arith.cmpi sge, {left}, {middle} : index")
        # the right one only where it must come first: that is stable
        first = self.let(f"arith.andi {has_right}, {self._precedes(row, b, a)} : i1")
        takes_right = self.let(f"arith.ori {no_left}, {first} : i1")
        chosen = self.let(f"arith.select {takes_right}, {b}, {a} : i64")
        written = self.let(f"tensor.insert {chosen} into {target}[{row}, {position}] : {self.type}")
        next_left = self.index("addi", left, self.pick(takes_right, self.zero, self.one))
        next_right = self.index("addi", right, self.pick(takes_right, self.one, self.zero))
        return [next_left, next_right, written]

    def _at(self, source: str, row: str, place: str) -> str:
        return self.let(f"tensor.extract {source}[{row}, {place}] : {self.type}")

    def _precedes(self, row: str, a: str, b: str) -> str:
        """i1: must the element at place `a` (i64) stand before that at `b`?"""
        x, y = (self._element(row, place) for place in (a, b))
        if self.descending:
            x, y = y, x
        return self._less(self.value.dtype, x, y)

    def _element(self, row: str, place: str) -> str:
        at = self.let(f"arith.index_cast {place} : i64 to index")
        return self.let(f"tensor.extract {self.source}[{row}, {at}] : {self.value.type}")

    def _less(self, dtype: DType, x: str, y: str) -> str:
        if dtype.kind != "f":
            predicate = "ult" if dtype.kind == "b" else "slt"
            return self.let(f"arith.cmpi {predicate}, {x}, {y} : {dtype}")
        below = self.let(f"arith.cmpf olt, {x}, {y} : {dtype}")
        nan, number = (
            self.let(f"arith.cmpf {p}, {v}, {v} : {dtype}") for p, v in (("uno", y), ("ord", x))
        )
        return self.let(f"arith.ori {below}, {self.let(f'arith.andi {nan}, {number} : i1')} : i1")
