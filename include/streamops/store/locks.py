"""The operation lock: one operation at a time on a job, and one on the cluster.

Its owner is a DAG run, because a deferred task or an approval that waits for days has no process that could renew
anything: such a lock is stale only when Airflow says that the run has finished. A process outside Airflow renews its
lock, which then expires without it. If Airflow does not know the run, only resuming or aborting the operation frees it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from pydantic import BaseModel, ConfigDict

from streamops.model.errors import ConflictError, LockedError
from streamops.model.names import shown
from streamops.model.owner import Owner
from streamops.store import documents, keys
from streamops.store.documents import Versioned
from streamops.store.object_store import ObjectStore

TRIES = 10  # against others who write the lock at the same moment
EXPIRY = timedelta(minutes=3)  # of an owner outside Airflow; longer than one spark-submit may take
Finished = Callable[[Owner], bool | None]


class Lock(BaseModel):
    """Who operates on a job; free when ``operation`` is None. ``abandoned`` still has to be settled by the holder."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    job: str
    operation: str | None = None
    runbook: str = ""
    owner: Owner | None = None
    taken: datetime | None = None
    renewed: datetime | None = None
    abandoned: str | None = None


def read(store: ObjectStore, job: str) -> Versioned[Lock] | None:
    """The lock as stored."""
    return documents.read(store, keys.lock(job), Lock)


def is_stale(lock: Lock, finished: Finished, moment: datetime) -> bool:
    """Whether the owner is certainly gone."""
    if lock.operation is None or lock.owner is None:
        return True
    if lock.owner.kind == "airflow":
        return finished(lock.owner) is True
    return lock.renewed is None or moment - lock.renewed > EXPIRY


def acquire(
    store: ObjectStore, job: str, operation: str, runbook: str, owner: Owner, finished: Finished, moment: datetime
) -> Lock:
    """Take the lock, or find that this operation has it already.

    Raises:
        LockedError: another operation holds it and its owner is not certainly gone.
    """
    for _ in range(TRIES):
        found = read(store, job)
        abandoned = None
        if found is not None:
            held = found.value
            if held.operation == operation:
                return renew(store, job, operation, moment)
            if not is_stale(held, finished, moment):
                raise LockedError(
                    f"Operation {held.operation} ({held.runbook}) of "
                    f"{held.owner.label() if held.owner else 'somebody'} holds {shown(job)}; wait for it, or see "
                    f"'streamops operations show {held.operation}'."
                )
            abandoned = held.operation or held.abandoned
        lock = Lock(
            job=job,
            operation=operation,
            runbook=runbook,
            owner=owner,
            taken=moment,
            renewed=moment,
            abandoned=abandoned,
        )
        try:
            documents.write(store, keys.lock(job), lock, over=found.etag if found else None, new=found is None)
        except ConflictError:  # another came first: the next look says who
            continue
        return lock
    raise _unsettled(job)


def renew(store: ObjectStore, job: str, operation: str, moment: datetime, *, settled: bool = False) -> Lock:
    """Show that the owner lives; ``settled`` says that the abandoned operation is done with.

    Raises:
        LockedError: the lock went to another operation.
    """
    for _ in range(TRIES):
        found = read(store, job)
        if found is None or found.value.operation != operation:
            holder = found.value.operation if found else None
            raise LockedError(
                f"Operation {operation} no longer holds {shown(job)} ({holder or 'nobody'} does); it goes no further. "
                f"See 'streamops operations show {operation}'."
            )
        update: dict[str, object] = {"renewed": moment} | ({"abandoned": None} if settled else {})
        lock = found.value.model_copy(update=update)
        try:
            documents.write(store, keys.lock(job), lock, over=found.etag)
        except ConflictError:
            continue
        return lock
    raise _unsettled(job)


def release(store: ObjectStore, job: str, operation: str) -> bool:
    """Give the lock back; False when another operation has it by now, which is left alone."""
    for _ in range(TRIES):
        found = read(store, job)
        if found is None or found.value.operation != operation:
            return False
        free = Lock(job=job, abandoned=found.value.abandoned)
        try:
            documents.write(store, keys.lock(job), free, over=found.etag)
        except ConflictError:
            continue
        return True
    return False


def _unsettled(job: str) -> LockedError:
    return LockedError(f"The lock of {shown(job)} keeps changing; look at 'streamops operations {job}'.")
