"""The way out of a real-time stage: Spark writes each change of a result to a topic, and the driver from there.

Spark commits a batch once its results are in the topic, so none is lost while the sink is away or the driver is killed:
whoever comes next reads on where the last one stopped. A result counts only if it carries the epoch and run that the
stored position names (``ResultsPosition``), so that nothing a lost driver or an ended query still sends is written over
what is newer. Many changes of one point become one write, and a window is written once a later one has begun, or once
the clock has passed its end.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

import confluent_kafka
from pyspark.sql import Row

from streamops.clients.kafka import READER, Ledger
from streamops.model.errors import LeaseLostError, StreamOpsError, UnreachableError
from streamops.model.records import EarlierRun, Lease, ResultsPosition, Shadow, now
from streamops.model.results import columns, mark, state_partition
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore
from streamops.versions.fingerprints import Window
from streamops_runtime.feed import Feed
from streamops_runtime.sinks import ROWS, Patience, Sink
from streamops_runtime.waiting_points import MOST_WAITING, NEVER, WaitingPoints

FLUSH_S = 0.05
SAVE_S = 1.0
TRIM_S = 30.0
FIRST_S = 15.0  # in which a query gives its first result, unless there is nothing to read; until then the clock waits
AGAIN_S = 60.0  # the same of one that reads again what another had read
QUIET_S = 0.2  # without a result, the clock decides which windows are over
HANDED_S = 2.0  # the same of a stage that reads another: by then it has taken in what was handed on
_TAKEN = 2000  # results at once
_TOPIC = {"retention.ms": "-1", "cleanup.policy": "delete", "segment.bytes": str(64 << 20)}
_READER = READER | {"auto.offset.reset": "earliest", "enable.partition.eof": False, "fetch.wait.max.ms": 20}

log = logging.getLogger("results")


class _Committed(NamedTuple):
    """What a feed need not remember any more, as the stage and its readers have committed."""

    closed_ms: int | None
    read: int


def end_of_results(ledger: Ledger, job: str, stage: str) -> int:
    """Where a stage's results topic ends; it is made if it is not there. Raises UnreachableError."""
    topic = keys.results_topic(job, stage)
    ledger.ensure_topic(topic, config=_TOPIC)
    return ledger.end_offsets(topic)["0"]


class Results:
    """One stage's results topic, and the thread that writes from it to the sinks.

    Args:
        check: raises LeaseLostError when this driver may not write any more.
        lease: the lease that this driver holds.
        feed: what other stages read.
        reads: the results of the stage that this one reads; it knows which of the points are over.
        deployment: whose results they are.
        shadow: this driver may not write yet, and only hands on to the deployment's own feed what its queries give.
        standby: whether a version stands by, whose results the topic must keep.
        last: no run comes after this one, so that at its end also points are written whose windows are not over.
        needs: columns that a result must have; the version before may have given others.
    """

    def __init__(
        self,
        job: str,
        stage: str,
        servers: str,
        store: ObjectStore,
        sinks: Iterable[Sink],
        check: Callable[[], None],
        lease: Callable[[], Lease],
        clock: Callable[[], float] = time.time,
        feed: Feed | None = None,
        reads: Results | None = None,
        *,
        deployment: int = 0,
        shadow: Shadow | None = None,
        standby: Callable[[], bool] = lambda: False,
        last: bool = False,
        needs: Collection[str] = (),
    ) -> None:
        self.stage = stage
        self.topic = keys.results_topic(job, stage)
        self.rows = 0  # written
        self.waited_ms = 0  # of a batch: it never waits for its windows
        self.outputs = 0  # writes
        self.last_output: datetime | None = None
        self.failure: BaseException | None = None
        self.live = False  # whether what comes is of the present: the clock then knows which windows are over
        self._servers, self._store, self._sinks = servers, store, list(sinks)
        self._check, self._lease, self._clock = check, lease, clock
        self.feed, self._reads = feed, reads
        self.window_ms, self._ahead_ms, self._last, self._needs = 0, 1, last, set(needs)
        self._ledger = Ledger.at(servers)
        self._deployment, self._shadow, self._standby = deployment, shadow, standby
        self._waiting: Shadow | None = None  # results of this deployment that were given before it might write
        self._unwritten = self._none() if shadow else None  # what the version that may write may not have written
        self._written_ms = NEVER  # up to there it has
        self._own: tuple[WaitingPoints, int] | None = None  # of this run, read before; the next to read
        self._goes_on_at: int | None = None  # the next result to read, which is not the one after the last
        self._again_at: int | None = None  # where what is given again begins, by queries that replace a shadow's
        self._position = ResultsPosition(job=job, stage=stage)
        self._saving = threading.Lock()
        self._holding = threading.Lock()  # points that wait, between the driver's thread and this stage's own
        self._next = 0
        self._points = self._none()
        self._began = 0.0  # when the query did, of a monotonic clock
        self._passed: int | None = None  # where the topic ended when the query had committed first
        self._settling = False  # everything up to the end of the topic is to be read
        self._holds = False  # nothing is written before ``allow``
        self._goal: int | None = None  # where that end is
        self._settles_from = (0.0, 0, 0)  # when it was asked for, the next result to read then, and rows written
        self._settled = threading.Event()
        self._committed: _Committed | None = None  # not considered yet
        self._closing: tuple[_Committed, int] | None = None  # with the end of the topic at that time
        self._end = threading.Event()
        self._patience = Patience(stage, check, self._end)  # the topic keeps what comes meanwhile
        self._thread: threading.Thread | None = None
        self._consumer: confluent_kafka.Consumer | None = None

    def _none(self) -> WaitingPoints:
        return WaitingPoints(self._ahead_ms, patient=self._reads is not None)

    @property
    def refused(self) -> int:
        """Rows that the sinks put aside."""
        return sum(sink.refused for sink in self._sinks)

    @property
    def waiting_for(self) -> str:
        """What a write waits for; empty while none does."""
        return self._patience.waiting_for

    # --- called by the driver

    def know(self, window: Window | None) -> None:
        """Tell by which window the stage aggregates, before it is opened; stages that it reads know theirs."""
        if window is None:
            return
        self.window_ms = window.size_us // 1000
        if self._reads is not None:
            self._ahead_ms = self.window_ms - self._reads.window_ms
        elif window.kind == "sliding":
            self._ahead_ms = self.window_ms
        self._points = self._none()
        self._unwritten = self._none() if self._shadow else None

    def wrote_ms(self, position: ResultsPosition) -> int:
        """Up to when the writer of a position has written its points, in milliseconds since the epoch."""
        if position.written_ms is not None:
            return position.written_ms
        reached = position.reached  # all that an earlier release tells, and the last points of it may not be written
        return min(reached.values()) - self._ahead_ms if reached else NEVER

    def others_wrote(self, until_ms: int) -> None:
        """Tell that the version that may write has come so far: in milliseconds since the epoch."""
        self._written_ms = until_ms

    def go_on(self, reader: Results) -> None:
        """Take over from what read the results of this run while they might not be written; it is closed."""
        if reader._unwritten is not None:
            self._own = reader._unwritten, reader._next
        if reader.feed is not None and self.feed is not None:
            self.feed.close()
            self.feed = reader.feed  # which knows what was handed on, and is still the only writer

    def look_back(self, watermark_ms: int | None, read: int) -> None:
        """Keep no more of the feed than what may change or is unread: the stage has committed this watermark."""
        self._committed = _Committed(watermark_ms - self.window_ms if watermark_ms else None, read)

    def connect(self) -> None:
        """Do of ``open`` what needs no lease: make the topic, and open connections. Raises UnreachableError."""
        self._ledger.ensure_topic(self.topic, config=_TOPIC)
        self._consumer = self._consumer or confluent_kafka.Consumer({**_READER, "bootstrap.servers": self._servers})
        self._end_of_topic()  # the first question to a broker connects

    def open(self) -> None:
        """Read on where the writer before stopped. Raises UnreachableError."""
        if self._consumer is None:
            self.connect()
        assert self._consumer is not None
        if self.feed is not None:
            self.feed.open()
        begin = self._ledger.beginning_offsets(self.topic)["0"]
        end = self._ledger.end_offsets(self.topic)["0"]
        found = documents.read(self._store, self._key, ResultsPosition)
        self._position = found.value if found else self._position
        if self._shadow:
            own = {"epoch": self._shadow.epoch, "run": self._shadow.run, "offset": self._shadow.since, "before": ()}
            own |= {"behind": tuple(self._position.reached)}
            self._position = self._position.model_copy(update=own)
        elif (left := self._left()) and left.deployment == self._deployment > self._position.deployment:
            self._waiting = left
            if not self._position.run:  # the version before ran in batches: none of these results counts
                begin = end
        self._next = min(max(begin, self._position.offset), end)  # beyond the end if someone recreated the topic
        self._position = self._position.model_copy(update={"offset": self._next})
        self._points.begin_again(self._position.reached)
        self._consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, self._next)])
        self._thread = threading.Thread(target=self._work, name=f"results of {self.stage}", daemon=True)
        self._thread.start()

    def settle(self, *, held: bool = False) -> None:
        """Read all that the ended query has given, and write what is over; ``settled`` says when that is done.

        Args:
            held: what is over waits for ``allow`` as well: a version that continues from its shadow has given the same.
        """
        assert self._consumer is not None
        self._holds = held
        self.live, self.failure, self._passed = False, None, None
        self._settled.clear()
        self._settling = self._waiting is None or self._position.run > 0  # else there is nothing that counts
        self._settles_from = time.monotonic(), self._next, self.rows
        if not self._settling:
            self._settled.set()

    @property
    def settled(self) -> bool:
        """Whether all results are read, and those that are over are written and remembered as written."""
        return self._settled.is_set()

    def allow(self, epoch: int, run: int, *, kept: bool) -> None:
        """From here on, results of this run count, and of what came before those that wait for their window's end.

        Args:
            kept: the stage continues its state. Else what waits of the version before is left out: it is of windows
                that are no more. What this deployment gave before it might write counts either way.

        Raises:
            LeaseLostError: a later writer has stored its own position.
        """
        # An event of the future holds nothing up.
        latest = int(self._clock() * 1000) + max(self._ahead_ms, self.window_ms)
        with self._holding:
            points, own = self._points if kept else self._none(), self._own
            reached = {part: min(at, latest) for part, at in points.reached.items()}
            waiting, last, following = self._waiting, self._position, self._next
            # What others gave beside a shadow it gives itself, and what they gave last may be older than its own.
            until = min(following, waiting.since) if waiting else following
            before = [*last.before, EarlierRun(epoch=last.epoch, run=last.run, until=until)]
            if waiting and (epoch, run) != (waiting.epoch, waiting.run):  # its queries have ended
                before.append(EarlierRun(epoch=waiting.epoch, run=waiting.run, until=following))
                own, self._again_at = None, following
            fresh = self._none()
            fresh.begin_again(reached)
            if not waiting:
                fresh.take_in(points)
            elif own and own[0].has_all(points.keys_since(waiting.since)):
                fresh.take_in(points, before=waiting.since)
                fresh.go_on(own[0])
                following = own[1]
            else:  # all that it has given is read again
                following = min(points.first_offset(following), waiting.since)
            update = {"offset": fresh.first_offset(following), "before": tuple(before), "written_ms": None}
            self._save(
                deployment=self._deployment, epoch=epoch, run=run, reached=reached, behind=tuple(reached), **update
            )
            self._waiting = self._own = None
            self._points, self._holds = fresh, False
            if waiting:
                self._goes_on_at = following
                log.info("%s: reads on at result %s; %s points wait", self.stage, following, fresh.count)

    def begin(self, *, live: bool) -> None:
        """Tell that a query of the run starts, in real time or in batches."""
        self.live, self._began = live, time.monotonic()

    def read_again(self) -> None:
        """Tell that the query has committed all that the runs before can have read."""
        if self._passed is None and self._points.behind:
            self._passed = self._end_of_topic()

    def close(self, *, feed: bool = True) -> None:
        """End the thread; what is not written yet is still in the topic.

        Args:
            feed: close the feed as well; otherwise another way out continues with it.
        """
        self._end.set()
        if self._thread is not None:
            self._thread.join(30)
        if self._consumer is not None:
            self._consumer.close()
        if feed and self.feed is not None:
            self.feed.close()
        self._ledger.close()

    # --- the thread

    def _work(self) -> None:
        while not self._end.is_set():
            try:
                self._turn()
                return
            except BaseException as error:
                log.error("%s: %s", self.stage, error)
                self.failure = error
                if isinstance(error, LeaseLostError):
                    return
                while self.failure is not None and not self._end.wait(0.1):
                    pass  # until the stage is started again
                self._rewind()

    def _rewind(self) -> None:
        """Read again what was not written."""
        assert self._consumer is not None
        with self._holding:
            self._points, self._next, self._goal, self._passed = self._none(), self._position.offset, None, None
            self._points.begin_again(self._position.reached)
            self._goes_on_at = None
        self._consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, self._next)])

    def _turn(self) -> None:
        assert self._consumer is not None
        flushed = saved = trimmed = came = time.monotonic()
        while not self._end.is_set():
            self._jump()
            messages = self._consumer.consume(_TAKEN, FLUSH_S / 2)
            moment = time.monotonic()
            if messages:
                came = moment
                self._receive(messages)
            passed = self._passed  # of the driver's thread
            if passed is not None and self._next >= passed:
                self._points.pass_on()
            settling = self._settling and self._next >= self._until()
            if self._holds:
                if settling:
                    self._end_settling()
                continue
            behind = len(messages) == _TAKEN and self._points.count < MOST_WAITING
            if settling or (not behind and moment - flushed >= FLUSH_S) or moment - flushed > 1.0:
                self._flush(self._present(moment, moment - came), everything=settling and self._last)
                flushed = moment
            if settling or moment - saved > SAVE_S:
                self._save_all(keep_trying=not settling)
                saved = moment
            if settling:
                self._end_settling()
            if moment - trimmed > TRIM_S:
                self._trim_all(moment)
                trimmed = moment

    def _jump(self) -> None:
        """Continue at another result than the next one, if ``allow`` says so."""
        assert self._consumer is not None
        if self._goes_on_at is None:
            return
        with self._holding:
            self._next, self._goes_on_at = self._goes_on_at, None
        self._consumer.assign([confluent_kafka.TopicPartition(self.topic, 0, self._next)])

    def _receive(self, messages: list[confluent_kafka.Message]) -> None:
        with self._holding:
            if self._goes_on_at is None:  # else they come once more, after others
                self._take_in(messages)

    def _flush(self, present_ms: int | None, *, everything: bool) -> None:
        """Write the points that are over."""
        with self._holding:
            due = self._points.due(present_ms, everything=everything)
        self._write(due)
        self._forget()

    def _save_all(self, *, keep_trying: bool) -> None:
        """Store how far the topic was read, and what must be remembered of the feed."""
        if self.feed is not None:
            self._look_back(self.feed)
            self.feed.save()
        self._remember(keep_trying=keep_trying)

    def _trim_all(self, moment: float) -> None:
        self._trim()
        if self.feed is not None:
            self.feed.trim(moment)

    def _end_settling(self) -> None:
        since, first, rows = self._settles_from
        log.info(
            "%s: read %s results and wrote %s points in %.1f s, up to what the queries before gave last",
            self.stage, self._next - first, self.rows - rows, time.monotonic() - since,
        )  # fmt: skip
        self._settling, self._goal = False, None
        self._settled.set()

    def _remember(self, *, keep_trying: bool) -> None:
        """Store how far the topic was read, unless it is to be read again."""
        with self._holding:
            if self._goes_on_at is not None:
                return
            update: dict[str, Any] = {"offset": self._points.first_offset(self._next), "reached": self._points.reached}
            if self._points.over_ms > NEVER:  # what was over at the last look has been written since
                update["written_ms"] = self._points.over_ms
            # What this run has passed it has passed, also where its results are read once more.
            update["behind"] = tuple(part for part in self._points.behind if part in self._position.behind)
            self._save(keep_trying=keep_trying, **update)

    def _forget(self) -> None:
        """Let go of what was given in shadow, once it is written by the version that may, and handed on."""
        if self._unwritten is None:
            return
        until = self._written_ms if self.feed is None else min(self._written_ms, self._points.over_ms)
        self._unwritten.forget(until)
        if self._unwritten.count > MOST_WAITING:
            log.warning("%s: too many results wait to be kept; they will be read again", self.stage)
            self._unwritten = None

    def _look_back(self, feed: Feed) -> None:
        """Tell the feed what was committed, once all that the stage had given by then is handed on."""
        if self._closing is None and (committed := self._committed) and (end := self._end_of_topic()) is not None:
            self._closing, self._committed = (committed, end), None
        if self._closing is None:
            return
        committed, end = self._closing
        if self._next >= end and not self._points.holds(committed.closed_ms):
            feed.look_back(committed.closed_ms, committed.read)
            self._closing = None

    def _present(self, moment: float, quiet_s: float) -> int | None:
        """Up to which time points are over although none has come after them, in milliseconds; None: not known."""
        if not self.live or moment - self._began < (AGAIN_S if self._points.behind else FIRST_S):
            return None
        if quiet_s <= (QUIET_S if self._reads is None else HANDED_S):
            return None
        return int(self._clock() * 1000) if self._reads is None else self._reads._points.over_ms

    def _until(self) -> float:
        """The end of the topic when settling began; never reached while Kafka does not say where that is."""
        if self._goal is None:
            self._goal = self._end_of_topic()
        return float("inf") if self._goal is None else self._goal

    def _end_of_topic(self) -> int | None:
        """Where the topic ends now; None while Kafka does not say."""
        assert self._consumer is not None
        with suppress(confluent_kafka.KafkaException):
            return self._consumer.get_watermark_offsets(self._partition, timeout=2.0)[1]
        return None

    def _take_in(self, messages: list[confluent_kafka.Message]) -> None:
        """Take messages; those that are given again begin with parts of windows, which are to replace no whole one."""
        if self._again_at is not None and self._next < self._again_at:
            first = [message for message in messages if (message.offset() or 0) < self._again_at]
            self._take(first)
            messages = messages[len(first) :]
            if messages or self._next >= self._again_at:
                self._points.begin_again(self._points.reached)
        self._take(messages)

    def _take(self, messages: list[confluent_kafka.Message]) -> None:
        """Keep the newest value of each point; results of others are left out."""
        position = self._position
        given = [message for message in messages if message.error() is None]
        if not given:
            return
        if position.before:
            counting = [item for item in given if position.counts(item.offset() or 0, item.value() or b"")]
        else:
            own = mark(position.epoch, position.run)
            counting = [item for item in given if (item.value() or b"").startswith(own)]
        if self._last and position.behind:  # nobody will write the whole value over it
            counting = [item for item in counting if not position.is_part(item.value() or b"")]
        newest = {message.key(): message for message in counting}
        for key, message in newest.items():  # a few of the thousands
            value = message.value() or b""
            told = key or b"", message.offset() or 0, value, state_partition(value)
            self._points.add(*told)
            if self._unwritten is not None:
                self._unwritten.add(*told)
        self._next = (given[-1].offset() or 0) + 1

    def _write(self, values: list[bytes]) -> None:
        if self._shadow and self.feed is None:
            return
        for first in range(0, len(values), ROWS):  # so many are taken apart at once
            given = [columns(value) for value in values[first : first + ROWS]]
            found = [row for row in given if self._needs <= row.keys()]
            if found != given:
                log.error(
                    "%s: %s results of an earlier version have other columns, and are left out",
                    self.stage, len(given) - len(found),
                )  # fmt: skip
            if self.feed is not None:
                self._check()
                self.feed.hand_on(found)
            rows = [Row(**row) for row in found]
            for sink in self._sinks:
                self._patience.write(sink, rows, 0)
            self.rows += len(rows)
        if values:
            self.outputs += 1
            self.last_output = now()

    # --- the position

    @property
    def _key(self) -> str:
        return keys.results(self._position.job, self.stage)

    @property
    def _partition(self) -> confluent_kafka.TopicPartition:
        return confluent_kafka.TopicPartition(self.topic, 0)

    def _save(self, *, keep_trying: bool = False, **update: Any) -> None:
        """Store what changed of the position.

        Args:
            keep_trying: an object store that is away is no failure; what is not stored now is stored next time.

        Raises:
            LeaseLostError: a later writer has stored its own.
        """
        if self._shadow:
            self._position = self._position.model_copy(update=update)
            return
        epoch = self._lease().epoch

        def saved(old: ResultsPosition | None) -> ResultsPosition:
            if old and old.epoch > epoch:
                raise LeaseLostError(f"Epoch {epoch} of {old.job} is over; epoch {old.epoch} writes its results.")
            return position

        with self._saving:  # the driver's thread and this stage's own would undo each other's change
            position = self._position.model_copy(update=update)
            over = tuple(item for item in position.before if item.until > position.offset)
            position = position.model_copy(update={"before": over})
            if position == self._position:
                return
            try:
                documents.update(self._store, self._key, ResultsPosition, saved)
            except UnreachableError as error:
                if not keep_trying:
                    raise
                log.warning("%s: the position is stored later: %s", self.stage, error)
                return
            self._position = position

    def _trim(self) -> None:
        """Let Kafka delete what was written; what does not work now is done next time."""
        if self._shadow:
            return
        own = self._waiting  # before the position, which ``allow`` stores first
        written = self._position.offset  # before it is asked who stands by: a shadow's results all come later
        if own is not None:
            written = min(written, own.since)  # what it gave as a shadow is read again if it ends now
        with suppress(StreamOpsError):
            if self._standby() and (others := self._left()) and others.deployment > self._deployment:
                written = min(written, others.since)
            self._check()  # one that has just got the lease stands by no more, and has yet to read what it gave
            self._ledger.delete_records(self.topic, 0, written)

    def _left(self) -> Shadow | None:
        """What a version gives, or has given, before it may write."""
        found = documents.read(self._store, keys.shadow(self._position.job, self.stage), Shadow)
        return found.value if found else None
