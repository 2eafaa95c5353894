"""Starts a node's worker when nothing of the one before is left: ``python -m stack.worker DIRECTORY COMMAND...``.

A worker that was killed has ended none of its drivers and executors. They end themselves when they miss it, but for one
that is paused, or whose JVM never comes to its end: when RocksDB logs at that moment, its thread waits for the JVM, and
the JVM for that thread. Nobody else would end it, and it would keep memory that the master gives away again.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil

PATIENCE_S = 5.0  # for what ends by itself: a driver gives its lease back, an executor its directories


def left_in(directory: Path) -> list[psutil.Process]:
    """The processes that an earlier worker has started there: each works in a directory below its own."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # it has ended, or is another user's
            if Path(process.cwd()).is_relative_to(directory):
                found.append(process)
    return found


def end(processes: list[psutil.Process]) -> None:
    """Wait until they have ended, and kill those that do not."""
    _, late = psutil.wait_procs(processes, PATIENCE_S)
    for process in late:
        print(f"Process {process.pid} of the worker before is killed: it did not end by itself", flush=True)
        with suppress(psutil.NoSuchProcess):
            process.kill()


def main(arguments: list[str]) -> None:
    """Become the worker; its children get no path of this module's."""
    directory, *command = arguments
    end(left_in(Path(directory).resolve()))
    os.environ.pop("PYTHONPATH", None)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
