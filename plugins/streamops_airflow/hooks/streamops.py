"""One installation of StreamOps as Airflow connections, and the core's engine built from them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from streamops.model.errors import RefusedError, StreamOpsError
from streamops.model.owner import Owner
from streamops.operations.engine import Engine
from streamops.operations.follow import request
from streamops.settings import Settings
from streamops.spark.submitter import SparkSubmitter
from streamops.store.object_store import ObjectStore
from streamops.wiring import ports, questions
from streamops_airflow import runs

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context

    from streamops.operations.operation import Request
    from streamops.spark.submission import Submission

# A task's log is the operation's audit; what the client says of its connections does not belong there.
logging.getLogger("kafka").setLevel(logging.WARNING)

# The connections of an installation by service: those of the first one, and of a connection that names none.
FIRST = {
    "s3": "streamops_s3",
    "spark": "streamops_spark",
    "kafka": "streamops_kafka",
    "influx": "streamops_influx",
    "snapshots": "streamops_snapshots",
    "s3_retention": "streamops_s3_retention",
}
_OPTIONAL = "s3_retention"


def settings_from(
    s3: Connection, spark: Connection, kafka: Connection, influx: Connection, signing: Connection
) -> Settings:
    """Read the five connections.

    ``s3``: login, password, extra ``endpoint_url`` and ``bucket``. ``spark``: host and port of the master, extra
    ``spark_ui``, ``spark_home``, ``spark_conf_dir``, ``node_dir``, and the paths ``nodes_file`` and
    ``nodes_private_file``. ``kafka``: extra ``bootstrap.servers``. ``influx``: host is the URL, login the
    organisation, password the token, extra ``bucket``. ``snapshots``: password is the list of signing keys, ID:HEX
    each, the current one first.
    """
    s3_extra, spark_extra = s3.extra_dejson, spark.extra_dejson
    host = (spark.host or "").removeprefix("spark://")
    values: dict[str, Any] = {
        "kafka_bootstrap_servers": kafka.extra_dejson["bootstrap.servers"],
        "s3_endpoint": s3_extra["endpoint_url"],
        "s3_access_key": s3.login,
        "s3_secret_key": s3.password,
        "s3_bucket": s3_extra["bucket"],
        "influx_url": influx.host,
        "influx_org": influx.login,
        "influx_token": influx.password,
        "influx_bucket": influx.extra_dejson["bucket"],
        "snapshot_keys": signing.password or "",
        "spark_master": f"spark://{host}:{spark.port}" if spark.port else f"spark://{host}",
        "spark_ui": spark_extra.get("spark_ui", ""),
        "spark_home": spark_extra["spark_home"],
        "spark_conf_dir": spark_extra["spark_conf_dir"],
        "node_dir": spark_extra["node_dir"],
        "nodes_file": spark_extra.get("nodes_file", ""),
        "nodes_private_file": spark_extra.get("nodes_private_file", ""),
    }
    return Settings.model_validate(values)


@dataclass(frozen=True)
class _Owners:
    """Whether the owner of a lock is over, as Airflow says."""

    finished: Callable[[Owner], bool | None]
    forgotten: Callable[[Owner], bool]


class _Submitter(SparkSubmitter):
    """The cluster, with drivers put on it through ``put``, which shows them as Airflow's own tasks do."""

    def __init__(self, settings: Settings, put: Callable[[Submission], str]) -> None:
        super().__init__(settings)
        self.put = put

    def submit(self, submission: Submission) -> str:
        """Spark's id of the driver."""
        return self.put(submission)


def _nothing(submission: Submission) -> str:
    raise RefusedError(f"Nothing is submitted from here, so launch {submission.launch} is not.")


class StreamOpsHook(BaseHook):
    """Clients of one installation.

    Args:
        streamops_conn_id: the connection of type ``streamops`` that names the installation. Its extra names the
            connections of the services (``s3``, ``spark``, ``kafka``, ``influx``, ``snapshots``, and
            ``s3_retention`` if there is one); without any, and without a connection ``streamops``, they are ``FIRST``.
    """

    conn_name_attr = "streamops_conn_id"
    default_conn_name = "streamops"
    conn_type = "streamops"
    hook_name = "StreamOps"

    def __init__(self, streamops_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.streamops_conn_id = streamops_conn_id

    @cached_property
    def services(self) -> dict[str, str]:
        """Connection ids by service.

        Raises:
            AirflowNotFoundException: there is no such connection.
            RefusedError: it names some of the services, so that two installations would be mixed.
        """
        try:
            extra = self.get_connection(self.streamops_conn_id).extra_dejson
        except AirflowNotFoundException:
            if self.streamops_conn_id != self.default_conn_name:
                raise
            extra = {}
        named = {service: str(extra[service]) for service in FIRST if extra.get(service)}
        if missing := [service for service in FIRST if service not in named and service != _OPTIONAL]:
            if named:
                raise RefusedError(
                    f"Connection {self.streamops_conn_id} names no connection for {', '.join(missing)}; an "
                    "installation names each of its services."
                )
            return FIRST
        return named

    @cached_property
    def settings(self) -> Settings:
        """Endpoints and credentials. Not for XCom, templates or logs."""
        return settings_from(*(self.get_connection(self.services[name]) for name in FIRST if name != _OPTIONAL))

    @cached_property
    def store(self) -> ObjectStore:
        """The object store."""
        return ObjectStore(self.settings)

    @cached_property
    def retention(self) -> ObjectStore:
        """The object store with the identity that may delete snapshots and jobs; only what does that asks for it.

        ``s3_retention``: login and password. Without this connection it is the same as ``store``.
        """
        if _OPTIONAL not in self.services:
            return self.store
        try:
            found = self.get_connection(self.services[_OPTIONAL])
        except AirflowNotFoundException:
            return self.store
        identity = {"s3_retention_access_key": found.login or "", "s3_retention_secret_key": found.password or ""}
        return ObjectStore(Settings.model_validate({**dict(self.settings), **identity}).for_retention())

    def get_conn(self) -> ObjectStore:
        """The object store: what most of an operation talks to."""
        return self.store

    def test_connection(self) -> tuple[bool, str]:
        """Ask each server one small question; one that does not answer is named, with its address."""
        try:
            asked = questions(self.settings)
        except KeyError as error:
            return False, f"A connection of this installation has no {error} in its extra."
        except (AirflowNotFoundException, RefusedError) as error:
            return False, str(error)
        silent = []
        for question in asked.values():
            try:
                question()
            except StreamOpsError as error:
                silent.append(str(error))
        return not silent, " ".join(silent) or f"{', '.join(asked)}: all answer."

    def engine(
        self,
        say: Callable[[str], None],
        finished: Callable[[Owner], bool | None],
        submit: Callable[[Submission], str] = _nothing,
        at_point: Callable[[str, str], None] = lambda step, when: None,
        forgotten: Callable[[Owner], bool] = lambda owner: False,
    ) -> Engine:
        """The engine that carries out an operation's steps.

        Args:
            say: receives one line for each thing done; together they are the audit.
            finished: whether the DAG run of an owner has finished; None when Airflow does not know it.
            submit: puts a driver on the cluster and returns Spark's id of it; left out where none is submitted.
            at_point: called before and after each side effect.
            forgotten: whether Airflow says that it knows no such run.
        """
        found = ports(self.settings, _Owners(finished, forgotten), self.store, _Submitter(self.settings, submit))
        return Engine(replace(found, retention=lambda: self.retention), say, at_point)

    def task_engine(
        self, context: Context, say: Callable[[str], None], submit: Callable[[Submission], str] = _nothing
    ) -> Engine:
        """The engine in a running task: it stops acting once the task may no longer run.

        Args:
            submit: puts a driver on the cluster; left out where the task starts none.
        """
        return self.engine(say, runs.finished(context), submit, runs.fence(context), runs.forgotten(context))

    def preview(self, runbook: str, **asked: Any) -> list[str]:
        """What a runbook would say about a request before touching anything, such as the verdict on each stage's state.

        Args:
            asked: the fields of the runbook's form.

        Returns:
            One line for each thing, for a log or for a person who has to decide.

        Raises:
            StreamOpsError: it would refuse the request; the message says why.
        """
        return self.checked(request(runbook, **asked))[0]

    def checked(self, asked: Request) -> tuple[list[str], dict[str, Any]]:
        """As ``preview``, of a whole request, with the facts that its first step would record."""
        said: list[str] = []
        engine = self.engine(said.append, finished=lambda owner: None)
        return said, engine.preview(asked, Owner(kind="airflow"))

    def watcher(self) -> Engine:
        """An engine that only looks, in the triggerer."""
        return self.engine(say=self.log.info, finished=runs.finished_as_triggers_ask())

    def submit(self, submission: Submission) -> str:
        """Put a driver on the cluster, as its definition says, and return Spark's id of it."""
        from streamops_airflow.hooks.driver_submit import DriverSubmitHook  # loads the provider

        return DriverSubmitHook(self.settings, submission, self.services["spark"]).submit()
