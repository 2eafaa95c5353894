"""Grafana's dashboards: the JSON is what the code makes, and every query of it finds data in a real InfluxDB."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack.compose import dashboards
from stack.layout import REPOSITORY, Layout
from stack.private import prepare_env
from streamops.clients.influx import Points
from streamops.model.names import CLUSTER
from streamops.operations import timeline
from streamops.operations.receipts import Receipt
from streamops.settings import Settings

GRAFANA = REPOSITORY / "include" / "stack" / "compose" / "grafana"
SOURCE = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "influxdb.yaml").read_text())["datasources"][0]
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
BEGAN = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
TIME_MS = int(BEGAN.timestamp() * 1000)
SAMPLES = [f"{name},symbol={symbol} value=12345" for name in ("avg_1s", "avg_1m") for symbol in ("AAPL", "ZZZZ")]
SAMPLES += ["vol_1s value=700i"]


def queries(part: str) -> list[Any]:
    """Every query of all dashboards, of their panels or of their marks."""
    found = []
    for path in FILES:
        dashboard = json.loads(path.read_text())
        if part == "panels":
            targets = [(panel["title"], item) for panel in dashboard["panels"] for item in panel["targets"]]
        else:
            targets = [(item["name"], item["target"]) for item in dashboard["annotations"]["list"]]
        found += [pytest.param(target["query"], id=f"{path.stem}: {title}") for title, target in targets]
    return found


def as_grafana(query: str, start: datetime = BEGAN, seconds: int = 60) -> str:
    """A query with Grafana's variables replaced by text, as its server does that."""
    values = {
        "timeRangeStart": start.isoformat().replace("+00:00", "Z"),
        "timeRangeStop": (start + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z"),
        "windowPeriod": "1s",
        "defaultBucket": json.dumps(SOURCE["jsonData"]["defaultBucket"]),
    }
    return re.sub(r"\bv\.(\w+)", lambda found: values[found[1]], query)


def receipt(job: str, runbook: str = "upgrade_job", state: str = "succeeded", seconds: float = 42.5) -> Receipt:
    """As an operation that began at BEGAN leaves it."""
    return Receipt(
        id=f"{runbook}-1", job=job, runbook=runbook, state=state, requested_by="ada", owner="ada",
        inputs={"runbook": runbook, "job": job, "version": "v2"}, began=BEGAN,
        finished=BEGAN + timedelta(seconds=seconds), seconds=seconds,
    )  # fmt: skip


def test_the_committed_dashboards_are_what_the_code_makes(tmp_path: Path) -> None:
    made = {path.name: path.read_text() for path in dashboards.write(tmp_path)}
    assert made == {path.name: path.read_text() for path in FILES}, "run 'make dashboards' and commit what it writes"


def test_every_dashboard_uses_the_provisioned_data_source() -> None:
    for path in FILES:
        text = path.read_text()
        named = {json.dumps(item) for item in sources(json.loads(text))}
        assert named == {json.dumps({"type": SOURCE["type"], "uid": SOURCE["uid"]})}, path.name
    provider = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "streamops.yaml").read_text())["providers"][0]
    assert provider["options"]["path"] == "/etc/streamops/dashboards"


def sources(part: object) -> Iterator[object]:
    """Every data source that is named in a dashboard."""
    for key, value in part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ():
        if key == "datasource":
            yield value
        else:
            yield from sources(value)


def test_the_data_source_has_the_names_that_the_stack_gives(tmp_path: Path) -> None:
    pairs = prepare_env(Layout(tmp_path), tmp_path)
    given = SOURCE["jsonData"]
    assert (given["organization"], given["defaultBucket"]) == (pairs["INFLUX_ORG"], pairs["INFLUX_BUCKET"])
    assert given["version"] == "Flux"


def test_panels_and_marks_are_all_looked_at() -> None:
    assert len(queries("panels")) >= 3
    assert len(queries("marks")) >= len(FILES)


@pytest.fixture(scope="module")
def points(stack: Settings) -> Iterator[Points]:
    """InfluxDB with a few points of each measurement that a panel shows, and with marks."""
    client = Points(stack)
    client.write_lines([f"{sample} {TIME_MS}" for sample in SAMPLES])
    for found in (receipt("trade-analyser"), receipt(CLUSTER, "scale_cluster"), receipt("another")):
        timeline.mark(stack, found, pytest.fail)
    yield client
    for name in {sample.split(",")[0].split()[0] for sample in SAMPLES} | {timeline.MEASUREMENT}:
        client.delete(name, TIME_MS, TIME_MS + 1)
    client.close()


@pytest.mark.stack
@pytest.mark.full
@pytest.mark.parametrize("query", queries("panels"))
def test_every_panels_query_finds_data(points: Points, query: str) -> None:
    rows = points.records(as_grafana(query))
    assert rows
    for row in rows:
        assert row["_time"] == BEGAN
        assert row.get("symbol", "AAPL") == "AAPL", "only the symbols that the panel names"
        assert row["_value"] in (123.45, 700.0), "prices in dollars"


@pytest.mark.stack
@pytest.mark.full
@pytest.mark.parametrize("query", queries("marks"))
def test_every_query_of_marks_finds_operations_in_the_columns_that_grafana_reads(points: Points, query: str) -> None:
    rows = points.records(as_grafana(query))
    assert sorted(row["tags"] for row in rows) == ["scale,succeeded", "upgrade,succeeded"], "and none of other jobs"
    for row in rows:
        assert (row["time"], row["timeEnd"]) == (BEGAN, BEGAN + timedelta(seconds=42.5))
        assert " succeeded after 42.5 s" in row["text"]
        assert "_value" not in row, "with this column Grafana takes the answer for a series"


@pytest.mark.stack
@pytest.mark.full
@pytest.mark.parametrize("query", queries("marks"))
def test_an_operation_has_one_mark_however_often_its_receipt_is_written(
    stack: Settings, points: Points, query: str
) -> None:
    for found in (receipt("trade-analyser", state="failed"), receipt("trade-analyser", state="undone", seconds=50.0)):
        for _ in range(2):
            timeline.mark(stack, found, pytest.fail)
    try:
        rows = [row for row in points.records(as_grafana(query)) if row["tags"].startswith("upgrade")]
        assert [(row["tags"], row["timeEnd"]) for row in rows] == [("upgrade,undone", BEGAN + timedelta(seconds=50))]
    finally:
        timeline.mark(stack, receipt("trade-analyser"), pytest.fail)
