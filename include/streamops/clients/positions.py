"""Where vehicles are: the newest points of a measurement that has latitude and longitude, by VIN."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamops.clients.influx import Points
from streamops.model.errors import RefusedError
from streamops.settings import Settings

MEASUREMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
VIN = re.compile(r"[A-Z0-9]{1,32}")


@dataclass(frozen=True)
class Position:
    """One ping as stored; degrees, and everything else that the point carries."""

    vin: str
    time: datetime
    latitude: float
    longitude: float
    more: dict[str, Any]


class Positions:
    """Reads one installation's bucket.

    Raises (every method): RefusedError for a name that cannot be one, and what ``Points`` raises.
    """

    def __init__(self, settings: Settings, timeout_s: float = 10.0) -> None:
        self._points = Points(settings, timeout_s)

    def close(self) -> None:
        """Close the connections."""
        self._points.close()

    def latest(self, measurement: str, minutes: int = 60) -> list[Position]:
        """The newest ping of each vehicle that pinged within the last minutes."""
        return self._query(measurement, minutes, "", "|> last()")

    def track(self, measurement: str, vin: str, count: int = 10, minutes: int = 60) -> list[Position]:
        """The last pings of one vehicle, newest first."""
        if not VIN.fullmatch(vin):
            raise RefusedError(f"{vin!r} is not a VIN; it has capital letters and digits only.")
        only = f" and r.vin == {json.dumps(vin)}"
        return self._query(measurement, minutes, only, f"|> tail(n: {int(count)})")[::-1]

    def _query(self, measurement: str, minutes: int, only: str, newest: str) -> list[Position]:
        if not MEASUREMENT.fullmatch(measurement):
            raise RefusedError(f"{measurement!r} is not a measurement; it has letters, digits and underscores only.")
        query = (
            f"from(bucket: {json.dumps(self._points.bucket)}) |> range(start: -{int(minutes)}m, stop: 1m)"
            f" |> filter(fn: (r) => r._measurement == {json.dumps(measurement)}{only}) {newest}"
            ' |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")'
        )
        found = [position(row) for row in self._points.records(query)]
        return sorted((item for item in found if item), key=lambda item: (item.vin, item.time))


def position(row: dict[str, Any]) -> Position | None:
    """One row of an answer; None when it is no position."""
    latitude, longitude, vin = row.get("latitude"), row.get("longitude"), row.get("vin")
    if latitude is None or longitude is None or not vin:
        return None
    known = {"latitude", "longitude", "vin", "result", "table", "_time", "_start", "_stop", "_measurement"}
    more = {name: value for name, value in row.items() if name not in known and value is not None}
    return Position(str(vin), row["_time"], float(latitude), float(longitude), more)
