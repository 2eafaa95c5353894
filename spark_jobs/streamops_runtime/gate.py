"""The sink gate: the one way from a stage's batches to its sinks.

*open* writes. *shadow* keeps rows aside, for a version that runs beside the old one. *promote* happens between
two batches: what was kept and the old version has not written is written, then the gate is open.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from pyspark.sql import DataFrame, Row

from streamops.model.errors import StreamOpsError, UnreachableError
from streamops.model.records import now
from streamops_runtime.pace import Pace
from streamops_runtime.sinks import Patience, Sink, epoch_ms

_MOST_KEPT = 500_000

log = logging.getLogger("gate")


class StopAtBoundary(Exception):
    """Raised on entry of a batch after a stop was asked for: the batch stays planned and uncommitted."""


class Mode(StrEnum):
    """What the gate does with rows."""

    OPEN = "open"
    SHADOW = "shadow"


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
        mode: Mode = Mode.OPEN,
        time_column: str | None = None,
    ) -> None:
        self.stage = stage
        self.mode = mode
        self.pace: Pace | None = None  # how long to wait after a batch that wrote; None: not at all
        self.waited_ms = 0  # of the last batch, for its windows to come
        self.rows = 0  # written
        self.outputs = 0  # batches that wrote rows
        self.last_output: datetime | None = None
        self.failure: BaseException | None = None
        self._sinks = sinks
        self._stopping = stopping
        self._time_column = time_column
        self._patience = Patience(stage, check, stopping)
        self._kept: list[tuple[int, Row]] = []
        self._promotion: tuple[datetime | None] | None = None
        self._lock = threading.Lock()

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
            self.take(batch.collect(), batch_id)
        except BaseException as error:
            self.failure = error
            raise

    def take(self, rows: Sequence[Row], batch_id: int) -> None:
        """Write or keep rows, after a promotion that is due."""
        with self._lock:
            promotion, self._promotion = self._promotion, None
        if promotion is not None:
            self._open(*promotion, batch_id=batch_id)
        if self.mode is Mode.SHADOW:
            self._keep(rows, batch_id)
        elif rows:
            self._write(rows, batch_id)
        self._wait(rows)

    def _wait(self, rows: Sequence[Row]) -> None:
        """Let the next window come: the batch is written, and what is read next is planned when this one has ended."""
        wait_ms = 0.0
        if self.pace and self._time_column and self.mode is Mode.OPEN:
            times = (row[self._time_column] for row in rows)
            wait_ms = self.pace.wait_ms((epoch_ms(at) for at in times if at is not None), time.time() * 1000)
        if wait_ms:
            self._stopping.wait(wait_ms / 1000)
        self.waited_ms = int(wait_ms)

    def promote(self, written_until: datetime | None) -> None:
        """Open at the next batch; rows up to ``written_until`` were written by the old version."""
        with self._lock:
            self._promotion = (written_until,)

    def _open(self, written_until: datetime | None, batch_id: int) -> None:
        column = self._time_column
        due = [row for _, row in self._kept if written_until is None or column is None or row[column] > written_until]
        if due:
            self._write(due, batch_id)
        self._kept.clear()
        self.mode = Mode.OPEN

    def _keep(self, rows: Sequence[Row], batch_id: int) -> None:
        known = {batch for batch, _ in self._kept[-1:]}
        if batch_id in known:  # a batch that is run again replaces what it gave before
            self._kept = [item for item in self._kept if item[0] != batch_id]
        if len(self._kept) + len(rows) > _MOST_KEPT:
            raise StreamOpsError(f"Stage {self.stage} keeps more than {_MOST_KEPT} rows aside; promote or stop it.")
        self._kept.extend((batch_id, row) for row in rows)

    def _write(self, rows: Sequence[Row], batch_id: int) -> None:
        for sink in self._sinks:
            try:
                self._patience.write(sink, rows, batch_id)
            except UnreachableError as error:  # a stop ends the waiting; nothing is committed, so this is a boundary
                raise StopAtBoundary(self.stage) from error
        self.rows += len(rows)
        self.outputs += 1
        self.last_output = now()


def gate_time_column(sinks: Sequence[Any]) -> str | None:
    """The column that orders a stage's rows, from its definition's sinks."""
    return next((sink.influxdb.time for sink in sinks if sink.influxdb), None)
