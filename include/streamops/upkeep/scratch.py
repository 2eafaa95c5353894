"""A snapshot proven by restoring it: a scratch job continues from it beside the real one, and is recounted.

The scratch job is the snapshot's version under another name, whose points go to measurements of their own. No one
else reads them, and at the end they go with the job. What was left by a test that died goes before the next one.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from streamops import snapshots
from streamops.clients.influx import Points
from streamops.model.definitions import Definition, Sink, Stage, milliseconds
from streamops.model.errors import LockedError, NotFoundError, RefusedError, SnapshotRefusedError, UnhealthyError
from streamops.model.manifest import Manifest
from streamops.model.names import SCRATCH
from streamops.model.owner import Owner
from streamops.model.records import FINAL, Deployment, DriverStatus, Offsets, now
from streamops.operations.engine import Engine, list_operations
from streamops.operations.follow import request
from streamops.operations.operation import Request
from streamops.settings import Settings
from streamops.snapshots import catalogue, marks
from streamops.snapshots.marks import Check, Checks
from streamops.store import documents, jobs, keys, locks
from streamops.store.object_store import ObjectStore
from streamops.versions import archives, artifacts
from streamops.versions.artifacts import ArtifactManifest

Say = Callable[[str], None]
FRESH = timedelta(days=7)  # a job of which a snapshot was restored since then is left alone
LIMIT_S = 300.0  # after which what the scratch job has done by then is judged
STOP_S = 180  # a driver that ends its batches gets longer than it needs, and one that was queued time to come
LEAST_MS = 60_000  # of event time that it must continue, and two windows at least, unless the events end before
# Of events that are read before a window begins: one that is read from its middle is not compared, and a partition may
# have had no event for a while.
MARGIN_MS = 120_000
_LONGEST_NAME = 63
_MARK = "Restore test of "
_OWN = re.compile(r"scratch_[0-9a-f]{8}_.*")
_LOOK_S, _SAY_S = 1.0, 10.0
_FAR_MS = 4_102_444_800_000  # the year 2100: points of open windows lie in the future


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
            "description": f"{_MARK}{definition.job} {definition.version}; removed when it ends.",
            "trigger": None,
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


def is_scratch(definition: Definition) -> bool:
    """Whether a version is a restore test's, and not a job's that has such a name for another reason."""
    own = definition.job.startswith(SCRATCH) and definition.description.startswith(_MARK)
    return own and all(_OWN.fullmatch(name) for name in definition.measurements)


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
    before they began. A stage that writes updates is left out: what the real job has written of an open window is not
    written again when no event follows.

    Args:
        offsets_at: source and time in milliseconds -> the first offset of each partition since then.

    Returns:
        Source -> partition -> offset, and stage -> end of its last closed window in milliseconds.
    """
    after: dict[str, int] = {}
    earliest: dict[str, int] = {}
    for name, stage in definition.stages.items():
        held = manifest.stages.get(name)
        if stage.recount is None or stage.output != "append" or held is None or not held.watermark_ms:
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
        if _at_the_end({**(held.offsets if held else {}), **found.offsets}, ends):
            continue
        wanted = LEAST_MS + (2 * milliseconds(stage.recount.window) if stage.recount else 0)
        gone = (found.watermark_ms or 0) - (held.watermark_ms or 0) if held and held.watermark_ms else 0
        if gone < wanted:
            told.append(f"{name}: {max(0, gone) / 1000:.0f} of {wanted / 1000:.0f} s")
    return told


def _at_the_end(read: Offsets, ends: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether a stage has read all that there was, of the sources that it reads."""
    return all(
        read[source].get(part, 0) >= end for source in ends if source in read for part, end in ends[source].items()
    )


class NotTestableError(RefusedError):
    """A snapshot cannot be tested now, for a reason that says nothing of it; nothing was begun."""


def restore(
    settings: Settings, engine: Engine, job: str, name: str, owner: Owner, say: Say = lambda line: None
) -> Check:
    """Restore a snapshot into a scratch job, let it continue, recount it, and note what was found.

    Raises:
        NotFoundError: there is no such snapshot.
        SnapshotRefusedError: it is not intact, or what continued from it is not what the events give.
        NotTestableError: there is no room for one more driver, or the topic no longer holds what it continues with.
        RefusedError: another job has the scratch job's name, or the version was changed after it was published.
        LockedError: another test of this job is at work.
        UnhealthyError: the scratch job did not start or continue, which may be the cluster's fault: nothing is noted.
    """
    store, began = engine.store, time.monotonic()
    manifest = catalogue.load(store, job, name)
    version = artifacts.load_manifest(store, job, manifest.version)
    clear(settings, engine, job, owner, say)
    if not engine.ports.submitter.room_for(version.definition):
        raise NotTestableError(
            f"The cluster has no room for one more driver of {job} with its executors, so {job}/{name} is not "
            "restored; scale out, or choose a time when fewer jobs run."
        )
    original = _deployed(store, manifest, say)
    topics = jobs.topics(version.definition, original.topics if original else {})
    try:
        snapshots.require_usable(
            manifest, job, fork=False, topics=topics, beginning=engine.ports.ledger.beginning_offsets
        )
    except SnapshotRefusedError as error:
        raise NotTestableError(str(error)) from error
    definition = _publish(store, manifest, version, test=f"{name}-{uuid.uuid4().hex}")
    try:
        say(f"{job}/{name}: restored into {definition.job}, which writes {', '.join(definition.measurements)}")
        problem = details = ""
        try:
            details, problem = _continued(settings, engine, manifest, definition, original, topics, owner, say)
        except SnapshotRefusedError as error:
            problem = str(error)
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
    finally:
        clear(settings, engine, job, owner, say)
    if problem:
        raise SnapshotRefusedError(f"Snapshot {job}/{name} was restored for a test: {problem}; use another snapshot.")
    say(f"{job}/{name}: restored and continued in {check.seconds:.0f} s, {details}")
    return check


def _deployed(store: ObjectStore, manifest: Manifest, say: Say) -> Deployment | None:
    """The deployment it was taken of, with its params and topics; None for one of another installation."""
    found = documents.read(store, keys.deployment(manifest.job, manifest.deployment), Deployment)
    if found is not None and found.value.artifact_sha256 == manifest.artifact_sha256:
        return found.value
    say(f"Deployment {manifest.deployment} of {manifest.job} is not known here: its version's own settings are used")
    return None


def _publish(store: ObjectStore, manifest: Manifest, version: ArtifactManifest, test: str) -> Definition:
    """Put the scratch job's version where drivers find it: the code that the snapshot was taken with.

    Raises:
        RefusedError: what is published is not what the snapshot was taken with.
    """
    body = store.get(keys.artifact(manifest.job, manifest.version)).body
    if archives.sha256(body) != manifest.artifact_sha256:
        raise RefusedError(
            f"Snapshot {manifest.job}/{manifest.name} was taken with other code than what {manifest.version} holds "
            "now, so it is not tested; someone changed the published version."
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
    documents.write(store, keys.artifact_manifest(definition.job, definition.version), moved)
    return definition


def _continued(
    settings: Settings,
    engine: Engine,
    manifest: Manifest,
    definition: Definition,
    original: Deployment | None,
    topics: Mapping[str, str],
    owner: Owner,
    say: Say,
) -> tuple[str, str]:
    """Deploy, wait, stop and recount. Returns what was compared, and what is wrong with it."""
    from streamops.recount.recounting import recount_job  # loads much that those who only look have no use for

    store, ledger = engine.store, engine.ports.ledger
    places = original.topics if original else {}
    ends = {source: dict(ledger.end_offsets(topic)) for source, topic in topics.items()}
    since, after = recount_from(definition, manifest, lambda source, ms: ledger.offsets_at(topics[source], ms))
    used = manifest.shared_library
    deploy = request(
        "deploy_job",
        job=definition.job,
        version=definition.version,
        from_snapshot=f"{manifest.job}/{manifest.name}",
        fork=True,
        params=original.params if original else {},
        topics={source: place for source, place in places.items() if source in topics},
        addresses={source: place for source, place in places.items() if source not in topics},
        accept_loss=tuple(definition.stages),  # the same code and values: what is not known to fit fits all the same
        library=used.label if used else None,
        healthy_timeout_s=int(2 * LIMIT_S),  # beside everything else, with no one who waits for its results
    )
    _run(engine, deploy, owner)
    _wait(engine, manifest, definition, ends, say)
    _run(engine, request("cancel_job", job=definition.job, stop_timeout_s=STOP_S), owner)
    if not after:
        return "it continues; no stage of it can be recounted", ""
    compared = [sink.influxdb.measurement for name in after for sink in definition.stages[name].sinks if sink.influxdb]
    report = recount_job(settings, store, definition.job, since=since, measurements=compared, after=after)
    _refuse_anothers(engine, definition.job, owner)  # whoever took it over has removed points as well
    if any(item.off for item in report.measurements):
        examples = [text for item in report.measurements for text in item.examples]
        return "", f"what continued from it is wrong: {report.reason} ({'; '.join(examples[:3])})"
    points = sum(item.expected for item in report.measurements)
    if not points:
        return "it continues; no window was closed since, so nothing was compared", ""
    return f"{report.events:,} events recounted, {points:,} points of {len(report.measurements)} stages", ""


def _wait(
    engine: Engine, manifest: Manifest, definition: Definition, ends: Mapping[str, Mapping[str, int]], say: Say
) -> None:
    """Wait until the scratch job has gone on far enough, or for some minutes: what it has done by then is judged.

    Raises:
        UnhealthyError: it ended by itself, or was removed meanwhile.
    """
    deadline, told = time.monotonic() + LIMIT_S, time.monotonic()
    while True:
        record = jobs.record(engine.store, definition.job)
        if record is None or record.launch is None:
            raise UnhealthyError(f"{definition.job} was removed while it was tested; test again.")
        status = jobs.status(engine.store, definition.job, record.launch)
        missing = waiting_for(status, definition, manifest, ends)
        if not missing:
            return
        if status is not None and status.state in FINAL:
            raise UnhealthyError(
                f"{definition.job} ended by itself: {status.reason or status.state}. Deploy the snapshot as a fork to "
                "look into it."
            )
        if time.monotonic() > deadline:
            say(f"{definition.job} has had {LIMIT_S:.0f} s; not reached: {'; '.join(missing)}")
            return
        if time.monotonic() - told > _SAY_S:
            say(f"{definition.job} continues: {'; '.join(missing)}")
            told = time.monotonic()
        time.sleep(_LOOK_S)


def clear(settings: Settings, engine: Engine, job: str, owner: Owner, say: Say = lambda line: None) -> bool:
    """Remove the scratch job of a job with its points; False when there is none.

    Raises:
        RefusedError: the job of that name is not a restore test's.
        LockedError: someone else is testing right now.
        UnhealthyError: a driver of it has not ended; it was told to, and the next test removes what is left.
    """
    store, name = engine.store, scratch_name(job)
    found = [artifacts.load_manifest(store, name, version).definition for version in artifacts.versions(store, name)]
    if not all(is_scratch(definition) for definition in found):
        raise RefusedError(f"{name} is a job of its own, so restore tests of {job} have no place; rename it.")
    _refuse_anothers(engine, name, owner)
    held = locks.read(store, name)
    if held is not None and held.value.operation and held.value.owner == owner:  # an earlier try of this very test
        engine.fail(name, held.value.operation, "its restore test died")
        engine.undo(name, held.value.operation)
        engine.release(name, held.value.operation)
    record = jobs.record(store, name)
    if record is not None and record.desired == "running":
        try:
            _run(engine, request("cancel_job", job=name, stop_timeout_s=STOP_S), owner)
        except UnhealthyError as error:
            say(str(error))
    if record is None and not found:
        return False
    _await_end(engine, name)
    points = Points(settings, timeout_s=60)
    try:
        for measurement in {one for definition in found for one in definition.measurements}:
            points.delete(measurement, 0, _FAR_MS)
    finally:
        points.close()
    _run(engine, request("delete_job", job=name), owner)
    say(f"{name} is removed with its points")
    return True


def _await_end(engine: Engine, name: str) -> None:
    """Wait until the cluster holds no driver of the scratch job: one that started later would find nothing to run.

    Raises:
        UnhealthyError: it still holds one.
    """
    deadline = time.monotonic() + STOP_S
    while there := _drivers(engine, name):
        if time.monotonic() > deadline:
            raise UnhealthyError(
                f"The cluster still holds {', '.join(there)} of {name}, which was told to stop; the next restore test "
                "removes what is left."
            )
        time.sleep(_LOOK_S)


def _drivers(engine: Engine, name: str) -> list[str]:
    """The scratch job's drivers that the master holds, queued ones included."""
    try:
        master = engine.ports.nodes().master()
    except NotFoundError:  # an installation without an inventory of nodes
        return []
    store = engine.store
    known = {str(item.facts("submit").get("driver", "")) for item in list_operations(store, name)}
    launches = keys.names_in(list(store.prefixes(keys.launches(name))))
    known |= {status.driver for launch in launches if (status := jobs.status(store, name, launch))}
    return sorted(driver.id for driver in master.drivers if driver.id in known)


def _refuse_anothers(engine: Engine, name: str, owner: Owner) -> None:
    """Raises LockedError when whoever last changed the scratch job is still at its test."""
    record = jobs.record(engine.store, name)
    last = engine.find(name, record.changed_by) if record is not None and record.changed_by else None
    if last is None or last.owner == owner:
        return
    over = engine.ports.owners.finished(last.owner)
    if over is None:  # outside Airflow no one knows, but a test does not take longer than this
        over = now() - last.updated > timedelta(seconds=2 * LIMIT_S)
    if not over:
        raise LockedError(f"{last.owner.label()} tests with {name} right now; wait for it to end.")


def _run(engine: Engine, asked: Request, owner: Owner) -> None:
    engine.run(asked, owner, f"{asked.runbook}-{uuid.uuid4().hex[:12]}")


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
        What was found wrong; empty when all was well, or nothing could be tested now, which is said.

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
    except (NotTestableError, LockedError) as error:
        say(str(error))
    return ""
