"""The fields that requests of several runbooks share, with the titles and limits that forms are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from streamops.model.definitions import (
    OF_DEPLOYMENT,
    Cores,
    JobName,
    LibraryReference,
    LoggerName,
    LogLevel,
    Memory,
    NodeName,
    Param,
    Place,
    SnapshotName,
    SourceName,
    StageName,
    VersionName,
)
from streamops.operations.operation import Request

AnyVersion = Annotated[VersionName, Field(title="Version", description="The published version to run.")]
NewSnapshot = Annotated[
    SnapshotName | None,
    Field(
        title="Snapshot name",
        description="A new name, never used before for this job; if left empty, one is made from the operation's id.",
    ),
]
AcceptLoss = Annotated[
    tuple[StageName, ...],
    Field(
        title="Accept loss of state",
        description="Stages whose state may be lost; the log of check names those that need it.",
    ),
]
Params = Annotated[
    dict[str, Param],
    Field(title="Params", description="Values that override the definition's.", examples=[{"window": "5 minutes"}]),
]
Topics = Annotated[
    dict[SourceName, str],
    Field(title="Topics", description="Other topics for sources to read.", examples=[{"trades": "trades-test"}]),
]
Addresses = Annotated[
    dict[SourceName, Place],
    Field(
        title="Addresses", description="Other addresses for sources that are not topics.", examples=[{"alpha": "/data"}]
    ),
]
StartAt = Annotated[
    dict[SourceName, str],
    Field(
        title="Start at",
        description="Where a source begins in a topic that its stages have not read before: earliest, latest, or an "
        "offset for each partition.",
        examples=[{"trades": "0:120,1:340"}],
    ),
]
Library = Annotated[
    LibraryReference | None,
    Field(title="Shared library", description="LIBRARY/VERSION; if left empty, the version that the job has now."),
]
OtherCores = Annotated[
    Cores | None,
    Field(title="Cores", description="The most that its executors use together; if left empty, as the job has now."),
]
ExecutorMemory = Annotated[
    Memory | None,
    Field(title="Executor memory", description="Of each executor, like 800m or 2g; if left empty, as the job has now."),
]
DriverMemory = Annotated[
    Memory | None,
    Field(title="Driver memory", description="Of its driver, like 800m or 2g; if left empty, as the job has now."),
]
Logging = Annotated[
    dict[LoggerName, LogLevel],
    Field(title="Log levels", description="Minimum level by logger.", examples=[{"source.beta": "DEBUG"}]),
]
Standby = Annotated[
    bool,
    Field(
        title="Warm standby",
        description="Start the new driver before the current one stops, for the shortest gap; needs free cores on "
        "the cluster, and falls back to a cold start without them.",
    ),
]
HealthyTimeout = Annotated[
    int,
    Field(
        ge=10,
        le=3600,
        title="Healthy within (s)",
        description="The run fails if the job is not healthy by then.",
    ),
]
IfExists = Annotated[
    bool,
    Field(title="If it exists", description="If no such job was deployed, succeed without doing anything."),
]
StopTimeout = Annotated[
    int,
    Field(ge=5, le=3600, title="Stopped within (s)", description="How long the batch in flight may take."),
]
MembersTimeout = Annotated[
    int,
    Field(ge=10, le=3600, title="Members within (s)", description="How long new workers may take to join."),
]
Recount = Annotated[
    bool,
    Field(title="Recount", description="Afterwards, recompute the results from the topic and compare them."),
]
CatchUp = Annotated[
    int,
    Field(
        ge=0,
        le=3600,
        title="Wait for catching up (s)",
        description="How long the recount waits for the reprocessing.",
    ),
]
NodeNames = Annotated[
    tuple[NodeName, ...],
    Field(title="Nodes", description="Those that join or leave; if left empty, those with the fewest drivers leave."),
]


class JobRequest(Request):
    """About one job."""

    job: Annotated[JobName, Field(title="Job", description="The job to operate on.")]


class ClusterRequest(Request):
    """About the cluster."""

    job: Literal["_cluster"] = "_cluster"  # CLUSTER


class Stops(Request):
    """Stops drivers."""

    stop_timeout_s: StopTimeout = 60


class Starts(Request):
    """Starts drivers."""

    healthy_timeout_s: HealthyTimeout = 180


class PartOfCluster(Starts, Stops):
    """What an operation on the cluster asks of one job; never stored."""

    snapshot: str | None = None


class NewVersion(JobRequest, Starts):
    """Brings a published version of a job into service."""

    version: AnyVersion
    params: Params = Field(default_factory=dict)
    topics: Topics = Field(default_factory=dict)
    addresses: Addresses = Field(default_factory=dict)  # of sources that are not topics: a directory or a URL
    start_at: StartAt = Field(default_factory=dict)
    library: Library = None
    logging: Logging = Field(default_factory=dict)  # levels over those of the definition
    cores: OtherCores = None
    executor_memory: ExecutorMemory = None
    driver_memory: DriverMemory = None
    accept_loss: AcceptLoss = ()  # each accepted explicitly
    code_of: Annotated[
        JobName | None,
        Field(title="Code of", description="Another job whose published version it is: its code runs under this name."),
    ] = None
    measurement_prefix: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$",
            title="Measurement prefix",
            description="With the code of another job: the prefix of its measurement names here.",
        ),
    ] = None

    @model_validator(mode="after")
    def _another_name(self) -> NewVersion:
        if self.code_of == self.job:
            raise ValueError("code_of: that is the job itself; name another one, or leave it out")
        if self.measurement_prefix and not self.code_of:
            raise ValueError("measurement_prefix: needs code_of; a version has the measurements of its definition")
        return self

    @property
    def places(self) -> dict[str, str]:
        """Topics and addresses that are asked for, by source."""
        return {**self.topics, **self.addresses}

    @property
    def resources(self) -> dict[str, Param]:
        """Those that are asked for, over those of the definition."""
        return self.model_dump(include={*OF_DEPLOYMENT}, exclude_none=True)


class GoingBack(JobRequest, Starts, Stops):
    """Continues a job from one of its snapshots."""

    snapshot: NewSnapshot = None
    standby: Standby = True
    catch_up_s: CatchUp = 300
    recount: Recount = True
    healthy_timeout_s: Annotated[
        HealthyTimeout, Field(description="If it is not healthy by then, what ran before runs again.")
    ] = 180
    stop_timeout_s: Annotated[
        StopTimeout,
        Field(description="The time for the batch in flight; a driver that takes longer loses the lease."),
    ] = 60


def fields(request: type[Request]) -> dict[str, dict[str, Any]]:
    """What a person may fill in, by name: the JSON schema of each field, and whether it is ``required``.

    A value that may also be null has one ``type``, a list. What a request fixes, like its runbook, is not asked.
    """
    schema = request.model_json_schema()
    required = schema.get("required", ())
    return {
        name: {**_one(field), "required": name in required}
        for name, field in schema["properties"].items()
        if "const" not in field
    }


def _one(field: dict[str, Any]) -> dict[str, Any]:
    choices: Sequence[dict[str, Any]] = field.get("anyOf", ())
    merged = {key: value for choice in choices if choice.get("type") != "null" for key, value in choice.items()}
    rest = {key: value for key, value in field.items() if key != "anyOf"}
    return {**merged, **rest, **({"type": ["null", merged["type"]]} if merged else {})}
