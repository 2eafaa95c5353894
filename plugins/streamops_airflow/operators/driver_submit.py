"""A SparkSubmitOperator for streaming jobs: done when the job is healthy, not when the driver ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from streamops_airflow import runs
from streamops_airflow.operators.base import OperationOperator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class DriverSubmitOperator(OperationOperator, SparkSubmitOperator):
    """Puts the operation's driver on the cluster, supervised by the master, and waits for it without a worker.

    What is submitted follows from the operation, so that the operator has no arguments of
    its own to get wrong. Another try adopts what the first one started: by launch id, through lease and status;
    Spark's driver id is a hint, because a relaunched driver gets a new one.

    Args:
        until: ``healthy`` (lease held, and every stage has committed a batch or found no data), or ``standby`` for
            a driver that warms up beside the running one.

    XCom: what the submit step reports, among it the launch and Spark's driver id.
    """

    template_fields: Sequence[str] = ("streamops_conn_id",)  # nothing private is rendered

    def __init__(self, *, until: str = "healthy", **kwargs: Any) -> None:
        super().__init__(deploy_mode="cluster", durable=False, **kwargs)
        self.until = until

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # that one returns nothing
        """Submit, or adopt what an earlier try submitted; then wait."""
        with self.carried_out(context):
            run = runs.of(context)
            facts = dict(self.engine(context).run_task(run.job, run.operation_id, self.task_id))
        context["ti"].xcom_push(key="submitted", value=facts)
        self.wait(context, self.until)
        return facts

    def after_wait(self, context: Context) -> dict[str, Any]:
        """The driver is where it should be."""
        return dict(context["ti"].xcom_pull(task_ids=self.task_id, key="submitted") or {})
