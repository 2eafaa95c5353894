"""Continue the same version of a job from one of its snapshots."""

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


class RestoreJob(GoingBack):
    """What may be asked for."""

    runbook: Literal["restore_job"] = "restore_job"
    snapshot: Annotated[SnapshotName, Field(title="Snapshot", description="The snapshot of this job to continue from.")]


def check(context: StepContext) -> Checked:
    """The snapshot must be of the present version. Raises RefusedError, NotFoundError, SnapshotRefusedError."""
    store = context.ports.store
    present = jobs.deployment(store, context.job, checks.existing(context).deployment)
    manifest = snapshots.load(store, context.job, context.asked(RestoreJob).snapshot)
    if manifest.version != present.version:
        raise RefusedError(
            f"Snapshot {manifest.name} is of {manifest.version}, and {context.job} is {present.version}: restore_job "
            f"keeps the version. To go back to {manifest.version}, use rollback_job with this snapshot."
        )
    return going_back.check(context, manifest)


RESTORE_JOB = going_back.runbook(RestoreJob, check)
