"""Kill every operation at every point of its plan, go on, and look at what is left.

The cases are made from the plans themselves, so a new step gets its kill points here by itself; a step that the engine
carries out without them fails ``test_every_step_has_its_kill_points``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fakes.rig import JOB, PATIENT, Killed, Rig
from streamops import jobs, locks, receipts, snapshots, undo
from streamops.errors import StreamOpsError
from streamops.operations import GOING_BACK, Operation, Owner, Request, plan
from streamops.records import FINAL

ASKED: dict[str, dict[str, object]] = {
    "deploy_job": {"version": "v1"},
    "start_job": {},
    "recover_job": {},
    "snapshot_job": {"snapshot": "s", "cancel": True},
    "cancel_job": {},
    "delete_job": {},
    "upgrade_job": {"version": "v2", "snapshot": "s"},
    "rollback_job": {},
    "restore_job": {"snapshot": "kept"},
}
BACK = [
    pytest.param(runbook, step.name, when, id=f"{runbook}-{step.name}-{when}")
    for runbook in GOING_BACK
    for step in plan(runbook)
    for when in ("before", "after")
]
CASES = [
    pytest.param(runbook, step.name, when, id=f"{runbook}-{step.name}-{when}")
    for runbook in ASKED
    for step in plan(runbook)
    for when in ("before", "after")
]
UPGRADE = [(step.name, when) for step in plan("upgrade_job") for when in ("before", "after")]
UNDO = [(name, when) for name in undo.BODIES if name != "leave" for when in ("before", "after")]


def killer(step: str, when: str) -> Callable[[str, str], None]:
    """Dies at one point."""

    def at_point(at: str, moment: str) -> None:
        if (at, moment) == (step, when):
            raise Killed(f"{when} {step}")

    return at_point


def asked(runbook: str) -> Request:
    return Request(runbook=runbook, job=JOB, **PATIENT, **ASKED[runbook])


def prepare(rig: Rig, runbook: str) -> None:
    """The job as the runbook expects it."""
    if runbook != "deploy_job":
        rig.run("deploy_job", version="v1")
        rig.commits_more(windows=1)
    if runbook == "start_job":
        rig.run("cancel_job")
    if runbook == "recover_job":
        rig.cluster.end()
    if runbook == "rollback_job":
        rig.run("upgrade_job", version="v2", snapshot="s")
        rig.commits_more("b", windows=1)
    if runbook == "restore_job":
        rig.run("snapshot_job", snapshot="kept")
        rig.commits_more(windows=1)


def assert_one_writer(rig: Rig, version: str, deployment: int | None = None) -> None:
    """Exactly one driver works, the record names it, and every event counted once."""
    record = rig.record()
    assert (record.desired, record.version) == ("running", version)
    assert record.standby is None
    if deployment is not None:
        assert record.deployment == deployment
    rig.wait(lambda: rig.drivers_that_write() == [record.launch], "one driver")
    rig.commits_more(windows=1)
    lease = jobs.lease(rig.store, JOB)
    status = jobs.status(rig.store, JOB, record.launch)
    assert lease is not None
    assert status is not None
    assert (lease.launch, lease.holder, lease.deployment) == (record.launch, status.holder, record.deployment)
    rig.recount("a")


def assert_stopped(rig: Rig, desired: str) -> None:
    """Nothing writes any more, and the record says so."""
    assert rig.record().desired == desired
    rig.wait(lambda: not rig.drivers_that_write(), "the end of all drivers")
    rig.recount("a")


def assert_gone(rig: Rig) -> None:
    """Nothing of the job writes or is left; what was done with it is still recorded."""
    rig.wait(lambda: not rig.drivers_that_write(), "the end of all drivers")
    left = {info.key.split("/")[2] for info in rig.store.list(f"jobs/{JOB}/")}
    assert left == {"lock.json", "operations", "receipts"}
    for kind in ("artifacts", "checkpoints", "snapshots"):
        assert not list(rig.store.list(f"{kind}/{JOB}/"))


def assert_free(rig: Rig) -> None:
    """The job can be operated on again."""
    lock = locks.read(rig.store, JOB)
    assert lock is not None
    assert lock.value.operation is None


@pytest.mark.parametrize("runbook", ASKED)
def test_every_step_has_its_kill_points(rig: Rig, runbook: str) -> None:
    prepare(rig, runbook)
    visited: list[tuple[str, str]] = []
    engine = rig.engine(lambda step, when: visited.append((step, when)))
    rig.tasks(engine, asked(runbook), rig.owner(), "op")
    assert visited == [(step.name, when) for step in plan(runbook) for when in ("before", "after")]


@pytest.mark.full
@pytest.mark.parametrize(("runbook", "step", "when"), CASES)
def test_a_killed_operation_goes_on_where_it_was(rig: Rig, runbook: str, step: str, when: str) -> None:
    prepare(rig, runbook)
    owner, request = rig.owner(), asked(runbook)
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer(step, when)), request, owner, "op")
    rig.tasks(rig.engine(), request, owner, "op")
    operation = rig.engine().find(JOB, "op")
    assert operation is not None
    assert operation.state == "succeeded"
    assert receipts.read(rig.store, JOB, "op") is not None
    assert_free(rig)
    if runbook == "upgrade_job":
        assert_one_writer(rig, "v2", 2)
    elif runbook in ("deploy_job", "start_job", "recover_job"):
        assert_one_writer(rig, "v1", 1)
    elif runbook in GOING_BACK:
        assert_one_writer(rig, "v1", 3 if runbook == "rollback_job" else 2)
    elif runbook == "delete_job":
        assert_gone(rig)
    else:
        assert_stopped(rig, "stopped" if runbook == "cancel_job" else "stopped-with-snapshot")
    assert_snapshot(rig, operation)
    launches = [launch for launch, _ in rig.cluster.processes]
    assert len(launches) == len(set(launches)), "a launch was submitted twice"


def assert_snapshot(rig: Rig, operation: Operation) -> None:
    """The named snapshot is whole, and no part of an unfinished attempt is left."""
    if operation.request.snapshot is None:
        return
    manifest = snapshots.load(rig.store, JOB, operation.request.snapshot)
    snapshots.verify(rig.store, manifest)
    root = f"snapshots/{JOB}/data/"
    assert {info.key.removeprefix(root).split("/")[0] for info in rig.store.list(root)} == {manifest.attempt}


@pytest.mark.full
@pytest.mark.parametrize(("step", "when"), UPGRADE)
def test_an_upgrade_marked_failed_anywhere_leaves_one_version_running(rig: Rig, step: str, when: str) -> None:
    prepare(rig, "upgrade_job")
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer(step, when)), asked("upgrade_job"), rig.owner(), "op")
    said = mark_failed(rig)
    operation = rig.engine().find(JOB, "op")
    assert operation is not None
    new = operation.done("probation")
    assert ("new version" in said) == new
    assert_one_writer(rig, "v2" if new else "v1")
    assert_free(rig)
    if snapshots.find(rig.store, JOB, "s"):
        snapshots.verify(rig.store, snapshots.load(rig.store, JOB, "s"))
    rig.run("snapshot_job", snapshot="next")


@pytest.mark.full
@pytest.mark.parametrize(("runbook", "step", "when"), BACK)
def test_going_back_marked_failed_anywhere_leaves_one_version_running(
    rig: Rig, runbook: str, step: str, when: str
) -> None:
    prepare(rig, runbook)
    before = rig.record()
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer(step, when)), asked(runbook), rig.owner(), "op")
    mark_failed(rig)
    operation = rig.engine().find(JOB, "op")
    assert operation is not None
    if operation.done("healthy"):
        assert_one_writer(rig, "v1", before.deployment + 1)
    else:
        assert_one_writer(rig, str(before.version), before.deployment)
    assert_free(rig)
    rig.run("snapshot_job", snapshot="next")


def mark_failed(rig: Rig) -> str:
    """The teardowns, as Airflow runs them."""
    engine = rig.engine()
    engine.fail(JOB, "op", "somebody marked the run failed")
    said = engine.undo(JOB, "op")
    engine.release(JOB, "op")
    return said


@pytest.mark.full
@pytest.mark.parametrize(("step", "when"), UNDO)
def test_a_killed_way_back_is_walked_to_its_end(rig: Rig, step: str, when: str) -> None:
    prepare(rig, "upgrade_job")
    rig.cluster.behaviour["v2"] = "dies"
    with pytest.raises(StreamOpsError):
        rig.tasks(rig.engine(), asked("upgrade_job"), rig.owner(), "op")
    engine = rig.engine(killer(f"undo:{step}", when))
    engine.fail(JOB, "op", "not healthy")
    with pytest.raises(Killed):
        engine.undo(JOB, "op")
    said = mark_failed(rig)
    assert "from the snapshot" in said
    assert_one_writer(rig, "v1", 3)
    snapshots.verify(rig.store, snapshots.load(rig.store, JOB, "s"))
    launches = [launch for launch, _ in rig.cluster.processes]
    assert len(launches) == len(set(launches)), "a launch was submitted twice"


@pytest.mark.full
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", ["dismiss", "leave"])
def test_a_job_that_was_found_stopped_is_left_stopped(rig: Rig, step: str, when: str) -> None:
    prepare(rig, "rollback_job")
    rig.run("cancel_job")
    before = rig.record()
    rig.cluster.behaviour["v1"] = "dies"
    with pytest.raises(StreamOpsError):
        rig.tasks(rig.engine(), asked("rollback_job"), rig.owner(), "op")
    engine = rig.engine(killer(f"undo:{step}", when))
    engine.fail(JOB, "op", "not healthy")
    with pytest.raises(Killed):
        engine.undo(JOB, "op")
    assert "nothing of it runs" in mark_failed(rig)
    assert_stopped(rig, "stopped")
    assert rig.record().model_copy(update={"changed_by": "", "last_deployment": 0}) == before.model_copy(
        update={"changed_by": "", "last_deployment": 0}
    )
    rig.cluster.behaviour.clear()
    rig.run("start_job")
    assert_one_writer(rig, "v2", 2)


def test_a_driver_that_died_before_the_stop_does_not_block_the_way_back(rig: Rig) -> None:
    prepare(rig, "upgrade_job")
    rig.cluster.end()
    request = asked("upgrade_job").model_copy(update={"stop_timeout_s": 5})
    with pytest.raises(StreamOpsError, match="Stop of sums took longer"):
        rig.engine().run(request, Owner(kind="cli", run_id="c", user="ada"), "op")
    assert_one_writer(rig, "v1", 1)
    old = jobs.status(rig.store, JOB, "deploy_job-1")
    assert old is not None
    assert old.state not in FINAL
