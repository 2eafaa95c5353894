"""The generator against the real broker: what the topic holds is the seeded sequence, whatever is killed."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer

from stack.generator import Trades
from stack.trade_log import TradeLog, Written
from stack.trades import BLOCK, sequence
from streamops.clients.kafka import Ledger
from streamops.model.errors import NotFoundError, StreamOpsError, UnreachableError
from streamops.settings import REPOSITORY, Settings
from streamops.store import waiting

pytestmark = [pytest.mark.stack, pytest.mark.full]
NOW = int(time.time()) * 1000


@pytest.fixture
def topic() -> str:
    return f"generator-{uuid.uuid4().hex[:8]}"


def start(stack: Settings, topic: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stack.generator", "--bootstrap", stack.kafka_bootstrap_servers, "--topic", topic]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "include")}
    return subprocess.Popen([*command, *more], env=environment, stdout=subprocess.PIPE, text=True)


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    assert waiting.until(condition, seconds, 0.1), f"{what} did not happen in {seconds} s"


def written(ledger: Ledger, topic: str) -> int:
    try:
        return ledger.end_offsets(topic)["0"]
    except (NotFoundError, UnreachableError):
        return 0


def assert_topic_is_the_sequence(ledger: Ledger, topic: str, seed: int, count: int, symbols: int = 100) -> None:
    rows = list(ledger.read(topic, {"0": 0}, ledger.end_offsets(topic)))
    assert [row[1] for row in rows] == list(range(count))
    trades = [json.loads(row[3] or b"") for row in rows]
    expected = list(itertools.islice(sequence(seed, symbols), count))
    assert [(trade["symbol"], trade["price"], trade["quantity"]) for trade in trades] == expected
    times = [trade["time"] for trade in trades]
    assert times == sorted(times)
    assert times == [row[2] for row in rows]


def test_it_writes_the_asked_number_at_the_asked_rate_and_says_so(
    stack: Settings, ledger: Ledger, topic: str, tmp_path: Path
) -> None:
    status = tmp_path / "rate.json"
    process = start(stack, topic, "--count", "30000", "--rate", "10000", "--seed", "5", "--status", str(status))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert_topic_is_the_sequence(ledger, topic, 5, 30_000)
    times = [row[2] for row in ledger.read(topic, {"0": 0}, {"0": 30_000})]
    assert times[-1] - times[0] == pytest.approx(3000, abs=2)
    said = json.loads(status.read_text())
    assert (said["sent"], said["index"], said["asked_rate"]) == (30_000, 30_000, 10_000)
    assert "30000 sent at" in output


def test_the_rate_that_it_says_is_the_one_that_the_broker_sees(
    stack: Settings, ledger: Ledger, topic: str, tmp_path: Path
) -> None:
    ledger.ensure_topic(topic, 1, {"message.timestamp.type": "LogAppendTime"})  # the broker's clock, not the trades'
    status, said = tmp_path / "rate.json", list[dict[str, float]]()

    def told() -> bool:
        """A word of each of some seconds in a row."""
        found = json.loads(status.read_text()) if status.exists() else None
        if found and (not said or found["updated"] != said[-1]["updated"]):
            said.append(found)
        return len(said) > 6

    process = start(stack, topic, "--rate", "10000", "--status", str(status))
    try:
        wait_for(told, 120, "what it says of some seconds")
    finally:
        process.terminate()
        process.communicate(timeout=60)
    begin, end = said[0]["updated"], said[-1]["updated"]
    taken = [row[2] / 1000 for row in ledger.read(topic, {"0": 0}, ledger.end_offsets(topic))]
    seen = sum(begin < at <= end for at in taken) / (end - begin)
    assert sum(item["rate"] for item in said[1:]) / (len(said) - 1) == pytest.approx(seen, rel=0.1)


def test_thousands_of_symbols_trade_on_request(stack: Settings, ledger: Ledger, topic: str) -> None:
    process = start(stack, topic, "--count", "20000", "--rate", "20000", "--symbols", "3000")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert_topic_is_the_sequence(ledger, topic, 1, 20_000, symbols=3000)


def test_sigterm_loses_nothing_and_the_next_start_continues(stack: Settings, ledger: Ledger, topic: str) -> None:
    process = start(stack, topic)
    wait_for(lambda: written(ledger, topic) > 5000, 90, "writing")
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    first = written(ledger, topic)
    process = start(stack, topic, "--count", "5000")
    assert process.wait(60) == 0
    assert_topic_is_the_sequence(ledger, topic, 1, first + 5000)


def test_a_killed_generator_continues_behind_what_it_wrote_even_with_foreign_records_there(
    stack: Settings, ledger: Ledger, topic: str
) -> None:
    process = start(stack, topic)
    wait_for(lambda: written(ledger, topic) > 5000, 90, "writing")
    process.kill()
    process.wait(30)
    first = written(ledger, topic)
    other = start(stack, topic, "--count", "700", "--seed", "99")  # another sequence in the same topic
    assert other.wait(60) == 0
    process = start(stack, topic, "--count", "5000")
    assert process.wait(60) == 0
    values = [json.loads(row[3] or b"") for row in ledger.read(topic, {"0": 0}, ledger.end_offsets(topic))]
    own = values[:first] + values[first + 700 :]
    expected = list(itertools.islice(sequence(1), first + 5000))
    assert [(trade["symbol"], trade["price"], trade["quantity"]) for trade in own] == expected


def test_after_a_kill_of_the_broker_the_topic_is_the_sequence(stack: Settings, ledger: Ledger, topic: str) -> None:
    port = int(stack.kafka_bootstrap_servers.rsplit(":", 1)[1])
    process = start(stack, topic, "--count", "100000")
    for least in (5_000, 30_000):
        wait_for(lambda least=least: written(ledger, topic) > least, 180, f"writing trade {least}")
        brokers = [c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port]
        assert brokers
        assert brokers[0]
        os.kill(brokers[0], signal.SIGKILL)  # the supervisor starts it again
        wait_for(lambda pid=brokers[0]: not psutil.pid_exists(pid), 90, "the kill")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert_topic_is_the_sequence(ledger, topic, 1, 100_000)


def written_by(ledger: Ledger, topic: str, seed: int, *batches: int, symbols: int = 10) -> None:
    """A sequence's beginning in batches of the given sizes, each acknowledged before the next begins."""
    log, trades, index = TradeLog(ledger, topic, seed, symbols), Trades(seed, symbols, 0), 0
    log.begin()
    for size in batches:
        assert BLOCK % size == 0
        log.put(index, *trades.take(size), [NOW + number for number in range(index, index + size)])
        log.wait()
        index += size


def test_a_batch_is_what_kafka_clients_read(stack: Settings, ledger: Ledger, topic: str) -> None:
    ledger.ensure_topic(topic)
    written_by(ledger, topic, 7, 2048, 1024, symbols=2000)
    consumer = KafkaConsumer(topic, bootstrap_servers=stack.kafka_bootstrap_servers, auto_offset_reset="earliest")
    rows = list(itertools.islice(consumer, 3072))
    consumer.close()
    for number, (row, trade) in enumerate(zip(rows, sequence(7, 2000), strict=False)):
        symbol, price, quantity = trade
        assert json.loads(row.value) == {"symbol": symbol, "price": price, "quantity": quantity, "time": NOW + number}
        assert (row.key, row.timestamp, row.offset) == (symbol.encode(), NOW + number, number)
    marks = {row.offset: row.headers for row in rows if row.headers}
    assert marks == {0: [("streamops-index", b"7:2000:1")], 2048: [("streamops-index", b"7:2000:2049")]}


def test_the_end_of_a_sequence_is_found_behind_another_one(ledger: Ledger, topic: str) -> None:
    ledger.ensure_topic(topic)
    written_by(ledger, topic, 1, *[1024] * 30)
    written_by(ledger, topic, 2, *[1024] * 45)
    assert TradeLog(ledger, topic, 1, 10).begin() == Written(30 * 1024, NOW + 30 * 1024 - 1)
    assert TradeLog(ledger, topic, 2, 10).begin() == Written(45 * 1024, NOW + 45 * 1024 - 1)
    assert TradeLog(ledger, topic, 12, 10).begin() == TradeLog(ledger, topic, 1, 11).begin() == Written()
    with pytest.raises(UnreachableError, match="Stopped"):
        TradeLog(ledger, topic, 3, 10, stopped=lambda: True).begin()


def test_of_a_batch_that_a_kill_has_cut_the_sequence_goes_on(stack: Settings, ledger: Ledger, topic: str) -> None:
    ledger.ensure_topic(topic)
    written_by(ledger, topic, 1, 512, 256)  # as when the rest of the second batch never arrived
    producer = KafkaProducer(bootstrap_servers=stack.kafka_bootstrap_servers)
    for value in (b"not a trade", None):
        producer.send(topic, value, b"key", partition=0)
    producer.close()
    assert TradeLog(ledger, topic, 1, 10).begin().index == 768
    written_by(ledger, topic, 2, 512)  # another sequence, of whose trades none is counted
    assert TradeLog(ledger, topic, 1, 10).begin() == Written(768, NOW + 767)


def test_what_is_never_taken_is_one_sentence(ledger: Ledger, topic: str) -> None:
    ledger.ensure_topic(topic, config={"max.message.bytes": "50"})
    with pytest.raises(StreamOpsError, match=f"refused trades for {topic}"):
        written_by(ledger, topic, 1, 8)
