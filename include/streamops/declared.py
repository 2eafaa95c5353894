"""What a file declares: jobs, snapshots and the size of the cluster, one YAML document each.

A document says what shall be, never what to do; ``applying`` finds out what is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from streamops import definitions
from streamops.definitions import JobName, LoggerName, LogLevel, Param, SnapshotName, SourceName, VersionName
from streamops.errors import DefinitionError

MAX_BYTES = 256 * 1024


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DeclaredJob(_Model):
    """A job: what shall run, from which state.

    ``code`` is a directory to publish the version from, relative to the file; without it the version must be
    published. Resources and references to secrets stand in the version's own definition.
    """

    kind: Literal["job"]
    name: JobName
    state: Literal["running", "stopped"] = "running"
    version: VersionName
    code: str | None = None
    initial_snapshot: str | None = Field(None, pattern=r"^([a-z0-9][a-z0-9-]{0,62}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    from_scratch: bool = False
    bucket: str | None = None  # of the installation; named to be sure where state and snapshots go
    params: dict[str, Param] = {}
    topics: dict[SourceName, str] = {}
    addresses: dict[SourceName, str] = {}
    logging: dict[LoggerName, LogLevel] = {}

    @model_validator(mode="after")
    def _one_start(self) -> DeclaredJob:
        if self.initial_snapshot and self.from_scratch:
            raise ValueError("initial_snapshot, from_scratch: choose one; a start from scratch has no snapshot")
        return self


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


Declared = DeclaredJob | DeclaredSnapshot | DeclaredCluster
_ANY: TypeAdapter[Declared] = TypeAdapter(Annotated[Declared, Field(discriminator="kind")])


def parse(text: str, name: str = "file") -> tuple[Declared, ...]:
    """All documents of a file, in order.

    Raises:
        DefinitionError: names the document and each wrong field.
    """
    if len(text.encode()) > MAX_BYTES:
        raise DefinitionError(f"{name} is larger than {MAX_BYTES} bytes; it declares, it holds no code.")
    try:
        documents: list[Any] = [item for item in yaml.load_all(text, definitions._Loader) if item is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "unknown line"
        raise DefinitionError(f"{name} is not YAML ({where}): {getattr(error, 'problem', error)}.") from None
    if not documents:
        raise DefinitionError(f"{name} declares nothing; write a document with kind: job, snapshot or cluster.")
    found = []
    for number, document in enumerate(documents, 1):
        try:
            found.append(_ANY.validate_python(document))
        except ValidationError as error:
            told = [
                f"{'.'.join(str(part) for part in item['loc'] if part not in ('job', 'snapshot', 'cluster'))}: "
                f"{item['msg'].removeprefix('Value error, ')}"
                for item in error.errors()
            ]
            raise DefinitionError(f"{name}, document {number}: {'; '.join(told)}.") from None
    return tuple(found)


def load(path: Path) -> tuple[Declared, ...]:
    """All documents of a file. Raises DefinitionError."""
    try:
        return parse(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{path} cannot be read as text: {error}.") from None
