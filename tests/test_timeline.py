"""What the dashboards show of an operation: one point, which stays the same point, and no trouble for the operation."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fakes.rig import JOB, Rig
from streamops.model.errors import UnhealthyError
from streamops.model.names import CLUSTER
from streamops.operations import receipts, timeline
from streamops.operations.receipts import Receipt
from streamops.settings import Settings

BEGAN = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)


def receipt(**changed: Any) -> Receipt:
    """An upgrade that succeeded."""
    given = {
        "id": "upgrade_job-0a1b", "job": "sums", "runbook": "upgrade_job", "state": "succeeded",
        "requested_by": "ada", "owner": "ada", "inputs": {"runbook": "upgrade_job", "job": "sums", "version": "v2"},
        "began": BEGAN, "finished": BEGAN + timedelta(seconds=41.25), "seconds": 41.25, "snapshot": "sums/SavePoint1",
    }  # fmt: skip
    return Receipt.model_validate(given | changed)


def settings(url: str) -> Settings:
    """An installation of which only InfluxDB matters."""
    names = ("kafka_bootstrap_servers", "s3_endpoint", "s3_access_key", "s3_secret_key", "s3_bucket")
    return Settings.model_validate(
        dict.fromkeys(names, "none") | {"influx_url": url, "influx_org": "o", "influx_token": "t", "influx_bucket": "b"}
    )


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_an_operation_is_one_point_at_the_time_when_it_began() -> None:
    assert timeline.line(receipt()) == (
        'operations,job=sums,kind=upgrade id="upgrade_job-0a1b",seconds=41.25,state="succeeded",'
        'text="upgrade of sums to v2 succeeded after 41.2 s, snapshot sums/SavePoint1" 1767323045678'
    )


def test_a_later_receipt_of_the_same_operation_is_the_same_point() -> None:
    def identity(line: str) -> tuple[str, str]:
        return line.split(" ", 1)[0], line.rsplit(" ", 1)[1]

    failed = receipt(state="failed", reason="the first batch failed")
    undone = receipt(state="undone", reason="the first batch failed", seconds=50.0)
    assert len({identity(timeline.line(found)) for found in (receipt(), failed, undone)}) == 1


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"runbook": "deploy_job", "snapshot": None}, "deploy of sums to v2 succeeded after 41.2 s"),
        (
            {"runbook": "scale_cluster", "job": CLUSTER, "inputs": {"size": 3}, "snapshot": None},
            "scale of the cluster to 3 members succeeded after 41.2 s",
        ),
        (
            {"runbook": "scale_cluster", "job": CLUSTER, "inputs": {"change": -1}, "snapshot": None},
            "scale of the cluster by -1 succeeded after 41.2 s",
        ),
        (
            {"state": "undone", "snapshot": None, "reason": 'stage "a" failed:\n  boom\\'},
            'upgrade of sums to v2 undone after 41.2 s: stage "a" failed: boom\\',
        ),
    ],
)
def test_a_mark_says_what_was_done_in_one_line(changed: dict[str, Any], says: str) -> None:
    assert timeline.text(receipt(**changed)) == says


def test_a_long_reason_is_cut() -> None:
    said = timeline.text(receipt(state="failed", reason="no " * 1000))
    assert len(said) == 400
    assert said.endswith("…")


@pytest.mark.parametrize("text", ['a "quoted" one', "back\\slash", "two\nlines"])
def test_whatever_the_reason_it_stays_one_line(text: str) -> None:
    assert "\n" not in timeline.line(receipt(reason=text, state="failed"))


def test_without_influxdb_it_is_said_in_one_line() -> None:
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    timeline.mark(settings(f"http://127.0.0.1:{port}"), receipt(), said.append)
    assert len(said) == 1
    assert said[0].startswith("Operation upgrade_job-0a1b gets no mark on the dashboards: InfluxDB at http")
    assert "\n" not in said[0]


def test_an_influxdb_that_does_not_answer_holds_nobody_up(silent: str) -> None:
    said: list[str] = []
    began = time.monotonic()
    timeline.mark(settings(silent), receipt(), said.append)
    assert time.monotonic() - began < timeline.LIMIT_S + 1
    assert len(said) == 1


def test_a_name_that_takes_long_to_look_up_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(5))
    said: list[str] = []
    began = time.monotonic()
    timeline.mark(settings("http://influxdb:8086"), receipt(), said.append)
    assert time.monotonic() - began < timeline.LIMIT_S + 1
    assert said == ["Operation upgrade_job-0a1b gets no mark on the dashboards: InfluxDB did not take it within 1 s"]


def test_whatever_goes_wrong_the_operation_does_not_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(timeline, "Points", broken)
    said: list[str] = []
    timeline.mark(settings("http://127.0.0.1:1"), receipt(), said.append)
    assert said == ["Operation upgrade_job-0a1b gets no mark on the dashboards: a bug"]


def test_every_operation_that_is_over_is_marked_with_its_receipt(rig: Rig) -> None:
    rig.run("deploy_job", version="v1")
    rig.commits_more()
    rig.cluster.behaviour["v2"] = "dies"
    with pytest.raises(UnhealthyError):
        rig.run("upgrade_job", version="v2", snapshot="s")
    assert [(found.runbook, found.state) for found in rig.marked] == [
        ("deploy_job", "succeeded"),
        ("upgrade_job", "failed"),
        ("upgrade_job", "undone"),
    ]
    assert rig.marked[-1] == receipts.read(rig.store, JOB, rig.marked[-1].id)
    assert len({found.began for found in rig.marked if found.runbook == "upgrade_job"}) == 1
