"""Spark's settings for every job. Most of them cannot be changed later for an existing checkpoint."""

from __future__ import annotations

from pyspark.sql import SparkSession

from streamops.model.definitions import Definition

STREAMING = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    # Without renames: a third of the requests, and a commit that is there or not.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
    # Between full versions of the state each batch leaves a changelog. A driver that takes over copies and replays all
    # of them before its first result, and a snapshot copies them; Spark's own minute holds a hundred and more.
    "spark.sql.streaming.stateStore.maintenanceInterval": "15s",
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.streaming.noDataProgressEventInterval": "2000",
    "spark.sql.streaming.numRecentProgressUpdates": "5",
    "spark.sql.streaming.pollingDelay": "25ms",
    "spark.sql.streaming.stopTimeout": "60s",
}


def configure(spark: SparkSession, definition: Definition) -> None:
    """Set what every job has, then what the definition asks for."""
    for key, value in STREAMING.items():
        spark.conf.set(key, value)
    spark.conf.set("spark.sql.shuffle.partitions", str(definition.resources.state_partitions))
    for key, value in definition.spark.items():
        if key.startswith("spark.sql."):
            spark.conf.set(key, str(value).lower() if isinstance(value, bool) else str(value))
