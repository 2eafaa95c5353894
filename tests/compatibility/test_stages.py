"""Stages that come and go, sources, joins, deduplication and keyed state, on a restored checkpoint."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from compatibility.lab import Batch, Event, Lab, final
from compatibility.test_windows import AFTER, ALL, BEFORE, end, plain, stage, windowed
from streamops.model.definitions import LogSink
from streamops.store import waiting
from streamops.versions import compatibility
from streamops_runtime.gate import Gate
from streamops_runtime.sinks import LogWriter


def by_site(clicks: DataFrame) -> DataFrame:
    return windowed(clicks, by="site")


def raw(clicks: DataFrame) -> DataFrame:
    return clicks.select("page", end(F.col("time")), F.col("n").alias("value"))


def test_a_stage_that_is_added_starts_empty_and_the_others_are_kept(lab: Lab) -> None:
    old = {"plain": lab.fingerprint(plain)}
    new = old | {"by_site": lab.fingerprint(by_site), "raw": lab.fingerprint(raw)}
    found = {item.stage: item for item in compatibility.verdicts(old, new)}
    assert {name: item.outcome for name, item in found.items()} == {
        "plain": "kept",
        "by_site": "starts empty",
        "raw": "starts empty",
    }
    assert compatibility.refused(found.values(), ()) == ()
    assert lab.switch(plain, plain, BEFORE, AFTER).all == final(lab.at_once(plain, ALL))
    fresh = lab.switch(plain, by_site, BEFORE, AFTER, state=False)
    written = {row[:-1]: row[-1] for row in fresh.after}
    assert written == final(lab.at_once(by_site, AFTER))  # what began before is partial
    whole = final(lab.at_once(by_site, ALL))
    assert {key: value for key, value in written.items() if key[1] > 20} == {
        key: value for key, value in whole.items() if key[1] > 20
    }


@pytest.mark.full
def test_a_stage_that_is_removed_is_dropped_with_a_yes_and_the_others_are_kept(lab: Lab) -> None:
    new = {"plain": lab.fingerprint(plain)}
    found = compatibility.verdicts(new | {"by_site": lab.fingerprint(by_site), "raw": lab.fingerprint(raw)}, new)
    assert [item.outcome for item in found] == ["kept", "dropped", "dropped"]
    assert [item.stage for item in compatibility.refused(found, ())] == ["by_site"]  # raw has nothing to lose
    assert compatibility.refused(found, ("by_site",)) == ()
    place, old = lab.directory / "removed", {"plain": plain, "by_site": by_site, "raw": raw}
    lab.write(place / "clicks", BEFORE)
    before = {name: lab.run(function, place, name) for name, function in old.items()}
    lab.write(place / "clicks", AFTER, since=len(BEFORE))
    left = lab.run(plain, place, "plain")  # the new version has no other query
    assert {row[:-1]: row[-1] for row in before["plain"] + left} == final(lab.at_once(plain, ALL))
    whole = final(lab.at_once(by_site, ALL))
    written = {row[:-1]: row[-1] for row in before["by_site"]}
    assert written == {key: value for key, value in whole.items() if key[1] == 10}  # what was open is never written
    back = lab.run(by_site, place, "by_site")  # except by the version before, from the state that was dropped
    assert written | {row[:-1]: row[-1] for row in back} == whole


@pytest.mark.full
def test_a_renamed_stage_starts_empty_and_the_old_one_is_dropped(lab: Lab) -> None:
    found = compatibility.verdicts({"totals": lab.fingerprint(plain)}, {"sums": lab.fingerprint(plain)})
    assert [(item.stage, item.outcome) for item in found] == [("sums", "starts empty"), ("totals", "dropped")]
    assert [item.stage for item in compatibility.refused(found, ())] == ["totals"]
    fresh = lab.switch(plain, plain, BEFORE, AFTER, state=False)
    written = {row[:-1]: row[-1] for row in fresh.after}
    assert written["a", 20] == 4 + 50  # without what the old stage had counted: the 3
    assert written == final(lab.at_once(plain, AFTER))


@pytest.mark.full
def test_a_source_that_is_added_counts_from_its_start_and_one_that_is_removed_no_more(lab: Lab) -> None:
    def both(clicks: DataFrame, visits: DataFrame) -> DataFrame:
        return windowed(clicks.unionByName(visits))

    visits = [[Event("a", 1000, 18)], [Event("b", 2000, 25)]]
    done = lab.switch(plain, both, BEFORE, AFTER, other=visits)
    assert done.verdict.outcome == "kept with caveat"
    assert "Source visits is added." in done.verdict.reasons
    assert done.all["a", 20] == 3 + 4 + 50 + 1000
    assert done.all == final(lab.at_once(both, ALL, visits))
    done = lab.switch(both, plain, BEFORE, AFTER, other=visits[:1])
    assert done.verdict.outcome == "kept with caveat"
    assert "Source visits is removed." in done.verdict.reasons
    assert done.all["a", 20] == 3 + 4 + 50 + 1000  # what it had brought stays


def test_a_branch_without_state_goes_on_where_it_had_read_to(lab: Lab) -> None:
    def more(clicks: DataFrame) -> DataFrame:
        return raw(clicks.where("n >= 0")).withColumn("value", F.col("value") + 1)

    done = lab.switch(raw, more, BEFORE, AFTER)
    assert done.verdict.outcome == "kept"
    assert len(done.before) == 5
    assert done.after == [("a", 15, 5), ("b", 16, 6), ("a", 17, 51), ("a", 24, 7), ("b", 33, 8), ("z", 5000, 1)]


def joined(clicks: DataFrame, visits: DataFrame, within: str = "10 seconds") -> DataFrame:
    """(page, time of the click, time of the visit, n)"""
    left = clicks.withWatermark("time", "0 seconds").select("page", "n", F.col("time").alias("clicked"))
    right = visits.withWatermark("time", "0 seconds").select(F.col("page").alias("visited"), F.col("time").alias("at"))
    condition = f"page = visited and at >= clicked and at <= clicked + interval {within}"
    both = left.join(right, F.expr(condition))
    return both.select("page", end(F.col("clicked")), F.col("n").alias("value"))


@pytest.mark.full
def test_a_join_keeps_its_waiting_rows_and_other_bounds_apply_from_the_switch_on(lab: Lab) -> None:
    def wider(clicks: DataFrame, visits: DataFrame) -> DataFrame:
        return joined(clicks, visits, "1 minute")

    visits = [[Event("a", 0, 16), Event("b", 0, 13)]]
    done = lab.switch(joined, joined, BEFORE, AFTER, other=visits)
    assert done.verdict.outcome == "kept"
    assert done.all == lab.at_once(joined, ALL, visits)
    found = lab.verdict(joined, wider)
    assert found.outcome == "kept with caveat"
    assert "conditions" in found.reasons[0]
    done = lab.switch(joined, wider, BEFORE, AFTER, other=visits)
    assert not done.refused
    both = lab.at_once(joined, ALL, visits).items() | set()
    assert both <= done.all.items()
    assert done.all.items() <= lab.at_once(wider, ALL, visits).items() | set()  # and not more


@pytest.mark.full
def test_a_join_of_other_columns_is_refused_by_spark_too(lab: Lab) -> None:
    def more(clicks: DataFrame, visits: DataFrame) -> DataFrame:
        left = clicks.withWatermark("time", "0 seconds").select("page", "n", "site", F.col("time").alias("clicked"))
        right = visits.withWatermark("time", "0 seconds")
        right = right.select(F.col("page").alias("visited"), F.col("time").alias("at"))
        condition = "page = visited and at >= clicked and at <= clicked + interval 10 seconds"
        return left.join(right, F.expr(condition)).select("page", "site", end(F.col("clicked")), "n")

    done = lab.switch(joined, more, BEFORE, AFTER, other=[[Event("a", 0, 16)]])
    assert done.verdict.outcome == "incompatible"
    assert done.refused


def once(clicks: DataFrame, key: str = "page", delay: str = "1 hour") -> DataFrame:
    seen = clicks.withWatermark("time", delay).dropDuplicatesWithinWatermark([key])
    return seen.select(key, end(F.col("time")), F.col("n").alias("value"))


@pytest.mark.full
def test_deduplication_is_kept_and_another_key_is_refused_because_spark_would_mix_them(lab: Lab) -> None:
    before, after = [[Event("a", 1, 1)], [Event("b", 2, 2)]], [[Event("a", 3, 3), Event("c", 4, 4)]]
    done = lab.switch(once, once, before, after)
    assert done.verdict.outcome == "kept"
    assert [row[0] for row in done.before + done.after] == ["a", "b", "c"]
    longer = stage(once, delay="2 hours")
    done = lab.switch(once, longer, before, after)
    assert done.verdict.outcome == "kept with caveat"
    assert [row[0] for row in done.before + done.after] == ["a", "b", "c"]
    sites = [[Event("q", 3, 3, site="a")]]  # a site never seen, named as a page that was
    done = lab.switch(once, stage(once, "site"), before, sites)
    assert done.verdict.outcome == "incompatible"
    assert done.after == []


class Counter(StatefulProcessor):
    """Counts the events of a key; the count lives ``ttl_ms`` after its last change."""

    def __init__(self, ttl_ms: int | None) -> None:
        self.ttl_ms = ttl_ms

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long", ttlDurationMs=self.ttl_ms)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        from pyspark.sql import Row

        had = self.count.get()[0] if self.count.exists() else 0
        count = had + sum(1 for _ in rows)
        self.count.update((count,))
        yield Row(page=key[0], value=count)

    def close(self) -> None:
        pass


def counted(clicks: DataFrame, ttl_ms: int | None = 3_600_000) -> DataFrame:
    return clicks.groupBy("page").transformWithState(
        statefulProcessor=Counter(ttl_ms), outputStructType="page string, value long", outputMode="Append",
        timeMode="ProcessingTime",
    )  # fmt: skip


def starts_soon() -> bool:
    """Whether Python is up well within the 10 s that Spark's ``PythonWorkerFactory`` gives a worker of the driver.

    Nothing can change those: a query that begins on a machine with too much other work fails with *connect back*.
    """
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", "import pyspark.sql.streaming.transform_with_state_driver_worker"], check=True
    )
    return time.monotonic() - began < 4


@pytest.fixture
def only_data(lab: Lab) -> Iterator[None]:
    """With a clock in the state Spark would run batches without data for ever."""
    assert waiting.until(starts_soon, 600, 1), "a Python worker did not start within 4 s"
    key = "spark.sql.streaming.noDataMicroBatches.enabled"
    lab.spark.conf.set(key, "false")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers have no tests on their path
    yield
    lab.spark.conf.unset(key)


@pytest.mark.full
@pytest.mark.usefixtures("only_data")
def test_keyed_state_is_kept_with_another_time_to_live_and_refused_without_any(lab: Lab) -> None:
    before, after = [[Event("a", 1, 1), Event("a", 1, 2)]], [[Event("a", 1, 3), Event("b", 1, 4)]]
    done = lab.switch(counted, stage(counted, 7_200_000), before, after)
    assert done.verdict.outcome == "kept with caveat"
    assert "keep their old time to live" in done.verdict.consequence
    assert sorted(done.after) == [("a", 3), ("b", 1)]
    done = lab.switch(counted, stage(counted, None), before, after)
    assert done.verdict.outcome == "incompatible"
    assert done.refused


@pytest.mark.full
@pytest.mark.usefixtures("only_data")
def test_a_short_time_to_live_of_the_old_version_still_ends_its_entries(lab: Lab) -> None:
    short, after = stage(counted, 1), [[Event("a", 1, 3)]]
    done = lab.switch(short, stage(counted, 3_600_000), [[Event("a", 1, 1)]], after)
    assert done.verdict.outcome == "kept with caveat"
    assert done.after == [("a", 1)]  # the entry that was written with 1 ms is gone


def test_connection_parameters_and_sinks_are_no_part_of_the_state(lab: Lab) -> None:
    from streamops.model.definitions import parse
    from streamops_runtime.code import StageFunction
    from streamops_runtime.fingerprint import fingerprint

    def definition(topic: str, most: int, sinks: str) -> Any:
        return parse(
            "job: lab\nversion: v1\ncode: lab.py\nsources:\n"
            f'  clicks: {{kafka: {{topic: {topic}}}, schema: "page string, site string, n long, time timestamp", '
            f"event_time: time, max_per_batch: {most}}}\nstages: {{s: {{sinks: [{sinks}]}}}}\n"
        )

    function = StageFunction("s", plain, ("clicks",), {})
    one = definition("clicks", 5, "{influxdb: {measurement: s}}")
    other = definition("clicks-2", 500, "{influxdb: {measurement: t, secret: elsewhere}}, {log: {}}")
    found = []
    for item in (one, other):
        directory = lab.directory / f"empty-{len(found)}"
        directory.mkdir()
        found.append(fingerprint(lab.spark, item, "s", function, str(directory))[0])
    assert found[0] == found[1]
    assert compatibility.continued("s", *found).outcome == "kept"


@pytest.mark.full
def test_a_sink_that_is_added_gets_what_comes_from_then_on_and_one_that_is_removed_no_more(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sink")
    place, whole, number = lab.directory / "sinks", final(lab.at_once(plain, ALL)), count()

    def version(batches: list[Batch], *sinks: int) -> list[str]:
        """What one with these sinks writes of some more batches, with the state of the version before."""
        for batch in batches:
            lab.write(place / "clicks", [batch], since=next(number))
        writers = [LogWriter("s", LogSink(format=f"{sink}: {{page}} {{end}} {{value}}")) for sink in sinks]
        caplog.clear()
        lab.run_into(Gate("s", writers, lambda: None, threading.Event()), plain, place, "s")
        return sorted(record.getMessage() for record in caplog.records if record.name == "sink.s")

    def closed(*ends: int, sinks: tuple[int, ...]) -> list[str]:
        """What was to be written of the windows that end then."""
        points = [(page, end, value) for (page, end), value in whole.items() if end in ends]
        return sorted(f"{sink}: {page} {end} {value}" for sink in sinks for page, end, value in points)

    assert version(BEFORE, 1) == closed(10, sinks=(1,))
    assert version(AFTER[:2], 1, 2) == closed(20, 30, sinks=(1, 2))
    assert version(AFTER[2:], 2) == closed(40, sinks=(2,))


def test_what_is_not_known_is_unknown(lab: Lab) -> None:
    def few(clicks: DataFrame) -> DataFrame:
        return clicks.limit(3)

    found = lab.verdict(few, few)
    assert found.outcome == "unknown"
    assert found.lost
