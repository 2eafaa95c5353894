"""
# Rehearse with the state of a running job

A live snapshot of the job is restored under another name, whose version is published and writes elsewhere. The job
itself never stops. What is checked on the second job is yours; it ends afterwards.
"""

from typing import Any

from airflow.sdk import Param, dag, task

from streamops_airflow.hooks.snapshots import SnapshotHook
from streamops_airflow.operators.runbooks import CancelJobOperator


@dag(
    schedule=None,
    params={"job": Param("clicks"), "rehearsal": Param("clicks-rehearsal")},
    doc_md=__doc__,
    tags=["example"],
)
def rehearse_clicks() -> None:
    """Plain tasks with the hook."""

    @task
    def keep(params: dict[str, Any]) -> str:
        return SnapshotHook().save(params["job"]).name

    @task
    def rehearse(snapshot: str, params: dict[str, Any]) -> int:
        return SnapshotHook().restore(params["job"], snapshot, to=params["rehearsal"]).number

    end = CancelJobOperator(task_id="end", job="{{ params.rehearsal }}", trigger_rule="all_done")
    rehearse(keep()) >> end


rehearse_clicks()
