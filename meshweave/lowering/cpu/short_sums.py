"""Write reductions of short rows: each row in a few vectors, whose lanes are then put together.

LLVM would write such a row out element by element, and then do several rows side by side by gathers, which are slow.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.ir.expressions import Accumulator, Apply, Load, inputs, type_text
from meshweave.lowering.cpu.loops import VECTORS, NestLoops
from meshweave.lowering.cpu.products.blocks import parts_of
from meshweave.lowering.nests.bind import NestNode
from meshweave.lowering.nests.evaluate import stored
from meshweave.lowering.writer import Value
from meshweave.plan.machine import vectors

SHORTEST, LONGEST = 16, 256  # elements of a row
WIDTHS = {"f32": 4, "i32": 4, "f64": 8, "i64": 8}
REDUCING = {
    f"arith.{name}"
    for name in ("addf", "mulf", "maximumf", "minimumf", "addi", "muli", "maxsi", "minsi")
}
PER_LANE = REDUCING | VECTORS | {"arith.extf", "arith.sitofp", "arith.subi", "math.absf"}


class ShortReductions(NestLoops):
    """Write one nest inside loops `rows`, which are open."""

    @property
    def fits(self) -> bool:
        """Tell whether all results are reductions along one short row that lies in memory as one."""
        nest, last = self.nest, self.order[-1] if self.order else -1
        if (
            nest.contraction
            or nest.reductions != {last}
            or nest.limit(last) is not None
            or not SHORTEST <= nest.sizes[last] <= LONGEST
        ):
            return False
        along = [nest.code[k] for k in sorted(self.wanted) if last in self.needs[k]]
        return all(map(self._is_alone, range(len(nest.stores)))) and all(
            (isinstance(node, Load) and node.access.strides[last] == 1 and str(node.type) in (*WIDTHS, "bf16", "f16"))
            or isinstance(node, Accumulator)
            or (isinstance(node, Apply) and node.name in PER_LANE and str(node.type) in WIDTHS)
            for node in along
        )  # fmt: skip

    def _is_alone(self, number: int) -> bool:
        """Tell whether an op that may be done in any order reduces a result, and nothing else reads what it holds."""
        code, store = self.nest.code, self.nest.stores[number]
        node = code[store.value]
        if (
            not isinstance(node, Apply)
            or node.is_exact
            or node.name not in REDUCING
            or str(node.type) not in WIDTHS
        ):
            return False
        held = [k for k, n in enumerate(code) if isinstance(n, Accumulator) and n.number == number]
        readers = [k for k in self.wanted for at in inputs(code[k]) if at in held]
        return readers == [store.value] and len(held) == 1

    def write(self) -> None:
        """Write the loops but for the innermost, in them a row."""
        self._loops(self.order[:-1], self._row)

    def _row(self) -> None:
        """Write the reductions of a row."""
        last = self.order[-1]
        lanes = vectors().nbytes // max(WIDTHS[self.types[s.value]] for s in self.nest.stores)
        found: list[dict[int, list[Value]]] = [{} for _ in self.nest.stores]
        for at, count in parts_of(self.nest.sizes[last], lanes):
            self.place[last] = self.writer.number(at)
            made: dict[int, Value] = {}
            for number, values in enumerate(found):
                vector = self._vector(self._addend(number), made, count)
                values.setdefault(count, []).append(vector)
        self.place[last] = None
        for number, store in enumerate(self.nest.stores):
            node = self.nest.code[store.value]
            assert isinstance(node, Apply)
            totals = [
                self._across(node, self._joined(node, values)) for values in found[number].values()
            ]
            self.store(store, self._joined(node, [self._start(store), *totals]))

    def _addend(self, number: int) -> int:
        """Return the node of what is added to a result."""
        left, right = inputs(self.nest.code[self.nest.stores[number].value])
        return right if isinstance(self.nest.code[left], Accumulator) else left

    def _joined(self, node: Apply, values: Sequence[Value]) -> Value:
        """Reduce values to one, by pairs."""
        while len(values) > 1:
            pairs = [values[k : k + 2] for k in range(0, len(values), 2)]
            values = [self._op(node, pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return values[0]

    def _across(self, node: Apply, vector: Value) -> Value:
        """Reduce the lanes of a vector, half by half."""
        count = int(vector.type.removeprefix("vector<").split("x")[0])
        while count > 1:
            count //= 2
            low = self.writer.shuffle(vector, vector, list(range(count)))
            high = self.writer.shuffle(vector, vector, list(range(count, 2 * count)))
            vector = self._op(node, (low, high))
        return self.writer.lane(vector, 0)

    def _op(self, node: Apply, operands: Sequence[Value]) -> Value:
        return self.writer.op(node.name, self.settings(node), operands, operands[0].type)

    def _vector(self, number: int, made: dict[int, Value], count: int) -> Value:
        """Compute a node for `count` elements of the row."""
        if number in made:
            return made[number]
        node: NestNode = self.nest.code[number]
        if number in self.values:
            made[number] = self.writer.spread(self.values[number], count)
        elif isinstance(node, Load):
            kind = str(node.type)
            place = self.frame.address(node.access, kind, self.place)
            type_ = f"vector<{count}x{stored(kind)}>"
            made[number] = self.writer.load(
                place, type_, 2 if kind in ("bf16", "f16") else WIDTHS[kind]
            )
        else:
            assert isinstance(node, Apply)
            operands = [self._vector(k, made, count) for k in node.operands]
            type_ = f"vector<{count}x{type_text(node)}>"
            made[number] = self.writer.op(node.name, self.settings(node), operands, type_)
        return made[number]
