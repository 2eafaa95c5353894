"""Which operation a DAG run is. Everything here follows from the run alone, so every try finds the same operation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk.exceptions import AirflowTaskTerminated
from airflow.sdk.log import redact  # type: ignore[attr-defined]

from streamops.model.errors import RefusedError
from streamops.model.names import CLUSTER
from streamops.model.owner import Owner
from streamops.operations.follow import request
from streamops.operations.operation import Request, operation_id
from streamops.operations.requests import ClusterRequest
from streamops.operations.runbooks import RUNBOOKS

if TYPE_CHECKING:
    from airflow.sdk import Context

# Every step is idempotent and continues at what is recorded, so another try is safe; a refusal is never retried.
# The tries reach over a server that is away for a minute: they pause for 5, 10, 20, 30 and 30 s at least.
# The timeout ends what no deadline of a step or of a client does; a copy of some terabytes ends before. Then the
# teardowns run. Airflow's dagrun_timeout would skip them.
RETRIES: dict[str, Any] = {
    "retries": 5,
    "retry_delay": timedelta(seconds=5),
    "retry_exponential_backoff": 2,
    "max_retry_delay": timedelta(seconds=30),
    "execution_timeout": timedelta(hours=6),
}
_FINISHED = {"success": True, "failed": True, "queued": False, "running": False}
# Different jobs may be operated on at the same time; one job's operations exclude each other by its lock.
DAG_ARGS: dict[str, Any] = {
    "catchup": False,
    "max_active_runs": 8,
    "is_paused_upon_creation": False,
    "default_args": {"owner": "streamops", **RETRIES},
}
MOST_ASKING = 256  # runs at a time where some may wait for a person; these take no worker
HEALING = "healing"  # the pool of what heals; the stack makes it, with slots that no other task gets
INSTALLATION = "streamops_conn_id"  # the field of every runbook's form that is no part of the request
# For DAGs whose form has it.
ASKED_ARGS: dict[str, Any] = {**DAG_ARGS["default_args"], INSTALLATION: f"{{{{ params.{INSTALLATION} }}}}"}


@dataclass(frozen=True)
class Run:
    """One DAG run as an operation."""

    request: Request
    owner: Owner
    operation_id: str

    @property
    def job(self) -> str:
        """The job that is operated on."""
        return self.request.job


def owner(context: Context, otherwise: str = "unknown") -> Owner:
    """The DAG run, as the owner of a lock; ``otherwise`` stands for the user of a run that no one triggered."""
    dag_run = context["dag_run"]
    user = getattr(dag_run, "triggering_user_name", None) or otherwise
    return Owner(kind="airflow", dag_id=dag_run.dag_id, run_id=dag_run.run_id, user=user)


def of(context: Context) -> Run:
    """The operation that the running task belongs to.

    Raises:
        RefusedError: the form's values do not go together, or one is no field of the form; names each.
    """
    require_known(context)
    dag_run, params = context["dag_run"], dict(context["params"])
    params.pop(INSTALLATION, None)
    asked = request(dag_run.dag_id, **params)
    return Run(asked, owner(context), operation_id(dag_run.dag_id, dag_run.dag_id, dag_run.run_id))


def require_known(context: Context) -> None:
    """Refuse values that the form has no field for: a word that is spelled wrongly must not be taken for nothing.

    Raises:
        RefusedError: names them.
    """
    known = context["dag"].params
    if unknown := sorted(set(context["dag_run"].conf or {}) - set(known)):
        raise RefusedError(
            f"{context['dag_run'].dag_id} has no field {', '.join(unknown)}; it has "
            f"{', '.join(sorted(known)) or 'none'}. Nothing was touched."
        )


def told(context: Context) -> Iterator[str]:
    """Who asks for what, from where: what the log of the first task begins with."""
    dag_run = context["dag_run"]
    kind = _kind(context)
    note = f", {dag_run.note}" if dag_run.note else ""
    yield f"Run {dag_run.dag_id}/{dag_run.run_id} ({kind}), asked for by {owner(context, 'no one').user}{note}"
    yield f"Form: {json.dumps(form_values(context), default=str)}"


def _kind(context: Context) -> str:
    run_type = context["dag_run"].run_type
    return str(getattr(run_type, "value", run_type))


def by_schedule(context: Context) -> bool:
    """Whether the run began because it was time, and nobody has seen its form."""
    return _kind(context) == "scheduled"


def form_values(context: Context) -> dict[str, Any]:
    """Every value of the form, and what was given besides; secrets are masked."""
    return cast("dict[str, Any]", redact({**context["params"], **(context["dag_run"].conf or {})}))


def found(context: Context) -> Iterator[str]:
    """What a watcher told that started this run, a line for each thing; nothing for a run that a person triggered."""
    for events in (context.get("triggering_asset_events") or {}).values():
        for event in events:
            yield from ((event.extra or {}).get("payload") or {}).get("found", ())


def place(context: Context) -> tuple[str, str]:
    """Job (or the cluster) and operation id, also of a run whose other values are not a valid request."""
    dag_run = context["dag_run"]
    of_cluster = issubclass(RUNBOOKS[dag_run.dag_id].request, ClusterRequest)
    scope = CLUSTER if of_cluster else str(context["params"]["job"])
    return scope, operation_id(dag_run.dag_id, dag_run.dag_id, dag_run.run_id)


def finished(context: Context) -> Callable[[Owner], bool | None]:
    """Asks Airflow whether the DAG run that owns a lock is over; None when Airflow does not know the run."""
    return _finished(lambda dag_id, run_id: context["ti"].get_dagrun_state(dag_id, run_id))


def finished_as_triggers_ask() -> Callable[[Owner], bool | None]:
    """The same where there is no task: in the triggerer, from any thread."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # loads much that parsing does not need

    return _finished(RuntimeTaskInstance.get_dagrun_state)


def under_way(dag_id: str) -> bool:
    """Whether a run of a DAG has yet to begin or to end; asked in the triggerer, from any thread."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    return RuntimeTaskInstance.get_dr_count(dag_id, states=["queued", "running"]) > 0


def _finished(state_of: Callable[[str, str], Any]) -> Callable[[Owner], bool | None]:
    def ask(owner: Owner) -> bool | None:
        if owner.kind != "airflow" or not owner.dag_id or not owner.run_id:
            return None
        try:
            state = state_of(owner.dag_id, owner.run_id)
        except Exception:  # the Task SDK has no error of its own for an unknown run
            return None
        return _FINISHED.get(str(getattr(state, "value", state)))

    return ask


def forgotten(context: Context) -> Callable[[Owner], bool]:
    """Asks Airflow whether it knows no run of that name any more, such as one that was deleted."""

    def ask(owner: Owner) -> bool:
        if owner.kind != "airflow" or not owner.dag_id or not owner.run_id:
            return False
        try:
            return not context["ti"].get_dr_count(dag_id=owner.dag_id, run_ids=[owner.run_id])
        except Exception:  # who does not answer has not said so
            return False

    return ask


def last_try(context: Context) -> bool:
    """Whether Airflow tries the running task no more when it fails."""
    ti = context["ti"]
    return bool(ti.try_number > ti.max_tries)


def fence(context: Context) -> Callable[[str, str], None]:
    """Refuses to continue once this task may no longer run.

    A task that someone marks failed keeps its process for some seconds (until the next heartbeat), while Airflow
    already runs the teardowns. The check stands before every side effect, beside the conditional writes.
    """
    ti = context["ti"]

    def check(step: str, when: str) -> None:
        if when != "before":
            return
        states = ti.get_task_states(
            dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index
        )
        state = next(iter(states.get(ti.run_id, {}).values()), None)
        if state is not None and str(getattr(state, "value", state)) != "running":
            raise AirflowTaskTerminated(f"This task was set to {state} meanwhile; {step} is left to the teardown.")

    return check
