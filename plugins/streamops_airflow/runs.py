"""Which operation a DAG run is. Everything here follows from the run alone, so every try finds the same operation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from streamops.model.names import CLUSTER
from streamops.model.owner import Owner
from streamops.operations.follow import request
from streamops.operations.operation import Request, operation_id
from streamops.operations.requests import ClusterRequest
from streamops.operations.runbooks import RUNBOOKS

if TYPE_CHECKING:
    from airflow.sdk import Context

# Every step is idempotent and continues at what is recorded, so another try is safe; a refusal is never retried.
RETRIES: dict[str, Any] = {"retries": 2, "retry_delay": timedelta(seconds=5)}
# Different jobs may be operated on at the same time; one job's operations exclude each other by its lock.
DAG_ARGS: dict[str, Any] = {
    "catchup": False,
    "max_active_runs": 8,
    "is_paused_upon_creation": False,
    "default_args": {"owner": "streamops", **RETRIES},
}


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
        RefusedError: the form's values do not go together; names each.
    """
    dag_run, params = context["dag_run"], dict(context["params"])
    asked = request(dag_run.dag_id, **params)
    return Run(asked, owner(context), operation_id(dag_run.dag_id, dag_run.dag_id, dag_run.run_id))


def place(context: Context) -> tuple[str, str]:
    """Job (or the cluster) and operation id, also of a run whose other values are not a valid request."""
    dag_run = context["dag_run"]
    of_cluster = issubclass(RUNBOOKS[dag_run.dag_id].request, ClusterRequest)
    scope = CLUSTER if of_cluster else str(context["params"]["job"])
    return scope, operation_id(dag_run.dag_id, dag_run.dag_id, dag_run.run_id)
