"""Retention at work: what holds each snapshot of a job, what the rule says, and doing it.

``operations.runbooks.apply_retention`` does it under the job's lock, with a receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamops import snapshots
from streamops.model.definitions import Keep
from streamops.operations import needs
from streamops.snapshots import marks, removal, retention
from streamops.snapshots.removal import Swept
from streamops.snapshots.retention import Candidate, Verdict
from streamops.store import jobs
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts

Say = Callable[[str], None]


@dataclass(frozen=True)
class Pruned:
    """What a run of retention decided, and what the sweep freed or would free."""

    job: str
    verdicts: tuple[Verdict, ...]
    swept: Swept
    applied: bool

    @property
    def nothing(self) -> bool:
        """Whether nothing is, or was, to be removed or freed."""
        return all(item.keep for item in self.verdicts) and not self.swept.versions

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


def candidates(store: ObjectStore, job: str, but: str = "") -> list[Candidate]:
    """The job's snapshots as retention sees them.

    Args:
        but: the operation that asks.
    """
    needed = needs.users(store, but)
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


def plan(store: ObjectStore, job: str, keep: Keep | None, moment: datetime, but: str = "") -> Pruned:
    """What retention would do at a moment; nothing is touched. Without a rule every snapshot is kept.

    Args:
        keep: instead of the rule of the job.
        but: the operation that asks.
    """
    found, keep = candidates(store, job, but), keep or keep_of(store, job)
    if keep is None:
        kept = ("no rule: the definition has no snapshots.keep",)
        verdicts = tuple(Verdict(item.name, item.created, True, kept) for item in reversed(found))
    else:
        verdicts = tuple(retention.decide(found, keep, moment))
    return Pruned(job, verdicts, removal.sweep(store, job, moment, apply=False), applied=False)


def prune(
    store: ObjectStore, job: str, keep: Keep | None, moment: datetime, by: str, say: Say, but: str = ""
) -> Pruned:
    """Remove what the rule does not keep, and free what was removed 14 days ago. Only for the holder of the job's lock.

    Args:
        store: with the identity that may delete.
        keep: instead of the rule of the job.
        by: who removes, for the record.
        but: the operation that does it.
    """
    planned = plan(store, job, keep, moment, but)
    for verdict in planned.verdicts:
        if not verdict.keep:
            removal.remove(store, job, verdict.name, verdict.why, by)
            say(f"{job}/{verdict.name} removed: {verdict.why}; it can be brought back for {removal.KEPT.days} days")
        else:
            say(f"{job}/{verdict.name} kept: {verdict.why}")
    swept = removal.sweep(store, job, moment)
    if swept.stopped_by:
        say(f"{job}: nothing is freed, because {swept.stopped_by}")
    elif swept.versions:
        what = ", ".join(swept.snapshots) or "leftovers"
        say(f"{job}: {swept.versions} versions freed, {swept.size:,} bytes ({what})")
    return Pruned(job, planned.verdicts, swept, applied=True)
