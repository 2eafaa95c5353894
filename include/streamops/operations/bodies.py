"""What each step of each runbook does: the bodies that all share, and a runbook's own in their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from streamops.model.errors import NotFoundError
from streamops.operations import cluster_steps, cluster_undo, going_back, probation, steps, undo
from streamops.operations.context import Facts, Work
from streamops.operations.health import Health
from streamops.operations.operation import CLUSTER_RUNBOOKS, GOING_BACK, Operation

Body = Callable[[Work], Facts]
Look = Callable[[Work], Health]

OWN: dict[str, Mapping[str, Body]] = {
    **dict.fromkeys(GOING_BACK, going_back.BODIES),
    "upgrade_job": probation.BODIES,
}
LOOKS: dict[str, Look] = {**steps.LOOKS, **going_back.LOOKS, **probation.LOOKS}


def body(runbook: str, step: str) -> Body:
    """What a step of a runbook does. Raises NotFoundError."""
    of_all = cluster_steps.BODIES if runbook in CLUSTER_RUNBOOKS else steps.BODIES
    found = OWN.get(runbook, {}).get(step) or of_all.get(step)
    if found is None:
        raise NotFoundError(f"There is no step {step!r} in {runbook}.")
    return found


def looks(runbook: str) -> dict[str, Look]:
    """How the waiting steps look at what they wait for."""
    return cluster_steps.LOOKS if runbook in CLUSTER_RUNBOOKS else LOOKS


def route(operation: Operation) -> tuple[str, tuple[str, ...]]:
    """What taking it back means: a sentence, and the steps."""
    if operation.request.runbook in CLUSTER_RUNBOOKS:
        return cluster_undo.route(operation)
    return undo.route(operation)


def undo_body(runbook: str, step: str) -> Body:
    """What a step of taking it back does."""
    return cluster_undo.BODIES[step] if runbook in CLUSTER_RUNBOOKS else undo.BODIES[step]
