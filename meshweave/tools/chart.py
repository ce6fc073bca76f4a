"""A picture of memory over a step, as SVG: one row of steps a curve, the peak marked and named."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain

WIDTH, HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 56, 64
_COLOURS = ("#9aa5b1", "#1f6feb", "#2da44e", "#bf8700")
_TICKS = 5


@dataclass(frozen=True)
class Curve:
    """Bytes while each op runs. labels: of the ops, one each, shown when pointed at."""

    name: str
    nbytes: Sequence[int]
    labels: Sequence[str]


def memory_chart(title: str, curves: Sequence[Curve]) -> str:
    """The SVG text. Each curve spans the whole width, however many ops it has: time is the share of the step."""
    top = max(chain.from_iterable(curve.nbytes for curve in curves), default=0) or 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="16">{escape(title)}</text>',
        *_axes(top),
    ]
    for number, curve in enumerate(curves):
        parts += _curve(curve, top, _COLOURS[number % len(_COLOURS)], number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def human_bytes(nbytes: float) -> str:
    """A number of bytes with three digits and a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.3g} {unit}"


def _y(nbytes: float, top: int) -> float:
    return HEIGHT - _BOTTOM - nbytes / top * (HEIGHT - _TOP - _BOTTOM)


def _axes(top: int) -> list[str]:
    lines = []
    for tick in range(_TICKS + 1):
        nbytes = top * tick / _TICKS
        y = _y(nbytes, top)
        lines.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e7eb"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{human_bytes(nbytes)}</text>'
        )
    lines.append(
        f'<text x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
        "ops of the step, in the order they run</text>"
    )
    return lines


def _curve(curve: Curve, top: int, colour: str, number: int) -> list[str]:
    if not curve.nbytes:
        return []
    width = (WIDTH - _LEFT - _RIGHT) / len(curve.nbytes)
    points, regions = [], []
    for k, nbytes in enumerate(curve.nbytes):
        x, y = _LEFT + k * width, _y(nbytes, top)
        points += [f"{x:.1f},{y:.1f}", f"{x + width:.1f},{y:.1f}"]
        hint = escape(f"{curve.labels[k]}: {human_bytes(nbytes)}")
        regions.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{HEIGHT - _BOTTOM - y:.1f}" '
            f'fill="{colour}" fill-opacity="0.12"><title>{hint}</title></rect>'
        )
    peak = max(range(len(curve.nbytes)), key=lambda k: curve.nbytes[k])
    x, y = _LEFT + (peak + 0.5) * width, _y(curve.nbytes[peak], top)
    name = escape(f"{curve.name}: peak {human_bytes(curve.nbytes[peak])} at {curve.labels[peak]}")
    return [
        *regions,
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>',
        f'<rect x="{_LEFT + 4}" y="{_TOP - 20 + 16 * number}" width="10" height="10" fill="{colour}"/>',
        f'<text x="{_LEFT + 20}" y="{_TOP - 11 + 16 * number}">{name}</text>',
    ]
