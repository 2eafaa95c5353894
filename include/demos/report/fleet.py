"""The report of the fleet's demo as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from demos.report import parts
from demos.report.charts import Bar, Mark, number, timeline


def page(report: Mapping[str, Any]) -> str:
    """The report as HTML.

    Args:
        report: what ``fleet-report.json`` holds; durations in seconds.
    """
    sections = (_head(report), _cards(report), _kills(report), _cases(report), _recount(report))
    return parts.document("StreamOps: the fleet", (*sections, parts.foot(report, "fleet-report.json")))


def _head(report: Mapping[str, Any]) -> str:
    proof = "No ping is missing, of either fleet." if report["recount"]["clean"] else "The recount found differences."
    return (
        "<h1>Two fleets on a map, through killed nodes, updates and new shared code</h1>"
        f'<p class="lead"><code>{escape(report["job"])}</code> read {number(report["vehicles"])} vehicles from files '
        f"and from a web service meanwhile. {proof}</p>"
    )


def _cards(report: Mapping[str, Any]) -> str:
    counted, kills = report["recount"], report["kills"]
    off = counted["missing"] + counted["wrong"] + counted["unexpected"]
    low, high = report["reference_s"]
    return parts.cards(
        [
            (number(report["vehicles"]), "vehicles on the map", ""),
            (parts.seconds(kills["median_s"]), f"until beta continued (the reference lab: {low} to {high} s)", ""),
            (number(report["case_1"]["meantime"]), "pings of the meantime, logged at once after the update", ""),
            (number(sum(report["case_2"]["pings_with_codes"].values())), "pings with codes at the first look", ""),
            (f"{number(off)} off", f"of {number(counted['pings'])} pings", "" if counted["clean"] else "bad"),
        ]
    )


def _kills(report: Mapping[str, Any]) -> str:
    runs = report["kills"]["runs"]
    bars = [
        Bar(f"{at}. {item['node']}", 0.0, item["seconds"], parts.seconds(item["seconds"]))
        for at, item in enumerate(runs, 1)
    ]
    low, high = report["reference_s"]
    return parts.figure(
        "How long beta was away",
        "From kill -9 of the worker that hosted the job until the first newer ping of beta was a point. The job writes "
        f"every ten seconds. Shaded is what the reference lab says of its own: {low} to {high} s.",
        timeline(
            bars,
            title="Killed nodes",
            x_label="seconds from the kill",
            marks=[Mark(float(low), float(high), "the reference lab")],
        ),
    )


def _cases(report: Mapping[str, Any]) -> str:
    one, two = report["case_1"], report["case_2"]
    codes = " and ".join(f"{number(count)} of {escape(fleet)}" for fleet, count in two["pings_with_codes"].items())
    return (
        f"<h2>What changed while pings came</h2><p>A logging step was added from snapshot "
        f"<code>{escape(one['snapshot'])}</code>: {number(one['logged'])} pings were in the log at the first look, "
        f"{number(one['meantime'])} of them from the time in which no version ran. The step was removed again.</p>"
        f"<p>The shared library went from {escape(two['library'][0])} to {escape(two['library'][1])} with a restart of "
        f"the cluster; from then on pings carry codes, at the first look {codes}. The job's artifact is "
        f"<code>{escape(two['artifact_sha256'][0][:12])}</code> before and "
        f"<code>{escape(two['artifact_sha256'][1][:12])}</code> after.</p>"
    )


def _recount(report: Mapping[str, Any]) -> str:
    counted = report["recount"]
    examples = "".join(f"<li>{escape(text)}</li>" for text in counted["examples"])
    return (
        "<h2>The proof</h2><p>Both simulators keep a ledger of every ping that they gave out. Compared with the points "
        f"in InfluxDB: {number(counted['pings'])} pings, {number(counted['missing'])} missing, "
        f"{number(counted['wrong'])} wrong, {number(counted['unexpected'])} unexpected.</p>"
        + (f"<ul>{examples}</ul>" if examples else "")
    )
