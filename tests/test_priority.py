"""What is done beside the jobs of a machine gives way to them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from demos.upgrade import until
from stack import builds, configure
from stack.layout import Layout
from streamops.spark import local_spark, priority
from streamops.spark.submission import GIVES_WAY
from streamops.versions.template import write_new

CODE = """
import json, os
from pathlib import Path

group = Path("/proc/self/autogroup")
print(json.dumps({"nice": os.nice(0), "session": group.read_text().split()[-1] if group.exists() else None}))
"""

DRIVER = """
import os, subprocess, sys, threading
from pathlib import Path

end = threading.Event()
threading.Thread(target=end.wait).start()
bootstrap = "from streamops_runtime.bootstrap import give_way; give_way(7); import os; print(os.nice(0), flush=True)"
subprocess.run([sys.executable, "-c", bootstrap], check=True)
later = threading.Thread(target=lambda: print(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), flush=True))
later.start()
later.join()
print(*sorted(os.getpriority(os.PRIO_PROCESS, int(path.name)) for path in Path("/proc/self/task").iterdir()))
end.set()
"""


def processes(mark: str) -> list[str]:
    """The ids of all processes that were given this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue  # it has just ended, or is someone else's
    return found


@pytest.mark.full
def test_local_spark_gives_way(tmp_path: Path) -> None:
    job = tmp_path / "clicks"
    write_new(job)
    with (job / "clicks.py").open("a", encoding="utf-8") as code:
        code.write(CODE)
    asked = local_spark.ask("validate", str(job), "v1", timeout_s=800, gives_way=True)
    assert asked.answers[0]["nice"] == max(os.nice(0), priority.NICE), asked
    assert asked.answers[0]["session"] in (str(priority.NICE), None)


def test_nothing_of_local_spark_runs_on_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv("STREAMOPS_TEST_MARK", mark)
    with pytest.raises(TimeoutError):
        local_spark.ask("validate", str(tmp_path), "v1", timeout_s=0.5)
    until(lambda: not processes(mark), 30, "a process of local Spark is still there")


def test_what_is_done_in_the_background_has_a_low_priority_and_the_caller_keeps_its_own() -> None:
    def own() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def inherited() -> int:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(own).result()

    before = own()
    lowered = max(before, priority.NICE)
    assert priority.in_background(lambda: (own(), inherited())) == (lowered, lowered)
    assert own() == before
    with pytest.raises(KeyError, match="gone"):
        priority.in_background(lambda: {}["gone"])


def test_drivers_and_executors_of_what_is_only_tried_out_give_way(tmp_path: Path, monkeypatch) -> None:
    java = tmp_path / "a java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nnice\necho "$@"\n')
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(java.parent.parent))
    assert builds.java() == str(java)
    layout = Layout(tmp_path, 0)
    layout.node.mkdir(exist_ok=True)
    configure.refresh(layout)
    said = subprocess.run(
        [layout.node / GIVES_WAY / "bin" / "java", "-cp", "two words"], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == [str(min(os.nice(0) + priority.NICE, 19)), "-cp two words"]

    monkeypatch.setenv("PYTHONPATH", "spark_jobs")
    said = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, text=True, check=True)
    own, later, *threads = said.stdout.split()
    assert {own, later, *threads} == {"7"}, said
