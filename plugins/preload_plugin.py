"""Imports what runbooks need in the processes that start tasks, so that no task has to import it again.

A scheduler with the LocalExecutor, a Celery worker and the DAG processor fork: the child has what the parent imported.
Importing the clients of Kafka, S3 and InfluxDB takes a task longer than most steps of a runbook.
"""

import importlib
import pkgutil
import sys
from typing import Any

from airflow.plugins_manager import AirflowPlugin

FORKING = ("scheduler", "celery", "dag-processor")
RUNNER = "airflow.sdk.execution_time.task_runner"  # which every task imports first


def preload() -> None:
    """Import the operators, with all that they import."""
    package = importlib.import_module("streamops_airflow.operators")
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
    importlib.import_module(RUNNER)


class PreloadPlugin(AirflowPlugin):
    """Nothing of it shows in Airflow."""

    name = "streamops_preload"

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Preload, in a process that forks those of tasks."""
        if sys.argv[1:2] and sys.argv[1] in FORKING:
            preload()
