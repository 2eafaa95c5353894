"""The sink gate: what is written when, and what keeps it from writing."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from datetime import datetime

import pytest
from pyspark.sql import Row, SparkSession

from streamops.model.errors import LeaseLostError, StreamOpsError, UnreachableError
from streamops_runtime.gate import Gate, StopAtBoundary
from streamops_runtime.sinks import ROWS, Sink


class Paper:
    """A sink on paper: keeps what was written, and fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.written: dict[int, list[Row]] = {}
        self.failures = failures
        self.tries = 0

    def write(self, rows: Sequence[Row], batch_id: int) -> None:
        self.tries += 1
        if self.tries <= self.failures:
            raise UnreachableError("the sink is away")
        self.written.setdefault(batch_id, []).extend(rows)


def row(second: int) -> Row:
    return Row(time=datetime(2026, 1, 1, 12, 0, second), value=second)


def gate(sink: Sink, **more: object) -> Gate:
    values = {"check": lambda: None, "stopping": threading.Event(), "time_column": "time"} | more
    return Gate("stage", [sink], **values)  # type: ignore[arg-type]


def lost() -> None:
    raise LeaseLostError("epoch 1 is over")


def test_an_open_gate_writes_each_batch() -> None:
    sink = Paper()
    opened = gate(sink)
    opened.take([[row(1)], [row(2)]], 7)
    assert sink.written == {7: [row(1), row(2)]}
    assert opened.rows == 2


def test_nothing_is_written_or_asked_for_an_empty_batch() -> None:
    sink = Paper()
    gate(sink, check=lost).take([], 7)
    assert sink.tries == 0


def test_without_the_lease_nothing_is_written() -> None:
    sink = Paper()
    with pytest.raises(LeaseLostError):
        gate(sink, check=lost).take([[row(1)]], 7)
    assert sink.tries == 0


def test_a_sink_that_is_away_is_tried_again_until_it_is_back() -> None:
    sink = Paper(failures=2)
    opened = gate(sink)
    opened.take([[row(1)]], 7)
    assert (sink.tries, sink.written, opened.waiting_for) == (3, {7: [row(1)]}, "")


def test_the_lease_is_checked_before_every_try() -> None:
    sink, checks = Paper(failures=1), []

    def check() -> None:
        checks.append(1)
        if len(checks) == 2:
            raise LeaseLostError("taken while the sink was away")

    with pytest.raises(LeaseLostError):
        gate(sink, check=check).take([[row(1)]], 7)
    assert sink.written == {}


class Outage(threading.Event):
    """Time that passes only while the gate waits; the sink answers after some seconds of it."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.passed, self.longest = seconds, 0.0, 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout
        self.passed += timeout
        self.longest = max(self.longest, timeout)
        return False

    def write(self, rows: Sequence[Row], batch_id: int) -> None:
        if self.passed < self.seconds:
            raise UnreachableError("the sink is away")


DAY_S = 24 * 3600


def test_a_sink_is_waited_for_however_long_it_is_away_and_asked_often_enough() -> None:
    outage = Outage(3 * DAY_S)
    opened = gate(outage, stopping=outage)
    opened.take([[row(1)]], 7)
    assert (opened.rows, opened.waiting_for) == (1, "")
    assert outage.longest <= 5  # seconds without a look, so that a batch is written soon after the sink is back


def test_while_a_sink_is_away_the_gate_says_what_it_waits_for_and_since_when() -> None:
    said = []

    class Watched(Outage):
        def wait(self, timeout: float | None = None) -> bool:
            said.append(opened.waiting_for)
            return super().wait(timeout)

    outage = Watched(DAY_S)
    opened = gate(outage, stopping=outage)
    opened.take([[row(1)]], 7)
    assert len(set(said)) == 1
    assert re.fullmatch(r"the sink is away It waits since \d{4}-\S+ \S+ UTC and continues by itself\.", said[0])


def test_the_lease_is_checked_before_each_request_of_a_large_batch() -> None:
    sink, checks = Paper(), []

    def check() -> None:
        checks.append(sink.tries)
        if len(checks) == 3:
            lost()

    with pytest.raises(LeaseLostError):
        gate(sink, check=check).take([[row(1)] * ROWS] * 3, 7)
    assert checks == [0, 1, 2]
    assert len(sink.written[7]) == 2 * ROWS  # nothing more, once the lease was lost


def test_rows_count_once_their_batch_is_written_whole() -> None:
    """A version that fails in each batch gives nothing, however far it comes."""

    class Refusing(Paper):
        def write(self, rows: Sequence[Row], batch_id: int) -> None:
            super().write(rows, batch_id)
            if row(2) in rows:
                raise StreamOpsError("no such field")

    opened = gate(Refusing())
    for _ in range(3):
        with pytest.raises(StreamOpsError):
            opened.take([[row(1)], [row(2)]], 7)
    assert (opened.rows, opened.outputs, opened.last_output) == (0, 0, None)


def test_what_a_sink_refuses_is_not_tried_again() -> None:
    class Refusing(Paper):
        def write(self, rows: Sequence[Row], batch_id: int) -> None:
            self.tries += 1
            raise StreamOpsError("no such bucket")

    sink = Refusing()
    with pytest.raises(StreamOpsError, match="no such bucket"):
        gate(sink).take([[row(1)]], 7)
    assert sink.tries == 1


def test_a_stop_ends_the_wait_for_a_sink_at_a_boundary() -> None:
    stopping = threading.Event()

    class Away(Paper):
        def write(self, rows: Sequence[Row], batch_id: int) -> None:
            self.tries += 1
            stopping.set()
            raise UnreachableError("the sink is away")

    with pytest.raises(StopAtBoundary):
        gate(Away(), stopping=stopping).take([[row(1)]], 7)


def test_a_batch_after_the_stop_is_not_even_computed() -> None:
    stopping = threading.Event()
    stopping.set()

    class Untouchable:
        def toArrow(self) -> None:
            raise AssertionError("the batch was computed")

    with pytest.raises(StopAtBoundary):
        gate(Paper(), stopping=stopping)(Untouchable(), 8)  # type: ignore[arg-type]


def test_a_failed_batch_is_remembered_for_the_runner(spark: SparkSession) -> None:
    failing = gate(Paper(), check=lost)
    with pytest.raises(LeaseLostError):
        failing(spark.range(1), 1)
    assert isinstance(failing.failure, LeaseLostError)


def test_a_batch_is_written_as_spark_gives_it_and_some_thousand_rows_at_once(spark: SparkSession) -> None:
    batch = spark.range(2 * ROWS + 1).selectExpr(
        "timestamp_millis(1767225600123 + id * 1000) as time",
        "cast(timestamp_millis(id) as timestamp_ntz) as naive",
        "date '2026-01-01' + cast(id as int) as day",
        "cast(id as decimal(20, 2)) / 4 as exact",
        "if(id % 2 = 0, null, id / 3) as mean",
        "struct(concat('é', id) as name, array(id, null) as parts) as nested",
        "map('a', id) as by_name",
        "cast(concat(id) as binary) as raw",
        "double('nan') as nothing",
    )
    requests: list[Sequence[Row]] = []

    class Counted(Paper):
        def write(self, rows: Sequence[Row], batch_id: int) -> None:
            requests.append(rows)

    opened = gate(Counted())
    opened(batch, 3)
    assert sorted(map(len, requests)) == [1, ROWS, ROWS]
    written = sorted((row for rows in requests for row in rows), key=lambda row: row.time)
    # As texts, because what is no number is unequal to itself.
    assert list(map(str, written)) == list(map(str, batch.collect()))
    assert written[1].nested.name == "é1"
    assert (opened.rows, opened.outputs) == (2 * ROWS + 1, 1)
