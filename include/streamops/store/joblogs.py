"""A job's log in one place: lines that its drivers keep in the object store, across launches and nodes.

Each driver process writes small append-only objects, one after the other, below a name that begins with its start.
Reading them in key order gives the lines of each driver in the order in which they were logged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from streamops.model.discretion import without_credentials
from streamops.model.errors import NotFoundError
from streamops.store import keys
from streamops.store.object_store import ObjectStore

Level = Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR"]
ORDER: dict[str, int] = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}
_SAME = {"WARN": "WARNING", "FATAL": "ERROR", "CRITICAL": "ERROR"}

# How Python's loggers begin a line, and Spark's, with a colon after the logger. Clusters that StreamOps did not
# set up have Spark's own pattern, with slashes in the date.
_HEAD = re.compile(
    r"(?P<time>(?:\d{4}-\d\d-\d\d|\d\d/\d\d/\d\d) \d\d:\d\d:\d\d(?:,\d{3}Z)?) "
    r"(?P<level>[A-Z]+) (?P<logger>[\w.$-]+):? (?P<text>.*)"
)


class Line(BaseModel):
    """One message; ``where`` is ``driver`` or the executor, ``launch`` the operation that started its driver."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: datetime
    level: Level = "INFO"
    logger: str = ""
    text: str
    launch: str = ""
    host: str = ""
    where: str = "driver"


def driver_name(started: datetime, launch: str, holder: str) -> str:
    """The name of one driver process in the log: its start comes first, so that names sort by time."""
    return f"{started.astimezone(UTC):%Y%m%dT%H%M%S%f}-{launch[:80]}-{holder[:8]}"


def pack(lines: Iterable[Line]) -> bytes:
    """Lines as the body of one object."""
    return "".join(f"{line.model_dump_json(exclude_defaults=True)}\n" for line in lines).encode()


def unpack(body: bytes) -> list[Line]:
    """The lines of one object; what is not a line is shown as it is, since a log must not hide anything."""
    found = []
    for text in body.decode(errors="replace").splitlines():
        try:
            found.append(Line.model_validate_json(text))
        except ValidationError:
            found.append(Line(time=datetime(1970, 1, 1, tzinfo=UTC), level="ERROR", text=text))
    return found


def parse(text: str, before: Line) -> Line:
    """A line of a server's plain log. One without a head belongs to the message before and has its time and level.

    Credentials are left out of it.
    """
    text = without_credentials(text)
    match = _HEAD.fullmatch(text)
    moment = _moment(match["time"]) if match else None
    if match is None or moment is None:
        return before.model_copy(update={"text": text})
    level = _SAME.get(match["level"], match["level"])
    return before.model_copy(
        update={
            "time": moment,
            "level": level if level in ORDER else "INFO",
            "logger": match["logger"],
            "text": match["text"],
        }
    )


def _moment(text: str) -> datetime | None:
    """The time of a head; None where it only looks like one."""
    try:
        form = "%y/%m/%d %H:%M:%S" if "/" in text else "%Y-%m-%d %H:%M:%S,%fZ"
        return datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        return None


def keep(
    lines: Iterable[Line], level: str = "TRACE", logger: str = "", since: datetime | None = None
) -> Iterator[Line]:
    """The lines of at least this level, of this logger and those below it, not older than ``since``."""
    least = ORDER[level]
    for line in lines:
        of_logger = not logger or line.logger == logger or line.logger.startswith(f"{logger}.")
        if ORDER[line.level] >= least and of_logger and (since is None or line.time >= since):
            yield line


class Reader:
    """Reads what the drivers of a job have logged; each call of ``more`` gives what came since the last one."""

    def __init__(self, store: ObjectStore, job: str) -> None:
        self._store, self._prefix = store, keys.logs(job)
        self._seen: set[str] = set()

    def more(self) -> list[Line]:
        """New lines, in the order of time. Raises UnreachableError."""
        found: list[Line] = []
        for info in self._store.list(self._prefix):
            if info.key in self._seen:
                continue
            self._seen.add(info.key)
            try:
                found += unpack(self._store.get(info.key).body)
            except NotFoundError:  # the oldest chunks of a long run are removed while someone reads
                continue
        return sorted(found, key=lambda line: line.time)  # stable: lines of one moment keep their order


def plain(line: Line) -> str:
    """A line as JSON, for scripts."""
    return json.dumps(line.model_dump(mode="json"))
