"""Fingerprints: what of a stage's query decides whether its state can be continued, as plain data.

Taken at publish by ``streamops_runtime.fingerprint`` from Spark's plan, without starting a query; stored in the
artifact's manifest and in the manifest of each snapshot; compared by ``compatibility``. Expressions are texts in which
names stand for what they were made of, down to the columns of the sources (``trades.price``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

Kind = Literal[
    "aggregation",
    "deduplication",
    "deduplication within watermark",
    "join",
    "transform with state",
    "apply in pandas with state",
    "opaque",  # something stateful, or something over a stream, that is not known here
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Window(_Model):
    """A key that is a window over ``time``. Lengths in microseconds; ``gap`` of a session as Spark writes it."""

    kind: Literal["tumbling", "sliding", "session"]
    time: str
    size_us: int = 0
    slide_us: int = 0
    offset_us: int = 0
    gap: str = ""

    @property
    def overlap(self) -> int:
        """How many of them hold a moment, at most."""
        return -(-self.size_us // self.slide_us) if self.slide_us else 1

    def label(self) -> str:
        """As shown to people."""
        if self.kind == "session":
            return f"session window with gap {self.gap}"
        slide = f" every {length(self.slide_us)}" if self.kind == "sliding" else ""
        offset = f" shifted by {length(self.offset_us)}" if self.offset_us else ""
        return f"{self.kind} window of {length(self.size_us)}{slide}{offset}"


class Key(_Model):
    """What groups, joins or identifies. ``columns`` are the columns of sources that it is made of."""

    text: str
    type: str
    columns: tuple[str, ...] = ()
    window: Window | None = None


class Slot(_Model):
    """One field of an aggregate's buffer. Spark tells some aggregates apart by nullability only."""

    type: str
    nullable: bool


class Aggregate(_Model):
    """An aggregate function with its arguments as ``text``, and the buffer that its state consists of."""

    function: str
    text: str
    buffer: tuple[Slot, ...]

    @property
    def opaque(self) -> bool:
        """Whether the buffer is bytes that only the function itself understands."""
        return any(slot.type == "binary" for slot in self.buffer)


class Variable(_Model):
    """A state variable of ``transformWithState``; ``ttl_ms`` is the time to live of its entries."""

    name: str
    kind: Literal["value", "list", "map"]
    schema_: str
    ttl_ms: int | None = None


class Operator(_Model):
    """One operator with state. ``inputs`` are the conditions and stateless steps before it."""

    kind: Kind
    detail: str = ""  # join type; output and time mode; the name of what is opaque
    keys: tuple[Key, ...] = ()
    aggregates: tuple[Aggregate, ...] = ()
    bounds: tuple[str, ...] = ()  # of a join: the conditions beside equal keys
    rows: tuple[tuple[str, ...], ...] = ()  # of a join: the types of the columns kept of either side
    schema_: str = ""  # of state that is one value a key
    variables: tuple[Variable, ...] | None = None  # None: not known
    inputs: tuple[str, ...] = ()

    @property
    def window(self) -> Window | None:
        """The window among the keys."""
        return next((key.window for key in self.keys if key.window), None)


class Watermark(_Model):
    """An event-time column and how late an event may be."""

    column: str
    delay: str


class Fingerprint(_Model):
    """One stage; ``operators`` in the order from the sources to the result."""

    format: Literal[1] = 1
    spark: str
    output: str
    provider: str
    partitions: int
    sources: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()  # stages of the job, whose results some of the sources are
    params: tuple[str, ...] = ()  # names of the params that the stage's function takes
    watermarks: tuple[Watermark, ...] = ()
    operators: tuple[Operator, ...] = ()
    python: bool = False  # has Python functions, into which a plan does not look

    @property
    def stateful(self) -> bool:
        """Whether anything would be lost without the state."""
        return bool(self.operators)

    @property
    def groups_by(self) -> tuple[Key, ...]:
        """What each row of the result is a group of; empty where the last operator does not group."""
        last = self.operators[-1] if self.operators else None
        return last.keys if last and last.kind == "aggregation" else ()

    def merged(self, made_of: Mapping[str, frozenset[str]], identity: Sequence[str]) -> Key | None:
        """A key whose groups become the same point: nothing that identifies a point is made of it.

        Args:
            made_of: the columns of sources that each column of the result is made of.
            identity: columns of the result that identify a point.
        """
        known = frozenset[str]().union(*(made_of.get(column, frozenset()) for column in identity))
        return next((key for key in self.groups_by if not known.issuperset(key.columns)), None)


def read(stored: Mapping[str, Any], stages: object = None) -> dict[str, Fingerprint | None]:
    """Fingerprints from a manifest; None for a stage whose fingerprint is missing or of another format.

    Args:
        stages: names of the stages that the version has; default: those in ``stored``.
    """
    names = list(stored if stages is None else stages)  # type: ignore[call-overload]
    return {name: _one(stored.get(name)) for name in names}


def _one(value: Any) -> Fingerprint | None:
    if value is None:
        return None
    try:
        return Fingerprint.model_validate(json.loads(value) if isinstance(value, str) else value)
    except (ValidationError, ValueError):
        return None


def length(micros: int) -> str:
    """Microseconds as people say them, like ``10 seconds``."""
    for unit, size in (("day", 86_400_000_000), ("hour", 3_600_000_000), ("minute", 60_000_000), ("second", 1_000_000)):
        if micros and micros % size == 0:
            count = micros // size
            return f"{count} {unit}{'s' if count != 1 else ''}"
    return f"{micros / 1000:g} ms"
