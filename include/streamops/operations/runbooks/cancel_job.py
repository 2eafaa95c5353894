"""Stop a running job at a batch boundary."""

from __future__ import annotations

from functools import partial
from typing import Literal

from streamops.operations import checks, steps
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked
from streamops.operations.requests import IfExists, JobRequest, Stops
from streamops.operations.runbook import Runbook, Step


class CancelJob(JobRequest, Stops):
    """What may be asked for."""

    runbook: Literal["cancel_job"] = "cancel_job"
    if_exists: IfExists = False


def check(context: StepContext) -> Checked:
    """A job that is stopped already stays so. Raises NotFoundError."""
    if nothing := checks.absent(context, context.asked(CancelJob).if_exists):
        return nothing
    record = checks.existing(context)
    if record.desired != "running":
        return Checked(unchanged=True)
    return Checked(version=record.version, launch=record.launch)


CANCEL_JOB = Runbook(
    request=CancelJob,
    steps=(
        Step("check", "check", "Check the request against the job, its versions and snapshots", check),
        Step(
            "request_stop",
            "switch",
            "Ask the driver to stop at a batch boundary",
            partial(steps.request_stop, to_stay=True),
        ),
        steps.AWAIT_STOP,
        steps.FINISH,
    ),
)
