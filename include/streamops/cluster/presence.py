"""Whether the master holds a driver for a job: decided from what the driver said and from what the master says."""

from __future__ import annotations

from collections.abc import Iterable

from streamops.model.records import FINAL, DriverStatus
from streamops.spark.master import Driver, Master

SPEAKS_MS = 300_000  # within which a driver of ours has published its status, on a busy machine


def unclaimed(master: Master, statuses: Iterable[DriverStatus | None]) -> tuple[Driver, ...]:
    """Drivers of the master that may be a job's and have not said so yet: starting, or relaunched under a new id.

    A driver that has run for longer than ours take to speak is someone else's.

    Args:
        statuses: what the drivers named in the job records, and the second drivers, said last.
    """
    own = {status.driver for status in statuses if status is not None and status.state not in FINAL}
    return tuple(driver for driver in master.drivers if driver.id not in own and not _is_foreign(master, driver))


def _is_foreign(master: Master, driver: Driver) -> bool:
    return bool(master.at_ms and driver.since_ms) and master.at_ms - driver.since_ms > SPEAKS_MS


def held(master: Master, status: DriverStatus | None, others: Iterable[DriverStatus | None] = ()) -> bool:
    """Whether the master has a driver that is this launch's, or may become it.

    A relaunched driver gets a new id, and says so only once it has started. Until then a driver that no one has
    claimed may be it.
    """
    if status is not None and status.state in FINAL:
        return False
    if status is not None and any(driver.id == status.driver for driver in master.drivers):
        return True
    return bool(unclaimed(master, [status, *others]))
