"""Results that wait, read from the real Kafka while the driver writes them and lets Kafka delete what is written."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

import confluent_kafka
import pytest

from fresh_job import as_root
from streamops.clients.kafka import Ledger
from streamops.model.definitions import parse
from streamops.model.errors import NotFoundError
from streamops.model.records import Deployment, ResultsPosition, now
from streamops.model.results import mark
from streamops.operations.feeding import Feeds
from streamops.recount.held import Held
from streamops.recount.recounting import _Planner
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore

pytestmark = pytest.mark.stack

JOB = """
job: {name}
version: v1
code: job.py
sources:
  trades: {{kafka: {{topic: trades}}, schema: "n bigint, time bigint", event_time: time}}
  panes: {{stage: {{name: second, add: [n]}}, schema: "n bigint, time bigint", event_time: time}}
stages:
  second: {{mode: realtime, output: update, sinks: [{{influxdb: {{measurement: second}}}}]}}
"""


class Busy(Ledger):
    """Kafka, beside a driver that has written all but the last result when someone has just looked where it stands."""

    position: ResultsPosition
    store: ObjectStore

    def end_offsets(self, topic: str) -> dict[str, int]:
        found = super().end_offsets(topic)
        if self.position.offset < found["0"] - 1:
            self.position = self.position.model_copy(update={"offset": found["0"] - 1})
            self.delete_records(topic, 0, self.position.offset)
            documents.write(self.store, keys.results(self.position.job, self.position.stage), self.position)
        return found


@pytest.fixture
def busy(stack) -> Iterator[Busy]:
    name = f"waiting-{uuid.uuid4().hex[:8]}"
    ledger = Busy.at(stack.kafka_bootstrap_servers)
    ledger.store, ledger.position = ObjectStore(as_root(stack)), ResultsPosition(job=name, stage="second", epoch=1)
    topic = keys.results_topic(name, "second")
    ledger.ensure_topic(topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": stack.kafka_bootstrap_servers})
    for number in range(10):
        row = json.dumps({"n": number, "time": number})
        producer.produce(topic, mark(1, 0) + f"0 {row}".encode(), key=str(number).encode(), partition=0)
    assert producer.flush(30) == 0
    documents.write(ledger.store, keys.results(name, "second"), ledger.position)
    yield ledger
    ledger.delete_topics(keys.results_topics(name))
    ledger.close()


def deployment(job: str) -> Deployment:
    return Deployment(
        job=job, number=1, version="v1", artifact_sha256="a", runtime_sha256="r", created=now(), created_by="test"
    )


def test_a_snapshot_takes_what_waits_while_the_rest_is_written_and_deleted(busy: Busy) -> None:
    name = busy.position.job
    feeds = Feeds(busy.store, busy, parse(JOB.format(name=name)), deployment(name))
    assert [json.loads(text) for text in feeds.slices({})["second"].pending] == [{"n": 9, "time": 9}]


def test_a_recount_waits_for_what_is_written_and_deleted_meanwhile(busy: Busy) -> None:
    name = busy.position.job
    planner = _Planner(busy.store, Held(busy, parse(JOB.format(name=name)), {}), deployment(name), {}, {})
    began = time.monotonic()
    planner._await_results("second", until_ms=5)  # the one that is left is of a window that is open
    assert time.monotonic() - began < 30


def test_a_position_that_nobody_moves_and_kafka_does_not_hold_is_an_error(busy: Busy) -> None:
    name = busy.position.job
    topic = keys.results_topic(name, "second")
    busy.end_offsets(topic)
    documents.write(busy.store, keys.results(name, "second"), busy.position.model_copy(update={"offset": 2}))
    with pytest.raises(NotFoundError, match="no longer holds offset 2"):
        Feeds(busy.store, busy, parse(JOB.format(name=name)), deployment(name)).slices({})
