"""What Airflow loads of StreamOps in each of its processes: the page of the fleet, and what tasks need, beforehand.

A scheduler with the LocalExecutor, a Celery worker and the DAG processor fork: the child has what the parent imported.
Importing the clients of Kafka, S3 and InfluxDB takes a task longer than most steps of a runbook.
"""

import importlib
import pkgutil
import sys
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from streamops_airflow.pages.fleet_map import PREFIX, app

FORKING = ("scheduler", "celery", "dag-processor")
RUNNER = "airflow.sdk.execution_time.task_runner"  # which every task imports first


def preload() -> None:
    """Import the operators, with all that they import."""
    package = importlib.import_module("streamops_airflow.operators")
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)
    importlib.import_module(RUNNER)


class StreamOpsPlugin(AirflowPlugin):
    """The map of the fleet, below Browse."""

    name = "streamops"
    fastapi_apps = [{"app": app, "url_prefix": PREFIX, "name": "Fleet map"}]
    external_views = [
        {
            "name": "Fleet map",
            "href": f"{PREFIX}/",
            "destination": "nav",
            "category": "browse",
            "url_route": "fleet-map",
        }
    ]

    @classmethod
    def on_load(cls, *args: Any, **kwargs: Any) -> None:
        """Preload, in a process that forks those of tasks."""
        if sys.argv[1:2] and sys.argv[1] in FORKING:
            preload()
