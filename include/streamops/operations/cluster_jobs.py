"""What an operation on the cluster does to jobs: each under that job's own lock, with the steps of its own runbooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from streamops import snapshots
from streamops.cluster.presence import held
from streamops.model import records
from streamops.model.errors import StreamOpsError
from streamops.model.records import Control, Deployment, JobRecord
from streamops.operations import checks, cluster_checks, health, steps
from streamops.operations.checks import Case
from streamops.operations.context import Facts, Work
from streamops.operations.health import Health
from streamops.operations.operation import Request
from streamops.operations.ports import NodesPort
from streamops.spark.master import Master
from streamops.store import documents, jobs, keys, leases, locks
from streamops.versions import libraries

_SILENCE_S = 10.0  # a live driver speaks every second
_NO_DRIVER = "it has no driver; what it committed last counts"
_LAST_S = 5.0  # a job has caught up when it has read everything that is older than this


def checked(work: Work) -> Facts:
    """What the operation's check found: the names that every step goes by."""
    return work.operation.facts("check")


def for_job(work: Work, record: JobRecord, runbook: str = "start_job") -> Work:
    """The same operation as it concerns one job: its request, and its record as it was."""
    asked = Request.model_validate(
        {
            "runbook": runbook,
            "job": record.job,
            "healthy_timeout_s": work.request.healthy_timeout_s,
            "stop_timeout_s": work.request.stop_timeout_s,
            "snapshot": work.request.snapshot if runbook == "snapshot_job" else None,
            "cancel": runbook == "snapshot_job",
        }
    )
    return replace(work, operation=work.operation.model_copy(update={"request": asked, "before": record}))


def claimed(work: Work) -> list[JobRecord]:
    """The jobs that this operation stops or starts, with their records as they were when it took their locks."""
    found: Mapping[str, Any] = work.operation.facts("claim").get("records", {})
    return [JobRecord.model_validate(record) for record in found.values()]


def each(work: Work, runbook: str = "start_job") -> Iterator[Work]:
    """One work for each claimed job."""
    for record in claimed(work):
        yield for_job(work, record, runbook)


# --- locks


def claim(work: Work) -> Facts:
    """Take the lock of every job that is concerned; all of them, or none.

    Raises:
        LockedError: another operation works on one of them. Nothing was done.
    """
    wanted = [record.job for record in cluster_checks.known(work.ports.store)]
    if work.request.runbook == "restart_cluster":
        wanted = [job for job in wanted if job in checked(work)["jobs"]]
    elif work.request.runbook == "scale_cluster":
        wanted = _hosted(work)
    operation, owners = work.operation, work.ports.owners.finished
    try:
        for job in wanted:
            locks.acquire(
                work.ports.store, job, operation.id, work.request.runbook, operation.owner, owners, records.now()
            )
    except StreamOpsError:
        release(work)
        raise
    found = {job: jobs.record(work.ports.store, job) for job in wanted}
    return {"jobs": wanted, "records": {job: item.model_dump(mode="json") for job, item in found.items() if item}}


def release(work: Work) -> None:
    """Give the locks of all jobs back that this operation holds; those of others are left alone."""
    for record in cluster_checks.known(work.ports.store):
        if locks.release(work.ports.store, record.job, work.operation.id):
            work.say(f"The operation lock of {record.job} is free")


def renew(work: Work) -> None:
    """Show that the holder of the jobs' locks lives."""
    for record in claimed(work):
        locks.renew(work.ports.store, record.job, work.operation.id, records.now())


def _hosted(work: Work) -> list[str]:
    """Jobs with a driver on a leaving node, and those of which nobody knows where their driver is."""
    leaving = checked(work).get("stop", ())
    if not leaving:
        return []
    port, running = work.ports.nodes(), cluster_checks.should_run(work.ports.store)
    master = port.master()
    there = {driver.id for name in leaving for driver in _drivers(port, master, name)}
    if not there:
        return []
    found = []
    for record in running:
        status = jobs.status(work.ports.store, record.job, record.launch) if record.launch else None
        driver = status.driver if status else ""
        if not driver or driver in there or driver not in {item.id for item in master.drivers}:
            found.append(record.job)
    return found


def _drivers(port: NodesPort, master: Master, name: str) -> tuple[Any, ...]:
    worker = master.worker(port.inventory.node(name).page)
    return master.drivers_on(worker) if worker else ()


# --- stop


def stop_jobs(work: Work) -> Facts:
    told = []
    for job in each(work):
        launch = job.before.launch
        if job.before.desired != "running" or launch is None:
            continue
        if work.request.runbook == "shutdown_cluster":  # a hand-over leaves the job as one that should run
            jobs.change(work.ports.store, job.job, {"desired": "stopped", "changed_by": work.operation.id})
        jobs.tell(work.ports.store, job.job, launch, Control(command="stop", operation=work.operation.id))
        work.say(f"{job.job}: launch {launch} is asked to stop at a batch boundary")
        told.append(job.job)
    return {"jobs": told}


def await_jobs(work: Work) -> Facts:
    facts: dict[str, Any] = {}
    for job in each(work, "cancel_job"):
        if job.before.desired != "running" or job.before.launch is None:
            continue
        found = job.wait(_stop_of(work, job.before), work.request.stop_timeout_s, "Stop")
        if found.why == _NO_DRIVER:
            work.say(f"{job.job}: {_NO_DRIVER}")
            facts[job.job] = {"stopped": False, "why": _NO_DRIVER}
            continue
        facts[job.job] = steps.await_stop(job)
        batches = {name: stage["batch"] for name, stage in facts[job.job].get("stages", {}).items()}
        shown = ", ".join(f"{name} at batch {batch}" for name, batch in batches.items())
        work.say(f"{job.job}: its state is saved{f' ({shown})' if shown else ''}")
    return {"stopped": facts}


def _stop_of(work: Work, record: JobRecord) -> Callable[[], Health]:
    """Whether a driver has stopped; one that is silent, and that the master does not hold, has nothing to save."""
    spoke: tuple[datetime | None, float] = (None, time.monotonic())

    def look() -> Health:
        nonlocal spoke
        status = jobs.status(work.ports.store, record.job, record.launch or "-")
        found = health.assess_stop(status, record.launch or "-")
        updated = status.updated if status else None
        if updated != spoke[0]:
            spoke = (updated, time.monotonic())
        elif not found.done and time.monotonic() - spoke[1] > _SILENCE_S and not _left(work, record):
            return Health(True, None, _NO_DRIVER)
        return found

    return look


def export(work: Work) -> Facts:
    """A snapshot of every job that was stopped, when a name was given."""
    name = work.request.snapshot
    if name is None:
        return {}
    kept = {}
    for job in each(work, "snapshot_job"):
        if job.before.desired != "running":
            continue
        found = snapshots.find(work.ports.store, job.job, name)
        if found is None or found.operation != work.operation.id:
            record = job.operation.steps["export"].model_copy(update={"facts": steps.export(job)})
            steps.commit_manifest(replace(job, operation=job.operation.with_step("export", record)))
            found = snapshots.load(work.ports.store, job.job, name)
        update = {"desired": "stopped-with-snapshot", "snapshot": name, "changed_by": work.operation.id}
        jobs.change(work.ports.store, job.job, update)
        kept[job.job] = {"snapshot": name, "objects": len(found.objects), "bytes": found.size}
    return {"snapshots": kept}


# --- jobs come back


def resume(work: Work, *, again: bool) -> Facts:
    """A new launch of the same deployment for each job that must come back, from its own checkpoint.

    A job whose driver the master still holds (it recovered its memory) is left to the master: one healer at a time.
    """
    facts: dict[str, Any] = {}
    for job in each(work):
        record = job.before
        if not _comes_back(work, record):
            continue
        if work.request.runbook == "restart_cluster" and record.desired == "running" and _left(work, record):
            work.say(f"{job.job}: the master still holds its driver and starts it again")
            facts[job.job] = {"launch": record.launch, "left_to_the_master": True}
            continue
        stopped = record.model_copy(update={"desired": "stopped"})
        checks.check(Case(work.ports, job.operation, stopped))
        where, number = _offsets(work, job.job, record.launch), record.deployment
        library = _on_library(work, job)
        steps.give(job, record.version, number, job.launch)
        leases.grant(work.ports.store, job.job, job.launch, number)
        put = steps.put(job, steps.submission(job, job.version(), number, job.launch), again=again)
        facts[job.job] = {**put, "from": where, **library}
    return {"jobs": facts}


def _on_library(work: Work, job: Work) -> Facts:
    """Bring the job's deployment onto the library that the check accepted; nothing else of it changes."""
    store, wanted = work.ports.store, checked(work).get("library")
    found = documents.read(store, keys.deployment(job.job, job.before.deployment), Deployment)
    used = found.value.library if found else None
    if wanted is None or found is None or used is None or used.name != wanted.split("/")[0]:
        return {}
    old, new = found.value, libraries.load(store, *wanted.split("/")).use
    if used != new:
        changed = old.model_copy(update={"library": new})
        documents.write(store, keys.deployment(job.job, old.number), changed, over=found.etag)
        work.say(f"{job.job}: library {used.label} -> {new.label}, artifact {old.artifact_sha256[:12]} as it was")
    return {"library": new.label}


def _comes_back(work: Work, record: JobRecord) -> bool:
    if work.request.runbook == "restart_cluster":
        return record.job in checked(work)["jobs"]
    return record.desired == "running"


def _left(work: Work, record: JobRecord) -> bool:
    store = work.ports.store
    known = [*cluster_checks.should_run(store), *claimed(work)]
    said = {item.job: jobs.status(store, item.job, item.launch or "-") for item in known}
    return held(work.ports.nodes().master(), said.pop(record.job, None), said.values())


def started(work: Work, facts: Facts) -> list[tuple[Work, str]]:
    """The jobs that came back, as those facts tell, each with its launch."""
    told: dict[str, Any] = facts.get("jobs", {})
    return [(job, told[job.job]["launch"]) for job in each(work) if job.job in told]


def look(work: Work, facts: Facts) -> Health:
    """Whether every job that came back holds its lease and works."""
    found = {
        job.job: steps.healthy_now(job, launch, job.version(job.before.version)) for job, launch in started(work, facts)
    }
    failed = [f"{name}: {item.failed}" for name, item in found.items() if item.failed is not None]
    told = "; ".join(f"{name}: {item.why}" for name, item in found.items())
    done = all(item.done for item in found.values())
    return Health(done, "; ".join(failed) or None, told or "no job had to come back")


def look_caught_up(work: Work) -> Health:
    """Whether each stage has read everything that is older than some seconds."""
    behind = []
    moment_ms = int((records.now().timestamp() - _LAST_S) * 1000)
    for job, launch in started(work, work.operation.facts("resume_jobs")):
        status = jobs.status(work.ports.store, job.job, launch)
        deployment = jobs.deployment(work.ports.store, job.job, job.before.deployment)
        lag = 0
        for source, topic in jobs.topics(job.version(deployment.version).definition, deployment.topics).items():
            goal = work.ports.ledger.offsets_at(topic, moment_ms)
            for stage in status.stages.values() if status else ():
                at = stage.offsets.get(source)
                if at is not None:
                    lag = max(lag, sum(max(0, end - at.get(partition, 0)) for partition, end in goal.items()))
        if status is None or not status.stages or lag:
            behind.append(f"{job.job}: {lag:,} events behind" if lag else f"{job.job}: has not reported")
    return Health(not behind, None, "; ".join(behind) or "every job has caught up")


def caught_up(work: Work) -> Facts:
    """Events and seconds of catching up, by job."""
    facts = work.operation.facts("resume_jobs")
    since = work.operation.steps["resume_jobs"].started
    told = {}
    for job, launch in started(work, facts):
        sources = job.version(job.before.version).definition.sources
        counted = {name for name, source in sources.items() if not source.csv_tail}  # whose offsets are bytes
        events = _between(facts["jobs"][job.job].get("from", {}), _offsets(work, job.job, launch), counted)
        seconds, processing = _seconds(work, job.job, launch, since)
        told[job.job] = {"events": events, "seconds": seconds, "processing_s": processing}
        work.say(
            f"{job.job}: caught up with {events:,} events in {processing} s of processing, {seconds} s after it was "
            "started"
        )
    return {"jobs": told}


def _seconds(work: Work, job: str, launch: str | None, since: datetime) -> tuple[float, float]:
    """Until the last commit that was needed, as far as the driver's clock goes with this one; and without the start.

    What comes before the first query is the start: a process, Spark, the code, the state.
    """
    at_most = (records.now() - since).total_seconds()
    status = jobs.status(work.ports.store, job, launch) if launch else None
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


def _offsets(work: Work, job: str, launch: str | None) -> Any:
    found = jobs.status(work.ports.store, job, launch) if launch else None
    return {name: stage.offsets for name, stage in found.stages.items()} if found else {}


def _between(before: Mapping[str, Any], after: Mapping[str, Any], counted: Collection[str]) -> int:
    """Events of these sources that the stage which read most of them has read meanwhile."""
    most = 0
    for stage, sources in after.items():
        for source, partitions in sources.items():
            old = before.get(stage, {}).get(source)
            if old and source in counted:
                most = max(most, sum(end - old.get(partition, 0) for partition, end in partitions.items()))
    return most
