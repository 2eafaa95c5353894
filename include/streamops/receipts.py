"""The receipt of an operation: what was asked for, by whom, and what happened. It holds no secret."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from streamops import keys, records
from streamops.adapters.object_store import ObjectStore
from streamops.operations import Operation, plan
from streamops.records import now


class Receipt(BaseModel):
    """One operation in hindsight. Durations in seconds."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    job: str
    runbook: str
    state: str
    reason: str = ""
    requested_by: str
    owner: str
    inputs: dict[str, Any]
    began: datetime
    finished: datetime
    seconds: float
    before: dict[str, Any] = {}
    steps: dict[str, float | None] = {}
    undo: dict[str, float | None] = {}
    facts: dict[str, dict[str, Any]] = {}
    gap_seconds: float | None = None  # from the word to stop to the first commit after it, as far as the steps show


def receipt(operation: Operation, state: str) -> Receipt:
    """What there is to say of an operation that is over."""
    moment = now()
    steps = {
        step.name: operation.steps[step.name]
        for step in plan(operation.request.runbook)
        if step.name in operation.steps
    }
    gap = None
    if operation.request.runbook == "upgrade_job" and operation.done("healthy"):
        healthy = steps["healthy"].finished
        gap = (healthy - steps["request_stop"].started).total_seconds() if healthy else None
    return Receipt(
        id=operation.id,
        job=operation.job,
        runbook=operation.request.runbook,
        state=state,
        reason=operation.reason,
        requested_by=operation.owner.user,
        owner=operation.owner.label(),
        inputs=operation.request.model_dump(mode="json", exclude_defaults=True),
        began=operation.created,
        finished=moment,
        seconds=(moment - operation.created).total_seconds(),
        before=operation.before.model_dump(mode="json") if operation.before else {},
        steps={name: record.seconds for name, record in steps.items()},
        undo={name: record.seconds for name, record in operation.undo.items()},
        facts={name: record.facts for name, record in {**steps, **operation.undo}.items()},
        gap_seconds=gap,
    )


def write(store: ObjectStore, found: Receipt) -> None:
    """Store a receipt; the last one of an operation counts."""
    records.write(store, keys.receipt(found.job, found.id), found)


def read(store: ObjectStore, job: str, operation_id: str) -> Receipt | None:
    """The receipt of an operation, or None while it is not over."""
    found = records.read(store, keys.receipt(job, operation_id), Receipt)
    return found.value if found else None
