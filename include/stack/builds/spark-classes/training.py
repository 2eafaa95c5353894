"""What a driver and an executor do, in small: run at set-up, while Java notes which classes they load.

Whatever fails here only leaves classes out of the archive, and a start then reads those from their jars.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from streamops_runtime.session import STREAMING

BATCHES = 4
CLOSED = "127.0.0.1:9"  # nothing listens on the port for discarding
OBJECT_STORE = {
    "endpoint": f"http://{CLOSED}",
    "endpoint.region": "us-east-1",
    "path.style.access": "true",
    "connection.ssl.enabled": "false",
    "aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "access.key": "nobody",
    "secret.key": "nothing",
    "attempts.maximum": "1",
    "retry.limit": "0",
    "input.stream.type": "classic",
}
ON_DISK = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.port": "0",
}
# Stopping the state store keeps a lock that maintenance at work waits for, until both give up after six minutes.
WITHOUT_MAINTENANCE = {"spark.sql.streaming.stateStore.maintenanceInterval": "1h"}
# What only a cluster has: the rest of it is loaded by the queries below.
ON_A_CLUSTER = (
    STREAMING["spark.sql.streaming.checkpointFileManagerClass"],
    "org.apache.spark.deploy.worker.DriverWrapper",
    "org.apache.spark.deploy.worker.WorkerWatcher",
    "org.apache.spark.deploy.client.StandaloneAppClient",
    "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "org.apache.spark.scheduler.cluster.StandaloneSchedulerBackend",
    "org.apache.spark.scheduler.cluster.CoarseGrainedSchedulerBackend",
    "org.apache.spark.sql.kafka010.KafkaDataConsumer",
    "org.apache.spark.sql.kafka010.KafkaMicroBatchStream",
    "org.apache.spark.sql.kafka010.KafkaBatchPartitionReader",
    "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider",
)


def main() -> None:
    """Run queries as jobs have them, then reach for an object store and a broker that are not there."""
    with tempfile.TemporaryDirectory() as directory:
        builder = SparkSession.builder.appName("training").config("spark.local.dir", directory)
        for key, value in settings().items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("WARN")
        _write_events(Path(directory) / "events")
        one, other = (_events(spark, Path(directory) / "events", name) for name in ("one", "other"))
        for number, rows in enumerate((_windows(one), _chained(one), _distinct(one), _joined(one, other))):
            _finish(_start(rows, Path(directory) / f"checkpoint-{number}"))
        for attempt in (_object_store, _broker, _cluster):
            with suppress(Exception):
                attempt(spark)
        # Or its threads may still be at work when Java writes the archive at its end, and take the process with them.
        spark.sparkContext._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        spark.stop()


def settings() -> dict[str, str]:
    """Those of jobs, on the local disk."""
    object_store = {f"spark.hadoop.fs.s3a.{key}": value for key, value in OBJECT_STORE.items()}
    return STREAMING | object_store | ON_DISK | WITHOUT_MAINTENANCE


def _write_events(directory: Path) -> None:
    """JSON lines, a file for each second."""
    directory.mkdir()
    for second in range(BATCHES):
        rows = [{"key": f"k{n % 5}", "value": n, "time": 1000 * second + n} for n in range(100)]
        (directory / f"{second}.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def _events(spark: SparkSession, directory: Path, name: str) -> DataFrame:
    """A stream of them, a file in each batch."""
    lines = spark.readStream.name(name).option("maxFilesPerTrigger", 1).text(str(directory))
    parsed = F.from_json(F.col("value").cast("binary").cast("string"), "key string, value long, time long")
    read = lines.select(parsed.alias("event")).where("event.key is not null").select("event.*")
    return read.select("key", "value", F.timestamp_millis("time").alias("time"))


def _windows(events: DataFrame) -> DataFrame:
    grouped = events.withWatermark("time", "1 second").groupBy(F.window("time", "1 second"), "key")
    return grouped.agg(F.sum("value").alias("sum"), F.count("*").alias("count")).select(
        "key", (F.col("sum").cast("double") / F.col("count")).alias("mean"), F.col("window.end").alias("time")
    )


def _chained(events: DataFrame) -> DataFrame:
    panes = events.withWatermark("time", "1 second").groupBy(F.window("time", "1 second").alias("pane"), "key")
    summed = panes.agg(F.sum("value").alias("sum"))
    return summed.groupBy(F.window("pane", "3 seconds", "1 second")).agg(F.max("sum").alias("most"))


def _distinct(events: DataFrame) -> DataFrame:
    return events.withWatermark("time", "1 second").dropDuplicatesWithinWatermark(["key"])


def _joined(one: DataFrame, other: DataFrame) -> DataFrame:
    left = one.withWatermark("time", "1 second")
    right = other.select(F.col("key").alias("other"), F.col("time").alias("at")).withWatermark("at", "1 second")
    return left.join(right, F.expr("key = other and at between time and time + interval 1 second")).select("key", "at")


def _start(rows: DataFrame, checkpoint: Path) -> StreamingQuery:
    def collect(batch: DataFrame, _: int) -> None:
        batch.toArrow()

    writer = rows.writeStream.foreachBatch(collect).outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()


def _finish(query: StreamingQuery) -> None:
    with suppress(PySparkException):
        query.processAllAvailable()
    query.stop()


def _object_store(spark: SparkSession) -> None:
    spark.read.text("s3a://nothing/here").collect()


def _broker(spark: SparkSession) -> None:
    options = {"kafka.bootstrap.servers": CLOSED, "subscribe": "nothing", "kafka.default.api.timeout.ms": "500"}
    options |= {"kafka.request.timeout.ms": "400", "fetchOffset.numRetries": "1"}
    topic = spark.read.format("kafka").options(**options).load()
    topic.select(F.col("value").cast("string")).collect()


def _cluster(spark: SparkSession) -> None:
    jvm = spark.sparkContext._jvm
    for name in ON_A_CLUSTER:
        with suppress(Exception):
            jvm.java.lang.Class.forName(name)


if __name__ == "__main__":
    main()
