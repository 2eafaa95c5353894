"""The generator's side of the topic: trades in, each exactly once and in order, whatever happens to the broker.

librdkafka's idempotent producer sends one batch after the other until the broker has acknowledged it. The first
trade of each batch has a header that says which sequence it belongs to and how much of it is written with this
trade; a restarted generator continues from the last one, and foreign records in the topic do not disturb the count.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from stack.trades import sequence, symbols
from streamops.clients.kafka import Ledger
from streamops.model.errors import StreamOpsError, UnreachableError

MAX_BATCH = 4000  # records
_MARK = "streamops-index"
_LOOK_BACK = 20_000  # offsets
_SAY_S = 10.0
_PRODUCER = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,  # what the broker cannot take in order ends the producer
    "message.timeout.ms": 0,  # never given up
    "request.timeout.ms": 5000,
    "reconnect.backoff.max.ms": 1000,
    "retry.backoff.max.ms": 1000,
    "delivery.report.only.error": True,
    "log_level": 0,
}
# Of the broker's answers: it has lost what it had acknowledged, or knows another producer by this number.
_BROKEN = {
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,  # removed and perhaps made again
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._FATAL,
    KafkaError._GAPLESS_GUARANTEE,
    KafkaError._PURGE_QUEUE,
}

_log = logging.getLogger("generator")


class SequenceBrokenError(StreamOpsError):
    """The broker no longer knows this producer, or lost what it had acknowledged: read the topic and continue."""


@dataclass(frozen=True)
class Written:
    """How much of the sequence the topic holds, and the time of its last trade in epoch milliseconds."""

    index: int = 0
    time_ms: int = 0


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
        self._ledger, self._topic = ledger, topic
        self._seed, self._count = seed, count
        self._name = b"%d:%d:" % (seed, count)
        self._keys = [symbol.encode() for symbol in symbols(count)]
        self._heads = [b'{"symbol":"%b","price":' % name for name in self._keys]
        self._producer: Producer | None = None
        self._refused: KafkaError | None = None

    def begin(self) -> Written:
        """Become a new producer and say how much of the sequence the topic holds."""
        self.close()
        written = self._written()
        self._producer = Producer(
            {**_PRODUCER, "bootstrap.servers": self._ledger.servers, "on_delivery": self._not_delivered}
        )
        return written

    def close(self) -> None:
        """Give up what is not acknowledged."""
        self._producer = self._refused = None

    def put(self, first: int, symbol: list[int], price: list[int], quantity: list[int], time: list[int]) -> None:
        """Hand over a batch of at most ``MAX_BATCH`` trades; ``first`` is the index of the first. Then ``wait``."""
        assert self._producer is not None
        produce, topic, keys, heads = self._producer.produce, self._topic, self._keys, self._heads
        headers: list[tuple[str, str | bytes | None]] | None = [(_MARK, b"%b%d" % (self._name, first + 1))]
        try:
            for which, cents, amount, when in zip(symbol, price, quantity, time, strict=True):
                value = b'%b%d,"quantity":%d,"time":%d}' % (heads[which], cents, amount, when)
                produce(topic, value, keys[which], 0, timestamp=when, headers=headers)
                headers = None
        except KafkaException as error:  # the producer has ended
            self._refused = self._refused or error.args[0]

    def wait(self) -> None:
        """Return when all is acknowledged; call again after an UnreachableError.

        Raises:
            SequenceBrokenError: ``begin`` again and continue from what it returns.
        """
        assert self._producer is not None
        try:
            left = self._producer.flush(self._ledger.timeout_s)
        except (KafkaException, SystemError):  # it has ended; confluent-kafka mislays the exception beside a report
            left = self._producer.flush(self._ledger.timeout_s)  # the reports say why
            self._refused = self._refused or KafkaError(KafkaError._FATAL)
        if self._refused is not None:
            name = self._refused.name()
            if self._refused.code() in _BROKEN:
                raise SequenceBrokenError(f"Kafka answered {name} for {self._topic}; reading its end again.")
            raise StreamOpsError(f"Kafka refused trades for {self._topic} ({name}); check the topic's settings.")
        if left:
            raise self._ledger.unreachable()

    def _not_delivered(self, error: KafkaError, message: Message) -> None:
        self._refused = self._refused or error

    def _written(self) -> Written:
        begin = self._ledger.beginning_offsets(self._topic)["0"]
        before = end = self._ledger.end_offsets(self._topic)["0"]
        size, said = _LOOK_BACK, time.monotonic()
        while before > begin:
            found, start = None, max(begin, before - size)
            for messages in self._ledger.messages(self._topic, 0, start, before):
                if self._stopped():
                    raise UnreachableError("Stopped before the end of the sequence was found.")
                if time.monotonic() - said > _SAY_S:
                    said = time.monotonic()
                    _log.info("No trade of this sequence in the last %d of %d records.", end - before, end - begin)
                for message in messages:
                    if self._mark(message).startswith(self._name):
                        found = message
            if found is not None:
                return self._continued(found, end)
            before, size = start, size * 2
        return Written()

    def _continued(self, marked: Message, end: int) -> Written:
        """The batch that the last mark begins may have been cut by a kill: count what there is of it."""
        index, time_ms = int(self._mark(marked)[len(self._name) :]), marked.timestamp()[1]
        trades = sequence(self._seed, self._count, index)
        symbol, price, quantity = next(trades)
        messages = self._ledger.messages(self._topic, 0, (marked.offset() or 0) + 1, end)
        for message in itertools.chain.from_iterable(messages):
            if self._mark(message):  # of another sequence, whose generator came later
                break
            if (message.value() or b"").startswith(
                b'{"symbol":"%b","price":%d,"quantity":%d,' % (symbol.encode(), price, quantity)
            ):
                index, time_ms = index + 1, message.timestamp()[1]
                symbol, price, quantity = next(trades)
        return Written(index, time_ms)

    @staticmethod
    def _mark(message: Message) -> bytes:
        """The mark of a batch's first record; empty for all others."""
        mark = dict(message.headers() or ()).get(_MARK)
        return mark if isinstance(mark, bytes) else b""
