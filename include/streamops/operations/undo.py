"""What steps of taking an operation on a job back do: at the end what ran before runs again, or was never touched.

Recorded like the steps of the operation itself, and each can be run again.
"""

from __future__ import annotations

from streamops.model.records import Control, now
from streamops.operations import health
from streamops.operations.context import StepContext
from streamops.operations.cost import Cost
from streamops.operations.facts import Dismissed, HandedOver, Left, Submitted, WorksAgain
from streamops.operations.requests import Starts, Stops
from streamops.operations.steps import give, healthy_now, put, submission
from streamops.store import jobs, leases

_LAST_WORD_S = 20.0  # for the new driver to end by itself, so that its batch in flight is not lost


def launch(context: StepContext) -> str:
    """The launch that brings back what ran before."""
    return f"{context.operation.id}-back"


def dismiss(context: StepContext, cost: Cost | None = None) -> Dismissed:
    """End the new driver. It may be dead, or not there yet: then it finds its dismissal when it starts."""
    store, operation = context.ports.store, context.operation.id
    facts = Dismissed(launch=context.launch)
    if cost is not None:
        facts = Dismissed(launch=context.launch, cost=cost, events_again=sum(cost.again.values()))
    jobs.tell(store, context.job, context.launch, Control(command="stop", operation=f"{operation}-undo"))
    if not context.operation.started("hand_over"):
        context.change({"standby": None, "last_deployment": context.number})
        return facts

    def look() -> health.Health:
        return health.assess_stop(jobs.status(store, context.job, context.launch), context.launch)

    ended = context.until(lambda: look().done, min(_LAST_WORD_S, context.asked(Stops).stop_timeout_s))
    outcome = look().why if ended else "did not end by itself; it loses the lease"
    context.say(f"Launch {context.launch}: {outcome}")
    return facts.model_copy(update={"ended": ended})


def take_back(context: StepContext, number: int) -> HandedOver:
    """From here on no other launch may write; whoever still runs finds that out before its next write."""
    granted = leases.grant(context.ports.store, context.job, launch(context), number)
    give(context, context.before.version, number, launch(context))
    return HandedOver(launch=launch(context), deployment=number, epoch=granted.value.epoch)


def leave(context: StepContext) -> Left:
    """The job record as it was, for a job of which nothing ran; who runs by now loses the lease."""
    store = context.ports.store
    leases.grant(store, context.job, launch(context), context.before.deployment)
    before = context.before.model_dump(include={"desired", "version", "deployment", "launch", "standby", "snapshot"})
    context.change({**before, "last_deployment": context.number})
    return Left(desired=context.before.desired)


def submit(context: StepContext, number: int) -> Submitted:
    """Start it, cold."""
    version = context.version(context.before.version)
    return put(context, submission(context, version, number, launch(context)), "submit", undo=True)


def healthy(context: StepContext) -> WorksAgain:
    """Wait until it works."""
    version = context.version(context.before.version)
    look = lambda: healthy_now(context, launch(context), version)  # noqa: E731
    why = context.wait(look, context.asked(Starts).healthy_timeout_s, "Health of what ran before").why
    stopped = context.operation.steps.get("request_stop")
    down_s = round((now() - stopped.started).total_seconds(), 1) if stopped else 0.0
    dismissed = context.operation.undo.get("dismiss")
    again = Dismissed.model_validate(dismissed.facts).events_again if dismissed else 0
    context.say(f"It cost: {again:,} events are processed again; what ran before works again after {down_s} s")
    return WorksAgain(why=why, events_again=again, down_s=down_s)
