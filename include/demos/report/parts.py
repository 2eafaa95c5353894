"""What the reports of all demos have in common. Everything comes from the report's JSON; nothing is fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from demos.report.charts import number

_CSS = Path(__file__).with_name("page.css")
BREAK_S = 2.5  # points come once a second: a longer pause in the data is drawn as one


def document(title: str, sections: Sequence[str]) -> str:
    """A whole page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_CSS.read_text()}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>"
    )


def cards(found: Sequence[tuple[str, str, str]]) -> str:
    """Big figures, each with a text and a style."""
    made = "".join(
        f'<div class="card {style}"><b>{escape(big)}</b><span>{escape(text)}</span></div>' for big, text, style in found
    )
    return f'<div class="cards">{made}</div>'


def counted(report: Mapping[str, Any]) -> tuple[str, str, str]:
    """The card of the recount."""
    recount = report["recount"]
    compared = sum(item["expected"] for item in recount["measurements"])
    off = sum(item["missing"] + item["wrong"] + item["unexpected"] for item in recount["measurements"])
    text = f"of {number(compared)} points, recounted from {number(recount['events'])} trades"
    return f"{number(off)} off", text, "" if recount["clean"] else "bad"


def recount(report: Mapping[str, Any]) -> str:
    """The proof."""
    found = report["recount"]
    rows = "".join(
        f"<tr><td>{escape(item['measurement'])}</td>"
        + "".join(f"<td>{number(item[key])}</td>" for key in ("expected", "missing", "wrong", "unexpected", "partial"))
        + "</tr>"
        for item in found["measurements"]
    )
    examples = "".join(f"<li>{escape(text)}</li>" for item in found["measurements"] for text in item["examples"])
    return (
        f"<h2>The proof</h2><p>The recount read {number(found['events'])} trades back from Kafka, computed every "
        "closed window again with code of its own, and compared the results with every point in InfluxDB.</p>"
        "<table><tr><th>measurement</th><th>expected</th><th>missing</th><th>wrong</th><th>unexpected</th>"
        f"<th>of them partial</th></tr>{rows}</table><p>{escape(found['reason'].capitalize())}.</p>"
        + (f"<ul>{examples}</ul>" if examples else "")
    )


def foot(report: Mapping[str, Any], data: str) -> str:
    """The parts of the story, and the machine.

    Args:
        data: name of the file with the numbers.
    """
    rows = "".join(
        f"<tr><td>{escape(step['name'])}</td><td>{seconds(step['seconds'])}</td></tr>" for step in report["story"]
    )
    machine = report["machine"]
    return (
        f"<h2>The whole story</h2><table><tr><th>part</th><th>took</th></tr>{rows}</table>"
        f"<p class='soft'>Made {escape(report['finished'])} on {machine['cores']} cores with "
        f"{size(machine['memory_bytes'])} of memory ({escape(machine['system'])}). The numbers behind every picture "
        f"are in <code>{data}</code> beside this page.</p>"
    )


def figure(title: str, text: str, picture: str) -> str:
    """A picture with its title and what it shows."""
    return f"<h2>{escape(title)}</h2><p>{escape(text)}</p><figure>{picture}</figure>"


def line(points: list[list[float]], origin: int, factor: float) -> list[tuple[float, float]]:
    """Points in epoch ms as seconds from an origin."""
    return [(rel(int(at), origin), value * factor) for at, value in points]


def rel(at_ms: float, origin_ms: float) -> float:
    """Epoch ms as seconds from an origin."""
    return (at_ms - origin_ms) / 1000


def seconds(value: float | None) -> str:
    """A duration as short as it can be read."""
    if value is None:
        return "\u2013"
    return f"{value:.1f} s" if value < 120 else f"{int(value) // 60} min {int(value) % 60} s"


def size(value: float | None) -> str:
    """A size as short as it can be read."""
    if value is None:
        return "\u2013"
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def clock(text: str | None) -> str:
    """The time of day."""
    return datetime.fromisoformat(text).strftime("%H:%M:%S.%f")[:-3] if text else "\u2013"
