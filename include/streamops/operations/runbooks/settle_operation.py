"""Finish or undo an abandoned operation, or leave it as it is.

Its lock is taken from the run that is gone, and what that run left open is settled under it, as a person decides.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from streamops.model import names
from streamops.model.definitions import SnapshotName
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.names import CLUSTER, label
from streamops.model.records import Control
from streamops.operations import steps
from streamops.operations.context import How, StepContext
from streamops.operations.facts import Checked, Settled
from streamops.operations.operation import OVER, Operation, Request, Scope
from streamops.operations.runbook import Step
from streamops.store import documents, jobs, keys

_WANTED: dict[How, frozenset[str]] = {
    "resume": frozenset({"succeeded"}),
    "abort": frozenset({"undone", "aborted"}),
    "leave": frozenset({"aborted"}),
}


class SettleOperation(Request):
    """What may be asked for."""

    runbook: Literal["settle_operation"] = "settle_operation"
    job: Annotated[
        Scope,
        Field(
            title="Job",
            description=f"The job that the operation is about; {CLUSTER} for the cluster.",
            json_schema_extra={"pattern": f"^(?:{CLUSTER}|{names.JOB.pattern})$"},
        ),
    ]
    operation: Annotated[
        SnapshotName,
        Field(title="Operation", description="Its id, as 'streamops operations' lists it. Its run must be over."),
    ]
    action: Annotated[
        How,
        Field(
            title="Action",
            description="resume: finish it from its recorded step. abort: undo it. leave: close it and touch "
            "nothing, for one that can be neither finished nor undone.",
        ),
    ]
    reason: Annotated[str | None, Field(max_length=500, title="Reason", description="Why, for the record.")] = None

    @property
    def settles(self) -> str:
        """The operation that it settles."""
        return self.operation


def _of(context: StepContext) -> Operation:
    asked = context.asked(SettleOperation)
    if found := documents.find(context.ports.store, keys.operation(asked.job, asked.operation), Operation):
        return found
    raise NotFoundError(
        f"There is no operation {asked.operation!r} of {label(asked.job)}; 'streamops operations' lists them."
    )


def check(context: StepContext) -> Checked:
    """Refuse what is over, and to continue with what is being undone. Raises RefusedError, NotFoundError."""
    asked, operation = context.asked(SettleOperation), _of(context)
    if operation.state in OVER:
        raise RefusedError(f"Operation {operation.id} is {operation.state}; there is nothing to {asked.action}.")
    if asked.action == "resume" and operation.undo:
        raise RefusedError(f"Operation {operation.id} is being undone; finish that with 'operations abort'.")
    return Checked(state=operation.state)


def settle(context: StepContext) -> Settled:
    """Do it. Raises RefusedError when it came to an end of another kind meanwhile, and what its own steps raise."""
    asked, operation = context.asked(SettleOperation), _of(context)
    if asked.action == "leave":
        _tell_what_is_left(context, operation)
    why = f"left as it is by {context.operation.owner.user or 'a person'}{f': {asked.reason}' if asked.reason else ''}"
    done = context.settle(asked.operation, asked.action, why)
    if done.state not in _WANTED[asked.action]:
        raise RefusedError(f"Operation {done.id} is {done.state} by now ({done.reason}); look at what that means.")
    context.say(f"Operation {done.id} is {done.state}{f' ({done.reason})' if done.reason else ''}")
    return Settled(operation=done.id, state=done.state, reason=done.reason)


def _tell_what_is_left(context: StepContext, operation: Operation) -> None:
    """Say how far it came; a standby of it, which nobody would use any more, is told to end."""
    for kind, recorded in (("step", operation.steps), ("undo step", operation.undo)):
        for name, record in recorded.items():
            context.say(f"Left: {kind} {name} is {'done' if record.finished else 'begun and not done'}")
    found = jobs.record(context.ports.store, operation.job) if operation.job != CLUSTER else None
    if found is None:
        return
    context.say(
        f"Left: {found.job} should be {found.desired}, {found.version or 'no version'}, deployment {found.deployment}, "
        f"launch {found.launch or 'none'}"
    )
    if found.standby == operation.id:
        told = Control(command="stop", operation=context.operation.id)
        jobs.tell(context.ports.store, found.job, operation.id, told)
        context.change({"standby": None})
        context.say(f"Launch {operation.id}, a standby, is told to end")


SETTLE_OPERATION = steps.at_once(
    SettleOperation,
    Step("check", "check", "Check that there is something to settle", check),
    Step("settle", "check", "Finish it, undo it, or close it as it is", settle),
    begun="how far that came, the operation that it settles says",
)
