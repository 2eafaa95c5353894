"""Airflow's history of what runs by itself, cleaned by the DAG."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from runbooks import at_work, log, run_to_end
from stack import postgres
from stack.layout import Layout
from streamops.clients.airflow import Airflow, Run
from streamops.model.errors import NotFoundError
from streamops.settings import Settings, read_pairs

pytestmark = [pytest.mark.stack, pytest.mark.full]
DAYS = 20


@contextmanager
def database(layout: Layout) -> Iterator[Any]:
    """A cursor in Airflow's database."""
    secret = read_pairs(layout.env_file)["POSTGRES_PASSWORD"]
    connection = psycopg2.connect(
        host=str(postgres.host(layout)), user=postgres.USER, dbname=postgres.DATABASE, password=secret
    )
    try:
        with connection, connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def aged(layout: Layout, run: Run) -> Path:
    """Let a run have begun 20 days ago; returns the directory of its logs."""
    with database(layout) as cursor:
        for table, column in (("dag_run", "start_date"), ("log", "dttm")):
            cursor.execute(
                f"UPDATE {table} SET {column} = {column} - %s * interval '1 day' WHERE run_id = %s", (DAYS, run.run_id)
            )
    logs = layout.airflow / "logs" / f"dag_id={run.dag_id}" / f"run_id={run.run_id}"
    then = time.time() - DAYS * 86400
    for path in (logs, *logs.rglob("*")):
        os.utime(path, (then, then))
    return logs


def rows(layout: Layout, table: str, run: Run) -> int:
    with database(layout) as cursor:
        cursor.execute(f"SELECT count(*) FROM {table} WHERE run_id = %s", (run.run_id,))
        return int(cursor.fetchone()[0])


@pytest.fixture(autouse=True)
def schedule(stack: Settings) -> Iterator[None]:
    with at_work(stack, "scheduled_snapshots"):
        yield


def test_old_runs_of_what_runs_by_itself_go_and_the_audit_stays(airflow: Airflow) -> None:
    home = Layout.find(os.environ["STREAMOPS_HOME"])
    old = run_to_end(airflow, "scheduled_snapshots", {})
    audited = run_to_end(airflow, "start_job", {"job": "no-such-job"})
    new = run_to_end(airflow, "scheduled_snapshots", {})
    logs, kept = aged(home, old), aged(home, audited)
    assert logs.is_dir()
    assert kept.is_dir()
    assert rows(home, "task_instance", old) > 0

    done = run_to_end(airflow, "clean_history", {})
    assert done.state == "success", log(airflow, done, "clean")
    assert airflow.xcom("clean_history", done.run_id, "clean") >= 1
    with pytest.raises(NotFoundError):
        airflow.run(old.dag_id, old.run_id)
    assert not logs.exists()
    assert [rows(home, table, old) for table in ("dag_run", "task_instance", "xcom", "log")] == [0] * 4
    for run in (audited, new):
        assert airflow.run(run.dag_id, run.run_id).state == run.state
        assert rows(home, "log", run) > 0
    assert kept.is_dir()
    assert "no-such-job" in airflow.error(audited.dag_id, audited.run_id, "check")
    assert run_to_end(airflow, "scheduled_snapshots", {}).state == "success"  # Airflow continues
