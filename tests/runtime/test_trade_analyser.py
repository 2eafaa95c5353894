"""The example job's functions on static frames, against values computed by hand."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from streamops.model.definitions import Definition, load
from streamops_runtime import code

DIRECTORY = Path(__file__).resolve().parents[2] / "spark_jobs" / "trade_analyser"
SCHEMA = "symbol string, price bigint, quantity bigint, time timestamp"


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, 12, int(second // 60), int(second % 60), int(second * 1e6) % 1_000_000)


@pytest.fixture(scope="module")
def definition() -> Definition:
    return load(DIRECTORY / "v2.yaml")


@pytest.fixture(scope="module")
def trades(spark: SparkSession) -> DataFrame:
    rows = [
        ("AAPL", 100, 1, at(0.0)),
        ("AAPL", 103, 2, at(0.999)),
        ("AAPL", 200, 3, at(1.0)),
        ("MSFT", 50, 4, at(0.5)),
        ("MSFT", 51, 5, at(2.5)),
        ("MSFT", 53, 6, at(2.75)),
    ]
    return spark.createDataFrame(rows, SCHEMA)


def run(definition: Definition, stage: str, trades: DataFrame) -> list[Any]:
    return code.load(definition, DIRECTORY)[stage]({"trades": trades}).collect()


def test_average_of_a_second_stands_at_the_windows_end(definition: Definition, trades: DataFrame) -> None:
    found = {(row.symbol, row.time): row.value for row in run(definition, "avg_1s", trades)}
    assert found == {
        ("AAPL", at(1)): 101.5,
        ("AAPL", at(2)): 200.0,
        ("MSFT", at(1)): 50.0,
        ("MSFT", at(3)): 52.0,
    }


def test_average_of_a_minute_slides_by_a_second_and_weighs_trades_not_panes(
    definition: Definition, trades: DataFrame
) -> None:
    found = {(row.symbol, row.time): row.value for row in run(definition, "avg_1m", trades)}
    assert len(found) == 61 + 62  # every window that holds a trade, once a second
    assert found["AAPL", at(1)] == 101.5
    assert found["AAPL", at(2)] == pytest.approx((100 + 103 + 200) / 3)
    assert found["AAPL", at(60)] == pytest.approx((100 + 103 + 200) / 3)
    assert found["AAPL", at(61)] == 200.0
    assert ("AAPL", at(62)) not in found
    assert found["MSFT", at(3)] == pytest.approx((50 + 51 + 53) / 3)
    assert found["MSFT", at(62)] == 52.0


def test_volume_adds_all_symbols_as_an_integer(definition: Definition, trades: DataFrame) -> None:
    found = {row.time: row.value for row in run(definition, "vol_1s", trades)}
    assert found == {at(1): 7, at(2): 3, at(3): 11}
    assert all(isinstance(value, int) for value in found.values())


def test_both_versions_compute_avg_1s_with_the_same_function(definition: Definition) -> None:
    first = load(DIRECTORY / "v1.yaml")
    assert list(first.stages) == ["avg_1s"]
    assert list(definition.stages) == ["avg_1s", "avg_1m", "vol_1s"]
    assert first.stages["avg_1s"] == definition.stages["avg_1s"]
    assert first.sources == definition.sources
