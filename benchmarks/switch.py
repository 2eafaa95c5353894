"""The gap of an upgrade beside that of the naive way: kill the driver, and submit it again by hand."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from benchmarks.memory import Sampler, supervisor_pid
from benchmarks.session import Session
from demos import gap
from demos.freshness import longest_pause
from demos.upgrade import JOB, until
from stack.layout import Layout
from streamops.model.records import Deployment
from streamops.operations.follow import spans
from streamops.operations.operation import Operation
from streamops.spark.submission import Submission
from streamops.spark.submitter import SparkSubmitter
from streamops.store import documents, keys
from streamops.versions import artifacts

STAGE = "avg_1s"  # the stage that both versions have
GOAL = 0.4


def run(session: Session, times: int, settle_s: float) -> dict[str, Any]:
    """Alternate: ours (v1 to v2), naive (v2 again), back to v1; then once without a standby."""
    runs = []
    peak: dict[str, Any] = {}
    for number in range(times):
        session.to_v1()
        time.sleep(settle_s)  # traffic between two measurements
        with Sampler(supervisor_pid(Layout.find().home)) as sampler:
            runs.append(ours(session, "ours"))
        if not peak or sampler.peak.total > peak["total"]:
            peak = {"total": sampler.peak.total, "pss": sampler.peak.pss, "processes": sampler.peak.processes}
        session.caught_up()
        time.sleep(settle_s)
        runs.append(naive(session))
        session.caught_up()
        print(
            f"{number + 1} of {times}: " + ", ".join(f"{r['kind']} {r['gap_s']:.1f} s" for r in runs[-2:]), flush=True
        )
    session.to_v1()
    time.sleep(settle_s)
    runs.append(ours(session, "cold", standby=False))
    session.caught_up()
    return {"runs": runs, "summary": summary(runs), "goal": GOAL, "memory_peak": peak}


def ours(session: Session, kind: str, **values: Any) -> dict[str, Any]:
    """One upgrade from v1 to v2."""
    operation, before, after = session.upgrade("v2", **values)
    found = session.demo.gaps(before, after, session.stages())
    return _measured(session, kind, found, _phases(operation))


def naive(session: Session) -> dict[str, Any]:
    """What someone without runbooks does: kill the running driver, and submit it again."""
    record, before, submitter = session.demo.record(), session.place(), SparkSubmitter(session.demo.settings)
    deployment = documents.read(session.demo.store, keys.deployment(JOB, record.deployment), Deployment)
    assert deployment is not None
    assert record.launch is not None
    version = artifacts.load_manifest(session.demo.store, JOB, deployment.value.version)
    status = session.status()
    drivers = submitter.master().drivers
    if len(drivers) != 1 or status is None:
        raise SystemExit(f"the naive way needs exactly one driver on the cluster; there are {len(drivers)}")
    begun = time.monotonic()
    submitter.end_driver(drivers[0].id)
    killed = time.monotonic()
    submitter.submit(
        Submission(
            job=JOB,
            version=deployment.value.version,
            deployment=deployment.value.number,
            launch=record.launch,
            artifact=version.archive,
            artifact_sha256=deployment.value.artifact_sha256,
            runtime_sha256=deployment.value.runtime_sha256,
            resources=version.definition.resources,
            spark=version.definition.spark_settings,
        )
    )
    submitted = time.monotonic()
    until(lambda: session.place().epoch > before.epoch, 180, "the driver that was submitted by hand does not take over")
    taken = time.monotonic()
    found = session.demo.gaps(before, session.place(), session.stages())
    phases = {"kill": killed - begun, "submit": submitted - killed, "start until it takes over": taken - submitted}
    return _measured(session, "naive", found, phases)


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians, and ours over naive."""
    found: dict[str, Any] = {}
    for kind in ("ours", "naive", "cold"):
        chosen = [run for run in runs if run["kind"] == kind]
        if chosen:
            found[kind] = {
                "runs": len(chosen),
                "gap_median_s": median(run["gap_s"] for run in chosen),
                "gap_worst_s": max(run["gap_s"] for run in chosen),
                "felt_median_s": median(run["felt_s"] or 0.0 for run in chosen),
                "felt_worst_s": max(run["felt_s"] or 0.0 for run in chosen),
                "phases_median_s": {
                    name: median(run["phases"].get(name, 0.0) for run in chosen) for name in chosen[0]["phases"]
                },
            }
    if "ours" in found and "naive" in found:
        found["ratio_gap"] = found["ours"]["gap_median_s"] / found["naive"]["gap_median_s"]
        found["ratio_felt"] = found["ours"]["felt_median_s"] / (found["naive"]["felt_median_s"] or 1.0)
    return found


def _measured(session: Session, kind: str, found: dict[str, gap.Gap], phases: dict[str, float]) -> dict[str, Any]:
    kept = found[STAGE]
    assert kept.last is not None
    assert kept.first is not None
    seen = session.watcher.seen(STAGE)
    until(
        lambda: session.watcher.seen(STAGE)[-1].seen_ms > kept.first.timestamp() * 1000 + 5000,  # type: ignore[union-attr]
        120,
        "no new point of avg_1s can be read after the switch",
    )
    seen = session.watcher.seen(STAGE)
    return {
        "kind": kind,
        "gap_s": kept.seconds,
        "gaps_s": {name: item.seconds for name, item in found.items()},
        "felt_s": longest_pause(seen, int(kept.last.timestamp() * 1000), int(kept.first.timestamp() * 1000)),
        "phases": {name: round(seconds, 3) for name, seconds in phases.items()},
    }


def _phases(operation: Operation) -> dict[str, float]:
    return {name: (end - start).total_seconds() for name, (start, end) in spans(operation).items() if end}
