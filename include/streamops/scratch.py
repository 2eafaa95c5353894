"""A snapshot proven by restoring it: a scratch job continues from it beside the real one, and is recounted.

The scratch job is the snapshot's version under another name, whose points go to measurements of their own. Nobody
else reads them, and at the end they go with the job. What was left by a test that died goes before the next one.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from streamops import archives, artifacts, jobs, keys, locks, records
from streamops.adapters.influx import Points
from streamops.adapters.object_store import ObjectStore
from streamops.definitions import Definition, Sink, Stage, milliseconds
from streamops.engine import Engine
from streamops.errors import LockedError, RefusedError, SnapshotRefusedError, StreamOpsError, UnhealthyError
from streamops.follow import request
from streamops.names import SCRATCH
from streamops.operations import Owner, Request
from streamops.records import FINAL, DriverStatus, Offsets, now
from streamops.settings import Settings
from streamops.snapshots import catalogue, marks
from streamops.snapshots.manifest import Manifest
from streamops.snapshots.marks import Check, Checks

Say = Callable[[str], None]
FRESH = timedelta(days=7)  # a job of which a snapshot was restored since then is left alone
LIMIT_S = 300.0  # how long the scratch job may take to go on far enough
LEAST_MS = 60_000  # of event time that it must go on, and two windows at least, unless the events end before
MARGIN_MS = 10_000  # of events before a window's start: one that is read from its middle is not compared
_LONGEST_NAME = 63
_LOOK_S, _SAY_S = 1.0, 10.0


def scratch_name(job: str) -> str:
    """The name of a job's scratch job; no published job may have such a name."""
    name = f"{SCRATCH}{job}"
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 9]}-{_digest(job)}"


def derived(definition: Definition, test: str) -> Definition:
    """The scratch job's definition: it computes the same, and writes only what is its own.

    Args:
        test: what makes the measurements of this test different from those of any other.
    """
    return definition.model_copy(
        update={
            "job": scratch_name(definition.job),
            "description": f"Restore test of {definition.job} {definition.version}; removed when it ends.",
            "stages": {name: _moved(stage, test) for name, stage in definition.stages.items()},
            "standby_driver": False,
            "snapshots": None,
        }
    )


def _moved(stage: Stage, test: str) -> Stage:
    return stage.model_copy(update={"sinks": tuple(_own(sink, test) for sink in stage.sinks)})


def _own(sink: Sink, test: str) -> Sink:
    if sink.influxdb is None:
        return sink
    name = f"scratch_{_digest(test + sink.influxdb.measurement)}_{sink.influxdb.measurement}"[:_LONGEST_NAME]
    return sink.model_copy(update={"influxdb": sink.influxdb.model_copy(update={"measurement": name})})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def measurements(definition: Definition) -> list[str]:
    """Where a job writes its points."""
    sinks = [sink.influxdb for stage in definition.stages.values() for sink in stage.sinks]
    return sorted({sink.measurement for sink in sinks if sink})


def due(known: Iterable[tuple[Manifest, Checks]], moment: datetime, fresh: timedelta = FRESH) -> Manifest | None:
    """The snapshot of a job to restore now: its newest good one, if none of them was restored for a while.

    Args:
        known: the job's snapshots with what verifications found of each.
    """
    rows = list(known)
    last = max((item.when for _, found in rows if (item := found.checks.get("restored"))), default=None)
    if last is not None and moment - last < fresh:
        return None
    good = [manifest for manifest, found in rows if not found.problem()]
    return max(good, key=lambda manifest: manifest.created, default=None)


def recount_from(
    definition: Definition, manifest: Manifest, offsets_at: Callable[[str, int], Mapping[str, int]]
) -> tuple[Offsets, dict[str, int]]:
    """From where the ledger is read, and after which window of each stage points are compared.

    Windows that were open in the snapshot count as well, since their state is what it holds; so events are read from
    before they began.

    Args:
        offsets_at: source and time in milliseconds -> the first offset of each partition since then.

    Returns:
        Source -> partition -> offset, and stage -> end of its last closed window in milliseconds.
    """
    after: dict[str, int] = {}
    earliest: dict[str, int] = {}
    for name, stage in definition.stages.items():
        held = manifest.stages.get(name)
        if stage.recount is None or held is None or not held.watermark_ms:
            continue
        after[name] = held.watermark_ms
        reach = milliseconds(stage.recount.window) + milliseconds(stage.recount.delay) + MARGIN_MS
        begun = held.watermark_ms - reach
        earliest[stage.recount.source] = min(begun, earliest.get(stage.recount.source, begun))
    return {source: dict(offsets_at(source, begun)) for source, begun in earliest.items()}, after


def waiting_for(
    status: DriverStatus | None, definition: Definition, manifest: Manifest, ends: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """What the scratch job has yet to do, in words, stage by stage; empty when it has gone on far enough.

    Far enough is two windows and a minute of event time, or all events that there were when it began.

    Args:
        ends: source -> partition -> end of its topic when the test began.
    """
    told = []
    for name, stage in definition.stages.items():
        found, held = status.stages.get(name) if status else None, manifest.stages.get(name)
        if found is None or not (found.commits or found.quiet):
            told.append(f"{name}: its first batch")
            continue
        if all(
            found.offsets.get(source, {}).get(part, 0) >= end for source in ends for part, end in ends[source].items()
        ):
            continue
        wanted = LEAST_MS + (2 * milliseconds(stage.recount.window) if stage.recount else 0)
        gone = (found.watermark_ms or 0) - (held.watermark_ms or 0) if held and held.watermark_ms else 0
        if gone < wanted:
            told.append(f"{name}: {max(0, gone) / 1000:.0f} of {wanted / 1000:.0f} s")
    return told


def restore(
    settings: Settings, engine: Engine, job: str, name: str, owner: Owner, say: Say = lambda line: None
) -> Check:
    """Restore a snapshot into a scratch job, let it go on, recount it, and note what was found.

    Raises:
        NotFoundError: there is no such snapshot.
        SnapshotRefusedError: it cannot be restored, or what continued from it is not what the events give.
        RefusedError: there is no room for one more driver; nothing was begun.
        LockedError: another test of this job is at work.
        UnhealthyError: the scratch job did not start or go on, which may be the cluster's fault: nothing is noted.
    """
    store, began = engine.store, time.monotonic()
    manifest = catalogue.load(store, job, name)
    clear(settings, engine, job, owner, say)
    definition = _publish(store, manifest, test=f"{name}-{uuid.uuid4().hex}")
    problem = details = ""
    try:
        if not engine.ports.submitter.room_for(definition.resources):
            raise RefusedError(
                f"The cluster has no room for one more driver of {job} with its executors, so {job}/{name} is not "
                "restored; scale out, or choose a time when fewer jobs run."
            )
        say(f"{job}/{name}: restored into {definition.job}, which writes {', '.join(measurements(definition))}")
        try:
            details, problem = _continued(settings, engine, manifest, definition, owner, say)
        except SnapshotRefusedError as error:
            problem = str(error)
    finally:
        clear(settings, engine, job, owner, say)
    check = Check(
        how="restored",
        when=now(),
        attempt=manifest.attempt,
        problem=problem,
        objects=len(manifest.objects),
        size=manifest.size,
        seconds=round(time.monotonic() - began, 3),
        details=details,
    )
    marks.note(store, job, name, check)
    if problem:
        raise SnapshotRefusedError(f"Snapshot {job}/{name} was restored for a test: {problem}; use another snapshot.")
    say(f"{job}/{name}: restored and continued in {check.seconds:.0f} s, {details}")
    return check


def _publish(store: ObjectStore, manifest: Manifest, test: str) -> Definition:
    """Put the scratch job's version where drivers find it: the code that the snapshot was taken with.

    Raises:
        NotFoundError: the version is not published any more.
        SnapshotRefusedError: what is published is not what the snapshot was taken with.
    """
    version = artifacts.load_manifest(store, manifest.job, manifest.version)
    body = store.get(keys.artifact(manifest.job, manifest.version)).body
    if archives.sha256(body) != manifest.artifact_sha256:
        raise SnapshotRefusedError(
            f"Snapshot {manifest.job}/{manifest.name} was taken with other code than what {manifest.version} holds "
            "now; somebody changed the published version."
        )
    definition = derived(version.definition, test)
    packed = archives.pack({**archives.unpack(body), "definition.json": definition.canonical().encode()})
    store.put(keys.artifact(definition.job, definition.version), packed)
    moved = version.model_copy(
        update={
            "job": definition.job,
            "definition": definition,
            "artifact_sha256": archives.sha256(packed),
            "size": len(packed),
            "published": now(),
        }
    )
    records.write(store, keys.artifact_manifest(definition.job, definition.version), moved)
    return definition


def _continued(
    settings: Settings, engine: Engine, manifest: Manifest, definition: Definition, owner: Owner, say: Say
) -> tuple[str, str]:
    """Deploy, wait, stop and recount. Returns what was compared, and what is wrong with it."""
    from streamops.recount import recount_job  # loads much that those who only look have no use for

    store, ledger = engine.store, engine.ports.ledger
    original = jobs.deployment(store, manifest.job, manifest.deployment)
    topics = jobs.topics(definition, original.topics)
    ends = {source: dict(ledger.end_offsets(topic)) for source, topic in topics.items()}
    since, after = recount_from(definition, manifest, lambda source, ms: ledger.offsets_at(topics[source], ms))
    used = manifest.shared_library
    deploy = request(
        "deploy_job",
        job=definition.job,
        version=definition.version,
        from_snapshot=f"{manifest.job}/{manifest.name}",
        fork=True,
        params=original.params,
        topics={source: place for source, place in original.topics.items() if source in topics},
        addresses={source: place for source, place in original.topics.items() if source not in topics},
        library=used.label if used else None,
        healthy_timeout_s=int(2 * LIMIT_S),  # beside everything else, with nobody who waits for its results
    )
    _run(engine, deploy, owner)
    _wait(engine, manifest, definition, ends, say)
    _run(engine, request("cancel_job", job=definition.job), owner)
    if not after:
        return "it goes on; no stage of it can be recounted", ""
    report = recount_job(settings, store, definition.job, since=since, after=after)
    compared = sum(item.expected for item in report.measurements)
    if not compared:
        return "it goes on; no window was closed since, so nothing was compared", ""
    examples = [text for item in report.measurements for text in item.examples]
    wrong = any(item.off for item in report.measurements)
    problem = f"what continued from it is wrong: {report.reason} ({'; '.join(examples[:3])})" if wrong else ""
    return f"{report.events:,} events recounted, {compared:,} points of {len(report.measurements)} stages", problem


def _wait(
    engine: Engine, manifest: Manifest, definition: Definition, ends: Mapping[str, Mapping[str, int]], say: Say
) -> None:
    """Wait until the scratch job has gone on far enough. Raises UnhealthyError."""
    deadline, told = time.monotonic() + LIMIT_S, time.monotonic()
    while True:
        record = jobs.record(engine.store, definition.job)
        status = jobs.status(engine.store, definition.job, record.launch) if record and record.launch else None
        missing = waiting_for(status, definition, manifest, ends)
        if not missing:
            return
        if status is not None and status.state in FINAL:
            raise UnhealthyError(f"{definition.job} ended by itself: {status.reason or status.state}; read its log.")
        if time.monotonic() > deadline:
            raise UnhealthyError(
                f"{definition.job} did not go on far enough in {LIMIT_S:.0f} s ({'; '.join(missing)}); "
                "look whether the cluster keeps up."
            )
        if time.monotonic() - told > _SAY_S:
            say(f"{definition.job} goes on: {'; '.join(missing)}")
            told = time.monotonic()
        time.sleep(_LOOK_S)


def clear(settings: Settings, engine: Engine, job: str, owner: Owner, say: Say = lambda line: None) -> bool:
    """Remove the scratch job of a job with its points; False when there is none.

    Raises:
        LockedError: somebody else is testing right now.
        StreamOpsError: it could not be removed, and is found again the next time.
    """
    store, name = engine.store, scratch_name(job)
    _refuse_anothers(engine, name, owner)
    held = locks.read(store, name)
    if held is not None and held.value.operation and held.value.owner == owner:
        own = engine.find(name, held.value.operation)
        try:  # an earlier try of this very test died: what it had begun comes to an end first
            if own is not None:
                engine.run(own.request, owner, own.id)
        except LockedError:
            raise
        except StreamOpsError as error:
            say(f"{name}: {error}")
    record = jobs.record(store, name)
    if record is not None and record.desired == "running":
        _run(engine, request("cancel_job", job=name), owner)
    versions = artifacts.versions(store, name)
    if record is None and not versions:
        return False
    points = Points(settings, timeout_s=60)
    try:
        for version in versions:
            for measurement in measurements(artifacts.load_manifest(store, name, version).definition):
                points.delete(measurement, 0, _tomorrow_ms())
    finally:
        points.close()
    _run(engine, request("delete_job", job=name), owner)
    say(f"{name} is removed with its points")
    return True


def _refuse_anothers(engine: Engine, name: str, owner: Owner) -> None:
    """Raises LockedError when whoever last changed the scratch job is still at its test."""
    record = jobs.record(engine.store, name)
    last = engine.find(name, record.changed_by) if record is not None and record.changed_by else None
    if last is None or last.owner == owner:
        return
    over = engine.ports.owners.finished(last.owner)
    if over is None:  # outside Airflow nobody knows, but a test does not take longer than this
        over = now() - last.updated > timedelta(seconds=2 * LIMIT_S)
    if not over:
        raise LockedError(f"{last.owner.label()} tests with {name} right now; wait for it to end.")


def _tomorrow_ms() -> int:
    return int((now() + timedelta(days=1)).timestamp() * 1000)


def _run(engine: Engine, asked: Request, owner: Owner) -> None:
    operation = engine.run(asked, owner, f"{asked.runbook}-{uuid.uuid4().hex[:12]}")
    if operation.state != "succeeded":
        raise UnhealthyError(f"{asked.runbook} of {asked.job} ended as {operation.state}: {operation.reason}")


def restore_due(
    settings: Settings,
    engine: Engine,
    job: str,
    owner: Owner,
    moment: datetime,
    fresh: timedelta = FRESH,
    say: Say = lambda line: None,
) -> str:
    """Test-restore a job's newest good snapshot if it is time for that.

    Returns:
        What was found wrong; empty when all was well, it was not time, or there was no room.

    Raises:
        StreamOpsError: the test itself failed, which says nothing of the snapshot.
    """
    if job.startswith(SCRATCH):
        return ""
    entries = [entry.manifest for entry in catalogue.entries(engine.store, job) if entry.manifest]
    known = [(manifest, marks.checks(engine.store, job, manifest.name, manifest.attempt)) for manifest in entries]
    chosen = due(known, moment, fresh)
    if chosen is None:
        return ""
    try:
        restore(settings, engine, job, chosen.name, owner, say)
    except SnapshotRefusedError as error:
        return str(error)
    except (RefusedError, LockedError) as error:
        say(str(error))
    return ""
