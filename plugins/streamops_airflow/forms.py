"""The fields of the runbooks' forms. Airflow checks them against their schema before a run exists (400 otherwise)."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Param

from streamops.model import names


def _whole(pattern: str) -> str:
    """JSON Schema searches; the naming rule matches whole names."""
    return f"^(?:{pattern})$"


def job(what: str) -> Param:
    """The job to operate on; there is never a default."""
    return Param(type="string", pattern=_whole(names.JOB.pattern), title="Job", description=f"The job to {what}.")


def version(description: str) -> Param:
    """A published version."""
    return Param(type="string", pattern=_whole(names.VERSION.pattern), title="Version", description=description)


def snapshot(description: str) -> Param:
    """The name of a snapshot to make; names are unique per job."""
    pattern = _whole(names.SNAPSHOT.pattern)
    return Param(None, type=["null", "string"], pattern=pattern, title="Snapshot name", description=description)


def chosen_snapshot(description: str) -> Param:
    """A snapshot of this job that exists."""
    return Param(type="string", pattern=_whole(names.SNAPSHOT.pattern), title="Snapshot", description=description)


def from_snapshot(description: str) -> Param:
    """A snapshot to start from: NAME, or JOB/NAME for another job's."""
    pattern = _whole(f"({names.JOB.pattern}/)?{names.SNAPSHOT.pattern}")
    return Param(None, type=["null", "string"], pattern=pattern, title="From snapshot", description=description)


def flag(title: str, description: str, default: bool = False) -> Param:
    """A box to tick."""
    return Param(default, type="boolean", title=title, description=description)


def seconds(title: str, default: int, description: str, least: int = 10) -> Param:
    """A deadline in seconds."""
    return Param(default, type="integer", minimum=least, maximum=3600, title=title, description=description)


def standby() -> Param:
    """Whether the next driver warms up beside the present one."""
    return flag(
        "Warm standby",
        "Start the new driver before the present one stops, for the shortest gap; needs free cores on the cluster, "
        "and falls back to a cold start without them.",
        default=True,
    )


def going_back() -> dict[str, Param]:
    """How a job continues from an earlier snapshot; the same for a rollback and a restore."""
    return {
        "standby": standby(),
        "healthy_timeout_s": seconds(
            "Healthy within (s)", 180, "If it is not healthy by then, what ran before runs again."
        ),
        "stop_timeout_s": seconds(
            "Stopped within (s)", 60, "The time for the batch in flight; a driver that takes longer loses the lease."
        ),
        "catch_up_s": seconds(
            "Wait for catching up (s)", 300, "How long the recount waits for what is processed again.", least=0
        ),
        "recount": flag(
            "Recount", "Afterwards recompute what was written again from the topic and compare.", default=True
        ),
    }


def mapping(title: str, description: str, values: list[str]) -> Param:
    """Names to values, as a JSON object."""
    schema: dict[str, Any] = {"additionalProperties": {"type": values}}
    return Param({}, type=["object", "null"], title=title, description=description, **schema)


def number(title: str, description: str, minimum: int = 1) -> Param:
    """A whole number that may be left empty."""
    return Param(None, type=["null", "integer"], minimum=minimum, maximum=1000, title=title, description=description)


def name_list(title: str, description: str) -> Param:
    """A list of names that may be left empty."""
    items = {"type": "string", "pattern": _whole(names.NODE.pattern)}
    return Param([], type=["array", "null"], items=items, title=title, description=description)


def addresses() -> Param:
    """Directories and URLs of sources that are not topics."""
    return mapping("Addresses", 'Other places for sources that are not topics, e.g. {"alpha": "/data"}.', ["string"])


def levels() -> Param:
    """Log levels by logger."""
    return mapping("Log levels", 'Least level by logger, e.g. {"source.beta": "DEBUG"}.', ["string"])


def accept_loss() -> Param:
    """Stages whose state may be lost."""
    return Param(
        [],
        type=["array", "null"],
        items={"type": "string", "pattern": _whole(names.STAGE.pattern)},
        title="Accept loss of state",
        description="Stages, one a line, whose state may be lost; the log of check names those that need it.",
    )


def optional_job(description: str) -> Param:
    """One job, or all."""
    pattern = _whole(names.JOB.pattern)
    return Param(None, type=["null", "string"], pattern=pattern, title="Job", description=description)


def days(title: str, default: int, description: str, least: int = 0) -> Param:
    """A number of days."""
    return Param(default, type="integer", minimum=least, maximum=3650, title=title, description=description)


def library(description: str) -> Param:
    """A version of a shared library."""
    pattern = _whole(f"{names.LIBRARY.pattern}/{names.VERSION.pattern}")
    return Param(None, type=["null", "string"], pattern=pattern, title="Shared library", description=description)
