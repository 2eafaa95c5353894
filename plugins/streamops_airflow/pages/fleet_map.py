"""The map of the fleet: one page and two answers in JSON, for everybody who is logged in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse

from streamops.clients.positions import Position, Positions
from streamops.model.errors import StreamOpsError
from streamops_airflow.hooks.streamops import StreamOpsHook
from streamops_airflow.pages.outlines import OUTLINES

PREFIX = "/fleet"
Measurement = Annotated[str, Query(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,62}$")]

app = FastAPI(title="Fleet map", docs_url=None, redoc_url=None, openapi_url=None)


@app.get("/", response_class=HTMLResponse)
def page(user: GetUserDep) -> str:
    """The page; it is complete in itself and fetches nothing but the two answers below."""
    template = (Path(__file__).parent / "fleet_map.html").read_text(encoding="utf-8")
    return template.replace("/*OUTLINES*/", json.dumps(OUTLINES))


@app.get("/vehicles")
def vehicles(user: GetUserDep, measurement: Measurement = "pings") -> list[dict[str, Any]]:
    """Where every vehicle was last."""
    return _answer(lambda positions: positions.latest(measurement))


@app.get("/vehicles/{vin}")
def vehicle(user: GetUserDep, vin: str, measurement: Measurement = "pings") -> list[dict[str, Any]]:
    """The last pings of one vehicle, newest first."""
    return _answer(lambda positions: positions.track(measurement, vin))


def _answer(ask: Callable[[Positions], list[Position]]) -> list[dict[str, Any]]:
    positions = Positions(StreamOpsHook().settings)
    try:
        return [shown(item) for item in ask(positions)]
    except StreamOpsError as error:
        raise HTTPException(503, str(error)) from None
    finally:
        positions.close()


def shown(item: Position) -> dict[str, Any]:
    """A position as the page reads it."""
    return {
        "vin": item.vin,
        "time": item.time.isoformat(timespec="milliseconds"),
        "latitude": item.latitude,
        "longitude": item.longitude,
        **item.more,
    }
