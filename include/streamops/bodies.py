"""Which module carries out a runbook: those of jobs, or those of the cluster."""

from __future__ import annotations

from collections.abc import Callable

from streamops import cluster_steps, cluster_undo, steps, undo
from streamops.errors import NotFoundError
from streamops.health import Health
from streamops.operations import CLUSTER_RUNBOOKS, Operation
from streamops.steps import Facts, Work


def body(runbook: str, step: str) -> Callable[[Work], Facts]:
    """What a step does. Raises NotFoundError."""
    if runbook not in CLUSTER_RUNBOOKS:
        return steps.body(step)
    if step not in cluster_steps.BODIES:
        raise NotFoundError(f"There is no step {step!r} of the cluster.")
    return cluster_steps.BODIES[step]


def looks(runbook: str) -> dict[str, Callable[[Work], Health]]:
    """How the waiting steps look at what they wait for."""
    return cluster_steps.LOOKS if runbook in CLUSTER_RUNBOOKS else steps.LOOKS


def route(operation: Operation) -> tuple[str, tuple[str, ...]]:
    """What taking it back means: a sentence, and the steps."""
    if operation.request.runbook in CLUSTER_RUNBOOKS:
        return cluster_undo.route(operation)
    return undo.route(operation)


def undo_body(runbook: str, step: str) -> Callable[[Work], Facts]:
    """What a step of taking it back does."""
    return cluster_undo.BODIES[step] if runbook in CLUSTER_RUNBOOKS else undo.BODIES[step]
