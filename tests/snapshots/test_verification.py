"""Every object of a snapshot, wrong in every way, is found and named by reading back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from fakes.shelf import JOB, Shelf
from streamops import snapshots
from streamops.model import records
from streamops.model.definitions import Keep
from streamops.model.errors import SnapshotRefusedError, UnreachableError
from streamops.model.manifest import Manifest
from streamops.operations import housekeeping
from streamops.snapshots import marks, verification
from streamops.snapshots.difference import diff
from streamops.snapshots.marks import Check, Checks
from streamops.store import keys
from streamops.store.object_store import ObjectStore


@pytest.fixture
def shelf(bucket) -> Shelf:
    found = Shelf(bucket)
    found.batches(6)
    return found


def rows(shelf: Shelf, manifest: Manifest) -> list[tuple[str, str]]:
    return [(found.item.key, found.problem) for found in verification.read_back(shelf.store, manifest)]


@pytest.mark.full
@pytest.mark.parametrize("damage", ["truncated", "flipped", "swapped", "removed", "emptied", "same bytes again"])
def test_every_single_object_that_is_wrong_is_named(shelf: Shelf, damage: str) -> None:
    manifest = shelf.take("s")
    assert rows(shelf, manifest) == []
    assert len(manifest.objects) > 15
    bodies = {item.key: shelf.store.get(item.key).body for item in manifest.objects}
    named = set()
    for number, item in enumerate(manifest.objects):
        body, other = bodies[item.key], bodies[manifest.objects[number - 1].key]
        shelf.destroy(item.key)  # or the version that the manifest names would be read
        if damage != "removed":
            middle = len(body) // 2
            new = {
                "truncated": body[:-1],
                "flipped": body[:middle] + bytes([body[middle] ^ 4]) + body[middle + 1 :],
                "swapped": other,
                "emptied": b"",
                "same bytes again": body,
            }[damage]
            shelf.overwrite(item.key, new)
        found = rows(shelf, manifest.model_copy(update={"objects": (item,)}))
        assert [key for key, problem in found if problem.startswith(item.key)] == [item.key]
        named.add(item.key)
        plain = item.model_copy(update={"version_id": None})  # of an object store without versions
        told = rows(shelf, manifest.model_copy(update={"objects": (plain,)}))
        assert bool(told) == (damage != "same bytes again")
        with pytest.raises(SnapshotRefusedError, match=manifest.objects[0].key):  # a restore names the first
            snapshots.verify(shelf.store, manifest)
    assert named == set(bodies)
    assert len(rows(shelf, manifest)) == len(bodies)


def test_what_was_found_is_noted_and_shown_until_the_next_time(shelf: Shelf) -> None:
    manifest = shelf.take("s")
    said: list[str] = []
    check = verification.verify(shelf.store, JOB, "s", said.append)
    assert (check.how, check.problem, check.objects, check.size) == (
        "read back", "", len(manifest.objects), manifest.size,
    )  # fmt: skip
    assert "all good" in said[-1]
    victim = manifest.objects[3]
    shelf.alter(victim.key, b"?")
    with pytest.raises(SnapshotRefusedError, match=victim.key):
        verification.verify(shelf.store, JOB, "s", said.append)
    assert victim.key in said[-1]
    assert victim.key in marks.checks(shelf.store, JOB, "s", manifest.attempt).problem()
    shelf.take("t")
    gone = housekeeping.plan(shelf.store, JOB, Keep(last=5), records.now()).verdicts
    assert [(item.name, item.keep) for item in gone] == [("t", True), ("s", False)]
    bad = Check(how="read back", when=records.now(), attempt=snapshots.load(shelf.store, JOB, "t").attempt, problem="x")
    marks.note(shelf.store, JOB, "t", bad)
    verification.verify(shelf.store, JOB, "t")
    assert marks.checks(shelf.store, JOB, "t", bad.attempt).problem() == ""


def test_a_store_that_does_not_answer_says_nothing_about_a_snapshot(shelf: Shelf) -> None:
    manifest = shelf.take("s")
    nowhere = ObjectStore(shelf.settings.model_copy(update={"s3_endpoint": "http://127.0.0.1:1"}))
    with pytest.raises(UnreachableError):
        verification.read_back(nowhere, manifest)
    assert marks.checks(shelf.store, JOB, "s", manifest.attempt).last() is None


def test_notes_of_an_earlier_snapshot_of_the_name_do_not_count(shelf: Shelf) -> None:
    manifest = shelf.take("s")
    marks.note(shelf.store, JOB, "s", Check(how="read back", when=records.now(), attempt="older", problem="bad"))
    assert marks.checks(shelf.store, JOB, "s", manifest.attempt).last() is None


def test_never_read_comes_first_then_the_longest_ago(shelf: Shelf) -> None:
    base = shelf.export("x")
    now = records.now()

    def known(name: str, days: float | None, how: str = "read back"):
        manifest = base.model_copy(update={"name": name})
        when = None if days is None else now - timedelta(days=days)
        check = Check(how=how, when=when, attempt="a") if when else None
        return manifest, Checks(checks={how: check} if check else {})

    rows = [known("fresh", 1), known("old", 8), known("older", 30), known("never", None), known("only", 1, "state")]
    assert {item.name for item in verification.wanted(rows, now)[:2]} == {"never", "only"}
    assert [item.name for item in verification.wanted(rows, now)[2:]] == ["older", "old"]


def test_one_bad_snapshot_does_not_stop_the_others(shelf: Shelf) -> None:
    bad = shelf.take("bad")
    shelf.alter(next(item.key for item in bad.objects if item.path == "metadata"), b"?")
    shelf.batches(1)
    good = shelf.take("good")
    shelf.take("altered")
    shelf.overwrite(keys.manifest(JOB, "altered"), b"{}")
    said: list[str] = []
    wrong = verification.verify_due(shelf.store, [JOB], records.now(), say=said.append)
    assert len(wrong) == 2
    assert any("is not signed" in text for text in wrong)
    assert any("bad is not intact" in text for text in wrong)
    assert marks.checks(shelf.store, JOB, "good", good.attempt).last().problem == ""
    again = verification.verify_due(shelf.store, [JOB], records.now(), say=said.append)
    assert len(again) == 1  # read back a moment ago; only the manifest is complained about again


def test_two_snapshots_side_by_side(shelf: Shelf) -> None:
    first = shelf.take("one")
    shelf.batches(2)
    second = shelf.take("two")
    found = {item.stage: item for item in diff(first, second)}
    assert list(found) == ["a", "b"]
    one = found["a"]
    assert (one.first.batch, one.second.batch, one.events, one.same_query) == (5, 7, {"events": 14}, True)
    assert one.second.state_size == sum(
        item.size for item in second.objects if item.stage == "a" and item.path.startswith("state/")
    )
    same = diff(first, first)
    assert all(item.shared_objects == item.first.objects and item.events == {"events": 0} for item in same)
    gone = diff(first, second.model_copy(update={"stages": {"a": second.stages["a"]}}))
    assert [(item.stage, item.second is None) for item in gone] == [("a", False), ("b", True)]
