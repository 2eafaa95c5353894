"""What the sources of a job still hold of what it has read: topics, lines of files, records of a web service.

Files and services are read with code of its own, which shares nothing with the job's readers.
"""

from __future__ import annotations

import json
import os
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

import httpx

from streamops.clients.kafka import Ledger
from streamops.model.definitions import Definition, Http
from streamops.model.errors import StreamOpsError

MOST_BYTES = 8 << 20  # of all files of a source together, those that were read last
MOST_RECORDS = 50_000  # of a web service
ANSWER_S = 30.0  # for the whole of an answer
MOST_ANSWER = 64 << 20  # bytes
LONGEST_LINE = 16 << 20  # bytes; the job leaves out what is longer


class GoneError(StreamOpsError):
    """A source does not hold any more what a job has read of it, or cannot be asked from here."""


@dataclass(frozen=True)
class Held:
    """The sources of a deployment.

    Args:
        places: source -> topic, directory or URL, over those of the definition.
    """

    ledger: Ledger
    definition: Definition
    places: Mapping[str, str]

    def place(self, source: str) -> str:
        """Where the deployment reads it."""
        return self.places.get(source, self.definition.sources[source].address)

    def newest(self, source: str, begun: Mapping[str, int], end: Mapping[str, int]) -> dict[str, int]:
        """Where to begin, so that no more is read again of files or a service than one would wait for.

        Args:
            begun: where the job began.
            end: up to where it has read: bytes by file, or the last sequence number.
        """
        service = self.definition.sources[source].http is not None
        most = MOST_RECORDS if service else MOST_BYTES // max(1, len(end))
        return {part: max(begun.get(part, 0), stop - most, 0) for part, stop in end.items()}

    def lines(self, source: str, start: Mapping[str, int], end: Mapping[str, int] | None) -> Iterator[str]:
        """Records as ``streamops_runtime.recompute`` reads them: partition, offset, time, key, value (in base64).

        Args:
            end: None for all that there is by now.

        Raises:
            GoneError: some of them are not there, or cannot be asked for from here.
        """
        kind = self.definition.sources[source]
        if kind.kafka:
            yield from self._of_topic(self.place(source), start, end)
            return
        if kind.csv_tail:
            values = _of_files(Path(self.place(source)), kind.csv_tail.files, start, end)
        else:
            assert kind.http is not None
            last = end["sequence"] if end else None
            values = ((0, value) for value in _of_service(self.place(source), kind.http, start["sequence"], last))
        now = int(time.time() * 1000)  # when it was read is not known any more: late enough for every event
        for number, (part, value) in enumerate(values):
            yield f"{part}\t{number}\t{now}\t\t{b64encode(value).decode()}\n"

    def _of_topic(self, topic: str, start: Mapping[str, int], end: Mapping[str, int] | None) -> Iterator[str]:
        for part, stop in (self.ledger.end_offsets(topic) if end is None else end).items():
            for messages in self.ledger.messages(topic, int(part), start.get(part, 0), stop):
                for item in messages:
                    key, value = (b64encode(body).decode() if body else "" for body in (item.key(), item.value()))
                    yield f"{part}\t{item.offset()}\t{item.timestamp()[1]}\t{key}\t{value}\n"


def partitions(end: Mapping[str, int]) -> dict[str, int]:
    """The number that each part of a source has in ``Held.lines``: files have names."""
    return {name: number for number, name in enumerate(sorted(end))}


def _of_files(
    directory: Path, pattern: str, start: Mapping[str, int], end: Mapping[str, int] | None
) -> Iterator[tuple[int, bytes]]:
    """Whole lines with the number of their file, but for blank ones and those that are too long for the job."""
    try:
        if end is None:
            end = {name: (directory / name).stat().st_size for name in os.listdir(directory) if fnmatch(name, pattern)}
        for name, number in partitions(end).items():
            if start.get(name, 0) < end[name]:
                for line in _lines(directory, name, start.get(name, 0), end[name]):
                    yield number, line
    except OSError as error:
        raise GoneError(f"{directory} cannot be read here ({error})") from error


def _lines(directory: Path, name: str, start: int, end: int) -> Iterator[bytes]:
    if Path(name).name != name:
        raise GoneError(f"{name} is no file of {directory}")
    with (directory / name).open("rb") as file:
        if (size := os.fstat(file.fileno()).st_size) < end:
            raise GoneError(f"{name} in {directory} has {size} bytes, and {end} were read of it")
        if start and os.pread(file.fileno(), 1, start - 1) != b"\n":  # it is in the middle of a line
            file.seek(start)
            _rest(file)
        else:
            file.seek(start)
        while file.tell() < end:
            line = file.readline(LONGEST_LINE)
            if not line.endswith(b"\n"):
                if not _rest(file):
                    return  # the last one is not whole yet
            elif line.strip():
                yield line.rstrip(b"\r\n")


def _rest(file: BinaryIO) -> bool:
    """Go to the end of a line; whether it has one."""
    while rest := file.readline(LONGEST_LINE):
        if rest.endswith(b"\n"):
            return True
    return False


def _of_service(url: str, of: Http, last: int, end: int | None) -> Iterator[bytes]:
    """Records after ``last``, each with a higher number than the one before; without an end, the next ones."""
    most = last + MOST_RECORDS  # a service may give records faster than they are read
    with httpx.Client(timeout=ANSWER_S, trust_env=False) as client:
        while last < (most if end is None else end):
            found = _answer(client, url, {"since": last, "limit": of.limit})
            fresh = [(number, record) for record in found if (number := _number(record, of.sequence)) > last]
            if not fresh and end is not None:
                raise GoneError(f"{url} has no records after {last}, and {end} was read")
            if not fresh:
                return
            for number, record in fresh:
                if number > last and (end is None or number <= end):
                    last = number
                    yield json.dumps(record).encode()
            last = max(last, *(number for number, _ in fresh))


def _answer(client: httpx.Client, url: str, asked: Mapping[str, int]) -> list[Any]:
    deadline, body = time.monotonic() + ANSWER_S, bytearray()
    try:
        with client.stream("GET", url, params=dict(asked)) as answer:
            answer.raise_for_status()
            for part in answer.iter_bytes():
                body += part
                if len(body) > MOST_ANSWER or time.monotonic() > deadline:
                    raise GoneError(f"{url} gives an answer that is larger or slower than a job would take")
        found = json.loads(body)
    except (httpx.HTTPError, ValueError, RecursionError) as error:
        raise GoneError(f"{url} cannot be asked from here ({type(error).__name__}: {error})") from error
    if not isinstance(found, list):
        raise GoneError(f"{url} answers with {type(found).__name__}, and not with an array")
    return found


def _number(record: Any, field: str) -> int:
    number = record.get(field) if isinstance(record, dict) else None
    return number if isinstance(number, int) and not isinstance(number, bool) else -1
