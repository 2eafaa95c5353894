"""Whether a new version that became healthy stays so: it does not fail again and again, keeps up, and produces.

``judge`` decides from numbers alone. What it needs is read by ``look`` from the driver's status, the commits of its
checkpoint and the ledger, at any moment and without a memory of its own: a trigger may ask from anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from streamops.model.records import FINAL, DriverStatus, Offsets, State, distance, now
from streamops.operations.context import StepContext
from streamops.operations.facts import HandedOver
from streamops.operations.health import Health, fails_repeatedly
from streamops.spark import checkpoints
from streamops.store import jobs, keys

MOST_RELAUNCHES = 2  # of the driver by the master, within the probation
LEAST_BEHIND_S = 5.0  # of arriving events by which the lag must have grown
LEAST_WRITES = 3  # that the old version would have made meanwhile, before silence means anything
_SAMPLES = 6


@dataclass(frozen=True)
class Sample:
    """A stage's lag in events, right after a commit."""

    at: datetime
    lag: int


@dataclass(frozen=True)
class StageWatch:
    """One stage during the probation.

    Args:
        failures: how often its query failed in this driver.
        samples: lag after commits, oldest first.
        lag: now, in events.
        rate: events that arrive per second.
        batch_s: how long its last batch took.
        rows: written since the version took over.
        expected: in how many batches the old version would have written something meanwhile; None: no one knows.
    """

    failures: int = 0
    samples: tuple[Sample, ...] = ()
    lag: int = 0
    rate: float = 0.0
    batch_s: float = 0.0
    rows: int = 0
    expected: float | None = None


def judge(
    stages: Mapping[str, StageWatch], *, relaunches: int, over: bool, obstacle: str, moment: datetime, seconds: int
) -> Health:
    """The verdict on a version in probation.

    Args:
        relaunches: how often the master started its driver again.
        over: whether the probation's time has passed; only then lag and output are judged.
        obstacle: why it does not work right now; empty if it does.
        seconds: length of the probation.
    """
    if relaunches >= MOST_RELAUNCHES:
        return _failed(f"it fails repeatedly: its driver was started again {relaunches} times")
    for name, stage in stages.items():
        if why := fails_repeatedly(name, stage.failures):
            return _failed(why)
    if not over:
        return Health(False, None, f"in probation for {seconds} s")
    if obstacle:
        return Health(False, None, f"the probation's time is over, but {obstacle}")
    for name, stage in stages.items():
        if why := falls_behind(stage, moment):
            return _failed(f"it falls behind: stage {name} {why}")
        if stage.expected is not None and stage.expected >= LEAST_WRITES and not stage.rows:
            return _failed(
                f"it produces nothing: stage {name} has written no row in {seconds} s, in which the old version would "
                f"have written about {stage.expected:.0f} times"
            )
    shown = ", ".join(f"{name} lag {stage.lag:,}" for name, stage in stages.items())
    return Health(True, None, f"probation of {seconds} s passed: {shown}")


def falls_behind(stage: StageWatch, moment: datetime) -> str:
    """Why a stage falls behind; empty when it keeps up or catches up.

    The lag after a commit goes up and down with the batches, so halves of the time are compared. A batch that takes
    far longer than the one before counts as a point of its own, since no one knows when it ends.
    """
    points = [sample.lag for sample in stage.samples]
    silent_s = (moment - stage.samples[-1].at).total_seconds() if stage.samples else 0.0
    if stage.samples and silent_s > max(LEAST_BEHIND_S, 2 * stage.batch_s):
        points.append(stage.lag)
    if len(points) < 2:
        return ""
    half = len(points) // 2
    grown = median(points[-half:]) - median(points[:half])
    if grown <= LEAST_BEHIND_S * stage.rate or grown <= 0:
        return ""
    return f"was {points[0]:,} events behind and is {points[-1]:,} by now, at {stage.rate:,.0f} events/s"


def expected_writes(old: DriverStatus | None, stage: str, seconds: float, rate: float) -> float | None:
    """In how many batches the old version would have written something, had it run on.

    None when that cannot be said: the stage is new, or the old version wrote too rarely.
    """
    found = old.stages.get(stage) if old is not None else None
    if old is None or found is None or not found.outputs or found.last_output is None:
        return None
    worked_s = max((old.updated - old.started).total_seconds(), 1.0)
    if (old.updated - found.last_output).total_seconds() > seconds:
        return None
    traffic = min(1.0, rate / found.input_rate) if found.input_rate > 0 else 1.0
    return found.outputs / worked_s * seconds * traffic


def _failed(why: str) -> Health:
    return Health(False, why, why)


# --- reading


def look(context: StepContext, seconds: int) -> Health:
    """One look at the new version, which is watched for so many seconds."""
    if not seconds:
        return Health(True, None, "no probation was asked for")
    store, moment = context.ports.store, now()
    since = context.operation.steps["healthy"].finished or moment
    status, lease = jobs.status(store, context.job, context.launch), jobs.lease(store, context.job)
    if status is not None and status.state in FINAL:
        return _failed(status.reason or str(status.state))
    over = (moment - since).total_seconds() >= seconds
    granted = context.reported("hand_over", HandedOver).epoch
    holds = lease is not None and status is not None and (lease.launch, lease.holder) == (context.launch, status.holder)
    obstacle = "its driver does not hold the lease"
    if holds and status is not None:
        obstacle = "" if status.state is State.RUNNING else f"its driver is {status.state} ({status.reason})"
    # What is measured has the servers' times. This host's clock only says how long it has lasted.
    since, moment = since + store.clock.ahead, moment + store.clock.ahead
    watched: dict[str, StageWatch] = {}
    if status is not None:
        read = _measure if over and not obstacle else _glance
        watched = {name: read(context, name, status, since, moment) for name in status.stages}
    return judge(
        watched,
        relaunches=max(0, lease.epoch - granted) if lease is not None else 0,
        over=over,
        obstacle=obstacle,
        moment=moment,
        seconds=seconds,
    )


def _glance(context: StepContext, stage: str, status: DriverStatus, since: datetime, moment: datetime) -> StageWatch:
    return StageWatch(failures=status.stages[stage].failures)


def _measure(context: StepContext, stage: str, status: DriverStatus, since: datetime, moment: datetime) -> StageWatch:
    """Everything that can be known of a stage, from its commits and the ledger."""
    found = status.stages[stage]
    topics = jobs.topics(
        context.version().definition, jobs.deployment(context.ports.store, context.job, context.number).topics
    )
    read = {source: topics[source] for source in found.offsets if source in topics}
    ledger = context.ports.ledger

    def there(ms: int) -> Offsets:
        return {source: dict(ledger.offsets_at(topic, ms)) for source, topic in read.items()}

    ends: Offsets = {source: dict(ledger.end_offsets(topic)) for source, topic in read.items()}
    seconds = max((moment - since).total_seconds(), 1.0)
    rate = distance(there(int(since.timestamp() * 1000)), ends) / seconds
    old = jobs.status(context.ports.store, context.job, context.before.launch) if context.before.launch else None
    return StageWatch(
        failures=found.failures,
        samples=_samples(context, stage, since, there),
        lag=distance(found.offsets, ends),
        rate=rate,
        batch_s=found.batch_ms / 1000,
        rows=found.output_rows,
        expected=expected_writes(old, stage, seconds, rate),
    )


def _samples(context: StepContext, stage: str, since: datetime, there: Callable[[int], Offsets]) -> tuple[Sample, ...]:
    """Lag after commits that were made since, spread over the time."""
    store, number = context.ports.store, context.number
    epoch = checkpoints.current_epoch(store, context.job, number)
    if epoch is None:
        return ()
    prefix = keys.stage(context.job, number, epoch, stage)
    times = checkpoints.commit_times(store, prefix)
    brought = checkpoints.brought(store, context.job, number, epoch).get(stage, -1)
    own = [batch for batch in sorted(times) if batch > brought and times[batch] >= since]
    step = max(1, -(-len(own) // _SAMPLES))
    samples = []
    for batch in own[::-1][::step][::-1]:  # the newest always among them
        offsets, _ = checkpoints.parse_offsets(store.get(f"{prefix}offsets/{batch}").body.decode())
        at = times[batch]
        samples.append(Sample(at, distance(offsets, there(int(at.timestamp() * 1000)))))
    return tuple(samples)
