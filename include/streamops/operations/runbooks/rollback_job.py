"""Bring an earlier version of a job back, from the snapshot that was taken of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from streamops import snapshots
from streamops.model.definitions import SnapshotName
from streamops.model.errors import RefusedError
from streamops.operations import checks, going_back
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked
from streamops.operations.requests import GoingBack
from streamops.store import jobs


class RollbackJob(GoingBack):
    """What may be asked for."""

    runbook: Literal["rollback_job"] = "rollback_job"
    snapshot: Annotated[
        SnapshotName | None,
        Field(
            title="Snapshot",
            description="A snapshot of an earlier version to go back to; if left empty, the one taken when it was "
            "replaced.",
        ),
    ] = None


def check(context: StepContext) -> Checked:
    """The snapshot must be of another version than the present one. Raises RefusedError, NotFoundError, …"""
    name, store = context.asked(RollbackJob).snapshot, context.ports.store
    present = jobs.deployment(store, context.job, checks.existing(context).deployment)
    manifest = snapshots.load(store, context.job, name) if name else going_back.previous(context, present)
    if manifest.version == present.version:
        raise RefusedError(
            f"Snapshot {manifest.name} is of {manifest.version}, which {context.job} is already; to continue the same "
            "version from it, use restore_job."
        )
    return going_back.check(context, manifest)


ROLLBACK_JOB = going_back.runbook(RollbackJob, check)
