"""The logs of Airflow's tasks in a bucket of their own, so that they outlive Airflow's disk.

An object has the name of its file below the folder of logs. A file is written on as long as its task is tried, and is
stored as a whole each time that the task ends or waits. What could not be stored then is found by ``sweep``: it
compares the folder with the bucket, so that it does not matter why a file is missing there. Nothing in the bucket is
ever removed: these logs are the audit, and stay as long as the receipts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from streamops.model.errors import ConflictError, NotFoundError
from streamops.store.documents import TRIES
from streamops.store.object_store import ObjectStore

KEPT = timedelta(days=30)  # how long the disk has what the bucket has too, for when the bucket is away
EVERY = timedelta(hours=1)  # what was not even tried, because its process was killed, waits for so long
_CLOCK = 60.0  # seconds by which the time of a file may differ from the time at which it was written


def merged(stored: bytes, found: bytes) -> bytes:
    """A log of which a part is stored and a part is on the disk, each line of the two once.

    Usually the disk has all that is stored, and more. It has less when the folder was wiped while the task was under
    way, and something else when Airflow started a new file.
    """
    first = found.split(b"\n", 1)[0]
    at = stored.find(first) if first else -1
    if at >= 0:
        tail = stored[at:]
        if found.startswith(tail):
            return stored[:at] + found
        if tail.startswith(found):
            return stored
    return stored + found


class TaskLogs:
    """One folder of logs, and the bucket that they are kept in.

    Args:
        root: Airflow's folder of logs; it need not exist.
        store: the bucket, with the identity of logs.

    Raises (every method): UnreachableError, DeniedError.
    """

    def __init__(self, root: Path, store: ObjectStore) -> None:
        self.root, self.store = root, store
        self._swept, self._unsent = root / ".swept", root / ".unsent"

    def send(self, name: str) -> None:
        """Store a file of the folder, with what is stored of it already; one that is not there is no error.

        Two at once, or one that is killed in between, end with the same object.
        """
        for _ in range(TRIES):
            try:
                found = (self.root / name).read_bytes()
            except FileNotFoundError:
                return
            try:
                stored = self.store.get(name)
            except NotFoundError:
                body, over = found, None
            else:
                body, over = merged(stored.body, found), stored.etag
                if body == stored.body:
                    return
            try:
                self.store.put(name, body, if_match=over, if_absent=over is None)
                return
            except ConflictError:
                continue
        raise ConflictError(f"{name} in bucket {self.store.bucket} keeps changing; it is stored at the next look.")

    def read(self, name: str, whole: bool) -> dict[str, str]:
        """The files of a log, by name, where the bucket has more than the disk; else none, for the disk has it all.

        Args:
            name: the file that the task itself writes; what others write for it is named after it.
            whole: also what only the disk has.
        """
        listed = list(self.store.list(name))
        found = {info.key: self.store.get(info.key).body for info in listed if _size(self.root / info.key) < info.size}
        if found and whole:
            here = (path for path in (self.root / name).parent.glob("*") if path.name.startswith(Path(name).name))
            names = (path.relative_to(self.root).as_posix() for path in here)
            found |= {each: (self.root / each).read_bytes() for each in names if each not in found}
        return {each: found[each].decode(errors="replace") for each in sorted(found)}

    def missed(self) -> None:
        """Say that a file could not be stored, so that the next ``tidy`` looks for it."""
        self._mark(self._unsent)

    def tidy(self, moment: datetime) -> None:
        """Sweep, if a file could not be stored since the last time, or if that was an hour ago."""
        if self._unsent.exists() or _time(self._swept) < (moment - EVERY).timestamp():
            self.sweep(moment)

    def sweep(self, moment: datetime) -> None:
        """Store what is not stored, and remove from the disk what is and was not written to for ``KEPT``.

        The logs of reading the DAG files go by age alone. A sweep that fails or dies is begun again by the next.
        """
        before = _time(self._swept) - _CLOCK
        old = (moment - KEPT).timestamp()
        self._unsent.unlink(missing_ok=True)  # whoever misses the bucket from here on says so again
        for run in self.root.glob("dag_id=*/run_id=*"):
            files = [path for path in run.rglob("*") if path.is_file()]
            written = _newest((run, *files))
            if written >= before or written < old:
                self._compare(run, files)
            if written < old:
                shutil.rmtree(run, ignore_errors=True)
        for day in self.root.glob("dag_processor/[0-9]*-[0-9]*-[0-9]*"):
            if not day.is_symlink() and _newest((day, *day.rglob("*"))) < old:
                shutil.rmtree(day, ignore_errors=True)
        self._mark(self._swept)
        os.utime(self._swept, (moment.timestamp(), moment.timestamp()))

    def _mark(self, path: Path) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        path.touch()

    def _compare(self, run: Path, files: Iterable[Path]) -> None:
        stored = {info.key: info.size for info in self.store.list(f"{run.relative_to(self.root).as_posix()}/")}
        for path in files:
            name = path.relative_to(self.root).as_posix()
            if stored.get(name, 0) < _size(path):
                self.send(name)


def _newest(paths: Iterable[Path]) -> float:
    return max((_time(path) for path in paths), default=0.0)


def _time(path: Path) -> float:
    """When it was last written (seconds since 1970); 0 if it is not there."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int:
    """In bytes; 0 if it is not there."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
