"""What is refused, on the real servers, before anything that runs is touched."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from streamops import jobs, snapshots
from streamops.adapters.influx import Points
from streamops.adapters.kafka import Ledger
from streamops.adapters.object_store import ObjectStore
from streamops.errors import (
    NotFoundError,
    RefusedError,
    SnapshotExistsError,
    SnapshotRefusedError,
    UnreachableError,
)

pytestmark = [pytest.mark.stack, pytest.mark.full]
CLOSED = "127.0.0.1:1"


@contextmanager
def untouched(job) -> Iterator[None]:
    """The job runs on as before: same driver, same epoch, no stop asked for, no snapshot more."""

    def state() -> tuple[Any, ...]:
        lease, record = jobs.lease(job.store, job.name), job.record()
        control = job.store.get(f"jobs/{job.name}/launches/{record.launch}/control.json").body
        names = [manifest.name for manifest in snapshots.list(job.store, job.name)]
        return record, lease.epoch, lease.holder, control, names

    before = state()
    yield
    assert state() == before
    assert job.runs(before[0].version)


@pytest.fixture
def kept(job, operator) -> str:
    name = f"kept-{uuid.uuid4().hex[:6]}"
    operator.run("snapshot_job", job.name, snapshot=name)
    return name


def test_unknown_names_are_refused(job, operator):
    with untouched(job):
        with pytest.raises(NotFoundError, match="no deployed job no-such-job"):
            operator.run("upgrade_job", "no-such-job", version="v1")
        with pytest.raises(NotFoundError, match=r"no version v99; published are .*v1"):
            operator.run("upgrade_job", job.name, version="v99")
        with pytest.raises(NotFoundError, match="no version v99"):
            operator.run("deploy_job", job.name, version="v99")


def test_another_version_over_a_running_one_and_a_name_in_use_are_refused(job, operator, kept):
    other = "v2" if job.record().version == "v1" else "v1"
    with untouched(job):
        with pytest.raises(RefusedError, match="upgrade_job"):
            operator.run("deploy_job", job.name, version=other)
        with pytest.raises(RefusedError, match="cancel"):
            operator.run("deploy_job", job.name, version=job.record().version, from_snapshot=kept)
        with pytest.raises(SnapshotExistsError, match=kept):
            operator.run("snapshot_job", job.name, snapshot=kept)
        with pytest.raises(SnapshotExistsError, match=kept):
            operator.run("upgrade_job", job.name, version=other, snapshot=kept)


def test_a_foreign_or_damaged_snapshot_is_refused(job, other, operator, kept):
    with untouched(job):
        with pytest.raises(SnapshotRefusedError, match="fork"):
            operator.run("deploy_job", other.name, version="v2", from_snapshot=f"{job.name}/{kept}")
        items = snapshots.load(job.store, job.name, kept).objects
        lost, altered = items[0], items[-1]
        body = job.store.get(altered.key).body
        job.store.put(altered.key, body[:-1] + b"?")  # written over: its version is still there
        snapshots.verify(job.store, snapshots.load(job.store, job.name, kept))
        job.destroy(altered.key)
        job.store.put(altered.key, body[:-1] + b"?")
        with pytest.raises(SnapshotRefusedError, match=altered.key.rsplit("/", 1)[1]):
            operator.run("deploy_job", other.name, version="v2", from_snapshot=f"{job.name}/{kept}", fork=True)
        job.destroy(lost.key)
        with pytest.raises(SnapshotRefusedError, match=f"{lost.key} is missing"):
            operator.run("deploy_job", other.name, version="v2", from_snapshot=f"{job.name}/{kept}", fork=True)
        assert jobs.record(job.store, other.name) is None
    job.root.delete([f"snapshots/{job.name}/manifests/{kept}.json"])  # so that later tests verify a good one last


def test_too_little_space_is_refused(job, operator):
    other = "v2" if job.record().version == "v1" else "v1"
    with untouched(job):
        for runbook, values in (("snapshot_job", {}), ("upgrade_job", {"version": other})):
            request, owner, name = operator.request(runbook, job.name, **values)
            with pytest.raises(SnapshotRefusedError, match=r"takes .* bytes .* free"):
                operator.engine(free_bytes=lambda: 1000).run(request, owner, name)
    assert (operator.ports().free_bytes() or 0) > 1000  # and MinIO really tells


@pytest.mark.parametrize("server", ["kafka", "object store", "influxdb", "spark"])
def test_a_server_that_does_not_answer_is_named(job, operator, server):
    settings = job.settings
    ports: dict[str, dict[str, Any]] = {
        "kafka": {"ledger": Ledger(settings.model_copy(update={"kafka_bootstrap_servers": CLOSED}), timeout_s=2)},
        "object store": {"store": ObjectStore(settings.model_copy(update={"s3_endpoint": f"http://{CLOSED}"}))},
        "influxdb": {"sinks_answer": Points(settings.model_copy(update={"influx_url": f"http://{CLOSED}"})).ping},
        "spark": {},
    }
    changes = ports[server]
    if server == "spark":
        from streamops.adapters.spark import SparkSubmitter

        changes = {"submitter": SparkSubmitter(settings.model_copy(update={"spark_ui": f"http://{CLOSED}"}))}
    other = "v2" if job.record().version == "v1" else "v1"
    request, owner, name = operator.request("upgrade_job", job.name, version=other)
    before = job.record()
    with pytest.raises(UnreachableError, match=f"(?i){server}.* at .*{CLOSED}"):
        operator.engine(**changes).run(request, owner, name)
    after = job.record()
    assert (after.launch, after.version, after.standby) == (before.launch, before.version, None)
    assert job.runs(before.version)
