"""The two sources that StreamOps reads itself: nothing missed or doubled, faults counted, read in parts and again."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from demos.fleet.beta import Pings, handler
from streamops.model.definitions import Source
from streamops.spark.checkpoints import parse_offsets
from streamops_runtime.csv_tail import CsvTailReader
from streamops_runtime.http_poll import HttpReader
from streamops_runtime.session import STREAMING
from streamops_runtime.streams import Places, raw_stream

# --- files


def tail(directory: Path, **more: Any) -> CsvTailReader:
    options = {"source": "alpha", "place": str(directory), "faults": str(directory.parent / "faults.json")}
    return CsvTailReader({**options, **more})


def take(reader: Any, start: dict) -> tuple[list[bytes], dict]:
    end = reader.latestOffset(json.loads(json.dumps(start)), None)
    return again(reader, start, end), end


def again(reader: Any, start: dict, end: dict) -> list[bytes]:
    return [row[0] for part in parts(reader, start, end) for row in reader.read(part)]


def parts(reader: Any, start: dict, end: dict) -> list[Any]:
    """As tasks get them."""
    return [pickle.loads(pickle.dumps(part)) for part in reader.partitions(start, end)]


def faults(directory: Path) -> dict[str, int]:
    path = directory / "faults.json"
    return json.loads(path.read_text()) if path.is_file() else {}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    place = tmp_path / "alpha"
    place.mkdir()
    return place


def test_appended_lines_and_new_files_come_once_and_half_a_line_waits(files: Path) -> None:
    reader = tail(files)
    (files / "a.csv").write_text("a1\na2\nhal")
    first, at_first = take(reader, reader.initialOffset())
    assert first == [b"a1", b"a2"]
    with (files / "a.csv").open("a") as file:
        file.write("f\na4\n")
    (files / "b.csv").write_text("b1\r\n\n")
    (files / "notes.txt").write_text("no\n")
    second, at_second = take(reader, at_first)
    assert second == [b"half", b"a4", b"b1"]
    assert take(reader, at_second) == ([], at_second)
    assert faults(files.parent) == {}


def test_a_batch_is_read_again_exactly_by_another_process(files: Path) -> None:
    reader = tail(files)
    (files / "a.csv").write_text("a1\na2\n")
    _, start = take(reader, reader.initialOffset())
    with (files / "a.csv").open("a") as file:
        file.write("a3\na4\n")
    rows, end = take(reader, start)
    with (files / "a.csv").open("a") as file:
        file.write("a5\n")
    (files / "b.csv").write_text("b1\n")
    assert again(tail(files), start, end) == rows == [b"a3", b"a4"]
    (files / "a.csv").unlink()
    assert again(tail(files), end, end) == []  # what a batch has not read need not be there


def test_a_read_is_bounded_and_goes_on_where_it_ended(files: Path) -> None:
    for name in "abc":
        (files / f"{name}.csv").write_text("".join(f"{name}{number}\n" for number in range(4)))
    reader, offset, found = tail(files, most="5"), tail(files).initialOffset(), []
    for _ in range(3):
        rows, offset = take(reader, offset)
        assert len(rows) <= 5
        found += rows
    assert found == [f"{name}{number}".encode() for name in "abc" for number in range(4)]


@pytest.mark.parametrize("fresh", ["new\n", "another file that is longer than before\n"])
def test_a_truncated_or_replaced_file_is_counted_and_read_from_its_beginning(
    files: Path, fresh: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (files / "a.csv").write_text("one\ntwo\n")
    (files / "b.csv").write_text("b1\n")
    reader = tail(files)
    _, offset = take(reader, reader.initialOffset())
    (files / "a.csv").write_text(fresh)
    with (files / "b.csv").open("a") as file:
        file.write("b2\n")
    rows, end = take(reader, offset)
    assert rows == [fresh.strip().encode(), b"b2"]
    assert faults(files.parent) == {"truncated": 1}
    assert again(tail(files), offset, end) == rows
    assert take(reader, end)[0] == []


def test_another_directory_is_read_on_in_files_that_are_the_same_and_from_the_beginning_of_others(
    files: Path,
) -> None:
    (files / "same.csv").write_text("one\n")
    (files / "other.csv").write_text("two\n")
    reader = tail(files)
    _, offset = take(reader, reader.initialOffset())
    elsewhere = files.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "same.csv").write_text("one\nthree\n")
    (elsewhere / "other.csv").write_text("four\n")
    (elsewhere / "new.csv").write_text("five\n")
    rows, end = take(tail(elsewhere), offset)
    assert sorted(rows) == [b"five", b"four", b"three"]
    assert again(tail(elsewhere), offset, end) == rows
    assert take(tail(elsewhere), end)[0] == []


def test_a_file_that_was_replaced_by_one_of_the_same_size_is_read(files: Path) -> None:
    (files / "a.csv").write_text("one\ntwo\n")
    reader = tail(files)
    _, offset = take(reader, reader.initialOffset())
    (files / "fresh").write_text("six\nten\n")
    (files / "fresh").rename(files / "a.csv")
    rows, end = take(reader, offset)
    assert rows == again(tail(files), offset, end) == [b"six", b"ten"]
    assert faults(files.parent) == {"truncated": 1}


def test_a_line_without_end_takes_no_memory_and_is_left_out_once_it_ends(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamops_runtime.csv_tail._MOST_LINE", 100)
    (files / "a.csv").write_text(f"one\n{'x' * 1000}")
    reader = tail(files)
    rows, offset = take(reader, reader.initialOffset())
    assert rows == [b"one"]
    with (files / "a.csv").open("a") as file:
        file.write(f"\n{'y' * 99}\nthree\n")
    rows, end = take(reader, offset)
    assert rows == [b"y" * 99, b"three"]
    assert faults(files.parent) == {"too_long": 1}
    assert again(tail(files), offset, end) == rows


def test_a_directory_that_is_not_there_is_counted_and_waited_for(tmp_path: Path) -> None:
    place = tmp_path / "later"
    reader = tail(place)
    rows, offset = take(reader, reader.initialOffset())
    assert (rows, faults(tmp_path)) == ([], {"unreadable": 1})
    place.mkdir()
    (place / "a.csv").write_text("a1\n")
    assert take(reader, offset)[0] == [b"a1"]


def test_a_stage_may_begin_at_given_bytes_or_at_the_end(files: Path) -> None:
    (files / "a.csv").write_text("a1\na2\nhal")
    (files / "b.csv").write_text("b1\n")
    given = tail(files, offsets=json.dumps({"a.csv": 3}))
    assert take(given, given.initialOffset())[0] == [b"a2", b"b1"]
    latest = tail(files, start="latest")
    offset = latest.initialOffset()
    with (files / "a.csv").open("a") as file:
        file.write("f\n")
    assert take(latest, offset)[0] == [b"half"]


def test_files_are_shared_out_and_each_line_is_in_one_part(files: Path) -> None:
    for name, lines in (("a", 40), ("b", 10), ("c", 25), ("d", 1)):
        (files / f"{name}.csv").write_text("".join(f"{name}{number}\n" for number in range(lines)))
    reader = tail(files, parts="2")
    start = reader.initialOffset()
    rows, end = take(reader, start)
    found = parts(reader, start, end)
    halves = [{row[0] for row in reader.read(part)} for part in found]
    assert [{line[:1] for line in half} for half in halves] == [{b"a"}, {b"b", b"c", b"d"}]
    assert len(rows) == len(set(rows)) == len(halves[0] | halves[1]) == 76
    assert {part.value[1:] for part in found} == {found[0].value[1:]}  # all dated to one moment
    assert len(parts(tail(files, parts="9"), start, end)) == 4


def two_planned(files: Path) -> tuple:
    """Two files in a batch that is planned: the reader, where the batch begins and ends, and its parts."""
    for name in "ab":
        (files / f"{name}.csv").write_text(f"{name}1\n{name}2\n")
    reader = tail(files, parts="2")
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    return reader, start, end, parts(reader, start, end)


def test_a_file_that_is_replaced_between_plan_and_read_is_read_from_its_beginning_next(files: Path) -> None:
    reader, start, end, planned = two_planned(files)
    (files / "a.csv").write_text("other1\nother2\n")
    assert sorted(row[0] for part in planned for row in reader.read(part)) == [b"b1", b"b2"]
    assert again(tail(files), start, end) == [b"b1", b"b2"]
    assert take(reader, end)[0] == [b"other1", b"other2"]
    assert faults(files.parent) == {"truncated": 1}


def test_a_file_that_is_removed_between_plan_and_read_is_left_out_unless_the_directory_is_away(files: Path) -> None:
    reader, start, end, planned = two_planned(files)
    (files / "a.csv").unlink()
    with pytest.raises(FileNotFoundError):  # the task cannot know
        [list(reader.read(part)) for part in planned]
    assert again(reader, start, end) == [b"b1", b"b2"]
    (files / "b.csv").unlink()
    with pytest.raises(FileNotFoundError):
        again(reader, start, end)


def test_a_task_logs_at_the_level_of_its_source(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "a.csv").write_text("a1\na2\n")
    levels = files.parent / "levels.json"
    for level, said in (("DEBUG", True), ("INFO", False)):
        levels.write_text(json.dumps({"source.levels": level}))
        reader = tail(files, source="levels", levels=str(levels))
        start = reader.initialOffset()
        (part,) = parts(reader, start, reader.latestOffset(start, None))
        reader.log.setLevel(logging.WARNING)  # the task's process knows no other
        reader.log.handlers.clear()
        assert len(list(reader.read(part))) == 2
        assert ("DEBUG source.levels A task has read 2 records" in capsys.readouterr().err) is said


def test_offsets_of_the_release_that_read_in_the_driver_are_read_on(files: Path) -> None:
    (files / "a.csv").write_text("a1\na2\n")
    (files / "b.csv").write_text("b1\n")
    start = {"alpha": {"a.csv": 3}, "marks": "a.csv=90dc96a9"}
    planned = {"alpha": {"a.csv": 6, "b.csv": 3}, "marks": "a.csv=c5261076/b.csv=929a28f0"}
    assert again(tail(files), start, planned) == [b"a2", b"b1"]
    assert tail(files).latestOffset(start, None) == planned


def test_offsets_stand_in_snapshots_like_those_of_topics(files: Path) -> None:
    (files / "a.csv").write_text("a1\n")
    reader = tail(files)
    _, offset = take(reader, reader.initialOffset())
    offsets, _ = parse_offsets(f"v2\n{{}}\nalpha:{json.dumps(offset)}\nbeta:{json.dumps({'beta': {'sequence': 7}})}")
    assert offsets == {"alpha": {"a.csv": 3}, "beta": {"sequence": 7}}


# --- in Spark


class Stopped(Exception):
    """The driver's end between plan and commit, as far as the checkpoint is concerned."""


def run_query(spark: SparkSession, where: Places, sources: dict[str, Source], stop: bool = False) -> list[list[int]]:
    """What each task has given of each batch, in Spark, up to the present."""
    found: list[list[int]] = []

    def take_batch(batch: DataFrame, _: int) -> None:
        tasks = batch.select(F.spark_partition_id().alias("task"), "value").collect()
        for task in sorted({row.task for row in tasks}):
            found.append([int(json.loads(row.value).get("sequence")) for row in tasks if row.task == task])
        if stop:
            raise Stopped

    raw = [raw_stream(spark, name, source, where) for name, source in sources.items()]
    query = (
        reduce(DataFrame.union, raw)
        .writeStream.foreachBatch(take_batch)
        .option("checkpointLocation", str(where.directory / "checkpoint"))
        .start()
    )
    with pytest.raises(StreamingQueryException, match="Stopped") if stop else nullcontext():
        query.processAllAvailable()
    query.stop()
    return found


@pytest.mark.full
def test_a_batch_is_read_by_several_tasks_and_again_exactly_after_an_end_between_plan_and_commit(
    spark: SparkSession, files: Path, service: Service
) -> None:
    session = spark.newSession()
    for key in ("enableSourceEvolution", "offsetLog.formatVersion"):
        session.conf.set(*next(item for item in STREAMING.items() if item[0].endswith(key)))

    def append(name: str, *numbers: int) -> None:
        with (files / f"{name}.csv").open("a") as file:
            file.writelines(f'{{"sequence": {number}}}\n' for number in numbers)

    sources = {
        "alpha": Source.model_validate({"csv_tail": {"directory": str(files)}, "schema": "n int"}),
        "beta": Source.model_validate({"http": {"url": service.url, "limit": 10}, "schema": "n int"}),
    }
    where = Places("", directory=files.parent, tasks=2)
    append("a", 1001, 1002)
    append("b", 2001)
    service.add(25)
    assert run_query(session, where, sources) == [
        [1001, 1002], [2001], [*range(1, 21)], [*range(21, 26)]
    ]  # fmt: skip
    append("a", 1003)
    append("c", 3001)
    service.add(15)
    planned = run_query(session, where, sources, stop=True)
    append("a", 1004)
    service.add(1)
    found = run_query(session, where, sources)
    assert planned == found[: len(planned)]
    assert sorted(chain(*planned)) == [*range(26, 41), 1003, 3001]
    assert sorted(chain(*found[len(planned) :])) == [41, 1004]
    assert run_query(session, where, sources) == []


# --- a web service


class Service:
    """Beta's own server, over pings that a test adds; answers with ``answer`` instead while that is set."""

    def __init__(self, ledger: Path) -> None:
        self.pings = Pings(ledger)
        self.answer: bytes | None = None
        service, answers = self, handler(self.pings)

        class Handler(answers):  # type: ignore[misc, valid-type]
            def do_GET(self) -> None:
                if service.answer is None:
                    super().do_GET()
                    return
                self.send_response(200)
                self.end_headers()
                self.wfile.write(service.answer)

            def log_message(self, *_: Any) -> None:
                pass

        self._handler: type[BaseHTTPRequestHandler] = Handler
        self.port = 0

    def add(self, count: int) -> None:
        for _ in range(count):
            self.pings.add(json.dumps({"vin": "V", "sequence": len(self.pings) + 1}))

    @contextmanager
    def up(self) -> Iterator[None]:
        ThreadingHTTPServer.allow_reuse_address = True
        server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/pings"

    def reader(self, directory: Path, **more: Any) -> HttpReader:
        return HttpReader({"source": "beta", "place": self.url, "faults": str(directory / "faults.json"), **more})


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    found = Service(tmp_path / "beta.jsonl")
    with found.up():
        yield found


def numbers(values: list[bytes]) -> list[int]:
    return [json.loads(value)["sequence"] for value in values]


def test_records_come_once_in_many_answers_and_the_highest_number_is_logged(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.add(450)
    (tmp_path / "levels.json").write_text('{"source.beta": "DEBUG"}')
    reader = service.reader(tmp_path, levels=str(tmp_path / "levels.json"))
    reader.log.addHandler(caplog.handler)
    rows, offset = take(reader, reader.initialOffset())
    assert numbers(rows) == list(range(1, 451))
    assert offset == {"beta": {"sequence": 450}}
    assert "Added 450 pings. Highest sequence number is: 450" in caplog.text
    assert take(reader, offset) == ([], offset)
    service.add(2)
    rows, end = take(reader, offset)
    assert numbers(rows) == [451, 452]
    service.add(5)
    assert again(service.reader(tmp_path), offset, end) == rows
    reader.log.removeHandler(caplog.handler)
    reader.log.setLevel(logging.INFO)


def test_a_service_that_is_down_is_counted_and_loses_nothing(tmp_path: Path) -> None:
    service = Service(tmp_path / "beta.jsonl")
    with service.up():
        service.add(3)
        reader = service.reader(tmp_path)
        _, offset = take(reader, reader.initialOffset())
    assert take(reader, offset) == ([], offset)
    assert faults(tmp_path) == {"unreachable": 1}
    service = Service(tmp_path / "beta.jsonl")  # started again, with its memory
    service.port = int(reader.place.rsplit(":", 1)[1].split("/")[0])
    with service.up():
        service.add(2)
        assert numbers(take(reader, offset)[0]) == [4, 5]


@contextmanager
def speaking(answer: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """A server that says these bytes to whoever comes, each after a pause; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection, suppress(OSError):
                        connection.recv(4096)
                        for part in (bytes((byte,)) for byte in answer) if pause_s else (answer,):
                            connection.sendall(part)
                            time.sleep(pause_s)

        threading.Thread(target=speak, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/pings"
        server.shutdown(socket.SHUT_RDWR)


HEAD = b"HTTP/1.0 200 OK\r\n"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (b"nothing like HTTP\r\n\r\n", "unreachable"),
        (b"", "unreachable"),
        (HEAD + b"Content-Length: 100\r\n\r\n[]", "unreachable"),
        (HEAD + b"X: " + b"x" * 100_000 + b"\r\n\r\n[]", "unreachable"),
        (HEAD + b"\r\n" + b"[" * 100_000, "bad_answer"),
        (HEAD + b"\r\n[" + b" " * 2000 + b"]", "bad_answer"),  # larger than is allowed here
    ],
    ids=["no HTTP", "nothing", "incomplete", "a long header", "deep", "large"],
)
def test_an_answer_that_is_broken_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, fault: str
) -> None:
    monkeypatch.setattr("streamops_runtime.http_poll._MOST_BYTES", 1000 if b"  " in answer else 64 << 20)
    with speaking(answer) as place:
        reader = HttpReader({"source": "beta", "place": place, "faults": str(tmp_path / "faults.json")})
        assert take(reader, {"beta": {"sequence": 0}}) == ([], {"beta": {"sequence": 0}})
    assert faults(tmp_path) == {fault: 1}


def test_an_answer_that_never_ends_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamops_runtime.http_poll._ANSWER_S", 0.2)
    monkeypatch.setattr("streamops_runtime.http_poll._TRIES", 1)
    with speaking(HEAD + b"\r\n[" + b" " * 1000, pause_s=0.01) as place:
        reader = HttpReader({"source": "beta", "place": place, "faults": str(tmp_path / "faults.json")})
        assert take(reader, {"beta": {"sequence": 0}})[0] == []
    assert faults(tmp_path) == {"unreachable": 1}


@pytest.mark.parametrize("answer", [b"<html>", b'[{"sequence": 4', b'{"error": "no"}', b""])
def test_an_answer_that_is_no_array_is_counted_and_asked_again(service: Service, tmp_path: Path, answer: bytes) -> None:
    service.add(3)
    reader = service.reader(tmp_path)
    service.answer = answer
    assert take(reader, reader.initialOffset())[0] == []
    assert faults(tmp_path) == {"bad_answer": 1}
    service.answer = None
    assert numbers(take(reader, reader.initialOffset())[0]) == [1, 2, 3]


def test_gaps_repeats_and_bad_records_are_counted_and_the_rest_is_taken(service: Service, tmp_path: Path) -> None:
    given = [{"sequence": 11}, {"sequence": 11}, {"vin": "none"}, {"sequence": 14}, {"sequence": 12}, 7]
    service.answer = json.dumps(given).encode()
    reader = service.reader(tmp_path)
    reader.doubtful = False
    rows, offset = take(reader, {"beta": {"sequence": 10}})
    assert rows == [b'{"sequence": 11}', b'{"sequence": 14}']
    assert offset == {"beta": {"sequence": 14}}
    found = {"repeat": 2, "gap": 2, "unnumbered": 2}
    assert faults(tmp_path) == found
    for limit in ("1", "2", "200"):  # in ranges, each of which gets the same answer
        assert again(service.reader(tmp_path, parts="4", limit=limit), {"beta": {"sequence": 10}}, offset) == rows
    assert faults(tmp_path) == found  # counted once


def test_an_answer_without_any_number_is_counted_and_not_asked_for_without_end(
    service: Service, tmp_path: Path
) -> None:
    service.answer = b'[{"vin": "none"}, 7]'
    reader = service.reader(tmp_path, limit="2")
    assert take(reader, {"beta": {"sequence": 0}}) == ([], {"beta": {"sequence": 0}})
    assert faults(tmp_path) == {"unnumbered": 2}


def test_a_small_batch_is_written_although_the_service_goes_away_after_it_was_planned(tmp_path: Path) -> None:
    service = Service(tmp_path / "beta.jsonl")
    with service.up():
        service.add(25)
        reader = service.reader(tmp_path, parts="2", limit="10")
        start = reader.initialOffset()
        end = reader.latestOffset(start, None)
    found = [numbers([row[0] for row in reader.read(part)]) for part in parts(reader, start, end)]
    assert found == [[*range(1, 21)], [*range(21, 26)]]


def test_of_a_large_batch_each_task_asks_for_its_range(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamops_runtime.http_poll._HANDED", 100)
    service.add(450)
    reader = service.reader(tmp_path, parts="2", limit="50")
    start = reader.initialOffset()
    end = reader.latestOffset(start, None)
    found = parts(reader, start, end)
    assert [part.value[0] for part in found] == [(0, 250), (250, 450)]
    service.add(10)
    assert [numbers([row[0] for row in reader.read(part)]) for part in found] == [
        [*range(1, 251)], [*range(251, 451)]
    ]  # fmt: skip


def test_a_service_that_counts_anew_is_read_from_its_beginning(service: Service, tmp_path: Path) -> None:
    service.add(3)
    reader = service.reader(tmp_path)
    rows, offset = take(reader, {"beta": {"sequence": 500}})
    assert numbers(rows) == [1, 2, 3]
    assert offset == {"beta": {"sequence": 3}}
    assert faults(tmp_path) == {"restarted": 1}


def test_a_service_without_anything_is_waited_for(service: Service, tmp_path: Path) -> None:
    reader = service.reader(tmp_path)
    assert take(reader, {"beta": {"sequence": 500}}) == ([], {"beta": {"sequence": 500}})
    assert faults(tmp_path) == {}


def test_a_stage_may_begin_after_a_given_number_or_at_the_end(service: Service, tmp_path: Path) -> None:
    service.add(300)
    given = service.reader(tmp_path, offsets=json.dumps({"sequence": 298}))
    assert numbers(take(given, given.initialOffset())[0]) == [299, 300]
    assert service.reader(tmp_path, start="latest").initialOffset() == {"beta": {"sequence": 300}}
