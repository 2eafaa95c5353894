"""Snapshots by schedule: which jobs are due, and taking one with the steps of ``snapshot_job`` under the job's lock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from streamops import snapshots
from streamops.model import records
from streamops.model.definitions import Snapshots
from streamops.model.errors import DamagedError, LockedError, StreamOpsError
from streamops.model.owner import Owner
from streamops.model.records import now
from streamops.model.schedules import Due, Last, due
from streamops.operations.engine import Engine
from streamops.operations.follow import request
from streamops.store import documents, jobs, keys
from streamops.store.object_store import ObjectStore
from streamops.upkeep.watching import Finding, Found
from streamops.versions import artifacts


def plan_of(store: ObjectStore, job: str) -> tuple[Snapshots | None, datetime | None]:
    """The schedule of a job that should be running, and since when it has had it; None otherwise."""
    record = jobs.record(store, job)
    if record is None or record.desired != "running" or not record.deployment:
        return None, None
    plan = artifacts.snapshot_plan(store, record)
    deployment = documents.find(store, keys.deployment(job, record.deployment), records.Deployment)
    if plan is None or deployment is None:
        return plan, None
    since = deployment.created
    return plan, max(since, record.snapshots.since) if record.snapshots else since


def last_of(store: ObjectStore, job: str) -> Last | None:
    """What the schedule of a job did last."""
    return documents.find(store, keys.snapshot_schedule(job), Last)


def due_now(store: ObjectStore, moment: datetime, say: Callable[[str], None] = lambda line: None) -> dict[str, Due]:
    """Every job whose snapshot is due. An attempt that only began is due again: its process died.

    Args:
        say: receives a line for each job of which a record cannot be read; the others are not kept waiting.
    """
    found = {}
    for job in jobs.names(store):
        try:
            item = _due(store, job, moment)
        except DamagedError as error:
            say(f"{job} cannot be told to be due: {error}")
            continue
        if item is not None:
            found[job] = item
    return found


def look(store: ObjectStore, moment: datetime) -> Found:
    """The same as a watcher sees it: each time that is due is one thing to do."""
    due_jobs = due_now(store, moment)
    return Found(tuple(Finding(job, item.name, f"due since {item.slot}") for job, item in due_jobs.items()))


def _due(store: ObjectStore, job: str, moment: datetime) -> Due | None:
    plan, since = plan_of(store, job)
    if plan is None or since is None:
        return None
    last = last_of(store, job)
    return due(plan, last.slot if last and last.state != "began" else None, since, moment)


def take(
    engine: Engine, job: str, item: Due, owner: Owner, say: Callable[[str], None] = lambda line: None
) -> Last | None:
    """Take one scheduled snapshot; None when an operation holds the job, which is then asked again later.

    Run again after it died anywhere, it continues with the same operation and the same name.

    Raises:
        StreamOpsError: it failed, which is remembered; the next one is not affected.
    """
    store = engine.store
    base = Last(
        slot=item.slot,
        state="began",
        snapshot=item.name,
        when=now(),
        late_s=item.late.total_seconds(),
        missed=item.missed,
    )
    if item.missed:
        say(f"{job}: {item.missed} earlier times were missed; this one stands for them")
    asked = request("snapshot_job", job=job, snapshot=item.name)
    operation_id = f"{item.name}-{job}"[:128]
    try:
        engine.begin(asked, owner, operation_id)
        documents.write(store, keys.snapshot_schedule(job), base)
        operation = engine.run(asked, owner, operation_id)
    except LockedError as error:
        say(f"{job}: not now, {error}")
        return None
    except StreamOpsError as error:
        failed = base.model_copy(update={"state": "failed", "reason": str(error), "when": now()})
        documents.write(store, keys.snapshot_schedule(job), failed)
        raise
    if operation.state != "succeeded":
        raise StreamOpsError(f"Operation {operation_id} is {operation.state}: {operation.reason}")
    taken = base.model_copy(
        update={"state": "taken", "when": now(), "size": snapshots.load(store, job, item.name).size}
    )
    documents.write(store, keys.snapshot_schedule(job), taken)
    say(f"{job}/{item.name} taken, {item.late.total_seconds():.0f} s after it was due")
    return taken
