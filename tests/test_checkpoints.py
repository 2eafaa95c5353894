"""What of a checkpoint continues a stage: shown on real Spark, then file by file."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from fakes import object_server
from fakes.spark_queries import STEP_MS, expected
from stack import builds
from streamops.model.errors import CheckpointError
from streamops.settings import Settings
from streamops.spark import checkpoints
from streamops.store import keys
from streamops.store.object_store import ObjectStore

QUERIES = ("tumble", "chain")
LAST = 24  # the batch in which the first run dies
FIRST = 10  # the first batch of which a live copy is made: full versions of the state were uploaded by then
SCRIPT = Path(__file__).parent / "fakes" / "spark_queries.py"


def start(settings: Settings, out: Path, *runs: tuple[str, int]) -> subprocess.Popen:
    """Run both queries below each prefix up to its last batch, and then kill them; each writes to ``out/PREFIX``."""
    driver = object_server.as_job(settings)
    environment = os.environ | {
        "SPARK_HOME": str(builds.spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "ENDPOINT": settings.s3_endpoint,
        "AWS_ACCESS_KEY_ID": driver.s3_access_key,
        "AWS_SECRET_ACCESS_KEY": driver.s3_secret_key.get_secret_value(),
    }
    command = [sys.executable, str(SCRIPT)]
    for prefix, last in runs:
        command += [f"s3a://{settings.s3_bucket}/checkpoints/{prefix}", str(out / prefix), str(last)]
    with (out / "queries.log").open("a") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen, out: Path, seconds: float = 400) -> None:
    try:
        code = process.wait(seconds)
    finally:
        process.kill()
    assert code == -signal.SIGKILL, (out / "queries.log").read_text()[-4000:]


def points(out: Path, query: str) -> dict[int, tuple[int, int]]:
    """What was emitted, by window end; a window that was written twice must be written alike."""
    found: dict[int, tuple[int, int]] = {}
    for path in sorted((out / query).glob("*.json")):
        for end, total, count in json.loads(path.read_text()):
            assert found.setdefault(end, (total, count)) == (total, count), f"window {end} of {query} changed"
    return found


def assert_exact(out: Path, query: str, at_least: int) -> None:
    """Every window is there and is what plain Python says."""
    found = points(out, query)
    assert len(found) >= at_least
    assert sorted(found) == list(range(1, len(found) + 1))
    assert found == {end: expected(query, end) for end in found}


def written(out: Path, new: str, batches: dict[str, int]) -> None:
    """What the first run had written up to the batch from which another continues."""
    for query, batch in batches.items():
        (out / new / query).mkdir(parents=True)
        for path in (out / "first" / query).glob("*.json"):
            if int(path.stem) <= batch:
                shutil.copy(path, out / new / query)


def copies_of(store: ObjectStore, process: subprocess.Popen, out: Path, count: int) -> list[dict[str, int]]:
    """This many copies of both checkpoints while their queries write, each of later batches: the batches."""
    found: list[dict[str, int]] = []
    newest = dict.fromkeys(QUERIES, FIRST - 1)
    deadline = time.monotonic() + 400 + 10 * count
    while len(found) < count:
        assert process.poll() is None, (out / "queries.log").read_text()[-4000:]
        assert time.monotonic() < deadline, f"{len(found)} copies only; the queries are at {newest}"
        heads = {query: checkpoints.position(store, f"checkpoints/first/{query}/") for query in QUERIES}
        if not all(head and head.batch > newest[query] for query, head in heads.items()):
            time.sleep(0.1)
            continue
        for query in QUERIES:
            copied = checkpoints.copy_last(
                store, f"checkpoints/first/{query}/", f"checkpoints/live{len(found)}/{query}/"
            )
            assert copied is not None
            newest[query] = copied[0].batch
        found.append(dict(newest))
    return found


@pytest.mark.full
def test_real_queries_continue_exactly_from_a_crash(bucket: Settings, tmp_path: Path) -> None:
    store = ObjectStore(bucket)
    finish(start(bucket, tmp_path, ("first", LAST)), tmp_path)
    for query in QUERIES:
        found, copies = checkpoints.copy_last(
            store, f"checkpoints/first/{query}/", f"checkpoints/second/{query}/"
        ) or pytest.fail("no commit")
        assert found.batch == LAST - 1
        paths = {item.path for item in copies}
        assert {path for path in paths if path.startswith("offsets/")} == {f"offsets/{LAST - 2}", f"offsets/{LAST - 1}"}
        assert any(path.endswith(".zip") for path in paths), "no full version was uploaded, so the test shows little"
        assert any("/SSTs/" in path for path in paths)
        assert len(paths) < sum(1 for _ in store.list(f"checkpoints/first/{query}/")), "the tail is the whole directory"
        assert found.size == sum(item.size for item in copies)
    written(tmp_path, "second", dict.fromkeys(QUERIES, LAST - 1))
    finish(start(bucket, tmp_path, ("second", LAST + 6)), tmp_path)
    assert_exact(tmp_path / "second", "tumble", 7)
    assert_exact(tmp_path / "second", "chain", 5)


@pytest.mark.long
@pytest.mark.timeout(3600)  # with all copies
def test_every_copy_of_state_that_changes_with_each_batch_continues_exactly(
    bucket: Settings, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    count = 50 if request.config.getoption("--seeds") > 1 else 3
    process = start(bucket, tmp_path, ("first", FIRST + 20 * count))
    try:
        copies = copies_of(ObjectStore(bucket), process, tmp_path, count)
    finally:
        process.kill()
        process.wait()
    runs = []
    for number, batches in enumerate(copies):
        written(tmp_path, f"live{number}", batches)
        runs.append((f"live{number}", max(batches.values()) + 8))
    finish(start(bucket, tmp_path, *runs), tmp_path, seconds=400 + 60 * count)
    for name, last in runs:
        seconds = last * STEP_MS // 1000
        assert_exact(tmp_path / name, "tumble", seconds - 2)
        assert_exact(tmp_path / name, "chain", seconds - 6)


class Made:
    """A checkpoint as Spark lays it out, written by hand."""

    def __init__(self, settings: Settings, prefix: str = "checkpoints/ck/") -> None:
        self.store, self.prefix = ObjectStore(object_server.as_job(settings)), prefix
        self.put("metadata", '{"id":"q"}')

    def put(self, path: str, body: str = "x") -> None:
        self.store.put(self.prefix + path, body.encode())

    def batch(self, number: int, identity: str | None = None, files: bool = True) -> str:
        identity = identity or f"00000000-0000-0000-0000-{number:012d}"
        self.offsets(number)
        self.put(f"commits/{number}", "v2\n" + json.dumps({"stateUniqueIds": {"0": [[identity]]}}))
        if files:
            self.put(f"state/0/0/{number + 1}_{identity}.changelog")
        return identity

    def offsets(self, number: int) -> None:
        place = json.dumps({"topic": {"0": 10 * (number + 1)}})
        self.put(f"offsets/{number}", 'v2\n{"batchWatermarkMs":' + str(number) + "}\nclicks:" + place)

    def full(self, number: int, identity: str) -> str:
        """The full version of the state after a batch."""
        body = io.BytesIO()
        with zipfile.ZipFile(body, "w") as archive:
            archive.writestr("metadata", "v1\n{}")
        path = f"state/0/0/{number + 1}_{identity}.zip"
        self.store.put(self.prefix + path, body.getvalue())
        return path

    def paths(self) -> set[str]:
        tail = checkpoints.tail(self.store, self.prefix)
        return {tail.path(info) for info in tail.objects}


def test_what_was_planned_and_not_committed_is_no_part_of_a_tail(bucket: Settings) -> None:
    made = Made(bucket)
    for number in range(3):
        made.batch(number)
    made.offsets(3)
    made.put("state/0/0/4_00000000-0000-0000-0000-000000000009.changelog")
    tail = checkpoints.tail(made.store, made.prefix)
    assert (tail.batch, tail.offsets, tail.watermark_ms) == (2, {"clicks": {"0": 30}}, 2)
    assert not {"offsets/3", "state/0/0/4_00000000-0000-0000-0000-000000000009.changelog"} & made.paths()
    checkpoints.drop_planned(made.store, made.prefix)
    assert [info.key for info in made.store.list(f"{made.prefix}offsets/")] == [
        f"{made.prefix}offsets/{n}" for n in range(3)
    ]


def test_of_two_files_of_one_version_the_committed_one_counts(bucket: Settings) -> None:
    made = Made(bucket)
    made.batch(0)
    kept = made.batch(1)
    made.put("state/0/0/2_99999999-0000-0000-0000-000000000000.changelog")
    made.put("state/0/0/2_99999999-0000-0000-0000-000000000000.zip")
    assert {path for path in made.paths() if "/2_" in path} == {f"state/0/0/2_{kept}.changelog"}


def test_batches_before_the_last_full_version_are_not_read(bucket: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running query removes them, so each reading would be one more chance to meet a file that has just gone."""
    made = Made(bucket)
    for number in range(9):
        identity = made.batch(number)
        if number == 6:
            full = made.full(number, identity)
    read: set[str] = set()
    get = made.store.get
    monkeypatch.setattr(made.store, "get", lambda key: [read.add(key.removeprefix(made.prefix)), get(key)][1])
    assert {path for path in made.paths() if path.startswith("state/")} == {
        full,
        *(f"state/0/0/{number + 1}_00000000-0000-0000-0000-{number:012d}.changelog" for number in (6, 7, 8)),
    }
    assert {path for path in read if path.startswith("commits/")} == {"commits/6", "commits/7", "commits/8"}


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        ("metadata", "no metadata"),
        ("state/0/0/1_00000000-0000-0000-0000-000000000000.changelog", "no state of version 1"),
        ("state/0/0/2_00000000-0000-0000-0000-000000000001.changelog", "no state of version 2"),
        ("offsets/0", "offsets/0 is missing"),
    ],
)
def test_a_hole_in_a_checkpoint_is_an_error_and_never_copied(bucket: Settings, missing: str, says: str) -> None:
    made = Made(bucket)
    made.batch(0)
    made.batch(1)
    made.store.delete([made.prefix + missing])
    with pytest.raises(CheckpointError, match=says):
        made.paths()


def test_state_that_lost_its_directory_is_an_error(bucket: Settings) -> None:
    made = Made(bucket)
    made.batch(0, files=False)
    with pytest.raises(CheckpointError, match="no state files"):
        made.paths()


def test_a_checkpoint_without_a_commit_has_no_tail(bucket: Settings) -> None:
    made = Made(bucket)
    made.offsets(0)
    assert checkpoints.find_tail(made.store, made.prefix) is None
    with pytest.raises(CheckpointError, match="no committed batch"):
        checkpoints.tail(made.store, made.prefix)


def test_an_epoch_counts_from_its_ready_mark_on_and_continues_the_one_below(bucket: Settings) -> None:
    store = ObjectStore(object_server.as_job(bucket))
    assert checkpoints.prepare_epoch(store, "j", 1, 1, ["s"]) == {}
    made = Made(bucket, keys.stage("j", 1, 1, "s"))
    made.batch(0)
    half = Made(bucket, keys.stage("j", 1, 2, "s"))  # an epoch whose holder died while it copied
    half.batch(7)
    assert checkpoints.current_epoch(store, "j", 1) == 1
    assert checkpoints.prepare_epoch(store, "j", 1, 3, ["s", "new"]) == {"s": 0}
    assert checkpoints.current_epoch_prefix(store, "j", 1) == keys.epoch("j", 1, 3)
    made.batch(1)  # the old holder writes on: too late
    assert checkpoints.prepare_epoch(store, "j", 1, 3, ["s", "new"]) == {"s": 0}
    assert checkpoints.tail(store, keys.stage("j", 1, 3, "s")).batch == 0


def repartitioned(made: Made) -> list[str]:
    """Two partitions brought into one by a batch of its own: a full version, and the second partition left over."""
    first, second, whole = (f"{number}0000000-0000-0000-0000-000000000000" for number in range(1, 4))
    made.offsets(0)
    made.put("commits/0", "v2\n" + json.dumps({"stateUniqueIds": {"0": [[first], [second]]}}))
    made.put(f"state/0/0/1_{first}.changelog")
    made.put(f"state/0/1/1_{second}.changelog")
    made.offsets(1)
    made.put("commits/1", "v2\n" + json.dumps({"stateUniqueIds": {"0": [[whole]]}}))
    made.full(1, whole)
    return [first, second, whole]


def test_the_number_of_state_partitions_is_read_from_the_last_commit(bucket: Settings) -> None:
    made = Made(bucket)
    assert checkpoints.state_partitions(made.store, made.prefix) is None
    repartitioned(made)
    assert checkpoints.state_partitions(made.store, made.prefix) == 1
    stateless = Made(bucket, "checkpoints/stateless/")
    stateless.offsets(0)
    stateless.put("commits/0", "v2\n{}")
    assert checkpoints.state_partitions(stateless.store, stateless.prefix) is None


def test_partitions_left_over_from_before_a_repartition_are_no_part_of_a_tail(bucket: Settings) -> None:
    made = Made(bucket)
    whole = repartitioned(made)[2]
    assert {path for path in made.paths() if path.startswith("state/")} == {f"state/0/0/2_{whole}.zip"}


def test_the_number_of_partitions_is_noted_in_the_last_committed_batch_only(bucket: Settings) -> None:
    made = Made(bucket)
    repartitioned(made)
    before = made.store.get(f"{made.prefix}offsets/0").body
    checkpoints.note_partitions(made.store, made.prefix, 1)
    text = made.store.get(f"{made.prefix}offsets/1").body.decode()
    assert json.loads(text.split("\n")[1])["conf"] == {"spark.sql.shuffle.partitions": "1"}
    assert checkpoints.parse_offsets(text) == ({"clicks": {"0": 20}}, 1)
    assert made.store.get(f"{made.prefix}offsets/0").body == before


def test_a_source_goes_on_at_the_beginning_of_another_topic_and_its_own_stays_as_it_is(bucket: Settings) -> None:
    made = Made(bucket)
    assert checkpoints.drop_planned(made.store, made.prefix) == -1
    checkpoints.read_from(made.store, made.prefix, -1, {"clicks": "topic"})  # nothing is committed yet
    made.batch(0)
    assert checkpoints.drop_planned(made.store, made.prefix) == 0
    key = f"{made.prefix}offsets/0"
    before = made.store.get(key).body.decode()
    checkpoints.read_from(made.store, made.prefix, 0, {"clicks": "topic", "unknown": "other"})
    assert made.store.get(key).body.decode() == before
    checkpoints.read_from(made.store, made.prefix, 0, {"clicks": "feed.2"})
    after = made.store.get(key).body.decode()
    assert after.split("\n")[:2] == before.split("\n")[:2]
    assert 'clicks:{"feed.2":{"0":0}}' in after.split("\n")
    made.store.put(key, after.replace('{"feed.2":{"0":0}}', '{"feed.1":{"0":9},"feed.2":{"0":4}}').encode())
    checkpoints.read_from(made.store, made.prefix, 0, {"clicks": "feed.2"})
    assert 'clicks:{"feed.2":{"0":4}}' in made.store.get(key).body.decode()


def test_before_any_event_there_is_no_watermark() -> None:
    """Spark says 0, which as a time lies before everything that Kafka knows."""
    assert checkpoints.parse_offsets('v2\n{"batchWatermarkMs":0}\nclicks:{"clicks":{"0":7}}') == (
        {"clicks": {"0": 7}},
        None,
    )
