"""Local Spark in a process of its own: it gives way, and nothing of it is left."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from streamops import local_spark
from streamops.demo import until
from streamops.template import write_new

CODE = """
import json, os
from pathlib import Path

group = Path("/proc/self/autogroup")
print(json.dumps({"nice": os.nice(0), "session": group.read_text().split()[-1] if group.exists() else None}))
"""


def processes(mark: str) -> list[str]:
    """The ids of all processes that were given this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue  # it has just ended, or is somebody else's
    return found


def test_it_runs_at_a_low_priority(tmp_path: Path) -> None:
    job = tmp_path / "clicks"
    write_new(job)
    with (job / "clicks.py").open("a", encoding="utf-8") as code:
        code.write(CODE)
    asked = local_spark.ask("validate", str(job), "v1", timeout_s=300, gives_way=True)
    assert asked.answers[0]["nice"] == local_spark.NICE, asked
    assert asked.answers[0]["session"] in (str(local_spark.NICE), None)
    assert os.nice(0) < local_spark.NICE  # who asks keeps its own


def test_nothing_of_it_runs_on_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = uuid.uuid4().hex
    monkeypatch.setenv("STREAMOPS_TEST_MARK", mark)
    with pytest.raises(TimeoutError):
        local_spark.ask("validate", str(tmp_path), "v1", timeout_s=0.5)
    until(lambda: not processes(mark), 30, "a process of local Spark is still there")
