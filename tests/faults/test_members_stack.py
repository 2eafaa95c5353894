"""Faults 8, 9, 11, 35 and 36: workers, the master, all of them at once, and the runbooks of the cluster meanwhile."""

from __future__ import annotations

import contextlib
import random
import time

import psutil
import pytest

from fresh_job import wait_for
from stack import lifecycle, ready
from streamops import jobs
from streamops.adapters.nodes import SupervisedNodes
from support import first_members, hosting, invariant, mark, on_cluster, works_again

pytestmark = [pytest.mark.stack, pytest.mark.full]
PROGRAMS = {"node-1": "spark-worker-1", "node-2": "spark-worker-2", "node-3": "spark-worker-3"}


@pytest.fixture
def nodes(stack) -> SupervisedNodes:
    return SupervisedNodes(stack)


@pytest.fixture(autouse=True)
def whole(operator, job):
    """The same two members at the beginning and at the end, whatever happened."""
    first_members(operator)
    yield
    first_members(operator)


def at_another_point_of_the_batch(seed: int) -> None:
    """Batches last about a second: each seed's fault meets another part of one."""
    time.sleep(random.Random(seed).random())


def test_a_killed_worker_takes_its_driver_along_and_the_job_goes_on(job, servers, nodes, seed, recovered):
    start = mark(job)
    victim = hosting(job, nodes)
    at_another_point_of_the_batch(seed)
    began = time.monotonic()
    servers.supervisor.signal(PROGRAMS[victim], "KILL")
    wait_for(lambda: works_again(job, start.epoch), 600, "the job at work again")
    recovered(began)
    invariant(job, start)


def test_a_killed_master_leaves_running_jobs_alone_and_a_deploy_works_after_its_return(
    job, other, operator, servers, seed, recovered
):
    start = mark(job)
    before = servers.supervisor.program("spark-master").pid
    at_another_point_of_the_batch(seed)
    began = time.monotonic()
    servers.supervisor.signal("spark-master", "KILL")
    wait_for(lambda: servers.supervisor.program("spark-master").pid not in (0, before), 180, "a new master")
    ready.wait("spark-master", ready.master, servers.layout, 120)
    recovered(began)
    assert jobs.lease(job.store, job.name).epoch == start.epoch  # the same driver all the time
    operator.run("deploy_job", other.name, version="v1")
    operator.run("cancel_job", other.name)
    invariant(job, start)


def test_every_process_of_the_cluster_is_killed_at_once(job, servers, seed, recovered):
    start = mark(job)
    spark = [process for process in lifecycle.processes(servers.layout) if is_spark(process)]
    assert len(spark) >= 5  # master, two workers, a driver, an executor
    random.Random(seed).shuffle(spark)  # whoever dies a moment later may still see the others gone
    at_another_point_of_the_batch(seed)
    began = time.monotonic()
    for process in spark:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_for(lambda: works_again(job, start.epoch), 900, "the job at work again")
    recovered(began)
    invariant(job, start)


def is_spark(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:  # it has ended since it was listed
        return False
    return "org.apache.spark" in line or "bootstrap.py" in line or "pyspark.daemon" in line


def test_a_shutdown_in_the_middle_of_a_batch_loses_nothing(job, operator, nodes, seed, recovered):
    start = mark(job)
    at_another_point_of_the_batch(seed)
    done = on_cluster(operator, "shutdown_cluster")
    assert job.name in done.facts("record_set")["jobs"]
    assert nodes.master().status == "DOWN"
    began = time.monotonic()
    done = on_cluster(operator, "restart_cluster")
    recovered(began)
    assert done.facts("caught_up")["jobs"][job.name]["events"] > 0
    invariant(job, start)


def test_the_worker_that_hosts_the_driver_is_drained_before_it_leaves(job, operator, nodes, seed, recovered):
    start = mark(job)
    leaving = hosting(job, nodes)
    at_another_point_of_the_batch(seed)
    began = time.monotonic()
    on_cluster(operator, "scale_cluster", size=1, nodes=[leaving])
    recovered(began)
    assert not nodes.program(leaving).up
    assert hosting(job, nodes) != leaving
    invariant(job, start)
    on_cluster(operator, "scale_cluster", size=2)
