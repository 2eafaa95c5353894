"""What a person does with one snapshot is an operation, which may be killed anywhere."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fakes import shelf as shelves
from fakes.shelf import JOB, Shelf
from streamops import snapshots
from streamops.model.errors import NotFoundError, RefusedError
from streamops.operations import receipts
from streamops.operations.engine import AtPoint, Engine
from streamops.operations.follow import request as ask
from streamops.snapshots import marks
from streamops.store import keys, locks


@pytest.fixture
def shelf(bucket) -> Shelf:
    found = Shelf(bucket)
    for name in ("s", "t"):
        found.batches(1)
        found.take(name)
    return found


@pytest.fixture
def engine(shelf: Shelf) -> Callable[..., Engine]:
    def made(at_point: AtPoint = lambda step, when: None) -> Engine:
        return shelves.engine(shelf.store, shelf.retention, at_point)

    return made


def names(shelf: Shelf) -> list[str]:
    return [item.name for item in snapshots.list(shelf.store, JOB)]


def test_each_action_is_done_once_wherever_it_is_killed_and_leaves_a_receipt(shelf: Shelf, engine) -> None:
    def done(action: str, **more: object) -> None:
        asked = ask("manage_snapshot", job=JOB, action=action, snapshot="s", **more)
        shelves.killed_everywhere(engine, asked, action)
        receipt = receipts.read(shelf.store, JOB, action)
        assert receipt is not None
        assert (receipt.snapshot, receipt.state) == (f"{JOB}/s", "succeeded")
        held = locks.read(shelf.store, JOB)
        assert held is not None
        assert held.value.operation is None

    done("pin", reason="an audit")
    pin = marks.pinned(shelf.store, JOB, "s")
    assert pin is not None
    assert (pin.reason, pin.by) == ("an audit", "ada")
    done("unpin")
    assert marks.pinned(shelf.store, JOB, "s") is None
    done("remove", reason="too old")
    assert names(shelf) == ["t"]
    (gone,) = snapshots.removed(shelf.store, JOB)
    assert gone.record is not None
    assert (gone.record.reason, gone.record.by) == ("too old", shelves.ADA.label())
    done("undelete")
    assert names(shelf) == ["s", "t"]
    assert not shelf.store.exists(keys.removed_snapshot(JOB, "s"))
    snapshots.verify(shelf.store, snapshots.load(shelf.store, JOB, "s"))


def test_what_was_brought_back_halfway_is_brought_back_whole(shelf: Shelf, engine) -> None:
    """The manifest is there again, and the note of its removal as well."""
    asked = ask("manage_snapshot", job=JOB, action="remove", snapshot="s")
    engine().run(asked, shelves.ADA, "remove")
    note = shelf.store.get(keys.removed_snapshot(JOB, "s")).body
    back = ask("manage_snapshot", job=JOB, action="undelete", snapshot="s")
    made = engine()
    made.begin(back, shelves.ADA, "back")
    made._run_step(JOB, "back", "check")
    snapshots.undelete(shelf.retention, JOB, "s")
    shelf.root.put(keys.removed_snapshot(JOB, "s"), note)
    made.run_task(JOB, "back", "check")
    assert not shelf.store.exists(keys.removed_snapshot(JOB, "s"))
    assert names(shelf) == ["s", "t"]


def test_what_is_not_there_or_is_needed_is_refused(shelf: Shelf, engine) -> None:
    marks.pin(shelf.store, JOB, "s", "kept", "ada")
    shelf.deploy(2, from_snapshot=f"{JOB}/t")
    for number, (action, name, error, says) in enumerate((
        ("pin", "no", NotFoundError, "no snapshot no"),
        ("remove", "no", NotFoundError, "no snapshot no"),
        ("undelete", "s", NotFoundError, "No removed snapshot s"),
        ("remove", "s", RefusedError, r"pinned \(kept\)"),
        ("remove", "t", RefusedError, "in use by deployment 2"),
    )):  # fmt: skip
        asked = ask("manage_snapshot", job=JOB, action=action, snapshot=name)
        with pytest.raises(error, match=says):
            engine().run(asked, shelves.ADA, f"op-{number}")
    unpinned = engine().run(ask("manage_snapshot", job=JOB, action="unpin", snapshot="t"), shelves.ADA, "unpin")
    assert unpinned.facts("check")["unchanged"] is True
    assert names(shelf) == ["s", "t"]
