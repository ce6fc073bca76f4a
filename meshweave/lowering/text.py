"""A function under construction, as lines of MLIR."""

from __future__ import annotations

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
