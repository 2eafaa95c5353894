"""An engine's ports on the host of the stack: what the command line and other programs outside Airflow act through.

``questions`` asks the servers of an installation whether they answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

from streamops.clients import influx
from streamops.clients.dashboard import Dashboard
from streamops.clients.kafka import Ledger
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.errors import NotFoundError
from streamops.operations import timeline
from streamops.operations.ports import OwnersPort, Ports
from streamops.recount.recounting import recount_job
from streamops.settings import Settings
from streamops.spark.submitter import SparkSubmitter
from streamops.store import keys
from streamops.store.object_store import ObjectStore
from streamops.store.room import free_bytes


def local_ports(settings: Settings, owners: OwnersPort, store: ObjectStore | None = None) -> Ports:
    """Ports to the installation's own servers."""
    bucket = store or ObjectStore(settings)
    return Ports(
        store=bucket,
        submitter=SparkSubmitter(settings),
        ledger=Ledger(settings),
        owners=owners,
        recount=lambda job, since: recount_job(settings, bucket, job, since).model_dump(mode="json"),
        retention=lambda: ObjectStore(settings.for_retention()),
        free_bytes=lambda: free_bytes(settings),
        sinks_answer=partial(influx.ping, settings),
        write_points=partial(influx.write, settings),
        mark=lambda found, say: timeline.mark(settings, found, say),
        nodes=lambda: SupervisedNodes(settings),
    )


def questions(settings: Settings) -> dict[str, Callable[[], object]]:
    """One small question to each server that the settings name; it raises StreamOpsError when it is not answered."""

    def kafka() -> None:
        with closing(Ledger(settings, timeout_s=5)) as ledger, suppress(NotFoundError):  # then the broker answered
            ledger.end_offsets("trades")

    def influx() -> None:
        with closing(Dashboard(settings)) as dashboard:
            dashboard.newest(["avg_1s"])

    asked: dict[str, Callable[[], object]] = {
        "Object store": lambda: ObjectStore(settings).prefixes(keys.JOBS),
        "Kafka": kafka,
        "InfluxDB": influx,
    }
    return asked | ({"Spark master": SparkSubmitter(settings).master} if settings.spark_ui else {})
