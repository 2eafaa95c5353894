"""The report of the cluster's demo as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from demos.report import parts
from demos.report.charts import Bar, Line, Mark, Panel, number, panels, timeline

_X = "seconds from the beginning"


def page(report: Mapping[str, Any]) -> str:
    """The report as HTML.

    Args:
        report: what ``elasticity-report.json`` holds; times in epoch ms, durations in seconds.
    """
    origin = report["shown_from_ms"]
    x = (0.0, parts.rel(report["shown_to_ms"], origin))
    marks = [
        Mark(parts.rel(item["from_ms"], origin), parts.rel(item["to_ms"], origin), item["name"])
        for item in report["events"]
    ]
    sections = (
        _head(report),
        _cards(report),
        _prices(report, origin, x, marks),
        _lateness(report, origin, x, marks),
        _events(report, origin),
        _restart(report),
        parts.recount(report),
        parts.foot(report, "elasticity-report.json"),
    )
    return parts.document("StreamOps: the cluster", sections)


def _head(report: Mapping[str, Any]) -> str:
    proof = "Every event counts exactly once." if report["recount"]["clean"] else "The recount found differences."
    return (
        "<h1>A cluster was stopped, started, enlarged, hurt and made smaller under load</h1>"
        f'<p class="lead"><code>{escape(report["job"])}</code> {escape(report["version"])} worked on '
        f"{number(round(report['rate']['reached']))} trades a second meanwhile, and was never deployed again. "
        f"{proof}</p>"
    )


def _cards(report: Mapping[str, Any]) -> str:
    restart = report["restart"]
    found = [
        (
            number(restart["events"]),
            f"trades caught up with in {parts.seconds(restart['seconds'])} after the restart",
            "",
        )
    ]
    for item in report["events"]:
        if item["name"] != report["down"]:
            found.append((parts.seconds(item["pause_s"]), f"longest time without a new point: {item['name']}", ""))
    found.append((parts.seconds(report["quiet_pause_s"]), "the same while nothing happens", ""))
    return parts.cards([*found, parts.counted(report)])


def _prices(report: Mapping[str, Any], origin: int, x: tuple[float, float], marks: list[Mark]) -> str:
    stack = [
        Panel(symbol, "$", [Line("avg_1s", parts.line(points, origin, 0.01), "a", parts.BREAK_S)])
        for symbol, points in report["series"]["avg_1s"].items()
    ]
    return parts.figure(
        "Average prices of each second",
        "Shaded is what was done to the cluster. There is no hole: trades waited in Kafka, and the job continued from "
        "its own checkpoint each time.",
        panels(stack, x, x_label=_X, marks=marks),
    )


def _lateness(report: Mapping[str, Any], origin: int, x: tuple[float, float], marks: list[Mark]) -> str:
    points = [(parts.rel(at, origin), late) for at, late in report["series"]["lateness"]]
    return parts.figure(
        "How late a point is",
        "The time between the end of a second and the moment when its average could first be read from InfluxDB: what "
        "someone in front of a dashboard feels. It is long where no job could run, and comes back as it catches up.",
        panels(
            [Panel("Lateness", "s", [Line("avg_1s", points, "a", parts.BREAK_S)], zero=True)],
            x,
            x_label=f"window end, {_X}",
            marks=marks,
        ),
    )


def _events(report: Mapping[str, Any], origin: int) -> str:
    bars = [
        Bar(
            item["name"],
            parts.rel(item["from_ms"], origin),
            parts.rel(item["to_ms"], origin),
            parts.seconds(parts.rel(item["to_ms"], item["from_ms"])),
        )
        for item in report["events"]
    ]
    rows = "".join(
        f"<tr><td>{escape(item['name'])}</td><td>{escape(item['told'])}</td>"
        f"<td>{escape(', '.join(item['members']))}</td><td>{parts.seconds(item['pause_s'])}</td></tr>"
        for item in report["events"]
    )
    table = (
        "<table><tr><th>what</th><th>what came of it</th><th>members afterwards</th>"
        f"<th>longest time without a new point</th></tr>{rows}</table>"
    )
    return (
        parts.figure(
            "What was done",
            "Each bar is a runbook, or the time from a killed worker to the first new result.",
            timeline(bars, title="Operations on the cluster", x_label=_X),
        )
        + table
    )


def _restart(report: Mapping[str, Any]) -> str:
    restart = report["restart"]
    return (
        f"<h2>While the cluster was down</h2><p>{number(restart['unread'])} trades arrived that no one read, and no "
        f"new point appeared. After the restart the job read {number(restart['events'])} trades in "
        f"{parts.seconds(restart['seconds'])} until it had caught up.</p>"
    )
