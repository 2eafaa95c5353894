"""An engine's ports, from an installation's settings. ``questions`` asks its servers whether they answer.

What only some steps need is loaded when one asks: most tasks never do, and each is a new process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from streamops.clients import influx
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.errors import NotFoundError
from streamops.operations import timeline
from streamops.operations.ports import OwnersPort, Ports
from streamops.settings import Settings
from streamops.spark.submitter import SparkSubmitter
from streamops.store import keys
from streamops.store.object_store import ObjectStore
from streamops.store.room import free_bytes

if TYPE_CHECKING:
    from streamops.clients.kafka import Ledger
    from streamops.model.records import Offsets


class _LateLedger:
    """The ledger, whose client is loaded by its first question."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def _ledger(self) -> Ledger:
        from streamops.clients.kafka import Ledger

        return Ledger(self.settings)

    def __getattr__(self, question: str) -> Any:
        return getattr(self._ledger, question)


def ports(settings: Settings, owners: OwnersPort, store: ObjectStore, submitter: SparkSubmitter | None = None) -> Ports:
    """Ports to the installation's servers."""

    def recount(job: str, since: Offsets | None) -> dict[str, Any]:
        from streamops.recount.recounting import recount_job

        return recount_job(settings, store, job, since).model_dump(mode="json")

    return Ports(
        store=store,
        submitter=submitter or SparkSubmitter(settings),
        ledger=_LateLedger(settings),
        owners=owners,
        recount=recount,
        retention=lambda: ObjectStore(settings.for_retention()),
        free_bytes=lambda: free_bytes(settings),
        sinks_answer=partial(influx.ping, settings),
        write_points=partial(influx.write, settings),
        read_points=partial(influx.read, settings),
        mark=lambda found, say: timeline.mark(settings, found, say),
        nodes=lambda: SupervisedNodes(settings),
    )


def questions(settings: Settings) -> dict[str, Callable[[], object]]:
    """One small question to each server that the settings name; it raises StreamOpsError when it is not answered."""
    from streamops.clients.dashboard import Dashboard
    from streamops.clients.kafka import Ledger

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
