"""Write kernels of the cpu: functions on bare pointers and scalars."""

from __future__ import annotations

from meshweave.lowering.nests.bind import LoopNest
from meshweave.lowering.nests.evaluate import Frame
from meshweave.lowering.nests.rows import KernelUnit
from meshweave.lowering.writer import Value, Writer, passed

PARAMETER = "{llvm.noalias, llvm.noundef, llvm.nonnull}"


class FunctionWriter(Writer):
    """Write the function that does what a unit does."""

    def __init__(self, unit: KernelUnit) -> None:
        super().__init__()
        self.exclusive = unit.pointers.exclusive()
        pointers = [Value(self, f"%p{k}", "!llvm.ptr") for k in range(len(self.exclusive))]
        types = [str(s.type) for s in unit.pointers.scalars]
        self.given = [Value(self, f"%s{k}", passed(type_)) for k, type_ in enumerate(types)]
        scalars = [
            s if s.type == type_ else self.let_first(f"arith.bitcast {s.name} : i16 to bf16", type_)
            for s, type_ in zip(self.given, types)
        ]
        self._ends: dict[int, Value] = {}
        self.frame = Frame(self, tuple(pointers), tuple(scalars), "i64")

    def end(self, nest: LoopNest, loop: int) -> Value | int:
        """Return where a loop ends: at its size, or at a scalar."""
        scalar = nest.limit(loop)
        if scalar is None:
            return nest.sizes[loop]
        if scalar not in self._ends:
            given = self.frame.scalars[scalar].name
            self._ends[scalar] = self.let_first(f"arith.index_cast {given} : index to i64", "i64")
        return self._ends[scalar]

    def number(self, value: int) -> Value:
        """Return an index."""
        return self.constant(value, "i64")

    def text(self, name: str) -> str:
        """Return the lines as function `name`, which takes the unit's pointers and scalars."""
        parameters = [
            f"{p.name}: {p.type} {PARAMETER if alone else ''}"
            for p, alone in zip(self.frame.pointers, self.exclusive)
        ]
        parameters += [f"{s.name}: {s.type}" for s in self.given]
        head = f"func.func @{name}({', '.join(parameters)})"
        return "\n".join([head + " {", *self.head, *self.lines, "return", "}", ""])
