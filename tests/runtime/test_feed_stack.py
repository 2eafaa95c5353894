"""A feed on the real Kafka: one writer at a time, and whoever comes next knows what was handed on."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest

from fresh_job import as_root, wait_for
from streamops.clients.kafka import Ledger
from streamops.model.definitions import InfluxSink
from streamops.model.errors import LeaseLostError
from streamops.model.feeds import FOR, TOTAL
from streamops.model.records import SHADOW_RUN, FeedPosition, FeedSlice, Lease, ResultsPosition, Shadow
from streamops.model.results import mark
from streamops.settings import Settings
from streamops.spark import checkpoints
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore
from streamops.versions.fingerprints import Window
from streamops_runtime.feed import Feed
from streamops_runtime.results import Results, end_of_results

pytestmark = [pytest.mark.stack, pytest.mark.full]
SINK = InfluxSink(measurement="pages", tags=("page",))


def row(page: str, time: int, value: int) -> dict[str, Any]:
    return {"page": page, "time": time, "value": value}


def produce(stack: Settings, topic: str, epoch: int, run: int, *rows: dict[str, Any]) -> None:
    """Give results of a run, as its query would."""
    producer = confluent_kafka.Producer({"bootstrap.servers": stack.kafka_bootstrap_servers})
    for item in rows:
        value = mark(epoch, run) + b"0 " + json.dumps(item).encode()
        producer.produce(topic, value, f"{item['time']}\x01{item['page']}".encode(), partition=0)
    assert producer.flush(30) == 0


@pytest.fixture
def job(stack) -> Iterator[str]:
    name = f"feed-{uuid.uuid4().hex[:8]}"
    yield name
    ledger = Ledger(stack)
    ledger.delete_topics(keys.results_topics(name))
    ledger.close()


@pytest.fixture
def open_feed(stack, job) -> Iterator[Callable[[int], Feed]]:
    opened: list[Feed] = []

    def open_one(deployment: int) -> Feed:
        store = ObjectStore(stack)
        feed = Feed(job, "counts", deployment, stack.kafka_bootstrap_servers, store, SINK, ("value",))
        opened.append(feed)
        feed.open()
        return feed

    yield open_one
    for feed in opened:
        feed.close()


def read(stack, job: str, deployment: int = 1) -> list[tuple[str, int, int]]:
    """What a reader sees: page, time and change."""
    ledger, topic = Ledger(stack), keys.feed_topic(job, "counts", deployment)
    rows = [json.loads(value or b"") for *_, value in ledger.read_committed(topic, {}, ledger.end_offsets(topic))]
    ledger.close()
    return [(item["page"], item["time"], item["value"]) for item in rows]


def test_the_next_writer_hands_on_what_changed_and_the_one_before_cannot_any_more(stack, job, open_feed):
    first = open_feed(1)
    first.hand_on([row("a", 1000, 3), row("b", 1000, 5)])
    second = open_feed(1)  # nothing but the topic tells it what was handed on
    with pytest.raises(LeaseLostError):
        first.hand_on([row("a", 1000, 100)])
    second.hand_on([row("a", 1000, 4), row("b", 1000, 5)])
    assert read(stack, job) == [("a", 1000, 3), ("b", 1000, 5), ("a", 1000, 1)]


def test_what_was_not_committed_is_never_seen_and_handed_on_again(stack, job, open_feed):
    first = open_feed(1)
    first.hand_on([row("a", 1000, 3)])
    producer = first._producer
    assert producer is not None
    producer.begin_transaction()  # killed before it commits
    producer.produce(first.topic, json.dumps({**row("a", 1000, 7), TOTAL: [10]}).encode(), partition=0)
    producer.flush(10)
    second = open_feed(1)
    second.hand_on([row("a", 1000, 10)])
    assert read(stack, job) == [("a", 1000, 3), ("a", 1000, 7)]


def test_points_that_do_not_change_any_more_are_forgotten_and_stay_so(stack, job, open_feed, caplog):
    first = open_feed(1)
    first.hand_on([row("a", 1000, 3), row("a", 2000, 3)])
    first.look_back(1000, 0)
    first.save()
    second = open_feed(1)
    second.hand_on([row("a", 1000, 3), row("a", 2000, 5)])
    assert read(stack, job) == [("a", 1000, 3), ("a", 2000, 3), ("a", 2000, 2)]
    assert "counts: 1 changes of points that are closed are not handed on" in caplog.text


def test_another_deployment_begins_with_the_slice_of_the_snapshot_once(stack, job, open_feed):
    known = json.dumps({**row("a", 1000, 3), TOTAL: [3], FOR: []})
    unread = json.dumps({**row("b", 1000, 5), TOTAL: [5], FOR: ["minutes"]})
    pending = (json.dumps(row("a", 1000, 4)), json.dumps(row("a", 500, 9)))
    begun = FeedSlice(
        job=job, stage="counts", deployment=1, records=(known, unread), pending=pending, readers=("minutes",),
        closed_ms=500,
    )  # fmt: skip
    store = ObjectStore(stack)
    documents.write(store, f"{keys.stage(job, 2, 1, 'counts')}{checkpoints.FEED}", begun)
    wanted = [("a", 1000, 3), ("b", 1000, 5), ("a", 1000, 1)]
    open_feed(2)
    assert read(stack, job, 2) == wanted
    ObjectStore(as_root(stack)).delete([keys.feed(job, "counts", 2)])  # killed before it had noted that
    open_feed(2).hand_on([row("a", 1000, 4), row("b", 1000, 6)])
    assert read(stack, job, 2) == [*wanted, ("b", 1000, 1)]


class Busy:
    """A sink that takes nothing before it is told to."""

    def __init__(self) -> None:
        self.refused, self.asked, self.goes_on = 0, threading.Event(), threading.Event()

    def write(self, rows: Any, batch_id: int) -> None:
        self.asked.set()
        assert self.goes_on.wait(60)


def test_what_was_given_before_a_commit_is_handed_on_however_late_it_is_read(stack, job):
    """Spark commits while the driver still has much to write: what it has not handed on is not over for the feed."""
    store, servers, sink = ObjectStore(stack), stack.kafka_bootstrap_servers, Busy()
    lease = Lease(job=job, epoch=1, launch="l", deployment=1)
    feed = Feed(job, "counts", 1, servers, store, SINK, ("value",))
    results = Results(job, "counts", servers, store, [sink], lambda: None, lambda: lease, feed=feed)

    def give(*rows: dict[str, Any]) -> None:
        produce(stack, results.topic, 1, 1, *rows)

    results.open()
    results.allow(1, 1, kept=True)
    try:
        give(row("a", 1000, 3), row("a", 2000, 3))
        assert sink.asked.wait(60)
        give(row("b", 1000, 5), row("a", 3000, 1))
        results.look_back(2000, 0)  # committed, and not read yet
        sink.goes_on.set()
        wait_for(lambda: len(read(stack, job)) == 3, 60, "what was given")
        assert sorted(read(stack, job)) == [("a", 1000, 3), ("a", 2000, 3), ("b", 1000, 5)]
        key = keys.feed(job, "counts", 1)
        wait_for(
            lambda: (found := documents.read(store, key, FeedPosition)) and found.value.closed_ms == 2000,
            60,
            "the end of its memory",
        )
    finally:
        sink.goes_on.set()
        results.close()


class Remembers:
    """A sink that knows its points."""

    def __init__(self) -> None:
        self.refused, self.times, self.values = 0, list[int](), list[int]()

    def write(self, rows: Any, batch_id: int) -> None:
        self.times += [row["time"] for row in rows]
        self.values += [row["value"] for row in rows]


class Takeover:
    """A version in shadow, beside one that has left its position; windows of a second.

    Args:
        since: where in the topic the shadow begins.
        old: the first result that the old version has not written.
        reached: how far its query has come, in milliseconds from now.
    """

    def __init__(self, stack: Settings, job: str, *, since: int, old: int, reached: int) -> None:
        self.stack, self.job, self.store, self.sink = stack, job, ObjectStore(stack), Remembers()
        self.now_ms = int(time.time() * 1000)
        self.note = Shadow(job=job, stage="counts", deployment=2, epoch=2, since=since)
        at = {"deployment": 1, "epoch": 1, "run": 1, "offset": old, "reached": {0: self.now_ms + reached}}
        documents.write(self.store, keys.results(job, "counts"), ResultsPosition(job=job, stage="counts", **at))
        documents.write(self.store, keys.shadow(job, "counts"), self.note)
        end_of_results(Ledger.at(stack.kafka_bootstrap_servers), job, "counts")  # makes it

    def way(self, **more: Any) -> Results:
        """A way out of the new version."""
        lease = Lease(job=self.job, epoch=2, launch="l", deployment=2)
        made = Results(
            self.job, "counts", self.stack.kafka_bootstrap_servers, self.store, [self.sink],
            lambda: None, lambda: lease, deployment=2, **more,
        )  # fmt: skip
        made.know(Window(kind="tumbling", time="t", size_us=1_000_000, slide_us=1_000_000))
        made.open()
        return made

    def give(self, epoch: int, run: int, *times: int) -> None:
        """Results of a run, at times in milliseconds from now."""
        topic = keys.results_topic(self.job, "counts")
        produce(self.stack, topic, epoch, run, *(row("a", self.now_ms + moment, 1) for moment in times))

    def position(self) -> ResultsPosition:
        """What is stored."""
        found = documents.read(self.store, keys.results(self.job, "counts"), ResultsPosition)
        assert found is not None
        return found.value


@pytest.mark.parametrize("held", [True, False])  # whether what is over waits as well until it may write
@pytest.mark.parametrize(
    ("others_ms", "kept", "old", "offset", "written"),
    [
        (1000, 3, 2, 3, [2000, 3000, 4000]),  # what the old version has written is not written again
        (1000, 3, 1, 1, [1000, 2000, 3000, 4000]),  # it has given a point that it could not write
        (-1, 4, 2, 2, [1000, 2000, 3000, 4000]),  # it is not known what it has written
    ],
)
def test_a_version_that_takes_over_writes_what_it_gave_and_the_old_one_did_not_write(
    stack, job, others_ms, kept, old, offset, written, held
):
    """It has kept that in memory. Where the old one gave what it could not write, all is read from the topic again.

    Args:
        others_ms: up to when the old version is known to have written.
        kept: points in memory.
        old: the first result that the old version has not written.
        offset: the first one that must be read if the new version is killed now.
    """
    over = Takeover(stack, job, since=1, old=old, reached=1000)
    over.give(1, 1, 0, 1000)
    reader = over.way(shadow=over.note)
    try:
        over.give(2, SHADOW_RUN, 1000, 2000, 3000, 4000)
        reader.others_wrote(over.now_ms + others_ms)
        wait_for(lambda: reader._next == 6 and reader._unwritten.count == kept, 60, "what the shadow gave")
    finally:
        reader.close()
    results = over.way()
    try:
        results.go_on(reader)
        results.settle(held=held)
        wait_for(lambda: results.settled, 60, "the end of the topic")
        results.allow(2, SHADOW_RUN, kept=True)
        found = over.position()
        assert (found.deployment, found.run, found.offset) == (2, SHADOW_RUN, offset)
        assert found.written_ms is None
        assert results.wrote_ms(found) == over.now_ms + 1000 - 1  # what an earlier release would have said
        over.give(2, SHADOW_RUN, 5000)
        wait_for(lambda: over.sink.times[-1:] == [over.now_ms + 4000], 60, "what waited")
        assert [moment - over.now_ms for moment in over.sink.times] == written
        end_ms = over.now_ms + 5000 - 1
        wait_for(lambda: results.wrote_ms(over.position()) == end_ms, 60, "the position saying what is written")
    finally:
        results.close()


@pytest.mark.parametrize("held", [True, False])
def test_a_shadow_that_is_a_little_behind_reads_again_nothing_of_what_it_has_given(stack, job, held):
    """What the old version gave meanwhile is yet to come; minutes of results would be read while nobody writes."""
    over = Takeover(stack, job, since=2, old=7, reached=5000)
    over.give(1, 1, 0, 1000)  # offsets 0 and 1
    reader = over.way(shadow=over.note)
    try:
        over.give(2, SHADOW_RUN, 1000, 2000, 3000)  # 2 to 4
        over.give(1, 1, 2000, 3000, 4000, 5000)  # 5 to 8: it has written up to 3000, and has 4000 and 5000 to write
        reader.others_wrote(over.now_ms + 2000)  # what is known of that
        wait_for(lambda: reader._next == 9 and reader._unwritten.count == 1, 60, "what both gave")
    finally:
        reader.close()
    results = over.way()
    try:
        results.go_on(reader)
        results.settle(held=held)
        wait_for(lambda: results.settled, 60, "the end of the topic")
        results.allow(2, SHADOW_RUN, kept=True)
        assert over.position().offset == 4
        over.give(2, SHADOW_RUN, 4000, 5000, 6000)
        wait_for(lambda: over.sink.times[-1:] == [over.now_ms + 5000], 60, "what came after that")
        assert [moment - over.now_ms for moment in over.sink.times] == [3000, 4000, 5000]
    finally:
        results.close()


def test_nothing_that_the_old_version_left_is_written_before_the_new_one_may(stack, job):
    """It would be written while nobody gives anything new, and the new version has it as well."""
    over = Takeover(stack, job, since=1, old=0, reached=-1000)
    over.give(1, 1, 0)  # offset 0, before the shadow
    reader = over.way(shadow=over.note)
    try:
        over.give(1, 1, 1000, 2000)
        over.give(2, SHADOW_RUN, 1000, 2000, 3000)
        wait_for(lambda: reader._next == 6 and reader._unwritten.count == 3, 60, "what both gave")
    finally:
        reader.close()
    results = over.way()
    try:
        results.go_on(reader)
        results.settle(held=True)
        wait_for(lambda: results.settled, 60, "the end of the topic")
        for number, moment in enumerate((3000, 4000)):  # what its queries still give
            over.give(1, 1, moment)
            wait_for(lambda number=number: results._next == 7 + number, 60, "what comes late")
        assert not over.sink.times
        results.allow(2, SHADOW_RUN, kept=True)
        over.give(2, SHADOW_RUN, 4000, 5000)
        wait_for(lambda: over.sink.times[-1:] == [over.now_ms + 4000], 60, "what waited")
        assert [moment - over.now_ms for moment in over.sink.times] == [0, 1000, 2000, 3000, 4000]
    finally:
        results.close()


@pytest.mark.parametrize("kept", [True, False])  # False: the stage is new, or was filled again from the topic
@pytest.mark.parametrize(
    ("killed", "written"),
    [(False, [2000, 3000, 4000]), (True, [1000, 2000, 3000, 4000])],  # whose memory is gone reads all of it again
)
def test_what_a_shadow_gave_beside_a_version_in_batches_is_not_read_before_it_may_write(
    stack, job, killed, written, kept
):
    """None of it counts for that version, and minutes of results would be read while nobody writes."""
    store, servers, now_ms = ObjectStore(stack), stack.kafka_bootstrap_servers, int(time.time() * 1000)
    lease = Lease(job=job, epoch=2, launch="l", deployment=2)
    window = Window(kind="tumbling", time="t", size_us=1_000_000, slide_us=1_000_000)
    note = Shadow(job=job, stage="counts", deployment=2, epoch=2, since=0)
    documents.write(store, keys.shadow(job, "counts"), note)
    sink, topic = Remembers(), keys.results_topic(job, "counts")
    end_of_results(Ledger.at(servers), job, "counts")  # makes it

    def way(*sinks: Remembers, **more: Any) -> Results:
        feed = Feed(job, "counts", 2, servers, store, SINK, ("value",))
        made = Results(
            job, "counts", servers, store, sinks, lambda: None, lambda: lease, deployment=2, feed=feed, **more
        )
        made.know(window)
        return made

    def give(run: int, *times: int) -> None:
        produce(stack, topic, 2, run, *(row("a", now_ms + moment, 1) for moment in times))

    reader, results = way(shadow=note), way(sink)
    reader.open()
    try:
        give(SHADOW_RUN, 1000, 2000, 3000, 4000)
        reader.others_wrote(now_ms + 1000)
        wait_for(lambda: reader._next == 4 and reader._unwritten.count == 3, 60, "what the shadow gave")
    finally:
        reader.close(feed=killed)
    try:
        if not killed:
            results.go_on(reader)
        results.open()
        assert results._next == 4
        results._trim()  # must not take what is still to be read
        results.settle()
        wait_for(lambda: results.settled, 60, "the end of the topic")
        run = 1 if killed else SHADOW_RUN
        results.allow(2, run, kept=kept)
        give(run, 5000)
        wait_for(lambda: sink.times[-1:] == [now_ms + 4000], 60, "what waited")
        assert [moment - now_ms for moment in sink.times] == written
        assert sorted(time - now_ms for _, time, _ in read(stack, job, 2)) == [1000, 2000, 3000, 4000]  # once
    finally:
        results.close()


def test_who_continues_a_shadow_that_was_killed_replaces_no_whole_window_by_a_part_of_it(stack, job):
    """Its queries read again what came after the last commit: what they give at first are parts of windows."""
    store, servers, now_ms = ObjectStore(stack), stack.kafka_bootstrap_servers, int(time.time() * 1000)
    lease = Lease(job=job, epoch=2, launch="l", deployment=2)
    note = Shadow(job=job, stage="counts", deployment=2, epoch=2, since=0)
    documents.write(store, keys.shadow(job, "counts"), note)
    sink, topic = Remembers(), keys.results_topic(job, "counts")
    end_of_results(Ledger.at(servers), job, "counts")  # makes it

    def give(run: int, *points: tuple[int, int]) -> None:
        produce(stack, topic, 2, run, *(row("a", now_ms + moment, count) for moment, count in points))

    give(SHADOW_RUN, (1000, 9), (2000, 9), (3000, 9))
    results = Results(job, "counts", servers, store, [sink], lambda: None, lambda: lease, deployment=2)
    results.know(Window(kind="tumbling", time="t", size_us=1_000_000, slide_us=1_000_000))
    results.open()
    try:
        results.settle()
        wait_for(lambda: results.settled, 60, "the end of the topic")
        results.allow(2, 1, kept=False)
        give(1, (2000, 4), (3000, 4))
        wait_for(lambda: results._next == 5, 60, "the parts")
        wait_for(lambda: results._points.behind == (0,), 60, "what is given again being known as that")
        give(1, (2000, 9), (3000, 9), (4000, 9), (5000, 9))
        wait_for(lambda: sink.times[-1:] == [now_ms + 4000], 60, "what came after it")
        assert set(sink.values) == {9}
        assert {moment - now_ms for moment in sink.times} == {1000, 2000, 3000, 4000}
    finally:
        results.close()
