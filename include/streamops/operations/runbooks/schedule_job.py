"""Change when snapshots of a job are taken automatically, and which are kept, while it runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from streamops.model.definitions import Keep, Snapshots
from streamops.model.errors import RefusedError
from streamops.model.records import ChosenSnapshots, now
from streamops.model.schedules import require_valid
from streamops.model.wording import wrong_fields
from streamops.operations import checks, steps
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked, Planned
from streamops.operations.requests import JobRequest
from streamops.operations.runbook import Step
from streamops.store import jobs
from streamops.versions import artifacts


class ScheduleJob(JobRequest):
    """What may be asked for; what is left empty stays as it is."""

    runbook: Literal["schedule_job"] = "schedule_job"
    every: Annotated[
        str | None,
        Field(title="Every", description="Such as 1 hour: at whole multiples of it, UTC; at least 1 minute."),
    ] = None
    cron: Annotated[str | None, Field(title="Cron", description="Instead: five fields, UTC, such as 30 2 * * 1-5.")] = (
        None
    )
    never: Annotated[bool, Field(title="Never", description="Take no more automatic snapshots.")] = False
    keep: Annotated[
        dict[str, int],
        Field(
            title="Keep",
            description="How many to keep, as last, hourly, daily and weekly: the last ones, and the newest of so many "
            "hours, days and weeks.",
            examples=[{"last": 3}],
        ),
    ] = Field(default_factory=dict)
    as_defined: Annotated[
        bool,
        Field(title="As defined", description="Use the definition's schedule and rule; each version has its own."),
    ] = False

    @model_validator(mode="after")
    def _one_change(self) -> ScheduleJob:
        if sum(bool(given) for given in (self.every, self.cron, self.never)) > 1:
            raise ValueError("every, cron, never: choose one")
        changes = bool(self.every or self.cron or self.never or self.keep)
        if changes == self.as_defined:
            raise ValueError(
                "every, cron, never, keep, as_defined: say what changes; as_defined goes with none of them"
            )
        return self

    def over(self, plan: Snapshots | None) -> Snapshots:
        """The plan that is asked for, over the one there is.

        Raises:
            RefusedError, DefinitionError: there is no such schedule, or no such rule.
        """
        before = plan or Snapshots()
        timing = {"every": self.every, "cron": self.cron}
        if not (self.every or self.cron or self.never):
            timing = {"every": before.every, "cron": before.cron}
        try:
            keep = Keep.model_validate(self.keep) if self.keep else before.keep
            found = Snapshots(**timing, keep=keep)
        except ValidationError as error:
            raise RefusedError(f"This is no schedule: {wrong_fields(error, 'the rule')}.") from None
        require_valid(found)
        return found


def check(context: StepContext) -> Checked:
    """That there is such a job, schedule and rule. Raises NotFoundError, RefusedError, DefinitionError."""
    record, asked = checks.existing(context), context.asked(ScheduleJob)
    if not asked.as_defined:
        asked.over(artifacts.snapshot_plan(context.ports.store, record))
    return Checked()


def note(context: StepContext) -> Planned:
    """Write it into the job record."""
    asked, store, record = context.asked(ScheduleJob), context.ports.store, checks.existing(context)
    plan = None if asked.as_defined else asked.over(artifacts.snapshot_plan(store, record))
    chosen = plan and ChosenSnapshots(
        since=now(), every=plan.every, cron=plan.cron, keep=plan.keep.model_dump() if plan.keep else {}
    )
    context.change({"snapshots": chosen})
    told = described(artifacts.snapshot_plan(store, jobs.record(store, context.job)))
    context.say(f"Snapshots of {context.job}: {told}")
    return Planned(plan=told)


def described(plan: Snapshots | None) -> str:
    """In words: when they are taken, and which are kept."""
    when = (plan.every and f"every {plan.every}") or (plan.cron and f"cron {plan.cron}") if plan else None
    kept = {name: count for name, count in plan.keep.model_dump().items() if count} if plan and plan.keep else {}
    rule = ", ".join(f"{name} {count}" for name, count in kept.items())
    return f"{when or 'none by itself'}; {f'kept: {rule}' if rule else 'all are kept'}"


SCHEDULE_JOB = steps.at_once(
    ScheduleJob,
    Step("check", "check", "Check the schedule and the retention rule", check),
    Step("note", "check", "Write them into the job record", note),
    begun="it may be done: 'streamops snapshots schedule' says so",
)
