"""Faults 1 to 7 and 18: an upgrade that is killed anywhere, triggered twice, or whose new version does not work.

The kill points come from the plan: ``make test-faults SEEDS=2`` runs all, ``make test`` that of fault 4.
"""

from __future__ import annotations

import re
import time
import uuid

import pytest

from fresh_job import publish_quickly, wait_for
from streamops import keys, records, snapshots
from streamops.adapters.object_store import Copied, ObjectStore
from streamops.errors import LockedError, UnhealthyError
from streamops.operations import plan
from streamops.records import Control
from streamops.settings import Settings
from support import Killed, attempts, invariant, mark, pythons, works_again

pytestmark = [pytest.mark.stack, pytest.mark.full]

COPYING = ("export_and_restore", "copying")
POINTS = [(step.name, when) for step in plan("upgrade_job") for when in ("before", "after")]
POINTS.insert(POINTS.index(("export_and_restore", "after")), COPYING)


# Those of faults 1 to 6, in their order.
FAULTS = [
    ("request_stop", "before"),
    ("request_stop", "after"),
    ("await_stop", "after"),
    COPYING,
    ("commit_manifest", "after"),
    ("submit", "after"),
]
assert set(FAULTS) <= set(POINTS)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "point" in metafunc.fixturenames:
        seeds = metafunc.config.getoption("--seeds")
        chosen = POINTS if seeds > 1 else [COPYING]
        metafunc.parametrize("point", chosen, ids=["-".join(point) for point in chosen])


class DyingStore(ObjectStore):
    """The process dies in the middle of copying."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.copies = 0

    def copy(self, source: str, target: str, source_version: str | None = None) -> Copied:
        self.copies += 1
        if self.copies > 7:
            raise Killed(f"copying {source}")
        return super().copy(source, target, source_version)


def next_version(job) -> str:
    return "v2" if job.record().version == "v1" else "v1"


def test_an_upgrade_killed_anywhere_is_finished_by_a_retry(job, operator, point, recovered):
    start = mark(job)
    old, wanted = job.record(), next_version(job)
    name = f"at-{point[0].replace('_', '-')}-{uuid.uuid4().hex[:4]}"
    request, owner, operation = operator.request("upgrade_job", job.name, version=wanted, snapshot=name)

    def at_point(step: str, when: str) -> None:
        if (step, when) == point:
            raise Killed(f"{when} {step}")

    changes = {"store": DyingStore(job.settings)} if point == COPYING else {}
    with pytest.raises(Killed):
        operator.engine(at_point, **changes).run(request, owner, operation)
    began = time.monotonic()
    steps = [step.name for step in plan("upgrade_job")]
    reached = steps.index(point[0])
    if reached < steps.index("request_stop") or point == ("request_stop", "before"):
        assert job.runs(old.version)  # nobody asked it to stop
        assert (job.record().launch, job.record().version) == (old.launch, old.version)
    if reached < steps.index("commit_manifest"):
        assert snapshots.find(job.store, job.name, name) is None  # a partial snapshot is invisible
    if reached < steps.index("finish"):
        # Its owner lives as far as anybody knows: nobody else may act meanwhile.
        with pytest.raises(LockedError, match=owner.run_id):
            operator.run("cancel_job", job.name)

    done = operator.engine().run(request, owner, operation)  # another try of the same DAG run
    recovered(began)
    assert done.state == "succeeded"
    record = job.record()
    assert (record.version, record.launch) == (wanted, operation)
    assert record.deployment == old.deployment + 1 or record.deployment == old.last_deployment + 1
    assert [name for name, found in done.steps.items() if found.finished is None] == []
    control = records.read(job.store, keys.control(job.name, old.launch), Control)
    assert (control.value.command, control.value.sequence) == ("stop", 2)  # run, then one stop, whatever was retried
    if point == ("submit", "after") and not done.facts("reserve")["cold"]:
        assert done.facts("submit")["adopted"]  # never two drivers of one launch
    manifest = snapshots.load(job.store, job.name, name)
    assert manifest.deployment == old.deployment
    found, kept = attempts(job)
    assert found == kept  # what the killed try had copied is gone
    assert job.store.get(keys.receipt(job.name, operation)).body
    invariant(job, start)


def test_the_same_upgrade_begun_twice_is_done_once(job, operator):
    start = mark(job)
    wanted = next_version(job)
    first, owner, one = operator.request("upgrade_job", job.name, version=wanted)
    second, rival, two = operator.request("upgrade_job", job.name, version=wanted)
    engine = operator.engine()
    engine.begin(first, owner, one)
    before = {info.key: info.etag for info in job.store.list(f"jobs/{job.name}/") if is_settled(info.key)}
    with pytest.raises(LockedError, match=owner.run_id) as refused:
        operator.engine().run(second, rival, two)
    assert one in str(refused.value)
    after = {info.key: info.etag for info in job.store.list(f"jobs/{job.name}/") if is_settled(info.key)}
    assert after == before
    assert engine.find(job.name, two) is None
    done = operator.engine().run(first, owner, one)
    assert done.state == "succeeded"
    assert job.record().version == wanted
    invariant(job, start)


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
    wait_for(lambda: works_again(job, start.epoch), 180, "the old version at work")
    recovered(began)
    wait_for(lambda: len(pythons(job.name)) == 1, 180, "the end of the broken driver")
    assert '"undone"' in job.store.get(keys.receipt(job.name, operation)).body.decode()
    invariant(job, start)
