"""The ledger: what a Kafka topic holds, read fast and to an exact end."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

import kafka.errors as errors
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest

from streamops.clients.kafka_wire import Block, Broker, blocks
from streamops.model.errors import NotFoundError, StreamOpsError
from streamops.settings import Settings

_FETCH_BYTES = 4 << 20
_EARLIEST, _LATEST = -2, -1
_MOVED = frozenset({3, 5, 6, 9, 74, 75, 76})  # leader unknown, elsewhere or of another epoch: look it up again
_OUT_OF_RANGE = 1


class Ledger:
    """Topics of the installation's broker; partitions are text in offsets, as in the job's records.

    Raises (every method): UnreachableError when Kafka does not answer within 10 seconds.
    """

    def __init__(self, settings: Settings, timeout_s: float = 10.0) -> None:
        self.broker = Broker(settings.kafka_bootstrap_servers, timeout_s)

    @classmethod
    def at(cls, servers: str, timeout_s: float = 10.0) -> Self:
        """The ledger at bootstrap servers, for programs that have no settings."""
        ledger = cls.__new__(cls)
        ledger.broker = Broker(servers, timeout_s)
        return ledger

    def close(self) -> None:
        """Close the connections."""
        self.broker.close()

    def ensure_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> bool:
        """Create the topic if it is not there; True if it was created now."""
        shape = CreateTopicsRequest.CreatableTopic
        entry = shape(
            version=5,
            name=topic,
            num_partitions=partitions,
            replication_factor=-1,  # the broker's default
            assignments=[],
            configs=[
                shape.CreatableTopicConfig(version=5, name=key, value=value) for key, value in (config or {}).items()
            ],
        )
        request = CreateTopicsRequest(
            version=5, topics=[entry], timeout_ms=int(self.broker.timeout_s * 1000), validate_only=False
        )
        answer = self.broker.call(request).topics[0]
        if answer.error_code not in (0, errors.TopicAlreadyExistsError.errno):
            raise StreamOpsError(f"Kafka refused topic {topic}: {answer.error_message}; correct its name or settings.")
        self.broker.partitions(topic, created=True)  # waits until it has leaders
        return bool(answer.error_code == 0)

    def beginning_offsets(self, topic: str) -> dict[str, int]:
        """First offset still kept, by partition. Raises NotFoundError."""
        return self._list(topic, _EARLIEST)

    def end_offsets(self, topic: str) -> dict[str, int]:
        """Offset that the next record gets, by partition. Raises NotFoundError."""
        return self._list(topic, _LATEST)

    def offsets_at(self, topic: str, time_ms: int) -> dict[str, int]:
        """First offset whose record is not older than ``time_ms``, by partition; the end if all are older."""
        return {
            part: found if (found := self._offset(topic, int(part), time_ms)) >= 0 else end
            for part, end in self.end_offsets(topic).items()
        }

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

    def read_blocks(self, topic: str, start: Mapping[str, int], end: Mapping[str, int]) -> Iterator[Block]:
        """As ``read``, in columns: one block per record batch, the partitions merged by record timestamp."""
        streams = [
            (
                (block.timestamps[0] if block.timestamps else 0, block.partition, block.next_offset, block)
                for block in self._partition(topic, int(partition), start.get(partition, 0), stop)
            )
            for partition, stop in end.items()
            if start.get(partition, 0) < stop
        ]
        return (item[3] for item in (streams[0] if len(streams) == 1 else heapq.merge(*streams, key=lambda i: i[:3])))

    def _partition(self, topic: str, partition: int, position: int, end: int) -> Iterator[Block]:
        progress = time.monotonic()
        while position < end:
            answer = self.fetch(topic, partition, position)
            if answer.error_code == _OUT_OF_RANGE:
                raise NotFoundError(
                    f"Topic {topic} no longer holds offset {position} of partition {partition} "
                    f"(it begins at {answer.log_start_offset}); recount from a later start."
                )
            if answer.error_code in _MOVED:
                self.broker.forget_leaders()
            elif answer.error_code:
                raise StreamOpsError(
                    f"Kafka refused to read {topic}: {errors.for_code(answer.error_code).__name__}; check its log."
                )
            for block in blocks(partition, bytes(answer.records or b""), position, end):
                position, progress = block.next_offset, time.monotonic()
                yield block
            if time.monotonic() - progress > self.broker.timeout_s:
                raise self.broker.unreachable()

    def fetch(self, topic: str, partition: int, position: int) -> Any:
        """One answer as it came: ``records`` begin at or before ``position``, ``error_code`` says what is wrong."""
        part = FetchRequest.FetchTopic.FetchPartition(
            version=11,
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=position,
            log_start_offset=-1,
            partition_max_bytes=_FETCH_BYTES,
        )
        request = FetchRequest(  # read uncommitted, as Spark's source does
            version=11,
            replica_id=-1,
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=_FETCH_BYTES,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(version=11, topic=topic, partitions=[part])],
            forgotten_topics_data=[],
            rack_id="",
        )
        return self.broker.call(request, self.broker.leader(topic, partition)).responses[0].partitions[0]

    def _list(self, topic: str, which: int) -> dict[str, int]:
        return {str(part): self._offset(topic, part, which) for part in self.broker.partitions(topic)}

    def _offset(self, topic: str, partition: int, which: int) -> int:
        shape = ListOffsetsRequest.ListOffsetsTopic
        part = shape.ListOffsetsPartition(
            version=5, partition_index=partition, current_leader_epoch=-1, timestamp=which
        )
        deadline = time.monotonic() + self.broker.timeout_s
        while True:
            request = ListOffsetsRequest(
                version=5, replica_id=-1, isolation_level=0, topics=[shape(version=5, name=topic, partitions=[part])]
            )
            answer = self.broker.call(request, self.broker.leader(topic, partition)).topics[0].partitions[0]
            if answer.error_code == 0:
                return int(answer.offset)
            if time.monotonic() > deadline:
                raise self.broker.unreachable()
            self.broker.forget_leaders()
