"""Airflow's history of what runs by itself: which part of it is past.

``reconcile`` makes 1,440 runs a day. Each leaves rows in Airflow's database and a log of its own, and no one looks at
them after some days. Runs of runbooks are the audit of an installation and are never removed here.
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

BY_THEMSELVES = ("reconcile", "scheduled_snapshots")
_BATCH = 2000  # rows that are deleted at once


def clean_command(python: str, before: datetime) -> tuple[str, ...]:
    """Airflow's own command that removes the runs of ``BY_THEMSELVES`` that began before a moment.

    It keeps the last run of each, from which Airflow knows when the next one is due. The rows of tasks and of what
    they handed on go with their runs. Source: ``airflow db clean --help``.

    Args:
        python: the interpreter that has Airflow.
        before: with a time zone.
    """
    what = ("--tables", "dag_run,log", "--dag-ids", ",".join(BY_THEMSELVES))
    how = ("--skip-archive", "--yes", "--batch-size", str(_BATCH))
    return (python, "-m", "airflow", "db", "clean", "--clean-before-timestamp", before.isoformat(), *what, *how)


def failed_tables(output: str) -> list[str]:
    """Tables that Airflow's command says it could not clean; it ends with 0 all the same.

    Its option to end with 1 is of no use: Airflow 3.3 looks for a DAG in the table ``deadline``, which has none, so
    that this table always fails. No DAG here has deadlines.
    """
    found = re.findall(r"error when attempting to clean table '(\w+)'", output)
    return sorted({*found} - {"deadline"})


def past_logs(root: Path, before: datetime) -> list[Path]:
    """Directories of logs that nothing was written to since a moment: of runs of ``BY_THEMSELVES``, and of parsing.

    Args:
        root: the directory of Airflow's logs; it need not exist.
        before: with a time zone.
    """
    runs = [path for dag_id in BY_THEMSELVES for path in root.glob(f"dag_id={dag_id}/run_id=*")]
    parsed = [path for path in root.glob("dag_processor/[0-9]*-[0-9]*-[0-9]*") if not path.is_symlink()]
    return sorted(path for path in (*runs, *parsed) if path.is_dir() and _written(path) < before.timestamp())


def _written(directory: Path) -> float:
    """When the newest file below a directory, or the directory itself, was last written (seconds since 1970)."""
    times = []
    for path in (directory, *directory.rglob("*")):
        try:
            times.append(path.stat().st_mtime)
        except FileNotFoundError:  # removed meanwhile
            continue
    return max(times, default=0.0)
