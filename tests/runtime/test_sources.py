"""What a source accepts, and what it rejects and counts before any watermark."""

from __future__ import annotations

import importlib
import json
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from demos.fleet.alpha import line
from demos.fleet.vehicles import Ping
from streamops.model.definitions import Source
from streamops.model.errors import DefinitionError
from streamops.recount.events import EventReader
from streamops.settings import REPOSITORY
from streamops_runtime.sources import accepted, schema_of
from streamops_runtime.validate import RECORD

AT = datetime(2026, 1, 1, 12)
AT_MS = 1767268800000
GOOD = {"symbol": "AAPL", "price": 100, "quantity": 1, "time": AT_MS}


def source(**more: Any) -> Source:
    fields = {"kafka": {"topic": "t"}, "schema": "symbol string, price bigint, quantity bigint, time bigint"}
    return Source.model_validate({**fields, "event_time": "time", **more})


def read(spark: SparkSession, values: list[bytes | None], described: Source) -> list[Any]:
    return rows_of(spark, values, described).collect()


def rows_of(spark: SparkSession, values: list[bytes | None], described: Source) -> DataFrame:
    raw = spark.createDataFrame([(value, AT) for value in values], RECORD)
    return accepted("s", described, raw, count=False)


def test_a_good_trade_arrives_with_its_time_as_a_timestamp(spark: SparkSession) -> None:
    (row,) = read(spark, [json.dumps(GOOD | {"time": AT_MS + 123}).encode()], source())
    assert (row.symbol, row.price, row.quantity) == ("AAPL", 100, 1)
    assert row.time == AT + timedelta(milliseconds=123)


BAD: dict[str, bytes | None] = {
    "nothing": None,
    "empty": b"",
    "no json": b"hello",
    "half": b'{"symbol": "AAPL", "price": 1',
    "a number": b"7",
    "a list": b'[{"symbol": "AAPL", "price": 1, "quantity": 1, "time": 1}]',
    "a column is missing": json.dumps({key: GOOD[key] for key in ("symbol", "price", "time")}).encode(),
    "a column is null": json.dumps(GOOD | {"price": None}).encode(),
    "a price is text": json.dumps(GOOD | {"price": "cheap"}).encode(),
    "a price is a fraction": json.dumps(GOOD | {"price": 1.5}).encode(),
    "a price is too large": json.dumps(GOOD | {"price": 1 << 70}).encode(),
    "time is text": json.dumps(GOOD | {"time": "now"}).encode(),
    "time is before any clock": json.dumps(GOOD | {"time": -(1 << 62)}).encode(),
    "bytes": b"\xff\xfe\x00",
    "deep": b"[" * 5000,
}
AHEAD = {
    "a year": json.dumps(GOOD | {"time": AT_MS + 365 * 86_400_000}).encode(),
    "just over ten seconds": json.dumps(GOOD | {"time": AT_MS + 10_001}).encode(),
    "beyond any clock": json.dumps(GOOD | {"time": (1 << 63) - 1}).encode(),
}


@pytest.mark.parametrize("value", (BAD | AHEAD).values(), ids=(BAD | AHEAD).keys())
def test_what_would_harm_the_job_is_left_out(spark: SparkSession, value: bytes | None) -> None:
    good = json.dumps(GOOD).encode()
    assert [row.price for row in read(spark, [good, value, good], source())] == [100, 100]


def test_exactly_ten_seconds_ahead_is_accepted(spark: SparkSession) -> None:
    assert len(read(spark, [json.dumps(GOOD | {"time": AT_MS + 10_000}).encode()], source())) == 1
    assert len(read(spark, [json.dumps(GOOD | {"time": AT_MS + 10_000}).encode()], source(max_ahead="9 seconds"))) == 0


def test_runner_and_recount_accept_the_same_records(spark: SparkSession) -> None:
    good = json.dumps(GOOD).encode()
    odd = [json.dumps(GOOD | {"extra": 1}).encode(), good + b" trailing", b" " + good]
    values = [good, *BAD.values(), *AHEAD.values(), *odd]
    reader = EventReader(source())
    events = reader.read([0] * len(values), list(range(len(values))), [AT_MS] * len(values), values)
    assert len(read(spark, values, source())) == len(events.times)
    assert (reader.malformed, reader.ahead) == (len(BAD), len(AHEAD))


@pytest.mark.parametrize(
    ("kind", "unit", "value"),
    [
        ("bigint", "seconds", AT_MS // 1000),
        ("double", "seconds", AT_MS / 1000),
        ("double", "milliseconds", float(AT_MS)),
        ("timestamp", "milliseconds", "2026-01-01T12:00:00Z"),
        ("timestamp_ntz", "milliseconds", "2026-01-01T12:00:00"),
    ],
)
def test_every_kind_of_event_time_means_the_same(spark: SparkSession, kind: str, unit: str, value: Any) -> None:
    described = source(schema=f"page string, time {kind}", event_time_unit=unit)
    (row,) = read(spark, [json.dumps({"page": "/", "time": value}).encode()], described)
    assert row.time == AT


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"schema": "symbol strin, time bigint"}, "is not a schema"),
        ({"event_time": "moment"}, "there is no column moment"),
        ({"event_time": "symbol"}, "symbol is string"),
    ],
)
def test_a_wrong_schema_is_refused(spark: SparkSession, more: dict[str, str], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        schema_of("s", source(**more))


def csv() -> Source:
    return Source.model_validate({"csv_tail": {"directory": "/d"}, "schema": "vin string, km double, codes string"})


def test_an_empty_text_on_a_line_of_csv_is_a_text_and_an_empty_place_is_none(spark: SparkSession) -> None:
    lines = [b'A,1.5,"P1 P2"', b'B,1.5,""', b"C,1.5,", b'"",1.5,x', b",1.5,x", b'D,"",x', b"E,1.5", b"F,1.5,x,more"]
    assert [tuple(row) for row in read(spark, lines, csv())] == [("A", 1.5, "P1 P2"), ("B", 1.5, ""), ("", 1.5, "x")]


@pytest.mark.parametrize(("version", "codes"), [("v1", [None] * 4), ("v2", ["", "P1 P2", "", "P1 P2"])])
def test_of_the_fleets_libraries_the_second_reads_the_codes_of_both_fleets_and_the_first_of_none(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, version: str, codes: list[str | None]
) -> None:
    monkeypatch.syspath_prepend(REPOSITORY / "spark_jobs" / "fleet_types" / version)
    monkeypatch.delitem(sys.modules, "fleet_types", raising=False)
    pings = [Ping("A", 41.0, -90.0, AT_MS / 1000), Ping("B", 41.5, -90.5, AT_MS / 1000, ("P1", "P2"))]
    sent = {
        "alpha": ({"csv_tail": {"directory": "/d"}}, [line(ping).encode() for ping in pings]),
        "beta": ({"http": {"url": "http://h"}}, [ping.as_json(sequence=1).encode() for ping in pings]),
    }
    library, found = importlib.import_module("fleet_types"), []
    for fleet, (place, values) in sent.items():
        schema = {"schema": f"fleet_types.{fleet.upper()}", "event_time": "time", "event_time_unit": "seconds"}
        rows = rows_of(spark, values, Source.model_validate({**place, **schema}))
        found += [row.asDict() for row in library.pings(rows, fleet).collect()]
    assert [(row["fleet"], row["vin"], row["latitude"], row["longitude"]) for row in found] == [
        (fleet, ping.vin, ping.latitude, ping.longitude) for fleet in sent for ping in pings
    ]
    assert [row.get("obd_codes") for row in found] == codes
