"""What the steps of operations report: recorded with the step, read by later steps, and shown in logs and receipts."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from streamops.model.records import JobRecord, Move, Offsets
from streamops.operations.cost import Cost


class Facts(BaseModel):
    """Frozen; a field that was not set is not recorded, and reads as its default. Durations in seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def recorded(self) -> dict[str, Any]:
        """As it is stored, and shown by Airflow."""
        return self.model_dump(mode="json", exclude_unset=True)


class Position(Facts):
    """Where a stage stands."""

    batch: int = -1
    offsets: Offsets = {}


# --- of jobs


class Checked(Facts):
    """An accepted request. ``unchanged``: there is nothing to do."""

    unchanged: bool = False
    version: str | None = None
    deployment: int | None = None
    launch: str | None = None
    verdicts: dict[str, str] = {}  # stage -> what becomes of its state
    outcomes: dict[str, str] = {}  # stage -> the same in one word
    empty: tuple[str, ...] = ()  # stages whose earlier state is not continued, as was agreed to
    refilled: tuple[str, ...] = ()  # stages whose state is filled again from the ledger
    moved: dict[str, Move] = {}  # sources that continue in another topic
    snapshot: str | None = None
    bytes: int = 0
    state: str = ""  # what the job starts from, or is
    versions: tuple[str, ...] = ()
    snapshots: tuple[str, ...] = ()
    before: str | None = None  # version
    after: str | None = None  # version
    events_again: int = 0
    running: bool = False
    stands: dict[str, Offsets] = {}
    cost: Cost | None = None


class Reserved(Facts):
    """A deployment and the launch that may write in it. ``cold``: it is submitted only after the stop; ``why`` so."""

    deployment: int = 0
    launch: str = ""
    version: str = ""
    epoch: int | None = None
    cold: bool = False
    why: str = ""
    from_snapshot: str | None = None
    batches: dict[str, int] = {}


class Submitted(Facts):
    """A driver on the cluster. ``adopted``: an earlier try had put it there."""

    launch: str = ""
    driver: str = ""
    deployment: int = 0
    adopted: bool = False
    cold: bool = False
    artifact_sha256: str = ""
    runtime_sha256: str = ""


class Waited(Facts):
    """What a wait ended with, as a sentence for people."""

    why: str = ""


class Worked(Waited):
    """A healthy driver, and where its stages stood then."""

    stages: dict[str, Position] = {}


class AskedToStop(Facts):
    """``stopped`` is False when there was nothing to stop."""

    launch: str = ""
    stopped: bool | None = None


class Stopped(Facts):
    """How a driver stopped."""

    stopped: bool = False
    seconds: float = 0.0
    why: str = ""
    stages: dict[str, Position] = {}


class Exported(Facts):
    """Objects that will be a snapshot once its manifest is written; ``attempt`` names the draft of that."""

    snapshot: str = ""
    attempt: str = ""
    objects: int = 0
    bytes: int = 0
    copied_objects: int = 0
    copied_bytes: int = 0
    seconds: float = 0.0
    stages: dict[str, Position] = {}
    epoch: int | None = None
    restored: dict[str, int] = {}


class Kept(Facts):
    """A snapshot that exists."""

    snapshot: str = ""
    objects: int = 0
    bytes: int = 0


class HandedOver(Facts):
    """The lease, given to the new driver in this epoch."""

    launch: str = ""
    deployment: int = 0
    epoch: int = 0


class CaughtUp(Waited):
    """What was processed again, by stage."""

    events_again: int = 0
    again: dict[str, int] = {}


class Recounted(Facts):
    """A recount's report, or the reason why there is none."""

    model_config = ConfigDict(frozen=True, extra="allow")

    clean: bool | None = None
    reason: str | None = None
    measurements: tuple[dict[str, Any], ...] = ()
    damaged: dict[str, str] = {}

    @property
    def compared(self) -> int:
        """How many points were compared."""
        return sum(int(item.get("expected", 0)) for item in self.measurements)

    @property
    def waits(self) -> bool:
        """Whether nothing is wrong, and more can be said once windows are closed."""
        off = any(item.get(key) for item in self.measurements for key in ("missing", "wrong", "unexpected"))
        return not self.clean and not off and not self.damaged

    @property
    def enough(self) -> bool:
        """Whether all that the operation may have harmed was compared, as far as it can be.

        What began with the operation may have no closed window yet; of some jobs no stage can be recounted at all.
        """
        if self.clean or not self.waits:
            return bool(self.clean)
        old = any(item.get("nothing") and not item.get("young") for item in self.measurements)
        return not self.measurements or (self.compared > 0 and not old)


class Managed(Facts):
    """What was done with a snapshot; ``skipped`` objects of an import were there, ``published`` its version was not."""

    snapshot: str = ""
    objects: int = 0
    bytes: int = 0
    skipped: int = 0
    version: str = ""
    published: bool = False


class Pruned(Facts):
    """What retention decided of each snapshot, and what it removed and freed."""

    verdicts: tuple[dict[str, Any], ...] = ()
    removed: tuple[str, ...] = ()
    freed_bytes: int = 0
    stopped_by: str | None = None


class Quarantined(Facts):
    """Refused points that were written after a correction, and those that are no longer in the quarantine."""

    written: int = 0
    gone: int = 0


class Settled(Facts):
    """An operation that was settled, and how it ended."""

    operation: str = ""
    state: str = ""
    reason: str = ""


class Paused(Facts):
    """Whether reconciliation leaves the job alone."""

    paused: bool = False


class Planned(Facts):
    """When snapshots are taken by themselves now, and which are kept, in words."""

    plan: str = ""


class Levels(Facts):
    """Logger -> least level, as the driver was told."""

    logging: dict[str, str] = {}


class Removed(Facts):
    """Objects that were deleted, by kind: ``KIND_objects``."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Finished(Facts):
    """Where the receipt is."""

    receipt: str = ""


# --- of taking an operation on a job back


class Dismissed(Facts):
    """The end of a driver that is not wanted any more, and what the way back from the snapshot costs."""

    launch: str = ""
    ended: bool | None = None
    cost: Cost | None = None
    events_again: int = 0


class WorksAgain(Waited):
    """What ran before, and how long nothing worked."""

    events_again: int = 0
    down_s: float = 0.0


class Left(Facts):
    """The job as it was found."""

    desired: str = ""


# --- of the cluster


class ClusterChecked(Facts):
    """An accepted request: the names that every later step goes by."""

    unchanged: bool = False
    jobs: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    stopped_nodes: int = 0
    nodes: tuple[str, ...] = ()
    silent: dict[str, str] = {}
    library: str | None = None
    library_verdicts: dict[str, dict[str, str]] = {}
    members: int = 0  # before
    size: int = 0
    start: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    drivers: dict[str, int] = {}


class Claimed(Facts):
    """Jobs whose locks the operation holds, with their records as they were then."""

    jobs: tuple[str, ...] = ()
    records: dict[str, JobRecord] = {}


class Jobs(Facts):
    """Names of jobs."""

    jobs: tuple[str, ...] = ()


class Nodes(Facts):
    """Names of nodes."""

    nodes: tuple[str, ...] = ()


class JobsStopped(Facts):
    """How each job's driver stopped."""

    stopped: dict[str, Stopped] = {}


class JobsKept(Facts):
    """The snapshot of each job."""

    snapshots: dict[str, Kept] = {}


class Ended(Facts):
    """Exit status of each program that was stopped."""

    exit: dict[str, int] = {}


class Started(Facts):
    """A server that answers."""

    seconds: float = 0.0


class Members(Waited):
    """Nodes that did not come."""

    missing: tuple[str, ...] = ()


class Resumed(Facts):
    """A job that is to come back: with which launch, where it begins, and on which library."""

    launch: str = ""
    deployment: int = 0
    left_to_the_master: bool = False
    begins: dict[str, Offsets] = {}
    library: str | None = None


class JobsResumed(Facts):
    """Each job that came back."""

    jobs: dict[str, Resumed] = {}


class JobCaughtUp(Facts):
    """Events that were caught up with; seconds since the start was asked for, and of processing alone."""

    events: int = 0
    seconds: float = 0.0
    processing_s: float = 0.0


class JobsCaughtUp(Waited):
    """Each job that has caught up."""

    jobs: dict[str, JobCaughtUp] = {}
