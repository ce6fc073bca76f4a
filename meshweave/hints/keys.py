"""Define hints as plain values: the keys, the values they take, and which of several hints applies.

A hint is a key, a value and a strength, attached to a region. An op lies in a chain of nested regions; `resolve` says
which hint of each key holds for it and which are superseded.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshweave.errors import CompileError

REQUIRED, PREFERRED, ADVISORY = "required", "preferred", "advisory"
STRENGTHS = (REQUIRED, PREFERRED, ADVISORY)


class HintError(CompileError):
    """Report a hint that cannot be read, contradicts another, or is required and cannot be obeyed."""


@dataclass(frozen=True)
class TimeAxis:
    """Describe an axis of slices that run one after the other.

    `t=8` is 8 slices, `t:64` slices of 64 elements, `t` leaves the number open. count: number of slices, None where
    the size is given; size: elements of a slice along the dim.
    """

    name: str
    count: int | None = None
    size: int | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether the number of slices is left to choose."""
        return self.count is None and self.size is None

    def __str__(self) -> str:
        if self.is_open:
            return self.name
        return f"{self.name}={self.count}" if self.count is not None else f"{self.name}:{self.size}"


@dataclass(frozen=True)
class SliceOrder:
    """State the order in which slices run, and the bundles that the region runs before or after."""

    schedule: str | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True)
class Numerics:
    """State how far results may move: `bit_exact`, `deterministic`, or within rtol and atol.

    `bit_exact` holds for every number of slices and ranks, since sums of floats that these would cut are refused.
    """

    kind: str
    rtol: float = 0.0
    atol: float = 0.0


LAST_STREAM = 15
"""The highest number that a stream may have."""

SCHEDULES = ("dfs", "bfs", "strict")
_NUMBER = r"[0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?"
_TOLERANCE = re.compile(rf"tol\(\s*({_NUMBER})\s*,\s*({_NUMBER})\s*\)")
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "kB": 10**3, "MB": 10**6}


def _refused(key: str, value: object, right: str) -> HintError:
    return HintError(f'hint {key} = "{value}": {right}')


def _slice(text: str) -> tuple[TimeAxis, ...]:
    axes = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*(?:([=:])\s*([0-9]{1,9})\s*)?", part)
        if found is None or found[1] == "_" or (found[3] and int(found[3]) < 1):
            raise _refused(
                "slice", text, "NAME=COUNT, NAME:SIZE, at least 1, or NAME, as in t=8, t:64 or t"
            )
        number = int(found[3]) if found[3] else None
        axes.append(TimeAxis(found[1], *((number, None) if found[2] != ":" else (None, number))))
    names = [axis.name for axis in axes]
    if len(set(names)) != len(names):
        raise _refused("slice", text, "an axis is named once")
    return tuple(axes)


def _order(text: str) -> SliceOrder:
    schedule: str | None = None
    before: list[str] = []
    after: list[str] = []
    for part in (p.strip() for p in text.split(",")):
        found = re.fullmatch(r"(before|after)=@([A-Za-z_]\w*)", part)
        if found is not None:
            (before if found[1] == "before" else after).append(found[2])
        elif part in SCHEDULES and schedule is None:
            schedule = part
        else:
            raise _refused(
                "order", text, "one of dfs, bfs, strict, and before=@BUNDLE or after=@BUNDLE"
            )
    return SliceOrder(schedule, tuple(before), tuple(after))


def _integer(key: str, least: int, most: int | None = None) -> Callable[[str], int]:
    right = f"a number, at least {least}" + (f", at most {most}" if most is not None else "")

    def parse(text: str) -> int:
        number = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else least - 1
        if number < least or (most is not None and number > most):
            raise _refused(key, text, right)
        return number

    return parse


def _bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,18})\s*([A-Za-z]*)", text)
    if found is None or found[2] not in _UNITS or int(found[1]) < 1:
        raise _refused("peak_bytes", text, f"a number of {', '.join(u for u in _UNITS if u)}")
    return int(found[1]) * _UNITS[found[2]]


def _one_of(key: str, *words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise _refused(key, text, f"one of {', '.join(words)}")
        return text

    return parse


def _bundle(text: str) -> str:
    if not text.isidentifier():
        raise _refused("bundle", text, "an identifier")
    return text


def _kernels(text: str) -> tuple[tuple[str, bool], ...]:
    """Parse `-flash +blas` into (kernel, enabled) pairs, in order."""
    switches = []
    for word in text.split():
        if not re.fullmatch(r"[+-][A-Za-z_]\w*", word):
            raise _refused("kernels", text, "names with + or -, as in -flash +blas")
        switches.append((word[1:], word[0] == "+"))
    if not switches or len({name for name, _ in switches}) != len(switches):
        raise _refused("kernels", text, "at least one kernel, each once")
    return tuple(switches)


def _numerics(text: str) -> Numerics:
    if text in ("bit_exact", "deterministic"):
        return Numerics(text)
    found = _TOLERANCE.fullmatch(text)
    if found is None:
        raise _refused("numerics", text, "bit_exact, deterministic or tol(RTOL, ATOL)")
    return Numerics("tol", float(found[1]), float(found[2]))


@dataclass(frozen=True)
class Key:
    """Describe a key: how its value is read, its default strength, and whether inner regions inherit it.

    A key that is not inherited is about the region itself: an inner region's hint adds to it instead of replacing it.
    """

    parse: Callable[[str], Any]
    strength: str
    inherited: bool = True


KEYS: dict[str, Key] = {
    "slice": Key(_slice, REQUIRED, inherited=False),
    "order": Key(_order, PREFERRED),
    "width": Key(_integer("width", 1), PREFERRED),
    "peak_bytes": Key(_bytes, REQUIRED, inherited=False),
    "stream": Key(_integer("stream", 0, LAST_STREAM), ADVISORY),
    "bundle": Key(_bundle, ADVISORY, inherited=False),
    "fuse": Key(_one_of("fuse", "must", "may", "never"), ADVISORY),
    "kernels": Key(_kernels, PREFERRED, inherited=False),
    "numerics": Key(_numerics, REQUIRED),
    "overlap": Key(_one_of("overlap", "none", "auto"), PREFERRED),
    "again": Key(_one_of("again", "checkpoint"), PREFERRED, inherited=False),
}
"""All keys; any other is an error, so that a misspelt hint is never lost."""

_OBEYED = frozenset(
    {"kernels", "numerics", "slice", "order", "width", "bundle", "fuse", "peak_bytes", "overlap"}
)
TARGETS: dict[str, frozenset[str]] = {"cpu": _OBEYED, "gpu": _OBEYED | {"stream"}}
"""The keys each target can obey; a new capability adds its key here."""


@dataclass(frozen=True)
class Hint:
    """Hold one hint: a key, its value as text, how strong it is, and where its region is in the source."""

    key: str
    value: str
    strength: str
    where: str = ""

    @staticmethod
    def make(key: str, value: object, strength: str | None = None, where: str = "") -> "Hint":
        """Make a hint after checking its key, value and strength. Raises HintError naming what is wrong."""
        if key not in KEYS:
            raise HintError(f'unknown hint "{key}": known are {", ".join(KEYS)}')
        if strength is not None and strength not in STRENGTHS:
            raise HintError(f'hint {key}: strength "{strength}" is none of {", ".join(STRENGTHS)}')
        text = str(value)
        parsed = KEYS[key].parse(text)
        if strength is None:
            disables = key == "kernels" and any(not on for _, on in parsed)
            strength = REQUIRED if disables else KEYS[key].strength
        return Hint(key, text, strength, where)

    @property
    def parsed(self) -> Any:
        """Return the value as its key reads it."""
        return KEYS[self.key].parse(self.value)

    def __str__(self) -> str:
        return f'{self.key} = "{self.value}"'


def supports(target: str, key: str) -> bool:
    """Tell whether `target` can obey `key`. Raises HintError for an unknown target."""
    if target not in TARGETS:
        raise HintError(f'no target "{target}"; there are {", ".join(TARGETS)}')
    return key in TARGETS[target]


@dataclass(frozen=True)
class Resolved:
    """State which hints hold for an op: by key, its number in the chain; and which hint supersedes which."""

    effective: Mapping[str, int]
    superseded: Mapping[int, int]


def resolve(chain: Sequence[Hint], depth: Sequence[int]) -> Resolved:
    """Decide which hints of `chain` hold, and which are superseded by which.

    depth: for each hint, the depth of its region: 0 for a compile option, 1 for the outermost region, and so on.
    Required beats inner, inner beats outer. Raises HintError for two required hints of one key that differ, naming
    both places.
    """
    effective: dict[str, int] = {}
    superseded: dict[int, int] = {}
    for key in KEYS:
        mine = [i for i, hint in enumerate(chain) if hint.key == key]
        if not mine:
            continue
        ranked = sorted(mine, key=lambda i: (chain[i].strength != REQUIRED, -depth[i]))
        if not KEYS[key].inherited:
            effective[key] = max(mine, key=lambda i: depth[i])
            continue
        effective[key] = best = ranked[0]
        for other in ranked[1:]:
            _agree(chain[best], chain[other])
            superseded[other] = best
    return Resolved(effective, superseded)


def _agree(one: Hint, other: Hint) -> None:
    if one.strength == other.strength == REQUIRED and one.parsed != other.parsed:
        raise HintError(
            f"{one} at {one.where} and {other} at {other.where} are both required: "
            "make one of them preferred, or give both one value"
        )
