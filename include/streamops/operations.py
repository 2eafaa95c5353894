"""Operations as data: what was asked for, by whom, the steps of each runbook, and what has been done of them.

Nothing here acts. The plan that a dry run prints, that Airflow's tasks carry out and that tests take their kill
points from is the one list that ``plan`` returns; ``engine.py`` has the body of each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from streamops.definitions import JobName, Param, SnapshotName, SourceName, VersionName
from streamops.errors import NotFoundError
from streamops.records import JobRecord, now

Runbook = Literal["deploy_job", "start_job", "snapshot_job", "cancel_job", "upgrade_job"]
RUNBOOKS: tuple[str, ...] = get_args(Runbook)
OperationState = Literal["running", "failed", "undone", "aborted", "succeeded"]
OVER: frozenset[str] = frozenset({"undone", "aborted", "succeeded"})


class Request(BaseModel):
    """What an operator asks for. Refuses a field that its runbook would ignore silently."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runbook: Runbook
    job: JobName
    version: VersionName | None = None  # deploy, upgrade: the published version
    snapshot: SnapshotName | None = None  # snapshot, upgrade: the name to give; default: made from time and id
    from_snapshot: str | None = Field(None, pattern=r"^([a-z0-9][a-z0-9-]{0,62}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    from_scratch: bool = False  # deploy: with empty state although there is state to start from
    cancel: bool = False  # snapshot: stop the job first, and leave it stopped
    fork: bool = False  # deploy: the snapshot may be another job's
    params: dict[str, Param] = {}
    topics: dict[SourceName, str] = {}
    healthy_timeout_s: int = Field(180, ge=10, le=3600)
    stop_timeout_s: int = Field(60, ge=5, le=3600)
    standby: bool = True  # upgrade: warm the new driver up before the old one stops

    @model_validator(mode="after")
    def _complete(self) -> Request:
        if self.runbook in ("deploy_job", "upgrade_job") and self.version is None:
            raise ValueError(f"version: {self.runbook} needs a published version")
        if self.from_snapshot and self.from_scratch:
            raise ValueError("from_snapshot, from_scratch: choose one; a start from scratch has no snapshot")
        if (self.from_snapshot or self.from_scratch or self.fork) and self.runbook != "deploy_job":
            raise ValueError("from_snapshot, from_scratch, fork: only deploy_job has these")
        if self.fork and not self.from_snapshot:
            raise ValueError("fork: needs from_snapshot, the other job's snapshot as JOB/NAME")
        if self.from_snapshot and ".." in self.from_snapshot:
            raise ValueError("from_snapshot: a name has no '..' in it")
        return self

    def source_snapshot(self) -> tuple[str, str] | None:
        """The snapshot to start from, as job and name."""
        if not self.from_snapshot:
            return None
        job, _, name = self.from_snapshot.rpartition("/")
        return job or self.job, name


class Owner(BaseModel):
    """Who holds an operation: a DAG run, or a process outside Airflow."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    kind: Literal["airflow", "cli"]
    dag_id: str = ""
    run_id: str = ""
    user: str = ""

    def label(self) -> str:
        """As shown to people."""
        where = f"DAG run {self.dag_id}/{self.run_id}" if self.kind == "airflow" else f"command line {self.run_id}"
        return f"{where} of {self.user}" if self.user else where


class StepRecord(BaseModel):
    """One step of one operation. ``started`` is written before the side effect, ``finished`` after it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    started: datetime
    finished: datetime | None = None
    tries: int = 1
    facts: dict[str, Any] = {}

    @property
    def seconds(self) -> float | None:
        """From the first start to the end."""
        return (self.finished - self.started).total_seconds() if self.finished else None


class Operation(BaseModel):
    """One execution of a runbook on a job: the only memory that its tasks share."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    request: Request
    owner: Owner
    state: OperationState = "running"
    reason: str = ""
    created: datetime
    updated: datetime
    steps: dict[str, StepRecord] = {}
    undo: dict[str, StepRecord] = {}  # the steps of taking it back, by name
    before: JobRecord | None = None  # the job record when the operation began

    @property
    def job(self) -> str:
        """The job that is operated on."""
        return self.request.job

    def started(self, step: str) -> bool:
        """Whether the step may have had an effect."""
        return step in self.steps

    def done(self, step: str) -> bool:
        """Whether the step is recorded as done."""
        return step in self.steps and self.steps[step].finished is not None

    def facts(self, step: str) -> dict[str, Any]:
        """What the step reported; empty before it began."""
        return self.steps[step].facts if step in self.steps else {}

    def at(self) -> str:
        """The step that is under way or comes next; empty at the end."""
        return next((step.name for step in plan(self.request.runbook) if not self.done(step.name)), "")

    def with_step(self, name: str, record: StepRecord, *, undo: bool = False) -> Operation:
        """A copy in which the step is as given."""
        which = "undo" if undo else "steps"
        return self.model_copy(update={which: {**getattr(self, which), name: record}, "updated": now()})


@dataclass(frozen=True)
class Step:
    """One recorded step. Consecutive steps of the same ``task`` run in one Airflow task."""

    name: str
    task: str
    title: str
    waits: bool = False  # waits for something outside: a trigger may do the waiting, see Engine.poll


_CHECK = Step("check", "check", "Check the request against the job, its versions and snapshots")
_SUBMIT = Step("submit", "submit_driver", "Submit the driver to the cluster, supervised by the master")
_HEALTHY = Step("healthy", "wait_healthy", "Wait until the driver holds the lease and every stage works", waits=True)
_FINISH = Step("finish", "finish", "Write the receipt and close the operation")

_PLANS: dict[str, tuple[Step, ...]] = {
    "deploy_job": (
        _CHECK,
        Step("reserve", "prepare", "Record the deployment, bring its state in place, name the launch that may write"),
        _SUBMIT,
        _HEALTHY,
        _FINISH,
    ),
    "start_job": (
        _CHECK,
        Step("reserve", "prepare", "Name a new launch of the same deployment"),
        _SUBMIT,
        _HEALTHY,
        _FINISH,
    ),
    "snapshot_job": (
        _CHECK,
        Step("request_stop", "switch", "Ask the driver to stop at a batch boundary (only with cancel)"),
        Step("await_stop", "switch", "Wait until it has stopped (only with cancel)"),
        Step("export", "switch", "Copy the last committed batch of every stage"),
        Step("commit_manifest", "switch", "Write the manifest: from here on the snapshot exists"),
        _FINISH,
    ),
    "cancel_job": (
        _CHECK,
        Step("request_stop", "switch", "Ask the driver to stop at a batch boundary"),
        Step("await_stop", "switch", "Wait until it has stopped"),
        _FINISH,
    ),
    "upgrade_job": (
        _CHECK,
        Step("reserve", "prepare", "Number the new deployment and name the launch that will warm up beside the old"),
        Step("submit", "submit_driver", "Submit the new driver in standby, supervised by the master"),
        Step("standby", "wait_standby", "Wait until the new driver is warm", waits=True),
        Step("request_stop", "switch", "Ask the old driver to stop at a batch boundary"),
        Step("await_stop", "switch", "Wait until it has stopped"),
        Step("export_and_restore", "switch", "Copy its state into the snapshot and into the new deployment"),
        Step("commit_manifest", "switch", "Write the manifest: from here on the snapshot exists"),
        Step("hand_over", "switch", "Give the lease to the new driver and let it run"),
        _HEALTHY,
        Step("recount", "recount", "Recompute the results from the ledger and compare"),
        _FINISH,
    ),
}

# Run whatever happened, also when somebody marks the DAG run failed.
TEARDOWNS: dict[str, tuple[str, ...]] = {
    "deploy_job": ("release_lock",),
    "start_job": ("release_lock",),
    "snapshot_job": ("release_lock",),
    "cancel_job": ("release_lock",),
    "upgrade_job": ("restore_old_version", "release_lock"),
}


def plan(runbook: str) -> tuple[Step, ...]:
    """The steps of a runbook, in order.

    Raises:
        NotFoundError: there is no such runbook.
    """
    if runbook not in _PLANS:
        raise NotFoundError(f"There is no runbook {runbook!r}; there are {', '.join(sorted(_PLANS))}.")
    return _PLANS[runbook]


def tasks(runbook: str) -> tuple[str, ...]:
    """The task ids of a runbook, in order, each once."""
    return tuple(dict.fromkeys(step.task for step in plan(runbook)))
