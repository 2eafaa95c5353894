"""Which identity of the object store a task uses: from the connections that the stack writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack import configure, private
from stack.layout import Layout
from streamops.operations.ports import Submitter
from streamops_airflow.hooks.streamops import RETENTION, StreamOpsHook
from streamops_airflow.operators.catalogue import RetentionOperator, VerifyOperator


@pytest.fixture
def pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The private file's pairs; Airflow has the connections that belong to them."""
    layout = Layout(tmp_path, 0)
    found = private.prepare_env(layout, tmp_path / "spark")
    configure.write_all(layout, found)
    for name, connection in json.loads((layout.airflow / "connections.json").read_text()).items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    return found


def test_only_what_asks_for_it_gets_retentions_identity(pairs: dict[str, str]) -> None:
    hook = StreamOpsHook()
    assert hook.store.identity == hook.settings.s3_access_key == pairs["S3_ACCESS_KEY"]
    assert pairs["S3_RETENTION_ACCESS_KEY"] not in hook.settings.model_dump_json()
    assert hook.retention.identity == pairs["S3_RETENTION_ACCESS_KEY"]
    assert (hook.retention.bucket, hook.retention.keyring) == (hook.store.bucket, hook.store.keyring)
    ports = hook.engine(say=print, finished=lambda owner: None, submit=lambda submission: "").ports
    assert (ports.store, ports.retention()) == (hook.store, hook.retention)


def test_a_task_can_ask_of_the_cluster_whatever_a_step_or_reconciliation_may_ask(pairs: dict[str, str]) -> None:
    submitter = (
        StreamOpsHook().engine(say=print, finished=lambda owner: None, submit=lambda what: "driver-1").ports.submitter
    )
    questions = [name for name in vars(Submitter) if not name.startswith("_")]
    assert "end_driver" in questions
    assert [name for name in questions if not callable(getattr(submitter, name, None))] == []
    assert submitter.submit(None) == "driver-1"  # through the task's own hook


def test_a_retention_run_that_only_tells_has_no_need_of_it(pairs: dict[str, str]) -> None:
    operator = RetentionOperator(task_id="r")
    found = [operator.store({"params": {"apply": apply}}).identity for apply in (True, False)]
    assert found == [pairs["S3_RETENTION_ACCESS_KEY"], pairs["S3_ACCESS_KEY"]]
    assert VerifyOperator(task_id="v").store({"params": {}}).identity == pairs["S3_ACCESS_KEY"]


def test_without_that_connection_everything_uses_the_one_identity(
    pairs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"AIRFLOW_CONN_{RETENTION.upper()}")
    hook = StreamOpsHook()
    assert hook.retention is hook.store
