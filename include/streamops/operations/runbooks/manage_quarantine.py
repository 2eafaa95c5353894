"""Write points that a sink refused, once they are corrected, or forget them."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from streamops.clients.influx import line, obstacle
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.records import RefusedPoint
from streamops.operations import steps
from streamops.operations.context import StepContext
from streamops.operations.facts import Checked, Quarantined
from streamops.operations.requests import JobRequest
from streamops.operations.runbook import Step
from streamops.store import keys, quarantine
from streamops.versions import artifacts

PointId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class ManageQuarantine(JobRequest):
    """What may be asked for."""

    runbook: Literal["manage_quarantine"] = "manage_quarantine"
    action: Annotated[
        Literal["write", "drop"],
        Field(
            title="Action",
            description="write: points from a file that 'streamops quarantine write' has uploaded. drop: forget points "
            "for good.",
        ),
    ]
    points: Annotated[
        tuple[PointId, ...],
        Field(title="Points", description="For drop: ids of points, as 'streamops quarantine list' shows them."),
    ] = ()
    file: Annotated[
        str | None,
        Field(
            pattern=r"^[0-9a-f]{64}$",
            title="File",
            description="For write: the SHA-256 of the file, which that command has uploaded and fills in.",
        ),
    ] = None

    @model_validator(mode="after")
    def _of_each_action(self) -> ManageQuarantine:
        if (self.action == "write") != (self.file is not None):
            raise ValueError("file: goes with the action write, which needs one")
        if (self.action == "drop") != bool(self.points):
            raise ValueError("points: go with the action drop, which needs some")
        return self


def corrected(body: bytes) -> list[RefusedPoint]:
    """The points of a file of corrections, one JSON object a line. Raises RefusedError: one cannot be written."""
    found = []
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError as error:
        raise RefusedError(
            f"The file is not UTF-8 ({error.reason} at byte {error.start}). Nothing was written."
        ) from None
    for number, text in enumerate(lines, 1):
        try:
            item = RefusedPoint.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise RefusedError(f"Line {number}: {where}: {first['msg']}. Nothing was written.") from None
        if reason := obstacle(item.tags, item.fields):
            raise RefusedError(f"Line {number}: {reason}; correct it. Nothing was written.")
        found.append(item)
    return found


def _points(context: StepContext) -> list[RefusedPoint]:
    asked, store = context.asked(ManageQuarantine), context.ports.store
    key = keys.corrections(context.job, asked.file or "")
    if not store.exists(key):
        raise NotFoundError("There is no such file in the bucket; 'streamops quarantine write JOB FILE' uploads it.")
    body = store.get(key).body
    if hashlib.sha256(body).hexdigest() != asked.file:
        raise RefusedError(
            "The file in the bucket is not the one that was uploaded; write it again. Nothing was written."
        )
    points, elsewhere = corrected(body), _elsewhere(context)
    for item in points:
        if secret := elsewhere.get(item.measurement):
            raise RefusedError(
                f"{item.measurement} is written to the InfluxDB of the secret {secret}, which only nodes know: write "
                f"the points there yourself, then 'streamops quarantine drop {context.job}'. Nothing was written."
            )
    return points


def _elsewhere(context: StepContext) -> dict[str, str]:
    """The measurements that any version of the job writes to another InfluxDB than the installation's: its secret."""
    manifests = artifacts.manifests(context.ports.store, context.job)
    sinks = (sink for manifest in manifests for sink in manifest.definition.influx_sinks)
    return {sink.measurement: sink.secret for sink in sinks if sink.elsewhere}


def check(context: StepContext) -> Checked:
    """Refuse what cannot be written, and what is not there. Raises RefusedError, NotFoundError."""
    asked, job = context.asked(ManageQuarantine), context.job
    if asked.action == "write":
        _points(context)
    elif not {item.id for _, item in quarantine.read(context.ports.store, job)} & set(asked.points):
        raise NotFoundError(f"None of these is in the quarantine of {job}; 'streamops quarantine list {job}' has them.")
    return Checked()


def change(context: StepContext) -> Quarantined:
    """Do it; a point that is written again is written over."""
    asked, store, job = context.asked(ManageQuarantine), context.ports.store, context.job
    points = _points(context) if asked.action == "write" else []
    if points:
        context.ports.write_points([line(item.measurement, item.tags, item.fields, item.time_ms) for item in points])
    gone = quarantine.remove(store, job, {item.id for item in points} or set(asked.points))
    context.say(f"{job}: {len(points):,} points are written, and {gone:,} are no longer in the quarantine")
    return Quarantined(written=len(points), gone=gone)


MANAGE_QUARANTINE = steps.at_once(
    ManageQuarantine,
    Step("check", "check", "Check the points", check),
    Step("change", "check", "Write corrected points, or forget points", change),
    begun="points may be written or forgotten: 'streamops quarantine list' says so",
)
