"""Operations as data: what was asked for, by whom, the steps of each runbook, and what has been done of them.

Nothing here acts. The plan that a dry run prints, that Airflow's tasks carry out and that tests take their kill
points from is the one list that ``plan`` returns; ``bodies.py`` names the body of each step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from streamops.model.definitions import (
    LibraryReference,
    LoggerName,
    LogLevel,
    Param,
    SnapshotName,
    SnapshotReference,
    SourceName,
    StageName,
    VersionName,
)
from streamops.model.errors import NameRefusedError, NotFoundError
from streamops.model.names import CLUSTER, scope
from streamops.model.owner import Owner
from streamops.model.records import JobRecord, now

Runbook = Literal[
    "deploy_job",
    "start_job",
    "recover_job",
    "snapshot_job",
    "cancel_job",
    "upgrade_job",
    "rollback_job",
    "restore_job",
    "delete_job",
    "shutdown_cluster",
    "restart_cluster",
    "scale_cluster",
]
RUNBOOKS: tuple[str, ...] = tuple(name for name in get_args(Runbook) if name != "recover_job")  # that have a DAG
OperationState = Literal["running", "failed", "undone", "aborted", "succeeded"]
CLUSTER_RUNBOOKS = frozenset({"shutdown_cluster", "restart_cluster", "scale_cluster"})
OVER: frozenset[str] = frozenset({"undone", "aborted", "succeeded"})
GOING_BACK = ("rollback_job", "restore_job")  # continue from an earlier snapshot of the job
LEAVE_RUNNING = ("upgrade_job", *GOING_BACK)  # the job is stopped only to run again in the same operation


def operation_id(runbook: str, *of: str) -> str:
    """The id of an operation: readable, a valid name, and always the same for the same origin.

    Args:
        of: what it follows from, such as a DAG and its run; different origins give different ids.
    """
    return f"{runbook}-{hashlib.sha256('/'.join(of).encode()).hexdigest()[:12]}"


def _scope(value: str) -> str:
    try:
        return scope(value)
    except NameRefusedError as error:
        raise ValueError(str(error)) from None


class Request(BaseModel):
    """What an operator asks for. Refuses a field that its runbook would ignore silently."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runbook: Runbook
    job: Annotated[str, AfterValidator(_scope)]  # or CLUSTER, which runbooks of the cluster need not say
    version: VersionName | None = None  # deploy, upgrade: the published version
    # snapshot, upgrade: the name to give (default: made from the id); rollback, restore: the one to go back to
    snapshot: SnapshotName | None = None
    from_snapshot: SnapshotReference | None = None
    from_scratch: bool = False  # deploy: with empty state although there is state to start from
    cancel: bool = False  # snapshot: stop the job first, and leave it stopped
    fork: bool = False  # deploy: the snapshot may be another job's
    accept_loss: tuple[StageName, ...] = ()  # stages whose state may be lost: an explicit yes for each
    params: dict[str, Param] = {}
    topics: dict[SourceName, str] = {}
    addresses: dict[SourceName, str] = {}  # of sources that are not topics: a directory or a URL
    # LIBRARY/VERSION. deploy, upgrade: of this job; shutdown, restart: of every job that uses the library
    library: LibraryReference | None = None
    logging: dict[LoggerName, LogLevel] = {}  # deploy, upgrade: levels over those of the definition
    healthy_timeout_s: int = Field(180, ge=10, le=3600)
    stop_timeout_s: int = Field(60, ge=5, le=3600)
    standby: bool = True  # upgrade, rollback, restore: warm the new driver up before the old one stops
    probation_s: int = Field(30, ge=0, le=3600)  # upgrade: how long the new version is watched; 0: not at all
    catch_up_s: int = Field(300, ge=0, le=3600)  # rollback, restore: how long the end waits for the reprocessing
    size: int | None = None  # scale: the number of members to reach
    change: int | None = None  # scale: or how many more, or fewer
    nodes: tuple[str, ...] = ()  # scale: and which
    without_missing: bool = False  # restart: go on with the members that came
    members_timeout_s: int = Field(120, ge=10, le=3600)

    @model_validator(mode="before")
    @classmethod
    def _of_the_cluster(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("runbook") in CLUSTER_RUNBOOKS:
            return {"job": CLUSTER, **given}
        return given

    @model_validator(mode="after")
    def _complete(self) -> Request:
        if self.runbook in ("deploy_job", "upgrade_job") and self.version is None:
            raise ValueError(f"version: {self.runbook} needs a published version")
        if self.from_snapshot and self.from_scratch:
            raise ValueError("from_snapshot, from_scratch: choose one; a start from scratch has no snapshot")
        if (self.from_snapshot or self.from_scratch or self.fork) and self.runbook != "deploy_job":
            raise ValueError("from_snapshot, from_scratch, fork: only deploy_job has these")
        if self.accept_loss and self.runbook not in ("deploy_job", "upgrade_job"):
            raise ValueError("accept_loss: only deploy_job and upgrade_job continue another version's state")
        if self.fork and not self.from_snapshot:
            raise ValueError("fork: needs from_snapshot, the other job's snapshot as JOB/NAME")
        if (self.runbook in CLUSTER_RUNBOOKS) != (self.job == CLUSTER):
            raise ValueError(f"job: {self.runbook} {'is about the cluster' if self.job != CLUSTER else 'needs a job'}")
        if (self.size is not None or self.change is not None or self.nodes) and self.runbook != "scale_cluster":
            raise ValueError("size, change, nodes: only scale_cluster has these")
        if self.size is not None and self.change is not None:
            raise ValueError("size, change: choose one")
        if self.library and self.runbook not in ("deploy_job", "upgrade_job", "shutdown_cluster", "restart_cluster"):
            raise ValueError("library: only deploy_job, upgrade_job, shutdown_cluster and restart_cluster have it")
        if self.runbook == "restore_job" and self.snapshot is None:
            raise ValueError("snapshot: restore_job needs the name of a snapshot of this job")
        if self.runbook in GOING_BACK and (self.version or self.params or self.topics):
            raise ValueError(
                "version, params, topics: follow from the snapshot that is gone back to; leave them out, or use "
                "upgrade_job"
            )
        return self

    def limit_s(self, step: str) -> int:
        """How long a waiting step may take, in seconds. Those that end by themselves get time to say so."""
        return self.healthy_timeout_s + {"probation": self.probation_s, "catch_up": self.catch_up_s}.get(step, 0)

    @property
    def places(self) -> dict[str, str]:
        """Topics and addresses that are asked for, by source."""
        return {**self.topics, **self.addresses}

    def source_snapshot(self) -> tuple[str, str] | None:
        """The snapshot to start from, as job and name."""
        if not self.from_snapshot:
            return None
        job, _, name = self.from_snapshot.rpartition("/")
        return job or self.job, name


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
        """The job that is operated on, or CLUSTER."""
        return self.request.job

    @property
    def snapshot(self) -> str:
        """The name of the snapshot that it takes: the one asked for, or one that follows from the operation."""
        return self.request.snapshot or f"auto-{self.id}"[:128]

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
_RECOUNT = Step("recount", "recount", "Recompute the results from the ledger and compare")
_FINISH = Step("finish", "finish", "Write the receipt and close the operation")
_CHECK_CLUSTER = Step("check", "check", "Check the request against the inventory, the members and the running jobs")
_CLAIM = Step("claim", "stop_jobs", "Take the operation lock of every job")
_MEMBERS = Step("members", "wait_members", "Wait until the workers have joined", waits=True)
_RESUME = Step("resume_jobs", "resume_jobs", "Start each of them again, from its own checkpoint")
_JOBS_HEALTHY = Step("jobs_healthy", "wait_jobs", "Wait until each of them holds its lease and works", waits=True)

_GO_BACK = (
    Step("check", "check", "Check the snapshot and the ledger, and say what going back costs"),
    Step("reserve", "prepare", "Number the new deployment and copy the snapshot's state into it"),
    Step("submit", "submit_driver", "Submit the driver in standby, supervised by the master"),
    Step("standby", "wait_standby", "Wait until it is warm", waits=True),
    Step("request_stop", "switch", "Ask the present driver to stop at a batch boundary"),
    Step("await_stop", "switch", "Wait until it has stopped; one that does not answer loses the lease"),
    Step("hand_over", "switch", "Give the lease to the new driver and let it run"),
    _HEALTHY,
    Step("catch_up", "wait_caught_up", "Wait until what is processed again has been processed", waits=True),
    _RECOUNT,
    _FINISH,
)

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
    "recover_job": (
        _CHECK,
        Step("reserve", "prepare", "Name a new launch of the same deployment, because its driver is gone"),
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
    "delete_job": (
        _CHECK,
        Step("request_stop", "switch", "Ask the driver to stop at a batch boundary, if it runs"),
        Step("await_stop", "switch", "Wait until it has stopped"),
        Step("remove", "remove", "Remove checkpoints, snapshots, versions, logs and, last, the job record"),
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
        Step("probation", "probation", "Watch the new version: failures, lag, and that it produces", waits=True),
        _RECOUNT,
        _FINISH,
    ),
    "shutdown_cluster": (
        _CHECK_CLUSTER,
        _CLAIM,
        Step("record_set", "stop_jobs", "Record which jobs run, so that a restart brings back exactly these"),
        Step("stop_jobs", "stop_jobs", "Ask every running job to stop at a batch boundary"),
        Step("await_jobs", "stop_jobs", "Wait until the state of every job is saved"),
        Step("export", "keep_snapshots", "Keep a snapshot of every job (only when a name was given)"),
        Step("stop_workers", "stop_servers", "Stop the workers"),
        Step("stop_master", "stop_servers", "Stop the master"),
        _FINISH,
    ),
    "restart_cluster": (
        _CHECK_CLUSTER,
        Step("start_master", "start_servers", "Start the master, and wait until it takes work"),
        Step("start_nodes", "start_servers", "Start the workers"),
        _MEMBERS,
        Step("claim", "resume_jobs", "Take the operation lock of every job that comes back"),
        _RESUME,
        _JOBS_HEALTHY,
        Step("caught_up", "wait_caught_up", "Wait until every job has caught up with its topics", waits=True),
        _FINISH,
    ),
    "scale_cluster": (
        _CHECK_CLUSTER,
        Step("start_nodes", "start_nodes", "Start workers on spare nodes"),
        _MEMBERS,
        Step("in_use", "wait_in_use", "Wait until jobs that want more cores use the new members", waits=True),
        Step("claim", "hand_over", "Take the operation lock of every job whose driver is on a leaving node"),
        Step("decommission", "hand_over", "Let the leaving workers take nothing new"),
        Step("stop_jobs", "hand_over", "Ask the drivers there to stop at a batch boundary"),
        Step("await_jobs", "hand_over", "Wait until their state is saved"),
        Step("resume_jobs", "hand_over", "Start them on the remaining members, from their own checkpoints"),
        _JOBS_HEALTHY,
        Step("stop_workers", "stop_nodes", "Stop the leaving workers"),
        _FINISH,
    ),
    "rollback_job": _GO_BACK,
    "restore_job": _GO_BACK,
}

# Run whatever happened, also when somebody marks the DAG run failed.
TEARDOWNS: dict[str, tuple[str, ...]] = {
    "deploy_job": ("release_lock",),
    "start_job": ("release_lock",),
    "recover_job": ("release_lock",),
    "snapshot_job": ("release_lock",),
    "cancel_job": ("release_lock",),
    "delete_job": ("release_lock",),
    "upgrade_job": ("restore_old_version", "release_lock"),
    "shutdown_cluster": ("restore_cluster", "release_lock"),
    "restart_cluster": ("release_lock",),
    "scale_cluster": ("restore_cluster", "release_lock"),
    "rollback_job": ("restore_old_version", "release_lock"),
    "restore_job": ("restore_old_version", "release_lock"),
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
