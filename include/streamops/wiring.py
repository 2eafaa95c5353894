"""An engine's ports on the host of the stack: what the command line and other programs outside Airflow act through."""

from __future__ import annotations

from streamops.clients.influx import Points
from streamops.clients.kafka import Ledger
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.operations import timeline
from streamops.operations.ports import OwnersPort, Ports
from streamops.recount.recounting import recount_job
from streamops.settings import Settings
from streamops.spark.submitter import SparkSubmitter
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
        sinks_answer=lambda: Points(settings).ping(),
        mark=lambda found, say: timeline.mark(settings, found, say),
        nodes=lambda: SupervisedNodes(settings),
    )
