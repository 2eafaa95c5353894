"""Rollback and restore, from begin to end on a real object store with drivers as processes."""

from __future__ import annotations

import pytest

from fakes.rig import JOB, Rig
from streamops import snapshots
from streamops.model.errors import NotFoundError, RefusedError, SnapshotRefusedError, UnhealthyError
from streamops.model.owner import Owner
from streamops.model.records import Control, State
from streamops.operations import receipts
from streamops.operations.follow import request as ask
from streamops.spark import checkpoints
from streamops.store import jobs, keys
from streamops.versions import artifacts


def upgraded(rig: Rig) -> None:
    """v1, then v2 from snapshot ``s``, both at work for a while."""
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    rig.run("upgrade_job", version="v2", snapshot="s")
    rig.commits_more("b")


def test_a_rollback_runs_the_version_before_from_the_snapshot_of_the_upgrade_and_says_what_it_costs(rig: Rig) -> None:
    upgraded(rig)
    stood = rig.offset(rig.record().launch, "a")
    mark = snapshots.load(rig.store, JOB, "s").stages["a"].offsets["events"]["0"]
    operation = rig.run("rollback_job")
    record = rig.record()
    deployment = jobs.deployment(rig.store, JOB, 3)
    assert (record.version, record.deployment, record.desired) == ("v1", 3, "running")
    assert (deployment.from_snapshot, deployment.from_deployment) == (f"{JOB}/s", 1)
    assert deployment.artifact_sha256 == jobs.deployment(rig.store, JOB, 1).artifact_sha256
    assert deployment.stages["a"].since_deployment == 1  # the recount begins where the state began
    told = operation.facts("check")
    assert told["cost"]["again"]["a"] >= stood - mark
    assert told["cost"]["frozen"] == ["b"]
    assert operation.facts("catch_up")["events_again"] >= told["events_again"]
    said = "\n".join(rig.said)
    assert said.rindex("processes") < said.rindex("is asked to stop")  # the cost is stated before anything is touched
    assert "It cost:" in said
    rig.commits_more()
    assert rig.recount("a") > 2
    assert rig.recount("b", since=mark) > 0  # left as they were
    assert rig.drivers_that_write() == [record.launch]
    assert receipts.read(rig.store, JOB, operation.id).facts["check"]["cost"]["snapshot"] == f"{JOB}/s"


@pytest.mark.full
def test_a_second_rollback_finds_nothing_before_the_first_version_and_an_upgrade_goes_forward_again(rig: Rig) -> None:
    upgraded(rig)
    rig.run("rollback_job")
    with pytest.raises(RefusedError, match="No version of sums ran before v1"):
        rig.run("rollback_job")
    rig.run("upgrade_job", version="v2", snapshot="again")
    rig.commits_more("b")
    assert rig.run("rollback_job").facts("check")["snapshot"] == "again"
    rig.commits_more()
    assert rig.recount("a")


@pytest.mark.full
def test_restores_and_failed_upgrades_in_between_are_walked_over(rig: Rig) -> None:
    upgraded(rig)
    rig.run("snapshot_job", snapshot="of-v2")
    rig.run("restore_job", snapshot="of-v2")
    rig.commits_more("b")
    assert rig.record().version == "v2"
    assert rig.run("rollback_job").facts("check")["snapshot"] == "s"


@pytest.mark.full
def test_a_named_snapshot_of_another_version_is_gone_back_to_and_runbooks_do_not_swap_roles(rig: Rig) -> None:
    upgraded(rig)
    rig.run("snapshot_job", snapshot="of-v2")
    before = rig.record()
    with pytest.raises(RefusedError, match="use restore_job"):
        rig.run("rollback_job", snapshot="of-v2")
    with pytest.raises(RefusedError, match="use rollback_job"):
        rig.run("restore_job", snapshot="s")
    with pytest.raises(NotFoundError, match="no snapshot nowhere"):
        rig.run("rollback_job", snapshot="nowhere")
    assert rig.record() == before
    assert rig.run("rollback_job", snapshot="s").state == "succeeded"


@pytest.mark.full
def test_what_retention_has_passed_and_what_is_altered_is_refused_while_the_job_runs_on(rig: Rig) -> None:
    upgraded(rig)
    before, drivers = rig.record(), len(rig.cluster.processes)
    rig.topic.first = 10**9
    with pytest.raises(SnapshotRefusedError, match="retention"):
        rig.run("rollback_job")
    rig.topic.first = 0
    key = artifacts.load_manifest(rig.store, JOB, "v1").archive
    good = rig.store.get(key).body
    rig.store.put(key, b"something else")
    with pytest.raises(RefusedError, match="is not what ran"):
        rig.run("rollback_job")
    rig.store.put(key, good)
    lost = snapshots.load(rig.store, JOB, "s").objects[0].key
    rig.root.delete_versions(list(rig.root.versions(lost)))
    with pytest.raises(SnapshotRefusedError, match="is missing"):
        rig.run("rollback_job")
    rig.retention.delete([keys.manifest(JOB, "s")])
    with pytest.raises(NotFoundError, match="snapshot s, which is gone"):
        rig.run("rollback_job")
    assert (rig.record(), len(rig.cluster.processes)) == (before, drivers)
    rig.commits_more("b")


def test_a_dry_run_says_the_cost_and_writes_nothing(rig: Rig) -> None:
    upgraded(rig)
    written = {info.key for info in rig.store.list("jobs/")}
    facts = rig.engine().preview(ask("rollback_job", job=JOB), Owner(kind="cli", user="ada"))
    assert facts["cost"]["again"]["a"] > 0
    assert any("processes" in line for line in rig.said)
    assert {info.key for info in rig.store.list("jobs/")} == written


def test_a_dry_run_of_any_runbook_writes_nothing(rig: Rig) -> None:
    upgraded(rig)
    rig.run("snapshot_job", snapshot="of-v2")
    written, user = {info.key for info in rig.store.list("jobs/")}, Owner(kind="cli", user="ada")
    for runbook, values in {
        "deploy_job": {"version": "v2"},
        "upgrade_job": {"version": "v1", "accept_loss": ["b"]},
        "snapshot_job": {"cancel": True},
        "restore_job": {"snapshot": "of-v2"},
        "rollback_job": {},
        "cancel_job": {},
    }.items():
        assert rig.engine().preview(ask(runbook, job=JOB, **values), user), runbook
    with pytest.raises(RefusedError, match="running"):
        rig.engine().preview(ask("start_job", job=JOB), user)
    assert {info.key for info in rig.store.list("jobs/")} == written


@pytest.mark.full
def test_a_restore_brings_back_a_job_whose_checkpoint_lost_an_object(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    rig.run("snapshot_job", snapshot="kept")
    rig.commits_more()
    launch = rig.record().launch
    jobs.tell(rig.store, JOB, launch, Control(command="stop", operation="lost"))  # stands for its failure
    rig.wait(lambda: jobs.status(rig.store, JOB, launch).state is State.STOPPED, "the end of the driver")
    prefix = checkpoints.current_epoch_prefix(rig.store, JOB, 1)
    rig.root.delete([f"{prefix}a/metadata"])
    operation = rig.run("restore_job", snapshot="kept")
    assert operation.facts("check")["running"] is False
    assert operation.facts("check")["cost"]["exact"] is False
    assert (rig.record().version, rig.record().deployment) == ("v1", 2)
    rig.commits_more()
    assert rig.recount("a")


@pytest.mark.full
def test_a_stopped_job_is_rolled_back_too_and_runs_then(rig: Rig) -> None:
    upgraded(rig)
    rig.run("cancel_job")
    operation = rig.run("rollback_job")
    assert operation.facts("reserve")["cold"] is True
    assert (rig.record().version, rig.record().desired) == ("v1", "running")
    rig.commits_more()
    assert rig.recount("a")


@pytest.mark.full
def test_a_driver_that_does_not_answer_is_no_obstacle(rig: Rig) -> None:
    upgraded(rig)
    rig.cluster.end()
    operation = rig.run("rollback_job", stop_timeout_s=5)
    assert operation.facts("await_stop")["stopped"] is False
    rig.commits_more()
    assert rig.recount("a")
    assert rig.drivers_that_write()[-1] == rig.record().launch


@pytest.mark.full
def test_a_way_back_that_fails_leaves_the_newer_version_running_from_its_own_checkpoint(rig: Rig) -> None:
    upgraded(rig)
    rig.cluster.behaviour["v1"] = "dies"
    with pytest.raises(UnhealthyError, match="the first batch failed"):
        rig.run("rollback_job")
    record = rig.record()
    assert (record.version, record.deployment, record.desired) == ("v2", 2, "running")
    rig.commits_more("b")
    rig.recount("a")
