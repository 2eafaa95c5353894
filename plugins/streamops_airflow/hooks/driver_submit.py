"""Puts a supervised Python driver on a standalone cluster: what SparkSubmitHook lacks for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from streamops.settings import Settings
from streamops.spark import submission as submissions
from streamops.spark.submission import Submission
from streamops.spark.submitter import DRIVER_ID


class DriverSubmitHook(SparkSubmitHook):
    """spark-submit of one launch of a job.

    Spark refuses Python applications in standalone cluster mode, so the application is SparkSubmit itself and the
    Python file stands in its arguments. ``--supervise`` makes the master relaunch the driver; the provider's hook
    cannot pass it, and ``spark.driver.supervise`` as a setting is ignored.

    Args:
        settings: the installation; its secrets are not used.
        submission: what to start. Arguments and settings come from ``streamops.spark.submission`` only.
        conn_id: the connection of type ``spark`` that names the master.
    """

    def __init__(self, settings: Settings, submission: Submission, conn_id: str) -> None:
        self.command = submissions.spark_submit_command(settings, submission)
        self.environment = submissions.submit_environment(settings)
        super().__init__(
            conn_id=conn_id,
            deploy_mode="cluster",
            java_class="org.apache.spark.deploy.SparkSubmit",
        )

    def submit(self, application: str = "", **kwargs: Any) -> str:
        """Submit and return Spark's id of the driver.

        The submitter's whole environment would travel to the driver's command line and to the master's recovery
        files, so the environment of this process is not passed on.

        Raises:
            AirflowException: spark-submit failed; the message ends with its last lines.
        """
        driver_id = super().submit(application, env=self.environment, **kwargs)
        if not driver_id:
            raise RuntimeError("spark-submit returned no driver id")  # the base class raises before this
        return driver_id

    def on_kill(self) -> None:
        """Leave the driver alone: it belongs to the job record, not to an Airflow task."""

    def _build_spark_submit_command(self, application: str) -> list[str]:
        self.log.info("spark-submit: %s", self._mask_cmd(self.command))
        return list(self.command)

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        # The base class takes the first "driver-1" it sees for an id, and a job may be called that.
        for raw in itr:
            line = str(raw).strip()
            self._last_submit_log_lines.append(line)
            self.log.info(line)
            if found := DRIVER_ID.search(line):
                self._driver_id = found.group(0)
