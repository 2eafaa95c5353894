"""Which identity of the object store a task uses: from the connections that the stack writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

from stack import configure, private
from stack.layout import Layout
from streamops.clients.airflow import Run
from streamops.model import records
from streamops.model.definitions import Keep
from streamops.model.errors import RefusedError, UnreachableError
from streamops.operations import housekeeping
from streamops.operations.follow import Runbooks, request
from streamops.operations.housekeeping import Pruned
from streamops.operations.ports import Submitter
from streamops.snapshots.removal import Swept
from streamops.snapshots.retention import Verdict
from streamops_airflow.hooks.snapshots import SnapshotHook
from streamops_airflow.hooks.streamops import FIRST, StreamOpsHook
from streamops_airflow.operators.catalogue import JobsOperator, RetentionOperator, VerifyOperator


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


REMOVES = Pruned("clicks", (Verdict("s1", records.now(), False, ("not kept by last 2",)),), Swept(), applied=False)
KEEPS = Pruned("clicks", (Verdict("s1", records.now(), True, ("the last good one",)),), Swept(), applied=False)


@pytest.fixture
def retention(pairs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the task of ``apply_retention`` for a job; what it asks for, and what it hands on."""
    asked: list[dict[str, Any]] = []

    def run(hook: SnapshotHook, runbook: str, **values: Any) -> SimpleNamespace:
        asked.append({"runbook": runbook, **values})
        return SimpleNamespace(facts=lambda step: {**REMOVES.told(), "freed_bytes": 7})

    def do(planned: Pruned, **params: Any) -> tuple[list[dict[str, Any]], Any]:
        monkeypatch.setattr(housekeeping, "plan", lambda *_: planned)
        kind = params.pop("kind", "manual")
        dag_run = SimpleNamespace(dag_id="apply_retention", run_id="run-1", run_type=kind)
        asked.clear()
        params = {"apply": True, "job": None, "keep": None, **params}
        handed = RetentionOperator(task_id="r", job="clicks").execute(
            {"params": params, "dag_run": dag_run, "ti": None}
        )
        return [*asked], json.loads(json.dumps(handed))

    monkeypatch.setattr(housekeeping, "keep_of", lambda store, job: None)
    monkeypatch.setattr(SnapshotHook, "_run", run)
    return do


def test_retention_begins_an_operation_only_where_it_was_asked_to_and_something_goes(
    retention: Callable[..., Any],
) -> None:
    wanted = [{"runbook": "apply_retention", "job": "clicks", "keep": None}]
    assert retention(REMOVES)[0] == retention(REMOVES, apply=False, kind="scheduled")[0] == wanted
    assert retention(REMOVES, apply=False)[0] == retention(KEEPS)[0] == []


def test_another_rule_is_that_of_one_job_and_what_was_done_is_handed_on_whole(retention: Callable[..., Any]) -> None:
    asked, told = retention(REMOVES, job="clicks", keep={"last": 2})
    assert asked[0]["keep"] == Keep(last=2)
    assert Pruned.of("clicks", told) == replace(REMOVES, swept=Swept(size=7), applied=True)
    with pytest.raises(AirflowFailException, match="lst"):
        retention(REMOVES, job="clicks", keep={"lst": 2})


@pytest.mark.parametrize("field", ["keep", "snapshot"])
def test_what_goes_with_one_job_is_refused_for_all(pairs: dict[str, str], field: str) -> None:
    run = SimpleNamespace(dag_id="d", run_id="r", run_type="manual", conf={}, note="", triggering_user_name="ada")
    context = {"params": {"job": None, field: "s1"}, "dag_run": run, "dag": SimpleNamespace(params={"job", field})}
    with pytest.raises(AirflowFailException, match="goes with one job"):
        JobsOperator(task_id="look").execute(context)


def test_without_that_connection_everything_uses_the_one_identity(
    pairs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(f"AIRFLOW_CONN_{FIRST['s3_retention'].upper()}")
    hook = StreamOpsHook()
    assert hook.retention is hook.store


@pytest.fixture
def second(pairs: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The services of a second installation: those of the first, with a bucket of its own."""
    found = {service: FIRST[service] for service in FIRST if service != "s3_retention"} | {"s3": "eu_s3"}
    store = json.loads(os.environ["AIRFLOW_CONN_STREAMOPS_S3"])
    store["extra"]["bucket"] = "second"
    monkeypatch.setenv("AIRFLOW_CONN_EU_S3", json.dumps(store))
    monkeypatch.setenv("AIRFLOW_CONN_EU", json.dumps({"conn_type": "streamops", "extra": found}))
    return found


def test_one_airflow_serves_two_installations(pairs: dict[str, str], second: dict[str, str]) -> None:
    assert (StreamOpsHook().store.bucket, StreamOpsHook("eu").store.bucket) == (pairs["S3_BUCKET"], "second")
    assert StreamOpsHook("eu").retention.identity == pairs["S3_ACCESS_KEY"]  # not that of the first
    assert VerifyOperator(task_id="v", job="clicks", streamops_conn_id="eu").hook.store.bucket == "second"


def test_an_installation_names_all_its_services_or_none(
    second: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert StreamOpsHook("streamops").services == FIRST
    part = {"s3": "eu_s3", "spark": second["spark"]}
    monkeypatch.setenv("AIRFLOW_CONN_EU", json.dumps({"conn_type": "streamops", "extra": part}))
    with pytest.raises(RefusedError, match="names no connection for kafka, influx, snapshots"):
        _ = StreamOpsHook("eu").settings
    assert StreamOpsHook("eu").test_connection()[0] is False
    with pytest.raises(AirflowNotFoundException, match="nowhere"):
        _ = StreamOpsHook("nowhere").settings


def test_a_connection_test_names_each_server_that_does_not_answer(
    pairs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise UnreachableError("Kafka at 127.0.0.1:1 did not answer; retry.")

    asked = {"Object store": lambda: None, "Kafka": refuse, "InfluxDB": lambda: None}
    monkeypatch.setattr("streamops_airflow.hooks.streamops.questions", lambda settings: asked)
    assert StreamOpsHook().test_connection() == (False, "Kafka at 127.0.0.1:1 did not answer; retry.")
    asked.pop("Kafka")
    assert StreamOpsHook().test_connection() == (True, "Object store, InfluxDB: all answer.")


def test_the_command_line_names_the_installation_of_its_context() -> None:
    class Far:
        installation = "eu"

        def require_unpaused(self, dag_id: str) -> None:
            pass

        def trigger(self, dag_id: str, conf: dict[str, Any], note: str) -> Run:
            raise RefusedError(f"{dag_id}: {conf}")

    with pytest.raises(RefusedError, match="'streamops_conn_id': 'eu'"):
        Runbooks(Far(), None).run(request("cancel_job", job="clicks"), lambda steps: None)
