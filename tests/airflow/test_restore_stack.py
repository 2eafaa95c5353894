"""Restore tests on the real servers: a snapshot that continues rightly, one that does not, and a run that is ended."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fresh_job import FreshJob, wait_for
from runbooks import PATIENT, ended, log, mark_failed, run_to_end, states
from streamops import checkpoints, jobs, keys, records, scratch, snapshots
from streamops.adapters.airflow import Airflow
from streamops.adapters.influx import Points
from streamops.settings import Settings
from streamops.snapshots import marks
from support import pythons

pytestmark = [pytest.mark.stack, pytest.mark.full]
NOW = {"days": 0, "restore": True, "restore_days": 0}


@pytest.fixture(scope="module")
def job(stack: Settings, airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    """A job that has worked for a while, with a live snapshot."""
    job = FreshJob.publish(stack, tmp_path_factory.mktemp("restore"))
    with job.trades():
        assert run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v2", **PATIENT}).state == "success"
        job.caught_up()
        assert run_to_end(airflow, "snapshot_job", {"job": job.name, "snapshot": "good"}).state == "success"
        yield job
        run_to_end(airflow, "cancel_job", {"job": job.name})


@pytest.fixture
def verification(airflow: Airflow) -> Iterator[None]:
    """The runbook, which tests of other things switch off."""
    airflow._call("PATCH", "/api/v2/dags/verify_snapshots", json={"is_paused": False})
    yield
    airflow._call("PATCH", "/api/v2/dags/verify_snapshots", json={"is_paused": True})


def gone(job: FreshJob) -> bool:
    """Nothing of the scratch job runs or is published."""
    name = scratch.scratch_name(job.name)
    return jobs.record(job.store, name) is None and not pythons(name) and not list(job.store.list(keys.versions(name)))


def found(job: FreshJob, name: str) -> marks.Check | None:
    manifest = snapshots.load(job.store, job.name, name)
    return marks.checks(job.store, job.name, name, manifest.attempt).checks.get("restored")


def test_a_snapshot_is_restored_beside_its_job_continues_and_is_recounted(airflow, job, verification):
    before = job.record()
    run = run_to_end(airflow, "verify_snapshots", {"job": job.name, **NOW})
    told = log(airflow, run, "test_restore")
    assert run.state == "success", told
    check = found(job, "good")
    assert check is not None, told
    assert check.problem == ""
    assert "of 3 stages" in check.details
    assert int(check.details.split(" recounted, ")[1].split(" points")[0].replace(",", "")) > 20
    assert gone(job)
    assert not list(scratch_points(job))
    after = job.record()
    assert (after.launch, after.deployment, job.runs("v2")) == (before.launch, before.deployment, True)
    job.caught_up()
    assert job.recount().clean


def scratch_points(job: FreshJob) -> Iterator[object]:
    """What the job's restore tests left in InfluxDB."""
    points = Points(job.settings)
    try:
        rows = points.records(
            f'import "influxdata/influxdb/schema" schema.measurements(bucket: "{job.settings.influx_bucket}")'
        )
        own = re.compile(rf"scratch_[0-9a-f]{{8}}_{job.name.replace('-', '_')}_.*")
        for name in (row["_value"] for row in rows if own.fullmatch(row["_value"])):
            yield from points.read(name, 0, int(records.now().timestamp() * 1000), ("symbol",))
    finally:
        points.close()


def skipping(job: FreshJob, name: str, new: str, events: int) -> None:
    """A snapshot whose first stage goes on some events later than its state: intact, signed and wrong."""
    manifest = snapshots.load(job.store, job.name, name)
    stage = manifest.stages["avg_1s"]
    path = f"offsets/{stage.batch}"
    item = next(item for item in manifest.objects if (item.stage, item.path) == ("avg_1s", path))
    lines = job.store.get(item.key).body.decode().split("\n")
    for number, line in enumerate(lines[2:], 2):
        source, _, value = line.partition(":")
        topics = {
            topic: {part: at + events for part, at in parts.items()} for topic, parts in json.loads(value).items()
        }
        lines[number] = f"{source}:{json.dumps(topics)}"
    body = "\n".join(lines).encode()
    offsets, _ = checkpoints.parse_offsets(body.decode())
    key = f"{keys.snapshot_data(job.name, 'forged', 'avg_1s')}{path}"
    job.root.put(key, body)
    version = next(one.version_id for one in job.root.versions(key))
    forged = item.model_copy(
        update={"key": key, "size": len(body), "sha256": hashlib.sha256(body).hexdigest(), "version_id": version}
    )
    changed = manifest.model_copy(
        update={
            "name": new,
            "attempt": "forged",
            "created": records.now(),
            "stages": {**manifest.stages, "avg_1s": stage.model_copy(update={"offsets": offsets})},
            "objects": tuple(forged if one is item else one for one in manifest.objects),
        }
    )
    job.root.put(keys.manifest(job.name, new), changed.signed(job.store.keyring).model_dump_json().encode())


def test_a_snapshot_that_would_lose_events_is_found_out_only_by_restoring_it(airflow, job, verification):
    skipping(job, "good", "skips", 400)
    run = run_to_end(airflow, "verify_snapshots", {"job": job.name, **NOW})
    told = log(airflow, run, "test_restore")
    assert run.state == "failed", told
    assert states(airflow, run)["read_back"] == "success"  # every byte is what the manifest says
    check = found(job, "skips")
    assert check is not None, told
    assert "avg_1s" in check.problem
    assert "skips" in airflow.error(run.dag_id, run.run_id, "test_restore")
    command = [Path(sys.executable).with_name("streamops"), "snapshots", "list", job.name]
    assert "damaged" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert gone(job)
    assert job.runs("v2")


def test_a_run_that_is_ended_in_the_middle_leaves_nothing(airflow, job, verification):
    name = scratch.scratch_name(job.name)
    run = airflow.trigger("verify_snapshots", {"job": job.name, **NOW})
    wait_for(lambda: pythons(name), 360, "the scratch job's driver")
    mark_failed(airflow, run)
    assert ended(airflow, run).state == "failed"
    wait_for(lambda: gone(job), 360, "the end of the scratch job")
    assert job.runs("v2")
