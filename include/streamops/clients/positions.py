"""Where vehicles are: the newest points of a measurement that has latitude and longitude, by VIN."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from streamops.clients.influx import Points


@dataclass(frozen=True)
class Position:
    """One ping as stored; degrees, and everything else that the point carries."""

    vin: str
    time: datetime
    latitude: float
    longitude: float
    more: dict[str, Any]


class Positions(Points):
    """The installation's bucket as a map reads it."""

    def latest(self, measurement: str, minutes: int = 60) -> list[Position]:
        """The newest ping of each vehicle that pinged within the last minutes."""
        return self._query("|> last()", measurement, minutes)

    def track(self, measurement: str, vin: str, count: int = 10, minutes: int = 60) -> list[Position]:
        """The last pings of one vehicle, newest first."""
        newest = "|> filter(fn: (r) => r.vin == vin) |> tail(n: count)"
        return self._query(newest, measurement, minutes, vin=vin, count=count)[::-1]

    def _query(self, newest: str, measurement: str, minutes: int, **more: str | int) -> list[Position]:
        query = (
            "from(bucket: bucket) |> range(start: since, stop: 1m)"
            " |> filter(fn: (r) => r._measurement == measurement) "
            + newest
            + ' |> pivot(rowKey: ["_time"], columnKey: ["_field"], valueColumn: "_value")'
        )
        asked = {"measurement": measurement, "since": timedelta(minutes=-minutes), **more}
        found = [position(row) for row in self.records(query, asked)]
        return sorted((item for item in found if item), key=lambda item: (item.vin, item.time))


def position(row: dict[str, Any]) -> Position | None:
    """One row of an answer; None when it is no position."""
    latitude, longitude, vin = row.get("latitude"), row.get("longitude"), row.get("vin")
    if latitude is None or longitude is None or not vin:
        return None
    known = {"latitude", "longitude", "vin", "result", "table", "_time", "_start", "_stop", "_measurement"}
    more = {name: value for name, value in row.items() if name not in known and value is not None}
    return Position(str(vin), row["_time"], float(latitude), float(longitude), more)
