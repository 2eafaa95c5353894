"""Keeps a driver's log in the object store, where it survives its node and is found with those of other launches.

Two streams of lines come together here: records of this process's loggers, exactly as logged, and what the JVM and
the Python processes of sources write to the driver's error output, which Spark keeps in the working directory.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from pyspark import SparkContext

from streamops.model.discretion import without_credentials
from streamops.model.errors import StreamOpsError
from streamops.store import joblogs, keys
from streamops.store.joblogs import Line
from streamops.store.object_store import ObjectStore

EVERY_S = 2.0
CHUNKS_KEPT = 2000  # of one driver process
_MOST_WAITING = 20_000  # lines, while the object store is away; rows of log sinks are data, and wait themselves
_ROWS = "sink."  # how the loggers of these begin
_NOISE = ("Launch Command: ", "=" * 20)  # how Spark's worker begins the file
_MOST_READ = 1 << 20  # bytes of the error output at a time
_LARGEST = 8 << 20  # bytes of what Spark's worker keeps of a driver on disk; it never begins a new file
# One line for every batch that takes longer than its interval. Status and charts show that, and lines of the log that
# are read on a bad day would soon be gone.
TOO_OFTEN = "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor"

LEVELS = Path("streamops-levels.json")  # in the driver's directory


class Discreet(logging.Formatter):
    """Leaves credentials out of messages and of the errors below them; not out of a log sink's rows, which are data."""

    def format(self, record: logging.LogRecord) -> str:
        """The whole message."""
        text = super().format(record)
        return text if record.name.startswith(_ROWS) else without_credentials(text)


def bounded(lines: list[Line]) -> tuple[list[Line], int]:
    """The rows of log sinks and the newest of the other lines, and how many are left out."""
    out = over = sum(not line.logger.startswith(_ROWS) for line in lines) - _MOST_WAITING
    if over <= 0:
        return lines, 0
    kept = []
    for line in lines:
        if over and not line.logger.startswith(_ROWS):
            over -= 1
        else:
            kept.append(line)
    return kept, out


class Shipper(logging.Handler):
    """A log handler; ``flush`` returns when everything logged before is in the object store.

    Args:
        error_output: the file that Spark writes the driver's error output to; it need not exist.
    """

    def __init__(
        self, store: ObjectStore, job: str, launch: str, holder: str, host: str, error_output: Path | None = None
    ) -> None:
        super().__init__()
        self.setFormatter(Discreet())
        self._store, self._job = store, job
        self._blank = Line(time=datetime.now(UTC), text="", launch=launch, host=host)
        self._name = joblogs.driver_name(self._blank.time, launch, holder)
        self._waiting: list[Line] = []
        self._left_out = 0
        self._taking = threading.Lock()  # of lines, by any thread that logs
        self._number = 0
        self._shipping = threading.Lock()
        self._ended = threading.Event()
        self._error_output, self._read, self._partial, self._before = error_output, 0, b"", self._blank
        self._thread = threading.Thread(target=self._run, name="log-shipper", daemon=True)

    def begin(self) -> None:
        """Ship every two seconds from now on."""
        self._thread.start()

    def end(self) -> None:
        """Ship what is left, and no more after that."""
        self._ended.set()
        try:
            self.flush()
        except StreamOpsError as error:
            print(f"The last lines of the log are not shipped: {error}", flush=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Take one record of this process."""
        level = next((name for name in reversed(joblogs.ORDER) if record.levelno >= joblogs.ORDER[name]), "TRACE")
        when = datetime.fromtimestamp(record.created, UTC)
        self._take(self._line(when, level, record.name, self.format(record)))

    def _line(self, time: datetime, level: str, logger: str, text: str) -> Line:
        return self._blank.model_copy(update={"time": time, "level": level, "logger": logger, "text": text})

    def _take(self, line: Line) -> None:
        with self._taking:
            self._waiting.append(line)

    def flush(self) -> None:
        """Ship everything logged so far; returns when it is stored. Raises UnreachableError."""
        with self._shipping:
            self._take_error_output()
            with self._taking:  # more come while these are stored, which takes a minute at most
                self._waiting, more = bounded(self._waiting)
                lines = [*self._waiting]
            self._left_out += more
            if not lines:
                return
            told = []
            if self._left_out:
                text = f"{self._left_out} lines are left out: the object store took none for too long"
                told = [self._line(datetime.now(UTC), "WARNING", __name__, text)]
            self._store.put(keys.log_chunk(self._job, self._name, self._number), joblogs.pack(lines + told))
            with self._taking:
                del self._waiting[: len(lines)]
            self._left_out = 0
            self._number += 1
            if self._number > CHUNKS_KEPT:
                self._store.delete([keys.log_chunk(self._job, self._name, self._number - CHUNKS_KEPT - 1)])

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self.flush()
            except StreamOpsError:
                time.sleep(EVERY_S)  # the lines wait; saying so here would only add to them

    def _take_error_output(self) -> None:
        """Whole lines that came to the error output since the last look."""
        try:
            if self._error_output is None:
                return
            if self._error_output.stat().st_size < self._read:  # rolled over
                self._read = 0
            with self._error_output.open("rb") as file:
                file.seek(self._read)
                body = file.read(_MOST_READ)
        except OSError:
            return
        self._read += len(body)
        if self._read >= _LARGEST and len(body) < _MOST_READ:
            self._truncate()
        *whole, self._partial = (self._partial + body).split(b"\n")
        for raw in whole:
            text = raw.decode(errors="replace").rstrip()
            if text and not text.startswith(_NOISE):
                self._before = joblogs.parse(text, self._before)
                self._take(self._before)

    def _truncate(self) -> None:
        """Empty the files of the driver's output. The worker appends, so it continues at their new beginning."""
        assert self._error_output is not None
        for path in (self._error_output, self._error_output.with_name("stdout")):
            with contextlib.suppress(OSError):
                os.truncate(path, 0)
        self._read = 0


def quiet(context: SparkContext) -> None:
    """Keep Spark from saying what is said too often; errors are still said."""
    log4j = context._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(TOO_OFTEN, log4j.Level.ERROR)


def set_levels(context: SparkContext, *settings: Mapping[str, str]) -> None:
    """Set the level of each logger of the driver, of Python and of the JVM; later settings over earlier ones.

    ``root`` is Python's alone: all that Spark says at DEBUG would bury the rest. Sources that are read by processes of
    their own find their levels in a file.
    """
    log4j = context._jvm.org.apache.logging.log4j
    levels = {name: level for given in settings for name, level in given.items()}
    fresh = LEVELS.with_name(f"{LEVELS.name}.new")
    fresh.write_text(json.dumps(levels))
    fresh.replace(LEVELS)
    for name, level in levels.items():
        logging.getLogger(None if name == "root" else name).setLevel(joblogs.ORDER[level])
        if name != "root":
            of_java = log4j.Level.valueOf("WARN" if level == "WARNING" else level)
            log4j.core.config.Configurator.setLevel(name, of_java)


def flush_all() -> None:
    """Every handler's ``flush``: after it, lines logged before are where they are kept. Raises UnreachableError."""
    for handler in logging.getLogger().handlers:
        handler.flush()
