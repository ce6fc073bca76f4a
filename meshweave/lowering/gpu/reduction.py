"""Reductions of a nest: which ones are a plain combination of values, and what they start from.

Such a reduction may be done in parts, in any order. Sums and products of f16 and bf16 are kept in
f32 until they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshweave.lowering.bind import Nest
from meshweave.lowering.gpu.builder import Value, number_text
from meshweave.lowering.gpu.nodes import SMALL, Frame, needed, settings_text
from meshweave.lowering.payload import EXACT

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
    """A reduction that is `op` of what it holds and node `value`. type: of what it holds while it
    runs; result: of what is stored.
    """

    op: str
    settings: str
    value: int
    type: str
    result: str

    def start(self, frame: Frame) -> Value:
        """What changes nothing."""
        return frame.builder.literal(neutral(self.op, self.type), self.type)

    def given(self, frame: Frame, value: Value) -> Value:
        """A value as it is combined."""
        return frame.widened(value) if self.type == "f32" else value

    def join(self, frame: Frame, left: Value, right: Value) -> Value:
        """Both together."""
        return frame.op(self.op, self.settings, [left, right], self.type)

    def finished(self, frame: Frame, value: Value) -> Value:
        """As it is stored."""
        return frame.resized(value, self.result) if self.type != self.result else value


def combiners(nest: Nest) -> list[Combiner] | None:
    """Of each result of a nest with reductions; None when one of them is something else, or is to
    be done in order.
    """
    found = [_combiner(nest, k) for k in range(len(nest.stores))]
    return None if None in found else [c for c in found if c is not None]


def _combiner(nest: Nest, number: int) -> Combiner | None:
    store = nest.stores[number]
    node = nest.code[store.value]
    if node[0] != "op" or node[1] not in _NEUTRAL or any(key == EXACT for key, _ in node[2]):
        return None
    holding = [k for k in node[3] if nest.code[k] == ("acc", number)]
    others = [k for k in node[3] if nest.code[k][0] != "acc"]
    if len(holding) != 1 or len(others) != 1:
        return None
    if any(nest.code[k][0] == "acc" for k in needed(nest, others)):
        return None
    kind = str(store.type)
    held = "f32" if kind in SMALL else kind
    return Combiner(node[1], settings_text(node), others[0], held, kind)


def neutral(op: str, type_: str) -> str:
    """The literal of that type that `op` leaves everything else unchanged by."""
    what = _NEUTRAL[op]
    if type_ in ("f64", "f32", "f16", "bf16"):
        number = {_ZERO: 0.0, _ONE: 1.0, "inf": _INF, "-inf": -_INF}[what]
        return number_text(-0.0 if op == "arith.addf" else number, type_)
    if type_ == "i1":
        return "true" if what in (_ONE, "ones", "least") else "false"
    bits = 64 if type_ == "index" else int(type_[1:])
    least, largest = -(1 << bits - 1), (1 << bits - 1) - 1
    return str({_ZERO: 0, _ONE: 1, "ones": -1, "least": least, "largest": largest}[what])
