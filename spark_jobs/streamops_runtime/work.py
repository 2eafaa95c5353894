"""The working part of a driver: queries from the lease on, until a stop, a lost lease or an error."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from streamops.clients.kafka import Ledger
from streamops.model.definitions import Definition
from streamops.model.errors import (
    DamagedError,
    DefinitionError,
    LeaseLostError,
    StreamOpsError,
    UnhealthyError,
    UnreachableError,
)
from streamops.model.records import (
    Deployment,
    Lease,
    Offsets,
    ResultsPosition,
    Shadow,
    StageStatus,
    State,
    distance,
)
from streamops.settings import Settings
from streamops.spark import checkpoints
from streamops.store import documents, jobs, keys, leases
from streamops.store.documents import Versioned
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts, verdicts
from streamops.versions.fingerprints import Window
from streamops_runtime import code, placement, repartition, stages, warmup
from streamops_runtime.feed import Feed
from streamops_runtime.gate import Gate, StopAtBoundary
from streamops_runtime.plan_walk import windows
from streamops_runtime.result_records import check_tags, encoded
from streamops_runtime.results import Results
from streamops_runtime.sinks import open_sinks
from streamops_runtime.stages import Phase, RunningStage, far
from streamops_runtime.status import ProgressListener, StageProgress
from streamops_runtime.streams import Places, read_faults

LOOK_S = 0.2
SETTLING_LOOK_S = 0.05  # nothing is written meanwhile
STATUS_S = 1.0
RENEW_S = 5.0
SUMMARY_S = 10.0
STOP_S = 120.0
RELAUNCH = 75
NEAR_S = 60.0  # a stage that caught up in this time goes live; the rest it reads there, and faster than it arrives
TELLING_MS = 100  # of a part of a batch: what takes longer is told
TAKE_OVER_S = 10.0  # the lease is not renewed meanwhile
HOLD_S = 12.0  # how long other stages wait for the first results of the first

# No retry cures these: the state in the checkpoint is not this version's.
PERMANENT = re.compile(
    r"STATE_STORE_(KEY|VALUE)_SCHEMA|STATE_STORE_[A-Z_]*(INCOMPATIBLE|NOT_COMPATIBLE|MISMATCH)"
    r"|STREAMING_REAL_TIME_MODE|STATEFUL_OPERATOR_NOT_MATCH|STREAM_CHECKPOINT_[A-Z_]*INCOMPATIBLE|KAFKA_DATA_LOSS|FAILED_READ_STATE"
    r"|CANNOT_LOAD_STATE_STORE\.(?!UNCATEGORIZED|FAILED_TO_GET_CHANGELOG_WRITER|UNRELEASED_THREAD|\w*OUT_OF_MEMORY)"
    r"|Some data may have been lost"
)
# Spark says UNCATEGORIZED for a lost file as well as for an object store that does not answer.
LOST_FILE = re.compile(r"FileNotFoundException|NoSuchKey")

log = logging.getLogger("work")
T = TypeVar("T")


@dataclass(frozen=True)
class Launch:
    """What the bootstrap found in its arguments and unpacked."""

    job: str
    launch: str
    deployment: int
    artifact: Path
    archive: Path
    phases_ms: dict[str, int]
    library: Path | None = None  # the archive of the shared library
    begun: Callable[[], None] = lambda: None  # tells that the driver has come to its work


class Driver(Protocol):
    """The process that the work is done in: it knows what operations say, and says how the work goes."""

    phases_ms: dict[str, int]

    def patiently(self, call: Callable[[], T]) -> T:
        """Call until the object store answers. Raises UnreachableError: it did not for minutes."""

    def command(self) -> str | None:
        """An operation's last word."""

    def mark(self, phase: str) -> None:
        """Note how long a phase took."""

    def publish(self, state: State, reason: str = "", **more: Any) -> None:
        """Publish the status."""

    def fail(self, error: StreamOpsError) -> int:
        """A permanent error: the exit code, after the final status."""


@dataclass
class _Seen:
    """What the loop of a driver has seen: commits of all stages, that each works, the last ones before a stop."""

    commits: int = 0
    works: bool = False
    last: stages.LastCommit | None = None


class Every:
    """Due at first, and then whenever more than so many seconds have passed."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, 0.0

    def due(self, moment: float) -> bool:
        """Whether it is, at a time of a monotonic clock in seconds; it counts as done then."""
        if moment - self._last <= self._seconds:
            return False
        self._last = moment
        return True


class InShadow(Protocol):
    """The queries of a version that may not write yet."""

    epoch: int

    def look(self) -> None:
        """Take them on, and say how far they are."""

    def end(self, *, go_on: bool) -> None:
        """The version may write from now on, or its queries end."""


class Work:
    """All stages of one deployment in one driver."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        store: ObjectStore,
        definition: Definition,
        deployment: Deployment,
        launch: Launch,
    ) -> None:
        self.spark, self.settings, self.store = spark, settings, store
        self.definition, self.deployment, self.launch = definition, deployment, launch
        self.stopping = threading.Event()
        self.lease: Lease | None = None
        self.functions: dict[str, code.StageFunction] = {}
        self.pulled: dict[str, list[str]] = {}  # stage -> its sources that count faults of their own
        self.stages: list[RunningStage] = []
        self.progress: dict[str, StageProgress] = {}
        self.listener = ProgressListener()
        self.placement = placement.Placement()
        self.warm: placement.Warm | None = None
        self.alone = placement.Alone()
        self.windows: dict[str, Window | None] = {}  # of real-time stages
        self.continued: dict[str, int] = {}  # stages that continue a checkpoint
        self.moved: set[str] = set()  # of those, the ones whose state lies in another number of partitions now
        self.ledger = Ledger.at(settings.kafka_bootstrap_servers)  # of the driver's own thread
        self.shadow: InShadow | None = None  # the queries run, and may not write yet

    def prepare(self) -> None:
        """Everything that needs no lease: code, sinks and the listener.

        Raises:
            DefinitionError: the artifact does not fit this node.
        """
        if self.launch.library:
            self.spark.sparkContext.addPyFile(str(self.launch.library))  # for the driver and for executors
        self.functions = code.load(self.definition, self.launch.artifact / "code", self.deployment.params)
        of = self.definition.sources
        self.pulled = {
            stage: [source for source in function.sources if of[source].csv_tail or of[source].http]
            for stage, function in self.functions.items()
        }
        self.spark.sparkContext.addArchive(f"{self.launch.archive}#job")  # code and its packages, for executors
        every = jobs.offset_keys(self.definition, self._places().places)
        for name in self.functions:
            gate = self._gate(name)
            places = {source: every[source] for source in self.functions[name].sources}
            start = self.deployment.stages[name].offsets if name in self.deployment.stages else {}
            self.progress[name] = StageProgress(places, start)
            self.stages.append(RunningStage(name, gate, started_from=start))
        self._tell_windows()
        self.spark.streams.addListener(self.listener)

    def _tell_windows(self) -> None:
        """Tell real-time stages by which window they aggregate: as publish has found it, which costs nothing here."""
        if not self.definition.realtime:
            return
        manifest = artifacts.load_manifest(self.store, self.launch.job, self.definition.version)
        known = verdicts.known(manifest, self.deployment.params)
        for stage in self.stages:
            if not isinstance(stage.gate, Results):
                continue
            plan = known.get(stage.name)
            found = [operator.window for operator in plan.operators] if plan else windows(self.spark, self.frame(stage))
            self.windows[stage.name] = next((window for window in found if window), None)
            stage.gate.know(self.windows[stage.name])

    def _gate(self, name: str) -> Gate | Results:
        """The way from a stage to its sinks."""
        if self.definition.stages[name].realtime:
            before = code.reads(self.definition, self.functions[name])
            others = {stage.name: stage.gate for stage in self.stages}
            read = next((gate for stage in before if isinstance(gate := others[stage], Results)), None)
            return self._way_out(name, feed=self.feed(name), reads=read)
        sinks = open_sinks(self.settings, self.definition, name, self.store, self.check_lease)
        sink = self.definition.stages[name].points
        return Gate(name, sinks, self.check_lease, self.stopping, time_column=sink.time if sink else None)

    def feed(self, name: str) -> Feed | None:
        """The way from a stage to those that read it."""
        add, sink = self.definition.feeding.get(name), self.definition.stages[name].points
        if not add or not sink:
            return None
        job, number, servers = self.launch.job, self.launch.deployment, self.settings.kafka_bootstrap_servers
        return Feed(job, name, number, servers, self.store, sink, add)

    def _way_out(self, name: str, **more: Any) -> Results:
        """The way from a stage's results topic to its sinks."""
        sink = self.definition.stages[name].points
        needs = {*sink.tags, *sink.columns(), sink.time} if sink else set()
        return Results(
            self.launch.job,
            name,
            self.settings.kafka_bootstrap_servers,
            self.store,
            open_sinks(self.settings, self.definition, name, self.store, self.check_lease),
            self.check_lease,
            self._held,
            needs=needs | set(self.definition.feeding.get(name, ())),
            deployment=self.launch.deployment,
            standby=self._stands_by,
            **more,
        )

    def reader(self, name: str, shadow: Shadow) -> Results:
        """What hands on the results of a stage while nothing may be written."""
        servers = self.settings.kafka_bootstrap_servers
        return Results(
            self.launch.job,
            name,
            servers,
            self.store,
            (),
            lambda: None,
            self._held,
            feed=self.feed(name),
            shadow=shadow,
        )

    def _stands_by(self) -> bool:
        """Whether the next version of the job stands by."""
        record = jobs.record(self.store, self.launch.job)
        return record is not None and record.standby is not None

    def _held(self) -> Lease:
        """The lease that this driver holds. Raises LeaseLostError."""
        if self.lease is None:
            raise LeaseLostError(f"This driver of {self.launch.job} never held the lease; it does not write.")
        return self.lease

    def begin_at(self, deployment: Deployment) -> None:
        """Take the deployment as it was completed while this driver stood by."""
        self.deployment = deployment
        for stage in self.stages:
            start = deployment.stages[stage.name].offsets if stage.name in deployment.stages else {}
            stage.started_from = start
            progress = self.progress[stage.name]
            progress.status = progress.status.model_copy(update={"started_from": start})

    def warm_up(self, dismissed: Callable[[], bool]) -> None:
        """Run every stage for a moment on what comes, written nowhere, unless the driver is dismissed."""
        warmup.WarmUp(
            self.spark,
            self.settings,
            self.store,
            self.definition,
            self.functions,
            self._places(),
            self.launch.launch,
            dismissed,
        ).run()

    def connect(self) -> None:
        """Open the connections that the first results go through, as far as servers answer."""

        def connect(results: Results) -> None:
            with suppress(UnreachableError):  # it is done when results are written
                results.connect()

        stages.at_once(connect, self._results())

    def keep_warm(self) -> placement.Warm:
        """Stay with executors that are warm, until the first batch is committed."""
        self.warm = placement.Warm(
            lambda: len(placement.executors(self.spark)),
            lambda most: placement.allow(self.spark, most),
            time.monotonic(),
        )
        return self.warm

    def check_lease(self) -> None:
        """Raise LeaseLostError unless this driver is still the writer."""
        leases.check(self.store, self._held())

    def run(self, driver: Driver, held: Versioned[Lease], at_once: bool) -> int:
        """Start all queries and stay with them; returns the exit code. Raises LeaseLostError.

        Args:
            at_once: with all executors warm, all stages that someone waits for; otherwise the first results are there
                sooner when the stages do not all want the processors at the same time.
        """
        self.lease = held.value
        driver.publish(State.STARTING, epoch=held.value.epoch)
        job, number, epoch = self.launch.job, self.launch.deployment, held.value.epoch
        names = list(self.definition.stages)
        if self.shadow:
            self.shadow.end(go_on=self.shadow.epoch == epoch)
            self.shadow = None
        self.continued = driver.patiently(
            lambda: checkpoints.prepare_epoch(self.store, job, number, epoch, names, log.info)
        )
        driver.mark("restore")
        try:
            stages.at_once(lambda results: driver.patiently(results.open), self._results())
            held = self._write_leftovers(driver, held)
        except UnreachableError:  # a server is away, which is not this start's fault: it is not counted
            with suppress(StreamOpsError):
                leases.renew(self.store, held, ())
            raise
        for name in (stage.name for stage in self.stages if stage.query is None):
            key = keys.stage(job, number, epoch, name)
            if repartition.fit(self.spark, self.store, name, key, self.definition.resources.state_partitions):
                self.moved.add(name)
        driver.mark("repartition")
        first = stages.first(self.stages, self.continued, warm=at_once)
        for stage in self.stages:
            stage.held = stage.name not in first
        stages.at_once(self._start, [stage for stage in self.stages if not stage.held])
        try:
            self._take_over()
            driver.mark("start")
            return self._watch(driver, held)
        except LeaseLostError:
            self.stopping.set()
            for stage in self.stages:
                if not stage.ended:
                    stages.stop_at_boundary([stage], self.stopping, 20)
            raise
        finally:
            for results in self._results():
                results.close()
            self.ledger.close()

    def before(self) -> Definition | None:
        """The version whose state this one continues, if any. Raises UnreachableError."""
        job, number = self.launch.job, self.deployment.from_deployment
        if number is None:
            return None
        return artifacts.load_manifest(self.store, job, jobs.deployment(self.store, job, number).version).definition

    def written_by(self, before: Definition) -> dict[str, int]:
        """Stage -> the time up to which the version before has written its points, in milliseconds since the epoch.

        Raises:
            UnreachableError: the object store did not answer.
            CheckpointError: what the version that runs has replaced meanwhile.
        """
        job, number = self.launch.job, self.deployment.from_deployment or 0
        epoch = checkpoints.current_epoch(self.store, job, number)
        written: dict[str, int] = {}
        for stage in self.stages:
            name, gate = stage.name, stage.gate
            if not isinstance(gate, Results) or name not in before.stages or epoch is None:
                continue
            if before.stages[name].realtime:
                found = documents.read(self.store, keys.results(job, name), ResultsPosition)
                if found and found.value.deployment == number:
                    written[name] = gate.wrote_ms(found.value)
            elif (tail := checkpoints.position(self.store, keys.stage(job, number, epoch, name))) and tail.watermark_ms:
                at_end = self.definition.stages[name].recount is not None  # a point's time is the end of its window
                written[name] = tail.watermark_ms - (0 if at_end else gate.window_ms)
        return written

    def _write_leftovers(self, driver: Driver, held: Versioned[Lease]) -> Versioned[Lease]:
        """Write what a version whose stage ran in real time had given, and not written before it ended.

        Raises:
            LeaseLostError: another driver is to write.
        """
        for stage in self.stages:
            key = keys.results(self.launch.job, stage.name)
            known = driver.patiently(lambda key=key: documents.read(self.store, key, ResultsPosition))
            if known is None or isinstance(stage.gate, Results):
                continue
            left = self._way_out(stage.name, last=True)
            try:
                driver.patiently(left.open)
                left.settle()
                while not left.settled:
                    if left.failure is not None:
                        raise left.failure
                    driver.publish(State.STARTING, left.waiting_for)
                    held = driver.patiently(lambda held=held: leases.renew(self.store, held))
                    time.sleep(LOOK_S)
                left.allow(self._held().epoch, 0, kept=False)  # what comes after that counts no more
            finally:
                left.close()
        return held

    def _results(self) -> Iterator[Results]:
        yield from (stage.gate for stage in self.stages if isinstance(stage.gate, Results))

    def frame(self, stage: RunningStage) -> DataFrame:
        return stages.build(
            self.spark,
            self.definition,
            self.functions[stage.name],
            self._places(),
            self.deployment,
            live=stage.live,
        )

    def _places(self) -> Places:
        places = {**self.deployment.topics, **self._feeds()}
        return Places(self.settings.kafka_bootstrap_servers, places, tasks=self.definition.resources.cores)

    def _feeds(self) -> dict[str, str]:
        """Source -> topic, of those that are another stage."""
        return {
            name: keys.feed_topic(self.launch.job, source.stage.name, self.launch.deployment)
            for name, source in self.definition.sources.items()
            if source.stage
        }

    def _start_held(self, since: float) -> None:
        """Start the other stages once the first have given results, or do not soon."""
        held = [stage for stage in self.stages if stage.held]
        late = time.monotonic() - since > HOLD_S
        if held and (late or all(self._works(stage) for stage in self.stages if not stage.held)):
            for stage in held:
                stage.held = False
            stages.at_once(self._start, held)

    def _works(self, stage: RunningStage) -> bool:
        """Whether a stage has given results, or cannot for now."""
        status = self.progress[stage.name].status
        gave = stage.query is not None and stage.gate.outputs > stage.written
        return gave or status.quiet or stage.ended or status.commits > stage.committed + 1

    def _start(self, stage: RunningStage) -> None:
        """Start a stage; one in real time first writes what its last query has given."""
        if isinstance(stage.gate, Results):
            stage.phase = Phase.SETTLING
            stage.gate.settle(held=stage.active and stage.name in self.continued)
        else:
            self._query(stage)

    def _take_over(self) -> None:
        """Let the queries of a shadow continue. The loop, which has more to look after, does it where it takes long."""
        deadline = time.monotonic() + TAKE_OVER_S
        while time.monotonic() < deadline:
            waiting = [stage for stage in self.stages if stage.phase is Phase.SETTLING and stage.active]
            if not waiting:
                return
            for stage in waiting:
                self._advance(stage)
            time.sleep(0.02)

    def _advance(self, stage: RunningStage) -> bool:
        """Take a real-time stage on: from settling to live, by way of batches for as long as these are long.

        Returns:
            Whether its next query is to be started.

        Results are exact whatever happens when, and none of a start replaces a newer one of before: nothing is written
        until all that was read before has been read again (``WaitingPoints.begin_again``).
        """
        if not isinstance(stage.gate, Results):
            return False
        status = self.progress[stage.name].status
        reads = stage.query is not None and stage.phase in (Phase.CATCHING_UP, Phase.LIVE)
        if reads and self.has_read_again(stage):
            stage.gate.read_again()
        if stage.phase is Phase.SETTLING and stage.gate.settled:
            goes_on = stage.active  # a shadow that may write from now on
            kept = stage.name in self.continued or (stage.run > 0 and not goes_on)
            run = stage.run if goes_on else stage.run + 1
            try:
                near = goes_on or (kept and not stage.far and self._is_near(stage))
                stage.ends = self.ends(stage)
                stage.gate.allow(self._held().epoch, run, kept=kept)
            except UnreachableError as error:
                log.warning("%s starts later: %s", stage.name, error)
                return False
            stage.run, stage.far = run, False
            stage.phase = Phase.LIVE if near else Phase.CATCHING_UP
            if goes_on:
                stage.committed, stage.written = status.commits, stage.gate.outputs
                stage.gate.begin(live=True)
                log.info("stage %s continues: it may write", stage.name)
            return not goes_on
        if stage.gate.failure is not None:
            stages.end(stage)
        elif stage.phase is Phase.CATCHING_UP and stage.finished:
            took = time.monotonic() - stage.began
            log.info("stage %s caught up in %.1f s", stage.name, took)
            stage.phase = Phase.LIVE if took < NEAR_S else Phase.CATCHING_UP
            return True
        elif stage.phase is Phase.LIVE and self.measure(stage) and self._falls_behind(stage):
            stage.far = True
            stages.end(stage)
            self._start(stage)
        return False

    def has_read_again(self, stage: RunningStage) -> bool:
        """Whether a stage has committed all that its sources held when its run began."""
        status = self.progress[stage.name].status
        return status.commits > stage.committed and _reach(status.offsets, stage.ends)

    def measure(self, stage: RunningStage) -> bool:
        """Note how far a stage in real time is behind, at each of its commits; whether there was one."""
        status = self.progress[stage.name].status
        if status.commits <= max(stage.judged, stage.committed):
            return False
        stage.judged = status.commits
        try:
            stage.lag = distance(status.offsets, self.ends(stage))
        except UnreachableError as error:
            log.warning("%s: how far it is behind is not known: %s", stage.name, error)
            return False
        return True

    def _falls_behind(self, stage: RunningStage) -> bool:
        """Whether a live stage is to go back to batches, as its last commit shows."""
        status, mode = self.progress[stage.name].status, self.definition.stages[stage.name].mode
        # The first batch of a query takes in what had gathered before, and says little of what comes after.
        if mode != "auto" or status.commits == stage.committed + 1 or not far(stage.lag, status.processed_rate):
            return False
        log.info("stage %s is %s rows behind, at %.0f/s: on in batches", stage.name, stage.lag, status.processed_rate)
        return True

    def _is_near(self, stage: RunningStage) -> bool:
        """Whether a stage continues what was committed a moment ago, from sources that are read in one order.

        Raises:
            UnreachableError: the object store did not answer.
        """
        key = keys.stage(self.launch.job, self.launch.deployment, self._held().epoch, stage.name)
        last = checkpoints.position(self.store, key)
        if last is None or stage.name in self.moved or any(len(parts) > 1 for parts in last.offsets.values()):
            return False
        return time.time() - last.began_ms / 1000 < NEAR_S

    def ends(self, stage: RunningStage) -> Offsets:
        """Where the topics that a stage reads end now. Raises UnreachableError, NotFoundError."""
        where, of = self._places().places, self.definition.sources
        names = [name for name in self.functions[stage.name].sources if of[name].kafka or of[name].stage]
        return {name: self.ledger.end_offsets(where.get(name, of[name].address)) for name in names}

    def _query(self, stage: RunningStage) -> None:
        self.query(stage, self._held().epoch)

    def query(self, stage: RunningStage, epoch: int) -> None:
        """Start a stage's query as its phase says. Raises DefinitionError: Spark refuses it."""
        key = keys.stage(self.launch.job, self.launch.deployment, epoch, stage.name)
        checkpoint = f"s3a://{self.settings.s3_bucket}/{key}"
        committed = checkpoints.drop_planned(self.store, key)
        sources = self.functions[stage.name].sources
        if feeds := {name: topic for name, topic in self._feeds().items() if name in sources}:
            checkpoints.read_from(self.store, key, committed, feeds)  # each deployment has feeds of its own
        try:
            frame = self.frame(stage)
            sink = self.definition.stages[stage.name].points
            if stage.phase and sink:
                if isinstance(stage.gate, Gate):
                    check_tags(frame.schema, sink, f"What {stage.name} gives cannot be compared:")
                frame = encoded(frame, sink, epoch, stage.run)
            servers = self.settings.kafka_bootstrap_servers
            begun = self.deployment.stages.get(stage.name)
            filled_to_ms = begun.filled_to_ms if begun else None
            topic = keys.results_topic(self.launch.job, stage.name)
            stages.start(self.spark, self.definition, stage, frame, checkpoint, servers, topic, filled_to_ms)
        except PySparkException as error:
            raise DefinitionError(f"Stage {stage.name} cannot run: {str(error).splitlines()[0][:400]}") from error
        assert stage.query is not None
        stage.committed, stage.written = self.progress[stage.name].status.commits, stage.gate.outputs
        self.listener.watch(str(stage.query.runId), self.progress[stage.name], stage.gate)
        log.info("stage %s started%s", stage.name, f": {stage.phase}" if stage.phase else "")

    def _watch(self, driver: Driver, held: Versioned[Lease]) -> int:
        """The loop of a running driver: the exit code, once it ends."""
        begun, seen = time.monotonic(), _Seen()
        looking, renewing = Every(placement.LOOK_S), Every(RENEW_S)
        telling, summing = Every(STATUS_S), Every(SUMMARY_S)
        while True:
            moment = time.monotonic()
            if driver.command() == "stop" and self._may_stop(seen, moment):
                return self._stop(driver, held)
            self._start_held(begun)
            code = self._look_after_queries(driver)
            if code is None and looking.due(moment):
                code = self._look_after_executors(driver, moment)
            if code is not None:
                return code
            self._note_commits(driver, seen)
            if self.warm and (seen.commits or moment - begun > HOLD_S):
                self.warm.end()
                self.warm = None
            # One stage that never commits is enough: the driver would be started again for it without end.
            idle = [name for name, of in self._reported().items() if not (of.commits or of.quiet)]
            if renewing.due(moment) or not (idle or seen.works):
                held = driver.patiently(lambda held=held, idle=idle: leases.renew(self.store, held, idle))
                self.lease, seen.works = held.value, seen.works or not idle
            if telling.due(moment):
                self._tell(driver)
            if summing.due(moment):
                self._look_back()
                self._sum_up()
            time.sleep(SETTLING_LOOK_S if any(stage.phase is Phase.SETTLING for stage in self.stages) else LOOK_S)

    def _may_stop(self, seen: _Seen, moment: float) -> bool:
        """Whether a stop that was asked for has come to the commits that it waits for."""
        seen.last = seen.last or stages.LastCommit.of(self.stages, self._reported(), moment)
        return seen.last.over(self.stages, self._reported(), moment)

    def _note_commits(self, driver: Driver, seen: _Seen) -> None:
        """Forgive the failures of stages that commit again, and note the driver's first commit."""
        commits = sum(item.status.commits for item in self.progress.values())
        if commits <= seen.commits:
            return
        stages.forgive(self.stages, {name: item.status.commits for name, item in self.progress.items()})
        if not seen.commits:
            driver.mark("first_commit")
        seen.commits = commits

    def _look_after_executors(self, driver: Driver, moment: float) -> int | None:
        """Spread state over executors that have joined; an exit code when there are none, or that does not work."""
        executors = placement.executors(self.spark)
        self.alone.look(len(executors), moment)
        if self.alone.seconds > placement.ALONE_S:
            log.error("no executor for %.0f s: the driver ends, to be started again", self.alone.seconds)
            self._tell(driver)
            return RELAUNCH
        if self._placement_due(executors, moment) and not self._redistribute(driver):
            return RELAUNCH
        return None

    def _reported(self) -> dict[str, StageStatus]:
        """What Spark reports of each stage."""
        return {name: item.status for name, item in self.progress.items()}

    def _look_back(self) -> None:
        """Let go of what no stage, and no snapshot that is being taken, will ask a feed for."""
        for stage in self.stages:
            if not isinstance(stage.gate, Results) or stage.gate.feed is None:
                continue
            read = [
                self.progress[reader].status.offsets.get(name, {}).get("0", 0)
                for reader, function in self.functions.items()
                for name in function.sources
                if (of := self.definition.sources[name].stage) and of.name == stage.name
            ]
            stage.gate.look_back(self.progress[stage.name].status.watermark_ms, min(read, default=0))

    def _placement_due(self, executors: frozenset[str], moment: float) -> bool:
        """Whether executors have joined that hold no state."""
        if any(stage.ended for stage in self.stages):
            return False
        settled = all(item.status.commits for item in self.progress.values())
        return self.placement.due(executors, settled, moment)

    def _redistribute(self, driver: Driver) -> bool:
        """Start all queries again at a boundary, so that their state spreads over all executors.

        State stays where it was loaded for as long as its query runs. False when a query did not end in time.
        """
        begun = time.monotonic()
        left = stages.stop_at_boundary(self.stages, self.stopping, STOP_S)
        if left:
            log.error("%s did not end at a boundary; the driver ends, the last commits count", ", ".join(left))
            return False
        self.stopping.clear()
        stages.at_once(self._start, self.stages)
        self.placement.placed(placement.executors(self.spark), time.monotonic())
        driver.phases_ms["redistribute"] = int((time.monotonic() - begun) * 1000)
        log.info(
            "state is redistributed over %s executors in %s ms", self.placement.size, driver.phases_ms["redistribute"]
        )
        return True

    def _tell(self, driver: Driver, state: State | None = None, reason: str = "") -> None:
        statuses = self.statuses()
        for name, pulled in self.pulled.items():
            if faults := read_faults(self._places(), pulled):
                statuses[name] = statuses[name].model_copy(update={"source_faults": faults})
        waiting = [f"{stage.name}: {stage.gate.waiting_for}" for stage in self.stages if stage.gate.waiting_for]
        down = [f"{stage.name} {_why_down(stage)}" for stage in self.stages if stage.ended]
        down += [f"no executor for {self.alone.seconds:.0f} s"] if self.alone.seconds else []
        if state is None:
            alive = all(status.commits or status.quiet for status in statuses.values())
            state = State.RUNNING if alive else State.STARTING
            if waiting or down:
                state, reason = State.RECOVERING, "; ".join(waiting + down)
        driver.publish(state, reason, stages=statuses)

    def statuses(self) -> dict[str, StageStatus]:
        """What there is to say of each stage."""
        return {stage.name: self._status(stage) for stage in self.stages}

    def _status(self, stage: RunningStage) -> StageStatus:
        """What Spark reports of a stage, and what only its driver knows."""
        own: dict[str, Any] = {"phase": stage.phase or "", "failures": stage.failures}
        own |= {"unpaced": isinstance(stage.gate, Gate) and not self.definition.trigger and stage.gate.pace is None}
        own |= {"outputs": stage.gate.outputs, "last_output": stage.gate.last_output}
        own |= {"refused_rows": stage.gate.refused}
        if stage.phase in (Phase.LIVE, Phase.SHADOW, Phase.LEVEL):  # Spark says where sources ended when a batch began
            own |= {"lag": stage.lag}
        return self.progress[stage.name].status.model_copy(update=own)

    def _sum_up(self) -> None:
        for name, progress in self.progress.items():
            status = progress.status
            log.info(
                "%s batch %s in %s ms (%s), %s rows/s, lag %s, rows written %s, late %s, malformed %s, ahead %s",
                name, status.batch_id, status.batch_ms, _longest(status.durations_ms), status.processed_rate,
                status.lag, status.output_rows, status.late_rows, status.malformed_rows, status.ahead_rows,
            )  # fmt: skip

    def _look_after_queries(self, driver: Driver) -> int | None:
        """Start failed queries again in the warm driver; an exit code when that does not help."""
        stages.at_once(self._query, (stage for stage in self.stages if self._advance(stage)))
        for stage in self.stages:
            if not stage.ended or (stage.phase is Phase.CATCHING_UP and stage.finished):  # goes live at the next look
                continue
            if stage.restart_at == 0.0:
                failure = stage.gate.failure
                error = stage.query.exception() if stage.query else None
                text = str(error or failure or "ended by itself")
                if isinstance(failure, LeaseLostError):
                    raise failure
                log.error("stage %s ended: %s", stage.name, text[:3000])
                if permanent(failure, text):
                    self._end_others()
                    return driver.fail(UnhealthyError(f"Stage {stage.name} cannot continue: {_first(failure, text)}"))
                stage.failed(self.progress[stage.name].status.commits)
                pause_s = stages.pause_s(stage, partial(self._source_away, stage))
                if pause_s is None:
                    self._end_others()
                    self._tell(driver, State.RECOVERING, f"stage {stage.name} failed {stage.restarts} times")
                    return RELAUNCH
                stage.restart_at = time.monotonic() + pause_s
            elif time.monotonic() > stage.restart_at:
                stage.restart_at = 0.0
                self._start(stage)
        return None

    def _source_away(self, stage: RunningStage) -> str:
        """Why a topic that a stage reads cannot be read now; empty when all answer, whatever they say."""
        try:
            self.ends(stage)
        except UnreachableError as error:
            return str(error)
        except StreamOpsError:
            return ""
        return ""

    def _end_others(self) -> None:
        stages.stop_at_boundary(self.stages, self.stopping, 30)

    def _stop(self, driver: Driver, held: Versioned[Lease]) -> int:
        """Stop at a boundary, give the lease back, write the final status."""
        begun = time.monotonic()
        self.stopping.set()
        self._tell(driver, State.STOPPING, "asked to stop")
        left = stages.stop_at_boundary(self.stages, self.stopping, STOP_S)
        if left:
            log.error("%s did not end at a boundary; the driver ends, the last commits count", ", ".join(left))
            return RELAUNCH
        if not self._settle():
            log.error("results are not written in time; the driver ends, and the next one writes them")
            return RELAUNCH
        driver.phases_ms["stop"] = int((time.monotonic() - begun) * 1000)
        for stage in self.stages:
            if stage.gate.failure is not None and not isinstance(stage.gate.failure, StopAtBoundary):
                log.warning("stage %s ended with %s; its last commit counts", stage.name, stage.gate.failure)
        driver.patiently(lambda: leases.release(self.store, held))
        self._tell(driver, State.STOPPED, "asked to stop")
        return 0

    def _settle(self) -> bool:
        """Write all that real-time stages have given; False when that took too long. Raises LeaseLostError."""
        for results in self._results():
            results.settle()
        deadline = time.monotonic() + STOP_S
        while waiting := [results for results in self._results() if not results.settled]:
            for failure in (results.failure for results in waiting):
                if failure is not None:
                    raise failure
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def _why_down(stage: RunningStage) -> str:
    return f"waits for its source, and continues by itself: {stage.away}" if stage.away else "is started again"


def _longest(durations_ms: Mapping[str, int]) -> str:
    """What took most of a batch, the longest first."""
    parts = {name: took for name, took in durations_ms.items() if name != "triggerExecution" and took >= TELLING_MS}
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {took}" for name, took in ordered) or "nothing long"


def _reach(offsets: Offsets, ends: Offsets) -> bool:
    """Whether offsets lie at ends or after them; the last record of a feed is a mark of its transaction."""
    return all(
        offsets.get(source, {}).get(part, 0) >= end - 1 for source, parts in ends.items() for part, end in parts.items()
    )


def permanent(failure: BaseException | None, text: str) -> bool:
    """Whether no retry will help: refused by a sink, or state that does not fit."""
    if isinstance(failure, StreamOpsError) and not isinstance(failure, UnreachableError | DamagedError):
        return True
    if failure is not None:
        return False
    lost = "CANNOT_LOAD_STATE_STORE" in text and LOST_FILE.search(text)
    return bool(PERMANENT.search(text) or lost)


def _first(failure: BaseException | None, text: str) -> str:
    lines: list[Any] = [line for line in str(failure or text).splitlines() if line.strip()]
    return str(lines[0])[:400] if lines else "no message"
