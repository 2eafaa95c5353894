"""Operations as data: what was asked for, by whom, and what has been done of it. Nothing here acts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from streamops.model.discretion import STORED
from streamops.model.errors import NameRefusedError, NotFoundError
from streamops.model.names import scope
from streamops.model.owner import Owner
from streamops.model.records import JobRecord, now
from streamops.model.stored import Part, Stored
from streamops.operations.facts import Facts

OperationState = Literal["running", "failed", "undone", "aborted", "succeeded"]
OVER: frozenset[str] = frozenset({"undone", "aborted", "succeeded"})

F = TypeVar("F", bound=Facts)


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


Scope = Annotated[str, AfterValidator(_scope)]


class Request(BaseModel):
    """What an operator asks for. Each runbook has a model of its own, which refuses a field that it does not know.

    A field's title, description and limits are what the form in Airflow and the refusals are made from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    kinds: ClassVar[dict[str, type[Request]]] = {}  # by runbook

    runbook: str
    job: Scope
    _unknown: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def chosen(self) -> dict[str, Any]:
        """The fields that are not left as they are by default, each with its whole value."""
        return self.model_dump(mode="json", include={*self.model_dump(exclude_defaults=True)})

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if not cls.model_fields["runbook"].is_required():
            cls.kinds[cls.model_fields["runbook"].default] = cls

    @classmethod
    def recorded(cls, given: Any) -> Any:
        """The request that an operation was recorded with. Fields of another release are kept, and have no effect.

        Raises:
            NotFoundError: there is no such runbook.
        """
        if not isinstance(given, Mapping):
            return given
        runbook = str(given.get("runbook"))
        if runbook not in cls.kinds:
            raise NotFoundError(f"There is no runbook {runbook!r}; there are {', '.join(sorted(cls.kinds))}.")
        kind = cls.kinds[runbook]
        known = {name: value for name, value in given.items() if name in kind.model_fields}
        request = kind.model_validate(known, context=STORED)
        request._unknown.update({name: value for name, value in given.items() if name not in kind.model_fields})
        return request

    @model_serializer(mode="wrap")
    def _kept(self, known: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**known(self), **self._unknown}

    @property
    def settles(self) -> str | None:
        """The operation that it settles, which then is not settled before it begins."""
        return None

    def source_snapshot(self) -> tuple[str, str] | None:
        """The snapshot to start from, as job and name, if it names one of a job that may be another."""
        return None


class StepRecord(Part):
    """One step of one operation. ``started`` is written before the side effect, ``finished`` after it."""

    started: datetime
    finished: datetime | None = None
    tries: int = 1
    facts: dict[str, Any] = {}  # as the step's model of facts wrote them

    @property
    def seconds(self) -> float | None:
        """From the first start to the end."""
        return (self.finished - self.started).total_seconds() if self.finished else None


class Operation(Stored):
    """One execution of a runbook on a job: the only memory that its tasks share."""

    id: str
    request: Annotated[SerializeAsAny[Request], BeforeValidator(Request.recorded)]
    owner: Owner
    state: OperationState = "running"
    reason: str = ""
    created: datetime
    updated: datetime
    steps: dict[str, StepRecord] = {}
    undo: dict[str, StepRecord] = {}  # the steps of undoing it, by name
    before: JobRecord | None = None  # the job record when the operation began
    fence: int = 0  # of the process that works on it; one with a lower number was overtaken

    @property
    def job(self) -> str:
        """The job that is operated on, or CLUSTER."""
        return self.request.job

    @property
    def snapshot(self) -> str:
        """The name of the snapshot that it takes: the one asked for, or one that follows from the operation."""
        return getattr(self.request, "snapshot", None) or f"auto-{self.id}"[:128]

    def started(self, step: str) -> bool:
        """Whether the step may have had an effect."""
        return step in self.steps

    def done(self, step: str) -> bool:
        """Whether the step is recorded as done."""
        return step in self.steps and self.steps[step].finished is not None

    def facts(self, step: str) -> dict[str, Any]:
        """What the step reported, as recorded; empty before it ended."""
        return self.steps[step].facts if step in self.steps else {}

    def reported(self, step: str, kind: type[F]) -> F:
        """What the step reported; the defaults of ``kind`` before it ended."""
        return kind.model_validate(self.facts(step))

    def with_step(self, name: str, record: StepRecord, *, undo: bool = False) -> Operation:
        """A copy in which the step is as given."""
        which = "undo" if undo else "steps"
        return self.model_copy(update={which: {**getattr(self, which), name: record}, "updated": now()})
