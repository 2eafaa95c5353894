"""What an operation on the cluster does to jobs: each under that job's own lock, with the steps of its own runbooks."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from streamops import snapshots
from streamops.cluster.presence import held
from streamops.model import records
from streamops.model.errors import OvertakenError, StreamOpsError
from streamops.model.records import Deployment, JobRecord, Offsets
from streamops.operations import checks, cluster_checks, health, steps
from streamops.operations.context import StepContext
from streamops.operations.facts import (
    Claimed,
    ClusterChecked,
    JobCaughtUp,
    Jobs,
    JobsKept,
    JobsResumed,
    JobsStopped,
    Kept,
    Resumed,
    Stopped,
    Submitted,
)
from streamops.operations.health import Health
from streamops.operations.requests import PartOfCluster, Stops
from streamops.store import documents, jobs, keys, leases, locks
from streamops.versions import libraries

_SILENCE_S = 10.0  # a live driver speaks every second
_LAST_S = 5.0  # a job has caught up when it has read everything that is older than this


def checked(context: StepContext) -> ClusterChecked:
    """What the operation's check found: the names that every step goes by."""
    return context.reported("check", ClusterChecked)


def for_job(context: StepContext, record: JobRecord) -> StepContext:
    """The same operation as it concerns one job: what is asked of that, and its record as it was."""
    given = context.operation.request.model_dump(include={"healthy_timeout_s", "stop_timeout_s", "snapshot"})
    asked = PartOfCluster(runbook=context.operation.request.runbook, job=record.job, **given)
    operation = context.operation.model_copy(update={"request": asked, "before": record})
    return replace(context, operation=operation, say=lambda line: context.say(f"{record.job}: {line}"))


def claimed(context: StepContext) -> list[JobRecord]:
    """The jobs that this operation stops or starts, with their records as they were when it took their locks."""
    return list(context.reported("claim", Claimed).records.values())


def each(context: StepContext) -> Iterator[StepContext]:
    """One context for each claimed job."""
    for record in claimed(context):
        yield for_job(context, record)


# --- locks


def claim(context: StepContext, wanted: list[str]) -> Claimed:
    """Take the lock of each of these jobs; all of them, or none.

    Raises:
        LockedError: another operation works on one of them. Nothing was done.
    """
    try:
        for job in wanted:
            _take(context, job)
    except OvertakenError:
        raise
    except StreamOpsError:
        release(context)
        raise
    found = {job: jobs.record(context.ports.store, job) for job in wanted}
    return Claimed(jobs=tuple(wanted), records={job: item for job, item in found.items() if item})


def take_up(context: StepContext) -> None:
    """Another process continues with the operation: the one before it may not change these jobs any more."""
    for record in claimed(context):
        held = locks.read(context.ports.store, record.job)
        if held is not None and held.value.operation == context.operation.id:
            _take(context, record.job)


def _take(context: StepContext, job: str) -> None:
    store, operation, owners = context.ports.store, context.operation, context.ports.owners.finished
    context.require_turn()
    lock = locks.acquire(store, job, operation.id, operation.request.runbook, operation.owner, owners, records.now())
    context.fences[job] = lock.fence
    jobs.claim(store, job, lock.fence)


def known(context: StepContext) -> list[str]:
    """The names of all jobs that were ever deployed."""
    return [record.job for record in cluster_checks.known(context.ports.store)]


def release(context: StepContext) -> None:
    """Give the locks of all jobs back that this operation holds; those of others are left alone."""
    for record in cluster_checks.known(context.ports.store):
        if locks.release(context.ports.store, record.job, context.operation.id):
            context.say(f"The operation lock of {record.job} is free")


def renew(context: StepContext) -> None:
    """Show that the holder of the jobs' locks lives."""
    for record in claimed(context):
        fence = context.fences.get(record.job, 0)
        locks.renew(context.ports.store, record.job, context.operation.id, records.now(), fence=fence)


# --- stop


def stop_jobs(context: StepContext, *, to_stay: bool) -> Jobs:
    """Ask the driver of each job to stop at a batch boundary.

    Args:
        to_stay: the jobs are to be stopped; in a hand-over they stay jobs that should run.
    """
    told = []
    for job in each(context):
        if steps.request_stop(job, to_stay=to_stay).launch:
            told.append(job.job)
    return Jobs(jobs=tuple(told))


def await_jobs(context: StepContext) -> JobsStopped:
    """Wait until the state of each job is saved; one that has no driver has nothing to save."""
    facts: dict[str, Stopped] = {}
    for job in each(context):
        if job.before.desired != "running" or job.before.launch is None:
            continue
        look = _StopOf(context, job.before)
        found = job.wait(look, job.asked(Stops).stop_timeout_s, "Stop")
        if look.gone:
            context.say(f"{job.job}: {found.why}")
            facts[job.job] = Stopped(stopped=False, why=found.why)
            continue
        facts[job.job] = steps.await_stop(job)
        batches = {name: stage.batch for name, stage in facts[job.job].stages.items()}
        shown = ", ".join(f"{name} at batch {batch}" for name, batch in batches.items())
        context.say(f"{job.job}: its state is saved{f' ({shown})' if shown else ''}")
    return JobsStopped(stopped=facts)


class _StopOf:
    """Whether a driver has stopped; one that is silent, and that the master does not hold, is ``gone``."""

    def __init__(self, context: StepContext, record: JobRecord) -> None:
        self.context, self.record, self.gone = context, record, False
        self._spoke: tuple[datetime | None, float] = (None, time.monotonic())

    def __call__(self) -> Health:
        launch = self.record.launch or "-"
        status = jobs.status(self.context.ports.store, self.record.job, launch)
        found = health.assess_stop(status, launch)
        updated = status.updated if status else None
        if updated != self._spoke[0]:
            self._spoke = (updated, time.monotonic())
        elif not found.done and time.monotonic() - self._spoke[1] > _SILENCE_S:
            self.gone = not left(self.context, self.record)
        return Health(True, None, "it has no driver; what it committed last counts") if self.gone else found


def export(context: StepContext, name: str | None) -> JobsKept:
    """A snapshot of every job that was stopped, when a name was given."""
    if name is None:
        return JobsKept()
    kept: dict[str, Kept] = {}
    for job in each(context):
        if job.before.desired != "running":
            continue
        found = snapshots.find(context.ports.store, job.job, name)
        if found is None or found.operation != context.operation.id:
            exported, _ = steps.export(job, steps.attempt(job, "export"), live=False)
            record = job.operation.steps["export"].model_copy(update={"facts": exported.recorded()})
            told = replace(job, operation=job.operation.with_step("export", record))
            _, found = steps.commit_manifest(told, "export")
        job.change({"desired": "stopped-with-snapshot", "snapshot": name})
        kept[job.job] = Kept(snapshot=name, objects=len(found.objects), bytes=found.size)
    return JobsKept(snapshots=kept)


# --- jobs come back


def resume(context: StepContext, wanted: Collection[str], *, kept_by_master: bool = False) -> JobsResumed:
    """Name a new launch of the same deployment for each of these jobs, which continues from its own checkpoint.

    Args:
        kept_by_master: a master that recovered its memory may still hold a job's driver. Then the job is left to the
            master: one healer at a time.
    """
    facts: dict[str, Resumed] = {}
    coming = [job for job in each(context) if job.job in wanted]
    for job in [*coming]:
        record = job.before
        if kept_by_master and record.desired == "running" and left(context, record):
            context.say(f"{job.job}: the master still holds its driver and starts it again")
            facts[job.job] = Resumed(launch=record.launch or "", left_to_the_master=True)
            coming.remove(job)
        else:
            checks.continues(job, record)  # of all, before any is named
    for job in coming:
        where, number = _offsets(context, job.job, job.before.launch), job.before.deployment
        library = _on_library(context, job, where)
        steps.give(job, job.before.version, number, job.launch)
        leases.grant(context.ports.store, job.job, job.launch, number)
        named = Resumed(launch=job.launch, deployment=number, begins=where)
        facts[job.job] = named.model_copy(update={"library": library}) if library else named
    return JobsResumed(jobs=facts)


def to_submit(context: StepContext) -> list[str]:
    """The jobs whose new launches are named, and that need drivers."""
    resumed = context.reported("resume_jobs", JobsResumed).jobs
    return [job for job, item in resumed.items() if not item.left_to_the_master]


def submit(context: StepContext) -> Submitted:
    """The driver of one of them."""
    (job,) = [job for job in each(context) if job.job == context.part]
    return put(job, f"submit_jobs/{context.part}")


def put(job: StepContext, step: str, *, undo: bool = False, again: bool = False) -> Submitted:
    """The driver of a job's new launch."""
    what = steps.submission(job, job.version(), job.before.deployment, job.launch)
    return steps.put(job, what, step, undo=undo, again=again)


def running(context: StepContext) -> list[str]:
    """The claimed jobs that ran when they were claimed."""
    return [record.job for record in claimed(context) if record.desired == "running"]


def _on_library(context: StepContext, job: StepContext, stands: dict[str, Offsets]) -> str | None:
    """Bring the job's deployment onto the library that the check accepted; nothing else of it changes.

    Args:
        stands: by stage, what it has read with the library before.
    """
    store, wanted = context.ports.store, checked(context).library
    found = documents.read(store, keys.deployment(job.job, job.before.deployment), Deployment)
    used = found.value.library if found else None
    if wanted is None or found is None or used is None or used.name != wanted.split("/")[0]:
        return None
    old, new = found.value, libraries.load(store, *wanted.split("/")).use
    if used != new:
        changed = old.model_copy(update={"library": new, "library_since": stands})
        documents.write(store, keys.deployment(job.job, old.number), changed, over=found.etag)
        context.say(f"{job.job}: library {used.label} -> {new.label}, artifact {old.artifact_sha256[:12]} as it was")
    return new.label


def left(context: StepContext, record: JobRecord) -> bool:
    """Whether the master still holds a driver of the job."""
    store = context.ports.store
    known = [*cluster_checks.should_run(store), *claimed(context)]
    said = {item.job: jobs.status(store, item.job, item.launch or "-") for item in known}
    return held(context.ports.nodes().master(), said.pop(record.job, None), said.values())


def started(context: StepContext, resumed: JobsResumed) -> list[tuple[StepContext, str]]:
    """The jobs that came back, each with its launch."""
    return [(job, resumed.jobs[job.job].launch) for job in each(context) if job.job in resumed.jobs]


def look(context: StepContext, resumed: JobsResumed) -> Health:
    """Whether every job that came back holds its lease and works."""
    found = {
        job.job: steps.healthy_now(job, launch, job.version(job.before.version))
        for job, launch in started(context, resumed)
    }
    failed = [f"{name}: {item.failed}" for name, item in found.items() if item.failed is not None]
    told = "; ".join(f"{name}: {item.why}" for name, item in found.items())
    done = all(item.done for item in found.values())
    return Health(done, "; ".join(failed) or None, told or "no job had to come back")


def look_caught_up(context: StepContext) -> Health:
    """Whether each stage has read everything that is older than some seconds."""
    behind = []
    moment_ms = int((records.now().timestamp() - _LAST_S) * 1000)
    for job, launch in started(context, context.reported("resume_jobs", JobsResumed)):
        status = jobs.status(context.ports.store, job.job, launch)
        deployment = jobs.deployment(context.ports.store, job.job, job.before.deployment)
        lag = 0
        for source, topic in jobs.topics(job.version(deployment.version).definition, deployment.topics).items():
            goal = context.ports.ledger.offsets_at(topic, moment_ms)
            for stage in status.stages.values() if status else ():
                at = stage.offsets.get(source)
                if at is not None:
                    lag = max(lag, sum(max(0, end - at.get(partition, 0)) for partition, end in goal.items()))
        if status is None or not status.stages or lag:
            behind.append(f"{job.job}: {lag:,} events behind" if lag else f"{job.job}: has not reported")
    return Health(not behind, None, "; ".join(behind) or "every job has caught up")


def caught_up(context: StepContext) -> dict[str, JobCaughtUp]:
    """Events and seconds of catching up, by job."""
    resumed = context.reported("resume_jobs", JobsResumed)
    since = context.operation.steps["resume_jobs"].started
    told = {}
    for job, launch in started(context, resumed):
        sources = job.version(job.before.version).definition.sources
        counted = {name for name, source in sources.items() if not source.csv_tail}  # whose offsets are bytes
        events = _between(resumed.jobs[job.job].begins, _offsets(context, job.job, launch), counted)
        seconds, processing = _seconds(context, job.job, launch, since)
        told[job.job] = JobCaughtUp(events=events, seconds=seconds, processing_s=processing)
        context.say(
            f"{job.job}: caught up with {events:,} events in {processing} s of processing, {seconds} s after it was "
            "started"
        )
    return told


def _seconds(context: StepContext, job: str, launch: str | None, since: datetime) -> tuple[float, float]:
    """Until the last commit that was needed, as far as the driver's clock goes with this one; and without the start.

    What comes before the first query is the start: a process, Spark, the code, the state.
    """
    at_most = (records.now() - since).total_seconds()
    status = jobs.status(context.ports.store, job, launch) if launch else None
    last = [stage.last_commit for stage in status.stages.values() if stage.last_commit] if status else []
    if status is None or not last:
        return round(at_most, 1), round(at_most, 1)
    seconds = min(at_most, max(0.0, (max(last) - since).total_seconds()))
    # Of the phases, these come after the moment that the driver tells as its start.
    made_ready = timedelta(
        milliseconds=sum(status.phases_ms.get(name, 0) for name in ("prepare", "restore", "repartition"))
    )
    processing = (max(last) - status.started - made_ready).total_seconds()
    return round(seconds, 1), round(min(seconds, max(0.1, processing)), 1)


def _offsets(context: StepContext, job: str, launch: str | None) -> dict[str, Offsets]:
    found = jobs.status(context.ports.store, job, launch) if launch else None
    return {name: stage.offsets for name, stage in found.stages.items()} if found else {}


def _between(before: Mapping[str, Offsets], after: Mapping[str, Offsets], counted: Collection[str]) -> int:
    """Events of these sources that the stage which read most of them has read meanwhile."""
    most = 0
    for stage, sources in after.items():
        for source, partitions in sources.items():
            old = before.get(stage, {}).get(source)
            if old and source in counted:
                most = max(most, sum(end - old.get(partition, 0) for partition, end in partitions.items()))
    return most
