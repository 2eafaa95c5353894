"""The standalone cluster: drivers are submitted with spark-submit, and the master is asked what room there is."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import Any

import httpx

from streamops.definitions import Resources
from streamops.errors import UnreachableError
from streamops.settings import Settings
from streamops.submission import (
    Submission,
    executor_cores,
    mebibytes,
    spark_submit_command,
    submit_environment,
)

_DRIVER_ID = re.compile(r"\bdriver-\d{14}-\d{4,}\b")
_SUBMIT_S = 120


@dataclass(frozen=True)
class Worker:
    """A member of the cluster; memory in MiB."""

    id: str
    host: str
    state: str
    cores_free: int
    memory_free: int
    cores: int
    memory: int
    ui: str


@dataclass(frozen=True)
class Cluster:
    """What the master says of itself."""

    status: str  # ALIVE, RECOVERING or STANDBY
    workers: tuple[Worker, ...]
    drivers: tuple[dict[str, Any], ...]
    applications: tuple[dict[str, Any], ...]


class SparkSubmitter:
    """The installation's cluster."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def submit(self, submission: Submission) -> str:
        """Put a driver on the cluster and return Spark's id of it, which is only a hint.

        Raises:
            UnreachableError: spark-submit failed; the message ends with its last line.
        """
        command = spark_submit_command(self.settings, submission)
        try:
            done = subprocess.run(
                command,
                env=submit_environment(self.settings),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_SUBMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnreachableError(
                f"spark-submit to {self.settings.spark_master} did not end in {_SUBMIT_S} s; is the master up?"
            ) from None
        found = _DRIVER_ID.search(done.stdout + done.stderr)
        if done.returncode or not found:
            last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
            raise UnreachableError(
                f"spark-submit of {submission.job} to {self.settings.spark_master} failed ({done.returncode}): "
                f"{last[0][:300] if last else 'no message'}; check that the master runs ('make status') and retry."
            )
        return found.group(0)

    def cluster(self) -> Cluster:
        """The master's view.

        Raises:
            UnreachableError: the master does not answer.
        """
        try:
            answer = httpx.get(f"{self.settings.spark_ui.rstrip('/')}/json/", timeout=5)
            answer.raise_for_status()
            data = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise UnreachableError(
                f"The Spark master at {self.settings.spark_ui} did not answer ({type(error).__name__}); "
                "check that it runs ('make status') and retry."
            ) from error
        return parse_cluster(data)

    def room_for(self, resources: Resources) -> bool:
        """Whether one more driver with all its executors fits beside what runs."""
        return fits(self.cluster(), resources)


def parse_cluster(data: dict[str, Any]) -> Cluster:
    """The master's JSON page as a value."""
    workers = tuple(
        Worker(
            id=item["id"],
            host=item["host"],
            state=item["state"],
            cores_free=item["coresfree"],
            memory_free=item["memoryfree"],
            cores=item["cores"],
            memory=item["memory"],
            ui=item.get("webuiaddress", ""),
        )
        for item in data.get("workers", ())
    )
    drivers = tuple(data.get("activedrivers", ()))
    return Cluster(str(data.get("status", "UNKNOWN")), workers, drivers, tuple(data.get("activeapps", ())))


def fits(cluster: Cluster, resources: Resources) -> bool:
    """Whether a driver of one core and executors for all of ``resources.cores`` can be placed."""
    free = [[worker.cores_free, worker.memory_free] for worker in cluster.workers if worker.state == "ALIVE"]
    driver = mebibytes(resources.driver_memory)
    host = max((slot for slot in free if slot[0] >= 1 and slot[1] >= driver), key=lambda slot: slot[1], default=None)
    if host is None:
        return False
    host[0], host[1] = host[0] - 1, host[1] - driver
    each = executor_cores(resources, {})
    executor = mebibytes(resources.executor_memory)
    wanted = max(1, resources.cores // each)
    for slot in free:
        while wanted and slot[0] >= each and slot[1] >= executor:
            slot[0], slot[1], wanted = slot[0] - each, slot[1] - executor, wanted - 1
    return wanted == 0
