"""Who needs which snapshot, so that it is not removed."""

from __future__ import annotations

from streamops.model import records
from streamops.operations.operation import Operation
from streamops.store import documents, jobs, keys, locks
from streamops.store.object_store import ObjectStore


def users(store: ObjectStore, but: str = "") -> dict[tuple[str, str], tuple[str, ...]]:
    """Who needs which snapshot now: current deployments, jobs that stopped with one, and operations under way.

    Args:
        but: the operation that asks, which does not count.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for job in jobs.names(store):
        record = jobs.record(store, job) or records.JobRecord(job=job)  # a first deployment has only its lock yet
        if record.snapshot and record.desired == "stopped-with-snapshot":
            found.setdefault((job, record.snapshot), []).append(f"job {job}, which stopped with it")
        if record.deployment:
            deployment = documents.find(store, keys.deployment(job, record.deployment), records.Deployment)
            if deployment and deployment.from_snapshot:
                origin, _, name = deployment.from_snapshot.rpartition("/")
                who = f"deployment {record.deployment} of {job}, which started from it"
                found.setdefault((origin, name), []).append(who)
        lock = locks.read(store, job)
        holding = (lock.value.operation, *lock.value.unsettled) if lock else ()
        for operation_id in (name for name in holding if name and name != but):
            operation = documents.find(store, keys.operation(job, operation_id), Operation)
            for place in _named(operation) if operation else ():
                found.setdefault(place, []).append(f"operation {operation_id}")
    return {place: tuple(who) for place, who in found.items()}


def _named(operation: Operation) -> list[tuple[str, str]]:
    source = operation.request.source_snapshot()
    made = [(operation.job, operation.snapshot)]
    return made + ([source] if source else [])
