"""What a job writes over or removes again and again for months does not pile up, on a real object store."""

from __future__ import annotations

from collections import Counter

import pytest

from fakes import object_server
from fakes.rig import JOB, Rig
from streamops.clients import provision
from streamops.model.errors import ConflictError, NotFoundError
from streamops.model.names import CLUSTER
from streamops.model.records import Control, JobRecord
from streamops.settings import Settings
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore

UNVERSIONED = {
    "status": keys.status(JOB, "l-1"),
    "second driver": keys.second_driver(JOB, "l-1"),
    "lease": keys.lease(JOB),
    "lock": keys.lock(JOB),
    "cluster's lock": keys.lock(CLUSTER),
    "schedule": keys.snapshot_schedule(JOB),
    "checkpoint": f"{keys.stage(JOB, 1, 1, 'a')}offsets/0",
    "warm-up": f"{keys.warm_up(JOB, 'l-1')}a/offsets/0",
    "log": keys.log_chunk(JOB, "20260101-d", 1),
}
KEPT = {
    "record": keys.record(JOB),
    "deployment": keys.deployment(JOB, 1),
    "operation": keys.operation(JOB, "deploy-1"),
    "manifest": keys.manifest(JOB, "s"),
    "snapshot's data": f"{keys.snapshot_data(JOB, 'attempt-1', 'a')}metadata",
    "artifact": keys.artifact(JOB, "v1", "a" * 64),
    "cluster": keys.CLUSTER_RECORD,
    "inventory": keys.INVENTORY,
}


def versions(store: ObjectStore, key: str) -> int:
    return sum(not version.marker for version in store.versions(key))


@pytest.mark.parametrize("key", UNVERSIONED.values(), ids=list(UNVERSIONED))
def test_what_comes_and_goes_leaves_nothing_behind_and_is_as_conditional_as_ever(bucket: Settings, key: str) -> None:
    store = ObjectStore(object_server.as_root(bucket))
    first = etag = documents.write(store, key, Control(command="run", sequence=0), new=True)
    for sequence in range(1, 20):
        etag = documents.write(store, key, Control(command="run", sequence=sequence), over=etag)
    assert versions(store, key) == 1
    with pytest.raises(ConflictError):
        store.put(key, b"late", if_match=first)
    with pytest.raises(ConflictError):
        store.put(key, b"second", if_absent=True)
    assert documents.read(store, key, Control).value.sequence == 19

    store.delete([key])
    with pytest.raises(NotFoundError):
        store.get(key)
    assert list(store.versions(key)) == []
    documents.write(store, key, Control(command="stop"), new=True)
    assert documents.read(store, key, Control).value.command == "stop"
    assert versions(store, key) == 1


@pytest.mark.parametrize("key", KEPT.values(), ids=list(KEPT))
def test_what_may_have_to_be_put_back_keeps_what_it_was(bucket: Settings, key: str) -> None:
    store = ObjectStore(object_server.as_root(bucket))
    for body in (b"first", b"second"):
        store.put(key, body)
    old = min(store.versions(key), key=lambda version: version.modified)
    assert (versions(store, key), store.get(key, old.version_id).body) == (2, b"first")


@pytest.mark.full
def test_a_job_that_runs_writes_no_object_again_and_again_that_keeps_its_versions(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=3)
    rig.run("snapshot_job", snapshot="s")
    rig.commits_more(windows=3)
    assert all(version.latest and not version.marker for version in rig.store.versions("checkpoints/"))
    counted = Counter(version.key for version in rig.store.versions("") if not version.marker)
    often = {key: count for key, count in counted.items() if count > 5 and "/operations/" not in key}
    assert often == {}
    assert counted[keys.status(JOB, rig.record().launch)] == 1
    assert counted[keys.lease(JOB)] == 1


def test_a_server_that_cannot_tell_prefixes_apart_versions_everything(
    bucket: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "UNVERSIONED", tuple(f"jobs/{n}/" for n in range(11)))  # MinIO takes ten
    settings = object_server.as_root(bucket).model_copy(update={"s3_bucket": f"{bucket.s3_bucket}-all"})
    assert provision.ensure_bucket(settings)
    store = ObjectStore(settings)
    for number in range(2):
        documents.write(store, "jobs/1/record.json", JobRecord(job="j", deployment=number))
    assert versions(store, "jobs/1/record.json") == 2


def test_a_bucket_that_has_versions_keeps_them_for_a_deletion_would_bring_an_earlier_one_back(
    bucket: Settings,
) -> None:
    settings = object_server.as_root(bucket).model_copy(update={"s3_bucket": f"{bucket.s3_bucket}-old"})
    client = object_server.client(settings)
    client.create_bucket(Bucket=settings.s3_bucket)
    client.put_bucket_versioning(Bucket=settings.s3_bucket, VersioningConfiguration={"Status": "Enabled"})
    store, key = ObjectStore(settings), keys.lease(JOB)
    etag = documents.write(store, key, Control(command="run", sequence=0), new=True)
    assert not provision.ensure_bucket(settings)
    documents.write(store, key, Control(command="run", sequence=1), over=etag)
    store.delete([key])
    with pytest.raises(NotFoundError):
        store.get(key)
    assert versions(store, key) == 2


def test_a_start_that_died_after_it_made_the_bucket_is_finished_by_the_next(bucket: Settings) -> None:
    settings = object_server.as_root(bucket).model_copy(update={"s3_bucket": f"{bucket.s3_bucket}-half"})
    object_server.client(settings).create_bucket(Bucket=settings.s3_bucket)
    for _ in range(2):
        assert not provision.ensure_bucket(settings)
    store = ObjectStore(settings)
    for key, left in ((keys.lease(JOB), 1), (keys.record(JOB), 2)):
        for body in (b"first", b"second"):
            store.put(key, body)
        assert versions(store, key) == left


def test_old_versions_go_after_days_that_everybody_can_read(bucket: Settings) -> None:
    found = object_server.client(object_server.as_root(bucket)).get_bucket_lifecycle_configuration(
        Bucket=bucket.s3_bucket
    )
    days = {rule["Filter"]["Prefix"]: rule["NoncurrentVersionExpiration"]["NoncurrentDays"] for rule in found["Rules"]}
    assert days == keys.OLD_VERSIONS_DAYS
