"""A worker that starts again: nothing of the one before keeps memory of its node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fresh_job import wait_for
from stack import worker
from streamops.settings import REPOSITORY

HANGS = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
ENDS = "import sys; print('up', flush=True); sys.stdin.readline()"


@pytest.fixture
def start() -> Iterator[object]:
    """Starts a process that works in a directory, and waits until it is up."""
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, directory: Path) -> subprocess.Popen[str]:
        directory.mkdir(parents=True)
        piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([sys.executable, "-c", program], cwd=directory, text=True, **piped)
        started.append(process)
        assert process.stdout.readline() == "up\n"
        return process

    yield begin
    for process in started:
        process.kill()
        with closing(process.stdout), closing(process.stdin):
            process.wait()


def test_what_the_worker_before_has_left_is_ended_and_nothing_else(start, tmp_path: Path) -> None:
    own = tmp_path / "work-1"
    hung = start(HANGS, own / "app-1" / "0")
    ending = start(ENDS, own / "driver-1")
    other = start(HANGS, tmp_path / "work-10" / "app-1")
    ending.stdin.write("\n")
    ending.stdin.flush()

    tell = "import os; print(os.getpid(), os.environ.get('PYTHONPATH'))"
    command = [sys.executable, "-m", "stack.worker", str(own), sys.executable, "-c", tell]
    include = {"PYTHONPATH": str(REPOSITORY / "include"), "PATH": ""}
    become = subprocess.Popen(command, env=include, stdout=subprocess.PIPE, text=True)
    said = become.communicate(timeout=60)[0].splitlines()

    assert said == [
        f"Process {hung.pid} of the worker before is killed: it did not end by itself",
        f"{become.pid} None",  # the same process, without a path of its own
    ]
    wait_for(lambda: hung.poll() is not None, 30, "the end of what hung")
    assert ending.wait() == 0
    assert other.poll() is None


def test_a_worker_that_starts_for_the_first_time_waits_for_nobody(tmp_path: Path) -> None:
    assert worker.left_in(tmp_path / "work-1") == []
