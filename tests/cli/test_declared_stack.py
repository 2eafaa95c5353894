"""Declared jobs and snapshots on the real servers: apply, apply again, a stale file, delete (rows C1 to C3, C6)."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import yaml

from streamops.adapters.kafka import Ledger
from streamops.settings import REPOSITORY, Settings

COMMAND = Path(sys.executable).with_name("streamops")


def streamops(*words: str, code: int = 0) -> str:
    ended = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=500, check=False)
    assert ended.returncode == code, (words, ended.stdout[-2000:], ended.stderr[-2000:])
    return ended.stdout + ended.stderr


@pytest.mark.stack
@pytest.mark.full
@pytest.mark.timeout(1200)
def test_a_file_is_applied_once_and_a_stale_one_is_refused(stack: Settings, tmp_path: Path) -> None:
    name = f"tx-{uuid.uuid4().hex[:8]}"
    ledger = Ledger(stack)
    ledger.ensure_topic(name)
    ledger.close()
    source = REPOSITORY / "spark_jobs" / "transactions"
    (tmp_path / "transactions.py").write_text((source / "transactions.py").read_text())
    for version in ("v1", "v2"):
        text = (source / f"{version}.yaml").read_text().replace("job: transactions", f"job: {name}")
        (tmp_path / f"{version}.yaml").write_text(text.replace("topic: transactions", f"topic: {name}"))

    def file(**fields: object) -> str:
        path = tmp_path.parent / f"{uuid.uuid4().hex}.yaml"
        path.write_text(yaml.safe_dump(fields))
        return str(path)

    first = file(kind="job", name=name, version="v1", code=str(tmp_path))
    assert "deploy_job" in streamops("diff", first, code=2)
    streamops("apply", first)
    assert f"unchanged: {name} runs v1" in streamops("apply", first)
    assert "unchanged" in streamops("diff", first)

    kept = file(kind="snapshot", name="kept", job=name, cancel=True)
    streamops("apply", kept)
    assert "exists, as declared" in streamops("apply", kept)
    (shown,) = [item for item in json.loads(streamops("jobs", "--json")) if item["job"] == name]
    assert shown["state"] == "stopped-with-snapshot"

    without = file(kind="job", name=name, version="v2", code=str(tmp_path))
    assert "would process everything again" in streamops("apply", without, code=1)
    streamops("apply", file(kind="job", name=name, version="v2", code=str(tmp_path), initial_snapshot="kept"))
    assert "The file is stale" in streamops("apply", first, code=1)

    removed = streamops("delete", name, "--yes")
    assert "snapshots: kept" in removed
    assert "versions: v1, v2" in removed
    assert name not in streamops("jobs")
