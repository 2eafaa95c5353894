"""Runbooks of the cluster with drivers as processes and nodes as words, from begin to end and killed at every point."""

from __future__ import annotations

import pytest

from fakes import checks
from fakes.rig import JOB, LOOK_S, Killed, Rig, patient
from fakes.walk import Walk, killer, points_of
from healing import one_pass
from streamops import snapshots
from streamops.cluster import record as cluster_record
from streamops.model.errors import LockedError, RefusedError, SnapshotExistsError, StreamOpsError, UnreachableError
from streamops.model.names import CLUSTER
from streamops.model.records import State
from streamops.operations import receipts
from streamops.operations.follow import request as ask
from streamops.operations.operation import Operation, Request
from streamops.operations.runbooks import RUNBOOKS
from streamops.store import jobs, keys, locks
from streamops.upkeep.reconciler import Reconciler

ASKED: dict[str, dict[str, object]] = {
    "shutdown_cluster": {"snapshot": "evening"},
    "restart_cluster": {},
    "scale_cluster": {"size": 1},
}


def run(rig: Rig, runbook: str, **asked: object) -> Operation:
    owner = rig.owner()
    return rig.engine().run(patient(runbook, **asked), owner, f"{runbook}-{rig.count}")


def deployed(rig: Rig) -> Rig:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=1)
    return rig


def works_with(rig: Rig, other: str) -> None:
    """The cluster is up, both jobs are to run, nobody holds them, and the first one commits."""
    assert rig.nodes.up == {"master", "node-1", "node-2"}
    assert cluster_record.read(rig.store).state == "running"
    for job in (JOB, other):
        assert jobs.record(rig.store, job).desired == "running"
        assert locks.read(rig.store, job).value.operation is None
    rig.commits_more()


def hosted_on(rig: Rig) -> str:
    """The node that hosts the one driver."""
    status = jobs.status(rig.store, JOB, rig.record().launch)
    rig.nodes.master()
    return rig.nodes.hosts[status.driver]


def test_a_shutdown_saves_every_job_and_a_restart_brings_back_exactly_those(rig: Rig) -> None:
    deployed(rig)
    rig.publish("v1", ("a",), job="other")
    other = ask("deploy_job", job="other", version="v1")
    rig.engine().run(other, rig.owner(), "deploy-other")
    rig.engine().run(ask("cancel_job", job="other"), rig.owner(), "cancel-other")
    done = run(rig, "shutdown_cluster", snapshot="evening")
    assert rig.nodes.up == set()
    assert rig.nodes.did == ["stop node-1", "stop node-2", "stop master"]
    assert done.facts("stop_workers")["exit"] == {"node-1": 143, "node-2": 143}
    assert rig.record().desired == "stopped-with-snapshot"
    assert cluster_record.read(rig.store).jobs == (JOB,)
    assert any(f"{JOB}: its state is saved (a at batch" in line for line in rig.said)
    snapshots.verify(rig.store, snapshots.load(rig.store, JOB, "evening"))
    assert receipts.read(rig.store, CLUSTER, done.id).state == "succeeded"
    with pytest.raises(RefusedError, match="stopped already"):
        run(rig, "shutdown_cluster")
    rig.publish("v1", ("a",), job="late")
    for runbook, asked in (("start_job", {"job": "other"}), ("deploy_job", {"job": "late", "version": "v1"})):
        with pytest.raises(RefusedError, match=r"The cluster is stopped .*restart_cluster"):
            rig.engine().run(ask(runbook, **asked), rig.owner(), f"{runbook}-refused")
    assert jobs.record(rig.store, "other").desired == "stopped"

    done = run(rig, "restart_cluster")
    assert rig.nodes.up == {"master", "node-1", "node-2"}
    assert rig.record().desired == "running"
    assert jobs.record(rig.store, "other").desired == "stopped"
    assert rig.record().deployment == 1
    told = done.facts("caught_up")["jobs"][JOB]
    assert told["events"] > 0
    assert told["seconds"] >= 0
    rig.commits_more()
    assert rig.recount("a") > 2
    assert cluster_record.read(rig.store).jobs == ()
    with pytest.raises(RefusedError, match=r"runs already \(2/2 members\)"):
        run(rig, "restart_cluster")


@pytest.mark.full
def test_a_job_that_is_deployed_while_a_shutdown_begins_is_not_killed_with_the_cluster(rig: Rig) -> None:
    deployed(rig)
    rig.publish("v1", ("a",), job="late")

    def meanwhile(step: str, when: str) -> None:
        if (step, when) == ("record_set", "before"):  # the locks of all jobs that are known have been taken
            rig.engine().run(ask("deploy_job", job="late", version="v1"), rig.owner(), "deploy-late")

    with pytest.raises(RefusedError, match="late was deployed while the cluster began to shut down"):
        rig.engine(at_point=meanwhile).run(patient("shutdown_cluster"), rig.owner(), "shutdown")
    works_with(rig, "late")
    assert rig.recount("a") > 2


@pytest.mark.full
def test_a_restart_without_a_node_says_which_is_missing_when_told_to_go_on(rig: Rig) -> None:
    deployed(rig)
    run(rig, "shutdown_cluster")
    rig.nodes.lost = {"node-2"}
    with pytest.raises(StreamOpsError, match="waiting for node-2"):
        run(rig, "restart_cluster", members_timeout_s=10)
    assert cluster_record.read(rig.store).jobs == (JOB,)
    done = run(rig, "restart_cluster", without_missing=True, members_timeout_s=10)
    assert done.facts("members")["missing"] == ["node-2"]
    rig.commits_more()
    assert rig.recount("a")


@pytest.mark.full
def test_a_supervisor_that_does_not_answer_is_refused_before_anything_is_touched(rig: Rig) -> None:
    deployed(rig)
    before, record = rig.nodes.up.copy(), rig.record()
    rig.nodes.silent = {"node-2"}
    for runbook, asked in (("shutdown_cluster", {}), ("scale_cluster", {"size": 1})):
        with pytest.raises(UnreachableError, match="node-2"):
            run(rig, runbook, **asked)
    assert (rig.nodes.up, rig.record(), rig.nodes.did) == (before, record, [])
    assert rig.recount("a")


@pytest.mark.full
def test_a_job_that_cannot_save_its_state_keeps_the_cluster_up_and_the_others_running(rig: Rig) -> None:
    deployed(rig)
    rig.publish("v1", ("a",), job="other")
    rig.engine().run(ask("deploy_job", job="other", version="v1"), rig.owner(), "deploy-other")
    rig.cluster.processes[1][1].kill()  # it will never say that it stopped
    with pytest.raises(StreamOpsError, match="Stop of other took longer"):
        run(rig, "shutdown_cluster", stop_timeout_s=5)
    works_with(rig, "other")
    assert rig.recount("a")


@pytest.mark.full
def test_a_job_without_a_driver_has_nothing_to_save_and_comes_back_with_the_others(rig: Rig) -> None:
    deployed(rig)
    rig.cluster.end()
    done = run(rig, "shutdown_cluster")
    assert done.facts("await_jobs")["stopped"][JOB]["stopped"] is False
    assert any("what it committed last counts" in line for line in rig.said)
    run(rig, "restart_cluster")
    rig.commits_more()
    assert rig.recount("a")


@pytest.mark.full
def test_while_an_operation_works_on_a_job_the_cluster_is_left_alone_and_the_other_way_round(rig: Rig) -> None:
    deployed(rig)
    engine, owner = rig.engine(), rig.owner()
    engine.begin(ask("cancel_job", job=JOB), owner, "busy")
    with pytest.raises(LockedError, match=f"holds job {JOB}"):
        run(rig, "shutdown_cluster")
    assert rig.nodes.did == []
    engine.release(JOB, "busy")
    first = ask("scale_cluster", size=3)
    engine.begin(first, rig.owner(), "first")
    with pytest.raises(LockedError, match="holds the cluster"):
        run(rig, "scale_cluster", size=3)


def test_scaling_out_starts_a_spare_node_and_scaling_in_hands_its_drivers_over(rig: Rig) -> None:
    deployed(rig)
    assert run(rig, "scale_cluster", size=2).facts("check")["unchanged"]
    run(rig, "scale_cluster", change=1)
    assert rig.nodes.up == {"master", "node-1", "node-2", "node-3"}
    assert cluster_record.read(rig.store).nodes == ("node-1", "node-2", "node-3")
    leaving, launch = hosted_on(rig), rig.record().launch
    done = run(rig, "scale_cluster", change=-1, nodes=(leaving,))
    assert rig.nodes.did[-2:] == [f"decommission {leaving}", f"stop {leaving}"]
    assert leaving not in rig.nodes.up
    assert rig.record().launch == done.id != launch
    assert hosted_on(rig) != leaving
    assert rig.record().deployment == 1
    rig.commits_more()
    assert rig.recount("a") > 2
    assert rig.drivers_that_write() == [done.id]


@pytest.mark.full
def test_scaling_in_leaves_drivers_alone_that_are_elsewhere(rig: Rig) -> None:
    deployed(rig)
    launch, here = rig.record().launch, hosted_on(rig)
    run(rig, "scale_cluster", change=-1)
    assert rig.record().launch == launch
    assert rig.nodes.up == {"master", here}


@pytest.mark.full
def test_what_would_leave_too_little_capacity_is_refused_with_the_numbers(rig: Rig) -> None:
    for at in range(3):
        rig.publish("v1", ("a",), job=f"job-{at}")
        rig.engine().run(ask("deploy_job", job=f"job-{at}", version="v1"), rig.owner(), f"deploy-{at}")
    with pytest.raises(RefusedError, match=r"have 4 cores .* need at least 9 cores"):
        run(rig, "scale_cluster", size=1)
    assert rig.nodes.did == []


@pytest.mark.full
def test_a_worker_that_never_joins_is_stopped_again(rig: Rig) -> None:
    rig.nodes.lost = {"node-3"}
    with pytest.raises(StreamOpsError, match="waiting for node-3"):
        run(rig, "scale_cluster", size=3, members_timeout_s=10)
    assert rig.nodes.did == ["start node-3", "stop node-3"]
    assert cluster_record.read(rig.store).nodes == ()


@pytest.mark.full
def test_a_snapshot_name_that_is_taken_is_refused_before_the_shutdown(rig: Rig) -> None:
    deployed(rig)
    rig.run("snapshot_job", snapshot="evening")
    with pytest.raises(SnapshotExistsError):
        run(rig, "shutdown_cluster", snapshot="evening")
    assert rig.nodes.did == []


def prepared(rig: Rig, runbook: str) -> Request:
    """A job that runs (on the node that will leave), or a cluster that was shut down."""
    deployed(rig)
    if runbook == "restart_cluster":
        run(rig, "shutdown_cluster")
    return asked_of(rig, runbook)


def asked_of(rig: Rig, runbook: str, **more: object) -> Request:
    asked = {**ASKED[runbook], **more}
    if runbook == "scale_cluster":
        asked["nodes"] = (hosted_on(rig),)
    return patient(runbook, **asked)


@pytest.mark.full
@pytest.mark.parametrize("runbook", ASKED)
def test_an_operation_of_the_cluster_killed_at_every_point_continues_where_it_was(
    rig: Rig, runbook: str, seed: int
) -> None:
    asked, owner = prepared(rig, runbook), rig.owner()
    walk = Walk(rig, seed, CLUSTER)
    walk.run(lambda engine: rig.tasks(engine, asked, owner, "op"))
    assert walk.points == points_of(asked)
    operation = rig.engine().find(CLUSTER, "op")
    assert operation.state == "succeeded"
    checks.free(rig, JOB, CLUSTER)
    checks.submitted_once(rig)
    if runbook == "shutdown_cluster":
        assert rig.nodes.up == set()
        assert cluster_record.read(rig.store).jobs == (JOB,)
        checks.snapshot_whole(rig, "evening")
        rig.wait(lambda: not rig.drivers_that_write(), "the end of all drivers")
    else:
        assert len(rig.nodes.up) == (3 if runbook == "restart_cluster" else 2)
        checks.writes_alone(rig)
        rig.commits_more(windows=1)
    assert rig.recount("a")


@pytest.mark.full
@pytest.mark.parametrize("runbook", ASKED)
def test_a_run_marked_failed_anywhere_leaves_a_working_cluster(rig: Rig, runbook: str) -> None:
    """One operation after the other on the same cluster, each marked failed after the effect of another step."""
    for step in (step.name for step in RUNBOOKS[runbook].steps):
        if not rig.cluster.processes:
            deployed(rig)
        if runbook == "restart_cluster":
            run(rig, "shutdown_cluster")
        name = f"{runbook}-{step}"
        more = {"snapshot": name} if runbook == "shutdown_cluster" else {}
        with pytest.raises(Killed):
            rig.tasks(rig.engine(killer(step, "after")), asked_of(rig, runbook, **more), rig.owner(), name)
        left_working(rig, runbook, name)
        if len(rig.nodes.up) < 3:
            run(rig, "scale_cluster", size=2)


def left_working(rig: Rig, runbook: str, name: str) -> None:
    engine = rig.engine()
    engine.fail(CLUSTER, name, "the run was marked failed")
    engine.undo(CLUSTER, name, before=RUNBOOKS[runbook].submits_again)
    engine = rig.engine()  # the next task is another process
    engine.undo(CLUSTER, name)
    engine.release(CLUSTER, name)
    operation = engine.find(CLUSTER, name)
    assert_job_free(rig)
    if cluster_record.read(rig.store).state != "running":  # what a person would do next
        run(rig, "restart_cluster")
    if not rig.cluster.alive():  # named, and not submitted
        one_pass(Reconciler(rig.engine(), rig.owner(), rig.said.append, look_s=LOOK_S))
    gone = runbook == "scale_cluster" and operation.state == "succeeded"
    assert len(rig.nodes.up) == (2 if gone else 3)
    assert not rig.nodes.leaving
    assert rig.record().desired == "running"
    checks.writes_alone(rig)
    rig.commits_more(windows=1)
    assert rig.recount("a")
    assert jobs.status(rig.store, JOB, rig.record().launch).state is State.RUNNING


def assert_job_free(rig: Rig) -> None:
    lock = locks.read(rig.store, JOB)
    assert lock is None or lock.value.operation is None


def test_each_job_comes_back_by_a_task_of_its_own(rig: Rig) -> None:
    deployed(rig)
    rig.publish("v1", ("a",), job="other")
    rig.engine().run(ask("deploy_job", job="other", version="v1"), rig.owner(), "deploy-other")
    run(rig, "shutdown_cluster")
    asked = patient("restart_cluster")
    rig.engine().begin(asked, rig.owner(), "op")

    def task(name: str, part: str | None = None) -> dict[str, object]:
        return rig.engine().run_task(CLUSTER, "op", name, part)  # each in a process of its own

    before, after = RUNBOOKS["restart_cluster"].tasks[:4], RUNBOOKS["restart_cluster"].tasks[5:]
    for name in before:
        task(name)
    there = len(rig.cluster.processes)
    assert rig.engine().parts(CLUSTER, "op", "submit_drivers") == ["other", JOB]
    assert task("submit_drivers", JOB)["launch"] == "op"
    assert [launch for launch, _ in rig.cluster.processes[there:]] == ["op"]
    with pytest.raises(RefusedError, match="Step submit_jobs of op is not done; run its task submit_drivers first"):
        task("wait_jobs")
    assert task("submit_drivers", "other")["driver"]
    assert task("submit_drivers", JOB)["launch"] == "op"  # cleared
    assert len(rig.cluster.processes) == there + 2
    for name in after:
        task(name)
    operation = rig.engine().find(CLUSTER, "op")
    assert operation.state == "succeeded"
    assert {"submit_jobs", "submit_jobs/other", f"submit_jobs/{JOB}"} <= set(operation.steps)
    rig.engine().release(CLUSTER, "op")
    checks.free(rig, JOB, "other", CLUSTER)
    rig.commits_more()
    assert rig.recount("a")


@pytest.mark.full
def test_with_no_job_to_bring_back_the_task_that_is_mapped_over_none_is_not_missed(rig: Rig) -> None:
    engine = rig.engine()
    engine.begin(patient("scale_cluster", size=3), rig.owner(), "op")
    for name in RUNBOOKS["scale_cluster"].tasks:
        if name != "submit_drivers":  # Airflow skips it
            rig.engine().run_task(CLUSTER, "op", name)
    assert rig.engine().find(CLUSTER, "op").state == "succeeded"


@pytest.mark.full
def test_a_job_that_cannot_continue_is_told_before_any_is_brought_back(rig: Rig) -> None:
    deployed(rig)
    run(rig, "shutdown_cluster")
    rig.topic.first = 10**9  # retention has overtaken it
    with pytest.raises(StreamOpsError, match=JOB):
        run(rig, "restart_cluster")
    assert rig.record().desired == "stopped"
    assert cluster_record.read(rig.store).jobs == (JOB,)
    rig.topic.first = 0
    run(rig, "restart_cluster")
    rig.commits_more()
    assert rig.recount("a")


def marked_failed(rig: Rig, asked: Request, when: str) -> None:
    """A run that dies before or after the first submission, is marked failed, and whose teardowns do their part."""
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer("submit_jobs", when)), asked, rig.owner(), "marked")
    engine = rig.engine()
    engine.fail(CLUSTER, "marked", "the run was marked failed")
    engine.undo(CLUSTER, "marked")
    engine.release(CLUSTER, "marked")


@pytest.mark.full
def test_what_a_restart_that_fails_has_named_and_not_submitted_is_started_by_reconciliation(rig: Rig) -> None:
    asked = prepared(rig, "restart_cluster")
    marked_failed(rig, asked, "before")
    one_pass(Reconciler(rig.engine(), rig.owner(), rig.said.append, look_s=LOOK_S))
    checks.writes_alone(rig)
    rig.commits_more(windows=1)
    assert rig.recount("a")


@pytest.mark.full
def test_a_restart_that_fails_when_the_jobs_are_started_leaves_a_cluster_that_runs(rig: Rig) -> None:
    """Reconciliation looks after no job, and nothing can be scaled, while a cluster is starting."""
    asked = prepared(rig, "restart_cluster")
    marked_failed(rig, asked, "after")
    record = cluster_record.read(rig.store)
    assert (record.state, record.jobs) == ("running", ())
    run(rig, "scale_cluster", size=3)
    checks.writes_alone(rig)
    rig.commits_more(windows=1)
    assert rig.recount("a")


@pytest.mark.full
def test_an_abandoned_operation_of_the_cluster_is_taken_back_before_the_next_one(rig: Rig) -> None:
    asked, owner = prepared(rig, "scale_cluster"), rig.owner()
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer("submit_jobs", "before")), asked, owner, "left")
    assert rig.nodes.leaving
    rig.runs.over[owner.run_id] = True
    quick = rig.engine(adopt_wait_s=0.2)  # nothing was submitted that could be adopted
    quick.run(patient("scale_cluster", size=3), rig.owner(), "scale")
    assert rig.engine().find(CLUSTER, "left").state == "undone"
    assert not rig.nodes.leaving
    assert rig.nodes.up == {"master", "node-1", "node-2", "node-3"}
    rig.commits_more()
    assert rig.recount("a")


@pytest.mark.full
def test_an_operation_of_the_cluster_that_airflow_forgot_is_taken_back_with_its_jobs_by_who_is_asked_to(
    rig: Rig,
) -> None:
    asked = prepared(rig, "scale_cluster")
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer("submit_jobs", "before")), asked, rig.owner(), "left")
    settle = ask("settle_operation", job=CLUSTER, operation="left", action="abort")
    owner = rig.owner()
    first = rig.engine(killer("settle", "after"), adopt_wait_s=0.2)  # nothing was submitted that could be adopted
    with pytest.raises(Killed):
        rig.tasks(first, settle, owner, "settle")
    rig.tasks(rig.engine(), settle, owner, "settle")
    assert rig.engine().find(CLUSTER, "left").state == "undone"
    assert receipts.read(rig.store, CLUSTER, "settle").state == "succeeded"
    assert not rig.nodes.leaving
    checks.free(rig, JOB, CLUSTER)
    rig.commits_more()
    assert rig.recount("a")


def test_the_keys_of_the_cluster_are_beside_those_of_jobs() -> None:
    assert keys.lock(CLUSTER) == "cluster/lock.json"
    assert keys.operation(CLUSTER, "x").startswith("cluster/operations/")
    assert not keys.lock(CLUSTER).startswith(keys.JOBS)
