"""A driver on the real cluster: from a published directory to points, through a kill, to a stop at a boundary."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from kafka import KafkaProducer

from streamops import artifacts, checkpoints, keys, leases, records
from streamops.adapters.influx import Points
from streamops.adapters.kafka import Ledger
from streamops.adapters.object_store import ObjectStore
from streamops.adapters.spark import SparkSubmitter
from streamops.records import FINAL, Control, Deployment, DriverStatus, JobRecord, Lease, StageStart, State
from streamops.settings import Settings
from streamops.submission import Submission
from streamops.template import write_new

pytestmark = [pytest.mark.stack, pytest.mark.full]
T = TypeVar("T")


def eventually(look: Callable[[], T | None], what: str, seconds: float = 240) -> T:
    """What ``look`` finds, once it finds something."""
    deadline = time.monotonic() + seconds
    while (found := look()) is None or found is False:
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.3)
    return found


@dataclass
class Job:
    """The example job under a name, topic and measurement of its own."""

    settings: Settings
    store: ObjectStore
    name: str
    topic: str
    measurement: str
    begin: datetime

    def launch(self, launch: str) -> None:
        """Deploy v1 the way an operation does, and submit it."""
        manifest = artifacts.load_manifest(self.store, self.name, "v1")
        deployment = Deployment(
            job=self.name,
            number=1,
            version="v1",
            artifact_sha256=manifest.artifact_sha256,
            runtime_sha256=manifest.runtime_sha256,
            created=records.now(),
            created_by="test",
            stages={"per_minute": StageStart(since_deployment=1)},
        )
        records.write(self.store, keys.deployment(self.name, 1), deployment, new=True)
        leases.grant(self.store, self.name, launch, 1)
        record = JobRecord(
            job=self.name, desired="running", version="v1", deployment=1, last_deployment=1, launch=launch
        )
        records.write(self.store, keys.record(self.name), record)
        resources = manifest.definition.resources
        shas = manifest.artifact_sha256, manifest.runtime_sha256
        SparkSubmitter(self.settings).submit(Submission(self.name, "v1", 1, launch, *shas, resources))

    def status(self, launch: str) -> DriverStatus | None:
        found = records.read(self.store, keys.status(self.name, launch), DriverStatus)
        return found.value if found else None

    def in_state(self, launch: str, state: State, not_holder: str = "") -> DriverStatus | None:
        status = self.status(launch)
        return status if status and status.state is state and status.holder != not_holder else None

    def over(self) -> bool:
        status = self.status("first")
        return status is not None and status.state in FINAL

    def lease(self) -> Lease:
        found = records.read(self.store, keys.lease(self.name), Lease)
        assert found
        return found.value

    def click(self, *clicks: tuple[float, str], raw: tuple[bytes, ...] = ()) -> None:
        """Send clicks at seconds after the beginning."""
        producer = KafkaProducer(bootstrap_servers=self.settings.kafka_bootstrap_servers)
        for second, page in clicks:
            moment = (self.begin + timedelta(seconds=second)).isoformat()
            producer.send(self.topic, json.dumps({"page": page, "time": moment}).encode())
        for value in raw:
            producer.send(self.topic, value)
        producer.flush(30)
        producer.close()

    def points(self) -> dict[tuple[int, str], float]:
        """(minute, page) -> clicks, as written."""
        client = Points(self.settings)
        start = int(self.begin.timestamp() * 1000)
        found = client.read(self.measurement, start, start + 86_400_000, ("page",))
        result = {((when - start) // 60_000, page): value for when, (page,), value in found}
        client.close()
        return result


@pytest.fixture
def job(stack: Settings, tmp_path: Path) -> Iterator[Job]:
    name = f"clicks-{uuid.uuid4().hex[:6]}"
    topic = measurement = name.replace("-", "_")
    directory = tmp_path / name
    write_new(directory, name)
    definition = directory / "v1.yaml"
    text = definition.read_text().replace("topic: clicks", f"topic: {topic}")
    text = text.replace("measurement: clicks", f"measurement: {measurement}")
    definition.write_text(text.replace("1g", "800m"))
    store = ObjectStore(stack)
    ledger = Ledger(stack)
    ledger.ensure_topic(topic)
    ledger.close()
    published = artifacts.publish(store, directory)
    assert (published.job, published.fresh) == (name, True)
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=20)
    found = Job(stack, store, name, topic, measurement, begin)
    yield found
    if found.status("first"):
        records.write(store, keys.control(name, "first"), Control(command="stop"))
        eventually(found.over, "the end of the test's driver")


def test_a_job_survives_a_kill_and_stops_at_a_boundary(job: Job) -> None:
    job.click((1, "/home"), (2, "/home"), (3, "/help"), (61, "/home"), (200, "/end"))
    job.launch("first")
    first = {(1, "/home"): 2, (1, "/help"): 1, (2, "/home"): 1}
    eventually(lambda: job.points() == first, "the first windows")
    status = eventually(lambda: job.in_state("first", State.RUNNING), "state running")
    assert status.epoch == 1

    # What is malformed or dated years ahead is counted, and harms nothing.
    future = json.dumps({"page": "/", "time": "2099-01-01T00:00:00Z"}).encode()
    job.click((201, "/home"), raw=(b"not json", b'{"page": 1}', future))

    def counted() -> bool:
        now = job.status("first")
        stage = now.stages.get("per_minute") if now else None
        return bool(stage and (stage.malformed_rows, stage.ahead_rows) == (2, 1))

    eventually(counted, "the counts of rejected records")

    process = psutil.Process(status.pid)
    parent = process.parent()
    assert parent
    parent.kill()
    again = eventually(lambda: job.in_state("first", State.RUNNING, status.holder), "the relaunch")
    assert again.epoch == 2
    eventually(lambda: not psutil.pid_exists(status.pid), "the end of the orphan")
    job.click((202, "/home"), (400, "/end"), (401, "/end"), (700, "/end"))
    second = {(4, "/end"): 1, (4, "/home"): 2, (7, "/end"): 2}
    eventually(lambda: job.points() == first | second, "the windows after the relaunch")
    assert job.lease().fruitless == 0

    records.write(job.store, keys.control(job.name, "first"), Control(command="stop"))
    stopped = eventually(lambda: job.in_state("first", State.STOPPED), "the stop")
    assert job.lease().holder is None
    prefix = checkpoints.current_epoch_prefix(job.store, job.name, 1)
    assert prefix
    tail = checkpoints.tail(job.store, f"{prefix}per_minute/")
    assert tail.offsets == {"clicks": {"0": 13}} == stopped.stages["per_minute"].offsets
    assert job.points() == first | second
