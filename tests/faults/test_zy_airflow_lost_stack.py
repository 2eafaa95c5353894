"""Fault 39: Airflow's database is lost. Jobs run on; what was done is still known; runbooks work again."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from runbooks import housekept, paused
from stack import lifecycle, postgres
from stack.programs import AIRFLOW
from streamops.clients.airflow import Airflow
from streamops.operations.cluster_checks import known
from streamops.operations.follow import Runbooks
from streamops.operations.follow import request as ask
from streamops.operations.runbooks import RUNBOOKS
from streamops.settings import REPOSITORY
from streamops.store import jobs
from streamops.store.object_store import ObjectStore
from support import invariant, mark

pytestmark = [pytest.mark.stack, pytest.mark.long]


def shown(*arguments: str) -> str:
    command = [str(REPOSITORY / ".venv" / "bin" / "streamops"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=120, check=True).stdout


def test_without_its_database_airflow_begins_anew_and_nothing_else_is_lost(stack, job, operator, servers):
    start = mark(job)
    done = operator.run("snapshot_job", job.name)
    launch, before = job.record().launch, job.status()
    for name in AIRFLOW:
        servers.supervisor.stop(name)
    servers.supervisor.stop("postgres")
    data = postgres.directory(servers.layout)
    assert (data / "PG_VERSION").is_file()
    shutil.rmtree(data)
    assert done.id in shown("operations", job.name)
    assert done.id in shown("receipts", job.name)
    assert job.name in shown("jobs")

    for other in known(job.store):  # what other tests left is not for the new Airflow's first reconciliation
        if other.job != job.name:
            jobs.change(job.store, other.job, {"paused": True}, jobs.record(job.store, other.job).fence)
    lifecycle.up(servers.layout.home, generator=False)
    for dag_id in ("reconcile", "verify_snapshots"):  # as for all tests
        paused(stack, dag_id)
    with Airflow(stack) as airflow:
        runbooks = Runbooks(airflow, ObjectStore(stack))
        runbooks.wait_ready(RUNBOOKS)
        housekept(airflow)
        again = runbooks.run(ask("snapshot_job", job=job.name, snapshot="after-the-loss"), lambda steps: None)
    assert again.state == "succeeded"
    assert (job.record().launch, job.status().holder) == (launch, before.holder)  # the job never noticed
    assert {done.id, again.id} <= set(shown("receipts", job.name).split())
    invariant(job, start)
