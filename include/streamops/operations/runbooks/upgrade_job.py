"""Bring another version of a running job into service, with its state, without losing an event."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from streamops import snapshots
from streamops.model import records
from streamops.model.errors import RefusedError, StreamOpsError, UnhealthyError
from streamops.operations import cost, going_back, moving, probation, rehearsals, replacing, steps, undo
from streamops.operations.context import StepContext
from streamops.operations.facts import (
    Checked,
    Dismissed,
    Exported,
    Kept,
    Recounted,
    Reserved,
)
from streamops.operations.health import Health
from streamops.operations.operation import Operation, Request
from streamops.operations.requests import (
    AnyVersion,
    HealthyTimeout,
    NewSnapshot,
    NewVersion,
    Recount,
    Standby,
    Stops,
    StopTimeout,
)
from streamops.operations.runbook import Runbook, Step, UndoPlan
from streamops.spark import checkpoints
from streamops.store import jobs, keys


class UpgradeJob(NewVersion, Stops):
    """What may be asked for."""

    runbook: Literal["upgrade_job"] = "upgrade_job"
    version: Annotated[AnyVersion, Field(description="The published version that runs afterwards.")]
    snapshot: Annotated[
        NewSnapshot,
        Field(
            description="A new name for the state at the switch, e.g. before-v2; if left empty, one is made from the "
            "operation's id."
        ),
    ] = None
    stop_timeout_s: Annotated[StopTimeout, Field(description="The time for the old version's batch in flight.")] = 60
    rehearsed_within_h: Annotated[
        int,
        Field(
            ge=0,
            le=720,
            title="Demand a rehearsal (h)",
            description="Refuse unless rehearse_job has tried this version beside the running one, with these "
            "settings, and succeeded, at most this many hours ago. 0 for no such demand.",
        ),
    ] = 0
    approval: Annotated[
        bool,
        Field(
            title="Ask a person",
            description="Wait until someone has approved the result of the check, on Airflow's page Required Actions. "
            "Nothing is locked or touched meanwhile, and everything is checked again afterwards.",
        ),
    ] = False
    strategy: Annotated[
        Literal["stop_and_restart", "gapless"],
        Field(
            description="stop_and_restart: the old version stops, its state is exported, the new one starts from it. "
            "gapless: the new version runs beside it, without writing, and takes over once it has read everything "
            "there is; only for versions whose stages all run in real time."
        ),
    ] = "stop_and_restart"
    standby: Standby = True
    probation_s: Annotated[
        int,
        Field(
            ge=0,
            le=3600,
            title="Probation (s)",
            description="How long the new version is watched once it is healthy: if it fails repeatedly, falls behind "
            "or produces nothing, the old one runs again. 0 for no probation.",
        ),
    ] = 30
    recount: Recount = True
    healthy_timeout_s: Annotated[
        HealthyTimeout, Field(description="If the new version is not healthy by then, the old one runs again.")
    ] = 180


def gapless(asked: Request) -> bool:
    """Whether the new version is to take over while the old one still runs."""
    return isinstance(asked, UpgradeJob) and asked.strategy == "gapless"


def stops_first(asked: Request) -> bool:
    """Whether the old version is to stop before the new one takes over."""
    return not gapless(asked)


def check(context: StepContext) -> Checked:
    """Refuse what cannot work, before anything is touched.

    Raises:
        RefusedError, NotFoundError, SnapshotExistsError, CheckpointError: what is wrong and what to do instead.
    """
    asked, store = context.asked(UpgradeJob), context.ports.store
    accepted = replacing.check(context, "an upgrade")
    name = context.operation.snapshot
    snapshots.require_free_name(store, context.job, name)
    room_for = context.ports.submitter.room_for
    if gapless(asked) and (why := accepted.why_not_beside(room_for, standby=asked.standby)):
        raise RefusedError(f"Job {context.job} cannot be upgraded without a gap, because {why}; use stop_and_restart.")
    if asked.rehearsed_within_h:
        within = timedelta(hours=asked.rehearsed_within_h)
        found = rehearsals.require(store, context.job, *accepted.as_run(store), within, records.now())
        context.say(f"Rehearsal {found.id}: {rehearsals.verdict(found)}")
    return accepted.checked.model_copy(update={"snapshot": name})


def reserve(context: StepContext) -> Reserved:
    """Number the new deployment and name the launch that stands by beside the old one."""
    steps.publish_copy(context)
    version, settings = context.version(), replacing.settings(context)
    definition = version.definition.with_resources(settings.resources)
    why = steps.why_cold(context, definition, standby=context.asked(UpgradeJob).standby)
    if why and gapless(context.operation.request):
        raise UnhealthyError("There is no room any more for a second driver beside the one that runs.")
    # The starts of new stages are known only after the stop: export_and_restore completes the record.
    steps.write_deployment(context, version, None, context.number, settings)
    context.change({"standby": None if why else context.launch, "last_deployment": context.number})
    return Reserved(launch=context.launch, deployment=context.number, cold=bool(why), why=why)


def export_and_restore(context: StepContext) -> Exported:
    """Copy the old deployment's state into the snapshot and into the new deployment."""
    version = context.version()
    store = context.ports.store
    epoch = jobs.next_epoch(store, context.job, context.launch)
    target = keys.epoch(context.job, context.number, epoch)
    continued = frozenset(version.definition.stages) - context.empty(version)
    twin = snapshots.Twin(target, continued)
    exported, manifest = steps.export(context, steps.attempt(context, "export_and_restore"), live=False, twin=twin)
    moved, accepted = context.moved(context.number), context.asked(UpgradeJob).accept_loss
    stood = moving.of_snapshot(manifest)  # more may have come since the check
    moving.require_ready(context.ports.ledger, moved, stood, moving.closed_in(manifest), accepted, context.say)
    steps.write_deployment(context, version, manifest, context.number, replacing.settings(context))
    kept = {name: stage.batch for name, stage in manifest.stages.items() if stage.batch >= 0}
    here = {name: batch for name, batch in kept.items() if name in continued}
    for name, batch in here.items() if moved else ():
        checkpoints.move(store, f"{target}{name}/", batch, moving.places(moved))
    checkpoints.mark_ready(store, f"{target}ready.json", here, f"snapshot {manifest.job}/{manifest.name}")
    return exported.model_copy(update={"epoch": epoch, "restored": here})


def commit_manifest(context: StepContext) -> Kept:
    """From here on the snapshot exists."""
    return steps.commit_manifest(context, "export_and_restore")[0]


def keep(context: StepContext) -> Exported:
    """Copy the last state of the old version, which may not write any more, into the snapshot."""
    steps.await_stop(context)
    return _keep(context, context.operation.steps["keep"].tries, live=False)


def _keep(context: StepContext, tries: int, *, live: bool) -> Exported:
    """The old deployment's last commit becomes the snapshot, unless it has before."""
    store, name = context.ports.store, context.operation.snapshot
    if store.exists(keys.manifest(context.job, name)):
        return Exported(snapshot=name)
    exported, manifest = steps.export(context, f"{context.operation.id}-keep-{tries}", live=live)
    snapshots.commit_manifest(store, manifest)
    context.say(f"Snapshot {manifest.job}/{manifest.name}: {len(manifest.objects)} objects, {manifest.size:,} bytes")
    return exported


def look_probation(context: StepContext) -> Health:
    """One look at the new version."""
    return probation.look(context, context.asked(UpgradeJob).probation_s)


def recount(context: StepContext) -> Recounted:
    """Compare what the switch may have harmed: all results from a while before it on."""
    if not context.asked(UpgradeJob).recount:
        return Recounted(reason="not asked for")
    step, name = ("hand_over", "the hand-over") if gapless(context.operation.request) else ("request_stop", "the stop")
    return steps.recount_since(context, int(context.operation.steps[step].started.timestamp() * 1000), name)


def undo_plan(operation: Operation) -> UndoPlan:
    """Until the hand-over the old version's own checkpoint is good; after it, the snapshot is."""
    if not operation.started("reserve"):
        return UndoPlan()
    if operation.done("probation"):
        return UndoPlan("the new version has passed its probation and runs on")
    untouched = "hand_over" if gapless(operation.request) else "request_stop"
    if not operation.started(untouched):
        return UndoPlan("the old version was never asked to stop; the new driver is dismissed", ("dismiss",))
    if not operation.started("hand_over"):
        return UndoPlan(
            "the old version runs again, from its own checkpoint", ("dismiss", "take_back", "submit", "healthy")
        )
    return UndoPlan(
        "the old version runs again, from the snapshot", ("dismiss", "restore", "take_back", "submit", "healthy")
    )


def back_to(context: StepContext) -> int:
    """The deployment of the old version: its own, unless the new version may have written already."""
    return context.number + 1 if context.operation.started("hand_over") else context.before.deployment


def dismiss(context: StepContext) -> Dismissed:
    """End the new driver, and say before it is gone what the way back from the snapshot costs."""
    if context.operation.started("hand_over"):
        return undo.dismiss(context, cost=_price(context))
    return replacing.dismiss(context) if context.operation.started("shadow") else undo.dismiss(context)


def _price(context: StepContext) -> cost.Cost | None:
    """What cannot be read is no reason to stop."""
    try:
        manifest = snapshots.load(context.ports.store, context.job, context.operation.snapshot)
        price = going_back.price(context, manifest, context.number, context.launch)
    except StreamOpsError as error:
        context.say(f"What the way back costs cannot be said: {error}")
        return None
    for line in cost.lines(price):
        context.say(line)
    return price


def restore(context: StepContext) -> Reserved:
    """A new deployment of the old version, as it was, from the snapshot that was taken before the switch."""
    if gapless(context.operation.request):
        before = context.operation.steps.get("keep")  # whether the old version has ended yet or not
        _keep(context, (before.tries if before else 0) + context.operation.undo["restore"].tries, live=True)
    old = jobs.deployment(context.ports.store, context.job, context.before.deployment)
    manifest = snapshots.load(context.ports.store, context.job, context.operation.snapshot)
    version = context.version(old.version)
    settings = steps.Settings.inherited(old, version.definition)
    return steps.install(context, version, manifest, back_to(context), undo.launch(context), settings)


UPGRADE_JOB = Runbook(
    request=UpgradeJob,
    steps=(
        Step("check", "check", "Check the request against the job, its versions and snapshots", check),
        Step(
            "reserve",
            "prepare",
            "Number the new deployment and name the launch that will stand by beside the old",
            reserve,
        ),
        replace(replacing.SHADOW, title="Gapless: give the new driver a copy of the state to run on", when=gapless),
        steps.SUBMIT_STANDBY,
        steps.STANDBY,
        replace(replacing.SHADOWED, title="Gapless: wait until it has read everything there is", when=gapless),
        replace(steps.REQUEST_STOP, when=stops_first),
        replace(steps.AWAIT_STOP, when=stops_first),
        Step(
            "export_and_restore",
            "switch",
            "Copy its state into the snapshot and into the new deployment",
            export_and_restore,
            when=stops_first,
        ),
        Step(
            "commit_manifest",
            "switch",
            "Write the manifest: from here on the snapshot exists",
            commit_manifest,
            announces=True,
            when=stops_first,
        ),
        steps.HAND_OVER,
        Step("keep", "switch", "Gapless: copy the old version's last state into the snapshot", keep, when=gapless),
        replace(steps.SUBMIT_COLD, when=stops_first),
        steps.HEALTHY,
        Step(
            "probation",
            "probation",
            "Watch the new version: failures, lag, and whether it produces results",
            look=look_probation,
            awaited="Probation",
            within=lambda asked: asked.healthy_timeout_s + asked.probation_s,
        ),
        Step("recount", "recount", "Recompute the results from the ledger and compare", recount),
        steps.FINISH,
    ),
    undo_plan=undo_plan,
    undo={
        "dismiss": dismiss,
        "restore": restore,
        "take_back": lambda context: undo.take_back(context, back_to(context)),
        "submit": lambda context: undo.submit(context, back_to(context)),
        "healthy": undo.healthy,
    },
    restoring="restore_old_version",
    submits_again="submit",
    forward=lambda operation: operation.done("hand_over"),
    stays=steps.works,
)
