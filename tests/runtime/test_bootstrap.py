"""The bootstrap: when a launch that cannot work gives up, and how it says so."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streamops.model.records import DriverStatus, State
from streamops_runtime import bootstrap
from streamops_runtime.bootstrap import MOST_STARTS, RELAUNCH, Starts

ARGS = argparse.Namespace(job="clicks", launch="one", deployment="3", status=None)


def begun(directory: Path) -> Starts:
    starts = Starts(directory)
    starts.begin()
    return starts


def failing(monkeypatch, error: BaseException) -> None:
    def main(args: argparse.Namespace, starts: Starts) -> int:
        raise error

    monkeypatch.setattr(bootstrap, "main", main)


def test_starts_that_come_to_nothing_are_given_up_after_some(monkeypatch, tmp_path: Path) -> None:
    failing(monkeypatch, ValueError("no such key\nmore"))
    codes = [bootstrap.end(ARGS, Starts(tmp_path)) for _ in range(MOST_STARTS)]
    assert codes == [RELAUNCH] * (MOST_STARTS - 1) + [0]


def test_a_start_that_is_killed_counts_until_one_comes_to_its_work(tmp_path: Path) -> None:
    assert [begun(tmp_path).number for _ in range(3)] == [1, 2, 3]
    begun(tmp_path).clear()
    assert begun(tmp_path).number == 1
    (tmp_path / "starts").write_text("")  # killed while it counted
    assert begun(tmp_path).number == 1


def test_a_driver_that_worked_for_days_may_end_like_any_other(monkeypatch, tmp_path: Path) -> None:
    """Although four starts before it had been killed."""
    for _ in range(MOST_STARTS - 1):
        begun(tmp_path)

    def main(args: argparse.Namespace, starts: Starts) -> int:
        starts.clear()
        raise ValueError

    monkeypatch.setattr(bootstrap, "main", main)
    assert bootstrap.end(ARGS, Starts(tmp_path)) == RELAUNCH


def test_a_full_disk_is_no_reason_to_end(tmp_path: Path) -> None:
    assert begun(tmp_path / "is not there").number == 1


def test_a_store_that_is_away_is_waited_for_without_end(monkeypatch, tmp_path: Path) -> None:
    failing(monkeypatch, bootstrap._AwayError("s3a://b/artifact"))
    assert {bootstrap.end(ARGS, Starts(tmp_path)) for _ in range(3 * MOST_STARTS)} == {RELAUNCH}


class Raised(Exception):
    """As Python sees an error of Java."""

    def __init__(self, java: Any) -> None:
        self.java_exception = java


def test_a_setting_that_spark_cannot_read_is_told_from_a_server_that_is_away(spark: SparkSession) -> None:
    lang, net = spark.sparkContext._jvm.java.lang, spark.sparkContext._jvm.java.net
    size = lang.NumberFormatException("Size must be specified as bytes (b)\nFailed to parse byte string: lots")
    assert bootstrap._refused_setting(Raised(size)) == "Size must be specified as bytes (b)"
    for passing in (
        lang.IllegalArgumentException(net.UnknownHostException("store")),  # a name that is not resolved now
        lang.IllegalStateException("Cannot call methods on a stopped SparkContext."),  # no master answered
    ):
        assert bootstrap._refused_setting(Raised(passing)) == ""
    assert bootstrap._refused_setting(ValueError("not Java's")) == ""


def test_what_is_altered_is_given_up_at_once(monkeypatch, tmp_path: Path) -> None:
    failing(monkeypatch, bootstrap._CannotWorkError("it was altered"))
    assert bootstrap.end(ARGS, Starts(tmp_path)) == 0


def test_its_last_words_are_a_drivers_status() -> None:
    status = DriverStatus.model_validate_json(json.dumps(bootstrap.status(ARGS, "it was altered")))
    assert (status.job, status.launch, status.deployment, status.state) == ("clicks", "one", 3, State.FAILED)
    assert status.reason == "it was altered"
    assert "hunter2" not in bootstrap.status(ARGS, "no answer from http://ada:hunter2@pings.example")["reason"]


RUNNER = "streamops_runtime/runner.py"
START = """
import argparse, pathlib, shutil, sys
import bootstrap

def fetch(source, target, expected):
    print("fetched", pathlib.Path(source).name)
    shutil.copyfile(pathlib.Path(source).name, target)

bootstrap._fetch = fetch
work = pathlib.Path("work")
shutil.rmtree(work, ignore_errors=True)
work.mkdir()
names = {"bucket": "b", "artifact": "artifact.zip", "artifact_sha256": "", "library": None, "runtime": "runtime.zip"}
bootstrap._bring(argparse.Namespace(**names, runtime_sha256=sys.argv[1]), work)
print("runs", sys.modules["streamops_runtime.runner"].__doc__)
"""


class Node:
    """What a node has: a bootstrap, and runtimes that drivers before have left."""

    def __init__(self, place: Path) -> None:
        self.place = place
        shutil.copyfile(bootstrap.__file__, place / "bootstrap.py")
        (place / "start.py").write_text(START)
        with zipfile.ZipFile(place / "artifact.zip", "w") as archive:
            archive.writestr("code/job.py", "")
        with zipfile.ZipFile(place / "runtime.zip", "w") as archive:
            archive.writestr("streamops_runtime/", "")
            for name in ("__init__", "runner", "other"):
                archive.writestr(f"streamops_runtime/{name}.py", '"""what was published"""')
        self.sha256 = hashlib.sha256((place / "runtime.zip").read_bytes()).hexdigest()
        self.runtime = place / "runtimes" / self.sha256

    def start(self) -> list[str]:
        """What a driver fetches, and which code it runs."""
        command = [sys.executable, "start.py", self.sha256]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        said = subprocess.run(
            command, cwd=self.place, env=environment, check=True, capture_output=True, text=True
        ).stdout
        return [line for line in said.splitlines() if line.startswith(("fetched", "runs"))]


FRESH = ["fetched artifact.zip", "fetched runtime.zip", "runs what was published"]
KEPT = ["fetched artifact.zip", "runs what was published"]


def altered(runtime: Path, what: str) -> None:
    """Something that a disk, a person or a job's code may have done to a runtime."""
    runner = runtime / RUNNER
    match what:
        case "a file":
            runner.write_text('"""another text, with as many letters"""')
        case "no file":
            (runtime / "streamops_runtime" / "other.py").unlink()
        case "one more":
            (runtime / "streamops_runtime" / "runner").mkdir()
            (runtime / "streamops_runtime" / "runner" / "__init__.py").write_text('"""a package comes first"""')
        case "a link":
            (runtime / "streamops_runtime" / "runner").symlink_to(runtime.parent.parent / "work")
        case "the archive":
            with zipfile.ZipFile(runtime / bootstrap.ARCHIVE, "a") as archive:
                archive.writestr("more.py", "")
            (runtime / "more.py").touch()
        case "no archive":  # as an earlier release left it
            (runtime / bootstrap.ARCHIVE).unlink()
        case "half an archive":
            (runtime / bootstrap.ARCHIVE).write_bytes(b"PK")


@pytest.mark.parametrize(
    "what", ["a file", "no file", "one more", "a link", "the archive", "no archive", "half an archive"]
)
def test_a_runtime_that_a_node_has_kept_is_compared_with_what_was_published_before_it_runs(
    tmp_path: Path, what: str
) -> None:
    node = Node(tmp_path)
    assert node.start() == FRESH
    assert list(node.runtime.rglob("*.pyc"))
    assert node.start() == KEPT
    altered(node.runtime, what)
    assert node.start() == FRESH
    assert node.start() == KEPT
    assert [path.name for path in node.runtime.parent.iterdir()] == [node.sha256]
