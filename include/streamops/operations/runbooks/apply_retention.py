"""Remove the snapshots of a job that its rule does not keep, and free what was removed 14 days ago."""

from __future__ import annotations

from typing import Literal

from streamops.model.definitions import Keep
from streamops.model.records import now
from streamops.operations import housekeeping, steps
from streamops.operations.context import StepContext
from streamops.operations.facts import Pruned
from streamops.operations.requests import JobRequest
from streamops.operations.runbook import Step
from streamops.store import keys


class ApplyRetention(JobRequest):
    """What the task that prunes each job asks for; the form of its DAG is for all jobs.

    Args:
        keep: instead of the rule of the job.
    """

    runbook: Literal["apply_retention"] = "apply_retention"
    keep: Keep | None = None


def check(context: StepContext) -> Pruned:
    """Decide, so that the record says what a try that dies has removed."""
    keep = context.asked(ApplyRetention).keep
    planned = housekeeping.plan(context.ports.store, context.job, keep, now(), context.operation.id)
    return Pruned.model_validate(planned.told())


def remove(context: StepContext) -> Pruned:
    """Decide again, since others may need a snapshot by now, and do it."""
    store, job, operation = context.ports.retention(), context.job, context.operation
    keep, by = context.asked(ApplyRetention).keep, operation.owner.label()
    done = housekeeping.prune(store, job, keep, now(), by, context.say, operation.id)
    here = {verdict.name for verdict in done.verdicts}
    gone = [
        item
        for item in context.reported("decide", Pruned).verdicts
        if item["name"] not in here and not store.exists(keys.manifest(job, item["name"]))
    ]
    told = done.told()
    return Pruned.model_validate(
        {
            **told,
            "verdicts": (*gone, *told["verdicts"]),
            "removed": (*(item["name"] for item in gone), *told["removed"]),
        }
    )


APPLY_RETENTION = steps.at_once(
    ApplyRetention,
    Step("decide", "check", "Decide which snapshots are kept", check),
    Step("remove", "check", "Remove the others, and free what was removed 14 days ago", remove),
    begun="some may be removed: 'streamops snapshots removed' lists them",
)
