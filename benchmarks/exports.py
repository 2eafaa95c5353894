"""What a running job notices of live exports."""

from __future__ import annotations

import time
import uuid
from typing import Any

from benchmarks.checking import batch_spread, batches
from benchmarks.session import Session
from demos.upgrade import JOB
from streamops.cli import here
from streamops.model.owner import Owner
from streamops.operations.follow import request

MEASURED_S = 120.0
GOAL_P99 = 1.2


def run(session: Session, times: int) -> dict[str, Any]:
    """One export after the other beside v1: by the engine alone, then by the runbook in Airflow. Seconds, ms."""
    session.to_v1()
    settings, store = session.demo.settings, session.demo.store
    engine = here.engine(settings, store, say=lambda line: None)
    with batches(session) as undisturbed:
        time.sleep(MEASURED_S)  # the interval of the measurement
    took: list[float] = []

    def exported() -> None:
        name = uuid.uuid4().hex[:12]
        begun = time.monotonic()
        asked = request("snapshot_job", job=JOB, snapshot=f"bench-{name}")
        engine.run(asked, Owner(kind="cli", run_id=name, user="bench"), f"snapshot-{name}")
        took.append(round(time.monotonic() - begun, 2))

    with batches(session) as beside:
        until = time.monotonic() + MEASURED_S
        while time.monotonic() < until:
            exported()
    with batches(session) as in_airflow:
        for _ in range(times):
            asked = request("snapshot_job", job=JOB, snapshot=session.demo.free_name("Bench-"))
            session.runbooks.run(asked, session.demo.progress())
    kinds = {"undisturbed": undisturbed, "live exports": beside, "snapshot_job in Airflow": in_airflow}
    found = {name: batch_spread(durations) for name, durations in kinds.items()}
    return {
        "goal_p99": GOAL_P99,
        "exports": len(took),
        "seconds": {"median": sorted(took)[len(took) // 2], "worst": max(took)},
        "batch_ms": found,
        "p99_ratio": round(found["live exports"]["p99"] / found["undisturbed"]["p99"], 2),
        "runs": times,
        "p99_ratio_airflow": round(found["snapshot_job in Airflow"]["p99"] / found["undisturbed"]["p99"], 2),
    }
