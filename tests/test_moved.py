"""Sources that read another topic than before: when that is refused, where they continue, and how one goes back."""

from __future__ import annotations

import json

import pytest

from fakes import manifests
from fakes.rig import JOB, SUM, Rig, Topic, definition
from streamops import snapshots
from streamops.model.definitions import Definition, parse
from streamops.model.errors import RefusedError, StreamOpsError
from streamops.model.manifest import ManifestStage
from streamops.model.records import Deployment, Move, StageStart
from streamops.operations import moving, receipts
from streamops.recount.recounting import span
from streamops.spark import checkpoints
from streamops.store import jobs
from streamops.versions import compatibility, verdicts

FRESH = {"events": "fresh"}


@pytest.fixture
def running(rig: Rig) -> Rig:
    """A job that reads topic ``events``, beside which there is topic ``fresh``."""
    rig.topic.made["fresh"] = (1, {})
    rig.cluster.began = rig.topic.began = rig.topic.began - 3  # 120 events were there before
    rig.run("deploy_job", version="v1")
    rig.commits_more(windows=1)
    return rig


def refused(rig: Rig, says: str, **asked: object) -> None:
    """An upgrade to the other topic is refused before anything is touched."""
    before = rig.record()
    with pytest.raises(RefusedError, match=says):
        rig.run("upgrade_job", version="v2", snapshot="s", **{"topics": FRESH, **asked})
    assert rig.record() == before
    assert rig.drivers_that_write() == [before.launch]
    assert snapshots.find(rig.store, JOB, "s") is None


def test_another_topic_is_refused_before_the_stop_unless_the_old_one_is_read_and_a_start_is_stated(
    running: Rig,
) -> None:
    for place in ("two@", "two@b", "two@b:1,", "t wo", "@b:1"):
        refused(running, "is not a topic, like trades, or trades@", topics={"events": place})
    refused(running, r"Source events is to read topic fresh, .* say where it begins")
    running.topic.ends["fresh"] = 400
    for wrong in ("soon", "0:1,1:2", "0:401", "0", "1:0"):
        refused(running, "start_at of source events", start_at={"events": wrong})
    running.topic.ends["events"] = 1_000_000
    refused(running, r"Stage a has [\d,]+ events of topic events to read", start_at={"events": "0:7"})
    running.topic.ends["events"] = 1
    running.topic.old["fresh"] = 9
    refused(running, "Stage a would leave out 2 events of topic fresh as late", start_at={"events": "0:7"})
    running.topic.old.clear()
    refused(running, "events continues in another topic", start_at={"events": "0:7"}, strategy="gapless")
    running.run("upgrade_job", version="v2", snapshot="t", topics={"events": "events"})  # it is the one that it reads


def moved(rig: Rig, snapshot: str = "s") -> None:
    """Upgrade to v2, which continues at event 120 of the other topic."""
    rig.topic.ends["events"] = 1
    asked = {"topics": FRESH, "start_at": {"events": "0:120"}, "recount": False}
    told = receipts.read(rig.store, JOB, rig.run("upgrade_job", version="v2", snapshot=snapshot, **asked).id)
    assert told is not None
    assert told.verdicts["a"].startswith("kept with caveat.")
    assert "Source events reads fresh instead of events. After the end of events" in told.verdicts["a"]
    assert "from 0: 120 on" in told.verdicts["a"]


def test_the_state_goes_on_at_the_stated_offset_and_the_snapshot_stays_as_it_was(running: Rig) -> None:
    moved(running)
    kept = snapshots.load(running.store, JOB, "s")
    assert kept.stages["a"].offsets["events"]["0"] > 120
    begun = jobs.deployment(running.store, JOB, 2)
    assert begun.topics == FRESH
    expected = StageStart(since_deployment=2, offsets={"events": {"0": 120}}, moved={"events": "events"})
    assert begun.stages["a"] == expected
    prefix = checkpoints.current_epoch_prefix(running.store, JOB, 2)
    text = running.store.get(f"{prefix}a/offsets/{kept.stages['a'].batch}").body.decode()
    assert json.loads(text.split("\n")[2].split(":", 1)[1]) == {"fresh": {"0": 120}}
    # What comes after stands on it, without a word: here another upgrade, and a deploy from its snapshot.
    running.commits_more()
    running.run(
        "upgrade_job", version="v1", snapshot="u", start_at={"events": "0:3"}, recount=False, accept_loss=("b",)
    )
    assert any("is not used" in line for line in running.said)
    assert jobs.deployment(running.store, JOB, 3).stages["a"] == expected


@pytest.mark.full
@pytest.mark.parametrize(
    ("topic", "says"),
    [
        ("events", "to read before it can continue in fresh"),
        ("fresh", "would leave out 1,000,000 events of topic fresh"),
    ],
)
def test_events_that_come_between_the_check_and_the_stop_bring_the_old_version_back(
    running: Rig, topic: str, says: str
) -> None:
    running.topic.ends["events"] = 1

    def late(step: str, when: str) -> None:
        if step == "request_stop":
            (running.topic.ends if topic == "events" else running.topic.old)[topic] = 1_000_000

    with pytest.raises(StreamOpsError, match=says):
        running.run(
            "upgrade_job",
            running.engine(late),
            version="v2",
            snapshot="s",
            topics=FRESH,
            start_at={"events": "earliest"},
        )
    assert running.record().version == "v1"
    assert running.record().deployment == 1  # its own checkpoint
    running.commits_more()


@pytest.mark.full
def test_what_is_left_of_the_old_topic_is_left_out_only_where_that_is_accepted(running: Rig) -> None:
    running.topic.ends["events"] = 1_000_000
    asked = {"topics": FRESH, "start_at": {"events": "earliest"}, "recount": False, "accept_loss": ("a",)}
    running.run("upgrade_job", version="v2", snapshot="s", **asked)
    assert any("leaves out" in line and "of events, as was accepted" in line for line in running.said)
    assert jobs.deployment(running.store, JOB, 2).stages["a"].offsets == {"events": {"0": 0}}  # its state is kept


@pytest.mark.full
def test_going_back_to_before_another_topic_is_refused_and_a_deploy_says_where_it_reads(
    running: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved(running, "before")
    before = running.record()
    for asked in ({}, {"snapshot": "before"}):
        with pytest.raises(RefusedError, match=r"Source events read events when .*\(now fresh\)"):
            running.run("rollback_job", **asked)
    assert running.record() == before
    running.run("cancel_job")
    with pytest.raises(RefusedError, match="say where it begins"):
        running.run("deploy_job", version="v1", from_snapshot="before", topics=FRESH)
    asked = {"version": "v1", "from_snapshot": "before", "topics": FRESH, "start_at": {"events": "0:120"}}
    with monkeypatch.context() as patch:
        patch.setattr(moving, "taken_of", lambda store, manifest: None)  # as of another installation's snapshot
        with pytest.raises(RefusedError, match="start_at cannot be kept"):
            running.run("deploy_job", **asked)
    running.topic.old["fresh"] = 121
    with pytest.raises(RefusedError, match="would leave out 1 events of topic fresh"):
        running.run("deploy_job", **asked)
    running.topic.old.clear()
    running.run("deploy_job", **asked)
    assert jobs.deployment(running.store, JOB, 3).stages["a"].offsets == {"events": {"0": 120}}
    running.commits_more()
    running.run("cancel_job")
    running.run("deploy_job", version="v1", from_snapshot="before")  # where it read then
    assert jobs.deployment(running.store, JOB, 4).stages["a"].moved == {}


@pytest.mark.full
def test_a_failed_new_version_leaves_the_old_one_where_it_was(running: Rig) -> None:
    running.topic.ends["events"] = 1
    running.cluster.behaviour["v2"] = "dies"
    with pytest.raises(StreamOpsError):
        running.run("upgrade_job", version="v2", snapshot="s", topics=FRESH, start_at={"events": "latest"})
    kept = snapshots.load(running.store, JOB, "s")
    again = jobs.deployment(running.store, JOB, running.record().deployment)
    assert (again.version, again.topics, again.stages["a"]) == ("v1", {}, kept.stages["a"].start)


WIRED = """
job: j
version: v1
code: j.py
sources:
  t: {kafka: {topic: one}, schema: "n int"}
  f: {csv_tail: {directory: /one}, schema: "n int"}
  h: {http: {url: "http://one"}, schema: "n int"}
stages: {s: {sinks: [{influxdb: {measurement: s}}]}}
"""


def outcome(source: str, before: Definition, after: Definition, **places: dict[str, str]) -> tuple[str, str]:
    """The verdict on a stage that reads a source, and what it says."""
    plan = SUM.model_copy(update={"sources": (source,)})
    changed = verdicts.moved(before, {}, after, places.get("now", {}), {})
    (found,) = compatibility.verdicts({"s": plan}, {"s": plan}, moved=changed)
    return found.outcome, found.text()


@pytest.mark.parametrize(
    ("source", "place", "says"),
    [
        ("t", "two", "Source t reads two instead of one. It continues once all of one is read, from the offset of two"),
        ("f", "/two", "is read from its beginning; what /one gets after the switch is not read."),
        ("h", "http://two", "It continues after the sequence number that was read last"),
    ],
)
def test_the_verdict_tells_where_a_source_reads_now(source: str, place: str, says: str) -> None:
    wired = parse(WIRED)
    assert outcome(source, wired, wired)[0] == "kept"
    found, text = outcome(source, wired, wired, now={source: place})
    assert found == "kept with caveat"
    assert says in text
    others = {"t", "f", "h"} - {source}
    assert {outcome(other, wired, wired, now={source: place})[0] for other in others} == {"kept"}


def test_a_source_of_another_kind_needs_another_name() -> None:
    before, after = parse(WIRED), parse(WIRED.replace("kafka: {topic: one}", "csv_tail: {directory: /one}"))
    found, text = outcome("t", before, after)
    assert found == "incompatible"
    assert "Source t is csv_tail instead of kafka." in text


def test_a_topic_may_name_its_own_broker() -> None:
    named = parse(WIRED.replace("{topic: one}", "{topic: one, servers: 'a.example:9092,10.0.0.1:9093'}"))
    assert jobs.topics(named, {}) == {"t": "one@a.example:9092,10.0.0.1:9093"}
    assert jobs.topics(parse(WIRED), {"t": "one@b:1"}) == {"t": "one@b:1"}
    assert jobs.offset_keys(named, {}) == {"t": "one", "f": "f", "h": "h"}  # Spark's offsets do not tell brokers apart
    assert outcome("t", parse(WIRED), named)[0] == "kept with caveat"
    move = Move(before="one", after="one@b:1", begin={"0": 3})
    assert moving.places({"t": move}) == {"t": {"one": {"0": 3}}}


def test_a_recount_begins_with_the_topic_and_leaves_out_windows_that_hold_events_of_the_one_before() -> None:
    found = span("a", {"0": 0}, {"0": 0}, {"0": 9}, None, "events")
    assert (found.start, found.whole_only, found.from_the_beginning) == ({"0": 0}, True, False)
    assert "it read topic events before" in found.notes[0]
    assert not span("a", {"0": 0}, {"0": 0}, {"0": 9}).whole_only


@pytest.mark.full
def test_a_new_stage_begins_where_the_others_go_on(running: Rig) -> None:
    moved(running)
    kept = snapshots.load(running.store, JOB, "s")
    move = Move(before="events", after="fresh", begin={"0": 5})
    found = jobs.starts(definition("v9", ("a", "b")), 7, kept, lambda source: {}, moved={"events": move})
    assert found["b"].offsets["events"] == found["a"].offsets["events"] == {"0": 5}


FED = """
job: j
version: v1
code: j.py
sources:
  t: {kafka: {topic: one}, schema: "n int"}
  q: {kafka: {topic: quotes}, schema: "n int"}
  panes: {stage: {name: s, add: [n]}, schema: "n int, time bigint"}
stages:
  s: {mode: realtime, output: update, sinks: [{influxdb: {measurement: s}}]}
  long: {sinks: [{influxdb: {measurement: long}}]}
  both: {sinks: [{influxdb: {measurement: both}}]}
"""


def test_a_stage_that_reads_another_is_recounted_from_the_new_topic_and_keeps_no_place_in_a_feed() -> None:
    begun = StageStart(since_deployment=1, offsets={"t": {"0": 2}, "q": {"0": 3}})
    read = {"s": {"t": {"0": 90}}, "long": {"panes": {"0": 40}}, "both": {"q": {"0": 30}, "panes": {"0": 40}}}
    stages = {name: ManifestStage(batch=4, offsets=offsets, start=begun) for name, offsets in read.items()}
    move = Move(before="one", after="two", begin={"0": 5})
    found = jobs.starts(parse(FED), 2, manifests.manifest("j", stages=stages), lambda source: {}, moved={"t": move})
    begins = {"s": {"t": {"0": 5}}, "long": {"t": {"0": 5}, "q": {"0": 3}}, "both": {"t": {"0": 5}, "q": {"0": 30}}}
    assert {name: start.offsets for name, start in found.items()} == begins
    assert {name for name, start in found.items() if start.moved == {"t": "one"}} == {*read}


def test_a_stage_without_a_commit_holds_up_only_what_it_reads() -> None:
    begun = StageStart(since_deployment=1, offsets={"events": {"0": 2}, "q": {"0": 3}})
    plans = {"a": SUM.model_dump(mode="json"), "b": SUM.model_copy(update={"sources": ("q",)}).model_dump(mode="json")}
    stages = {name: ManifestStage(start=begun) for name in ("a", "b", "unknown")}
    found = moving.of_snapshot(manifests.manifest("j", stages=stages, fingerprints=plans))
    both = begun.offsets
    assert found == {"a": {"events": both["events"]}, "b": {"q": both["q"]}, "unknown": both}


def test_what_marks_the_end_of_a_transaction_is_no_event_to_read() -> None:
    topic = Topic(0, ends={"events": 8})
    asked = ({"events": Move(before="events", after="fresh", begin={"0": 0})}, {"a": {"events": {"0": 7}}}, {}, ())
    with pytest.raises(RefusedError, match="Stage a has 1 events of topic events to read"):
        moving.require_ready(topic, *asked, print)
    topic.marks = 1
    moving.require_ready(topic, *asked, print)


def test_only_a_stage_that_drops_late_events_keeps_a_topic_from_beginning_early() -> None:
    times = {"a": 5, "stateless": 5, "timeless": None, "unknown": 5}
    start = StageStart(since_deployment=1)
    stages = {name: ManifestStage(watermark_ms=mark, start=start) for name, mark in times.items()}
    plans = {"a": SUM, "stateless": SUM.model_copy(update={"operators": ()}), "timeless": SUM, "unknown": None}
    assert moving.closed(stages, plans) == {"a": 5, "unknown": 5}
    topic = Topic(0, made={"fresh": (1, {})}, old={"fresh": 3}, ends={"events": 7})
    asked = (topic, {"events": Move(before="events", after="fresh", begin={"0": 1})}, {"a": {"events": {"0": 7}}})
    with pytest.raises(RefusedError, match=r"Stage a would leave out 2 events .* before 1970-01-01T00:00:00Z"):
        moving.require_ready(*asked, {"a": 5}, (), print)
    moving.require_ready(*asked, {"a": 5}, ("a",), print)
    moving.require_ready(*asked, {}, (), print)


def test_going_back_from_a_version_that_has_dropped_the_source_is_refused_too() -> None:
    now = Deployment.model_construct(stages={"a": StageStart(since_deployment=2, moved={"t": "one"})})
    with pytest.raises(RefusedError, match=r"\(now none\).*from_snapshot\): with topics t=one to do without"):
        moving.refuse_past(manifests.manifest("j"), {"t": "one"}, now, {})
