"""The operation lock: one operation at a time on a job, and one on the cluster.

Its owner is a DAG run, because a deferred task or an approval that waits for days has no process that could renew
anything: such a lock is stale only when Airflow says that the run has finished. A process outside Airflow renews its
lock, which expires without it, by the object store's clock: no two hosts have the same. If Airflow does not know the
run, only resuming or aborting the operation frees it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import NoReturn

from streamops.model.errors import ConflictError, DamagedError, LockedError, OvertakenError, StreamOpsError
from streamops.model.names import CLUSTER, shown
from streamops.model.owner import Owner
from streamops.model.stored import Stored
from streamops.store import documents, jobs, keys
from streamops.store.documents import Versioned
from streamops.store.object_store import ObjectStore

EXPIRY = timedelta(minutes=3)  # of an owner outside Airflow; longer than one spark-submit may take
_RENEW_S = 30.0
Finished = Callable[[Owner], bool | None]


class Lock(Stored):
    """Who operates on a job; free when ``operation`` is None. ``abandoned`` still has to be settled by the holder."""

    job: str
    operation: str | None = None
    runbook: str = ""
    owner: Owner | None = None
    taken: datetime | None = None
    renewed: datetime | None = None
    abandoned: str | None = None
    abandoned_before: tuple[str, ...] = ()  # by holders that were abandoned themselves before they settled it
    fence: int = 0  # grows with each process that takes the lock, or takes it up again for the same operation

    @property
    def unsettled(self) -> tuple[str, ...]:
        """Operations that were abandoned, the oldest first."""
        return (*self.abandoned_before, self.abandoned) if self.abandoned else self.abandoned_before

    def with_unsettled(self, operations: Iterable[str | None]) -> Lock:
        """The same with these to be settled, but for its own operation."""
        left = [name for name in dict.fromkeys(operations) if name and name != self.operation]
        return self.model_copy(update={"abandoned": left[-1] if left else None, "abandoned_before": tuple(left[:-1])})


def read(store: ObjectStore, job: str) -> Versioned[Lock] | None:
    """The lock as stored."""
    return documents.read(store, keys.lock(job), Lock)


def is_stale(found: Versioned[Lock], finished: Finished) -> bool:
    """Whether the owner is certainly gone. No clock of any host is asked: the lock's age is the object store's word."""
    lock = found.value
    if lock.operation is None or lock.owner is None:
        return True
    if lock.owner.kind == "airflow":
        return finished(lock.owner) is True
    return found.age > EXPIRY


def acquire(
    store: ObjectStore, job: str, operation: str, runbook: str, owner: Owner, finished: Finished, moment: datetime
) -> Lock:
    """Take the lock, or take it up again for the same operation; its ``fence`` is what this process may act with.

    Raises:
        LockedError: another operation holds it and its owner is not certainly gone.
    """
    known = _fence_of(store, job)

    def taken(held: Lock | None) -> Lock:
        fence = max(held.fence if held else 0, known) + 1
        if held is not None and held.operation == operation:
            return held.model_copy(update={"renewed": moment, "fence": fence}).with_unsettled(held.unsettled)
        found = read(store, job) if held is not None else None  # if it is another by now, the write is refused
        if held is not None and found is not None and not is_stale(found, finished):
            holder = held.owner.label() if held.owner else "an unknown owner"
            raise LockedError(
                f"Operation {held.operation} ({held.runbook}) of {holder} "
                f"holds {shown(job)}; wait for it, or see 'streamops operations show {held.operation}'."
            )
        return Lock(
            job=job,
            operation=operation,
            runbook=runbook,
            owner=owner,
            taken=moment,
            renewed=moment,
            fence=fence,
        ).with_unsettled((*held.unsettled, held.operation) if held else ())

    return _updated(store, job, taken)


def _fence_of(store: ObjectStore, job: str) -> int:
    """The highest fence in the job's record: a release that knew of none may have written the lock since."""
    try:
        record = None if job == CLUSTER else jobs.record(store, job)
    except DamagedError:
        return 0
    return record.fence if record else 0


def require(store: ObjectStore, job: str, fence: int) -> None:
    """Make sure, right before a side effect, that no one took the lock since. Raises OvertakenError."""
    found = read(store, job)
    if found is None or found.value.fence != fence:
        _overtaken(job, found.value.operation if found else None)


def _overtaken(job: str, operation: str | None) -> NoReturn:
    raise OvertakenError(
        f"Another process took {shown(job)} up since ({operation or 'and is done'}); this one goes no further."
    )


def renew(
    store: ObjectStore, job: str, operation: str, moment: datetime, *, fence: int, settled: Collection[str] = ()
) -> Lock:
    """Show that the owner lives; ``settled`` are abandoned operations that are done with.

    Raises:
        OvertakenError: another process took the lock up for the same operation.
        LockedError: the lock went to another operation.
    """

    def renewed(held: Lock | None) -> Lock:
        if held is None or held.operation != operation:
            holder = held.operation if held else None
            raise LockedError(
                f"Operation {operation} no longer holds {shown(job)} ({holder or 'no one'} does); it goes no further. "
                f"See 'streamops operations show {operation}'."
            )
        if held.fence != fence:
            _overtaken(job, operation)
        renewed = held.model_copy(update={"renewed": moment})
        return renewed.with_unsettled(name for name in held.unsettled if name not in settled)

    return _updated(store, job, renewed)


@contextmanager
def renewing(renew: Callable[[], object]) -> Iterator[None]:
    """Show, while a block runs, that an owner outside Airflow lives: call ``renew`` now and then until it refuses."""
    over = threading.Event()

    def keep() -> None:
        while not over.wait(_RENEW_S):
            try:
                renew()
            except LockedError:
                return
            except StreamOpsError:
                continue

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(5)


def release(store: ObjectStore, job: str, operation: str, fence: int | None = None) -> bool:
    """Give the lock back; False when another operation, or process, has it by now, which is left alone.

    Args:
        fence: as this process took it; None for one that did not.
    """
    found = read(store, job)
    if found is None or found.value.operation != operation:
        return False

    def freed(held: Lock | None) -> Lock:
        if held is None or held.operation != operation or (fence is not None and held.fence != fence):
            raise LockedError(f"{shown(job)} went to another operation.")
        return Lock(job=job, fence=held.fence).with_unsettled(held.unsettled)

    try:
        _updated(store, job, freed, known=found)
    except LockedError:
        return False
    return True


def _updated(
    store: ObjectStore, job: str, change: Callable[[Lock | None], Lock], known: Versioned[Lock] | None = None
) -> Lock:
    try:
        return documents.update(store, keys.lock(job), Lock, change, known=known).value
    except ConflictError as error:
        raise LockedError(str(error)) from error
