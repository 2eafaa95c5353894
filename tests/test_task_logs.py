"""The logs of Airflow's tasks on a real object store, with the identity that Airflow has there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fakes import object_server
from streamops.model.errors import DeniedError, UnreachableError
from streamops.settings import BucketSettings, Settings
from streamops.store.object_store import ObjectStore
from streamops.upkeep.task_logs import KEPT, TaskLogs, merged

NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)
RUN = "dag_id=snapshot_job/run_id=manual__2026-06-15T12:00:00+00:00"
LOG = f"{RUN}/task_id=take/attempt=1.log"
TRIGGER = f"{LOG}.trigger.7.log"


@pytest.fixture(scope="module")
def place(object_store_server: Settings) -> BucketSettings:
    return object_server.logs_bucket(object_store_server)


@pytest.fixture
def store(place: BucketSettings, object_store_server: Settings) -> Iterator[ObjectStore]:
    yield ObjectStore(place, brief=True)
    root = ObjectStore(
        object_server.as_root(object_store_server).model_copy(update={"s3_bucket": place.s3_bucket}), brief=True
    )
    root.delete_versions(root.versions(""))


@pytest.fixture
def logs(store: ObjectStore, tmp_path: Path) -> TaskLogs:
    return TaskLogs(tmp_path / "logs", store)


@pytest.fixture
def away(store: ObjectStore, place: BucketSettings, logs: TaskLogs) -> TaskLogs:
    """The same folder while the object store does not answer."""
    return TaskLogs(logs.root, ObjectStore(place.model_copy(update={"s3_endpoint": "http://127.0.0.1:1"}), brief=True))


def write(logs: TaskLogs, name: str, text: str, age: timedelta = timedelta(0)) -> Path:
    path = logs.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)
    then = (NOW - age).timestamp()
    for each in (path, *path.parents[: len(Path(name).parents) - 1]):
        os.utime(each, (then, then))
    return path


def stored(logs: TaskLogs) -> dict[str, str]:
    return {info.key: logs.store.get(info.key).body.decode() for info in logs.store.list("")}


@pytest.mark.parametrize(
    ("there", "here", "both"),
    [
        ("", "1 2 ", "1 2 "),
        ("1 2 ", "1 2 3 ", "1 2 3 "),  # as it usually is: the disk has all
        ("1 2 3 ", "1 2 3 ", "1 2 3 "),
        ("1 2 3 ", "1 2 ", "1 2 3 "),
        ("1 2 ", "3 4 ", "1 2 3 4 "),  # the folder was wiped in between
        ("1 2 3 ", "3 4 ", "1 2 3 4 "),  # and the file has grown since it was last stored
        ("1 2 3 ", "2 3 ", "1 2 3 "),
        ("1 2 ", "", "1 2 "),
    ],
)
def test_each_line_of_what_is_stored_and_what_is_on_the_disk_counts_once(there: str, here: str, both: str) -> None:
    def lines(text: str) -> bytes:
        return text.replace(" ", "\n").encode()

    assert merged(lines(there), lines(here)) == lines(both)


def test_a_log_grows_with_its_file_and_is_the_same_however_often_it_is_stored(logs: TaskLogs) -> None:
    write(logs, LOG, "1\n2\n")
    logs.send(LOG)
    write(logs, LOG, "3\n")
    for _ in range(2):  # a process that dies after the write repeats it
        logs.send(LOG)
    assert stored(logs) == {LOG: "1\n2\n3\n"}
    logs.send(TRIGGER)  # there is no such file: the trigger logged nothing
    assert stored(logs) == {LOG: "1\n2\n3\n"}


def test_what_two_store_at_once_is_there_whole(
    logs: TaskLogs, place: BucketSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, put = ObjectStore(place), ObjectStore.put
    write(logs, LOG, "3\n")

    def overtaken(self: ObjectStore, key: str, body: bytes, **condition: object) -> str:
        monkeypatch.setattr(ObjectStore, "put", put)
        other.put(LOG, b"1\n2\n")
        return put(self, key, body, **condition)

    monkeypatch.setattr(ObjectStore, "put", overtaken)
    logs.send(LOG)
    assert stored(logs) == {LOG: "1\n2\n3\n"}


def test_only_what_the_disk_lacks_is_read_from_the_bucket(logs: TaskLogs) -> None:
    write(logs, LOG, "1\n2\n")
    write(logs, TRIGGER, "t\n")
    other = f"{RUN}/task_id=take/attempt=10.log"
    write(logs, other, "10\n")
    for name in (LOG, TRIGGER, other):
        logs.send(name)
    assert logs.read(LOG, whole=True) == {}
    (logs.root / LOG).unlink()
    assert logs.read(LOG, whole=False) == {LOG: "1\n2\n"}
    assert logs.read(LOG, whole=True) == {LOG: "1\n2\n", TRIGGER: "t\n"}
    write(logs, LOG, "2\n")  # the task continued after the folder was wiped
    assert logs.read(LOG, whole=False) == {LOG: "1\n2\n"}
    shutil.rmtree(logs.root)
    assert logs.read(LOG, whole=True) == {LOG: "1\n2\n", TRIGGER: "t\n"}


def test_what_could_not_be_stored_is_stored_by_the_next_who_can(logs: TaskLogs, away: TaskLogs) -> None:
    logs.tidy(NOW)
    write(logs, LOG, "1\n")
    write(logs, TRIGGER, "t\n")
    with pytest.raises(UnreachableError):
        away.send(LOG)
    away.missed()
    with pytest.raises(UnreachableError):
        away.tidy(NOW)
    away.missed()
    assert stored(logs) == {}
    logs.tidy(NOW)
    assert stored(logs) == {LOG: "1\n", TRIGGER: "t\n"}


def test_what_no_one_tried_to_store_is_found_within_an_hour(logs: TaskLogs) -> None:
    logs.tidy(NOW)
    write(logs, LOG, "1\n")  # and then the machine lost its power
    logs.tidy(NOW + timedelta(minutes=59))
    assert stored(logs) == {}
    logs.tidy(NOW + timedelta(minutes=61))
    assert stored(logs) == {LOG: "1\n"}


def test_the_disk_keeps_a_log_for_days_and_never_loses_one_that_is_not_stored(logs: TaskLogs, away: TaskLogs) -> None:
    old = write(logs, LOG, "1\n", KEPT + timedelta(hours=1))
    young = write(logs, LOG.replace("manual", "later"), "2\n", KEPT - timedelta(hours=1))
    with pytest.raises(UnreachableError):
        away.sweep(NOW)
    assert old.exists()
    logs.sweep(NOW)
    assert not (logs.root / RUN).exists()
    assert young.exists()
    assert logs.read(LOG, whole=True) == {LOG: "1\n"}
    logs.sweep(NOW)


def test_an_old_run_that_is_not_stored_is_stored_before_it_goes_although_a_sweep_came_after_it(logs: TaskLogs) -> None:
    logs.sweep(NOW)
    write(logs, LOG, "1\n", KEPT + timedelta(hours=1))  # by a clock that was wrong
    logs.sweep(NOW)
    assert stored(logs) == {LOG: "1\n"}
    assert not (logs.root / RUN).exists()


def test_logs_of_reading_the_dag_files_go_with_their_age_and_are_stored_nowhere(logs: TaskLogs) -> None:
    old = write(logs, "dag_processor/2026-05-01/dags-folder/reconcile.py.log", "1\n", KEPT + timedelta(days=1))
    young = write(logs, "dag_processor/2026-06-14/dags-folder/reconcile.py.log", "1\n", timedelta(days=1))
    latest = logs.root / "dag_processor" / "latest"
    latest.symlink_to("2026-06-14")
    logs.sweep(NOW)
    assert not old.parents[1].exists()
    assert young.exists()
    assert latest.is_symlink()
    assert stored(logs) == {}


def test_airflow_stores_and_reads_logs_and_removes_none(
    logs: TaskLogs, bucket: Settings, place: BucketSettings
) -> None:
    write(logs, LOG, "1\n")
    logs.send(LOG)
    logs.store.put(LOG, b"")  # no one can forbid that to who stores logs; but nothing is lost
    with pytest.raises(DeniedError):
        logs.store.delete([LOG])
    client = object_server.client(object_server.as_root(bucket))
    kept = client.list_object_versions(Bucket=place.s3_bucket, Prefix=LOG)["Versions"]
    assert sorted(version["Size"] for version in kept) == [0, 2]
    with pytest.raises(DeniedError):
        logs.store.delete_versions(logs.store.versions(LOG))
    mine = ObjectStore(place.model_copy(update={"s3_bucket": bucket.s3_bucket}))
    for forbidden in (
        lambda: list(mine.list("")),
        lambda: mine.get("jobs/clicks/record.json"),
        lambda: mine.put("jobs/clicks/record.json", b"?"),
    ):
        with pytest.raises(DeniedError):
            forbidden()


@pytest.mark.parametrize("who", ["jobs", "operations", "retention"])
def test_drivers_and_all_others_may_not_touch_the_logs(
    logs: TaskLogs, bucket: Settings, place: BucketSettings, who: str
) -> None:
    write(logs, LOG, "1\n")
    logs.send(LOG)
    others = {"jobs": object_server.as_job(bucket), "operations": bucket, "retention": bucket.for_retention()}
    theirs = ObjectStore(others[who].model_copy(update={"s3_bucket": place.s3_bucket}))
    for forbidden in (
        lambda: list(theirs.list("")),
        lambda: theirs.get(LOG),
        lambda: theirs.put(LOG, b"?"),
        lambda: theirs.delete([LOG]),
    ):
        with pytest.raises(DeniedError):
            forbidden()
    assert stored(logs) == {LOG: "1\n"}
