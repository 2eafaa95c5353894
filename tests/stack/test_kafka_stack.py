"""The ledger against the real broker: what a topic may hold is read to its end, and what is wrong is named."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition

from fresh_job import wait_for
from stack.layout import Layout
from streamops.clients.kafka import Ledger
from streamops.model.errors import NotFoundError, StreamOpsError, UnreachableError
from streamops.settings import Settings

pytestmark = [pytest.mark.stack, pytest.mark.full]
NOW = int(time.time()) * 1000


@pytest.fixture
def layout(stack: Settings) -> Layout:
    return Layout.find()


@pytest.fixture
def topic() -> str:
    return f"ledger-{uuid.uuid4().hex[:8]}"


def write(stack: Settings, topic: str, values: list[bytes | None], **config: object) -> None:
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap_servers, **config})
    for number, value in enumerate(values):
        producer.produce(topic, value, b"key", 0, timestamp=NOW + number)
    assert producer.flush(30) == 0


def rows(ledger: Ledger, topic: str, start: int = 0, end: int | None = None) -> list[tuple[int, bytes | None]]:
    ends = ledger.end_offsets(topic) if end is None else {"0": end}
    return [(offset, value) for _, offset, _, value in ledger.read(topic, {"0": start}, ends)]


def test_offsets_and_the_records_between_them(stack: Settings, ledger: Ledger, topic: str) -> None:
    assert ledger.ensure_topic(topic)
    values = [b"", None, *[b"%d" % number for number in range(2, 3000)]]
    write(stack, topic, values)
    assert ledger.end_offsets(topic) == {"0": 3000}
    assert ledger.offsets_at(topic, NOW + 1200) == {"0": 1200}
    assert ledger.offsets_at(topic, NOW + 10_000) == {"0": 3000}
    assert list(ledger.read(topic, {}, {"0": 3000})) == [(0, at, NOW + at, value) for at, value in enumerate(values)]
    assert rows(ledger, topic, 1501, 1503) == [(1501, b"1501"), (1502, b"1502")]
    assert rows(ledger, topic, 7, 7) == []


@pytest.mark.parametrize("codec", ["gzip", "lz4", "snappy", "zstd"])
def test_compressed_records_are_read(stack: Settings, ledger: Ledger, topic: str, codec: str) -> None:
    ledger.ensure_topic(topic)
    values: list[bytes | None] = [b"%d" % number * 20 for number in range(500)]
    write(stack, topic, values, **{"compression.type": codec})
    assert rows(ledger, topic, 0, 499) == list(enumerate(values[:499]))


def test_the_end_is_reached_behind_markers_of_transactions(stack: Settings, ledger: Ledger, topic: str) -> None:
    ledger.ensure_topic(topic)
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(30)
    for value, ends in ((b"one", producer.commit_transaction), (b"undone", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(30)
        ends(30)
    wait_for(lambda: ledger.end_offsets(topic) == {"0": 4}, 60, "the markers")  # written after the answer
    assert rows(ledger, topic) == [(0, b"one"), (2, b"undone")]  # read uncommitted, as the job does
    assert rows(ledger, topic, 1, 2) == rows(ledger, topic, 3) == []


def test_the_end_is_reached_over_what_compaction_removed(stack: Settings, ledger: Ledger, topic: str) -> None:
    small = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    ledger.ensure_topic(topic, config=small)
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap_servers})
    deadline = time.monotonic() + 90
    while (found := rows(ledger, topic)) == [] or found[0][0] == 0:
        assert time.monotonic() < deadline, "nothing was compacted"
        producer.produce(topic, b"newer", b"key", 0)  # each in a segment of its own
        assert producer.flush(30) == 0
        time.sleep(0.5)
    assert rows(ledger, topic, 0, found[0][0]) == []


def test_partitions_are_merged_by_the_time_of_their_records(stack: Settings, ledger: Ledger, topic: str) -> None:
    ledger.ensure_topic(topic, partitions=3)
    # Without it, a batch that a new partition refuses at first is sent again behind the next one.
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap_servers, "enable.idempotence": True})
    for number in range(3000):
        producer.produce(topic, b"%d" % number, partition=number % 7 % 3, timestamp=NOW + number * 20)
    assert producer.flush(30) == 0
    read = list(ledger.read(topic, {}, ledger.end_offsets(topic)))
    assert sorted(int(value or b"") for *_, value in read) == list(range(3000))
    newest = 0
    for _, _, timestamp, _ in read:
        assert timestamp > newest - 100
        newest = max(newest, timestamp)


def test_a_damaged_batch_is_not_read(layout: Layout, stack: Settings, ledger: Ledger, topic: str) -> None:
    ledger.ensure_topic(topic)
    write(stack, topic, [b"a value that is damaged"])
    (log,) = (layout.data / "kafka" / f"{topic}-0").glob("*.log")
    log.write_bytes(log.read_bytes().replace(b"damaged", b"damagEd"))
    with pytest.raises(StreamOpsError, match=f"refused to read {topic}"):
        rows(ledger, topic)


def test_what_retention_has_removed_and_what_never_was_is_not_found(
    stack: Settings, ledger: Ledger, topic: str
) -> None:
    for question in (ledger.beginning_offsets, ledger.end_offsets, lambda name: ledger.offsets_at(name, NOW)):
        with pytest.raises(NotFoundError, match=f"has no topic {topic}"):
            question(topic)
    with pytest.raises(NotFoundError, match=f"has no topic {topic}"):
        rows(ledger, topic, 0, 1)
    assert ledger.ensure_topic(topic, partitions=2)
    assert not ledger.ensure_topic(topic)
    assert ledger.beginning_offsets(topic) == ledger.end_offsets(topic) == {"0": 0, "1": 0}
    with pytest.raises(NotFoundError, match="no longer holds offset 5 of partition 0"):
        rows(ledger, topic, 5, 6)
    with pytest.raises(NotFoundError, match="has no partition 7"):
        list(ledger.read(topic, {}, {"7": 1}))
    write(stack, topic, [b"gone", b"kept"])
    admin = KafkaAdminClient(bootstrap_servers=stack.kafka_bootstrap_servers)
    admin.delete_records({TopicPartition(topic, 0): 1})
    admin.close()
    with pytest.raises(NotFoundError, match=r"offset 0 of partition 0 \(it begins at 1\)"):
        rows(ledger, topic)
    assert rows(ledger, topic, 1) == [(1, b"kept")]


def test_a_topic_that_kafka_refuses_is_one_sentence(ledger: Ledger, topic: str) -> None:
    with pytest.raises(StreamOpsError, match=f"refused topic {topic}.*nonsense"):
        ledger.ensure_topic(topic, config={"cleanup.policy": "nonsense"})
    with pytest.raises(StreamOpsError, match="refused topic no such name"):
        ledger.ensure_topic("no such name")
    with pytest.raises(StreamOpsError, match="refused a request"):
        ledger.end_offsets("no such name")


def test_an_absent_broker_is_one_sentence_in_bounded_time_and_leaves_nothing_behind(stack: Settings) -> None:
    gone = Ledger(stack.model_copy(update={"kafka_bootstrap_servers": "127.0.0.1:1,127.0.0.1:2"}), timeout_s=2)
    questions: tuple[Callable[[], object], ...] = (
        lambda: gone.end_offsets("trades"),
        lambda: gone.ensure_topic("trades"),
        lambda: list(gone.read("trades", {}, {"0": 1})),
    )
    threads = threading.active_count()
    for question in questions:
        begun = time.monotonic()
        with pytest.raises(UnreachableError, match="did not answer"):
            question()
        assert time.monotonic() - begun < 6
    assert threading.active_count() == threads
