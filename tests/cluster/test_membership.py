"""Who leaves first, what is refused, and whether the jobs still fit: without any server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fakes.nodes import PAGE, inventory
from streamops.cluster import nodes
from streamops.cluster.capacity import Need, require_capacity
from streamops.cluster.membership import Target, change, missing, present
from streamops.cluster.record import ClusterRecord
from streamops.cluster.supervised_nodes import SupervisedNodes
from streamops.cluster.view import Share, shares, view
from streamops.model.definitions import Resources, parse
from streamops.model.errors import NotFoundError, RefusedError
from streamops.model.records import DriverStatus, State, now
from streamops.settings import Settings
from streamops.spark.master import DOWN, parse_master
from streamops.spark.submission import SLOTS_PER_CORE

THREE = inventory(3, 1)
TWO = ("node-1", "node-2")
DEFINITION = parse("""
job: j
version: v1
code: j.py
guarantee: at-least-once
sources: {s: {kafka: {topic: t}, schema: "n bigint"}}
stages: {a: {sinks: [{log: {format: "{n}"}}]}}
resources: {cores: 8}
""")


def worker(at: int, state: str = "ALIVE", id_: str = "") -> dict[str, object]:
    return {
        "id": id_ or f"worker-{at}", "host": "127.0.0.1", "port": 4000 + at, "webuiaddress": PAGE.format(8090 + at),
        "state": state, "cores": 4 * SLOTS_PER_CORE, "coresused": SLOTS_PER_CORE, "memory": 4096, "memoryused": 800,
    }  # fmt: skip


def test_a_restarted_worker_is_one_member_and_its_dead_predecessor_none() -> None:
    master = parse_master({"status": "ALIVE", "workers": [worker(1, "DEAD", "old"), worker(1), worker(2, "DEAD")]})
    assert present(THREE, master) == ("node-1",)
    assert missing(THREE, master, TWO) == ("node-2",)
    assert master.worker(THREE.node("node-1").page).id == "worker-1"
    assert master.worker(THREE.node("node-2").page) is None
    assert present(THREE, DOWN) == ()


def test_a_decommissioned_worker_is_no_member() -> None:
    master = parse_master({"status": "ALIVE", "workers": [worker(1), worker(2, "DECOMMISSIONED")]})
    assert present(THREE, master) == ("node-1",)
    assert master.worker(THREE.node("node-2").page).state == "DECOMMISSIONED"


def test_drivers_belong_to_the_worker_that_hosts_them() -> None:
    data = {"status": "ALIVE", "workers": [worker(1), worker(2)], "activedrivers": [
        {"id": "driver-1", "worker": "worker-2", "state": "RUNNING", "starttime": "17"},
        {"id": "driver-2", "worker": "None", "state": "SUBMITTED"},
    ]}  # fmt: skip
    master = parse_master(data)
    assert [driver.id for driver in master.drivers_on(master.worker(THREE.node("node-2").page))] == ["driver-1"]
    assert (master.drivers[0].since_ms, master.drivers[1].worker) == (17, "")


def test_a_job_runs_on_the_members_that_have_its_driver_or_its_executors() -> None:
    data = {"status": "ALIVE", "workers": [worker(1), worker(2), worker(3)], "activedrivers": [
        {"id": "driver-1", "worker": "worker-2", "state": "RUNNING"},
    ]}  # fmt: skip
    master = parse_master(data)
    here, there, other = master.workers
    here = replace(here, executors=(("app-1", "0"), ("app-1", "1"), ("app-2", "0")))
    master = replace(master, workers=(here, there, replace(other, executors=(("app-2", "1"),))))
    status = DriverStatus(
        job="j", deployment=1, launch="l", holder="h", state=State.RUNNING, started=now(), updated=now(),
        driver="driver-1", app_id="app-1",
    )  # fmt: skip
    found = shares(THREE, master, status, DEFINITION)
    assert found == {"node-1": Share(False, 2, 4), "node-2": Share(True, 0, 0)}
    assert [str(share) for share in found.values()] == ["2 executors with 4 cores", "driver"]
    assert str(Share(True, 1, 2)) == "driver, 1 executor with 2 cores"
    shown = view(THREE, ClusterRecord(), master, {"j": (status, DEFINITION)})
    assert shown.jobs == {"j": found}
    assert [member.drivers for member in shown.members] == [(), ("j",), ()]
    unread = view(THREE, ClusterRecord(), master, {"j": (status, None)})  # its version's manifest is damaged
    assert (unread.jobs, unread.members) == ({}, shown.members)


def test_scaling_out_takes_spare_nodes_in_the_order_of_the_inventory() -> None:
    assert change(THREE, TWO, {}, Target(size=3)).start == ("node-3",)
    assert change(inventory(5, 3), TWO, {}, Target(by=2)).start == ("node-3", "node-4")
    assert change(inventory(5, 3), TWO, {}, Target(named=("node-5",))).start == ("node-5",)


def test_scaling_in_takes_those_with_the_fewest_drivers_first_and_the_last_among_equals() -> None:
    four = inventory(4, 0)
    everyone = four.names()
    hosted = {"node-1": 1, "node-2": 0, "node-3": 2, "node-4": 1}
    assert change(four, everyone, hosted, Target(by=-1)).stop == ("node-2",)
    assert change(four, everyone, hosted, Target(size=2)).stop == ("node-2", "node-4")
    assert change(four, everyone, {}, Target(size=3)).stop == ("node-4",)
    assert change(four, everyone, hosted, Target(by=-1, named=("node-3",))).stop == ("node-3",)


def test_the_present_size_changes_nothing() -> None:
    same = change(THREE, TWO, {}, Target(size=2))
    assert (same.start, same.stop) == ((), ())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"size": 0}, "shutdown_cluster"),
        ({"by": -2}, "shutdown_cluster"),
        ({"size": 4}, "4 members are asked for, but the inventory has 3 nodes"),
        ({"by": 5}, "the inventory has 3"),
        ({"size": 3, "named": ("node-9",)}, "no node 'node-9'; the inventory has node-1, node-2, node-3"),
        ({"size": 3, "named": ("node-1",)}, "are members"),
        ({"size": 1, "named": ("node-3",)}, "are spare"),
        ({"size": 3, "named": ("node-3", "node-3")}, "twice"),
        ({"by": 1, "named": ("node-3", "node-1")}, "scale in two operations"),
        ({"size": 2, "named": ("node-3",)}, "1 nodes are named, but 0"),
        ({}, "Say what to scale to"),
    ],
)
def test_a_wrong_size_or_name_is_refused_with_what_there_is(asked: dict[str, object], says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        change(THREE, TWO, {}, Target(**asked))


def test_jobs_that_would_not_fit_are_refused_with_the_numbers() -> None:
    one = [THREE.node("node-1")]
    small = Need("small", Resources(cores=2))
    require_capacity(one, [small])
    with pytest.raises(RefusedError) as refused:
        require_capacity(one, [small, Need("big", Resources(cores=4))])
    told = str(refused.value)
    assert "1 nodes (node-1) have 4 cores and 4,096 MiB" in told
    assert "need at least 6 cores and 3,200 MiB" in told
    assert "no place is left for big" in told


def test_a_job_that_may_take_many_cores_can_do_with_one_executor() -> None:
    require_capacity([THREE.node("node-1")], [Need("wide", Resources(cores=64))])


def test_capacity_counts_memory_and_whole_executors_not_only_sums() -> None:
    two = [THREE.node("node-1"), THREE.node("node-2")]
    with pytest.raises(RefusedError, match="no place is left for wide"):
        require_capacity(two, [Need("wide", Resources(cores=2, executor_memory="5g"))])
    # 8 cores in sum, but three executors of two cores and three drivers leave no two free cores on one node.
    jobs = [Need(name, Resources(cores=2)) for name in ("a", "b")]
    require_capacity(two, jobs)
    with pytest.raises(RefusedError, match="need at least 9 cores"):
        require_capacity(two, [*jobs, Need("c", Resources(cores=2))])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes: [", "not YAML"),
        ("nodes: []", "master"),
        ("[]", "is wrong"),
        ("x" * (nodes.MAX_INVENTORY_BYTES + 1), "larger than"),
    ],
)
def test_a_wrong_inventory_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(RefusedError, match=says):
        nodes.parse(text)


def test_two_nodes_with_one_name_are_refused() -> None:
    text = "master: {supervisor: 'http://h:1', program: m}\nnodes:\n" + "".join(
        f"  - {{name: a, supervisor: 'http://h:1', program: w, page: 'http://h:{at}', cores: 1, memory: 1g}}\n"
        for at in (2, 3)
    )
    with pytest.raises(RefusedError, match="name a stands there twice"):
        nodes.parse(text)


def test_passwords_come_from_a_private_file_only(tmp_path: Path) -> None:
    file = tmp_path / "nodes.private"
    with pytest.raises(NotFoundError):
        nodes.passwords(file)
    file.write_text("# private\nuser=streamops\npassword=a=b\npassword.node-3=other\n")
    file.chmod(0o644)
    with pytest.raises(RefusedError, match="chmod 600"):
        nodes.passwords(file)
    file.chmod(0o600)
    assert nodes.passwords(file) == {"user": "streamops", "password": "a=b", "password.node-3": "other"}


def test_stateful_tasks_are_counted_by_executor() -> None:
    """As Spark 4.2 answers: a stage's tasks by executor come with its details only."""
    stages = [{"stageId": at, "attemptId": 0, "numTasks": 4 if at % 2 else 1} for at in range(1, 6)]
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path.endswith("/stages"):
            return httpx.Response(200, json=stages)
        stage: dict[str, object] = {"stageId": 1}
        if request.url.params.get("details", "true") == "true":
            stage["executorSummary"] = {"0": {"succeededTasks": 3}, "1": {"succeededTasks": 1}}
        return httpx.Response(200, json=stage)

    port = SupervisedNodes(Settings.model_construct())
    port._http = httpx.Client(transport=httpx.MockTransport(answer))
    assert port.stateful_tasks("http://127.0.0.1:4040/", "app-1") == {"0": 9, "1": 3}
    assert asked[0] == "/api/v1/applications/app-1/stages"
    assert sorted(asked[1:]) == [f"{asked[0]}/{at}/0" for at in (1, 3, 5)]
