"""The upgrade's report as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from demos.report import parts
from demos.report.charts import Bar, Line, Mark, Panel, number, panels, timeline
from demos.report.parts import BREAK_S

_X = "seconds from the switch"


def page(report: Mapping[str, Any]) -> str:
    """The report as HTML.

    Args:
        report: what ``demo-report.json`` holds; times in epoch ms, durations in seconds.
    """
    upgrade = report["upgrade"]
    switch = upgrade["switch_ms"]
    x = (parts.rel(report["shown_from_ms"], switch), parts.rel(report["shown_to_ms"], switch))
    marks = [Mark(0.0, parts.rel(upgrade["back_ms"], switch), "the switch: v1 asked to stop until v2 committed")]
    if report["takeover"]["operation"]:
        at = parts.rel(report["takeover"]["switch_ms"], switch)
        marks.append(Mark(at, at, "v3 took over while v2 ran"))
    sections = (
        _head(report),
        _cards(report),
        _prices(report, switch, x, marks),
        _volume(report, switch, x, marks),
        _lateness(report, switch, x, marks),
        _steps(report),
        _takeover(report["takeover"]),
        _gaps(report),
        parts.recount(report),
        parts.foot(report, "demo-report.json"),
    )
    return parts.document("StreamOps demo", sections)


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
    upgrade = report["upgrade"]
    rate = number(round(report["rate"]["reached"]))
    kept = [gap["seconds"] for gap in upgrade["gaps"].values() if gap["last"] and gap["seconds"] is not None]
    cards = [
        (f"{rate}/s", f"trades, of {number(report['rate']['asked'])} asked for", ""),
        (
            parts.seconds(max(kept, default=None)),
            "from the last commit of the old version to the first of the new one",
            "",
        ),
        (
            parts.seconds(upgrade["longest_pause_s"]),
            "longest time without a new point of avg_1s, around the upgrade",
            "",
        ),
        *_felt(report["takeover"]),
        (parts.size(upgrade["snapshot_bytes"]), f"in snapshot {upgrade['snapshot']}", ""),
        parts.counted(report),
    ]
    return parts.cards(cards)


def _prices(report: Mapping[str, Any], switch: int, x: tuple[float, float], marks: Sequence[Mark]) -> str:
    series = report["series"]
    stack = [
        Panel(
            symbol,
            "$",
            [
                Line("avg_1s", parts.line(points, switch, 0.01), "a", BREAK_S),
                Line("avg_1m", parts.line(series["avg_1m"].get(symbol, []), switch, 0.01), "b", BREAK_S, width=1.8),
            ],
        )
        for symbol, points in series["avg_1s"].items()
    ]
    return parts.figure(
        "Average prices across the upgrade",
        "The thin line is the average price of each second, which v1 and v2 both compute. It runs through the switch "
        "(shaded) without a hole: every second has its point, because the new version continued from the old one's "
        "state and the trades waited in Kafka. The thicker line is the average of the last minute, which only v2 "
        "computes. It begins where v2 began to count; its first minute covers less than sixty seconds of trades.",
        panels(stack, x, x_label=_X, marks=marks),
    )


def _volume(report: Mapping[str, Any], switch: int, x: tuple[float, float], marks: Sequence[Mark]) -> str:
    line = Line("vol_1s", parts.line(report["series"]["vol_1s"], switch, 1), "c", BREAK_S)
    return parts.figure(
        "Traded volume per second, new in v2",
        "The number of shares traded in each second over all symbols. It appears with v2, with state of its own that "
        "started empty at the trade where the snapshot was taken. The first second is partial for that reason: it "
        f"counts only the trades after that point, and the recount expects exactly those.{_slowed(report)}",
        panels([Panel("All symbols", "shares", [line], zero=True)], x, x_label=_X, marks=marks),
    )


def _slowed(report: Mapping[str, Any]) -> str:
    """Why the volume falls meanwhile, where fewer trades came on purpose: it looks as if some were lost."""
    slow = report["takeover"]["rate"]
    if slow > report["rate"]["reached"] / 2:
        return ""
    return (
        f" The step down is the demo's own: it slows the trades down to {number(round(slow))} a second while two "
        "versions run at once."
    )


def _lateness(report: Mapping[str, Any], switch: int, x: tuple[float, float], marks: Sequence[Mark]) -> str:
    spread = report["lateness"]
    line = Line("avg_1s", [(parts.rel(at, switch), late) for at, late in report["series"]["lateness"]], "a", BREAK_S)
    numbers = (
        f"Apart from the upgrade, half of the points could be read within {spread['p50']:.1f} s of the end of "
        f"their second, and 99 of 100 within {spread['p99']:.1f} s. "
        if spread
        else ""
    )
    beyond = " The mark beyond it is where v3 took over, whose results are in real time."
    return parts.figure(
        "How late a point is",
        "The time between the end of a second and the moment when its average could first be read from InfluxDB, "
        "which is what someone in front of a dashboard feels. "
        f"{numbers}The peak is the upgrade: points of the seconds in which no version was writing come all at once, "
        f"as soon as the new one takes over.{beyond if report['takeover']['operation'] else ''}",
        panels([Panel("Lateness", "s", [line], zero=True)], x, x_label=f"window end, {_X}", marks=marks),
    )


def _steps(report: Mapping[str, Any]) -> str:
    steps = [step for step in report["upgrade"]["steps"] if step["started_ms"] and step["ended_ms"]]
    if not steps:
        return ""
    start = steps[0]["started_ms"]
    bars = [
        Bar(
            step["name"].replace("_", " "),
            parts.rel(step["started_ms"], start),
            parts.rel(step["ended_ms"], start),
            parts.seconds(parts.rel(step["ended_ms"], step["started_ms"])),
            "mark" if step["task"] == "switch" else "a",
        )
        for step in steps
    ]
    return parts.figure(
        "What the upgrade did",
        "Each bar is a step of the runbook, as recorded before and after it ran. The new driver is started first and "
        "waits, warm, while the old version still works. Only the shaded steps lie between the old version's last "
        "write and the new version's first one.",
        timeline(bars, title="Steps of the upgrade", x_label="seconds from the request"),
    )


def _felt(taken: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The card of the upgrade without a gap."""
    if taken["operation"] is None:
        return []
    pause, alone = taken["pauses"]["avg_1s"], taken["undisturbed"]["avg_1s"]
    text = f"longest time without a new point of avg_1s as v3 took over; {parts.seconds(alone)} before, undisturbed"
    return [(parts.seconds(pause), text, "")]


def _takeover(taken: Mapping[str, Any]) -> str:
    """The upgrade without a gap: what someone at the chart felt."""
    lead = (
        "v3 computes the same in real time. It was started beside v2, read all that it needs without writing, and was "
        "then given the right to write; v2 was never asked to stop. "
        f"{number(round(taken['rate']))} trades a second came meanwhile."
    )
    if taken["operation"] is None:
        told = f"v3 did not take over, and v2 ran on as if nothing had been: {taken['reason']}"
        return f"<h2>The upgrade without a gap</h2><p class='soft'>{lead}</p><p>{escape(told)}</p>"
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{parts.seconds(taken['undisturbed'][name])}</td>"
        f"<td>{parts.seconds(pause)}</td></tr>"
        for name, pause in taken["pauses"].items()
    )
    late = taken["lateness"]
    after = (
        f"<p>In v3 half of the points of avg_1s could be read within {late['p50']:.2f} s of the end of their second, "
        f"and 99 of 100 within {late['p99']:.2f} s.</p>"
        if late
        else ""
    )
    return (
        f"<h2>The upgrade without a gap</h2><p class='soft'>{lead} The longest time without a new point:</p>"
        f"<table><tr><th>measurement</th><th>before, undisturbed</th><th>as v3 took over</th></tr>{rows}</table>{after}"
    )


def _gaps(report: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{parts.clock(gap['last'])}</td><td>{parts.clock(gap['first'])}</td>"
        f"<td>{parts.seconds(gap['seconds'])}</td></tr>"
        for name, gap in report["upgrade"]["gaps"].items()
    )
    return (
        "<h2>The gap of each stage</h2><p class='soft'>From the last commit of the old version to the first of the new "
        "one. A stage that is new has no earlier commit.</p><table><tr><th>stage</th><th>last commit before</th>"
        f"<th>first commit after</th><th>gap</th></tr>{rows}</table>"
    )
