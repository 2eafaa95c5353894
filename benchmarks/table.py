"""Writes the newest results into the tables of docs/performance.md, between their markers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.machine import RESULTS, load
from benchmarks.processor import JOB

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
GIB = 1 << 30


def write() -> list[str]:
    """Fill every table that has a result; returns the names of those filled."""
    text = DOCUMENT.read_text(encoding="utf-8")
    filled = []
    for name, make in TABLES.items():
        made = make()
        if made is None:
            continue
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, count = marked.subn(lambda found, made=made: f"{found[1]}{made}\n{found[2]}", text)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"{DOCUMENT.name} has no place for {name}: <!-- {name} --> ... <!-- /{name} -->")
        filled.append(name)
    DOCUMENT.write_text(text, encoding="utf-8")
    return filled


def machine() -> str | None:
    """What each result was measured on, and when."""
    results = [result for path in sorted(RESULTS.glob("*.json")) if (result := load(path.stem))]
    if not results:
        return None
    rows = [(result["name"], result["measured"][:10], *_about(result["machine"])) for result in results]
    return _table(("measured", "on", "processor", "cores", "memory", "system", "Python, Java"), rows)


def _about(machine: dict[str, Any]) -> tuple[Any, ...]:
    memory = f"{machine['memory_bytes'] / GIB:.1f} GiB"
    return (machine["cpu"], machine["cores"], memory, machine["system"], f"{machine['python']}, {machine['java']}")


def sustained() -> str | None:
    """Lateness, lag and processor time of each version, and what the upgrade to it was like."""
    result = load("sustained")
    if result is None:
        return None
    versions: dict[str, Any] = result["versions"]
    told = " and ".join(
        f"{item['rate']:,.0f} trades/s over {item['seconds'] / 60:.1f} minutes ({version})"
        for version, item in versions.items()
    )
    late = [
        (f"{version}, {name}", item["count"], f"{item['p50']:.2f}", f"{item['p99']:.2f}", f"{item['worst']:.2f}")
        for version, found in versions.items()
        for name, item in found["lateness"].items()
    ]
    lag = [
        (
            f"{version}, {stage}",
            f"{item['slope_rows_per_s']:+.1f}",
            f"{item['first_quarter']:,}",
            f"{item['last_quarter']:,}",
            f"{item['worst']:,}",
        )
        for version, found in versions.items()
        for stage, item in found["lag"].items()
    ]
    parts = sorted({part for found in versions.values() for part in found["cores"]})
    cores = [(part, *(f"{found['cores'].get(part, 0):.2f}" for found in versions.values())) for part in parts]
    whole = [(f"{sum(found['cores'].get(part, 0) for part in JOB):.2f}") for found in versions.values()]
    upgrades = [
        (
            f"to {version}",
            *(_seconds(found["upgrade"][key]) for key in ("seconds", "longest_pause_s", "worst_lateness_s")),
        )
        for version, found in versions.items()
    ]
    return "\n\n".join(
        (
            f"{told}.",
            _table(("lateness (s)", "windows", "p50", "p99", "max"), late),
            _table(("stage", "lag grows by (rows/s)", "lag, first quarter", "lag, last quarter", "worst"), lag),
            _table(("processor (cores)", *versions), [*cores, ("**the job**", *whole)]),
            _table(
                ("upgrade", "whole runbook (s)", "longest time without a new point (s)", "latest point (s)"), upgrades
            ),
        )
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def switch() -> str | None:
    """Ours beside the naive way, and the phases of ours."""
    result = load("switch")
    if result is None:
        return None
    found = result["summary"]
    names = {"ours": "upgrade_job with standby", "naive": "kill and submit by hand", "cold": "upgrade_job, no standby"}
    rows = [
        (
            names[kind],
            found[kind]["runs"],
            *(f"{found[kind][key]:.1f}" for key in ("gap_median_s", "gap_worst_s", "felt_median_s", "felt_worst_s")),
        )
        for kind in names
        if kind in found
    ]
    text = _table(("", "runs", "gap, median (s)", "gap, worst", "felt, median", "felt, worst"), rows)
    if "ratio_gap" in found:
        text += f"\n\nOurs over naive: {found['ratio_gap']:.2f} of the gap, {found['ratio_felt']:.2f} of what is felt "
        text += f"(wanted: at most {result['goal']})."
    if "ours" in found:
        phases = [(name, f"{seconds:.2f}") for name, seconds in found["ours"]["phases_median_s"].items()]
        text += "\n\n" + _table(("step of ours", "median (s)"), phases)
    return text


def strategies() -> str | None:
    """Each strategy: without a new point, and lateness, beside the minute before."""
    result = load("strategies")
    if result is None:
        return None
    took: dict[str, list[float]] = {}
    for item in result["runs"]:
        took.setdefault(item["strategy"], []).append(item["seconds"])
    told = "; ".join(
        f"`{strategy}` {len(seconds)} x, whole runbook {min(seconds):.0f} s"
        + (f" to {max(seconds):.0f} s" if len(seconds) > 1 else "")
        for strategy, seconds in took.items()
    )
    told += "".join(f"; `{item['strategy']}` once not: {item['reason']}" for item in result["failed"])
    head = ("", "without a new point (s)", "before", "latest point (s)", "before", "p99 (s)", "before")
    keys = ("upgrade_pause_s", "undisturbed_pause_s", "upgrade_worst", "undisturbed_worst", "upgrade_p99")
    rows = [
        (f"{strategy}, {name}", *(f"{item[key]:.1f}" for key in (*keys, "undisturbed_p99")))
        for strategy, found in result["summary"].items()
        for name, item in found.items()
    ]
    return f"{told}. Medians of the upgrades, and of the minute before each.\n\n{_table(head, rows)}"


def memory() -> str | None:
    """By part, steady, and the highest during an upgrade."""
    result = load("memory")
    if result is None:
        return None
    peak = (load("switch") or {}).get("memory_peak") or {}
    parts = sorted(result["pss"], key=lambda part: -result["pss"][part])
    rows = [(part, _gib(result["pss"][part]), _gib(peak.get("pss", {}).get(part))) for part in parts]
    rows.append(("**all**", _gib(result["total"]), _gib(peak.get("total"))))
    return _table(("GiB (PSS)", "steady", "highest during an upgrade"), rows)


def checks() -> str | None:
    """What checking and publishing take, and the job's batches meanwhile."""
    result = load("checks")
    if result is None:
        return None
    took = [
        (name, item["times"], f"{item['median']:.1f}", f"{item['worst']:.1f}")
        for name, item in result["seconds"].items()
    ]
    batches = [
        (name, *(item[key] for key in ("count", "p50", "p99", "worst"))) for name, item in result["batch_ms"].items()
    ]
    return (
        _table(("seconds", "times", "median", "worst"), took)
        + "\n\n"
        + _table(("batches of `avg_1s` (ms)", "batches", "p50", "p99", "max"), batches)
    )


def exports() -> str | None:
    """Live exports beside a job."""
    found = load("exports")
    if found is None:
        return None
    batches = [
        (name, *(item[key] for key in ("count", "p50", "p99", "worst"))) for name, item in found["batch_ms"].items()
    ]
    head = f"{found['exports']} live exports, one after the other, took {found['seconds']['median']:.2f} s each "
    head += f"(median; worst {found['seconds']['worst']:.2f} s). The p99 of the job's batches was meanwhile "
    head += f"{found['p99_ratio']:.2f} times that without (wanted: at most {found['goal_p99']}); beside "
    head += f"{found['runs']} runs of `snapshot_job` in Airflow, whose tasks start on the same two cores, "
    head += f"{found['p99_ratio_airflow']:.2f} times."
    return f"{head}\n\n{_table(('batches of `avg_1s` (ms)', 'batches', 'p50', 'p99', 'max'), batches)}"


def large_state() -> str | None:
    """The parts of a snapshot's life at about 1 GiB."""
    found = load("large-state")
    if found is None:
        return None
    first, second = found["first"], found["second"]
    rows = [
        ("first export", f"{first['seconds']:.1f}", _mib(first["copied"])),
        ("second export, after 1 % of the keys changed", f"{second['seconds']:.1f}", _mib(second["copied"])),
        ("a plain copy of the checkpoint through the client, at the first", f"{found['plain_copy_s']:.1f}", ""),
        ("the same at the second", f"{found['plain_copy_again_s']:.1f}", ""),
        ("restore", f"{found['restore_s']:.1f}", _mib(second["size"])),
        ("reading every byte back", f"{found['verify_s']:.1f}", _mib(second["size"])),
    ]
    tail = f"The second export over the first: {found['second_over_first_s']:.2f} of the time, "
    tail += f"{found['second_over_first_bytes']:.2f} of the bytes (wanted: at most {found['goal_second']})."
    title = f"{first['objects']} objects, {_mib(first['size'])} MiB"
    return f"{_table((title, 'seconds', 'MiB'), rows)}\n\n{tail}"


def in_a_row() -> str | None:
    """The first, the middle and the last of many upgrades."""
    result = load("in-a-row")
    if result is None or not result["looks"]:
        return None
    looks = result["looks"]
    shown = [(number, looks[number - 1]) for number in sorted({1, (len(looks) + 1) // 2, len(looks)})]
    kinds = [kind for kind in looks[0]["objects"] if any(look["objects"][kind] for look in looks)]
    rows: list[tuple[Any, ...]] = [
        ("whole runbook (s)", *(f"{look['seconds']:.0f}" for _, look in shown)),
        ("points compared by its recount, all right", *(f"{look['points']:,}" for _, look in shown)),
        ("memory of everything (GiB, PSS)", *(_gib(look["memory"]) for _, look in shown)),
        ("processes", *(look["processes"] for _, look in shown)),
        *((f"objects: {kind}", *(f"{look['objects'][kind]:,}" for _, look in shown)) for kind in kinds),
        ("object store on disk (MiB)", *(_mib(look["disk"]) for _, look in shown)),
    ]
    failed = "none failed" if not result["failed"] else f"{len(result['failed'])} failed: {'; '.join(result['failed'])}"
    head = ("after upgrade", *(str(number) for number, _ in shown))
    return f"{len(looks) + len(result['failed'])} upgrades, {failed}.\n\n{_table(head, rows)}"


def cluster() -> str | None:
    """A node more and a node less, a killed worker, an outage; what of it was measured."""
    rows: list[tuple[str, str]] = []
    if found := load("scale"):
        rows += [
            ("undisturbed: longest time without a new point", f"{found['quiet_pause_s']:.1f}"),
            ("scale-out from 2 to 3: the same", f"{found['scale_out_pause_s']:.1f}"),
            ("scale-in from 3 to 2, no driver on the leaving node: the same", f"{found['scale_in_pause_s']:.1f}"),
        ]
    for name, how in (
        ("kills", ""),
        ("live-kills", ", stages in real time (v3)"),
        ("second-driver", ", with `standby_driver: true`"),
    ):
        if found := load(name):
            kills = found["kills"]
            phases = {key: sorted(item["phases"][key] for item in kills)[len(kills) // 2] for key in kills[0]["phases"]}
            what = f"`kill -9` of the driver's worker{how}: first new point, median of {len(kills)}"
            rows += [
                (what, f"{found['median_s']:.1f}"),
                *((f"… of it, {key}", f"{s:.1f}") for key, s in phases.items()),
            ]
    if found := load("fleet-kills"):
        what = f"`kill -9` of the worker of the fleet's job, of three: beta continues, median of {len(found['kills'])}"
        reference = "{} to {}".format(*found["reference_s"])
        rows += [(what, f"{found['median_s']:.1f}"), ("… in the reference lab, as its document says", reference)]
    text = [_table(("", "seconds"), rows)] if rows else []
    if found := load("outage"):
        versions = ("v1", "v2")
        after = [
            ("from the trigger to the end of the runbook", *(f"{found[it]['seconds']:.1f}" for it in versions)),
            ("from the job's start to caught up", *(f"{found[it]['started_and_caught_up_s']:.1f}" for it in versions)),
            ("of it, processing", *(f"{found[it]['catch_up_s']:.1f}" for it in versions)),
            ("trades processed", *(f"{found[it]['events']:,}" for it in versions)),
            ("times the rate of arrival", *(f"{found[it]['times_the_rate']:.1f}" for it in versions)),
        ]
        text.append(_table(("restart after 60 s of outage (seconds)", *versions), after))
    return "\n\n".join(text) or None


def _mib(value: int) -> str:
    return f"{value / (1 << 20):,.0f}"


def _gib(value: int | None) -> str:
    return "" if value is None else f"{value / GIB:.2f}"


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    lines = [head, ("---", *("---:" for _ in head[1:])), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


TABLES = {
    "machine": machine,
    "sustained": sustained,
    "strategies": strategies,
    "switch": switch,
    "memory": memory,
    "checks": checks,
    "exports": exports,
    "large-state": large_state,
    "in-a-row": in_a_row,
    "cluster": cluster,
}
