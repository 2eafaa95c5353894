"""The seeded sequence, its schedule, and its record batches, without a broker."""

from __future__ import annotations

import itertools
import json
import struct
from types import SimpleNamespace

import numpy as np
import pytest
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from stack.generator import LONGEST_BACKLOG_S, Clock, Generator, Trades
from stack.trade_log import SequenceBrokenError, TradeLog, Written
from stack.trades import BLOCK, sequence, symbols
from streamops.clients.kafka import Ledger
from streamops.clients.kafka_wire import blocks
from streamops.model.errors import StreamOpsError, UnreachableError


def taken(seed: int, count: int, start: int = 0, symbols: int = 100) -> list[tuple[str, int, int]]:
    return list(itertools.islice(sequence(seed, symbols, start), count))


def test_a_seed_gives_the_same_trades_every_time() -> None:
    assert taken(1, 20_000) == taken(1, 20_000)
    assert taken(1, 100) != taken(2, 100)
    # Written down, so that a release of numpy cannot change what a topic continues with.
    assert taken(7, 4) == [("S00068", 73407, 21), ("S00053", 84268, 20), ("S00090", 87811, 85), ("LOW", 6185, 43)]


@pytest.mark.parametrize("start", [1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 77])
def test_the_sequence_can_be_entered_anywhere(start: int) -> None:
    assert taken(3, 500, start) == taken(3, start + 500)[start:]


def test_prices_walk_in_small_steps_between_their_bounds() -> None:
    last: dict[str, int] = {}
    for symbol, price, quantity in taken(5, 300_000, symbols=3):
        assert 1_000 <= price <= 100_000
        assert 1 <= quantity <= 100
        assert abs(price - last.get(symbol, price)) <= 3
        last[symbol] = price
    assert len(last) == 3


def test_a_hundred_symbols_trade_alike_and_the_known_ones_are_there() -> None:
    names = [symbol for symbol, _, _ in taken(1, 50_000)]
    assert {"AAPL", "MSFT", "AMZN"} <= set(names)
    counts = np.unique(names, return_counts=True)[1]
    assert len(counts) == 100
    assert counts.min() > 350
    assert len(set(symbols(5000))) == 5000


def test_times_never_decrease_and_a_backlog_keeps_its_times() -> None:
    clock = Clock(10_000)
    clock.begin(0, 1000.0, 0)
    times = [clock.time_ms(index) for index in range(30_000)]
    assert times == sorted(times)
    assert (times[0], times[-1]) == (1_000_000, 1_002_999)
    assert clock.due(1003.0) == 30_000
    clock.begin(500, 1000.0, 5_000_000)  # the topic holds later times: begin there
    assert clock.time_ms(500) == 5_000_000


def test_a_batch_is_what_kafka_clients_read() -> None:
    log = TradeLog(Ledger.at("127.0.0.1:1"), "t", seed=7, count=2000)
    trades = Trades(7, 2000, 0)
    columns = trades.take(4000)
    times = [1_800_000_000_000 + number * 5 for number in range(len(columns[0]))]
    data = log.encode(0, *columns, times)
    expected = taken(7, len(times), symbols=2000)
    (batch,) = list(MemoryRecords(data))
    assert batch.validate_crc()
    rows = list(batch)
    for row, at, (symbol, price, quantity) in zip(rows, times, expected, strict=True):
        assert json.loads(row.value) == {"symbol": symbol, "price": price, "quantity": quantity, "time": at}
        assert (row.key, row.timestamp) == (symbol.encode(), at)
    assert rows[-1].headers == [("streamops-index", b"7:2000:4000")]
    assert not any(row.headers for row in rows[:-1])
    (block,) = blocks(0, data, 0, 10**9)  # our own reader sees the same
    assert block.values == [row.value for row in rows]
    assert block.offsets == list(range(4000))
    assert block.timestamps == times
    (part,) = blocks(0, data, 10, 20)
    assert part.values == block.values[10:20]


def test_a_batch_with_a_wrong_checksum_is_not_read() -> None:
    log = TradeLog(Ledger.at("127.0.0.1:1"), "t", seed=7, count=10)
    data = bytearray(log.encode(0, [1], [100], [1], [1_800_000_000_000]))
    data[-5] ^= 1
    with pytest.raises(StreamOpsError, match="wrong checksum"):
        list(blocks(0, bytes(data), 0, 10))


class Topic:
    """A topic in memory, as a ledger reads it: batches of 100 trades of one sequence after those of another."""

    broker = None

    def __init__(self, *sequences: tuple[int, int]) -> None:
        self.batches: list[bytes] = []
        for seed, count in sequences:
            log = TradeLog(self, "t", seed, 10)
            for first in range(0, count, 100):
                data = log.encode(first, [1] * 100, [100] * 100, [1] * 100, [1_800_000_000_000 + first] * 100)
                self.batches.append(struct.pack(">q", 100 * len(self.batches)) + data[8:])

    def beginning_offsets(self, topic: str) -> dict[str, int]:
        return {"0": 0}

    def end_offsets(self, topic: str) -> dict[str, int]:
        return {"0": 100 * len(self.batches)}

    def fetch(self, topic: str, partition: int, position: int) -> SimpleNamespace:
        return SimpleNamespace(records=b"".join(self.batches[position // 100 :][:50]))


def test_the_end_of_a_sequence_is_found_behind_another_one() -> None:
    topic = Topic((1, 30_000), (2, 45_000))
    assert TradeLog(topic, "t", 1, 10)._written() == Written(30_000, 1_800_000_029_900)
    assert TradeLog(topic, "t", 2, 10)._written() == Written(45_000, 1_800_000_044_900)


def test_hours_of_another_sequence_are_not_taken_apart_and_the_search_can_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = Topic((2, 45_000))
    with pytest.raises(UnreachableError, match="Stopped"):
        TradeLog(topic, "t", 1, 10, stopped=lambda: True)._written()
    monkeypatch.setattr(DefaultRecordBatch, "__iter__", lambda batch: pytest.fail("a batch was taken apart"))
    assert TradeLog(topic, "t", 1, 10)._written() == Written()
    assert TradeLog(topic, "t", 12, 10)._written() == Written()


class FakeLog:
    """A topic in memory that may fail as a broker does: before or after it has taken a batch, or by forgetting."""

    def __init__(self, troubles: list[str]) -> None:
        self.trades: list[tuple] = []
        self.troubles = troubles
        self._sequence = 0

    def begin(self) -> Written:
        self._sequence = 0
        return Written(len(self.trades), self.trades[-1][3] if self.trades else 0)

    def encode(self, first, symbol, price, quantity, time):
        return (self._sequence, list(zip(symbol, price, quantity, time, strict=True)))

    def send(self, batch, count: int) -> None:
        sequence_number, rows = batch
        trouble = self.troubles.pop(0) if self.troubles else ""
        if trouble == "away":
            raise UnreachableError("away")
        if trouble == "forgot":
            del self.trades[-100:]
            raise SequenceBrokenError("forgot")
        if sequence_number == self._sequence:
            self.trades += rows
            self._sequence += count
        if trouble == "answer lost":
            raise UnreachableError("lost")


@pytest.mark.parametrize(
    "troubles", [[], ["away"] * 5, ["", "answer lost", "away", "answer lost"], ["", "", "forgot", "", "forgot", "away"]]
)
def test_whatever_the_broker_does_the_topic_holds_the_sequence(troubles: list[str]) -> None:
    log = FakeLog(list(troubles))
    generator = Generator(log, seed=4, symbols=100, rate=100_000, count=None)  # type: ignore[arg-type]
    generator.begin()
    while len(log.trades) < 20_000:
        generator.clock.origin_s -= 0.1  # time passes
        generator.tick(lambda: False)
    names = symbols(100)
    assert [(names[row[0]], row[1], row[2]) for row in log.trades] == taken(4, len(log.trades))
    times = [row[3] for row in log.trades]
    assert times == sorted(times)
    assert (generator.errors == 0) == (not troubles)


def test_a_backlog_is_sent_at_no_more_than_twice_the_rate_and_a_long_one_is_dated_anew() -> None:
    log = FakeLog([])
    generator = Generator(log, seed=4, symbols=100, rate=10_000, count=None)  # type: ignore[arg-type]
    generator.begin()
    generator.clock.origin_s -= 30
    first_time = generator.clock.time_ms(0)
    generator.tick(lambda: False)
    assert len(log.trades) == 1000  # one tick of 50 ms at twice the rate
    assert log.trades[0][3] == first_time
    generator.clock.origin_s -= LONGEST_BACKLOG_S
    generator.tick(lambda: False)
    assert generator.clock.time_ms(generator.index) > first_time + 30_000


def test_a_stop_while_kafka_is_away_leaves_the_rest_for_the_next_start() -> None:
    log = FakeLog(["", "away"])
    generator = Generator(log, seed=4, symbols=100, rate=10_000, count=None)  # type: ignore[arg-type]
    generator.begin()
    for _ in range(2):
        generator.clock.origin_s -= 0.05
        generator.tick(lambda: True)
    assert generator.index == len(log.trades) == generator.sent
