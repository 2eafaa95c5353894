"""Task logs as Airflow's own code stores and shows them: with the bucket, without the disk, and without the bucket."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.sdk import Connection
from airflow.sdk import log as sdk
from airflow.utils.log.file_task_handler import FileTaskHandler
from airflow.utils.state import TaskInstanceState

from fakes import object_server
from stack import configure, private
from stack.compose import container
from stack.layout import Layout
from streamops.settings import BucketSettings, Settings
from streamops.store import object_store
from streamops_airflow import task_logs

LOG = "dag_id=snapshot_job/run_id=manual__1/task_id=take/attempt=1.log"

LOADED = """
import sys
from airflow import logging_config
from airflow.sdk import log
from airflow.sdk.configuration import conf
logging_config.configure_logging()
print(type(logging_config.get_remote_task_log()).__name__, type(log.load_remote_log_handler()).__name__,
      logging_config.get_default_remote_conn_id(), log.load_remote_conn_id(), "boto3" in sys.modules,
      conf.get("logging", "base_log_folder"))
from airflow.sdk.execution_time.supervisor import _remote_logging_conn
from streamops_airflow.task_logs import RemoteTaskLogs
with _remote_logging_conn(None):  # what uploads: the supervisor of a task
    print(log.load_remote_log_handler().logs.store.identity)
import os
os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"  # what reads, and the triggerer, which uploads
print(RemoteTaskLogs().logs.store.identity)
"""


@pytest.mark.full  # a process of Airflow takes seconds to begin
def test_both_stacks_give_airflow_its_remote_logs(tmp_path: Path) -> None:
    for layout in (container.layout("airflow-api-server", tmp_path), Layout(tmp_path, 0)):
        pairs = private.prepare_env(layout, tmp_path) | {"AIRFLOW_DATABASE": f"sqlite:///{tmp_path}/none.db"}
        configure.airflow(layout, pairs)
        connection = json.loads((layout.airflow / "connections.json").read_text())[task_logs.CONNECTION]
        assert connection == {
            "conn_type": "aws",
            "login": pairs["S3_LOGS_ACCESS_KEY"],
            "password": pairs["S3_LOGS_SECRET_KEY"],
            "extra": {"endpoint_url": layout.url("minio"), "bucket": "streamops-logs"},
        }
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "AIRFLOW_HOME": str(layout.airflow), "PYTHONPATH": path}
    asked = [sys.executable, "-c", LOADED]
    done = subprocess.run(asked, env=environment, capture_output=True, text=True, check=True)
    name, folder, key = "RemoteTaskLogs", layout.airflow / "logs", pairs["S3_LOGS_ACCESS_KEY"]
    wanted = [name, name, "streamops_logs", "streamops_logs", "False", str(folder), key, key]
    assert done.stdout.split()[-len(wanted) :] == wanted


class Folder:
    """A task's log as the processes of Airflow treat it."""

    def __init__(self, root: Path, name: str = LOG) -> None:
        self.root, self.path = root, root / name
        self.path.parent.mkdir(parents=True)

    def says(self, *words: str) -> None:
        """What the task's supervisor does: it writes on the file, and uploads it when the task ends or waits."""
        with self.path.open("ab") as file:
            for word in words:
                file.write(json.dumps({"timestamp": f"2026-06-15T12:00:0{word}Z", "event": word}).encode() + b"\n")
            file.flush()
            sdk.upload_to_remote(structlog.wrap_logger(structlog.BytesLogger(file)))

    def shown(self, state: str = TaskInstanceState.SUCCESS) -> list[str]:
        """What the page shows, without the sources."""
        handler = FileTaskHandler(str(self.root))
        handler._render_filename = lambda ti, tries: LOG  # type: ignore[method-assign] # which asks the database
        ti: Any = SimpleNamespace(state=state, try_number=1, hostname="", executor=None, triggerer_job=None)
        lines, _ = handler.read(ti, 1)
        events = [str(line.event) for line in lines]
        self.sources = events[: events.index("::endgroup::")]
        return events[events.index("::endgroup::") + 1 :]


def connect(monkeypatch: pytest.MonkeyPatch, endpoint: str, place: BucketSettings) -> task_logs.RemoteTaskLogs:
    """A process of Airflow that begins now, with this connection."""
    connection = Connection(
        conn_id=task_logs.CONNECTION,
        conn_type="aws",
        login=place.s3_access_key,
        password=place.s3_secret_key.get_secret_value(),
        extra=json.dumps({"endpoint_url": endpoint, "bucket": place.s3_bucket}),
    )
    monkeypatch.setenv("AIRFLOW_CONN_STREAMOPS_LOGS", connection.get_uri())  # as a task's supervisor does
    found = task_logs.RemoteTaskLogs()
    for module in ("airflow.sdk.log", "airflow.logging_config"):
        monkeypatch.setattr(f"{module}._ActiveLoggingConfig.logging_config_loaded", True)
        monkeypatch.setattr(f"{module}._ActiveLoggingConfig.remote_task_log", found)
    return found


@pytest.fixture(scope="module")
def place(object_store_server: Settings) -> BucketSettings:
    return object_server.logs_bucket(object_store_server)


@pytest.fixture
def folder(place: BucketSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path / "logs"))
    connect(monkeypatch, place.s3_endpoint, place)
    yield Folder(tmp_path / "logs")
    client: Any = object_server.client(object_server.as_root(Settings.model_construct(s3_endpoint=place.s3_endpoint)))
    client.delete_object(Bucket=place.s3_bucket, Key=LOG)


def test_a_log_is_shown_as_it_was_after_the_folder_was_wiped(folder: Folder, place: BucketSettings) -> None:
    folder.says("1", "2")
    folder.says("3")
    before = folder.shown()
    assert before == ["1", "2", "3"]
    assert folder.sources[1:] == [str(folder.path)]
    shutil.rmtree(folder.root)
    assert folder.shown() == before
    assert folder.sources[1:] == [f"s3://{place.s3_bucket}/{LOG}"]


def test_a_task_that_waited_while_the_folder_was_wiped_has_its_whole_log(folder: Folder) -> None:
    folder.says("1", "2")
    folder.path.unlink()
    folder.says("3")
    for state in (TaskInstanceState.DEFERRED, TaskInstanceState.SUCCESS):
        assert folder.shown(state) == ["1", "2", "3"]


def test_without_the_bucket_a_task_ends_its_log_is_shown_and_it_is_stored_later(
    folder: Folder, place: BucketSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.says("1")
    connect(monkeypatch, "http://127.0.0.1:1", place)
    folder.says("2", "3")  # raises nothing
    assert folder.shown() == ["1", "2", "3"]
    assert "Only what Airflow's disk has is shown." in folder.sources[1]
    connect(monkeypatch, place.s3_endpoint, place)
    Folder(folder.root, LOG.replace("take", "later")).says("9")
    shutil.rmtree(folder.root)
    assert folder.shown() == ["1", "2", "3"]


def test_a_bucket_that_hangs_holds_up_one_upload_for_seconds_and_the_next_ones_not_at_all(
    folder: Folder, place: BucketSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = object_store._BRIEF
    assert (longest.retries["total_max_attempts"], longest.connect_timeout, longest.read_timeout) == (1, 2, 5)
    monkeypatch.setattr(object_store, "_BRIEF", longest.merge(object_store.Config(read_timeout=0.5)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connect(monkeypatch, f"http://127.0.0.1:{silent.getsockname()[1]}", place)
        folder.says("1")
        silent.accept()[0].close()
        began = time.monotonic()
        folder.says("2")
        assert folder.shown() == ["1", "2"]
        assert time.monotonic() - began < task_logs.PAUSE_S
        silent.setblocking(False)
        with pytest.raises(BlockingIOError):  # no one has asked since
            silent.accept()


def test_without_the_connection_logs_are_on_the_disk_and_the_page_says_why(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, place: BucketSettings
) -> None:
    connect(monkeypatch, place.s3_endpoint, place)
    monkeypatch.delenv("AIRFLOW_CONN_STREAMOPS_LOGS")
    folder.path.write_text(json.dumps({"timestamp": "2026-06-15T12:00:01Z", "event": "1"}) + "\n")
    assert folder.shown() == ["1"]
    assert "`streamops_logs` isn't defined" in folder.sources[1]
