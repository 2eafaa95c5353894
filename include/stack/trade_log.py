"""The generator's side of the topic: trades in, each exactly once and in order, whatever happens to the broker.

One batch is in flight at a time and is sent again, byte for byte, until the broker has acknowledged it; Kafka's
producer id and sequence numbers let it drop what it already has. Every batch ends in a record whose header says
which sequence it belongs to and how much of it has been written; a restarted generator continues from there,
and foreign records in the topic do not disturb the count.
"""

from __future__ import annotations

import logging
import re
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

import google_crc32c
import kafka.errors as errors
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.record.memory_records import MemoryRecords

from stack.trades import symbols
from streamops.clients.kafka import Ledger
from streamops.clients.kafka_wire import HEADER
from streamops.model.errors import StreamOpsError, UnreachableError

MAX_BATCH = 4000  # records; about 400 kB, well below the broker's limit of 1 MB
_MARK = b"streamops-index"
_DUPLICATE = errors.DuplicateSequenceNumberError.errno
_LOOK_BACK = 20_000  # offsets
_SAY_S = 10.0

_log = logging.getLogger("generator")


class SequenceBrokenError(StreamOpsError):
    """The broker no longer knows this producer, or lost what it had acknowledged: read the topic and continue."""


@dataclass(frozen=True)
class Written:
    """How much of the sequence the topic holds, and the time of its last trade in epoch milliseconds."""

    index: int = 0
    time_ms: int = 0


def _varint(number: int) -> bytes:
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SMALL = [_varint(number) for number in range(1 << 14)]


class TradeLog:
    """Partition 0 of the topic, written by one generator at a time.

    Args:
        stopped: whether to give up the search for the end of the sequence, which takes long on a topic that holds
            hours of another one.

    Raises: UnreachableError when Kafka does not answer; StreamOpsError when it refuses for good.
    """

    def __init__(
        self, ledger: Ledger, topic: str, seed: int, count: int, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self._stopped = stopped
        self._ledger, self._broker, self._topic = ledger, ledger.broker, topic
        self._name = b"%d:%d:" % (seed, count)
        # As it stands in a record: the length of the mark, one byte, is between its key and its value.
        self._marked = re.compile(re.escape(_MARK) + b"." + re.escape(self._name), re.DOTALL)
        names = [symbol.encode() for symbol in symbols(count)]
        self._keys = [_varint(len(name)) + name for name in names]
        self._heads = [b'{"symbol":"%b","price":' % name for name in names]
        self._producer, self._epoch, self._next = -1, -1, 0

    def begin(self) -> Written:
        """Become a new producer and say how much of the sequence the topic holds."""
        answer = self._broker.call(
            InitProducerIdRequest(version=2, transactional_id=None, transaction_timeout_ms=60_000)
        )
        if answer.error_code:
            raise UnreachableError("Kafka gave no producer id; check that the broker is up and retry.")
        self._producer, self._epoch, self._next = answer.producer_id, answer.producer_epoch, 0
        return self._written()

    def encode(self, first: int, symbol: list[int], price: list[int], quantity: list[int], time: list[int]) -> bytes:
        """One record batch of at most ``MAX_BATCH`` trades; ``first`` is the index of the first."""
        parts: list[bytes] = []
        small, keys, heads, begin = _SMALL, self._keys, self._heads, time[0]
        last = len(symbol) - 1
        tail = b"\0"
        for delta, (which, cents, amount, when) in enumerate(zip(symbol, price, quantity, time, strict=True)):
            value = b'%b%d,"quantity":%d,"time":%d}' % (heads[which], cents, amount, when)
            if delta == last:
                mark = b"%b%d" % (self._name, first + last + 1)
                tail = b"\2" + _varint(len(_MARK)) + _MARK + _varint(len(mark)) + mark
            elapsed = when - begin
            body = b"\0%b%b%b%b%b%b" % (
                small[elapsed] if elapsed < 16384 else _varint(elapsed),
                small[delta],
                keys[which],
                small[len(value)],
                value,
                tail,
            )
            parts.append(small[len(body)])
            parts.append(body)
        records = b"".join(parts)
        covered = struct.pack(">hiqqqhii", 0, last, begin, time[-1], self._producer, self._epoch, self._next, last + 1)
        checksum = google_crc32c.value(covered + records)
        head = struct.pack(">qiibI", 0, HEADER.size - 12 + len(records), -1, 2, checksum)
        return head + covered + records

    def send(self, batch: bytes, count: int) -> None:
        """Write one encoded batch; call again with the same bytes after an UnreachableError.

        Raises:
            SequenceBrokenError: ``begin`` again and continue from what it returns.
        """
        shape = ProduceRequest.TopicProduceData
        request = ProduceRequest(
            version=9,
            transactional_id=None,
            acks=-1,
            timeout_ms=5000,
            topic_data=[
                shape(
                    version=9,
                    name=self._topic,
                    partition_data=[shape.PartitionProduceData(version=9, index=0, records=batch)],
                )
            ],
        )
        answer = self._broker.call(request, self._broker.leader(self._topic, 0))
        code = answer.responses[0].partition_responses[0].error_code
        if code in (0, _DUPLICATE):
            self._next = (self._next + count) % (1 << 31)
            return
        error = errors.for_code(code)
        if code in (45, 47, 59, 90):  # out of order, invalid epoch, unknown producer, fenced
            raise SequenceBrokenError(f"Kafka answered {error.__name__} for {self._topic}; reading its end again.")
        if getattr(error, "retriable", False):
            self._broker.forget_leaders()
            raise UnreachableError(f"Kafka cannot write {self._topic} now ({error.__name__}); trying again.")
        raise StreamOpsError(f"Kafka refused trades for {self._topic} ({error.__name__}); check the topic's settings.")

    def _written(self) -> Written:
        begin = self._ledger.beginning_offsets(self._topic)["0"]
        position = end = self._ledger.end_offsets(self._topic)["0"]
        said = time.monotonic()
        while position > begin:
            if self._stopped():
                raise UnreachableError("Stopped before the end of the sequence was found.")
            if time.monotonic() - said > _SAY_S:
                said = time.monotonic()
                _log.info("No trade of this sequence in the last %d of %d records.", end - position, end - begin)
            position, before = max(begin, position - _LOOK_BACK), position
            if found := self._last_mark(position, before):
                return found
        return Written()

    def _last_mark(self, position: int, end: int) -> Written | None:
        """The newest mark of this sequence between two offsets. Only batches with one are taken apart: it is slow."""
        found = None
        while position < end:
            answer = self._ledger.fetch(self._topic, 0, position)
            before = position
            for batch in MemoryRecords(bytes(answer.records or b"")):
                if self._marked.search(batch._buffer):
                    for record in batch:
                        mark = dict(record.headers).get(_MARK.decode(), b"")
                        if position <= record.offset < end and mark.startswith(self._name):
                            found = Written(int(mark[len(self._name) :]), record.timestamp)
                position = batch.next_offset
            if position == before:
                raise UnreachableError(f"Kafka returned nothing of {self._topic} at {position}; retry.")
        return found
