"""The demos, with short traffic."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from demos import elasticity
from demos.fleet import story as fleet_story
from demos.report import elasticity as elasticity_page
from demos.report import fleet as fleet_page
from demos.upgrade import JOB, MEASUREMENTS, RATE, Demo, Options, summary, write
from runbooks import at_work
from stack import lifecycle
from streamops import snapshots
from streamops.cli.story import pace, start_stack
from streamops.clients.airflow import Airflow
from streamops.operations.follow import Runbooks
from streamops.operations.follow import request as asked
from streamops.settings import Settings
from streamops.store import jobs
from streamops.store.object_store import ObjectStore
from support import Operator, first_members

pytestmark = pytest.mark.stack


@pytest.fixture(scope="module")
def traffic(stack: Settings) -> Iterator[Settings]:
    """Trades at the demo's rate, and no job yet; at the end both are stopped, and the cluster is as before."""
    operator = Operator(stack)
    first_members(operator)
    if jobs.record(ObjectStore(stack), JOB) is not None:
        operator.run("delete_job", JOB)  # of an earlier run of the tests
    try:
        yield start_stack()
    finally:
        lifecycle.generator_stop()
        if (record := jobs.record(ObjectStore(stack), JOB)) is not None and record.desired == "running":
            operator.run("cancel_job", JOB)
        first_members(operator)


def told(settings: Settings, directory: Path) -> tuple[dict, list[str]]:
    lines: list[str] = []
    options = Options(traffic_before_s=8, traffic_after_s=10, probation_s=5, report=directory)
    with at_work(settings, "scheduled_snapshots"), at_work(settings, "apply_retention"):
        report = Demo(settings, options, lines.append, lambda: lambda steps: None, pace).tell()
    data, page = write(report, directory)
    assert json.loads(data.read_text()) == json.loads(json.dumps(report))
    assert report["upgrade"]["snapshot"] in page.read_text()
    assert report["recount"]["clean"], report["recount"]
    return report, lines


@pytest.mark.long
def test_the_demo_tells_its_story(traffic: Settings, tmp_path: Path) -> None:
    report, _ = told(traffic, tmp_path)
    assert {item["measurement"] for item in report["recount"]["measurements"]} == set(MEASUREMENTS)
    assert all(item["expected"] > 0 for item in report["recount"]["measurements"])
    assert report["rate"]["reached"] > 0.9 * RATE
    upgrade = report["upgrade"]
    assert (upgrade["from"], upgrade["to"], upgrade["snapshot"]) == ("v1", "v2", "SavePoint1")
    assert upgrade["snapshot_bytes"] > 0
    assert upgrade["gaps"]["avg_1s"]["seconds"] > 0
    assert upgrade["gaps"]["avg_1m"]["last"] is None  # new: nothing committed before
    assert upgrade["longest_pause_s"] > 0
    assert {"await_stop", "export_and_restore", "hand_over"} <= {step["name"] for step in upgrade["steps"]}
    assert all(report["series"]["avg_1s"][symbol] for symbol in ("AAPL", "MSFT", "AMZN"))
    assert report["series"]["vol_1s"][0][0] >= upgrade["switch_ms"] - 60_000
    taken = report["takeover"]
    assert taken["operation"], taken["reason"]
    assert taken["pauses"].keys() == {"avg_1s", "avg_1m", "vol_1s"}
    assert any("CLEAN" in line for line in summary(report))
    first, second = report["scheduled"]["taken"]
    kept = {item["name"]: item["keep"] for item in report["scheduled"]["verdicts"]}
    assert (kept[first], kept[second], kept["SavePoint1"]) == (False, True, True)  # v2 started from the third
    assert {first, second} <= {item.name for item in snapshots.list(ObjectStore(traffic), JOB)}  # nothing was applied


@pytest.mark.long
def test_the_cluster_demo_tells_its_story(traffic: Settings, tmp_path: Path) -> None:
    quiet_s = 5.0
    base = Demo(traffic, Options(report=tmp_path), lambda line: None, lambda: lambda steps: None, pace)
    report = elasticity.Elasticity(base, traffic_s=5, quiet_s=quiet_s).tell()
    _, page = write(report, tmp_path, elasticity.NAME, elasticity_page.page)
    assert report["recount"]["clean"], report["recount"]
    assert [item["name"] for item in report["events"]] == [
        elasticity.DOWN, "a member joins", "a member is killed", "a member leaves",
    ]  # fmt: skip
    assert report["restart"]["unread"] > 0.9 * RATE * quiet_s
    assert report["restart"]["events"] > report["restart"]["unread"]
    assert [len(item["members"]) for item in report["events"]] == [2, 3, 3, 2]
    assert f"{report['restart']['events']:,}" in page.read_text()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_second_demo_on_the_same_stack_goes_back_to_v1_first(traffic: Settings, tmp_path: Path) -> None:
    first, _ = told(traffic, tmp_path / "first")
    again, lines = told(traffic, tmp_path / "again")
    assert again["upgrade"]["snapshot"] not in ("", first["upgrade"]["snapshot"])
    assert (again["upgrade"]["from"], again["upgrade"]["to"]) == ("v1", "v2")
    assert any("v1" in line for line in lines)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_fleet_demo_tells_its_story(stack: Settings, tmp_path: Path) -> None:
    lines: list[str] = []
    lifecycle.fleet_start()
    try:
        report = fleet_story.FleetStory(stack, lines.append, lambda: lambda steps: None, kills=1).tell(
            lifecycle.fleet_stop
        )
    finally:
        lifecycle.fleet_stop()
        with Airflow(stack) as airflow:
            runbooks = Runbooks(airflow, ObjectStore(stack))
            runbooks.run(asked("cancel_job", job=fleet_story.JOB), lambda steps: None)
        first_members(Operator(stack))
    _, page = write(report, tmp_path, fleet_story.NAME, fleet_page.page)
    assert report["recount"]["clean"], report["recount"]
    assert report["vehicles"] == fleet_story.VEHICLES
    assert report["case_1"]["meantime"] > 0
    assert report["case_2"]["library"] == ["fleet_types/v1", "fleet_types/v2"]
    assert len(set(report["case_2"]["artifact_sha256"])) == 1
    assert all(report["case_2"]["pings_with_codes"][fleet] > 0 for fleet in ("alpha", "beta"))
    assert f"{report['recount']['pings']:,}" in page.read_text()
