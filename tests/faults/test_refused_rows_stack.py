"""Rows that InfluxDB does not take: the job runs on, they are put aside, and nothing else is missing."""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from fresh_job import FreshJob, wait_for
from streamops.cli import app
from streamops.clients.influx import Points
from streamops.model.records import State
from streamops.store import quarantine
from support import invariant, mark

pytestmark = [pytest.mark.stack, pytest.mark.full]
HOSTILE = ("ends in \\", "L" * 70_000, "tab\tbed", "line\nbreak")
FINE = ("a b", "a,b=c", 'quote"d', "back\\slash", "ünïcödé 💹", "=", ",", "#", "'", "trailing space ")


def test_rows_that_influxdb_refuses_are_put_aside_and_the_job_runs_on(stack, operator, tmp_path):
    job = FreshJob.publish(stack, tmp_path, versions=("v1",))
    producer = Producer({"bootstrap.servers": stack.kafka_bootstrap_servers})
    with job.trades(200, 5):
        operator.run("deploy_job", job.name, version="v1")
        start = mark(job)
        at = int(time.time() * 1000)
        for symbol in (*HOSTILE, *FINE):
            trade = {"symbol": symbol, "price": 100, "quantity": 1, "time": at}
            producer.produce(job.name, json.dumps(trade).encode(), timestamp=at)
        producer.flush(30)
        wait_for(
            lambda: len(list(quarantine.read(job.store, job.name))) == len(HOSTILE), 120, "the points in the quarantine"
        )
        invariant(job, start)
        assert job.status().state == State.RUNNING
        assert job.status().stages["avg_1s"].refused_rows == len(HOSTILE)
        operator.run("cancel_job", job.name)
        operator.run("start_job", job.name)  # what was refused is read and refused again at most, and harms nobody
        invariant(job, start)

    report = job.recount()
    measurement = f"{job.name.replace('-', '_')}_avg_1s"
    refused = {item.measurement: item.refused for item in report.measurements}
    assert (report.clean, refused[measurement]) == (True, len(HOSTILE)), report.reason
    points = Points(stack)
    found = {tags[0] for _, tags, _ in points.read(measurement, at // 1000 * 1000, at + 2000, ("symbol",))}
    assert set(FINE) <= found  # as they were, character by character

    file = tmp_path / "refused.jsonl"
    assert CliRunner().invoke(app, ["quarantine", "export", job.name, str(file)]).exit_code == 0
    corrected = [json.loads(text) for text in file.read_text().splitlines()]
    for number, item in enumerate(corrected):
        item["tags"]["symbol"] = f"corrected {number}"
    refusal = CliRunner().invoke(app, ["quarantine", "write", job.name, str(file)])
    assert (refusal.exit_code, "Nothing was written" in refusal.output) == (1, True)
    file.write_text("".join(f"{json.dumps(item)}\n" for item in corrected))
    assert CliRunner().invoke(app, ["quarantine", "write", job.name, str(file)]).exit_code == 0
    assert list(quarantine.read(job.store, job.name)) == []
    found = {tags[0] for _, tags, _ in points.read(measurement, at // 1000 * 1000, at + 2000, ("symbol",))}
    assert {"corrected 0", "corrected 1"} <= found
    points.close()
    operator.run("delete_job", job.name)
