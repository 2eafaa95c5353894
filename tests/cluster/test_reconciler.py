"""Reconciliation at work, with drivers as processes and nodes as words."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from fakes.rig import JOB, LOOK_S, Killed, Rig, patient
from fakes.walk import killer
from healing import one_pass
from streamops.cluster import record as cluster_record
from streamops.model.errors import RefusedError, StreamOpsError, UnreachableError
from streamops.model.owner import Owner
from streamops.model.records import State, now
from streamops.operations.engine import list_operations
from streamops.operations.follow import request as ask
from streamops.spark.master import Driver
from streamops.spark.submission import Submission
from streamops.store import jobs, keys, locks
from streamops.upkeep import reconcile
from streamops.upkeep.reconcile import wants_second
from streamops.upkeep.reconciler import Reconciler
from streamops.upkeep.watching import Found


def once(rig: Rig) -> list[str]:
    """One pass, as a DAG run of its own; a look before it finds the same to do, and does nothing."""
    said: list[str] = []
    foreseen = seen(rig)
    one_pass(Reconciler(rig.engine(), rig.owner(), said.append, look_s=LOOK_S))
    assert bool(foreseen) == bool(said), (foreseen, said)
    return said


def seen(rig: Rig) -> list[str]:
    """What a look finds to do."""
    found = Reconciler(rig.engine(), rig.owner(), lambda line: None, look_s=LOOK_S).look()
    return [f"{item.scope} {item.what}" for item in found.findings]


def deployed(rig: Rig) -> Rig:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=1)
    return rig


def test_nothing_is_said_when_everything_is_as_it_should_be(rig: Rig) -> None:
    deployed(rig)
    assert once(rig) == []
    assert len(rig.cluster.processes) == 1


def test_a_driver_that_nobody_holds_comes_back_from_its_checkpoint_and_says_why(rig: Rig) -> None:
    deployed(rig)
    rig.died(JOB)
    rig.nodes.status = "RECOVERING"
    assert once(rig) == []
    rig.nodes.status = "ALIVE"
    assert seen(rig) == seen(rig) == ["sums start"]
    assert [line for line in once(rig) if "sums is started again: its driver is gone" in line]
    rig.commits_more()
    assert rig.recount("a") > 1
    assert rig.record().deployment == 1
    assert list_operations(rig.store, JOB)[-1].request.runbook == "recover_job"
    assert locks.read(rig.store, JOB).value.operation is None
    assert once(rig) == []


@pytest.mark.full
def test_a_paused_job_and_one_of_a_stopped_cluster_are_left_alone(rig: Rig) -> None:
    deployed(rig)
    rig.died(JOB)
    jobs.change(rig.store, JOB, {"paused": True}, jobs.record(rig.store, JOB).fence)
    assert once(rig) == []
    jobs.change(rig.store, JOB, {"paused": False}, jobs.record(rig.store, JOB).fence)
    cluster_record.change(rig.store, {"state": "stopped"})
    rig.nodes.up = set()
    assert once(rig) == []
    assert rig.nodes.did == []


def test_an_abandoned_upgrade_is_taken_back_and_a_live_one_is_not_touched(rig: Rig) -> None:
    deployed(rig)
    engine, owner = rig.engine(), rig.owner()
    engine.begin(ask("upgrade_job", job=JOB, version="v2", snapshot="s"), owner, "left")
    for task in ("check", "prepare", "submit_driver", "wait_standby"):
        engine.run_task(JOB, "left", task)
    assert once(rig) == []
    assert Reconciler(rig.engine(), rig.owner(), print, look_s=LOOK_S).look() == Found(busy=frozenset({JOB}))
    rig.runs.over[owner.run_id] = True
    assert seen(rig) == ["sums undo"]
    assert "undone" in once(rig)[0]
    assert rig.engine().find(JOB, "left").state == "undone"
    assert locks.read(rig.store, JOB).value.operation is None
    rig.commits_more()
    assert rig.recount("a")


@pytest.mark.full
def test_an_abandoned_upgrade_that_has_handed_the_job_over_is_finished(rig: Rig) -> None:
    deployed(rig)
    rig.leave("check", "prepare", "submit_driver", "wait_standby", "switch")
    assert "left" in once(rig)[0]
    assert rig.engine().find(JOB, "left").state == "succeeded"
    assert rig.record().version == "v2"


def test_an_operation_that_others_found_abandoned_and_left_is_found_again(rig: Rig) -> None:
    """Someone took its lock over and gave it back; what it had begun is settled by the next pass all the same."""
    deployed(rig)
    engine, owner = rig.engine(), rig.owner()
    engine.begin(ask("upgrade_job", job=JOB, version="v2", snapshot="s"), owner, "left")
    for task in ("check", "prepare"):
        engine.run_task(JOB, "left", task)
    rig.runs.over[owner.run_id] = True
    locks.acquire(rig.store, JOB, "other", "other", rig.owner(), rig.runs.finished, now())
    locks.release(rig.store, JOB, "other")
    assert locks.read(rig.store, JOB).value.operation is None
    assert "undone" in once(rig)[0]
    assert rig.engine().find(JOB, "left").state == "undone"
    assert rig.record().standby is None
    assert once(rig) == []


@pytest.mark.full
def test_who_was_to_settle_an_operation_and_died_is_continued_or_else_the_operation_is_settled(rig: Rig) -> None:
    deployed(rig)
    rig.leave("check", "prepare")
    died = rig.owner()
    rig.runs.over[died.run_id] = True
    # Between taking the lock and writing that it began, there is nothing to continue.
    locks.acquire(rig.store, JOB, "died", "settle_operation", died, rig.runs.finished, now())
    assert "undone" in once(rig)[0]
    assert rig.engine().find(JOB, "left").state == "undone"

    engine, owner = rig.engine(), rig.owner()
    engine.begin(ask("upgrade_job", job=JOB, version="v2", snapshot="t"), owner, "next")
    rig.runs.over[owner.run_id] = True
    asked = ask("settle_operation", job=JOB, operation="next", action="leave")
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer("settle", "before")), asked, died, "settle")
    assert "finished" in once(rig)[0]
    found = {name: rig.engine().find(JOB, name).state for name in ("next", "settle")}
    assert found == {"next": "aborted", "settle": "succeeded"}
    assert once(rig) == []


@pytest.mark.full
def test_a_worker_that_nobody_started_is_started(rig: Rig) -> None:
    rig.nodes.up = {"master", "node-1"}
    assert seen(rig) == ["node-2 start"]
    assert rig.nodes.up == {"master", "node-1"}
    assert once(rig) == ["node-2 is started: its program did not run"]
    assert rig.nodes.up == {"master", "node-1", "node-2"}


@pytest.mark.full
def test_a_damaged_record_of_one_job_does_not_keep_another_from_coming_back(rig: Rig) -> None:
    deployed(rig)
    rig.publish("v1", ("a",), job="other")
    rig.engine().run(patient("deploy_job", job="other", version="v1"), rig.owner(), "deploy-other")
    rig.store.put(keys.record("other"), b'{"version": "v1"}')
    rig.died(JOB)
    found = Reconciler(rig.engine(), rig.owner(), print, look_s=LOOK_S).look().findings
    assert [(item.scope, item.what, item.mends) for item in found] == [
        (JOB, "start", True), ("other", "trouble", False)
    ]  # fmt: skip
    said: list[str] = []
    with pytest.raises(
        StreamOpsError, match=r"jobs/other/record.json .* cannot be read \(job: Field required\); .*earlier"
    ):
        one_pass(Reconciler(rig.engine(), rig.owner(), said.append, look_s=LOOK_S))
    assert [line for line in said if line.startswith("other is left as it is: jobs/other/record.json")]
    assert [line for line in said if "sums is started again" in line]
    rig.commits_more()
    assert rig.recount("a") > 1


@pytest.mark.full
def test_a_worker_that_cannot_be_started_does_not_keep_jobs_from_coming_back(rig: Rig) -> None:
    deployed(rig)
    rig.died(JOB)
    rig.nodes.up = {"master", "node-1"}
    rig.nodes.broken = {"node-2"}
    said: list[str] = []
    with pytest.raises(StreamOpsError, match="SPAWN_ERROR"):
        one_pass(Reconciler(rig.engine(), rig.owner(), said.append, look_s=LOOK_S))
    assert [line for line in said if line.startswith("node-2 is left as it is")]
    assert [line for line in said if "sums is started again" in line]
    rig.commits_more()


@pytest.mark.full
def test_a_status_that_cannot_be_read_is_no_reason_to_leave_a_job_down(rig: Rig) -> None:
    deployed(rig)
    rig.died(JOB)
    rig.root.put(keys.status(JOB, rig.record().launch), b"{")
    assert [line for line in once(rig) if "sums is started again" in line]
    rig.commits_more()
    assert rig.recount("a") > 1


@pytest.mark.full
def test_what_came_back_since_the_first_look_is_left_alone(rig: Rig) -> None:
    """A look may be minutes old: other jobs had their turn, and the master started the driver itself."""
    deployed(rig)
    rig.died(JOB)
    said: list[str] = []
    reconciler = Reconciler(rig.engine(), rig.owner(), said.append, look_s=LOOK_S)
    starting = [(record, look) for record, action, look in reconciler._jobs() if action.kind == "start"]
    assert starting
    before = rig.record()
    rig.cluster.relaunch(before.launch)
    rig.commits_more(windows=1)
    assert list(reconciler._begun(starting, [])) == []
    assert "it is not started again, because by now its driver works" in said[0]
    assert (rig.record().launch, len(rig.cluster.processes)) == (before.launch, 2)
    assert locks.read(rig.store, JOB).value.operation is None
    rig.commits_more(windows=1)


def test_an_operation_that_ends_between_two_reads_of_a_look_leaves_nothing_to_do(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver that stopped was seen, and then the operation that stopped it, and started another, gave its lock."""
    deployed(rig)
    reconciler, known = Reconciler(rig.engine(), rig.owner(), print, look_s=LOOK_S), Reconciler._known

    def overtaken(self: Reconciler) -> object:
        rig.run("cancel_job")
        jobs.change(rig.store, JOB, {"desired": "running"}, jobs.record(rig.store, JOB).fence)
        seen = known(self)
        jobs.change(rig.store, JOB, {"desired": "stopped"}, jobs.record(rig.store, JOB).fence)
        return seen

    monkeypatch.setattr(Reconciler, "_known", overtaken)
    assert reconciler.look() == Found()


def two_down(rig: Rig) -> None:
    """Two jobs whose drivers died a while ago."""
    deployed(rig)
    rig.publish("v1", ("a",), job="other")
    rig.engine().run(patient("deploy_job", job="other", version="v1"), rig.owner(), "deploy-other")
    for job in (JOB, "other"):
        rig.died(job)


@pytest.mark.full
def test_jobs_that_fit_beside_each_other_are_submitted_before_any_of_them_works(rig: Rig) -> None:
    two_down(rig)
    reconciler = Reconciler(rig.engine(), rig.owner(), rig.said.append, look_s=LOOK_S)
    plan = reconciler.plan()
    assert sorted((item.scope, item.do, item.after) for item in plan) == [("other", "start", ()), (JOB, "start", ())]
    for item in plan:
        reconciler.submit(item.scope)
    assert len(rig.cluster.processes) == 4  # two of them ended
    for item in plan:
        reconciler.heal(item)
        assert list_operations(rig.store, item.scope)[-1].state == "succeeded"
        assert locks.read(rig.store, item.scope).value.operation is None
    rig.commits_more()


@pytest.mark.full
def test_a_job_without_room_beside_another_is_locked_and_comes_after_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_down(rig)
    monkeypatch.setattr(reconcile, "side_by_side", lambda master, wanted: tuple(wanted)[:1])
    first, then = Reconciler(rig.engine(), rig.owner(), rig.said.append, look_s=LOOK_S).plan()
    assert (first.after, then.after) == ((), (first.scope,))
    assert all(locks.read(rig.store, item.scope).value.runbook == "recover_job" for item in (first, then))


@pytest.mark.full
def test_a_start_that_fails_says_why_and_leaves_no_lock(rig: Rig) -> None:
    deployed(rig)
    rig.died(JOB)
    engine = rig.engine(submitter=SimpleNamespace(submit=refuse, room_for=rig.cluster.room_for))
    with pytest.raises(UnreachableError, match="away"):
        one_pass(Reconciler(engine, rig.owner(), rig.said.append, look_s=LOOK_S))
    left = list_operations(rig.store, JOB)[-1]
    assert (left.state, left.reason) == ("failed", "The master is away.")
    assert locks.read(rig.store, JOB).value.operation is None
    assert [line for line in once(rig) if "sums is started again" in line]
    rig.commits_more()


def refuse(_: Submission) -> str:
    raise UnreachableError("The master is away.")


def test_the_second_driver_of_another_job_does_not_keep_this_one_from_getting_its_own(rig: Rig) -> None:
    deployed(rig)
    record = rig.record()
    status = jobs.status(rig.store, JOB, record.launch)
    of_other = status.model_copy(update={"job": "other", "driver": "driver-7", "state": State.STANDBY})
    there = tuple(Driver(name, "worker-node-1", "RUNNING") for name in (status.driver, "driver-7"))
    master = replace(rig.nodes.master(), drivers=there)
    reconciler = Reconciler(rig.engine(), rig.owner(), print)
    for seconds, wanted in (({"other": of_other}, True), ({}, False)):  # else driver-7 may be it
        _, look = reconciler._decide(record, {JOB: status}, {}, seconds, master)
        assert wants_second(look, None) is wanted


@pytest.mark.full
def test_a_manifest_that_cannot_be_read_does_not_keep_another_job_down(rig: Rig) -> None:
    two_down(rig)
    launch = jobs.record(rig.store, "other").launch
    dead = jobs.status(rig.store, "other", launch)
    rig.cluster.relaunch(launch)

    def speaks() -> bool:  # until then its driver could be the one of the job that is down
        status = jobs.status(rig.store, "other", launch)
        return status.state is State.RUNNING and status.updated > dead.updated

    rig.wait(speaks, "the driver of the other job")
    rig.store.put(keys.artifact_manifest("other", "v1"), b"{}")
    reconciler = Reconciler(rig.engine(), rig.owner(), rig.said.append, look_s=LOOK_S)
    plan = reconciler.plan()
    assert [item.scope for item in plan if item.do == "start"] == [JOB]
    assert [item.scope for item in plan if item.do == "trouble"] == ["other"]


@pytest.mark.full
def test_a_start_that_was_given_up_is_not_begun_again_by_who_clears_its_task(rig: Rig) -> None:
    deployed(rig)
    rig.died(JOB)
    reconciler = Reconciler(rig.engine(), rig.owner(), rig.said.append, look_s=LOOK_S)
    (item,) = reconciler.plan()
    reconciler.give_up(item, "The master is away.")
    before = rig.record()
    for again in (lambda: reconciler.submit(JOB), lambda: reconciler.heal(item)):
        with pytest.raises(RefusedError, match="the next pass looks again"):
            again()
    assert rig.record() == before
    assert locks.read(rig.store, JOB).value.operation is None


@pytest.mark.full
def test_what_somebody_else_has_settled_is_left_alone_with_the_operation_that_holds_the_job_now(rig: Rig) -> None:
    deployed(rig)
    rig.leave("check")
    reconciler = Reconciler(rig.engine(), rig.owner(), rig.said.append, look_s=LOOK_S)
    (item,) = reconciler.plan()
    assert (item.scope, item.do) == (JOB, "undo")
    bob = Owner(kind="airflow", dag_id="snapshot_job", run_id="run-9", user="bob")
    rig.runs.over["run-9"] = False
    locks.acquire(rig.store, JOB, "next", "snapshot_job", bob, rig.runs.finished, now())  # and settles, for minutes
    assert "there is nothing to settle any more" in reconciler.heal(item)
    assert locks.read(rig.store, JOB).value.operation == "next"
