"""The recount with a job's own functions, on local Spark: what it finds, and which stages it takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamops.model.definitions import Definition, InfluxSink, parse
from streamops.model.errors import DefinitionError
from streamops.recount import functions
from streamops.recount.functions import Job, Range
from streamops.recount.held import GoneError, Held
from streamops.recount.reach import Reach, reach
from streamops.recount.report import Comparison, Measured
from streamops.settings import REPOSITORY
from streamops.versions.fingerprints import Fingerprint, Key, Operator, Watermark, Window

T0 = 1_800_000_000_000  # a whole minute
DEFINITION = """
job: spreads
version: v1
code: spreads.py
params: {least: 5}
sources:
  quotes: {kafka: {topic: quotes}, schema: "symbol string, price bigint, time bigint", event_time: time}
  trades: {kafka: {topic: trades}, schema: "symbol string, price bigint, time bigint", event_time: time}
stages:
  spread: {sinks: [{influxdb: {measurement: spread, tags: [symbol]}}]}
  high: {sinks: [{influxdb: {measurement: high, tags: [symbol]}}]}
  traded: {sinks: [{influxdb: {measurement: traded, tags: [symbol]}}]}
  wrong: {sinks: [{influxdb: {measurement: wrong}}]}
"""
CODE = """
import os
from pyspark.sql import functions as F

assert "CANARY" not in os.environ, "the environment of whoever recounts"


def spread(quotes):
    return (
        quotes.withWatermark("time", "2 seconds")
        .groupBy(F.window("time", "10 seconds"), "symbol")
        .agg((F.max("price") - F.min("price")).alias("value"))
        .select("symbol", "value", F.col("window.end").alias("time"))
    )


def high(quotes, *, least):
    return quotes.where(F.col("price") > least).select("symbol", F.col("price").alias("value"), "time")


def traded(quotes, trades):
    one = quotes.withWatermark("time", "1 minute").alias("one")
    other = trades.withWatermark("time", "1 minute").alias("other")
    near = F.expr("one.time between other.time - interval 5 seconds and other.time")
    joined = one.join(other, (F.col("one.symbol") == F.col("other.symbol")) & near)
    return joined.selectExpr("one.symbol as symbol", "other.price - one.price as value", "other.time as time")


def wrong(quotes):
    raise RuntimeError("not in a batch")
"""


class Topic:
    """Records of one partition, as the ledger gives them."""

    def __init__(self, values: list[tuple[int, str, int]]) -> None:
        self.bodies = [json.dumps({"symbol": s, "price": p, "time": T0 + at}).encode() for at, s, p in values]

    def messages(self, topic: str, partition: int, start: int, end: int) -> Iterator[list[Any]]:
        assert (topic, partition) == ("quotes", 0)
        for offset in range(start, end):
            yield [
                SimpleNamespace(
                    offset=lambda at=offset: at,
                    key=lambda: None,
                    value=lambda at=offset: self.bodies[at],
                    timestamp=lambda: (1, T0 + 10**8),
                )
            ]

    def end_offsets(self, topic: str) -> dict[str, int]:
        return {"0": len(self.bodies)}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setenv("CANARY", "secret")
    (tmp_path / "spreads.py").write_text(CODE)
    return Job(parse(DEFINITION), {"least": 7}, tmp_path)


def compared(points: Mapping[tuple[int, str], int]) -> Callable[[InfluxSink, str], Comparison]:
    def made(sink: InfluxSink, field: str) -> Comparison:
        def read(start: int, end: int) -> Iterator[tuple[int, tuple[str, ...], int]]:
            rows = [(T0 + at, (symbol,), value) for (at, symbol), value in points.items()]
            return iter([row for row in rows if start <= row[0] < end])

        return Comparison("s", sink.measurement, read, field=field)

    return made


def recounted(
    job: Job, stage: str, topic: Topic, points: Mapping[tuple[int, str], int], end: int, **more: Any
) -> Measured:
    reached = Reach(10_000, 2000) if stage == "spread" else Reach(None, None)
    asked = Range(stage, {"quotes": ({"0": 0}, {"0": end})}, more.pop("bound", T0 + 10**6), **more)
    ledger: Any = topic
    (found,), _ = functions.recount(job, asked, reached, Held(ledger, job.definition, {}), compared(points))
    return found


@pytest.mark.full
def test_windows_are_computed_with_the_jobs_own_function_without_anything_of_the_environment(job: Job) -> None:
    quotes = [(at * 1000, "AB"[at % 2], at * at) for at in range(60)]
    # B's 100 at 8 s comes 50 s late, so a job may have dropped it; then no one knows which of both is right.
    quotes += [(60_000, "A", 0), (8000, "B", 1000)]
    points = {}
    for end in range(10_000, 61_000, 10_000):
        for symbol in "AB":
            prices = [price for at, of, price in quotes[:61] if of == symbol and end - 10_000 <= at < end]
            points[end, symbol] = max(prices) - min(prices)
    damaged = points | {(10_000, "B"): 999, (20_000, "A"): points[20_000, "A"] + 1, (25_000, "A"): 1}
    del damaged[30_000, "B"]
    found = recounted(job, "spread", Topic(quotes), damaged, len(quotes), bound=T0 + 55_000)
    assert (found.expected, found.missing, found.wrong, found.unexpected) == (8, 1, 1, 1), found.examples
    assert (found.by, found.late) == ("functions", 1)
    assert "its function is not checked" in found.notes[0]


@pytest.mark.full
def test_single_events_are_recounted_with_what_is_written_and_not_committed(job: Job) -> None:
    quotes = [(0, "A", 100), (1, "A", 6), (2, "B", 8), (3000, "B", 9), (1, "C", 50)]
    points = {(0, "A"): 100, (2, "B"): 8, (3000, "B"): 9, (1, "C"): 50, (7, "C"): 1}
    found = recounted(job, "high", Topic(quotes), points, 4)
    assert (found.expected, found.missing, found.wrong, found.unexpected) == (3, 0, 0, 1), found.examples
    assert "has 1, and no event gives it" in found.examples[0]


@pytest.mark.full
def test_a_join_on_a_key_is_recounted_from_both_its_topics(job: Job) -> None:
    quotes = Topic([(0, "A", 100), (3000, "B", 50), (4000, "A", 110)])
    trades = Topic([(2000, "A", 101), (5000, "B", 49), (9000, "A", 120), (10_000, "C", 1)])
    points = {(2000, "A"): 1, (5000, "B"): -1, (9000, "A"): 10}
    both = {"quotes": ({"0": 0}, {"0": 3}), "trades": ({"0": 0}, {"0": 4})}
    topics: Any = SimpleNamespace(
        messages=lambda topic, *where: (quotes if topic == "quotes" else trades).messages("quotes", *where),
        end_offsets=lambda topic: (quotes if topic == "quotes" else trades).end_offsets(topic),
    )
    reached, held = Reach(None, 60_000, joined=True), Held(topics, job.definition, {})
    asked = Range("traded", both, 0)
    damaged = points | {(9000, "A"): 11}
    (found,), count = functions.recount(job, asked, reached, held, compared(damaged))
    assert (count, found.expected, found.missing, found.wrong, found.unexpected) == (7, 3, 0, 1, 0), found.examples
    cut = Range("traded", both, 0, whole_only=True)
    (found,), _ = functions.recount(job, cut, reached, held, compared(points))
    assert found.nothing == "short range"


@pytest.mark.full
def test_a_function_that_cannot_run_again_is_said(job: Job) -> None:
    with pytest.raises(DefinitionError, match="does not run as a batch query: RuntimeError: not in a batch"):
        recounted(job, "wrong", Topic([(0, "A", 1)]), {}, 1)


def test_more_events_than_local_spark_should_take_are_nothing_compared(job: Job) -> None:
    found = recounted(job, "spread", Topic([]), {}, functions.MOST + 1)
    assert (found.nothing, found.by) == ("too many events", "functions")


TUMBLING = Key(text="w", type="struct", window=Window(kind="tumbling", time="t", size_us=10_000_000))
SESSION = Key(text="w", type="struct", window=Window(kind="session", time="t", gap="5 seconds"))
DELAY = (Watermark(column="quotes.time", delay="2 seconds"),)


def plan(*operators: Operator, watermarks: tuple[Watermark, ...] = DELAY) -> Fingerprint:
    return Fingerprint(
        spark="4", output="append", provider="R", partitions=1, sources=("quotes",), watermarks=watermarks,
        operators=operators,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (plan(), Reach(None, None)),
        (plan(Operator(kind="aggregation", keys=(TUMBLING,))), Reach(10_000, 2000)),
        (plan(*(Operator(kind="aggregation", keys=(TUMBLING,)),) * 2), Reach(20_000, 2000)),
        (plan(Operator(kind="aggregation", keys=(SESSION,))), "more than windows"),
        (plan(Operator(kind="aggregation")), "more than windows"),
        (plan(Operator(kind="transform with state")), "more than windows (transform with state)"),
        (plan(Operator(kind="opaque")), "more than windows"),
        (plan(Operator(kind="aggregation", keys=(TUMBLING,)), watermarks=()), "not known from its watermark"),
        (plan(Operator(kind="join", detail="Inner")), Reach(None, 2000, joined=True)),
        (plan(Operator(kind="join", detail="LeftOuter")), "more than windows (join)"),
        (plan(Operator(kind="join", detail="Inner"), Operator(kind="aggregation", keys=(TUMBLING,))), "(join)"),
        (None, "no fingerprint"),
    ],
)
def test_a_stage_is_taken_only_where_a_batch_query_gives_what_its_stream_gives(
    found: Fingerprint | None, expected: Reach | str
) -> None:
    reached = reach(parse(DEFINITION), "spread", found)
    assert reached == expected if isinstance(expected, Reach) else expected in str(reached)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            (
                'kafka: {topic: quotes}, schema: "symbol string, price bigint, time bigint", event_time: time',
                "csv_tail: {directory: /q}, schema: symbol string",
            ),
            "names no event_time",
        ),
        (("spread: {", "spread: {deterministic: false, "), "do not always give the same rows"),
    ],
)
def test_what_cannot_be_run_again_is_left_out_with_its_reason(change: tuple[str, str], says: str) -> None:
    definition: Definition = parse(DEFINITION.replace(*change))
    assert says in str(reach(definition, "spread", plan(watermarks=())))


def test_a_stage_that_reads_another_is_left_out() -> None:
    definition = parse((REPOSITORY / "spark_jobs" / "trade_analyser" / "v3.yaml").read_text())
    found = plan().model_copy(update={"sources": ("panes",)})
    assert "source panes is another stage" in str(reach(definition, "avg_1m", found))


def test_files_are_run_again_only_where_the_order_of_their_events_does_not_matter() -> None:
    of_files = parse(DEFINITION.replace("kafka: {topic: quotes}", "csv_tail: {directory: /q}"))
    assert reach(of_files, "high", plan(watermarks=())) == Reach(None, None)
    windows = plan(Operator(kind="aggregation", keys=(TUMBLING,)))
    assert "the order in which it has read quotes is not known" in str(reach(of_files, "spread", windows))


PINGS = """
job: pings
version: v1
code: pings.py
sources:
  cars:
    csv_tail: {directory: /nowhere}
    schema: car string, speed bigint, note string, time bigint
    event_time: time
stages:
  pings: {sinks: [{influxdb: {measurement: pings, tags: [car], fields: ["*"]}}]}
"""


@pytest.mark.full
def test_each_field_of_what_files_hold_is_compared_from_where_all_of_them_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ``a`` only the end is read again, so no earlier point is looked at; what is not committed is explained."""
    lines = {
        "a.csv": ["a,1,x,1000", "a,2,y,2000", "a,3,z,5000", "a,4,w,6000"],
        "b.csv": ["b,5,,500", "b,6,u,5500", "b,7,v,7000"],
    }
    directory, code = tmp_path / "cars", tmp_path / "code"
    directory.mkdir()
    code.mkdir()
    (code / "pings.py").write_text("def pings(cars):\n    return cars\n")
    for name, text in lines.items():
        (directory / name).write_text("".join(f"{line}\n" for line in text))
    end = {"a.csv": sum(len(line) + 1 for line in lines["a.csv"]), "b.csv": 20}  # b's last line is not committed
    written: dict[str, dict[tuple[int, str], Any]] = {
        "speed": {(1000, "a"): 1, (5000, "a"): 3, (6000, "a"): 9, (5500, "b"): 6, (7000, "b"): 7, (5600, "c"): 1},
        "note": {(5000, "a"): "z", (5500, "b"): "u"},
    }

    def comparison(sink: InfluxSink, field: str) -> Comparison:
        def read(start: int, end: int) -> Iterator[tuple[int, tuple[str, ...], Any]]:
            rows = [(at, (car,), value) for (at, car), value in written[field].items()]
            return iter([row for row in rows if start <= row[0] < end])

        return Comparison("pings", sink.measurement, read, field=field)

    job, ledger = Job(parse(PINGS), {}, code), Topic([])
    held: Any = Held(ledger, job.definition, {"cars": str(directory)})  # type: ignore[arg-type]
    asked = Range("pings", {"cars": ({"a.csv": 15, "b.csv": 0}, end)}, 0, whole_only=True)
    found, count = functions.recount(job, asked, Reach(None, None), held, comparison)
    assert count == 4
    speed, note = sorted(found, key=lambda item: item.field, reverse=True)
    assert (speed.expected, speed.missing, speed.wrong, speed.unexpected) == (2, 0, 1, 1), speed.examples
    assert (note.expected, note.missing, note.wrong, note.unexpected) == (2, 1, 0, 0), note.examples
    monkeypatch.setattr(functions, "MOST", 7)  # values: one field of so many events
    (only,), _ = functions.recount(job, asked, Reach(None, None), held, comparison)
    assert only.field == "speed"
    assert "note of its fields are not compared" in only.notes[1]
    (directory / "a.csv").write_text("")
    with pytest.raises(GoneError, match=r"a\.csv in .* has 0 bytes"):
        functions.recount(job, asked, Reach(None, None), held, comparison)
