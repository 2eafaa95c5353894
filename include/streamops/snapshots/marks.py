"""What is noted about a snapshot beside its manifest, which never changes: pins, and what verifications found."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from streamops.model.records import now
from streamops.model.stored import Part, Stored
from streamops.snapshots import catalogue
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore

How = Literal["headers", "read back", "state", "restored"]
_OBJECTS = ("headers", "read back")


class Pin(Stored):
    """Says that retention must keep a snapshot."""

    reason: str
    by: str
    when: datetime


class Check(Part):
    """What a verification found; ``problem`` is empty when all was well."""

    how: How
    when: datetime
    attempt: str  # of the snapshot that was looked at
    problem: str = ""
    objects: int = 0
    size: int = 0
    seconds: float = 0.0
    details: str = ""


class Checks(Stored):
    """The last of each kind of verification."""

    checks: dict[str, Check] = {}

    def last(self) -> Check | None:
        """The newest, whatever its kind."""
        return max(self.checks.values(), key=lambda check: check.when, default=None)

    def problem(self) -> str:
        """What is wrong, as far as is known: with the objects, or else with the state in them or what came of it.

        Objects that are what the manifest says do not make up for state that Spark could not read, nor state that it
        could read for results that were wrong.
        """
        objects = max((item for how, item in self.checks.items() if how in _OBJECTS), key=_when, default=None)
        known = (objects, self.checks.get("state"), self.checks.get("restored"))
        return next((check.problem for check in known if check and check.problem), "")


def _when(check: Check) -> datetime:
    return check.when


def pin(store: ObjectStore, job: str, name: str, reason: str, by: str) -> None:
    """Keep a snapshot whatever the rule says. Raises NotFoundError, SnapshotRefusedError."""
    catalogue.load(store, job, name)
    documents.write(store, keys.snapshot_pin(job, name), Pin(reason=reason, by=by, when=now()))


def unpin(store: ObjectStore, job: str, name: str) -> bool:
    """Leave a snapshot to the rule again; False if it was not pinned."""
    found = store.exists(keys.snapshot_pin(job, name))
    store.delete([keys.snapshot_pin(job, name)])
    return found


def pinned(store: ObjectStore, job: str, name: str) -> Pin | None:
    """The pin of a snapshot."""
    return documents.find(store, keys.snapshot_pin(job, name), Pin)


def note(store: ObjectStore, job: str, name: str, check: Check) -> None:
    """Remember what a verification found, beside what others find at the same time.

    Raises:
        ConflictError: others kept changing it.
    """

    def noted(old: Checks | None) -> Checks:
        known = old or Checks()
        return known.model_copy(update={"checks": {**_of(known, check.attempt), check.how: check}})

    documents.update(store, keys.snapshot_check(job, name), Checks, noted)


def checks(store: ObjectStore, job: str, name: str, attempt: str) -> Checks:
    """What verifications found of this very snapshot, not of an earlier one of the name."""
    found = documents.find(store, keys.snapshot_check(job, name), Checks) or Checks()
    return Checks(checks=_of(found, attempt))


def _of(found: Checks, attempt: str) -> dict[str, Check]:
    return {how: check for how, check in found.checks.items() if check.attempt == attempt}
