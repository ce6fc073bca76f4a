"""Parse PTX text to a `PtxModule`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from meshweave.simulator.ptx.fault import EmulationError
from meshweave.simulator.ptx.lexer import Token, tokens
from meshweave.simulator.ptx.program import (
    ALL_BYTES,
    Address,
    Immediate,
    Instruction,
    Negated,
    PredicatePair,
    PtxFunction,
    PtxModule,
    PtxParameter,
    Register,
    Symbol,
    Variable,
    Vector,
)

_SPACES = (".global", ".const", ".shared", ".local", ".param")
_LINKAGE = (".visible", ".extern", ".weak", ".common")
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)U?")
_HEX_FLOAT = re.compile(r"0([fFdD])([0-9a-fA-F]+)")
_USED_BYTES = re.compile(r"used_bytes_mask (0[xX][0-9a-fA-F]+|\d+)")
_DECIMAL = re.compile(r"\d+\.\d*(?:[eE]\d+)?")


def parse(ptx: str) -> PtxModule:
    """Parse PTX text. Raises EmulationError with the line of what cannot be read."""
    return _PtxParser(tokens(ptx)).module()


def _bytes_of(kind: str) -> int:
    """Return the bytes of a type; 0 where it is none."""
    digits = re.sub(r"\D", "", kind.removesuffix("x2"))
    return max(1, int(digits) // 8) * (2 if kind.endswith("x2") else 1) if digits else 0


class _PtxParser:
    def __init__(self, found: list[Token]) -> None:
        self.tokens, self.at = found, 0
        self.last = found[-1].line if found else 0
        self.scopes: list[tuple[int, dict[str, str]]] = []
        self.blocks = 0
        self.known: dict[str, int] = {}
        self.used = ALL_BYTES  # of the next instruction

    # -- reading tokens

    @property
    def here(self) -> Token:
        return self.tokens[self.at] if self.at < len(self.tokens) else Token("", self.last)

    def take(self, expected: str | None = None) -> str:
        token = self.here
        if token.text == "" or (expected is not None and token.text != expected):
            wanted = f', expected "{expected}"' if expected else ""
            raise self.wrong(f'"{token.text}"{wanted}' if token.text else f"end of text{wanted}")
        self.at += 1
        return token.text

    def skip(self, text: str) -> bool:
        if self.here.text != text:
            return False
        self.at += 1
        return True

    def wrong(self, what: str) -> EmulationError:
        return EmulationError(f"ptx line {self.here.line}: cannot read {what}")

    def integer(self) -> int:
        negative = self.skip("-")
        match = _INTEGER.fullmatch(self.here.text)
        if not match:
            raise self.wrong(f'"{self.here.text}" as a number')
        self.at += 1
        return -int(match[1], 0) if negative else int(match[1], 0)

    def skip_line(self) -> None:
        line = self.here.line
        while self.here.text and self.here.line == line:
            self.at += 1

    def width(self, kind: str) -> int:
        if not _bytes_of(kind):
            raise self.wrong(f'"{kind}" as a type')
        return _bytes_of(kind)

    # -- the module

    def module(self) -> PtxModule:
        module = PtxModule()
        while word := self.here.text:
            if word in (".version", ".target", ".address_size", ".file", ".loc"):
                self.skip_line()
            elif word in _LINKAGE:
                self.at += 1
            elif word in (".entry", ".func"):
                self.function(module)
            elif word in _SPACES:
                variable = self.variable()
                module.variables[variable.name] = variable
            elif word == ".section":
                self.skip_section()
            elif word in (".pragma", ".alias"):
                self.skip_statement()
            else:
                raise self.wrong(f'"{word}"')
        return module

    def skip_statement(self) -> None:
        while not self.skip(";"):
            self.take()

    def skip_section(self) -> None:
        while not self.skip("{"):
            self.take()
        while not self.skip("}"):
            self.take()

    def variable(self) -> Variable:
        space, align, kind = self.take()[1:], 0, ""
        while self.here.text.startswith("."):
            word = self.take()
            if word == ".align":
                align = self.integer()
            elif word not in (".attribute", ".v2", ".v4"):
                kind = word[1:]
        name, width, count = self.take(), self.width(kind), 1
        while self.skip("["):
            count *= 0 if self.here.text == "]" else self.integer()
            self.take("]")
        data = np.zeros(width * count, np.uint8) if space in ("global", "const") else None
        if self.skip("="):
            data = self.contents(width, count)
        self.take(";")
        return Variable(name, space, width * count, align or width, data)

    def contents(self, width: int, count: int) -> np.ndarray:
        values = []
        if self.skip("{"):
            while not self.skip("}"):
                values.append(self.literal())
                self.skip(",")
        else:
            values.append(self.literal())
        data = b"".join((v & ((1 << 8 * width) - 1)).to_bytes(width, "little") for v in values)
        out: np.ndarray = np.frombuffer(data.ljust(width * count, b"\0"), np.uint8).copy()
        return out

    def literal(self) -> int:
        operand = self.operand()
        if not isinstance(operand, Immediate):
            raise self.wrong(f'"{operand}" as the contents of a variable')
        return operand.value

    # -- functions

    def parameters(self) -> tuple[PtxParameter, ...]:
        found, offset = [], 0
        self.take("(")
        while not self.skip(")"):
            self.take(".param")
            align, kind = 0, ""
            while self.here.text.startswith("."):
                word = self.take()
                if word == ".align":
                    size = self.integer()
                    align = align if kind else size  # after .ptr it tells of what is pointed to
                elif word not in (".ptr", *_SPACES):
                    kind = word[1:]
            name, nbytes = self.take(), self.width(kind)
            align = align or nbytes
            if self.skip("["):
                nbytes *= self.integer()
                self.take("]")
            offset = -(-offset // align) * align
            found.append(PtxParameter(name, offset, nbytes))
            offset += nbytes
            self.skip(",")
        return tuple(found)

    def function(self, module: PtxModule) -> None:
        entry = self.take() == ".entry"
        results = self.parameters() if self.here.text == "(" else ()
        name = self.take()
        parameters = self.parameters() if self.here.text == "(" else ()
        function = PtxFunction(name, entry, parameters, results)
        while self.here.text.startswith("."):
            self.bounds(function)
        if self.skip(";"):  # a declaration
            return
        self.take("{")
        self.body(function)
        module.functions[name] = function

    def bounds(self, function: PtxFunction) -> None:
        word, numbers = self.take(), []
        while re.fullmatch(r"\d+", self.here.text):
            numbers.append(self.integer())
            self.skip(",")
        if word in (".maxntid", ".reqntid"):
            function.max_threads = int(np.prod(numbers))

    def body(self, function: PtxFunction) -> None:
        self.scopes, self.blocks, self.known = [(0, {})], 0, function.registers
        while self.scopes:
            word = self.here.text
            if self.skip("{"):
                self.blocks += 1
                self.scopes.append((self.blocks, {}))
            elif self.skip("}"):
                self.scopes.pop()
            elif word == ".reg":
                self.registers(function)
            elif word in (".shared", ".local", ".param", ".global", ".const"):
                variable = self.variable()
                function.variables[self.declare(variable.name)] = variable
            elif word in (".loc", ".file"):
                self.skip_line()
            elif self.skip(".pragma"):
                self.pragma()
            elif word.startswith("."):
                self.skip_statement()
            elif self.tokens[self.at + 1 : self.at + 2] and self.tokens[self.at + 1].text == ":":
                self.label(function)
            elif not self.skip(";"):
                function.code.append(self.instruction())

    def pragma(self) -> None:
        while not self.skip(";"):
            word = self.here.text.strip('"')
            if match := _USED_BYTES.fullmatch(word):
                self.used = int(match[1], 0)
            elif word.startswith("used_bytes_mask"):
                raise self.wrong(f'"{word}" as a mask of bytes')
            self.take()

    def label(self, function: PtxFunction) -> None:
        name = self.take()
        self.take(":")
        function.labels[scoped(name, self.scopes[-1][0])] = len(function.code)

    def declare(self, name: str) -> str:
        number, names = self.scopes[-1]
        names[name] = scoped(name, number)
        return names[name]

    def registers(self, function: PtxFunction) -> None:
        self.take(".reg")
        kind = self.take()[1:]
        bits = 1 if kind == "pred" else 8 * self.width(kind)
        while not self.skip(";"):
            name = self.take()
            if self.skip("<"):
                count = self.integer()
                self.take(">")
                for number in range(count):
                    function.registers[self.declare(f"{name}{number}")] = bits
            else:
                function.registers[self.declare(name)] = bits
            self.skip(",")

    # -- instructions

    def instruction(self) -> Instruction:
        guard, negated = None, False
        line = self.here.line
        if self.skip("@"):
            negated = self.skip("!")
            guard = self.resolve(self.take())
        opcode = self.take()
        if not re.fullmatch(r"[a-z][\w.:]*", opcode):
            self.at -= 1
            raise self.wrong(f'"{opcode}" as an instruction')
        operands = []
        while not self.skip(";"):
            operands.append(self.operand())
            if not self.skip(",") and self.here.text != ";":
                raise self.wrong(f'"{self.here.text}" after an operand of {opcode}')
        scope = tuple(number for number, _ in self.scopes)
        parts = tuple(opcode.split("."))
        used, self.used = self.used, ALL_BYTES
        return Instruction(parts, tuple(operands), line, guard, negated, scope, used)

    def resolve(self, name: str) -> str:
        for _, names in reversed(self.scopes):
            if name in names:
                return names[name]
        return name

    def operand(self) -> Any:
        if self.skip("{"):
            return Vector(self.until("}"))
        if self.skip("("):
            return Vector(self.until(")"))
        if self.skip("["):
            return self.address()
        if self.skip("!"):
            return Negated(Register(self.resolve(self.take())))
        first = self.simple()
        return PredicatePair(first, self.simple()) if self.skip("|") else first

    def until(self, end: str) -> tuple[Any, ...]:
        parts = []
        while not self.skip(end):
            parts.append(self.operand())
            self.skip(",")
        return tuple(parts)

    def address(self) -> Address:
        base, offset = self.simple(), 0
        while self.here.text in ("+", "-"):
            self.skip("+")  # a minus belongs to the number
            offset += self.integer()
        if self.skip(","):  # a tensor map and coordinates
            rest = self.until("]")
            return Address(Vector((base, *rest)), offset)
        self.take("]")
        return Address(base, offset)

    def simple(self) -> Any:
        negative = self.skip("-")
        word = self.take()
        if match := _HEX_FLOAT.fullmatch(word):
            return Immediate(int(match[2], 16), "f32" if match[1] in "fF" else "f64")
        if match := _INTEGER.fullmatch(word):
            return Immediate(-int(match[1], 0) if negative else int(match[1], 0))
        if _DECIMAL.fullmatch(word):
            value = -float(word) if negative else float(word)
            return Immediate(int(np.float64(value).view(np.uint64)), "f64")
        name = self.resolve(word)
        return Register(name) if name.startswith("%") or name in self.known else Symbol(name)


def scoped(name: str, scope: int) -> str:
    """Name what is declared in an inner scope: `name@scope`."""
    return name if scope == 0 else f"{name}@{scope}"
