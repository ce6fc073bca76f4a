"""Find which reductions of a nest are a plain combination of values, and what they start from.

Such a reduction may be done in parts, in any order. Sums and products of f16 and bf16 are kept in
f32 until they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshweave.ir.expressions import Accumulator, Apply, needed
from meshweave.lowering.gpu.nodes import SMALL, DeviceFrame, settings_text
from meshweave.lowering.nests.bind import LoopNest
from meshweave.lowering.writer import Value, corrected, number_text, two_sum

RUN = 16  # values of a thread that are added one after another, as many as in NumPy's pairwise sum
AT_ONCE = 8  # iterations of a long loop that are written one behind another, so that their loads are under way together
_INF = float("inf")
_ZERO, _ONE = "zero", "one"
# What changes nothing, for each op that may combine values in any order.
_NEUTRAL = {
    "arith.addf": _ZERO, "arith.mulf": _ONE, "arith.addi": _ZERO, "arith.muli": _ONE,
    "arith.andi": "ones", "arith.ori": _ZERO, "arith.xori": _ZERO,
    "arith.maximumf": "-inf", "arith.minimumf": "inf", "arith.maxnumf": "-inf", "arith.minnumf": "inf",
    "arith.maxsi": "least", "arith.minsi": "largest", "arith.maxui": _ZERO, "arith.minui": "ones",
}  # fmt: skip


@dataclass(frozen=True)
class Combiner:
    """Describe a reduction that is `op` of what it holds and node `value`.

    type: of what it holds while it runs; result: of what is stored.
    """

    op: str
    settings: str
    value: int
    type: str
    result: str

    def start(self, frame: DeviceFrame) -> Value:
        """Return the value that changes nothing."""
        return frame.writer.literal(neutral(self.op, self.type), self.type)

    @property
    def sums(self) -> bool:
        """Tell whether it adds floats, which rounds."""
        return self.op == "arith.addf"

    def given(self, frame: DeviceFrame, value: Value) -> Value:
        """Return a value as it is combined."""
        return frame.widened(value) if self.type == "f32" else value

    def join(self, frame: DeviceFrame, left: Value, right: Value) -> Value:
        """Combine two values."""
        return frame.op(self.op, self.settings, [left, right], self.type)

    def finished(self, frame: DeviceFrame, value: Value) -> Value:
        """Return a value as it is stored."""
        return frame.resized(value, self.result) if self.type != self.result else value


def combiners(nest: LoopNest) -> list[Combiner] | None:
    """Return the reduction of each result of a nest.

    None when one of them is something else, or is to be done in order.
    """
    found = [_combiner(nest, k) for k in range(len(nest.stores))]
    return None if None in found else [c for c in found if c is not None]


def _combiner(nest: LoopNest, number: int) -> Combiner | None:
    store = nest.stores[number]
    node = nest.code[store.value]
    if not isinstance(node, Apply) or node.name not in _NEUTRAL or node.is_exact:
        return None
    held = {k for k, n in enumerate(nest.code) if isinstance(n, Accumulator)}
    others = [k for k in node.operands if k not in held]
    if len(node.operands) != 2 or len(others) != 1 or needed(nest.code, others) & held:
        return None
    if nest.code[sum(node.operands) - others[0]] != Accumulator(number, store.type):
        return None
    kind = str(store.type)
    while_run = "f32" if kind in SMALL else kind
    return Combiner(node.name, settings_text(node), others[0], while_run, kind)


def loop(
    frame: DeviceFrame,
    joined: Sequence[Combiner],
    carried: Sequence[Value],
    first: Value | int,
    end: Value | int,
    step: int,
    body: Callable[[Value, list[Value]], list[Value]],
    inner: int = 1,
    most: int = 0,
) -> list[Value]:
    """Write a loop over `first`, `first + step`, .. below `end`; return what it leaves of each value carried.

    joined: the reduction of each of them. body(counter, carried): combines one iteration with them, which has `inner`
    values for each. most: bounds the counters that are passed over, where `end` is known at run time alone.
    A long sum is right to a few units in the last place because its runs are summed each by itself, and then added
    together with what rounding loses.
    """
    writer, turns = frame.writer, max(1, RUN // inner)
    span = end if isinstance(end, int) else most
    if span * inner <= 2 * RUN * step or not any(c.sums for c in joined):
        return writer.for_(first, end, step, carried, body, frame.index)
    summed = [k for k, c in enumerate(joined) if c.sums]

    def add(outer: list[Value], run: Callable[[list[Value]], list[Value]]) -> list[Value]:
        totals, lost = outer[: len(joined)], outer[len(joined) :]
        found = run([c.start(frame) if c.sums else v for c, v in zip(joined, totals)])
        for at, k in enumerate(summed):
            found[k], lost[at] = two_sum(totals[k], found[k], lost[at])
        return [*found, *lost]

    once = min(AT_ONCE, turns)

    def whole(start: Value, outer: list[Value]) -> list[Value]:
        def several(number: Value, inside: list[Value]) -> list[Value]:
            for k in range(once):
                inside = body(start + (number * once + k) * step, inside)
            return inside

        def run(starts: list[Value]) -> list[Value]:
            return writer.for_(0, turns // once, 1, starts, several, frame.index)

        return [start + turns * step, *add(outer[1:], run)]

    begin = first if isinstance(first, Value) else frame.constant(first)
    zeros = [writer.constant(0, joined[k].type) for k in summed]
    last = end - (turns - 1) * step  # of a run that is whole, the first value lies before it
    begin, *found = writer.for_(
        begin, last, turns * step, [begin, *carried, *zeros], whole, frame.index
    )
    found = add(found, lambda starts: writer.for_(begin, end, step, starts, body, frame.index))
    lost = dict(zip(summed, found[len(joined) :]))
    return [corrected(v, lost[k]) if k in lost else v for k, v in enumerate(found[: len(joined)])]


def tree(frame: DeviceFrame, combiner: Combiner, values: list[Value]) -> Value:
    """Join values pair by pair."""
    while len(values) > 1:
        pairs = [combiner.join(frame, a, b) for a, b in zip(values[::2], values[1::2])]
        values = pairs + values[len(values) // 2 * 2 :]
    return values[0]


def neutral(op: str, type_: str) -> str:
    """Return the literal of that type that `op` leaves everything else unchanged by."""
    what = _NEUTRAL[op]
    if type_ in ("f64", "f32", "f16", "bf16"):
        number = {_ZERO: 0.0, _ONE: 1.0, "inf": _INF, "-inf": -_INF}[what]
        return number_text(-0.0 if op == "arith.addf" else number, type_)
    if type_ == "i1":
        return "true" if what in (_ONE, "ones", "least") else "false"
    bits = 64 if type_ == "index" else int(type_[1:])
    least, largest = -(1 << bits - 1), (1 << bits - 1) - 1
    return str({_ZERO: 0, _ONE: 1, "ones": -1, "least": least, "largest": largest}[what])
