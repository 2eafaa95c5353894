"""The nodes of an installation: their supervisors, and what the master says of their workers."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any

import httpx

from streamops.clients.supervisor import Supervisor
from streamops.cluster import nodes, record
from streamops.cluster.membership import Program
from streamops.cluster.nodes import Inventory
from streamops.model.errors import RefusedError
from streamops.settings import Settings
from streamops.spark.master import DOWN, Master, parse_master
from streamops.store.object_store import ObjectStore

_TIMEOUT_S = 5.0
MASTER = "master"


class SupervisedNodes:
    """Starts and stops the master and the workers, whichever host they are on.

    Raises (every method that asks a supervisor): UnreachableError when it does not answer or refuses the password;
    NotFoundError when it does not know the program. Both name the supervisor. RefusedError on a host without an
    inventory of its own: what the object store says of addresses is shown, and no password is ever sent there.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._http = httpx.Client(timeout=_TIMEOUT_S, trust_env=False)

    @cached_property
    def inventory(self) -> Inventory:
        """The nodes there are, read once: from this host's file, or as the stack has published them."""
        if self._settings.nodes_file:
            return nodes.load(self._settings.nodes_file)
        return record.published_inventory(ObjectStore(self._settings))

    @cached_property
    def _private(self) -> dict[str, str]:
        return nodes.passwords(self._settings.nodes_private_file)

    def program(self, name: str) -> Program:
        """The program of a node, or of ``master``."""
        supervisor, program = self._of(name)
        found = supervisor.program(program)
        return Program(found.state, found.exit_status, found.detail)

    def start(self, name: str) -> None:
        """Start it; one that runs is left alone."""
        supervisor, program = self._of(name)
        supervisor.start(program)

    def stop(self, name: str) -> Program:
        """Stop it, and say how it ended; one that does not run is left alone."""
        supervisor, program = self._of(name)
        supervisor.stop(program)
        found = supervisor.program(program)
        return Program(found.state, found.exit_status, found.detail)

    def decommission(self, name: str) -> None:
        """Ask a worker to take nothing new: Spark's own means, a signal. It cannot be undone but by a restart."""
        self.signal(name, "PWR")

    def signal(self, name: str, signal: str) -> None:
        """Send a signal to the program of a node, or of ``master``."""
        supervisor, program = self._of(name)
        supervisor.signal(program, signal)

    def master(self) -> Master:
        """What the master says; DOWN when it does not answer. Executors are asked of the workers' pages."""
        answer = self._get(f"{self._settings.spark_ui.rstrip('/')}/json/")
        data = _decoded(answer)
        if answer is None or data is None:
            return DOWN
        found = parse_master(data, {item["id"]: self._executors(item) for item in data.get("workers", ())})
        return replace(found, at_ms=_said_at_ms(answer))

    def stateful_tasks(self, page: str, application: str) -> dict[str, int]:
        """How many tasks of the last stateful Spark stages each executor ran, by executor id, as Spark's API says.

        Args:
            page: the driver's page, as its status names it.
        """
        root = f"{page.rstrip('/')}/api/v1/applications/{application}/stages"
        listed = self._json(f"{root}?status=complete")
        found: dict[str, int] = {}
        for stage in stateful(listed if isinstance(listed, list) else []):
            # Without details=true, which is the default, the answer has no executorSummary.
            detail = self._json(f"{root}/{stage['stageId']}/{stage['attemptId']}")
            summary = detail.get("executorSummary") or {} if isinstance(detail, dict) else {}
            for executor, numbers in summary.items():
                found[executor] = found.get(executor, 0) + int(numbers.get("succeededTasks", 0))
        return found

    def _executors(self, worker: dict[str, Any]) -> tuple[tuple[str, str], ...]:
        if worker["state"] == "DEAD":
            return ()
        data = self._json(f"{worker.get('webuiaddress', '').rstrip('/')}/json/")
        executors = data.get("executors", ()) if data else ()
        return tuple((str(item.get("appid", "")), str(item.get("id", ""))) for item in executors)

    def _of(self, name: str) -> tuple[Supervisor, str]:
        if not self._settings.nodes_file:
            raise RefusedError("This host does not act on nodes (NODES_FILE is empty); the runbooks in Airflow do.")
        if name == MASTER:
            url, program = self.inventory.master.supervisor, self.inventory.master.program
        else:
            node = self.inventory.node(name)
            url, program = node.supervisor, node.program
        password = self._private.get(f"password.{name}", self._private.get("password", ""))
        return Supervisor(url, self._private.get("user", ""), password), program

    def _json(self, url: str) -> Any:
        return _decoded(self._get(url))

    def _get(self, url: str) -> httpx.Response | None:
        with contextlib.suppress(httpx.HTTPError):
            answer = self._http.get(url)
            return answer if answer.is_success else None
        return None


def _decoded(answer: httpx.Response | None) -> Any:
    with contextlib.suppress(ValueError):
        return answer.json() if answer is not None else None
    return None


def _said_at_ms(answer: httpx.Response) -> int:
    """When the server said so, by its own clock (RFC 9110, 6.6.1); 0 if it does not tell."""
    with contextlib.suppress(TypeError, ValueError):
        return int(parsedate_to_datetime(answer.headers.get("date")).timestamp() * 1000)
    return 0


def stateful(stages: list[dict[str, Any]], newest: int = 6) -> list[dict[str, Any]]:
    """Those of the newest Spark stages that have as many tasks as there are partitions of state, so more than one.

    A source with one partition has one task in its stage; the stage after the shuffle holds the state.
    """
    several = [item for item in stages if int(item.get("numTasks", 0)) > 1]
    return sorted(several, key=lambda item: int(item["stageId"]))[-newest:]
