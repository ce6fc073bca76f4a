"""A function under construction, as lines of MLIR."""

from __future__ import annotations

from collections.abc import Sequence

from meshweave.lowering.rows import Unit

PARAMETER = "{llvm.noalias, llvm.noundef, llvm.nonnull}"


class Text:
    """Lines of a function, fresh names, and constants, which are written once at its start."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.head: list[str] = []
        self._constants: dict[tuple[str, str], str] = {}
        self._count = 0

    def fresh(self) -> str:
        """A new value name."""
        self._count += 1
        return f"%v{self._count}"

    def add(self, text: str) -> None:
        """One more line."""
        self.lines.append(text)

    def let(self, text: str) -> str:
        """One more line that defines a value; its name."""
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return name

    def constant(self, value: str, type_: str = "i64") -> str:
        """The value that is a constant."""
        key = (value, type_)
        if key not in self._constants:
            name = self.fresh()
            literal = value if value.endswith(type_) or type_ == "i1" else f"{value} : {type_}"
            self.head.append(f"{name} = arith.constant {literal}")
            self._constants[key] = name
        return self._constants[key]

    def plus(self, value: str, number: int) -> str:
        """value + number, an i64 that does not overflow."""
        if not number:
            return value
        return self.let(f"arith.addi {value}, {self.constant(str(number))} overflow<nsw> : i64")

    def open(self, end: int | str, step: int = 1, start: int = 0) -> str:
        """Begin a loop; its counter. end: a number, or a value of i64."""
        low, by = self.constant(str(start)), self.constant(str(step))
        high = self.constant(str(end)) if isinstance(end, int) else end
        counter = self.fresh()
        self.add(f"scf.for {counter} = {low} to {high} step {by} : i64 {{")
        return counter

    def open_carrying(
        self, end: int, values: Sequence[str], types: Sequence[str]
    ) -> tuple[str, list[str], list[str]]:
        """Begin a loop from 0 that carries values: its counter, the values inside, and the results, known
        behind `close_carrying`.
        """
        result, counter, inner = self.fresh(), self.fresh(), [self.fresh() for _ in values]
        zero, one, high = (self.constant(str(n)) for n in (0, 1, end))
        pairs = ", ".join(f"{a} = {b}" for a, b in zip(inner, values))
        self.add(
            f"{result}:{len(inner)} = scf.for {counter} = {zero} to {high} step {one} "
            f"iter_args({pairs}) -> ({', '.join(types)}) : i64 {{"
        )
        return counter, inner, [f"{result}#{k}" for k in range(len(inner))]

    def close(self, loops: int = 1) -> None:
        """End the innermost loops."""
        self.lines += ["}"] * loops

    def close_carrying(self, values: Sequence[str], types: Sequence[str]) -> None:
        """End the innermost loop, which hands these on."""
        self.add(f"scf.yield {', '.join(values)} : {', '.join(types)}")
        self.close()

    def function(self, name: str, unit: Unit) -> str:
        """The lines as function `name`, which takes the unit's pointers and numbers."""
        exclusive = unit.pointers.exclusive()
        parameters = [
            f"%p{k}: !llvm.ptr {PARAMETER if alone else ''}" for k, alone in enumerate(exclusive)
        ]
        parameters += [f"%s{k}: {s.type}" for k, s in enumerate(unit.pointers.scalars)]
        head = (
            f'func.func @{name}({", ".join(parameters)}) attributes {{passthrough = ["noinline"]}}'
        )
        return "\n".join([head + " {", *self.head, *self.lines, "return", "}", ""])
