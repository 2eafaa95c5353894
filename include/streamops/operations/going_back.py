"""Going back: an earlier version from the snapshot that was taken of it, or the same version from an earlier one.

Both are one set of steps. The snapshot exists already, so the new deployment's state is in place before anything is
stopped; and the deployment that runs keeps its own checkpoint, from which it continues should the way back fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from streamops import snapshots
from streamops.model.definitions import Definition
from streamops.model.errors import CheckpointError, NotFoundError, RefusedError, UnhealthyError
from streamops.model.manifest import Manifest
from streamops.model.records import FINAL, Deployment, DriverStatus, Offsets, distance, now
from streamops.operations import checks, cost, moving, steps, undo
from streamops.operations.context import StepContext
from streamops.operations.cost import Cost
from streamops.operations.facts import CaughtUp, Checked, Recounted, Reserved, Stopped
from streamops.operations.health import Health
from streamops.operations.operation import Operation
from streamops.operations.requests import GoingBack
from streamops.operations.runbook import Act, Runbook, Step, UndoPlan
from streamops.spark import checkpoints
from streamops.store import jobs, keys
from streamops.versions import archives, artifacts


def check(context: StepContext, manifest: Manifest) -> Checked:
    """Refuse what cannot work, and say what it costs, before anything is touched.

    Args:
        manifest: the snapshot to go back to.

    Raises:
        RefusedError, NotFoundError, SnapshotRefusedError: what is wrong and what to do instead.
    """
    record, store = checks.existing(context), context.ports.store
    present = jobs.deployment(store, context.job, record.deployment)
    version = artifacts.load_manifest(store, context.job, manifest.version)
    taken_from = jobs.deployment(store, context.job, manifest.deployment)
    _same_bytes(context, manifest, version)
    topics = jobs.topics(version.definition, taken_from.topics)
    now_read = jobs.topics(context.version(present.version).definition, present.topics)
    moving.refuse_past(manifest, topics, present, now_read)
    checks.runner(version, topics)
    checks.reachable(context.ports, version.definition, topics)
    snapshots.require_usable(
        manifest, context.job, fork=False, topics=topics, beginning=context.ports.ledger.beginning_offsets
    )
    snapshots.require_space(manifest.size, context.ports.free_bytes())
    snapshots.verify(store, manifest)
    found = price(context, manifest, record.deployment, record.launch)
    for line in cost.lines(found):
        context.say(line)
    status = jobs.status(store, context.job, record.launch) if record.launch else None
    return Checked(
        before=present.version,
        after=manifest.version,
        snapshot=manifest.name,
        events_again=sum(found.again.values()),
        running=record.desired == "running" and status is not None and status.state not in FINAL,
        stands=found.stands,
        cost=found.model_copy(update={"stands": {}}),
    )


def previous(context: StepContext, present: Deployment) -> Manifest:
    """The snapshot from which the present version took over from the one before.

    Deployments of the same version in between (after a restore, or an upgrade that was undone) are walked over.
    """
    store, at = context.ports.store, present
    seen: set[int] = set()
    while at.from_snapshot and at.number not in seen:
        seen.add(at.number)
        job, _, name = at.from_snapshot.rpartition("/")
        found = snapshots.find(store, job, name)
        if found is None:
            raise NotFoundError(
                f"Deployment {at.number} of {context.job} began from snapshot {name}, which is gone; "
                f"choose another: {others(context, present)}."
            )
        if found.job != context.job:
            break
        if found.version != present.version:
            return found
        at = jobs.deployment(store, context.job, found.deployment)
    raise RefusedError(
        f"No version of {context.job} ran before {present.version} and handed its state on, so there is none to go "
        f"back to; choose a snapshot: {others(context, present)}."
    )


def others(context: StepContext, present: Deployment) -> str:
    found = [item for item in snapshots.list(context.ports.store, context.job) if item.version != present.version]
    return ", ".join(f"{item.name} ({item.version})" for item in found[-5:]) or "there is none of another version"


def _same_bytes(context: StepContext, manifest: Manifest, version: artifacts.ArtifactManifest) -> None:
    """What ran when the snapshot was taken is what will run: the published hashes, and the bytes behind them."""
    told = (manifest.artifact_sha256, manifest.runtime_sha256)
    same = (version.artifact_sha256, version.runtime_sha256) == told
    for key, sha256 in zip((version.archive, keys.runtime(told[1])), told, strict=True):
        try:
            same = same and archives.sha256(context.ports.store.get(key).body) == sha256
        except NotFoundError:
            same = False
        if not same:
            raise RefusedError(
                f"{key} is gone, or is not what ran when snapshot {manifest.name} of {context.job} "
                f"{manifest.version} was taken (sha256 {sha256[:12]}); bring it back, or choose another snapshot."
            )


def price(context: StepContext, manifest: Manifest, deployment: int, launch: str | None) -> Cost:
    """What it costs to continue from a snapshot instead of from where a deployment of the job stands."""
    store = context.ports.store
    version = artifacts.load_manifest(store, context.job, manifest.version).definition
    present = artifacts.load_manifest(
        store, context.job, jobs.deployment(store, context.job, deployment).version
    ).definition
    topics = jobs.topics(version, jobs.deployment(store, context.job, manifest.deployment).topics)
    status = jobs.status(store, context.job, launch) if launch else None
    stands, exact = positions(context, deployment, present, status)
    now_read = jobs.topics(present, jobs.deployment(store, context.job, deployment).topics)
    same = {source for source, topic in topics.items() if now_read.get(source) == topic}
    stands = {name: {s: at for s, at in read.items() if s not in topics or s in same} for name, read in stands.items()}
    ends = {source: dict(context.ports.ledger.end_offsets(topic)) for source, topic in topics.items()}
    return cost.cost(manifest, version, present, stands, ends, exact=exact)


def positions(
    context: StepContext, deployment: int, definition: Definition, status: DriverStatus | None
) -> tuple[dict[str, Offsets], bool]:
    """Where each stage stands, and whether that is exact.

    A checkpoint that lost an object still shows its offsets, mostly; else the driver's last word counts, which may be
    behind.
    """
    store, exact = context.ports.store, True
    prefix = checkpoints.current_epoch_prefix(store, context.job, deployment)
    found: dict[str, Offsets] = {}
    for stage in definition.stages:
        try:
            tail = checkpoints.position(store, f"{prefix}{stage}/") if prefix else None
        except (CheckpointError, NotFoundError):
            tail, exact = None, False
        if tail is not None:
            found[stage] = tail.offsets
        elif not exact and status is not None and stage in status.stages:
            found[stage] = status.stages[stage].offsets
    return found, exact


def chosen(context: StepContext) -> Manifest:
    """The snapshot that the check has chosen."""
    return snapshots.load(context.ports.store, context.job, context.checked.snapshot or "")


def reserve(context: StepContext) -> Reserved:
    """Number the deployment and bring its state in place, while what runs continues."""
    store, manifest, version = context.ports.store, chosen(context), context.version()
    old = jobs.deployment(store, context.job, manifest.deployment)
    standby = context.asked(GoingBack).standby
    present = jobs.deployment(store, context.job, context.before.deployment)
    settings = steps.Settings.inherited(old, version.definition)
    settings = replace(settings, logging=present.logging)
    definition = version.definition.with_resources(settings.resources)
    running = context.checked.running
    why = steps.why_cold(context, definition, standby=standby) if running else "no driver runs"
    facts = steps.install(context, version, manifest, context.number, context.launch, settings)
    context.change({"standby": None if why else context.launch, "last_deployment": context.number})
    return facts.model_copy(update={"cold": bool(why), "why": why})


def await_stop(context: StepContext) -> Stopped:
    """Like every stop, but one that does not come is no obstacle: its state is not needed, and the lease fences it."""
    try:
        return steps.await_stop(context)
    except UnhealthyError as error:
        context.say(f"{error} It loses the lease, and cannot write from then on.")
        return Stopped(stopped=False, why=str(error))


def goal(context: StepContext) -> dict[str, Offsets]:
    """Stage -> offsets that were committed before: up to there results are written again."""
    stopped = context.reported("await_stop", Stopped).stages
    last = {stage: found.offsets for stage, found in stopped.items() if found.offsets}
    wanted, definition = {**context.checked.stands, **last}, context.version().definition
    return {stage: found for stage, offsets in wanted.items() if (found := jobs.lasting(definition, offsets))}


def assess_catch_up(
    wanted: Mapping[str, Offsets], status: DriverStatus | None, launch: str, until: datetime, moment: datetime
) -> Health:
    """Done when every stage has committed what had been committed before, or when it is not waited for any longer."""
    if status is not None and status.launch == launch and status.state in FINAL:
        return Health(False, status.reason or str(status.state), f"the driver ended: {status.reason or status.state}")
    stages = status.stages if status is not None and status.launch == launch else {}
    behind = {
        name: distance(stages[name].offsets, end) if name in stages and stages[name].offsets else None
        for name, end in wanted.items()
    }
    left = {name: events for name, events in behind.items() if events != 0}
    if not left:
        return Health(True, None, "everything that had been processed before has been processed again")
    shown = ", ".join(f"{name} {'not begun' if n is None else f'{n:,} events'}" for name, n in left.items())
    if moment >= until:
        return Health(True, None, f"it is still catching up ({shown}); until then old and new results are mixed")
    return Health(False, None, f"still to process again: {shown}")


def look_catch_up(context: StepContext) -> Health:
    """One look at the reprocessing."""
    healthy = context.operation.steps["healthy"].finished or now()
    status = jobs.status(context.ports.store, context.job, context.launch)
    wanted = {name: end for name, end in goal(context).items() if name in context.version().definition.stages}
    until = healthy + timedelta(seconds=context.asked(GoingBack).catch_up_s)
    return assess_catch_up(wanted, status, context.launch, until, now())


def catch_up(context: StepContext) -> CaughtUp:
    """The results that are written again have been; say what going back did cost."""
    status = jobs.status(context.ports.store, context.job, context.launch)
    begun = chosen(context)
    done = {
        name: distance(cost.begins(begun, name), stage.offsets)
        for name, stage in (status.stages if status else {}).items()
        if name in begun.stages
    }
    again = {name: min(count, done.get(name, 0)) for name, count in _final(context, begun).items()}
    context.say(f"It cost: {sum(again.values()):,} events were processed again, from snapshot {begun.job}/{begun.name}")
    return CaughtUp(why=context.why, events_again=sum(again.values()), again=again)


def _final(context: StepContext, begun: Manifest) -> dict[str, int]:
    """Stage -> events between the snapshot and where the job stood when it stopped."""
    wanted = goal(context)
    return {
        name: distance(cost.begins(begun, name), wanted[name])
        for name in context.version().definition.stages
        if name in begun.stages and name in wanted
    }


def recount(context: StepContext) -> Recounted:
    """Compare everything that was written again, and the windows that were open at the snapshot."""
    if not context.asked(GoingBack).recount:
        return Recounted(reason="not asked for")
    manifest = chosen(context)
    marks = [stage.watermark_ms for stage in manifest.stages.values()]
    # A stage without a watermark tells no time; the snapshot was taken after everything in it.
    known = list(filter(None, marks)) or [int(manifest.created.timestamp() * 1000)]
    return steps.recount_since(context, min(known), "the snapshot")


def undo_plan(operation: Operation) -> UndoPlan:
    """The deployment that ran before still has its own checkpoint, whatever the operation did."""
    if not operation.started("reserve"):
        return UndoPlan()
    if operation.done("healthy"):
        return UndoPlan("the job runs from the snapshot and keeps running")
    if not operation.started("request_stop"):
        return UndoPlan("what runs was never asked to stop; the new driver is dismissed", ("dismiss",))
    if not operation.reported("check", Checked).running:
        return UndoPlan("the job is left as it was found: nothing of it runs", ("dismiss", "leave"))
    return UndoPlan(
        "what ran before runs again, from its own checkpoint", ("dismiss", "take_back", "submit", "healthy")
    )


def runbook(request: type[GoingBack], check: Act) -> Runbook:
    """A rollback or a restore: they differ by which snapshots they accept."""
    return Runbook(
        request=request,
        steps=(
            Step("check", "check", "Check the snapshot and the ledger, and say what going back costs", check),
            Step("reserve", "prepare", "Number the new deployment and copy the snapshot's state into it", reserve),
            steps.SUBMIT_STANDBY,
            steps.STANDBY,
            steps.REQUEST_STOP,
            Step(
                "await_stop",
                "switch",
                "Wait until it has stopped; one that does not answer loses the lease",
                await_stop,
            ),
            steps.HAND_OVER,
            steps.SUBMIT_COLD,
            steps.HEALTHY,
            Step(
                "catch_up",
                "wait_caught_up",
                "Wait until what is processed again has been processed",
                catch_up,
                look=look_catch_up,
                awaited="Catching up",
                within=lambda asked: asked.healthy_timeout_s + asked.catch_up_s,
            ),
            Step("recount", "recount", "Recompute the results from the ledger and compare", recount),
            steps.FINISH,
        ),
        undo_plan=undo_plan,
        undo={
            "dismiss": undo.dismiss,
            "take_back": lambda context: undo.take_back(context, context.before.deployment),
            "leave": undo.leave,
            "submit": lambda context: undo.submit(context, context.before.deployment),
            "healthy": undo.healthy,
        },
        restoring="restore_old_version",
        submits_again="submit",
        forward=lambda operation: operation.done("hand_over"),
        stays=steps.works,
    )
