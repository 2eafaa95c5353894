"""The seeded sequence, its schedule, and what the generator does about trouble, without a broker."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stack.generator import LONGEST_BACKLOG_S, Clock, Generator
from stack.trade_log import SequenceBrokenError, Written
from stack.trades import BLOCK, sequence, symbols
from streamops.model.errors import UnreachableError


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


class FakeLog:
    """A topic in memory that may fail as a broker does: before or after it has taken a batch, or by forgetting."""

    def __init__(self, troubles: list[str]) -> None:
        self.trades: list[tuple] = []
        self.troubles = troubles
        self._waiting: list[tuple] = []

    def begin(self) -> Written:
        self._waiting = []
        return Written(len(self.trades), self.trades[-1][3] if self.trades else 0)

    def put(self, first, symbol, price, quantity, time):
        assert not self._waiting
        assert first == len(self.trades)
        self._waiting = list(zip(symbol, price, quantity, time, strict=True))

    def wait(self) -> None:
        trouble = self.troubles.pop(0) if self.troubles else ""
        if trouble == "away":
            raise UnreachableError("away")
        if trouble == "forgot":
            del self.trades[-100:]
            raise SequenceBrokenError("forgot")
        sent, self._waiting = self._waiting, []
        self.trades += sent
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
