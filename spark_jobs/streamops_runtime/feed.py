"""The way from a real-time stage to the stages that read it: a topic of the deployment, written in transactions.

Only one driver can write: opening the feed ends the right of whoever wrote before, and what that one had not committed
is never seen. What was handed on is read back from the topic (``streamops.model.feeds``), so nothing else has to be
stored at the same moment. A deployment that continues a snapshot begins with the slice of the feed that the snapshot
holds: what its readers had not taken in, and what is needed to tell what changes from then on.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from streamops.clients.kafka import Ledger
from streamops.model.definitions import InfluxSink
from streamops.model.errors import LeaseLostError, StreamOpsError, UnreachableError
from streamops.model.feeds import Handed, encoded
from streamops.model.records import FeedPosition, FeedSlice
from streamops.spark import checkpoints
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore

_TOPIC = {"retention.ms": "-1", "cleanup.policy": "delete", "segment.bytes": str(16 << 20)}
KEPT_S = 600.0  # what is not needed any more
_WAIT_S = 15.0  # for an answer of the broker
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}

log = logging.getLogger("feed")


class Feed:
    """What one stage hands on. Used by one thread at a time.

    Args:
        sink: the stage's, whose tags and time are what a point is known by.
        add: the columns whose changes are handed on.
    """

    def __init__(
        self,
        job: str,
        stage: str,
        deployment: int,
        servers: str,
        store: ObjectStore,
        sink: InfluxSink,
        add: Iterable[str],
    ) -> None:
        self.topic = keys.feed_topic(job, stage, deployment)
        self._servers, self._store = servers, store
        self._sink, self._add = sink, tuple(add)
        self._ledger = Ledger.at(servers)
        self._position = FeedPosition(job=job, stage=stage, deployment=deployment)
        self._handed = self._nothing()
        self._producer: confluent_kafka.Producer | None = None
        self._unread = 0  # the first offset that a reader may still ask for
        self._needless: deque[tuple[float, int]] = deque()  # when -> the offset before which nothing was needed

    def _nothing(self) -> Handed:
        return Handed(self._sink.tags, self._sink.time, self._add)

    def open(self) -> None:
        """Become the only writer, and read what was handed on; one that is open stays so.

        Raises:
            UnreachableError: Kafka or the object store did not answer.
            LeaseLostError: another driver writes the feed.
        """
        if self._producer is not None:
            return
        self._ledger.ensure_topic(self.topic, config=_TOPIC)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": self.topic,
                "transaction.timeout.ms": 10_000,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._tried(lambda: producer.init_transactions(_WAIT_S))
        known = self._position
        key = keys.feed(known.job, known.stage, known.deployment)
        found = documents.find(self._store, key, FeedPosition)
        position = found or known
        if found is None and (begun := self._slice()):
            position = position.model_copy(update={"closed_ms": begun.closed_ms})
            if not self._read(position).next:  # else it was written, and what remembers that was not
                self._begin(producer, begun)
        handed = self._read(position)
        if found is None:
            documents.write(self._store, key, position)
        handed.forget(self._handed.closed_ms)
        self._position, self._handed, self._producer = position, handed, producer
        log.info("feed of %s: %s points are remembered", position.stage, len(handed))

    def _read(self, position: FeedPosition) -> Handed:
        """What was handed on, as the topic tells it."""
        handed = self._nothing()
        handed.forget(position.closed_ms)
        begin, end = self._ledger.beginning_offsets(self.topic), self._ledger.end_offsets(self.topic)
        start = {"0": max(begin["0"], position.since)}
        for _, offset, _, value in self._ledger.read_committed(self.topic, start, end):
            handed.note(json.loads(value or b"{}"), offset)
        return handed

    def _slice(self) -> FeedSlice | None:
        """What the snapshot that this deployment continues holds of the feed: it lies where the first epoch began."""
        position = self._position
        for prefix in self._store.prefixes(keys.checkpoints(position.job, position.deployment)):
            if found := documents.find(self._store, f"{prefix}{position.stage}/{checkpoints.FEED}", FeedSlice):
                return found
        return None

    def _begin(self, producer: confluent_kafka.Producer, begun: FeedSlice) -> None:
        records = [json.loads(text) for text in begun.records]
        handed = self._nothing()
        handed.forget(begun.closed_ms)
        for number, record in enumerate(records):
            handed.note(record, number)
        pending = (handed.change(json.loads(text)) for text in begun.pending)
        self._send(producer, handed, [*records, *(change for change in pending if change)])  # in one transaction

    def hand_on(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Hand on what is new in these results; all of it is seen at once, or nothing.

        Raises:
            UnreachableError: Kafka did not answer; whether it was handed on is read from the topic at the next call.
            LeaseLostError: another driver writes the feed.
        """
        if self._producer is None:
            self.open()
        producer = self._producer
        assert producer is not None
        try:
            before = self._handed.left_out
            changes = [change for row in rows if (change := self._handed.change(row))]
            late = self._handed.left_out - before
            if late:  # the watermark says that there are none
                log.error("%s: %s changes of points that are closed are not handed on", self._position.stage, late)
            self._send(producer, self._handed, changes)
        except StreamOpsError:
            self._producer = None
            raise

    def _send(self, producer: confluent_kafka.Producer, handed: Handed, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        offsets: dict[int, int] = {}

        def sent(number: int) -> Any:
            def note(error: KafkaError | None, message: confluent_kafka.Message) -> None:
                if error is None:
                    offsets[number] = message.offset() or 0

            return note

        def send() -> None:
            producer.begin_transaction()
            for number, record in enumerate(records):
                producer.produce(self.topic, encoded(record).encode(), partition=0, on_delivery=sent(number))
                producer.poll(0)
            producer.commit_transaction(_WAIT_S)

        self._tried(send)
        for number, record in enumerate(records):
            handed.note(record, offsets[number])

    def _tried(self, act: Callable[[], object]) -> None:
        try:
            act()
        except (KafkaException, BufferError) as error:
            found = error.args[0] if error.args else None
            if isinstance(found, KafkaError) and found.code() in _FENCED:
                raise LeaseLostError(f"Another driver writes {self.topic}.") from error
            raise UnreachableError(f"Kafka at {self._servers} did not take {self.topic}: {error}.") from error

    def save(self) -> None:
        """Store from where on the feed is to be read after a crash; what is not stored now is stored next time."""
        update = {"since": self._handed.since, "closed_ms": self._handed.closed_ms}
        position = self._position.model_copy(update=update)
        if position == self._position:
            return
        try:
            documents.write(self._store, keys.feed(position.job, position.stage, position.deployment), position)
            self._position = position
        except UnreachableError as error:
            log.warning("%s: the position is stored later: %s", position.stage, error)

    def look_back(self, closed_ms: int | None, read: int) -> None:
        """Remember less: what was committed tells what nobody asks for any more.

        Args:
            closed_ms: points up to this time do not change any more; since the epoch.
            read: the first offset that a reader may still ask for.
        """
        self._handed.forget(closed_ms)
        self._unread = read

    def trim(self, moment: float) -> None:
        """Let Kafka delete what was not needed any more ``KEPT_S`` ago; a snapshot that has begun needs what is newer.

        Args:
            moment: of a monotonic clock, in seconds.
        """
        self._needless.append((moment, min(self._unread, self._position.since)))
        while len(self._needless) > 1 and self._needless[1][0] <= moment - KEPT_S:
            self._needless.popleft()
        then, before = self._needless[0]
        if before and then <= moment - KEPT_S:
            with suppress(StreamOpsError):
                self._ledger.delete_records(self.topic, 0, before)

    def close(self) -> None:
        """Let the connections go; a transaction is never open between two calls."""
        self._producer = None
        self._ledger.close()
