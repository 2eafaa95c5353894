"""The transactions example on the real servers: each transaction once across an upgrade, and its log in one place."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from kafka import KafkaProducer

from fresh_job import wait_for
from streamops import artifacts, jobs
from streamops.adapters.kafka import Ledger
from streamops.adapters.object_store import ObjectStore
from streamops.errors import RefusedError
from streamops.joblogs import Reader
from streamops.records import State
from streamops.settings import REPOSITORY, Settings
from support import Operator

PAYLOADS = {
    "transaction-1": {"description": "Online Purchase", "amount": 75.99, "transactionDate": "2023-08-09T15:30:00Z"},
    "transaction-2": {"description": "Grocery Shopping", "amount": 42.75, "transactionDate": "2023-08-10T10:15:00Z"},
    "transaction-3": {"description": "Dinner for {two}", "amount": 120.50, "transactionDate": "2023-08-11T20:00:00Z"},
    "transaction-4": {"description": "Movie Tickets", "amount": 25.00, "transactionDate": "2023-08-12T18:45:00Z"},
    "transaction-5": {"description": "Gasoline Refill", "amount": 50.30, "transactionDate": "2023-08-13T09:00:00Z"},
}


class Transactions:
    """A published copy of the example with a topic of its own."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        self.name = f"transactions-{uuid.uuid4().hex[:8]}"
        self.settings, self.store, self.directory = settings, ObjectStore(settings), directory
        source = REPOSITORY / "spark_jobs" / "transactions"
        (directory / "transactions.py").write_text((source / "transactions.py").read_text())
        ledger = Ledger(settings)
        ledger.ensure_topic(self.name)
        ledger.close()
        for version in ("v1", "v2"):
            text = (source / f"{version}.yaml").read_text().replace("job: transactions", f"job: {self.name}")
            (directory / f"{version}.yaml").write_text(text.replace("topic: transactions", f"topic: {self.name}"))
            artifacts.publish(self.store, directory, version)

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
    return [f"[Job {version.upper()}] transaction:'{name}' payload:'{json.dumps(PAYLOADS[name])}'" for name in names]


@pytest.mark.stack
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_version_2_processes_only_what_came_after_the_snapshot(stack: Settings, tmp_path: Path) -> None:
    job, operator = Transactions(stack, tmp_path), Operator(stack)
    job.send("transaction-1", "transaction-2", "transaction-3")
    operator.run("deploy_job", job.name, version="v1")
    wait_for(lambda: job.logged("V1") == expected("v1", 1, 2, 3), 180, "transactions 1 to 3")

    operator.run("snapshot_job", job.name, snapshot="snapshot-transaction", cancel=True)
    record = jobs.record(job.store, job.name)
    assert record is not None
    assert (record.desired, record.snapshot) == (State.STOPPED_WITH_SNAPSHOT, "snapshot-transaction")
    job.send("transaction-4", "transaction-5")

    with pytest.raises(RefusedError, match=r"snapshot-transaction.*from_scratch"):  # never by omission
        operator.run("deploy_job", job.name, version="v2")
    second = operator.run("deploy_job", job.name, version="v2", from_snapshot="snapshot-transaction")
    wait_for(lambda: len(job.logged("V2")) >= 2, 180, "transactions 4 and 5")
    assert job.logged("V1") == expected("v1", 1, 2, 3)
    assert job.logged("V2") == expected("v2", 4, 5)

    operator.run("cancel_job", job.name)
    again = operator.run("deploy_job", job.name, version="v2", from_scratch=True)
    wait_for(lambda: len(job.logged("V2", again.id)) >= 5, 180, "all transactions again")
    assert job.logged("V2", again.id) == expected("v2", 1, 2, 3, 4, 5)
    assert job.logged("V2", second.id) == expected("v2", 4, 5)

    command = [Path(sys.executable).with_name("streamops"), "logs", job.name]
    told = subprocess.run([*command, "--logger", "sink"], capture_output=True, text=True, check=True, timeout=120)
    for text in (*expected("v1", 1, 2, 3), *expected("v2", 1, 2, 3, 4, 5)):
        assert text in told.stdout
    told = subprocess.run([*command, "--level", "ERROR"], capture_output=True, text=True, check=True, timeout=120)
    assert "[Job V" not in told.stdout
    operator.run("cancel_job", job.name)
