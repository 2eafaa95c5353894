"""The map's answers without servers: no one sees them without a login, and names are checked before any query."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from streamops.clients.positions import Position, position
from streamops_airflow.pages import fleet_map
from streamops_airflow.pages.outlines import OUTLINES

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("path", ["/", "/vehicles", "/vehicles/1ABC"])
def test_nothing_is_shown_without_a_login(path: str) -> None:
    assert TestClient(fleet_map.app).get(path).status_code == 401


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setitem(fleet_map.app.dependency_overrides, get_user, lambda: object())
    return TestClient(fleet_map.app)


def test_the_page_is_complete_in_itself(client: TestClient) -> None:
    page = client.get("/").text
    assert "/*OUTLINES*/" not in page
    assert '"KS"' in page
    assert "src=" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_a_measurement_that_cannot_be_one_is_refused(client: TestClient) -> None:
    assert client.get("/vehicles", params={"measurement": 'a") |> drop()'}).status_code == 422


def test_outlines_are_closed_areas_of_the_central_united_states() -> None:
    for name, points in OUTLINES.items():
        assert len(points) >= 4, name
        assert all(-112 < longitude < -80 and 25 < latitude < 50 for longitude, latitude in points), name


def test_a_row_without_a_place_is_no_position() -> None:
    row = {"vin": "A", "_time": AT, "latitude": 1.0, "longitude": 2.0, "fleet": "beta", "_measurement": "pings"}
    found = position(row)
    assert found == Position("A", AT, 1.0, 2.0, {"fleet": "beta"})
    assert fleet_map.shown(found)["time"] == "2026-01-01T12:00:00.000+00:00"
    assert position(row | {"latitude": None}) is None
