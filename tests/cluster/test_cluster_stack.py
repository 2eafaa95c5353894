"""The cluster's whole story on the real servers, through Airflow: shut down, start again, grow, lose a node, shrink.

Faults 8, 35 and 36: a killed worker, one that is drained, and a shutdown in the middle of a batch.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fresh_job import FreshJob, wait_for
from streamops.cli.cluster import look
from streamops.clients.airflow import Airflow
from streamops.clients.supervisor import Supervisor
from streamops.cluster import record as cluster_record
from streamops.cluster.nodes import passwords
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.model.errors import RefusedError, StreamOpsError
from streamops.model.names import CLUSTER
from streamops.operations.follow import Runbooks
from streamops.operations.follow import request as ask
from streamops.operations.operation import Operation
from streamops.settings import Settings
from streamops.store import locks
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts
from support import Operator, first_members, hosting, invariant, mark, wait_works

pytestmark = [pytest.mark.stack, pytest.mark.long]
RUNBOOKS = ("deploy_job", "cancel_job", "shutdown_cluster", "restart_cluster", "scale_cluster")
PATIENT = {"healthy_timeout_s": 600}  # the machine may be busy with other tests


@pytest.fixture(scope="module")
def runbooks(stack: Settings) -> Iterator[Runbooks]:
    with Airflow(stack) as airflow:
        found = Runbooks(airflow, ObjectStore(stack))
        found.wait_ready(RUNBOOKS)
        yield found


@pytest.fixture(scope="module")
def nodes(stack: Settings) -> SupervisedNodes:
    return SupervisedNodes(stack)


def run(runbooks: Runbooks, runbook: str, **asked: Any) -> Operation:
    return runbooks.run(ask(runbook, **asked), lambda steps: None)


@pytest.fixture(scope="module")
def job(stack: Settings, runbooks: Runbooks, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FreshJob]:
    """A job that may take more cores than two nodes have, and whose state lies in as many partitions."""
    first_members(Operator(stack))
    fresh = FreshJob.publish(stack, tmp_path_factory.mktemp("cluster"), versions=("v1",))
    text = (fresh.directory / "v1.yaml").read_text().replace("version: v1", "version: wide")
    wide = re.sub(r"(?m)^resources: .*$", "resources: {cores: 8, executor_memory: 800m, state_partitions: 8}", text)
    wide += "spark: {spark.executor.cores: 4}\n"  # a whole node, so that beside the driver there is room for one only
    (fresh.directory / "wide.yaml").write_text(wide)
    artifacts.publish(fresh.store, fresh.directory, "wide", check=False)
    with fresh.trades():
        run(runbooks, "deploy_job", job=fresh.name, version="wide", **PATIENT)
        yield fresh
        if cluster_record.read(fresh.store).state != "running":
            run(runbooks, "restart_cluster", **PATIENT)
        run(runbooks, "cancel_job", job=fresh.name)
    first_members(Operator(stack))


def working(job: FreshJob, seconds: float = 600) -> None:
    wait_for(lambda: job.runs("wide"), seconds, f"{job.name} running")
    job.caught_up(seconds)


def at_another_point_of_the_batch(seed: int) -> None:
    """Batches last about a second: each seed's fault meets another part of one."""
    time.sleep(random.Random(seed).random())


def test_a_shutdown_saves_every_job_and_a_restart_brings_back_exactly_those(stack, job, runbooks, nodes, seed):
    working(job)
    start = mark(job)
    shown = look(stack, job.store)
    assert (shown.state, shown.ready, shown.desired) == ("running", 2, 2)
    assert any(job.name in member.drivers for member in shown.members)
    assert any(job.name in member.executors for member in shown.members)
    assert shown.version.startswith("Spark 4.")

    at_another_point_of_the_batch(seed)
    done = run(runbooks, "shutdown_cluster", stop_timeout_s=120)
    assert done.facts("record_set")["jobs"] == [job.name]
    assert set(done.facts("stop_workers")["exit"]) == {"node-1", "node-2"}
    assert set(done.facts("stop_master")["exit"]) == {"master"}
    assert not any(nodes.program(name).up for name in ("master", "node-1", "node-2", "node-3"))
    assert (job.record().desired, job.status().state) == ("stopped", "stopped")
    assert look(stack, job.store).state == "stopped"
    with pytest.raises(StreamOpsError, match="stopped already"):
        run(runbooks, "shutdown_cluster")
    with pytest.raises(StreamOpsError, match="start it with restart_cluster"):
        run(runbooks, "scale_cluster", size=3)

    read, end = job.read(), job.end()
    wait_for(lambda: job.end() > end + 2000, 180, "trades that no one reads")
    assert job.read() == read  # no new results while the cluster is down
    done = run(runbooks, "restart_cluster", **PATIENT)
    told = done.facts("caught_up")["jobs"][job.name]
    assert told["events"] >= 2000
    assert job.record().deployment == 1
    working(job)
    with pytest.raises(StreamOpsError, match=r"runs already \(2/2 members\)"):
        run(runbooks, "restart_cluster")
    invariant(job, start)
    report = job.recount()
    assert report.clean, report.reason


def test_growing_losing_a_node_and_shrinking_while_the_job_runs(stack, job, runbooks, nodes, seed):
    working(job)
    launch = job.record().launch
    done = run(runbooks, "scale_cluster", change=1, **PATIENT)
    assert done.facts("members")["missing"] == []
    assert f"{job.name}: stateful tasks run on node-3" in done.facts("in_use")["why"]
    assert job.record().launch == launch  # it was not deployed or started again
    assert (look(stack, job.store).ready, look(stack, job.store).desired) == (3, 3)

    # Kill the node that runs the driver.
    start, victim = mark(job), hosting(job, nodes)
    at_another_point_of_the_batch(seed)
    private = passwords(stack.nodes_private_file)
    node = nodes.inventory.node(victim)
    Supervisor(node.supervisor, private["user"], private["password"]).signal(node.program, "KILL")
    wait_works(job, 600, start.epoch)
    invariant(job, start)
    wait_for(lambda: look(stack, job.store).ready == 3, 300, "all members")

    # Remove the node that runs it now, gracefully.
    start, leaving, launch = mark(job), hosting(job, nodes), job.record().launch
    at_another_point_of_the_batch(seed)
    done = run(runbooks, "scale_cluster", size=2, nodes=[leaving], stop_timeout_s=120, **PATIENT)
    assert done.facts("decommission")["nodes"] == [leaving]
    assert not nodes.program(leaving).up
    assert job.record().launch == done.id != launch
    assert job.record().deployment == 1
    working(job)
    assert hosting(job, nodes) != leaving
    invariant(job, start)
    report = job.recount()
    assert report.clean, report.reason
    for scope in (job.name, CLUSTER):
        lock = locks.read(job.store, scope)
        assert lock is not None
        assert lock.value.operation is None


def test_bad_requests_end_with_a_clear_message_and_nothing_half_done(job, runbooks, nodes, stack):
    before = cluster_record.read(job.store)
    for asked in ({"size": 0}, {"size": "three"}):
        with pytest.raises(RefusedError, match="refused the request"):
            runbooks.airflow.trigger("scale_cluster", asked)
    with pytest.raises(StreamOpsError, match="the inventory has 3 nodes"):
        run(runbooks, "scale_cluster", size=9)
    with pytest.raises(StreamOpsError, match="no node 'node-9'; the inventory has node-1, node-2, node-3"):
        run(runbooks, "scale_cluster", change=1, nodes=["node-9"])
    assert cluster_record.read(job.store) == before


def test_a_wrong_password_is_refused_with_the_supervisors_address(stack: Settings, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("user=streamops\npassword=not-the-password\n")
    private.chmod(0o600)
    wrong = SupervisedNodes(stack.model_copy(update={"nodes_private_file": str(private)}))
    with pytest.raises(StreamOpsError, match="Unauthorized") as refused:
        wrong.program("node-1")
    assert wrong.inventory.node("node-1").supervisor in str(refused.value)
    assert "not-the-password" not in str(refused.value)
