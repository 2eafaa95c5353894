"""Retention on a real object store: what holds a snapshot is found, the lock is honoured, and undoing works."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from fakes import shelf as shelves
from fakes.shelf import JOB, Shelf
from streamops import snapshots
from streamops.model import records
from streamops.model.definitions import Keep, parse
from streamops.model.errors import LockedError, RefusedError
from streamops.model.owner import Owner
from streamops.operations import housekeeping, needs, receipts
from streamops.operations.engine import AtPoint, Engine
from streamops.operations.follow import request as ask
from streamops.operations.operation import Operation
from streamops.snapshots import marks
from streamops.snapshots.marks import Check
from streamops.store import documents, jobs, keys, locks
from streamops.versions.artifacts import ArtifactManifest

ADA = Owner(kind="cli", run_id="x", user="ada")


def nobody(owner: Owner) -> None:
    return None


@pytest.fixture
def shelf(bucket) -> Shelf:
    found = Shelf(bucket)
    for number in range(1, 6):
        found.batches(1)
        found.take(f"s{number}")
    return found


def prune(shelf: Shelf, keep: Keep | None) -> dict[str, str]:
    asked = ask("apply_retention", job=JOB, keep=keep)
    done = shelves.engine(shelf.store, shelf.retention).run(asked, ADA, f"retention-{uuid.uuid4().hex[:8]}")
    return {item["name"]: item["why"] for item in done.facts("remove")["verdicts"] if not item["keep"]}


def remove(shelf: Shelf, name: str) -> None:
    """As the runbook does it."""
    asked = ask("manage_snapshot", job=JOB, action="remove", snapshot=name)
    shelves.engine(shelf.store, shelf.retention).run(asked, ADA, f"remove-{name}-{uuid.uuid4().hex[:4]}")


def names(shelf: Shelf) -> list[str]:
    return [item.name for item in snapshots.list(shelf.store, JOB)]


def test_a_dry_run_changes_nothing_and_says_what_the_run_then_does(shelf: Shelf) -> None:
    everything = [(info.key, info.etag) for info in shelf.store.list("")]
    planned = housekeeping.plan(shelf.store, JOB, Keep(last=2), records.now())
    assert [(info.key, info.etag) for info in shelf.store.list("")] == everything
    assert set(prune(shelf, Keep(last=2))) == {v.name for v in planned.verdicts if not v.keep} == {"s1", "s2", "s3"}
    assert names(shelf) == ["s4", "s5"]
    for name in names(shelf):
        snapshots.verify(shelf.store, snapshots.load(shelf.store, JOB, name))
    gone = snapshots.removed(shelf.store, JOB)
    assert {item.name for item in gone} == {"s1", "s2", "s3"}
    assert all("not kept by last 2" in item.record.reason for item in gone)
    assert not prune(shelf, Keep(last=2))
    snapshots.undelete(shelf.retention, JOB, "s2")
    snapshots.verify(shelf.store, snapshots.load(shelf.store, JOB, "s2"))


def test_what_is_pinned_in_use_or_the_only_good_one_stays(shelf: Shelf) -> None:
    marks.pin(shelf.store, JOB, "s1", "before the release", "ada")
    shelf.deploy(2, from_snapshot=f"{JOB}/s2")
    for name in ("s4", "s5"):
        attempt = snapshots.load(shelf.store, JOB, name).attempt
        check = Check(how="read back", when=records.now(), attempt=attempt, problem="x is missing")
        marks.note(shelf.store, JOB, name, check)
    gone = prune(shelf, Keep(last=1))
    assert names(shelf) == ["s1", "s2", "s3"]
    assert gone == {"s4": "it does not verify (x is missing)", "s5": "it does not verify (x is missing)"}
    why = {v.name: v.why for v in housekeeping.plan(shelf.store, JOB, Keep(last=1), records.now()).verdicts}
    assert why["s1"] == "pinned (before the release)"
    assert why["s2"] == f"in use by deployment 2 of {JOB}, which started from it"
    assert why["s3"].startswith("the last good one")
    for name, reason in (("s1", "pinned"), ("s2", "in use by deployment 2")):
        with pytest.raises(RefusedError, match=reason):
            remove(shelf, name)
    assert marks.unpin(shelf.retention, JOB, "s1")
    remove(shelf, "s1")
    assert names(shelf) == ["s2", "s3"]


def test_a_stopped_job_and_a_fork_hold_what_they_need(shelf: Shelf) -> None:
    jobs.change(
        shelf.store, JOB, {"desired": "stopped-with-snapshot", "snapshot": "s1"}, jobs.record(shelf.store, JOB).fence
    )
    fork = Shelf(shelf.settings, job="fork")
    fork.deploy(2, from_snapshot=f"{JOB}/s2")
    assert set(prune(shelf, Keep(last=1))) == {"s3", "s4"}
    assert "deployment 2 of fork" in needs.users(shelf.store)[JOB, "s2"][0]


def test_what_an_operation_under_way_needs_stays(shelf: Shelf) -> None:
    request = ask("deploy_job", job="fork", version="v1", from_snapshot=f"{JOB}/s1", fork=True)
    moment = records.now()
    operation = Operation(id="op-1", request=request, owner=ADA, created=moment, updated=moment)
    documents.write(shelf.store, keys.operation("fork", "op-1"), operation)
    locks.acquire(shelf.store, "fork", "op-1", "deploy_job", ADA, nobody, moment)
    assert "s1" not in prune(shelf, Keep(last=1))
    locks.release(shelf.store, "fork", "op-1")
    assert "s1" in prune(shelf, Keep(last=1))


def test_nothing_is_done_while_an_operation_holds_the_job(shelf: Shelf) -> None:
    locks.acquire(shelf.store, JOB, "op-1", "upgrade_job", ADA, nobody, records.now())
    with pytest.raises(LockedError, match="op-1"):
        prune(shelf, Keep(last=1))
    with pytest.raises(LockedError, match="op-1"):
        remove(shelf, "s1")
    assert len(names(shelf)) == 5
    locks.release(shelf.store, JOB, "op-1")
    assert len(prune(shelf, Keep(last=1))) == 4
    assert locks.read(shelf.store, JOB).value.operation is None


def test_an_abandoned_operation_is_settled_before_anything_is_removed(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "EXPIRY", timedelta(seconds=-1))  # whoever held it is gone
    moment = records.now()
    request = ask("snapshot_job", job=JOB, snapshot="s1")
    operation = Operation(id="op-1", request=request, owner=ADA, created=moment, updated=moment)
    documents.write(shelf.store, keys.operation(JOB, "op-1"), operation)
    locks.acquire(shelf.store, JOB, "op-1", "snapshot_job", ADA, nobody, moment)
    assert len(prune(shelf, Keep(last=1))) == 4
    assert documents.read(shelf.store, keys.operation(JOB, "op-1"), Operation).value.state == "aborted"


def test_what_was_removed_has_a_receipt_wherever_it_was_killed_and_a_dry_run_has_none(shelf: Shelf) -> None:
    housekeeping.plan(shelf.store, JOB, Keep(last=3), records.now())
    assert not list(shelf.store.list(keys.operations(JOB)))
    asked = ask("apply_retention", job=JOB, keep=Keep(last=3))

    def engine(at_point: AtPoint) -> Engine:
        return shelves.engine(shelf.store, shelf.retention, at_point)

    shelves.killed_everywhere(engine, asked, "retention")
    receipt = receipts.read(shelf.store, JOB, "retention")
    assert receipt is not None
    assert (receipt.runbook, receipt.state, receipt.requested_by) == ("apply_retention", "succeeded", "ada")
    assert sorted(receipt.facts["remove"]["removed"]) == ["s1", "s2"]  # although the try that removed them died
    assert receipt.inputs["keep"]["last"] == 3
    assert names(shelf) == ["s3", "s4", "s5"]


@pytest.mark.full
def test_without_a_rule_everything_stays_and_old_removals_are_still_freed(shelf: Shelf) -> None:
    assert housekeeping.keep_of(shelf.store, JOB) is None
    remove(shelf, "s1")
    before = shelf.bytes_kept()
    later = records.now() + timedelta(days=15)
    done = housekeeping.prune(shelf.retention, JOB, None, later, "ada", lambda line: None)
    assert all(verdict.keep for verdict in done.verdicts)
    assert names(shelf) == ["s2", "s3", "s4", "s5"]
    assert shelf.bytes_kept() < before
    for name in names(shelf):
        snapshots.verify(shelf.store, snapshots.load(shelf.store, JOB, name))


def test_the_rule_comes_from_the_running_version(shelf: Shelf) -> None:
    definition = parse(
        "job: sums\nversion: v1\ncode: sums.py\nsources: {e: {kafka: {topic: e}, schema: 'n long'}}\n"
        "stages: {a: {sinks: [{influxdb: {measurement: a}}]}}\n"
        "snapshots: {every: 1 hour, keep: {last: 2, daily: 7}}\n"
    )
    manifest = ArtifactManifest(
        job=JOB, version="v1", artifact_sha256="a", runtime_sha256="r", size=1, definition=definition,
        published=records.now(),
    )  # fmt: skip
    documents.write(shelf.store, keys.artifact_manifest(JOB, "v1"), manifest)
    assert housekeeping.keep_of(shelf.store, JOB) == Keep(last=2, daily=7)
