"""The checks that tests on the rig end with can fail: what each of them has to find is planted here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes import checks
from fakes.driver import WINDOW, point_key
from fakes.fixtures import made_rig
from fakes.rig import JOB, Killed, Rig, drivers
from fakes.walk import killer
from streamops import snapshots
from streamops.clients.kafka import Block
from streamops.model.definitions import InfluxSink, Recount, Source
from streamops.model.errors import LeaseLostError, NotFoundError, RefusedError, SnapshotRefusedError, StreamOpsError
from streamops.model.records import Offsets
from streamops.operations import receipts, steps
from streamops.operations.engine import list_operations
from streamops.operations.follow import request as ask
from streamops.recount.recounting import Span, StagePlan, recount_source
from streamops.recount.report import Comparison, Measured, verdict
from streamops.settings import Settings
from streamops.store import jobs, keys, leases

SOON_S = 1.0  # a wait that is to fail


@pytest.fixture(scope="module")
def running(object_store_server: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One job at work with a snapshot; what a test plants, it takes away."""
    with made_rig(object_store_server, tmp_path_factory.mktemp("rig")) as rig:
        rig.run("deploy_job", version="v1")
        rig.commits_more(windows=3)
        rig.run("snapshot_job", snapshot="s")
        yield rig


def damaged(rig: Rig, change: Callable[[Rig], None]) -> list[str]:
    """What the recount of stage a says while one point is not as it was; it is clean before and afterwards."""
    rig.recount("a")
    key = point_key(JOB, "a", 1)
    good = rig.root.get(key).body
    change(rig)
    try:
        with pytest.raises(AssertionError, match="a: windows") as raised:
            rig.recount("a")
        report = rig.report(JOB, None)
    finally:
        rig.root.put(key, good)
        rig.root.delete([point_key(JOB, "a", 900_000)])
    assert not report["clean"]
    assert str(raised.value).startswith(report["reason"])
    rig.recount("a")
    return [name for name in ("missing", "wrong", "unexpected") if report["measurements"][0][name]]


def write(rig: Rig, key_of: int, window: int, total: int) -> None:
    rig.root.put(point_key(JOB, "a", key_of), json.dumps({"sum": total, "window": window}).encode())


def sum_of(window: int) -> int:
    return sum(range(window * WINDOW, (window + 1) * WINDOW))


def test_an_event_that_counts_twice_is_found(running: Rig) -> None:
    assert damaged(running, lambda rig: write(rig, 1, 1, sum_of(1) + WINDOW)) == ["wrong"]


def test_an_event_that_is_lost_is_found(running: Rig) -> None:
    assert damaged(running, lambda rig: write(rig, 1, 1, sum_of(1) - WINDOW)) == ["wrong"]


def test_a_window_that_is_missing_is_found(running: Rig) -> None:
    assert damaged(running, lambda rig: rig.root.delete([point_key(JOB, "a", 1)])) == ["missing"]


def test_a_window_that_is_written_twice_is_found(running: Rig) -> None:
    assert damaged(running, lambda rig: write(rig, 900_000, 1, sum_of(1))) == ["unexpected"]


def test_what_was_committed_and_never_written_is_found(rig: Rig) -> None:
    """Also at the end, where no later window shows the hole."""
    rig.cluster.behaviour["v1"] = "silent"
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=2)
    with pytest.raises(AssertionError, match=r"windows missing: \[0, 1"):
        rig.recount("a")


def test_a_window_before_the_stage_began_is_found(running: Rig) -> None:
    with pytest.raises(AssertionError, match="too many"):
        running.recount("a", since=2 * WINDOW)


@pytest.mark.parametrize("runbook", ["upgrade_job", pytest.param("rollback_job", marks=pytest.mark.full)])
def test_a_runbook_whose_recount_is_not_clean_fails_and_names_what_is_off(rig: Rig, runbook: str) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=3)
    if runbook == "rollback_job":
        rig.run("upgrade_job", version="v2", snapshot="s")
    write(rig, 0, 0, 1)
    asked = {"version": "v2", "snapshot": "s"} if runbook == "upgrade_job" else {}
    with pytest.raises(StreamOpsError, match=r"is not clean: a: windows missing.*window 0 is 1 instead of 45"):
        rig.run(runbook, **asked)
    rig.wait(lambda: rig.drivers_that_write() == [rig.record().launch], "one driver, which runs on")


def truly(rig: Rig) -> Callable[[str, Offsets | None], dict[str, Any]]:
    """The product's own recount of stage a: an event a tenth of a second, so that a window of events is a second."""
    source = Source.model_validate(
        {
            "kafka": {"topic": "events"},
            "schema": "n bigint, time bigint",
            "event_time": "time",
            "max_ahead": "36500 days",
        }
    )
    spec = Recount(source="events", aggregate="sum", column="n", window="1 second")

    def read(start: int, end: int) -> Iterator[tuple[int, tuple[str, ...], int]]:
        rows = [((window + 1) * 1000, total) for window, total in rig._points(JOB, "a")[0].items()]
        return iter([(time_ms, (), total) for time_ms, total in rows if start <= time_ms < end])

    def recount(job: str, since: Offsets | None) -> dict[str, Any]:
        end, begin = rig._committed(job, "a"), (since or {}).get("events", {}).get("0", 0)
        values: list[bytes | None] = [json.dumps({"n": n, "time": n * 100}).encode() for n in range(begin, end)]
        span = Span({"0": begin}, {"0": end}, whole_only=begin > 0, from_the_beginning=not begin)
        plan = StagePlan("a", spec, InfluxSink(measurement="a"), span, end // WINDOW * 1000)
        block = Block(0, list(range(begin, end)), [0] * len(values), values)
        _, _, measured = recount_source(source, [plan], [block], lambda _: Comparison("a", "a", read))
        clean, reason = verdict(measured)
        return {"clean": clean, "reason": reason, "measurements": [item.model_dump(mode="json") for item in measured]}

    return recount


@pytest.mark.full
def test_a_runbook_whose_recount_finds_a_wrong_point_fails_and_the_new_version_runs_on(rig: Rig) -> None:
    """What it does next: nothing is taken back, the lock is free, and the receipt names what is off."""
    engine = rig.engine(recount=truly(rig))
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=3)
    good = rig.root.get(point_key(JOB, "a", 1)).body
    write(rig, 1, 1, sum_of(1) + WINDOW)
    with pytest.raises(StreamOpsError, match=r"is not clean: a has 1 points that are off. The job runs on"):
        rig.run("upgrade_job", engine, version="v2", snapshot="s")
    failed = list_operations(rig.store, JOB)[-1]
    assert (failed.state, failed.done("healthy"), failed.done("recount")) == ("failed", True, False)
    checks.free(rig)
    assert rig.record().version == "v2"
    rig.wait(lambda: rig.drivers_that_write() == [rig.record().launch], "one driver, which runs on")
    receipt = receipts.read(rig.store, JOB, failed.id)
    assert receipt is not None
    assert (receipt.state, "a has 1 points that are off" in str(receipt.reason)) == ("failed", True)
    rig.root.put(point_key(JOB, "a", 1), good)
    done = rig.run("upgrade_job", engine, version="v1", snapshot="s2", accept_loss=["b"])  # the next is as ever
    assert done.facts("recount")["clean"]


@pytest.mark.full
def test_a_runbook_whose_recount_has_compared_nothing_waits_for_a_window_and_then_fails(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "RECOUNT_WAIT_S", 0.5)
    nothing = Measured(stage="a", measurement="a", nothing="no closed window").model_dump(mode="json")
    told = {
        "clean": False,
        "reason": "nothing was compared (a: no window of it is closed yet)",
        "measurements": [nothing],
    }
    looks = []

    def recount(job: str, since: Offsets | None) -> dict[str, Any]:
        looks.append(since)
        return told if len(looks) < 3 or job != JOB else truly(rig)(job, since)

    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=3)
    done = rig.run("upgrade_job", rig.engine(recount=recount), version="v2", snapshot="s")
    assert done.facts("recount")["clean"]
    assert len(looks) == 3
    with pytest.raises(StreamOpsError, match=r"is not clean: nothing was compared .*The job runs on"):
        rig.run(
            "upgrade_job", rig.engine(recount=lambda job, since: told), version="v1", snapshot="s2", accept_loss=["b"]
        )
    assert rig.record().version == "v1"
    checks.free(rig)


def test_a_second_writer_is_found(running: Rig) -> None:
    """A driver that no one stopped: alive, its status not final, and not the one named in the record."""
    other = jobs.record(running.store, JOB)
    assert other is not None
    checks.writes_alone(running)
    submitted = running.cluster.submitted[str(other.launch)]
    jobs.change(running.store, JOB, {"standby": "second"}, jobs.record(running.store, JOB).fence)
    running.cluster.submit(replace(submitted, launch="second"))
    try:
        running.wait(lambda: "second" in running.drivers_that_write(), "the second driver")
        with pytest.raises(AssertionError, match="one driver did not happen"):
            checks.writes_alone(running, SOON_S)
        with pytest.raises(AssertionError):
            checks.one_writer(running, "v1")
    finally:
        jobs.change(running.store, JOB, {"standby": None}, jobs.record(running.store, JOB).fence)
    checks.one_writer(running, "v1")


def test_a_driver_that_writes_where_none_should_is_found(running: Rig) -> None:
    with pytest.raises(AssertionError, match="end of all drivers"):
        checks.stopped(running, "running", SOON_S)
    with pytest.raises(AssertionError):
        checks.stopped(running, "stopped", SOON_S)
    with pytest.raises(AssertionError, match="end of all drivers"):
        checks.gone(running, SOON_S)


@pytest.mark.parametrize("wrong", [{"deployment": 7}, {"launch": "another"}])
def test_a_record_that_is_not_true_is_found(running: Rig, wrong: dict[str, object]) -> None:
    checks.true_record(running)
    before = running.record()
    jobs.change(running.store, JOB, wrong, jobs.record(running.store, JOB).fence)
    try:
        with pytest.raises(AssertionError):
            checks.true_record(running)
    finally:
        jobs.change(running.store, JOB, before.model_dump(include=set(wrong)), jobs.record(running.store, JOB).fence)


def test_a_lock_that_is_held_is_found(running: Rig) -> None:
    checks.free(running)
    running.engine().begin(ask("cancel_job", job=JOB), running.owner(), "held")
    try:
        with pytest.raises(AssertionError, match=JOB):
            checks.free(running)
    finally:
        running.engine().release(JOB, "held")
    with pytest.raises(AssertionError, match="cluster"):
        checks.free(running, "cluster")  # a lock that no one ever took proves nothing


def test_a_snapshot_that_is_damaged_or_leaves_parts_behind_is_found(running: Rig) -> None:
    checks.snapshot_whole(running, "s")
    stray = f"{keys.snapshots_data(JOB)}half/a/metadata"
    running.root.put(stray, b"x")
    with pytest.raises(AssertionError, match="half"):
        checks.snapshot_whole(running, "s")
    running.root.delete([stray])
    lost = snapshots.load(running.store, JOB, "s").objects[0].key
    running.root.delete_versions(list(running.root.versions(lost)))
    with pytest.raises(SnapshotRefusedError, match="is missing"):
        checks.snapshot_whole(running, "s")


def test_a_launch_that_is_submitted_twice_is_found(running: Rig) -> None:
    checks.submitted_once(running)
    running.cluster.processes.append(running.cluster.processes[0])
    try:
        with pytest.raises(AssertionError, match="twice"):
            checks.submitted_once(running)
    finally:
        running.cluster.processes.pop()


def test_what_is_left_of_a_deleted_job_is_found(rig: Rig, tmp_path: Path) -> None:
    rig.run("deploy_job", version="v1")
    rig.run("delete_job")
    checks.gone(rig)
    rig.root.put(f"checkpoints/{JOB}/left", b"x")
    with pytest.raises(AssertionError, match="checkpoints"):
        checks.gone(rig)


def test_a_topic_goes_with_its_job_only_if_that_is_asked_for_and_no_other_job_reads_it(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.publish("v1", ("a",), job="other")
    for topic, refused in (("trades", f"is not one that {JOB} reads"), ("events", "is read by other as well")):
        with pytest.raises(RefusedError, match=refused):
            rig.run("delete_job", topics=(topic,))
    assert rig.record().desired == "running"
    rig.root.delete([info.key for info in rig.root.list(keys.versions("other"))])
    rig.run("delete_job", topics=("events",))
    assert "events" in rig.topic.dropped
    checks.gone(rig)


def test_a_job_made_again_under_its_name_begins_with_new_numbers(rig: Rig) -> None:
    """A driver of the deleted one that was thought dead must find neither its checkpoint nor its lease."""
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    before = jobs.lease(rig.store, JOB)
    rig.run("delete_job")
    with pytest.raises(NotFoundError, match="There is no job"):
        rig.run("delete_job")
    with pytest.raises(LeaseLostError):
        leases.check(rig.store, before)
    rig.publish("v1", ("a",))
    rig.run("deploy_job", version="v1")
    assert rig.record().deployment == 2
    rig.commits_more()
    after = jobs.lease(rig.store, JOB)
    assert (after.deployment, after.epoch > before.epoch) == (2, True)


def test_a_kill_really_kills(rig: Rig) -> None:
    """No effect of the step after ``before``, and no record of it after ``after``."""
    owner, request = rig.owner(), ask("deploy_job", job=JOB, version="v1")
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer("submit", "before")), request, owner, "op")
    assert not rig.cluster.processes
    with pytest.raises(Killed):
        rig.tasks(rig.engine(killer("submit", "after"), adopt_wait_s=0), request, owner, "op")
    assert len(rig.cluster.processes) == 1
    assert not rig.engine().find(JOB, "op").done("submit")


def test_a_driver_begins_with_all_that_it_needs_imported() -> None:
    """Else each of them takes more than half a second of a core before its first word."""
    process = drivers().Process(target=exec, args=("import sys; sys.exit('fakes.driver' not in sys.modules)",))
    process.start()
    process.join(60)
    assert process.exitcode == 0
