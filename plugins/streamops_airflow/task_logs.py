"""Airflow's remote logging: task logs go to the bucket of the connection ``streamops_logs``, and are read from there.

``[logging] logging_config_class`` names ``LOGGING_CONFIG``, so every process of Airflow imports this module. Clients
are loaded when the first log is stored or read.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.config_templates.airflow_local_settings import DEFAULT_LOGGING_CONFIG
from pydantic import SecretStr

from streamops.model.errors import StreamOpsError, UnreachableError

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

    from streamops.upkeep.task_logs import TaskLogs

CONNECTION = "streamops_logs"
PAUSE_S = 30.0  # without an answer, the bucket is left alone for so long: whoever stores a log has other work, too

LOGGING_CONFIG = DEFAULT_LOGGING_CONFIG
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class RemoteTaskLogs:
    """``RemoteLogIO`` as Airflow calls it: ``upload`` after each end of a task, ``read`` for each look at a log.

    Airflow sets the state of a task before it uploads, so a bucket that is away changes nothing in a run. It holds up
    whoever uploads for some seconds at most, and for none in the ``PAUSE_S`` after that.
    """

    processors = ()

    def __init__(self) -> None:
        self._away_until = 0.0

    @cached_property
    def logs(self) -> TaskLogs:
        """The folder and the bucket. Raises AirflowNotFoundException: there is no such connection."""
        from airflow.sdk import BaseHook
        from airflow.sdk.configuration import conf

        from streamops.settings import BucketSettings
        from streamops.store.object_store import ObjectStore
        from streamops.upkeep.task_logs import TaskLogs

        found = BaseHook.get_connection(CONNECTION)
        bucket = BucketSettings(
            s3_endpoint=found.extra_dejson["endpoint_url"],
            s3_access_key=found.login or "",
            s3_secret_key=SecretStr(found.password or ""),
            s3_bucket=found.extra_dejson["bucket"],
        )
        return TaskLogs(Path(conf.get("logging", "base_log_folder")).expanduser(), ObjectStore(bucket, brief=True))

    def upload(self, path: os.PathLike[str] | str, ti: RuntimeTaskInstanceProtocol | None = None) -> None:
        """Store a log, and what could not be stored before; if it cannot be stored now, a later one does it."""
        from streamops.model.records import now

        name = str(path)
        try:
            self._ask(lambda: self.logs.send(name))
            if ".log.trigger." not in name:  # the triggerer's loop must not wait for the logs of others
                self._ask(lambda: self.logs.tidy(now()))
        except StreamOpsError as error:
            self.logs.missed()
            _log.warning("The log %s stays on the disk and is stored later. %s", name, error)

    def read(self, relative_path: str, ti: TaskInstance) -> tuple[list[str], list[str] | None]:
        """What the disk does not have of a log. Of a finished task Airflow then does not look at the disk itself."""
        from airflow.sdk.exceptions import AirflowNotFoundException
        from airflow.utils.state import State

        whole = ti.state not in State.unfinished
        try:
            found = self._ask(lambda: self.logs.read(relative_path, whole))
        except (StreamOpsError, AirflowNotFoundException) as error:
            return [f"Only what Airflow's disk has is shown. {error}"], None
        return [f"s3://{self.logs.store.bucket}/{name}" for name in found], list(found.values()) or None

    def _ask(self, question: Callable[[], _T]) -> _T:
        if time.monotonic() < self._away_until:
            raise UnreachableError(f"The object store of connection {CONNECTION} did not answer a moment ago.")
        try:
            return question()
        except UnreachableError:
            self._away_until = time.monotonic() + PAUSE_S
            raise


REMOTE_TASK_LOG: Any = RemoteTaskLogs()  # the name that Airflow looks for
