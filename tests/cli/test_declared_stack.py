"""The transactions example as declared jobs, with the installed command and on the real servers: each transaction once
across a snapshot and an upgrade, its log in one place, a stale file, delete (rows C1 to C3, C6)."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kafka import KafkaProducer

from fresh_job import wait_for, with_ledger
from streamops.model.errors import RefusedError
from streamops.model.records import State
from streamops.settings import REPOSITORY, Settings
from streamops.store import jobs
from streamops.store.joblogs import Reader
from streamops.store.object_store import ObjectStore
from support import Operator

COMMAND = Path(sys.executable).with_name("streamops")
WAIT_S = 300  # finds what hangs
PAYLOADS = {
    "transaction-1": {"description": "Online Purchase", "amount": 75.99, "transactionDate": "2023-08-09T15:30:00Z"},
    "transaction-2": {"description": "Grocery Shopping", "amount": 42.75, "transactionDate": "2023-08-10T10:15:00Z"},
    "transaction-3": {"description": "Dinner for {two}", "amount": 120.50, "transactionDate": "2023-08-11T20:00:00Z"},
    "transaction-4": {"description": "Movie Tickets", "amount": 25.00, "transactionDate": "2023-08-12T18:45:00Z"},
    "transaction-5": {"description": "Gasoline Refill", "amount": 50.30, "transactionDate": "2023-08-13T09:00:00Z"},
}


class Transactions:
    """A copy of the example with a topic of its own, in a directory that declared jobs name."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.name = f"transactions-{uuid.uuid4().hex[:8]}"
        self.settings, self.store, self.directory = settings, ObjectStore(settings), directory
        source = REPOSITORY / "spark_jobs" / "transactions"
        self.code = directory / "code"
        self.code.mkdir()
        (self.code / "transactions.py").write_text((source / "transactions.py").read_text())
        with_ledger(settings, lambda ledger: ledger.ensure_topic(self.name))
        for version in ("v1", "v2"):
            text = (source / f"{version}.yaml").read_text().replace("job: transactions", f"job: {self.name}")
            (self.code / f"{version}.yaml").write_text(text.replace("topic: transactions", f"topic: {self.name}"))

    def file(self, **fields: object) -> str:
        """A file that declares one thing; returns its path."""
        path = self.directory / f"{uuid.uuid4().hex}.yaml"
        path.write_text(yaml.safe_dump(fields))
        return str(path)

    def declared(self, version: str, **fields: object) -> str:
        """A file that declares the job in this version."""
        return self.file(kind="job", name=self.name, version=version, code=str(self.code), **fields)

    def send(self, *names: str) -> None:
        producer = KafkaProducer(bootstrap_servers=self.settings.kafka_bootstrap_servers)
        for name in names:
            producer.send(self.name, json.dumps(PAYLOADS[name]).encode(), key=name.encode())
        producer.flush(30)
        producer.close()

    def logged(self, version: str, launch: str = "") -> list[str]:
        """The messages of the job's log sink, in order."""
        lines = [line for line in Reader(self.store, self.name).more() if line.launch.startswith(launch)]
        return [line.text for line in lines if line.logger.startswith("sink.") and f"[Job {version}]" in line.text]


def expected(version: str, *numbers: int) -> list[str]:
    names = [f"transaction-{number}" for number in numbers]
    return [f"[Job {version}] transaction:'{name}' payload:'{json.dumps(PAYLOADS[name])}'" for name in names]


def streamops(*words: str, code: int = 0) -> str:
    ended = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == code, (words, ended.stdout[-2000:], ended.stderr[-2000:])
    return ended.stdout + ended.stderr


@pytest.fixture
def job(stack: Settings, tmp_path: Path) -> Iterator[Transactions]:
    job = Transactions(stack, tmp_path)
    yield job
    record = jobs.record(job.store, job.name)
    if record is not None and record.desired == "running":
        Operator(stack).run("cancel_job", job.name)


@pytest.mark.stack
@pytest.mark.long
def test_declared_versions_process_each_transaction_once_and_a_stale_file_is_refused(
    stack: Settings, job: Transactions
) -> None:
    operator, name = Operator(stack), job.name
    job.send("transaction-1", "transaction-2", "transaction-3")
    first = job.declared("v1")
    assert "deploy_job" in streamops("diff", first, code=2)
    streamops("apply", first)
    assert f"unchanged: {name} runs v1" in streamops("apply", first)
    assert "unchanged" in streamops("diff", first)
    wait_for(lambda: job.logged("V1") == expected("V1", 1, 2, 3), WAIT_S, "transactions 1 to 3")

    kept = job.file(kind="snapshot", name="kept", job=name, cancel=True)
    streamops("apply", kept)
    assert "exists, as declared" in streamops("apply", kept)
    (shown,) = [item for item in json.loads(streamops("jobs", "--json")) if item["job"] == name]
    assert shown["state"] == "stopped-with-snapshot"
    record = jobs.record(job.store, name)
    assert record is not None
    assert (record.desired, record.snapshot) == (State.STOPPED_WITH_SNAPSHOT, "kept")
    job.send("transaction-4", "transaction-5")

    with pytest.raises(RefusedError, match=r"kept.*from_scratch"):  # never by omission
        operator.run("deploy_job", name, version="v2")
    assert "would process everything again" in streamops("apply", job.declared("v2"), code=1)
    streamops("apply", job.declared("v2", initial_snapshot="kept"))
    second = jobs.record(job.store, name)
    assert second is not None
    wait_for(lambda: len(job.logged("V2")) >= 2, WAIT_S, "transactions 4 and 5")
    assert job.logged("V1") == expected("V1", 1, 2, 3)
    assert job.logged("V2") == expected("V2", 4, 5)
    assert "The file is stale" in streamops("apply", first, code=1)

    operator.run("cancel_job", name)
    again = operator.run("deploy_job", name, version="v2", from_scratch=True)
    wait_for(lambda: len(job.logged("V2", again.id)) >= 5, WAIT_S, "all transactions again")
    assert job.logged("V2", again.id) == expected("V2", 1, 2, 3, 4, 5)
    assert job.logged("V2", str(second.launch)) == expected("V2", 4, 5)

    told = streamops("logs", name, "--logger", "sink")
    for text in (*expected("V1", 1, 2, 3), *expected("V2", 1, 2, 3, 4, 5)):
        assert text in told
    assert "[Job V" not in streamops("logs", name, "--level", "ERROR")

    removed = streamops("delete", name, "--yes")
    assert "snapshots: kept" in removed
    assert "versions: v1, v2" in removed
    assert name not in streamops("jobs")
