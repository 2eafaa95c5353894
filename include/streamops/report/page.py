"""The demo's report as one self-contained page. Everything comes from the report's JSON; nothing is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from streamops.report.svg import Bar, Line, Mark, number, panel, timeline

_CSS = Path(__file__).with_name("page.css")
_X = "seconds from the switch"
_BREAK_S = 2.5  # points come once a second: a longer pause in the data is drawn as one


def page(report: Mapping[str, Any]) -> str:
    """The report as HTML.

    Args:
        report: what ``demo-report.json`` holds; times in epoch ms, durations in seconds.
    """
    upgrade = report["upgrade"]
    switch = upgrade["switch_ms"]
    x = (_rel(report["shown_from_ms"], switch), _rel(report["shown_to_ms"], switch))
    mark = Mark(0.0, _rel(upgrade["back_ms"], switch), "the switch: v1 asked to stop until v2 committed")
    sections = (
        _head(report),
        _cards(report),
        _prices(report, switch, x, mark),
        _volume(report, switch, x, mark),
        _lateness(report, switch, x, mark),
        _steps(report),
        _gaps(report),
        _recount(report),
        _foot(report),
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>StreamOps demo</title><style>{_CSS.read_text()}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>"
    )


def _head(report: Mapping[str, Any]) -> str:
    clean = report["recount"]["clean"]
    proof = "Every event counts exactly once." if clean else "The recount found differences: see below."
    return (
        "<h1>A running job was upgraded under load</h1>"
        f'<p class="lead"><code>{escape(report["job"])}</code> went from {escape(report["upgrade"]["from"])} to '
        f"{escape(report['upgrade']['to'])} through the named snapshot "
        f"<code>{escape(report['upgrade']['snapshot'])}</code> while "
        f"{number(round(report['rate']['reached']))} trades a second kept coming. {proof}</p>"
    )


def _cards(report: Mapping[str, Any]) -> str:
    upgrade, recount = report["upgrade"], report["recount"]
    compared = sum(item["expected"] for item in recount["measurements"])
    off = sum(item["missing"] + item["wrong"] + item["unexpected"] for item in recount["measurements"])
    rate = number(round(report["rate"]["reached"]))
    kept = [gap["seconds"] for gap in upgrade["gaps"].values() if gap["last"] and gap["seconds"] is not None]
    cards = [
        (f"{rate}/s", f"trades, of {number(report['rate']['asked'])} asked for", ""),
        (_seconds(max(kept, default=None)), "from the last commit of the old version to the first of the new one", ""),
        (_seconds(upgrade["longest_pause_s"]), "longest time without a new point of avg_1s, around the upgrade", ""),
        (_bytes(upgrade["snapshot_bytes"]), f"in snapshot {upgrade['snapshot']}", ""),
        (
            f"{number(off)} off",
            f"of {number(compared)} points, recounted from {number(recount['events'])} trades",
            "" if recount["clean"] else "bad",
        ),
    ]
    made = "".join(
        f'<div class="card {style}"><b>{escape(big)}</b><span>{escape(text)}</span></div>' for big, text, style in cards
    )
    return f'<div class="cards">{made}</div>'


def _prices(report: Mapping[str, Any], switch: int, x: tuple[float, float], mark: Mark) -> str:
    symbols = list(report["series"]["avg_1s"])
    panels = "".join(
        panel(
            [
                Line("avg_1s", _line(report["series"]["avg_1s"][symbol], switch, 0.01), "a", _BREAK_S),
                Line("avg_1m", _line(report["series"]["avg_1m"].get(symbol, []), switch, 0.01), "b", _BREAK_S),
            ],
            x,
            title=symbol,
            unit="$",
            marks=[mark],
            x_label=_X if symbol == symbols[-1] else "",
            height=190 if symbol == symbols[-1] else 164,
        )
        for symbol in symbols
    )
    return _figure(
        "Average prices across the upgrade",
        "The thin line is the average price of each second, which v1 and v2 both compute. It runs through the switch "
        "(shaded) without a hole: every second has its point, because the new version continued from the old one's "
        "state and the trades waited in Kafka. The thicker line is the average of the last minute, which only v2 "
        "computes. It begins where v2 began to count; its first minute covers less than sixty seconds of trades.",
        panels,
    )


def _volume(report: Mapping[str, Any], switch: int, x: tuple[float, float], mark: Mark) -> str:
    line = Line("vol_1s", _line(report["series"]["vol_1s"], switch, 1), "c", _BREAK_S)
    return _figure(
        "Traded volume per second, new in v2",
        "The number of shares traded in each second over all symbols. It appears with v2, with state of its own that "
        "started empty at the trade where the snapshot was taken. The first second is partial for that reason: it "
        "counts only the trades after that point, and the recount expects exactly those.",
        panel([line], x, title="All symbols", unit="shares", marks=[mark], zero=True, x_label=_X),
    )


def _lateness(report: Mapping[str, Any], switch: int, x: tuple[float, float], mark: Mark) -> str:
    spread = report["lateness"]
    line = Line("avg_1s", [(_rel(at, switch), late) for at, late in report["series"]["lateness"]], "a", _BREAK_S)
    numbers = (
        f"Apart from the upgrade, half of the points could be read within {spread['p50']:.1f} s of the end of "
        f"their second, and 99 of 100 within {spread['p99']:.1f} s. "
        if spread
        else ""
    )
    return _figure(
        "How late a point is",
        "The time between the end of a second and the moment when its average could first be read from InfluxDB, "
        "which is what somebody in front of a dashboard feels. "
        f"{numbers}The peak is the upgrade: points of the seconds in which no version was writing come all at once, "
        "as soon as the new one takes over.",
        panel([line], x, title="Lateness", unit="s", marks=[mark], zero=True, x_label=f"window end, {_X}"),
    )


def _steps(report: Mapping[str, Any]) -> str:
    steps = [step for step in report["upgrade"]["steps"] if step["started_ms"] and step["ended_ms"]]
    if not steps:
        return ""
    start = steps[0]["started_ms"]
    bars = [
        Bar(
            step["name"].replace("_", " "),
            _rel(step["started_ms"], start),
            _rel(step["ended_ms"], start),
            _seconds(_rel(step["ended_ms"], step["started_ms"])),
            "switch" if step["task"] == "switch" else "bar",
        )
        for step in steps
    ]
    return _figure(
        "What the upgrade did",
        "Each bar is a step of the runbook, as recorded before and after it ran. The new driver is started first and "
        "waits, warm, while the old version still works. Only the shaded steps lie between the old version's last "
        "write and the new version's first one.",
        timeline(bars, title="Steps of the upgrade", x_label="seconds from the request"),
    )


def _gaps(report: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{_clock(gap['last'])}</td><td>{_clock(gap['first'])}</td>"
        f"<td>{_seconds(gap['seconds'])}</td></tr>"
        for name, gap in report["upgrade"]["gaps"].items()
    )
    return (
        "<h2>The gap of each stage</h2><p class='soft'>From the last commit of the old version to the first of the new "
        "one. A stage that is new has no earlier commit.</p><table><tr><th>stage</th><th>last commit before</th>"
        f"<th>first commit after</th><th>gap</th></tr>{rows}</table>"
    )


def _recount(report: Mapping[str, Any]) -> str:
    recount = report["recount"]
    rows = "".join(
        f"<tr><td>{escape(item['measurement'])}</td>"
        + "".join(f"<td>{number(item[key])}</td>" for key in ("expected", "missing", "wrong", "unexpected", "partial"))
        + "</tr>"
        for item in recount["measurements"]
    )
    examples = "".join(f"<li>{escape(text)}</li>" for item in recount["measurements"] for text in item["examples"])
    return (
        f"<h2>The proof</h2><p>The recount read {number(recount['events'])} trades back from Kafka, computed every "
        "closed window again with code of its own, and compared the results with every point in InfluxDB.</p>"
        "<table><tr><th>measurement</th><th>expected</th><th>missing</th><th>wrong</th><th>unexpected</th>"
        f"<th>of them partial</th></tr>{rows}</table><p>{escape(recount['reason'].capitalize())}.</p>"
        + (f"<ul>{examples}</ul>" if examples else "")
    )


def _foot(report: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(step['name'])}</td><td>{_seconds(step['seconds'])}</td></tr>" for step in report["story"]
    )
    machine = report["machine"]
    return (
        f"<h2>The whole story</h2><table><tr><th>part</th><th>took</th></tr>{rows}</table>"
        f"<p class='soft'>Made {escape(report['finished'])} on {machine['cores']} cores with "
        f"{_bytes(machine['memory_bytes'])} of memory ({escape(machine['system'])}). The numbers behind every picture "
        "are in <code>demo-report.json</code> beside this page.</p>"
    )


def _figure(title: str, text: str, picture: str) -> str:
    return f"<h2>{escape(title)}</h2><p>{escape(text)}</p><figure>{picture}</figure>"


def _line(points: list[list[float]], switch: int, factor: float) -> list[tuple[float, float]]:
    return [(_rel(int(at), switch), value * factor) for at, value in points]


def _rel(at_ms: float, origin_ms: float) -> float:
    return (at_ms - origin_ms) / 1000


def _seconds(value: float | None) -> str:
    if value is None:
        return "\u2013"
    return f"{value:.1f} s" if value < 120 else f"{int(value) // 60} min {int(value) % 60} s"


def _bytes(value: float | None) -> str:
    if value is None:
        return "\u2013"
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def _clock(text: str | None) -> str:
    return datetime.fromisoformat(text).strftime("%H:%M:%S.%f")[:-3] if text else "\u2013"
