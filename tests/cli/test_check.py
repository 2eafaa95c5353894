"""``check``: what it says and how it ends, of directories without any server, and against what a job runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from fakes.rig import write_env
from fresh_job import publish_quickly
from streamops.cli import app
from streamops.model import records
from streamops.model.definitions import load
from streamops.model.records import Deployment, JobRecord
from streamops.settings import Settings
from streamops.store import documents, keys
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts
from streamops_runtime.validate import fingerprints

JOB = "trade-analyser"
EXAMPLE = Path(__file__).resolve().parents[2] / "spark_jobs" / "trade_analyser"
Check = Callable[..., Result]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: None) -> Check:
    """Run the command in an installation that does not exist: whatever asks a server fails."""
    monkeypatch.setenv("STREAMOPS_ENV_FILE", str(tmp_path / "cli.env"))
    return lambda *words: CliRunner().invoke(app, ["check", *map(str, words)])


@pytest.fixture
def store(bucket: Settings, spark: SparkSession, tmp_path: Path, check: Check) -> ObjectStore:
    """Where all versions are published and v2 runs; ``check`` finds it."""
    write_env(tmp_path / "cli.env", bucket)
    store = ObjectStore(bucket)
    for version in ("v1", "v2", "v3"):
        publish_quickly(store, EXAMPLE, version, plan=fingerprints(spark, load(EXAMPLE / f"{version}.yaml"), EXAMPLE))
    made = artifacts.load_manifest(store, JOB, "v2")
    deployment = Deployment(
        job=JOB, number=1, version="v2", artifact_sha256=made.artifact_sha256, runtime_sha256=made.runtime_sha256,
        created=records.now(), created_by="test", stages={},
    )  # fmt: skip
    documents.write(store, keys.deployment(JOB, 1), deployment)
    documents.write(store, keys.record(JOB), JobRecord(job=JOB, desired="running", version="v2", deployment=1))
    return store


def outcomes(told: dict) -> dict[str, str]:
    return {item["stage"]: item["outcome"] for item in told["verdicts"]}


ADDED = {"avg_1s": "kept", "avg_1m": "starts empty", "vol_1s": "starts empty"}
REMOVED = {"avg_1s": "kept", "avg_1m": "dropped", "vol_1s": "dropped"}
ACCEPTED = ("--accept-loss", "avg_1m", "--accept-loss", "vol_1s")


@pytest.mark.full
def test_two_versions_of_a_directory_are_compared_without_any_server(check: Check) -> None:
    ended = check(EXAMPLE, "v2", "--against", EXAMPLE / "v1.yaml", "--json")
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.output)
    assert (told["from"], told["to"], told["accepted"]) == (f"{JOB} v1", f"{JOB} v2", True)
    assert outcomes(told) == ADDED


@pytest.mark.full
def test_a_directory_is_refused_against_what_runs_unless_each_loss_is_accepted(
    check: Check, store: ObjectStore
) -> None:
    ended = check(EXAMPLE, "v1", "--against", JOB)
    assert ended.exit_code == 1
    for stage, outcome in REMOVED.items():
        (row,) = (line for line in ended.output.splitlines() if line.startswith(f"{stage} "))
        assert row.split(maxsplit=1)[1].startswith(f"{outcome} ")
    assert "An upgrade would be refused unless you accept the loss of state: " + " ".join(ACCEPTED) in ended.output


@pytest.mark.full
def test_a_directory_has_the_verdicts_that_it_has_once_it_is_published_also_without_any_server(
    check: Check, store: ObjectStore, tmp_path: Path
) -> None:
    published = json.loads(check(JOB, "v3", "--json").output)
    assert published["accepted"]
    assert "refilled" in outcomes(published).values()
    kept = tmp_path / "kept" / "v2.json"  # as a repository keeps what is published, for where there is no cluster
    kept.parent.mkdir()
    kept.write_bytes(store.get(keys.artifact_manifest(JOB, "v2")).body)
    (tmp_path / "cli.env").unlink()
    ended = check(EXAMPLE, "v3", "--against", kept, "--json")
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.output) == published


@pytest.mark.full
def test_what_is_published_is_compared_with_what_runs(check: Check, store: ObjectStore) -> None:
    refused = check(JOB, "v1", "--json")
    told = json.loads(refused.output)
    assert (refused.exit_code, told["accepted"], outcomes(told)) == (1, False, REMOVED)
    accepted = check(JOB, "v1", *ACCEPTED, "--json")
    assert (accepted.exit_code, json.loads(accepted.output)["accepted"]) == (0, True)

    published = artifacts.load_manifest(store, JOB, "v2")
    altered = json.loads(json.dumps(published.fingerprints))
    altered["avg_1s"]["provider"] = "HDFSBackedStateStoreProvider"
    body = json.loads(published.model_dump_json()) | {"version": "v9", "fingerprints": altered}
    store.put(keys.artifact_manifest(JOB, "v9"), json.dumps(body).encode())
    ended = check(JOB, "v9", "--accept-loss", "avg_1s")
    assert ended.exit_code == 1
    assert "An upgrade would be refused: avg_1s cannot continue its state." in ended.output
