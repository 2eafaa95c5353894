"""Runbooks from begin to end on a real object store with drivers as processes, and everything they refuse."""

from __future__ import annotations

import pytest

from fakes.rig import JOB, Killed, Rig, patient
from streamops import snapshots
from streamops.model.errors import (
    LockedError,
    NotFoundError,
    RefusedError,
    SnapshotExistsError,
    SnapshotRefusedError,
    StreamOpsError,
    UnhealthyError,
)
from streamops.model.owner import Owner
from streamops.model.records import State
from streamops.operations import receipts, steps
from streamops.operations.engine import Engine, list_operations
from streamops.operations.facts import Checked
from streamops.operations.follow import request as ask
from streamops.store import jobs, locks
from streamops.versions import artifacts


def test_an_upgrade_keeps_every_event_and_starts_new_stages_where_the_snapshot_stands(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    operation = rig.run("upgrade_job", version="v2", snapshot="SavePoint1")
    rig.commits_more("b")
    manifest = snapshots.load(rig.store, JOB, "SavePoint1")
    snapshots.verify(rig.store, manifest)
    deployment = jobs.deployment(rig.store, JOB, 2)
    assert deployment.from_snapshot == f"{JOB}/SavePoint1"
    assert deployment.stages["a"].since_deployment == 1
    assert deployment.stages["b"].since_deployment == 2
    start = manifest.stages["a"].offsets["events"]["0"]
    assert deployment.stages["b"].offsets == {"events": {"0": start}}
    assert rig.recount("a") > 2
    assert rig.recount("b", since=start) > 1
    assert rig.record().version == "v2"
    receipt = receipts.read(rig.store, JOB, operation.id)
    assert receipt is not None
    assert receipt.state == "succeeded"
    assert receipt.gap_seconds is not None
    assert set(receipt.steps) == set(operation.steps)
    for which, number, version, origin in (("before", 1, "v1", None), ("after", 2, "v2", f"{JOB}/SavePoint1")):
        ran, made = receipt.ran[which], artifacts.load_manifest(rig.store, JOB, version)
        assert (ran.version, ran.deployment, ran.from_snapshot) == (version, number, origin)
        assert (ran.artifact_sha256, ran.runtime_sha256) == (made.artifact_sha256, made.runtime_sha256)
    assert receipt.snapshot == f"{JOB}/SavePoint1"
    assert receipt.offsets["a"].before == manifest.stages["a"].offsets
    assert receipt.offsets["b"].before == {}
    for stage, moved in receipt.offsets.items():
        assert start <= moved.after["events"]["0"] <= rig.offset(rig.record().launch, stage)


def test_without_room_an_upgrade_starts_cold_and_says_so(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.cluster.room = False
    operation = rig.run("upgrade_job", version="v2", snapshot="s")
    assert operation.facts("reserve")["cold"] is True
    assert any("no room for a standby" in line for line in rig.said)
    assert operation.facts("standby")["why"] == "there is no room for a standby: the new driver starts after the stop"
    rig.commits_more()
    assert rig.recount("a")


def test_resources_of_a_deployment_stay_until_others_are_asked_for(rig: Rig) -> None:
    def used() -> tuple[int, str]:
        found = rig.cluster.submitted[rig.record().launch or ""].resources
        return found.cores, found.executor_memory

    rig.cluster.cores = 3
    rig.run("deploy_job", version="v1", cores=3)
    assert used() == (3, "800m")
    operation = rig.run("upgrade_job", version="v1", snapshot="larger", cores=4, executor_memory="1g")
    assert operation.facts("reserve")["cold"] is True  # two drivers of this size have no room
    assert used() == (4, "1g")
    rig.run("upgrade_job", version="v2", snapshot="s")
    rig.run("cancel_job")
    rig.run("start_job")
    assert used() == (4, "1g")
    rig.run("rollback_job", snapshot="larger")
    assert used() == (3, "800m")


def test_a_version_that_never_works_is_taken_back(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    rig.cluster.behaviour["v2"] = "dies"
    with pytest.raises(UnhealthyError, match="the first batch failed"):
        rig.run("upgrade_job", version="v2", snapshot="s")
    record = rig.record()
    assert (record.version, record.deployment, record.desired) == ("v1", 3, "running")
    operation = list_operations(rig.store, JOB)[-1]
    assert operation.state == "undone"
    rig.commits_more()
    assert rig.recount("a")
    assert rig.drivers_that_write() == [record.launch]


@pytest.mark.full
def test_what_was_set_for_a_version_that_is_taken_back_does_not_stay_with_the_old_one(rig: Rig) -> None:
    rig.run("deploy_job", version="v1", params={"size": 20}, logging={"sink": "WARNING"}, cores=1)
    rig.commits_more()
    rig.cluster.behaviour["v2"] = "dies"
    with pytest.raises(UnhealthyError):
        rig.run("upgrade_job", version="v2", snapshot="s", params={"size": 30}, logging={"sink": "DEBUG"}, cores=4)
    back = jobs.deployment(rig.store, JOB, rig.record().deployment)
    assert (back.version, back.params, back.logging) == ("v1", {"size": 20}, {"sink": "WARNING"})
    assert back.resources == {"cores": 1}


def test_deploying_what_runs_does_nothing_and_another_version_is_refused(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    before = rig.record()
    operation = rig.run("deploy_job", version="v1")
    assert operation.facts("check")["unchanged"] is True
    assert rig.record() == before
    assert len(rig.cluster.processes) == 1
    with pytest.raises(RefusedError, match="upgrade_job"):
        rig.run("deploy_job", version="v2")
    with pytest.raises(RefusedError, match="already runs v1"):
        rig.run("upgrade_job", version="v1")
    assert rig.record() == before


def test_unknown_names_and_wrong_settings_are_refused_before_anything_is_touched(rig: Rig) -> None:
    with pytest.raises(NotFoundError, match="no version v9"):
        rig.run("deploy_job", version="v9")
    with pytest.raises(NotFoundError, match="no deployed job sums"):
        rig.run("start_job")
    with pytest.raises(RefusedError, match="no param 'siez'"):
        rig.run("deploy_job", version="v1", params={"siez": 1})
    with pytest.raises(RefusedError, match="must be a int"):
        rig.run("deploy_job", version="v1", params={"size": "ten"})
    with pytest.raises(NotFoundError, match="no topic other"):
        rig.run("deploy_job", version="v1", topics={"events": "other"})
    with pytest.raises(NotFoundError, match="no snapshot nowhere"):
        rig.run("deploy_job", version="v1", from_snapshot="nowhere")
    assert jobs.record(rig.store, JOB) is None
    assert not rig.cluster.processes


@pytest.mark.full
def test_a_start_without_state_must_be_asked_for(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    rig.run("cancel_job")
    assert rig.record().desired == "stopped"
    with pytest.raises(RefusedError, match="from_scratch"):
        rig.run("deploy_job", version="v1")
    rig.run("start_job")
    rig.commits_more()
    assert rig.record().deployment == 1
    rig.run("snapshot_job", snapshot="s", cancel=True)
    assert (rig.record().desired, rig.record().snapshot) == ("stopped-with-snapshot", "s")
    with pytest.raises(RefusedError, match="snapshots"):
        rig.run("deploy_job", version="v2")
    rig.run("deploy_job", version="v2", from_snapshot="s")
    rig.commits_more()
    assert rig.recount("a")


def test_what_is_stopped_only_if_it_exists_need_not_exist(rig: Rig) -> None:
    for runbook, asked in (("cancel_job", {}), ("snapshot_job", {"snapshot": "s", "cancel": True})):
        with pytest.raises(NotFoundError, match="no deployed job sums"):
            rig.run(runbook, **asked)
        done = rig.run(runbook, if_exists=True, **asked)
        assert (done.state, done.reported("check", Checked).unchanged) == ("succeeded", True)
        assert "There is no deployed job sums: nothing is to be done" in rig.said
    assert jobs.record(rig.store, JOB) is None
    assert not snapshots.list(rig.store, JOB)

    rig.run("deploy_job", version="v1")
    rig.commits_more()
    rig.run("snapshot_job", snapshot="s", cancel=True, if_exists=True)
    assert (rig.record().desired, rig.record().snapshot) == ("stopped-with-snapshot", "s")
    rig.run("start_job")
    rig.run("cancel_job", if_exists=True)
    assert rig.record().desired == "stopped"


@pytest.mark.full
def test_a_live_snapshot_can_be_deployed_later(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    rig.run("snapshot_job", snapshot="live")
    assert snapshots.load(rig.store, JOB, "live").live
    assert rig.record().desired == "running"
    rig.commits_more()
    rig.run("cancel_job")
    rig.run("deploy_job", version="v2", from_snapshot="live")
    rig.commits_more()
    assert rig.recount("a")


def test_what_cannot_be_continued_is_refused_while_the_job_runs_on(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    rig.run("snapshot_job", snapshot="taken")
    with pytest.raises(SnapshotExistsError):
        rig.run("snapshot_job", snapshot="taken")
    with pytest.raises(SnapshotExistsError):
        rig.run("upgrade_job", version="v2", snapshot="taken")
    rig.free = 100
    with pytest.raises(SnapshotRefusedError, match="100 free"):
        rig.run("upgrade_job", version="v2", snapshot="big")
    rig.free = None
    rig.topic.first = 10**9
    with pytest.raises(SnapshotRefusedError, match="retention"):
        rig.run("upgrade_job", version="v2", snapshot="late")
    rig.topic.first = 0
    rig.publish("v3", ("a",), partitions=4)
    with pytest.raises(RefusedError, match="state_partitions"):
        rig.run("upgrade_job", version="v3", snapshot="wide")
    rig.commits_more()
    assert rig.recount("a")
    assert len(rig.cluster.processes) == 1


@pytest.mark.full
def test_a_job_whose_driver_failed_is_started_again_once_the_cause_is_mended(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    launch = rig.record().launch
    assert launch
    rig.cluster.processes[0][1].kill()
    rig.cluster.behaviour["v1"] = "dies"
    rig.cluster.relaunch(launch)
    rig.wait(lambda: (found := jobs.status(rig.store, JOB, launch)) and found.state is State.FAILED, "its last words")
    rig.cluster.behaviour["v1"] = "good"
    rig.run("start_job")
    rig.commits_more()
    assert rig.recount("a") > 2
    assert len(rig.drivers_that_write()) == 1


def test_cancelling_twice_changes_nothing_and_start_needs_a_stopped_job(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    with pytest.raises(RefusedError, match="not stopped"):
        rig.run("start_job")
    rig.run("cancel_job")
    assert rig.run("cancel_job").facts("check") == {"unchanged": True}
    with pytest.raises(RefusedError, match="needs a running job"):
        rig.run("upgrade_job", version="v2")
    found = jobs.status(rig.store, JOB, rig.record().launch)
    assert found is not None
    assert found.state is State.STOPPED


def test_another_jobs_snapshot_needs_a_fork(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    rig.run("snapshot_job", snapshot="s")
    rig.publish("v1", ("a",), job="other")
    request = ask("deploy_job", job="other", version="v1", from_snapshot=f"{JOB}/s")
    with pytest.raises(SnapshotRefusedError, match="fork"):
        rig.engine().run(request, rig.owner(), "no-fork")
    forked = request.model_copy(update={"fork": True})
    rig.engine().run(forked, rig.owner(), "fork")
    record = jobs.record(rig.store, "other")
    assert record is not None
    assert record.desired == "running"


def test_a_second_trigger_names_the_owner_and_does_nothing(rig: Rig) -> None:
    engine, first, second = rig.engine(), rig.owner(), rig.owner()
    request = ask("deploy_job", job=JOB, version="v1")
    engine.begin(request, first, "one")
    with pytest.raises(LockedError, match="runbook/run-1 of ada"):
        engine.begin(request, second, "two")
    assert engine.find(JOB, "two") is None
    assert engine.begin(request, first, "one").id == "one"
    rig.runs.over["run-1"] = False
    with pytest.raises(RefusedError, match="still works"):
        engine.abort(JOB, "one")
    with pytest.raises(RefusedError, match="still works"):
        engine.resume(JOB, "one")
    rig.runs.over["run-1"] = True
    assert engine.resume(JOB, "one").state == "succeeded"
    engine.begin(request, second, "two")


def test_the_receipt_of_an_aborted_operation_says_so(rig: Rig) -> None:
    owner = rig.owner()
    rig.engine().begin(patient("deploy_job", job=JOB, version="v1"), owner, "left")
    rig.runs.over[owner.run_id] = True
    assert rig.engine().abort(JOB, "left").state == "aborted"
    receipt = receipts.read(rig.store, JOB, "left")
    assert receipt is not None
    assert (receipt.state, receipt.reason) == ("aborted", "aborted by an operator")


def test_an_abandoned_upgrade_is_taken_back_before_the_next_operation(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.leave("check", "prepare", "submit_driver", "wait_standby")
    assert rig.record().standby == "left"
    rig.run("snapshot_job", snapshot="after")
    left = rig.engine().find(JOB, "left")
    assert left is not None
    assert left.state == "undone"
    assert rig.record().standby is None
    rig.wait(lambda: rig.cluster.alive() == [rig.record().launch], "the standby's end")


@pytest.mark.full
def test_a_version_that_works_stays_although_its_upgrade_was_abandoned(rig: Rig) -> None:
    """Days may have passed: the snapshot of before is no place to go back to."""
    rig.run("deploy_job", version="v1")
    rig.leave("check", "prepare", "submit_driver", "wait_standby", "switch", "submit_after_stop", "wait_healthy")
    rig.run("snapshot_job", snapshot="after")
    left = rig.engine().find(JOB, "left")
    assert left is not None
    assert (left.state, left.undo) == ("aborted", {})
    assert "stays" in left.reason
    assert (rig.record().version, rig.record().launch) == ("v2", "left")
    assert snapshots.load(rig.store, JOB, "after").version == "v2"


def test_a_shells_lock_does_not_expire_while_what_was_left_behind_is_settled(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.run("deploy_job", version="v1")
    rig.leave()
    monkeypatch.setattr(locks, "_RENEW_S", 0.05)
    settle = Engine._settle

    def slowly(self: Engine, job: str, operation: str, lock: locks.Lock) -> None:
        settle(self, job, operation, lock)
        rig.wait(lambda: locks.read(rig.store, JOB).value.renewed > lock.renewed, "a renewal meanwhile")

    monkeypatch.setattr(Engine, "_settle", slowly)
    shell = Owner(kind="cli", run_id="c", user="bob")
    assert rig.engine().run(patient("snapshot_job", job=JOB, snapshot="after"), shell, "next").state == "succeeded"


@pytest.mark.full
def test_the_number_of_a_deployment_that_was_taken_back_is_not_given_out_again(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    engine, owner = rig.engine(), rig.owner()
    engine.begin(patient("upgrade_job", job=JOB, version="v2", snapshot="s"), owner, "left")
    for task in ("check", "prepare", "prepare_shadow", "submit_driver", "wait_standby", "wait_shadow"):
        engine.run_task(JOB, "left", task)

    def kill(step: str, when: str) -> None:
        if (step, when) == ("await_stop", "before"):
            raise Killed

    with pytest.raises(Killed):
        rig.engine(kill).run_task(JOB, "left", "switch")
    rig.runs.over[owner.run_id] = True
    rig.run("upgrade_job", version="v2", snapshot="s2")
    assert rig.engine().find(JOB, "left").state == "undone"
    assert rig.record().deployment == 3  # the second one is of the operation that was undone


def test_a_topic_that_is_not_there_is_made_where_that_was_asked_for(rig: Rig) -> None:
    asked = {"version": "v1", "topics": {"events": "fresh"}}
    with pytest.raises(NotFoundError, match="no topic fresh"):
        rig.run("deploy_job", **asked)
    assert rig.topic.made == {}
    rig.run("deploy_job", **asked, create_topics=3, topic_retention_h=24)
    assert rig.topic.made == {"fresh": (3, {"retention.ms": "86400000"})}
    rig.commits_more(windows=1)
    rig.run("snapshot_job", snapshot="s", cancel=True)
    with pytest.raises(NotFoundError, match="no topic gone"):  # what the snapshot has read was in it
        rig.run("deploy_job", version="v1", topics={"events": "gone"}, from_snapshot="s", create_topics=1)


def test_clearing_a_task_of_a_finished_operation_changes_nothing(rig: Rig) -> None:
    engine, owner = rig.engine(), Owner(kind="airflow", dag_id="d", run_id="r", user="ada")
    request = ask("deploy_job", job=JOB, version="v1", healthy_timeout_s=90)
    rig.tasks(engine, request, owner, "op")
    before, drivers = rig.record(), len(rig.cluster.processes)
    rig.tasks(rig.engine(), request, owner, "op")
    assert (rig.record(), len(rig.cluster.processes)) == (before, drivers)
    engine.begin(request, rig.owner(), "next")


@pytest.mark.full
def test_an_operation_that_was_taken_back_goes_no_further(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.cluster.behaviour["v2"] = "dies"
    with pytest.raises(StreamOpsError):
        rig.run("upgrade_job", version="v2", snapshot="s")
    operation = list_operations(rig.store, JOB)[-1]
    with pytest.raises(RefusedError):
        rig.engine().run_task(JOB, operation.id, "wait_healthy")
    assert rig.engine().undo(JOB, operation.id).startswith("Operation")


def test_a_deployment_that_failed_while_it_was_made_does_not_block_the_next_one(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is there and the job record does not know of it: the next operation takes another number."""

    def full(*_: object) -> None:
        raise StreamOpsError("the store was full")

    with monkeypatch.context() as patch:
        patch.setattr(steps, "give", full)
        with pytest.raises(StreamOpsError, match="the store was full"):
            rig.run("deploy_job", version="v1")
    rig.run("deploy_job", version="v1")
    assert rig.record().deployment == 2
    rig.commits_more(windows=1)
