"""A short run of every stage before the real one: loads classes, compiles plans, opens connections.

Each stage runs as a stream over the last moment of its sources, with a checkpoint of its own that is removed
afterwards. Nothing is written to its sinks. A real-time stage runs in real time alone, as it will when it continues
what was committed a moment ago; its results go into a topic that is removed as well. Each further round continues from
the checkpoint, so that loading state is warm as well. The first real batch then finds driver and executors warm.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import confluent_kafka
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import NumericType

from streamops.clients.kafka import Ledger
from streamops.model.definitions import Definition, Kafka, Source
from streamops.model.errors import StreamOpsError
from streamops.settings import Settings
from streamops.spark import checkpoints
from streamops.store import keys
from streamops.store.object_store import ObjectStore
from streamops_runtime.code import StageFunction
from streamops_runtime.gate import StopAtBoundary
from streamops_runtime.results import encoded
from streamops_runtime.sources import accepted, kafka_stream, schema_of
from streamops_runtime.stages import to_topic
from streamops_runtime.streams import Places, raw_stream

RECENT_MS = 1000
LIMIT_S = 30.0  # on a machine that also runs the version to be replaced
LIVE_BATCH = "5 seconds"  # in real time
_MANY, _FEW = 100, 4  # batches of a stage
_INVENTED = 200  # records

log = logging.getLogger("warmup")
W = TypeVar("W", DataStreamWriter, DataFrameWriter)


@dataclass(frozen=True)
class _End:
    """When the queries of a round end: all of them soon, or each after so many batches."""

    batches: int
    come: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class WarmUp:
    """The stages of a version, run for a moment.

    Args:
        places: where its sources read.
        launch: names what is written meanwhile, and removed at the end.
    """

    spark: SparkSession
    settings: Settings
    store: ObjectStore
    definition: Definition
    functions: Mapping[str, StageFunction]
    places: Places
    launch: str

    def run(self, rounds: int = 1) -> None:
        """Run all stages at once; what goes wrong here is logged and otherwise of no consequence.

        Args:
            rounds: the first lasts ``LIMIT_S`` seconds and the batch after it at most, each other a few batches.
        """
        # Of its own: what another driver of the launch left, or still writes, would keep the queries from starting.
        prefix = f"{keys.warm_up(self.definition.job, self.launch)}{uuid.uuid4().hex}/"
        ledger, end = Ledger.at(self.places.kafka), _End(_MANY)
        try:
            self._prepare_topics(ledger)
            for number in range(rounds):
                begun, end = time.monotonic(), _End(_FEW if number else _MANY)
                queries = {name: self._start(name, prefix, end) for name in self.functions}
                live = [query for name, query in queries.items() if self._is_live(name)]
                _wait(queries.values(), end, begun + LIMIT_S, live)
                log.info("warm-up %s of %s took %.1f s", number + 1, rounds, time.monotonic() - begun)
        except (PySparkException, StreamOpsError) as error:
            end.come.set()
            log.warning("warm-up was left out: %s", str(error).splitlines()[0][:300])
        finally:
            try:
                ledger.delete_topics(keys.warm_up_topics(self.definition.job, self.launch))
                self.store.delete(
                    [info.key for info in self.store.list(keys.warm_up(self.definition.job, self.launch))]
                )
            except StreamOpsError as error:
                log.warning("what the warm-up wrote is not removed: %s", error)
            ledger.close()

    def _is_live(self, stage: str) -> bool:
        return self.definition.stages[stage].realtime

    def _topic(self, name: str) -> str:
        """Where a stage's results go meanwhile, or what a source reads instead of what a stage hands on."""
        return f"{keys.warm_up_topics(self.definition.job, self.launch)}{name}"

    def _prepare_topics(self, ledger: Ledger) -> None:
        for stage in filter(self._is_live, self.functions):
            ledger.ensure_topic(self._topic(stage))
        for name, source in self.definition.sources.items():
            if source.stage:  # there is nothing to read before the real stage runs
                ledger.ensure_topic(self._topic(f"source.{name}"))
                _invent(self.places.kafka, self._topic(f"source.{name}"), name, source)

    def _frame(self, stage: str) -> DataFrame:
        frames, function, live = {}, self.functions[stage], self._is_live(stage)
        for name in function.sources:
            source = self.definition.sources[name]
            place = self.places.places.get(name, source.address)
            if source.stage:
                raw = kafka_stream(
                    self.spark, name, source, self.places.kafka, topic=self._topic(f"source.{name}"), live=live
                )
            elif source.kafka and live:
                raw = kafka_stream(self.spark, name, _latest(source), self.places.kafka, topic=place, live=True)
            elif source.kafka:
                raw = _recent(self.spark, name, self.places.kafka, place)
            else:  # what is there already belongs to the version that runs
                raw = raw_stream(self.spark, name, _latest(source), self.places)
            frames[name] = accepted(name, source, raw)
        return function(frames)

    def _start(self, stage: str, prefix: str, end: _End) -> StreamingQuery:
        """Start a stage: in real time, or in batches until the end comes."""
        checkpoints.drop_planned(self.store, f"{prefix}{stage}/")  # of the round before
        frame, output = self._frame(stage), self.definition.stages[stage].output
        sink = self.definition.stages[stage].sinks[0].influxdb
        live = self._is_live(stage) and sink
        if live:
            frame = encoded(frame, live, 0, 0)
        writer = frame.writeStream.outputMode(output).option(
            "checkpointLocation", f"s3a://{self.settings.s3_bucket}/{prefix}{stage}"
        )
        if live:
            return apart(to_topic(writer, self.places.kafka, self._topic(stage), LIVE_BATCH)).start()
        return _discarded(writer, end)


def apart(writer: W) -> W:
    """With a producer of its own.

    Executors share one among all queries with the same settings, and each commit waits until all that it was given is
    sent. What the end of a warm-up leaves unsent, to a topic that is then removed, held up the first commits of the
    real queries for two minutes.
    """
    writer = writer.option("kafka.client.id", "warm-up").option("kafka.request.timeout.ms", "10000")
    return writer.option("kafka.delivery.timeout.ms", "20000")


def _latest(source: Source) -> Source:
    """The source, read from its end."""
    return source.model_copy(update={"start": "latest"})


def _recent(spark: SparkSession, name: str, servers: str, place: str) -> DataFrame:
    of = Kafka.at(place)
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", of.servers or servers)
        .option("subscribe", of.topic)
        .option("startingTimestamp", str(int(time.time() * 1000) - RECENT_MS))
        .option("startingOffsetsByTimestampStrategy", "latest")
        .option("maxOffsetsPerTrigger", 5000)
        .name(name)
        .load()
    )


def _invent(servers: str, topic: str, name: str, source: Source) -> None:
    """Write some records of a source's schema."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "log_level": 0})
    for row in invented(name, source, int(time.time() * 1000)):
        producer.produce(topic, json.dumps(row).encode(), partition=0)
    producer.flush(10)


def invented(name: str, source: Source, at_ms: int) -> list[dict[str, object]]:
    """Records of a source's schema that happened at a time in epoch ms; no number is 0, since a stage may divide."""
    fields = schema_of(name, source).fields
    return [
        {field.name: number if isinstance(field.dataType, NumericType) else str(number) for field in fields}
        | ({source.event_time: at_ms} if source.event_time else {})
        for number in range(1, _INVENTED + 1)
    ]


def _discarded(writer: DataStreamWriter, end: _End) -> StreamingQuery:
    done = 0

    def discard(batch: DataFrame, batch_id: int) -> None:
        nonlocal done
        if end.come.is_set() or done == end.batches:
            raise StopAtBoundary("warm-up")
        batch.collect()
        done += 1

    return writer.foreachBatch(discard).trigger(availableNow=True).start()


def _wait(queries: Collection[StreamingQuery], end: _End, deadline: float, live: Collection[StreamingQuery]) -> None:
    """Until all have ended: those in real time with their first commit, the others after the deadline at a batch."""
    while any(query.isActive for query in queries):
        late = time.monotonic() > deadline
        for query in live:
            if query.isActive and (late or query.recentProgress):
                query.stop()
        if late:
            end.come.set()
        time.sleep(0.1)
    for query in queries:
        if (error := query.exception()) and StopAtBoundary.__name__ not in str(error):
            log.warning("warm-up: %s", str(error).splitlines()[0][:300])
