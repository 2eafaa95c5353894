"""State of a window brought into more partitions, copied as a snapshot is, and brought into fewer: ``ENV_FILE WORK``.

Prints one JSON object: how many partitions the state lay in after each part, and every point that was written.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fakes.spark_queries import CONF
from streamops.settings import Settings
from streamops.spark import checkpoints
from streamops.store.object_store import ObjectStore
from streamops_runtime import repartition

KEYS, EVERY_MS, WINDOW_MS, ROWS = 7, 100, 10_000, 300


def rows(part: int) -> list[dict[str, int | str]]:
    """The events of one part, in the order of time."""
    numbers = range(part * ROWS, (part + 1) * ROWS)
    return [{"k": f"k{number % KEYS}", "t": number * EVERY_MS, "v": number} for number in numbers]


def expected(parts: int) -> dict[str, int]:
    """Sums by key and end of window, in plain Python."""
    sums: dict[str, int] = {}
    for number in range(parts * ROWS):
        end = (number * EVERY_MS // WINDOW_MS + 1) * WINDOW_MS
        name = f"k{number % KEYS}@{end}"
        sums[name] = sums.get(name, 0) + number
    return sums


def main(env: Path, work: Path) -> None:
    settings = Settings.load(env)
    store = ObjectStore(settings)
    builder = SparkSession.builder.master("local[2]")
    for key, value in CONF.items():
        builder = builder.config(key, value)
    spark = builder.config("spark.hadoop.fs.s3a.endpoint", settings.s3_endpoint).getOrCreate()
    points: dict[str, list[int]] = {}
    found: list[int | None] = []
    (work / "in").mkdir()

    def sink(batch: DataFrame, number: int) -> None:
        for row in batch.collect():
            points.setdefault(f"{row.k}@{row.end}", []).append(row.v)

    def run(part: int, prefix: str, partitions: int) -> None:
        """One driver: bring the state over if need be, take in one part, end."""
        (work / "in" / f"{part}.json").write_text("\n".join(json.dumps(row) for row in rows(part)))
        spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        repartition.fit(spark, store, "sums", prefix, partitions)
        events = spark.readStream.schema("k string, t bigint, v bigint").name("events").json(str(work / "in"))
        sums = (
            events.withColumn("time", F.timestamp_millis("t"))
            .withWatermark("time", "0 seconds")
            .groupBy(F.window("time", "10 seconds"), "k")
            .agg(F.sum("v").alias("v"))
            .select("k", F.unix_millis("window.end").alias("end"), "v")
        )
        writer = sums.writeStream.outputMode("append").option("checkpointLocation", f"s3a://{store.bucket}/{prefix}")
        writer.foreachBatch(sink).trigger(availableNow=True).start().awaitTermination()
        found.append(checkpoints.state_partitions(store, prefix))

    run(0, "checkpoints/one/", 2)
    run(1, "checkpoints/one/", 4)
    checkpoints.copy_last(store, "checkpoints/one/", "checkpoints/two/")
    run(2, "checkpoints/two/", 4)
    run(3, "checkpoints/two/", 1)
    checkpoints.copy_last(store, "checkpoints/two/", "checkpoints/three/")
    run(4, "checkpoints/three/", 1)
    print(json.dumps({"partitions": found, "points": points}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
