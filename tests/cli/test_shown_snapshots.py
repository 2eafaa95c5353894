"""What the commands tell of a snapshot beside its name."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fakes.rig import write_env
from fakes.shelf import JOB, Shelf
from streamops.cli import app
from streamops.model import records
from streamops.settings import Settings


def test_the_time_of_a_snapshot_is_when_it_was_made(
    bucket: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*words: str) -> list[dict] | dict[str, list[dict]]:
        ended = CliRunner().invoke(app, [*words, "--json"])
        assert ended.exit_code == 0, ended.output
        return json.loads(ended.output)

    write_env(tmp_path / "cli.env", bucket, every_secret=True)
    monkeypatch.setenv("STREAMOPS_ENV_FILE", str(tmp_path / "cli.env"))
    shelf, began = Shelf(bucket), records.now()
    shelf.batches(1)
    made = shelf.take("s")
    assert began <= made.created <= records.now()
    (listed,) = told("snapshots")
    assert (listed["job"], listed["snapshot"]) == (JOB, "s")
    assert datetime.fromisoformat(listed["time"]) == made.created
    (tmp_path / "s.yaml").write_text(f"{{kind: snapshot, name: s, job: {JOB}}}")
    (got,) = told("get", str(tmp_path / "s.yaml"))["snapshot"]
    shown = datetime.fromisoformat(got.pop("created")).replace(tzinfo=UTC)
    assert abs((shown - made.created).total_seconds()) < 0.001  # it is told to the millisecond
    assert got == {"name": "s", "state": "exported", "job": JOB}
