"""What is refused while a job runs, before anything of it is touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fakes import checks
from fakes.fixtures import made_rig
from fakes.rig import JOB, Rig, patient
from streamops import snapshots
from streamops.clients.influx import Points
from streamops.clients.kafka import Ledger
from streamops.model.errors import (
    NotFoundError,
    RefusedError,
    SnapshotExistsError,
    SnapshotRefusedError,
    UnreachableError,
)
from streamops.settings import Settings
from streamops.spark.submitter import SparkSubmitter
from streamops.store import jobs, keys
from streamops.store.object_store import ObjectStore
from streamops.store.room import free_bytes

CLOSED = "127.0.0.1:1"
OTHER = "other"


@pytest.fixture(scope="module")
def running(object_store_server: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A job at work with a snapshot, and another one that is published only."""
    with made_rig(object_store_server, tmp_path_factory.mktemp("rig")) as rig:
        rig.publish("v1", ("a",), job=OTHER)
        rig.run("deploy_job", version="v1")
        rig.commits_more(windows=1)
        rig.run("snapshot_job", snapshot="kept")
        yield rig


@contextmanager
def untouched(rig: Rig) -> Iterator[None]:
    """The job runs on as before: same driver, same epoch, no stop asked for, no snapshot more."""

    def state() -> tuple[Any, ...]:
        lease, record = jobs.lease(rig.store, JOB), rig.record()
        assert lease is not None
        control = rig.store.get(keys.control(JOB, str(record.launch))).body
        names = [manifest.name for manifest in snapshots.list(rig.store, JOB)]
        return record, lease.epoch, lease.holder, control, names, len(rig.cluster.processes)

    before = state()
    yield
    assert state() == before
    checks.one_writer(rig, "v1", 1)
    checks.free(rig)


def ask(rig: Rig, runbook: str, job: str, **values: object) -> None:
    rig.engine().run(patient(runbook, job=job, **values), rig.owner(), f"{runbook}-{job}-{rig.count}")


def test_unknown_names_are_refused(running: Rig) -> None:
    with untouched(running):
        with pytest.raises(NotFoundError, match="no deployed job no-such-job"):
            ask(running, "upgrade_job", "no-such-job", version="v1")
        with pytest.raises(NotFoundError, match=r"no version v99; published are .*v1"):
            running.run("upgrade_job", version="v99")
        with pytest.raises(NotFoundError, match="no version v99"):
            running.run("deploy_job", version="v99")


def test_another_version_over_a_running_one_and_a_name_in_use_are_refused(running: Rig) -> None:
    with untouched(running):
        with pytest.raises(RefusedError, match="upgrade_job"):
            running.run("deploy_job", version="v2")
        with pytest.raises(RefusedError, match="cancel"):
            running.run("deploy_job", version="v1", from_snapshot="kept")
        with pytest.raises(SnapshotExistsError, match="kept"):
            running.run("snapshot_job", snapshot="kept")
        with pytest.raises(SnapshotExistsError, match="kept"):
            running.run("upgrade_job", version="v2", snapshot="kept")


def test_a_foreign_or_damaged_snapshot_is_refused(rig: Rig) -> None:
    rig.publish("v1", ("a",), job=OTHER)
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=1)
    rig.run("snapshot_job", snapshot="kept")
    fork = {"version": "v1", "from_snapshot": f"{JOB}/kept", "fork": True}
    with untouched(rig):
        with pytest.raises(SnapshotRefusedError, match="fork"):
            ask(rig, "deploy_job", OTHER, **{**fork, "fork": False})
        items = snapshots.load(rig.store, JOB, "kept").objects
        lost, altered = items[0], items[-1]
        body = rig.store.get(altered.key).body
        rig.store.put(altered.key, body[:-1] + b"?")  # written over: its version is still there
        snapshots.verify(rig.store, snapshots.load(rig.store, JOB, "kept"))
        destroy(rig, altered.key)
        rig.store.put(altered.key, body[:-1] + b"?")
        with pytest.raises(SnapshotRefusedError, match=altered.key.rsplit("/", 1)[1]):
            ask(rig, "deploy_job", OTHER, **fork)
        destroy(rig, lost.key)
        with pytest.raises(SnapshotRefusedError, match=f"{lost.key} is missing"):
            ask(rig, "deploy_job", OTHER, **fork)
        assert jobs.record(rig.store, OTHER) is None


def destroy(rig: Rig, key: str) -> None:
    """No version of it is left."""
    rig.root.delete_versions([version for version in rig.root.versions(key) if version.key == key])


@pytest.mark.parametrize(("runbook", "values"), [("snapshot_job", {}), ("upgrade_job", {"version": "v2"})])
def test_too_little_space_is_refused(running: Rig, runbook: str, values: dict[str, str]) -> None:
    with untouched(running), pytest.raises(SnapshotRefusedError, match=r"takes .* bytes .* free"):
        running.run(runbook, running.engine(free_bytes=lambda: 10), snapshot="big", **values)


@pytest.mark.parametrize("server", ["kafka", "object store", "influxdb", "spark"])
def test_a_server_that_does_not_answer_is_named(running: Rig, server: str) -> None:
    settings = running.settings
    changes: dict[str, dict[str, Any]] = {
        "kafka": {"ledger": Ledger(settings.model_copy(update={"kafka_bootstrap_servers": CLOSED}), timeout_s=2)},
        "object store": {"store": ObjectStore(settings.model_copy(update={"s3_endpoint": f"http://{CLOSED}"}))},
        "influxdb": {"sinks_answer": Points(settings.model_copy(update={"influx_url": f"http://{CLOSED}"})).ping},
        "spark": {"submitter": SparkSubmitter(settings.model_copy(update={"spark_ui": f"http://{CLOSED}"}))},
    }
    before = running.record()
    with pytest.raises(UnreachableError, match=f"(?i){server}.* at .*{CLOSED}"):
        running.run("upgrade_job", running.engine(**changes[server]), version="v2", snapshot="never")
    after = running.record()
    assert (after.launch, after.version, after.standby) == (before.launch, before.version, None)
    checks.one_writer(running, "v1", 1)


def test_the_object_store_tells_operations_how_much_room_it_has(bucket: Settings) -> None:
    assert (free_bytes(bucket) or 0) > 1000
