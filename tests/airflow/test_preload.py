"""What the processes that start tasks import beforehand."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streamops.settings import REPOSITORY

CODE = """
import sys
sys.path[:0] = ["plugins", "include", "spark_jobs"]
from streamops_airflow.plugin import StreamOpsPlugin
sys.argv = ["airflow", *sys.argv[1:]]
StreamOpsPlugin.on_load()
before = set(sys.modules)
sys.path.insert(0, "dags")
import upgrade_job
print(*sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""


@pytest.mark.full
@pytest.mark.parametrize(("command", "there"), [("scheduler", True), ("dag-processor", True), ("api-server", False)])
def test_a_runbook_imports_nothing_but_itself_where_tasks_are_started(tmp_path, monkeypatch, command, there):
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    asked = [sys.executable, "-c", CODE, command]
    done = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert (done.stdout.split()[-1:] == ["upgrade_job"] and "boto3" not in done.stdout.split()) is there
