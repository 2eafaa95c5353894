"""Airflow's REST API, as far as the command line needs it: trigger a runbook and watch it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import quote

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from streamops.model.errors import NotFoundError, RefusedError, StreamOpsError, UnreachableError
from streamops.settings import Settings

RUN_FINISHED = frozenset({"success", "failed"})
TASK_FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
_TRIES = 4  # 0.5, 1 and 2 s apart


class _PassingError(UnreachableError):
    """A failure that Airflow gets over by itself: an answer of 5xx, or a connection lost before the answer."""


class _TakenError(RefusedError):
    """What was to be made is there already."""


@dataclass(frozen=True)
class Run:
    """One DAG run; ``state`` is Airflow's word: queued, running, success or failed."""

    dag_id: str
    run_id: str
    state: str
    started: datetime | None = None
    ended: datetime | None = None

    @property
    def finished(self) -> bool:
        """Whether Airflow will do nothing more in this run."""
        return self.state in RUN_FINISHED


@dataclass(frozen=True)
class Task:
    """One task instance of a run; ``state`` is None until Airflow has looked at it."""

    task_id: str
    state: str | None
    started: datetime | None
    ended: datetime | None
    tries: int
    map_index: int = -1  # of a task that is mapped over several things

    @property
    def finished(self) -> bool:
        """Whether this task has reached its last state for now."""
        return self.state in TASK_FINISHED


class Airflow:
    """One Airflow installation, as its user.

    A request that meets a failure which passes (5xx, a lost connection) is made again; each may be made twice.

    Raises (every method): UnreachableError when it does not answer; RefusedError when it refuses the login.
    """

    def __init__(self, settings: Settings, timeout_s: float = 15.0) -> None:
        if not settings.airflow_url:
            raise NotFoundError("This installation names no Airflow (AIRFLOW_URL is empty); run 'streamops doctor'.")
        self.url = settings.airflow_url.rstrip("/")
        self._page = settings.airflow_page.rstrip("/") or self.url
        self._login = {
            "username": settings.airflow_user,
            "password": settings.airflow_password.get_secret_value(),
        }
        self.installation = settings.airflow_installation
        self._token: str | None = None
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def trigger(self, dag_id: str, conf: Mapping[str, Any], note: str | None = None) -> Run:
        """Start a runbook with the values of its form, once, even if the request has to be made again.

        Raises:
            RefusedError: Airflow's check of the form refused a value; the message is Airflow's.
            NotFoundError: there is no such runbook (yet).
        """
        # Named here rather than by Airflow: a second request for the same run is refused, not begun.
        run_id = f"manual__{datetime.now(UTC).isoformat()}_{uuid.uuid4().hex[:8]}"
        body = {"dag_run_id": run_id, "logical_date": None, "conf": dict(conf), "note": note}
        try:
            return _run(self._call("POST", f"/api/v2/dags/{quote(dag_id)}/dagRuns", json=body))
        except _TakenError:
            return self.run(dag_id, run_id)

    def run(self, dag_id: str, run_id: str) -> Run:
        """The run as it is now. Raises NotFoundError."""
        return _run(self._call("GET", f"/api/v2/dags/{quote(dag_id)}/dagRuns/{_path(run_id)}"))

    def tasks(self, dag_id: str, run_id: str) -> list[Task]:
        """The run's tasks, those that started first in front."""
        path = f"/api/v2/dags/{quote(dag_id)}/dagRuns/{_path(run_id)}/taskInstances"
        entries: list[dict[str, Any]] = []
        while True:
            page = self._call("GET", path, params={"limit": 100, "offset": len(entries)})
            entries += page["task_instances"]
            if not page["task_instances"] or len(entries) >= page["total_entries"]:
                break
        found = [
            Task(
                entry["task_id"],
                entry["state"],
                _time(entry["start_date"]),
                _time(entry["end_date"]),
                int(entry["try_number"]),
                int(entry["map_index"]),
            )
            for entry in entries
        ]
        return sorted(found, key=lambda task: (task.started is None, task.started or datetime.max))

    def log(self, dag_id: str, run_id: str, task_id: str, tries: int = 1, map_index: int = -1) -> list[str]:
        """The lines that a task logged in one of its tries; empty when there is no log yet."""
        return [str(entry.get("event", "")) for entry in self._log(dag_id, run_id, task_id, tries, map_index)]

    def error(self, dag_id: str, run_id: str, task_id: str, tries: int = 1, map_index: int = -1) -> str:
        """The message of the error that ended a task; empty when its log shows none."""
        for entry in reversed(self._log(dag_id, run_id, task_id, tries, map_index)):
            detail = entry.get("error_detail") or []
            if detail:
                return str(detail[0].get("exc_value", "")).strip()
        return ""

    def _log(self, dag_id: str, run_id: str, task_id: str, tries: int, map_index: int) -> list[dict[str, Any]]:
        path = f"/api/v2/dags/{quote(dag_id)}/dagRuns/{_path(run_id)}/taskInstances/{quote(task_id)}/logs/{tries}"
        try:
            content = self._call("GET", path, params={"full_content": "true", "map_index": map_index})["content"]
        except NotFoundError:
            return []
        return [{"event": line} if isinstance(line, str) else line for line in content]

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", *, map_index: int = -1) -> Any:
        """A value that a task handed on, or None."""
        path = (
            f"/api/v2/dags/{quote(dag_id)}/dagRuns/{_path(run_id)}/taskInstances/{quote(task_id)}"
            f"/xcomEntries/{quote(key)}"
        )
        try:
            return self._call("GET", path, params={"map_index": map_index})["value"]
        except NotFoundError:
            return None

    def ready(self, dag_id: str) -> bool:
        """Whether the runbook is known and accepts runs."""
        try:
            answer = self._call("GET", f"/api/v2/dags/{quote(dag_id)}")
        except NotFoundError:
            return False
        return not answer["is_paused"] and not answer.get("has_import_errors")

    def require_unpaused(self, dag_id: str) -> None:
        """Make sure that a run would begin.

        Raises:
            RefusedError: the DAG is paused, so that its runs wait for as long as it is.
            NotFoundError: there is no such DAG (yet).
        """
        path = f"/dags/{quote(dag_id)}"
        if self._call("GET", f"/api/v2{path}")["is_paused"]:
            raise RefusedError(
                f"{dag_id} is paused in Airflow. Next: switch it on at {self._page}{path}, and try again."
            )

    def page(self, run: Run) -> str:
        """Where a person looks at the run."""
        return f"{self._page}/dags/{quote(run.dag_id)}/runs/{_path(run.run_id)}"

    def _call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        again = Retrying(
            retry=retry_if_exception_type(_PassingError),
            stop=stop_after_attempt(_TRIES),
            wait=wait_exponential(multiplier=0.5),
            reraise=True,
        )
        return again(self._try, method, path, **request)

    def _try(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        if self._token is None:
            self._token = self._authenticate()
        answer = self._send(method, path, **request)
        if answer.status_code == 401:  # tokens expire; the login does not
            self._token = self._authenticate()
            answer = self._send(method, path, **request)
        if answer.status_code == 404:
            raise NotFoundError(f"Airflow at {self.url} has no {path}; check the name, or wait until it has read it.")
        if answer.status_code == 409:
            raise _TakenError(f"Airflow refused the request: {_detail(answer)}.")
        if answer.status_code in (400, 422):
            raise RefusedError(f"Airflow refused the request: {_detail(answer)}.")
        if answer.status_code in (401, 403):
            raise RefusedError(f"Airflow at {self.url} does not allow this ({answer.status_code}); check the login.")
        if answer.status_code >= 500:
            raise _PassingError(f"Airflow at {self.url} answered {answer.status_code}; read its log and retry.")
        if answer.is_error:
            raise StreamOpsError(f"Airflow answered {answer.status_code} to {path}: {_detail(answer)}.")
        return dict(answer.json())

    def _authenticate(self) -> str:
        answer = self._send("POST", "/auth/token", json=self._login, authorized=False)
        if answer.status_code in (401, 403):
            raise RefusedError(f"Airflow at {self.url} refused the login of {self._login['username']!r}; check it.")
        if answer.is_error:
            raise _PassingError(f"Airflow at {self.url} gave no token ({answer.status_code}); is it still starting?")
        return str(answer.json()["access_token"])

    def _send(self, method: str, path: str, authorized: bool = True, **request: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self._token}"} if authorized else {}
        try:
            return self._http.request(method, path, headers=headers, **request)
        except httpx.HTTPError as error:
            # No one there, or too slow: said at once. A connection lost on the way: Airflow restarts, or ended it.
            lost = isinstance(error, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError)
            raise (_PassingError if lost else UnreachableError)(
                f"Airflow at {self.url} did not answer ({type(error).__name__}); "
                "check that it runs ('make status') and retry."
            ) from error


def _run(entry: Mapping[str, Any]) -> Run:
    return Run(
        entry["dag_id"], entry["dag_run_id"], entry["state"], _time(entry["start_date"]), _time(entry["end_date"])
    )


def _path(run_id: str) -> str:
    return quote(run_id, safe="")


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _detail(answer: httpx.Response) -> str:
    try:
        detail = answer.json().get("detail", answer.text)
    except ValueError:
        detail = answer.text
    if isinstance(detail, list):  # what a form check says, one entry a field
        detail = "; ".join(str(entry.get("msg", entry)) for entry in detail)
    return str(detail).strip().rstrip(".")[:500]
