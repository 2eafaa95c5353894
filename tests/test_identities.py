"""The identities at a real object store: each is refused what it must not do, and what was written over survives.

That each may do what its work needs is shown by every other test that uses ``Rig``, ``Shelf`` or ``bucket``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from pydantic import SecretStr

from fakes import object_server
from fakes.shelf import JOB, Shelf
from stack import configure, private, ready
from stack.layout import Layout
from streamops import snapshots
from streamops.clients.provision import Identity, ensure_identities
from streamops.model.errors import DeniedError, StreamOpsError
from streamops.settings import Settings
from streamops.snapshots import marks, verification
from streamops.store import identities, keys
from streamops.store.object_store import ObjectStore
from streamops.store.room import free_bytes

CHECKPOINT = f"{keys.stage(JOB, 1, 1, 'a')}metadata"
READABLE = f"{keys.stage(JOB, 1, 1, 'a')}offsets/0"
DATA = f"{keys.snapshot_data(JOB, 'attempt-1', 'a')}metadata"
PLACES = {  # one key of each kind
    "snapshot's data": DATA,
    "manifest": keys.manifest(JOB, "s"),
    "removed": keys.removed_snapshot(JOB, "gone"),
    "pin": keys.snapshot_pin(JOB, "s"),
    "artifact": keys.artifact(JOB, "v1", "a" * 64),
    "runtime": keys.runtime("r" * 64),
    "library": keys.library("shared", "v1", "a" * 64),
    "checkpoint": CHECKPOINT,
    "record": keys.record(JOB),
    "deployment": keys.deployment(JOB, 1),
    "control": keys.control(JOB, "l-1"),
    "status": keys.status(JOB, "l-1"),
    "second": keys.second_driver(JOB, "l-1"),
    "warm-up": f"{keys.warm_up(JOB, 'l-1')}a/metadata",
    "lease": keys.lease(JOB),
    "results": keys.results(JOB, "a"),
    "log": keys.log_chunk(JOB, "20260101-d", 1),
    "lock": keys.lock(JOB),
    "receipt": keys.receipt(JOB, "deploy-1"),
    "operation": keys.operation(JOB, "deploy-1"),
    "told": keys.told(JOB, "deploy-1"),
    "rehearsal": keys.rehearsal(JOB, "rehearse-1"),
    "cluster": keys.CLUSTER_RECORD,
    "inventory": keys.INVENTORY,
}
EVERYTHING = set(PLACES)
UNVERSIONED = {"checkpoint", "warm-up", "control", "status", "second", "results", "log", "lease", "lock"}
MAY_WRITE = {
    "jobs": {"checkpoint", "warm-up", "lease", "status", "second", "results", "log"},
    "operations": EVERYTHING,
    "retention": {"manifest", "removed", "lock"},
}
MAY_DELETE = {
    "jobs": {"checkpoint", "warm-up", "second", "log"},
    "operations": set[str](),
    "retention": EVERYTHING - {"runtime", "library", "lock", "receipt", "operation", "told", "cluster", "inventory"},
}


class Installation(Shelf):
    """A job with a snapshot and something of every other kind; and who works on it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.batches(6)
        self.manifest = self.take("s")
        for key in PLACES.values():
            if not self.root.exists(key):
                self.root.put(key, b"there")
        self.who = {
            "jobs": object_server.as_job(settings),
            "operations": settings,
            "retention": settings.for_retention(),
        }

    def store_of(self, who: str) -> ObjectStore:
        return ObjectStore(self.who[who])

    def versions(self, key: str) -> list[Any]:
        return [version for version in self.root.versions(key) if version.key == key]


@pytest.fixture
def here(bucket: Settings) -> Installation:
    return Installation(bucket)


def denied(action: Callable[[], object]) -> bool:
    """Whether the object store refuses, for want of a right and for nothing else."""
    try:
        action()
    except DeniedError:
        return True
    except ClientError as error:
        if error.response["Error"]["Code"] != "AccessDenied":
            raise
        return True
    return False


@pytest.mark.parametrize("who", identities.NAMES)
def test_an_identity_writes_its_own_and_nothing_else(here: Installation, who: str) -> None:
    store = here.store_of(who)
    for name, key in PLACES.items():
        before = here.versions(key)
        ways = (lambda key=key: store.put(key, b"?"), lambda key=key: store.copy(READABLE, key, 1))
        assert [denied(way) for way in ways] == [name not in MAY_WRITE[who]] * 2, name
        assert len(here.versions(key)) == len(before) + (2 if name in MAY_WRITE[who] - UNVERSIONED else 0)


@pytest.mark.parametrize("who", identities.NAMES)
def test_an_identity_deletes_its_own_and_nothing_else(here: Installation, who: str) -> None:
    store, client = here.store_of(who), object_server.client(here.who[who])
    for name, key in PLACES.items():
        many = {"Objects": [{"Key": key}]}
        answer = client.delete_objects(Bucket=store.bucket, Delete=many)
        refused = [error["Code"] for error in answer.get("Errors", ())] == ["AccessDenied"]
        assert refused == denied(lambda key=key: store.delete([key])) == (name not in MAY_DELETE[who]), name
        assert here.root.exists(key) == refused


@pytest.mark.parametrize("who", ["jobs", "operations"])
def test_only_retention_deletes_a_version_not_even_drivers_one_of_their_checkpoints(
    here: Installation, who: str
) -> None:
    store, client = here.store_of(who), object_server.client(here.who[who])
    for name, key in PLACES.items():
        here.overwrite(key, b"newer")
        if name not in UNVERSIONED:
            here.root.delete([key])
        kept = here.versions(key)
        assert len(kept) == (1 if name in UNVERSIONED else 3)
        assert denied(lambda kept=kept: store.delete_versions(kept)), name
        for version in kept:
            single = {"Bucket": store.bucket, "Key": key, "VersionId": version.version_id}
            assert denied(lambda single=single: client.delete_object(**single)), name
        assert here.versions(key) == kept
    here.retention.delete_versions(here.versions(DATA))
    assert not here.versions(DATA)


@pytest.mark.parametrize("who", ["jobs", "operations"])
def test_minios_own_way_to_delete_all_versions_at_once_is_refused_too(here: Installation, who: str) -> None:
    client = object_server.client(here.who[who])
    forced = {"x-minio-force-delete": "true"}
    client.meta.events.register("before-call.s3.DeleteObject", lambda params, **_: params["headers"].update(forced))
    before = list(here.root.versions("snapshots/"))
    for key in ("snapshots/", f"snapshots/{JOB}/", DATA, keys.manifest(JOB, "s"), "artifacts/", "jobs/"):
        assert denied(lambda key=key: client.delete_object(Bucket=here.settings.s3_bucket, Key=key)), key
    assert list(here.root.versions("snapshots/")) == before


@pytest.mark.parametrize("who", identities.NAMES)
def test_only_the_stack_changes_the_bucket_and_the_identities(here: Installation, who: str) -> None:
    settings, client = here.who[who], object_server.client(here.who[who])
    name = settings.s3_bucket
    everything = json.dumps(identities.policy("retention", name))
    for forbidden in (
        lambda: client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Suspended"}),
        lambda: client.put_bucket_lifecycle_configuration(Bucket=name, LifecycleConfiguration={"Rules": [
            {"ID": "x", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 1}}
        ]}),
        lambda: client.put_bucket_policy(Bucket=name, Policy=everything),
        lambda: client.create_bucket(Bucket="another"),
        lambda: client.delete_bucket(Bucket=name),
    ):  # fmt: skip
        assert denied(forbidden)
    more = Identity("someone-more", SecretStr("0" * 40), identities.policy("retention", name))
    with pytest.raises(StreamOpsError, match=r"refused its identities .*AccessDenied"):
        ensure_identities(settings, {"more": more})


def test_minio_cannot_be_told_that_who_may_create_an_object_must_not_write_over_one(bucket: Settings) -> None:
    """When a newer one can, operations need not be able to write over a snapshot: docs/adr/0011."""
    root, policy = object_server.as_root(bucket), identities.policy("operations", bucket.s3_bucket)
    policy["Statement"].append(
        {
            "Effect": "Deny",
            "Action": ["s3:PutObject"],
            "Resource": [f"arn:aws:s3:::{bucket.s3_bucket}/{keys.SNAPSHOTS}*"],
            "Condition": {"Null": {"s3:if-none-match": "true"}},
        }
    )
    with pytest.raises(StreamOpsError, match="invalid condition key 's3:if-none-match'"):
        ensure_identities(root, {"operations": Identity("creator", SecretStr("0" * 40), policy)})


UNSEEN = {"snapshot's data", "manifest", "removed", "pin", "inventory"}


def test_drivers_neither_read_nor_list_snapshots(here: Installation) -> None:
    driver, client = here.driver, object_server.client(here.who["jobs"])
    for name, key in PLACES.items():
        assert denied(lambda key=key: driver.get(key)) == denied(lambda key=key: driver.head(key)) == (name in UNSEEN)
        if name not in UNVERSIONED:
            here.overwrite(key, b"newer")
        for version in here.versions(key):
            way = lambda version=version: driver.get(version.key, version.version_id)  # noqa: E731
            assert denied(way) == (name in UNSEEN), name  # MinIO cannot tell a newest version from the others
    for prefix in ("", "snapshots/", "cluster/", "job"):
        assert denied(lambda prefix=prefix: list(driver.list(prefix))), prefix
        assert denied(lambda prefix=prefix: list(driver.versions(prefix))), prefix
    assert denied(lambda: client.list_multipart_uploads(Bucket=driver.bucket))
    for prefix in (keys.stage(JOB, 1, 1, "a"), keys.launches(JOB), keys.versions(JOB)):
        assert list(driver.list(prefix)), prefix


def test_nobody_of_one_installation_is_anybody_in_another(here: Installation, bucket: Settings) -> None:
    elsewhere = object_server.fresh_bucket(bucket)
    for settings in (elsewhere, elsewhere.for_retention(), object_server.as_job(elsewhere)):
        stranger = ObjectStore(settings.model_copy(update={"s3_bucket": bucket.s3_bucket}))
        assert denied(lambda stranger=stranger: stranger.get(CHECKPOINT))
        assert denied(lambda stranger=stranger: list(stranger.list("")))


def test_what_was_written_over_or_deleted_is_restored_from_its_version(here: Installation) -> None:
    store, manifest = here.store, here.manifest
    over, hidden, *_ = [item for item in manifest.objects if item.path.endswith(".changelog")]
    store.put(over.key, b"someone else's")  # which no one can forbid to who may create snapshots
    here.root.delete([hidden.key])
    snapshots.verify(store, manifest)
    target = keys.epoch(JOB, 2, 1)
    assert snapshots.restore(store, manifest, target) == {"a": 5, "b": 5}
    for item in manifest.objects:
        assert here.driver.head(f"{target}{item.stage}/{item.path}").sha256 == item.sha256
    said: list[str] = []
    check = verification.verify(store, JOB, "s", said.append)  # it is told, because no one should do it
    assert check.problem == ""
    assert check.details == f"{over.key} and 1 more overwritten or deleted since; the snapshot's own versions are used"
    assert any(over.key in line for line in said)
    second = here.take("t")  # and may be shared by the next one
    assert {over.key, hidden.key} <= {item.key for item in second.objects}
    snapshots.verify(store, second)


def test_an_installation_with_one_identity_works_on(bucket: Settings) -> None:
    one = object_server.as_root(bucket).model_copy(
        update={"s3_retention_access_key": "", "s3_retention_secret_key": SecretStr("")}
    )
    assert one.for_retention() is one
    shelf = Shelf(one)
    shelf.batches(2)
    shelf.take("s")
    snapshots.remove(ObjectStore(one.for_retention()), JOB, "s", "test", "ada")
    assert not snapshots.list(shelf.store, JOB)


def test_a_removal_by_operations_is_refused_and_the_snapshot_stays(here: Installation) -> None:
    with pytest.raises(DeniedError, match="retention identity"):
        snapshots.remove(here.store, JOB, "s", "test", "ada")
    assert [item.name for item in snapshots.list(here.store, JOB)] == ["s"]
    marks.pin(here.store, JOB, "s", "kept", "ada")
    with pytest.raises(DeniedError):
        marks.unpin(here.store, JOB, "s")
    assert marks.unpin(here.retention, JOB, "s")


def test_operations_are_told_how_much_room_there_is(bucket: Settings) -> None:
    assert (free_bytes(bucket) or 0) > 1 << 20
    assert free_bytes(object_server.as_job(bucket)) is None


def pairs_of(layout: Layout, settings: Settings) -> dict[str, str]:
    """A stack's private file as it is written, with the address of this server."""
    pairs = private.prepare_env(layout, layout.home / "spark") | {"S3_ENDPOINT": settings.s3_endpoint}
    private.write_private(layout.env_file, private.render_pairs("", pairs))
    return pairs


def test_the_stack_gives_an_old_server_its_identities_and_its_first_credential_becomes_operations(
    tmp_path: Path,
) -> None:
    layout = Layout(tmp_path / "stack", 0)
    layout.env_file.parent.mkdir(parents=True)
    # As it was when there was one identity, which was root.
    old = {"S3_ACCESS_KEY": "streamops-0000", "S3_SECRET_KEY": "0" * 40}
    private.write_private(layout.env_file, private.render_pairs("", old))
    with object_server.running(tmp_path, old["S3_ACCESS_KEY"], old["S3_SECRET_KEY"]) as settings:
        pass
    pairs = private.prepare_env(layout, tmp_path / "spark")
    assert old.items() <= pairs.items()
    with object_server.running(tmp_path, pairs["MINIO_ROOT_USER"], pairs["MINIO_ROOT_PASSWORD"]) as settings:
        pairs_of(layout, settings)
        for _ in range(2):  # at every start
            assert ready.minio(layout) == ""
        found = Settings.load(layout.env_file)
        assert (found.s3_access_key, found.s3_secret_key.get_secret_value()) == tuple(old.values())
        store, retention = ObjectStore(found), ObjectStore(found.for_retention())
        store.put(keys.manifest(JOB, "s"), b"kept")
        assert denied(lambda: store.delete([keys.manifest(JOB, "s")]))
        retention.delete([keys.manifest(JOB, "s")])
        configure.write_all(layout, pairs_of(layout, settings))
        driver = ObjectStore(Settings.load(layout.node / "node.env"))
        driver.put(keys.status(JOB, "l"), b"fine")
        assert denied(lambda: driver.put(keys.manifest(JOB, "s"), b"?"))
        there = {"s3_bucket": pairs["S3_LOGS_BUCKET"], "s3_endpoint": settings.s3_endpoint}
        mine = {"s3_access_key": pairs["S3_LOGS_ACCESS_KEY"], "s3_secret_key": SecretStr(pairs["S3_LOGS_SECRET_KEY"])}
        ObjectStore(found.model_copy(update=there | mine)).put("attempt=1.log", b"said")
        for other in (found, found.for_retention(), Settings.load(layout.node / "node.env")):
            assert denied(lambda other=other: ObjectStore(other.model_copy(update=there)).get("attempt=1.log"))


def test_each_secret_is_only_where_it_is_needed(tmp_path: Path) -> None:
    layout = Layout(tmp_path, 0)
    pairs = private.prepare_env(layout, tmp_path / "spark")
    assert private.prepare_env(layout, tmp_path / "spark") == pairs
    configure.write_all(layout, pairs)
    holders = {
        name: {
            path.relative_to(tmp_path).as_posix()
            for path in tmp_path.rglob("*")
            if path.is_file() and pairs[name] in path.read_text()
        }
        - {layout.env_file.relative_to(tmp_path).as_posix()}
        for name in (
            "MINIO_ROOT_PASSWORD",
            "S3_SECRET_KEY",
            "S3_RETENTION_SECRET_KEY",
            "S3_JOBS_SECRET_KEY",
            "S3_LOGS_SECRET_KEY",
            "SPARK_SECRET",
            "SNAPSHOT_KEYS",
            "INFLUX_TOKEN",
        )
    }
    airflow = "airflow/connections.json"
    assert holders == {
        "MINIO_ROOT_PASSWORD": {"run/minio.env"},
        "S3_SECRET_KEY": {airflow},
        "S3_RETENTION_SECRET_KEY": {airflow},
        "S3_JOBS_SECRET_KEY": {"node/node.env", "node/credentials"},
        "S3_LOGS_SECRET_KEY": {airflow},
        "SPARK_SECRET": {"node/spark-defaults.conf", "submit-conf/spark-defaults.conf"},
        "SNAPSHOT_KEYS": {airflow},
        "INFLUX_TOKEN": {airflow},
    }
    assert len({pairs[name] for name in holders}) == len(holders)
    assert not [path for paths in holders.values() for path in paths if os.stat(tmp_path / path).st_mode & 0o077]
