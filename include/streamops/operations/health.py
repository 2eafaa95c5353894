"""When a driver is healthy, stands by, or is beyond hope: decided from what it published and from the lease."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from streamops.model.records import FINAL, LEVEL, DriverStatus, Lease, StageStatus, State

MOST_FAILURES = 3  # of one stage's query in the warm driver

STARVED_S = 60.0  # of what comes, that the running version may have left to read while another one runs beside it
FEW_ROWS = 100.0  # a second; where fewer come, some rows are no lag


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


def fails_repeatedly(stage: str, failures: int) -> str:
    """Why waiting for a stage is pointless whose query failed this often in the warm driver; empty if it is not."""
    return f"it fails repeatedly: stage {stage} failed {failures} times" if failures >= MOST_FAILURES else ""


def assess_new(status: DriverStatus | None, lease: Lease | None, launch: str, stages: Iterable[str]) -> Health:
    """As ``assess``, of a version that has yet to prove itself: a query that only fails is not waited for.

    The driver continues trying, which is right when a server is away under a job that has worked; here someone waits,
    and while they wait no version works.
    """
    found = assess(status, lease, launch, stages)
    if found.done or found.failed or status is None or status.launch != launch:
        return found
    for name, stage in status.stages.items():
        if not stage.commits and (why := fails_repeatedly(name, stage.failures)):
            return Health(False, why, why)
    return found


def assess_standby(status: DriverStatus | None, launch: str) -> Health:
    """Context and executors are up, and the driver waits for its word or runs in shadow already."""
    if status is None or status.launch != launch:
        return Health(False, None, f"launch {launch} has not reported yet: its driver is starting")
    if status.state in FINAL:
        return Health(False, status.reason or str(status.state), f"the driver ended: {status.reason or status.state}")
    if status.state is State.STANDBY:
        return Health(True, None, f"the driver on {status.host or 'its node'} stands by")
    return Health(False, None, f"the driver is {status.state}{f': {status.reason}' if status.reason else ''}")


def assess_shadow(
    status: DriverStatus | None,
    launch: str,
    stages: Iterable[str],
    running: DriverStatus | None = None,
    every_s: float = 0.0,
) -> Health:
    """In shadow: each stage runs live and is level with the end of its sources, as its driver says.

    Args:
        running: what the version that writes says. It must not suffer: if it falls far behind, the shadow has failed.
        every_s: how often that one begins a batch, where its definition says so.
    """
    if status is None or status.launch != launch:
        return Health(False, None, f"launch {launch} has not reported yet: its driver is starting")
    if status.state in FINAL:
        return Health(False, status.reason or str(status.state), f"the driver ended: {status.reason or status.state}")
    if starved := _starved(running, every_s) if running else "":
        return Health(False, starved, starved)
    found = [(name, status.stages.get(name)) for name in stages]
    if waiting := [_behind(name, stage) for name, stage in found if stage is None or stage.phase != LEVEL]:
        return Health(False, None, f"not read all there is yet: {', '.join(waiting)}")
    return Health(True, None, "every stage runs in shadow")


def _starved(running: DriverStatus, every_s: float) -> str:
    """Why the version that runs takes harm from the one beside it; empty if it does not."""
    for name, stage in running.stages.items():
        if (late := _late_s(stage, running.updated, every_s)) > STARVED_S:
            return (
                f"the machine does not carry both versions: {name} of the running one is {late:.0f} s behind, "
                f"and {STARVED_S:.0f} s is the most; use stop_and_restart, or give the cluster more cores"
            )
    return ""


def _late_s(stage: StageStatus, at: datetime, every_s: float) -> float:
    """How many seconds of what comes a stage has left to read.

    One in batches tells what was left when a batch was planned, which is nothing as a rule: what came since is added,
    unless it waits for its next batch on purpose.
    """
    late = stage.lag / max(stage.input_rate, FEW_ROWS)
    if stage.phase or stage.quiet or not stage.input_rate or stage.last_commit is None:
        return late
    return late + max(0.0, (at - stage.last_commit).total_seconds() + stage.batch_ms / 1000 - every_s)


def _behind(name: str, stage: StageStatus | None) -> str:
    return f"{name} ({stage.lag:,} rows behind)" if stage and stage.commits else name


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
