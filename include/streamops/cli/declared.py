"""What a file declares: topics, jobs, snapshots and the size of the cluster, one YAML document each.

A document says what shall be, never what to do; ``applying`` finds out what is missing.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from streamops.model import definitions
from streamops.model.definitions import (
    Cores,
    JobName,
    LibraryReference,
    LoggerName,
    LogLevel,
    Memory,
    Param,
    SnapshotName,
    SnapshotReference,
    SourceName,
    TopicName,
    VersionName,
)
from streamops.model.errors import DefinitionError
from streamops.model.wording import wrong_fields
from streamops.versions.code import BUCKET


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeclaredResources(_Model):
    """What a job may use; what is left out is as it has it now, at first as its version's definition says."""

    cores: Cores | None = None
    executor_memory: Memory | None = None
    driver_memory: Memory | None = None

    @property
    def given(self) -> dict[str, Param]:
        """Those that stand there."""
        return self.model_dump(exclude_none=True)


class DeclaredJob(_Model):
    """A job: what shall run, from which state.

    ``code`` is what to publish the version from: a directory, relative to the file, or ``s3://BUCKET/DIRECTORY`` with
    the credentials that ``secret`` names; without it the version must be published. References to other secrets stand
    in the version's own definition.
    """

    kind: Literal["job"]
    name: JobName
    state: Literal["running", "stopped"] = "running"
    version: VersionName
    code: str | None = None
    secret: Annotated[str | None, Field(pattern=r"^[a-z][a-z0-9-]{0,62}$")] = None
    initial_snapshot: SnapshotReference | None = None
    from_scratch: bool = False
    bucket: str | None = None  # of the installation; named to be sure where state and snapshots go
    params: dict[str, Param] = {}
    topics: dict[SourceName, str] = {}
    addresses: dict[SourceName, str] = {}
    start_at: dict[SourceName, str] = {}  # of a source that continues in another topic; used at that upgrade only
    logging: dict[LoggerName, LogLevel] = {}
    resources: DeclaredResources = DeclaredResources()
    library: LibraryReference | None = None  # LIBRARY/VERSION; left out, the one that the job has stays
    create_topics: int | None = None  # partitions of topics that are not there at the first deploy, which makes them
    topic_retention_h: int | None = None  # of those topics

    @model_validator(mode="after")
    def _one_start(self) -> DeclaredJob:
        if self.initial_snapshot and self.from_scratch:
            raise ValueError("initial_snapshot, from_scratch: choose one; a start from scratch has no snapshot")
        return self

    @model_validator(mode="after")
    def _secret_of_a_bucket(self) -> DeclaredJob:
        if bool(self.secret) != bool(self.code and self.code.startswith(BUCKET)):
            raise ValueError(f"secret: goes with code from {BUCKET}BUCKET/DIRECTORY, which needs one")
        return self


class DeclaredTopic(_Model):
    """A topic that shall exist, with so many partitions; ``retention_h`` is for how long it keeps an event."""

    kind: Literal["topic"]
    name: TopicName
    partitions: Annotated[int, Field(ge=1, le=1000)] = 1
    retention_h: Annotated[int | None, Field(ge=1)] = None  # left out, as the broker says


class DeclaredSnapshot(_Model):
    """A snapshot that shall exist; ``cancel`` says that the job stops when it is taken."""

    kind: Literal["snapshot"]
    name: SnapshotName
    job: JobName
    cancel: bool = False


class DeclaredCluster(_Model):
    """How many members the cluster shall have."""

    kind: Literal["cluster"]
    size: Annotated[int, Field(ge=1, le=1000)]


Declared = DeclaredTopic | DeclaredJob | DeclaredSnapshot | DeclaredCluster
KINDS = ("topic", "job", "snapshot", "cluster")
_ANY: TypeAdapter[Declared] = TypeAdapter(Annotated[Declared, Field(discriminator="kind")])


def parse(text: str, name: str = "file") -> tuple[Declared, ...]:
    """All documents of a file, in order.

    Raises:
        DefinitionError: names the document and each wrong field.
    """
    documents = definitions.documents(text, name)
    if not documents:
        raise DefinitionError(f"{name} declares nothing; write a document with kind: {', '.join(KINDS)}.")
    found = []
    for number, document in enumerate(documents, 1):
        try:
            found.append(_ANY.validate_python(document))
        except ValidationError as error:
            told = wrong_fields(error, "the document", unwritten=KINDS)
            raise DefinitionError(f"{name}, document {number}: {told}.") from None
    return tuple(found)
