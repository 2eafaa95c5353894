"""The gap of a switch: from a stage's last commit before it to its first one after it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from streamops.spark import checkpoints
from streamops.store import keys
from streamops.store.object_store import ObjectStore


@dataclass(frozen=True)
class Place:
    """Where one lease holder wrote its checkpoints."""

    deployment: int
    epoch: int


@dataclass(frozen=True)
class Gap:
    """Of one stage; ``last`` is None for a stage that is new, ``first`` while there is no commit yet."""

    last: datetime | None
    first: datetime | None

    @property
    def seconds(self) -> float | None:
        """How long the stage committed nothing."""
        return (self.first - self.last).total_seconds() if self.first and self.last else None


def gaps(store: ObjectStore, job: str, before: Place, after: Place, stages: tuple[str, ...]) -> dict[str, Gap]:
    """The gap of each stage of the holder that came after.

    Spark keeps the last 100 commits, so this must be read within that many batches after the switch.
    """
    brought = checkpoints.brought(store, job, after.deployment, after.epoch)
    found = {}
    for stage in stages:
        old = checkpoints.commit_times(store, keys.stage(job, before.deployment, before.epoch, stage))
        new = checkpoints.commit_times(store, keys.stage(job, after.deployment, after.epoch, stage))
        last = brought.get(stage)
        own = [number for number in new if last is None or number > last]
        found[stage] = Gap(old.get(last) if last is not None else None, new[min(own)] if own else None)
    return found


def place(store: ObjectStore, job: str, deployment: int) -> Place | None:
    """Where a deployment writes now, or wrote last."""
    epoch = checkpoints.current_epoch(store, job, deployment)
    return None if epoch is None else Place(deployment, epoch)
