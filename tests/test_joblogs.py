"""A job's log: lines of several drivers, read back in order, filtered, and followed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fakes import object_server
from stack import configure
from streamops.model.errors import UnreachableError
from streamops.settings import Settings
from streamops.spark import worker_logs
from streamops.store import joblogs, keys
from streamops.store.joblogs import Line, Reader
from streamops.store.object_store import ObjectStore
from streamops_runtime import shipping
from streamops_runtime.shipping import Shipper

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEFORE = Line(time=AT, text="", launch="deploy-1", host="node-1")


@pytest.mark.parametrize(
    ("text", "level", "logger", "message"),
    [
        ("2026-01-01 12:00:01,250Z DEBUG source.beta Added 3 pings", "DEBUG", "source.beta", "Added 3 pings"),
        ("2026-01-01 12:00:01,250Z DEBUG Micro$: plan: a b", "DEBUG", "Micro$", "plan: a b"),
        ("26/01/01 12:00:01 WARN KafkaMicroBatchStream: lost", "WARNING", "KafkaMicroBatchStream", "lost"),
        ("26/01/01 12:00:01 TRACE RocksDB: put", "TRACE", "RocksDB", "put"),
        ("26/01/01 12:00:01 FATAL Main: gone", "ERROR", "Main", "gone"),
    ],
)
def test_lines_of_python_and_of_spark_are_understood(text: str, level: str, logger: str, message: str) -> None:
    line = joblogs.parse(text, BEFORE)
    assert (line.level, line.logger, line.text, line.launch) == (level, logger, message, "deploy-1")
    assert line.time.replace(microsecond=0) == AT + timedelta(seconds=1)


def test_what_the_stack_has_spark_write_is_understood() -> None:
    (pattern,) = (line for line in configure._LOGGING.splitlines() if line.startswith("appender.stderr.layout.pattern"))
    text = pattern.split(" = ")[1]
    for of_log4j, value in (
        ("%d{yyyy-MM-dd HH:mm:ss,SSS}{UTC}", "2026-01-01 12:00:01,250"),
        ("%p", "WARN"),
        ("%c{1}", "TaskSetManager"),
        ("%m%n%ex", "Lost task 0"),
    ):
        assert of_log4j in text
        text = text.replace(of_log4j, value)
    line = joblogs.parse(text, BEFORE)
    assert (line.level, line.logger, line.text) == ("WARNING", "TaskSetManager", "Lost task 0")


@pytest.mark.parametrize("text", ["\tat java.lang.Thread.run", "2026-13-01 12:00:01,250Z INFO a b", ""])
def test_a_line_without_a_head_belongs_to_the_message_before(text: str) -> None:
    first = joblogs.parse("26/01/01 12:00:01 ERROR Main: failed", BEFORE)
    second = joblogs.parse(text, first)
    assert (second.level, second.logger, second.time, second.text) == ("ERROR", "Main", first.time, text)


def test_lines_are_kept_by_level_logger_and_time() -> None:
    lines = [
        Line(time=AT, level="DEBUG", logger="source.beta", text="a"),
        Line(time=AT + timedelta(minutes=1), level="WARNING", logger="source.betamax", text="b"),
        Line(time=AT + timedelta(minutes=2), level="ERROR", logger="source", text="c"),
    ]
    assert [line.text for line in joblogs.keep(lines, "WARNING")] == ["b", "c"]
    assert [line.text for line in joblogs.keep(lines, logger="source.beta")] == ["a"]
    assert [line.text for line in joblogs.keep(lines, since=AT + timedelta(minutes=1))] == ["b", "c"]


def test_a_damaged_chunk_is_shown_and_hides_nothing() -> None:
    found = joblogs.unpack(joblogs.pack([BEFORE]) + b"half a li\n" + joblogs.pack([BEFORE]))
    assert [line.text for line in found] == ["", "half a li", ""]


def shipper(store: ObjectStore, launch: str, error_output: Path | None = None) -> Shipper:
    return Shipper(store, "sums", launch, "0123456789abcdef", "node-1", error_output)


def record(text: str, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("sink.log", level, __file__, 1, "%s", (text,), None)


def test_what_is_flushed_is_stored_and_read_across_launches(bucket: Settings) -> None:
    store = ObjectStore(object_server.as_job(bucket))
    reader = Reader(store, "sums")
    first = shipper(store, "deploy-1")
    first.emit(record("one"))
    first.flush()
    assert [line.text for line in reader.more()] == ["one"]
    second = shipper(store, "upgrade-2")
    second.emit(record("two", logging.WARNING))
    second.end()
    assert [(line.text, line.level, line.launch) for line in reader.more()] == [("two", "WARNING", "upgrade-2")]
    assert reader.more() == []
    assert [line.text for line in Reader(store, "sums").more()] == ["one", "two"]


class Slow(ObjectStore):
    """Lines come while a chunk is on its way."""

    def __init__(self, settings: Settings, meanwhile: Callable[[], None]) -> None:
        super().__init__(settings)
        self.meanwhile = meanwhile

    def put(self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False) -> str:
        self.meanwhile()
        return super().put(key, body, if_match=if_match, if_absent=if_absent)


def test_rows_of_log_sinks_are_never_left_out_and_other_lines_are_counted(
    bucket: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "_MOST_WAITING", 10)
    sent: list[int] = []

    def rows(first: int) -> None:
        for number in range(first, first + 50):
            found.emit(record(f"row {number}"))
            other = record("other")
            other.name = "work"
            found.emit(other)

    def meanwhile() -> None:
        sent.append(50 * len(sent))
        if len(sent) == 1:
            rows(50)

    store = Slow(object_server.as_job(bucket), meanwhile)
    found = shipper(store, "deploy-1")
    rows(0)
    found.flush()
    found.flush()
    lines = Reader(store, "sums").more()
    assert [line.text for line in lines if line.logger == "sink.log"] == [f"row {number}" for number in range(100)]
    kept = sum(line.logger == "work" for line in lines)
    told = [int(line.text.split()[0]) for line in lines if "left out" in line.text]
    assert kept + sum(told) == 100
    assert kept == 20


def test_the_error_output_is_shipped_line_by_line_and_half_a_line_waits(bucket: Settings, tmp_path: Path) -> None:
    store, output = ObjectStore(object_server.as_job(bucket)), tmp_path / "stderr"
    found = shipper(store, "deploy-1", output)
    found.flush()  # not there yet
    output.write_text("26/01/01 12:00:01 WARN Main: first\n2026-01-01 12:00:02,000Z DEBUG source.beta Added")
    found.flush()
    with output.open("a") as file:
        file.write(" 3 pings\n")
    found.flush()
    assert [line.text for line in Reader(store, "sums").more()] == ["first", "Added 3 pings"]


def test_the_files_of_a_driver_that_runs_for_months_are_emptied(
    bucket: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "_LARGEST", 1000)
    store, output = ObjectStore(object_server.as_job(bucket)), tmp_path / "stderr"
    (tmp_path / "stdout").write_text("said before\n")
    found = shipper(store, "deploy-1", output)
    said = [f"line {number:04}" for number in range(300)]
    with output.open("a") as worker:  # as Spark's worker does, which never begins a new file
        for number, line in enumerate(said):
            worker.write(f"26/01/01 12:00:01 WARN Main: {line}\n")
            worker.flush()
            if number % 7 == 0:
                found.flush()
                assert output.stat().st_size < 1400
    found.flush()
    assert [line.text for line in Reader(store, "sums").more()] == said
    assert (tmp_path / "stdout").read_text() == ""


def test_lines_wait_for_an_object_store_that_does_not_answer(bucket: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore(object_server.as_job(bucket))
    found = shipper(store, "deploy-1")
    found.emit(record("kept"))
    with monkeypatch.context() as patch:
        patch.setattr(store, "put", lambda *_, **__: (_ for _ in ()).throw(UnreachableError("away")))
        with pytest.raises(UnreachableError):
            found.flush()
    found.begin()
    deadline = time.monotonic() + 20
    while not (lines := Reader(store, "sums").more()):
        assert time.monotonic() < deadline
    assert [line.text for line in lines] == ["kept"]
    found.end()


def test_chunks_of_a_driver_are_in_the_order_of_time() -> None:
    later = joblogs.driver_name(AT + timedelta(hours=1), "a", "f" * 32)
    earlier = joblogs.driver_name(AT, "b", "0" * 32)
    assert keys.log_chunk("sums", earlier, 7) < keys.log_chunk("sums", earlier, 8) < keys.log_chunk("sums", later, 0)


def test_executors_of_the_job_are_found_on_a_workers_page_and_their_lines_understood() -> None:
    page = {
        "executors": [{"id": "0", "appid": "app-1"}, {"id": "0", "appid": "app-2"}],
        "finishedexecutors": [{"id": "3", "appid": "app-1"}],
    }
    assert worker_logs.executors(page, {"app-1": "deploy-1"}) == [("app-1", "0"), ("app-1", "3")]
    head = "==== Bytes 0-90 of 90 of stderr ====\nSpark Executor Command\n"
    text = f"{head}26/01/01 12:00:01 WARN Task: slow\n\tat x\n"
    lines = worker_logs.parsed(text, "deploy-1", "node-2", "3")
    assert [(line.text, line.where, line.host) for line in lines] == [
        ("slow", "executor-3", "node-2"),
        ("\tat x", "executor-3", "node-2"),
    ]
