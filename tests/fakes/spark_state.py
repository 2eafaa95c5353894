"""Queries of every stateful kind on real Spark, over rows that are known in advance: ``DIRECTORY``.

Rows come 100 a file, one file a batch, 10 seconds of event time each; the checkpoint of a query is ``DIRECTORY/NAME``.
Full versions are uploaded every three versions, so that the last one is reached through changelogs only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from streamops_runtime.local import local_spark
from streamops_runtime.session import STREAMING

KEYS, EVERY_MS, ROWS, FILES, PARTITIONS = 7, 100, 100, 7, 2


def rows(file: int) -> list[dict[str, Any]]:
    """The events of one file; the first key has a name that must be quoted wherever it stands."""
    numbers = range(file * ROWS, (file + 1) * ROWS)
    return [{"k": key(number), "n": number % KEYS, "t": number * EVERY_MS, "v": number} for number in numbers]


def key(number: int) -> str:
    """The key of an event."""
    return f"k{number % KEYS}" if number % KEYS else 'it\'s "0"=ä'


class Counter(StatefulProcessor):
    """Counts the events of a key, and keeps the last one."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "events long")
        self.last = handle.getValueState("last", "v long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        values = [row.v for row in rows]
        had = self.count.get()[0] if self.count.exists() else 0
        self.count.update((had + len(values),))
        self.last.update((max(values),))
        yield Row(k=key[0])

    def close(self) -> None:
        pass


def queries(spark: SparkSession, place: str) -> Iterator[tuple[str, DataFrame]]:
    """Name and plan of each."""

    def events(name: str, delay: str = "0 seconds") -> DataFrame:
        reader = spark.readStream.schema("k string, n int, t bigint, v bigint").option("maxFilesPerTrigger", 1)
        found = reader.name(name).json(place).withColumn("time", F.timestamp_millis("t"))
        return found.withWatermark("time", delay)

    panes = events("events").groupBy(F.window("time", "10 seconds").alias("pane"), "k", "n").agg(F.sum("v").alias("s"))
    yield "chain", panes.groupBy(F.window("pane", "100 seconds"), "k").agg(F.sum("s").alias("s"))
    left, right = events("left").alias("l"), events("right").alias("r")
    both = F.expr("l.v = r.v and l.time between r.time and r.time + interval 5 seconds")
    yield "joined", left.join(right, both).select("l.k")
    yield "once", events("events", "1 hour").dropDuplicatesWithinWatermark(["k"])
    yield "plain", events("events").select("k")
    yield (
        "counted",
        events("events")
        .groupBy("k")
        .transformWithState(
            statefulProcessor=Counter(), outputStructType="k string", outputMode="Append", timeMode="None"
        ),
    )


def main(directory: Path) -> None:
    place = directory / "in"
    place.mkdir()
    for file in range(FILES):
        path = place / f"{file}.json"
        path.write_text("\n".join(json.dumps(row) for row in rows(file)))
        os.utime(path, (1_700_000_000 + file, 1_700_000_000 + file))  # the order in which Spark takes them
    with local_spark() as spark:
        for name, value in STREAMING.items():
            if not name.endswith("checkpointFileManagerClass"):  # that is for an object store
                spark.conf.set(name, value)
        spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        spark.conf.set("spark.sql.streaming.stateStore.maintenanceInterval", "100ms")
        spark.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "3")
        for name, frame in queries(spark, str(place)):
            writer = frame.writeStream.outputMode("append").trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(directory / name))
            # Time for the maintenance to upload full versions.
            writer.foreachBatch(lambda batch, number: (batch.collect(), time.sleep(0.4))[0]).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
