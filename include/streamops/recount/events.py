"""Records of a source as columns of events, with those left out that the runner rejects before the watermark.

Rejected are values that are not a JSON object of the source's schema with every column present (*malformed*),
and events dated more than ``max_ahead`` after their record's timestamp (*ahead*). The rules are Spark's
``from_json``, in words of its own: a field of the wrong type is null, except that text takes any value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import numpy as np

from streamops.model.conditions import parse
from streamops.model.definitions import Recount, Source, milliseconds
from streamops.model.errors import DefinitionError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FARTHEST_US = 1 << 62  # 146,000 years: beyond any clock, and safe to add to
_BITS = {"tinyint": 8, "byte": 8, "smallint": 16, "short": 16, "int": 32, "integer": 32, "bigint": 64, "long": 64}
_OTHERS = {
    "string": str,
    "double": float,
    "float": float,
    "real": float,
    "boolean": bool,
    "timestamp": datetime,
    "timestamp_ntz": datetime,
}
_COLUMN = re.compile(r"\s*`?(\w+)`?\s*(?::|\s)\s*(\w+)(?:\s+not\s+null)?\s*", re.IGNORECASE)
_first_value = json.JSONDecoder().raw_decode


@dataclass(frozen=True)
class Events:
    """Accepted events in order. Times in microseconds since the epoch; columns are lists by name."""

    times: np.ndarray
    partitions: np.ndarray
    offsets: np.ndarray
    columns: dict[str, list[Any]]

    def cut(self, mask: np.ndarray) -> Events:
        """The events that the mask keeps."""
        if mask.all():
            return self
        kept = np.flatnonzero(mask).tolist()
        columns = {name: [values[index] for index in kept] for name, values in self.columns.items()}
        return Events(self.times[mask], self.partitions[mask], self.offsets[mask], columns)


@dataclass
class Firsts:
    """Where the events that were read begin, of which there may have been more before."""

    _times: dict[int, int] = field(default_factory=dict)  # partition -> time of its first event

    def take(self, events: Events) -> None:
        """Note the first event of each partition."""
        for partition in np.unique(events.partitions).tolist():
            if partition not in self._times:
                self._times[partition] = int(events.times[np.argmax(events.partitions == partition)])

    def all_after_us(self, delay_us: int) -> int | None:
        """The time after which all events were read, where one may come so late; None before any event."""
        return max(self._times.values()) + delay_us if self._times else None


@dataclass
class EventReader:
    """Turns a source's records into events and counts what it rejects."""

    source: Source
    malformed: int = 0
    ahead: int = 0
    _types: dict[str, str] = field(init=False)
    _decode: Any = field(init=False)
    _fields: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._types = _schema(self.source.fields)
        if self.source.event_time not in self._types:
            raise DefinitionError("A recount needs the source's event_time to be a column of its schema; name it.")
        self._fields = {name: f"f{number}" for number, name in enumerate(self._types)}
        shape = msgspec.defstruct(
            "Event",
            [(self._fields[name], _type(kind)) for name, kind in self._types.items()],
            rename={inner: name for name, inner in self._fields.items()},
            gc=False,
        )
        self._shape = shape
        self._decode = msgspec.json.Decoder(shape).decode
        self._ahead_us = milliseconds(self.source.max_ahead) * 1000

    def require(self, spec: Recount) -> None:
        """Make sure that the columns which a specification names are there, and numbers where they are added up.

        Raises:
            DefinitionError: names the first that is not.
        """
        named = [*spec.by, *([spec.column] if spec.column else []), *(parse(spec.where).columns if spec.where else ())]
        for column in named:
            if column not in self._types:
                raise DefinitionError(f"recount: the source has no column {column}; it has {', '.join(self._types)}.")
        kind = self._types.get(spec.column or "", "")
        if spec.aggregate in ("average", "sum") and _type(kind) in (str, bool, datetime):
            raise DefinitionError(f"recount: {spec.column} is {kind}, which has no {spec.aggregate}.")

    def read(
        self,
        partitions: Sequence[int],
        offsets: Sequence[int],
        timestamps: Sequence[int],
        values: Sequence[bytes | None],
    ) -> Events:
        """The accepted events among these records."""
        decode = self._decode
        try:
            rows: list[Any] = [decode(value) for value in values]
        except (msgspec.MsgspecError, TypeError, ValueError):
            rows = [self._one(value) for value in values]
        good = np.array([row is not None for row in rows], bool)
        self.malformed += len(rows) - int(good.sum())
        rows = [row for row in rows if row is not None]
        times, dated = self._times(rows)
        self.malformed += len(rows) - int(dated.sum())
        in_time = times <= np.array(timestamps, np.int64)[good] * 1000 + self._ahead_us
        self.ahead += int((dated & ~in_time).sum())
        columns = {name: [getattr(row, inner) for row in rows] for name, inner in self._fields.items()}
        whole = Events(times, np.array(partitions, np.int64)[good], np.array(offsets, np.int64)[good], columns)
        return whole.cut(dated & in_time)

    def _times(self, rows: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Event times in microseconds, and which of them a clock can show."""
        name = self.source.event_time
        assert name is not None
        inner, kind = self._fields[name], self._types[name]
        if kind.startswith("timestamp"):
            found = [(_aware(getattr(row, inner)) - _EPOCH) // _MICROSECOND for row in rows]
            return np.array(found, np.int64), np.ones(len(rows), bool)
        scale = 1000 if self.source.event_time_unit == "milliseconds" else 1_000_000
        if kind in _BITS:
            raw = np.array([getattr(row, inner) for row in rows], np.int64)
            limit = _FARTHEST_US // scale
            return np.clip(raw, -limit, limit) * scale, raw >= -limit
        numbers = np.array([getattr(row, inner) for row in rows], np.float64) * scale
        return np.clip(np.nan_to_num(numbers), -_FARTHEST_US, _FARTHEST_US).astype(np.int64), ~np.isnan(numbers)

    def _one(self, value: bytes | None) -> Any | None:
        """One record the slow way, as leniently as Spark reads it; None if it is malformed."""
        if value is None:
            return None
        try:
            return self._decode(value)
        except (msgspec.MsgspecError, ValueError):
            pass
        try:
            found, _ = _first_value(value.decode("utf-8", "replace").lstrip())
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        row = {inner: _converted(found.get(name), self._types[name]) for name, inner in self._fields.items()}
        return None if any(item is None for item in row.values()) else self._shape(**row)


def _schema(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(","):
        match = _COLUMN.fullmatch(part)
        kind = match[2].lower() if match else ""
        if match is None or (kind not in _BITS and kind not in _OTHERS):
            allowed = ", ".join([*_BITS, *_OTHERS])
            raise DefinitionError(f"A recount cannot read the column {part.strip()!r}; it knows {allowed}.")
        found[match[1]] = kind
    return found


def _type(kind: str) -> Any:
    if kind in _BITS:
        most = 1 << (_BITS[kind] - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    return _OTHERS[kind]


def _converted(value: Any, kind: str) -> Any | None:
    if value is None:
        return None
    if kind == "string":
        return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    number = isinstance(value, int) and not isinstance(value, bool)
    if kind in _BITS:
        return value if number and -(1 << (_BITS[kind] - 1)) <= value < 1 << (_BITS[kind] - 1) else None
    if kind.startswith("timestamp"):
        try:
            return _EPOCH + timedelta(seconds=value) if number else datetime.fromisoformat(value)
        except (ValueError, TypeError, OverflowError):
            return None
    return float(value) if number or isinstance(value, float) else None


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
