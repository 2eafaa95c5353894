"""The bodies of the steps. Each can be run again after a kill at any point, and then has one effect.

Ids follow from the operation (launch, deployment number), and what is in place is compared before it is written; so a
retry finds what the first try did. The operation lock keeps everybody else out meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from streamops import snapshots
from streamops.model import records
from streamops.model.definitions import milliseconds
from streamops.model.errors import DeniedError, StreamOpsError
from streamops.model.manifest import Manifest
from streamops.model.records import Control, Deployment, LibraryUse
from streamops.operations import checks, health, receipts, removal, settling
from streamops.operations.context import Facts, Work
from streamops.operations.health import Health
from streamops.operations.operation import LEAVE_RUNNING
from streamops.spark import checkpoints, priority
from streamops.spark.submission import Submission
from streamops.store import documents, jobs, keys, leases
from streamops.versions import libraries, verdicts
from streamops.versions.artifacts import ArtifactManifest

# A job may hold months of events; its upgrade recounts what the switch may have harmed, and this much before it.
RECOUNT_BEFORE_MS = 60_000


def check(work: Work) -> Facts:
    return checks.check(checks.Case(work.ports, work.operation, work.operation.before, work.say))


def reserve(work: Work) -> Facts:
    if work.unchanged:
        return {}
    return {
        "deploy_job": _reserve_deploy,
        "start_job": _reserve_start,
        "recover_job": _reserve_start,
        "upgrade_job": _reserve_upgrade,
    }[work.request.runbook](work)


def _reserve_deploy(work: Work) -> Facts:
    store, version = work.ports.store, work.version()
    manifest = checks.manifest_of(work.ports, work.operation)
    facts = install(work, version, manifest, work.number, work.launch, work.request.params, work.request.places)
    give(work, version.version, work.number, work.launch)
    return facts | {"epoch": leases.grant(store, work.job, work.launch, work.number).value.epoch}


def _reserve_start(work: Work) -> Facts:
    give(work, work.before.version, work.before.deployment, work.launch)
    granted = leases.grant(work.ports.store, work.job, work.launch, work.before.deployment)
    return {"launch": work.launch, "deployment": work.before.deployment, "epoch": granted.value.epoch}


def _reserve_upgrade(work: Work) -> Facts:
    version = work.version()
    cold = starts_cold(work, version)
    # The starts of new stages are known only after the stop: export_and_restore completes the record.
    write_deployment(work, version, None, work.number, *_inherited(work))
    standby = None if cold else work.launch
    jobs.change(work.ports.store, work.job, {"standby": standby, "last_deployment": work.number, **_by(work)})
    return {"launch": work.launch, "deployment": work.number, "cold": cold}


def starts_cold(work: Work, version: ArtifactManifest) -> bool:
    """Whether the new driver starts only after the stop: no standby was asked for, or there is no room for one."""
    if not work.request.standby:
        return True
    if work.ports.submitter.room_for(version.definition):
        return False
    work.say("There is no room for a standby beside the running driver: the new one starts cold, after the stop.")
    return True


def _inherited(work: Work) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Params and topics of an upgrade: those set at deploy stay, as far as the new version still has them."""
    old = jobs.deployment(work.ports.store, work.job, work.before.deployment)
    definition = work.version().definition
    params = {name: value for name, value in old.params.items() if name in definition.params}
    topics = {name: topic for name, topic in old.topics.items() if name in definition.sources}
    return params | work.request.params, topics | work.request.places


def install(
    work: Work,
    version: ArtifactManifest,
    manifest: Manifest | None,
    number: int,
    launch: str,
    params: Mapping[str, Any],
    topics: Mapping[str, str],
) -> Facts:
    """A new deployment with its state in place for the epoch that ``launch`` will get."""
    store = work.ports.store
    write_deployment(work, version, manifest, number, params, topics)
    facts: Facts = {"deployment": number, "launch": launch, "version": version.version}
    if manifest is not None:
        target = keys.epoch(work.job, number, jobs.next_epoch(store, work.job, launch))
        stages = [stage for stage in version.definition.stages if stage not in work.empty(version)]
        restored = snapshots.restore(store, manifest, target, stages, say=work.say)
        facts |= {"from_snapshot": f"{manifest.job}/{manifest.name}", "batches": restored}
    return facts


def write_deployment(
    work: Work,
    version: ArtifactManifest,
    manifest: Manifest | None,
    number: int,
    params: Mapping[str, Any],
    topics: Mapping[str, str],
) -> Deployment:
    """The deployment record; written again only by the same operation, before anything runs on it."""
    store = work.ports.store
    found = documents.read(store, keys.deployment(work.job, number), Deployment)
    if found and found.value.created_by != work.operation.id:
        raise StreamOpsError(
            f"Deployment {number} of {work.job} belongs to operation {found.value.created_by}; "
            f"the job record is behind. See 'streamops operations show {found.value.created_by}'."
        )
    places = jobs.topics(version.definition, topics)
    library = found.value.library if found else _library(work, version, manifest)
    deployment = Deployment(
        job=work.job,
        number=number,
        version=version.version,
        artifact_sha256=version.artifact_sha256,
        runtime_sha256=version.runtime_sha256,
        created=found.value.created if found else records.now(),
        created_by=work.operation.id,
        from_snapshot=f"{manifest.job}/{manifest.name}" if manifest else None,
        from_deployment=manifest.deployment if manifest and manifest.job == work.job else None,
        params=dict(params),
        topics=dict(topics),
        logging=_levels(work),
        library=library,
        stages=jobs.starts(version.definition, number, manifest, work.first(version, places), work.empty(version)),
    )
    documents.write(store, keys.deployment(work.job, number), deployment, new=found is None)
    work.say(
        f"Deployment {number} of {work.job} is {version.version}, from {deployment.from_snapshot or 'empty state'}"
    )
    return deployment


def _library(work: Work, version: ArtifactManifest, manifest: Manifest | None) -> LibraryUse | None:
    """The shared library of a new deployment: that of the one whose state it continues, unless another is asked for."""
    store, number = work.ports.store, work.before.deployment
    if manifest:
        before = manifest.shared_library
    else:
        before = jobs.deployment(store, work.job, number).library if number else None
    return libraries.choose(store, version.definition, work.request.library, before)


def _levels(work: Work) -> dict[str, str]:
    """Log levels set at deploy; an upgrade keeps those of the deployment it replaces."""
    asked: dict[str, str] = dict(work.request.logging)
    if work.request.runbook == "deploy_job" or not work.before.deployment:
        return asked
    return {**jobs.deployment(work.ports.store, work.job, work.before.deployment).logging, **asked}


def give(work: Work, version: str | None, number: int, launch: str) -> None:
    """Name the launch that may write, as the job's desired state, and let it run."""
    found = jobs.record(work.ports.store, work.job)
    given_out = found.last_deployment if found else 0  # also what this operation reserved before it was taken back
    update = {
        "desired": "running",
        "version": version,
        "deployment": number,
        "last_deployment": max(number, work.before.last_deployment, given_out),
        "launch": launch,
        "standby": None,
        "snapshot": None,
        **_by(work),
    }
    jobs.tell(work.ports.store, work.job, launch, Control(command="run", operation=work.operation.id))
    jobs.change(work.ports.store, work.job, update)
    work.say(f"Job record: {work.job} is {version}, deployment {number}, launch {launch}")


def submission(work: Work, version: ArtifactManifest, number: int, launch: str) -> Submission:
    """What to put on the cluster: exactly what the deployment recorded."""
    return recorded(jobs.deployment(work.ports.store, work.job, number), version, launch)


def recorded(deployment: Deployment, version: ArtifactManifest, launch: str) -> Submission:
    """The submission of a launch of a deployment."""
    return Submission(
        job=deployment.job,
        version=deployment.version,
        deployment=deployment.number,
        launch=launch,
        artifact_sha256=deployment.artifact_sha256,
        runtime_sha256=deployment.runtime_sha256,
        resources=version.definition.resources,
        spark=version.definition.spark_settings,
        library=deployment.library,
    )


def started_submission(work: Work) -> Submission:
    """The submission of the launch that this operation starts."""
    number = work.before.deployment if work.request.runbook in ("start_job", "recover_job") else work.number
    return submission(work, work.version(), number, work.launch)


def submit(work: Work) -> Facts:
    if work.unchanged or work.cold:
        return {"cold": work.cold}
    return put(work, started_submission(work), again=_again(work, "submit"))


def put(work: Work, what: Submission, *, again: bool) -> Facts:
    """Submit, or adopt what an earlier try submitted: a driver is known by its launch, not by Spark's id."""
    deadline = time.monotonic() + (work.ports.adopt_wait_s if again else 0)
    while True:
        found = jobs.status(work.ports.store, work.job, what.launch)
        if found is not None:
            work.say(f"Launch {what.launch} runs already on {found.host}: adopted, nothing is submitted")
            return {"launch": what.launch, "adopted": True, "deployment": what.deployment}
        if time.monotonic() >= deadline:
            break
        work.tick()
        time.sleep(work.ports.look_s)
    began = time.monotonic()
    driver = work.ports.submitter.submit(what)
    work.say(f"Driver {driver} submitted for launch {what.launch} in {time.monotonic() - began:.1f} s")
    return {
        "launch": what.launch,
        "driver": driver,
        "deployment": what.deployment,
        "artifact_sha256": what.artifact_sha256,
        "runtime_sha256": what.runtime_sha256,
    }


def look_standby(work: Work) -> Health:
    if work.cold:
        return Health(True, None, "no standby: the new driver starts after the stop")
    return health.assess_standby(jobs.status(work.ports.store, work.job, work.launch), work.launch)


def standby(work: Work) -> Facts:
    found = work.wait(lambda: look_standby(work), work.request.healthy_timeout_s, "Standby")
    return {"why": found.why}


def look_healthy(work: Work) -> Health:
    if work.unchanged:
        return Health(True, None, "nothing was to be done")
    resumes = work.request.runbook == "recover_job"  # it worked before, and nobody waits for it
    return healthy_now(work, work.launch, work.version(), health.assess if resumes else health.assess_new)


def healthy_now(
    work: Work, launch: str, version: ArtifactManifest, assess: Callable[..., Health] = health.assess
) -> Health:
    store = work.ports.store
    found = jobs.status(store, work.job, launch)
    return assess(found, jobs.lease(store, work.job), launch, version.definition.stages)


def healthy(work: Work) -> Facts:
    if work.unchanged:
        return {}
    found = work.wait(lambda: look_healthy(work), work.request.healthy_timeout_s, "Health")
    return {"why": found.why, **_offsets(work, work.launch)}


def request_stop(work: Work) -> Facts:
    launch = work.before.launch
    if _nothing_to_stop(work) or launch is None:
        return {"stopped": False}
    if work.request.runbook not in LEAVE_RUNNING:
        jobs.change(work.ports.store, work.job, {"desired": "stopped", **_by(work)})
    told = jobs.tell(work.ports.store, work.job, launch, Control(command="stop", operation=work.operation.id))
    work.say(f"Launch {launch} is asked to stop at a batch boundary" if told else f"Launch {launch} was asked already")
    return {"launch": launch}


def await_stop(work: Work) -> Facts:
    launch = work.before.launch
    if _nothing_to_stop(work) or launch is None:
        return {"stopped": False}
    store = work.ports.store
    began = time.monotonic()
    look = lambda: health.assess_stop(jobs.status(store, work.job, launch), launch)  # noqa: E731
    work.wait(look, work.request.stop_timeout_s, "Stop")
    return {"stopped": True, "seconds": round(time.monotonic() - began, 3), **_offsets(work, launch)}


def _nothing_to_stop(work: Work) -> bool:
    live = work.request.runbook == "snapshot_job" and not work.request.cancel
    return work.unchanged or live or work.before.desired != "running"


def export(work: Work) -> Facts:
    live = not work.request.cancel and work.before.desired == "running"
    return _export(work, live=live)


def export_and_restore(work: Work) -> Facts:
    version = work.version()
    store = work.ports.store
    epoch = jobs.next_epoch(store, work.job, work.launch)
    target = keys.epoch(work.job, work.number, epoch)
    continued = tuple(stage for stage in version.definition.stages if stage not in work.empty(version))
    facts = _export(work, live=False, also_to=target, also_stages=continued)
    manifest = draft(work, facts)
    write_deployment(work, version, manifest, work.number, *_inherited(work))
    kept = {name: stage.batch for name, stage in manifest.stages.items() if stage.batch >= 0}
    here = {name: batch for name, batch in kept.items() if name in continued}
    checkpoints.mark_ready(store, f"{target}ready.json", here, f"snapshot {manifest.job}/{manifest.name}")
    return facts | {"epoch": epoch, "restored": here}


def _export(work: Work, *, live: bool, also_to: str | None = None, also_stages: tuple[str, ...] = ()) -> Facts:
    store, number = work.ports.store, work.before.deployment
    deployment = jobs.deployment(store, work.job, number)
    version = work.version(deployment.version)
    stages = version.definition.stages
    step = "export_and_restore" if also_to else "export"
    attempt = f"{work.operation.id}-{work.operation.steps[step].tries}"
    began = time.monotonic()
    act = partial(
        snapshots.export,
        store,
        deployment,
        work.operation.snapshot,
        attempt,
        stages,
        work.origin(),
        live=live,
        free_bytes=work.ports.free_bytes(),
        also_to=also_to,
        also_stages=also_stages,
        fingerprints=verdicts.stored(version, deployment.params),
        say=work.say,
    )
    manifest = priority.in_background(act) if live else act()
    store.put(keys.snapshot_draft(work.job, attempt), manifest.model_dump_json().encode())
    seconds = round(time.monotonic() - began, 3)
    return {
        "snapshot": manifest.name,
        "attempt": attempt,
        "objects": len(manifest.objects),
        "bytes": manifest.size,
        "copied_objects": len(manifest.copied()),
        "copied_bytes": sum(item.size for item in manifest.copied()),
        "seconds": seconds,
        "stages": {name: {"batch": s.batch, "offsets": s.offsets} for name, s in manifest.stages.items()},
    }


def draft(work: Work, facts: Mapping[str, Any]) -> Manifest:
    """The manifest of what was exported, which is not a snapshot yet."""
    return snapshots.read(work.ports.store, keys.snapshot_draft(work.job, facts["attempt"]))


def commit_manifest(work: Work) -> Facts:
    exported = work.operation.facts("export_and_restore") or work.operation.facts("export")
    manifest = draft(work, exported)
    snapshots.commit_manifest(work.ports.store, manifest)
    if work.request.cancel:
        update = {"desired": "stopped-with-snapshot", "snapshot": manifest.name, **_by(work)}
        jobs.change(work.ports.store, work.job, update)
    work.say(f"Snapshot {manifest.job}/{manifest.name}: {len(manifest.objects)} objects, {manifest.size:,} bytes")
    return {"snapshot": manifest.name, "objects": len(manifest.objects), "bytes": manifest.size}


def hand_over(work: Work) -> Facts:
    granted = leases.grant(work.ports.store, work.job, work.launch, work.number)
    give(work, work.version().version, work.number, work.launch)
    facts: Facts = {"epoch": granted.value.epoch, "launch": work.launch, "deployment": work.number}
    if work.cold:
        facts |= put(work, started_submission(work), again=_again(work, "hand_over"))
    return facts


def recount(work: Work) -> Facts:
    """Compare what the switch may have harmed: all results from a while before the stop on."""
    stop = work.operation.steps["request_stop"].started
    return recount_since(work, int(stop.timestamp() * 1000), "the stop")


def recount_since(work: Work, moment_ms: int, what: str) -> Facts:
    """Recount all results from a while before a moment on, so that every window open then is compared.

    Raises:
        StreamOpsError: results are missing, wrong or too many; the job runs on.
    """
    version = work.version()
    topics = jobs.topics(version.definition, jobs.deployment(work.ports.store, work.job, work.number).topics)
    specs = [stage.recount for stage in version.definition.stages.values() if stage.recount]
    longest = max((milliseconds(spec.window) for spec in specs), default=0)
    begin_ms = moment_ms - longest - RECOUNT_BEFORE_MS
    since = {source: dict(work.ports.ledger.offsets_at(topic, begin_ms)) for source, topic in topics.items()}
    work.say(f"Recount from {(longest + RECOUNT_BEFORE_MS) // 1000} s before {what} on, offsets {since}")
    found = work.ports.recount(work.job, since)
    off = sum(int(item.get(key, 0)) for item in found.get("measurements", ()) for key in _OFF if _is_number(item, key))
    work.say(f"Recount: {found.get('reason') or ('clean' if found.get('clean') else 'not clean')}")
    if not found.get("clean") and off:
        raise StreamOpsError(
            f"The recount of {work.job} is not clean: {found.get('reason')}. The job runs on; look at "
            f"'streamops recount {work.job}'."
        )
    return found


_OFF = ("missing", "wrong", "unexpected")


def _is_number(item: Mapping[str, Any], key: str) -> bool:
    return isinstance(item.get(key), int)


def clear_leftovers(work: Work, job: str) -> None:
    """Remove what unfinished exports of a job left; where this program may not, ``apply_retention`` does it in time."""
    try:
        removed = snapshots.remove_leftovers(work.ports.store, job, deleting=work.ports.retention)
    except DeniedError as error:
        work.say(f"Objects of unfinished export attempts of {job} stay until retention frees them: {error}")
        return
    if removed:
        work.say(f"{removed} objects of unfinished export attempts of {job} removed")


def finish(work: Work) -> Facts:
    clear_leftovers(work, work.job)
    for line in receipts.lines(settling.settle(work.ports, work.operation, "succeeded", work.say)):
        work.say(line)
    return {"receipt": keys.receipt(work.job, work.operation.id)}


def _again(work: Work, step: str) -> bool:
    """Whether an earlier try of the step may have had its effect."""
    record = work.operation.steps.get(step)
    return record is not None and record.tries > 1


def _offsets(work: Work, launch: str) -> Facts:
    found = jobs.status(work.ports.store, work.job, launch)
    if found is None:
        return {}
    return {"stages": {n: {"batch": s.batch_id, "offsets": s.offsets} for n, s in found.stages.items()}}


def _by(work: Work) -> dict[str, object]:
    return {"changed_by": work.operation.id}


BODIES: dict[str, Callable[[Work], Facts]] = {
    "check": check,
    "reserve": reserve,
    "submit": submit,
    "standby": standby,
    "request_stop": request_stop,
    "await_stop": await_stop,
    "export": export,
    "export_and_restore": export_and_restore,
    "commit_manifest": commit_manifest,
    "hand_over": hand_over,
    "healthy": healthy,
    "recount": recount,
    "remove": removal.remove,
    "finish": finish,
}
LOOKS: dict[str, Callable[[Work], Health]] = {"standby": look_standby, "healthy": look_healthy}
