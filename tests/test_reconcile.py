"""What reconciliation does about a job: one row for each thing that may be found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.nodes import PAGE
from fakes.rig import definition
from streamops.cluster.record import ClusterRecord
from streamops.cluster.supervised_nodes import parse_master
from streamops.model.owner import Owner
from streamops.model.records import DriverStatus, JobRecord, State, now
from streamops.operations import runbooks
from streamops.operations.follow import request as ask
from streamops.operations.operation import Operation, StepRecord
from streamops.operations.runbooks import RUNBOOKS
from streamops.spark.master import DOWN, Master
from streamops.spark.submission import SLOTS_PER_CORE
from streamops.upkeep.reconcile import (
    Look,
    decide,
    programs,
    settle,
    shares_worker,
    side_by_side,
    wants_second,
)

MOMENT = now()
PAIR = definition("v1", ("sums",)).model_copy(update={"standby_driver": True})
RECORD = JobRecord(job="sums", desired="running", version="v1", deployment=1, launch="deploy-1")
STATUS = DriverStatus(
    job="sums", deployment=1, launch="deploy-1", holder="h", state=State.RUNNING, driver="driver-1", started=MOMENT,
    updated=MOMENT,
)  # fmt: skip
WORKER = {
    "id": "w", "host": "h", "port": 1, "webuiaddress": PAGE.format(8091), "state": "ALIVE", "cores": 4 * SLOTS_PER_CORE,
    "coresused": 0, "memory": 4096, "memoryused": 0,
}  # fmt: skip


def master(*drivers: str, status: str = "ALIVE", workers: int = 1):
    active = [{"id": name, "worker": "w", "state": "RUNNING"} for name in drivers]
    return parse_master({"status": status, "workers": [WORKER] * workers, "activedrivers": active})


GONE = Look(record=RECORD, status=STATUS, speaks=False, master=master(), cluster=ClusterRecord())


def operation(runbook: str, done: int, state: str = "running", **asked: object) -> Operation:
    """An operation of which the first steps are done."""
    steps = {step.name: StepRecord(started=MOMENT, finished=MOMENT) for step in runbooks.find(runbook).steps[:done]}
    begun = ask(runbook, **({"job": "sums"} if runbook.endswith("_job") else {}), **asked)
    return Operation(
        id="op", request=begun, owner=Owner(kind="airflow"), created=MOMENT, updated=MOMENT, steps=steps, state=state
    )


@pytest.mark.parametrize(
    ("look", "kind", "why"),
    [
        (GONE, "start", "its driver is gone"),
        (replace(GONE, status=None), "start", "its driver is gone"),
        (replace(GONE, status=STATUS.model_copy(update={"state": State.STOPPED})), "start", "it should run"),
        (replace(GONE, speaks=True), "nothing", "works"),
        (replace(GONE, status=STATUS.model_copy(update={"state": State.FAILED, "reason": "x"})), "nothing", "for good"),
        (replace(GONE, record=RECORD.model_copy(update={"desired": "stopped"})), "nothing", "should not run"),
        (replace(GONE, record=RECORD.model_copy(update={"paused": True})), "nothing", "paused"),
        (replace(GONE, record=None), "nothing", "should not run"),
        (replace(GONE, record=RECORD.model_copy(update={"job": "scratch-sums"})), "nothing", "restore test"),
        (replace(GONE, lock="held"), "nothing", "an operation works on it"),
        (replace(GONE, cluster=ClusterRecord(state="stopped")), "nothing", "the cluster is stopped"),
        (replace(GONE, cluster=ClusterRecord(state="starting")), "nothing", "the cluster is starting"),
        (replace(GONE, master=DOWN), "wait", "the master is DOWN"),
        (replace(GONE, master=master(status="RECOVERING")), "wait", "the master is RECOVERING"),
        (replace(GONE, master=master(workers=0)), "wait", "no member"),
        (replace(GONE, master=master("driver-1")), "wait", "the master holds its driver"),
        (replace(GONE, master=master("driver-7")), "wait", "the master holds its driver"),
    ],
)
def test_what_is_done_about_a_job(look: Look, kind: str, why: str) -> None:
    found = decide(look)
    assert found.kind == kind
    assert why in found.why


def test_another_jobs_driver_is_not_taken_for_this_ones() -> None:
    other = STATUS.model_copy(update={"job": "other", "driver": "driver-7"})
    assert decide(replace(GONE, master=master("driver-7"), others=(other,))).kind == "start"


def test_a_relaunched_driver_under_a_new_id_counts_as_present() -> None:
    other = STATUS.model_copy(update={"job": "other", "driver": "driver-7"})
    assert decide(replace(GONE, master=master("driver-7", "driver-8"), others=(other,))).kind == "wait"


def test_a_driver_that_has_run_for_long_and_never_spoken_is_somebody_elses() -> None:
    """Another team's driver on the cluster must not keep a job from being started again."""
    submitted_ms = 1_700_000_000_000
    active = [{"id": "driver-7", "worker": "w", "state": "RUNNING", "starttime": submitted_ms}]
    found = parse_master({"status": "ALIVE", "workers": [WORKER], "activedrivers": active})
    for at_ms, kind in ((submitted_ms + 60_000, "wait"), (submitted_ms + 400_000, "start"), (0, "wait")):
        assert decide(replace(GONE, master=replace(found, at_ms=at_ms))).kind == kind


def test_a_live_operation_is_never_touched_whatever_is_found() -> None:
    for look in (GONE, replace(GONE, master=DOWN), replace(GONE, status=None)):
        assert decide(replace(look, lock="held", operation=operation("upgrade_job", 3, version="v2"))).kind == "nothing"


@pytest.mark.parametrize(
    ("left", "kind"),
    [
        (operation("deploy_job", 0, version="v1"), "undo"),
        (operation("deploy_job", 2, version="v1"), "finish"),
        (operation("start_job", 3), "finish"),
        (operation("cancel_job", 2), "finish"),
        (operation("upgrade_job", 5, version="v2"), "undo"),
        (operation("upgrade_job", len(RUNBOOKS["upgrade_job"].steps) - 1, version="v2"), "finish"),
        (operation("upgrade_job", 5, "failed", version="v2"), "undo"),
        (operation("rehearse_job", 7, version="v2"), "undo"),
        (operation("rehearse_job", 8, version="v2"), "finish"),
        (operation("rollback_job", 3), "undo"),
        (operation("rollback_job", len(RUNBOOKS["rollback_job"].steps) - 1), "finish"),
        (operation("snapshot_job", 1), "undo"),
        (operation("snapshot_job", 2), "finish"),
        (operation("shutdown_cluster", 4), "undo"),
        (operation("shutdown_cluster", 7), "finish"),
        (operation("restart_cluster", 3), "finish"),
        (operation("scale_cluster", 3, size=3), "undo"),
        (operation("scale_cluster", 12, size=1), "finish"),
        (operation("cancel_job", 4, "succeeded"), "undo"),
    ],
)
def test_an_abandoned_operation_is_finished_or_taken_back(left: Operation, kind: str) -> None:
    assert settle(left).kind == kind
    assert decide(replace(GONE, lock="abandoned", operation=left)).kind == kind


def test_programs_are_started_only_while_the_cluster_should_run_and_nobody_works_on_it() -> None:
    wanted = ("master", "node-1", "node-2")
    assert programs(ClusterRecord(), "free", wanted, ["master", "node-2"]) == ("node-1",)
    assert programs(ClusterRecord(), "held", wanted, []) == ()
    assert programs(ClusterRecord(), "abandoned", wanted, []) == ()
    assert programs(ClusterRecord(state="stopped"), "free", wanted, []) == ()


WORKS = replace(GONE, speaks=True, master=master("driver-1"))


@pytest.mark.parametrize(
    ("look", "second", "wanted"),
    [
        (WORKS, None, True),
        (replace(WORKS, master=master("driver-1", "driver-2")), "driver-2", False),  # it is there
        (replace(WORKS, master=master("driver-1", "driver-3")), "driver-2", False),  # one that starts may be it
        (WORKS, "driver-2", True),  # the master does not hold it any more
        (replace(WORKS, speaks=False), None, False),
        (replace(WORKS, lock="held"), None, False),
        (replace(WORKS, record=RECORD.model_copy(update={"paused": True})), None, False),
        (replace(WORKS, status=STATUS.model_copy(update={"state": State.RECOVERING})), None, False),
        (replace(WORKS, master=master("driver-1", status="RECOVERING")), None, False),
        (replace(WORKS, cluster=ClusterRecord(state="stopping")), None, False),
    ],
)
def test_when_a_job_gets_a_second_driver(look: Look, second: str | None, wanted: bool) -> None:
    said = STATUS.model_copy(update={"driver": second, "state": State.STANDBY}) if second else None
    assert wants_second(look, said) is wanted


def two_workers(first: str, second: str, free: int = 2048, state: str = "ALIVE", executors: str = "") -> Master:
    """Both drivers, each on a worker; ``b`` has this much memory free, and executors of these applications."""
    taken = [("app-" + name, "0") for name in executors.split()]
    other = WORKER | {
        "id": "b", "memoryused": WORKER["memory"] - free, "coresused": 2 * SLOTS_PER_CORE * len(taken), "state": state
    }  # fmt: skip
    active = [
        {"id": name, "worker": worker, "state": "RUNNING"}
        for name, worker in (("driver-1", first), ("driver-2", second))
    ]
    here = WORKER | {"coresused": 2 * SLOTS_PER_CORE, "memoryused": 2048}
    answer = {"status": "ALIVE", "workers": [here, other], "activedrivers": active}
    return parse_master(answer, {"b": tuple(taken)})


@pytest.mark.parametrize(
    ("look", "state", "expected"),
    [
        (replace(WORKS, master=two_workers("w", "w")), State.STANDBY, True),
        (replace(WORKS, master=two_workers("w", "b")), State.STANDBY, False),
        (replace(WORKS, master=two_workers("w", "w")), State.STARTING, True),  # before it takes the time to warm up
        (replace(WORKS, master=two_workers("w", "w")), State.FAILED, False),
        (replace(WORKS, master=two_workers("w", "w", free=500)), State.STANDBY, False),  # nowhere else to go
        (replace(WORKS, master=two_workers("w", "w", executors="1 2")), State.STANDBY, True),  # its own would leave
        (replace(WORKS, master=two_workers("w", "w", executors="1 other")), State.STANDBY, False),
        (replace(WORKS, master=two_workers("w", "w", state="DEAD")), State.STANDBY, False),
        (replace(WORKS, master=two_workers("", "")), State.STANDBY, False),  # both wait for a worker
        (replace(WORKS, master=two_workers("w", "w"), speaks=False), State.STANDBY, False),  # it is needed now
        (replace(WORKS, master=two_workers("w", "w"), lock="held"), State.STANDBY, False),
    ],
)
def test_when_a_second_driver_stands_where_it_is_of_little_use(look: Look, state: State, expected: bool) -> None:
    said = STATUS.model_copy(update={"driver": "driver-2", "state": state, "app_id": "app-2"})
    assert shares_worker(look, said, PAIR) is expected
    assert not shares_worker(look, None, PAIR)


def test_only_jobs_with_room_beside_each_other_start_at_once():
    """A driver takes a core, and its executors two: one worker of four cores has room for one job, two for two."""
    wanted = {name: definition("v1", ("sums",)) for name in ("a", "b", "c")} | {"not published": None}
    assert side_by_side(master(), wanted) == ("a",)
    two = replace(master(), workers=(master().workers[0], replace(master().workers[0], id="w2")))
    assert side_by_side(two, wanted) == ("a", "b")
    assert side_by_side(DOWN, wanted) == ()
