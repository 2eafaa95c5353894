"""What exporting, restoring and verifying large state takes, beside a plain copy of the checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from benchmarks.session import Session
from demos.upgrade import JOB
from stack import lifecycle
from stack.layout import Layout
from streamops import snapshots
from streamops.model.records import Deployment, JobRecord, StageStart, now
from streamops.operations.follow import request
from streamops.settings import Settings, read_pairs
from streamops.snapshots import Origin, verification
from streamops.spark import checkpoints, local_spark
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore

BIG, STAGE = "bench-large-state", "rows"
PARTS, ROWS = 8, 1_000_000  # about 1 GiB of state
GOAL_SECOND = 0.1


def run(session: Session) -> dict[str, Any]:
    """A checkpoint of about 1 GiB, and what each thing done with it takes while no job runs. Seconds, bytes."""
    with quiet(session):
        return _measured(session)


@contextmanager
def quiet(session: Session) -> Iterator[None]:
    """Without the demo's job and its trades; who needs the job next starts it."""
    if session.demo.record().desired == "running":
        session.runbooks.run(request("cancel_job", job=JOB), session.demo.progress())
    lifecycle.generator_stop()
    try:
        yield
    finally:
        lifecycle.generator_start()


def _measured(session: Session) -> dict[str, Any]:
    store = session.demo.store
    root = ObjectStore(_as_root(session.demo.settings))
    _forget(root)
    place = keys.stage(BIG, 1, 1, STAGE)
    deployment = Deployment(
        job=BIG,
        number=1,
        version="v1",
        artifact_sha256="0" * 64,
        runtime_sha256="0" * 64,
        created=now(),
        created_by="bench",
        stages={STAGE: StageStart(since_deployment=1)},
    )
    documents.write(store, keys.deployment(BIG, 1), deployment)
    documents.write(store, keys.record(BIG), JobRecord(job=BIG, desired="stopped", version="v1", deployment=1))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            _fill(session, scratch, place, PARTS, ROWS, first=0)
            checkpoints.mark_ready(store, keys.epoch_ready(BIG, 1, 1), {}, "nothing")
            first, plain = _beside(root, store, deployment, place, "first")
            _fill(session, scratch, place, 1, PARTS * ROWS // 100, first=0)
            second, plain_again = _beside(root, store, deployment, place, "second")
        manifest = snapshots.load(store, BIG, "second")
        target = keys.epoch(BIG, 2, 1)
        restored = _timed(lambda: snapshots.restore(store, manifest, target))
        verified = _timed(lambda: verification.read_back(store, manifest))
    finally:
        _forget(root)
    return {
        "goal_second": GOAL_SECOND,
        "state_bytes": first["size"],
        "objects": first["objects"],
        "first": first,
        "second": second,
        "plain_copy_s": plain,
        "plain_copy_again_s": plain_again,
        "restore_s": restored,
        "verify_s": verified,
        "second_over_first_s": round(second["seconds"] / first["seconds"], 3),
        "second_over_first_bytes": round(second["copied"] / first["copied"], 3),
    }


def _beside(
    root: ObjectStore, store: ObjectStore, deployment: Deployment, place: str, name: str
) -> tuple[dict[str, Any], float]:
    """One export, and right after it a recursive copy of the same checkpoint through a client."""
    origin = Origin(operation="bench", requested_by="bench")

    def export() -> None:
        manifest = snapshots.Export(store, deployment, f"attempt-{name}").run(name, [STAGE], origin, live=False)
        snapshots.commit_manifest(store, manifest)

    seconds = _timed(export)
    manifest = snapshots.load(store, BIG, name)
    plain = _timed(lambda: _through_the_client(store, place, f"checkpoints/{BIG}/copy-{name}/"))
    root.delete([info.key for info in store.list(f"checkpoints/{BIG}/copy-{name}/")])
    copied = sum(item.size for item in manifest.copied())
    told = {"seconds": seconds, "copied": copied, "size": manifest.size, "objects": len(manifest.objects)}
    return told, plain


def _through_the_client(store: ObjectStore, source: str, target: str) -> None:
    """Get and put every object, several at once, as a synchronising client does between two places."""

    def copy(key: str) -> None:
        store.put(f"{target}{key.removeprefix(source)}", store.get(key).body)

    with ThreadPoolExecutor(checkpoints.THREADS) as pool:
        for _ in pool.map(copy, [info.key for info in store.list(source)]):
            pass


def _as_root(settings: Settings) -> Settings:
    """All rights, as Spark's local driver needs them to write a checkpoint and this to remove it again."""
    pairs = read_pairs(Layout.find().env_file)
    root = {"s3_access_key": pairs["MINIO_ROOT_USER"], "s3_secret_key": SecretStr(pairs["MINIO_ROOT_PASSWORD"])}
    return settings.model_copy(update=root)


def _fill(session: Session, scratch: str, place: str, parts: int, rows: int, first: int) -> None:
    settings = _as_root(session.demo.settings)
    environment = local_spark.environment() | {
        "SPARK_HOME": str(settings.spark_home),
        "PYSPARK_PYTHON": sys.executable,
        "S3_ENDPOINT": settings.s3_endpoint,
        "AWS_ACCESS_KEY_ID": settings.s3_access_key,
        "AWS_SECRET_ACCESS_KEY": settings.s3_secret_key.get_secret_value(),
    }
    root = Path(__file__).resolve().parents[1]
    environment["PYTHONPATH"] = os.pathsep.join([str(root), environment["PYTHONPATH"]])
    location = f"s3a://{settings.s3_bucket}/{place.rstrip('/')}"
    numbers = [str(number) for number in (parts, rows, first)]
    command = [sys.executable, "-m", "benchmarks.fill_state", f"{scratch}/input", location, *numbers]
    with (Path(scratch) / "spark.log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        code = process.wait()
        with suppress(ProcessLookupError):  # its JVM has been seen to hang while it closes the state
            os.killpg(process.pid, signal.SIGKILL)
        log.seek(0)
        if code:
            raise SystemExit(f"the large state was not made: {log.read()[-4000:]}")


def _forget(root: ObjectStore) -> None:
    for prefix in (f"checkpoints/{BIG}/", f"snapshots/{BIG}/", f"jobs/{BIG}/"):
        root.delete_versions(list(root.versions(prefix)))


def _timed(act: Callable[[], object]) -> float:
    begun = time.monotonic()
    act()
    return round(time.monotonic() - begun, 2)
