"""Exclude a job from reconciliation, or include it again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from streamops.model.errors import NotFoundError
from streamops.operations import steps
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked, Paused
from streamops.operations.requests import JobRequest
from streamops.operations.runbook import Step
from streamops.store import jobs
from streamops.versions import artifacts


class PauseJob(JobRequest):
    """What may be asked for."""

    runbook: Literal["pause_job"] = "pause_job"
    action: Annotated[
        Literal["pause", "resume"],
        Field(
            title="Action",
            description="pause: the job is not started again by itself if it ends. resume: from now on it is.",
        ),
    ]


def check(context: StepContext) -> Checked:
    """A job that was only published can be paused, too. Raises NotFoundError."""
    store = context.ports.store
    if jobs.record(store, context.job) is None and not artifacts.versions(store, context.job):
        raise NotFoundError(f"There is no job {context.job!r}; 'streamops jobs' lists those that are there.")
    return Checked()


def note(context: StepContext) -> Paused:
    """Write it into the job record."""
    paused = context.asked(PauseJob).action == "pause"
    context.change({"paused": paused})
    told = "paused: reconciliation leaves it alone" if paused else "no longer paused: if it ends, it is started again"
    context.say(f"{context.job} is {told}")
    return Paused(paused=paused)


PAUSE_JOB = steps.at_once(
    PauseJob,
    Step("check", "check", "Check that there is such a job", check),
    Step("note", "check", "Write into the job record whether the job is paused", note),
    begun="it may be done: 'streamops jobs show' says so",
)
