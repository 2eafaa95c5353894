"""Two stateful queries on real Spark, over a source whose rows are known in advance.

``CHECKPOINTS OUT LAST``: rows come 50 a batch, batch ``k`` at second ``0.3 * k``, values counting up. Each query writes
what it emits in batch ``n`` to ``OUT/QUERY/n.json``. The process kills itself inside batch LAST of each query, after
planning it and before its commit: what a crash leaves behind.

Given several times, each continues from its own checkpoints up to its batch LAST, one after the other; then the
process kills itself. Connection settings come from the environment.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ROWS, STEP_MS = 50, 300
CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # as drivers have it
    "spark.sql.shuffle.partitions": "2",
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "4",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


def expected(query: str, end_s: int) -> tuple[int, int]:
    """Sum and count of the window that ends at ``end_s``, in plain Python."""
    length = 1 if query == "tumble" else 5
    batches = [k for k in range(end_s * 1000 // STEP_MS + 1) if (end_s - length) * 1000 <= k * STEP_MS < end_s * 1000]
    values = [value for k in batches for value in range(k * ROWS, (k + 1) * ROWS)]
    return sum(values), len(values)


def queries(events: DataFrame) -> dict[str, DataFrame]:
    """A window, and windows over it."""
    pane = events.groupBy(F.window("timestamp", "1 second").alias("pane")).agg(
        F.sum("value").alias("s"), F.count("*").alias("n")
    )
    chained = pane.groupBy(F.window("pane", "5 seconds", "1 second").alias("w")).agg(
        F.sum("s").alias("s"), F.sum("n").alias("n")
    )
    return {
        "tumble": pane.select(F.col("pane.end").cast("long").alias("end"), "s", "n"),
        "chain": chained.select(F.col("w.end").cast("long").alias("end"), "s", "n"),
    }


def main(runs: list[tuple[str, Path, int]]) -> None:
    builder = SparkSession.builder.master("local[2]")
    for key, value in CONF.items():
        builder = builder.config(key, value)
    spark = builder.config("spark.hadoop.fs.s3a.endpoint", os.environ["ENDPOINT"]).getOrCreate()
    for checkpoints, out, last in runs:
        run(spark, checkpoints, out, last, then=kill if (checkpoints, out, last) == runs[-1] else None)


def kill() -> None:
    os.kill(os.getpid(), 9)


def run(spark: SparkSession, checkpoints: str, out: Path, last: int, then: Callable[[], None] | None) -> None:
    """Both queries until each is in batch ``last``, where ``then`` is called or else both are stopped."""
    reached: set[str] = set()
    change = threading.Condition()

    def sink(query: str):
        def write(batch: DataFrame, number: int) -> None:
            rows = [(row.end, row.s, row.n) for row in batch.collect()]
            (out / query / f"{number:06d}.json").write_text(json.dumps(rows))
            if number >= last:
                with change:
                    reached.add(query)
                    change.notify_all()
                    if len(reached) == 2 and then:
                        then()
                if then:
                    threading.Event().wait()  # the other query's last batch ends the process

        return write

    running = []
    for name in ("tumble", "chain"):
        (out / name).mkdir(parents=True, exist_ok=True)
        reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 1)
        reader = reader.option("startTimestamp", 0).option("advanceMillisPerBatch", STEP_MS)
        events = reader.name("events").load().withWatermark("timestamp", "0 seconds")
        writer = queries(events)[name].writeStream.outputMode("append").trigger(processingTime="200 milliseconds")
        place = f"{checkpoints}/{name}"
        running.append(writer.option("checkpointLocation", place).foreachBatch(sink(name)).start())
    while len(reached) < 2:
        with change:
            change.wait(1)
        if failed := [str(query.exception())[:2000] for query in running if query.exception()]:
            print(failed, flush=True)
            os._exit(3)
    if then:
        threading.Event().wait()
    for query in running:
        query.stop()


if __name__ == "__main__":
    given = sys.argv[1:]
    main([(root, Path(out), int(last)) for root, out, last in zip(given[::3], given[1::3], given[2::3], strict=True)])
