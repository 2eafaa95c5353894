"""Fault 41 and malformed events: rejected before the watermark, counted, never fatal."""

from __future__ import annotations

import json
import random
import time

import pytest
from kafka import KafkaProducer

from fresh_job import wait_for
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
