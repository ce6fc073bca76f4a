"""A linalg.generic of random programs: its text, and its value in NumPy."""

from dataclasses import dataclass

import numpy as np
from program_ops import arith
from programs import Array, Value


def loop_maps(dims: list[list[int]], loops: int) -> str:
    """Indexing maps: for each operand the loop of each dim."""
    names = ", ".join(f"d{d}" for d in range(loops))
    rows = [", ".join(f"d{d}" for d in row) for row in dims]
    return "[" + ", ".join(f"affine_map<({names}) -> ({row})>" for row in rows) + "]"


def kinds(loops: int, reduced: "set[int]") -> str:
    """Iterator types."""
    words = ["reduction" if d in reduced else "parallel" for d in range(loops)]
    return "[" + ", ".join(f'"{w}"' for w in words) + "]"


def spaced(x: Array, row: list[int], loops: int) -> Array:
    """`x`, whose dim i is loop row[i], with a dim for each loop."""
    order = np.argsort(row)
    moved = np.transpose(x, order)
    return moved.reshape(
        [moved.shape[sorted(row).index(d)] if d in row else 1 for d in range(loops)]
    )


def limits(x: Array) -> tuple[float, float]:
    """What is below and above every element."""
    if x.dtype.kind == "f":
        return -np.inf, np.inf
    return (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max) if x.dtype.kind == "i" else (False, True)


BODIES = {
    "product": ("mul", lambda x, y: x * y),
    "sum": ("add", lambda x, y: x + y),
    "larger": ("max", np.maximum),
}
FOLDS = {
    "add": np.add.reduce,
    "max": lambda x, axis: np.maximum.reduce(x, axis=axis, initial=limits(x)[0]),
    "min": lambda x, axis: np.minimum.reduce(x, axis=axis, initial=limits(x)[1]),
    "mul": np.multiply.reduce,
    "sub": lambda x, axis: -np.add.reduce(x, axis=axis),
}


ENDS = {
    "add": np.add,
    "sub": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


@dataclass(frozen=True)
class Generic:
    """A linalg.generic of two operands, as text and in NumPy.

    rows:  the loop of each dim of the operands; out: of the result. name: what is done to two elements.
    fold:  how the reduced loops end up in the result; "plain": there are none, init is added; "none": nor that.
    index: a loop whose index is added to each element. start: what the result begins with where nothing is given.
    """

    operands: tuple[Value, Value]
    rows: tuple[list[int], list[int]]
    out: list[int]
    name: str
    fold: str
    index: "int | None"
    start: int

    @property
    def loops(self) -> int:
        """How many there are."""
        return len({d for row in self.rows for d in row})

    @property
    def reduced(self) -> tuple[int, ...]:
        """Those that the result does not have."""
        return tuple(d for d in range(self.loops) if d not in self.out)

    def body(self, x: Array, y: Array) -> Array:
        """The loops' elements before the fold, the index left out."""
        f = next(f for word, f in BODIES.values() if word == self.name)
        return f(spaced(x, self.rows[0], self.loops), spaced(y, self.rows[1], self.loops))

    def lines(self) -> tuple[list[str], str]:
        """The ops of the body, and what it yields."""
        a = self.operands[0]
        lines, last = [f"%t = {arith(self.name, a)} %x, %y : {a.element}"], "%t"
        if self.index is not None:
            lines += self._index_lines(a)
            last = "%u"
        if self.fold == "plain":
            lines.append(f"%s = {arith('add', a)} {last}, %o : {a.element}")
        elif self.fold != "none":
            lines.append(f"%s = {arith(self.fold, a)} %o, {last} : {a.element}")
        return lines, last if self.fold == "none" else "%s"

    def _index_lines(self, a: Value) -> list[str]:
        """%u = %t + the index (twice that for i32)."""
        if a.element == "i32":
            number = "arith.addi %w, %w : i32"
        else:
            number = f"arith.{'sitofp' if a.is_float else 'extsi'} %w : i32 to {a.element}"
        return [
            f"%i = linalg.index {self.index} : index",
            "%w = arith.index_cast %i : index to i32",
            f"%n = {number}",
            f"%u = {arith('add', a)} %t, %n : {a.element}",
        ]

    def text(self, init: str) -> str:
        """The op, `$T` for the type of its result."""
        a, b = self.operands
        lines, last = self.lines()
        return (
            f"linalg.generic {{indexing_maps = {loop_maps([*self.rows, self.out], self.loops)}, "
            f"iterator_types = {kinds(self.loops, set(self.reduced))}}} "
            f"ins({a.name}, {b.name} : {a.type}, {b.type}) "
            f"outs({init} : $T) {{\n    ^bb0(%x: {a.element}, %y: {a.element}, %o: {a.element}):\n      "
            + "\n      ".join(lines)
            + f"\n      linalg.yield {last} : {a.element}\n  }} -> $T"
        )

    def compute(self, x: Array, y: Array, *init: Array) -> Array:
        """The result; init: what it begins with, where that is given."""
        first = init[0] if init else x.dtype.type(self.start)
        z = self.body(x, y)
        if self.index is not None:
            double = 2 if self.operands[0].element == "i32" else 1
            shape = [-1 if d == self.index else 1 for d in range(self.loops)]
            z = z + double * np.arange(z.shape[self.index]).reshape(shape).astype(z.dtype)
        if self.fold in ("none", "plain"):
            z = np.transpose(z, np.array(self.out, int))
            return z + first if self.fold == "plain" else z
        folded = FOLDS[self.fold](z, axis=self.reduced)
        if self.out:
            folded = np.transpose(folded, np.argsort(np.argsort(self.out)))
        return ENDS[self.fold](folded, first)

    def bound(self) -> float:
        """What no element, nor a sum on the way to one, is larger than."""
        x, y = (np.abs(v.value) for v in self.operands)
        z = np.abs(self.body(x, y).astype("f8"))
        z = z + (0 if self.index is None else 2 * z.shape[self.index])
        if self.fold == "mul":
            with np.errstate(over="ignore"):
                return float(np.prod(np.maximum(z, 1))) * 2
        return float(z.sum()) + 10
