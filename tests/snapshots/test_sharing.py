"""A snapshot copies only what no earlier one of its deployment holds; taking one away never harms another."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fakes.shelf import JOB, Shelf
from streamops import snapshots
from streamops.model import records
from streamops.model.errors import NotFoundError, SnapshotExistsError, SnapshotRefusedError
from streamops.model.manifest import Manifest
from streamops.snapshots.removal import KEPT
from streamops.spark import checkpoints
from streamops.store import keys


@pytest.fixture
def shelf(bucket) -> Shelf:
    found = Shelf(bucket)
    found.batches(6)
    return found


def shared(first: Manifest, second: Manifest) -> set[str]:
    return {item.key for item in first.objects} & {item.key for item in second.objects}


def later(days: float):
    return records.now() + timedelta(days=days)


def test_a_second_snapshot_copies_only_what_is_new_and_restores_the_same(shelf: Shelf) -> None:
    first = shelf.take("one")
    assert first.copied() == first.objects
    again = shelf.take("same")  # nothing has happened meanwhile: no state file is copied
    assert {item.path for item in again.copied()} == {
        item.path for item in first.objects if not checkpoints.is_immutable(item.path)
    }
    shelf.batches(1)
    second = shelf.take("two")
    new = [item for item in second.copied() if checkpoints.is_immutable(item.path)]
    assert len(new) == 4  # a changelog with its sidecar, for each of two stages
    for manifest in (first, again, second):
        target = keys.epoch(JOB, 50 + len(manifest.name), 1)
        snapshots.restore(shelf.store, manifest, target)
        for item in manifest.objects:
            assert shelf.store.head(f"{target}{item.stage}/{item.path}").sha256 == item.sha256


def test_another_deployment_shares_nothing(shelf: Shelf) -> None:
    first = shelf.take("one")
    shelf.deploy(2)
    shelf.batches(6)
    assert not shared(first, shelf.take("two"))


def test_a_file_of_the_same_name_with_other_content_is_copied(shelf: Shelf) -> None:
    first = shelf.take("one")
    item = next(item for item in first.objects if item.path.endswith(".changelog"))
    source = keys.stage(JOB, 1, 1, item.stage) + item.path
    body = shelf.store.get(source).body
    shelf.overwrite(source, bytes([body[0] ^ 1]) + body[1:])
    second = shelf.take("two")
    assert item.key not in {other.key for other in second.objects}
    snapshots.verify(shelf.store, second)


@pytest.mark.parametrize("damage", ["lost", "altered", "rewritten"])
def test_a_damaged_object_is_named_with_all_who_need_it_and_never_shared_again(shelf: Shelf, damage: str) -> None:
    first, second = shelf.take("one"), shelf.take("two")
    victim = next(item for item in second.objects if item.key in shared(first, second))
    body = shelf.store.get(victim.key).body
    shelf.destroy(victim.key)
    if damage != "lost":
        shelf.overwrite(victim.key, body if damage == "rewritten" else body[::-1] + b"?")
    for manifest, other in ((first, "two"), (second, "one")):
        with pytest.raises(SnapshotRefusedError, match=rf"{victim.key} .*snapshots {other} need the same object"):
            snapshots.verify(shelf.store, manifest)
    third = shelf.take("three")
    snapshots.verify(shelf.store, third)
    fourth = shelf.take("four")  # and what three copied again is shared by four
    assert next(item for item in fourth.objects if item.path == victim.path and item.stage == victim.stage).key in {
        item.key for item in third.objects
    }


def test_a_removed_snapshot_harms_no_other_and_comes_back_whole(shelf: Shelf) -> None:
    first, second = shelf.take("one"), shelf.take("two")
    snapshots.remove(shelf.retention, JOB, "one", "test", "ada")
    snapshots.remove(shelf.retention, JOB, "one", "test", "ada")  # a retry
    assert [item.name for item in snapshots.list(shelf.store, JOB)] == ["two"]
    assert snapshots.remove_leftovers(shelf.retention, JOB) == 0
    with pytest.raises(NotFoundError):
        snapshots.load(shelf.store, JOB, "one")
    with pytest.raises(SnapshotExistsError, match="undelete"):
        snapshots.require_free_name(shelf.store, JOB, "one")
    assert [(item.name, item.record.reason) for item in snapshots.removed(shelf.store, JOB)] == [("one", "test")]
    assert snapshots.sweep(shelf.retention, JOB).versions == 0
    snapshots.verify(shelf.store, second)
    assert snapshots.undelete(shelf.retention, JOB, "one") == first
    assert snapshots.load(shelf.store, JOB, "one") == first
    snapshots.verify(shelf.store, first)
    assert not snapshots.removed(shelf.store, JOB)


def test_after_14_days_the_bytes_are_gone_except_what_others_need(shelf: Shelf) -> None:
    first = shelf.take("one")
    shelf.batches(1)
    second = shelf.take("two")
    both = shared(first, second)
    assert both
    everything = shelf.bytes_kept()
    snapshots.remove(shelf.retention, JOB, "one", "test", "ada")
    assert shelf.bytes_kept() == everything
    assert snapshots.sweep(shelf.retention, JOB, later(13.9)).versions == 0
    planned = snapshots.sweep(shelf.retention, JOB, later(14.1), apply=False)
    assert shelf.bytes_kept() == everything
    done = snapshots.sweep(shelf.retention, JOB, later(14.1))
    assert done == planned
    only_first = sum(item.size for item in first.objects if item.key not in both)
    assert (done.snapshots, done.size) == (("one",), only_first)
    assert shelf.bytes_kept() == everything - done.size == second.size
    snapshots.verify(shelf.store, second)
    with pytest.raises(NotFoundError):
        snapshots.undelete(shelf.retention, JOB, "one")
    snapshots.require_free_name(shelf.store, JOB, "one")
    snapshots.remove(shelf.retention, JOB, "two", "test", "ada")
    snapshots.sweep(shelf.retention, JOB, later(14.1))
    assert shelf.bytes_kept() == 0
    assert not list(shelf.store.versions(f"snapshots/{JOB}/"))  # manifests and marks as well


def test_leftovers_go_at_once_from_sight_and_for_good_after_14_days(shelf: Shelf) -> None:
    first = shelf.take("one")
    half = shelf.export("half", "gone")
    assert half.copied() != half.objects
    assert snapshots.remove_leftovers(shelf.retention, JOB, keep=("gone",)) == 0
    assert snapshots.remove_leftovers(shelf.retention, JOB) == len(half.copied())
    snapshots.verify(shelf.store, first)
    snapshots.sweep(shelf.retention, JOB, later(14.1))
    assert shelf.bytes_kept() == first.size
    snapshots.verify(shelf.store, first)


def test_what_a_swept_snapshot_shared_stays_when_leftovers_are_removed(shelf: Shelf) -> None:
    first, second = shelf.take("one"), shelf.take("two")
    snapshots.remove(shelf.retention, JOB, "one", "test", "ada")
    snapshots.sweep(shelf.retention, JOB, later(14.1))
    assert shared(first, second)
    assert snapshots.remove_leftovers(shelf.retention, JOB) == 0
    snapshots.verify(shelf.store, second)
    third = shelf.take("three")
    assert shared(first, third) == shared(first, second)
    snapshots.verify(shelf.store, third)


def test_a_draft_that_may_still_become_a_snapshot_keeps_what_it_shares(shelf: Shelf) -> None:
    shelf.take("one")
    draft = shelf.export("two", "pending")
    snapshots.remove(shelf.retention, JOB, "one", "test", "ada")
    body = draft.model_dump_json().encode()
    shelf.store.put(keys.snapshot_draft(JOB, "pending"), body)
    moment = later(0) + KEPT - timedelta(seconds=1)
    snapshots.sweep(shelf.retention, JOB, moment)
    snapshots.commit_manifest(shelf.store, draft)
    snapshots.verify(shelf.store, draft)


def test_nothing_is_swept_while_a_manifest_cannot_be_read(shelf: Shelf) -> None:
    first = shelf.take("one")
    shelf.take("two")
    snapshots.remove(shelf.retention, JOB, "one", "test", "ada")
    shelf.overwrite(keys.manifest(JOB, "two"), b"{}")
    done = snapshots.sweep(shelf.retention, JOB, later(20))
    assert (done.versions, "sums/two" in done.stopped_by) == (0, True)
    assert shelf.bytes_kept() >= first.size


def test_a_snapshot_half_way_back_counts_as_there(shelf: Shelf) -> None:
    first = shelf.take("one")
    body = shelf.store.get(keys.manifest(JOB, "one")).body
    snapshots.remove(shelf.retention, JOB, "one", "test", "ada")
    shelf.overwrite(keys.manifest(JOB, "one"), body)  # killed before the record of the removal went
    snapshots.sweep(shelf.retention, JOB, later(20))
    snapshots.verify(shelf.store, snapshots.load(shelf.store, JOB, "one"))
    assert not snapshots.removed(shelf.store, JOB)
    assert snapshots.load(shelf.store, JOB, "one") == first
