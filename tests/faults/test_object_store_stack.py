"""Fault 14: an object store that is slow, answers 5xx, or hides an error in a 200 copy answer."""

from __future__ import annotations

import uuid

import pytest

from fault_proxy import Faults, Proxy
from streamops import snapshots
from streamops.model.errors import SnapshotRefusedError, UnreachableError
from streamops.store import keys
from streamops.store.object_store import ObjectStore
from support import attempts, invariant, mark

pytestmark = [pytest.mark.stack, pytest.mark.full]


def through(job, proxy: Proxy) -> ObjectStore:
    return ObjectStore(job.settings.model_copy(update={"s3_endpoint": proxy.address}))


def export(job, operator, faults: Faults, name: str) -> None:
    with Proxy(job.settings.s3_endpoint, faults) as proxy:
        request, owner, operation = operator.request("snapshot_job", job.name, snapshot=name)
        operator.engine(store=through(job, proxy)).run(request, owner, operation)


def test_faults_that_pass_are_retried_and_the_snapshot_is_whole(job, operator, seed):
    start, name = mark(job), f"shaken-{uuid.uuid4().hex[:6]}"
    faults = Faults(seed, slow=0.05, unavailable=0.04, copy_error=0.05)
    export(job, operator, faults, name)
    assert all(faults.seen[fault] for fault in ("slow", "unavailable", "copy_error")), faults.seen
    manifest = snapshots.load(job.store, job.name, name)
    snapshots.verify(job.store, manifest)
    assert {item.stage for item in manifest.objects} == set(job.status().stages)
    invariant(job, start)


@pytest.mark.parametrize("fault", ["unavailable", "copy_error"])
def test_faults_that_stay_end_the_export_and_leave_no_snapshot(job, operator, fault):
    name = f"never-{uuid.uuid4().hex[:6]}"
    faults = Faults(1, copies_only=True, **{fault: 1.0})
    with pytest.raises(UnreachableError, match=r"did not serve .*retry"):
        export(job, operator, faults, name)
    objects = len(list(job.store.list(keys.checkpoints(job.name, job.record().deployment))))
    assert 4 <= faults.seen[fault] <= 4 * objects  # bounded: at most four tries of each
    assert snapshots.find(job.store, job.name, name) is None
    # The next one succeeds under the same name and clears what the first left.
    operator.run("snapshot_job", job.name, snapshot=name)
    found, kept = attempts(job)
    assert found == kept


def test_a_copy_with_another_hash_than_the_manifest_says_is_refused(job, operator):
    name = f"hashed-{uuid.uuid4().hex[:6]}"
    operator.run("snapshot_job", job.name, snapshot=name)
    manifest = snapshots.load(job.store, job.name, name)
    target = keys.epoch(job.name, 999_000, 1)
    with (
        Proxy(job.settings.s3_endpoint, Faults(1, wrong_hash=0.2)) as proxy,
        pytest.raises(SnapshotRefusedError, match="changed while"),
    ):
        snapshots.restore(through(job, proxy), manifest, target)
    assert not list(job.store.list(f"{target}ready.json"))
    job.root.delete([info.key for info in job.store.list(target)])
