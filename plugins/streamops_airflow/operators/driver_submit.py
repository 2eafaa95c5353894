"""A SparkSubmitOperator for streaming jobs: done when the job is healthy, not when the driver ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from streamops.model.errors import RefusedError
from streamops_airflow import runs
from streamops_airflow.hooks.driver_submit import DriverSubmitHook
from streamops_airflow.operators.base import OperationOperator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from streamops.spark.submission import Submission

# Why an argument of SparkSubmitOperator is refused, by argument.
_CODE = "a driver's code is that of the published version, and a shared library's"
_STANDALONE = "a standalone cluster has no such thing"
_STREAM = "the task is done when the job works, and a try that follows adopts the driver, because a stream has no end"
_SETTINGS = "what conf cannot say, the definition and the nodes' own settings say"
REFUSED = {
    **dict.fromkeys(
        ("files", "py_files", "archives", "jars", "driver_class_path", "java_class", "packages", "exclude_packages",
         "repositories"), _CODE),
    **dict.fromkeys(
        ("num_executors", "keytab", "principal", "proxy_user", "use_krb5ccache", "yarn_queue",
         "track_driver_via_k8s_api", "yarn_track_via_rm_api", "yarn_rm_auth"), _STANDALONE),
    **dict.fromkeys(("status_poll_interval", "post_submit_commands", "reconnect_on_retry", "durable"), _STREAM),
    **dict.fromkeys(
        ("properties_file", "env_vars", "verbose", "openlineage_inject_parent_job_info",
         "openlineage_inject_transport_info"), _SETTINGS),
    "name": "it says which launch of which job the driver is",
}  # fmt: skip


class SubmitOperator(OperationOperator, SparkSubmitOperator):
    """A SparkSubmitOperator whose application is a driver of an operation.

    What is submitted follows from the operation; what is given here overrides it, or is refused. The log has the full
    command.

    Args:
        conn_id: the connection of type ``spark``; left out, that of the installation.
        application, application_args, conf, total_executor_cores, executor_cores, executor_memory, driver_memory,
            deploy_mode, spark_binary: as ``DriverSubmitHook`` has them, for this driver only: ``reconcile`` brings a
            job back as its definition says.

    Raises:
        RefusedError: an argument of SparkSubmitOperator that is none of these; says why.
    """

    template_fields: Sequence[str] = ("streamops_conn_id", "application", "application_args", "conf")

    def __init__(
        self,
        *,
        conn_id: str = "",
        application: str = "",
        application_args: list[str] | None = None,
        conf: dict[str, Any] | None = None,
        total_executor_cores: int | None = None,
        executor_cores: int | None = None,
        executor_memory: str | None = None,
        driver_memory: str | None = None,
        deploy_mode: str | None = None,
        spark_binary: str | None = None,
        **kwargs: Any,
    ) -> None:
        for name in kwargs.keys() | kwargs.get("default_args", {}).keys():
            if name in REFUSED:
                raise RefusedError(f"{name} is refused: {REFUSED[name]}.")
        given: dict[str, Any] = {
            "total_executor_cores": total_executor_cores,
            "executor_cores": executor_cores,
            "executor_memory": executor_memory,
            "driver_memory": driver_memory,
            "deploy_mode": deploy_mode,
            "spark_binary": spark_binary,
        }
        super().__init__(
            application=application,
            application_args=application_args,
            conf=conf,
            conn_id=conn_id,
            durable=False,
            **given,
            **kwargs,
        )
        self.conn_id, self.given = conn_id, given

    def submit(self, submission: Submission) -> str:
        """Put a driver on the cluster, as it is given here, and return Spark's id of it."""
        hook = DriverSubmitHook(
            self.hook.settings,
            submission,
            self.conn_id or self.hook.services["spark"],
            application_args=self.application_args,
            conf=self.conf,
            **self.given,
        )
        return hook.submit(self.application)


class DriverSubmitOperator(SubmitOperator):
    """Puts the operation's driver on the cluster, supervised by the master, and waits for it without holding a worker.

    A retry adopts what the first try started: by launch id, through lease and status; Spark's driver id is a hint,
    because a relaunched driver gets a new one.

    Args:
        until: ``healthy`` (lease held, and every stage has committed a batch or found no data), or ``standby`` for
            a driver beside the running one; empty where another task waits.
        part: the job whose driver it is, in an operation on several.

    XCom: what the submit step reports, among it the launch and Spark's driver id.
    """

    def __init__(self, *, until: str = "healthy", part: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.until, self.part = until, part

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # that one returns nothing
        """Submit, or adopt what an earlier try submitted; then wait."""
        with self.carried_out(context):
            run = runs.of(context)
            facts = self.engine(context).run_task(run.job, run.operation_id, self.task_id, self.part or None)
        if not self.until:
            return facts
        context["ti"].xcom_push(key="submitted", value=facts)
        self.wait(context, self.until)
        return facts

    def after_wait(self, context: Context) -> dict[str, Any]:
        """The driver is where it should be."""
        return dict(context["ti"].xcom_pull(task_ids=self.task_id, key="submitted") or {})
