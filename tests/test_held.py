"""What files and web services still hold of what a job has read, for a recount."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from streamops.model.definitions import Definition, parse
from streamops.recount import held
from streamops.recount.held import GoneError, Held

JOB = """
job: cars
version: v1
code: cars.py
sources:
  files: {csv_tail: {directory: /nowhere}, schema: "car string, time bigint", event_time: time}
  service: {http: {url: "http://127.0.0.1:1/pings", limit: 3}, schema: "car string, time bigint", event_time: time}
stages:
  cars: {sinks: [{influxdb: {measurement: cars, tags: [car], fields: [time]}}]}
"""
NO_LEDGER: Any = None


def read(found: Held, source: str, start: dict[str, int], end: dict[str, int] | None) -> list[tuple[int, bytes]]:
    rows = [line.rstrip("\n").split("\t") for line in found.lines(source, start, end)]
    return [(int(part), base64.b64decode(value)) for part, _, _, _, value in rows]


@pytest.fixture
def definition() -> Definition:
    return parse(JOB)


@pytest.fixture
def files(definition: Definition, tmp_path: Path) -> tuple[Held, Path]:
    return Held(NO_LEDGER, definition, {"files": str(tmp_path)}), tmp_path


def test_whole_lines_between_two_offsets_come_with_the_number_of_their_file(files: tuple[Held, Path]) -> None:
    found, directory = files
    (directory / "a.csv").write_bytes(b"a,1\r\na,2\n\n  \na,3\na,4")
    (directory / "b.csv").write_bytes(b"b,1\n")
    (directory / "other.txt").write_bytes(b"x\n")
    assert read(found, "files", {"a.csv": 5}, {"a.csv": 17, "b.csv": 4}) == [(0, b"a,2"), (0, b"a,3"), (1, b"b,1")]
    # In the middle of a line: the next one is the first that is whole.
    assert read(found, "files", {"a.csv": 6}, {"a.csv": 17}) == [(0, b"a,3")]
    # All there is by now, but for a last line without its newline.
    assert read(found, "files", {"a.csv": 9}, None) == [(0, b"a,3"), (1, b"b,1")]


def test_a_line_that_is_too_long_for_the_job_is_left_out(
    files: tuple[Held, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "LONGEST_LINE", 8)
    found, directory = files
    (directory / "a.csv").write_bytes(b"one\n" + b"x" * 30 + b"\ntwo\n" + b"y" * 30)
    assert read(found, "files", {}, None) == [(0, b"one"), (0, b"two")]


def test_files_that_are_gone_shorter_or_elsewhere_are_said(files: tuple[Held, Path], definition: Definition) -> None:
    found, directory = files
    (directory / "a.csv").write_bytes(b"a,1\n")
    with pytest.raises(GoneError, match=r"a\.csv in .* has 4 bytes, and 9 were read of it"):
        read(found, "files", {}, {"a.csv": 9})
    with pytest.raises(GoneError, match="cannot be read here"):
        read(found, "files", {}, {"b.csv": 9})
    with pytest.raises(GoneError, match="is no file of"):
        read(found, "files", {}, {"../a.csv": 4})
    with pytest.raises(GoneError, match="/nowhere cannot be read here"):
        read(Held(NO_LEDGER, definition, {}), "files", {}, None)


class Service(HTTPServer):
    """Answers as the fleet's does; ``records`` may be anything."""

    records: Any = ()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = {name: int(value[0]) for name, value in parse_qs(urlsplit(self.path).query).items()}
            told = self.server.records  # type: ignore[attr-defined]
            if isinstance(told, list):
                told = [item for item in told if item.get("sequence", 0) > asked["since"]][: asked["limit"]]
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""


@pytest.fixture
def service() -> Iterator[Service]:
    server = Service(("127.0.0.1", 0), Service.Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_records_of_a_service_are_asked_for_answer_by_answer(
    definition: Definition, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Held(NO_LEDGER, definition, {"service": f"http://127.0.0.1:{service.server_port}/pings"})
    service.records = [{"sequence": number, "car": "a"} for number in (1, 2, 3, 5, 6, 7, 8, 9)]

    def numbers(start: int, end: int | None) -> list[int]:
        rows = read(found, "service", {"sequence": start}, None if end is None else {"sequence": end})
        return [json.loads(value)["sequence"] for _, value in rows]

    assert numbers(0, 7) == [1, 2, 3, 5, 6, 7]
    assert numbers(6, None) == [7, 8, 9]
    with pytest.raises(GoneError, match="has no records after 9, and 12 was read"):
        numbers(6, 12)
    monkeypatch.setattr(held, "MOST_RECORDS", 2)
    assert numbers(1, None) == [2, 3, 5]  # an answer has three
    monkeypatch.setattr(held, "MOST_ANSWER", 30)
    with pytest.raises(GoneError, match="larger or slower"):
        numbers(0, 7)
    monkeypatch.undo()
    service.records = {"error": "no"}
    with pytest.raises(GoneError, match="answers with dict"):
        numbers(0, 1)
    with pytest.raises(GoneError, match="cannot be asked from here"):
        read(Held(NO_LEDGER, definition, {}), "service", {"sequence": 0}, None)


def test_no_more_than_one_would_wait_for_is_read_again(files: tuple[Held, Path]) -> None:
    found, half = files[0], held.MOST_BYTES // 2
    assert found.newest("files", {"a": 10}, {"a": 100, "b": half + 7}) == {"a": 10, "b": 7}
    last = held.MOST_RECORDS
    assert found.newest("service", {}, {"sequence": 9}) == {"sequence": 0}
    assert found.newest("service", {"sequence": 3}, {"sequence": last + 5}) == {"sequence": 5}
