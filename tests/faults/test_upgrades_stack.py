"""Faults 1 to 7 and 18: an upgrade that is killed everywhere, triggered twice, or whose new version does not work."""

from __future__ import annotations

import random
import re
import time
import uuid

import pytest

from fresh_job import publish_quickly, wait_for
from streamops import snapshots
from streamops.model.errors import LockedError, UnhealthyError
from streamops.model.records import Control
from streamops.operations.follow import request as ask
from streamops.operations.runbooks import RUNBOOKS
from streamops.settings import Settings
from streamops.store import documents, keys
from streamops.store.object_store import Copied, ObjectStore
from support import Killed, attempts, invariant, mark, pythons, wait_works

pytestmark = pytest.mark.stack

COPYING = ("export_and_restore", "copying")
ASKED = ask("upgrade_job", job="j", version="v2")
STEPS = [step.name for step in RUNBOOKS["upgrade_job"].plan(ASKED)]
POINTS = [(step, when) for step in STEPS for when in ("before", "after")]
POINTS.insert(POINTS.index(("export_and_restore", "after")), COPYING)


class DyingStore(ObjectStore):
    """The process dies in the middle of copying."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.copies = 0

    def copy(self, source: str, target: str, size: int, source_version: str | None = None) -> Copied:
        self.copies += 1
        if self.copies > 7:
            raise Killed(f"copying {source}")
        return super().copy(source, target, size, source_version)


def next_version(job) -> str:
    return "v2" if job.record().version == "v1" else "v1"


def points(seed: int) -> list[tuple[str, str]]:
    """All kill points of an upgrade with the first seed, half of them with any other."""
    if seed == 1:
        return list(POINTS)
    return sorted(random.Random(seed).sample(POINTS, len(POINTS) // 2), key=POINTS.index)


@pytest.mark.full
def test_an_upgrade_killed_at_every_point_is_finished_by_its_retries(job, operator, seed, recovered):
    """One upgrade that dies at one point after the other, each time in another try of its DAG run."""
    start, old, wanted = mark(job), job.record(), next_version(job)
    name, left = f"killed-{uuid.uuid4().hex[:4]}", points(seed)
    request, owner, operation = operator.request("upgrade_job", job.name, version=wanted, snapshot=name)

    def at_point(step: str, when: str) -> None:
        if left and (step, when) == left[0]:
            raise Killed(f"{when} {step}")

    changes: dict[str, object] = {}
    while left:
        if left[0] == COPYING:
            changes["store"] = DyingStore(job.settings)
        with pytest.raises(Killed):
            operator.engine(at_point, **changes).run(request, owner, operation)
        point = left.pop(0)
        print("killed", point, flush=True)
        nothing_of_it_shows(job, operator, point, old, name, (owner, operation, wanted))
        # Before the submission there is no driver to adopt, and a retry need not wait long for one.
        changes = {"adopt_wait_s": 2.0} if point == ("submit", "before") else {}
    began = time.monotonic()
    done = operator.engine().run(request, owner, operation)  # the last try of the same DAG run
    recovered(began)
    assert done.state == "succeeded"
    record = job.record()
    assert (record.version, record.launch) == (wanted, operation)
    assert record.deployment == old.last_deployment + 1
    assert [name for name, found in done.steps.items() if found.finished is None] == []
    control = documents.read(job.store, keys.control(job.name, old.launch), Control)
    assert (control.value.command, control.value.sequence) == ("stop", 2)  # run, then one stop, whatever was retried
    if not done.facts("reserve")["cold"] and seed == 1:
        assert done.facts("submit")["adopted"]  # never two drivers of one launch
    manifest = snapshots.load(job.store, job.name, name)
    assert manifest.deployment == old.deployment
    found, kept = attempts(job)
    assert found == kept  # what the killed try had copied is gone
    assert job.store.get(keys.receipt(job.name, operation)).body
    invariant(job, start)


def nothing_of_it_shows(job, operator, point, old, snapshot, holder) -> None:
    """After a kill: the old version is untouched until it is asked to stop, no half snapshot, one owner."""
    reached, (owner, operation, wanted) = STEPS.index(point[0]), holder
    if reached < STEPS.index("request_stop") or point == ("request_stop", "before"):
        wait_for(lambda: job.runs(old.version), 90, "the old version, which was not asked to stop")
        assert (job.record().launch, job.record().version) == (old.launch, old.version)
    if reached < STEPS.index("commit_manifest"):
        assert snapshots.find(job.store, job.name, snapshot) is None  # a partial snapshot is invisible
    if reached < STEPS.index("finish"):
        # Its owner lives as far as anybody knows: no other run may act meanwhile, the same upgrade's neither.
        settled = {info.key: info.etag for info in job.store.list(f"jobs/{job.name}/") if is_settled(info.key)}
        rival, other, its = operator.request("upgrade_job", job.name, version=wanted)
        with pytest.raises(LockedError, match=owner.run_id) as refused:
            operator.engine().run(rival, other, its)
        assert operation in str(refused.value)
        with pytest.raises(LockedError, match=owner.run_id):
            operator.run("cancel_job", job.name)
        if point == ("check", "before"):
            after = {info.key: info.etag for info in job.store.list(f"jobs/{job.name}/") if is_settled(info.key)}
            assert after == settled
            assert operator.engine().find(job.name, its) is None


@pytest.mark.long
def test_without_room_for_a_standby_the_new_version_starts_cold_and_it_is_said(job, operator, tmp_path):
    start = mark(job)
    directory = tmp_path / "wide"
    directory.mkdir()
    definition = (job.directory / "v2.yaml").read_text().replace("version: v2", "version: wide")
    # Beside the running job no worker of 4 GiB has this much left; after its stop each of them has.
    definition, changed = re.subn(r"driver_memory: \w+", "driver_memory: 3600m", definition)
    assert changed
    (directory / "wide.yaml").write_text(definition)
    (directory / "trade_analyser.py").write_text((job.directory / "trade_analyser.py").read_text())
    publish_quickly(job.store, directory, "wide", like="v2")
    done = operator.run("upgrade_job", job.name, version="wide")
    assert done.facts("reserve")["cold"]
    assert any("no room for a standby" in line for line in operator.said)
    assert job.record().version == "wide"
    invariant(job, start)
    operator.run("upgrade_job", job.name, version="v1")  # leaves room for those that follow


def is_settled(key: str) -> bool:
    """Not among what a running driver writes all the time."""
    return not key.endswith(("/status.json", "/lease.json"))


@pytest.mark.long
def test_a_version_that_dies_on_its_first_batch_gives_way_to_the_old_one(job, operator, recovered):
    start = mark(job)
    old = job.record()
    began = time.monotonic()
    request, owner, operation = operator.request(
        "upgrade_job",
        job.name,
        version="broken",
        snapshot=f"before-broken-{uuid.uuid4().hex[:4]}",
    )
    with pytest.raises(UnhealthyError, match=r"fails repeatedly: stage \w+ failed 3 times"):
        operator.engine().run(request, owner, operation)
    found = operator.engine().find(job.name, operation)
    assert found.state == "undone"
    assert found.reason
    assert "restore" in found.undo
    record = job.record()
    assert (record.desired, record.version) == ("running", old.version)
    assert record.deployment == old.last_deployment + 2  # restored from the snapshot, beside the failed one
    wait_works(job, 180, start.epoch)
    recovered(began)
    wait_for(lambda: len(pythons(job.name)) == 1, 180, "the end of the broken driver")
    assert '"undone"' in job.store.get(keys.receipt(job.name, operation)).body.decode()
    invariant(job, start)
