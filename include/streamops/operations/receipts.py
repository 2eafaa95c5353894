"""The receipt of an operation: what was asked for, by whom, and what happened. It holds no secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from streamops.cluster.record import ClusterRecord
from streamops.model.names import label
from streamops.model.owner import Owner
from streamops.model.records import Deployment, JobRecord, Offsets, now
from streamops.model.stored import Part, Stored
from streamops.operations.facts import Checked, Dismissed, Exported, Kept, Stopped, Worked
from streamops.operations.operation import Operation
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore

AIRFLOW, HERE = "Airflow", "the command line, without Airflow"


class Ran(Part):
    """One deployment that an operation met: which bytes it runs."""

    version: str
    deployment: int
    artifact_sha256: str
    runtime_sha256: str
    from_snapshot: str | None = None
    library: str | None = None  # LIBRARY/VERSION and the hash of its archive


class Moved(Part):
    """A stage's next offsets to read: when the old driver had stopped, and when the new one was healthy."""

    before: Offsets = {}
    after: Offsets = {}


class Receipt(Stored):
    """One operation in hindsight. Durations in seconds."""

    id: str
    job: str
    runbook: str
    state: str
    reason: str = ""
    requested_by: str
    owner: str
    via: str = AIRFLOW
    inputs: dict[str, Any]
    began: datetime
    finished: datetime
    seconds: float
    before: dict[str, Any] = {}
    ran: dict[str, Ran] = {}  # "before" and "after"
    snapshot: str | None = None  # taken, or gone back to, as JOB/NAME
    offsets: dict[str, Moved] = {}
    verdicts: dict[str, str] = {}  # stage -> what was said of its state before anything was touched
    cost: dict[str, Any] = {}  # of going back, by hand or because the new version was not healthy
    recount: dict[str, Any] = {}
    steps: dict[str, float | None] = {}
    undo: dict[str, float | None] = {}
    facts: dict[str, dict[str, Any]] = {}  # by step; those of undoing it as "undo:STEP"
    gap_seconds: float | None = None  # from the word to stop to the first commit after it, as far as the steps show


def receipt(operation: Operation, state: str, ran: Mapping[str, Deployment] | None = None) -> Receipt:
    """What there is to say of an operation that is over.

    Args:
        ran: the deployments ``before`` and ``after``, as far as there are any.
    """
    moment = now()
    check = operation.reported("check", Checked)
    name = operation.reported("commit_manifest", Kept).snapshot or check.snapshot
    dismissed = Dismissed.model_validate(operation.undo["dismiss"].facts if "dismiss" in operation.undo else {})
    price = dismissed.cost or check.cost
    return Receipt(
        id=operation.id,
        job=operation.job,
        runbook=operation.request.runbook,
        state=state,
        reason=operation.reason,
        **asked_by(operation.owner),
        inputs=operation.request.chosen,
        began=operation.created,
        finished=moment,
        seconds=(moment - operation.created).total_seconds(),
        before=operation.before.model_dump(mode="json") if operation.before else {},
        ran={which: _ran(found) for which, found in (ran or {}).items()},
        snapshot=name if name is None or "/" in name else f"{operation.job}/{name}",
        offsets=_offsets(operation),
        verdicts=check.verdicts,
        cost=price.model_dump(mode="json") if price else {},
        recount=operation.facts("recount"),
        steps={name: record.seconds for name, record in operation.steps.items()},
        undo={name: record.seconds for name, record in operation.undo.items()},
        facts={name: record.facts for name, record in operation.steps.items()}
        | {f"undo:{name}": record.facts for name, record in operation.undo.items()},
        gap_seconds=_gap(operation),
    )


def asked_by(owner: Owner) -> dict[str, Any]:
    """The fields of a receipt that say who asked."""
    return {
        "requested_by": owner.user,
        "owner": owner.label(),
        "via": AIRFLOW if owner.kind == "airflow" else HERE,
    }


def unbegun(runbook: str, job: str, state: str, reason: str, owner: Owner, asked: Mapping[str, Any]) -> Receipt:
    """What there is to say of a request for which no operation began; it is shown, and not stored.

    Args:
        state: ``refused``, ``skipped`` because another operation held the job, or ``not begun``.
        asked: every value that was given.
    """
    moment = now()
    return Receipt(
        id=owner.run_id,
        job=job,
        runbook=runbook,
        state=state,
        reason=reason,
        **asked_by(owner),
        inputs=dict(asked),
        began=moment,
        finished=moment,
        seconds=0,
    )


def found_before(record: JobRecord | ClusterRecord | None) -> str:
    """What an operation found, before it changed anything."""
    if isinstance(record, ClusterRecord):
        nodes, waiting = ", ".join(record.nodes) or "those of the inventory", ", ".join(record.jobs)
        stopped = f", stopped with jobs {waiting}" if waiting else ""
        return f"the cluster, {record.state}, members {nodes}{stopped}{_changed_by(record)}"
    if record is None or not record.deployment:
        return "nothing that was deployed"
    paused, kept = ", paused" * record.paused, f", with snapshot {record.snapshot}" if record.snapshot else ""
    return (
        f"{record.job} {record.version}, deployment {record.deployment}, {record.desired}{kept}{paused}, "
        f"launch {record.launch}{_changed_by(record)}"
    )


def _changed_by(record: JobRecord | ClusterRecord) -> str:
    return f", changed last by {record.changed_by}" if record.changed_by else ""


def _gap(operation: Operation) -> float | None:
    """From the request to stop until the new driver was healthy; None unless the job was stopped to run again."""
    if not (operation.done("healthy") and operation.reported("await_stop", Stopped).stopped):
        return None
    healthy = operation.steps["healthy"].finished
    return (healthy - operation.steps["request_stop"].started).total_seconds() if healthy else None


def _ran(found: Deployment) -> Ran:
    return Ran(
        version=found.version,
        deployment=found.number,
        artifact_sha256=found.artifact_sha256,
        runtime_sha256=found.runtime_sha256,
        from_snapshot=found.from_snapshot,
        library=f"{found.library.label} {found.library.sha256}" if found.library else None,
    )


def _offsets(operation: Operation) -> dict[str, Moved]:
    exports = (operation.reported(step, Exported).stages for step in ("export_and_restore", "export", "keep"))
    exported = next((stages for stages in exports if stages), {})
    stopped = exported or operation.reported("await_stop", Stopped).stages
    after = operation.reported("healthy", Worked).stages
    return {
        stage: Moved(
            before=stopped[stage].offsets if stage in stopped else {},
            after=after[stage].offsets if stage in after else {},
        )
        for stage in dict.fromkeys((*stopped, *after))
    }


def lines(found: Receipt) -> Iterator[str]:
    """A receipt for people."""
    yield f"Receipt {found.id}: {found.runbook} of {label(found.job)} {found.state} after {found.seconds:.1f} s"
    yield f"  asked for by {found.requested_by or 'unknown'}, via {found.via} ({found.owner})"
    if asked := ", ".join(f"{key}={value}" for key, value in found.inputs.items() if key not in ("runbook", "job")):
        yield f"  asked for: {asked}"
    if found.reason:
        yield f"  reason: {found.reason}"
    for which, ran in found.ran.items():
        yield f"  {which}: {_ran_what(ran)}"
    if found.snapshot:
        yield f"  snapshot: {found.snapshot}"
    yield from _state_lines(found)
    yield from _time_lines(found)
    if found.recount:
        clean = "clean" if found.recount.get("clean") else "not clean"
        yield f"  recount: {found.recount.get('reason') or clean}"


def _ran_what(ran: Ran) -> str:
    origin = f", from snapshot {ran.from_snapshot}" if ran.from_snapshot else ""
    library = f", library {ran.library.split()[0]}" if ran.library else ""
    return (
        f"{ran.version}, deployment {ran.deployment}{origin}, "
        f"artifact {ran.artifact_sha256[:12]}, runtime {ran.runtime_sha256[:12]}{library}"
    )


def _state_lines(found: Receipt) -> Iterator[str]:
    """What became of each stage's state."""
    for stage, moved in found.offsets.items():
        yield f"  {stage}: stopped at {_short(moved.before)}, healthy at {_short(moved.after)}"
    for stage, verdict in found.verdicts.items():
        yield f"  verdict of {stage}: {verdict}"
    if found.cost.get("again"):
        again = ", ".join(f"{stage} {events:,}" for stage, events in found.cost["again"].items())
        yield f"  cost: events processed again: {again}"


def _time_lines(found: Receipt) -> Iterator[str]:
    for title, durations in (("steps", found.steps), ("undone", found.undo)):
        if durations:
            took = (f"{name} {'did not end' if s is None else f'{s:.1f} s'}" for name, s in durations.items())
            yield f"  {title}: {', '.join(took)}"
    if found.gap_seconds is not None:
        yield f"  gap: at most {found.gap_seconds:.1f} s from the stop request until every stage was working again"


def _short(offsets: Offsets) -> str:
    parts = (f"{source} {'/'.join(str(end) for _, end in sorted(ends.items()))}" for source, ends in offsets.items())
    return ", ".join(parts) or "-"


def write(store: ObjectStore, found: Receipt) -> None:
    """Store a receipt; the last one of an operation counts."""
    documents.write(store, keys.receipt(found.job, found.id), found)


def read(store: ObjectStore, job: str, operation_id: str) -> Receipt | None:
    """The receipt of an operation, or None while it is not over."""
    return documents.find(store, keys.receipt(job, operation_id), Receipt)
