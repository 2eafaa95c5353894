"""One streaming query per stage: how it is built, started and ended at a batch boundary."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from streamops.model.definitions import Definition
from streamops.model.records import LEVEL, LIVE, SHADOW, Deployment, Offsets, StageStatus
from streamops_runtime.code import StageFunction
from streamops_runtime.gate import Gate
from streamops_runtime.pace import GivingWay, Pace
from streamops_runtime.plan_walk import watermark_delay_ms
from streamops_runtime.result_records import milliseconds
from streamops_runtime.results import Results
from streamops_runtime.sinks import check_columns
from streamops_runtime.sources import accepted
from streamops_runtime.streams import Places, raw_stream

LIVE_BATCH_S = 10  # between two commits in real time; results pause while one is made
FAR_S = 30.0  # of reading at its present pace: a live stage that is so far behind gets there sooner in batches
FEW_ROWS = 100.0  # a second; one that reads fewer is not judged by them
MOST_RESTARTS = 5  # of a stage in a row; then the driver is restarted
_LONGEST_PAUSE_S = 8.0  # before a stage is started again
_AT_ONCE = 32
_COMMIT_S = 5.0  # that a batch may take longer

log = logging.getLogger("stages")
T = TypeVar("T")


class Phase(StrEnum):
    """What a real-time stage does."""

    SETTLING = "settling"  # writes what its last query has given
    CATCHING_UP = "catching up"  # reads in batches up to the present
    LIVE = LIVE
    SHADOW = SHADOW  # continues, live if it can be, and is not counted until its version may write
    LEVEL = LEVEL  # the same, and it has read all there is


@dataclass
class RunningStage:
    """A stage with its query. One in real time, or in shadow, has phases; the first writes through ``Results``."""

    name: str
    gate: Gate | Results
    phase: Phase | None = None
    run: int = 0  # of a real-time stage: starts in this epoch after a failure or a stop
    written: int = 0  # writes of this driver when its query was started, and batches
    committed: int = 0
    judged: int = 0  # of these, when it was last asked where the sources of a live one end
    lag: int = 0  # rows that were left to read then
    far: bool = False  # behind, so that its next query reads in batches first
    ends: Offsets = field(default_factory=dict)  # of its sources, when this run began
    began: float = 0.0  # when its query was started, of a monotonic clock
    query: StreamingQuery | None = None
    held: bool = False  # not started yet, on purpose
    restarts: int = 0  # since its last commit
    commits: int = 0  # in this driver, when it failed last
    failures: int = 0  # in all
    restart_at: float = 0.0
    away: str = ""  # the source that it waits for, when starting it again did not help
    started_from: Offsets = field(default_factory=dict)

    @property
    def live(self) -> bool:
        """Whether its query takes records as they come."""
        return isinstance(self.gate, Results) and self.phase in (Phase.LIVE, Phase.SHADOW, Phase.LEVEL)

    def failed(self, commits: int) -> None:
        """Count a failure, after so many commits in this driver."""
        self.restarts += 1
        self.failures += 1
        self.commits = commits

    @property
    def active(self) -> bool:
        """Whether it has a query that continues."""
        return self.query is not None and self.query.isActive

    @property
    def finished(self) -> bool:
        """Whether the query has ended because there was nothing left to read."""
        return self.query is not None and not self.active and self.query.exception() is None

    @property
    def ended(self) -> bool:
        """Whether the query has ended, for whatever reason."""
        if self.held:
            return False
        if self.phase is Phase.SETTLING:
            return self.gate.failure is not None
        return not self.active


def first(stages: Sequence[RunningStage], continued: Collection[str], *, warm: bool) -> set[str]:
    """The stages that start before the others, which follow once these have given results.

    A warm driver starts all for whose results someone waits: those that continue. A cold one starts a single stage: its
    first result is sooner when the stages do not all want the processors at the same time.

    Args:
        continued: stages that continue with a checkpoint.
    """
    going_on = [stage for stage in stages if stage.name in continued or stage.query]  # a shadow's queries run already
    return {stage.name for stage in ((going_on or stages) if warm else stages[:1])}


@dataclass(frozen=True)
class LastCommit:
    """The one after which a job stops: whoever continues it reads again what came later before it writes anything.

    A stage in batches stops after one anyway. Of those in real time the one that reads most decides; the others have
    their commits at other times, and little to read again.

    Args:
        stage: the one that reads most; empty if none is live.
        commits: of this stage when the stop was asked for.
        until: how long it is waited for, of a monotonic clock: one that waits for a server makes none.
    """

    stage: str
    commits: int
    until: float

    @classmethod
    def of(cls, stages: Iterable[RunningStage], known: Mapping[str, StageStatus], moment: float) -> LastCommit:
        """The commit to wait for, from now on."""
        live = [stage.name for stage in stages if stage.phase is Phase.LIVE and not stage.ended]
        most = max(live, key=lambda name: known[name].input_rate, default="")
        return cls(most, known[most].commits if most else 0, moment + LIVE_BATCH_S + _COMMIT_S)

    def over(self, stages: Iterable[RunningStage], known: Mapping[str, StageStatus], moment: float) -> bool:
        """Whether there is nothing more to wait for."""
        live = any(stage.name == self.stage and stage.phase is Phase.LIVE and not stage.ended for stage in stages)
        return not live or known[self.stage].commits > self.commits or moment > self.until


def at_once(act: Callable[[T], None], ready: Iterable[T]) -> None:
    """Act on each as soon as it is found ready: to start a stage, say, and to find the next one, wait for servers."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # threads begin as they are needed
        list(pool.map(act, ready))


def forgive(stages: Iterable[RunningStage], commits: Mapping[str, int]) -> None:
    """Forget the failures of each stage that has committed since; another stage's commits do not count for it."""
    for stage in stages:
        if commits[stage.name] > stage.commits:
            stage.restarts = 0


def pause_s(stage: RunningStage, away: Callable[[], str]) -> float | None:
    """How long a stage that has failed waits before it is started again; None when a new driver may help instead.

    Args:
        away: says which of its sources does not answer, if one does not. That is waited for in this driver, however
            long it takes: a new one would find the same, and starts that come to nothing are counted.
    """
    again_and_again = stage.restarts > MOST_RESTARTS
    stage.away = away() if again_and_again else ""
    if again_and_again and not stage.away:
        return None
    return _LONGEST_PAUSE_S if again_and_again else min(2.0 ** (stage.restarts - 1), _LONGEST_PAUSE_S)


def far(lag: int, rate: float) -> bool:
    """Whether a live stage is too far behind to get there in real time: rows left to read, and rows read a second."""
    return lag > FAR_S * max(rate, FEW_ROWS)


def build(
    spark: SparkSession,
    definition: Definition,
    function: StageFunction,
    where: Places,
    deployment: Deployment,
    *,
    live: bool = False,
) -> DataFrame:
    """A stage's DataFrame over its sources.

    Args:
        live: for a query in real time, which takes records as they come.
    """
    start = deployment.stages.get(function.stage)
    begun = start.offsets if start else {}
    frames = {
        name: accepted(
            name,
            definition.sources[name],
            raw_stream(spark, name, definition.sources[name], where, begun.get(name), reader=function.stage, live=live),
        )
        for name in function.sources
    }
    result = function(frames)
    check_columns(definition, function.stage, result.schema)
    sink = definition.stages[function.stage].points
    if sink and start and start.whole_after_ms is not None:  # of the windows before it read a part
        result = result.where(milliseconds(result.schema, sink.time) > start.whole_after_ms)
    return result


def start(
    spark: SparkSession,
    definition: Definition,
    stage: RunningStage,
    frame: DataFrame,
    checkpoint: str,
    servers: str,
    topic: str,
    filled_to_ms: int | None = None,
) -> None:
    """Start the query, in a scheduler pool of its own so that a slow stage does not hold up the others.

    Args:
        frame: the stage's results; of one with a phase, as records of its results topic (``results.encoded``).
        servers: of Kafka, where that topic is.
        topic: its name.
        filled_to_ms: of a stage that fills itself, see ``GivingWay``.
    """
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", stage.name)
    writer = (
        frame.writeStream.queryName(f"{definition.job}/{stage.name}")
        .outputMode(definition.stages[stage.name].output)
        .option("checkpointLocation", checkpoint)
    )
    if isinstance(stage.gate, Results):
        stage.gate.begin(live=stage.live)
        trigger = {"realTime": f"{LIVE_BATCH_S} seconds"} if stage.live else {"availableNow": True}
        writer = to_topic(writer, servers, topic).trigger(**trigger)
    elif stage.phase:  # in shadow, where nobody waits for a window: not one batch after the other
        writer = to_topic(writer, servers, topic).trigger(processingTime=definition.trigger or "1 second")
    else:
        stage.gate.failure = None
        writer, pace = writer.foreachBatch(stage.gate), None
        if definition.trigger:
            writer = writer.trigger(processingTime=definition.trigger)
        elif definition.stages[stage.name].output == "append":
            pace = Pace(watermark_delay_ms(frame))
        stage.gate.pace = pace if filled_to_ms is None else GivingWay(filled_to_ms, pace)
    stage.query = writer.start()
    stage.began = time.monotonic()


def to_topic(writer: DataStreamWriter, servers: str, topic: str) -> DataStreamWriter:
    """The way of results that the driver reads, or that are compared."""
    writer = writer.format("kafka").option("kafka.bootstrap.servers", servers).option("kafka.linger.ms", "5")
    return writer.option("topic", topic)


def end(stage: RunningStage) -> None:
    """End a query at once, of a stage in real time or in shadow."""
    if stage.query is not None and stage.active:
        stage.query.stop()
    stage.phase = None


def end_all(stages: Iterable[RunningStage]) -> None:
    """End all queries at once, of stages whose results nobody counts; what does not end, ends with the driver."""

    def tried(stage: RunningStage) -> None:
        try:
            end(stage)
        except (PySparkException, Py4JJavaError) as error:  # not within Spark's own patience
            log.warning("stage %s: %s", stage.name, str(error).splitlines()[0][:300])

    at_once(tried, stages)


def stop_at_boundary(stages: list[RunningStage], stopping: threading.Event, timeout_s: float) -> list[str]:
    """End all queries between two batches and return the names of those that did not end in time.

    A query that works raises on entry of its next batch. A query without data has no next batch and is stopped,
    but never while a trigger is active: interrupting a Python batch ends in a stack overflow in Spark.
    """
    stopping.set()
    for stage in stages:
        stage.held = False  # it has no query to end
    deadline = time.monotonic() + timeout_s
    # What they have given since their last commits is given again.
    at_once(end, [stage for stage in stages if isinstance(stage.gate, Results) and not stage.ended])
    idle_since: dict[str, float] = {}
    while time.monotonic() < deadline:
        working = [stage for stage in stages if not stage.ended]
        if not working:
            return []
        for stage in working:
            assert stage.query is not None
            status = stage.query.status
            if status["isTriggerActive"] or status["isDataAvailable"]:
                idle_since.pop(stage.name, None)
            elif time.monotonic() - idle_since.setdefault(stage.name, time.monotonic()) > 0.1:
                stage.query.stop()
        time.sleep(0.02)
    return [stage.name for stage in stages if not stage.ended]
