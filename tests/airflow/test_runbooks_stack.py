"""The runbooks on the real servers, as Airflow runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fresh_job import FreshJob, wait_for
from streamops import artifacts, keys, locks, records
from streamops.adapters.airflow import Airflow, Run
from streamops.adapters.object_store import ObjectStore
from streamops.errors import RefusedError
from streamops.follow import Runbooks
from streamops.operations import Operation, tasks
from streamops.settings import Settings

pytestmark = pytest.mark.stack
RUNBOOKS = ("deploy_job", "start_job", "snapshot_job", "cancel_job", "upgrade_job")
RUN_S = 900
PATIENT = {"healthy_timeout_s": 600}  # the machine may be busy with other tests


@pytest.fixture(scope="module")
def airflow(stack: Settings) -> Iterator[Airflow]:
    with Airflow(stack) as airflow:
        Runbooks(airflow, ObjectStore(stack)).wait_ready(RUNBOOKS)
        yield airflow


@pytest.fixture(scope="module")
def job(stack: Settings, airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    job = FreshJob.publish(stack, tmp_path_factory.mktemp("job"))
    with job.trades():
        yield job
    if job.record().desired == "running":
        ended(airflow, airflow.trigger("cancel_job", {"job": job.name}))


@pytest.fixture
def running(airflow: Airflow, job: FreshJob) -> FreshJob:
    """The job with v2 running, whatever the tests before left."""
    record = job.record()
    if not record.deployment:
        run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v2", **PATIENT})
    elif record.desired != "running":
        run_to_end(airflow, "start_job", {"job": job.name, **PATIENT})
    wait_for(lambda: job.runs("v2"), 120, "v2 running")
    job.caught_up()
    return job


def ended(airflow: Airflow, run: Run, seconds: float = RUN_S) -> Run:
    """The run at its end."""
    wait_for(lambda: airflow.run(run.dag_id, run.run_id).finished, seconds, f"the end of {run.dag_id}")
    return airflow.run(run.dag_id, run.run_id)


def states(airflow: Airflow, run: Run) -> dict[str, str | None]:
    return {task.task_id: task.state for task in airflow.tasks(run.dag_id, run.run_id)}


def log(airflow: Airflow, run: Run, task: str, tries: int = 1) -> str:
    return "\n".join(airflow.log(run.dag_id, run.run_id, task, tries))


def operation(job: FreshJob, run: Run) -> Operation | None:
    for info in job.store.list(keys.operations(job.name)):
        found = records.read(job.store, info.key, Operation)
        if found and found.value.owner.run_id == run.run_id:
            return found.value
    return None


def free(job: FreshJob) -> bool:
    """Whether the next operation may begin."""
    lock = locks.read(job.store, job.name)
    return lock is None or lock.value.operation is None


def run_to_end(airflow: Airflow, dag_id: str, values: dict[str, Any]) -> Run:
    return ended(airflow, airflow.trigger(dag_id, values))


@pytest.mark.parametrize(
    "bad", [{}, {"job": "Bad Name"}, {"job": "a", "version": "../v1"}, {"job": "a", "version": ""}]
)
def test_bad_values_are_refused_before_there_is_a_run(airflow, bad):
    for runbook in ("deploy_job", "upgrade_job"):
        with pytest.raises(RefusedError, match="refused the request"):
            airflow.trigger(runbook, bad)


def test_the_whole_life_of_a_job_through_its_runbooks(airflow, job):
    run = run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v1", **PATIENT})
    assert run.state == "success", log(airflow, run, "check")
    assert set(states(airflow, run).values()) == {"success"}
    assert job.runs("v1")
    done = operation(job, run)
    assert done is not None
    assert done.state == "succeeded"
    assert done.owner.kind == "airflow"
    assert done.id in log(airflow, run, "check")

    # Deploying what runs changes nothing; deploying another version over it is refused and says what to use.
    before = job.record()
    assert run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v1", **PATIENT}).state == "success"
    assert (job.record().launch, job.record().deployment) == (before.launch, before.deployment)
    refused = run_to_end(airflow, "deploy_job", {"job": job.name, "version": "v2", **PATIENT})
    assert refused.state == "failed"
    assert "upgrade_job" in airflow.error(refused.dag_id, refused.run_id, "check")
    assert job.runs("v1")

    # A second trigger while the first one works: skipped, and the owner is named.
    job.caught_up()
    first = airflow.trigger("upgrade_job", {"job": job.name, "version": "v2", "snapshot": "before-v2", **PATIENT})
    wait_for(lambda: states(airflow, first).get("check") == "success", 60, "the upgrade's check")
    second = run_to_end(airflow, "cancel_job", {"job": job.name})
    assert set(states(airflow, second).values()) == {"skipped"}
    assert first.run_id in log(airflow, second, "check")
    assert operation(job, second) is None
    first = ended(airflow, first)
    assert first.state == "success", states(airflow, first)
    assert job.runs("v2")
    assert records.read(job.store, keys.operation(job.name, operation(job, first).id), Operation)
    assert job.store.get(keys.manifest(job.name, "before-v2")).body

    # The switch's log alone tells what was done.
    told = log(airflow, first, "switch")
    assert "before-v2" in told

    # Clearing a finished task runs it and all after it again, and changes nothing.
    before = job.record()
    for task in tasks("upgrade_job"):
        clear(airflow, first, task)
        again = ended(airflow, first)
        assert again.state == "success", (task, states(airflow, again))
    assert (job.record().launch, job.record().deployment) == (before.launch, before.deployment)
    assert job.runs("v2")

    assert run_to_end(airflow, "snapshot_job", {"job": job.name, "snapshot": "live"}).state == "success"
    assert job.runs("v2")
    taken = run_to_end(airflow, "snapshot_job", {"job": job.name, "snapshot": "live"})
    assert taken.state == "failed"
    assert "live" in airflow.error(taken.dag_id, taken.run_id, "check")

    assert run_to_end(airflow, "cancel_job", {"job": job.name}).state == "success"
    assert job.record().desired == "stopped"
    assert run_to_end(airflow, "start_job", {"job": job.name, **PATIENT}).state == "success"
    assert job.runs("v2")
    job.caught_up()
    assert free(job)
    report = job.recount()
    assert report.clean, report.reason


def test_a_run_marked_failed_before_its_first_task_is_failed_and_holds_nothing(airflow, job):
    before = job.record()
    run = airflow.trigger("cancel_job", {"job": job.name})
    mark_failed(airflow, run)
    assert ended(airflow, run).state == "failed"
    assert states(airflow, run)["finish"] != "success"
    assert free(job)
    assert job.record() == before


def test_marking_the_run_failed_brings_the_old_version_back(airflow, running):
    job = running
    run = airflow.trigger("upgrade_job", {"job": job.name, "version": "v1", "snapshot": "interrupted", **PATIENT})
    wait_for(lambda: states(airflow, run).get("submit_driver") in ("running", "deferred"), 90, "the submission")
    mark_failed(airflow, run)
    run = ended(airflow, run)
    assert run.state == "failed"
    assert states(airflow, run)["release_lock"] == "success"
    assert states(airflow, run)["restore_old_version"] == "success"
    assert states(airflow, run)["outcome"] == "failed"
    wait_for(lambda: job.runs("v2"), 90, "the old version running")
    assert job.record().standby is None
    job.caught_up()
    report = job.recount()
    assert report.clean, report.reason


def test_a_run_marked_failed_during_the_switch_ends_with_the_old_version_running(airflow, running):
    job = running
    run = airflow.trigger("upgrade_job", {"job": job.name, "version": "v1", "snapshot": "interrupted-2", **PATIENT})
    wait_for(lambda: states(airflow, run).get("switch") == "running", 150, "the switch")
    mark_failed(airflow, run)
    run = ended(airflow, run)
    assert run.state == "failed"
    wait_for(lambda: job.runs("v2"), 120, "the old version running")
    job.caught_up()
    report = job.recount()
    assert report.clean, report.reason


def test_a_version_that_cannot_become_healthy_fails_the_run_and_the_old_one_runs(airflow, running):
    job = running
    definition = (job.directory / "v2.yaml").read_text().replace("version: v2", "version: broken")
    code = (job.directory / "trade_analyser.py").read_text()
    directory = Path(job.directory, "broken-copy")
    directory.mkdir()
    (directory / "broken.yaml").write_text(definition)
    (directory / "trade_analyser.py").write_text(code + "\nimport a_module_that_is_not_there\n")
    artifacts.publish(job.store, directory, "broken", check=False)
    run = run_to_end(airflow, "upgrade_job", {"job": job.name, "version": "broken", "healthy_timeout_s": 60})
    assert run.state == "failed"
    assert states(airflow, run)["restore_old_version"] == "success"
    wait_for(lambda: job.runs("v2"), 90, "the old version running")
    assert free(job)


def test_no_secret_is_in_any_log_or_xcom(airflow, job, stack):
    secrets = [stack.s3_secret_key, stack.influx_token, stack.airflow_password]
    texts = []
    for info in job.store.list(keys.operations(job.name)):
        found = records.read(job.store, info.key, Operation)
        owner = found.value.owner
        for task in airflow.tasks(owner.dag_id, owner.run_id):
            texts += airflow.log(owner.dag_id, owner.run_id, task.task_id, max(1, task.tries))
            texts.append(str(airflow.xcom(owner.dag_id, owner.run_id, task.task_id)))
    assert texts
    shown = "\n".join(texts)
    assert not [secret for secret in secrets if secret.get_secret_value() in shown]


def clear(airflow: Airflow, run: Run, task: str) -> None:
    """As the UI's button does: this task and all after it."""
    body = {
        "dag_run_id": run.run_id,
        "task_ids": [task],
        "include_downstream": True,
        "only_failed": False,
        "reset_dag_runs": True,
        "dry_run": False,
    }
    airflow._call("POST", f"/api/v2/dags/{run.dag_id}/clearTaskInstances", json=body)


def mark_failed(airflow: Airflow, run: Run) -> None:
    """As the UI's *Mark run as failed* does."""
    airflow._call("PATCH", f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}", json={"state": "failed"})
