"""The ledger: what a Kafka topic holds, read fast and to an exact end.

Topics and offsets are asked for with kafka-python. Records are read with librdkafka (confluent-kafka): kafka-python
builds several objects for each of them, which is too slow to recount tens of millions (docs/adr/0022-kafka-clients.md).
"""

from __future__ import annotations

import heapq
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Self, TypeVar

import confluent_kafka
import kafka.errors as errors
from confluent_kafka import KafkaError, Message
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic, OffsetSpec

from streamops.model.errors import NotFoundError, StreamOpsError, UnreachableError
from streamops.settings import Settings

_MESSAGES = 500  # taken at once; with more, memory grows and nothing gets faster
_MERGE_MS = 100  # partitions are merged in pieces of this much time
READER = {
    "group.id": "streamops",  # librdkafka wants one; it has no members, and nothing is committed
    "enable.auto.commit": False,
    "enable.partition.eof": True,  # the end may be markers of transactions, or records that compaction removed
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",  # as Spark's source reads
    "check.crcs": True,
    "fetch.wait.max.ms": 100,
    "queued.max.messages.kbytes": 8192,
    "queued.min.messages": 10_000_000,  # bytes are the limit
    "fetch.queue.backoff.ms": 5,  # its second of waiting for room takes longer than the reading
    "reconnect.backoff.max.ms": 1000,
    "log_level": 0,
}
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Block:
    """Consecutive records of one partition as columns; timestamps in epoch milliseconds, None is a null value."""

    partition: int
    offsets: list[int]
    timestamps: list[int]
    values: list[bytes | None]


class Ledger:
    """Topics of the installation's broker, and as ``TOPIC@HOST:PORT`` those of others; partitions are text in offsets.

    Raises (every method): UnreachableError when Kafka does not answer within 10 seconds.
    """

    def __init__(self, settings: Settings, timeout_s: float = 10.0) -> None:
        self._begin(settings.kafka_bootstrap_servers, timeout_s)

    @classmethod
    def at(cls, servers: str, timeout_s: float = 10.0) -> Self:
        """The ledger at bootstrap servers, for programs that have no settings."""
        ledger = cls.__new__(cls)
        ledger._begin(servers, timeout_s)
        return ledger

    def _begin(self, servers: str, timeout_s: float) -> None:
        self.servers, self.timeout_s = servers, timeout_s
        self._admin: KafkaAdminClient | None = None
        self._others: dict[str, Ledger] = {}  # by their servers

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None
        for other in self._others.values():
            other.close()

    def _of(self, topic: str) -> tuple[Ledger, str]:
        """The ledger that has a topic, and the topic's name there."""
        name, _, servers = topic.partition("@")
        if servers and servers not in self._others:
            self._others[servers] = Ledger.at(servers, self.timeout_s)
        return (self._others[servers] if servers else self), name

    def unreachable(self) -> UnreachableError:
        """The one sentence for a broker that is away."""
        return UnreachableError(
            f"Kafka at {self.servers} did not answer; check that it runs ('make status') and retry."
        )

    def ensure_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> bool:
        """Create the topic if it is not there; True if it was created now."""
        ledger, topic = self._of(topic)
        wanted = NewTopic(topic, partitions, replication_factor=-1, topic_configs=dict(config or {}))

        def create(admin: KafkaAdminClient) -> bool:
            answer = admin.create_topics([wanted], raise_errors=False)["topics"][0]
            if answer["error_code"] not in (0, errors.TopicAlreadyExistsError.errno):
                raise StreamOpsError(
                    f"Kafka refused topic {topic}: {answer['error_message']}; correct its name or settings."
                )
            admin.wait_for_topics([topic], timeout_ms=int(self.timeout_s * 1000))  # until it has leaders
            return bool(answer["error_code"] == 0)

        return ledger._ask(create)

    def beginning_offsets(self, topic: str) -> dict[str, int]:
        """First offset still kept, by partition. Raises NotFoundError."""
        return self._offsets(topic, OffsetSpec.EARLIEST)

    def end_offsets(self, topic: str) -> dict[str, int]:
        """Offset that the next record gets, by partition. Raises NotFoundError."""
        return self._offsets(topic, OffsetSpec.LATEST)

    def offsets_at(self, topic: str, time_ms: int) -> dict[str, int]:
        """First offset whose record is not older than ``time_ms``, by partition; the end if all are older."""
        found = self._offsets(topic, time_ms)
        ends = self.end_offsets(topic) if min(found.values()) < 0 else {}
        return {part: at if at >= 0 else ends[part] for part, at in found.items()}

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Let Kafka delete the records of a partition whose offset is below ``before``."""
        self._ask(lambda admin: admin.delete_records({TopicPartition(topic, partition): before}))

    def delete_topics(self, prefix: str) -> list[str]:
        """Delete the topics whose names begin with ``prefix``, which are returned."""

        def delete(admin: KafkaAdminClient) -> list[str]:
            found = sorted(topic for topic in admin.list_topics() if topic.startswith(prefix))
            if found:
                admin.delete_topics(found, raise_errors=False)
            return found

        return self._ask(delete)

    def delete_topic(self, topic: str) -> bool:
        """Delete a topic with its events; False if it is not there."""

        def delete(admin: KafkaAdminClient) -> bool:
            answer = admin.delete_topics([topic], raise_errors=False)["topics"][0]
            if answer["error_code"] not in (0, errors.UnknownTopicOrPartitionError.errno):
                raise errors.for_code(answer["error_code"])(topic)
            return bool(answer["error_code"] == 0)

        return self._ask(delete)

    def retention_ms(self, topic: str) -> int:
        """For how long the topic keeps an event; -1 is for ever. Raises NotFoundError."""
        self._offsets(topic, OffsetSpec.EARLIEST)  # describing one that is not there is an error of another kind

        def retention(admin: KafkaAdminClient) -> int:
            wanted = [ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": None})]
            found = admin.describe_configs(wanted, config_filter="all")
            return int(found["topic"][topic]["retention.ms"]["value"])

        return self._ask(retention)

    def read(
        self, topic: str, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Iterator[tuple[int, int, int, bytes | None]]:
        """Records with ``start <= offset < end`` as (partition, offset, timestamp in ms, value).

        Raises:
            NotFoundError: the topic is not there, or retention has removed the start.
        """
        for block in self.read_blocks(topic, start, end):
            for row in zip(block.offsets, block.timestamps, block.values, strict=True):
                yield (block.partition, *row)

    def read_committed(
        self, topic: str, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Iterator[tuple[int, int, int, bytes | None]]:
        """As ``read``, one partition after the other, without what a transaction wrote that was not committed."""
        for part, stop in end.items():
            for messages in self.messages(topic, int(part), start.get(part, 0), stop, committed=True):
                for message in messages:
                    yield int(part), _offset(message), message.timestamp()[1], message.value()

    def read_keyed(self, topic: str, start: int, end: int) -> Iterator[tuple[int, bytes, bytes]]:
        """As ``read``, of a topic with one partition, as (timestamp in ms, key, value)."""
        for messages in self.messages(topic, 0, start, end):
            for message in messages:
                yield message.timestamp()[1], message.key() or b"", message.value() or b""

    def read_blocks(self, topic: str, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[Block]:
        """As ``read``, in columns: blocks of some hundred records, the partitions merged by record timestamp."""
        streams = [self._blocks(topic, int(part), start.get(part, 0), stop) for part, stop in end.items()]
        return heapq.merge(*streams, key=lambda block: (block.timestamps[0], block.partition))

    def _blocks(self, topic: str, partition: int, start: int, end: int) -> Iterator[Block]:
        for messages in self.messages(topic, partition, start, end):
            for _, piece in groupby(messages, lambda message: message.timestamp()[1] // _MERGE_MS):
                rows = list(piece)
                yield Block(
                    partition,
                    [_offset(row) for row in rows],
                    [row.timestamp()[1] for row in rows],
                    [row.value() for row in rows],
                )

    def messages(
        self, topic: str, partition: int, start: int, end: int, *, committed: bool = False
    ) -> Iterator[list[Message]]:
        """As ``read``, of one partition and as librdkafka has them, some at a time; for their keys and headers.

        Args:
            committed: leave out what a transaction wrote that was not committed.

        Raises:
            NotFoundError: as ``read``.
            StreamOpsError: a record batch is damaged, or Kafka refuses to be read.
        """
        if start >= end:
            return
        ledger, topic = self._of(topic)
        if ledger is not self:
            yield from ledger.messages(topic, partition, start, end, committed=committed)
            return
        if str(partition) not in self.beginning_offsets(topic):
            raise NotFoundError(f"Topic {topic} has no partition {partition}; check the recorded offsets.")
        own = {"isolation.level": "read_committed"} if committed else {}
        consumer = confluent_kafka.Consumer({**READER, **own, "bootstrap.servers": self.servers})
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, start)])
            position, progress = start, time.monotonic()
            while position < end:
                messages: list[Message] = []
                for message in consumer.consume(min(_MESSAGES, end - position), 0.1):
                    if (error := message.error()) is None:
                        messages.append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        position = max(position, _offset(message))
                    else:
                        self._refuse(topic, partition, _offset(message), error)
                if messages:
                    position = max(position, _offset(messages[-1]) + 1)
                    if position > end:  # over a gap
                        messages = [message for message in messages if _offset(message) < end]
                    yield messages
                    progress = time.monotonic()
                elif time.monotonic() - progress > self.timeout_s:
                    raise self.unreachable()
        finally:
            consumer.close()

    def _refuse(self, topic: str, partition: int, offset: int, error: KafkaError) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise NotFoundError(
                f"Topic {topic} no longer holds offset {offset} of partition {partition} "
                f"(it begins at {self.beginning_offsets(topic)[str(partition)]}); recount from a later start."
            )
        if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:  # a broker that came back hears of its topics later
            raise StreamOpsError(f"Kafka refused to read {topic} ({error.str()}); check its log and its disk.")

    def _offsets(self, topic: str, which: int) -> dict[str, int]:
        ledger, topic = self._of(topic)

        def offsets(admin: KafkaAdminClient) -> dict[str, int]:
            (found,) = admin.describe_topics([topic])
            if found["error_code"] == errors.UnknownTopicOrPartitionError.errno:
                raise NotFoundError(
                    f"Kafka at {ledger.servers} has no topic {topic}; correct the name, or let its deploy make it "
                    "(--create-topics 1; in the form: Create topics)."
                )
            if found["error_code"]:
                raise errors.for_code(found["error_code"])(topic)
            if any(part["leader_id"] < 0 for part in found["partitions"]):
                raise errors.LeaderNotAvailableError(topic)
            parts = [TopicPartition(topic, part["partition_index"]) for part in found["partitions"]]
            answer = admin.list_partition_offsets(dict.fromkeys(parts, which))
            return {str(part.partition): int(at.offset) for part, at in sorted(answer.items())}

        return ledger._ask(offsets)

    def _ask(self, question: Callable[[KafkaAdminClient], _Answer]) -> _Answer:
        """The answer to what may be asked twice; connection trouble is retried until the time is over."""
        deadline = time.monotonic() + self.timeout_s
        while (left_ms := int((deadline - time.monotonic()) * 1000)) > 0:
            try:
                return question(self._connected(left_ms))
            except (errors.KafkaError, OSError) as error:
                if not getattr(error, "retriable", True):
                    raise StreamOpsError(f"Kafka at {self.servers} refused a request: {error!r}.") from error
                time.sleep(0.1)
        raise self.unreachable()

    def _connected(self, left_ms: int) -> KafkaAdminClient:
        if self._admin is None:
            self._knock(left_ms / 1000)
            self._admin = KafkaAdminClient(
                bootstrap_servers=self.servers,
                bootstrap_timeout_ms=left_ms,
                request_timeout_ms=int(self.timeout_s * 1000),
                reconnect_backoff_max_ms=1000,
            )
        return self._admin

    def _knock(self, timeout_s: float) -> None:
        """Raise OSError unless a server listens: a KafkaAdminClient that finds none leaves its thread behind."""
        servers = self.servers.split(",")
        for server in servers:
            host, _, port = server.strip().rpartition(":")
            with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), timeout_s / len(servers)):
                return
        raise ConnectionRefusedError(self.servers)


def _offset(message: Message) -> int:
    """Where a record stands; only one that was never sent stands nowhere."""
    return message.offset() or 0
