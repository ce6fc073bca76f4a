"""What the sweep found: ratios, tables, and a picture with a strip for each family."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from math import exp, log, log10
from typing import Any

from benchmarks.operators.case import Case, Split

GOAL, CLIFF = 0.8, 1.5


@dataclass(frozen=True)
class Row:
    """A case as it was measured.

    seconds:  of `ours` on one rank, `jax` and `torch`, those that ran. two: of two ranks, by `dp` and `tp`.
    received: bytes of the busiest of two ranks. bound: the least there can be.
    wrong:    the largest difference from JAX over what is allowed. said: why it was refused or failed, or "".
    """

    family: str
    name: str
    seconds: dict[str, float] = field(default_factory=dict)
    two: dict[str, float] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    bound: dict[str, int] = field(default_factory=dict)
    wrong: float = 0.0
    said: str = ""

    @property
    def ratio(self) -> float | None:
        """The time to that of the best peer."""
        peers = [self.seconds[name] for name in ("jax", "torch") if name in self.seconds]
        return self.seconds["ours"] / min(peers) if peers and "ours" in self.seconds else None

    @property
    def shared(self) -> float | None:
        """The time on two ranks to that on one, the worse of the ways to cut it."""
        return max(self.two.values()) / self.seconds["ours"] if self.two else None

    @property
    def excess(self) -> int:
        """The bytes received beyond the bound, of the worse way."""
        return max((n - self.bound[way] for way, n in self.received.items()), default=0)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self) | {"ratio": self.ratio, "shared": self.shared}


def row_of(case: Case, answer: dict[str, Any]) -> Row:
    """Make a row of what the process that measures answered."""
    ways: dict[str, Split | None] = {"dp": case.dp, "tp": case.tp}
    refused = [
        f"{key[8:] or 'one rank'}: {text}"
        for key, text in answer.items()
        if key.startswith("refused")
    ]
    return Row(
        case.family,
        case.name,
        answer.get("seconds", {}),
        answer.get("two", {}),
        answer.get("received", {}),
        {way: split.bound for way, split in ways.items() if split},
        answer.get("error", 0.0),
        "; ".join([*refused, answer.get("fault", "")]).strip("; "),
    )


def mean(ratios: Iterable[float]) -> float:
    """Return the geometric mean."""
    found = [log(ratio) for ratio in ratios]
    return exp(sum(found) / len(found)) if found else float("nan")


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Sort rows: what failed, what is wrong, then by the ratio."""
    return sorted(rows, key=lambda r: (r.ratio is not None, r.wrong <= 1, -(r.ratio or 0.0)))


def cells(row: Row) -> tuple[str, ...]:
    """Return the cells of a row of the table."""

    def microseconds(name: str) -> str:
        return f"{row.seconds[name] * 1e6:,.0f}" if name in row.seconds else "-"

    ways = [
        f"{way} {nbytes:,} of {row.bound[way]:,}"
        for way, nbytes in row.received.items()
        if nbytes or row.bound[way]
    ]
    mark = f" (WRONG: {row.wrong:.1g} of what is allowed)" if row.wrong > 1 else ""
    return (
        f"{row.family}: {row.name}{mark}",
        f"{row.ratio:.2f}" if row.ratio else (row.said[:60] or "-"),
        f"{row.shared:.2f}" if row.shared else "-",
        ", ".join(ways) or "0",
        *(microseconds(name) for name in ("ours", "jax", "torch")),
    )


COLUMNS = ("case", "/ best peer", "two ranks / one", "bytes of bound", "us", "JAX us", "torch us")


FAMILY_COLUMNS = (
    "family",
    "cases",
    "refused",
    "geometric mean",
    f"above {CLIFF}",
    "worst",
    "beyond bound",
)


def summary(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return, for each family and for all, what FAMILY_COLUMNS say."""
    found = []
    for family in [*dict.fromkeys(row.family for row in rows), "all"]:
        of = [row for row in rows if family in (row.family, "all")]
        ratios = [row.ratio for row in of if row.ratio]
        worst = f"{max(ratios):.1f}" if ratios else "-"
        refused, beyond = sum(bool(row.said) for row in of), sum(row.excess > 0 for row in of)
        above = sum(ratio > CLIFF for ratio in ratios)
        counts = (f"{len(of)}", f"{refused}", f"{mean(ratios):.2f}", f"{above}", worst, f"{beyond}")
        found.append((family, *counts))
    return found


def markdown(rows: Sequence[Row], most: int) -> str:
    """Return the tables of a page: of families, and of the worst cases."""
    lines = [_line(FAMILY_COLUMNS), _line(("---", *("---:",) * 6)), *map(_line, summary(rows)), ""]
    lines += [_line(COLUMNS), _line(("---", *("---:",) * 6))]
    return "\n".join([*lines, *(_line(cells(row)) for row in worst_first(rows)[:most]), ""])


def _line(values: Sequence[str]) -> str:
    return f"| {' | '.join(value.replace('|', '/') for value in values)} |"


WIDTH, LEFT, STEP = 960, 130, 34
FROM, TO = -2.0, 3.0  # powers of ten


def picture(rows: Sequence[Row]) -> str:
    """Draw a strip for each family: a dot for each case at its time to the best peer's, as SVG."""
    families = list(dict.fromkeys(row.family for row in rows))
    height = STEP * len(families) + 90
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16">Time of one rank to that of the best of torch and JAX</text>',
    ]
    for power in range(int(FROM), int(TO) + 1):
        x = _x(10.0**power)
        label = f"{10.0**power:g}"
        parts.append(
            f'<line x1="{x}" x2="{x}" y1="40" y2="{height - 40}" stroke="{"#57606a" if not power else "#e4e7eb"}"/>'
        )
        parts.append(f'<text x="{x}" y="{height - 22}" text-anchor="middle">{label}</text>')
    for at, family in enumerate(families):
        y = 56 + STEP * at
        ratios = [(row.ratio, row.name) for row in rows if row.family == family and row.ratio]
        parts.append(f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(family)}</text>')
        parts += [_dot(ratio, y, name) for ratio, name in ratios]
        if ratios:
            x = _x(mean(ratio for ratio, _ in ratios))
            parts.append(
                f'<line x1="{x}" x2="{x}" y1="{y - 11}" y2="{y + 11}" stroke="#1f2328" stroke-width="2"/>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(ratio: float) -> float:
    place = (min(max(log10(ratio), FROM), TO) - FROM) / (TO - FROM)
    return round(LEFT + place * (WIDTH - LEFT - 30), 1)


def _dot(ratio: float, y: float, name: str) -> str:
    colour = "#2da44e" if ratio <= 1 else "#bf8700" if ratio <= CLIFF else "#cf222e"
    title = f"<title>{escape(name)}: {ratio:.2f}</title>"
    return f'<circle cx="{_x(ratio)}" cy="{y}" r="5" fill="{colour}" fill-opacity="0.55">{title}</circle>'
