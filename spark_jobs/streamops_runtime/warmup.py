"""A short run of every stage before the real one: loads classes, compiles plans, opens connections.

Each stage runs as a stream over the last moment of its sources, with a checkpoint of its own that is removed
afterwards, and with nothing written. The first real batch then finds driver and executors warm.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from streamops import keys
from streamops.adapters.object_store import ObjectStore
from streamops.definitions import Definition
from streamops.errors import StreamOpsError
from streamops.settings import Settings
from streamops_runtime.code import StageFunction
from streamops_runtime.gate import StopAtBoundary
from streamops_runtime.sources import accepted
from streamops_runtime.streams import Places, raw_stream

RECENT_MS = 2000
LIMIT_S = 45.0  # on a machine that also runs the version to be replaced

log = logging.getLogger("warmup")


def run_all(
    spark: SparkSession,
    settings: Settings,
    store: ObjectStore,
    definition: Definition,
    functions: Mapping[str, StageFunction],
    where: Places,
    launch: str,
) -> None:
    """Run all stages at once; what goes wrong here is logged and otherwise of no consequence."""
    enough = threading.Event()
    # Of its own: what another driver of the launch left, or still writes, would keep the queries from starting.
    prefix = f"{keys.warm_up(definition.job, launch)}{uuid.uuid4().hex}/"
    queries: list[StreamingQuery] = []
    try:
        for name, function in functions.items():
            frame = _recent(spark, definition, function, where)
            queries.append(_start(spark, frame, f"s3a://{settings.s3_bucket}/{prefix}{name}", enough))
        deadline = time.monotonic() + LIMIT_S
        while any(query.isActive for query in queries):
            if time.monotonic() > deadline:
                enough.set()  # they end at their next batch
            time.sleep(0.1)
        for query in queries:
            if (error := query.exception()) and StopAtBoundary.__name__ not in str(error):
                log.warning("warm-up: %s", str(error).splitlines()[0][:300])
    except (PySparkException, StreamOpsError) as error:
        enough.set()
        log.warning("warm-up was left out: %s", str(error).splitlines()[0][:300])
    finally:
        try:
            store.delete([info.key for info in store.list(keys.warm_up(definition.job, launch))])
        except StreamOpsError as error:
            log.warning("what the warm-up wrote is not removed: %s", error)


def _recent(spark: SparkSession, definition: Definition, function: StageFunction, where: Places) -> DataFrame:
    frames = {}
    for name in function.sources:
        source = definition.sources[name]
        if not source.kafka:  # what is there already belongs to the version that runs
            end = source.model_copy(update={"start": "latest"})
            frames[name] = accepted(name, source, raw_stream(spark, name, end, where))
            continue
        raw = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", where.kafka)
            .option("subscribe", where.places.get(name, source.address))
            .option("startingTimestamp", str(int(time.time() * 1000) - RECENT_MS))
            .option("startingOffsetsByTimestampStrategy", "latest")
            .option("maxOffsetsPerTrigger", 5000)
            .name(name)
            .load()
        )
        frames[name] = accepted(name, source, raw)
    return function(frames)


def _start(spark: SparkSession, frame: DataFrame, checkpoint: str, enough: threading.Event) -> StreamingQuery:
    def discard(batch: DataFrame, batch_id: int) -> None:
        if enough.is_set():
            raise StopAtBoundary("warm-up")
        batch.collect()

    writer = frame.writeStream.outputMode("append").option("checkpointLocation", checkpoint)
    return writer.foreachBatch(discard).trigger(availableNow=True).start()
