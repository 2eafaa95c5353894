"""Small pictures as SVG text: line panels over time and a timeline of steps. Colours come from the page's CSS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]
Scale = Callable[[float], float]

WIDTH = 920
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 22, 34


@dataclass(frozen=True)
class Line:
    """One series; ``style`` is a CSS class of the page. A pause longer than ``gap`` on x breaks the line."""

    name: str
    points: Points
    style: str
    gap: float = math.inf


@dataclass(frozen=True)
class Mark:
    """A span of x to point out, with a word on it; ``start`` may equal ``end``."""

    start: float
    end: float
    label: str


@dataclass(frozen=True)
class Bar:
    """One row of a timeline."""

    label: str
    start: float
    end: float
    note: str
    style: str = "bar"


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover a range, about as many as asked for."""
    if not high > low:
        return [low]
    raw = (high - low) / max(1, about)
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def panel(
    lines: Sequence[Line],
    x: tuple[float, float],
    *,
    title: str,
    unit: str,
    marks: Sequence[Mark] = (),
    height: int = 190,
    zero: bool = False,
    x_label: str = "",
) -> str:
    """Lines over a common x range, with a title above and a label for each line.

    Args:
        x: the range that is shown; points outside it are left out.
        unit: what the y axis counts.
        zero: whether the y axis begins at zero.
        x_label: what the x axis counts; without it the panel has no x labels (for panels in a stack).
    """
    shown = [[point for point in line.points if x[0] <= point[0] <= x[1]] for line in lines]
    values = [value for points in shown for _, value in points] or [0.0, 1.0]
    low, high = (0.0 if zero else min(values)), max(values)
    margin = (high - low or abs(high) or 1.0) * 0.08
    low, high = (0.0 if zero else low - margin), high + margin
    bottom = height - (BOTTOM if x_label else 8)

    def across(value: float) -> float:
        return LEFT + (value - x[0]) / (x[1] - x[0] or 1) * (WIDTH - LEFT - RIGHT)

    def down(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - TOP)

    parts = [_open(height, title)]
    for mark in marks:
        parts.append(_mark(mark, across, bottom))
    for tick in ticks(low, high, 4):
        y = f"{down(tick):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(LEFT - 8, down(tick) + 4, number(tick), anchor="end"))
    parts.append(_x_axis(x, across, bottom, x_label))
    for line, points in zip(lines, shown, strict=True):
        path = _path(points, line.gap, across, down)
        parts.append(f'<path class="line {line.style}" d="{path}"><title>{escape(line.name)}</title></path>')
    parts.append(_text(LEFT, 13, title, "panel-title"))
    legend = WIDTH - RIGHT
    for line in reversed(lines):
        parts.append(_text(legend, 13, line.name, f"legend {line.style}", "end"))
        legend -= 8 * len(line.name) + 14
    parts.append(_text(LEFT - 8, 13, unit, anchor="end") + "</svg>")
    return "".join(parts)


def timeline(bars: Sequence[Bar], *, title: str, x_label: str, marks: Sequence[Mark] = ()) -> str:
    """Steps one below the other, each as long as it took."""
    row = 24
    height = TOP + row * len(bars) + BOTTOM
    bottom = height - BOTTOM
    left = 230
    low = min((bar.start for bar in bars), default=0.0)
    high = max((bar.end for bar in bars), default=1.0)

    def across(value: float) -> float:
        return left + (value - low) / (high - low or 1) * (WIDTH - left - 90)

    parts = [_open(height, title)]
    for mark in marks:
        parts.append(_mark(mark, across, bottom))
    parts.append(_x_axis((low, high), across, bottom, x_label))
    for index, bar in enumerate(bars):
        y = TOP + index * row
        width = max(2.0, across(bar.end) - across(bar.start))
        parts.append(_text(left - 10, y + 15, bar.label, "step", "end"))
        parts.append(
            f'<rect class="{bar.style}" x="{across(bar.start):.1f}" y="{y + 3}" width="{width:.1f}" height="{row - 8}" '
            f'rx="2"><title>{escape(bar.label)}: {escape(bar.note)}</title></rect>'
        )
        parts.append(_text(across(bar.start) + width + 6, y + 15, bar.note))
    parts.append("</svg>")
    return "".join(parts)


def number(value: float) -> str:
    """A number as short as it can be read."""
    if value == int(value):
        return f"{int(value):,}".replace("-", "\u2212")
    return f"{value:,.2f}".rstrip("0").replace("-", "\u2212")


def _open(height: int, title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'


def _text(x: float, y: float, text: str, style: str = "tick", anchor: str = "start") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _mark(mark: Mark, across: Scale, bottom: float) -> str:
    start, end = across(mark.start), across(mark.end)
    return (
        f'<rect class="mark" x="{start:.1f}" y="{TOP - 4}" width="{max(1.5, end - start):.1f}" '
        f'height="{bottom - TOP + 4:.1f}"><title>{escape(mark.label)}</title></rect>'
    )


def _x_axis(x: tuple[float, float], across: Scale, bottom: float, label: str) -> str:
    parts = [f'<line class="axis" x1="{across(x[0]):.1f}" x2="{across(x[1]):.1f}" y1="{bottom}" y2="{bottom}"/>']
    if label:
        for tick in ticks(*x, 8):
            parts.append(_text(across(tick), bottom + 15, number(tick), anchor="middle"))
        parts.append(_text(across(x[1]), bottom + 28, label, anchor="end"))
    return "".join(parts)


def _path(points: Points, gap: float, across: Scale, down: Scale) -> str:
    steps = []
    previous = None
    for at, value in points:
        word = "M" if previous is None or at - previous > gap else "L"
        steps.append(f"{word}{across(at):.1f} {down(value):.1f}")
        previous = at
    return "".join(steps)
