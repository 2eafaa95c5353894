"""When the next snapshot of a job is due: a pure function of the schedule, of what was done last, and of the time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from croniter import croniter

from streamops.model.definitions import Snapshots, milliseconds
from streamops.model.errors import DefinitionError
from streamops.model.stored import Stored

_YEAR = timedelta(days=366)


class Last(Stored):
    """What the schedule of a job did last: for which time, and how it ended. Written before and after the attempt."""

    slot: datetime
    state: Literal["began", "taken", "failed"]
    snapshot: str
    when: datetime
    reason: str = ""
    late_s: float = 0.0
    missed: int = 0  # times before this one at which none was taken
    size: int = 0  # bytes of the snapshot that was taken


@dataclass(frozen=True)
class Due:
    """A snapshot that should be taken now. ``late`` is how long ago it should have been."""

    slot: datetime
    late: timedelta
    missed: int

    @property
    def name(self) -> str:
        """Its name, which follows from the time it was due, so that a retry makes the same one."""
        return f"scheduled-{self.slot:%Y%m%dT%H%M%SZ}"


def require_valid(plan: Snapshots | None) -> None:
    """Refuse a schedule that never comes.

    Raises:
        DefinitionError: what is wrong with ``snapshots.cron``.
    """
    if plan is None or plan.cron is None:
        return
    if not croniter.is_valid(plan.cron):
        raise DefinitionError(f"snapshots.cron: {plan.cron!r} is not a cron expression of five fields.")
    try:
        croniter(plan.cron, datetime(2028, 1, 1, tzinfo=UTC)).get_next(datetime)  # of a leap year: 29 February exists
    except ValueError:
        raise DefinitionError(f"snapshots.cron: {plan.cron!r} never comes.") from None


def previous(plan: Snapshots, moment: datetime) -> datetime | None:
    """The last time, at or before a moment, at which the schedule asks for a snapshot."""
    if plan.every:
        length = milliseconds(plan.every)
        at = int(moment.timestamp() * 1000) // length * length
        return datetime.fromtimestamp(at / 1000, UTC)
    if plan.cron:
        found: datetime = croniter(plan.cron, moment + timedelta(seconds=1)).get_prev(datetime)
        return found.astimezone(UTC)
    return None


def due(plan: Snapshots | None, last: datetime | None, since: datetime, moment: datetime) -> Due | None:
    """The snapshot to take now, if any.

    Of several times that were missed (no one looked, or the job was held), only the newest counts: more snapshots of
    one moment would be of no use.

    Args:
        last: the time for which one was last taken or failed.
        since: when the job was deployed, or given this schedule: no time before that counts.
    """
    slot = previous(plan, moment) if plan else None
    if plan is None or slot is None or slot <= max(last or since, since):
        return None
    missed, at = 0, slot
    floor = max(last, since) if last else since
    while missed < 1000:
        earlier = previous(plan, at - timedelta(seconds=1))
        if earlier is None or earlier <= floor or slot - earlier > _YEAR:
            break
        missed, at = missed + 1, earlier
    return Due(slot, moment - slot, missed)
