"""The recount against the real ledger and the real points: each kind of damage is noticed."""

from __future__ import annotations

import json
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stack.generator import Trades
from stack.trade_log import TradeLog
from streamops.clients.influx import Point, Points, line
from streamops.clients.kafka import Ledger
from streamops.model.definitions import InfluxSink, Recount, Source, parse
from streamops.model.errors import StreamOpsError, UnreachableError
from streamops.recount import functions
from streamops.recount.functions import Job, Range
from streamops.recount.held import Held
from streamops.recount.reach import Reach
from streamops.recount.recounting import Span, StagePlan, recount_source
from streamops.recount.report import Comparison, Measured, verdict
from streamops.settings import Settings

pytestmark = [pytest.mark.stack, pytest.mark.full]
SPEC = Recount(
    source="trades", aggregate="average", column="price", by=("symbol",), window="4 seconds", slide="1 second"
)
RATE, SECONDS = 500, 150  # long enough for the comparison to take several ranges


@dataclass
class Written:
    """A topic with trades of ``SECONDS`` seconds from ``start_ms`` on, and its points, computed by the book."""

    ledger: Ledger
    points: Points
    topic: str
    measurement: str
    start_ms: int

    def recount(self) -> Measured:
        source = Source.model_validate(
            {
                "kafka": {"topic": self.topic},
                "schema": "symbol string, price bigint, quantity bigint, time bigint",
                "event_time": "time",
                "max_ahead": "1 day",
            }
        )
        sink = InfluxSink(measurement=self.measurement, tags=("symbol",))
        end = self.ledger.end_offsets(self.topic)
        bound = self.start_ms + SECONDS * 1000
        plan = StagePlan("stage", SPEC, sink, Span({"0": 0}, end, from_the_beginning=True), bound)
        _, count, (measured,) = recount_source(
            source,
            [plan],
            self.ledger.read_blocks(self.topic, plan.span.start, end),
            lambda _: Comparison(
                "stage", self.measurement, lambda a, b: self.points.read(self.measurement, a, b, ("symbol",))
            ),
        )
        assert count == RATE * SECONDS
        return measured


@pytest.fixture
def written(stack: Settings) -> Iterator[Written]:
    name = f"recount_{uuid.uuid4().hex[:8]}"
    ledger, points = Ledger(stack), Points(stack)
    start_ms = int(time.time() - SECONDS) // 1000 * 1000 * 1000
    ledger.ensure_topic(name)
    log = TradeLog(ledger, name, 1, 20)
    log.begin()
    trades, index = Trades(1, 20, 0), 0
    while index < RATE * SECONDS:
        columns = trades.take(min(4000, RATE * SECONDS - index))
        times = [start_ms + number * 1000 // RATE for number in range(index, index + len(columns[0]))]
        log.put(index, *columns, times)
        log.wait()
        index += len(times)
    sums: dict[tuple[int, str], list[int]] = defaultdict(list)
    for _, _, _, value in ledger.read(name, {"0": 0}, ledger.end_offsets(name)):
        trade = json.loads(value or b"")
        second = trade["time"] // 1000 * 1000
        for end in range(second + 1000, second + 5000, 1000):
            sums[end, trade["symbol"]].append(trade["price"])
    points.write_lines(
        line(name, {"symbol": symbol}, {"value": sum(prices) / len(prices)}, end)
        for (end, symbol), prices in sums.items()
    )
    yield Written(ledger, points, name, name, start_ms)
    points.delete(name, 0, start_ms + 10**7)
    ledger.close()
    points.close()


def test_right_points_are_clean_and_each_damage_is_noticed(written: Written) -> None:
    right = written.recount()
    assert (right.expected, right.off) == (20 * SECONDS, 0)
    assert verdict((right,))[0]
    at = written.start_ms + 77_000
    ((_, _, value),) = [
        point for point in written.points.read(written.measurement, at, at + 1, ("symbol",)) if point[1] == ("AAPL",)
    ]

    def put(number: float, when: int = at, symbol: str = "AAPL") -> None:
        written.points.write_lines([line(written.measurement, {"symbol": symbol}, {"value": number}, when)])

    put(value + 0.01)
    changed = written.recount()
    assert (changed.missing, changed.wrong, changed.unexpected) == (0, 1, 0)
    assert "AAPL" in changed.examples[0]

    put(value)
    assert written.recount().off == 0

    put(1.0, symbol="NEVER")
    added = written.recount()
    assert (added.missing, added.wrong, added.unexpected) == (0, 0, 1)
    put(2.0, when=written.start_ms - 60_000)
    assert written.recount().unexpected == 2

    written.points.delete(written.measurement, at, at + 1, {"symbol": "AAPL"})
    deleted = written.recount()
    assert (deleted.missing, deleted.wrong, deleted.unexpected) == (1, 0, 2)
    assert not verdict((deleted,))[0]


CODE = """
from pyspark.sql import functions as F

def average(trades):
    return (
        trades.withWatermark("time", "0 seconds")
        .groupBy(F.window("time", "4 seconds", "1 second"), "symbol")
        .agg(F.avg("price").alias("value"))
        .select("symbol", "value", F.col("window.end").alias("time"))
    )
"""
DEFINITION = """
job: averages
version: v1
code: averages.py
sources:
  trades:
    kafka: {topic: TOPIC}
    schema: symbol string, price bigint, quantity bigint, time bigint
    event_time: time
    max_ahead: 1 day
stages:
  average: {sinks: [{influxdb: {measurement: TOPIC, tags: [symbol]}}]}
"""


def test_a_stage_without_words_is_compared_with_its_own_function(written: Written, tmp_path: Path) -> None:
    (tmp_path / "averages.py").write_text(CODE)
    job = Job(parse(DEFINITION.replace("TOPIC", written.topic)), {}, tmp_path)
    at = written.start_ms + 77_000
    written.points.write_lines([line(written.measurement, {"symbol": "AAPL"}, {"value": 1.5}, at)])
    written.points.write_lines([line(written.measurement, {"symbol": "NEVER"}, {"value": 1.5}, at)])
    written.points.delete(written.measurement, at + 1000, at + 1001, {"symbol": "AAPL"})
    end = written.ledger.end_offsets(written.topic)
    asked = Range("average", {"trades": ({"0": 0}, end)}, written.start_ms + SECONDS * 1000)

    def points(start: int, stop: int) -> Iterator[Point]:
        return written.points.read(written.measurement, start, stop, ("symbol",))

    (measured,), count = functions.recount(
        job, asked, Reach(4000, 0), Held(written.ledger, job.definition, {}),
        lambda sink, field: Comparison("average", sink.measurement, points, field=field),
    )  # fmt: skip
    assert (count, measured.by) == (RATE * SECONDS, "functions")
    assert measured.expected > 20 * (SECONDS - 8)
    assert (measured.missing, measured.wrong, measured.unexpected) == (1, 1, 1), measured.examples


def test_an_absent_influxdb_may_come_back_and_a_refusal_does_not(stack: Settings) -> None:
    gone = Points(stack.model_copy(update={"influx_url": "http://127.0.0.1:1"}), timeout_s=2)
    with pytest.raises(UnreachableError, match="did not answer a write"):
        gone.write_lines(["m value=1 1"])
    with pytest.raises(UnreachableError, match="did not answer a query"):
        list(gone.read("m", 0, 1))
    other = Points(stack.model_copy(update={"influx_bucket": "no-such-bucket"}))
    for attempt in (lambda: other.write_lines(["m value=1 1"]), lambda: list(other.read("m", 0, 1))):
        with pytest.raises(StreamOpsError, match="no-such-bucket") as caught:
            attempt()
        assert not isinstance(caught.value, UnreachableError)
    with pytest.raises(StreamOpsError, match="refused a write"):
        Points(stack).write_lines(["this is no line protocol"])


def test_tags_and_values_come_back_as_they_were_written(stack: Settings) -> None:
    points, name = Points(stack), f"odd_{uuid.uuid4().hex[:8]}"
    odd = ["plain", "a b", "a,b", "a=b", 'quo"te', "ümläut", "back\\slash"]
    points.write_lines(line(name, {"tag": tag}, {"value": number}, 1000) for number, tag in enumerate(odd))
    points.write_lines([line(name + "f", {"tag": ""}, {"value": 0.1 + 0.2}, 1001)])
    found = {tags[0]: value for _, tags, value in points.read(name, 1000, 1001, ("tag",))}
    assert found == {tag: number for number, tag in enumerate(odd)}
    assert all(isinstance(value, int) for value in found.values())
    assert list(points.read(name + "f", 0, 1002, ("tag",))) == [(1001, ("",), 0.1 + 0.2)]
    assert list(points.read(name + "f", 0, 1001)) == []
