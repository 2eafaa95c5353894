"""What of Airflow's history is past."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from streamops.upkeep.history import clean_command, failed_tables, past_logs

NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)
BEFORE = NOW - timedelta(days=14)


def log(root: Path, name: str, age_days: float) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}\n")
    then = (NOW - timedelta(days=age_days)).timestamp()
    for each in (path, *path.parents[: len(Path(name).parents) - 1]):
        os.utime(each, (then, then))
    return path


def test_only_old_logs_of_what_runs_by_itself_are_past(tmp_path: Path) -> None:
    old = log(
        tmp_path, "dag_id=reconcile/run_id=scheduled__2026-05-01T00:00:00+00:00/task_id=reconcile/attempt=1.log", 20
    )
    log(tmp_path, "dag_id=reconcile/run_id=scheduled__2026-06-14T00:00:00+00:00/task_id=reconcile/attempt=1.log", 1)
    looked = log(tmp_path, "dag_id=scheduled_snapshots/run_id=manual__1/task_id=look/attempt=1.log", 15)
    log(tmp_path, "dag_id=deploy_job/run_id=manual__2/task_id=check/attempt=1.log", 300)
    parsed = log(tmp_path, "dag_processor/2026-05-01/dags-folder/reconcile.py.log", 40)
    log(tmp_path, "dag_processor/2026-06-15/dags-folder/reconcile.py.log", 0)
    assert past_logs(tmp_path, BEFORE) == [old.parents[1], looked.parents[1], parsed.parents[1]]


def test_an_old_run_whose_task_was_cleared_lately_is_kept(tmp_path: Path) -> None:
    log(tmp_path, "dag_id=reconcile/run_id=r/task_id=reconcile/attempt=1.log", 20)
    again = log(tmp_path, "dag_id=reconcile/run_id=r/task_id=reconcile/attempt=2.log", 20)
    os.utime(again, (NOW.timestamp(), NOW.timestamp()))
    assert past_logs(tmp_path, BEFORE) == []


def test_the_link_to_the_newest_logs_of_parsing_is_never_followed(tmp_path: Path) -> None:
    log(tmp_path, "elsewhere/precious", 400)
    (tmp_path / "dag_processor").mkdir()
    (tmp_path / "dag_processor" / "2026-01-01").symlink_to(tmp_path / "elsewhere")
    assert past_logs(tmp_path, BEFORE) == []


def test_there_may_be_no_logs_yet(tmp_path: Path) -> None:
    assert past_logs(tmp_path / "logs", BEFORE) == []


def test_the_command_names_whose_runs_may_go() -> None:
    command = clean_command("python", BEFORE)
    assert command[:5] == ("python", "-m", "airflow", "db", "clean")
    assert command[command.index("--dag-ids") + 1] == "reconcile,scheduled_snapshots"
    assert command[command.index("--clean-before-timestamp") + 1] == "2026-06-01T12:00:00+00:00"
    # A table without a column for the DAG would be cleaned as a whole.
    assert set(command[command.index("--tables") + 1].split(",")) == {"dag_run", "log"}


def test_a_table_that_airflow_could_not_clean_is_noticed() -> None:
    said = "2026-06-15 [warning ] Encountered error when attempting to clean table '{}'.  [airflow.utils.db_cleanup]\n"
    assert failed_tables("Checking table log\nFound 0 rows meeting deletion criteria.\n") == []
    assert failed_tables(said.format("deadline")) == []
    assert failed_tables(said.format("log") + said.format("deadline") + said.format("dag_run")) == ["dag_run", "log"]
