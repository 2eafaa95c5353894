"""A short run of every stage before the real one: loads classes, compiles plans, opens connections.

Each stage runs as a stream over the last moment of its sources, with a checkpoint of its own that is removed
afterwards, and with nothing written. Each further round continues from that checkpoint, so that loading state is warm
as well. The first real batch then finds driver and executors warm.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from streamops.model.definitions import Definition
from streamops.model.errors import StreamOpsError
from streamops.settings import Settings
from streamops.spark import checkpoints
from streamops.store import keys
from streamops.store.object_store import ObjectStore
from streamops_runtime.code import StageFunction, reads
from streamops_runtime.gate import StopAtBoundary
from streamops_runtime.sources import accepted
from streamops_runtime.streams import Places, raw_stream

RECENT_MS = 2000
LIMIT_S = 45.0  # on a machine that also runs the version to be replaced
_MANY, _FEW = 100, 4  # batches of a stage

log = logging.getLogger("warmup")


@dataclass(frozen=True)
class _End:
    """When the queries of a round end: all of them soon, or each after so many batches."""

    batches: int
    come: threading.Event = field(default_factory=threading.Event)


def run_all(
    spark: SparkSession,
    settings: Settings,
    store: ObjectStore,
    definition: Definition,
    functions: Mapping[str, StageFunction],
    where: Places,
    launch: str,
    rounds: int = 1,
) -> None:
    """Run all stages at once; what goes wrong here is logged and otherwise of no consequence.

    A stage that reads another is left out: what it would read is there only once the real ones run.

    Args:
        rounds: the first lasts ``LIMIT_S`` seconds and the batch after it at most, each other a few batches.
    """
    # Of its own: what another driver of the launch left, or still writes, would keep the queries from starting.
    prefix = f"{keys.warm_up(definition.job, launch)}{uuid.uuid4().hex}/"
    try:
        for number in range(rounds):
            begun, end = time.monotonic(), _End(_FEW if number else _MANY)
            queries = []
            for name, function in functions.items():
                if reads(definition, function):
                    continue
                checkpoints.drop_planned(store, f"{prefix}{name}/")  # of the round before
                frame = _recent(spark, definition, function, where)
                queries.append(_start(spark, frame, f"s3a://{settings.s3_bucket}/{prefix}{name}", end))
            _wait(queries, end, begun + LIMIT_S)
            log.info("warm-up %s of %s took %.1f s", number + 1, rounds, time.monotonic() - begun)
    except (PySparkException, StreamOpsError) as error:
        end.come.set()
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


def _start(spark: SparkSession, frame: DataFrame, checkpoint: str, end: _End) -> StreamingQuery:
    done = 0

    def discard(batch: DataFrame, batch_id: int) -> None:
        nonlocal done
        if end.come.is_set() or done == end.batches:
            raise StopAtBoundary("warm-up")
        batch.collect()
        done += 1

    writer = frame.writeStream.outputMode("append").option("checkpointLocation", checkpoint)
    return writer.foreachBatch(discard).trigger(availableNow=True).start()


def _wait(queries: list[StreamingQuery], end: _End, deadline: float) -> None:
    while any(query.isActive for query in queries):
        if time.monotonic() > deadline:
            end.come.set()  # at the next batch of each
        time.sleep(0.1)
    for query in queries:
        if (error := query.exception()) and StopAtBoundary.__name__ not in str(error):
            log.warning("warm-up: %s", str(error).splitlines()[0][:300])
