"""Restore tests on the real servers: of a snapshot that does not continue rightly, and a run that is ended.

One that continues rightly is restored in ``test_runbooks_stack.py``.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fresh_job import FreshJob, wait_for
from runbooks import RUN_S, at_work, ended, log, mark_failed, run_to_end, states, working_job
from streamops import snapshots
from streamops.clients.airflow import Airflow
from streamops.model import records
from streamops.settings import Settings
from streamops.snapshots import marks
from streamops.spark import checkpoints
from streamops.store import jobs, keys
from streamops.upkeep import scratch
from support import Operator, pythons

pytestmark = pytest.mark.stack
NOW = {"days": 0, "restore": True, "restore_days": 0}


@pytest.fixture(scope="module")
def job(stack: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    """A job that has worked for a while, with a snapshot of each version: one with the cancel, and one live."""
    operator = Operator(stack)
    with working_job(stack, tmp_path_factory.mktemp("restore")) as job:
        operator.run("deploy_job", job.name, version="v1")
        job.caught_up(RUN_S)
        operator.run("snapshot_job", job.name, snapshot="of-v1", cancel=True)
        operator.run("deploy_job", job.name, version="v2", from_snapshot="of-v1")
        job.caught_up(RUN_S)
        operator.run("snapshot_job", job.name, snapshot="good")
        yield job


@pytest.fixture
def verification(stack: Settings, airflow: Airflow) -> Iterator[None]:
    """The runbook, which tests of other things switch off."""
    with at_work(stack, "verify_snapshots"):
        yield


def gone(job: FreshJob) -> bool:
    """Nothing of the scratch job runs or is published."""
    name = scratch.scratch_name(job.name)
    return jobs.record(job.store, name) is None and not pythons(name) and not list(job.store.list(keys.versions(name)))


def found(job: FreshJob, name: str) -> marks.Check | None:
    manifest = snapshots.load(job.store, job.name, name)
    return marks.checks(job.store, job.name, name, manifest.attempt).checks.get("restored")


def skipping(job: FreshJob, name: str, new: str, events: int) -> None:
    """A snapshot whose first stage continues some events later than its state: intact, signed and wrong."""
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


def verified(what: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [Path(sys.executable).with_name("streamops"), "snapshots", "verify", what]
    return subprocess.run([*command, "--restore"], capture_output=True, text=True, timeout=RUN_S, check=False)


@pytest.mark.long
def test_version_2_continues_what_version_1_was_cancelled_into(job):
    """The upgrade in two steps: nothing is lost of what continued, and what is new begins where the snapshot stands."""
    assert job.runs("v2")
    report = job.recount()
    assert report.clean, report.reason
    stood = snapshots.load(job.store, job.name, "of-v1").stages["avg_1s"].offsets
    begun = jobs.deployment(job.store, job.name, job.record().deployment).stages
    assert {name: start.since_deployment for name, start in begun.items()} == {"avg_1s": 1, "avg_1m": 2, "vol_1s": 2}
    assert [begun[name].offsets for name in ("avg_1m", "vol_1s")] == [stood, stood]
    assert {item.stage for item in report.measurements if item.expected} == set(begun)


@pytest.mark.long
def test_every_kept_snapshot_starts_and_what_continues_from_it_matches_the_recount(job, verification):
    """Fault 37, with the command that restores all of a job: of both versions, from a stop and live."""
    done = verified(job.name)
    assert done.returncode == 0, done.stderr
    for name in ("of-v1", "good"):
        check = found(job, name)
        assert check is not None
        assert (check.problem, " recounted, " in check.details) == ("", True)
    assert gone(job)
    assert job.runs("v2")


@pytest.mark.long
def test_a_snapshot_that_would_lose_events_is_found_out_only_by_restoring_it(airflow, job, verification):
    skipping(job, "good", "skips", 400)
    run = run_to_end(airflow, "verify_snapshots", {"job": job.name, **NOW})
    told = log(airflow, run, "test_restore", map_index=0)
    assert run.state == "failed", told
    assert states(airflow, run)["read_back"] == "success"  # every byte is what the manifest says
    check = found(job, "skips")
    assert check is not None, told
    assert "avg_1s" in check.problem
    assert "skips" in airflow.error(run.dag_id, run.run_id, "test_restore", map_index=0)
    command = [Path(sys.executable).with_name("streamops"), "snapshots", "list", job.name]
    assert "damaged" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert gone(job)
    assert job.runs("v2")


@pytest.mark.long
def test_a_run_that_is_ended_in_the_middle_leaves_nothing(airflow, job, verification):
    name = scratch.scratch_name(job.name)
    run = airflow.trigger("verify_snapshots", {"job": job.name, **NOW})
    wait_for(lambda: pythons(name), 360, "the scratch job's driver")
    mark_failed(airflow, run)
    assert ended(airflow, run).state == "failed"
    wait_for(lambda: gone(job), 360, "the end of the scratch job")
    assert job.runs("v2")
