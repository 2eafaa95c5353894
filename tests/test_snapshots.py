"""Snapshots on a real object store: whole or absent, never reused, and refused when anything is off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from fakes.fixtures import made_rig
from fakes.rig import JOB, SUM, Rig
from streamops import snapshots
from streamops.model.errors import SnapshotExistsError, SnapshotRefusedError
from streamops.model.manifest import Manifest
from streamops.model.records import StageStart
from streamops.settings import Settings
from streamops.snapshots import Origin
from streamops.store import jobs, keys
from streamops.store.object_store import Stored
from streamops.versions.fingerprints import Fingerprint

ORIGIN = Origin("op", "ada")


@contextmanager
def stopped(server: Settings, directory: Path) -> Iterator[tuple[Rig, Manifest]]:
    """A snapshot of a job that has stopped."""
    with made_rig(server, directory) as rig:
        rig.run("deploy_job", version="v1")
        rig.commits_more(windows=4)
        rig.run("snapshot_job", snapshot="s", cancel=True)
        yield rig, snapshots.load(rig.store, JOB, "s")


@pytest.fixture(scope="module")
def shared(object_store_server: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, Manifest]]:
    """One for all tests that leave it as it was."""
    with stopped(object_store_server, tmp_path_factory.mktemp("rig")) as found:
        yield found


@pytest.fixture
def taken(shared: tuple[Rig, Manifest]) -> Iterator[tuple[Rig, Manifest]]:
    """What a test has written of snapshots besides is gone afterwards."""
    rig, _ = shared
    before = {(version.key, version.version_id) for version in rig.root.versions("snapshots/")}
    yield shared
    rig.topic.first = 0
    written = [found for found in rig.root.versions("snapshots/") if (found.key, found.version_id) not in before]
    rig.root.delete_versions(written)


@pytest.fixture
def own(object_store_server: Settings, tmp_path: Path) -> Iterator[tuple[Rig, Manifest]]:
    """One of the test's own, to be damaged or started again."""
    with stopped(object_store_server, tmp_path) as found:
        yield found


def export(rig: Rig, name: str, attempt: str, **more: object) -> Manifest:
    made = snapshots.Export(rig.store, jobs.deployment(rig.store, JOB, 1), attempt, **more)
    return made.run(name, ["a"], ORIGIN, live=False)


def test_a_snapshot_says_what_it_is(taken: tuple[Rig, Manifest]) -> None:
    rig, manifest = taken
    stage = manifest.stages["a"]
    assert (manifest.version, manifest.deployment, manifest.live) == ("v1", 1, False)
    assert (manifest.requested_by, manifest.dag_run) == ("ada", "runbook/run-2")
    assert stage.start == StageStart(since_deployment=1, offsets={"events": {"0": 0}})
    assert stage.offsets["events"]["0"] > 0
    assert stage.watermark_ms is not None
    assert manifest.size == sum(rig.store.head(item.key).size for item in manifest.objects)
    assert all(len(item.sha256) == 64 and item.version_id for item in manifest.objects)
    assert manifest.shared_library is None
    assert list(manifest.fingerprints) == ["a"]
    assert Fingerprint.model_validate(manifest.fingerprints["a"]) == SUM
    assert manifest.signature.startswith("hmac-sha256:tests:")


def test_what_was_read_twice_is_equal_however_much_later() -> None:
    assert Stored(b"", "e", timedelta(0)) == Stored(b"", "e", timedelta(seconds=1))


def test_a_name_is_never_reused_and_the_first_is_unchanged(taken: tuple[Rig, Manifest]) -> None:
    rig, manifest = taken
    body = rig.store.get(keys.manifest(JOB, "s"))
    other = export(rig, "s", "second")
    with pytest.raises(SnapshotExistsError, match="never reused"):
        snapshots.commit_manifest(rig.store, other)
    assert rig.store.get(keys.manifest(JOB, "s")) == body
    snapshots.commit_manifest(rig.store, manifest)  # its own retry after a lost answer


def test_an_export_without_its_manifest_is_invisible_and_cleaned_up(taken: tuple[Rig, Manifest]) -> None:
    rig, manifest = taken
    export(rig, "half", "gone")
    assert [item.name for item in snapshots.list(rig.store, JOB)] == ["s"]
    assert snapshots.remove_leftovers(rig.retention, JOB) > 0
    assert not list(rig.store.list(f"snapshots/{JOB}/data/gone/"))
    snapshots.verify(rig.store, manifest)


def test_an_operation_that_may_not_delete_ends_well_and_leaves_them_to_retention(own: tuple[Rig, Manifest]) -> None:
    rig, _ = own
    export(rig, "half", "gone")
    rig.retention = rig.store  # someone has only the credentials of operations
    assert rig.run("start_job").state == "succeeded"
    assert any("of sums stay until retention frees them" in line for line in rig.said)
    assert list(rig.store.list(f"snapshots/{JOB}/data/gone/"))


def test_too_little_space_is_refused_with_the_numbers(taken: tuple[Rig, Manifest]) -> None:
    rig, manifest = taken
    with pytest.raises(SnapshotRefusedError, match=f"takes {manifest.size:,} bytes .* has 99 free"):
        export(rig, "big", "big", free_bytes=99)
    assert not list(rig.store.list(f"snapshots/{JOB}/data/big/"))


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "rewritten", "swapped"])
def test_a_damaged_object_is_named_before_anything_is_written(own: tuple[Rig, Manifest], damage: str) -> None:
    rig, manifest = own
    changelogs = [item for item in manifest.objects if item.path.endswith(".changelog")]
    victim, other = changelogs[0], manifest.objects[0]
    body = rig.store.get(victim.key).body
    source = rig.store.get(other.key).body
    rig.root.delete_versions(list(rig.root.versions(victim.key)))  # or it would be read by its version
    if damage != "missing":
        new = {
            "truncated": body[:-1], "flipped": bytes([body[0] ^ 1]) + body[1:], "rewritten": body, "swapped": source,
        }[damage]  # fmt: skip
        rig.store.put(victim.key, new)
    before = rig.record()
    with pytest.raises(SnapshotRefusedError, match=victim.key):
        rig.run("deploy_job", version="v2", from_snapshot="s")
    with pytest.raises(SnapshotRefusedError, match="nothing was touched"):
        snapshots.restore(rig.store, manifest, keys.epoch(JOB, 9, 1))
    assert not list(rig.store.list(keys.checkpoints(JOB, 9)))
    assert not list(rig.store.list(keys.checkpoints(JOB, 2)))
    assert rig.record() == before


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"job": "sums"}', b'{"job": "sums", "job": "sums"}'])
def test_a_manifest_that_is_none_is_refused_and_its_data_kept(taken: tuple[Rig, Manifest], body: bytes) -> None:
    rig, manifest = taken
    rig.store.put(keys.manifest(JOB, "s"), body)
    with pytest.raises(SnapshotRefusedError, match=r"damaged|not signed"):
        snapshots.load(rig.store, JOB, "s")
    assert snapshots.remove_leftovers(rig.retention, JOB) == 0
    assert rig.store.head(manifest.objects[0].key).size == manifest.objects[0].size


def test_a_manifest_moved_to_another_name_is_refused(taken: tuple[Rig, Manifest]) -> None:
    rig, _ = taken
    rig.store.copy(keys.manifest(JOB, "s"), keys.manifest(JOB, "t"), 1)
    with pytest.raises(SnapshotRefusedError, match="names itself sums/s"):
        snapshots.load(rig.store, JOB, "t")


def test_a_snapshot_that_retention_has_passed_is_refused(taken: tuple[Rig, Manifest]) -> None:
    rig, manifest = taken
    rig.topic.first = manifest.stages["a"].offsets["events"]["0"] + 5
    with pytest.raises(SnapshotRefusedError, match="5 events would be lost"):
        rig.run("deploy_job", version="v2", from_snapshot="s")


def test_two_snapshots_are_listed_the_oldest_first(taken: tuple[Rig, Manifest]) -> None:
    rig, manifest = taken
    second = export(rig, "a-later-one", "later")
    snapshots.commit_manifest(rig.store, second)
    assert [(item.name, item.job, item.size) for item in snapshots.list(rig.store)] == [
        ("s", JOB, manifest.size),
        ("a-later-one", JOB, second.size),
    ]
