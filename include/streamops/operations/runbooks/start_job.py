"""Start a job that is stopped or whose driver failed, from its own checkpoint.

``recover_job`` is the same for a job whose driver is gone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from streamops.model.errors import RefusedError
from streamops.model.records import JobRecord, State
from streamops.operations import checks, steps
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked, Reserved, Submitted
from streamops.operations.health import Health
from streamops.operations.requests import JobRequest, Starts
from streamops.operations.runbook import Runbook, Step
from streamops.store import jobs, leases


class StartJob(JobRequest, Starts):
    """What may be asked for."""

    runbook: Literal["start_job"] = "start_job"


class RecoverJob(JobRequest, Starts):
    """What reconciliation asks for; there is no DAG of this."""

    runbook: Literal["recover_job"] = "recover_job"


def check(context: StepContext) -> Checked:
    """Refuse what runs, and what cannot be continued. Raises RefusedError, NotFoundError, SnapshotRefusedError."""
    record = checks.existing(context)
    if record.desired == "running" and not _failed(context, record):
        raise RefusedError(
            f"Job {context.job} is not stopped (it should be running {record.version}), and its driver has not failed. "
            "If the driver hangs, cancel the job first (cancel_job)."
        )
    checks.cluster_up(context)
    return checks.continues(context, record)


def _failed(context: StepContext, record: JobRecord) -> bool:
    """Whether the driver ended for good: then nobody starts it again but a person."""
    status = jobs.status(context.ports.store, context.job, record.launch) if record.launch else None
    return status is not None and status.state is State.FAILED


def check_recovery(context: StepContext) -> Checked:
    """Refuse what should not run, and what cannot be continued."""
    record = checks.existing(context)
    if record.desired != "running":
        raise RefusedError(f"Job {context.job} should not run; start it with start_job.")
    return checks.continues(context, record)


def reserve(context: StepContext) -> Reserved:
    """Name a new launch of the same deployment."""
    number = context.before.deployment
    steps.give(context, context.before.version, number, context.launch)
    granted = leases.grant(context.ports.store, context.job, context.launch, number)
    return Reserved(launch=context.launch, deployment=number, epoch=granted.value.epoch)


def submit(context: StepContext) -> Submitted:
    """The driver of the deployment that there is."""
    what = steps.submission(context, context.version(), context.before.deployment, context.launch)
    return steps.put(context, what, "submit")


def look_recovered(context: StepContext) -> Health:
    """Whether it works. It did before, and no one waits for it: a query that fails is given time."""
    return steps.healthy_now(context, context.launch, context.version())


START_JOB = Runbook(
    request=StartJob,
    steps=(
        Step("check", "check", "Check the request against the job, its versions and snapshots", check),
        Step("reserve", "prepare", "Name a new launch of the same deployment", reserve),
        replace(steps.SUBMIT, act=submit),
        steps.HEALTHY,
        steps.FINISH,
    ),
    starts=True,
)
_OTHERWISE: dict[str, dict[str, Any]] = {
    "check": {"act": check_recovery},
    "reserve": {"title": "Name a new launch of the same deployment, because its driver is gone"},
    "healthy": {"look": look_recovered},
}
RECOVER_JOB = Runbook(
    request=RecoverJob,
    steps=tuple(replace(step, **_OTHERWISE.get(step.name, {})) for step in START_JOB.steps),
)
