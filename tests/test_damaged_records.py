"""A record that cannot be read: one sentence that names it, and everybody else's work continues."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fakes import object_server
from fakes.rig import JOB, Rig, write_env
from streamops.cli import app
from streamops.model import records
from streamops.model.definitions import Snapshots
from streamops.model.errors import DamagedError
from streamops.model.records import Deployment, JobRecord
from streamops.store import documents, jobs, keys
from streamops.upkeep import scheduled
from streamops.versions import artifacts


@pytest.fixture
def shelved(rig: Rig) -> Rig:
    """Two jobs that should run by their records; that of ``other`` is damaged."""
    published = artifacts.load_manifest(rig.store, JOB, "v1")
    hourly = published.definition.model_copy(update={"snapshots": Snapshots(every="1 hour")})
    documents.write(rig.store, keys.artifact_manifest(JOB, "v1"), published.model_copy(update={"definition": hourly}))
    deployment = Deployment(
        job=JOB, number=1, version="v1", artifact_sha256="a", runtime_sha256="r", created_by="test",
        created=records.now() - timedelta(days=1),
    )  # fmt: skip
    documents.write(rig.store, keys.deployment(JOB, 1), deployment)
    documents.write(rig.store, keys.record(JOB), JobRecord(job=JOB, desired="running", version="v1", deployment=1))
    rig.store.put(keys.record("other"), b'{"job": "other", "deployment": "on')
    return rig


@pytest.mark.parametrize(
    ("body", "what"), [(b"", "EOF"), (b"\x00\xff", "expected value"), (b'{"job": 7}', "job: Input"), (b"[]", "object")]
)
def test_the_error_names_the_object_and_the_fault(rig: Rig, body: bytes, what: str) -> None:
    rig.store.put(keys.record("other"), body)
    with pytest.raises(DamagedError, match="earlier version") as error:
        jobs.record(rig.store, "other")
    assert f"jobs/other/record.json in bucket {rig.store.bucket} cannot be read (" in str(error.value)
    assert what in str(error.value)
    assert "\n" not in str(error.value)


def test_the_last_good_version_can_be_put_back(rig: Rig) -> None:
    good = JobRecord(job="other", deployment=3)
    documents.write(rig.store, keys.record("other"), good)
    rig.store.put(keys.record("other"), b"{")
    earlier = sorted(rig.store.versions(keys.record("other")), key=lambda item: item.modified)[0]
    rig.store.put(keys.record("other"), rig.store.get(keys.record("other"), earlier.version_id).body)
    assert jobs.record(rig.store, "other") == good


def test_the_list_of_jobs_shows_the_others_and_fails(
    shelved: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_env(tmp_path / "root.env", object_server.as_root(shelved.settings))
    monkeypatch.setenv("STREAMOPS_ENV_FILE", str(tmp_path / "root.env"))
    ended = CliRunner().invoke(app, ["jobs", "--json"])
    assert ended.exit_code == 1
    assert [item["job"] for item in json.loads(ended.stdout)] == [JOB]
    assert "jobs/other/record.json" in ended.stderr
    assert "Traceback" not in ended.output
    shown = CliRunner().invoke(app, ["jobs"])
    assert (shown.exit_code, JOB in shown.stdout) == (1, True)


def test_the_snapshots_of_other_jobs_stay_due(shelved: Rig) -> None:
    said: list[str] = []
    assert list(scheduled.due_now(shelved.store, records.now(), said.append)) == [JOB]
    (due,) = scheduled.look(shelved.store, records.now()).findings
    assert (due.scope, due.what.startswith("scheduled-"), due.mends) == (JOB, True, True)
    assert len(said) == 1
    assert said[0].startswith("other cannot be told to be due: jobs/other/record.json")
