"""One run of a stage on recent records, as a batch: loads classes, compiles plans, opens connections."""

from __future__ import annotations

import time

from pyspark.sql import SparkSession

from streamops.definitions import Definition
from streamops.records import Deployment
from streamops.settings import Settings
from streamops_runtime.code import StageFunction
from streamops_runtime.sources import accepted

RECENT_MS = 3000


def run_once(
    spark: SparkSession, definition: Definition, function: StageFunction, settings: Settings, deployment: Deployment
) -> int:
    """Run a stage's function on the last seconds of its sources and return the number of rows it gave."""

    frames = {}
    for name in function.sources:
        source = definition.sources[name]
        topic = deployment.topics.get(name, source.kafka.topic)
        raw = (
            spark.read.format("kafka")
            .option("kafka.bootstrap.servers", settings.kafka_bootstrap_servers)
            .option("subscribe", topic)
            .option("startingTimestamp", str(int(time.time() * 1000) - RECENT_MS))
            .option("startingOffsetsByTimestampStrategy", "latest")
            .option("endingOffsets", "latest")
            .load()
        )
        frames[name] = accepted(name, source, raw, count=False)
    return len(function(frames).collect())
