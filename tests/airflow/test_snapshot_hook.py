"""``SnapshotHook`` in a plain task of someone else's DAG."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes import shelf
from fakes.rig import JOB, Rig
from streamops.model.errors import NotFoundError, RefusedError, SnapshotExistsError
from streamops.operations.engine import list_operations
from streamops.settings import Settings
from streamops.snapshots import marks
from streamops.store.object_store import ObjectStore
from streamops.versions import artifacts
from streamops_airflow import assets
from streamops_airflow.hooks import snapshots as hooks
from streamops_airflow.hooks.snapshots import SnapshotHook


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    ti = SimpleNamespace(
        dag_id="pipeline", run_id="run-1", task_id="keep", map_index=-1, get_dagrun_state=lambda *_: ""
    )
    run = SimpleNamespace(dag_id="pipeline", run_id="run-1", triggering_user_name="ada")
    context: dict[str, Any] = {"ti": ti, "dag_run": run, "task": SimpleNamespace(outlets=[])}
    monkeypatch.setattr(hooks, "get_current_context", lambda: context)
    return context


@pytest.fixture
def hook(rig: Rig, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> SnapshotHook:
    """The hook on the rig, whose job runs."""
    monkeypatch.setattr(SnapshotHook, "store", rig.store)
    monkeypatch.setattr(SnapshotHook, "retention", rig.retention)
    monkeypatch.setattr(SnapshotHook, "task_engine", lambda self, context, say, submit: rig.engine())
    rig.run("deploy_job", version="v1")
    return SnapshotHook()


def test_save_is_the_operation_that_the_runbook_is_and_a_second_try_finds_it_done(rig: Rig, hook: SnapshotHook) -> None:
    manifest = hook.save(JOB)
    assert manifest.live
    assert (manifest.requested_by, manifest.dag_run) == ("ada", "pipeline/run-1")
    assert hook.save(JOB) == manifest
    operation = list_operations(rig.store, JOB)[-1]
    assert (operation.request.runbook, operation.state, operation.owner.run_id) == (
        "snapshot_job",
        "succeeded",
        "run-1",
    )
    with pytest.raises(RefusedError, match="no such field"):
        hook.save(JOB, cancle=True)


def test_save_announces_the_snapshot_where_the_task_says_so(
    hook: SnapshotHook, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "announced", lambda *_: False)
    told: list[Any] = []
    context["outlet_events"] = {assets.TAKEN: SimpleNamespace(add=lambda asset, extra: told.append((asset.uri, extra)))}
    hook.save(JOB, "silent")
    context["task"].outlets.append(assets.TAKEN)
    manifest = hook.save(JOB, "S1")
    uri = f"s3://{hook.store.bucket}/snapshots/{JOB}/manifests"
    assert told == [(uri, {"job": JOB, "snapshot": "S1", "bytes": manifest.size})]


def test_a_snapshot_is_listed_verified_kept_and_removed(rig: Rig, hook: SnapshotHook) -> None:
    hook.save(JOB, "S1")
    assert [item.name for item in hook.list(JOB)] == ["S1"]
    assert hook.verify(JOB, "S1").problem == ""
    hook.pin(JOB, "S1", "an audit")
    pin = marks.pinned(rig.store, JOB, "S1")
    assert pin is not None
    assert (pin.reason, pin.by) == ("an audit", "ada")
    with pytest.raises(RefusedError, match="pinned"):
        hook.remove(JOB, "S1")
    assert hook.unpin(JOB, "S1")
    hook.remove(JOB, "S1")
    assert hook.list(JOB) == []
    with pytest.raises(NotFoundError):
        hook.show(JOB, "S1")
    assert hook.undelete(JOB, "S1").name == "S1"
    done = {item.request.runbook for item in list_operations(rig.store, JOB)}
    assert done == {"deploy_job", "snapshot_job", "manage_snapshot"}


def test_with_cancel_the_job_stops_and_starts_again_from_it(rig: Rig, hook: SnapshotHook) -> None:
    hook.save(JOB, "S1", cancel=True)
    started = hook.restore(JOB, "S1")
    assert (started.version, started.from_snapshot, started.number) == ("v1", f"{JOB}/S1", 2)


def test_another_job_starts_from_it(rig: Rig, hook: SnapshotHook) -> None:
    rig.publish("v1", ("a",), job="rehearsal")
    hook.save(JOB, "S1")
    started = hook.restore(JOB, "S1", to="rehearsal")
    assert (started.job, started.from_snapshot) == ("rehearsal", f"{JOB}/S1")


def test_it_is_carried_to_another_installation_as_a_file(
    rig: Rig, hook: SnapshotHook, tmp_path: Path, bucket: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = hook.save(JOB, "S1")
    hook.export(JOB, "S1", tmp_path / "S1.tar")
    with pytest.raises(SnapshotExistsError):
        hook.import_(tmp_path / "S1.tar")
    other, retention = ObjectStore(bucket), ObjectStore(bucket.for_retention())
    monkeypatch.setattr(SnapshotHook, "store", other)
    monkeypatch.setattr(SnapshotHook, "task_engine", lambda self, context, say, submit: shelf.engine(other, retention))
    brought = hook.import_(tmp_path / "S1.tar")
    assert {(item.path, item.sha256) for item in brought.objects} == {(i.path, i.sha256) for i in saved.objects}
    assert [item.name for item in hook.list(JOB)] == ["S1"]
    assert artifacts.load_manifest(other, JOB, "v1").artifact_sha256 == saved.artifact_sha256
