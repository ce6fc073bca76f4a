"""Draw SVG pictures: the live bytes of a step op by op, with its peak named, and lines through points."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from meshweave.report import human_bytes

WIDTH, HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 84, 24, 84, 76
_PLOT = HEIGHT - _TOP - _BOTTOM
_COLOURS = ("#1f6feb", "#9aa5b1", "#2da44e", "#bf8700")
_MOST_TICKS = 6
_MOST_NAMES = 32  # ops whose source lines fit below the axis


@dataclass(frozen=True)
class Curve:
    """Hold the live bytes while each op runs.

    labels: of the ops, shown when pointed at. ticks: short names of the ops, for below the axis.
    """

    name: str
    nbytes: Sequence[int]
    labels: Sequence[str]
    ticks: Sequence[str] = field(default=())


def memory_chart(title: str, curves: Sequence[Curve]) -> str:
    """Return a chart as SVG. Each curve spans the whole width; the axis names the ops of the first curve."""
    step = _tick(max((n for curve in curves for n in curve.nbytes), default=0))
    top = step * max(1, -(-max((n for c in curves for n in c.nbytes), default=0) // step))
    parts = [*_frame(title), *_grid(top, step)]
    parts.append(_text(_middle(), HEIGHT - 14, "ops of the step, in the order they run", "middle"))
    for number in reversed(range(len(curves))):
        parts += _curve(curves[number], top, _COLOURS[number % len(_COLOURS)], number)
    if curves and len(curves[0].ticks) <= _MOST_NAMES:
        parts += _names(curves[0].ticks)
    return "\n".join([*parts, "</svg>"]) + "\n"


def line_chart(title: str, x: Sequence[int], y: Sequence[int], x_name: str, unit: str) -> str:
    """Return a chart as SVG: bytes `y` over whole numbers `x`, points joined by a line, each with its value."""
    step = _tick(max(y, default=0))
    top = step * max(1, -(-max(y, default=0) // step))
    span = max(x, default=1)
    places = [(_LEFT + a / span * (WIDTH - _LEFT - _RIGHT - 40), _y(b, top)) for a, b in zip(x, y)]
    parts = [*_frame(title), *_grid(top, step)]
    parts.append(_text(_middle(), HEIGHT - 14, x_name, "middle"))
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    parts.append(
        f'<polyline points="{points}" fill="none" stroke="{_COLOURS[0]}" stroke-width="1.5"/>'
    )
    free = -1.0
    for (a, b), number, nbytes in zip(places, x, y):
        said = escape(f"{number} {unit}: {human_bytes(nbytes)}")
        parts.append(
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.5" fill="{_COLOURS[0]}"><title>{said}</title></circle>'
        )
        if a > free:  # names that would cover each other are left to pointing
            parts.append(_text(a, HEIGHT - _BOTTOM + 18, str(number), "middle"))
            parts.append(_text(a, b - 10, human_bytes(nbytes), "middle"))
            free = a + 44
    return "\n".join([*parts, "</svg>"]) + "\n"


def _tick(most: int) -> int:
    """Return the distance of grid lines: the smallest power of two of which _MOST_TICKS reach `most`."""
    step = 1
    while step * _MOST_TICKS < most:
        step *= 2
    return step


def _middle() -> float:
    return (_LEFT + WIDTH - _RIGHT) / 2


def _y(nbytes: float, top: int) -> float:
    return HEIGHT - _BOTTOM - nbytes / top * _PLOT


def _text(x: float, y: float, said: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(said)}</text>'


def _frame(title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(_LEFT, 24, title, size=16),
    ]


def _grid(top: int, step: int) -> list[str]:
    lines = []
    for nbytes in range(0, top + 1, step):
        y = _y(nbytes, top)
        lines.append(
            f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e7eb"/>'
        )
        lines.append(_text(_LEFT - 8, y + 4, human_bytes(nbytes), "end"))
    return lines


def _names(ticks: Sequence[str]) -> list[str]:
    """Return the names below the axis."""
    width = (WIDTH - _LEFT - _RIGHT) / max(1, len(ticks))
    y = HEIGHT - _BOTTOM + 16
    return [_text(_LEFT + (k + 0.5) * width, y, tick, "middle", 10) for k, tick in enumerate(ticks)]


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
    said = f"{curve.name}: peak {human_bytes(curve.nbytes[peak])} in {curve.labels[peak]}"
    return [
        *regions,
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.5"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>',
        f'<rect x="{_LEFT}" y="{36 + 18 * number}" width="10" height="10" fill="{colour}"/>',
        _text(_LEFT + 16, 45 + 18 * number, said),
    ]
