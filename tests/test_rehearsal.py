"""Two versions beside each other: what is compared, what is shown, and what an upgrade may demand."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fakes import checks
from fakes.rig import JOB, WINDOWED, Rig
from streamops.model.definitions import InfluxSink
from streamops.model.errors import RefusedError, StreamOpsError, UnhealthyError
from streamops.model.records import SHADOW_RUN, Shadow, StageStatus
from streamops.model.results import SEPARATOR, mark
from streamops.operations import rehearsals
from streamops.operations.rehearsals import AsRun, Rehearsal, Side, StageTried, Tried
from streamops.operations.runbooks.rehearse_job import RECENT_MS, closed
from streamops.recount.beside import Compared, Given, Lateness, Record, compare
from streamops.store import keys, waiting

SINK = InfluxSink(measurement="m", tags=("symbol",))
SHADOW = Shadow(job="j", stage="s", deployment=3, epoch=2, since=0, run=SHADOW_RUN + 3)
OLD, NEW = mark(1, 4), mark(2, SHADOW_RUN + 3)
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def result(who: bytes, time_ms: int, value: Any, symbol: str = "A", at_ms: int | None = None) -> Record:
    row = {"time": time_ms, "symbol": symbol, "value": value}
    key = f"{time_ms}{SEPARATOR}{symbol}".encode()
    return (time_ms if at_ms is None else at_ms), key, who + b"0 " + json.dumps(row).encode()


def given(records: Iterable[Record], from_ms: int = 0, until_ms: int = 10_000, most: int = 1000) -> Given:
    return Given(SHADOW, from_ms, until_ms, most).take(records)


def compared(found: Given, old_sink: InfluxSink = SINK, new_sink: InfluxSink = SINK) -> Compared:
    return compare(found.old(), found.new(), old_sink, new_sink)


# --- which results count


def test_the_last_value_of_each_point_counts_for_the_version_that_gave_it() -> None:
    found = given(
        [result(OLD, 1000, 1), result(NEW, 1000, 5), result(OLD, 1000, 2), result(NEW, 1000, 2), result(OLD, 2000, 3)]
    )
    assert compared(found) == Compared(
        equal=1,
        only_old=1,
        first=datetime.fromtimestamp(1, UTC),
        last=datetime.fromtimestamp(2, UTC),
        examples=("1970-01-01T00:00:02.000Z symbol=A: only old, value=3",),
    )


def test_a_lost_driver_and_a_dismissed_shadow_say_nothing() -> None:
    late = [
        result(mark(1, 3), 1000, 9),  # a query of before, which still sends
        result(mark(2, SHADOW_RUN + 2), 1000, 9),  # the shadow of an earlier rehearsal, for the same epoch
    ]
    assert compared(given([result(OLD, 1000, 1), result(NEW, 1000, 1), *late])).equal == 1


def test_a_driver_that_took_over_meanwhile_goes_on_for_the_version_that_runs() -> None:
    after = mark(2, 1)  # the epoch that the shadow would have got
    found = given([result(OLD, 1000, 1), result(after, 1000, 2), result(NEW, 1000, 2)])
    assert compared(found).equal == 1


def test_a_version_that_was_a_shadow_itself_is_the_one_that_runs() -> None:
    promoted = mark(1, SHADOW_RUN + 1)
    assert compared(given([result(promoted, 1000, 1), result(NEW, 1000, 1)])).equal == 1


def test_only_windows_are_compared_that_ended_meanwhile_and_that_both_have_closed() -> None:
    times = (1000, 2000, 3000, 4000)
    found = given([result(who, at, at) for at in times for who in (OLD, NEW)], from_ms=1000, until_ms=3000)
    assert (compared(found).equal, found.until_ms) == (2, 3000)


def test_where_there_is_too_much_the_last_windows_are_left_out() -> None:
    found = given([result(who, at, 1) for at in range(1000, 9000, 1000) for who in (OLD, NEW)], most=6)
    same = compared(found)
    assert (same.equal, same.points) == (3, 3)
    assert 3000 <= found.until_ms < 4000


def test_lateness_is_from_the_end_of_a_window_to_its_last_result() -> None:
    values = [result(OLD, 1000 * at, 1, at_ms=1000 * at + 10 * at) for at in range(1, 101)]
    found = given([*values, result(NEW, 1000, 1, at_ms=900), result(NEW, 2000, 1, at_ms=2700)], until_ms=1_000_000)
    assert found.lateness() == (
        Lateness(points=100, p50_ms=510, p99_ms=1000, most_ms=1000),
        Lateness(points=2, p50_ms=700, p99_ms=700, most_ms=700),  # one came before its window's end: not late
    )
    assert given([]).lateness() == (None, None)


# --- what is the same


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (1, 1, True),
        (1, 2, False),
        (1, 1.0, True),
        (0.1 + 0.2, 0.3, True),
        (0.3, 0.300001, False),
        (10, 10.0000001, False),
        ("a", "a", True),
        ("a", "b", False),
        ("1", 1, False),
    ],
)
def test_values_are_the_same_as_a_recount_would_say(old: Any, new: Any, same: bool) -> None:
    found = compared(given([result(OLD, 1000, old), result(NEW, 1000, new)]))
    assert (found.equal, found.different) == ((1, 0) if same else (0, 1))


def test_differences_are_shown_with_both_values_and_some_of_each_kind() -> None:
    records = [result(who, at, at + (who is NEW)) for at in range(1000, 9000, 1000) for who in (OLD, NEW)]
    found = compared(given([*records, result(OLD, 9500, 1), result(NEW, 9600, 1)]))
    assert (found.different, found.only_old, found.only_new, found.differing) == (8, 1, 1, 10)
    assert found.examples[0] == "1970-01-01T00:00:01.000Z symbol=A: old value=1000, new value=1001"
    assert [text.split(": ")[1][:8] for text in found.examples[5:]] == ["only old", "only new"]


def test_points_are_compared_as_their_sinks_show_them() -> None:
    """A tag more makes other points; a column that is no field is nobody's business."""
    wide = InfluxSink(measurement="m", tags=("symbol", "side"))
    rows = [{"time": 1000, "symbol": "A", "side": "buy", "value": 1, "n": 7}]
    other = [{**rows[0], "n": 8}]
    assert compare(rows, other, SINK, SINK).equal == 1
    assert compare(rows, rows, SINK, wide).differing == 2
    assert compare(rows, other, SINK, SINK.model_copy(update={"fields": ("value", "n")})).different == 1
    assert compare([{**rows[0], "value": None}], [], SINK, SINK).points == 0  # never written
    assert compare([], [{**rows[0], "symbol": "A\\"}], SINK, SINK).points == 0  # put aside


# --- what is said


def rehearsal(**changes: Any) -> Rehearsal:
    late = Lateness(points=40, p50_ms=140, p99_ms=320, most_ms=400)
    side = Side(rows_per_s=1000.4, lateness=late, state_rows=7, state_bytes=2 << 20)
    took = {"cores": 2, "executor_memory": "800m", "driver_memory": "1g", "runtime_sha256": "r"}
    stage = StageTried(
        compared=Compared(equal=39, different=1, first=AT, last=AT, examples=("<b>: old value=1, new value=2",)),
        old=side,
        new=side,
        until=AT,
        before=late,
    )
    found = Rehearsal(
        id="rehearse-1",
        job="trades",
        at=AT,
        seconds=60.0,
        old=Tried(version="v1", deployment=1, artifact_sha256="a", **took),
        new=Tried(version="v2", deployment=2, artifact_sha256="b", driver_cores=0.25, driver_bytes=1 << 30, **took),
        stages={"second": stage, "hour": stage.model_copy(update={"compared": Compared()})},
        only_new=("extra",),
    )
    return found.model_copy(update=changes)


def test_a_rehearsal_is_told_as_text_and_as_a_page() -> None:
    found = rehearsal()
    text = "\n".join(rehearsals.lines(found))
    page = rehearsals.page(found)
    for said in (
        "1 of 40 points differ: 1 of second",
        "hour: no window of it",
        "only v2 has extra",
        "v1, before",
    ):
        assert said in text
        assert said in page
    assert "its driver took 0.25 of a core and 1,024.0 MiB" in text
    assert "second: <b>: old value=1" in text
    assert "<b>: old" not in page  # what a job writes is no markup
    assert page.count("<table>") == 2


def test_the_verdict_counts_what_was_compared() -> None:
    same = {"second": rehearsal().stages["second"].model_copy(update={"compared": Compared(equal=3)})}
    assert rehearsals.verdict(rehearsal(stages=same)) == "all 3 points are the same"


def test_a_stage_is_watched_until_it_has_closed_the_windows_of_that_time_or_nothing_comes() -> None:
    now_ms = int(AT.timestamp() * 1000)
    assert closed(StageStatus(watermark_ms=now_ms), AT)
    assert closed(StageStatus(quiet=True), AT)
    assert closed(StageStatus(watermark_ms=now_ms - 1, last_commit=AT + timedelta(seconds=121)), AT)
    assert not closed(StageStatus(watermark_ms=now_ms - 1, last_commit=AT + timedelta(seconds=60)), AT)
    assert not closed(StageStatus(), AT)
    assert not closed(None, AT)


# --- on the rig


@pytest.mark.full
def test_a_rehearsal_compares_both_versions_and_leaves_the_running_one_as_it_was(rig: Rig) -> None:
    rig.go_live()
    before = rig.record()
    demanded = {"version": "live2", "snapshot": "s", "strategy": "gapless", "rehearsed_within_h": 1}
    with pytest.raises(RefusedError, match="demanded and was never done; rehearse it"):
        rig.run("upgrade_job", **demanded)

    done = rig.run("rehearse_job", version="live2", observe_s=1, demand_equal=True)
    found = rehearsals.find(rig.store, [JOB], done.id)
    stage = found.stages["a"]
    assert stage.compared.equal > 3
    assert not found.differing
    assert stage.new.lateness is not None
    assert stage.new.lateness.p50_ms == 7
    assert stage.old.rows_per_s is not None
    assert 10 < stage.old.rows_per_s < 120  # 40 come
    assert "are the same" in "\n".join(rig.said)
    assert (rig.record().launch, rig.record().deployment) == (before.launch, before.deployment)
    checks.one_writer(rig, "live", 1)
    checks.untouched_by(rig, done.before.last_deployment + 1 if done.before else 0)
    assert keys.feed_topics(JOB, found.new.deployment) in rig.topic.dropped

    old, new, hour = AsRun.model_validate(found.old.model_dump()), found.new, timedelta(hours=1)
    assert rehearsals.require(rig.store, JOB, old, new, hour, found.at + hour).id == done.id
    with pytest.raises(RefusedError, match="longer ago than the 1 h that"):
        rehearsals.require(rig.store, JOB, old, new, hour, found.at + hour + timedelta(seconds=1))
    rig.publish("live3", ("a",), live=True)
    with pytest.raises(RefusedError, match="live3 beside live, with these settings, is demanded and was never"):
        rig.run("upgrade_job", **{**demanded, "version": "live3"})
    assert rig.run("upgrade_job", **demanded).state == "succeeded"
    assert rig.record().deployment > found.new.deployment  # numbers are never given again


@pytest.mark.full
def test_a_version_in_batches_is_compared_with_what_the_running_one_has_written(rig: Rig) -> None:
    for version in ("timed", "timed2"):
        rig.publish(version, ("a",), does=WINDOWED)
    rig.topic.in_batches = {"a"}
    rig.run("deploy_job", version="timed")
    rig.commits_more(windows=1)
    done = rig.run("rehearse_job", version="timed2", observe_s=2, demand_equal=True)
    found = rehearsals.find(rig.store, [JOB], done.id).stages["a"]
    assert found.compared.equal > 3
    assert found.old.lateness is None  # InfluxDB does not tell when a point was written
    assert found.new.lateness is not None
    assert found.compared.last is not None
    assert found.compared.last <= found.until
    checks.one_writer(rig, "timed", 1)
    checks.untouched_by(rig, 2)
    assert keys.results_topic(JOB, "a") in rig.topic.dropped
    rig.topic.other = {"a"}
    with pytest.raises(StreamOpsError, match="Results differ that should be equal"):
        rig.run("rehearse_job", version="timed2", observe_s=2, demand_equal=True)
    rig.publish("old-runner", ("a",), does=WINDOWED, can=())
    with pytest.raises(RefusedError, match="its runner is too old to run stages in batches beside"):
        rig.run("rehearse_job", version="old-runner")
    with pytest.raises(RefusedError, match="a of timed2 runs in batches"):
        rig.run("upgrade_job", version="timed2", snapshot="s", strategy="gapless")


@pytest.mark.full
def test_results_that_differ_fail_a_rehearsal_only_where_that_is_asked_for(rig: Rig) -> None:
    rig.go_live()
    rig.topic.other = {"a"}
    with pytest.raises(StreamOpsError, match="Results differ that should be equal"):
        rig.run("rehearse_job", version="live2", observe_s=1, demand_equal=True)
    with pytest.raises(RefusedError, match="demanded and did not succeed"):
        rig.run("upgrade_job", version="live2", rehearsed_within_h=1)
    known_s = RECENT_MS / 1000 + 2  # what is known of before a rehearsal is some seconds old
    waiting.until(lambda: time.time() - rig.topic.began > known_s, 2 * known_s, 0.1)
    done = rig.run("rehearse_job", version="live2", observe_s=1, demand_equal=True, may_differ=["a"])
    found = rehearsals.find(rig.store, [JOB], done.id)
    assert found.differing.keys() == {"a"}
    assert "old value=" in found.stages["a"].compared.examples[0]
    assert found.stages["a"].before is not None
    assert found.stages["a"].before.p99_ms == 7
    checks.one_writer(rig, "live", 1)


@pytest.mark.full
def test_what_cannot_be_rehearsed_is_refused_and_what_ends_in_shadow_is_dismissed(rig: Rig) -> None:
    rig.go_live()
    before = rig.record()
    for change, says in (
        ({"version": "v2"}, "v2 of sums cannot be rehearsed, because a of v2 has no windows that its"),
        ({"version": "live"}, "already runs live"),
        ({"may_differ": ["z"], "demand_equal": True}, "has no stage z"),
    ):
        with pytest.raises(RefusedError, match=says):
            rig.run("rehearse_job", **{"version": "live2", **change})
    rig.cluster.room = False
    with pytest.raises(RefusedError, match="no room for a second driver"):
        rig.run("rehearse_job", version="live2")
    assert rig.record() == before
    rig.cluster.room = True
    rig.cluster.behaviour["live2"] = "dies in shadow"
    with pytest.raises(UnhealthyError, match="a stage failed in shadow"):
        rig.run("rehearse_job", version="live2", observe_s=60)
    checks.one_writer(rig, "live", 1)
    checks.untouched_by(rig, 2)
    checks.free(rig)


@pytest.mark.full
def test_a_running_version_whose_driver_ends_is_not_kept_from_reconciliation(rig: Rig) -> None:
    rig.go_live()
    launch = rig.record().launch

    def at_point(step: str, when: str) -> None:
        if (step, when) == ("observe", "before"):
            next(process for name, process in rig.cluster.processes if name == launch).kill()

    silent = pytest.MonkeyPatch()
    silent.setattr("streamops.operations.runbooks.rehearse_job.SILENT_S", 2)
    try:
        with pytest.raises(UnhealthyError, match="running version's driver has said nothing"):
            rig.run("rehearse_job", rig.engine(at_point), version="live2", observe_s=60)
    finally:
        silent.undo()
    checks.free(rig)


# --- what an upgrade may demand


def test_a_rehearsal_counts_for_the_same_bytes_and_settings_only() -> None:
    ran = AsRun(version="v2", artifact_sha256="b", runtime_sha256="r")
    assert rehearsal().new.same_as(ran)
    for change in ({"artifact_sha256": "c"}, {"runtime_sha256": "s"}, {"params": {"size": 1}}, {"topics": {"t": "u"}}):
        assert not rehearsal().new.same_as(ran.model_copy(update=change))
