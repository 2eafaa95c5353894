"""Sliding windows over panes, on real Spark: the same results as Spark's own windows, batch by batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from streamops_runtime.windows import sliding


def panes(rows: DataFrame) -> DataFrame:
    return (
        rows.withWatermark("time", "2 seconds")
        .groupBy(F.window("time", "1 second").alias("pane"), "name")
        .agg(F.sum("value").alias("value"))
    )


def written(spark: SparkSession, result: DataFrame) -> list[tuple]:
    """What a stream writes, each row with the batch that wrote it."""
    rows: list[tuple] = []

    def keep(batch: DataFrame, number: int) -> None:
        rows.extend((number, *row) for row in batch.collect())

    query = result.writeStream.outputMode("append").foreachBatch(keep).trigger(availableNow=True).start()
    query.awaitTermination()
    return sorted(rows)


@pytest.mark.parametrize(
    ("size", "slide"), [("10 seconds", "1 second"), pytest.param("12 seconds", "4 seconds", marks=pytest.mark.full)]
)
def test_the_windows_are_those_of_spark(spark: SparkSession, tmp_path: Path, size: str, slide: str) -> None:
    for number in range(4):
        events = [
            {
                "time": f"2026-01-01T00:00:{number * 11 + step:02d}.{step}00Z",
                "name": "ab"[step % 4 > 1],
                "value": step + 1,
            }
            for step in range(0, 10, 2 if number % 2 else 3)
        ]
        (tmp_path / f"{number}.json").write_text("\n".join(map(json.dumps, events)))

    def stream() -> DataFrame:
        reader = spark.readStream.schema("time timestamp, name string, value bigint").option("maxFilesPerTrigger", 1)
        return panes(reader.json(str(tmp_path)))

    ours = sliding(stream(), "pane", size, slide).groupBy("window", "name")
    theirs = stream().groupBy(F.window("pane", size, slide), "name")
    columns = (F.sum("value").alias("value"),)
    found = written(spark, ours.agg(*columns).select("window.start", "window.end", "name", "value"))
    expected = written(spark, theirs.agg(*columns).select("window.start", "window.end", "name", "value"))
    assert len(expected) > 5
    assert found == expected
