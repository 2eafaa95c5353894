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
from fakes.spark_queries import expected
from stack import builds
from streamops import checkpoints, keys
from streamops.adapters.object_store import ObjectStore
from streamops.errors import CheckpointError
from streamops.settings import Settings

QUERIES = ("tumble", "chain")
LAST = 24  # the batch in which the first run dies
SCRIPT = Path(__file__).parent / "fakes" / "spark_queries.py"


def start(settings: Settings, prefix: str, out: Path, last: int) -> subprocess.Popen:
    """Run both queries until they kill themselves in batch ``last``."""
    driver = object_server.as_job(settings)
    environment = os.environ | {
        "SPARK_HOME": str(builds.spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "ENDPOINT": settings.s3_endpoint,
        "AWS_ACCESS_KEY_ID": driver.s3_access_key,
        "AWS_SECRET_ACCESS_KEY": driver.s3_secret_key.get_secret_value(),
    }
    command = [sys.executable, str(SCRIPT), f"s3a://{settings.s3_bucket}/checkpoints/{prefix}", str(out), str(last)]
    with (out.parent / f"{out.name}.log").open("w") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen, out: Path) -> None:
    try:
        code = process.wait(400)
    finally:
        process.kill()
    assert code == -signal.SIGKILL, (out.parent / f"{out.name}.log").read_text()[-4000:]


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


def copy_live(store: ObjectStore, process: subprocess.Popen, directory: Path) -> dict[str, checkpoints.Tail]:
    """A copy of both checkpoints while their queries write."""
    live: dict[str, checkpoints.Tail] = {}
    deadline = time.monotonic() + 400
    while len(live) < 2:
        assert process.poll() is None, (directory / "first.log").read_text()[-4000:]
        assert time.monotonic() < deadline, "no 14 batches in 400 s"
        for query in set(QUERIES) - set(live):
            head = checkpoints.position(store, f"checkpoints/first/{query}/")
            if head is not None and head.batch >= 14:
                copied = checkpoints.copy_last(store, f"checkpoints/first/{query}/", f"checkpoints/live/{query}/")
                assert copied is not None
                live[query] = copied[0]
        time.sleep(0.1)
    return live


@pytest.mark.more
def test_real_queries_continue_exactly_from_a_crash_and_from_a_live_copy(bucket: Settings, tmp_path: Path) -> None:
    store = ObjectStore(bucket)
    process = start(bucket, "first", tmp_path / "first", LAST)
    try:
        live = copy_live(store, process, tmp_path)
    except BaseException:
        process.kill()
        raise
    finish(process, tmp_path / "first")
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
    for name in ("second", "live"):
        out = tmp_path / f"out-{name}"
        for query in QUERIES:
            (out / query).mkdir(parents=True)
            batch = LAST - 1 if name == "second" else live[query].batch
            for path in (tmp_path / "first" / query).glob("*.json"):
                if int(path.stem) <= batch:
                    shutil.copy(path, out / query)
        finish(start(bucket, name, out, LAST + 6), out)
        assert_exact(out, "tumble", 7)
        assert_exact(out, "chain", 5)


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
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr("metadata", "v1\n{}")
    made.store.put(f"{made.prefix}state/0/0/2_{whole}.zip", body.getvalue())
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
