"""Faults 9, 11 and 19: the master, every process of the cluster at once, and operations that meet on one job.

Workers that are killed or leave, and shutdowns, are the story of tests/cluster/test_cluster_stack.py.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from fresh_job import FreshJob, wait_for
from stack import lifecycle, ready
from streamops import snapshots
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.errors import LockedError
from streamops.operations.follow import request
from streamops.operations.operation import Operation
from streamops.store import jobs
from support import drivers, executors, first_members, hosting, invariant, mark, wait_works

pytestmark = [pytest.mark.stack, pytest.mark.full]


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


@pytest.mark.long
def test_an_executor_that_cannot_end_is_gone_when_its_worker_is_back(job, servers):
    """As one whose JVM waits for itself at its end: it has lost its worker, and nobody else looks after it."""
    start, stuck = mark(job), executors(job)[0]
    number = re.search(r"work-(\d)", stuck.cwd())[1]
    name = f"spark-worker-{number}"
    before = servers.supervisor.program(name).pid
    stuck.suspend()
    try:
        servers.supervisor.signal(name, "KILL")
        wait_for(lambda: servers.supervisor.program(name).pid not in (0, before), 180, "a new worker")
        wait_for(lambda: not stuck.is_running() or stuck.status() == psutil.STATUS_ZOMBIE, 180, "its end")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            stuck.resume()
    invariant(job, start)


def test_a_job_that_a_new_master_has_forgotten_is_started_again(job, servers, recovered):
    """It did not answer in time, so its executors were ended without a word to its driver."""
    start = mark(job)
    before, paused = servers.supervisor.program("spark-master").pid, drivers(job.name)
    for process in paused:
        process.suspend()
    try:
        servers.supervisor.signal("spark-master", "KILL")
        wait_for(lambda: servers.supervisor.program("spark-master").pid not in (0, before), 180, "a new master")
        ready.wait("spark-master", ready.master, servers.layout, 120)
        wait_for(lambda: forgotten(job), 120, "a master that has forgotten the job")
    finally:
        for process in paused:
            process.resume()
    began = time.monotonic()
    wait_works(job, 360, start.epoch)
    recovered(began)
    invariant(job, start)


def forgotten(job: FreshJob) -> bool:
    """Whether the master has done with what it knew before it was killed, and the job is not of it."""
    page = httpx.get(f"{job.settings.spark_ui.rstrip('/')}/json/", timeout=10, trust_env=False).json()
    return page["status"] == "ALIVE" and job.name not in {item["name"] for item in page["activeapps"]}


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
    wait_works(job, 900, start.epoch)
    recovered(began)
    invariant(job, start)


def is_spark(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:  # it has ended since it was listed
        return False
    return "org.apache.spark" in line or "bootstrap.py" in line or "pyspark.daemon" in line


@pytest.mark.long
def test_an_upgrade_a_snapshot_and_a_scaling_of_one_job_at_the_same_time(job, operator, nodes, seed, recovered):
    """One holds the lock; whoever comes meanwhile is refused with the holder's name, and has done nothing."""
    start, old, leaving = mark(job), job.record(), hosting(job, nodes)
    version, snapshot = "v2" if old.version == "v1" else "v1", f"meets-{uuid.uuid4().hex[:4]}"
    upgrade = operator.request("upgrade_job", job.name, version=version)
    copy = operator.request("snapshot_job", job.name, snapshot=snapshot)
    _, owner, name = operator.request("cancel_job", job.name)
    patient = {"healthy_timeout_s": 400, "stop_timeout_s": 150, "members_timeout_s": 200}
    drain = (
        request("scale_cluster", size=1, nodes=[leaving], **patient),
        owner.model_copy(update={"dag_id": "scale_cluster"}),
        name,
    )
    asked = [upgrade, copy, drain]
    random.Random(seed).shuffle(asked)
    together = threading.Barrier(len(asked))

    def run(one) -> Operation | LockedError:
        engine = operator.engine()
        together.wait(60)
        try:
            return engine.run(*one)
        except LockedError as error:
            operator.owners.dead.add(one[1].run_id)  # a DAG run that was refused is over
            return error

    began = time.monotonic()
    with ThreadPoolExecutor(len(asked)) as pool:
        ended = dict(zip((one[2] for one in asked), pool.map(run, asked), strict=True))
    recovered(began)
    won = {name for name, outcome in ended.items() if not isinstance(outcome, LockedError)}
    assert won
    assert all(ended[name].state == "succeeded" for name in won)
    holders = [one[1].run_id for one in asked if one[2] in won]
    refused = [str(outcome) for name, outcome in ended.items() if name not in won]
    assert all(any(holder in text for holder in holders) for text in refused), refused
    assert (upgrade[2] in won) == (job.record().version == version)
    assert (copy[2] in won) == (snapshots.find(job.store, job.name, snapshot) is not None)
    assert (drain[2] in won) == (not nodes.program(leaving).up)
    print("won:", won, "refused:", refused, flush=True)
    invariant(job, start)
