"""One Kafka connection at the level of requests, and record batches read without an object per record.

kafka-python's consumer builds several objects for each record, which is too slow to recount tens of millions;
its connection manager and its message classes are used as they are, only the loop over records is our own.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import google_crc32c
import kafka.errors as errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import MetadataRequest
from kafka.record.memory_records import MemoryRecords

from streamops.model.errors import NotFoundError, StreamOpsError, UnreachableError

# Offset, length, leader epoch, magic, crc, attributes, last offset delta, first and max timestamp, producer id
# and epoch, base sequence, count.
HEADER = struct.Struct(">qiibIhiqqqhii")
_CRC_FROM = 21  # the checksum covers everything after itself
_COMPRESSED, _APPEND_TIME, _CONTROL = 0x07, 0x08, 0x20


@dataclass(frozen=True)
class Block:
    """Consecutive records of one partition as columns; timestamps in epoch milliseconds, None is a null value."""

    partition: int
    offsets: list[int]
    timestamps: list[int]
    values: list[bytes | None]
    next_offset: int


class Broker:
    """Requests to the leader of a partition.

    Raises (every method): UnreachableError when Kafka does not answer within ``timeout_s``.
    """

    def __init__(self, servers: str, timeout_s: float = 10.0) -> None:
        self.servers = servers
        self.timeout_s = timeout_s
        self._leaders: dict[tuple[str, int], int] = {}
        self._net: Any = None
        self._manager: Any = None

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        if self._manager is not None:
            self._manager.close()
            self._net.close()
            self._manager = self._net = None

    def call(self, request: Any, node: int | None = None, timeout_s: float | None = None) -> Any:
        """Send one request and return its answer; connection trouble is retried until the time is over.

        Only for requests that may be sent twice, which is every request of this package.
        """
        deadline = time.monotonic() + (timeout_s or self.timeout_s)
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._connect(left)
                request.API_VERSION = request.API_VERSION or None
                return self._net.run(self._manager.send, request, node, max(1.0, left * 1000))
            except (errors.KafkaError, OSError) as error:
                if not getattr(error, "retriable", True):
                    raise StreamOpsError(f"Kafka at {self.servers} refused a request: {error!r}.") from error
                self._pause()
        raise self.unreachable()

    def unreachable(self) -> UnreachableError:
        """The one sentence for a broker that is away."""
        return UnreachableError(
            f"Kafka at {self.servers} did not answer; check that it runs ('make status') and retry."
        )

    def partitions(self, topic: str, *, created: bool = False) -> list[int]:
        """The topic's partitions.

        Args:
            created: the topic is known to be there, and a broker that has not heard of it yet will.

        Raises:
            NotFoundError: there is no such topic.
            UnreachableError: it had no leader, or no broker knew it, until the time was over.
        """
        deadline = time.monotonic() + self.timeout_s
        while True:
            # Version 9 is understood by every broker since 2.4 and names topics, not ids.
            request = MetadataRequest(
                version=9,
                topics=[MetadataRequest.MetadataRequestTopic(version=9, name=topic)],
                allow_auto_topic_creation=False,
            )
            answer = self.call(request).topics[0]
            if answer.error_code == errors.UnknownTopicOrPartitionError.errno and not created:
                raise NotFoundError(f"Kafka at {self.servers} has no topic {topic}; create it or correct the name.")
            leaders = {part.partition_index: part.leader_id for part in answer.partitions}
            if answer.error_code == 0 and leaders and min(leaders.values()) >= 0:
                self._leaders.update({(topic, part): leader for part, leader in leaders.items()})
                return sorted(leaders)
            if time.monotonic() > deadline:
                raise self.unreachable()
            self._pause()

    def leader(self, topic: str, partition: int) -> int:
        """Node that leads a partition. Raises NotFoundError."""
        if (topic, partition) not in self._leaders:
            self.partitions(topic)
        try:
            return self._leaders[topic, partition]
        except KeyError:
            raise NotFoundError(f"Topic {topic} has no partition {partition}; check the recorded offsets.") from None

    def forget_leaders(self) -> None:
        """Look leaders up again; for answers that say someone else leads."""
        self._leaders.clear()
        self._pause()

    def _connect(self, left_s: float) -> None:
        if self._manager is None:
            self._net = NetworkSelector()
            self._manager = KafkaConnectionManager(
                self._net,
                bootstrap_servers=self.servers,
                receive_message_max_bytes=256 << 20,
                socket_connection_setup_timeout_ms=3000,
                reconnect_backoff_max_ms=1000,
            )
        if not self._manager.bootstrapped:
            self._manager.bootstrap(timeout_ms=int(left_s * 1000) + 1)

    def _pause(self) -> None:
        if self._net is not None:
            self._net.poll(timeout_ms=100)
        time.sleep(0.05)  # a closed selector returns at once


def blocks(partition: int, data: bytes, start: int, end: int) -> Iterator[Block]:
    """The records with ``start <= offset < end`` in a fetch answer, one block for each record batch.

    Raises:
        StreamOpsError: a batch's checksum is wrong, or it is compressed with a codec that is not installed.
    """
    position = 0
    while position + HEADER.size <= len(data):
        head = HEADER.unpack_from(data, position)
        base, length, magic, attributes = head[0], head[1], head[3], head[5]
        stop = position + 12 + length
        if stop > len(data):  # the answer was cut at its size limit
            return
        next_offset = base + head[6] + 1 if magic == 2 else base + 1
        if next_offset > start:
            if magic == 2 and google_crc32c.value(data[position + _CRC_FROM : stop]) != head[4]:
                raise StreamOpsError(f"Kafka's batch at offset {base} has a wrong checksum; check the broker's disk.")
            if magic == 2 and attributes & _CONTROL:
                yield Block(partition, [], [], [], min(next_offset, end))
            elif magic != 2 or attributes & _COMPRESSED:
                yield _cut(_slow(partition, data[position:stop]), start, end)
            else:
                block = _fast(partition, data, position + HEADER.size, head)
                yield _cut(block, start, end) if base < start or next_offset > end else block
        if next_offset >= end:
            return
        position = stop


def _fast(partition: int, data: bytes, position: int, head: tuple[int, ...]) -> Block:
    """Uncompressed records. Lengths of one or two bytes are decoded in line: they are nearly all there are."""
    base, first, count = head[0], head[7], head[12]
    offsets: list[int] = []
    timestamps: list[int] = []
    values: list[bytes | None] = []
    for _ in range(count):
        size = data[position]
        position += 1
        if size > 0x7F:
            more = data[position]
            if more > 0x7F:
                size, position = _long(data, position - 1)
            else:
                size = (size & 0x7F | more << 7) >> 1
                position += 1
        else:
            size >>= 1
        after = position + size
        delta = data[position + 1]  # past one byte of attributes
        position += 2
        if delta > 0x7F:
            delta, position = _long(data, position - 1)
        else:
            delta = delta >> 1 ^ -(delta & 1)
        timestamps.append(first + delta)
        delta = data[position]
        position += 1
        if delta > 0x7F:
            more = data[position]
            if more > 0x7F:
                delta, position = _long(data, position - 1)
            else:
                delta = (delta & 0x7F | more << 7) >> 1
                position += 1
        else:
            delta >>= 1
        offsets.append(base + delta)
        size = data[position]
        position += 1
        if size > 0x7F:
            size, position = _long(data, position - 1)
        else:
            size = size >> 1 ^ -(size & 1)
        if size > 0:
            position += size
        size = data[position]
        position += 1
        if size > 0x7F:
            more = data[position]
            if more > 0x7F:
                size, position = _long(data, position - 1)
            else:
                size = (size & 0x7F | more << 7) >> 1
                position += 1
        else:
            size = size >> 1 ^ -(size & 1)
        values.append(data[position : position + size] if size >= 0 else None)
        position = after
    if head[5] & _APPEND_TIME:
        timestamps = [head[8]] * count
    return Block(partition, offsets, timestamps, values, base + head[6] + 1)


def _long(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint of any length, and the position after it."""
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7


def _slow(partition: int, data: bytes) -> Block:
    """Compressed or old batches, through kafka-python."""
    offsets, timestamps, values = [], [], []
    try:
        for batch in MemoryRecords(data):
            for record in batch:
                offsets.append(record.offset)
                timestamps.append(record.timestamp)
                values.append(record.value)
    except errors.KafkaError as error:
        raise StreamOpsError(f"A Kafka batch cannot be read: {error}; install the codec it names.") from error
    base, delta, magic = (HEADER.unpack_from(data)[index] for index in (0, 6, 3))
    return Block(partition, offsets, timestamps, values, base + delta + 1 if magic == 2 else offsets[-1] + 1)


def _cut(block: Block, start: int, end: int) -> Block:
    keep = [index for index, offset in enumerate(block.offsets) if start <= offset < end]
    return Block(
        block.partition,
        [block.offsets[index] for index in keep],
        [block.timestamps[index] for index in keep],
        [block.values[index] for index in keep],
        min(block.next_offset, end),
    )
