"""What events may do to a job: hostile ones (fault 41) are counted and never fatal; those of another topic continue."""

from __future__ import annotations

import json
import random
import time

import psutil
import pytest
from kafka import KafkaProducer

from fresh_job import FreshJob, wait_for, with_ledger
from streamops.clients.influx import Points
from streamops.model.errors import RefusedError
from streamops.recount.recounting import recount_job
from support import invariant, mark

pytestmark = [pytest.mark.stack, pytest.mark.full]
DAY_MS = 86_400_000


def malformed() -> list[bytes | None]:
    trade = {"symbol": "AAPL", "price": 100, "quantity": 1, "time": int(time.time() * 1000)}
    text = json.dumps(trade)
    return [
        None,
        b"",
        b"not json",
        text[:-5].encode(),
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        json.dumps(trade | {"price": "dear"}).encode(),
        json.dumps(trade | {"time": "yesterday"}).encode(),
        json.dumps(trade | {"symbol": None}).encode(),
        json.dumps({key: value for key, value in trade.items() if key != "quantity"}).encode(),
        json.dumps(trade | {"price": 10**30}).encode(),
        b'{"symbol": "' + b"x" * 900_000,
    ]


def ahead() -> list[bytes]:
    now = int(time.time() * 1000)
    trade = {"symbol": "AAPL", "price": 100, "quantity": 1}
    times = (now + 60_000, now + DAY_MS, now + 3650 * DAY_MS, 2**62, 2**63 - 1)
    return [json.dumps(trade | {"time": moment}).encode() for moment in times]


def test_hostile_events_are_counted_and_change_nothing(job, seed):
    start = mark(job)
    before = job.status()
    bad, early = malformed(), ahead()
    values = bad + early
    random.Random(seed).shuffle(values)
    producer = KafkaProducer(bootstrap_servers=job.settings.kafka_bootstrap_servers, acks="all")
    for value in values:
        producer.send(job.name, key=b"AAPL", value=value)
    producer.flush(30)
    producer.close()
    job.caught_up()

    def counts() -> list[tuple[int, int]]:
        old, new = before.stages, job.status().stages
        return [
            (new[name].malformed_rows - old[name].malformed_rows, new[name].ahead_rows - old[name].ahead_rows)
            for name in new
        ]

    wait_for(lambda: all(found == (len(bad), len(early)) for found in counts()), 90, f"the counts ({counts()})")
    assert job.status().holder == before.holder
    for stage in job.status().stages.values():
        assert stage.watermark_ms < time.time() * 1000 + 10_000
    report = invariant(job, start)
    assert (report.malformed, report.ahead) == (len(bad), len(early))


def send(job: FreshJob, topic: str, trades: list[tuple[str, int, int]]) -> None:
    """Symbol, price and time of each."""
    producer = KafkaProducer(bootstrap_servers=job.settings.kafka_bootstrap_servers, acks="all")
    for symbol, price, time_ms in trades:
        trade = {"symbol": symbol, "price": price, "quantity": 1, "time": time_ms}
        producer.send(topic, key=symbol.encode(), value=json.dumps(trade).encode())
    producer.flush(30)
    producer.close()


def last_second(job: FreshJob) -> tuple[int, dict[str, list[int]]]:
    """The end of the window that the topic's newest trade is in, in ms, and that window's prices by symbol."""

    def read(ledger) -> list[dict[str, int]]:
        ends = ledger.end_offsets(job.name)
        start = {part: max(0, end - 5000) for part, end in ends.items()}
        return [json.loads(value) for *_, value in ledger.read(job.name, start, ends)]

    trades = with_ledger(job.settings, read)
    second = max(trade["time"] for trade in trades) // 1000
    prices: dict[str, list[int]] = {}
    for trade in trades:
        if trade["time"] // 1000 == second:
            prices.setdefault(trade["symbol"], []).append(trade["price"])
    return (second + 1) * 1000, prices


@pytest.mark.long
def test_a_job_goes_on_in_another_topic_and_back_and_each_trade_counts_once(job, operator):
    """The window that is open at the switch holds trades of both topics."""
    other, version = f"{job.name}-other", job.record().version
    with_ledger(job.settings, lambda ledger: ledger.ensure_topic(other))
    place = f"{other}@localhost:{job.settings.kafka_bootstrap_servers.rpartition(':')[2]}"  # as of a broker of its own
    asked = {"version": version, "topics": {"trades": place}, "start_at": {"trades": "0:50"}, "accept_loss": ()}
    send(job, other, [("BEFORE", 1, int(time.time() * 1000))] * 50)
    with pytest.raises(RefusedError, match=r"events of topic .* to read before it can continue"):  # trades still come
        operator.run("upgrade_job", job.name, **asked)
    lines = ((item, item.info["cmdline"] or ()) for item in psutil.process_iter(["cmdline"]))
    (generator,) = (item for item, line in lines if "stack.generator" in line and job.name in line)
    generator.suspend()
    try:
        job.caught_up()
        stood, (end_ms, prices) = job.end(), last_second(job)
        operator.run("upgrade_job", job.name, **asked, recount=False)
        assert job.record().version == version
        symbol, now = next(iter(prices)), int(time.time() * 1000)
        trades = [(symbol, 7, end_ms - 1), ("MOVED", 5, end_ms - 1)]
        trades += [("LATER", 9, now + 100 * number) for number in range(60)]
        send(job, other, trades)
        measurement = f"{job.name.replace('-', '_')}_avg_1s"
        expected = {(symbol,): (sum(prices[symbol]) + 7) / (len(prices[symbol]) + 1), ("MOVED",): 5.0}
        expected |= {(name,): sum(found) / len(found) for name, found in prices.items() if name != symbol}

        def at_the_switch() -> dict[tuple[str, ...], float]:
            points = Points(job.settings)
            found = {tags: value for _, tags, value in points.read(measurement, end_ms, end_ms + 1, ("symbol",))}
            points.close()
            return found

        wait_for(lambda: at_the_switch() == pytest.approx(expected), 90, "the window that was open at the switch")
        wait_for(lambda: job.read() == 50 + len(trades), 90, "the end of the other topic")
        assert recount_job(job.settings, job.store, job.name, measurements=[measurement]).clean
        back = {"topics": {"trades": job.name}, "start_at": {"trades": f"0:{stood}"}, "recount": False}
        operator.run("upgrade_job", job.name, **{**asked, **back})
    finally:
        generator.resume()
    # It writes what it had to write meanwhile, some of it older than what the other topic has closed, and so late.
    wait_for(lambda: last_second(job)[0] > trades[-1][2] + 1000, 180, "trades after those of the other topic")
    job.caught_up()
    begun, start = last_second(job)[0], mark(job)
    wait_for(lambda: last_second(job)[0] > begun + 20_000, 90, "windows that can be compared")
    invariant(job, start)
