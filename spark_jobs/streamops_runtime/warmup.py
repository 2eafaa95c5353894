"""A short run of every stage before the real one: loads classes, compiles plans, opens connections.

Each stage runs as a stream over what comes, with a checkpoint of its own that is removed afterwards. Nothing is written
to its sinks. A real-time stage runs in real time alone, as it will when it continues what was committed a moment ago;
its results go into a topic that is removed as well. The first real batch then finds driver and executors warm.

A stage is warm when its batches get no quicker any more. Then each continues from its checkpoint for a batch, because
loading state is code of its own. One comes after the other, so that the version that runs has most of the machine
meanwhile; what is compiled for one helps the next.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import confluent_kafka
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from pyspark.sql.types import NumericType

from streamops.clients.kafka import Ledger
from streamops.model.definitions import Definition, Source
from streamops.model.errors import StreamOpsError
from streamops.settings import Settings
from streamops.spark import checkpoints
from streamops.store import keys
from streamops.store.object_store import ObjectStore
from streamops_runtime.code import StageFunction
from streamops_runtime.gate import StopAtBoundary, collected
from streamops_runtime.result_records import encoded
from streamops_runtime.sources import accepted, schema_of
from streamops_runtime.stages import to_topic
from streamops_runtime.streams import Places, raw_stream

LIMIT_S = 60.0  # until warm, on a machine that also runs the version to be replaced
IN_ALL_S = 90.0  # with loading state; an upgrade waits for its standby for three minutes, unless it was told otherwise
LIVE_BATCH = "5 seconds"  # in real time
FASTER = 1.25  # times what was read a second before: there is still something to compile
_LEAST = 2  # batches
_LOOK_S = 0.5
_KEYS, _SECONDS = 100, 20  # invented: as many records a second

log = logging.getLogger("warmup")
W = TypeVar("W", DataStreamWriter, DataFrameWriter)


def is_warm(rates: Sequence[float]) -> bool:
    """Whether the last batch was hardly quicker than those before it: rows a second of each, in their order."""
    return len(rates) >= _LEAST and rates[-1] <= FASTER * max(rates[:-1])


@dataclass(frozen=True)
class WarmUp:
    """The stages of a version, run for a moment.

    Args:
        places: where its sources read.
        launch: names what is written meanwhile, and removed at the end.
        dismissed: whether the driver has something else to do, or is not wanted any more.
    """

    spark: SparkSession
    settings: Settings
    store: ObjectStore
    definition: Definition
    functions: Mapping[str, StageFunction]
    places: Places
    launch: str
    dismissed: Callable[[], bool]

    def run(self) -> None:
        """Run the stages one after the other; what goes wrong here is logged and otherwise of no consequence."""
        if self.dismissed():
            return
        # Of its own: what another driver of the launch left, or still writes, would keep the queries from starting.
        prefix = f"{keys.warm_up(self.definition.job, self.launch)}{uuid.uuid4().hex}/"
        ledger = Ledger.at(self.places.kafka)
        try:
            self._prepare_topics(ledger)
            left, first = [*self.functions], time.monotonic()
            deadline = first + LIMIT_S
            while left and not self.dismissed():  # what the first compiles, the others need not
                begun, stage = time.monotonic(), left.pop(0)
                enough = bool if self._is_invented(stage) else is_warm  # what is invented is read in a batch
                rates = self._practise(stage, prefix, enough, begun + (deadline - begun) / (2 if left else 1))
                log.info(
                    "warm-up of %s took %.1f s: %s rows/s", stage, time.monotonic() - begun,
                    ", ".join(f"{rate:,.0f}" for rate in rates) or "no",
                )  # fmt: skip
            begun = time.monotonic()
            for stage in self.functions:
                if not self.dismissed() and time.monotonic() < first + IN_ALL_S:
                    self._practise(stage, prefix, bool, first + IN_ALL_S)  # a batch: it has loaded its state then
            log.info("warm-up of loading state took %.1f s", time.monotonic() - begun)
        except (PySparkException, StreamOpsError) as error:
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

    def _is_invented(self, stage: str) -> bool:
        """Whether all that a stage practises on is invented."""
        return all(self.definition.sources[name].stage for name in self.functions[stage].sources)

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
        function, live = self.functions[stage], self._is_live(stage)
        of = {name: self.definition.sources[name] for name in function.sources}
        handed_on = {name: self._topic(f"source.{name}") for name, source in of.items() if source.stage}
        places = replace(self.places, places={**self.places.places, **handed_on})
        # What is there already belongs to the version that runs.
        latest = {
            name: source if source.stage else source.model_copy(update={"start": "latest"})
            for name, source in of.items()
        }
        raw = {name: raw_stream(self.spark, name, source, places, live=live) for name, source in latest.items()}
        return function({name: accepted(name, of[name], frame) for name, frame in raw.items()})

    def _start(self, stage: str, prefix: str, ended: threading.Event) -> StreamingQuery:
        """Start a stage, in real time or in batches."""
        checkpoints.drop_planned(self.store, f"{prefix}{stage}/")  # of the round before
        frame, output = self._frame(stage), self.definition.stages[stage].output
        sink = self.definition.stages[stage].points
        live = self._is_live(stage) and sink
        if live:
            frame = encoded(frame, live, 0, 0)
        writer = frame.writeStream.outputMode(output).option(
            "checkpointLocation", f"s3a://{self.settings.s3_bucket}/{prefix}{stage}"
        )
        if live:
            return apart(to_topic(writer, self.places.kafka, self._topic(stage)).trigger(realTime=LIVE_BATCH)).start()
        return _discarded(writer, ended)

    def _practise(
        self, stage: str, prefix: str, enough: Callable[[Sequence[float]], bool], until: float
    ) -> list[float]:
        """Run a stage until it is enough, it has nothing to read, or the time is over; rows a second of its batches."""
        ended, done = threading.Event(), dict[int, float]()
        query, live = self._start(stage, prefix, ended), self._is_live(stage)
        try:
            while query.isActive:
                told, status = query.recentProgress, query.status
                for batch in told:
                    if batch["numInputRows"] or live:
                        done[batch["batchId"]] = batch["processedRowsPerSecond"]
                idle = told and not (status["isTriggerActive"] or status["isDataAvailable"])
                if enough([*done.values()]) or idle or time.monotonic() > until or self.dismissed():
                    ended.set()
                    if live or idle:  # interrupting a Python batch ends in a stack overflow in Spark
                        query.stop()
                time.sleep(_LOOK_S)
        finally:
            ended.set()
            if live and query.isActive:
                query.stop()
        if (error := query.exception()) and StopAtBoundary.__name__ not in str(error):
            log.warning("warm-up: %s", str(error).splitlines()[0][:300])
        return [*done.values()]


def apart(writer: W) -> W:
    """With a producer of its own.

    Executors share one among all queries with the same settings, and each commit waits until all that it was given is
    sent. What the end of a warm-up leaves unsent, to a topic that is then removed, held up the first commits of the
    real queries for two minutes.
    """
    writer = writer.option("kafka.client.id", "warm-up").option("kafka.request.timeout.ms", "10000")
    return writer.option("kafka.delivery.timeout.ms", "20000")


def _invent(servers: str, topic: str, name: str, source: Source) -> None:
    """Write some records of a source's schema."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "log_level": 0})
    for row in invented(name, source, int(time.time() * 1000)):
        producer.produce(topic, json.dumps(row).encode(), partition=0)
    producer.flush(10)


def invented(name: str, source: Source, at_ms: int) -> list[dict[str, object]]:
    """Records of a source's schema that happened up to a time in epoch ms; no number is 0, since a stage may divide."""
    fields = schema_of(name, source).fields
    return [
        {field.name: number if isinstance(field.dataType, NumericType) else str(number) for field in fields}
        | ({source.event_time: at_ms - 1000 * before} if source.event_time else {})
        for before in reversed(range(_SECONDS))
        for number in range(1, _KEYS + 1)
    ]


def _discarded(writer: DataStreamWriter, ended: threading.Event) -> StreamingQuery:
    def discard(batch: DataFrame, batch_id: int) -> None:
        if ended.is_set():
            raise StopAtBoundary("warm-up")
        list(collected(batch))

    return writer.foreachBatch(discard).start()
