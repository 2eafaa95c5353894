"""State by key, read by Spark itself from what a checkpoint's last batch or a snapshot consists of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fakes import object_server, spark_queries, spark_state
from fakes.spark_state import FILES, KEYS, PARTITIONS, ROWS, key
from stack import builds
from streamops import snapshots
from streamops.cli import app
from streamops.model import records
from streamops.model.errors import CheckpointError, RefusedError, SnapshotRefusedError, UnhealthyError
from streamops.model.manifest import Manifest
from streamops.model.records import Deployment, JobRecord, StageStart
from streamops.settings import REPOSITORY, Settings
from streamops.snapshots import Origin, marks, state, verification
from streamops.snapshots.state import Choice, Place
from streamops.spark import checkpoints
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore
from streamops_runtime import state as reader

# One process, that of the local Spark: the queries that write the state run once.
pytestmark = [pytest.mark.full, pytest.mark.xdist_group("spark")]

JOB, STAGES = "sums", ("chain", "joined", "once", "plain", "counted")
PANES = 1  # the operator of the inner windows of "chain": Spark counts from the end of a plan


def environment() -> dict[str, str]:
    places = [str(REPOSITORY / name) for name in ("include", "spark_jobs", "tests")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(places), "PYSPARK_PYTHON": sys.executable, "TZ": "UTC"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of all queries, as their process left them."""
    directory = tmp_path_factory.mktemp("queries")
    command = [sys.executable, spark_state.__file__, str(directory)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


class Job:
    """A job whose stages' checkpoints are in the bucket."""

    def __init__(self, settings: Settings, written: Path) -> None:
        self.settings, self.store = settings, ObjectStore(settings)
        self.deployment = Deployment(
            job=JOB, number=1, version="v1", artifact_sha256="a" * 64, runtime_sha256="r" * 64,
            created=records.now(), created_by="test", stages={name: StageStart(since_deployment=1) for name in STAGES},
        )  # fmt: skip
        documents.write(self.store, keys.deployment(JOB, 1), self.deployment)
        documents.write(self.store, keys.record(JOB), JobRecord(job=JOB, desired="running", version="v1", deployment=1))
        for stage in STAGES:
            for file in (written / stage).rglob("*"):
                if file.is_file() and not file.name.startswith("."):  # those are of the local file system
                    path = str(file.relative_to(written / stage))
                    self.store.put(keys.stage(JOB, 1, 1, stage) + path, file.read_bytes())
        checkpoints.mark_ready(self.store, keys.epoch_ready(JOB, 1, 1), {}, "nothing")

    def take(self, name: str) -> Manifest:
        made = snapshots.Export(self.store, self.deployment, f"attempt-{name}")
        manifest = made.run(name, STAGES, Origin("op", "ada"), live=True)
        snapshots.commit_manifest(self.store, manifest)
        return manifest

    def objects(self) -> dict[str, str]:
        return {info.key: info.etag for info in self.store.list("")}


@pytest.fixture(scope="module")
def job(object_store_server: Settings, written: Path) -> Job:
    return Job(object_server.fresh_bucket(object_store_server), written)


@pytest.fixture(scope="module")
def taken(job: Job) -> Manifest:
    return job.take("s")


@pytest.fixture(scope="module")
def places(job: Job, taken: Manifest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    """Every stage with state, brought from the snapshot."""
    directory = tmp_path_factory.mktemp("places")
    names = verification.stateful(taken)
    return {name: state.bring_snapshot(job.store, taken, name, directory / name) for name in names}


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """Settings of its own beside the other tests'."""
    found = spark.newSession()
    reader.configure(found, PARTITIONS)
    return found


def read(session: SparkSession, place: Place, **choice: object) -> tuple[list[dict], int]:
    answers = list(reader.rows(session, place, Choice(**choice)))
    return [answer["row"] for answer in answers[:-1]], answers[-1]["total"]


def sums(numbers: range) -> dict[str, int]:
    """Sums by key, in plain Python."""
    found: Counter[str] = Counter()
    for number in numbers:
        found[key(number)] += number
    return dict(found)


def last_pane() -> dict[str, int]:
    """The sums of the one pane that no watermark has passed."""
    return sums(range((FILES - 1) * ROWS, FILES * ROWS))


def test_only_the_last_batch_of_the_one_stage_is_brought(job: Job, written: Path, places: dict[str, Place]) -> None:
    assert set(places) == set(STAGES) - {"plain"}
    for name, place in places.items():
        files = [path for path in Path(place.directory).rglob("*") if path.is_file()]
        assert len(files) < sum(1 for path in (written / name).rglob("*") if path.is_file()) / 2
        assert place.partitions == PARTITIONS
        states = [path.name for path in files if path.is_relative_to(Path(place.directory) / "state")]
        assert any(path.endswith(".zip") for path in states), "no full version, so the test shows little"
        assert any(path.startswith(f"{place.batch + 1}_") and path.endswith(".changelog") for path in states)
        assert not any(path.startswith("1_") for path in states)
        assert not (Path(place.directory) / "sources").exists()


def test_rows_are_what_plain_python_says(session: SparkSession, places: dict[str, Place]) -> None:
    rows, total = read(session, places["chain"], operator=PANES)
    assert total == len(rows) == KEYS
    assert {row["key"]["k"]: row["value"]["sum"] for row in rows} == last_pane()
    assert {row["key"]["window"]["end"] for row in rows} == {"1970-01-01T00:01:10.000Z"}
    assert {row["partition"] for row in rows} == {0, 1}
    rows, total = read(session, places["chain"], operator=0)
    assert {row["key"]["k"]: row["value"]["sum"] for row in rows} == sums(range((FILES - 1) * ROWS))
    rows, total = read(session, places["chain"], operator=0, limit=1)
    assert (len(rows), total) == (1, KEYS)
    rows, total = read(session, places["counted"], variable="count", limit=KEYS)
    assert {row["key"]["k"]: row["value"]["events"] for row in rows} == {key(n): FILES * ROWS // KEYS for n in range(7)}
    rows, _ = read(session, places["counted"], variable="last")
    assert {row["value"]["v"] for row in rows} == set(range(FILES * ROWS - KEYS, FILES * ROWS))


@pytest.mark.parametrize("name", [key(number) for number in range(KEYS)] + ["nobody", ""])
def test_every_key_is_found_by_its_name_and_no_other(
    session: SparkSession, places: dict[str, Place], name: str
) -> None:
    rows, total = read(session, places["chain"], operator=PANES, keys=(("k", name),))
    assert [row["value"]["sum"] for row in rows] == [value for known, value in last_pane().items() if known == name]
    assert total == len(rows)


def test_key_columns_are_compared_by_their_type(session: SparkSession, places: dict[str, Place]) -> None:
    def found(*pairs: tuple[str, str]) -> list[str]:
        return [row["key"]["k"] for row in read(session, places["chain"], operator=PANES, keys=pairs)[0]]

    assert found(("n", "03")) == ["k3"]
    assert len(found(("window.end", "1970-01-01T00:01:10Z"))) == KEYS
    assert found(("window.end", "1970-01-01 00:01:10"), ("n", "4")) == ["k4"]
    assert found(("n", "4"), ("k", "k3")) == []


@pytest.mark.parametrize(
    ("stage", "choice", "says"),
    [
        ("chain", {"operator": 2}, "There is no store 'default' of operator 2; choose --operator 0 --store default"),
        ("chain", {"store": "x"}, "--operator 1 --store default"),
        ("joined", {}, "--operator 0 --store left-keyToNumValues"),
        ("counted", {}, "(transformWithStateInPySparkExec), --variable count or last"),
        ("counted", {"variable": "sum"}, "has no state variable 'sum'"),
        ("once", {"variable": "sum"}, "has no state variable 'sum'"),
        ("chain", {"keys": (("x", "1"),)}, "The key has no column 'x'; it has window.start, window.end, k."),
        ("chain", {"keys": (("window", "1"),)}, "choose window.start, window.end"),
        ("chain", {"operator": 1, "keys": (("n", "many"),)}, "'many' is no int"),
    ],
)
def test_a_wrong_choice_is_refused_with_what_there_is(
    session: SparkSession, places: dict[str, Place], stage: str, choice: dict, says: str
) -> None:
    with pytest.raises(RefusedError) as refused:
        read(session, places[stage], **choice)
    assert says in str(refused.value)


def test_a_limit_says_how_many_more_there_are(session: SparkSession, places: dict[str, Place]) -> None:
    rows, total = read(session, places["once"], limit=3)
    assert (len(rows), total) == (3, KEYS)
    assert rows == read(session, places["once"])[0][:3]
    assert read(session, places["once"], limit=0) == ([], KEYS)


def test_two_states_are_compared_by_key(session: SparkSession, written: Path, places: dict[str, Place]) -> None:
    """The whole checkpoint holds the batches before, and may lie in another number of partitions."""
    now = places["chain"]
    before = now.model_copy(update={"directory": str(written / "chain"), "batch": 3})

    def compared(first: Place, second: Place, **choice: object) -> tuple[dict[str, dict], dict]:
        *found, head = reader.differences(session, first, second, Choice(**choice))
        return {row["row"]["key"]["k"]: row["row"] for row in found}, head

    rows, told = compared(now, now, operator=0)
    assert (rows, told["equal"], told["changed"]) == ({}, KEYS, 0)
    rows, told = compared(before, now, operator=0)
    assert (told["equal"], told["changed"], told["only_first"], told["only_second"]) == (0, KEYS, 0, 0)
    assert {name: row["second"] for name, row in rows.items()} == {
        name: [{"value": {"sum": value}}] for name, value in sums(range((FILES - 1) * ROWS)).items()
    }
    rows, told = compared(before, now, operator=PANES, limit=3)  # other panes are open
    assert (len(rows), told["only_first"], told["only_second"]) == (3, 2 * KEYS, KEYS)
    assert all((row["first"] is None) != (row["second"] is None) for row in rows.values())
    rows, told = compared(before, now, operator=0, keys=(("k", "k3"),))
    assert (list(rows), told["changed"]) == (["k3"], 1)
    rows, _ = compared(places["counted"], places["counted"], variable="count")
    assert rows == {}
    with pytest.raises(RefusedError, match="There is no store 'default' of operator 2"):
        compared(before, now, operator=2)


def test_both_sides_of_a_join_can_be_read(session: SparkSession, places: dict[str, Place]) -> None:
    stores = [store.name for store in reader.stores(session, places["joined"])]
    assert sorted(stores) == [
        f"{side}-{kind}" for side in ("left", "right") for kind in ("keyToNumValues", "keyWithIndexToValue")
    ]
    for store in stores:
        read(session, places["joined"], store=store)


def test_the_command_shows_what_a_job_and_a_snapshot_know(
    job: Job, taken: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(job.settings, tmp_path, monkeypatch)
    before = job.objects()
    shown = CliRunner().invoke(app, ["state", JOB, "chain", "--limit", "2", "--key", "window.end=1970-01-01T00:01:40Z"])
    assert shown.exit_code == 0, shown.output
    assert f"{JOB} chain after batch {taken.stages['chain'].batch}: {KEYS} rows" in shown.output
    assert f"{KEYS - 2} more, --limit shows them" in shown.output
    assert "operator 0 (stateStoreSave), store default" in shown.output
    found = CliRunner().invoke(app, ["state", f"{JOB}/s", "chain", "--key", "k=k3", "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert (told["batch"], told["total"], told["more"]) == (taken.stages["chain"].batch, 1, 0)
    assert told["rows"][0]["value"] == {"sum": sums(range((FILES - 1) * ROWS))["k3"]}
    compared = CliRunner().invoke(app, ["state", f"{JOB}/s", "chain", "--against", JOB])
    assert f"{KEYS} keys are the same, 0 are not, 0 are only in {JOB}/s and 0 only in {JOB}" in compared.output
    assert job.objects() == before, "reading wrote to the bucket"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("sums", "plain"), "sums/plain is stateless"),
        (("sums/s", "plain"), "plain of snapshot sums/s is stateless"),
        (
            ("sums", "nothing"),
            "Deployment 1 of sums has no stage 'nothing'; it has chain, joined, once, plain, counted.",
        ),
        (("sums/s", "nothing"), "Snapshot sums/s has no stage 'nothing'"),
        (("sums/t", "chain"), "Job sums has no snapshot t"),
        (("nobody", "chain"), "There is no job 'nobody'"),
        (("sums", "chain", "--key", "k"), "--key 'k' is not of the form NAME=VALUE"),
    ],
)
def test_what_cannot_be_shown_is_said_without_starting_spark(
    job: Job, taken: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], says: str
) -> None:
    install(job.settings, tmp_path, monkeypatch)
    monkeypatch.setattr(state, "_ask", lambda query: pytest.fail("Spark was started"))
    ended = CliRunner().invoke(app, ["state", *words])
    assert ended.exit_code == 1
    assert says in ended.output


def test_private_copies_are_gone_afterwards() -> None:
    with state.private_directory() as directory:
        assert directory.stat().st_mode & 0o077 == 0
        (directory / "x").mkdir()
    assert not directory.exists()


def test_every_stage_of_a_snapshot_is_counted_and_the_catalogue_says_so(
    job: Job, taken: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    assert verification.verify_due(job.store, [JOB], records.now(), say=said.append, with_state=True) == []
    checks = marks.checks(job.store, JOB, "s", taken.attempt)
    assert set(checks.checks) == {"read back", "state"}
    assert checks.problem() == ""
    check = checks.checks["state"]
    assert f"once {KEYS} rows" in check.details
    assert f"counted {2 * KEYS} rows" in check.details  # both variables
    partitions = [line for line in said if "s: once, operator 0 (dedupeWithinWatermark), store default" in line]
    assert len(partitions) == PARTITIONS
    again: list[str] = []
    verification.verify_due(job.store, [JOB], records.now(), say=again.append, with_state=True)
    assert again == []
    install(job.settings, tmp_path, monkeypatch)
    listed, one = (
        CliRunner().invoke(app, ["snapshots", *words]).output for words in (["list", JOB], ["show", f"{JOB}/s"])
    )
    assert f"{check.when.isoformat()[:16]} state" in listed
    assert "state: chain" in one
    assert "read back: good" in one


def test_state_that_was_wrong_when_it_was_copied_is_found_by_reading_it_only(
    job: Job, written: Path, object_store_server: Settings
) -> None:
    """A changelog that a disk altered before the snapshot: every hash of the manifest fits."""
    damaged = Job(object_server.fresh_bucket(object_store_server), written)
    prefix = keys.stage(JOB, 1, 1, "once")
    tail = checkpoints.tail(damaged.store, prefix)
    last = f"/{tail.batch + 1}_"
    victim = next(info.key for info in tail.objects if last in info.key and info.key.endswith(".changelog"))
    body = damaged.store.get(victim).body
    damaged.store.put(victim, body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 4]) + body[len(body) // 2 + 1 :])
    manifest = damaged.take("bad")
    verification.verify(damaged.store, JOB, "bad")
    with pytest.raises(SnapshotRefusedError, match="the state of stage once cannot be read"):
        verification.verify_state(damaged.store, JOB, "bad")
    verification.verify(damaged.store, JOB, "bad")
    checks = marks.checks(damaged.store, JOB, "bad", manifest.attempt)
    assert "stage once cannot be read" in checks.problem()
    assert "chain" in checks.checks["state"].details  # the others were counted all the same


def test_an_altered_object_is_refused_before_spark_sees_it(
    job: Job, written: Path, object_store_server: Settings, tmp_path: Path
) -> None:
    altered = Job(object_server.fresh_bucket(object_store_server), written)
    manifest = altered.take("s")
    item = next(item for item in manifest.objects if item.stage == "once" and item.path.endswith(".changelog"))
    latest = altered.store.get(item.key).body
    altered.store.put(item.key, latest[:-1] + b"?")
    # The version that the manifest names is still there and good.
    assert state.bring_snapshot(altered.store, manifest, "once", tmp_path / "a").batch == manifest.stages["once"].batch
    root = ObjectStore(object_server.as_root(altered.settings))  # no one else but retention may
    root.delete_versions([version for version in root.versions(item.key) if not version.latest])
    with pytest.raises(SnapshotRefusedError, match=item.key):
        state.bring_snapshot(altered.store, manifest, "once", tmp_path / "b")
    with pytest.raises(SnapshotRefusedError, match=item.key):
        verification.verify_state(altered.store, JOB, "s")
    assert item.key in marks.checks(altered.store, JOB, "s", manifest.attempt).checks["state"].problem


def test_a_local_spark_that_does_not_work_says_nothing_about_a_snapshot(
    bucket: Settings, written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = Job(bucket, written)
    manifest = fresh.take("s")
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")
    with pytest.raises(UnhealthyError, match="Local Spark could not read the state"):
        verification.verify_state(fresh.store, JOB, "s")
    assert marks.checks(fresh.store, JOB, "s", manifest.attempt).last() is None


def test_a_stage_without_a_commit_has_nothing_to_read(job: Job, taken: Manifest, tmp_path: Path) -> None:
    empty = taken.model_copy(update={"stages": {"new": taken.stages["chain"].model_copy(update={"batch": -1})}})
    with pytest.raises(CheckpointError, match="no committed batch"):
        state.bring_snapshot(job.store, empty, "new", tmp_path / "x")


def install(settings: Settings, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this the installation that commands talk to."""
    plain = settings.model_dump() | {
        "s3_secret_key": settings.s3_secret_key.get_secret_value(), "influx_token": "none",
        "snapshot_keys": settings.snapshot_keys.get_secret_value(),
    }  # fmt: skip
    env = directory / "stack.env"
    env.write_text("".join(f"{name.upper()}={value}\n" for name, value in plain.items() if isinstance(value, str)))
    monkeypatch.setenv("STREAMOPS_ENV_FILE", str(env))


def test_a_running_query_is_read_while_it_goes_on(bucket: Settings, tmp_path: Path) -> None:
    store = ObjectStore(bucket)
    epoch = keys.epoch(JOB, 1, 1)
    command = [
        sys.executable,
        spark_queries.__file__,
        f"s3a://{bucket.s3_bucket}/{epoch}".rstrip("/"),
        str(tmp_path / "out"),
        "9999",
    ]
    as_job = object_server.as_job(bucket)
    access = {
        "SPARK_HOME": str(builds.spark_home()),
        "ENDPOINT": as_job.s3_endpoint,
        "AWS_ACCESS_KEY_ID": as_job.s3_access_key,
        "AWS_SECRET_ACCESS_KEY": as_job.s3_secret_key.get_secret_value(),
    }
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment() | access, stdout=log, stderr=subprocess.STDOUT)
    try:
        checkpoints.mark_ready(store, keys.epoch_ready(JOB, 1, 1), {}, "nothing")
        deadline = time.monotonic() + 400
        while (head := checkpoints.position(store, keys.stage(JOB, 1, 1, "tumble"))) is None or head.batch < 8:
            assert process.poll() is None, (tmp_path / "log").read_text()[-4000:]
            assert time.monotonic() < deadline, "no 8 batches in 400 s"
            time.sleep(0.2)
        place = state.bring_live(store, JOB, 1, "tumble", tmp_path / "copy")
        found = state.rows(place, Choice(limit=100))
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
    assert place.batch >= 8
    assert found.rows
    rows = spark_queries.ROWS
    for row in found.rows:
        end = row["key"]["window"]["end"]
        assert row["value"]["count"] % rows == 0, end
        first = row["value"]["sum"] * 2 // row["value"]["count"] - (row["value"]["count"] - 1)
        assert first % (2 * rows) == 0, f"{end} does not begin with a batch"  # values count up from batch to batch
