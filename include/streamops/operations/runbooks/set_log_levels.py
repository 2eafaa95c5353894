"""Let loggers of a running job log more, or less, without restarting anything."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from streamops.model.definitions import LoggerName, LogLevel
from streamops.model.errors import RefusedError
from streamops.model.records import Control
from streamops.operations import checks, steps
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked, Levels
from streamops.operations.requests import JobRequest
from streamops.operations.runbook import Step
from streamops.store import jobs
from streamops.versions import artifacts


class SetLogLevels(JobRequest):
    """What may be asked for."""

    runbook: Literal["set_log_levels"] = "set_log_levels"
    logging: Annotated[
        dict[LoggerName, LogLevel],
        Field(
            min_length=1,
            title="Log levels",
            description="Minimum level by logger, in Python or in the JVM; until the job is restarted.",
            examples=[{"source.beta": "DEBUG"}],
        ),
    ]


def check(context: StepContext) -> Checked:
    """Raise RefusedError unless there is a driver that can be told."""
    record = checks.existing(context)
    if record.desired != "running" or record.launch is None:
        raise RefusedError(
            f"Job {context.job} is {record.desired}, so nothing of it logs; set levels as it is deployed or upgraded "
            "(logging)."
        )
    running = context.version()
    if artifacts.LEVELS not in running.runtime_can:
        raise RefusedError(
            f"The runner of {context.job} {running.version} is too old to be told while it runs; set levels as the job "
            "is deployed or upgraded (logging), or publish it again as another version."
        )
    return Checked(launch=record.launch)


def note(context: StepContext) -> Levels:
    """Tell the driver, which looks several times a second."""
    store, launch = context.ports.store, context.checked.launch or ""
    told = jobs.told(store, context.job, launch)
    levels = {**(told.logging if told else {}), **context.asked(SetLogLevels).logging}
    jobs.tell(store, context.job, launch, Control(command="run", operation=context.operation.id, logging=levels))
    context.say(f"Launch {launch} logs {', '.join(f'{name} from {level} on' for name, level in levels.items())}")
    return Levels(logging=levels)


SET_LOG_LEVELS = steps.at_once(
    SetLogLevels,
    Step("check", "check", "Check that the job runs", check),
    Step("note", "check", "Tell its driver", note),
    begun="the levels may be set; set them again as you want them",
)
