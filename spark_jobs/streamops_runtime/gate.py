"""The sink gate: the one way from a stage's batches to its sinks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from pyspark.sql import DataFrame, Row
from pyspark.sql.conversion import ArrowTableToRowsConversion

from streamops.model.errors import UnreachableError
from streamops.model.records import now
from streamops_runtime.pace import GivingWay, Pace
from streamops_runtime.sinks import ROWS, Patience, Sink, epoch_ms


class StopAtBoundary(Exception):
    """Raised on entry of a batch after a stop was asked for: the batch stays planned and uncommitted."""


class Gate:
    """One stage's gate; called by Spark once per batch, from the query's own thread.

    Args:
        check: raises LeaseLostError when this driver may not write any more.
        stopping: set when queries shall end at the next boundary.
    """

    def __init__(
        self,
        stage: str,
        sinks: Sequence[Sink],
        check: Callable[[], None],
        stopping: threading.Event,
        *,
        time_column: str | None = None,
    ) -> None:
        self.stage = stage
        self.pace: Pace | GivingWay | None = None  # how long to wait after a batch; None: not at all
        self.waited_ms = 0  # of the last batch, for its windows to come
        self.rows = 0  # written
        self.outputs = 0  # batches that wrote rows
        self.last_output: datetime | None = None
        self.failure: BaseException | None = None
        self._sinks = sinks
        self._stopping = stopping
        self._time_column = time_column
        self._patience = Patience(stage, check, stopping)

    @property
    def refused(self) -> int:
        """Rows that the sinks put aside."""
        return sum(sink.refused for sink in self._sinks)

    @property
    def waiting_for(self) -> str:
        """What a write waits for; empty while none does."""
        return self._patience.waiting_for

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take one batch. Whatever goes wrong fails the query, so that the batch is not committed."""
        if self._stopping.is_set():
            raise StopAtBoundary(self.stage)
        try:
            self.take(collected(batch), batch_id)
        except BaseException as error:
            self.failure = error
            raise

    def take(self, rows: Iterable[Sequence[Row]], batch_id: int) -> None:
        """Write a batch; each item is what one request takes."""
        windows: set[int] = set()
        count = 0
        for some in rows:
            self._write(some, batch_id)
            count += len(some)
            if self.pace and self._time_column:
                times = (row[self._time_column] for row in some)
                windows.update(epoch_ms(at) for at in times if at is not None)
        if count:  # a batch that fails on the way is written again from its beginning
            self.rows += count
            self.outputs += 1
            self.last_output = now()
        self._wait(windows)

    def _wait(self, windows: set[int]) -> None:
        """Let the next window come: the batch is written, and what is read next is planned when this one has ended."""
        wait_ms = self.pace.wait_ms(windows, time.time() * 1000) if self.pace and self._time_column else 0.0
        if wait_ms:
            self._stopping.wait(wait_ms / 1000)
        self.waited_ms = int(wait_ms)

    def _write(self, rows: Sequence[Row], batch_id: int) -> None:
        for sink in self._sinks:
            try:
                self._patience.write(sink, rows, batch_id)
            except UnreachableError as error:  # a stop ends the waiting; nothing is committed, so this is a boundary
                raise StopAtBoundary(self.stage) from error


def collected(batch: DataFrame) -> Iterator[list[Row]]:
    """A batch's rows, some thousands at once: as Arrow holds them, all take a tenth of the memory of such rows."""
    table, schema = batch.toArrow(), batch.schema
    for first in range(0, table.num_rows, ROWS):
        yield ArrowTableToRowsConversion.convert(table.slice(first, ROWS), schema)
