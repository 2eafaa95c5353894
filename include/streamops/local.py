"""An engine's ports on the host of the stack: what the command line and other programs outside Airflow act through."""

from __future__ import annotations

from streamops import timeline
from streamops.adapters.influx import Points
from streamops.adapters.kafka import Ledger
from streamops.adapters.nodes import SupervisedNodes
from streamops.adapters.object_store import ObjectStore
from streamops.adapters.room import free_bytes
from streamops.adapters.spark import SparkSubmitter
from streamops.ports import OwnersPort, Ports
from streamops.recount import recount_job
from streamops.settings import Settings


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
