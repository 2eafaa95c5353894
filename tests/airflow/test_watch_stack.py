"""What acts by itself, on the real servers: its watcher starts it, at once, and slow tasks do not hold it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fresh_job import wait_for
from runbooks import RUN_S, at_work, ended, log, run_to_end, states
from stack.layout import Layout
from streamops.clients.airflow import Airflow, Run
from streamops.model.names import CLUSTER
from streamops.model.owner import Owner
from streamops.operations.follow import request as ask
from streamops.operations.operation import OVER
from streamops.settings import Settings
from streamops.store import locks
from streamops.store.object_store import ObjectStore
from support import Operator

pytestmark = [pytest.mark.stack, pytest.mark.full]
DAG = """
import time
from datetime import timedelta
from pathlib import Path
from airflow.sdk import dag, task

@dag(dag_id={dag_id!r}, is_paused_upon_creation=False)
def slow_tasks():
    @task(execution_timeout=timedelta(minutes=15))
    def wait(number):
        while not Path({over!r}).exists():
            time.sleep(0.2)

    wait.expand(number=list(range(5)))

slow_tasks()
"""


@pytest.fixture
def slow_dag(stack: Settings, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A DAG of five tasks that wait for a file; a stack that was kept knows those of earlier tests by other names."""
    name, over = f"slow_tasks_{time.time_ns():x}", tmp_path / "over"
    file = Layout.find().own_dags / f"{name}.py"
    file.write_text(DAG.format(dag_id=name, over=str(over)))
    try:
        yield name, over
    finally:
        over.touch()
        file.unlink()


def runs(airflow: Airflow, dag_id: str) -> dict[str, str]:
    """Run -> how it began."""
    found = airflow._call("GET", f"/api/v2/dags/{dag_id}/dagRuns", params={"limit": 100, "order_by": "-run_after"})
    return {run["dag_run_id"]: run["run_type"] for run in found["dag_runs"]}


def at_work_in(airflow: Airflow, run: Run) -> int:
    """How many of the run's tasks are running."""
    return sum(task.state == "running" for task in airflow.tasks(run.dag_id, run.run_id))


def test_what_was_abandoned_is_healed_although_slow_tasks_take_every_other_slot(
    stack: Settings, airflow: Airflow, slow_dag: tuple[str, Path]
) -> None:
    name, over = slow_dag
    engine, store = Operator(stack).engine(), ObjectStore(stack)
    gone = run_to_end(airflow, "start_job", {"job": "no-such-job"})  # over, whatever it owns
    wait_for(lambda: airflow.ready(name), RUN_S, f"Airflow reading {name}")
    slow = airflow.trigger(name, {})
    wait_for(lambda: at_work_in(airflow, slow) == 4, RUN_S, "four tasks at work")
    before = runs(airflow, "reconcile")
    left = f"left-{gone.run_id[-8:]}"
    owner = Owner(kind="airflow", dag_id=gone.dag_id, run_id=gone.run_id, user="tester")
    engine.begin(ask("scale_cluster", change=1), owner, left)
    with at_work(stack, "reconcile"):
        wait_for(lambda: new(airflow, before), RUN_S, "a run of reconcile")
        (healing, *_) = new(airflow, before)
        run = ended(airflow, airflow.run("reconcile", healing))
    assert at_work_in(airflow, slow) == 4  # still, and the fifth waits
    assert run.state == "success", states(airflow, run)
    assert runs(airflow, "reconcile")[healing] == "asset_triggered"
    found = engine.find(CLUSTER, left)
    assert found is not None
    assert found.state in OVER
    lock = locks.read(store, CLUSTER)
    assert lock is None or lock.value.operation is None
    found_first = f"the cluster: {left} was abandoned at "
    assert found_first in log(airflow, run, "look")
    told = "\n".join(airflow.log(run.dag_id, run.run_id, "heal", 1, 0))
    assert found_first in told
    assert "; undone" in told
    assert len(new(airflow, before)) == 1  # and none since
    over.touch()
    assert ended(airflow, slow).state == "success"


def new(airflow: Airflow, before: dict[str, str]) -> list[str]:
    """Runs of reconcile that began since."""
    return [run_id for run_id in runs(airflow, "reconcile") if run_id not in before]
