"""Points in InfluxDB: written as line protocol, read back as a stream of rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import urllib3
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write.point import Point as LinePoint
from influxdb_client.client.write_api import SYNCHRONOUS
from influxdb_client.domain.write_precision import WritePrecision
from influxdb_client.rest import ApiException

from streamops.model.definitions import InfluxSink
from streamops.model.errors import DataRefusedError, StreamOpsError, UnreachableError
from streamops.model.values import as_answered
from streamops.settings import Settings

Value = int | float | str
Point = tuple[int, tuple[str, ...], Value]  # time in epoch ms, tag values, value
Asked = str | int | datetime | timedelta | Sequence[str]  # what a name in a query stands for

_WRITE = "a write"
_ABOUT_DATA = (400, 422)  # cannot be read; another type than the field has, or outside the retention
LONGEST_TAG = 64 * 1024 - 1  # bytes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def line(measurement: str, tags: Mapping[str, str], fields: Mapping[str, Value | str], time_ms: int) -> str:
    """One point as line protocol, in milliseconds; empty when it has no field with a finite value.

    Integers stay integers, empty tags are left out.
    """
    point = LinePoint(measurement)  # type: ignore[no-untyped-call]
    point.time(time_ms, WritePrecision.MS)  # type: ignore[no-untyped-call]
    for key, text in tags.items():
        if text:
            point.tag(key, text)  # type: ignore[no-untyped-call]
    for field, value in fields.items():
        point.field(field, value)  # type: ignore[no-untyped-call]
    return str(point.to_line_protocol())  # type: ignore[no-untyped-call]


def obstacle(tags: Mapping[str, str], fields: Mapping[str, Value | str]) -> str:
    """Why a point cannot be written as line protocol; empty when it can.

    A tag's value cannot end in a backslash there: it would escape what follows, and be read as part of another value.
    A tab or a line break becomes a backslash and a letter in the client, and is not read back as it was.
    https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/#special-characters
    """
    for key, text in tags.items():
        if text.endswith("\\"):
            return f"tag {key} ends in a backslash, which line protocol cannot express"
        if set("\t\n\r") & set(text):
            return f"tag {key} holds a tab or a line break, which would be written as another text"
        if len(text.encode(errors="replace")) > LONGEST_TAG:
            return f"tag {key} is longer than {LONGEST_TAG:,} bytes"
    for field, value in fields.items():
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            return f"field {field} is an integer beyond 64 bits"
    return ""


def ping(settings: Settings) -> None:
    """Make sure that InfluxDB answers at all. Raises UnreachableError."""
    with closing(Points(settings)) as points:
        points.ping()


def write(settings: Settings, lines: Iterable[str]) -> None:
    """Write line protocol once. Raises what ``Points.write_lines`` raises."""
    with closing(Points(settings)) as points:
        points.write_lines(lines)


def read(settings: Settings, sink: InfluxSink, start_ms: int, end_ms: int) -> list[dict[str, Any]]:
    """The columns of each point of a sink with ``start_ms <= time < end_ms``: its time, tags and fields.

    Raises what ``Points.read`` raises.
    """
    found: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
    with closing(Points(settings, timeout_s=60)) as points:
        for time_ms, (*tags, field), value in points.read(
            sink.measurement, start_ms, end_ms, (*sink.tags, "_field"), field=""
        ):
            known = {sink.time: time_ms, **dict(zip(sink.tags, tags, strict=True))}
            found.setdefault((time_ms, tuple(tags)), known)[field] = value
    return list(found.values())


class Points:
    """The installation's bucket.

    Raises (every method): UnreachableError when InfluxDB does not answer or asks to come back later, which a
    retry may cure; StreamOpsError when it refuses, which no retry cures.
    """

    def __init__(self, settings: Settings, timeout_s: float = 10.0) -> None:
        self.url, self.org, self.bucket = settings.influx_url, settings.influx_org, settings.influx_bucket
        self._client = InfluxDBClient(
            url=settings.influx_url,
            token=settings.influx_token.get_secret_value(),
            org=settings.influx_org,
            timeout=int(timeout_s * 1000),
            enable_gzip=True,
            retries=urllib3.Retry(0),
        )
        self._writer = self._client.write_api(write_options=SYNCHRONOUS)

    def close(self) -> None:
        """Close the connections."""
        self._writer.close()  # type: ignore[no-untyped-call]
        self._client.close()  # type: ignore[no-untyped-call]

    def ping(self) -> None:
        """Make sure that InfluxDB answers at all."""
        with self._asking("a ping"):
            self._client.api_client.call_api("/ping", "GET", _preload_content=False)  # type: ignore[no-untyped-call]

    def write_lines(self, lines: bytes | Iterable[str]) -> None:
        """Write line protocol with times in milliseconds; a point that is there already is overwritten.

        Raises:
            DataRefusedError: a line is not as InfluxDB takes it; which of the others were written is not known.
        """
        body = lines if isinstance(lines, bytes) else "\n".join(lines).encode()
        if not body:
            return
        with self._asking(_WRITE):
            self._writer.write(self.bucket, self.org, body, write_precision="ms")  # type: ignore[arg-type]

    def read(
        self, measurement: str, start_ms: int, end_ms: int, tags: Sequence[str] = (), field: str = "value"
    ) -> Iterator[Point]:
        """Points with ``start_ms <= time < end_ms``, series by series; the order of series is the server's.

        A point with a tag that is not in ``tags`` still comes, without that tag: as a second point for the
        same time, so that a recount sees it.

        Args:
            tags: and other columns, such as ``_field``.
            field: empty for all.
        """
        which = "r._measurement == measurement" + (" and r._field == field" if field else "")
        query = (
            "from(bucket: bucket) |> range(start: start, stop: stop)"
            f" |> filter(fn: (r) => {which}) |> keep(columns: columns)"
        )
        asked = {"measurement": measurement, "field": field, "columns": ["_time", "_value", *tags]}
        if end_ms <= start_ms:
            return
        with self._asking("a query"):
            answer = self._client.query_api().query_raw(query, self.org, params=self._given(asked, start_ms, end_ms))
            yield from _rows(io.TextIOWrapper(io.BufferedReader(_Stream(answer)), encoding="utf-8", newline=""), tags)

    def records(
        self,
        query: str,
        asked: Mapping[str, Asked] | None = None,
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> list[dict[str, Any]]:
        """The rows of any Flux query, with their columns; for answers that are small.

        Args:
            query: a text that no value is part of: what varies is a name in it.
            asked: what each name stands for, beside ``bucket``; InfluxDB is sent the values beside the query and never
                reads one as Flux.
            start_ms: what ``start`` stands for, if the query has it.
            end_ms: what ``stop`` stands for.
        """
        with self._asking("a query"):
            tables = self._client.query_api().query(query, self.org, params=self._given(asked or {}, start_ms, end_ms))
        return [record.values for table in tables for record in table.records]

    def _given(self, asked: Mapping[str, Asked], start_ms: int | None, end_ms: int | None) -> dict[str, Asked]:
        times = {"start": start_ms, "stop": end_ms}
        return {"bucket": self.bucket, **asked} | {name: _moment(at) for name, at in times.items() if at is not None}

    def delete(self, measurement: str, start_ms: int, end_ms: int, tags: Mapping[str, str] | None = None) -> None:
        """Delete points with ``start_ms <= time < end_ms`` that carry these tags."""
        # A predicate is no Flux and knows no parameters, and of JSON's escapes only those of quotes and backslashes.
        where = " AND ".join(
            f"{key}={json.dumps(value, ensure_ascii=False)}"
            for key, value in {"_measurement": measurement, **(tags or {})}.items()
        )
        with self._asking("a deletion"):
            # The server's end is inclusive, in nanoseconds.
            self._client.delete_api().delete(
                _moment(start_ms), _moment(end_ms) - timedelta(microseconds=1), where, self.bucket, self.org
            )

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """Let the client's errors be ours; ``what`` is asked for."""
        try:
            yield
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            raise self._translated(error, what) from error

    def _translated(self, error: Exception, what: str) -> StreamOpsError:
        status = getattr(error, "status", None)
        if isinstance(error, ApiException) and status and 400 <= status < 500 and status not in (408, 429):
            message = str(getattr(error, "message", None) or error.reason or "")[:200]
            kind = DataRefusedError if status in _ABOUT_DATA and what == _WRITE else StreamOpsError
            return kind(
                f"InfluxDB at {self.url} refused {what} on bucket {self.bucket} ({status} {message}); "
                "check bucket, token and data."
            )
        return UnreachableError(
            f"InfluxDB at {self.url} did not answer {what} ({status or type(error).__name__}); "
            "check that it runs ('make status') and retry."
        )


class _Stream(io.RawIOBase):
    """urllib3's answer as a file that decompresses on the way."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        data = self._answer.read(len(target), decode_content=True)
        target[: len(data)] = data
        return len(data)


_VALUES: dict[str, Callable[[str], Any]] = {
    "long": int, "unsignedLong": int, "string": as_answered, "boolean": "true".__eq__,
}  # fmt: skip


def _rows(text: Iterable[str], tags: Sequence[str]) -> Iterator[Point]:
    """Rows of annotated or plain CSV; every table may come with a header of its own."""
    header: dict[str, int] = {}
    times: dict[str, int] = {}
    read: Callable[[str], Any] = float
    fresh = True
    for row in csv.reader(text):
        if not row or row[0].startswith("#"):
            if row and row[0] == "#datatype":
                kinds = row
                fresh = True
            elif not row:
                fresh = True
            continue
        if fresh:
            header = {name: index for index, name in enumerate(row)}
            if "error" in header:
                raise StreamOpsError(f"InfluxDB could not run the query ({row}); check its log.")
            when, what = header["_time"], header["_value"]
            places = [header.get(tag) for tag in tags]
            read = _VALUES.get(kinds[what], float)
            fresh = False
            continue
        stamp = row[when]
        if stamp not in times:
            times[stamp] = (datetime.fromisoformat(stamp) - _EPOCH) // _MILLISECOND
        names = tuple("" if place is None else row[place] for place in places)
        yield times[stamp], names, read(row[what])


def _moment(time_ms: int) -> datetime:
    return _EPOCH + time_ms * _MILLISECOND
