"""Hold what programs may take: bytes received, collectives, memory, compiles; and what they took.

bytes = "3 MiB"                what the busiest rank receives, in all calls together
peak = "64 MiB"                the most that a rank holds at a time
compiles = 1                   programs that are made
[collectives]                  how often each runs, in all calls together; or a number for all
all_gather = 0

A number alone is a bound that may be reached; `"== 2"`, `"< 3 MiB"` and so on say otherwise.
"""

from __future__ import annotations

import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from meshweave.errors import UsageError, did_you_mean
from meshweave.plan.collectives import TALKING

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEYS = ("bytes", "peak", "compiles", "collectives")
_SIGNS: dict[str, tuple[Callable[[int, int], bool], str]] = {
    "<=": (operator.le, "at most"),
    "<": (operator.lt, "less than"),
    "==": (operator.eq, "exactly"),
    ">=": (operator.ge, "at least"),
    ">": (operator.gt, "more than"),
}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_UNITS |= {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_LIMIT = re.compile(r"(<=|<|==|>=|>)?\s*(\d[\d_,]*(?:\.\d+)?)\s*([A-Za-z]*)")


@dataclass(frozen=True)
class Bound:
    """Bound a number. sign: one of `<=`, `<`, `==`, `>=`, `>`. said: the bound as the user wrote it."""

    sign: str
    bound: int
    said: str

    @staticmethod
    def read(what: str, value: object, units: bool) -> Bound:
        """Read a number or text such as `"<= 3 MiB"`. Raises UsageError, which names what it is about."""
        right = '"<= 3 MiB" or a number of bytes' if units else 'a number such as 2, or "== 2"'
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return Bound("<=", value, f"{value:,}{' bytes' if units else ''}")
        found = _LIMIT.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise UsageError(f"{what}: {value!r:.40} is no limit; {right} is right")
        sign, number, unit = found[1] or "<=", found[2].replace("_", "").replace(",", ""), found[3]
        if unit not in (_UNITS if units else {"": 1}):
            known = ", ".join(name for name in _UNITS if name) if units else "none"
            raise UsageError(f'{what}: no unit "{unit}"; there are {known}')
        bound = Fraction(number) * _UNITS[unit]
        if bound.denominator != 1:
            raise UsageError(f"{what}: {value!r:.40} is no whole number; {right} is right")
        size = f"{found[2]} {unit or 'bytes'}" if units else found[2]
        return Bound(sign, int(bound), size)

    def holds(self, number: int) -> bool:
        """Tell whether a number is within it."""
        return _SIGNS[self.sign][0](number, self.bound)

    def __str__(self) -> str:
        return f"{_SIGNS[self.sign][1]} {self.said}"


@dataclass
class Spent:
    """Count what programs took; see this file's docstring for the units."""

    nbytes: int = 0
    peak_bytes: int = 0
    compiles: int = 0
    collectives: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, Any]:
        """Return it with the keys of a budget."""
        return {
            "bytes": self.nbytes,
            "peak": self.peak_bytes,
            "compiles": self.compiles,
            "collectives": dict(sorted(self.collectives.items())),
        }


@dataclass(frozen=True)
class Excess:
    """Say what was not within a budget. what: a key, of a collective its name. ops: the collectives that count."""

    what: str
    line: str
    ops: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Budget:
    """Hold a limit for each thing that has one. collectives: by name; "" for all together."""

    nbytes: Bound | None = None
    peak: Bound | None = None
    compiles: Bound | None = None
    collectives: tuple[tuple[str, Bound], ...] = ()

    @staticmethod
    def of(given: Mapping[str, object], who: str) -> Budget:
        """Read a budget from its keys. Raises UsageError, after `who`, for what is none."""
        for key in given:
            if key not in KEYS:
                near = did_you_mean(key, KEYS) or f"; there are {', '.join(KEYS)}"
                raise UsageError(f'{who}: no limit is called "{key}"{near}')
        nbytes, peak, compiles = (
            None if (value := given.get(key)) is None else Bound.read(f"{who}: {key}", value, units)
            for key, units in zip(KEYS, (True, True, False))
        )
        counts = given.get("collectives")
        return Budget(
            nbytes,
            peak,
            compiles,
            () if counts is None else _collectives(counts, f"{who}: collectives"),
        )

    def exceeded(self, spent: Spent) -> list[Excess]:
        """Return what was not within the limits."""
        found = []
        if self.nbytes is not None and not self.nbytes.holds(spent.nbytes):
            line = f"bytes: the busiest rank receives {spent.nbytes:,} bytes, {self.nbytes} is expected"
            found.append(Excess("bytes", line, TALKING))
        for name, limit in self.collectives:
            count = spent.collectives[name] if name else sum(spent.collectives.values())
            if not limit.holds(count):
                what = name or "all together"
                line = f"collectives: {what} runs {count:,} times, {limit} is expected"
                found.append(Excess("collectives", line, (name,) if name else TALKING))
        if self.peak is not None and not self.peak.holds(spent.peak_bytes):
            line = f"peak: a rank holds {spent.peak_bytes:,} bytes, {self.peak} is expected"
            found.append(Excess("peak", line))
        if self.compiles is not None and not self.compiles.holds(spent.compiles):
            line = f"compiles: {spent.compiles:,} programs were made, {self.compiles} is expected"
            found.append(Excess("compiles", line))
        return found


def _collectives(given: object, who: str) -> tuple[tuple[str, Bound], ...]:
    if isinstance(given, int | str):
        return (("", Bound.read(who, given, False)),)
    if not isinstance(given, Mapping):
        raise UsageError(f'{who}: {given!r:.40}: a number, or {{"all_gather": 0}} is right')
    for name in given:
        if name not in TALKING:
            near = did_you_mean(str(name), TALKING) or f"; there are {', '.join(TALKING)}"
            raise UsageError(f'{who}: no collective is called "{name}"{near}')
    return tuple((n, Bound.read(f"{who}: {n}", limit, False)) for n, limit in given.items())


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a file of TOML. Raises UsageError, in a line, where it cannot be read."""
    try:
        found: dict[str, Any] = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: no TOML: {error}") from None
    return found


def read_budget(path: str | Path) -> Budget:
    """Read a budget from a file. Raises UsageError, which names the file, for what is none."""
    return Budget.of(read_toml(path), str(path))
