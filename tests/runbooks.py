"""DAG runs as tests look at them: their tasks, logs and operations, and what the UI's buttons do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fresh_job import FreshJob, wait_for
from streamops.clients.airflow import Airflow, Run
from streamops.model.errors import NotFoundError
from streamops.operations.operation import Operation
from streamops.settings import Settings
from streamops.store import documents, keys, locks
from support import Operator

RUN_S = 600  # finds what hangs
ACTS_BY_ITSELF = ("reconcile", "scheduled_snapshots", "apply_retention", "verify_snapshots")
PATIENT = {"healthy_timeout_s": 600}  # the machine may be busy with other tests


def states(airflow: Airflow, run: Run) -> dict[str, str | None]:
    """State of each task."""
    return {task.task_id: task.state for task in airflow.tasks(run.dag_id, run.run_id)}


def log(airflow: Airflow, run: Run, task: str, tries: int = 1, map_index: int = -1) -> str:
    """A task's log."""
    return "\n".join(airflow.log(run.dag_id, run.run_id, task, tries, map_index))


def begun(airflow: Airflow, dag_id: str, run_id: str) -> Run:
    """A run that a person began in the UI; Airflow, busy with its own pages, may take its time to tell of it."""
    found: list[Run] = []
    wait_for(lambda: found.append(airflow.run(dag_id, run_id)) or found, 90, f"Airflow's answer about {run_id}")
    return found[0]


def operation(job: FreshJob, run: Run) -> Operation | None:
    """The operation that a run began, if it began one."""
    for info in job.store.list(keys.operations(job.name)):
        found = documents.read(job.store, info.key, Operation)
        if found and found.value.owner.run_id == run.run_id:
            return found.value
    return None


def free(job: FreshJob) -> bool:
    """Whether the next operation may begin."""
    lock = locks.read(job.store, job.name)
    return lock is None or lock.value.operation is None


def ended(airflow: Airflow, run: Run, seconds: float = RUN_S) -> Run:
    """The run at its end."""
    found = [run]

    def finished() -> bool:
        found.append(airflow.run(run.dag_id, run.run_id))
        return found[-1].finished

    wait_for(finished, seconds, f"the end of {run.dag_id}")
    return found[-1]


def housekept(airflow: Airflow) -> None:
    """Wait for the end of the daily retention, which holds each job in turn.

    A new Airflow begins it at once when its time was less than a tenth of a day ago, and else not before tomorrow.
    """

    def over() -> bool:
        following = datetime.fromisoformat(
            airflow._call("GET", "/api/v2/dags/apply_retention")["next_dagrun_run_after"]
        )
        runs = airflow._call("GET", "/api/v2/dags/apply_retention/dagRuns")["dag_runs"]
        return following > datetime.now(UTC) and all(run["state"] in ("success", "failed") for run in runs)

    wait_for(over, RUN_S, "the end of the daily retention")


def run_to_end(airflow: Airflow, dag_id: str, values: dict[str, Any]) -> Run:
    """Trigger a runbook and wait for its end."""
    return ended(airflow, airflow.trigger(dag_id, values))


@contextmanager
def working_job(settings: Settings, directory: Path, more: str = "") -> Iterator[FreshJob]:
    """A published job with trades on its topic; whatever runs of it at the end is stopped.

    Args:
        more: lines that the definition of each version has besides.
    """
    job = FreshJob.publish(settings, directory, more=more)
    try:
        with job.trades():
            yield job
    finally:
        stop(job)


def stop(job: FreshJob) -> None:
    """End a job, in this process: also what a failed test left of it."""
    wait_for(lambda: free(job), RUN_S, f"the end of what works on {job.name}")
    if job.record().desired == "running":
        Operator(job.settings).run("cancel_job", job.name)


def clear(airflow: Airflow, run: Run, task: str, downstream: bool = True) -> None:
    """As the UI's button does: this task and, if not told otherwise, all after it."""
    body = {
        "dag_run_id": run.run_id,
        "task_ids": [task],
        "include_downstream": downstream,
        "only_failed": False,
        "reset_dag_runs": True,
        "dry_run": False,
    }
    airflow._call("POST", f"/api/v2/dags/{run.dag_id}/clearTaskInstances", json=body)


def answered(airflow: Airflow, run: Run, task: str, option: str) -> dict[str, Any]:
    """What a task asks a person, once it does; the answer is given as on Airflow's page *Required Actions*."""
    place = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}"
    wait_for(lambda: states(airflow, run).get(task) == "awaiting_input", RUN_S, f"the question of {task}")
    # Until its scheduler has looked at the task that waits, Airflow takes one that continues for lost, and fails it. No
    # person is so quick.
    looks: set[str] = set()

    def looked() -> bool:
        looks.add(airflow._call("GET", "/api/v2/monitor/health")["scheduler"]["latest_scheduler_heartbeat"])
        return len(looks) > 2

    wait_for(looked, RUN_S, "two looks of Airflow's scheduler")
    asked = {"response_received": False}
    (question,) = airflow._call("GET", f"{place}/hitlDetails", params=asked)["hitl_details"]
    said = airflow._call(
        "PATCH", f"{place}/taskInstances/{task}/-1/hitlDetails", json={"chosen_options": [option], "params_input": {}}
    )
    assert said["chosen_options"] == [option]
    return question


def mark_failed(airflow: Airflow, run: Run) -> None:
    """As the UI's *Mark run as failed* does."""
    airflow._call("PATCH", f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}", json={"state": "failed"})


@contextmanager
def at_work(settings: Settings, dag_id: str) -> Iterator[None]:
    """What acts by itself is on while a test looks at it, and off afterwards."""
    paused(settings, dag_id, yes=False)
    try:
        yield
    finally:
        paused(settings, dag_id)


def paused(settings: Settings, dag_id: str, yes: bool = True) -> None:
    """What acts by itself is switched off while tests look at something else, and on by the tests of it."""
    with Airflow(settings, timeout_s=60) as airflow:
        deadline = time.monotonic() + 120
        while True:
            try:
                dag = airflow._call("PATCH", f"/api/v2/dags/{dag_id}", json={"is_paused": yes})
                # As *Reparse Dag* does: a watcher comes and goes when Airflow reads the file, not when it is paused.
                read = airflow._send("PUT", f"/api/v2/parseDagFile/{dag['file_token']}")
                assert read.status_code in (201, 409), read.text  # 409: that was asked for already
                return
            except NotFoundError:
                assert time.monotonic() < deadline, f"Airflow did not read dags/{dag_id}.py"
                time.sleep(0.5)
