"""The runbooks on the real servers, as Airflow runs them: what the story of 'make test' does not tell.

One job serves all tests; each begins with the job running, whatever the one before left.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from pydantic import SecretStr

from fresh_job import FreshJob, publish_quickly, wait_for, with_ledger
from runbooks import (
    PATIENT,
    RUN_S,
    answered,
    at_work,
    clear,
    ended,
    free,
    housekept,
    log,
    mark_failed,
    operation,
    run_to_end,
    states,
    stop,
    working_job,
)  # fmt: skip
from secrecy import left_by_operations, secrets_of, shown
from stack import lifecycle, ready
from stack.layout import Layout
from stack.programs import AIRFLOW
from streamops import snapshots
from streamops.clients.airflow import Airflow, Run
from streamops.clients.influx import Points
from streamops.model import records
from streamops.model.definitions import load
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.records import FINAL, Deployment
from streamops.operations import rehearsals
from streamops.operations.engine import list_operations
from streamops.operations.follow import Runbooks
from streamops.operations.operation import Operation
from streamops.operations.receipts import Receipt
from streamops.operations.runbooks import RUNBOOKS
from streamops.recount.recounting import recount_job
from streamops.settings import BucketSettings, Settings, read_pairs
from streamops.snapshots import marks
from streamops.spark import priority
from streamops.store import documents, jobs, keys
from streamops.store.object_store import ObjectStore
from streamops.upkeep import scheduled, scratch
from streamops.versions import artifacts
from streamops_runtime import validate
from streamops_runtime.local import local_spark
from support import Operator, Servers, executors, first_members, of_launch, pythons, silent, wait_works

pytestmark = [pytest.mark.stack, pytest.mark.full]
BACK = {**PATIENT, "probation_s": 5, "accept_loss": ["avg_1m", "vol_1s"]}  # v1 has no such stages
COLD = {**BACK, "standby": False}  # where the warm-up is not what is looked at
BY_ITSELF = "snapshots: {every: 5 minutes, keep: {last: 2}}\n"


@pytest.fixture(scope="module")
def job(stack: Settings, airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    first_members(Operator(stack))
    with working_job(stack, tmp_path_factory.mktemp("job"), BY_ITSELF) as job:
        yield job


@pytest.fixture(autouse=True)
def calm(job: FreshJob) -> None:
    """What a test that failed began is over: the next one would only be told that the job is busy."""
    wait_for(lambda: free(job), RUN_S, f"the end of what works on {job.name}")


@pytest.fixture
def running(airflow: Airflow, job: FreshJob) -> FreshJob:
    """The job at work, in v2 at first."""
    record = job.record()
    if not record.deployment:
        run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v2", **PATIENT})
    elif record.desired != "running":
        run_to_end(airflow, "start_job", {"job": job.name, **PATIENT})
    wait_works(job, RUN_S)
    job.caught_up(RUN_S)
    return job


def exact(job: FreshJob) -> None:
    """Every event so far counts once, and one driver works."""
    wait_works(job, RUN_S)
    job.caught_up(RUN_S)
    report = job.recount()
    assert report.clean, report.reason
    wait_for(lambda: len(pythons(job.name)) == 1, RUN_S, "one driver only")
    assert free(job)


@pytest.mark.parametrize(
    "bad", [{}, {"job": "Bad Name"}, {"job": "a", "version": "../v1"}, {"job": "a", "version": ""}]
)
def test_bad_values_are_refused_before_there_is_a_run(airflow, bad):
    for runbook in ("deploy_job", "upgrade_job"):
        with pytest.raises(RefusedError, match="refused the request"):
            airflow.trigger(runbook, bad)


def test_deploying_what_runs_changes_nothing(airflow, running):
    before = running.record()
    run = run_to_end(airflow, "deploy_job", {"job": running.name, "version": before.version, **PATIENT})
    assert run.state == "success"
    after = running.record()
    assert (after.launch, after.deployment) == (before.launch, before.deployment)


def test_a_run_marked_failed_before_its_first_task_is_failed_and_holds_nothing(airflow, running):
    before = running.record()
    run = airflow.trigger("cancel_job", {"job": running.name})
    mark_failed(airflow, run)
    assert ended(airflow, run).state == "failed"
    assert states(airflow, run)["finish"] != "success"
    assert free(running)
    assert running.record() == before


NOT_CONTINUED = {
    "renamed": ({"avg_1s": "second"}, "name the stages in accept_loss: avg_1s", ["avg_1m", "vol_1s"]),
    "sessions": ({'F.window("time", "1 second"), "symbol"': 'F.session_window("time", "1 second"), "symbol"',
                  '"window.end"': '"session_window.end"'}, "became a session window", ["avg_1m", "vol_1s"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def not_continued(job: FreshJob) -> None:
    """Versions of v1 whose code or definition differs, with what Spark makes of them."""
    with local_spark() as spark:
        for version, (changes, _, _) in NOT_CONTINUED.items():
            directory = copied(job, version, changes)
            found = validate.fingerprints(spark, load(directory / f"{version}.yaml"), directory)
            publish_quickly(job.store, directory, version, plan=found)


def copied(job: FreshJob, version: str, changes: dict[str, str]) -> Path:
    """A copy of v1 under another name, with changes in its code and definition."""
    directory = job.directory.parent / version
    directory.mkdir()
    for name, target in (("trade_analyser.py", "trade_analyser.py"), ("v1.yaml", f"{version}.yaml")):
        text = (job.directory / name).read_text().replace("version: v1", f"version: {version}")
        for old, new in changes.items():
            text = text.replace(old, new)
        (directory / target).write_text(text)
    return directory


@pytest.mark.parametrize(
    "version", [pytest.param(name, marks=() if name == "sessions" else pytest.mark.long) for name in NOT_CONTINUED]
)
def test_state_that_cannot_be_continued_is_refused_before_anything_is_touched(airflow, running, not_continued, version):
    job = running
    _, reason, accepted = NOT_CONTINUED[version]
    before = job.record()
    run = run_to_end(airflow, "upgrade_job", {"job": job.name, "version": version, "accept_loss": accepted})
    assert run.state == "failed"
    assert reason in airflow.error(run.dag_id, run.run_id, "check")
    assert "Verdict on avg_1s" in log(airflow, run, "check")
    assert states(airflow, run)["prepare"] == "upstream_failed"
    assert job.record() == before
    assert free(job)
    assert job.runs(before.version)


# --- what is done in a second or two


def test_a_command_pauses_a_job_and_settles_what_airflow_does_not_know_through_airflow(airflow, running, stack):
    job = running
    assert "is paused" in succeeded(streamops("jobs", "pause", job.name))
    assert job.record().paused
    asked, owner, name = Operator(stack).request("cancel_job", job.name)
    Operator(stack).engine().begin(asked, owner, name)  # for a run that there never was
    held = streamops("jobs", "resume", job.name)
    assert held.returncode == 1
    assert name in held.stderr
    assert f"{name}: aborted (left as it is by {stack.airflow_user}: a test" in succeeded(
        streamops("operations", "abort", name, "--leave-as-is", "--reason", "a test")
    )
    assert "is started again by itself" in succeeded(streamops("jobs", "resume", job.name))
    assert not job.record().paused
    last = {item.request.runbook: item for item in list_operations(job.store, job.name)}
    for runbook in ("pause_job", "settle_operation"):
        assert (last[runbook].owner.dag_id, last[runbook].owner.user) == (runbook, stack.airflow_user)
    assert free(job)


# --- what runs by itself


def receipts(job: FreshJob, runbook: str) -> list[Receipt]:
    every = documents.every(job.store, keys.receipts(job.name), Receipt)
    return [receipt for receipt in every if receipt.runbook == runbook]


def test_retention_removes_the_surplus_and_keeps_what_is_pinned(airflow, running):
    job = running
    with at_work(job.settings, "apply_retention"):
        housekept(airflow)  # what Airflow begins by itself must not remove them first
        for name in ("surplus", "pinned", "kept-1", "kept-2"):
            Operator(job.settings).run("snapshot_job", job.name, snapshot=name)
        assert "is pinned: an audit" in succeeded(
            streamops("snapshots", "pin", f"{job.name}/pinned", "--reason", "an audit")
        )
        asked = log(airflow, run_to_end(airflow, "apply_retention", {"job": job.name}), "apply_retention", map_index=0)
        assert f"{job.name}/surplus would be removed: not kept by last 2" in asked
        assert "surplus" in {manifest.name for manifest in snapshots.list(job.store, job.name)}
        assert "not kept by last 2" in succeeded(streamops("snapshots", "prune", job.name, "--apply"))
        runs = airflow._call("GET", "/api/v2/dags/apply_retention/dagRuns", params={"order_by": "-id", "limit": 1})
        run = airflow.run("apply_retention", runs["dag_runs"][0]["dag_run_id"])
    told = log(airflow, run, "apply_retention", map_index=0)
    assert run.state == "success", told
    assert [manifest.name for manifest in snapshots.list(job.store, job.name)] == ["pinned", "kept-1", "kept-2"]
    assert f"{job.name}/surplus removed: not kept by last 2" in told
    assert f"{job.name}/pinned kept: pinned (an audit)" in told
    (receipt,) = receipts(job, "apply_retention")
    assert (receipt.state, receipt.facts["remove"]["removed"]) == ("succeeded", ["surplus"])
    assert "apply_retention/" in receipt.owner
    for manifest in snapshots.list(job.store, job.name):
        snapshots.verify(job.store, manifest)
    # Now that it is switched off again, nobody waits for it without end.
    held = streamops("snapshots", "prune", job.name, "--apply")
    assert held.returncode == 1
    assert "apply_retention is paused in Airflow. Next: switch it on at http" in " ".join(held.stderr.split())


def test_a_snapshot_that_is_due_is_taken_and_once(airflow, running):
    job = running
    key = keys.deployment(job.name, job.record().deployment)
    found = documents.read(job.store, key, Deployment)
    assert found is not None
    older = found.value.created - timedelta(minutes=10)  # as if it had run that long
    documents.write(job.store, key, found.value.model_copy(update={"created": older}))
    taken = lambda: (last := scheduled.last_of(job.store, job.name)) and last.state == "taken" and last  # noqa: E731
    with at_work(job.settings, "scheduled_snapshots"):
        wait_for(taken, RUN_S, "the snapshot that its watcher finds due")
        first = taken()
        assert first
        assert run_to_end(airflow, "scheduled_snapshots", {}).state == "success"
    second = scheduled.last_of(job.store, job.name)
    assert second is not None
    assert second == first or second.slot > first.slot  # only when the next one is due
    snapshots.verify(job.store, snapshots.load(job.store, job.name, first.snapshot))
    assert job.runs("v2")


def test_the_graph_of_what_runs_leads_to_sparks_own_pages(running):
    told = json.loads(succeeded(streamops("jobs", "graph", running.name, "--json")))
    assert told["version"] == running.record().version
    stages = {node["name"]: " ".join(node["details"]) for node in told["nodes"] if node["kind"] == "stage"}
    assert set(stages) == set(running.status().stages)
    assert "aggregation by tumbling window of 1 second, trades.symbol" in stages["avg_1s"]
    pages = {name: httpx.get(page, timeout=30, follow_redirects=True) for name, page in told["pages"].items()}
    assert {name: page.status_code for name, page in pages.items()} == {"master": 200, "driver": 200, "queries": 200}
    assert all(stage in pages["queries"].text for stage in stages)


@pytest.fixture(scope="module")
def good(job: FreshJob) -> str:
    """A snapshot of v2 at work."""
    wait_works(job, RUN_S)
    Operator(job.settings).run("snapshot_job", job.name, snapshot="good")
    return "good"


def test_snapshots_are_read_back(airflow, running, good):
    job = running
    with at_work(job.settings, "verify_snapshots"):
        run = run_to_end(airflow, "verify_snapshots", {"job": job.name, "days": 0, "restore": False})
    assert run.state == "success", log(airflow, run, "read_back", map_index=0)
    for manifest in snapshots.list(job.store, job.name):
        check = marks.checks(job.store, job.name, manifest.name, manifest.attempt).checks["read back"]
        assert (check.problem, check.objects) == ("", len(manifest.objects))


@pytest.mark.long
def test_the_newest_snapshot_is_restored_continues_and_is_recounted(airflow, running, good):
    job, before = running, running.record()
    with at_work(job.settings, "verify_snapshots"):
        told = succeeded(streamops("snapshots", "verify", f"{job.name}/{good}", "--restore"))
    assert f"{job.name}/{good}: restored and continued in " in told
    (receipt,) = receipts(job, "verify_snapshots")
    assert (receipt.state, receipt.snapshot) == ("succeeded", f"{job.name}/{good}")
    assert "verify_snapshots/" in receipt.owner
    manifest = snapshots.load(job.store, job.name, good)
    check = marks.checks(job.store, job.name, good, manifest.attempt).checks["restored"]
    assert check.problem == ""
    assert "of 3 stages" in check.details
    assert int(check.details.split(" recounted, ")[1].split(" points")[0].replace(",", "")) > 20
    name = scratch.scratch_name(job.name)
    assert jobs.record(job.store, name) is None
    assert not pythons(name)
    assert not list(job.store.list(keys.versions(name)))
    assert not list(scratch_points(job))
    assert job.record() == before
    exact(job)


def scratch_points(job: FreshJob) -> Iterator[object]:
    """What the job's restore tests left in InfluxDB."""
    points = Points(job.settings)
    try:
        rows = points.records('import "influxdata/influxdb/schema" schema.measurements(bucket: bucket)')
        own = re.compile(rf"scratch_[0-9a-f]{{8}}_{job.name.replace('-', '_')}_.*")
        for name in (row["_value"] for row in rows if own.fullmatch(row["_value"])):
            yield from points.read(name, 0, int(records.now().timestamp() * 1000), ("symbol",))
    finally:
        points.close()


@pytest.mark.long
def test_a_driver_that_the_master_no_longer_holds_is_brought_back(airflow, running):
    job, before = running, running.record()
    status, lease = job.status(), jobs.lease(job.store, job.name)
    assert status is not None
    assert lease is not None
    Operator(job.settings).ports().submitter.end_driver(status.driver)
    wait_for(lambda: not pythons(job.name), RUN_S, "the end of the driver")
    wait_for(lambda: (said := job.status()) and (silent(said) or said.state in FINAL), RUN_S, "its silence")
    with at_work(job.settings, "reconcile"):
        wait_works(job, RUN_S, lease.epoch)
        wait_for(lambda: free(job), RUN_S, "the end of what brought it back")
    healed = list_operations(job.store, job.name)[-1]
    assert (healed.request.runbook, healed.owner.dag_id) == ("recover_job", "reconcile")
    heal = "\n".join(airflow.log("reconcile", healed.owner.run_id, "heal", 1, 0))
    assert "spark-submit" in heal  # the whole command, in a task of its own
    assert f"Receipt {healed.id}: recover_job of {job.name} succeeded" in heal
    assert (job.record().version, job.record().deployment) == (before.version, before.deployment)
    exact(job)


# --- before an upgrade


@pytest.mark.long
def test_a_version_in_batches_is_rehearsed_beside_the_one_that_runs(airflow, running):
    job, before = running, running.record()
    asked = {"job": job.name, "version": "v2", "logging": {"sinks": "DEBUG"}, "observe_s": 5, "demand_equal": True}
    run = airflow.trigger("rehearse_job", {**asked, "healthy_timeout_s": PATIENT["healthy_timeout_s"]})

    def giving_way() -> bool:
        tried = job.record().standby
        processes = [executors(job, tried), of_launch(job.name, tried)] if tried else []
        return bool(processes) and all({item.nice() for item in some} == {priority.NICE} for some in processes)

    wait_for(giving_way, 180, "a driver and executors of the new version, all of which give way")
    assert priority.NICE not in {item.nice() for item in (*executors(job), *of_launch(job.name, before.launch))}
    run = ended(airflow, run)
    told = "\n".join(
        line for task in ("compare", "dismiss", "outcome") for line in airflow.log("rehearse_job", run.run_id, task)
    )
    assert run.state == "success", told
    (found,) = rehearsals.read_all(job.store, job.name)
    compared = {name: stage.compared for name, stage in found.stages.items()}
    assert {name: stage.differing for name, stage in compared.items()} == {"avg_1s": 0, "avg_1m": 0, "vol_1s": 0}
    assert min(stage.equal for stage in compared.values()) > 3
    assert all(stage.new.lateness and not stage.old.lateness for stage in found.stages.values())
    assert rehearsals.verdict(found) in told
    after = job.record()
    assert (after.launch, after.deployment, after.standby) == (before.launch, before.deployment, None)
    assert not list(job.store.list(keys.checkpoints(job.name, found.new.deployment)))
    for stage in found.stages:  # what was only compared is gone
        with pytest.raises(NotFoundError):
            with_ledger(
                job.settings, lambda ledger, stage=stage: ledger.end_offsets(keys.results_topic(job.name, stage))
            )
    exact(job)


# --- what goes wrong in an upgrade


def test_an_upgrade_that_a_person_rejects_has_held_and_touched_nothing(airflow, running):
    job = running
    before = job.record()
    run = airflow.trigger(
        "upgrade_job", {"job": job.name, "version": "v1", "snapshot": "never", "approval": True, **BACK}
    )
    question = answered(airflow, run, "check", "Reject")
    assert question["subject"] == f"upgrade_job of {job.name}: continue?"
    assert "Verdict on avg_1s: kept" in question["body"]
    assert free(job)
    run = ended(airflow, run)
    assert run.state == "failed"
    assert "has rejected it. Nothing was touched." in airflow.error(run.dag_id, run.run_id, "check")
    assert "Receipt" in log(airflow, run, "outcome")
    assert (job.record(), operation(job, run)) == (before, None)


def test_marking_the_run_failed_brings_the_old_version_back(airflow, running):
    job = running
    asked = {"job": job.name, "version": "v1", "snapshot": "interrupted", "approval": True, **BACK}
    run = airflow.trigger("upgrade_job", asked)
    answered(airflow, run, "check", "Approve")
    wait_for(lambda: states(airflow, run).get("submit_driver") in ("running", "deferred"), RUN_S, "the submission")
    mark_failed(airflow, run)
    run = ended(airflow, run)
    assert run.state == "failed"
    assert states(airflow, run)["release_lock"] == "success"
    assert states(airflow, run)["restore_old_version"] == "success"
    assert states(airflow, run)["outcome"] == "failed"
    wait_for(lambda: job.runs("v2"), RUN_S, "the old version running")
    assert job.record().standby is None
    exact(job)


@pytest.mark.long
def test_a_run_marked_failed_during_the_switch_ends_with_the_old_version_running(airflow, running):
    job = running
    run = airflow.trigger("upgrade_job", {"job": job.name, "version": "v1", "snapshot": "interrupted-2", **COLD})
    wait_for(lambda: states(airflow, run).get("switch") == "running", RUN_S, "the switch")
    mark_failed(airflow, run)
    run = ended(airflow, run)
    assert run.state == "failed"
    wait_for(lambda: job.runs("v2"), RUN_S, "the old version running")
    exact(job)


@pytest.mark.long
def test_a_version_that_cannot_become_healthy_fails_the_run_and_the_old_one_runs(airflow, running):
    job = running
    directory = copied(job, "broken", {"import": "import a_module_that_is_not_there\nimport"})
    artifacts.publish(job.store, directory, "broken", check=False)
    unknown = ["avg_1s", "avg_1m", "vol_1s"]  # it was published without its plans
    run = run_to_end(
        airflow,
        "upgrade_job",
        {"job": job.name, "version": "broken", "probation_s": 5, **PATIENT, "accept_loss": unknown},
    )
    assert run.state == "failed"
    assert states(airflow, run)["restore_old_version"] == "success"
    wait_for(lambda: job.runs("v2"), RUN_S, "the old version running")
    assert free(job)


@pytest.mark.parametrize("with_its_tasks", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_scheduler_that_dies_during_the_switch_leaves_a_run_that_ends_right(airflow, running, with_its_tasks):
    job, servers = running, Servers()
    version = "v1" if job.record().version == "v2" else "v2"
    run = airflow.trigger("upgrade_job", {"job": job.name, "version": version, **COLD})
    wait_for(lambda: states(airflow, run).get("switch") == "running", RUN_S, "the switch")
    scheduler = psutil.Process(servers.supervisor.program("airflow-scheduler").pid)
    tasks_of_it = scheduler.children(recursive=True)
    scheduler.kill()
    for process in tasks_of_it if with_its_tasks else ():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    run = ended(airflow, run)
    done = operation(job, run)
    assert run.state == "success", (states(airflow, run), done and done.reason)
    assert done is not None
    assert done.state == "succeeded"
    assert (job.record().version, job.record().launch) == (version, done.id)
    exact(job)


def test_a_wait_whose_triggerer_is_away_is_ended_by_the_scheduler_and_tried_again(airflow, running):
    job, servers = running, Servers()
    Operator(job.settings).run("cancel_job", job.name)
    servers.supervisor.stop("airflow-triggerer")
    try:
        run = airflow.trigger("start_job", {"job": job.name, "healthy_timeout_s": 10})
        waiting: list[str] = []

        def waits() -> bool:
            waiting.extend(name for name, state in states(airflow, run).items() if state == "deferred")
            return bool(waiting)

        wait_for(waits, RUN_S, "a task that waits")
        run = ended(airflow, run)
    finally:
        servers.supervisor.start("airflow-triggerer")
    assert run.state == "success", (states(airflow, run), operation(job, run))
    (task,) = (task for task in airflow.tasks(run.dag_id, run.run_id) if task.task_id == waiting[0])
    assert task.tries > 1
    assert "Airflow's triggerer did not say in time" in airflow.error(run.dag_id, run.run_id, waiting[0], 1)
    exact(job)


def upgraded(airflow: Airflow, job: FreshJob) -> Run:
    """A finished upgrade to what runs now: the last one, or another."""
    done = documents.read(job.store, keys.operation(job.name, job.record().changed_by), Operation)
    if done is None or done.value.request.runbook != "upgrade_job" or done.value.owner.kind != "airflow":
        version = "v1" if job.record().version == "v2" else "v2"
        return run_to_end(airflow, "upgrade_job", {"job": job.name, "version": version, **COLD})
    return airflow.run("upgrade_job", done.value.owner.run_id)


@pytest.mark.long
def test_a_run_goes_on_after_a_minute_without_the_object_store(airflow, running):
    servers = Servers()
    servers.stop("minio")
    until = time.monotonic() + 60
    try:
        run = airflow.trigger("snapshot_job", {"job": running.name, "snapshot": "patient"})
        wait_for(lambda: time.monotonic() > until, 61, "a minute")
        assert airflow.run(run.dag_id, run.run_id).state == "running"
    finally:
        servers.start("minio")
    assert ended(airflow, run).state == "success"
    snapshots.verify(running.store, snapshots.load(running.store, running.name, "patient"))
    exact(running)


@pytest.mark.long
def test_clearing_any_finished_task_changes_nothing(airflow, running):
    job = running
    run = upgraded(airflow, job)
    before = job.record()
    for task in RUNBOOKS["upgrade_job"].tasks:
        clear(airflow, run, task, downstream=False)
        again = ended(airflow, run)
        assert again.state == "success", (task, states(airflow, again))
        assert job.record() == before, task
    exact(job)


# --- going back, elsewhere, and without Airflow


@pytest.mark.long
def test_restore_continues_the_version_from_its_snapshot(airflow, running):
    job, before = running, running.record()
    Operator(job.settings).run("snapshot_job", job.name, snapshot="to-restore")
    run = run_to_end(airflow, "restore_job", {"job": job.name, "snapshot": "to-restore", **PATIENT})
    assert run.state == "success", states(airflow, run)
    assert job.runs(before.version)
    record = job.record()
    assert record.deployment > before.deployment
    assert jobs.deployment(job.store, job.name, record.deployment).from_snapshot == f"{job.name}/to-restore"
    exact(job)


@pytest.mark.long
def test_a_fork_continues_another_jobs_snapshot_beside_it(airflow, running, good, tmp_path):
    job, before = running, running.record()
    other = FreshJob.publish(job.settings, tmp_path)
    values = {"job": other.name, "version": "v2", "from_snapshot": f"{job.name}/{good}", **PATIENT}
    values["topics"] = {"trades": job.name}
    refused = run_to_end(airflow, "deploy_job", values)
    assert refused.state == "failed"
    assert "fork" in airflow.error(refused.dag_id, refused.run_id, "check").lower()
    try:
        run = run_to_end(airflow, "deploy_job", {**values, "fork": True})
        assert run.state == "success", states(airflow, run)
        assert other.runs("v2")
        end = job.end()
        wait_for(lambda: other.read() >= end, RUN_S, "the fork catching up")
        since = snapshots.load(job.store, job.name, good).stages["avg_1s"].offsets
        report = recount_job(other.settings, other.store, other.name, since=since)
        assert report.clean, (report.reason, [item.examples for item in report.measurements])
    finally:
        stop(other)
    assert job.record() == before
    exact(job)


def test_without_airflow_a_command_does_the_same_and_airflow_continues_from_there(airflow, running):
    job, servers = running, Servers()
    before = job.record()
    for name in AIRFLOW:
        servers.supervisor.stop(name)
    try:
        refused = streamops("cancel", job.name)
        assert refused.returncode == 1
        assert "did not answer" in refused.stderr
        stopped = streamops("cancel", job.name, "--without-airflow")
        assert stopped.returncode == 0, stopped.stderr
        assert "does not answer" in stopped.stdout
        assert job.record().desired == "stopped"
    finally:
        for name in AIRFLOW:
            servers.supervisor.start(name)
        ready.wait("airflow-api-server", ready.airflow, servers.layout, RUN_S)
    Runbooks(airflow, job.store).wait_ready(RUNBOOKS, RUN_S)
    run = run_to_end(airflow, "start_job", {"job": job.name, **PATIENT})
    assert run.state == "success", states(airflow, run)
    assert job.runs(before.version)
    assert job.record().deployment == before.deployment
    exact(job)
    outlives_the_disk(airflow, run, servers.layout)


def outlives_the_disk(airflow: Airflow, run: Run, home: Layout) -> None:
    """Each task's log is the same, read through Airflow, once the folder of the run is gone."""
    pairs = read_pairs(home.env_file)
    store = ObjectStore(
        BucketSettings(
            s3_endpoint=pairs["S3_ENDPOINT"],
            s3_access_key=pairs["S3_LOGS_ACCESS_KEY"],
            s3_secret_key=SecretStr(pairs["S3_LOGS_SECRET_KEY"]),
            s3_bucket=pairs["S3_LOGS_BUCKET"],
        )
    )
    root = home.airflow / "logs"
    folder = root / f"dag_id={run.dag_id}" / f"run_id={run.run_id}"
    sizes = {path.relative_to(root).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert any(".trigger." in name for name in sizes)  # the triggerer stores logs of its own

    def stored() -> bool:
        found = {info.key: info.size for info in store.list(f"{folder.relative_to(root).as_posix()}/")}
        return all(size <= found.get(name, 0) for name, size in sizes.items())

    wait_for(stored, 60, f"the logs of {run.run_id} in the object store")

    def shown() -> dict[str, list[str]]:
        logs = {task.task_id: airflow.log(run.dag_id, run.run_id, task.task_id, max(1, task.tries))
                for task in airflow.tasks(run.dag_id, run.run_id)}  # fmt: skip
        # Above this line Airflow says where it has them from.
        return {task: lines[lines.index("::endgroup::") + 1 :] for task, lines in logs.items() if lines[1:]}

    before = shown()
    assert before["outcome"]
    folder.rename(root / "moved")
    try:
        assert shown() == before
    finally:
        (root / "moved").rename(folder)


def succeeded(ended: subprocess.CompletedProcess[str]) -> str:
    """What a command said that did what it was asked."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def streamops(*arguments: str) -> subprocess.CompletedProcess[str]:
    command: list[Any] = [Path(sys.executable).with_name("streamops"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=RUN_S, check=False)


def test_no_secret_is_in_any_log_or_xcom(airflow, job, stack):
    assert shown(secrets_of(Layout.find()), left_by_operations(airflow, job)) == []


@pytest.mark.long
def test_after_a_power_cut_up_brings_the_running_job_back(running):
    job, servers = running, Servers()
    before = job.record()
    supervisor = psutil.Process(servers.supervisor.pid())
    everything = [supervisor, *supervisor.children(recursive=True)]
    for process in everything:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    lifecycle.up(servers.layout.home, generator=False)  # at once, while a large one still holds its ports
    wait_works(job, RUN_S)
    assert (job.record().launch, job.record().deployment) == (before.launch, before.deployment)
    exact(job)
