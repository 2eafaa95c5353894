"""The lease: at most one driver writes a job's results, and every later holder has a higher epoch.

Nothing here waits for an expiry or compares clocks: taking over means raising the epoch. The times in a lease
are for display only.
"""

from __future__ import annotations

from collections.abc import Collection

from streamops.model import records
from streamops.model.errors import ConflictError, LeaseLostError, UnhealthyError
from streamops.model.records import JobRecord, Lease
from streamops.store import documents, jobs, keys
from streamops.store.documents import Versioned
from streamops.store.object_store import ObjectStore

MOST_FRUITLESS = 3  # relaunches in a row in which a stage committed nothing; the next one gives up


def grant(store: ObjectStore, job: str, launch: str, deployment: int) -> Versioned[Lease]:
    """Raise the epoch for a launch that has not started writing yet. For operations.

    From here on every earlier holder is refused. Granting again to the same launch and deployment, before it has
    taken the lease, changes nothing, so that a retried step is harmless.

    Raises:
        ConflictError: others kept changing the lease.
    """

    def granted(old: Lease | None) -> Lease:
        if old and old.launch == launch and old.deployment == deployment:
            return old
        return Lease(job=job, epoch=old.epoch + 1 if old else 1, launch=launch, deployment=deployment)

    return documents.update(store, keys.lease(job), Lease, granted)


def take(store: ObjectStore, record: JobRecord, launch: str, holder: str) -> Versioned[Lease]:
    """Become the writer. For drivers.

    Args:
        record: the job record as just read; only the launch named there may take the lease.
        holder: unique per driver process.

    Raises:
        LeaseLostError: the record names another launch.
        UnhealthyError: this launch was started again and again without committing anything.
    """
    as_read = [record]  # for the first try; for another it is read again

    def taken(old: Lease | None) -> Lease:
        now = as_read.pop() if as_read else (jobs.record(store, record.job) or record)
        if now.launch != launch:
            raise LeaseLostError(f"Launch {launch} of {now.job} may not write; the job record names {now.launch}.")
        return old if old and old.holder == holder else _taken(old, now, launch, holder)

    try:
        return documents.update(store, keys.lease(record.job), Lease, taken)
    except ConflictError as error:
        raise LeaseLostError(f"{error} Another driver of this launch is taking the lease.") from error


def _taken(old: Lease | None, record: JobRecord, launch: str, holder: str) -> Lease:
    moment = records.now()
    fresh = Lease(
        job=record.job,
        epoch=1,
        launch=launch,
        deployment=record.deployment,
        holder=holder,
        taken=moment,
        renewed=moment,
    )
    if old is None:
        return fresh
    if old.launch == launch and old.holder is None and old.deployment == record.deployment:
        return fresh.model_copy(update={"epoch": old.epoch, "fruitless": old.fruitless})
    fruitless = old.fruitless + 1 if old.launch == launch else 0
    if fruitless > MOST_FRUITLESS:
        which = f"of stage {', '.join(old.idle)}" if old.idle else "of each stage"
        raise UnhealthyError(
            f"Launch {launch} of {record.job} was started {fruitless} times without a new commit {which}; "
            "read the driver's log, correct the cause, then start the job again."
        )
    return fresh.model_copy(update={"epoch": old.epoch + 1, "fruitless": fruitless, "idle": old.idle})


def check(store: ObjectStore, lease: Lease) -> None:
    """Make sure, right before a write, that this holder is still the writer.

    Raises:
        LeaseLostError: it is not; nothing may be written any more.
    """
    _own(jobs.lease(store, lease.job), lease)


def _own(found: Lease | None, lease: Lease) -> Lease:
    """The stored lease, which must still be this holder's. Raises LeaseLostError."""
    if found is None or (found.epoch, found.holder) != (lease.epoch, lease.holder):
        now = f"epoch {found.epoch} of launch {found.launch}" if found else "no one"
        raise LeaseLostError(f"Epoch {lease.epoch} of {lease.job} is over, {now} holds the lease; this driver ends.")
    return found


def renew(store: ObjectStore, held: Versioned[Lease], idle: Collection[str] | None = None) -> Versioned[Lease]:
    """Show that the holder lives.

    Args:
        idle: stages that have not committed yet; when there are none, fruitless starts are counted from the beginning.

    Raises:
        LeaseLostError: another one holds the lease.
    """
    update: dict[str, object] = {"renewed": records.now()}
    if idle is not None:
        update |= {"idle": tuple(idle)} | ({} if idle else {"fruitless": 0})
    return _change(store, held, update)


def release(store: ObjectStore, held: Versioned[Lease]) -> None:
    """Give the lease back after the last commit. The epoch stays: its checkpoints can be continued."""
    _change(store, held, {"holder": None, "fruitless": 0, "renewed": records.now()})


def _change(store: ObjectStore, held: Versioned[Lease], update: dict[str, object]) -> Versioned[Lease]:
    def changed(found: Lease | None) -> Lease:
        return _own(found, held.value).model_copy(update=update)

    return documents.update(store, keys.lease(held.value.job), Lease, changed, known=held)
