"""Puts a supervised Python driver on a standalone cluster: what SparkSubmitHook lacks for that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from streamops.model.errors import RefusedError
from streamops.settings import Settings
from streamops.spark import submission as submissions
from streamops.spark.submission import Submission
from streamops.spark.submitter import SparkSubmitter

_ELSEWHERE = ("queue", "namespace", "principal", "keytab")  # what a connection may say of YARN, Kubernetes, Kerberos


class DriverSubmitHook(SparkSubmitHook):
    """spark-submit of one launch of a job.

    Spark refuses Python applications in standalone cluster mode, so the application is SparkSubmit itself and the
    Python file stands in its arguments. ``--supervise`` makes the master relaunch the driver; the provider's hook
    cannot pass it, and ``spark.driver.supervise`` as a setting is ignored. Therefore ``SparkSubmitter`` submits, as it
    does without Airflow.

    Args:
        settings: the installation; its secrets are not used.
        submission: what to start, as the definition and the deployment say.
        conn_id: the connection of type ``spark`` that names the installation's master; its extras ``deploy-mode`` and
            ``spark-binary`` count.
        application_args: left out, or what the submission says: which launch the driver is, and of what code.
        conf: Spark settings that override those of the definition, of the same list.
        total_executor_cores, executor_cores, executor_memory, driver_memory: in place of the definition's. A core is
            a machine's core, however many slots it has.
        deploy_mode: ``cluster``, if any.
        spark_binary: the name of Spark's script.

    Raises:
        RefusedError: with what is given, the driver would not be what the operation is about, or would not last.
    """

    def __init__(
        self,
        settings: Settings,
        submission: Submission,
        conn_id: str,
        *,
        application_args: Sequence[str] | None = None,
        conf: Mapping[str, Any] | None = None,
        total_executor_cores: int | None = None,
        executor_cores: int | None = None,
        executor_memory: str | None = None,
        driver_memory: str | None = None,
        deploy_mode: str | None = None,
        spark_binary: str | None = None,
    ) -> None:
        super().__init__(conn_id=conn_id, conf=dict(conf or {}), deploy_mode=deploy_mode, spark_binary=spark_binary)
        self.settings = settings
        self._require_ours(conn_id)
        own = submissions.program_args(settings, submission)
        if application_args and list(application_args) != own:
            raise RefusedError(
                "application_args: they say which launch of which deployment the driver is, so only the operation "
                "gives them; what a job is to be told belongs into its params."
            )
        resources = {"cores": total_executor_cores, "executor_memory": executor_memory, "driver_memory": driver_memory}
        spark = {**(conf or {}), **({"spark.executor.cores": executor_cores} if executor_cores else {})}
        given = {name: value for name, value in resources.items() if value is not None}
        self.submission = submissions.changed(submission, given, spark)

    def _require_ours(self, conn_id: str) -> None:
        """Raises RefusedError: the connection leads to another cluster, or lets the driver run elsewhere."""
        found = self._connection
        if found["master"].removeprefix("spark://") != self.settings.spark_master.removeprefix("spark://"):
            raise RefusedError(
                f"Connection {conn_id} names the master {found['master']}, and this installation's is "
                f"{self.settings.spark_master}: on another cluster nobody would look after the driver."
            )
        if found["deploy_mode"] not in (None, "cluster"):
            raise RefusedError(
                f"deploy_mode {found['deploy_mode']}: the driver would end with the task, so it is cluster, whatever "
                "the task or its connection says."
            )
        if of_others := [name for name in _ELSEWHERE if found[name]]:
            raise RefusedError(f"Connection {conn_id} has {', '.join(of_others)}, which a standalone cluster has not.")

    def submit(self, application: str = "", **kwargs: Any) -> str:
        """Submit and return Spark's id of the driver.

        The submitter's whole environment would travel to the driver's command line and to the master's recovery
        files, so the environment of this process is not passed on.

        Args:
            application: left out, or the program that every driver begins with.

        Raises:
            RefusedError: it is another program, or the process of spark-submit is to be another than it is.
            UnreachableError: spark-submit failed; the message ends with its last line.
        """
        own = submissions.program(self.settings)
        if application not in ("", own):
            raise RefusedError(f"application {application}: only {own} asks for the lease before it lets a job write.")
        if kwargs:
            raise RefusedError(f"{', '.join(sorted(kwargs))}: spark-submit runs with the environment that is said.")
        return SparkSubmitter(self.settings, self.log.info, self._connection["spark_binary"]).submit(self.submission)

    def on_kill(self) -> None:
        """Leave the driver alone: it belongs to the job record, not to an Airflow task."""
