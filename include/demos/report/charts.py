"""Charts as SVG text: lines over time, and a timeline of steps. Colours follow the page, light or dark."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]

# Colours are variables of the page's CSS. matplotlib knows no variables: it draws with these, one for each.
_COLOURS = {name: f"#00000{at}" for at, name in enumerate(("ink", "soft", "line", "a", "b", "c", "mark"), 1)}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 8.5,
    "text.color": _COLOURS["ink"],
    "axes.facecolor": "none",
    **dict.fromkeys(("axes.spines.left", "axes.spines.right", "axes.spines.top", "legend.frameon"), False),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size", "legend.handlelength", "legend.handletextpad"), 0),
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.labelcolor"), _COLOURS["soft"]),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _COLOURS["line"]),
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "xaxis.labellocation": "right",
    "legend.labelcolor": "linecolor",
    "lines.solid_capstyle": "butt",
}
_WIDTH = 9.2  # inches, of which an SVG has 72 units each; the page scales the picture to its own width


@dataclass(frozen=True)
class Line:
    """One series; ``colour`` is a variable of the page. A pause longer than ``gap`` on x breaks the line."""

    name: str
    points: Points
    colour: str
    gap: float = math.inf
    width: float = 1.2


@dataclass(frozen=True)
class Panel:
    """Lines over a common y axis, which counts ``unit`` and begins at zero if ``zero`` says so."""

    title: str
    unit: str
    lines: Sequence[Line]
    zero: bool = False


@dataclass(frozen=True)
class Mark:
    """A span of x to point out, with words that a browser shows on it; ``start`` may equal ``end``."""

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
    colour: str = "a"


def panels(stack: Sequence[Panel], x: tuple[float, float], *, x_label: str, marks: Sequence[Mark] = ()) -> str:
    """Panels one below the other over a common x range; points outside it are left out."""
    with _drawing(1.65 * len(stack) + 0.35, len(stack)) as (figure, axes):
        for panel, at in zip(stack, axes, strict=True):
            for line in panel.lines:
                seen = [point for point in line.points if x[0] <= point[0] <= x[1]]
                drawn = at.plot(*_broken(seen, line.gap), _COLOURS[line.colour], lw=line.width, label=line.name)
                drawn[0].set_gid(_tooltip(line.name))
            at.legend(loc="lower right", bbox_to_anchor=(1, 0.97), ncols=len(panel.lines), borderpad=0)
            at.set_title(f"{panel.title} ({panel.unit})")
            at.yaxis.set_major_formatter(lambda value, _: number(value))
            at.locator_params(axis="y", nbins=5)
            at.grid(axis="y")
            at.set_ylim(bottom=0 if panel.zero else None)
            _mark(at, marks)
        axes[-1].set_xlim(x)
        _label_x(axes[-1], x_label)
        return _svg(figure, ", ".join(panel.title for panel in stack))


def timeline(bars: Sequence[Bar], *, title: str, x_label: str, marks: Sequence[Mark] = ()) -> str:
    """Steps one below the other, each as long as it took."""
    with _drawing(0.24 * len(bars) + 0.55) as (figure, (at,)):
        for row, bar in enumerate(bars):
            colour = _COLOURS[bar.colour]
            drawn = at.barh(row, bar.end - bar.start, 0.6, bar.start, color=colour, ec=colour)  # an edge shows also 0 s
            drawn[0].set_gid(_tooltip(f"{bar.label}: {bar.note}"))
            at.bar_label(drawn, [bar.note], padding=4, color=_COLOURS["soft"])
        at.set_yticks(range(len(bars)), [bar.label for bar in bars], color=_COLOURS["ink"])
        at.set_ylim(len(bars) - 0.5, -0.5)
        at.margins(x=0.08)
        _mark(at, marks)
        _label_x(at, x_label)
        return _svg(figure, title)


def number(value: float) -> str:
    """A number as short as it can be read."""
    if value == int(value):
        return f"{int(value):,}".replace("-", "\u2212")
    return f"{value:,.2f}".rstrip("0").replace("-", "\u2212")


@contextmanager
def _drawing(height: float, rows: int = 1) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    """A figure of some height in inches, with one set of axes below the other."""
    from matplotlib import rc_context  # takes a second to load, which only a command that draws should
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure((_WIDTH, height), layout="constrained")
        yield figure, list(figure.subplots(rows, sharex=True, squeeze=False)[:, 0])


def _broken(points: Points, gap: float) -> tuple[list[float], list[float]]:
    """x and y, with nothing in between where a pause is longer than ``gap``."""
    across: list[float] = []
    up: list[float] = []
    for x, y in points:
        if across and x - across[-1] > gap:
            across.append(math.nan)
            up.append(math.nan)
        across.append(x)
        up.append(y)
    return across, up


def _mark(at: Axes, marks: Sequence[Mark]) -> None:
    for mark in marks:
        at.axvspan(mark.start, mark.end, color=_COLOURS["mark"], alpha=0.35, gid=_tooltip(mark.label))


def _label_x(at: Axes, label: str) -> None:
    at.xaxis.set_major_formatter(lambda value, _: number(value))
    at.set_xlabel(label)


def _tooltip(text: str) -> str:
    """A name for an element by which ``_svg`` knows the words that a browser shows on it."""
    return f"tooltip {text}"


def _svg(figure: Figure, name: str) -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = re.sub(r'<g id="tooltip ([^"]*)">', r"<g><title>\1</title>", file.getvalue())
    for variable, colour in _COLOURS.items():
        text = text.replace(colour, f"var(--{variable})")
    return f'<svg role="img" aria-label="{escape(name)}" {text[text.index("<svg ") + 5 :]}'
