"""docker-compose.yaml: as much as can be checked without an engine."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from stack import container
from stack.layout import REPOSITORY, Layout
from streamops.adapters.influx import Points
from streamops.settings import Settings

COMPOSE: dict[str, Any] = yaml.safe_load((REPOSITORY / "docker-compose.yaml").read_text())
GRAFANA = REPOSITORY / "include" / "stack" / "compose" / "grafana"
DASHBOARD = json.loads((GRAFANA / "dashboards" / "trades.json").read_text())


def mounts() -> list[tuple[str, str, str]]:
    return [
        (name, *volume.split(":")[:2]) for name, service in COMPOSE["services"].items() for volume in service["volumes"]
    ]


def test_every_file_and_volume_it_names_exists() -> None:
    for service, source, _ in mounts():
        assert (REPOSITORY / source).is_dir() if source.startswith(".") else source in COMPOSE["volumes"], service
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    for named in ("include/stack/install.py", "include/stack/compose/requirements.txt"):
        assert named in dockerfile
        assert (REPOSITORY / named).is_file()


def test_every_service_waits_for_one_that_exists() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        for needed, condition in service.get("depends_on", {}).items():
            assert needed in services, name
            assert condition["condition"] != "service_healthy" or "healthcheck" in services[needed], name


def test_no_secret_is_spelled_out_or_passed_in_the_environment() -> None:
    for name, service in COMPOSE["services"].items():
        for key in service.get("environment", {}):
            secret = any(word in key for word in ("PASSWORD", "TOKEN", "SECRET_KEY", "DATABASE"))
            assert not secret or key.endswith("FILE"), f"{name}: {key}"


def test_every_secret_file_it_names_is_written(tmp_path: Path) -> None:
    container.write_secrets(Layout(tmp_path))
    source = (GRAFANA / "provisioning" / "datasources" / "influxdb.yaml").read_text()
    text = (REPOSITORY / "docker-compose.yaml").read_text() + source
    named = {part.split("/secrets/")[1].split("}")[0] for part in text.split() if "/secrets/" in part}
    written = {path.name: path for path in (tmp_path / "secrets").iterdir()}
    assert named == set(written) & named
    assert len(named) == 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in written.values()} == {0o600}
    before = {name: path.read_text() for name, path in written.items()}
    container.write_secrets(Layout(tmp_path))
    assert {name: path.read_text() for name, path in written.items()} == before


def test_the_dashboard_uses_the_provisioned_data_source() -> None:
    source = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "influxdb.yaml").read_text())["datasources"][0]
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {source["uid"]}
    provider = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "streamops.yaml").read_text())["providers"][0]
    assert provider["options"]["path"] in {target for _, _, target in mounts()}


@pytest.mark.stack
def test_the_dashboards_queries_find_what_the_job_writes(stack: Settings) -> None:
    time_ms = 1_700_000_000_000
    points = Points(stack)
    names = ("avg_1s", "avg_1m", "vol_1s")
    points.write_lines(
        [f"{name},symbol={symbol} value=12345 {time_ms}" for name in names[:2] for symbol in ("AAPL", "ZZZZ")]
        + [f"vol_1s value=700i {time_ms}"]
    )
    found = {}
    try:
        for panel, name in zip(DASHBOARD["panels"], names, strict=True):
            window = f"option v = {{timeRangeStart: {time_ms // 1000 - 1}, timeRangeStop: {time_ms // 1000 + 1}}}\n"
            answer = httpx.post(
                f"{stack.influx_url}/api/v2/query",
                params={"org": stack.influx_org},
                headers={"Authorization": f"Token {stack.influx_token.get_secret_value()}"},
                json={"query": window + panel["targets"][0]["query"], "type": "flux"},
                timeout=30,
            )
            answer.raise_for_status()
            lines = [line for line in answer.text.splitlines() if line.strip(",\r\n") and "_value" not in line]
            found[name] = [next(cell for cell in line.split(",") if cell in ("123.45", "700")) for line in lines]
    finally:
        for name in names:
            points.delete(name, time_ms, time_ms + 1)
    assert found == {"avg_1s": ["123.45"], "avg_1m": ["123.45"], "vol_1s": ["700"]}
