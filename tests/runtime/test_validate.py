"""The check before a publish, on plans over empty streams; and the rehearsal with sample rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamops.model.definitions import load
from streamops.model.errors import DefinitionError, NotFoundError
from streamops.versions import fingerprints
from streamops.versions.template import write_new
from streamops_runtime.rehearse import rehearse
from streamops_runtime.validate import check
from streamops_runtime.validate import fingerprints as take

EXAMPLE = Path(__file__).resolve().parents[2] / "spark_jobs" / "trade_analyser"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    write_new(tmp_path / "clicks")
    return tmp_path / "clicks"


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_the_examples_pass(spark: SparkSession, job: Path) -> None:
    assert set(check(spark, load(EXAMPLE / "v2.yaml"), EXAMPLE)) == {"avg_1s", "avg_1m", "vol_1s"}
    assert set(check(spark, load(EXAMPLE / "v3.yaml"), EXAMPLE)) == {"avg_1s", "avg_1m", "vol_1s"}
    assert check(spark, load(job / "v1.yaml"), job)["per_minute"] == ["page string", "value bigint", "time timestamp"]


def test_publish_takes_a_fingerprint_of_every_stage(spark: SparkSession) -> None:
    found = fingerprints.read(take(spark, load(EXAMPLE / "v2.yaml"), EXAMPLE))
    assert set(found) == {"avg_1s", "avg_1m", "vol_1s"}
    second, minute = found["avg_1s"], found["avg_1m"]
    assert second is not None
    assert minute is not None
    assert second.sources == ("trades",)
    assert second.params == ("delay",)
    (operator,) = second.operators
    assert operator.window is not None
    assert operator.window.label() == "tumbling window of 1 second"
    assert [item.text for item in operator.aggregates] == ["sum(trades.price)", "count(1)"]
    assert [slot.nullable for item in operator.aggregates for slot in item.buffer] == [True, False]
    windows = [item.window.label() for item in minute.operators if item.window]
    assert windows == ["tumbling window of 1 second", "sliding window of 1 minute every 1 second"]
    again = take(spark, load(EXAMPLE / "v1.yaml"), EXAMPLE)
    assert fingerprints.read(again)["avg_1s"] == second  # the same in every version and every process


def test_a_stage_that_cannot_fill_itself_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    text = (EXAMPLE / "v2.yaml").read_text()
    (tmp_path / "trade_analyser.py").write_text((EXAMPLE / "trade_analyser.py").read_text())
    (tmp_path / "v2.yaml").write_text(text.replace("vol_1s:\n", "vol_1s:\n    fill: 2 hours\n", 1))
    assert "vol_1s" in take(spark, load(tmp_path / "v2.yaml"), tmp_path)
    change(
        tmp_path / "trade_analyser.py",
        '.groupBy(F.window("time", "1 second"))',
        '.groupBy(F.session_window("time", "1 second").alias("window"))',
    )
    with pytest.raises(DefinitionError, match=r"stages\.vol_1s\.fill: that takes windows of 15 minutes at most"):
        take(spark, load(tmp_path / "v2.yaml"), tmp_path)


def test_groups_that_would_be_one_point_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Of two rows with the same tags and time, InfluxDB keeps the one that was written last."""
    path = tmp_path / "trade_analyser.py"

    def published(old: str, new: str) -> None:
        path.write_text((EXAMPLE / "trade_analyser.py").read_text())
        change(path, old, new)
        take(spark, load(tmp_path / "v2.yaml"), tmp_path)

    (tmp_path / "v2.yaml").write_text((EXAMPLE / "v2.yaml").read_text())
    by_second = '.groupBy(F.window("time", "1 second"))'
    published(by_second, '.groupBy(F.window("time", "1 second"), F.lit(1))')  # one group
    with pytest.raises(DefinitionError, match=r"stages\.vol_1s\.sinks: the points of vol_1s .*\(trades\.symbol\)"):
        published(by_second, '.groupBy(F.window("time", "1 second"), "symbol")')
    with pytest.raises(DefinitionError, match=r"tumbling window of 1 second"):
        published('.select("value", F.col("window.end").alias', '.select("value", F.lit(0).cast("timestamp").alias')
    with pytest.raises(DefinitionError, match=r"whole milliseconds, and its tumbling window of 1.5 ms does not"):
        published(by_second, '.groupBy(F.window("time", "1500 microseconds"))')


def test_early_results_are_refused_for_windows_over_windows_only(spark: SparkSession, tmp_path: Path) -> None:
    text = (EXAMPLE / "v2.yaml").read_text().replace("output: append", "output: update")
    (tmp_path / "trade_analyser.py").write_text((EXAMPLE / "trade_analyser.py").read_text())
    (tmp_path / "v2.yaml").write_text(text)
    with pytest.raises(DefinitionError, match=r"stages\.avg_1m\.output: avg_1m has windows over windows"):
        check(spark, load(tmp_path / "v2.yaml"), tmp_path)
    (tmp_path / "v1.yaml").write_text((EXAMPLE / "v1.yaml").read_text().replace("output: append", "output: update"))
    assert "avg_1s" in check(spark, load(tmp_path / "v1.yaml"), tmp_path)


def test_append_without_a_watermark_is_refused(spark: SparkSession, job: Path) -> None:
    change(job / "clicks.py", 'clicks.withWatermark("time", "5 seconds")', "clicks")
    with pytest.raises(DefinitionError, match=r"stages\.per_minute: .*[Ww]atermark"):
        check(spark, load(job / "v1.yaml"), job)


def test_a_stage_that_returns_something_else_is_refused(spark: SparkSession, job: Path) -> None:
    change(job / "clicks.py", "    return (", "    return 3 if clicks else (")
    with pytest.raises(DefinitionError, match="returns int"):
        check(spark, load(job / "v1.yaml"), job)


def test_code_that_fails_on_import_is_refused(spark: SparkSession, job: Path) -> None:
    change(job / "clicks.py", "def per_minute", "1 / 0\n\n\ndef per_minute")
    with pytest.raises(DefinitionError, match="cannot be imported: ZeroDivisionError"):
        check(spark, load(job / "v1.yaml"), job)


def test_samples_give_what_the_job_would_write(spark: SparkSession, job: Path) -> None:
    rows = rehearse(spark, load(job / "v1.yaml"), job)["per_minute"]
    assert [(row.page, row.value, row.time.minute) for row in rows] == [
        ("/help", 1, 1),
        ("/help", 1, 2),
        ("/home", 1, 3),
        ("/home", 2, 2),
        ("/home", 3, 1),
    ]


def test_a_source_without_samples_says_where_to_write_them(spark: SparkSession, job: Path) -> None:
    (job / "samples" / "clicks.jsonl").unlink()
    with pytest.raises(NotFoundError, match=r"samples/clicks\.jsonl"):
        rehearse(spark, load(job / "v1.yaml"), job)


REAL_TIME = """
from pyspark.sql import functions as F


def per_page(clicks):
    return clicks.groupBy(F.window("time", "1 minute"), "page").agg(F.count("*").alias("value")).select(
        "page", "value", F.col("window.end").alias("time"), F.lit(1.5).alias("share")
    )
"""


@pytest.fixture
def real_time(tmp_path: Path) -> Path:
    """A job with one stage in real time, which passes."""
    (tmp_path / "clicks.py").write_text(REAL_TIME)
    (tmp_path / "v1.yaml").write_text(
        "job: clicks\nversion: v1\ncode: clicks.py\n"
        "sources: {clicks: {kafka: {topic: clicks}, schema: 'page string, time timestamp', event_time: time}}\n"
        "stages:\n  per_page:\n    mode: realtime\n    output: update\n"
        "    sinks: [{influxdb: {measurement: clicks, tags: [page]}}]\n"
    )
    return tmp_path


def test_a_stage_that_can_run_in_real_time_passes(spark: SparkSession, real_time: Path) -> None:
    assert set(check(spark, load(real_time / "v1.yaml"), real_time)) == {"per_page"}


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("v1.yaml", "kafka: {topic: clicks}", "csv_tail: {directory: /tmp}", "source clicks is not of Kafka"),
        ("v1.yaml", "tags: [page]", "tags: [share]", "tag share is double"),
        ("clicks.py", "clicks.groupBy", "clicks.limit(5).groupBy", "Limit"),
        ("clicks.py", 'F.window("time", "1 minute")', 'F.session_window("time", "1 minute").alias("window")', "ession"),
        ("clicks.py", '"page", "value"', 'F.udf(lambda name: name)("page").alias("page"), "value"', "EvalPython"),
    ],
    ids=["another source", "a tag that is no text", "an operator", "session windows", "a Python function"],
)
def test_a_stage_that_cannot_run_in_real_time_is_refused_with_the_reason(
    spark: SparkSession, real_time: Path, file: str, old: str, new: str, says: str
) -> None:
    change(real_time / file, old, new)
    with pytest.raises(DefinitionError, match=says) as refused:
        check(spark, load(real_time / "v1.yaml"), real_time)
    assert "cannot run in real time, because" in str(refused.value) or "stages.per_page" in str(refused.value)


@pytest.fixture
def reading(real_time: Path) -> Path:
    """The same job with a second stage, which reads the first."""
    code = real_time / "clicks.py"
    code.write_text(
        code.read_text()
        + """

def hourly(changes):
    return changes.groupBy(F.window("time", "1 hour"), "page").agg(F.sum("value").alias("value")).select(
        "page", "value", F.col("window.end").alias("time")
    )
"""
    )
    change(
        real_time / "v1.yaml",
        "stages:\n",
        "  changes:\n    stage: {name: per_page, add: [value]}\n"
        "    schema: 'page string, value bigint, time bigint'\n    event_time: time\n"
        "stages:\n  hourly:\n    mode: realtime\n    output: update\n"
        "    sinks: [{influxdb: {measurement: hourly, tags: [page]}}]\n",
    )
    change(real_time / "v1.yaml", "event_time: time}}", "event_time: time}")
    change(real_time / "v1.yaml", "sources: {clicks:", "sources:\n  clicks:")
    return real_time


def test_a_stage_may_read_another(spark: SparkSession, reading: Path) -> None:
    definition = load(reading / "v1.yaml")
    assert list(check(spark, definition, reading)) == ["per_page", "hourly"]  # one that is read comes first
    (reading / "samples").mkdir()
    clicks = [{"page": page, "time": f"2026-01-01T10:{minute:02}:00Z"} for minute in (1, 2, 2, 59) for page in "ab"]
    (reading / "samples" / "clicks.jsonl").write_text("\n".join(json.dumps(click) for click in clicks))
    rows = rehearse(spark, definition, reading)
    assert [(row.page, row.value) for row in rows["per_page"]][:3] == [("a", 1), ("a", 1), ("a", 2)]
    hours = [(row.page, row.value) for row in rows["hourly"]]
    assert hours == [("a", 1), ("a", 3), ("b", 1), ("b", 3)]  # the minute that ends with the hour stands in the next


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("v1.yaml", "add: [value]", "add: [share]", "column share of per_page is double.*whole numbers"),
        ("v1.yaml", "add: [value]", "add: [clicks]", "per_page has no column clicks"),
        ("v1.yaml", "value bigint", "value int", "value of per_page is bigint"),
        ("v1.yaml", "time bigint", "time timestamp", "time is handed on as bigint"),
        ("v1.yaml", "value bigint", "value bigint, share double", "share is neither tag nor time of per_page"),
        ("v1.yaml", "name: per_page", "name: daily", "there is no stage daily"),
        ("v1.yaml", "name: per_page", "name: hourly", "Stages read each other in a circle: hourly reads hourly"),
    ],
)
def test_a_source_that_a_stage_does_not_give_is_refused(
    spark: SparkSession, reading: Path, file: str, old: str, new: str, says: str
) -> None:
    change(reading / file, old, new)
    with pytest.raises(DefinitionError, match=says):
        check(spark, load(reading / "v1.yaml"), reading)
