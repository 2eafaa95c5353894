"""What steps of several runbooks do. Each can be run again after a kill at any point, and then has one effect.

Ids follow from the operation (launch, deployment number), and what is in place is compared before it is written; so a
retry finds what the first try did. The operation lock keeps everybody else out meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from streamops import snapshots
from streamops.model import records
from streamops.model.definitions import Definition
from streamops.model.errors import DeniedError, StreamOpsError, UnreachableError
from streamops.model.manifest import Manifest
from streamops.model.names import SCRATCH
from streamops.model.owner import Publisher
from streamops.model.records import Control, Deployment, LibraryUse, StageStart
from streamops.operations import health, moving, receipts, refilling, settling
from streamops.operations.context import StepContext
from streamops.operations.facts import (
    AskedToStop,
    Exported,
    Finished,
    HandedOver,
    Kept,
    Position,
    Recounted,
    Reserved,
    Stopped,
    Submitted,
    Worked,
)
from streamops.operations.feeding import Feeds
from streamops.operations.health import Health
from streamops.operations.operation import Request
from streamops.operations.requests import NewVersion, Stops
from streamops.operations.runbook import NOTHING, Runbook, Step, UndoPlan
from streamops.recount.reach import needed_ms
from streamops.spark import priority
from streamops.spark.submission import Submission
from streamops.store import documents, jobs, keys, leases
from streamops.store.object_store import ObjectStore
from streamops.store.waiting import until
from streamops.versions import artifacts, libraries, verdicts
from streamops.versions.artifacts import ArtifactManifest

# A job may hold months of events; its upgrade recounts what the switch may have harmed, and this much before it.
RECOUNT_BEFORE_MS = 60_000
RECOUNT_WAIT_S = 60.0


# --- deployments


@dataclass(frozen=True)
class Settings:
    """What a deployment has over its definition; what continues it inherits them.

    Args:
        library: the version of the shared library that was asked for, if any.
    """

    params: Mapping[str, Any]
    places: Mapping[str, str]
    logging: Mapping[str, str]
    resources: Mapping[str, Any]
    library: str | None = None

    @classmethod
    def asked(cls, asked: NewVersion) -> Settings:
        """Those of a job that nothing ran of."""
        return cls(asked.params, asked.places, asked.logging, asked.resources, asked.library)

    @classmethod
    def inherited(cls, old: Deployment, definition: Definition, asked: NewVersion | None = None) -> Settings:
        """Those of ``old`` as far as the definition still has them, and over them what is asked for."""
        params = {name: value for name, value in old.params.items() if name in definition.params}
        places = {name: place for name, place in old.topics.items() if name in definition.sources}
        if asked is None:
            return cls(params, places, old.logging, old.resources)
        logging, resources = old.logging | asked.logging, old.resources | asked.resources
        return cls(params | asked.params, places | asked.places, logging, resources, asked.library)


def publish_copy(context: StepContext) -> None:
    """Publish the version under this job's name, where another job's code was asked for."""
    asked = context.asked(NewVersion)
    if asked.code_of is None:
        return
    prefix = asked.measurement_prefix or ""
    made, packed = artifacts.under_name(context.ports.store, asked.code_of, asked.version, context.job, prefix)
    publisher = Publisher(user=context.operation.owner.user, place=f"operation {context.operation.id}")
    done = artifacts.put(context.ports.store, made.model_copy(update={"publisher": publisher}), packed)
    context.say(
        f"{context.job} {done.version} is the code of {asked.code_of} {asked.version} ({done.artifact_sha256[:12]})"
    )


def install(
    context: StepContext,
    version: ArtifactManifest,
    manifest: Manifest | None,
    number: int,
    launch: str,
    settings: Settings,
) -> Reserved:
    """A new deployment with its state in place for the epoch that ``launch`` will get."""
    store = context.ports.store
    write_deployment(context, version, manifest, number, settings)
    if manifest is None:
        return Reserved(deployment=number, launch=launch, version=version.version)
    target = keys.epoch(context.job, number, jobs.next_epoch(store, context.job, launch))
    stages = [stage for stage in version.definition.stages if stage not in context.empty(version)]
    moved = moving.places(context.moved(number))
    restored = snapshots.restore(store, manifest, target, stages, moved=moved, say=context.say)
    return Reserved(
        deployment=number,
        launch=launch,
        version=version.version,
        from_snapshot=f"{manifest.job}/{manifest.name}",
        batches=restored,
    )


def _refilled(
    context: StepContext, version: ArtifactManifest, manifest: Manifest, number: int, topics: Mapping[str, str]
) -> dict[str, StageStart]:
    """The starts of the stages whose state is filled again from the ledger."""
    stood = refilling.of_snapshot(manifest)
    found = refilling.starts(context.ports.ledger, version, context.refilled(version), stood, topics, number)
    for stage, start in found.items():
        context.say(f"Stage {stage} is filled again from the ledger, from {start.offsets} on")
    return found


def write_deployment(
    context: StepContext, version: ArtifactManifest, manifest: Manifest | None, number: int, settings: Settings
) -> Deployment:
    """The deployment record; written again only by the same operation, before anything runs on it."""
    store = context.ports.store
    found = documents.find(store, keys.deployment(context.job, number), Deployment)
    if found and found.created_by != context.operation.id:
        raise StreamOpsError(
            f"Deployment {number} of {context.job} belongs to operation {found.created_by}; "
            f"the job record is behind. See 'streamops operations show {found.created_by}'."
        )
    places = jobs.topics(version.definition, settings.places)
    trace = "TRACE" if artifacts.LEVELS in version.runtime_can else "DEBUG"  # an older runner ends with a TRACE
    library = found.library if found else _library(context, version, manifest, settings.library)
    deployment = Deployment(
        job=context.job,
        number=number,
        version=version.version,
        artifact_sha256=version.artifact_sha256,
        runtime_sha256=version.runtime_sha256,
        created=found.created if found else records.now(),
        created_by=context.operation.id,
        from_snapshot=f"{manifest.job}/{manifest.name}" if manifest else None,
        from_deployment=manifest.deployment if manifest and manifest.job == context.job else None,
        params=dict(settings.params),
        topics=dict(settings.places),
        logging={name: trace if level == "TRACE" else level for name, level in settings.logging.items()},
        resources=dict(settings.resources),
        library=library,
        stages=jobs.starts(
            version.definition,
            number,
            manifest,
            context.first(version, places),
            context.empty(version),
            _refilled(context, version, manifest, number, places) if manifest else None,
            verdicts.renamed(store, manifest, version.definition) if manifest else None,
            context.moved(number),
        ),
    )
    documents.write(store, keys.deployment(context.job, number), deployment, new=found is None)
    context.say(
        f"Deployment {number} of {context.job} is {version.version}, from {deployment.from_snapshot or 'empty state'}"
    )
    context.say(f"{context.job} {version.version} ({version.artifact_sha256[:12]}) was {version.origin}")
    if library:
        context.say(f"Library {library.label} was {libraries.load(store, library.name, library.version).origin}")
    return deployment


def _library(
    context: StepContext, version: ArtifactManifest, manifest: Manifest | None, asked: str | None
) -> LibraryUse | None:
    """The shared library of a new deployment: that of the one whose state it continues, unless another is asked for."""
    store, number = context.ports.store, context.before.deployment
    if manifest:
        before = manifest.shared_library
    else:
        before = jobs.deployment(store, context.job, number).library if number else None
    return libraries.choose(store, version.definition, asked, before)


def give(context: StepContext, version: str | None, number: int, launch: str) -> None:
    """Name the launch that may write, as the job's desired state, and let it run."""
    found = jobs.record(context.ports.store, context.job)
    given_out = found.last_deployment if found else 0  # also what this operation reserved before it was undone
    update = {
        "desired": "running",
        "version": version,
        "deployment": number,
        "last_deployment": max(number, context.before.last_deployment, given_out),
        "launch": launch,
        "standby": None,
        "snapshot": None,
    }
    jobs.tell(context.ports.store, context.job, launch, Control(command="run", operation=context.operation.id))
    context.change(update)
    context.say(f"Job record: {context.job} is {version}, deployment {number}, launch {launch}")


# --- drivers


def why_cold(context: StepContext, definition: Definition, *, standby: bool) -> str:
    """Why the new driver starts only after the stop; empty if it stands by before."""
    if not standby:
        return "no standby was asked for"
    if context.ports.submitter.room_for(definition):
        return ""
    context.say("There is no room for a standby beside the running driver: the new one starts cold, after the stop.")
    return "there is no room for a standby"


def submission(context: StepContext, version: ArtifactManifest, number: int, launch: str) -> Submission:
    """What to put on the cluster: exactly what the deployment recorded."""
    store = context.ports.store
    return recorded(store, jobs.deployment(store, context.job, number), version, launch)


def recorded(store: ObjectStore, deployment: Deployment, version: ArtifactManifest, launch: str) -> Submission:
    """The submission of a launch of a deployment."""
    used = deployment.library
    return Submission(
        job=deployment.job,
        version=deployment.version,
        deployment=deployment.number,
        launch=launch,
        artifact=version.archive,
        artifact_sha256=deployment.artifact_sha256,
        runtime_sha256=deployment.runtime_sha256,
        resources=version.definition.with_resources(deployment.resources).resources,
        spark=version.definition.spark_settings,
        realtime=version.definition.realtime,
        library=(libraries.load(store, used.name, used.version).archive, used.sha256) if used else None,
        gives_way=deployment.job.startswith(SCRATCH),
    )


def submit(context: StepContext, *, gives_way: bool = False) -> Submitted:
    """The driver of the deployment that this operation makes, unless it starts after the stop.

    Args:
        gives_way: whether it is only tried out, so that all else on its nodes comes first.
    """
    if context.checked.unchanged:
        return Submitted()
    if context.cold:
        return Submitted(cold=True)
    what = submission(context, context.version(), context.number, context.launch)
    return put(context, replace(what, gives_way=what.gives_way or gives_way), "submit")


def put(context: StepContext, what: Submission, step: str, *, undo: bool = False, again: bool = False) -> Submitted:
    """Submit, or adopt what an earlier try submitted: a driver is known by its launch, not by Spark's id.

    Args:
        step: in which this happens; when it was begun before, a driver may be on its way.
        again: another step may have submitted it already.
    """
    record = (context.operation.undo if undo else context.operation.steps).get(step)
    again = again or (record is not None and record.tries > 1)
    there = lambda: jobs.status(context.ports.store, context.job, what.launch)  # noqa: E731
    if context.until(there, context.ports.adopt_wait_s if again else 0):
        context.say(f"Launch {what.launch} runs already: adopted, nothing is submitted")
        return Submitted(launch=what.launch, adopted=True, deployment=what.deployment)
    context.require_turn()
    began = time.monotonic()
    driver = context.ports.submitter.submit(what)
    context.say(f"Driver {driver} submitted for launch {what.launch} in {time.monotonic() - began:.1f} s")
    return Submitted(
        launch=what.launch,
        driver=driver,
        deployment=what.deployment,
        artifact_sha256=what.artifact_sha256,
        runtime_sha256=what.runtime_sha256,
    )


def look_standby(context: StepContext) -> Health:
    """Whether the new driver stands by."""
    if context.cold:
        why = context.reported("reserve", Reserved).why or "no standby"
        return Health(True, None, f"{why}: the new driver starts after the stop")
    return health.assess_standby(jobs.status(context.ports.store, context.job, context.launch), context.launch)


def look_healthy(context: StepContext) -> Health:
    """Whether a driver works that has yet to prove itself."""
    if context.checked.unchanged:
        return Health(True, None, "nothing was to be done")
    return healthy_now(context, context.launch, context.version(), health.assess_new)


def healthy_now(
    context: StepContext, launch: str, version: ArtifactManifest, assess: Callable[..., Health] = health.assess
) -> Health:
    """Whether a launch holds the lease, and every stage of its version works."""
    store = context.ports.store
    found = jobs.status(store, context.job, launch)
    return assess(found, jobs.lease(store, context.job), launch, version.definition.stages)


def works(context: StepContext) -> bool:
    """Whether the launch of an operation has been handed the job, and works."""
    handed = context.operation.done("hand_over")
    return handed and healthy_now(context, context.launch, context.version()).done


def healthy(context: StepContext) -> Worked:
    """The driver works."""
    if context.checked.unchanged:
        return Worked()
    return Worked(why=context.why, stages=positions(context, context.launch))


def positions(context: StepContext, launch: str) -> dict[str, Position]:
    """Where the stages of a launch stand, as its driver says."""
    found = jobs.status(context.ports.store, context.job, launch)
    return {n: Position(batch=s.batch_id, offsets=s.offsets) for n, s in found.stages.items()} if found else {}


# --- the stop


def request_stop(context: StepContext, *, to_stay: bool = False) -> AskedToStop:
    """Ask the present driver to stop at a batch boundary.

    Args:
        to_stay: nothing of the job shall run afterwards; else it is stopped only to run again in the same operation.
    """
    launch = context.before.launch
    if context.before.desired != "running" or launch is None:
        return AskedToStop(stopped=False)
    store, operation = context.ports.store, context.operation.id
    if to_stay:
        context.change({"desired": "stopped"})
    told = jobs.tell(store, context.job, launch, Control(command="stop", operation=operation))
    context.say(
        f"Launch {launch} is asked to stop at a batch boundary" if told else f"Launch {launch} was asked already"
    )
    return AskedToStop(launch=launch)


def await_stop(context: StepContext) -> Stopped:
    """Wait until the driver that was asked has stopped."""
    launch = context.before.launch
    if context.before.desired != "running" or launch is None:
        return Stopped(stopped=False)
    store = context.ports.store
    began = time.monotonic()
    look = lambda: health.assess_stop(jobs.status(store, context.job, launch), launch)  # noqa: E731
    context.wait(look, context.asked(Stops).stop_timeout_s, "Stop")
    return Stopped(stopped=True, seconds=round(time.monotonic() - began, 3), stages=positions(context, launch))


# --- snapshots


def attempt(context: StepContext, step: str) -> str:
    """The name of an export by a step, another one for each try."""
    return f"{context.operation.id}-{context.operation.steps[step].tries}"


def export(
    context: StepContext, attempt: str, *, live: bool, twin: snapshots.Twin | None = None
) -> tuple[Exported, Manifest]:
    """Copy the last committed batch of every stage; the result is a draft until its manifest is written."""
    store, number = context.ports.store, context.before.deployment
    deployment = jobs.deployment(store, context.job, number)
    version = context.version(deployment.version)
    began = time.monotonic()
    feeds = Feeds(store, context.ports.ledger, version.definition, deployment)
    act = partial(
        snapshots.Export(store, deployment, attempt, twin, context.ports.free_bytes(), feeds.slices, context.say).run,
        context.operation.snapshot,
        version.definition.stages,
        context.origin(),
        live=live,
        fingerprints=verdicts.stored(version, deployment.params),
    )
    manifest = priority.in_background(act) if live else act()
    store.put(keys.snapshot_draft(context.job, attempt), manifest.model_dump_json().encode())
    exported = Exported(
        snapshot=manifest.name,
        attempt=attempt,
        objects=len(manifest.objects),
        bytes=manifest.size,
        copied_objects=len(manifest.copied()),
        copied_bytes=sum(item.size for item in manifest.copied()),
        seconds=round(time.monotonic() - began, 3),
        stages={name: Position(batch=s.batch, offsets=s.offsets) for name, s in manifest.stages.items()},
    )
    return exported, manifest


def commit_manifest(context: StepContext, step: str) -> tuple[Kept, Manifest]:
    """Make what ``step`` exported a snapshot."""
    store = context.ports.store
    attempt = context.reported(step, Exported).attempt
    manifest = snapshots.read(store, keys.snapshot_draft(context.job, attempt))
    snapshots.commit_manifest(store, manifest)
    context.say(f"Snapshot {manifest.job}/{manifest.name}: {len(manifest.objects)} objects, {manifest.size:,} bytes")
    return Kept(snapshot=manifest.name, objects=len(manifest.objects), bytes=manifest.size), manifest


# --- the hand-over, and after it


def hand_over(context: StepContext) -> HandedOver:
    """Give the lease to the new driver and let it run; one that starts cold is submitted next."""
    granted = leases.grant(context.ports.store, context.job, context.launch, context.number)
    give(context, context.version().version, context.number, context.launch)
    return HandedOver(launch=context.launch, deployment=context.number, epoch=granted.value.epoch)


def submit_cold(context: StepContext) -> Submitted:
    """The driver that starts after the stop, unless it has warmed up before."""
    if not context.cold:
        return Submitted()
    return put(context, submission(context, context.version(), context.number, context.launch), "submit_cold")


def recount_since(context: StepContext, moment_ms: int, what: str) -> Recounted:
    """Recount all results from a while before a moment on, so that every window open then is compared.

    Where nothing could be compared yet, it is tried again for a minute: a window may be about to close.

    Raises:
        StreamOpsError: results are missing, wrong or too many, or nothing was compared; the job runs on.
    """
    version = context.version()
    topics = jobs.topics(version.definition, jobs.deployment(context.ports.store, context.job, context.number).topics)
    longest = needed_ms(version)
    # A job whose sources are quiet, or that reads old events, closed its last windows by the time of its events.
    status = jobs.status(context.ports.store, context.job, context.launch)
    marks = [mark for stage in (status.stages.values() if status else ()) if (mark := stage.watermark_ms)]
    begin_ms = min(moment_ms, max(marks, default=moment_ms)) - longest - RECOUNT_BEFORE_MS
    since = {source: dict(context.ports.ledger.offsets_at(topic, begin_ms)) for source, topic in topics.items()}
    context.say(f"Recount from {(longest + RECOUNT_BEFORE_MS) // 1000} s before {what} on, offsets {since}")

    def look() -> Recounted:
        return Recounted.model_validate(context.ports.recount(context.job, since))

    found = until(look, RECOUNT_WAIT_S, context.ports.look_s, lambda found: found.enough or not found.waits)
    context.say(f"Recount: {found.reason or ('clean' if found.clean else 'not clean')}")
    if not found.enough:
        raise StreamOpsError(
            f"The recount of {context.job} is not clean: {found.reason}. The job runs on; look at "
            f"'streamops recount {context.job}'."
        )
    return found


def clear_leftovers(context: StepContext, job: str) -> None:
    """Remove what unfinished exports of a job left; where this program may not, ``apply_retention`` does it in time."""
    try:
        removed = snapshots.remove_leftovers(context.ports.store, job, deleting=context.ports.retention)
    except DeniedError as error:
        context.say(f"Objects of unfinished export attempts of {job} stay until retention frees them: {error}")
        return
    if removed:
        context.say(f"{removed} objects of unfinished export attempts of {job} removed")


def finish(context: StepContext) -> Finished:
    """Write the receipt and show it."""
    clear_leftovers(context, context.job)
    _drop_old_feeds(context)
    return receipt(context)


def _drop_old_feeds(context: StepContext) -> None:
    """Delete the feeds of the deployments before this one: what a snapshot needs of them, it holds itself."""
    before, found = context.before.deployment, jobs.record(context.ports.store, context.job)
    now = found.deployment if found else 0
    if not 0 < before < now:
        return
    old = context.version(jobs.deployment(context.ports.store, context.job, before).version)
    for number in range(before, now) if old.definition.feeding else ():
        drop_feeds(context, number)


def drop_feeds(context: StepContext, number: int) -> None:
    """Delete the feeds of a deployment; Kafka that does not answer keeps them."""
    try:
        context.ports.ledger.delete_topics(keys.feed_topics(context.job, number))
    except UnreachableError as error:
        context.say(f"Feeds of deployment {number} stay: {error}")


def drop_results(context: StepContext, stage: str) -> None:
    """Delete a stage's results topic; Kafka that does not answer keeps it."""
    try:
        context.ports.ledger.delete_topic(keys.results_topic(context.job, stage))
    except StreamOpsError as error:  # no reason to continue with what it is called for
        context.say(f"What {stage} gave stays in its topic: {error}")


def receipt(context: StepContext) -> Finished:
    """The receipt of an operation that succeeded."""
    for line in receipts.lines(settling.settle(context.ports, context.operation, "succeeded", context.say)):
        context.say(line)
    return Finished(receipt=keys.receipt(context.job, context.operation.id))


# --- steps that several runbooks have

SUBMIT = Step(
    "submit", "submit_driver", "Submit the driver to the cluster, supervised by the master", submit, submits=True
)
SUBMIT_STANDBY = replace(SUBMIT, title="Submit the new driver in standby, supervised by the master")
SUBMIT_TRIED = replace(
    SUBMIT, title="Submit the new driver, which gives way to all else", act=partial(submit, gives_way=True)
)
STANDBY = Step("standby", "wait_standby", "Wait until the new driver stands by", look=look_standby, awaited="Standby")
REQUEST_STOP = Step("request_stop", "switch", "Ask the present driver to stop at a batch boundary", request_stop)
AWAIT_STOP = Step("await_stop", "switch", "Wait until it has stopped", await_stop)
HAND_OVER = Step("hand_over", "switch", "Give the lease to the new driver and let it run", hand_over)
SUBMIT_COLD = Step(
    "submit_cold",
    "submit_after_stop",
    "Submit the new driver, unless it is warm and runs already",
    submit_cold,
    submits=True,
)
HEALTHY = Step(
    "healthy",
    "wait_healthy",
    "Wait until the driver holds the lease and every stage works",
    healthy,
    look=look_healthy,
    awaited="Health",
)
FINISH = Step("finish", "finish", "Write the receipt and close the operation", finish)
CLOSE = replace(FINISH, task="check", act=receipt)  # of a runbook that is one task: a hop costs a second


def at_once(request: type[Request], *done: Step, begun: str) -> Runbook:
    """A runbook of one task, which takes a second and can be done again, so that nothing of it is undone.

    Args:
        done: its steps; the last one changes something.
        begun: what is true of an operation that ended in that one.
    """
    change = done[-1].name
    return Runbook(
        request=request,
        steps=(*done, CLOSE),
        undo_plan=lambda operation: UndoPlan(begun if operation.started(change) else NOTHING),
    )
