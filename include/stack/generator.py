"""Write random trades to Kafka at a steady rate: ``python -m stack.generator --rate 10000``.

The topic receives the seeded sequence of ``stack.trades``, nothing lost, doubled or reordered, through restarts
of the broker and of the generator. A trade's ``time`` is when it was due: after a pause the backlog is sent at
no more than twice the rate, and a backlog of more than a minute is re-dated to the present instead.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stack.trade_log import MAX_BATCH, SequenceBrokenError, TradeLog, Written
from stack.trades import Block, Walk
from streamops.clients.kafka import Ledger
from streamops.model.errors import StreamOpsError, UnreachableError
from streamops.settings import Settings

TICK_S = 0.05
LONGEST_BACKLOG_S = 60.0
REPORT_S = 10.0
_log = logging.getLogger("generator")


@dataclass
class Clock:
    """The schedule: trade ``index`` is due at ``origin_s`` (wall clock) plus its distance from ``first``."""

    rate: float
    first: int = 0
    origin_s: float = 0.0

    def begin(self, index: int, now_s: float, not_before_ms: int) -> None:
        """Date trade ``index`` to now, or to the newest time already written if that is later."""
        self.first, self.origin_s = index, max(now_s, not_before_ms / 1000)

    def due(self, now_s: float) -> int:
        """How many trades of the sequence should have been sent by now."""
        return self.first + max(0, int((now_s - self.origin_s) * self.rate))

    def time_ms(self, index: int) -> int:
        """When a trade is due, in epoch milliseconds; never decreases with the index."""
        return int((self.origin_s + (index - self.first) / self.rate) * 1000)


class Trades:
    """Consecutive slices of the sequence from an index on."""

    def __init__(self, seed: int, count: int, index: int) -> None:
        self._walk = Walk(seed, count, index)
        self._block: Block | None = None
        self._used = 0

    def take(self, most: int) -> tuple[list[int], list[int], list[int]]:
        """At most ``most`` trades, at least one: symbol numbers, prices, quantities."""
        if self._block is None or self._used == len(self._block.symbol):
            self._block, self._used = self._walk.take(), 0
        part = slice(self._used, self._used + most)
        columns = (self._block.symbol[part], self._block.price[part], self._block.quantity[part])
        self._used += len(columns[0])
        return columns[0].tolist(), columns[1].tolist(), columns[2].tolist()


class Generator:
    """Sends what is due, tick by tick, until told to stop."""

    def __init__(self, log: TradeLog, seed: int, symbols: int, rate: float, count: int | None) -> None:
        self._log, self._seed, self._symbols, self._count = log, seed, symbols, count
        self.clock = Clock(rate)
        self.sent = self.errors = 0
        self.index = 0  # how much of the sequence the topic holds
        self._trades: Trades | None = None
        self._newest_ms = 0

    @property
    def done(self) -> bool:
        """Whether the asked number of trades has been sent."""
        return self._count is not None and self.sent >= self._count

    def begin(self) -> None:
        """Find out what the topic holds and continue behind it."""
        written: Written = self._log.begin()
        self._newest_ms = max(self._newest_ms, written.time_ms)
        self.clock.begin(written.index, time.time(), self._newest_ms)
        self._trades, self.index = Trades(self._seed, self._symbols, written.index), written.index
        _log.info("The topic holds %d trades of this sequence (seed %d).", written.index, self._seed)

    def tick(self, stopped: Callable[[], bool]) -> None:
        """Send what is due now, but no more than twice what the rate allows for one tick."""
        if self._trades is None:
            self.begin()
        now = time.time()
        if abs(now - self.clock.time_ms(self.index) / 1000) > LONGEST_BACKLOG_S:
            _log.warning("The schedule is more than %d s away from the clock; continuing from now.", LONGEST_BACKLOG_S)
            self.clock.begin(self.index, now, self._newest_ms)
        allowed = min(self.clock.due(now) - self.index, max(1, int(2 * self.clock.rate * TICK_S)))
        if self._count is not None:
            allowed = min(allowed, self._count - self.sent)
        while allowed > 0 and (sent := self._send(min(allowed, MAX_BATCH), stopped)):
            allowed -= sent

    def _send(self, most: int, stopped: Callable[[], bool]) -> int:
        """Send one batch for as long as it takes; 0 if it was given up or the sequence is taken up again."""
        assert self._trades is not None
        first = self.index
        columns = self._trades.take(most)
        count = len(columns[0])
        times = [max(self._newest_ms, self.clock.time_ms(first + number)) for number in range(count)]
        self._log.put(first, *columns, times)
        complained = False
        while True:
            try:
                self._log.wait()
                break
            except SequenceBrokenError as error:
                self.errors += 1
                _log.warning("%s", error)
                self._trades = None
                return 0
            except UnreachableError as error:
                self.errors += 1
                if not complained:
                    _log.warning("%s Keeping %d trades until it is back.", error, count)
                complained = True
                if stopped():
                    _log.warning("Stopped with %d trades not acknowledged; the next start continues there.", count)
                    return 0
        if complained:
            _log.info("Kafka is back; continuing at trade %d.", first + count)
        self._newest_ms = times[-1]
        self.sent += count
        self.index += count
        return count


def run(generator: Generator, stop: threading.Event, status: Path | None) -> None:
    """Tick until ``stop`` is set or the asked number of trades has been sent; report the real rate."""
    while not stop.is_set():
        try:
            generator.begin()
            break
        except UnreachableError as error:
            generator.errors += 1
            _log.warning("%s Waiting for it." if not stop.is_set() else "%s", error)
            stop.wait(1.0)
    started = reported = noted = time.monotonic()
    sent_reported = sent_noted = 0
    while not stop.is_set() and not generator.done:
        begun = time.monotonic()
        try:
            generator.tick(stop.is_set)
        except UnreachableError as error:  # while the end of the topic is read again
            generator.errors += 1
            _log.warning("%s", error)
        now = time.monotonic()
        if now - reported >= REPORT_S:
            rate = (generator.sent - sent_reported) / (now - reported)
            _log.info("%.0f trades/s, %d sent, %d errors", rate, generator.sent, generator.errors)
            reported, sent_reported = now, generator.sent
        if status and now - noted >= 1.0:
            _note(status, generator, (generator.sent - sent_noted) / (now - noted))
            noted, sent_noted = now, generator.sent
        stop.wait(max(0.0, TICK_S - (now - begun)))
    rate = generator.sent / max(time.monotonic() - started, 1e-9)
    _log.info("Stopped: %d sent at %.0f trades/s on average, %d errors", generator.sent, rate, generator.errors)
    if status:
        _note(status, generator, rate)


def _note(path: Path, generator: Generator, rate: float) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(
        json.dumps(
            {
                "rate": round(rate, 1),
                "asked_rate": generator.clock.rate,
                "sent": generator.sent,
                "index": generator.index,
                "errors": generator.errors,
                "updated": time.time(),
            }
        )
    )
    os.replace(fresh, path)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="stack.generator", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bootstrap", help="Kafka as HOST:PORT; default: the installation's")
    parser.add_argument("--topic", default="trades")
    parser.add_argument("--rate", type=float, default=10_000, help="trades a second (default: 10000)")
    parser.add_argument("--symbols", type=int, default=100, help="how many symbols trade (default: 100)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same prices and quantities (default: 1)")
    parser.add_argument("--count", type=int, help="stop after this many trades")
    parser.add_argument("--status", type=Path, help="file that gets the real rate as JSON, once a second")
    chosen = parser.parse_args(argv)
    for name in ("rate", "symbols"):
        if getattr(chosen, name) <= 0:
            parser.error(f"--{name} must be positive")
    if chosen.seed < 0:
        parser.error("--seed must not be negative")
    return chosen


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    chosen = _arguments(argv)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # it logs each try to connect; ours says it once
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        servers = chosen.bootstrap or Settings.load().kafka_bootstrap_servers
        ledger = Ledger.at(servers)
        while not stop.is_set():
            try:
                ledger.ensure_topic(chosen.topic)
                break
            except UnreachableError as error:
                _log.warning("%s Waiting for it.", error)
        log = TradeLog(ledger, chosen.topic, chosen.seed, chosen.symbols, stop.is_set)
        run(Generator(log, chosen.seed, chosen.symbols, chosen.rate, chosen.count), stop, chosen.status)
        log.close()
    except StreamOpsError as error:
        _log.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
