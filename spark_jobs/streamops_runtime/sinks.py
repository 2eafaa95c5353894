"""Where rows go. A sink is ``write(rows, batch_id)``; writing a batch again must do no harm, or be declared."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, Protocol

from pyspark.sql import Row
from pyspark.sql.types import StructType

from streamops.clients.influx import Points, line, obstacle
from streamops.model.definitions import Definition, InfluxSink, LogSink
from streamops.model.errors import DataRefusedError, DefinitionError, UnreachableError
from streamops.model.records import RefusedPoint, now
from streamops.settings import Settings
from streamops.store import quarantine
from streamops.store.object_store import ObjectStore
from streamops_runtime.secrets import influx_settings
from streamops_runtime.shipping import flush_all

WRITE_TIMEOUT_S = 10.0
ROWS = 5000  # of one request
MOST_REFUSED = 500  # of those; where there are more, it is not the rows that are wrong
_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 5.0
_EPOCH = datetime(1970, 1, 1)
_MILLISECOND = timedelta(milliseconds=1)

log = logging.getLogger("sinks")


class Sink(Protocol):
    """Takes the rows of one batch; raises UnreachableError when a retry may help."""

    refused: int  # rows that were put aside

    def write(self, rows: Sequence[Row], batch_id: int) -> None:
        """Write all rows."""
        ...


class Patience:
    """Writes to a sink until it has taken the rows, however long that takes, and says meanwhile what it waits for.

    Args:
        name: of the stage, for the log.
        check: raises LeaseLostError when this driver may not write any more.
        end: set when waiting shall end.
    """

    def __init__(self, name: str, check: Callable[[], None], end: threading.Event) -> None:
        self.waiting_for = ""
        self._name, self._check, self._end = name, check, end

    def write(self, sink: Sink, rows: Sequence[Row], batch_id: int) -> None:
        """Write the rows of one request.

        Raises:
            UnreachableError: the sink is away, and the waiting was ended.
            LeaseLostError, StreamOpsError: as ``check`` and the sink say.
        """
        pause = _PAUSE_S
        while True:
            try:
                self._check()  # before every request: the lease may have moved on meanwhile
                sink.write(rows, batch_id)
                break
            except UnreachableError as error:
                if self._end.is_set():
                    raise
                if not self.waiting_for:
                    log.warning("%s waits: %s", self._name, error)
                    self.waiting_for = f"{error} It waits since {now():%Y-%m-%d %H:%M:%S} UTC and continues by itself."
                self._end.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        if self.waiting_for:
            log.info("%s has written after waiting", self._name)
            self.waiting_for = ""


class InfluxWriter:
    """Points identified by measurement, tags and time: a replayed batch overwrites itself.

    A point that InfluxDB does not take is put aside, and the others are written: one bad row does not stop a job.

    Args:
        aside: keeps refused points. Raises UnreachableError.
        check: raises LeaseLostError when this driver may not write any more; whoever writes has asked it before.
    """

    def __init__(
        self,
        sink: InfluxSink,
        points: Points,
        aside: Callable[[Sequence[RefusedPoint]], None],
        check: Callable[[], None],
    ) -> None:
        self.refused = 0
        self._sink, self._points, self._aside, self._check = sink, points, aside, check

    def write(self, rows: Sequence[Row], batch_id: int) -> None:
        """Write the rows; those without a value have no point.

        Raises:
            DataRefusedError: so many are refused that the sink does not fit the stage.
        """
        lines: list[tuple[str, Point]] = []
        refused: list[RefusedPoint] = []
        for row in rows:
            parts = point(self._sink, row)
            if parts is None:
                continue
            if reason := obstacle(parts.tags, parts.fields):
                refused.append(quarantine.point(self._sink.measurement, *parts, reason))
            elif text := line(self._sink.measurement, *parts):
                lines.append((text, parts))
        self._send(lines, refused)
        if refused:
            log.warning(
                "%s: %s points are put aside, the first because %s",
                self._sink.measurement,
                len(refused),
                refused[0].reason,
            )
            self._aside(refused)
            self.refused += len(refused)

    def _send(self, lines: Sequence[tuple[str, Point]], refused: list[RefusedPoint]) -> None:
        """Write lines; halves of what is refused, until the lines are found that are."""
        try:
            self._points.write_lines([text for text, _ in lines])
        except DataRefusedError as error:
            if len(refused) >= MOST_REFUSED:
                raise
            if len(lines) == 1:
                refused.append(quarantine.point(self._sink.measurement, *lines[0][1], str(error)))
                return
            middle = len(lines) // 2
            for half in (lines[:middle], lines[middle:]):
                self._check()  # hundreds of bad lines are thousands of requests
                self._send(half, refused)


class LogWriter:
    """One line per row; after a crash a batch may be logged again."""

    def __init__(self, stage: str, sink: LogSink) -> None:
        self.refused = 0
        self._log = logging.getLogger(f"sink.{stage}")
        self._format = sink.format

    def write(self, rows: Sequence[Row], batch_id: int) -> None:
        """Log the rows."""
        for row in rows:
            values = row.asDict()
            self._log.info("%s", self._format.format(**{"row": values, "batch_id": batch_id, **values}))
        flush_all()  # before the batch is committed: a line that only this node has could be lost with it


class Point(NamedTuple):
    """What a row becomes in InfluxDB."""

    tags: dict[str, str]
    fields: dict[str, int | float | str]
    time_ms: int


def point(sink: InfluxSink, row: Row) -> Point | None:
    """A row as a point; None when it has no value or no time. Fields without a value are left out."""
    values = {name: row[name] for name in sink.columns(row.__fields__) if row[name] is not None}
    moment = row[sink.time]
    if not values or moment is None:
        return None
    values = {name: float(value) if isinstance(value, Decimal) else value for name, value in values.items()}
    tags = {tag: "" if row[tag] is None else str(row[tag]) for tag in sink.tags}
    return Point(tags, values, epoch_ms(moment))


def epoch_ms(moment: datetime | date | int) -> int:
    """A row's time in milliseconds; the driver's clock zone is UTC, and so are naive times."""
    if isinstance(moment, int):
        return moment
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return (moment - _EPOCH) // _MILLISECOND


def open_sinks(
    settings: Settings, definition: Definition, stage: str, store: ObjectStore, check: Callable[[], None]
) -> list[Sink]:
    """The sinks of a stage.

    Args:
        store: keeps what InfluxDB refuses.
        check: raises LeaseLostError when this driver may not write any more.
    """
    aside = partial(quarantine.put, store, definition.job, stage, definition.version)
    found: list[Sink] = []
    for sink in definition.stages[stage].sinks:
        if sink.influxdb:
            named = influx_settings(settings, sink.influxdb.secret)
            found.append(InfluxWriter(sink.influxdb, Points(named, timeout_s=WRITE_TIMEOUT_S), aside, check))
        elif sink.log:
            found.append(LogWriter(stage, sink.log))
    return found


def check_columns(definition: Definition, stage: str, schema: StructType) -> None:
    """Make sure that a stage's result has the columns its sinks name. Raises DefinitionError."""
    columns: dict[str, Any] = {item.name: item.dataType for item in schema.fields}
    for number, sink in enumerate(definition.stages[stage].sinks):
        if sink.log:
            try:
                sink.log.format.format(**{"row": "", "batch_id": 0, **dict.fromkeys(columns, "")})
            except (KeyError, IndexError, ValueError) as error:
                raise DefinitionError(
                    f"stages.{stage}.sinks.{number}.log.format cannot be filled in ({type(error).__name__} {error}); "
                    f"there is row, batch_id, {', '.join(columns)}."
                ) from None
        if sink.influxdb is None:
            continue
        where = f"stages.{stage}.sinks.{number}.influxdb"
        for name in (*sink.influxdb.tags, *sink.influxdb.columns(columns), sink.influxdb.time):
            if name not in columns:
                raise DefinitionError(f"{where} names column {name}, but {stage} gives {', '.join(columns)}.")
        kind = columns[sink.influxdb.time].simpleString()
        if kind not in ("timestamp", "timestamp_ntz", "date", "bigint", "int"):
            raise DefinitionError(f"{where}.time: column {sink.influxdb.time} is {kind}; it must be a timestamp.")
        for name in sink.influxdb.columns(columns):
            kind = columns[name].simpleString()
            texts, allowed = (("string",), "a number or text") if sink.influxdb.fields else ((), "a number")
            if not kind.startswith(("bigint", "int", "smallint", "tinyint", "double", "float", "decimal", *texts)):
                raise DefinitionError(f"{where}: column {name} is {kind}; it must be {allowed}.")
