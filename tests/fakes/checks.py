"""What must hold of a job on the rig, whatever was killed: each check raises where it does not.

``test_rig_checks.py`` plants what each of them has to find.
"""

from __future__ import annotations

from fakes.rig import JOB, Rig
from streamops import snapshots
from streamops.model.records import FINAL
from streamops.store import jobs, keys, locks


def one_writer(rig: Rig, version: str, deployment: int | None = None) -> None:
    """Exactly one driver works, the record names it, and every event counted once."""
    record = rig.record()
    assert (record.desired, record.version) == ("running", version)
    assert record.standby is None
    if deployment is not None:
        assert record.deployment == deployment
    writes_alone(rig)
    rig.commits_more(windows=1)
    true_record(rig)
    rig.recount("a")


def untouched_by(rig: Rig, deployment: int) -> None:
    """Of a version that was tried beside the one that runs, nothing is left but the number of its deployment."""
    assert rig.record().last_deployment in (deployment - 1, deployment)
    assert not list(rig.store.list(keys.checkpoints(JOB, deployment)))
    assert jobs.status(rig.store, JOB, rig.record().launch).state not in FINAL
    for info in rig.store.list(keys.every_result(JOB)):
        assert f"feed-{deployment}." not in info.key
        assert not info.key.endswith(".shadow.json"), info.key


def writes_alone(rig: Rig, seconds: float = 300) -> None:
    """No other driver than the one named in the record is at work."""
    rig.wait(lambda: rig.drivers_that_write() == [rig.record().launch], "one driver", seconds)


def true_record(rig: Rig) -> None:
    """The record, the lease and the driver say the same."""
    record, lease = rig.record(), jobs.lease(rig.store, JOB)
    status = jobs.status(rig.store, JOB, record.launch)
    assert lease is not None
    assert status is not None
    assert (lease.launch, lease.holder, lease.deployment) == (record.launch, status.holder, record.deployment)


def stopped(rig: Rig, desired: str, seconds: float = 300) -> None:
    """Nothing writes any more, and the record says so."""
    assert rig.record().desired == desired
    rig.wait(lambda: not rig.drivers_that_write(), "the end of all drivers", seconds)
    rig.recount("a")


def gone(rig: Rig, seconds: float = 300) -> None:
    """Nothing of the job writes or is left; what was done with it, and that nobody may write, is still recorded."""
    rig.wait(lambda: not rig.drivers_that_write(), "the end of all drivers", seconds)
    left = {info.key.split("/")[2] for info in rig.store.list(f"jobs/{JOB}/")}
    assert left <= {"lock.json", "lease.json", "operations", "receipts"}, left
    granted = jobs.lease(rig.store, JOB)
    assert granted is None or granted.holder is None, granted
    for kind in ("artifacts", "checkpoints", "snapshots"):
        assert not list(rig.store.list(f"{kind}/{JOB}/")), kind


def free(rig: Rig, *scopes: str) -> None:
    """The job, or each of the given scopes, can be operated on again."""
    for scope in scopes or (JOB,):
        lock = locks.read(rig.store, scope)
        assert lock is not None, scope
        assert lock.value.operation is None, scope


def snapshot_whole(rig: Rig, name: str | None) -> None:
    """The named snapshot is whole, and no part of an unfinished attempt is left."""
    if name is None:
        return
    manifest = snapshots.load(rig.store, JOB, name)
    snapshots.verify(rig.store, manifest)
    root = f"snapshots/{JOB}/data/"
    attempts = {info.key.removeprefix(root).split("/")[0] for info in rig.store.list(root)}
    kept = {item.attempt for item in snapshots.list(rig.store, JOB)}
    assert attempts == kept, f"exports that are no snapshots: {attempts - kept}"


def submitted_once(rig: Rig) -> None:
    """No launch was put on the cluster twice."""
    launches = [launch for launch, _ in rig.cluster.processes]
    assert len(launches) == len(set(launches)), "a launch was submitted twice"
