"""Describe a PTX module as plain values: variables, functions, instructions and their operands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from meshweave.simulator.ptx.fault import EmulationError


@dataclass(frozen=True)
class Register:
    """Name a register; those of inner scopes have a name of their own."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """Hold a literal: `bits` for `0f`, `0d` and integers (two's complement, as a Python int)."""

    value: int
    kind: str = "int"  # "int", "f32", "f64"


@dataclass(frozen=True)
class Symbol:
    """Name a variable, label, function, or `_`."""

    name: str


@dataclass(frozen=True)
class Address:
    """Hold `[base + offset]`; more parts only for tensor copies."""

    base: Any
    offset: int = 0


@dataclass(frozen=True)
class Vector:
    """Hold `{a, b, ...}`."""

    parts: tuple[Any, ...]


@dataclass(frozen=True)
class PredicatePair:
    """Hold `d|p`: a result and a predicate."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Negated:
    """Hold `!p`."""

    register: Register


Operand: TypeAlias = (
    "Register | Immediate | Symbol | Address | Vector | PredicatePair | Negated | None"
)
"""What an instruction reads or writes; None: nothing is written."""

ALL_BYTES = (1 << 32) - 1
_TYPE = re.compile(r"[usb](?:8|16|32|64|128)|[fb]16x2|bf16x2|f16|bf16|tf32|f32|f64|pred")


@dataclass(frozen=True)
class Instruction:
    """Hold one instruction: its opcode in parts ("ld", "global", "u32"), operands, guard and line.

    scope: numbers of the enclosing `{ }` blocks, where labels are looked up. used: a bit for each
    byte of a load that anything uses (`.pragma "used_bytes_mask"`).
    """

    parts: tuple[str, ...]
    operands: tuple[Any, ...]
    line: int
    guard: str | None = None
    negated: bool = False
    scope: tuple[int, ...] = ()
    used: int = ALL_BYTES

    @property
    def opcode(self) -> str:
        """Return the opcode as written."""
        return ".".join(self.parts)

    @property
    def types(self) -> list[str]:
        """Return the types in the opcode, in order."""
        return [part for part in self.parts[1:] if _TYPE.fullmatch(part)]

    def has(self, *parts: str) -> bool:
        """Tell whether the opcode has one of these parts."""
        return any(part in self.parts for part in parts)

    def refuse(self, why: str = "not emulated") -> EmulationError:
        """Return the error that says that this instruction cannot be executed here."""
        return EmulationError(f"ptx line {self.line}: {self.opcode}: {why}")


@dataclass(frozen=True)
class Variable:
    """Describe a variable of a space: its bytes (0: as many as the launch gives), alignment and contents."""

    name: str
    space: str
    nbytes: int
    align: int
    data: np.ndarray | None = None


@dataclass(frozen=True)
class PtxParameter:
    """Describe a parameter and its offset among the parameters."""

    name: str
    offset: int
    nbytes: int


@dataclass
class PtxFunction:
    """Hold an `.entry` or `.func`: parameters, results, registers with their bits, code and labels.

    labels: index of the instruction that follows each label.
    """

    name: str
    entry: bool
    parameters: tuple[PtxParameter, ...]
    results: tuple[PtxParameter, ...] = ()
    registers: dict[str, int] = field(default_factory=dict)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    max_threads: int | None = None


@dataclass
class PtxModule:
    """Hold a parsed module. `kernels` holds what launches have decoded, by entry."""

    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, PtxFunction] = field(default_factory=dict)
    kernels: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def entries(self) -> tuple[str, ...]:
        """Return the names of the kernels."""
        return tuple(name for name, function in self.functions.items() if function.entry)
