"""An archive of a snapshot, restored where nothing of its home is: in a second stack, empty, with keys of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from kafka import KafkaProducer

from fresh_job import FreshJob, wait_for, with_ledger
from stack import lifecycle
from streamops import snapshots
from streamops.clients.airflow import Airflow
from streamops.clients.kafka import Ledger
from streamops.operations.follow import Runbooks
from streamops.recount.recounting import recount_job
from streamops.settings import Settings
from streamops.store.object_store import ObjectStore
from support import Operator, works_again

pytestmark = [pytest.mark.stack, pytest.mark.long]


@dataclass(frozen=True)
class Second:
    """Another stack beside the one of all tests, with its own servers, data and secrets."""

    first_home: Path
    home: Path
    settings: Settings


@pytest.fixture
def second(stack: Settings) -> Iterator[Second]:
    first = Path(os.environ["STREAMOPS_HOME"])
    home, offset = first.with_name("second-stack"), int(os.environ["STREAMOPS_PORT_OFFSET"]) + 5000
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMOPS_HOME", str(home))
        patch.setenv("STREAMOPS_PORT_OFFSET", str(offset))
        patch.setenv("STREAMOPS_ENV_FILE", str(home / "stack.env"))
        try:
            yield Second(first, home, lifecycle.up(home, generator=False))
        finally:
            lifecycle.down(home)
            shutil.rmtree(home)  # empty the next time as well


def streamops(home: Path, *arguments: str) -> str:
    """The command line, as a person at that stack types it."""
    environment = os.environ | {"STREAMOPS_ENV_FILE": str(home / "stack.env")}
    command = [Path(sys.executable).with_name("streamops"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copied(one: Settings, other: Settings, topic: str) -> int:
    """The same events at the same offsets: what a mirror of the broker holds. Returns how many."""
    events: list[tuple[int, bytes | None]] = []

    def read(ledger: Ledger) -> None:
        for block in ledger.read_blocks(topic, {"0": 0}, ledger.end_offsets(topic)):
            events.extend(zip(block.timestamps, block.values, strict=True))

    with_ledger(one, read)
    with_ledger(other, lambda ledger: ledger.ensure_topic(topic))
    producer = KafkaProducer(bootstrap_servers=other.kafka_bootstrap_servers, acks="all", linger_ms=50)
    for timestamp, value in events:
        producer.send(topic, value, partition=0, timestamp_ms=timestamp)
    producer.flush(120)
    producer.close()
    assert with_ledger(other, lambda ledger: ledger.end_offsets(topic)) == {"0": len(events)}
    return len(events)


def test_a_job_goes_on_at_another_broker_with_its_state(stack, second: Second, tmp_path):
    """The second stack's broker; the job itself, its state and its results stay where they are."""
    job, operator = FreshJob.publish(stack, tmp_path), Operator(stack)
    there = replace(job, settings=second.settings)  # its topic at the other broker
    with_ledger(second.settings, lambda ledger: ledger.ensure_topic(job.name))
    with job.trades():
        operator.run("deploy_job", job.name, version="v2")
        job.caught_up()
    job.caught_up()
    first = job.recount()
    assert first.clean, first.reason
    place = f"{job.name}@{second.settings.kafka_bootstrap_servers}"
    moved = {"topics": {"trades": place}, "start_at": {"trades": "earliest"}, "recount": False, "probation_s": 0}
    done = operator.run("upgrade_job", job.name, version="v2", snapshot="moved", standby=False, **moved)
    assert set(done.facts("check")["outcomes"].values()) == {"kept with caveat"}
    with there.trades():
        wait_for(lambda: there.end() > 20_000, 180, "trades at the other broker")
        wait_for(lambda: job.read() >= there.end() - 5_000, 180, "the job reading them")
    wait_for(lambda: job.read() == there.end(), 180, "the end of the other topic")
    report = job.recount()
    assert report.clean, report.reason
    assert set(report.offsets["trades"]) == {"0"}
    assert report.offsets["trades"]["0"][1] > 20_000
    operator.run("cancel_job", job.name)


def test_an_archive_is_restored_on_a_second_empty_stack_and_goes_on_exactly(stack, second: Second, tmp_path):
    job = FreshJob.publish(stack, tmp_path)
    operator = Operator(stack)
    with job.trades():
        operator.run("deploy_job", job.name, version="v2")
        job.caught_up()
        operator.run("snapshot_job", job.name, snapshot="moves", cancel=True)
        taken = snapshots.load(job.store, job.name, "moves")
        wanted = job.end() + 20_000
        wait_for(lambda: job.end() >= wanted, 180, "trades after the snapshot")
    archive = tmp_path / "moves.tar"
    assert "objects" in streamops(second.first_home, "snapshots", "export", f"{job.name}/moves", str(archive))
    assert copied(stack, second.settings, job.name) >= wanted

    with Airflow(second.settings, timeout_s=60) as airflow:
        Runbooks(airflow, ObjectStore(second.settings)).wait_ready(("manage_snapshot",))
    told = streamops(second.home, "snapshots", "import", str(archive), "--trust")
    assert "published now" in told
    there = replace(job, settings=second.settings, store=ObjectStore(second.settings))
    away = Operator(second.settings)
    away.run("deploy_job", job.name, version="v2", from_snapshot="moves")
    there.caught_up(600)
    assert works_again(there)
    after = {name: stage.watermark_ms or 0 for name, stage in taken.stages.items()}
    report = recount_job(second.settings, there.store, job.name, after=after)
    assert report.clean, report.reason
    assert sum(item.expected for item in report.measurements) > 500
    away.run("cancel_job", job.name)
