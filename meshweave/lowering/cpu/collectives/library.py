"""Make one module of the functions of the collective runtime that a program calls.

The sources lie in `library/*.mlir`. Each is a module of MLIR as it lies: it declares what it uses of others, and it is
one instance of what it is for, such as the sum of f32. Another instance differs in the aliases at its head
(`!elem = f32`, `#piece = 1073741824 : i64`) and in parts of its symbols (`sum_f32`). An alias that is a number of
`abi.py` has its name, `#WorldLayout_LINE`, and always gets that number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from meshweave import abi
from meshweave.errors import CompileError

_HEAD = re.compile(r"^([!#]\w+) = (.*)$", re.MULTILINE)
_FUNCTION = re.compile(r"^llvm\.[^@]*@(\w+).*?(?=^llvm\.|\Z)", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r" *//.*")
_SYMBOL = re.compile(r"@(\w+)")
_ALIAS = re.compile(r"[!#]\w+")


class Source(NamedTuple):
    """Hold a source: its aliases, and the text of each function, which may be a declaration."""

    aliases: dict[str, str]
    functions: dict[str, str]


@cache
def read_source(name: str) -> Source:
    """Read `library/{name}.mlir`."""
    path = files("meshweave.lowering.cpu.collectives").joinpath(f"library/{name}.mlir")
    text = _COMMENT.sub("", path.read_text(encoding="utf-8"))
    functions = {found[1]: found[0] for found in _FUNCTION.finditer(text)}
    return Source(dict(_HEAD.findall(text)), functions)


@cache
def abi_numbers() -> dict[str, int]:
    """Return the numbers that compiled code shares with others, by the names of their aliases."""
    layouts = (
        *(
            abi.WorldLayout,
            abi.GroupRecord,
            abi.AsyncArea,
            abi.MpiTable,
            abi.ServeBlock,
            abi.CoresBlock,
            abi.DirectCall,
        ),
        *(abi.StatusRow, abi.PieceWords, abi.SectionWords),
    )
    numbers = {
        f"#{layout.__name__}_{name}": value
        for layout in layouts
        for name, value in vars(layout).items()
    }
    numbers |= {f"#{name}": value for name, value in vars(abi).items()}
    slots = abi.Slots(0, 0, 0, 0)
    numbers |= {
        "#Slots_RANK": slots.rank,
        "#Slots_STATUS": slots.status,
        "#Slots_PRIVATE": slots.private,
        "#Slots_FIRST_GROUP": slots.handle(0),
        "#Slots_GROUP_WORDS": slots.handle(1) - slots.handle(0),
    }
    return {name: value for name, value in numbers.items() if isinstance(value, int)}


@dataclass(frozen=True)
class Instance:
    """Say how a source is filled in.

    types, numbers: the values of aliases, by their names without `!` and `#`. parts: what stands in symbols in the
    place of a part of them, in order.
    """

    source: str
    types: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)

    def symbol(self, name: str) -> str:
        """Return what a symbol of the source is called in this instance."""
        for part, filled in self.parts.items():
            name = name.replace(part, filled)
        return name

    def filled(self, text: str) -> str:
        """Fill in a text of the source."""
        values = self._values()
        text = _SYMBOL.sub(lambda found: "@" + self.symbol(found[1]), text)
        return _ALIAS.sub(lambda found: values.get(found[0], found[0]), text)

    def _values(self) -> dict[str, str]:
        """Return the text of each alias."""
        given = abi_numbers() | {f"#{name}": number for name, number in self.numbers.items()}
        values = {f"!{name}": text for name, text in self.types.items()}
        for alias, text in read_source(self.source).aliases.items():
            if alias in given:
                values[alias] = f"{given[alias]} : {text.rpartition(' : ')[2].strip()}"
            else:
                values.setdefault(alias, text.strip())
        return values


class Linked(NamedTuple):
    """Hold the text of a module, and the functions that it only declares."""

    text: str
    externals: tuple[str, ...]


def link(instances: Iterable[Instance], exports: Iterable[str]) -> Linked:
    """Make a module of `exports` and what they call.

    All but the exports are internal, so that LLVM inlines them and keeps none for others to call.
    Raises CompileError for an export that no instance defines.
    """
    defined: dict[str, tuple[Instance, str]] = {}
    declared: dict[str, tuple[Instance, str]] = {}
    for instance in instances:
        for name, text in read_source(instance.source).functions.items():
            is_body = "{\n" in text or text.startswith("llvm.mlir.global")
            (defined if is_body else declared).setdefault(instance.symbol(name), (instance, text))
    waiting, made, externals = list(exports), dict[str, str](), set[str]()
    kept = frozenset(waiting)
    while waiting:
        name = waiting.pop()
        if name in made:
            continue
        if name not in defined:
            if name in kept or name not in declared:
                raise CompileError(f"the collective runtime has no function {name}")
            externals.add(name)
        instance, text = defined.get(name) or declared[name]
        made[name] = instance.filled(text)
        waiting += _SYMBOL.findall(made[name])
        if name in defined and name not in kept:
            made[name] = made[name].replace("llvm.func @", "llvm.func internal @")
    text = "".join(made[name] for name in sorted(made))
    return Linked(f"module {{\n{text}}}", tuple(sorted(externals)))
