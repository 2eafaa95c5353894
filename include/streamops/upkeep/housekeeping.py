"""Retention at work: what holds each snapshot of a job, what the rule says, and doing it under the job's lock."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from streamops import snapshots
from streamops.model import records
from streamops.model.definitions import Keep
from streamops.model.errors import LockedError, RefusedError
from streamops.model.owner import Owner
from streamops.model.records import now
from streamops.operations.operation import OVER, Operation
from streamops.snapshots import marks, removal, retention
from streamops.snapshots.removal import Swept
from streamops.snapshots.retention import Candidate, Verdict
from streamops.store import documents, jobs, keys, locks
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts

Finished = Callable[[Owner], bool | None]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Pruned:
    """What a run of retention decided, and what the sweep freed or would free."""

    job: str
    verdicts: tuple[Verdict, ...]
    swept: Swept
    applied: bool


def keep_of(store: ObjectStore, job: str) -> Keep | None:
    """The rule in the definition of the job's current version; None when it has none, which keeps everything."""
    definition = artifacts.current(store, jobs.record(store, job))
    return definition.snapshots.keep if definition and definition.snapshots else None


def users(store: ObjectStore) -> dict[tuple[str, str], tuple[str, ...]]:
    """Who needs which snapshot now: current deployments, jobs that stopped with one, and operations under way."""
    found: dict[tuple[str, str], list[str]] = {}
    for job in jobs.names(store):
        record = jobs.record(store, job) or records.JobRecord(job=job)  # a first deployment has only its lock yet
        if record.snapshot and record.desired == "stopped-with-snapshot":
            found.setdefault((job, record.snapshot), []).append(f"job {job}, which stopped with it")
        if record.deployment:
            deployment = documents.read(store, keys.deployment(job, record.deployment), records.Deployment)
            if deployment and deployment.value.from_snapshot:
                origin, _, name = deployment.value.from_snapshot.rpartition("/")
                who = f"deployment {record.deployment} of {job}, which started from it"
                found.setdefault((origin, name), []).append(who)
        lock = locks.read(store, job)
        holding = (lock.value.operation, *lock.value.unsettled) if lock else ()
        for operation_id in filter(None, holding):
            operation = documents.read(store, keys.operation(job, operation_id), Operation)
            for place in _named(operation.value) if operation else ():
                found.setdefault(place, []).append(f"operation {operation_id}")
    return {place: tuple(who) for place, who in found.items()}


def _named(operation: Operation) -> list[tuple[str, str]]:
    source = operation.request.source_snapshot()
    made = [(operation.job, operation.snapshot)]
    return made + ([source] if source else [])


def candidates(store: ObjectStore, job: str) -> list[Candidate]:
    """The job's snapshots as retention sees them."""
    needed = users(store)
    found = []
    for entry in snapshots.entries(store, job):
        pin = marks.pinned(store, job, entry.name)
        manifest = entry.manifest
        checks = marks.checks(store, job, entry.name, manifest.attempt) if manifest else marks.Checks()
        found.append(
            Candidate(
                name=entry.name,
                created=manifest.created if manifest else entry.written,
                pinned=pin.reason or f"by {pin.by}" if pin else "",
                used_by=needed.get((job, entry.name), ()),
                damaged=checks.problem(),
                refused=entry.refused,
            )
        )
    return found


def plan(store: ObjectStore, job: str, keep: Keep | None, moment: datetime) -> Pruned:
    """What retention would do at a moment; nothing is touched. Without a rule every snapshot is kept."""
    found = candidates(store, job)
    if keep is None:
        kept = ("no rule: the definition has no snapshots.keep",)
        verdicts = tuple(Verdict(item.name, item.created, True, kept) for item in reversed(found))
    else:
        verdicts = tuple(retention.decide(found, keep, moment))
    return Pruned(job, verdicts, removal.sweep(store, job, moment, apply=False), applied=False)


def prune(
    store: ObjectStore,
    job: str,
    keep: Keep | None,
    owner: Owner,
    finished: Finished,
    moment: datetime | None = None,
    say: Say = lambda line: None,
) -> Pruned:
    """Remove what the rule does not keep, and free what was removed 14 days ago.

    Raises:
        LockedError: an operation holds the job; nothing was done.
    """
    with holding(store, job, "apply_retention", owner, finished):
        planned = plan(store, job, keep, moment or now())
        for verdict in planned.verdicts:
            if not verdict.keep:
                removal.remove(store, job, verdict.name, verdict.why, owner.label())
                say(f"{job}/{verdict.name} removed: {verdict.why}; it can be brought back for {removal.KEPT.days} days")
            else:
                say(f"{job}/{verdict.name} kept: {verdict.why}")
        swept = removal.sweep(store, job, moment or now())
    if swept.stopped_by:
        say(f"{job}: nothing is freed, because {swept.stopped_by}")
    elif swept.versions:
        what = ", ".join(swept.snapshots) or "leftovers"
        say(f"{job}: {swept.versions} versions freed, {swept.size:,} bytes ({what})")
    return Pruned(job, planned.verdicts, swept, applied=True)


def remove(store: ObjectStore, job: str, name: str, reason: str, owner: Owner, finished: Finished) -> None:
    """Remove one snapshot, unless it is pinned or in use.

    Raises:
        RefusedError: something holds it; nothing was done.
        LockedError: an operation holds the job.
    """
    with holding(store, job, "remove_snapshot", owner, finished):
        pin = marks.pinned(store, job, name)
        needed = users(store).get((job, name), ())
        if pin or needed:
            what = f"pinned ({pin.reason})" if pin else f"in use by {', '.join(needed)}"
            raise RefusedError(f"Snapshot {job}/{name} is {what}; it is kept.")
        removal.remove(store, job, name, reason, owner.label())


@contextmanager
def holding(store: ObjectStore, job: str, what: str, owner: Owner, finished: Finished) -> Iterator[None]:
    """Hold the job's operation lock for a piece of work that is no operation. Raises LockedError."""
    name = f"{what}-{uuid.uuid4().hex[:12]}"
    lock = locks.acquire(store, job, name, what, owner, finished, now())
    if left := next((item for item in lock.unsettled if _open(store, job, item)), None):
        locks.release(store, job, name)
        raise LockedError(
            f"Operation {left} of job {job} was abandoned; finish it first ('streamops operations resume' or "
            "'abort'), or let the next operation on the job undo it."
        )
    try:
        with locks.renewing(lambda: locks.renew(store, job, name, now(), fence=lock.fence)):
            yield
    finally:
        locks.release(store, job, name)


def _open(store: ObjectStore, job: str, operation_id: str) -> bool:
    """Whether an operation was begun, and is neither finished nor undone."""
    found = documents.read(store, keys.operation(job, operation_id), Operation)
    return found is not None and found.value.state not in OVER
