"""When a driver is healthy, warm, or beyond hope: decided from what it published and from the lease."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamops.records import FINAL, DriverStatus, Lease, State


@dataclass(frozen=True)
class Health:
    """A verdict. ``failed`` is the reason why waiting is pointless, ``why`` what is waited for or was found."""

    done: bool
    failed: str | None
    why: str


def assess(status: DriverStatus | None, lease: Lease | None, launch: str, stages: Iterable[str]) -> Health:
    """Healthy: the lease is held by this launch, and every stage has committed a batch or found no data.

    Args:
        status: what the driver published last, if anything.
        lease: the job's lease.
        launch: the launch that should be working.
        stages: all stages of its version.
    """
    if status is None or status.launch != launch:
        return Health(False, None, f"launch {launch} has not reported yet: its driver is starting")
    if status.state in FINAL:
        return Health(False, status.reason or str(status.state), f"the driver ended: {status.reason or status.state}")
    if lease is None or lease.launch != launch or lease.holder != status.holder:
        return Health(False, None, f"the driver is {status.state} and does not hold the lease yet")
    waiting = [name for name in stages if not _works(status, name)]
    if waiting:
        return Health(False, None, f"epoch {lease.epoch}; first batch of {', '.join(waiting)} is not committed yet")
    quiet = [name for name in stages if not status.stages[name].commits]
    shown = f", no data yet for {', '.join(quiet)}" if quiet else ""
    return Health(True, None, f"epoch {lease.epoch} held, every stage works{shown}")


def assess_standby(status: DriverStatus | None, launch: str) -> Health:
    """Warm: context and executors are up, and the driver waits for its word."""
    if status is None or status.launch != launch:
        return Health(False, None, f"launch {launch} has not reported yet: its driver is starting")
    if status.state in FINAL:
        return Health(False, status.reason or str(status.state), f"the driver ended: {status.reason or status.state}")
    if status.state is State.STANDBY:
        return Health(True, None, f"the driver on {status.host or 'its node'} is warm and waits for its word")
    return Health(False, None, f"the driver is {status.state}")


def assess_stop(status: DriverStatus | None, launch: str) -> Health:
    """Stopped: the driver wrote its final status. A driver that failed has stopped, too."""
    if status is None or status.launch != launch:
        return Health(False, None, f"launch {launch} has not reported at all")
    if status.state in FINAL:
        return Health(True, None, f"the driver is {status.state}: {status.reason or 'at a batch boundary'}")
    return Health(False, None, f"the driver is {status.state}")


def _works(status: DriverStatus, stage: str) -> bool:
    found = status.stages.get(stage)
    return found is not None and (found.commits >= 1 or found.quiet)
