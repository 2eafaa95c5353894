"""Airflow's API as the command line uses it, while Airflow answers with errors, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fault_proxy import Faults, Proxy
from runbooks import ended
from stack.layout import Layout
from streamops.clients.airflow import Airflow
from streamops.model.errors import UnreachableError
from streamops.settings import Settings
from streamops_airflow.hooks.streamops import StreamOpsHook
from support import Servers

pytestmark = [pytest.mark.stack, pytest.mark.full]
UNKNOWN = "no-such-job"  # refused by the first step: a run that touches nothing
EACH_ONCE = 0.99


def runs(airflow: Airflow, dag_id: str) -> dict[str, dict[str, Any]]:
    found = airflow._call("GET", f"/api/v2/dags/{dag_id}/dagRuns", params={"order_by": "-id", "limit": 100})
    return {run["dag_run_id"]: run for run in found["dag_runs"]}


@pytest.mark.parametrize("fault", ["unavailable", "lost_answer"])
def test_a_runbook_is_begun_once_although_the_request_has_to_be_made_again(
    stack: Settings, airflow: Airflow, fault: str
) -> None:
    before = runs(airflow, "start_job")
    faults = Faults(seed=1, **{fault: EACH_ONCE})
    with (
        Proxy(stack.airflow_url, faults) as proxy,
        Airflow(stack.model_copy(update={"airflow_url": proxy.address})) as far,
    ):
        run = far.trigger("start_job", {"job": UNKNOWN})
        assert far.run("start_job", run.run_id).run_id == run.run_id
    assert faults.seen[fault] >= 3  # the login, the trigger and the look were all struck
    assert set(runs(airflow, "start_job")) - set(before) == {run.run_id}
    assert ended(airflow, run).state == "failed"
    assert UNKNOWN in airflow.error("start_job", run.run_id, "check")


def test_an_airflow_that_goes_on_failing_is_said_to_fail(stack: Settings) -> None:
    faults = Faults(seed=1, unavailable=1)
    with (
        Proxy(stack.airflow_url, faults) as proxy,
        Airflow(stack.model_copy(update={"airflow_url": proxy.address})) as far,
        pytest.raises(UnreachableError, match=r"gave no token \(503\)"),
    ):
        far.trigger("start_job", {"job": UNKNOWN})
    assert 2 <= faults.seen["unavailable"] <= 10


def test_a_connection_test_asks_every_server_and_names_the_one_that_is_away(
    stack: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, connection in json.loads((Layout.find().airflow / "connections.json").read_text()).items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    servers = Servers()
    assert StreamOpsHook().test_connection() == (True, "Object store, Kafka, InfluxDB, Spark master: all answer.")
    servers.stop("influxd")
    try:
        answers, told = StreamOpsHook().test_connection()
    finally:
        servers.start("influxd")
    assert not answers
    assert "InfluxDB" in told
    assert "Kafka" not in told
