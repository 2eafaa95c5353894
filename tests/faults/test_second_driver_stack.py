"""A job with a second driver: it is started by reconciliation, stays warm, and takes over when the first is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from fresh_job import FreshJob, publish_quickly, wait_for
from healing import one_pass
from streamops.model.owner import Owner
from streamops.model.records import DriverStatus, State
from streamops.recount.recounting import recount_job
from streamops.store import documents, jobs, keys
from streamops.upkeep.reconciler import Reconciler
from support import Operator, mark, pythons, wait_works

pytestmark = [pytest.mark.stack, pytest.mark.full, pytest.mark.long]


def second(job: FreshJob) -> DriverStatus | None:
    launch = job.record().launch
    found = documents.read(job.store, keys.second_driver(job.name, launch), DriverStatus) if launch else None
    return found.value if found else None


def once(operator: Operator) -> list[str]:
    owner = Owner(kind="airflow", dag_id="reconcile", run_id=f"pass-{time.monotonic_ns()}", user="reconcile")
    said: list[str] = []
    one_pass(Reconciler(operator.engine(), owner, said.append))
    return said


def started(said: list[str]) -> bool:
    return any("a second driver" in line for line in said)


def apart(operator: Operator, job: FreshJob) -> bool:
    """Whether the second driver is warm, on another worker than the first; reconciliation sees to it."""
    once(operator)
    found, first = second(job), job.status()
    if found is None or first is None or found.state is not State.STANDBY:
        return False
    master = operator.ports().nodes().master()
    hosts = {master.worker_of(item.driver) for item in (found, first)}
    return None not in hosts and len(hosts) == 2


@pytest.fixture
def job(stack, operator, tmp_path_factory) -> Iterator[FreshJob]:
    """A job whose version ``pair`` has a second driver. A test that fails leaves no drivers: they take others' room."""
    job = FreshJob.publish(stack, tmp_path_factory.mktemp("second"), versions=("v1",))
    text = (job.directory / "v1.yaml").read_text().replace("version: v1", "version: pair")
    # The job that all tests here share takes three of eight cores: of two cores, the second driver would find no room.
    text = text.replace("resources: {cores: 2", "resources: {cores: 1")
    assert "cores: 1" in text
    (job.directory / "pair.yaml").write_text(text + "standby_driver: true\n")
    publish_quickly(job.store, job.directory, "pair", like="v1")
    yield job
    if job.record().desired == "running":
        operator.run("cancel_job", job.name)
    wait_for(lambda: not pythons(job.name), 180, "the end of both drivers")


@pytest.mark.timeout(1800)
def test_the_second_driver_takes_over_when_the_first_is_killed(job, operator):
    with job.trades():
        operator.run("deploy_job", job.name, version="pair")
        job.caught_up(360)
        wait_for(lambda: started(once(operator)), 270, "a second driver started")
        assert not started(once(operator))  # one is enough, be it on the worker of the first, which the next line mends
        wait_for(lambda: apart(operator, job), 1800, "a warm second driver on another worker")
        start, spare, first = mark(job), second(job), job.status()
        assert spare is not None
        assert first is not None
        (victim,) = [item for item in pythons(job.name) if item.pid == first.pid]
        victim.kill()
        wait_works(job, 360, start.epoch)
        now = job.status()
        assert now is not None
        assert now.holder == spare.holder
        assert jobs.lease(job.store, job.name).launch == job.record().launch
        # The master starts the killed one again: it finds the other at work, and is now the second.
        wait_for(lambda: (found := second(job)) and found.holder != spare.holder, 360, "the other way round")
        job.caught_up(360)
        report = recount_job(job.settings, job.store, job.name, since=start.since)
        assert report.clean, report.reason
        operator.run("cancel_job", job.name)
        wait_for(lambda: not pythons(job.name), 180, "the end of both drivers")
    assert second(job) is None
