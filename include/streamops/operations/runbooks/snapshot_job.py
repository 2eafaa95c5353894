"""Keep the state of a job as a named snapshot, while it runs or after stopping it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from streamops import snapshots
from streamops.operations import checks, steps, undo
from streamops.operations.context import StepContext
from streamops.operations.facts import AskedToStop, Checked, Exported, Kept
from streamops.operations.operation import Operation, Request
from streamops.operations.requests import (
    HealthyTimeout,
    IfExists,
    JobRequest,
    NewSnapshot,
    Starts,
    Stops,
    StopTimeout,
)
from streamops.operations.runbook import Runbook, Step, UndoPlan
from streamops.store import jobs


class SnapshotJob(JobRequest, Starts, Stops):
    """What may be asked for."""

    runbook: Literal["snapshot_job"] = "snapshot_job"
    snapshot: NewSnapshot = None
    stop_timeout_s: Annotated[StopTimeout, Field(description="With Cancel: how long the batch in flight may take.")] = (
        60
    )
    healthy_timeout_s: Annotated[
        HealthyTimeout, Field(description="With Cancel: how long the job may take to recover if the snapshot fails.")
    ] = 180
    cancel: Annotated[
        bool,
        Field(
            title="Cancel",
            description="Stop the job at a batch boundary first. It stays stopped, unless the snapshot fails.",
        ),
    ] = False
    if_exists: IfExists = False


def check(context: StepContext) -> Checked:
    """Refuse a name that is taken, and a stop for a snapshot that would not fit. Raises SnapshotExistsError, …"""
    if nothing := checks.absent(context, context.asked(SnapshotJob).if_exists):
        return nothing
    record, store = checks.existing(context), context.ports.store
    name = context.operation.snapshot
    snapshots.require_free_name(store, context.job, name)
    if not context.asked(SnapshotJob).cancel:  # nothing is stopped for it, so that the export itself can still refuse
        return Checked(snapshot=name, version=record.version, deployment=record.deployment)
    version = context.version(jobs.deployment(store, context.job, record.deployment).version)
    size = sum(tail.size for tail in checks.tails(context, record, version.definition).values())
    snapshots.require_space(size, context.ports.free_bytes())
    return Checked(snapshot=name, version=record.version, deployment=record.deployment, bytes=size)


def cancels(asked: Request) -> bool:
    """Whether the job is to stop first."""
    return isinstance(asked, SnapshotJob) and asked.cancel


def request_stop(context: StepContext) -> AskedToStop:
    """Ask the driver to stop, and to stay so."""
    return steps.request_stop(context, to_stay=True)


def export(context: StepContext) -> Exported:
    """Copy the last committed batch of every stage."""
    if context.checked.unchanged:
        return Exported()
    live = not context.asked(SnapshotJob).cancel and context.before.desired == "running"
    return steps.export(context, steps.attempt(context, "export"), live=live)[0]


def commit_manifest(context: StepContext) -> Kept:
    """From here on the snapshot exists; with cancel, the job is stopped with it."""
    if context.checked.unchanged:
        return Kept()
    kept, manifest = steps.commit_manifest(context, "export")
    if context.asked(SnapshotJob).cancel:
        context.change({"desired": "stopped-with-snapshot", "snapshot": manifest.name})
    return kept


def forward(operation: Operation) -> bool:
    """Where a stop was asked for, or the snapshot exists."""
    return operation.started("request_stop") or operation.done("commit_manifest")


def undo_plan(operation: Operation) -> UndoPlan:
    """A job is stopped with a snapshot, or not at all."""
    if not operation.started("request_stop") or not cancels(operation.request):
        return UndoPlan()
    if operation.done("commit_manifest"):
        return UndoPlan("the snapshot exists, and the job is stopped with it, as was asked for")
    before = operation.before
    if before is None or before.desired != "running" or before.launch is None:
        return UndoPlan("the job was stopped before, and still is")
    return UndoPlan("the job runs again, from its own checkpoint", ("take_back", "submit", "healthy"))


SNAPSHOT_JOB = Runbook(
    request=SnapshotJob,
    steps=(
        Step("check", "check", "Check the request against the job, its versions and snapshots", check),
        Step("request_stop", "switch", "Cancel: ask the driver to stop at a boundary", request_stop, when=cancels),
        Step("await_stop", "switch", "Cancel: wait until it has stopped", steps.await_stop, when=cancels),
        Step("export", "switch", "Copy the last committed batch of every stage", export),
        Step(
            "commit_manifest",
            "switch",
            "Write the manifest: from here on the snapshot exists",
            commit_manifest,
            announces=True,
        ),
        steps.FINISH,
    ),
    undo_plan=undo_plan,
    undo={
        "take_back": lambda context: undo.take_back(context, context.before.deployment),
        "submit": lambda context: undo.submit(context, context.before.deployment),
        "healthy": undo.healthy,
    },
    restoring="restart_job",
    submits_again="submit",
    forward=forward,
)
