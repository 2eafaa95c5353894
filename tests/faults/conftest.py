"""One running job for all fault tests, a hand on the servers, and the report of what was survived."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fresh_job import FreshJob, publish_quickly, wait_for
from streamops.model.names import CLUSTER
from streamops.model.records import State
from streamops.settings import REPOSITORY, Settings
from streamops.store import jobs, locks
from support import Operator, Servers, pythons, wait_works

RATE, SYMBOLS = 1000, 20
_results: list[dict[str, object]] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The shared job is begun by the last tests: until then it would take a third of the machine from all others.

    Random faults last as long as asked; then the last operation may take its time, and all be looked at.
    """
    items.sort(key=lambda item: "shared" in getattr(item, "fixturenames", ()))
    for item in items:
        if "minutes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(60 * config.getoption("--nemesis-minutes") + 1800))


@pytest.fixture
def minutes(request: pytest.FixtureRequest) -> float:
    """How long random faults last."""
    return float(request.config.getoption("--nemesis-minutes"))


@pytest.fixture(scope="package")
def operator(stack: Settings) -> Operator:
    return Operator(stack)


@pytest.fixture(scope="package")
def servers(stack: Settings) -> Servers:
    return Servers()


@pytest.fixture(scope="package")
def shared(stack: Settings, operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    """A job under load that all tests of this directory meet, one after the other."""
    job = FreshJob.publish(stack, tmp_path_factory.mktemp("faults"))
    _publish_broken(job)
    with job.trades(RATE, SYMBOLS):
        operator.run("deploy_job", job.name, version="v1")
        yield job
        if job.record().desired == "running":
            operator.run("cancel_job", job.name)
        wait_for(lambda: not pythons(job.name), 180, "the end of all drivers")


def _publish_broken(job: FreshJob) -> None:
    """A version that can be published, becomes warm, whose state fits, and whose every batch fails."""
    directory = job.directory.parent / "broken"
    directory.mkdir()
    code = (job.directory / "trade_analyser.py").read_text()
    code = code.replace(
        'F.sum("price").alias("cents")', 'F.sum(F.raise_error(F.lit("broken")).cast("bigint")).alias("cents")'
    )
    (directory / "trade_analyser.py").write_text(code)
    definition = (job.directory / "v1.yaml").read_text()
    (directory / "broken.yaml").write_text(definition.replace("version: v1", "version: broken"))
    publish_quickly(job.store, directory, "broken", like="v1")


@pytest.fixture
def job(shared: FreshJob, operator: Operator, servers: Servers) -> FreshJob:
    """The shared job at work. What a failed test left is put right, so that it fails alone."""
    for name in ("minio", "kafka", "influxd"):
        if servers.supervisor.program(name).state != "RUNNING":
            servers.start(name)
    held = locks.read(shared.store, shared.name)
    if held is not None and held.value.operation and held.value.owner:
        operator.owners.dead.add(held.value.owner.run_id)
        of = CLUSTER if held.value.runbook.endswith("_cluster") else shared.name
        operator.engine().abort(of, held.value.operation)
    status = shared.status()
    if shared.record().desired != "running":
        operator.run("start_job", shared.name)
    elif status is None or status.state == State.FAILED or not _works(shared):
        operator.run("cancel_job", shared.name)
        operator.run("start_job", shared.name)
    wait_works(shared, 360)
    return shared


def _works(job: FreshJob) -> bool:
    try:
        wait_works(job, 180)
    except AssertionError:
        return False
    return True


@pytest.fixture
def other(stack: Settings, job: FreshJob, tmp_path: Path) -> FreshJob:
    """A second job of the same code on the same topic, with measurements of its own; published, never deployed."""
    name = f"{job.name}-fork-{os.urandom(2).hex()}"
    copy = tmp_path / name
    shutil.copytree(job.directory, copy)
    for path in copy.glob("*.yaml"):
        text = path.read_text().replace(f"job: {job.name}", f"job: {name}")
        path.write_text(re.sub(rf"{job.name.replace('-', '_')}_", f"{name.replace('-', '_')}_", text))
        publish_quickly(job.store, copy, path.stem)
    return FreshJob(name, stack, job.store, copy, job.topic)


def epoch(job: FreshJob) -> int:
    lease = jobs.lease(job.store, job.name)
    assert lease is not None
    return lease.epoch


@pytest.fixture
def recovered(record_property) -> Iterator[object]:
    """Note after how many seconds the job worked again."""

    def note(began: float) -> float:
        seconds = time.monotonic() - began
        record_property("recovery_s", round(seconds, 1))
        print(f"back after {seconds:.1f} s", flush=True)
        return seconds

    return note


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "tests/faults/" not in report.nodeid or (report.when != "call" and report.passed):
        return
    line: dict[str, object] = {"test": report.nodeid.split("::", 1)[1], "outcome": report.outcome}
    _results.append(line | {"seconds": round(report.duration, 1)} | dict(report.user_properties))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """build/fault-report.json: each fault with its outcome, duration and time to recover."""
    if _results:
        (REPOSITORY / "build").mkdir(exist_ok=True)
        (REPOSITORY / "build" / "fault-report.json").write_text(json.dumps(_results, indent=1))
