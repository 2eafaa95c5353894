"""Retention at work: what holds each snapshot of a job, what the rule says, and doing it under the job's lock."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamops import snapshots
from streamops.model.definitions import Keep
from streamops.model.errors import LockedError
from streamops.model.owner import Owner
from streamops.model.records import now
from streamops.operations import needs
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

    def told(self) -> dict[str, Any]:
        """As values that Airflow hands on."""
        verdicts = [
            {"name": item.name, "created": item.created.isoformat(), "keep": item.keep, "why": item.why}
            for item in self.verdicts
        ]
        removed = [item.name for item in self.verdicts if not item.keep]
        found = {"verdicts": verdicts, "removed": removed, "freed_bytes": self.swept.size}
        return {**found, "stopped_by": self.swept.stopped_by}

    @classmethod
    def of(cls, job: str, told: Mapping[str, Any]) -> Pruned:
        """What was done, from what ``told`` said of it."""
        verdicts = tuple(
            Verdict(item["name"], datetime.fromisoformat(item["created"]), item["keep"], (item["why"],))
            for item in told["verdicts"]
        )
        return cls(job, verdicts, Swept(size=told["freed_bytes"], stopped_by=told["stopped_by"]), applied=True)


def keep_of(store: ObjectStore, job: str) -> Keep | None:
    """The rule that was set for the job, or is in its definition; None when there is none, which keeps everything."""
    plan = artifacts.snapshot_plan(store, jobs.record(store, job))
    return plan.keep if plan else None


def candidates(store: ObjectStore, job: str) -> list[Candidate]:
    """The job's snapshots as retention sees them."""
    needed = needs.users(store)
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
    found = documents.find(store, keys.operation(job, operation_id), Operation)
    return found is not None and found.state not in OVER
